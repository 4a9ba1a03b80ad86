#ifndef DAEMON_GATHER_GATHERS_INTERNAL_H
#define DAEMON_GATHER_GATHERS_INTERNAL_H

#include "daemon/base/owned_name.h"
#include "daemon/base/printable.h"
#include "daemon/base/random.h"
#include "daemon/base/table.h"
#include "daemon/base/timer_heap.h"
#include "daemon/gather/gathers.h"

/*
 * Shared by the files of gathers. Two halves: entry.c and report.c are the side of this node's processes;
 * place.c, decide.c and tell.c are the side of the names for which this node decides. If both are one node,
 * they call each other with messages that no network carries.
 */

#define GATHERS_AVOIDED_MAX 4
#define GATHERS_TEXT_BYTES 256

/* A generation, of which there is one only. */
struct gathers_number {
    uint64_t generation; /* 0: none */
    uint64_t nonce;
};
#define GATHERS_VOIDS_MAX 8

/* A generation that has been given out and has not formed yet. */
struct gathers_formation {
    struct gathers_number number;
    uint32_t seated; /* how many processes got ranks of it; 0: not known */
};

/* --- This node's processes --- */

struct gathers_entry {
    struct gathers_here *here;
    struct gathers_entry *prev, *next;
    uint64_t id;
    struct gathers_wish wish;
    struct gathers_handler handler;
    struct budget_account *account; /* null: nothing is charged */
    uint64_t generation;            /* 0: it waits, or has failed to get a seat */
    uint64_t nonce;                 /* of that generation; not of one that it grew into */
    bool settled;
    uint32_t seated;                /* processes that got ranks of that generation */
    struct gathers_formation grown; /* into which it grows; until it has settled there */
    bool asks;                      /* a seat is due */
    bool grows;                     /* an answer to grow is due */
    uint64_t grow_number;
    uint32_t grow_from, grow_to;
    uint64_t deadline_ns;  /* of what is due */
    uint32_t told_waiting; /* what the process knows; UINT32_MAX: nothing */
    struct timer_node timer;
};

/* A name with processes on this node. */
struct gathers_here {
    struct gathers *gathers;
    struct owned_name key;
    struct gathers_entry *entries;
    uint32_t entry_count;
    uint32_t place; /* MESH_NODE_OWN, or a node to which a connection is needed */
    uint64_t place_since_ns;
    struct {
        uint32_t node;
        uint64_t until_ns;
    } avoided[GATHERS_AVOIDED_MAX];
    uint64_t check_ns;                              /* when to ask again who the place is */
    uint64_t number;                                /* of the last report */
    bool changed;                                   /* the place does not know it yet */
    bool was_answered;                              /* by this place */
    bool moved;                                     /* another place has answered before */
    struct gathers_number voids[GATHERS_VOIDS_MAX]; /* the last ones */
    unsigned void_count;
    uint32_t waiting; /* what the place said last */
    char text[GATHERS_TEXT_BYTES];
    struct gathers_here *changed_prev, *changed_next; /* in gathers->changed, while it is changed */
    UT_hash_handle hh;
};

/* --- The place --- */

struct gathers_guest {
    uint64_t id;
    uint64_t generation; /* 0: it waits */
    uint64_t nonce;
    bool settled;
    bool is_void; /* of its generation: it does not run */
    bool minority_continues;
    uint32_t least, most;
    uint64_t last_call_ns;
    uint64_t came;       /* order of arrival */
    uint32_t rank, size; /* of the seat that it got last */
    uint32_t seated;     /* processes that got ranks of that generation; 0: not known */
    bool seat_untold;
    uint64_t grow_number; /* its last request to grow; 0: none */
    uint32_t grow_from, grow_to;
    uint64_t grow_answered;         /* the last one that was answered: */
    struct gathers_formation grown; /* with this generation, or 0 */
    uint32_t grown_size;
    bool grow_untold;
};

/* The processes of one node. */
struct gathers_party {
    struct gathers_meeting *meeting;
    uint32_t node;                     /* MESH_NODE_OWN: this one */
    struct gathers_party *prev, *next; /* in the meeting, by the nodes' names */
    struct gathers_guest *guests;      /* by id */
    uint32_t count;
    uint64_t number;       /* of the last report */
    uint32_t told_waiting; /* UINT32_MAX: nothing yet */
    uint64_t told_text;    /* the meeting's text_number */
    uint64_t told_voids;   /* how many of the meeting's voids */
    size_t charged_bytes;
};

