#ifndef DAEMON_COMM_ROSTER_H
#define DAEMON_COMM_ROSTER_H

#include "daemon/comm/comms_internal.h"

/*
 * How communicators of many ranks form, in a cluster where not every node is connected to every other.
 *
 * Each node with ranks reports them to a place (meeting.h), to one at first, or through a relay. A place that
 * has heard of every rank sends the list of all nodes, the roster, to the node of rank 0, and has done its
 * part. From there the roster goes down the tree that the nodes form (comms_tree.h), over connections that
 * each parent dials. A node that has it makes the promise (promise.c), and says so to its parent once all
 * nodes below it have. When the root knows that all have promised, the communicator is formed; that goes down
 * the tree.
 *
 * So each node has connections to a place or relay, its parent and its children, and sends and gets a few
 * messages of each. While ranks are missing, places tell everybody about once a second which there are: for
 * texts, and so that a rank that is taken is refused at once. Nodes whose reports contradict each other are
 * told of each other, connect, and settle that as in a small communicator (announce.c). If a node that has
 * reported is lost, or says that it cannot form the communicator any more, the place tells all others, and it
 * ends. A place that has ranks itself says so to each new guest, and to all when its first rank comes: so
 * guests know that they need it. If a node has not reported, which an older commd cannot, all nodes are told
 * of all, and connect.
 *
 * A complete roster counts only as a whole (roster_draft.h), with this node's own entry, and from a node that
 * may send it. To the node of rank 0 that is a place or relay to which it has turned, and to others the
 * parent in that roster. Otherwise what was known stays, and so does the promise. Nodes turn to further
 * places if one lies, so a later place counts more than earlier ones.
 *
 * Private to daemon/comm.
 */

#define COMMS_ROSTER_PART_BYTES (32u << 10) /* of one part of a roster, about */
/* So many complete rosters count that come from one place, and as many of each place behind one relay. */
#define COMMS_ROSTERS_OF_PLACE_MAX 16u
/* Down the tree, from a node that was met because it asked for the name and had no ranks. */
#define COMMS_ROSTERS_OF_STRANGER_MAX 2u

struct comms_roster_item {
    const char *node;
    Commd__Mesh__Announce report;
};

struct comms_roster {
    const char *name;
    uint32_t owner_uid;
    bool is_complete;
    bool adds; /* it says of these nodes alone: what earlier rosters said of others stays */
    struct comms_roster_item *items;
    uint32_t count;
};

/* Packs the roster in parts, and hands each out. Returns false without memory; then the last part was not
 * handed out. */
bool comms_roster_write(const struct comms_roster *roster,
                        void (*part)(void *context, const uint8_t *bytes, size_t size_bytes), void *context);
/* The same, of this node's ranks alone: what earlier rosters said of others stays. */
void comms_roster_write_own(const struct communicator *comm,
                            void (*part)(void *context, const uint8_t *bytes, size_t size_bytes),
                            void *context);
void comms_roster_received(struct comms *comms, uint32_t node, const Commd__Mesh__Roster *roster,
                           uint64_t now_ns);
/* The promise is made: passes the roster on to the children, if this node forms by a tree. */
void comms_roster_pass(struct communicator *comm);

#endif
