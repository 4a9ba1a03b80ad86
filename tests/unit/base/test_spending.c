#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/spending.h"

/* How processor time is charged to several accounts that share it. */

enum { MANY = SPENDING_SHARES_MAX + 3 };

static struct budget *budget;
static struct budget_account *accounts[MANY];
static uint64_t now_ns, looks;

static uint64_t clock_ns(void)
{
    looks++;
    return now_ns;
}

static int start(void **state)
{
    (void)state;
    looks = 0;
    assert_int_equal(budget_new(NULL, &budget, NULL), STATUS_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(budget_open(budget, 1000 + i, NULL, &accounts[i], NULL), STATUS_OK);
    }
    return 0;
}

static bool count_account(void *context, uint64_t number, const struct budget_info *info)
{
    (void)number;
    (void)info;
    ++*(unsigned *)context;
    return true;
}

/* Nobody refers to the accounts any more once they are closed. */
static int stop(void **state)
{
    unsigned left = 0;
    (void)state;
    for (uint32_t i = 0; i < MANY; i++) {
        budget_close(accounts[i]);
    }
    budget_visit_accounts(budget, 0, count_account, &left);
    assert_int_equal(left, 0);
    budget_free(budget);
    return 0;
}

static uint64_t spent_ns(uint32_t account)
{
    struct budget_info info;
    budget_account_info(accounts[account], &info);
    return info.spent_ns;
}

static void test_in_proportion(void **state)
{
    (void)state;
    struct spending_shares shares = {.clock = clock_ns};
    spending_share(&shares, accounts[0], 100, 5000);
    spending_share(&shares, accounts[1], 200, 5000);
    spending_share(&shares, NULL, 500, 5000); /* bytes without an account take their part, too */
    spending_share(&shares, accounts[0], 200, 5000);
    now_ns = 6000;
    spending_shares_end(&shares);
    assert_int_equal(spent_ns(0), 300);
    assert_int_equal(spent_ns(1), 200);
    assert_int_equal(looks, 1);

    spending_share(&shares, accounts[1], 7, 8000); /* the next event does not depend on the last one */
    now_ns = 8100;
    spending_shares_end(&shares);
    assert_int_equal(spent_ns(0), 300);
    assert_int_equal(spent_ns(1), 300);
}

static void test_nobodys(void **state)
{
    (void)state;
    struct spending_shares shares = {.clock = clock_ns};
    spending_share(&shares, NULL, 100, 1000);
    spending_share(&shares, accounts[0], 0, 1000);
    spending_shares_end(&shares);
    assert_int_equal(looks, 0);

    shares.clock = NULL;
    spending_share(&shares, accounts[0], 100, 1000);
    spending_shares_end(&shares);
    assert_int_equal(spent_ns(0), 0);
}

/* An event with more accounts than places counts as two events. Every account is charged. */
static void test_many(void **state)
{
    (void)state;
    struct spending_shares shares = {.clock = clock_ns};
    now_ns = 1000 + SPENDING_SHARES_MAX * 10;
    for (uint32_t i = 0; i < MANY; i++) {
        spending_share(&shares, accounts[i], 64, 1000);
    }
    now_ns += 300;
    spending_shares_end(&shares);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(spent_ns(i), i < SPENDING_SHARES_MAX ? 10 : 100);
    }
    assert_int_equal(looks, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_in_proportion, start, stop),
        cmocka_unit_test_setup_teardown(test_nobodys, start, stop),
        cmocka_unit_test_setup_teardown(test_many, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
