#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/coll/overrides.h"

static struct coll_overrides overrides;

static void parse(const char *text)
{
    memset(&overrides, 0xa5, sizeof overrides);
    struct error error = {.status = STATUS_OK};
    if (coll_overrides_parse(text, &overrides, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
}

/* Returns the name of the algorithm that the overrides choose, or "". */
static const char *found(enum op_kind kind, uint32_t nodes, uint64_t size_bytes)
{
    struct coll_choice choice = {.kind = kind, .node_count = nodes, .size_bytes = size_bytes};
    const struct coll_algorithm *one = coll_overrides_find(&overrides, &choice);
    assert_true(one == NULL || one->kind == kind);
    return one != NULL ? one->name : "";
}

static void assert_refused(const char *text, enum status status, const char *message)
{
    struct coll_overrides before;
    parse("broadcast=chain");
    before = overrides;
    struct error error = {.status = STATUS_OK};
    assert_int_equal(coll_overrides_parse(text, &overrides, &error), status);
    assert_int_equal(error.status, status);
    if (strstr(error.text, message) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", message, error.text);
    }
    assert_memory_equal(&before, &overrides, sizeof before);
    assert_int_equal(coll_overrides_parse(text, &overrides, NULL), status);
}

static void test_short_form(void **state)
{
    (void)state;
    parse("all_reduce=ring,broadcast=tree");
    assert_int_equal(overrides.count, 2);
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 2, 0), "ring");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, COLL_NODES_MAX, UINT64_MAX), "ring");
    assert_string_equal(found(OP_KIND_BROADCAST, 7, 5), "tree");
    assert_string_equal(found(OP_KIND_REDUCE, 7, 5), "");
    parse("");
    assert_int_equal(overrides.count, 0);
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 7, 5), "");
    parse("  ");
    assert_int_equal(overrides.count, 0);
}

static void test_sizes(void **state)
{
    (void)state;
    parse("all_reduce:0-4k=tree,4k-=ring;broadcast=chain");
    assert_int_equal(overrides.count, 3);
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 3, 0), "tree");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 3, 4095), "tree");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 3, 4096), "ring");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 3, UINT64_MAX), "ring");
    assert_string_equal(found(OP_KIND_BROADCAST, 3, 4096), "chain");
    parse("scan:10-2m=chain,1g-3g=hillis_steele");
    assert_string_equal(found(OP_KIND_SCAN, 3, 9), "");
    assert_string_equal(found(OP_KIND_SCAN, 3, 10), "chain");
    assert_string_equal(found(OP_KIND_SCAN, 3, (UINT64_C(2) << 20) - 1), "chain");
    assert_string_equal(found(OP_KIND_SCAN, 3, UINT64_C(2) << 20), "");
    assert_string_equal(found(OP_KIND_SCAN, 3, UINT64_C(1) << 30), "hillis_steele");
    assert_string_equal(found(OP_KIND_SCAN, 3, UINT64_C(3) << 30), "");
    assert_string_equal(found(OP_KIND_EXCLUSIVE_SCAN, 3, 10), "");
    parse("gather:18446744073709551615-=tree");
    assert_string_equal(found(OP_KIND_GATHER, 3, UINT64_MAX), "tree");
    assert_string_equal(found(OP_KIND_GATHER, 3, UINT64_MAX - 1), "");
}

static void test_nodes(void **state)
{
    (void)state;
    parse("all_reduce:nodes9-:0-8m=halving_doubling");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 8, 0), "");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 9, 0), "halving_doubling");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 9, (UINT64_C(8) << 20) - 1), "halving_doubling");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 9, UINT64_C(8) << 20), "");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, COLL_NODES_MAX, 0), "halving_doubling");
    parse("all_gather:0-1k:nodes2-5=direct,nodes5-=ring");
    assert_string_equal(found(OP_KIND_ALL_GATHER, 4, 1023), "direct");
    assert_string_equal(found(OP_KIND_ALL_GATHER, 4, 1024), "");
    assert_string_equal(found(OP_KIND_ALL_GATHER, 5, 1024), "ring");
    assert_string_equal(found(OP_KIND_ALL_GATHER, 1, 0), "");
}

static void test_first_rule_that_fits(void **state)
{
    (void)state;
    parse("reduce:1k-=chain;reduce=tree;reduce=scatter_gather");
    assert_string_equal(found(OP_KIND_REDUCE, 4, 1024), "chain");
    assert_string_equal(found(OP_KIND_REDUCE, 4, 1023), "tree");
}

static void test_thresholds(void **state)
{
    (void)state;
    parse(COLL_OVERRIDES_THRESHOLDS);
    for (uint32_t nodes = 2; nodes <= 20; nodes++) {
        const char *small = nodes <= 8 ? "ring" : "halving_doubling";
        assert_string_equal(found(OP_KIND_ALL_REDUCE, nodes, 0), small);
        assert_string_equal(found(OP_KIND_ALL_REDUCE, nodes, (8 << 20) - 1), small);
        assert_string_equal(found(OP_KIND_ALL_REDUCE, nodes, 8 << 20), "ring");
    }
}

