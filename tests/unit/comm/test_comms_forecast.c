#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>

#include <cmocka.h>

#include "daemon/comm/comms_forecast.h"

/* What `commctl plan` says of forming communicators, against figures worked out by hand. */

static const struct coll_network slow = {.latency_s = 1e-3, .bandwidth_bytes_per_s = 1e6, .message_s = 1e-4};

static void assert_seconds(double seconds, double expected)
{
    assert_true(seconds > expected * 0.999999 && seconds < expected * 1.000001);
}

static struct comms_forecast forecast(uint32_t nodes, double dial_s, double nodes_per_processor)
{
    struct comms_plan plan = {
        .node_count = nodes, .network = slow, .dial_s = dial_s, .nodes_per_processor = nodes_per_processor};
    struct comms_forecast out;
    comms_forecast(&plan, &out);
    return out;
}

static void test_small_clusters(void **state)
{
    (void)state;
    struct comms_forecast alone = forecast(1, 1, 1), few = forecast(5, 1, 1);
    assert_true(alone.fresh_s == 0 && alone.warm_s == 0);
    assert_int_equal(alone.links, 0);
    /* All connections are there: three latencies, and 4 messages each time. */
    assert_seconds(few.fresh_s, 3 * (1e-3 + 4e-4));
    assert_seconds(few.warm_s, few.fresh_s);
    assert_int_equal(few.links, 4);
    assert_false(few.by_tree);
}

/* The nodes meet, and connect each pair. */
static void test_pairs(void **state)
{
    (void)state;
    struct comms_forecast found = forecast(11, 0.5, 1);
    assert_false(found.by_tree);
    assert_int_equal(found.links, 10);
    assert_seconds(found.warm_s, 3 * (1e-3 + 1e-3) + 2e-3 + 0.010 + 3e-4);
    assert_seconds(found.fresh_s, found.warm_s + 10 * 0.5 + 6.5 * 4e-3);
    /* 55 connections of two halves of a second on one processor, instead of the busiest node's ten. */
    assert_true(forecast(11, 0.5, 11).fresh_s > 55);
}

/* 50 nodes: a root, 8 children, 41 below these. They report to the place. */
static void test_a_tree(void **state)
{
    (void)state;
    struct comms_forecast found = forecast(50, 0.5, 1);
    assert_true(found.by_tree);
    double place = 1e-3 + 49e-4 + 0.010;
    double down = 2 * (1e-3 + 8e-4 + 8 * 50 * 48 / 1e6), ready = 4 * (1e-3 + 8e-4);
    assert_seconds(found.warm_s, place + down + ready);
    /* The place has 49 connections, a parent 8 and its own, on each of two levels; three handshakes. */
    assert_seconds(found.fresh_s, found.warm_s + 49 * 0.5 + 18 * 0.5 + 3 * 4e-3);
    assert_true(forecast(49, 0.5, 1).warm_s < found.warm_s);
}

/* 145 nodes, 13 groups of 11 guests in the mean: they report to relays. */
static void test_relays(void **state)
{
    (void)state;
    struct comms_forecast found = forecast(145, 0.5, 1);
    double busiest = 144.0 / 13 + 2 * sqrt(144.0 / 13) + 13;
    double report = 2e-3 + busiest * 1e-4 + 0.010 + 0.005;
    double down = 3 * (1e-3 + 8e-4 + 8 * 145 * 48 / 1e6), ready = 6 * (1e-3 + 8e-4);
    assert_seconds(found.warm_s, report + down + ready);
    /* Five handshakes: to the relay, to the place, and on three levels. */
    assert_seconds(found.fresh_s, found.warm_s + busiest * 0.5 + 27 * 0.5 + 5 * 4e-3);
    assert_true(forecast(10000, 2.5e-3, 1).fresh_s < forecast(10000, 0, 1).fresh_s + 2);
    /* Memory: known nodes count little, links much. */
    assert_true(found.links <= 10);
    assert_in_range((uint64_t)found.node_bytes, 10 * 131072, 12 * 131072);
    assert_true(forecast(10000, 0.5, 1).node_bytes < 10 * 131072 + 10000 * 1024);
}

static void test_the_first_operation(void **state)
{
    (void)state;
    struct comms_plan plan = {.node_count = 64, .network = slow, .dial_s = 0.01, .nodes_per_processor = 1};
    struct coll_forecast six = {.seconds = 1, .rounds = 6}, one = {.seconds = 1, .rounds = 1};
    /* A handshake in each of six rounds; 63 connections in one round, two at a time. */
    assert_seconds(comms_forecast_first_s(&plan, &six, 6), 1 + 6 * 0.01 + 6 * 4e-3);
    assert_seconds(comms_forecast_first_s(&plan, &one, 63), 1 + 63 * 0.01 + 31.5 * 4e-3);
    plan.node_count = 20; /* formation has made all connections */
    assert_seconds(comms_forecast_first_s(&plan, &six, 6), 1);
    plan.nodes_per_processor = 4;
    struct coll_network shared = comms_forecast_network(&plan);
    assert_seconds(shared.message_s, 4e-4);
    assert_seconds(shared.bandwidth_bytes_per_s, 2.5e5);
    assert_seconds(shared.latency_s, 1e-3);
}

/* With how many nodes each node exchanges data. */
static void test_links(void **state)
{
    static const struct {
        const struct coll_algorithm *algorithm;
        uint32_t nodes, links;
    } cases[] = {
        {&coll_ring_all_reduce, 64, 2},
        {&coll_direct_all_reduce, 64, 63},
        {&coll_recursive_doubling_all_reduce, 64, 6},
        {&coll_halving_doubling_all_reduce, 64, 6},
        {&coll_pairwise_all_to_all, 9, 8},
        {&coll_direct_gather, 20, 19},
        {&coll_ring_all_gather, 2, 1},
        {&coll_tree_broadcast, 16, 4},
        {&coll_dissemination_barrier, 8, 5},
        {&coll_ring_all_reduce, 1, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct coll_choice choice = {.kind = cases[i].algorithm->kind,
                                     .node_count = cases[i].nodes,
                                     .size_bytes = 1 << 20,
                                     .element_bytes = 1,
                                     .blocks_are_equal = true};
        uint32_t links = coll_links(cases[i].algorithm, &choice);
        if (links != cases[i].links) {
            fail_msg("%s of %u nodes: %u links instead of %u", cases[i].algorithm->name, cases[i].nodes,
                     links, cases[i].links);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_clusters),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_a_tree),
        cmocka_unit_test(test_relays),
        cmocka_unit_test(test_the_first_operation),
        cmocka_unit_test(test_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
