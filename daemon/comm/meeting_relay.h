#ifndef DAEMON_COMM_MEETING_RELAY_H
#define DAEMON_COMM_MEETING_RELAY_H

#include "daemon/comm/comms_internal.h"

/*
 * A relay between guests and places (meeting.h). For each name it keeps its guests' last reports, and hands
 * new ones on to the places to which it has turned, many at once. It is a guest of these places itself
 * (struct comms_guest), so it finds their successors in the same way. It forgets a guest when that says that
 * it is over, or when their connection ends. If the connection is lost, or the guest cannot form the
 * communicator any more, the places are told.
 *
 * Once a place says that every rank is there, the relay needs the place no more. A later report begins that
 * again. If guests have turned to other relays before, the place may lie: the relay turns to as many further
 * places at once, and believes none for MEETING_NEXT_REPORTS_NS. If this node has ranks of the communicator
 * itself, its guests are told at once, so that they know that they need this node. They are told, too, if a
 * place with ranks is lost.
 *
 * Private to daemon/comm.
 */

/* What a relay keeps, with its guests' reports: in all, and for one node. A guest that does not fit is told
 * to turn to places itself. So one node cannot make a relay serve more than about a hundred names,
 * each of which has up to MEETING_RELAYS_MAX places at once. */
#define MEETING_RELAY_MAX_BYTES ((size_t)64 << 20)
#define MEETING_RELAY_NODE_MAX_BYTES ((size_t)128 << 10)
/* How long a relay waits before it hands on a first report, and at least between further ones. */
#define MEETING_RELAY_TELL_NS (5 * TIME_MS)
#define MEETING_RELAY_PAUSE_NS (20 * TIME_MS)
#define MEETING_RELAY_PART_BYTES (32u << 10) /* of one MeetMany, about */

struct comms_relay;

/* A guest says Meet. node: the mesh's index, or MESH_NODE_OWN. turn: how many relays it has turned to before.
 */
void comms_relay_join(struct comms *comms, uint32_t node, const struct owned_name *key,
                      const Commd__Mesh__Announce *report, uint32_t turn, uint64_t now_ns);
/* Its part is over. end: why; null: nothing is to be told. */
void comms_relay_leave(struct comms *comms, uint32_t node, const struct owned_name *key,
                       const Commd__Mesh__Withdraw *end);
/* A place's answer. */
void comms_relay_received(struct comms *comms, uint32_t node, const Commd__Mesh__MetMany *met);
/* Reports all guests to a place, which is connected, or MESH_NODE_OWN. */
void comms_relay_say(struct comms_relay *relay, uint32_t place);
/* This node's own ranks have changed: its guests are told, if it is a relay of that name. */
void comms_relay_own_report(struct communicator *comm);

/* The connection is new, or lost. */
void comms_relays_node_up(struct comms *comms, uint32_t node);
void comms_relays_node_lost(struct comms *comms, uint32_t node, const struct error *cause, uint64_t now_ns);
void comms_relays_tick(struct comms *comms, uint64_t now_ns);
uint64_t comms_relays_deadline_ns(const struct comms *comms);
void comms_relays_free(struct comms *comms);

#endif
