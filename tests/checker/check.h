#ifndef TESTS_CHECKER_CHECK_H
#define TESTS_CHECKER_CHECK_H

#include "daemon/coll/schedule.h"

#define COLL_CHECK_NODES_MAX 4096 /* beyond: STATUS_LIMIT */

/* What a proved schedule costs: the textbook's figures as assertions, and what coll_estimate predicts. */
struct coll_cost {
    uint32_t rounds;            /* of the node that has most */
    uint32_t messages_max;      /* of the node that has most, sent or received */
    uint32_t senders_max;       /* the most nodes that send to one node in one of its rounds */
    uint64_t path_elements;     /* the sum over the rounds of the most that a node sends or receives in it */
    uint64_t busy_elements;     /* the most that a node sends in all rounds, or receives */
    uint64_t scratch_elements;  /* of the node that needs most */
    uint64_t sent_elements_max; /* of the node that sends most */
    uint64_t sent_elements_total; /* of all nodes together */
    uint64_t messages_total;
};

/*
 * Proves one call for all of its nodes (node_index of `call` is ignored), by running it on symbolic data:
 *   - every send has its receive, with the same count and action, and the other way round, and, but for
 *     all_to_all and for scratch, the same place; ranges lie in their spaces, and are empty in barriers only,
 * and where the call keeps empty ones;
 *   - no wait is circular, even if nothing is buffered on the way: all nodes get to the end also if they
 *     leave a round only when its sends have been taken;
 *   - at the end every node holds what coll_call says, each contributor exactly once, each element in its
 *     place: all-reduces in the same order on every node (identical bits; a + b and b + a are not the same
 *     order), scans in the order of the nodes, however bracketed; a barrier is passed by nobody before all
 * have entered it;
 *   - nothing is written to what coll_call keeps (the input, the root's elements of a broadcast or scatter,
 * the own block of a gather or all_to_all), and nothing is read that was never written;
 *   - a range that was sent is written to only when the receiver has certainly consumed it (the network may
 *     send straight from the buffer, again after a loss), unless the algorithm copies what it sends.
 *
 * Returns STATUS_INTERNAL with the node, round and range at fault; INVALID_ARGUMENT for a call that is none,
 * or is not of the algorithm's kind, or that it does not serve; LIMIT beyond COLL_CHECK_NODES_MAX, beyond
 * 65,536 rounds, and where the cost exceeds 64 bits; NO_MEMORY. *cost is written on success; it may be null.
 * Thread-safe. Time and memory grow with nodes² × parts, not with the count.
 */
enum status coll_check(const struct coll_algorithm *algorithm, const struct coll_call *call,
                       struct coll_cost *cost, struct error *error) COMM_MUST_USE;

/*
 * The same for an all_to_all whose nodes have different blocks: counts has node_count² of them, by sender,
 * then receiver. count_elements, block_offsets and send_offsets of `call` are ignored. coll_check takes those
 * that have equal blocks.
 */
enum status coll_check_all_to_all(const struct coll_algorithm *algorithm, const struct coll_call *call,
                                  const uint64_t *counts, struct coll_cost *cost,
                                  struct error *error) COMM_MUST_USE;

#endif
