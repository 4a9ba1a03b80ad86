#ifndef TESTS_SIM_MEMBERS_WORLD_H
#define TESTS_SIM_MEMBERS_WORLD_H

#include "daemon/base/random.h"
#include "daemon/base/timer_heap.h"
#include "tests/lib/members_look.h"

/*
 * Whole clusters of the membership core in memory, with a fake clock and a seed. The net and the mesh are
 * modelled by what they promise: a link is dialled while one side wants it, a lost message is late instead,
 * and a loss is reported 4 to 4.25 s after the silence began, by each end for itself.
 */
#define WORLD_PATIENCE_NS (4 * TIME_S)
#define WORLD_PATIENCE_SPREAD_NS (250 * TIME_MS)

struct world;

struct world_link {
    uint32_t ends[2];
    bool up[2];       /* as each end sees it */
    uint32_t life[2]; /* which life of the other node each end is linked to */
    bool wants[2];    /* each end calls the other a neighbour */
    bool dialling;
    bool cut;            /* nothing passes */
    uint32_t generation; /* of its connection */
    struct world_link *next;
};

struct world_node {
    struct world *world;
    uint32_t number;
    struct members *members; /* null while it is dead */
    uint64_t incarnation;    /* as it was started */
    uint32_t life;           /* counts its starts */
    uint64_t stalled_until_ns;
    uint32_t side;  /* nodes of different sides do not reach each other */
    void *template; /* the mapping of its records, or null */
    struct timer_node tick;
    struct world_link **links;
    uint32_t link_count, link_capacity;
};

struct world_options {
    uint32_t count;
    uint64_t seed;
    bool settled; /* everybody knows everybody at the start; only with more than WORLD_SMALL nodes */
    /* Whether the configuration of `of` has `node`. Null: each has all. */
    bool (*knows)(uint32_t of, uint32_t node);
};

struct world {
    struct world_options options;
    struct random random;
    struct member_rings *rings; /* shared by all nodes; null if configurations differ */
    struct world_node *nodes;
    struct world_link *links;
    struct members_statistics ended; /* sums of the nodes that ended */
    struct timer_heap timers;
    uint64_t now_ns;
    /* The node whose death is timed. */
    uint32_t watched;
    uint32_t watched_down;  /* nodes that call it DOWN */
    uint64_t watched_ns;    /* of the last change */
    uint64_t false_downs;   /* times that a node was called DOWN while it lived and reached the other */
    uint64_t false_down_ns; /* the longest of these; only if there are at most WORLD_TIMED_MAX nodes */
    uint64_t *down_since;   /* for each pair */
    uint64_t peak_messages; /* that one node sent within one second */
    uint64_t peak_bytes;
    uint64_t *second_messages, *second_bytes; /* of each node */
    uint64_t second_ns;
};
#define WORLD_TIMED_MAX 1024
#define WORLD_SMALL 100 /* up to so many nodes, each has rings of its own, as in a mesh */
#define WORLD_NONE UINT32_MAX

/* Nodes are numbered from 0. None has started. */
struct world *world_new(const struct world_options *options);
void world_free(struct world *world);

/* Starts a node; its incarnation is that one. */
void world_start(struct world *world, uint32_t node, uint64_t incarnation);
void world_start_all(struct world *world);
/* Ends a node without a word. */
void world_kill(struct world *world, uint32_t node);
/* Ends a node in good order: it says goodbye, and then its links close. */
void world_leave(struct world *world, uint32_t node);
/* The node does nothing until then. Others notice if that is longer than the patience. */
void world_stall(struct world *world, uint32_t node, uint64_t span_ns);
/* Puts a node on a side. world_cut_changed says afterwards that sides or cuts are others. */
void world_cut_changed(struct world *world);
struct world_link *world_link_of(struct world *world, uint32_t a, uint32_t b);
/* Reports a link as lost to one end. */
void world_lose(struct world *world, struct world_link *link, uint32_t node);
void world_run(struct world *world, uint64_t span_ns);
/* A message from a node to another one that the node's core did not send. The link must be up. */
void world_inject(struct world *world, uint32_t from, uint32_t to, const uint8_t *bytes, uint32_t size);

bool world_is_alive(const struct world *world, uint32_t node);
/* A random number below the count. */
uint32_t world_draw(struct world *world, uint32_t count);
/* Fails the test if living nodes of one side do not call each other UP and all others DOWN or UNKNOWN. */
void world_check(const struct world *world, const char *what);
/* The same as an answer: how many answers of nodes are wrong. */
uint64_t world_wrong(const struct world *world);
/* Sums over all nodes, those that ended included. */
struct members_statistics world_statistics(const struct world *world);

#endif
