#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/net/stream_intake.h"

/* The bytes of an incoming stream: what the handler leaves is kept and comes again, in order and once. */

static struct seen {
    char bytes[256];
    size_t size, takes, kept; /* takes: how many bytes it consumes of a call */
    unsigned calls, closed;
    bool ended, resumes, stops;
    enum status cause;
} seen;
static struct net net;
static struct net_stream stream;
static struct stream_intake intake;

static size_t receive(void *context, struct net_stream *from, const uint8_t *bytes, size_t size, bool end,
                      uint64_t now_ns)
{
    size_t used = size < seen.takes ? size : seen.takes;
    assert_ptr_equal(context, &seen);
    assert_ptr_equal(from, &stream);
    assert_non_null(bytes);
    assert_int_equal(now_ns, 7);
    assert_true(intake.calling);
    memcpy(seen.bytes + seen.size, bytes, used);
    seen.size += used;
    seen.ended = seen.ended || (end && used == size);
    seen.calls++;
    intake.stopped = intake.stopped || seen.stops;
    if (seen.resumes) {
        assert_true(stream_intake_resume(&intake));
    }
    return used;
}

static void closed(void *context, struct net_stream *from, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
    assert_ptr_equal(from, &stream);
    assert_false(stream_intake_resume(&intake)); /* what it asks for has no effect */
    assert_false(stream_intake_expect(&intake, 1u << 20));
    seen.cause = cause == NULL ? STATUS_OK : cause->status;
    seen.closed++;
}

static void kept(void *context, struct net_stream *from, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    (void)context;
    (void)from;
    (void)now_ns;
    assert_ptr_equal(bytes, intake.buffer + intake.buffer_first);
    assert_true(size > seen.kept);
    seen.kept = size;
}

static int setup(void **state)
{
    (void)state;
    seen = (struct seen){.takes = SIZE_MAX};
    net = (struct net){.peer_handler = {.context = NULL}};
    net.stream_handlers[NET_STREAM_DATA] = (struct net_stream_handler){&seen, receive, closed, kept};
    stream = (struct net_stream){.net = &net, .kind = NET_STREAM_DATA, .incoming = true};
    intake = (struct stream_intake){.granted_end = NET_STREAM_FIRST_WINDOW_BYTES};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stream_intake_drop(&intake);
    return 0;
}

static void take(const char *text)
{
    assert_true(stream_intake_take(&intake, &stream, (const uint8_t *)text, strlen(text), 7));
}

static void bytes_are_handed_out_as_they_come(void **state)
{
    (void)state;
    take("abc");
    assert_int_equal(intake.consumed_end, 3);
    intake.ended = true;
    assert_true(stream_intake_take(&intake, &stream, NULL, 0, 7)); /* an end without bytes */
    assert_true(seen.ended && !intake.held);
    assert_int_equal(seen.calls, 2);
    assert_memory_equal(seen.bytes, "abc", 3);
    assert_null(intake.buffer);
}

static void what_is_left_comes_again(void **state)
{
    (void)state;
    for (size_t takes = 0; takes < 9; takes++) {
        (void)setup(NULL);
        seen.takes = takes;
        take("abcdef");
        bool is_held = takes < 6;
        assert_true(intake.held == is_held);
        take("gh"); /* behind it: not handed out */
        assert_int_equal(stream_intake_received(&intake), 8);
        assert_int_equal(seen.kept, is_held ? 8 - takes : 0); /* all that is kept */
        assert_int_equal(seen.calls, is_held ? 1 : 2);
        seen.takes = 3;
        for (unsigned i = 0; i < 5 && intake.held; i++) {
            assert_true(stream_intake_resume(&intake));
            stream_intake_again(&intake, &stream, 7);
        }
        assert_false(intake.held);
        assert_false(stream_intake_resume(&intake));
        assert_int_equal(seen.size, 8);
        assert_memory_equal(seen.bytes, "abcdefgh", 8);
        assert_int_equal(intake.consumed_end, 8);
        assert_null(intake.buffer);
    }
}

static void a_handler_may_resume_while_it_runs(void **state)
{
    (void)state;
    seen.takes = 1;
    seen.resumes = true;
    take("abc");
    assert_true(intake.held && intake.resumed);
    seen.takes = SIZE_MAX;
    stream_intake_again(&intake, &stream, 7);
    assert_false(intake.held || intake.resumed); /* nothing is left to hand out again */
}

static void a_stream_that_was_stopped_takes_no_memory(void **state)
{
    (void)state;
    seen.takes = 1;
    seen.stops = true;
    take("abc");
    assert_int_equal(intake.consumed_end, 3);
    take("def");
    assert_int_equal(intake.consumed_end, 6);
    assert_int_equal(seen.calls, 1);
    assert_null(intake.buffer);
    assert_int_equal(stream_intake_grant(&intake, &stream), 0);
}

static void credit_follows_what_is_consumed_and_expected(void **state)
{
    (void)state;
    static const uint8_t bytes[NET_STREAM_FIRST_WINDOW_BYTES];
    assert_int_equal(stream_intake_grant(&intake, &stream), 0);
    assert_true(stream_intake_expect(&intake, 1u << 20));
    assert_int_equal(stream_intake_grant(&intake, &stream), (1u << 20) + NET_STREAM_FIRST_WINDOW_BYTES);
    assert_false(stream_intake_expect(&intake, 1u << 20)); /* nothing new */
    intake.granted_end = stream_intake_grant(&intake, &stream);
    intake.expected_end = 0;
    intake.granted_end = NET_STREAM_FIRST_WINDOW_BYTES;
    seen.takes = 0;
    assert_true(stream_intake_keep(&intake, bytes, sizeof bytes)); /* the window is full */
    assert_int_equal(stream_intake_grant(&intake, &stream), 0);
    intake.consumed_end = NET_STREAM_FIRST_WINDOW_BYTES / 4 - 1;
    assert_int_equal(stream_intake_grant(&intake, &stream), 0); /* not byte by byte */
    intake.consumed_end++;
    assert_int_equal(stream_intake_grant(&intake, &stream),
                     intake.consumed_end + NET_STREAM_FIRST_WINDOW_BYTES);
    intake.ended = true;
    assert_int_equal(stream_intake_grant(&intake, &stream), 0);
}

static void the_end_is_told_once(void **state)
{
    struct error cause;
    (void)state;
    seen.takes = 1;
    take("abc");
    error_set(&cause, STATUS_ABORTED, "given up");
    stream_intake_close(&intake, &stream, &cause, false, 7);
    assert_int_equal(seen.closed, 1);
    assert_int_equal(seen.cause, STATUS_ABORTED);
    assert_int_equal(stream_intake_received(&intake), 3); /* its place stays, although nothing is kept */
    assert_null(intake.buffer);
    stream_intake_close(&intake, &stream, &cause, false, 7);
    assert_int_equal(seen.closed, 1);
}

static void who_never_heard_of_it_is_not_told(void **state)
{
    struct error cause;
    (void)state;
    error_set(&cause, STATUS_ABORTED, "given up");
    stream_intake_close(&intake, &stream, &cause, false, 7);
    (void)setup(NULL);
    take("abc");
    stream_intake_close(&intake, &stream, &cause, true, 7);
    assert_int_equal(seen.closed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_are_handed_out_as_they_come, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_left_comes_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_handler_may_resume_while_it_runs, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stream_that_was_stopped_takes_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(credit_follows_what_is_consumed_and_expected, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_is_told_once, setup, teardown),
        cmocka_unit_test_setup_teardown(who_never_heard_of_it_is_not_told, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
