#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/lib/heap.h"

/* The heap of a pool against a model: a map of which units are used. The ranges have no memory, because the
 * heap must not touch them. */

#define UNIT 64u
#define RANGE_BYTES ((size_t)1 << 20)
#define RANGE_UNITS (RANGE_BYTES / UNIT)
#define RANGES 3u
#define ALLOCATIONS_MAX 4000u
#define STEPS 60000u

struct allocation {
    unsigned char *at;
    size_t size_bytes;
};

struct model {
    struct heap heap;
    struct heap_block *ranges[RANGES];
    unsigned char *bases[RANGES];
    bool used[RANGES][RANGE_UNITS];
    struct allocation allocations[ALLOCATIONS_MAX];
    size_t count;
    uint64_t seed;
};

static uint64_t next_random(struct model *model)
{
    model->seed = model->seed * 6364136223846793005u + 1442695040888963407u;
    return model->seed >> 33;
}

static unsigned char *address(uint64_t number)
{
    return (unsigned char *)(uintptr_t)number; /* never used as memory */
}

static struct model *model_make(unsigned ranges)
{
    struct model *model = calloc(1, sizeof *model);
    assert_non_null(model);
    heap_init(&model->heap, UNIT);
    model->seed = 17;
    for (unsigned i = 0; i < ranges; i++) {
        /* The first two are adjacent: they must not be merged. */
        model->bases[i] = address(0x7f0000000000u + i * RANGE_BYTES + (i == 2 ? HEAP_PAGE_BYTES : 0));
        model->ranges[i] = heap_add(&model->heap, model->bases[i], RANGE_BYTES);
        assert_non_null(model->ranges[i]);
    }
    return model;
}

static void model_free(struct model *model)
{
    heap_close(&model->heap);
    free(model);
}

/* Marks the units, which must all have been the opposite. */
static void mark(struct model *model, const struct allocation *allocation, bool used)
{
    unsigned range = 0;
    while (range < RANGES && (size_t)(allocation->at - model->bases[range]) >= RANGE_BYTES) {
        range++;
    }
    assert_true(range < RANGES);
    size_t first = (size_t)(allocation->at - model->bases[range]) / UNIT;
    assert_true(first + allocation->size_bytes / UNIT <= RANGE_UNITS);
    for (size_t i = 0; i < allocation->size_bytes / UNIT; i++) {
        assert_true(model->used[range][first + i] != used);
        model->used[range][first + i] = used;
    }
}

/* Returns whether there was room. */
static bool model_take(struct model *model, size_t wanted_bytes)
{
    bool is_full;
    struct allocation *allocation = &model->allocations[model->count];
    allocation->size_bytes = heap_round(&model->heap, wanted_bytes);
    assert_true(allocation->size_bytes >= wanted_bytes);
    bool has_room = heap_has_room(&model->heap, allocation->size_bytes);
    allocation->at = heap_take(&model->heap, allocation->size_bytes, &is_full);
    assert_true(has_room == (allocation->at != NULL));
    assert_true(is_full == (allocation->at == NULL));
    if (is_full) {
        return false;
    }
    size_t alignment = allocation->size_bytes >= HEAP_PAGE_BYTES ? HEAP_PAGE_BYTES : UNIT;
    assert_int_equal((uintptr_t)allocation->at % alignment, 0);
    mark(model, allocation, true);
    model->count++;
    return true;
}

static void model_give(struct model *model, size_t index)
{
    struct allocation allocation = model->allocations[index];
    assert_false(heap_give(&model->heap, allocation.at + UNIT / 2));
    assert_true(heap_give(&model->heap, allocation.at));
    assert_false(heap_give(&model->heap, allocation.at)); /* twice */
    mark(model, &allocation, false);
    model->allocations[index] = model->allocations[--model->count];
}

static void give_all(struct model *model)
{
    while (model->count > 0) {
        model_give(model, next_random(model) % model->count);
    }
}

/* Whether the units really have no aligned place for the size. */
static void assert_full(const struct model *model, size_t size_bytes)
{
    size_t step = size_bytes >= HEAP_PAGE_BYTES ? HEAP_PAGE_BYTES / UNIT : 1;
    for (unsigned range = 0; range < RANGES; range++) {
        for (size_t first = 0; first + size_bytes / UNIT <= RANGE_UNITS; first += step) {
            size_t unused = 0;
            while (unused < size_bytes / UNIT && !model->used[range][first + unused]) {
                unused++;
            }
            assert_true(unused < size_bytes / UNIT);
        }
    }
}

static size_t random_size(struct model *model)
{
    unsigned kind = (unsigned)(next_random(model) % 8);
    size_t most = kind < 4 ? 300 : kind < 7 ? 20000 : 200000;
    return next_random(model) % most;
}

