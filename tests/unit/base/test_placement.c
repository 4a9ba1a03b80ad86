#include "daemon/base/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Machines are hwloc's synthetic ones, and threads are numbers: nothing is moved really. */

#define TWO_NODES "numa:2 core:2 pu:2"
#define FOUR_NODES "package:2 numa:2 core:4 pu:1"
#define THREADS 8

struct machine {
    uint32_t node_of_thread[THREADS]; /* the last move; PLACEMENT_ANYWHERE: none */
    uint32_t moves;
    struct placement *placement;
};

static void record_move(void *context, pthread_t thread, uint32_t node)
{
    struct machine *machine = context;
    assert_in_range((uint32_t)thread, 0, THREADS - 1);
    machine->node_of_thread[(uint32_t)thread] = node;
    machine->moves++;
}

/* A process with number 100 n + x runs on node n. */
static uint32_t node_of_process(void *context, pid_t pid)
{
    (void)context;
    return pid < 0 ? PLACEMENT_ANYWHERE : (uint32_t)pid / 100;
}

static struct placement *make(struct machine *machine, const char *synthetic)
{
    struct placement_options options = {
        .synthetic = synthetic, .move = record_move, .node_of_process = node_of_process, .context = machine};
    struct error error;
    *machine = (struct machine){0};
    for (uint32_t i = 0; i < THREADS; i++) {
        machine->node_of_thread[i] = PLACEMENT_ANYWHERE;
    }
    assert_int_equal(placement_new(&options, &machine->placement, &error), STATUS_OK);
    return machine->placement;
}

static void add(struct machine *machine, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        placement_add(machine->placement, (pthread_t)i, NULL);
    }
}

static uint32_t threads_on(const struct machine *machine, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        count += machine->node_of_thread[i] == node;
    }
    return count;
}

static void test_one_node_needs_no_placement(void **state)
{
    (void)state;
    struct machine machine;
    assert_null(make(&machine, "numa:1 core:4 pu:2"));
    assert_int_equal(placement_nodes(NULL), 1);
    placement_add(NULL, (pthread_t)0, "127.0.0.1:7000");
    assert_int_equal(placement_rank_came(NULL, 1), PLACEMENT_ANYWHERE);
    placement_rank_left(NULL, 0);
    placement_free(NULL);
}

static void test_a_wrong_description(void **state)
{
    (void)state;
    struct placement_options options = {.synthetic = "nonsense:x"};
    struct placement *placement = (struct placement *)&options;
    struct error error;
    assert_int_equal(placement_new(&options, &placement, &error), STATUS_SYSTEM);
    assert_null(placement);
    assert_non_null(strstr(error.text, "the machine's processors cannot be read"));
}

