#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/store/store.h"

/* One store as a pure object: values, numbers, waits, limits, charges. Time is an argument. */

static struct budget *budget;
static struct budget_account *account;
static struct store *store;

/* Waiters are told in this order. */
static struct {
    struct store_waiter *waiter;
    enum status result;
    uint64_t now_ns;
} woken[16];
static unsigned woken_count;

static void on_woken(void *context, struct store_waiter *waiter, enum status result, uint64_t now_ns)
{
    assert_ptr_equal(context, &woken_count);
    if (woken_count < sizeof woken / sizeof woken[0]) {
        woken[woken_count].waiter = waiter;
        woken[woken_count].result = result;
        woken[woken_count].now_ns = now_ns;
    }
    woken_count++;
}

static struct store_bytes bytes(const char *text)
{
    return (struct store_bytes){.data = (const uint8_t *)text, .size = strlen(text)};
}

static uint64_t used(void)
{
    struct budget_info info;
    budget_account_info(account, &info);
    return info.used[BUDGET_STORES];
}

static int set_up(void **state)
{
    struct error error;
    (void)state;
    woken_count = 0;
    assert_int_equal(budget_new(NULL, &budget, &error), STATUS_OK);
    assert_int_equal(budget_open(budget, 1000, NULL, &account, &error), STATUS_OK);
    assert_int_equal(store_new("job", 77, account, on_woken, &woken_count, &store, &error), STATUS_OK);
    assert_true(used() > 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    store_free(store);
    assert_int_equal(used(), 0);
    budget_close(account);
    budget_free(budget);
    return 0;
}

static void set(const char *key, const char *value)
{
    struct error error;
    assert_int_equal(store_set(store, bytes(key), bytes(value), 5, &error), STATUS_OK);
}

static void assert_value(const char *key, const char *expected)
{
    struct store_bytes value = {.data = (const uint8_t *)"poison", .size = 6};
    assert_true(store_get(store, bytes(key), &value));
    assert_int_equal(value.size, strlen(expected));
    assert_memory_equal(value.size > 0 ? value.data : (const uint8_t *)"", expected, value.size);
}

static void test_values(void **state)
{
    struct store_bytes value;
    (void)state;
    uint64_t empty = used();
    assert_false(store_get(store, bytes("a"), &value));
    set("a", "first");
    set("b", "");
    set("a", "the second is longer");
    assert_value("a", "the second is longer");
    assert_value("b", "");
    set("a", "3");
    assert_value("a", "3");
    assert_int_equal(store_count(store), 2);
    assert_true(store_delete(store, bytes("a")));
    assert_false(store_delete(store, bytes("a")));
    assert_false(store_get(store, bytes("a"), &value));
    assert_true(store_delete(store, bytes("b")));
    assert_int_equal(store_count(store), 0);
    assert_int_equal(used(), empty);
}

static void test_keys_are_any_bytes(void **state)
{
    struct error error;
    struct store_bytes value;
    (void)state;
    const struct store_bytes keys[] = {
        {(const uint8_t *)"a\0b", 3}, {(const uint8_t *)"a\0c", 3}, {(const uint8_t *)"a", 1}};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(
            store_set(store, keys[i], (struct store_bytes){(const uint8_t *)"xyz" + i, 1}, 0, &error),
            STATUS_OK);
    }
    for (size_t i = 0; i < 3; i++) {
        assert_true(store_get(store, keys[i], &value));
        assert_int_equal(value.data[0], "xyz"[i]);
    }
    char text[STORE_KEY_TEXT_BYTES];
    assert_string_equal(store_key_text(keys[0], text), "\"a?b\"");
    char large[STORE_KEY_MAX_BYTES];
    memset(large, 'k', sizeof large);
    store_key_text((struct store_bytes){(const uint8_t *)large, sizeof large}, text);
    assert_true(strlen(text) < STORE_KEY_TEXT_BYTES);
    assert_non_null(strstr(text, "...\""));
}

