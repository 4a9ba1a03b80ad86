#ifndef DAEMON_COMM_MEETING_RELAY_INTERNAL_H
#define DAEMON_COMM_MEETING_RELAY_INTERNAL_H

#include "daemon/comm/meeting.h"
#include "daemon/comm/meeting_relay.h"

/* What the files meeting_relay.c and meeting_relay_tell.c share: the relay's side. */

/* A guest that reports here. */
struct relayed {
    uint32_t node; /* the mesh's index, or MESH_NODE_OWN */
    uint64_t nonce;
    bool is_new;  /* not handed on yet */
    bool is_done; /* a place has said that every rank is there */
    size_t size_bytes;
    uint8_t *bytes; /* Announce, packed, without name and owner */
    UT_hash_handle hh;
};

struct comms_relay {
    struct comms *comms;
    struct owned_name key;
    struct relayed *guests; /* by node */
    struct comms_guest *guest;
    uint32_t turn;     /* it has turned to so many further places: see comms_relay_join */
    uint64_t done_ns;  /* then it believes a place that every rank is there; TIME_NEVER: none has said so */
    bool is_new;       /* some guest is */
    bool is_elsewhere; /* a place knows no relays: the guests are to turn to places */
    /* A place that has ranks itself; null: none has said so. */
    uint32_t *place_ranks;
    uint32_t place_rank_count, place;
    UT_hash_handle hh;
};

/* What a node's reports take here. */
struct relay_visitor {
    uint32_t node;
    size_t size_bytes;
    UT_hash_handle hh;
};

struct comms_relays {
    struct comms_relay *by_key;
    struct relay_visitor *visitors;
    size_t size_bytes;
    uint64_t tell_ns; /* TIME_NEVER: nothing is to be told */
    uint64_t told_ns; /* the last time; 0 before */
};

/* Of the mesh's index, or MESH_NODE_OWN. */
bool relay_reaches(const struct comms *comms, uint32_t node);
/* Null: that node is no guest. A null relay has none. */
struct relayed *relay_guest(const struct comms_relay *relay, uint32_t node);

/* --- meeting_relay_tell.c --- */

/* Tells all guests whose communicator is forming that it cannot form any more, because of that node. */
void relay_tell_all_end(struct comms_relay *relay, uint32_t ended_by, const Commd__Mesh__Withdraw *end);
/* Tells a node to turn to places itself. */
void relay_send_elsewhere(struct comms *comms, const struct owned_name *key, uint32_t node);
/* This node has ranks, too: says so to a guest. */
void relay_tell_own(const struct communicator *comm, uint32_t node);
/* Whether the place, which is connected, takes MeetMany. */
bool relay_knows_relays(const struct comms *comms, uint32_t place);
/* Reports guests to a place: new ones, or all that are not done. */
void relay_send_reports(struct comms_relay *relay, uint32_t place, bool only_new);
/* Reports new guests to all connected places. */
void relay_tell_new(struct comms_relay *relay);
/* The guest is gone: tells the places. If no place is connected, what they are told waits for one, and the
 * other guests are told at once. */
void relay_tell_gone(struct comms_relay *relay, const struct relayed *gone, const Commd__Mesh__Withdraw *end);
/* Hands a place's message on to the guests that it is for, if it is sound. */
void relay_hand_on(struct comms_relay *relay, uint32_t place, const Commd__Mesh__MetMany *met);

#endif
