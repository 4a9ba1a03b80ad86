#ifndef DAEMON_COLL_OVERRIDES_H
#define DAEMON_COLL_OVERRIDES_H

#include "daemon/coll/registry.h"

/*
 * Algorithms that users choose. They take precedence over predictions:
 *
 *   overrides = [ rule { ( "," | ";" ) rule } ]
 *   rule      = [ kind ] { ":" range } "=" algorithm       without a kind, the first range needs no ":"
 *   range     = size "-" [ size ]                          bytes of the whole operation
 *             | "nodes" number "-" [ number ]              nodes of the communicator
 *   size      = number [ "k" | "m" | "g" ]                 powers of 1024
 *
 * Ranges are half-open: 4k-8k is 4096 to 8191, 4k- is 4096 and more, nodes2-9 is 2 to 8. A rule without a
 * kind has the kind of the previous rule. The first rule whose kind and ranges fit is used. Predictions
 * decide if no rule fits, or if the algorithm of that rule cannot carry out the operation. Spaces are allowed
 * around every sign.
 *
 *   all_reduce=ring,broadcast=tree
 *   all_reduce:0-4k=tree,4k-=ring;broadcast=chain
 *   all_reduce:nodes9-:0-8m=halving_doubling
 */

#define COLL_OVERRIDES_MAX 64 /* rules; more: STATUS_LIMIT */

/*
 * Fixed thresholds instead of predictions: the ring from 8 MiB on, and for up to 8 nodes; otherwise halving
 * and doubling.
 */
#define COLL_OVERRIDES_THRESHOLDS "all_reduce:8m-=ring,nodes1-9=ring,0-=halving_doubling"

struct coll_override {
    enum op_kind kind;
    uint32_t algorithm_id;
    uint64_t size_first_bytes; /* the range */
    uint64_t size_last_bytes;  /* inclusive */
    uint32_t nodes_first;
    uint32_t nodes_last;
};

/* Plain values: the struct may be copied. All zeros mean no rules. */
struct coll_overrides {
    uint32_t count;
    struct coll_override rules[COLL_OVERRIDES_MAX];
};

/*
 * Returns INVALID_ARGUMENT with the position (from 1), the text found there and what was expected; LIMIT for
 * more than COLL_OVERRIDES_MAX rules. Writes *out only on success. Empty text: no rules. Thread-safe.
 */
enum status coll_overrides_parse(const char *text, struct coll_overrides *out,
                                 struct error *error) COMM_MUST_USE;

/* The algorithm of the first rule that fits the operation, even if it cannot serve the operation; null if no
 * rule fits. */
const struct coll_algorithm *coll_overrides_find(const struct coll_overrides *overrides,
                                                 const struct coll_choice *choice);

#endif
