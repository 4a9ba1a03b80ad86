#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "daemon/base/budget.h"
#include "daemon/base/random.h"

/* How much of the whole each user gets. All of it comes back, and a new user always gets some. */

enum { ALL = 2560, MINIMUM = ALL / BUDGET_MINIMUM_PARTS, POOL = ALL - MINIMUM * BUDGET_PLACES };

static struct budget *budget_of(uint64_t all)
{
    struct budget *budget = NULL;
    struct error error;
    uint64_t most[BUDGET_KINDS];
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        most[kind] = all;
    }
    assert_int_equal(budget_new(most, &budget, &error), STATUS_OK);
    return budget;
}

static struct budget_account *open_group(struct budget *budget, uint32_t uid, const char *group)
{
    struct budget_account *account = NULL;
    struct error error;
    assert_int_equal(budget_open(budget, uid, group, &account, &error), STATUS_OK);
    return account;
}

static bool charge(struct budget_account *account, uint64_t amount)
{
    struct error error;
    return budget_charge(account, BUDGET_SESSIONS, amount, &error) == STATUS_OK;
}

static void refused(struct budget_account *account, uint64_t amount, const char *text)
{
    struct error error = {0};
    assert_int_equal(budget_charge(account, BUDGET_SESSIONS, amount, &error), STATUS_LIMIT);
    if (strstr(error.text, text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, error.text);
    }
    assert_non_null(strstr(error.text, "commctl users"));
    assert_int_equal(budget_charge(account, BUDGET_SESSIONS, amount, NULL), STATUS_LIMIT);
}

/* Takes everything that the account gets; returns how much. */
static uint64_t take_all(struct budget_account *account)
{
    uint64_t taken = 0;
    while (charge(account, 1)) {
        taken++;
    }
    return taken;
}

/* A user alone gets nearly everything. Each new user gets at least its minimum, and everything comes back. */
static void test_shares(void **state)
{
    (void)state;
    struct budget *budget = budget_of(ALL);
    struct budget_account *accounts[BUDGET_USER_PLACES];
    uint64_t taken[BUDGET_USER_PLACES], sum = 0;
    for (uint32_t i = 0; i < BUDGET_USER_PLACES; i++) {
        accounts[i] = open_group(budget, 100 + i, "");
        taken[i] = take_all(accounts[i]);
        assert_true(taken[i] >= MINIMUM);
        sum += taken[i];
    }
    assert_true(taken[0] * 100 >= ALL * 86);
    assert_true(taken[1] > MINIMUM);
    assert_true(sum <= ALL);
    refused(accounts[1], 1, "the rest is kept for others");
    /* All users give back what they have: then one user alone gets as much as before. */
    for (uint32_t i = 0; i < BUDGET_USER_PLACES; i++) {
        budget_release(accounts[i], BUDGET_SESSIONS, taken[i]);
        budget_close(accounts[i]);
    }
    accounts[0] = open_group(budget, 1, "");
    assert_int_equal(take_all(accounts[0]), taken[0]);
    budget_free(budget);
    budget_release(accounts[0], BUDGET_SESSIONS, taken[0]);
    budget_close(accounts[0]);
}

/* Pods of one uid: no pod takes the minimum of other pods or of other users. */
static void test_groups(void **state)
{
    (void)state;
    struct budget *budget = budget_of(ALL);
    struct budget_account *pods[BUDGET_PLACES + 4];
    char group[32];
    for (uint32_t i = 0; i < BUDGET_PLACES + 4; i++) {
        (void)snprintf(group, sizeof group, "/kubepods.slice/pod%u", i);
        pods[i] = open_group(budget, 0, group);
        assert_ptr_equal(open_group(budget, 0, group), pods[i]);
        budget_close(pods[i]);
        assert_true(i > BUDGET_USER_PLACES || take_all(pods[i]) >= MINIMUM);
    }
    struct budget_account *other = open_group(budget, 1, "/user.slice");
    assert_true(take_all(other) >= MINIMUM);
    struct budget_info info;
    budget_account_info(pods[3], &info);
    assert_string_equal(info.group, "/kubepods.slice/pod3");
    assert_true(info.shares_uid);
    budget_account_info(other, &info);
    assert_false(info.shares_uid);
    assert_int_equal(info.uid, 1);
    budget_release(other, BUDGET_SESSIONS, info.used[BUDGET_SESSIONS]);
    budget_close(other);
    for (uint32_t i = 0; i < BUDGET_PLACES + 4; i++) {
        budget_account_info(pods[i], &info);
        budget_release(pods[i], BUDGET_SESSIONS, info.used[BUDGET_SESSIONS]);
        budget_close(pods[i]);
    }
    budget_free(budget);
}

