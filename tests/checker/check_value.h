#ifndef TESTS_CHECKER_CHECK_VALUE_H
#define TESTS_CHECKER_CHECK_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Symbolic values, for coll_check. A value says what a range of a buffer holds, as the expression that made
 * it. A value is either what one node contributed, or the fold of two values: the right one reduced into the
 * left one. Equal expressions have equal numbers. So two nodes hold the same bits exactly if they hold the
 * same number. a + b and b + a are different values, because their bits differ for NaN. Each value knows its
 * contributors. It also knows whether they are a run: consecutive nodes, folded from left to right, with any
 * bracketing.
 */
#define COLL_VALUE_NONE 0

/* The contributors first .. last, in order. first > last: no run. */
struct coll_value_run {
    uint32_t first;
    uint32_t last;
};

struct coll_values {
    uint32_t node_count;
    size_t set_words; /* 64-bit words of one set of contributors */
    uint32_t count;   /* number of values, with the unused number 0 */
    uint32_t capacity;
    uint32_t *left; /* by value; 0 for a contribution */
    uint32_t *right;
    struct coll_value_run *runs; /* by value */
    uint64_t *contributors;      /* by value, set_words each */
    uint32_t *slots; /* open addressing over (left, right), a power of two, at least twice the capacity */
    uint32_t slot_count;
};

/* Returns false if there is no memory. Free it in any case. */
bool coll_values_init(struct coll_values *values, uint32_t node_count) __attribute__((warn_unused_result));
void coll_values_free(struct coll_values *values);

/* Returns the value that `node` contributes. */
uint32_t coll_values_contribution(const struct coll_values *values, uint32_t node);

/* Reduces `right` into `left`; both are values. Returns false if there is no memory. */
bool coll_values_fold(struct coll_values *values, uint32_t left, uint32_t right, uint32_t *out)
    __attribute__((warn_unused_result));

/* Returns the lowest node that contributed to both, or node_count if there is none. */
uint32_t coll_values_shared(const struct coll_values *values, uint32_t left, uint32_t right);

/* Whether the value is the fold of nodes first .. last in order. */
bool coll_values_is_run(const struct coll_values *values, uint32_t value, uint32_t first, uint32_t last);

/* Returns the lowest node that did not contribute, or node_count if all did. */
uint32_t coll_values_missing(const struct coll_values *values, uint32_t value);

#endif
