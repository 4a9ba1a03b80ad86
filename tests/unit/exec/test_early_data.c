#include <stdlib.h>

#include "tests/unit/exec/charged.h"

/* Another node sends data for operations that are not posted here. Only little of it comes in, and its user
 * is charged. */
#define COUNT 4096
#define SLICE (1 << 20)

static const struct hostile_call all_reduce_call = {
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_U8, .count_elements = COUNT};

static uint64_t early_bytes(void)
{
    return charged(BUDGET_EARLY);
}

/* Opens a stream of node b with a header of the operation after the present one. Sends as much payload as is
 * accepted. */
static struct net_stream *send_early(uint64_t bytes)
{
    struct data_header header = hostile.data[hostile.data_count - 1];
    unsigned char *payload = calloc(1, bytes);
    struct net_stream *stream = hostile_open(&hostile, NET_STREAM_DATA);
    assert_non_null(payload);
    assert_non_null(stream);
    header.seq++;
    header.payload_bytes = bytes;
    assert_true(hostile_say_data(&hostile, stream, &header));
    (void)hostile_say(&hostile, stream, payload, bytes);
    hostile_turns(&hostile, 100);
    free(payload);
    return stream;
}

static void begin(uint64_t ceiling)
{
    charged_begin(BUDGET_EARLY, ceiling, SLICE, &all_reduce_call);
    hostile_turns(&hostile, 50);
    assert_true(hostile.data_count > 0);
}

static void end(void)
{
    charged_end(BUDGET_EARLY);
}

static void test_little_comes_before_its_operation(void **state)
{
    (void)state;
    begin(UINT64_C(1) << 30);
    assert_int_equal(early_bytes(), 0);
    (void)send_early(1 << 20);
    assert_in_range(early_bytes(), NET_STREAM_FIRST_WINDOW_BYTES / 2, NET_STREAM_FIRST_WINDOW_BYTES);
    assert_int_equal(hostile.failures, 0);
    hostile_leave(&hostile);
    assert_int_equal(early_bytes(), 0);
    end();
}

static void test_beyond_the_ceiling_the_communicator_fails(void **state)
{
    (void)state;
    begin(NET_STREAM_FIRST_WINDOW_BYTES / 2);
    (void)send_early(NET_STREAM_FIRST_WINDOW_BYTES / 4);
    assert_in_range(early_bytes(), 1, NET_STREAM_FIRST_WINDOW_BYTES / 4);
    assert_int_equal(hostile.failures, 0);
    hostile_leave(&hostile);
    end();

    begin(NET_STREAM_FIRST_WINDOW_BYTES / 2);
    (void)send_early(1 << 20);
    assert_int_equal(hostile.failures, 1);
    assert_int_equal(hostile.failure.status, STATUS_LIMIT);
    assert_non_null(strstr(hostile.failure.text, "user_limit_early_bytes"));
    assert_int_equal(hostile.downs, 0); /* no fault of node b's */
    end();
}

/* After a large message, one and a half of that size may come early, too, and no more. */
static void test_the_next_message_may_be_as_large(void **state)
{
    static const struct hostile_call large_call = {
        .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_U8, .count_elements = 256 << 10};
    (void)state;
    charged_begin(BUDGET_EARLY, UINT64_C(1) << 30, SLICE, &large_call);
    hostile_turns(&hostile, 200);
    assert_true(hostile.data_count > 0);
    struct data_header header = hostile.data[0];
    struct net_stream *stream = hostile_open(&hostile, NET_STREAM_DATA);
    unsigned char *payload = calloc(1, 4 << 20);
    assert_non_null(stream);
    assert_non_null(payload);
    assert_true(header.payload_bytes > NET_STREAM_FIRST_WINDOW_BYTES / 4);
    uint64_t size_bytes = header.payload_bytes;
    assert_true(hostile_say_data(&hostile, stream, &header));
    (void)hostile_say(&hostile, stream, payload, size_bytes);
    hostile_turns(&hostile, 200);
    assert_int_equal(early_bytes(), 0);
    header.seq++;
    header.round = 0;
    header.payload_bytes = 4 << 20;
    assert_true(hostile_say_data(&hostile, stream, &header));
    (void)hostile_say(&hostile, stream, payload, 4 << 20);
    hostile_turns(&hostile, 200);
    assert_in_range(early_bytes(), size_bytes, NET_STREAM_FIRST_WINDOW_BYTES + size_bytes * 3 / 2);
    assert_int_equal(hostile.failures, 0);
    hostile_leave(&hostile);
    assert_int_equal(early_bytes(), 0);
    end();
    free(payload);
}

static uint64_t later_ns(void)
{
    return hostile.now_ns + 1000;
}

static uint64_t spent_ns(void)
{
    struct budget_info info;
    budget_account_info(account, &info);
    return info.spent_ns;
}

/* The network's time for data and messages is charged, in both directions. Here, each packet takes
 * 1,000 ns. */
static void test_the_networks_time_is_charged(void **state)
{
    (void)state;
    begin(UINT64_C(1) << 30);
    net_set_clock(hostile.net, later_ns);
    struct data_header header = hostile.data[hostile.data_count - 1];
    struct net_stream *stream = hostile_open(&hostile, NET_STREAM_DATA);
    assert_non_null(stream);
    header.seq++;
    header.payload_bytes = 1 << 20;
    assert_true(hostile_say_data(&hostile, stream, &header));
    uint64_t came = spent_ns();
    assert_true(came >= 1000);
    unsigned char bytes[100] = {0};
    assert_true(hostile_say(&hostile, stream, bytes, sizeof bytes));

    struct hostile_buffer sent = hostile_buffer_new(64);
    struct hostile_outcome sending = {0};
    uint64_t before = spent_ns();
    assert_true(hostile_post(&hostile, true, 7, &sent, &sending));
    hostile_turns(&hostile, 50);
    assert_true(spent_ns() >= before + 1000); /* an envelope, to node b */
    net_set_clock(hostile.net, NULL);
    hostile_leave(&hostile);
    end();
    hostile_buffer_free(&sent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_little_comes_before_its_operation),
        cmocka_unit_test(test_beyond_the_ceiling_the_communicator_fails),
        cmocka_unit_test(test_the_next_message_may_be_as_large),
        cmocka_unit_test(test_the_networks_time_is_charged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
