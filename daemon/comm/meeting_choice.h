#ifndef DAEMON_COMM_MEETING_CHOICE_H
#define DAEMON_COMM_MEETING_CHOICE_H

#include "daemon/comm/comms_internal.h"

/*
 * Which nodes serve a name as its places, as relays of its guests (meeting.h) and as witnesses (witness.h).
 * The owner's uid and the name choose; a relay also depends on the guest's group, a witness on group and
 * node. Nodes that know the same nodes choose the same ones. Out-of-reach nodes come last. Private to
 * daemon/comm.
 */

/* Communicators of so many ranks report through relays: from there on, that forms them sooner. */
#define MEETING_RELAYED_RANKS_LEAST 64u
/* A place takes reports from the first relays of the guest's group, in its own order: reachable or not, so
 * that nodes that see the cluster differently agree. */
#define MEETING_RELAYS_TRUSTED 8u
/* What a relay hands on may come from one of so many first places: it turns to them one after the other. */
#define MEETING_PLACES_DOUBTED 8u

/* Of nodes of a communicator of `size` ranks, in a cluster of node_count: about the square root of their
 * number, so neither a relay nor the place has more connections than that. 0: no relays are used. */
uint32_t meeting_groups(uint32_t size, uint32_t node_count);
/* groups: at least 1. */
uint32_t meeting_group_of(const char *node, uint32_t groups);

struct meeting_chooser {
    const struct comms *comms;
    const struct owned_name *key;
    bool relay; /* of this group; otherwise a place */
    uint32_t group;
    const char
        *about; /* not null: neither, but a witness of the group for the node of that name (witness.h) */
    /* Nodes that are not to be chosen; null: none. */
    bool (*is_taken)(const void *context, uint32_t node);
    const void *context;
};

/* *node gets the mesh's index or MESH_NODE_OWN. Returns false if there is none. */
bool meeting_choose(const struct meeting_chooser *chooser, uint32_t *node);
/* Whether that node is one of the first MEETING_RELAYS_TRUSTED relays of the group. Takes time in proportion
 * to the cluster's nodes. */
bool meeting_trusts_relay(const struct comms *comms, const struct owned_name *key, uint32_t group,
                          uint32_t node);
/* Whether that node is one of the first MEETING_PLACES_DOUBTED places. Likewise. */
bool meeting_may_be_place(const struct comms *comms, const struct owned_name *key, uint32_t node);

#endif
