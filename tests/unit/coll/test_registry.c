#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/coll/registry.h"

static void test_entries_are_complete_and_unique(void **state)
{
    (void)state;
    uint32_t count = 0;
    const struct coll_algorithm *const *algorithms = coll_registry(&count);
    assert_int_equal(count, 29);
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
        assert_non_null(one->estimate);
        assert_int_equal(one->id, i + 1);
        assert_true((unsigned)one->kind < OP_KIND_COUNT);
        served[one->kind] = true;
        for (uint32_t j = 0; j < i; j++) {
            assert_true(algorithms[j]->id != one->id);
            assert_false(algorithms[j]->kind == one->kind && strcmp(algorithms[j]->name, one->name) == 0);
        }
    }
    for (unsigned kind = 0; kind < OP_KIND_COUNT; kind++) {
        assert_true(served[kind] != op_kind_is_message((enum op_kind)kind));
    }
}

/* Ids go over the wire: a change here is a change of the protocol. */
static void test_ids_stay(void **state)
{
    (void)state;
    static const struct {
        enum op_kind kind;
        const char *name;
        uint32_t id;
    } known[] = {
        {OP_KIND_ALL_REDUCE, "ring", 1},
        {OP_KIND_ALL_REDUCE, "direct", 2},
        {OP_KIND_BROADCAST, "tree", 3},
        {OP_KIND_BARRIER, "dissemination", 4},
        {OP_KIND_ALL_REDUCE, "recursive_doubling", 5},
        {OP_KIND_ALL_REDUCE, "halving_doubling", 6},
        {OP_KIND_ALL_REDUCE, "tree", 7},
        {OP_KIND_BROADCAST, "chain", 8},
        {OP_KIND_BROADCAST, "scatter_all_gather", 9},
        {OP_KIND_REDUCE, "tree", 10},
        {OP_KIND_REDUCE, "chain", 11},
        {OP_KIND_REDUCE, "scatter_gather", 12},
        {OP_KIND_ALL_GATHER, "ring", 13},
        {OP_KIND_ALL_GATHER, "bruck", 14},
        {OP_KIND_ALL_GATHER, "direct", 15},
        {OP_KIND_REDUCE_SCATTER, "ring", 16},
        {OP_KIND_REDUCE_SCATTER, "direct", 17},
        {OP_KIND_REDUCE_SCATTER, "halving", 18},
        {OP_KIND_GATHER, "direct", 19},
        {OP_KIND_GATHER, "tree", 20},
        {OP_KIND_SCATTER, "direct", 21},
        {OP_KIND_SCATTER, "tree", 22},
        {OP_KIND_ALL_TO_ALL, "direct", 23},
        {OP_KIND_ALL_TO_ALL, "pairwise", 24},
        {OP_KIND_ALL_TO_ALL, "bruck", 25},
        {OP_KIND_SCAN, "hillis_steele", 26},
        {OP_KIND_SCAN, "chain", 27},
        {OP_KIND_EXCLUSIVE_SCAN, "hillis_steele", 28},
        {OP_KIND_EXCLUSIVE_SCAN, "chain", 29},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const struct coll_algorithm *one = coll_registry_by_name(known[i].kind, known[i].name);
        assert_non_null(one);
        assert_int_equal(one->id, known[i].id);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries_are_complete_and_unique),
        cmocka_unit_test(test_ids_stay),
        cmocka_unit_test(test_by_id_and_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
