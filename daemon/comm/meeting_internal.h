#ifndef DAEMON_COMM_MEETING_INTERNAL_H
#define DAEMON_COMM_MEETING_INTERNAL_H

#include "daemon/comm/meeting.h"

/* What the files meeting.c and meeting_roster.c share: the place's side. */

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
    struct guest *of_prev, *of_next; /* of its node, the oldest first */
    struct meeting *meeting;
    struct visitor *visitor;
    uint64_t number;             /* grows with each guest of the meeting */
    uint64_t told;               /* it knows of the guests up to this number */
    struct comms_report *report; /* null: it forms with connections to all, and is told of all by Met */
    bool is_odd;                 /* its report contradicts an earlier one; the two are told of each other */
    bool is_old;                 /* the communicator was complete with it, and may be over */
};

/* The nodes with ranks of one name. */
struct meeting {
    struct meeting *prev, *next; /* in `untold` */
    struct owned_name key;
    struct guest *guests;
    uint64_t last_number;
    bool is_untold;  /* some guest does not know of another one, or a report is new */
    bool is_partial; /* in `partial`: the guests are to be told which reports there are */
    struct meeting *partial_prev, *partial_next;
    UT_hash_handle hh;
};

/* A node that is somebody's guest here. */
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

/* Returns false if a guest has not reported: then all guests are to be told of each other by Met. */
bool meeting_is_reported(const struct meeting *meeting);
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
/* Tells a new guest of this node's own report, if there is one: so it knows that it needs this node. */
void meeting_tell_own_report(struct comms *comms, const struct guest *guest);
/* This node has reported to itself: tells all guests that have reported. At once, because nobody else knows
 * of these ranks if this node is lost. */
void meeting_own_report_came(struct comms *comms, const struct meeting *meeting);
/* Null: it is not sound, or no memory. */
struct comms_report *meeting_report_new(const Commd__Mesh__Announce *report);

#endif
