#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/base/time.h"
#include "tests/lib/latest_event.h"

/* The process has one list, so each test starts at the last event. */

static void add_of_user(uint32_t uid, uint64_t now_ns, const char *text)
{
    struct history_about about = {.kind = HISTORY_CLIENT_CONNECTED,
                                  .audience = HISTORY_FOR_USER,
                                  .uid = uid,
                                  .pid = 7,
                                  .subject = "train",
                                  .now_ns = now_ns};
    history_add(&about, "%s", text);
}

static void test_an_event(void **state)
{
    (void)state;
    uint64_t before = latest_event();
    uint64_t counted = history_count(HISTORY_NODE_DOWN);
    struct history_about about = {.kind = HISTORY_NODE_DOWN, .audience = HISTORY_FOR_ALL, .subject = "b"};
    history_add(&about, "no answer for %d ms\n", 2500);
    assert_int_equal(latest_event(), before + 1);
    const struct history_event *event = history_after(before);
    assert_non_null(event);
    assert_int_equal(event->number, before + 1);
    assert_string_equal(history_kind_text(event->kind), "node_down");
    assert_string_equal(history_subject_text(event->kind), "node");
    assert_string_equal(event->subject, "b");
    assert_string_equal(event->text, "no answer for 2500 ms?"); /* nobody forges a second line */
    assert_true(event->time_ms > UINT64_C(1600000000000));
    assert_null(history_after(before + 1));
    assert_int_equal(history_count(HISTORY_NODE_DOWN), counted + 1);
    assert_int_equal(history_missed(before), 0);
}

static void test_a_long_text_is_cut(void **state)
{
    (void)state;
    char text[2 * HISTORY_TEXT_MAX_BYTES];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    uint64_t before = latest_event();
    history_note(HISTORY_RELOAD_FAILED, HISTORY_FOR_ADMINISTRATORS, "%s", text);
    assert_int_equal(strlen(history_after(before)->text), HISTORY_TEXT_MAX_BYTES);
}

/* The oldest are overwritten, and a reader is told how many. */
static void test_overwritten(void **state)
{
    (void)state;
    uint64_t before = latest_event();
    for (unsigned i = 0; i < HISTORY_EVENTS_MAX + 10; i++) {
        history_note(HISTORY_RELOADED, HISTORY_FOR_ALL, "%u", i);
    }
    assert_int_equal(history_missed(before), 10);
    assert_string_equal(history_after(before)->text, "10");
    assert_int_equal(history_missed(before + 10), 0);
    assert_int_equal(history_missed(latest_event()), 0);
    assert_int_equal(history_missed(latest_event() + 100), 0); /* of another commd */
}

/* A user may cause a burst of events, then so many a second. The next event says how many were dropped.
 * Another user, and the node, are not affected. */
static void test_a_user_floods(void **state)
{
    (void)state;
    uint64_t now_ns = 1000 * TIME_S, before = latest_event();
    const struct history_event *event = NULL;
    uint64_t counted = history_count(HISTORY_CLIENT_CONNECTED);
    for (unsigned i = 0; i < 10 * HISTORY_USER_BURST; i++) {
        add_of_user(1000, now_ns, "again");
    }
    assert_int_equal(latest_event(), before + HISTORY_USER_BURST);
    assert_int_equal(history_count(HISTORY_CLIENT_CONNECTED), counted + 10 * HISTORY_USER_BURST);
    add_of_user(1001, now_ns, "another user");
    assert_int_equal(latest_event(), before + HISTORY_USER_BURST + 1);
    add_of_user(1000, now_ns + TIME_S / HISTORY_USER_PER_S, "later");
    event = history_after(before + HISTORY_USER_BURST + 1);
    assert_non_null(event);
    assert_string_equal(event->text, "later");
    assert_int_equal(event->left_out, 9 * HISTORY_USER_BURST);
}

/* Users' events do not push out the node's; both are read in the order of their numbers. */
static void test_two_sorts(void **state)
{
    (void)state;
    uint64_t before = latest_event(), now_ns = 2000 * TIME_S;
    history_note(HISTORY_DRAIN, HISTORY_FOR_ALL, "the node's");
    for (unsigned i = 0; i < HISTORY_EVENTS_MAX + 5; i++) {
        now_ns += TIME_S;
        add_of_user(1000, now_ns, "a user's");
    }
    const struct history_event *event = history_after(before);
    assert_string_equal(event->text, "the node's");
    assert_int_equal(history_missed(before), 5);
    uint64_t last = event->number;
    unsigned count = 0;
    while ((event = history_after(last)) != NULL) {
        assert_true(event->number > last);
        last = event->number;
        count++;
    }
    assert_int_equal(count, HISTORY_EVENTS_MAX);
    assert_int_equal(last, latest_event());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_event),    cmocka_unit_test(test_a_long_text_is_cut),
        cmocka_unit_test(test_overwritten), cmocka_unit_test(test_a_user_floods),
        cmocka_unit_test(test_two_sorts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
