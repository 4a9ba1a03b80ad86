#ifndef DAEMON_MESH_MEMBERS_INTERNAL_H
#define DAEMON_MESH_MEMBERS_INTERNAL_H

#include "daemon/base/random.h"
#include "daemon/mesh/member_records.h"
#include "daemon/mesh/members.h"

/* Shared by the parts of members. Used only in daemon/mesh, and by its tests. */

#define MEMBERS_VOTES_ENOUGH 3u               /* two liars cannot make a node DOWN at once */
#define MEMBERS_WATCH_NS TIME_S               /* we tick at least this often */
#define MEMBERS_LATE_NS (500 * TIME_MS)       /* later than this is a stall */
#define MEMBERS_STALL_GRACE_NS TIME_S         /* losses so soon after a stall may be our fault */
#define MEMBERS_REFUTE_NS TIME_S              /* the shortest time between two refutations */
#define MEMBERS_FIRST_PATIENCES 2u            /* a first link may take so many patiences */
#define MEMBERS_REFUTED_MAX 6u                /* the wait for a new vote doubles so often: to 256 s */
#define MEMBERS_GIVE_UP_PATIENCES 3u          /* so long we wait for nodes that were never heard of */
#define MEMBERS_LINKS_FEW 3u                  /* with fewer links we try unknown nodes */
#define MEMBERS_EXPLORE_MAX 16u               /* the longest wait between such tries, in patiences */
#define MEMBERS_AHEAD_US 86400000000u         /* a clock may be ahead of ours by a day */
#define MEMBERS_OWN_AHEAD_US 600000000u       /* so much more of ourselves: clocks differ */
#define MEMBERS_TOKEN_NS (TIME_S / 8000)      /* a neighbour may send 8,000 records a second */
#define MEMBERS_TOKENS_SAVED_NS (16 * TIME_S) /* after a stall it sends what it could not send before */
#define MEMBERS_MESSAGE_TOKENS 8u             /* what a message costs beside its records */
#define MEMBERS_DIGEST_NS TIME_S              /* we answer no more than one digest in this time */

enum {
    MEMBER_LINKED = 1, /* a link of ours is up */
    MEMBER_LEFT = 2,   /* said goodbye */
    MEMBER_LOST = 4,   /* enough votes, or for long enough */
    MEMBER_SUSPECT = 8,
    MEMBER_WANTED = 16,    /* has a struct member_link */
    MEMBER_URGENT = 32,    /* is in the list of urgent records to send */
    MEMBER_BULK = 64,      /* is in the list of others */
    MEMBER_ANSWERED = 128, /* a probe, since the last link was lost */
};

/* What we know of a node; all zero at first. */
struct member_record {
    uint64_t incarnation; /* 0: not heard of */
    uint32_t epoch;
    uint32_t suspected_ms; /* since our start; modulo 2^32 */
    uint16_t pending;      /* a bit for each link that it still goes to */
    uint8_t votes;
    uint8_t flags;
};

/* A neighbour. */
struct member_link {
    uint32_t index;  /* MEMBER_RINGS_NONE: not in use */
    uint8_t slot;    /* ours, among its observers */
    uint8_t refuted; /* how many of our votes; at most MEMBERS_REFUTED_MAX */
    bool up;
    bool digest_due;
    bool wants_answer;       /* to that digest */
    uint64_t incarnation;    /* of the life that the link is to; 0: not known */
    uint64_t up_ns;          /* since when */
    uint64_t vote_ns;        /* when we vote if it is still lost; TIME_NEVER: not */
    uint64_t digest_ns;      /* when we last took a digest of it */
    uint64_t tokens_free_ns; /* its budget: records are paid for up to this time */
};

/* Indices of records to send, some of which may have been sent since. */
struct member_queue {
    uint16_t *indices;
    uint32_t count;
};

/* What simulations measure. */
struct members_statistics {
    uint32_t states[3];     /* other nodes, by enum member_state */
    uint64_t messages_sent; /* to neighbours */
    uint64_t bytes_sent;
    uint64_t records_sent;
    uint64_t records_unknown_node; /* received, of nodes that our configuration lacks */
    uint64_t records_ahead;        /* their incarnation lies more than a day ahead of our clock */
    uint64_t messages_dropped;     /* of nodes that are no neighbours, beyond their budget */
    uint64_t votes_cast;           /* by us */
    uint64_t refutations;          /* by us */
    uint64_t stalls;               /* of our own loop */
    uint64_t probes;               /* by us */
};

