#ifndef DAEMON_COLL_CHECK_PLAN_H
#define DAEMON_COLL_CHECK_PLAN_H

#include <stdint.h>

#include "daemon/coll/check.h"

/*
 * The rounds of all nodes of one call, written down, each send matched with its receive, and the slice cut
 * into parts at every end of a transfer: within a part all elements fare alike. What coll_check walks;
 * private to it.
 */

/* Limits of what a schedule under check may ask for; beyond: STATUS_LIMIT. */
#define COLL_PLAN_ROUNDS_MAX 65536          /* of one node */
#define COLL_PLAN_ROUND_TRANSFERS_MAX 65536 /* of one node, round and direction */
#define COLL_PLAN_TRANSFERS_MAX (1u << 26)  /* of all nodes together, per direction */

struct coll_plan_transfer {
    struct coll_transfer at;
    uint32_t round;      /* of the node whose transfer it is */
    uint32_t match;      /* the other side's transfer: index into the other direction's list */
    uint32_t part_first; /* the parts that it covers: part_first .. part_end - 1 */
    uint32_t part_end;
};

struct coll_plan_transfers {
    struct coll_plan_transfer *list; /* node after node, each in order */
    uint32_t count;
    uint32_t capacity;
};

struct coll_plan_node {
    uint32_t round_count;
    uint32_t *send_begin;    /* round_count + 1 indices: round r has sends.list[send_begin[r]] and on, */
    uint32_t *receive_begin; /* to before those of r + 1; likewise */
};

struct coll_plan {
    const struct coll_algorithm *algorithm;
    struct coll_call call; /* node_index 0 */
    struct coll_plan_node *nodes;
    struct coll_plan_transfers sends;
    struct coll_plan_transfers receives;
    uint64_t *bounds; /* part p is elements bounds[p] .. bounds[p + 1] - 1; part_count + 1 of them */
    uint32_t part_count;
};

/*
 * Asks the algorithm for every node's rounds and matches them. INTERNAL for what no run can mend: a transfer
 * beyond the slice or to no node, a send without its receive, other counts on the two sides. Free it in any
 * case.
 */
enum status coll_plan_init(struct coll_plan *plan, const struct coll_algorithm *algorithm,
                           const struct coll_call *call, struct error *error) COMM_MUST_USE;
void coll_plan_free(struct coll_plan *plan);

/* The costs that can be read off; part of coll_check's result. LIMIT when a sum exceeds 64 bits. */
enum status coll_plan_cost(const struct coll_plan *plan, struct coll_cost *cost,
                           struct error *error) COMM_MUST_USE;

/* INTERNAL, with "<algorithm> <kind>, <n> nodes, <count> elements: node <node>, round <round>: " before the
 * text. */
enum status coll_plan_fault(const struct coll_plan *plan, uint32_t node, uint32_t round, struct error *error,
                            const char *format, ...) __attribute__((format(printf, 5, 6)));

/* NO_MEMORY, naming the call. */
enum status coll_plan_no_memory(const struct coll_plan *plan, struct error *error);

#endif