static void test_spaces(void **state)
{
    (void)state;
    parse(" all_reduce : nodes 2 - 4 : 0 - 4k = tree , 4k - = ring ;\tbroadcast = chain ");
    assert_int_equal(overrides.count, 3);
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 3, 0), "tree");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 4, 0), "");
    assert_string_equal(found(OP_KIND_ALL_REDUCE, 4, 4096), "ring");
    assert_string_equal(found(OP_KIND_BROADCAST, 4, 4096), "chain");
}

/* The overrides know every algorithm by the name that is printed for it. */
static void test_every_name(void **state)
{
    (void)state;
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    for (uint32_t i = 0; i < count; i++) {
        char text[100];
        snprintf(text, sizeof text, "%s=%s", op_kind_text(all[i]->kind), all[i]->name);
        parse(text);
        assert_string_equal(found(all[i]->kind, 5, 100), all[i]->name);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *message;
    } cases[] = {
        {"ring", "algorithms, at character 1: expected an operation with algorithms (all_reduce, ...), "
                 "found \"ring\""},
        {"0-4k=ring", "at character 1: expected an operation"},
        {"nodes2-=ring", "at character 1: expected an operation"},
        {"send=ring",
         "at character 1: expected an operation with algorithms (all_reduce, ...), found \"send\""},
        {"all_reduce", "at character 11: expected \":\" or \"=\", found the end"},
        {"all_reduce=", "at character 12: expected an algorithm of all_reduce (ring, direct, "
                        "recursive_doubling, halving_doubling, tree), found the end"},
        {"all_reduce=rin", "at character 12: expected an algorithm of all_reduce (ring, "},
        {"all_reduce=rings", "found \"rings\""},
        {"all_reduce=chain", "at character 12: expected an algorithm of all_reduce"},
        {"all_reduce:=ring", "at character 12: expected a range, as 4k-8k or nodes2-9, found \"=\""},
        {"all_reduce:4k=ring", "at character 14: expected \"-\", found \"=\""},
        {"all_reduce:-4k=ring", "at character 12: expected a range"},
        {"all_reduce:4k-4k=ring", "at character 15: expected more than the range begins with, found \"4k\""},
        {"all_reduce:4k-1k=ring", "at character 15: expected more than the range begins with"},
        {"all_reduce:4t-=ring", "at character 13: expected \"-\", found \"t-\""},
        {"all_reduce:4kk-=ring", "at character 14: expected \"-\""},
        {"all_reduce:18446744073709551616-=ring", "at character 12: expected a size below 2^64"},
        {"all_reduce:17179869184g-=ring", "at character 12: expected a size below 2^64"},
        {"all_reduce:nodes-=ring", "at character 17: expected a number of nodes, found \"-\""},
        {"all_reduce:nodes4k-=ring", "at character 18: expected \"-\", found \"k-\""},
        {"all_reduce:nodes4294967296-=ring", "at character 17: expected fewer nodes"},
        {"all_reduce:node2-=ring", "at character 12: expected a range"},
        {"all_reduce=ring,", "at character 17: expected an operation"},
        {"all_reduce=ring;;broadcast=tree", "at character 17: expected an operation"},
        {"all_reduce=ring broadcast=tree", "at character 17: expected \",\", \";\" or the end, found "
                                           "\"broadcast\""},
        {"all_reduce=ring,4k-=", "at character 21: expected an algorithm of all_reduce"},
        {"all_reduce=ring,4k-:=tree", "at character 21: expected a range"},
        {"All_reduce=ring", "at character 1: expected an operation"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_refused(cases[i].text, STATUS_INVALID_ARGUMENT, cases[i].message);
    }
}

/* The message shows a long word cut. */
static void test_long_words(void **state)
{
    (void)state;
    char text[2000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_refused(text, STATUS_INVALID_ARGUMENT, "found \"xxxxxxxxxxxxxxxxxxxxxxxx\"");
}

static void test_too_many_rules(void **state)
{
    (void)state;
    char text[COLL_OVERRIDES_MAX * 20 + 40] = "";
    for (int i = 0; i < COLL_OVERRIDES_MAX; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%sscan=chain", i > 0 ? "," : "");
    }
    parse(text);
    assert_int_equal(overrides.count, COLL_OVERRIDES_MAX);
    strcat(text, ",scan=chain");
    assert_refused(text, STATUS_LIMIT, "more than 64 rules");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_form), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_nodes),      cmocka_unit_test(test_first_rule_that_fits),
        cmocka_unit_test(test_thresholds), cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_every_name), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_long_words), cmocka_unit_test(test_too_many_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
