#ifndef TESTS_CHECKER_CHECK_H
#define TESTS_CHECKER_CHECK_H

#include "daemon/coll/schedule.h"

#define COLL_CHECK_NODES_MAX 4096 /* beyond: STATUS_LIMIT */

/* What a proved schedule costs. Tests compare these figures with the textbook's, and with coll_estimate's. */
struct coll_cost {
    uint32_t rounds; /* of the node that has most rounds */
    /* of the node that has most, counting messages that it sends or those that it receives */
    uint32_t messages_max;
    uint32_t senders_max; /* the most nodes that send to one node in one of its rounds */
    /* the sum over the rounds: the most that one node sends or receives in the round */
    uint64_t path_elements;
    uint64_t busy_elements;       /* the most that one node sends, or receives, in all rounds together */
    uint64_t scratch_elements;    /* of the node that needs most scratch */
    uint64_t sent_elements_max;   /* of the node that sends most */
    uint64_t sent_elements_total; /* of all nodes together */
    uint64_t messages_total;
};

/*
 * Proves one call for all of its nodes, by running it on symbolic data. node_index of `call` is ignored. It
 * proves:
 *   - Every send has its receive, and every receive its send, with the same count and action. Both have the
 *     same place, except for all_to_all and scratch. Ranges lie in their spaces. They are empty only in
 *     barriers, and where the call keeps empty ones.
 *   - No wait is circular, even if the network buffers nothing. All nodes get to the end, even if each leaves
 *     a round only when its sends have been taken.
 *   - At the end every node holds what coll_call says: each contributor exactly once, each element in its
 *     place. All-reduces reduce in the same order on every node, so the bits are identical (a + b and b + a
 *     are different orders). Scans reduce in the order of the nodes, with any bracketing. No node passes a
 *     barrier before all have entered it.
 *   - No node writes to what coll_call keeps: the input, the root's elements of a broadcast or scatter, the
 *     own block of a gather or all_to_all. No node reads what was never written.
 *   - A node writes to a range that it sent only when the receiver has certainly consumed it, because the
 *     network may send from the buffer again after a loss. This does not apply if the algorithm copies what
 *     it sends.
 *
 * Returns INTERNAL with the node, round and range at fault. Returns INVALID_ARGUMENT if the call is invalid,
 * has another kind than the algorithm, or is one that the algorithm does not serve. Returns LIMIT beyond
 * COLL_CHECK_NODES_MAX, beyond 65,536 rounds, and where the cost exceeds 64 bits. Returns NO_MEMORY if memory
 * runs out. *cost is written on success; `cost` may be null. Thread-safe. Time and memory grow with nodes² ×
 * parts, not with the count.
 */
enum status coll_check(const struct coll_algorithm *algorithm, const struct coll_call *call,
                       struct coll_cost *cost, struct error *error) COMM_MUST_USE;

/*
 * The same for an all_to_all whose nodes have blocks of different sizes. `counts` has node_count² sizes, by
 * sender, then receiver. count_elements, block_offsets and send_offsets of `call` are ignored. coll_check
 * serves an all_to_all with equal blocks.
 */
enum status coll_check_all_to_all(const struct coll_algorithm *algorithm, const struct coll_call *call,
                                  const uint64_t *counts, struct coll_cost *cost,
                                  struct error *error) COMM_MUST_USE;

#endif