struct members {
    struct members_options options; /* without own_name */
    struct member_rings *rings;
    bool owns_rings;
    uint32_t offset; /* a node's index is its number plus this */
    uint32_t self;
    struct member_record *records; /* by index */
    uint32_t capacity;             /* of records and of both queues */
    struct member_queue urgent, bulk;
    struct member_link links[MEMBERS_NEIGHBOURS_MAX];
    uint16_t up_mask; /* links that are up */
    uint32_t buckets[MEMBER_DIGEST_BUCKETS];
    uint64_t start_ns;
    uint64_t now_ns; /* of the last call */
    uint64_t watch_ns;
    uint64_t flush_ns;
    uint64_t suspect_ns; /* no suspicion ends earlier */
    uint64_t vote_ns;    /* the earliest of the links' */
    uint64_t sync_ns;
    uint64_t refute_ns;  /* when we may and must */
    uint64_t refuted_ns; /* when we last did; 0: never */
    uint64_t stalled_ns; /* when the last stall ended; 0: none */
    uint64_t explore_ns; /* when we try others, if we have few links */
    uint32_t explored;   /* tries so far */
    bool explore_dials;  /* some node could not be asked in this round */
    uint64_t probe_ns;   /* when we ask some more; TIME_NEVER: we do not ask */
    uint32_t probe_at;   /* as many were asked in this round */
    uint32_t probe_rounds;
    uint32_t suspects;
    uint64_t heard_incarnation; /* the latest that others say of us */
    uint32_t heard_epoch;
    bool rewire; /* neighbours may be others now */
    bool left;
    uint64_t stranger_tokens_free_ns; /* the budget of all nodes that are no neighbours */
    struct random random;
    struct members_statistics statistics;
};

#define MEMBERS_NO_LINK UINT32_MAX
static inline uint16_t member_link_bit(uint32_t link)
{
    return (uint16_t)(link == MEMBERS_NO_LINK ? 0u : 1u << link);
}
static inline enum member_state member_record_state(const struct member_record *record)
{
    if ((record->flags & MEMBER_LINKED) != 0) {
        return MEMBER_UP;
    }
    if (record->incarnation == 0) {
        return MEMBER_UNKNOWN;
    }
    return (record->flags & (MEMBER_LEFT | MEMBER_LOST)) != 0 ? MEMBER_DOWN : MEMBER_UP;
}
static inline uint32_t members_node(const struct members *members, uint32_t index)
{
    return index - members->offset;
}

/* members.c */
/* Call it first in each call that brings the time: notices stalls, and finds the neighbours if need be. */
void members_begin(struct members *members, uint64_t now_ns);

/* members_explore.c */
void members_explore_begin(struct members *members, uint64_t now_ns);
void members_explore_tick(struct members *members, uint64_t now_ns);
/* How many places from ours on each ring the node is that we dial to see if it is there; 0: none. */
uint32_t members_explore_tried(const struct members *members);

/* members_table.c */
/* Takes what is said of a node by the neighbour of that link, or by ourselves (MEMBERS_NO_LINK). */
void members_apply(struct members *members, uint32_t index, const struct member_record_wire *news,
                   uint32_t link, uint64_t now_ns);
void members_set_linked(struct members *members, uint32_t index, bool linked, uint64_t now_ns);
/* Forgets all of it, without a call. */
void members_forget(struct members *members, uint32_t index);
/* Our own record, at the start and when we leave. */
void members_say_own(struct members *members, uint64_t incarnation, uint32_t epoch, bool left,
                     uint64_t now_ns);
void members_refute(struct members *members, uint64_t now_ns);
void members_suspect_tick(struct members *members, uint64_t now_ns);
bool members_is_ahead(const struct members *members, uint64_t incarnation, uint64_t slack_us,
                      uint64_t now_ns);

/* members_neighbours.c */
void members_find_neighbours(struct members *members, uint64_t now_ns);
/* The link of a node, or MEMBERS_NO_LINK if it is no neighbour. */
uint32_t members_link_of(const struct members *members, uint32_t index);
/* Another record of a neighbour counts now. had_vote: the earlier one had our vote. */
void members_neighbour_news(struct members *members, uint32_t link, bool other_life, bool had_vote,
                            uint64_t now_ns);
void members_vote_tick(struct members *members, uint64_t now_ns);
/* After a stall: postpones our votes. */
void members_postpone_votes(struct members *members, uint64_t now_ns);
void members_link_forget(struct members *members, uint32_t link);

/* members_spread.c */
/* The record goes to these links with the next batch. */
void members_queue(struct members *members, uint32_t index, uint16_t links, uint64_t now_ns);
/* It goes to none of these links any more. */
void members_unqueue(struct members *members, uint16_t links);
void members_digest_due(struct members *members, uint32_t link, bool wants_answer, uint64_t now_ns);
void members_flush(struct members *members, uint64_t now_ns);
void members_sync_tick(struct members *members, uint64_t now_ns);

#endif
