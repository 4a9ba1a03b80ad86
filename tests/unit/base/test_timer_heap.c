#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/base/random.h"
#include "daemon/base/timer_heap.h"

enum { NODES = 200 };

static void nodes_init(struct timer_node *nodes, size_t count)
{
    memset(nodes, 0xa5, count * sizeof(*nodes));
    for (size_t i = 0; i < count; i++) {
        nodes[i].index = TIMER_NODE_DISARMED;
    }
}

static void test_empty(void **state)
{
    (void)state;
    struct timer_heap heap = {0};
    struct timer_node node;
    nodes_init(&node, 1);
    assert_null(timer_heap_first(&heap));
    timer_heap_remove(&heap, &node);
    assert_true(timer_heap_reserve(&heap, 1));
    timer_heap_set(&heap, &node, 5);
    assert_ptr_equal(timer_heap_first(&heap), &node);
    timer_heap_remove(&heap, &node);
    timer_heap_remove(&heap, &node);
    assert_null(timer_heap_first(&heap));
    assert_int_equal(node.index, TIMER_NODE_DISARMED);
    timer_heap_free(&heap);
    assert_null(heap.nodes);
}

static void test_equal_deadlines_come_in_the_order_set(void **state)
{
    (void)state;
    struct timer_heap heap = {0};
    struct timer_node nodes[NODES];
    nodes_init(nodes, NODES);
    assert_true(timer_heap_reserve(&heap, NODES));
    for (size_t i = 0; i < NODES; i++) {
        timer_heap_set(&heap, &nodes[i], 7);
    }
    timer_heap_set(&heap, &nodes[3], 7); /* set again: now the last */
    for (size_t i = 0; i < NODES; i++) {
        const struct timer_node *first = timer_heap_first(&heap);
        assert_ptr_equal(first, &nodes[i < 3 ? i : i < NODES - 1 ? i + 1 : 3]);
        timer_heap_remove(&heap, timer_heap_first(&heap));
    }
    assert_null(timer_heap_first(&heap));
    timer_heap_free(&heap);
}

/* What the heap should return, found by a look at every node. */
static const struct timer_node *expected_first(const struct timer_node *nodes, const bool *armed)
{
    const struct timer_node *first = NULL;
    for (size_t i = 0; i < NODES; i++) {
        if (armed[i] &&
            (first == NULL || nodes[i].deadline_ns < first->deadline_ns ||
             (nodes[i].deadline_ns == first->deadline_ns && nodes[i].set_number < first->set_number))) {
            first = &nodes[i];
        }
    }
    return first;
}

static void test_random_changes_against_a_plain_search(void **state)
{
    (void)state;
    struct timer_heap heap = {0};
    struct timer_node nodes[NODES];
    bool armed[NODES] = {false};
    struct random random;
    random_seed(&random, 2024);
    nodes_init(nodes, NODES);
    assert_true(timer_heap_reserve(&heap, NODES));
    for (int change = 0; change < 20000; change++) {
        size_t one = random_below(&random, NODES);
        uint64_t choice = random_below(&random, 4);
        if (choice == 0) {
            timer_heap_remove(&heap, &nodes[one]);
            armed[one] = false;
        } else if (choice == 1 && heap.count > 0) {
            struct timer_node *first = timer_heap_first(&heap);
            timer_heap_remove(&heap, first);
            armed[first - nodes] = false;
        } else {
            /* There are few values, so many are equal. Both ends of the range are among them. */
            uint64_t value = random_below(&random, 50);
            timer_heap_set(&heap, &nodes[one], value == 49 ? UINT64_MAX : value);
            armed[one] = true;
        }
        assert_ptr_equal(timer_heap_first(&heap), expected_first(nodes, armed));
    }
    timer_heap_free(&heap);
}

static void test_reserve_keeps_what_is_in(void **state)
{
    (void)state;
    struct timer_heap heap = {0};
    struct timer_node nodes[NODES];
    nodes_init(nodes, NODES);
    for (size_t i = 0; i < NODES; i++) {
        assert_true(timer_heap_reserve(&heap, i + 1));
        timer_heap_set(&heap, &nodes[i], NODES - i);
        assert_ptr_equal(timer_heap_first(&heap), &nodes[i]);
    }
    assert_int_equal(heap.count, NODES);
    for (size_t i = NODES; i-- > 0;) {
        assert_ptr_equal(timer_heap_first(&heap), &nodes[i]);
        timer_heap_remove(&heap, &nodes[i]);
    }
    timer_heap_free(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_equal_deadlines_come_in_the_order_set),
        cmocka_unit_test(test_random_changes_against_a_plain_search),
        cmocka_unit_test(test_reserve_keeps_what_is_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
