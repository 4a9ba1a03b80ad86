#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/net/tls_choice.h"

/* The choice between two ways, whose rates and costs are given. Time is counted by hand. */

struct world {
    struct tls_choice choice;
    uint64_t now_ns, cpu_ns;
    uint64_t rates[2];    /* bytes a second */
    uint64_t costs_ns[2]; /* for 1 MiB */
    uint64_t sent[2];
};

#define MIB (1ull << 20)

static void send(struct world *world, uint64_t bytes)
{
    for (uint64_t sent = 0; sent < bytes; sent += MIB) {
        unsigned way = tls_choice_way(&world->choice, world->now_ns);
        tls_choice_began(&world->choice, way, world->now_ns, world->cpu_ns);
        world->now_ns += MIB * TIME_S / world->rates[way];
        world->cpu_ns += world->costs_ns[way];
        tls_choice_ended(&world->choice, way, MIB, world->now_ns, world->cpu_ns);
        world->sent[way] += MIB;
    }
}

static struct world world_of(uint32_t processors, uint64_t rate, uint64_t bulk_rate, uint64_t cost_ns,
                             uint64_t bulk_cost_ns)
{
    return (struct world){.choice = {.processors = processors},
                          .rates = {rate * MIB, bulk_rate * MIB},
                          .costs_ns = {cost_ns, bulk_cost_ns}};
}

static unsigned chosen(struct world *world)
{
    send(world, 200 * MIB);
    assert_true(world->choice.is_made);
    return world->choice.present;
}

static void the_cheaper_way_wins_on_few_processors(void **state)
{
    (void)state;
    struct world world = world_of(2, 1200, 1000, 900000, 600000);
    assert_int_equal(chosen(&world), 1);
    world = world_of(2, 1000, 1200, 600000, 900000);
    assert_int_equal(chosen(&world), 0);
}

static void a_clear_choice_is_made_early(void **state)
{
    (void)state;
    const uint64_t each_bytes = TLS_SKIPPED_BYTES + TLS_TRIAL_BYTES;
    struct world world = world_of(2, 1000, 1000, 600000, 300000);
    send(&world, 2 * each_bytes);
    assert_true(world.choice.is_made);
    assert_int_equal(world.choice.present, 1);
    world = world_of(2, 1000, 1000, 600000, 500000);
    send(&world, (TLS_TRIALS - 1) * each_bytes);
    assert_false(world.choice.is_made);
    send(&world, each_bytes);
    assert_true(world.choice.is_made);
    assert_int_equal(world.choice.present, 1);
}

static void the_faster_way_wins_on_many(void **state)
{
    (void)state;
    struct world world = world_of(64, 1200, 1000, 900000, 800000);
    assert_int_equal(chosen(&world), 0);
    world = world_of(64, 1000, 1200, 800000, 900000);
    assert_int_equal(chosen(&world), 1);
}

/* A line of 1 Gbit/s bounds both: the cheaper one is taken, however many processors there are. */
static void equal_rates_leave_the_cost(void **state)
{
    (void)state;
    struct world world = world_of(32, 110, 110, 900000, 600000);
    assert_int_equal(chosen(&world), 1);
}

static void a_slow_way_is_never_better(void **state)
{
    (void)state;
    struct world world = world_of(1, 1000, 100, 900000, 100000);
    assert_int_equal(chosen(&world), 0);
}

static void the_other_way_is_tried_rarely(void **state)
{
    (void)state;
    struct world world = world_of(2, 1000, 1000, 900000, 600000);
    assert_int_equal(chosen(&world), 1);
    uint64_t before = world.sent[0];
    send(&world, 300000 * MIB); /* five minutes */
    assert_true(world.sent[0] > before);
    assert_true(world.sent[0] - before < 300000 * MIB / 200);
}

static void a_change_is_noticed(void **state)
{
    (void)state;
    struct world world = world_of(2, 1000, 1000, 900000, 600000);
    assert_int_equal(chosen(&world), 1);
    world.costs_ns[1] = 2000000; /* another path */
    send(&world, 70000 * MIB);
    assert_int_equal(world.choice.present, 0);
}

/* A small difference does not change a choice that was made. */
static void small_differences_change_nothing(void **state)
{
    (void)state;
    struct world world = world_of(2, 1000, 1000, 700000, 690000);
    assert_int_equal(chosen(&world), 1);
    world.costs_ns[0] = 680000;
    send(&world, 100000 * MIB);
    assert_int_equal(world.choice.present, 1);
}

/* Other work that makes some measurements bad does not mislead. */
static void disturbances_do_not_mislead(void **state)
{
    (void)state;
    struct world world = world_of(2, 1000, 1000, 900000, 700000);
    for (unsigned i = 0; i < 10; i++) {
        world.costs_ns[1] = i % 3 == 1 ? 5000000 : 700000;
        send(&world, 20 * MIB);
    }
    assert_true(world.choice.is_made);
    assert_int_equal(world.choice.present, 1);
}

static void a_new_link_is_measured_anew(void **state)
{
    (void)state;
    struct world world = world_of(2, 1000, 1000, 900000, 600000);
    assert_int_equal(chosen(&world), 1);
    tls_choice_forget(&world.choice);
    assert_int_equal(world.choice.ways[1].rate, 0);
    world.costs_ns[1] = 2000000;
    assert_int_equal(chosen(&world), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cheaper_way_wins_on_few_processors),
        cmocka_unit_test(a_clear_choice_is_made_early),
        cmocka_unit_test(the_faster_way_wins_on_many),
        cmocka_unit_test(equal_rates_leave_the_cost),
        cmocka_unit_test(a_slow_way_is_never_better),
        cmocka_unit_test(the_other_way_is_tried_rarely),
        cmocka_unit_test(a_change_is_noticed),
        cmocka_unit_test(small_differences_change_nothing),
        cmocka_unit_test(disturbances_do_not_mislead),
        cmocka_unit_test(a_new_link_is_measured_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
