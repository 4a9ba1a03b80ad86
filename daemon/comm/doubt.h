#ifndef DAEMON_COMM_DOUBT_H
#define DAEMON_COMM_DOUBT_H

#include "daemon/comm/comms_internal.h"

/*
 * Places and relays that lie (meeting.h). A place tells nodes that a communicator cannot form any more,
 * because of some node. They believe this only if that node does not deny it. On up to COMMS_DOUBT_NODES_MAX
 * nodes, each node connects to the named node, announces its ranks to it, and waits for the answer.
 *
 * - Its part has ended: it sends the Withdraw again, which it keeps for COMMS_ENDS_KEPT_NS.
 * - It is still forming the communicator, or never was: it answers without a Withdraw. That denies what the
 *   place says. The communicator goes on forming, and the node turns to a further place.
 * - It does not answer, and is lost, or its time is over: the place is believed.
 *
 * On more nodes, all of them at once would connect to the named one. There, nodes ask witnesses (witness.h),
 * unless they are connected to the named node. A witness that says that the part has ended is believed, as
 * the place says so, too. So is the place if the witness knows nothing. If a witness says that the named node
 * denies it, or does not answer, the node asks a second witness. If that one says nothing, a denial of the
 * first counts, and otherwise the place. So no single node can both tell and confirm, or deny what is true.
 *
 * If the place has ended its own part, it is believed at once. So a node can end the formation of others only
 * in its own name, or in that of a node that cannot be reached, or that is of an older version. Private to
 * daemon/comm. One thread.
 */

/* When the place is believed although the named node has not answered. */
#define COMMS_DOUBT_NS (1 * TIME_S)
/* The same, if the place says that the node is lost. */
#define COMMS_DOUBT_LOST_NS (250 * TIME_MS)
/* How often a node looks whether a named node is known to be lost. */
#define COMMS_DOUBT_LOOK_NS (50 * TIME_MS)
/* So many named nodes one communicator asks at the same time; what is said of others is ignored. */
#define COMMS_DOUBTS_MAX 16u
/* So many nodes, of those that have said nothing themselves, may be named one after the other; what is said
 * of further ones is ignored. The user pays for each. */
#define COMMS_DOUBTED_MAX 256u
/* Communicators that may have ranks on more nodes ask witnesses. Each connection costs the named node a
 * millisecond or more, and up to 128 KiB. */
#define COMMS_DOUBT_NODES_MAX 256u
/* Of a node's own parts: how many ends it keeps, how many of one user if they are many, for how long. */
#define COMMS_ENDS_MAX 64u
#define COMMS_ENDS_USER_MAX 16u
#define COMMS_ENDS_KEPT_NS (4 * TIME_S) /* longer than two witnesses may take */

struct comms_doubt;
struct comms_ends;

/* A place, or a relay, says that the forming communicator cannot form any more. teller: who says so, the
 * mesh's index or MESH_NODE_OWN. */
void comms_doubt_begin(struct communicator *comm, uint32_t teller, const Commd__Mesh__Roster *said,
                       uint64_t now_ns);
/* Call it when the deadline has passed. */
void comms_doubt_step(struct communicator *comm, uint64_t now_ns);
/* The connection to that node is new: if it is to be asked, asks it. */
void comms_doubt_node_up(struct communicator *comm, uint32_t node, uint64_t now_ns);
/* Whether the claim's node is to be asked by an announcement. */
bool comms_doubt_announces(const struct comms_claim *claim);
/* The node has answered an announcement. has_ranks: it is forming the communicator itself. */
void comms_doubt_answered(struct communicator *comm, struct comms_claim *claim, bool has_ranks,
                          uint64_t now_ns);
/* The node says itself that its part has ended. Returns false if nothing is in doubt. */
bool comms_doubt_confirmed(struct communicator *comm, const struct comms_claim *claim,
                           const struct error *cause, const struct comms_detail *detail, uint64_t now_ns);

/* A node says what it knows of the named node's part, `about`. Ignored if it was not asked. */
void comms_doubt_heard(struct comms *comms, uint32_t node, uint32_t about,
                       const Commd__Mesh__EndAnswer *answer, uint64_t now_ns);
/* Whether the node is not up, and known to be lost. */
bool comms_doubt_is_lost(const struct comms *comms, uint32_t node);

void comms_doubt_free(const struct communicator *comm, struct comms_claim *claim);

/* This node's part has ended, and the communicator cannot form any more: keeps that. */
void comms_ends_keep(struct comms *comms, const struct owned_name *key, const Commd__Mesh__Withdraw *end);
/* The last such end. Returns false if there is none. *out and *failure point into what is kept. */
bool comms_ends_fill(const struct comms *comms, uint32_t owner_uid, const char *name, uint64_t now_ns,
                     Commd__Mesh__Withdraw *out, Commd__Mesh__Failure *failure);
/* A node announces its ranks of a communicator that this node does not have: tells it of the end. */
void comms_ends_answer(struct comms *comms, uint32_t node, const Commd__Mesh__Announce *announce,
                       uint64_t now_ns);
void comms_ends_free(struct comms *comms);

#endif