static void test_spread(void **state)
{
    (void)state;
    static const struct {
        uint32_t ranks[4], nodes, threads, expected[4];
    } cases[] = {
        {{0, 0, 0, 0}, 2, 3, {2, 1}}, /* no ranks: evenly, the first node first */
        {{0, 0, 0, 0}, 4, 8, {2, 2, 2, 2}},
        {{4, 4, 0, 0}, 2, 4, {2, 2}},
        {{0, 2, 0, 0}, 2, 4, {0, 4}},       /* all ranks on one node: all threads, too */
        {{6, 2, 0, 0}, 2, 4, {3, 1}},       /* in proportion */
        {{5, 3, 1, 0}, 3, 5, {3, 2, 0}},    /* d'Hondt: 5, 3, 2.5, 1.67, 1.5 */
        {{1, 0, 0, 1}, 4, 1, {1, 0, 0, 0}}, /* fewer threads than nodes */
        {{UINT32_MAX, UINT32_MAX, 0, 0}, 2, 2, {1, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t node_of_thread[THREADS], count[4] = {0};
        placement_spread(cases[i].ranks, cases[i].nodes, cases[i].threads, node_of_thread);
        for (uint32_t thread = 0; thread < cases[i].threads; thread++) {
            assert_in_range(node_of_thread[thread], 0, cases[i].nodes - 1);
            count[node_of_thread[thread]]++;
        }
        for (uint32_t node = 0; node < cases[i].nodes; node++) {
            assert_int_equal(count[node], cases[i].expected[node]);
        }
    }
}

static void test_threads_follow_ranks(void **state)
{
    (void)state;
    struct machine machine;
    assert_int_equal(placement_nodes(make(&machine, TWO_NODES)), 2);
    add(&machine, 4);
    assert_int_equal(threads_on(&machine, 0), 2);
    assert_int_equal(threads_on(&machine, 1), 2);

    assert_int_equal(placement_rank_came(machine.placement, 101), 1);
    assert_int_equal(threads_on(&machine, 1), 4);
    assert_int_equal(placement_rank_came(machine.placement, 102), 1);
    assert_int_equal(placement_rank_came(machine.placement, 1), 0);
    assert_int_equal(placement_rank_came(machine.placement, 2), 0);
    assert_int_equal(threads_on(&machine, 0), 2);

    placement_rank_left(machine.placement, 1);
    placement_rank_left(machine.placement, 1);
    assert_int_equal(threads_on(&machine, 0), 4);
    placement_rank_left(machine.placement, 0);
    placement_rank_left(machine.placement, 0);
    placement_rank_left(machine.placement, 0); /* one too many: nothing */
    assert_int_equal(threads_on(&machine, 0), 2);
    placement_free(machine.placement);
}

static void test_no_thread_moves_without_need(void **state)
{
    (void)state;
    struct machine machine;
    make(&machine, FOUR_NODES);
    add(&machine, 8);
    uint32_t moves = machine.moves;
    for (int i = 0; i < 4; i++) { /* as many on each node: the threads are spread already */
        placement_rank_came(machine.placement, 0);
        placement_rank_came(machine.placement, 100);
        placement_rank_came(machine.placement, 200);
        placement_rank_came(machine.placement, 300);
    }
    moves = machine.moves - moves;
    assert_in_range(moves, 0, 24); /* the first ranks came one after the other */
    moves = machine.moves;
    placement_rank_came(machine.placement, 0); /* 5, 4, 4 and 4 of 17: still two threads each */
    assert_int_equal(machine.moves, moves);
    placement_free(machine.placement);
}

static void test_processes_of_unknown_place(void **state)
{
    (void)state;
    struct machine machine;
    make(&machine, TWO_NODES);
    add(&machine, 2);
    assert_int_equal(placement_rank_came(machine.placement, -1), PLACEMENT_ANYWHERE);
    assert_int_equal(placement_rank_came(machine.placement, 900), 9); /* no such node: it does not count */
    placement_rank_left(machine.placement, 9);
    placement_rank_left(machine.placement, PLACEMENT_ANYWHERE);
    assert_int_equal(threads_on(&machine, 0), 1);
    placement_free(machine.placement);
}

/* A synthetic machine has no network cards, so no address is that of a card: such threads follow the ranks.
 */
static void test_addresses_that_no_card_has(void **state)
{
    (void)state;
    static const char *const addresses[] = {
        "127.0.0.1:7000", "[::1]:7000", "0.0.0.0:7000", "name:7000", "[fe80::1%lo]:7", "", ":", "["};
    struct machine machine;
    make(&machine, TWO_NODES);
    for (uint32_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        placement_add(machine.placement, (pthread_t)i, addresses[i]);
    }
    placement_rank_came(machine.placement, 100);
    assert_int_equal(threads_on(&machine, 1), THREADS);
    placement_free(machine.placement);
}

static void test_too_many_threads_and_nodes(void **state)
{
    (void)state;
    struct machine machine;
    assert_int_equal(placement_nodes(make(&machine, "numa:70 pu:1")), PLACEMENT_NODES_MAX);
    for (uint32_t i = 0; i < PLACEMENT_THREADS_MAX + 5; i++) {
        placement_add(machine.placement, (pthread_t)(i % THREADS), NULL);
    }
    uint32_t moves = machine.moves;
    assert_int_equal(moves, PLACEMENT_THREADS_MAX);
    placement_free(machine.placement);
}

/* The machine itself: this process runs somewhere, and threads are moved by the real functions. */
static void test_this_machine(void **state)
{
    (void)state;
    struct placement_options options = {0};
    struct placement *placement = NULL;
    struct error error;
    assert_int_equal(placement_new(&options, &placement, &error), STATUS_OK);
    if (placement != NULL) {
        assert_in_range(placement_rank_came(placement, getpid()), 0, placement_nodes(placement) - 1);
    }
    placement_free(placement);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node_needs_no_placement),
        cmocka_unit_test(test_a_wrong_description),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_threads_follow_ranks),
        cmocka_unit_test(test_no_thread_moves_without_need),
        cmocka_unit_test(test_processes_of_unknown_place),
        cmocka_unit_test(test_addresses_that_no_card_has),
        cmocka_unit_test(test_too_many_threads_and_nodes),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
