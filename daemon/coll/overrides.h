#ifndef DAEMON_COLL_OVERRIDES_H
#define DAEMON_COLL_OVERRIDES_H

#include "daemon/coll/registry.h"

/*
 * What people say about algorithms, before predictions do:
 *
 *   overrides = [ rule { ( "," | ";" ) rule } ]
 *   rule      = [ kind ] { ":" range } "=" algorithm       the first range may stand without ":" and kind
 *   range     = size "-" [ size ]                          bytes of the whole operation
 *             | "nodes" number "-" [ number ]              nodes of the communicator
 *   size      = number [ "k" | "m" | "g" ]                 powers of 1024
 *
 * Ranges are half-open: 4k-8k is 4096 to 8191, 4k- is 4096 and more, nodes2-9 is 2 to 8. A rule without a
 * kind is of the kind of the rule before. The first rule whose kind and ranges fit counts; where its
 * algorithm cannot do the operation, or no rule fits, predictions decide. Spaces may stand around every sign.
 *
 *   all_reduce=ring,broadcast=tree
 *   all_reduce:0-4k=tree,4k-=ring;broadcast=chain
 *   all_reduce:nodes9-:0-8m=halving_doubling
 */

#define COLL_OVERRIDES_MAX 64 /* rules; beyond: STATUS_LIMIT */

/*
 * Fixed thresholds instead of predictions: from 8 MiB on, and among up to 8 nodes, the ring; otherwise
 * halving and doubling.
 */
#define COLL_OVERRIDES_THRESHOLDS "all_reduce:8m-=ring,nodes1-9=ring,0-=halving_doubling"

struct coll_override {
    enum op_kind kind;
    uint32_t algorithm_id;
    uint64_t size_first_bytes; /* the range */
    uint64_t size_last_bytes;  /* its last, not the one after */
    uint32_t nodes_first;
    uint32_t nodes_last;
};

/* All values are plain: it may be copied. Zeros are no rules. */
struct coll_overrides {
    uint32_t count;
    struct coll_override rules[COLL_OVERRIDES_MAX];
};

/*
 * INVALID_ARGUMENT with the position (from 1), what is there and what was expected; LIMIT beyond
 * COLL_OVERRIDES_MAX rules. *out is written on success alone. Empty text: no rules. Thread-safe.
 */
enum status coll_overrides_parse(const char *text, struct coll_overrides *out,
                                 struct error *error) COMM_MUST_USE;

/* The algorithm of the first rule that fits the operation, whether it serves or not; null when none does. */
const struct coll_algorithm *coll_overrides_find(const struct coll_overrides *overrides,
                                                 const struct coll_choice *choice);

#endif
