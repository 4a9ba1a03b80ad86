#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/coll/registry.h"

#define KIB UINT64_C(1024)

static void test_entries_are_complete_and_unique(void **state)
{
    (void)state;
    uint32_t count = 0;
    const struct coll_algorithm *const *algorithms = coll_registry(&count);
    assert_true(count >= 4);
    bool served[OP_KIND_COUNT] = {false};
    for (uint32_t i = 0; i < count; i++) {
        const struct coll_algorithm *one = algorithms[i];
        assert_non_null(one);
        assert_true(one->id != 0);
        assert_true(strlen(one->name) > 0 &&
                    strspn(one->name, "abcdefghijklmnopqrstuvwxyz_") == strlen(one->name));
        assert_true(strlen(one->description) > 0 && strchr(one->description, '\n') == NULL);
        assert_non_null(one->round_count);
        assert_non_null(one->transfers_max);
        assert_non_null(one->round);
        assert_true((unsigned)one->kind < OP_KIND_COUNT);
        served[one->kind] = true;
        for (uint32_t j = 0; j < i; j++) {
            assert_true(algorithms[j]->id != one->id);
            assert_false(algorithms[j]->kind == one->kind && strcmp(algorithms[j]->name, one->name) == 0);
        }
    }
    for (size_t kind = 0; kind < OP_KIND_COUNT; kind++) {
        assert_true(served[kind]);
    }
}

/* Ids go over the wire: a change here is a change of the protocol. */
static void test_ids_stay(void **state)
{
    (void)state;
    assert_int_equal(coll_ring_all_reduce.id, 1);
    assert_int_equal(coll_direct_all_reduce.id, 2);
    assert_int_equal(coll_tree_broadcast.id, 3);
    assert_int_equal(coll_dissemination_barrier.id, 4);
}

static void test_by_id_and_by_name(void **state)
{
    (void)state;
    uint32_t count = 0;
    const struct coll_algorithm *const *algorithms = coll_registry(&count);
    for (uint32_t i = 0; i < count; i++) {
        assert_ptr_equal(coll_registry_by_id(algorithms[i]->id), algorithms[i]);
        assert_ptr_equal(coll_registry_by_name(algorithms[i]->kind, algorithms[i]->name), algorithms[i]);
    }
    assert_ptr_equal(coll_registry_by_name(OP_KIND_ALL_REDUCE, "ring"), &coll_ring_all_reduce);
    assert_ptr_equal(coll_registry_by_name(OP_KIND_ALL_REDUCE, "direct"), &coll_direct_all_reduce);
    assert_ptr_equal(coll_registry_by_name(OP_KIND_BROADCAST, "tree"), &coll_tree_broadcast);
    assert_ptr_equal(coll_registry_by_name(OP_KIND_BARRIER, "dissemination"), &coll_dissemination_barrier);
    assert_null(coll_registry_by_id(0));
    assert_null(coll_registry_by_id(UINT32_MAX));
    assert_null(coll_registry_by_name(OP_KIND_BROADCAST, "ring")); /* another kind's */
    assert_null(coll_registry_by_name(OP_KIND_ALL_REDUCE, ""));
    assert_null(coll_registry_by_name(OP_KIND_ALL_REDUCE, "rin"));
    assert_null(coll_registry_by_name(OP_KIND_ALL_REDUCE, "ring "));
    assert_null(coll_registry_by_name(OP_KIND_ALL_REDUCE, "Ring"));
}

static const uint64_t sizes_bytes[] = {0,          1,
                                       8,          4 * KIB,
                                       64 * KIB,   256 * KIB - 1,
                                       256 * KIB,  256 * KIB + 1,
                                       1024 * KIB, 16 * 1024 * KIB,
                                       INT64_MAX,  UINT64_MAX};
#define SIZE_COUNT (sizeof sizes_bytes / sizeof sizes_bytes[0])

/* It takes no node's index, so nodes that agree on the arguments agree on the choice: here, that it has no
 * memory. */
static void test_selection_is_a_pure_function(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < OP_KIND_COUNT; kind++) {
        const struct coll_algorithm *chosen[17][SIZE_COUNT];
        for (uint32_t nodes = 1; nodes <= 16; nodes++) {
            for (size_t s = 0; s < SIZE_COUNT; s++) {
                chosen[nodes][s] = coll_select((enum op_kind)kind, nodes, sizes_bytes[s]);
                assert_non_null(chosen[nodes][s]);
                assert_int_equal(chosen[nodes][s]->kind, kind);
                assert_ptr_equal(coll_registry_by_id(chosen[nodes][s]->id), chosen[nodes][s]);
            }
        }
        for (uint32_t nodes = 16; nodes >= 1; nodes--) {
            for (size_t s = SIZE_COUNT; s-- > 0;) {
                assert_ptr_equal(coll_select((enum op_kind)kind, nodes, sizes_bytes[s]), chosen[nodes][s]);
            }
        }
    }
}

static void test_selection_is_monotone(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 300; nodes++) {
        bool ring = false;
        for (size_t s = 0; s < SIZE_COUNT; s++) {
            bool now = coll_select(OP_KIND_ALL_REDUCE, nodes, sizes_bytes[s]) == &coll_ring_all_reduce;
            assert_true(now || !ring); /* never back with the size */
            ring = now;
            bool more = coll_select(OP_KIND_ALL_REDUCE, nodes + 1, sizes_bytes[s]) == &coll_ring_all_reduce;
            assert_true(more || !now); /* nor with the nodes */
        }
    }
}

static void test_selection_boundaries(void **state)
{
    (void)state;
    for (uint32_t nodes = 3; nodes <= COLL_NODES_MAX; nodes += 1 + nodes / 3) {
        assert_ptr_equal(coll_select(OP_KIND_ALL_REDUCE, nodes, 0), &coll_direct_all_reduce);
        assert_ptr_equal(coll_select(OP_KIND_ALL_REDUCE, nodes, 256 * KIB), &coll_direct_all_reduce);
        assert_ptr_equal(coll_select(OP_KIND_ALL_REDUCE, nodes, 256 * KIB + 1), &coll_ring_all_reduce);
        assert_ptr_equal(coll_select(OP_KIND_ALL_REDUCE, nodes, UINT64_MAX), &coll_ring_all_reduce);
        assert_ptr_equal(coll_select(OP_KIND_BROADCAST, nodes, UINT64_MAX), &coll_tree_broadcast);
        assert_ptr_equal(coll_select(OP_KIND_BARRIER, nodes, 0), &coll_dissemination_barrier);
    }
    assert_ptr_equal(coll_select(OP_KIND_ALL_REDUCE, 1, UINT64_MAX), &coll_direct_all_reduce);
    assert_ptr_equal(coll_select(OP_KIND_ALL_REDUCE, 2, UINT64_MAX), &coll_direct_all_reduce);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries_are_complete_and_unique),
        cmocka_unit_test(test_ids_stay),
        cmocka_unit_test(test_by_id_and_by_name),
        cmocka_unit_test(test_selection_is_a_pure_function),
        cmocka_unit_test(test_selection_is_monotone),
        cmocka_unit_test(test_selection_boundaries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
