#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/owned_name.h"
#include "daemon/base/weight.h"

#define SEED 0x77656967687473u
enum { NODES = 9, NAMES = 300 };

static const char *const nodes[NODES] = {"a", "b", "rack1-node07", "c", "d", "e", "f", "rack1-node08", "g"};

static struct weight_choice choose(uint32_t count, uint32_t without, uint32_t uid, const char *name)
{
    struct weight_choice choice = {0};
    for (uint32_t node = 0; node < count; node++) {
        if (node != without) {
            weight_choose(&choice, SEED, node, nodes[node], uid, name);
        }
    }
    return choice;
}

/* The order in which nodes are looked at does not matter, and a node that goes changes only its own names. */
static void test_the_choice(void **state)
{
    (void)state;
    uint32_t chosen[NODES] = {0};
    assert_null(choose(0, NODES, 1000, "job").node_name);
    for (uint32_t i = 0; i < NAMES; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "job-%u", i);
        struct weight_choice best = choose(NODES, NODES, 1000 + i % 3, name), backwards = {0};
        for (uint32_t node = NODES; node-- > 0;) {
            weight_choose(&backwards, SEED, node, nodes[node], 1000 + i % 3, name);
            assert_true(weight_of_node(SEED, nodes[node], 1000 + i % 3, name) <= best.weight);
        }
        assert_int_equal(backwards.node, best.node);
        assert_ptr_equal(best.node_name, nodes[best.node]);
        assert_int_equal(best.weight, weight_of_node(SEED, nodes[best.node], 1000 + i % 3, name));
        for (uint32_t gone = 0; gone < NODES; gone++) {
            assert_true(choose(NODES, gone, 1000 + i % 3, name).node == best.node || gone == best.node);
        }
        chosen[best.node]++;
    }
    for (uint32_t node = 0; node < NODES; node++) {
        assert_in_range(chosen[node], NAMES / NODES / 3, NAMES / NODES * 3);
    }
}

/* A node whose weight is the same comes first if its name does. */
static void test_equal_weights(void **state)
{
    (void)state;
    struct weight_choice choice = {0};
    weight_choose(&choice, SEED, 4, "m", 1000, "job");
    choice.node_name = "n"; /* as if that node had the same weight */
    weight_choose(&choice, SEED, 5, "m", 1000, "job");
    assert_int_equal(choice.node, 5);
    choice.node_name = "l";
    weight_choose(&choice, SEED, 6, "m", 1000, "job");
    assert_int_equal(choice.node, 5);
}

/* A key has defined bytes up to the end of its struct, and its size ends with the name. */
static void test_owned_names(void **state)
{
    (void)state;
    struct owned_name key;
    char longest[COMM_NAME_MAX_BYTES + 20];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    memset(&key, 0xa5, sizeof key);
    assert_int_equal(owned_name_make(&key, 4711, "job"), offsetof(struct owned_name, name) + 3);
    assert_int_equal(key.owner_uid, 4711);
    assert_string_equal(key.name, "job");
    for (size_t i = 3; i < sizeof key.name; i++) {
        assert_int_equal(key.name[i], 0);
    }
    assert_int_equal(owned_name_make(&key, 4712, longest),
                     offsetof(struct owned_name, name) + COMM_NAME_MAX_BYTES);
    assert_int_equal(strlen(key.name), COMM_NAME_MAX_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_choice),
        cmocka_unit_test(test_equal_weights),
        cmocka_unit_test(test_owned_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