static void test_numbers(void **state)
{
    static const struct {
        const char *held;
        int64_t delta, sum;
        enum status status;
    } cases[] = {
        {NULL, 0, 0, STATUS_OK},
        {NULL, -3, -3, STATUS_OK},
        {"41", 1, 42, STATUS_OK},
        {"-1", 1, 0, STATUS_OK},
        {"007", 1, 8, STATUS_OK},
        {"9223372036854775806", 1, INT64_MAX, STATUS_OK},
        {"-9223372036854775807", -1, INT64_MIN, STATUS_OK},
        {"-9223372036854775808", 1, INT64_MIN + 1, STATUS_OK},
        {"9223372036854775807", 1, 0, STATUS_INVALID_ARGUMENT},
        {"-9223372036854775808", -1, 0, STATUS_INVALID_ARGUMENT},
        {"9223372036854775808", -1, 0, STATUS_INVALID_ARGUMENT},
        {"", 1, 0, STATUS_INVALID_ARGUMENT},
        {"-", 1, 0, STATUS_INVALID_ARGUMENT},
        {"+1", 1, 0, STATUS_INVALID_ARGUMENT},
        {" 1", 1, 0, STATUS_INVALID_ARGUMENT},
        {"1x", 1, 0, STATUS_INVALID_ARGUMENT},
        {"000000000000000000001", 1, 0, STATUS_INVALID_ARGUMENT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error error;
        int64_t sum = -77;
        char text[24];
        (void)store_delete(store, bytes("n"));
        if (cases[i].held != NULL) {
            set("n", cases[i].held);
        }
        assert_int_equal(store_add(store, bytes("n"), cases[i].delta, &sum, 5, &error), cases[i].status);
        if (cases[i].status == STATUS_OK) {
            assert_int_equal(sum, cases[i].sum);
            snprintf(text, sizeof text, "%lld", (long long)sum);
            assert_value("n", text);
        } else {
            assert_value("n", cases[i].held);
        }
    }
}

static void compare_set(const char *expected, const char *desired, const char *after)
{
    struct error error;
    struct store_bytes value = {0};
    assert_int_equal(store_compare_set(store, bytes("c"), bytes(expected), bytes(desired), &value, 5, &error),
                     STATUS_OK);
    assert_int_equal(value.size, strlen(after));
    assert_memory_equal(value.size > 0 ? value.data : (const uint8_t *)"", after, value.size);
}

static void test_compare_set(void **state)
{
    (void)state;
    compare_set("held", "new", "held"); /* the key is missing */
    assert_int_equal(store_count(store), 0);
    compare_set("", "first", "first");
    compare_set("", "second", "first");
    compare_set("first!", "second", "first");
    compare_set("first", "", "");
    assert_value("c", "");
    compare_set("", "third", "third");
    assert_value("c", "third");
}

static enum status wait_for(struct store_waiter *waiter, const char *first, const char *second,
                            uint64_t deadline_ns)
{
    struct error error;
    const struct store_bytes keys[] = {bytes(first), bytes(second != NULL ? second : "")};
    memset(waiter, 0, sizeof *waiter);
    waiter->timer.index = TIMER_NODE_DISARMED;
    return store_wait(store, waiter, keys, second != NULL ? 2 : 1, deadline_ns, 5, &error);
}

static void test_waits(void **state)
{
    struct store_waiter waiters[3];
    (void)state;
    uint64_t empty = used();
    set("a", "1");
    assert_int_equal(wait_for(&waiters[0], "a", NULL, 100), STATUS_OK);
    assert_int_equal(wait_for(&waiters[0], "a", "b", 5), STATUS_TIMED_OUT); /* only looks */
    assert_int_equal(wait_for(&waiters[0], "b", NULL, TIME_NEVER), STATUS_IN_PROGRESS);
    assert_int_equal(wait_for(&waiters[1], "a", "b", 100), STATUS_IN_PROGRESS);
    assert_int_equal(wait_for(&waiters[2], "b", "c", 200), STATUS_IN_PROGRESS);
    assert_int_equal(store_count(store), 1);
    assert_int_equal(store_next_deadline_ns(store), 100);
    set("b", "2");
    assert_int_equal(woken_count, 2);
    for (unsigned i = 0; i < 2; i++) {
        assert_ptr_equal(woken[i].waiter, &waiters[i]);
        assert_int_equal(woken[i].result, STATUS_OK);
        assert_int_equal(woken[i].now_ns, 5);
        store_wait_end(store, &waiters[i]);
    }
    assert_int_equal(store_next_deadline_ns(store), 200);
    (void)store_delete(store, bytes("b")); /* it has existed: that is enough */
    set("c", "3");
    assert_int_equal(woken_count, 3);
    assert_ptr_equal(woken[2].waiter, &waiters[2]);
    store_wait_end(store, &waiters[2]);
    assert_int_equal(store_next_deadline_ns(store), TIME_NEVER);
    set("c", "again");
    assert_int_equal(woken_count, 3);
    (void)store_delete(store, bytes("a"));
    (void)store_delete(store, bytes("c"));
    assert_int_equal(used(), empty);
}

static void test_waits_time_out(void **state)
{
    struct store_waiter waiters[2];
    char text[STORE_KEY_TEXT_BYTES];
    (void)state;
    uint64_t empty = used();
    set("a", "1");
    assert_int_equal(wait_for(&waiters[0], "a", "missing", 100), STATUS_IN_PROGRESS);
    assert_int_equal(wait_for(&waiters[1], "missing", NULL, 101), STATUS_IN_PROGRESS);
    store_tick(store, 99);
    assert_int_equal(woken_count, 0);
    store_tick(store, 100);
    assert_int_equal(woken_count, 1);
    assert_ptr_equal(woken[0].waiter, &waiters[0]);
    assert_int_equal(woken[0].result, STATUS_TIMED_OUT);
    assert_string_equal(store_key_text(store_wait_key(&waiters[0]), text), "\"missing\"");
    store_wait_end(store, &waiters[0]);
    store_wait_end(store, &waiters[1]); /* before its time */
    store_wait_end(store, &waiters[1]); /* it is in no store now */
    store_tick(store, 1000);
    set("missing", "");
    assert_int_equal(woken_count, 1);
    (void)store_delete(store, bytes("a"));
    (void)store_delete(store, bytes("missing"));
    assert_int_equal(used(), empty);
}

static void test_one_waiter_names_a_key_twice(void **state)
{
    struct store_waiter waiter;
    (void)state;
    assert_int_equal(wait_for(&waiter, "a", "a", 100), STATUS_IN_PROGRESS);
    set("a", "1");
    assert_int_equal(woken_count, 1);
    store_wait_end(store, &waiter);
}

static void test_limits(void **state)
{
    static uint8_t large[STORE_VALUE_MAX_BYTES];
    static struct store_waiter waiters[STORE_WAITERS_MAX];
    struct error error;
    (void)state;
    char key[32];
    unsigned number = 0;
    enum status status = STATUS_OK;
    for (; status == STATUS_OK; number++) {
        snprintf(key, sizeof key, "large-%u", number);
        status = store_set(store, bytes(key), (struct store_bytes){large, sizeof large}, 5, &error);
    }
    assert_int_equal(status, STATUS_LIMIT);
    assert_non_null(strstr(error.text, "beyond the limit of 16777216"));
    assert_in_range(used(), STORE_MAX_BYTES - sizeof large - 1000, STORE_MAX_BYTES);
    assert_int_equal(store_count(store), number - 1);
    set("large-0", "small now");
    assert_int_equal(store_set(store, bytes(key), (struct store_bytes){large, sizeof large}, 5, &error),
                     STATUS_OK);
    while (number-- > 0) {
        snprintf(key, sizeof key, "large-%u", number);
        assert_true(store_delete(store, bytes(key)));
    }
    for (unsigned i = 0; i < STORE_WAITERS_MAX; i++) {
        assert_int_equal(wait_for(&waiters[i], "w", NULL, 1000), STATUS_IN_PROGRESS);
    }
    struct store_waiter more;
    assert_int_equal(wait_for(&more, "w", NULL, 1000), STATUS_LIMIT);
    set("w", "");
    assert_int_equal(woken_count, STORE_WAITERS_MAX);
    for (unsigned i = 0; i < STORE_WAITERS_MAX; i++) {
        store_wait_end(store, &waiters[i]);
    }
    (void)store_delete(store, bytes("w"));
    for (number = 0; number < STORE_KEYS_MAX; number++) {
        snprintf(key, sizeof key, "%u", number);
        set(key, "");
    }
    assert_int_equal(store_set(store, bytes("one more"), bytes(""), 5, &error), STATUS_LIMIT);
    assert_string_equal(error.text, "store \"job\" has 65536 keys; more are not allowed");
    set("0", "it is there already");
}

/* A user's budget is used up by another store of the same user: nothing changes in this one. */
static void test_budget(void **state)
{
    struct error error;
    struct store_waiter waiter;
    (void)state;
    set("a", "1");
    struct budget_info info;
    budget_account_info(account, &info);
    uint64_t held = info.ceiling[BUDGET_STORES] - info.used[BUDGET_STORES] - 100;
    assert_int_equal(budget_charge(account, BUDGET_STORES, held, &error), STATUS_OK);
    assert_int_equal(store_set(store, bytes("b"), bytes("2"), 5, &error), STATUS_LIMIT);
    assert_non_null(strstr(error.text, "bytes of stores"));
    char value[200];
    memset(value, 'v', sizeof value);
    assert_int_equal(
        store_set(store, bytes("a"), (struct store_bytes){(uint8_t *)value, sizeof value}, 5, &error),
        STATUS_LIMIT);
    assert_int_equal(wait_for(&waiter, "b", NULL, 100), STATUS_LIMIT);
    assert_value("a", "1");
    assert_int_equal(store_count(store), 1);
    budget_release(account, BUDGET_STORES, held);
    set("b", "2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_values, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_keys_are_any_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_numbers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_compare_set, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_waits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_waits_time_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_waiter_names_a_key_twice, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_limits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_budget, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
