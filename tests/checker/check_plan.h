#ifndef TESTS_CHECKER_CHECK_PLAN_H
#define TESTS_CHECKER_CHECK_PLAN_H

#include <stdint.h>

#include "tests/checker/check.h"
#include "tests/checker/check_cuts.h"

/*
 * The rounds of all nodes of one call, recorded; coll_check runs them. Private to coll_check. Each send is
 * matched with its receive. Each node's elements are cut into parts at both ends of every transfer, so the
 * same happens to all elements of a part. A node's elements are one line of places: its vector, then its
 * input, then its scratch. All nodes' lines are cut alike, except those of an all_to_all.
 */

/* Limits for a schedule; beyond them: STATUS_LIMIT. */
#define COLL_PLAN_ROUNDS_MAX 65536          /* of one node */
#define COLL_PLAN_ROUND_TRANSFERS_MAX 65536 /* of one node, round and direction */
#define COLL_PLAN_TRANSFERS_MAX (1u << 26)  /* of all nodes together, per direction */
#define COLL_PLAN_CELLS_MAX (1u << 28)      /* parts of all nodes together */

#define COLL_SPACE_COUNT 3
#define COLL_PLAN_NO_TRANSFER UINT32_MAX

struct coll_plan_transfer {
    struct coll_transfer at;
    uint64_t place;      /* in the line of the node that executes the transfer */
    uint32_t round;      /* of that node */
    uint32_t match;      /* the other side's transfer: index into the other direction's list */
    uint32_t part_first; /* the parts of that node that it covers: part_first .. part_end - 1 */
    uint32_t part_end;
};

struct coll_plan_transfers {
    struct coll_plan_transfer *list; /* node after node, the transfers of each in order */
    uint32_t count;
    uint32_t capacity;
};

struct coll_plan_node {
    uint32_t round_count;
    uint32_t *send_begin;    /* round_count + 1 indices: round r has sends.list[send_begin[r]] */
    uint32_t *receive_begin; /* up to sends.list[send_begin[r + 1] - 1]; receive_begin is the same */
    /* places where the spaces begin; the last is the line's end */
    uint64_t space_begin[COLL_SPACE_COUNT + 1];
    const struct coll_cuts *cuts; /* part p is places cuts->list[p] .. cuts->list[p + 1] - 1 */
    uint32_t part_count;
};

struct coll_plan {
    const struct coll_algorithm *algorithm;
    struct coll_call call;  /* node_index 0 */
    const uint64_t *counts; /* null, except in coll_check_all_to_all */
    uint64_t *offsets;      /* with counts: for each node its block_offsets, then its send_offsets */
    struct coll_plan_node *nodes;
    struct coll_plan_transfers sends;
    struct coll_plan_transfers receives;
    struct coll_cuts *cuts; /* one, or one for each node */
    uint32_t cuts_count;
};

/*
 * Asks the algorithm for every node's rounds and matches them. Returns INTERNAL for faults that show without
 * a run: a transfer beyond its space, to no node, or to what the call keeps; a send without its receive;
 * different counts on the two sides. Free the plan in any case.
 */
enum status coll_plan_init(struct coll_plan *plan, const struct coll_algorithm *algorithm,
                           const struct coll_call *call, const uint64_t *counts,
                           struct error *error) COMM_MUST_USE;
void coll_plan_free(struct coll_plan *plan);

/* The call as the node makes it. Its offsets are the plan's. */
struct coll_call coll_plan_call(const struct coll_plan *plan, uint32_t node);

bool coll_plan_is_scan(const struct coll_plan *plan);

/* Returns the node whose block in `offsets` holds `element`, which is below the last offset. */
uint32_t coll_plan_block(const struct coll_plan *plan, const uint64_t *offsets, uint64_t element);

/* The costs that follow from the plan alone; part of coll_check's result. Returns LIMIT if a sum exceeds
 * 64 bits. */
enum status coll_plan_cost(const struct coll_plan *plan, struct coll_cost *cost,
                           struct error *error) COMM_MUST_USE;

/* Returns INTERNAL. The text begins with "<algorithm> <kind>, <n> nodes, <count> elements: node <node>,
 * round <round>: ". */
enum status coll_plan_fault(const struct coll_plan *plan, uint32_t node, uint32_t round, struct error *error,
                            const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Writes a part as text: "elements 3 to 5" or "input elements 0 to 0". */
#define COLL_PART_TEXT_BYTES 80
const char *coll_plan_part_text(const struct coll_plan *plan, uint32_t node, uint32_t part,
                                char text[COLL_PART_TEXT_BYTES]);

/* Returns NO_MEMORY with a text that names the call. The function below returns LIMIT, with its text
 * behind the call. */
enum status coll_plan_no_memory(const struct coll_plan *plan, struct error *error);
enum status coll_plan_limit(const struct coll_plan *plan, struct error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* check_plan_match.c: the parts of coll_plan_init after the rounds are written down. */
enum status coll_plan_match(struct coll_plan *plan, struct error *error) COMM_MUST_USE;
enum status coll_plan_cut(struct coll_plan *plan, struct error *error) COMM_MUST_USE;

#endif
