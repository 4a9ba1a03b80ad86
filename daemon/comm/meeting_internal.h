#ifndef DAEMON_COMM_MEETING_INTERNAL_H
#define DAEMON_COMM_MEETING_INTERNAL_H

#include "daemon/comm/meeting.h"

/* What the files meeting.c, meeting_many.c and meeting_roster.c share: the place's side. */

/* A guest's ranks, in a communicator that may form by a tree. */
struct comms_report {
    struct communicator_terms terms;
    uint64_t nonce;
    size_t size_bytes;
    uint8_t bytes[]; /* Announce, packed */
};

/* A node with ranks, at a place. */
struct guest {
    struct guest *prev, *next;       /* in its meeting, the latest last */
    struct guest *of_prev, *of_next; /* of its visitor, the oldest first */
    struct meeting *meeting;
    struct visitor *visitor;     /* who said so: the node itself, or a relay */
    uint32_t node;               /* the mesh's index, or MESH_NODE_OWN */
    bool is_relayed;             /* by the visitor, which may be the node itself */
    uint64_t number;             /* grows with each guest of the meeting */
    uint64_t told;               /* it knows of the guests up to this number */
    struct comms_report *report; /* null: it forms with connections to all, and is told of all by Met */
    bool is_odd;                 /* its report contradicts an earlier one; the two are told of each other */
    bool is_old;                 /* the communicator was complete with it, and may be over */
    UT_hash_handle hh;
};

/* Whether a node may report for the guests of a group. Kept, because finding out takes time. */
struct meeting_trust {
    struct {
        uint32_t relay, group;
    } key;
    bool is_trusted;
    UT_hash_handle hh;
};

/* The nodes with ranks of one name. */
struct meeting {
    struct meeting *prev, *next; /* in `untold` */
    struct owned_name key;
    struct guest *guests;
    struct guest *by_node;
    struct meeting_trust *trusts;
    uint64_t last_number;
    bool is_untold;  /* some guest does not know of another one, or a report is new */
    bool is_partial; /* in `partial`: the guests are to be told which reports there are */
    struct meeting *partial_prev, *partial_next;
    UT_hash_handle hh;
};

/* A node that is a guest here, or a relay of guests. */
struct visitor {
    uint32_t node;
    uint32_t count;
    struct guest *guests;
    UT_hash_handle hh;
};

struct comms_meetings {
    struct meeting *by_key;
    struct visitor *visitors;
    struct meeting *untold;
    uint64_t tell_ns;
    uint64_t told_ns; /* the last time; 0 before */
    struct meeting *partial;
    uint64_t partial_ns; /* when to tell of them */
};

/* The node of the guest: one entry in a meeting. Null: it is none. */
struct guest *meeting_guest_find(const struct meeting *meeting, uint32_t node);
/* Makes a guest of the node, or takes it over from another visitor. It then is the latest of the meeting.
 * Null without memory. */
struct guest *meeting_guest_join(struct comms *comms, uint32_t visitor, uint32_t node,
                                 const struct owned_name *key, const Commd__Mesh__Announce *report,
                                 bool *is_new);
/* Guests whose reports a relay has handed on. */
void meeting_join_many(struct comms *comms, uint32_t relay, const struct owned_name *key,
                       const Commd__Mesh__Announce *reports, const uint32_t *nodes, uint32_t count,
                       uint64_t now_ns);
/* Null: there is none. */
struct meeting *meeting_find(const struct comms *comms, const struct owned_name *key);
/* Guests are to be told soon. Call it when some have joined. */
void meeting_changed(struct comms *comms, struct meeting *meeting, uint64_t now_ns);

/* meeting_many.c: to guests, some of which have reported through relays. */
/* Whether the message can be sent: a connection to the guest, or to its relay. */
bool meeting_reaches(const struct comms *comms, const struct guest *guest);
void meeting_send(struct comms *comms, struct guest *guest, const Commd__Mesh__Message *message);
/* Sends a packed message to several guests, which it sorts by their visitors. */
void meeting_send_packed(struct comms *comms, struct guest **guests, uint32_t count, const uint8_t *bytes,
                         size_t size_bytes);
/* Sends an end to several guests, which it sorts, each with the nonce of its report. */
void meeting_send_end(struct comms *comms, struct guest **guests, uint32_t count, Commd__Mesh__Roster *end);
/* Tells the relays of these guests, which it sorts, that every rank is there. */
void meeting_tell_complete(struct comms *comms, struct guest **guests, uint32_t count);

/* Returns false if no guest has reported, or one cannot: then all guests are to be told of each other by Met.
 * A guest that can and has not does not fit to those that have: it is told of one of them. */
bool meeting_is_reported(const struct comms *comms, const struct meeting *meeting);
/* Looks at all reports. If every rank is there, tells the node of rank 0; otherwise the guests are told soon
 * which ranks are. Guests whose reports contradict each other are told of each other. */
void meeting_tell_reports(struct comms *comms, struct meeting *meeting, uint64_t now_ns);
/* Tells all guests which reports there are. */
void meeting_tell_partial(struct comms *comms, struct meeting *meeting);
void meeting_not_partial(struct comms_meetings *meetings, struct meeting *meeting);
/* Tells all other guests that have reported that the communicator cannot form any more, because of this one.
 */
void meeting_tell_end(struct comms *comms, const struct guest *ended, const Commd__Mesh__Withdraw *end);
/* The guest's node was lost: tells the others that have reported. */
void meeting_tell_lost(struct comms *comms, const struct guest *lost, const struct error *cause);
/* Tells new guests of this node's own report, if there is one: so they know that they need this node. */
void meeting_tell_own_report(struct comms *comms, struct guest **guests, uint32_t count);
/* This node has reported to itself: tells all guests that have reported. At once, because nobody else knows
 * of these ranks if this node is lost. */
void meeting_own_report_came(struct comms *comms, const struct meeting *meeting);
/* Null: it is not sound, or no memory. */
struct comms_report *meeting_report_new(const Commd__Mesh__Announce *report);

#endif
