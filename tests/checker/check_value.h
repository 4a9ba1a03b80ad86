#ifndef TESTS_CHECKER_CHECK_VALUE_H
#define TESTS_CHECKER_CHECK_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Symbolic values, for coll_check: what a range of a buffer holds, as the expression that made it. A value is
 * either what one node contributed, or the fold of two values, left into which right was reduced. Equal
 * expressions have equal numbers, so two nodes hold the same bits exactly if they hold the same number;
 * a + b and b + a differ (they do in bits, for NaN). Each value knows its contributors, and whether they are
 * a run: nodes that follow each other, folded from left to right, however bracketed.
 */
#define COLL_VALUE_NONE 0

/* Contributors first .. last, in order; first > last: none. */
struct coll_value_run {
    uint32_t first;
    uint32_t last;
};

struct coll_values {
    uint32_t node_count;
    size_t set_words; /* 64-bit words of one set of contributors */
    uint32_t count;   /* values, the unused number 0 included */
    uint32_t capacity;
    uint32_t *left; /* by value; 0 for a contribution */
    uint32_t *right;
    struct coll_value_run *runs; /* by value */
    uint64_t *contributors;      /* by value, set_words each */
    uint32_t *slots; /* open addressing over (left, right), a power of two, at least twice the capacity */
    uint32_t slot_count;
};

/* False without memory. Free it in any case. */
bool coll_values_init(struct coll_values *values, uint32_t node_count) __attribute__((warn_unused_result));
void coll_values_free(struct coll_values *values);

/* What `node` contributes. */
uint32_t coll_values_contribution(const struct coll_values *values, uint32_t node);

/* `right` reduced into `left`; both are values. False without memory. */
bool coll_values_fold(struct coll_values *values, uint32_t left, uint32_t right, uint32_t *out)
    __attribute__((warn_unused_result));

/* The lowest node that contributed to both; node_count when there is none. */
uint32_t coll_values_shared(const struct coll_values *values, uint32_t left, uint32_t right);

/* Whether the value is the fold of nodes first .. last in order. */
bool coll_values_is_run(const struct coll_values *values, uint32_t value, uint32_t first, uint32_t last);

/* The lowest node that did not contribute; node_count when all did. */
uint32_t coll_values_missing(const struct coll_values *values, uint32_t value);

#endif