static void test_random(void **state)
{
    (void)state;
    struct model *model = model_make(RANGES);
    unsigned full_count = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        /* Periods in which the heap fills, and periods in which it empties. */
        bool gives = next_random(model) % 8 < (step / 5000 % 2 == 0 ? 3 : 5);
        if (model->count > 0 && (gives || model->count == ALLOCATIONS_MAX)) {
            model_give(model, next_random(model) % model->count);
            continue;
        }
        size_t size_bytes = random_size(model);
        if (!model_take(model, size_bytes)) {
            if (full_count++ % 64 == 0) {
                assert_full(model, heap_round(&model->heap, size_bytes));
            }
        }
    }
    assert_true(full_count > 0);
    give_all(model);
    for (unsigned i = 0; i < RANGES; i++) {
        assert_true(heap_is_idle(model->ranges[i]));
    }
    model_free(model);
}

static void test_coalescing(void **state)
{
    (void)state;
    struct model *model = model_make(1);
    for (unsigned turn = 0; turn < 4; turn++) {
        size_t count = 0;
        while (model_take(model, turn % 2 == 0 ? UNIT : HEAP_PAGE_BYTES)) {
            count++;
            if (count == ALLOCATIONS_MAX) {
                break;
            }
        }
        assert_false(heap_is_idle(model->ranges[0]));
        give_all(model);
        assert_true(heap_is_idle(model->ranges[0]));
        assert_true(model_take(model, RANGE_BYTES)); /* one block again */
        assert_false(model_take(model, 1));
        give_all(model);
    }
    heap_remove(&model->heap, model->ranges[0]);
    assert_false(model_take(model, 1));
    model->ranges[0] = heap_add(&model->heap, model->bases[0], RANGE_BYTES);
    assert_true(model_take(model, RANGE_BYTES));
    model_free(model);
}

/* Adjacent ranges stay apart: an allocation never crosses their border. */
static void test_ranges(void **state)
{
    (void)state;
    struct model *model = model_make(RANGES);
    assert_false(model_take(model, RANGE_BYTES + 1));
    for (unsigned i = 0; i < RANGES; i++) {
        assert_true(model_take(model, RANGE_BYTES));
    }
    assert_false(model_take(model, 1));
    model_give(model, 0);
    model_give(model, 0);
    assert_false(model_take(model, RANGE_BYTES + 1));
    give_all(model);
    model_free(model);
}

/* Small pieces fill the gaps before aligned ones, and the rest can be used to its end. */
static void test_alignment(void **state)
{
    (void)state;
    struct model *model = model_make(1);
    size_t pages = RANGE_BYTES / HEAP_PAGE_BYTES;
    assert_true(model_take(model, 1));
    for (size_t i = 1; i < pages; i++) {
        assert_true(model_take(model, HEAP_PAGE_BYTES - (i % 2)));
    }
    give_all(model);
    assert_true(heap_is_idle(model->ranges[0]));
    assert_true(model_take(model, 1));
    for (size_t i = 1; i < pages; i++) {
        assert_true(model_take(model, HEAP_PAGE_BYTES));
    }
    assert_false(model_take(model, HEAP_PAGE_BYTES));
    for (size_t i = 1; i < HEAP_PAGE_BYTES / UNIT; i++) {
        assert_true(model_take(model, i % UNIT + 1));
    }
    assert_false(model_take(model, 0));
    model_free(model);
}

static void test_sizes(void **state)
{
    (void)state;
    struct heap heap;
    bool is_full;
    heap_init(&heap, UNIT);
    assert_int_equal(heap_round(&heap, 0), UNIT);
    assert_int_equal(heap_round(&heap, 1), UNIT);
    assert_int_equal(heap_round(&heap, 65), 2 * UNIT);
    assert_int_equal(heap_round(&heap, HEAP_PAGE_BYTES - UNIT + 1), HEAP_PAGE_BYTES);
    assert_int_equal(heap_round(&heap, HEAP_PAGE_BYTES + 1), 2 * HEAP_PAGE_BYTES);
    assert_int_equal(heap_round(&heap, HEAP_MAX_BYTES), HEAP_MAX_BYTES);
    assert_int_equal(heap_round(&heap, HEAP_MAX_BYTES + 1), 0);
    assert_int_equal(heap_round(&heap, SIZE_MAX), 0);
    assert_null(heap_take(&heap, HEAP_MAX_BYTES, &is_full));
    assert_true(is_full);
    assert_false(heap_give(&heap, address(0x1000)));
    struct heap_block *range = heap_add(&heap, address(1u << 20), HEAP_MAX_BYTES);
    assert_ptr_equal(heap_take(&heap, HEAP_MAX_BYTES, &is_full), address(1u << 20));
    assert_true(heap_give(&heap, address(1u << 20)));
    assert_true(heap_is_idle(range));
    heap_close(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),    cmocka_unit_test(test_coalescing), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_alignment), cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
