#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/base/rounds.h"

enum { MANY = 5 };

/* Each entry has a turn in each round, and users take turns: the second user's only entry does not wait for
 * all of the first user's. */
static void test_each_has_a_turn(void **state)
{
    (void)state;
    static struct rounds rounds;
    static struct rounds_entry entries[MANY + 1];
    for (int i = 0; i < MANY; i++) {
        rounds_put(&rounds, &entries[i], 1000);
    }
    rounds_put(&rounds, &entries[MANY], 1001);
    rounds_put(&rounds, &entries[MANY], 1001);
    for (int round = 0; round < 3; round++) {
        int turns[MANY + 1] = {0}, before_second_user = -1;
        struct rounds_entry *entry;
        assert_int_equal(rounds_begin(&rounds), round > 0); /* they came into the first one */
        for (int turn = 0; (entry = rounds_next(&rounds)) != NULL; turn++) {
            assert_true(turn < 3 * MANY);
            turns[entry - entries]++;
            before_second_user =
                entry == &entries[MANY] && before_second_user < 0 ? turn : before_second_user;
        }
        assert_in_range(before_second_user, 0, 1);
        for (int i = 0; i <= MANY; i++) {
            assert_true(turns[i] >= 1);
        }
        assert_false(rounds_end(&rounds, false));
    }
    for (int i = 0; i <= MANY; i++) {
        rounds_remove(&rounds, &entries[i]);
    }
}

/* A round that is interrupted goes on, and does not begin again. */
static void test_interrupted(void **state)
{
    (void)state;
    static struct rounds rounds;
    static struct rounds_entry entries[3];
    bool seen[3] = {false};
    for (int i = 0; i < 3; i++) {
        rounds_put(&rounds, &entries[i], 1000);
    }
    for (int i = 0; i < 3; i++) {
        assert_false(rounds_begin(&rounds));
        struct rounds_entry *entry = rounds_next(&rounds);
        assert_false(seen[entry - entries]);
        seen[entry - entries] = true;
        assert_int_equal(rounds_end(&rounds, false), i < 2);
    }
    assert_null(rounds_next(&rounds));
}

/* An entry that leaves before its turn is not waited for, and one that comes has its turn in this round. */
static void test_leaving_and_coming(void **state)
{
    (void)state;
    static struct rounds rounds;
    static struct rounds_entry entries[3];
    rounds_put(&rounds, &entries[0], 1000);
    rounds_put(&rounds, &entries[1], 1000);
    assert_ptr_equal(rounds_next(&rounds), &entries[0]);
    rounds_remove(&rounds, &entries[1]);
    rounds_remove(&rounds, &entries[1]);
    assert_null(rounds_next(&rounds));
    rounds_put(&rounds, &entries[2], 1001);
    assert_false(rounds_begin(&rounds));
    struct rounds_entry *entry = rounds_next(&rounds);
    assert_true(entry == &entries[2] || rounds_next(&rounds) == &entries[2]);
    rounds_remove(&rounds, &entries[0]); /* it has had its turn */
    assert_int_equal(rounds.unstepped, 0);
    assert_int_equal(rounds.busy.count, 1);
}

static void test_woken(void **state)
{
    (void)state;
    static struct rounds rounds;
    assert_false(rounds.woken);
    rounds_wake(&rounds);
    assert_true(rounds.woken);
    assert_true(rounds_begin(&rounds));
    assert_false(rounds_end(&rounds, false));
    assert_true(rounds_begin(&rounds));
    rounds_wake(&rounds); /* within the round: there is another one */
    assert_true(rounds_end(&rounds, false));
    assert_true(rounds_begin(&rounds));
    assert_true(rounds_end(&rounds, true)); /* the caller has something else to do */
    assert_true(rounds_begin(&rounds));
    assert_false(rounds_end(&rounds, false));
    assert_false(rounds.woken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_has_a_turn),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_leaving_and_coming),
        cmocka_unit_test(test_woken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