/* A name for which this node decides. */
struct gathers_meeting {
    struct gathers *gathers;
    struct owned_name key;
    struct gathers_party *parties;
    struct budget_account *account;
    uint64_t generation;   /* the last one */
    uint64_t last_came;    /* number of arrivals */
    uint64_t last_came_ns; /* time of the last */
    uint64_t grace_ns;     /* no first generation before it */
    uint64_t doubt_ns; /* the same, while ranks of a void generation have not said what they do; 0: none */
    uint64_t inherited_ns; /* when all must have told of generations that another place gave out; 0: none */
    bool has_moved;        /* a node has told of another place before */
    uint64_t next_ns;      /* when to decide again; TIME_NEVER */
    struct gathers_number voids[GATHERS_VOIDS_MAX]; /* void number i is at i % GATHERS_VOIDS_MAX */
    uint64_t void_count;
    char text[GATHERS_TEXT_BYTES];
    uint64_t text_number;
    uint32_t waiting;
    uint64_t tell_ns;                    /* no news of waiting and text before it */
    struct gathers_meeting *prev, *next; /* in gathers->undecided, while it is_undecided */
    bool is_undecided;
    bool is_told; /* while its nodes are told: not freed, although it may lose the last of them */
    UT_hash_handle hh;
};

struct gathers {
    struct mesh *mesh;
    struct budget *budget;
    struct gathers_options options;
    uint64_t started_ns;
    uint64_t linked_ns;                          /* when a node was connected last */
    char draining[GATHERS_DRAIN_TEXT_MAX_BYTES]; /* "": not draining */
    struct random random;
    uint64_t last_id;
    struct gathers_here *here;
    struct gathers_here *changed;
    size_t entry_count;
    struct timer_heap timers; /* one for each entry */
    struct gathers_meeting *meetings;
    struct gathers_meeting *undecided;
    bool has_work;     /* run has something to do */
    uint64_t retry_ns; /* when to try again what found no room */
    uint64_t next_ns;  /* when some name is to be looked at: the earliest check_ns and next_ns */
};

/* "job#3.00f1..." */
void gathers_comm_name(char out[COMM_NAME_MAX_BYTES + 1], const char *name, uint64_t generation,
                       uint64_t nonce);
/* The node that has the highest weight for the name, of those that may be it. `all`: also of those that do
 * not run. here: which nodes it avoids; may be null. */
uint32_t gathers_choose(const struct gathers *gathers, const struct owned_name *key, bool all,
                        const struct gathers_here *here, uint64_t now_ns);

/* report.c: this node and the places that it turns to. */
void gathers_here_changed(struct gathers_here *here);
void gathers_here_free(struct gathers *gathers);
/* Turns to the place that is right now. */
void gathers_here_check(struct gathers_here *here, uint64_t now_ns);
void gathers_here_node_up(struct gathers *gathers, uint32_t node, uint64_t now_ns);
void gathers_here_node_down(struct gathers *gathers, uint32_t node, uint64_t now_ns);
/* Sends reports. Returns whether it did anything. */
bool gathers_here_run(struct gathers *gathers, uint64_t now_ns);
void gathers_here_tick(struct gathers *gathers, uint64_t now_ns);
/* A place has answered. */
void gathers_here_answered(struct gathers *gathers, uint32_t node, const Commd__Mesh__Gathered *answer,
                           uint64_t now_ns);

/* entry.c */
void gathers_entry_expire(struct gathers_entry *entry, uint64_t now_ns);
void gathers_entry_seat(struct gathers_entry *entry, const Commd__Mesh__GatherSeat *seat, uint64_t now_ns);

/* place.c */
void gathers_place_received(struct gathers *gathers, uint32_t node, const Commd__Mesh__Gather *report,
                            uint64_t now_ns);
void gathers_place_node_down(struct gathers *gathers, uint32_t node, uint64_t now_ns);
void gathers_place_free(struct gathers *gathers);
bool gathers_place_run(struct gathers *gathers, uint64_t now_ns);
void gathers_place_tick(struct gathers *gathers, uint64_t now_ns);
void gathers_meeting_undecided(struct gathers_meeting *meeting);

/* The generation will not form: those of its ranks that have not settled do not count any more. */
void gathers_make_void(struct gathers_meeting *meeting, const struct gathers_number *number);
/* Whether the guest asked to grow, newcomers got ranks, and it has not settled in that generation. */
bool gathers_grows_in_vain(const struct gathers_guest *guest);

/* decide.c: what comes of a meeting, now. */
void gathers_decide(struct gathers_meeting *meeting, uint64_t now_ns);
/* tell.c: tells the nodes what they do not know. Returns false if some take no message now. */
bool gathers_tell(struct gathers_meeting *meeting, uint64_t now_ns);

#endif
