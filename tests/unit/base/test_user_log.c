#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/time.h"
#include "daemon/base/user_log.h"

static unsigned pass_many(struct user_log *logs, uint32_t uid, uint64_t now_ns, unsigned count)
{
    unsigned passed = 0;
    for (unsigned i = 0; i < count; i++) {
        passed += user_log_pass(logs, uid, now_ns, NULL);
    }
    return passed;
}

static void test_each_user_has_its_own(void **state)
{
    (void)state;
    static struct user_log logs;
    uint64_t now_ns = 50 * TIME_S, suppressed;
    assert_int_equal(pass_many(&logs, 0, now_ns, 1000), USER_LOG_BURST);
    assert_int_equal(pass_many(&logs, 1000, now_ns, 5), 5);
    assert_false(user_log_pass(&logs, 0, now_ns + TIME_S - 1, &suppressed));
    assert_true(user_log_pass(&logs, 0, now_ns + TIME_S, &suppressed));
    assert_int_equal(suppressed, 1000 - USER_LOG_BURST + 1);
    assert_true(user_log_pass(&logs, 1000, now_ns + TIME_S, &suppressed));
    assert_int_equal(suppressed, 0);
}

/* Many users, such as those of containers, get no more lines than the limit for all users together. */
static void test_all_together(void **state)
{
    (void)state;
    static struct user_log logs;
    unsigned passed = 0;
    for (uint32_t uid = 0; uid < 10000; uid++) {
        passed += pass_many(&logs, uid, TIME_S, 3);
    }
    assert_int_equal(passed, USER_LOG_TOTAL_BURST);
    assert_int_equal(pass_many(&logs, 20000, 2 * TIME_S, 100), USER_LOG_TOTAL_PER_S);
    uint64_t suppressed;
    assert_true(user_log_pass(&logs, 20000, 100 * TIME_S, &suppressed));
    assert_int_equal(suppressed, 100 - USER_LOG_TOTAL_PER_S);
}

/* New users take the places of quiet users. A user that keeps logging is remembered. */
static void test_who_is_at_it_is_remembered(void **state)
{
    (void)state;
    static struct user_log logs;
    uint64_t now_ns = TIME_S;
    assert_int_equal(pass_many(&logs, 7, now_ns, 100), USER_LOG_BURST);
    for (uint32_t uid = 100; uid < 100 + USER_LOG_USERS - 1; uid++) {
        (void)user_log_pass(&logs, uid, ++now_ns, NULL);
    }
    assert_false(user_log_pass(&logs, 7, ++now_ns, NULL));
    for (uint32_t uid = 1000; uid < 1000 + USER_LOG_USERS - 1; uid++) {
        (void)user_log_pass(&logs, uid, ++now_ns, NULL);
    }
    assert_false(user_log_pass(&logs, 7, ++now_ns, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_user_has_its_own),
        cmocka_unit_test(test_all_together),
        cmocka_unit_test(test_who_is_at_it_is_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
