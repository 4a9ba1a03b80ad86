#include "tests/checker/check_value.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/hash.h"

#define VALUES_MAX                                                                                           \
    (UINT32_C(1) << 30) /* so that twice as many slots fit; more values count as a lack of memory */

static const struct coll_value_run NO_RUN = {1, 0};

/* Returns the slot that holds the fold of (left, right), or the free slot where it belongs. */
static uint32_t *coll_values_slot(const struct coll_values *values, uint32_t left, uint32_t right)
{
    uint32_t pair[2] = {left, right};
    uint32_t at = (uint32_t)hash_bytes(0, pair, sizeof pair) & (values->slot_count - 1);
    for (;;) {
        uint32_t value = values->slots[at];
        if (value == COLL_VALUE_NONE || (values->left[value] == left && values->right[value] == right)) {
            return &values->slots[at];
        }
        at = (at + 1) & (values->slot_count - 1);
    }
}

static uint64_t *coll_values_set(const struct coll_values *values, uint32_t value)
{
    return &values->contributors[value * values->set_words];
}

/* Makes room for `capacity` values, a power of two that is larger than the present capacity. */
static bool coll_values_grow(struct coll_values *values, uint32_t capacity)
{
    if (capacity > VALUES_MAX) {
        return false;
    }
    uint32_t *left = reallocarray(values->left, capacity, sizeof *left);
    if (left == NULL) {
        return false;
    }
    values->left = left;
    uint32_t *right = reallocarray(values->right, capacity, sizeof *right);
    if (right == NULL) {
        return false;
    }
    values->right = right;
    struct coll_value_run *runs = reallocarray(values->runs, capacity, sizeof *runs);
    if (runs == NULL) {
        return false;
    }
    values->runs = runs;
    uint64_t *contributors =
        reallocarray(values->contributors, capacity, values->set_words * sizeof *contributors);
    if (contributors == NULL) {
        return false;
    }
    values->contributors = contributors;
    uint32_t *slots = calloc((size_t)capacity * 2, sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    free(values->slots);
    values->slots = slots;
    values->slot_count = capacity * 2;
    values->capacity = capacity;
    for (uint32_t value = values->node_count + 1; value < values->count; value++) {
        *coll_values_slot(values, values->left[value], values->right[value]) = value;
    }
    return true;
}

bool coll_values_init(struct coll_values *values, uint32_t node_count)
{
    assert(node_count > 0);
    *values = (struct coll_values){.node_count = node_count, .set_words = (node_count + 63u) / 64};
    uint32_t capacity = 64;
    while (capacity < node_count + 1) {
        capacity *= 2;
    }
    if (!coll_values_grow(values, capacity)) {
        return false;
    }
    values->count = node_count + 1;
    memset(values->contributors, 0, values->count * values->set_words * sizeof *values->contributors);
    for (uint32_t node = 0; node < node_count; node++) {
        uint32_t value = coll_values_contribution(values, node);
        values->left[value] = COLL_VALUE_NONE;
        values->right[value] = COLL_VALUE_NONE;
        values->runs[value] = (struct coll_value_run){node, node};
        coll_values_set(values, value)[node / 64] = UINT64_C(1) << (node % 64);
    }
    return true;
}

void coll_values_free(struct coll_values *values)
{
    free(values->left);
    free(values->right);
    free(values->runs);
    free(values->contributors);
    free(values->slots);
    *values = (struct coll_values){0};
}

uint32_t coll_values_contribution(const struct coll_values *values, uint32_t node)
{
    assert(node < values->node_count);
    return node + 1;
}

bool coll_values_fold(struct coll_values *values, uint32_t left, uint32_t right, uint32_t *out)
{
    assert(left != COLL_VALUE_NONE && left < values->count);
    assert(right != COLL_VALUE_NONE && right < values->count);
    uint32_t known = *coll_values_slot(values, left, right);
    if (known != COLL_VALUE_NONE) {
        *out = known;
        return true;
    }
    if (values->count == values->capacity && !coll_values_grow(values, values->capacity * 2)) {
        return false;
    }
    uint32_t value = values->count++;
    values->left[value] = left;
    values->right[value] = right;
    struct coll_value_run before = values->runs[left];
    struct coll_value_run after = values->runs[right];
    bool is_run = before.first <= before.last && after.first <= after.last && before.last + 1 == after.first;
    values->runs[value] = is_run ? (struct coll_value_run){before.first, after.last} : NO_RUN;
    uint64_t *set = coll_values_set(values, value);
    const uint64_t *left_set = coll_values_set(values, left);
    const uint64_t *right_set = coll_values_set(values, right);
    for (size_t word = 0; word < values->set_words; word++) {
        set[word] = left_set[word] | right_set[word];
    }
    *coll_values_slot(values, left, right) = value;
    *out = value;
    return true;
}

uint32_t coll_values_shared(const struct coll_values *values, uint32_t left, uint32_t right)
{
    const uint64_t *left_set = coll_values_set(values, left);
    const uint64_t *right_set = coll_values_set(values, right);
    for (size_t word = 0; word < values->set_words; word++) {
        uint64_t both = left_set[word] & right_set[word];
        if (both != 0) {
            return (uint32_t)(word * 64) + (uint32_t)__builtin_ctzll(both);
        }
    }
    return values->node_count;
}

bool coll_values_is_run(const struct coll_values *values, uint32_t value, uint32_t first, uint32_t last)
{
    struct coll_value_run run = values->runs[value];
    return run.first == first && run.last == last;
}

uint32_t coll_values_missing(const struct coll_values *values, uint32_t value)
{
    const uint64_t *set = coll_values_set(values, value);
    for (uint32_t node = 0; node < values->node_count; node++) {
        if ((set[node / 64] >> (node % 64) & 1) == 0) {
            return node;
        }
    }
    return values->node_count;
}
