#include "tests/unit/mesh/members_node.h"

/* How a node finds others when few of the configured ones are there. */

#define OTHERS 60u
#define GIVE_UP_NS (12 * TIME_S) /* so long the fixed neighbours are waited for */

static uint32_t all_asked(const struct fixture *fixture, uint32_t least, uint32_t most)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < OTHERS; i++) {
        assert_in_range(fixture->asked[i], least, most);
        sum += fixture->asked[i];
    }
    return sum;
}

/* A node that is no neighbour yet. */
static uint32_t a_stranger(const struct fixture *fixture)
{
    uint32_t node = 0;
    while (fixture->wanted[node]) {
        node++;
    }
    return node;
}

static void test_all_are_asked_in_turn(void **state)
{
    struct fixture fixture;
    (void)state;
    begin_with(&fixture, OTHERS, true);
    run(&fixture, GIVE_UP_NS - TIME_MS); /* neighbours come within that time */
    assert_int_equal(all_asked(&fixture, 0, 0), 0);
    run(&fixture, TIME_S); /* 16 at once, four times */
    assert_int_equal(all_asked(&fixture, 1, 1), OTHERS);
    run(&fixture, 2 * TIME_S); /* the second round takes twice as long */
    assert_int_equal(all_asked(&fixture, 2, 2), 2 * OTHERS);
    run(&fixture, 600 * TIME_S);
    uint32_t before = all_asked(&fixture, 3, 20);
    run(&fixture, 640 * TIME_S); /* at last, 16 in 16 s; the last of a round are fewer */
    assert_in_range(all_asked(&fixture, 3, 40) - before, 500, 640);
    assert_int_equal(statistics_of(&fixture).probes, all_asked(&fixture, 3, 40));
    end(&fixture);
}

/* Only of use once the fixed neighbours have not come. */
static void test_who_answers_becomes_a_neighbour(void **state)
{
    struct fixture fixture;
    (void)state;
    begin_with(&fixture, OTHERS, true);
    run(&fixture, TIME_S);
    uint32_t node = a_stranger(&fixture);
    members_answered(fixture.members, node, fixture.now_ns);
    assert_false(fixture.wanted[node]);
    run(&fixture, GIVE_UP_NS);
    members_answered(fixture.members, node, fixture.now_ns);
    assert_true(fixture.wanted[node]);
    assert_int_equal(members_state(fixture.members, node), MEMBER_UNKNOWN); /* it has proved nothing */
    linked(&fixture, node, 100);
    assert_int_equal(state_of(&fixture, node), MEMBER_UP);
    assert_true(fixture.wanted[node]);
    members_answered(fixture.members, OTHERS + 3, fixture.now_ns); /* nobody */
    end(&fixture);
}

/* It answers, but it cannot be linked, and does not answer any more. Another one takes its place. */
static void test_an_answer_counts_for_one_round(void **state)
{
    struct fixture fixture;
    (void)state;
    begin_with(&fixture, OTHERS, true);
    run(&fixture, GIVE_UP_NS + TIME_S);
    uint32_t node = a_stranger(&fixture);
    members_answered(fixture.members, node, fixture.now_ns);
    assert_true(fixture.wanted[node]);
    run(&fixture, 200 * TIME_S);
    assert_false(fixture.wanted[node]);
    end(&fixture);
}

/* In a cluster of which most is up, nobody asks. With less of it there, each node asks all others at least
 * once, and until it has links. */
static void test_who_has_to_ask(void **state)
{
    struct fixture fixture;
    (void)state;
    begin_with(&fixture, OTHERS, true);
    all_linked(&fixture, OTHERS / 2);
    run(&fixture, 60 * TIME_S);
    all_asked(&fixture, 0, 0);
    end(&fixture);
    begin_with(&fixture, OTHERS, true);
    all_linked(&fixture, OTHERS / 4);
    run(&fixture, 60 * TIME_S);
    uint32_t sum = all_asked(&fixture, 0, 4);
    for (uint32_t i = 0; i < OTHERS; i++) { /* not those that are known to run */
        assert_int_equal(fixture.asked[i] > 0, i >= OTHERS / 4);
    }
    run(&fixture, 300 * TIME_S);
    assert_int_equal(all_asked(&fixture, 0, 4), sum);
    for (uint32_t i = 0; i < OTHERS / 4; i++) { /* all is lost: it asks again */
        members_unlinked(fixture.members, i, fixture.now_ns);
    }
    run(&fixture, 10 * TIME_S);
    assert_true(all_asked(&fixture, 0, 10) > sum);
    end(&fixture);
}

/* Nodes that cannot be asked are dialled, one place on each ring after the other, while links are few. */
static void test_who_cannot_be_asked_is_dialled(void **state)
{
    struct fixture fixture;
    (void)state;
    uint32_t ever = 0;
    bool was[OTHERS] = {false};
    begin_with(&fixture, OTHERS, true);
    memset(fixture.can_ask, 0, sizeof fixture.can_ask);
    for (unsigned i = 0; i < 300; i++) {
        run(&fixture, TIME_S);
        for (uint32_t node = 0; node < OTHERS; node++) {
            ever += fixture.wanted[node] && !was[node];
            was[node] |= fixture.wanted[node];
        }
    }
    assert_true(ever > OTHERS / 2);
    assert_int_equal(statistics_of(&fixture).probes, 0);
    end(&fixture);
}

/* Everybody is a neighbour. */
static void test_a_small_cluster_does_not_ask(void **state)
{
    struct fixture fixture;
    (void)state;
    begin_with(&fixture, MEMBER_RINGS_SMALL - 1, true);
    run(&fixture, 60 * TIME_S);
    assert_int_equal(statistics_of(&fixture).probes, 0);
    end(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_are_asked_in_turn),
        cmocka_unit_test(test_who_answers_becomes_a_neighbour),
        cmocka_unit_test(test_an_answer_counts_for_one_round),
        cmocka_unit_test(test_who_has_to_ask),
        cmocka_unit_test(test_who_cannot_be_asked_is_dialled),
        cmocka_unit_test(test_a_small_cluster_does_not_ask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
