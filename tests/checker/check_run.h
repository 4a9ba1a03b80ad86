#ifndef TESTS_CHECKER_CHECK_RUN_H
#define TESTS_CHECKER_CHECK_RUN_H

#include <stdbool.h>

#include "tests/checker/check_plan.h"
#include "tests/checker/check_value.h"

/* A run of a plan on symbolic values, for check.c and check_end.c. */

#define COLL_RUN_NEVER UINT32_MAX

/* A part that was sent. It may be overwritten once the node knows that `receiver` has come to `clock`. */
struct sent_part {
    uint32_t next;
    uint32_t receiver;
    uint32_t clock;
    uint32_t round; /* of the send */
};

struct node_progress {
    uint32_t round;
    uint32_t next_receive; /* index into the plan's receives */
    uint32_t untaken;      /* sends of this round that are not taken */
    bool queued;
};

/* What a part of a node holds. */
struct coll_cell {
    /* the place from which its first element comes: in the vector, or in its contributor's line */
    uint64_t origin;
    uint32_t value;
    uint32_t written; /* the round of the last write, or COLL_RUN_NEVER */
    uint32_t sent;    /* first of a list of sent_parts: those not known to be consumed */
};

struct coll_run {
    const struct coll_plan *plan;
    struct coll_values values;
    struct node_progress *nodes;
    size_t *first_cell; /* by node */
    struct coll_cell *cells;
    /* by send, while it is under way: its contents; only if the algorithm copies its sends */
    struct coll_cell **copies;
    struct sent_part *sent_parts;
    uint32_t sent_part_count;
    uint32_t sent_part_capacity;
    uint32_t free_sent_part; /* first of a list */
    /*
     * By (node, other): how far the node knows that the other has come. 0: it knows nothing; 1 + k: the other
     * has entered, and consumed k receives. `known` is the present, known_at_round the state when the node
     * entered its round.
     */
    uint32_t *known;
    uint32_t *known_at_round;
    bool *taken; /* by send */
    /* nodes that may have something to do: a ring of node_count places, which holds each node at most once */
    uint32_t *queue;
    uint32_t queue_head;
    uint32_t queue_count;
};

static inline struct coll_cell *coll_run_cell(const struct coll_run *run, uint32_t node, uint32_t part)
{
    return &run->cells[run->first_cell[node] + part];
}

static inline uint64_t coll_run_place(const struct coll_run *run, uint32_t node, uint32_t part)
{
    return run->plan->nodes[node].cuts->list[part];
}

static inline uint32_t *coll_run_known(const struct coll_run *run, uint32_t *table, uint32_t node)
{
    return &table[(size_t)node * run->plan->call.node_count];
}

/* check_end.c: checks that every node holds what it must, and that none passed a barrier early. */
enum status coll_run_check_end(const struct coll_run *run, struct error *error) COMM_MUST_USE;

#endif
