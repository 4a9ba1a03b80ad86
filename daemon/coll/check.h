#ifndef DAEMON_COLL_CHECK_H
#define DAEMON_COLL_CHECK_H

#include "daemon/coll/schedule.h"

#define COLL_CHECK_NODES_MAX 1024 /* beyond: STATUS_LIMIT */

/* What a proved schedule costs: the textbook's figures as assertions. */
struct coll_cost {
    uint32_t rounds;              /* of the node that has most */
    uint64_t sent_elements_max;   /* of the node that sends most */
    uint64_t sent_elements_total; /* of all nodes together */
    uint64_t messages_total;
};

/*
 * Proves one call for all of its nodes (node_index of `call` is ignored), by running it on symbolic data:
 *   - every send has its receive, with the same range and action, and the other way round; ranges lie in the
 *     slice, and are empty in barriers only;
 *   - no wait is circular, even if nothing is buffered on the way: all nodes get to the end also if they
 *     leave a round only when its sends have been taken;
 *   - at the end every node holds, for each element, each contributor exactly once (all-reduce), or the
 *     root's element (broadcast), and all nodes reduced in the same order (identical bits; a + b and b + a
 *     are not the same order); a barrier is passed by nobody before all have entered it;
 *   - a range that was sent is written to only when the receiver has certainly consumed it (the network may
 *     send straight from the buffer, again after a loss).
 *
 * Returns STATUS_INTERNAL with the node, round and range at fault; INVALID_ARGUMENT for a call that is none,
 * or is not of the algorithm's kind; LIMIT beyond COLL_CHECK_NODES_MAX, beyond 65,536 rounds, and where the
 * cost exceeds 64 bits; NO_MEMORY. *cost is written on success; it may be null. Thread-safe. For tests and
 * `commctl`: time and memory grow with nodes² × parts, not with the count.
 */
enum status coll_check(const struct coll_algorithm *algorithm, const struct coll_call *call,
                       struct coll_cost *cost, struct error *error) COMM_MUST_USE;

#endif