static void test_ceilings(void **state)
{
    (void)state;
    struct budget *budget = budget_of(ALL);
    struct budget_account *account = open_group(budget, 7, ""), *pod = NULL;
    budget_set_ceiling(budget, BUDGET_SESSIONS, 100);
    assert_int_equal(take_all(account), 100);
    refused(account, 1, "user 7 holds 100, and the limit for one user is 100 (user_limit_sessions");
    pod = open_group(budget, 7, "/pod"); /* the pod has a minimum of its own */
    assert_int_equal(take_all(pod), MINIMUM);
    budget_set_ceiling(budget, BUDGET_SESSIONS, 50);
    refused(account, 1, "the limit for one user is 50");
    budget_release(account, BUDGET_SESSIONS, 70);
    assert_int_equal(take_all(account), 10);
    budget_release(pod, BUDGET_SESSIONS, MINIMUM);
    budget_close(pod);
    budget_release(account, BUDGET_SESSIONS, 40);
    budget_set_ceiling(budget, BUDGET_SESSIONS, 3); /* a ceiling below the minimum holds, too */
    assert_int_equal(take_all(account), 3);
    budget_release(account, BUDGET_SESSIONS, 3);
    budget_close(account);
    budget_free(budget);
}

/* However large the amounts are, no sum of them wraps around to a small number. */
static void test_large_numbers(void **state)
{
    (void)state;
    struct budget *budget = budget_of(1000);
    struct budget_account *account = open_group(budget, 1, NULL);
    static const uint64_t large[] = {991, 1000, 1001, INT64_MAX, UINT64_MAX - 10, UINT64_MAX};
    assert_true(charge(account, 10));
    for (unsigned i = 0; i < sizeof large / sizeof *large; i++) {
        refused(account, large[i], "user 1");
    }
    budget_release(account, BUDGET_SESSIONS, 10);
    budget_close(account);
    budget_free(budget);
    budget_free(NULL);
    budget_close(NULL);
}

/* Random users come, take, give and go. The sum never exceeds the whole. A user that has a place and less
 * than its minimum gets one more at any time. */
static void test_random_users(void **state)
{
    (void)state;
    enum { USERS = 40, GROUPS = 3, STEPS = 200000 };
    struct budget *budget = budget_of(ALL);
    struct budget_account *accounts[USERS][GROUPS] = {{NULL}};
    uint64_t used[USERS][GROUPS] = {{0}}, sum = 0;
    uint32_t users = 0, of_user[USERS] = {0};
    struct random random;
    random_seed(&random, 12);
    for (int step = 0; step < STEPS; step++) {
        uint32_t user = (uint32_t)(random_u64(&random) % USERS), group = (uint32_t)(random_u64(&random) % 3);
        struct budget_account **account = &accounts[user][group];
        uint64_t *has = &used[user][group];
        uint64_t amount = random_u64(&random) % (random_u64(&random) % 8 == 0 ? ALL : 8) + 1;
        bool few = users < BUDGET_USER_PLACES || of_user[user] > 0;
        if (*account == NULL) {
            if (!few) {
                continue;
            }
            static const char *const names[GROUPS] = {"", "/a", "/b"};
            bool is_first = of_user[user] == 0;
            if (!is_first) {
                continue; /* only a user's first account is sure to get a place */
            }
            *account = open_group(budget, user, names[group]);
            users += is_first;
            of_user[user]++;
            assert_true(charge(*account, MINIMUM)); /* whatever others hold */
            *has = MINIMUM;
            sum += MINIMUM;
        } else if (random_u64(&random) % 3 > 0) {
            bool granted = charge(*account, amount);
            assert_true(granted || *has + amount > MINIMUM);
            *has += granted ? amount : 0;
            sum += granted ? amount : 0;
        } else {
            uint64_t back = amount < *has ? amount : *has;
            bool leaves = random_u64(&random) % 16 == 0;
            back = leaves ? *has : back;
            budget_release(*account, BUDGET_SESSIONS, back);
            *has -= back;
            sum -= back;
            if (leaves) {
                budget_close(*account);
                *account = NULL;
                users--;
                of_user[user]--;
            }
        }
        assert_true(sum <= ALL);
    }
    for (uint32_t i = 0; i < USERS * GROUPS; i++) {
        budget_release(accounts[i / GROUPS][i % GROUPS], BUDGET_SESSIONS, used[i / GROUPS][i % GROUPS]);
        budget_close(accounts[i / GROUPS][i % GROUPS]);
    }
    budget_free(budget);
}

/* An account that got no place gets one when another account goes. What it holds already counts as its
 * minimum first. */
static void test_place_later(void **state)
{
    (void)state;
    struct budget *budget = budget_of(ALL);
    struct budget_account *accounts[BUDGET_USER_PLACES + 1];
    uint64_t taken = 0;
    for (uint32_t i = 0; i <= BUDGET_USER_PLACES; i++) {
        accounts[i] = open_group(budget, i, "");
    }
    struct budget_account *late = accounts[BUDGET_USER_PLACES];
    assert_true(charge(late, MINIMUM / 2)); /* from the pool */
    while (charge(accounts[1], 1)) {
        taken++;
    }
    for (uint32_t i = 2; i < BUDGET_USER_PLACES; i++) {
        (void)take_all(accounts[i]);
    }
    uint64_t more = take_all(late);
    budget_close(accounts[0]);
    assert_true(more + take_all(late) + MINIMUM / 2 >= MINIMUM);
    for (uint32_t i = 1; i <= BUDGET_USER_PLACES; i++) {
        struct budget_info info;
        budget_account_info(accounts[i], &info);
        budget_release(accounts[i], BUDGET_SESSIONS, info.used[BUDGET_SESSIONS]);
        budget_close(accounts[i]);
    }
    assert_true(taken > 0);
    budget_free(budget);
}

static bool visit_count(void *context, uint64_t number, const struct budget_info *info)
{
    uint64_t *last = context;
    assert_true(number > *last);
    assert_int_equal(info->used[BUDGET_SESSIONS], 1);
    assert_int_equal(info->spent_ns, 250);
    assert_int_equal(info->refused, 2);
    *last = number;
    return true;
}

static void test_what_is_said(void **state)
{
    (void)state;
    struct budget *budget = budget_of(ALL);
    struct budget_account *account = open_group(budget, 3, "/x");
    uint64_t last = 0, suppressed;
    assert_true(charge(account, 1));
    refused(account, ALL, "user 3");
    budget_line(account)->spent_ns = 250;
    budget_visit_accounts(budget, 0, visit_count, &last);
    assert_int_equal(last, 1);
    budget_visit_accounts(budget, 1, visit_count, &last);
    int lines = 0;
    for (int i = 0; i < 100; i++) { /* the user need not have an account */
        lines += budget_may_log(budget, 4711, 1, &suppressed);
    }
    assert_in_range(lines, 1, 20);
    assert_true(budget_may_log(budget, 4711, UINT64_C(1) << 40, &suppressed));
    assert_int_equal(suppressed, 100 - lines);
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        assert_true(strlen(budget_kind_key((enum budget_kind)kind)) > 0);
    }
    budget_release(account, BUDGET_SESSIONS, 1);
    budget_close(account);
    budget_free(budget);
    assert_int_equal(budget_charge(NULL, BUDGET_SESSIONS, 1, NULL), STATUS_OK);
    budget_release(NULL, BUDGET_SESSIONS, 1);
}

/* What all accounts hold, and all that was ever refused, including refusals to accounts that are gone. */
static void test_totals(void **state)
{
    (void)state;
    struct budget *budget = budget_of(ALL);
    struct budget_account *first = open_group(budget, 1, "a"), *second = open_group(budget, 1, "b");
    struct budget_account *other = open_group(budget, 2, "");
    struct budget_totals totals;
    assert_true(charge(first, 3) && charge(second, 4) && charge(other, 5));
    refused(other, ALL + 1, "hold"); /* twice */
    budget_totals(budget, &totals);
    assert_int_equal(totals.users, 2);
    assert_int_equal(totals.used[BUDGET_SESSIONS], 12);
    assert_int_equal(totals.all[BUDGET_SESSIONS], ALL);
    assert_int_equal(totals.refused[BUDGET_SESSIONS], 2);
    assert_int_equal(totals.refused[BUDGET_MEMORIES], 0);
    budget_release(other, BUDGET_SESSIONS, 5);
    budget_close(other);
    budget_totals(budget, &totals);
    assert_int_equal(totals.users, 1);
    assert_int_equal(totals.used[BUDGET_SESSIONS], 7);
    assert_int_equal(totals.refused[BUDGET_SESSIONS], 2);
    budget_release(first, BUDGET_SESSIONS, 3);
    budget_release(second, BUDGET_SESSIONS, 4);
    budget_close(first);
    budget_close(second);
    budget_free(budget);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),       cmocka_unit_test(test_groups),
        cmocka_unit_test(test_ceilings),     cmocka_unit_test(test_large_numbers),
        cmocka_unit_test(test_random_users), cmocka_unit_test(test_place_later),
        cmocka_unit_test(test_what_is_said), cmocka_unit_test(test_totals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
