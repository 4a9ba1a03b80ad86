#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/log.h"
#include "daemon/exec/exec_internal.h"
#include "daemon/net/bulk.h"
#include "daemon/net/stream_reader.h"
#include "tests/lib/hostile_node.h"

/*
 * Node b has a certificate, and sends what no node should send. Its bytes may reach only the operation for
 * which they were sent. If node b sends something that no correct node sends, its connection ends.
 */
#define COUNT 4096
#define SLICE (1 << 20)

static struct hostile hostile;
static struct hostile_buffer in[HOSTILE_LOCAL_RANKS], out[HOSTILE_LOCAL_RANKS];
static unsigned char payload[2 * COUNT];

static void buffers_new(void)
{
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        in[i] = hostile_buffer_new(COUNT);
        out[i] = hostile_buffer_new(COUNT);
    }
    memset(payload, 0x11, sizeof payload);
}

static void buffers_free(void)
{
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        assert_true(hostile_guards_hold(&in[i]));
        assert_true(hostile_guards_hold(&out[i]));
        hostile_buffer_free(&in[i]);
        hostile_buffer_free(&out[i]);
    }
}

static const struct hostile_call all_reduce_call = {
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_U8, .count_elements = COUNT};

static void all_reduce(struct hostile_outcome *outcome)
{
    assert_int_not_equal(hostile_submit(&hostile, &all_reduce_call, in, out, outcome), 0);
    hostile_turns(&hostile, 50);
}

/* Node a's own header of its last data message. A header of node b looks the same. */
static struct data_header template(void)
{
    assert_true(hostile.data_count > 0);
    return hostile.data[hostile.data_count - 1];
}

/* A second stream for one operation ends the connection. Otherwise its bytes would count towards the lane's
 * next step. */
static void test_a_second_stream_for_a_lane(void **state)
{
    (void)state;
    struct hostile_outcome first, second;
    hostile_start(&hostile, SLICE);
    buffers_new();
    all_reduce(&first);
    struct data_header header = template();
    struct net_stream *half = hostile_open(&hostile, NET_STREAM_DATA);
    struct net_stream *whole = hostile_open(&hostile, NET_STREAM_DATA);
    assert_true(header.payload_bytes >= 2);
    assert_true(hostile_say_data(&hostile, half, &header));
    assert_true(hostile_say(&hostile, half, payload, header.payload_bytes / 2));
    (void)hostile_say_data(&hostile, whole, &header);
    (void)hostile_say(&hostile, whole, payload, header.payload_bytes);
    assert_true(hostile_was_dropped(&hostile, "a second stream of data for one lane"));
    assert_int_equal(hostile.failures, 1);
    assert_int_equal(hostile.failure.status, STATUS_PROTOCOL);
    assert_non_null(strstr(hostile.failure.text, "node b sent a second stream"));
    assert_int_equal(first.calls, 0);
    assert_int_equal(hostile_submit(&hostile, &all_reduce_call, in, out, &second), 0);
    (void)hostile_say(&hostile, half, payload, header.payload_bytes / 2);
    net_stream_reset(half);
    net_stream_reset(whole);
    hostile_leave(&hostile);
    assert_int_equal(first.result.status, STATUS_ABORTED);
    buffers_free();
    hostile_stop(&hostile);
}

/* Makes the stream of node b, of which nothing was sent yet, one of a bulk link for node a. Sends the header.
 */
static void say_data_on_bulk(struct net_stream *stream, const struct data_header *header)
{
    uint8_t bytes[DATA_HEADER_BYTES];
    data_header_encode(header, bytes);
    assert_true(hostile_say(&hostile, stream, bytes, 1));
    struct stream_reader *reader = hostile.exec->readers.parked;
    assert_non_null(reader);
    assert_null(reader->next);
    reader->stream->on_bulk = true;
    (void)hostile_say(&hostile, stream, bytes + 1, sizeof bytes - 1);
}

/* A lane takes data from the net and from the bulk link. Half a payload on each would be applied twice. */
static void test_a_slice_on_both_links(void **state)
{
    (void)state;
    for (int both_halves = 0; both_halves < 2; both_halves++) {
        struct hostile_outcome outcome;
        hostile_start(&hostile, SLICE);
        buffers_new();
        struct net_bulk bulk = {.streams = &hostile.net->operations->streams, .net = hostile.net};
        all_reduce(&outcome);
        struct data_header header = template();
        struct net_stream *half = hostile_open(&hostile, NET_STREAM_DATA);
        struct net_stream *whole = hostile_open(&hostile, NET_STREAM_DATA);
        assert_true(hostile_say_data(&hostile, half, &header));
        assert_true(hostile_say(&hostile, half, payload, header.payload_bytes / 2));
        hostile.net->bulk = &bulk;
        say_data_on_bulk(whole, &header);
        (void)hostile_say(&hostile, whole, payload,
                          both_halves ? header.payload_bytes / 2 : header.payload_bytes);
        assert_int_equal(hostile.failures, 1);
        assert_int_equal(hostile.failure.status, STATUS_PROTOCOL);
        assert_non_null(strstr(hostile.failure.text, "node b sent a slice on two streams at once"));
        assert_int_equal(outcome.calls, 0);
        net_stream_reset(half);
        net_stream_reset(whole);
        hostile_leave(&hostile);
        assert_int_equal(outcome.result.status, STATUS_ABORTED);
        hostile_turns(&hostile, 50);
        hostile.net->bulk = NULL;
        buffers_free();
        hostile_stop(&hostile);
    }
}

/* What node b says of an agreement may come on the bulk link, too, but only on one stream there. */
static void test_agreements_on_the_bulk_link(void **state)
{
    (void)state;
    static const struct hostile_call broadcast = {
        .kind = OP_KIND_BROADCAST, .dtype = DTYPE_U8, .count_elements = COUNT, .root_rank = 1};
    struct hostile_outcome outcome;
    hostile_start(&hostile, SLICE);
    buffers_new();
    struct net_bulk bulk = {.streams = &hostile.net->operations->streams, .net = hostile.net};
    assert_int_not_equal(hostile_submit(&hostile, &broadcast, in, out, &outcome), 0);
    hostile_turns(&hostile, 50);
    struct data_header word = template(), header = template();
    assert_int_equal(word.slice, EXEC_AGREEMENT_SLICE);
    struct net_stream *data = hostile_open(&hostile, NET_STREAM_DATA);
    header.slice = 0;
    header.payload_bytes = COUNT;
    assert_true(hostile_say_data(&hostile, data, &header));
    assert_true(hostile_say(&hostile, data, payload, COUNT));
    hostile_turns(&hostile, 50);
    assert_int_equal(outcome.calls, 0);
    struct net_stream *first = hostile_open(&hostile, NET_STREAM_DATA);
    hostile.net->bulk = &bulk;
    say_data_on_bulk(first, &word);
    hostile_turns(&hostile, 50);
    assert_int_equal(outcome.calls, 1);
    assert_int_equal(outcome.result.status, STATUS_OK);
    assert_memory_equal(hostile_at(&out[0]), payload, COUNT);
    word.seq++;
    struct net_stream *usual = hostile_open(&hostile, NET_STREAM_DATA);
    assert_true(hostile_say_data(&hostile, usual, &word));
    assert_int_equal(hostile.failures, 0);
    struct net_stream *second = hostile_open(&hostile, NET_STREAM_DATA);
    say_data_on_bulk(second, &word);
    assert_int_equal(hostile.failures, 1);
    assert_int_equal(hostile.failure.status, STATUS_PROTOCOL);
    assert_non_null(strstr(hostile.failure.text, "node b sent a second stream of data for agreements"));
    net_stream_reset(data);
    net_stream_reset(first);
    net_stream_reset(usual);
    net_stream_reset(second);
    hostile_leave(&hostile);
    hostile_turns(&hostile, 50);
    hostile.net->bulk = NULL;
    buffers_free();
    hostile_stop(&hostile);
}

/* Data that come after the operation's data belong to no operation. */
static void test_data_for_an_idle_lane(void **state)
{
    (void)state;
    struct hostile_outcome outcome;
    hostile_start(&hostile, SLICE);
    buffers_new();
    all_reduce(&outcome);
    struct net_stream *stream = hostile_open(&hostile, NET_STREAM_DATA);
    for (uint32_t round = 0; outcome.calls == 0; round++) {
        assert_true(round < 8);
        struct data_header header = template();
        assert_true(hostile_say_data(&hostile, stream, &header));
        assert_true(hostile_say(&hostile, stream, payload, header.payload_bytes));
        hostile_turns(&hostile, 50);
    }
    assert_int_equal(outcome.result.status, STATUS_OK);
    struct hostile_buffer copy = hostile_buffer_new(COUNT);
    memcpy(hostile_at(&copy), hostile_at(&out[0]), COUNT);
    struct data_header header = template();
    (void)hostile_say_data(&hostile, stream, &header);
    (void)hostile_say(&hostile, stream, payload, header.payload_bytes);
    hostile_turns(&hostile, 50);
    assert_int_equal(hostile.failures, 1);
    assert_non_null(strstr(hostile.failure.text, "node b sent data of it although it has ended"));
    assert_memory_equal(hostile_at(&copy), hostile_at(&out[0]), COUNT);
    net_stream_reset(stream);
    hostile_buffer_free(&copy);
    buffers_free();
    hostile_stop(&hostile);
}

/* A stream ends within a payload. Another stream cannot complete what was taken of it. */
static void test_half_a_payload(void **state)
{
    (void)state;
    for (int resets = 0; resets < 2; resets++) {
        struct hostile_outcome outcome;
        hostile_start(&hostile, SLICE);
        buffers_new();
        all_reduce(&outcome);
        struct data_header header = template();
        struct net_stream *stream = hostile_open(&hostile, NET_STREAM_DATA);
        assert_true(hostile_say_data(&hostile, stream, &header));
        assert_true(hostile_say(&hostile, stream, payload, header.payload_bytes / 2));
        if (resets == 0) {
            net_stream_finish(stream);
            assert_true(hostile_was_dropped(&hostile, "half a message"));
        } else {
            net_stream_reset(stream);
            hostile_turns(&hostile, 50);
            stream = hostile_open(&hostile, NET_STREAM_DATA);
            assert_true(hostile_say_data(&hostile, stream, &header));
            assert_true(hostile_say(&hostile, stream, payload, header.payload_bytes));
            assert_int_equal(outcome.calls, 0);
            net_stream_reset(stream);
        }
        hostile_stop(&hostile);
        assert_int_equal(outcome.calls, 1);
        buffers_free();
    }
}

/* Headers that no correct node makes, whatever its users call. */
static void test_headers_that_cost_the_connection(void **state)
{
    (void)state;
    enum { MAGIC, GENERATION, LANE, AGREEMENT, COMMUNICATOR, CASES };
    static const char *const whats[CASES] = {"malformed: magic", "of another generation", "of two lanes",
                                             "of two lanes", "of two communicators"};
    for (int which = 0; which < CASES; which++) {
        struct hostile_outcome outcome;
        uint8_t bytes[DATA_HEADER_BYTES];
        hostile_start(&hostile, COUNT / 16);
        buffers_new();
        all_reduce(&outcome);
        struct data_header header = hostile.data[0];
        struct net_stream *stream = hostile_open(&hostile, NET_STREAM_DATA);
        if (which == LANE || which == AGREEMENT || which == COMMUNICATOR) {
            assert_true(hostile_say_data(&hostile, stream, &header));
            assert_true(hostile_say(&hostile, stream, payload, header.payload_bytes));
        }
        header.generation += which == GENERATION;
        header.slice = which == AGREEMENT ? UINT32_MAX : header.slice + (which == LANE);
        header.comm_id += which == COMMUNICATOR;
        data_header_encode(&header, bytes);
        bytes[0] ^= which == MAGIC;
        assert_true(hostile_say(&hostile, stream, bytes, sizeof bytes));
        assert_true(hostile_was_dropped(&hostile, whats[which]));
        net_stream_reset(stream);
        hostile_stop(&hostile);
        buffers_free();
    }
}

/* A header that a user's call can bring about costs that communicator alone. */
static void test_another_call_keeps_the_connection(void **state)
{
    (void)state;
    struct hostile_outcome outcome;
    hostile_start(&hostile, SLICE);
    buffers_new();
    all_reduce(&outcome);
    struct data_header header = template();
    struct net_stream *stream = hostile_open(&hostile, NET_STREAM_DATA);
    header.terms.count_elements++;
    assert_true(hostile_say_data(&hostile, stream, &header));
    hostile_turns(&hostile, 50);
    assert_int_equal(hostile.disputes, 1);
    assert_int_equal(hostile.downs, 0);
    assert_int_equal(hostile.failures, 0);
    net_stream_reset(stream);
    hostile_stop(&hostile);
    buffers_free();
}

#define PEERS_STREAMS (STREAM_PARKED_MAX_BYTES / 2 / STREAM_PARKED_COST_BYTES)

/* Streams of both kinds for communicators that node a does not have yet. Their number has one limit for both
 * kinds. */
static void test_parked_streams_are_bounded(void **state)
{
    (void)state;
    enum { COUNT_ALL = PEERS_STREAMS + 8 };
    struct hostile_outcome outcome;
    static struct net_stream *streams[COUNT_ALL];
    struct stream_parking parking = {0};
    stream_parking_init(&parking);
    hostile_start(&hostile, SLICE);
    net_set_parking(hostile.net, &parking);
    buffers_new();
    all_reduce(&outcome);
    struct data_header header = template();
    for (uint32_t i = 0; i < COUNT_ALL; i++) {
        uint8_t bytes[STREAM_HEADER_MAX_BYTES];
        bool of_data = i % 2 == 0;
        struct message_header message = {.kind = MESSAGE_ENVELOPE, .dtype = DTYPE_U8, .id = 1, .to_rank = 1};
        streams[i] = hostile_open(&hostile, of_data ? NET_STREAM_DATA : NET_STREAM_MESSAGE);
        assert_non_null(streams[i]);
        header.comm_id = message.comm_id = 1000 + i;
        if (of_data) {
            data_header_encode(&header, bytes);
        } else {
            message_header_encode(&message, bytes);
        }
        size_t size = of_data ? DATA_HEADER_BYTES : MESSAGE_HEADER_BYTES;
        assert_int_equal(net_stream_send(streams[i], NULL, 0, bytes, size, NULL, NULL), STATUS_OK);
    }
    hostile_turns(&hostile, 2 * COUNT_ALL);
    assert_int_equal(hostile.downs, 0);
    uint32_t open = 0;
    for (uint32_t i = 0; i < COUNT_ALL; i++) {
        open += net_stream_send(streams[i], NULL, 0, "x", 1, NULL, NULL) == STATUS_OK;
        net_stream_reset(streams[i]);
    }
    assert_int_equal(open, PEERS_STREAMS);
    hostile_turns(&hostile, 2 * COUNT_ALL);
    assert_int_equal(parking.bytes, 0);
    struct net_stream *stream = hostile_open(&hostile, NET_STREAM_DATA); /* there is room again */
    assert_true(hostile_say_data(&hostile, stream, &header));
    assert_true(hostile_say_data(&hostile, stream, &header));
    net_stream_reset(stream);
    hostile_stop(&hostile);
    stream_parking_free(&parking);
    buffers_free();
}

/* Beginnings of headers, of both kinds together. A header that is complete does not count any more. One
 * beginning more than the limit costs the connection. */
static void test_beginnings_of_headers_are_bounded(void **state)
{
    (void)state;
    enum { COUNT_ALL = STREAM_BEGUN_MAX + 1 };
    struct hostile_outcome outcome;
    static struct net_stream *streams[COUNT_ALL];
    uint8_t bytes[DATA_HEADER_BYTES];
    hostile_start(&hostile, SLICE);
    struct stream_parking parking = {0};
    stream_parking_init(&parking);
    net_set_parking(hostile.net, &parking);
    buffers_new();
    all_reduce(&outcome);
    struct data_header header = template();
    header.comm_id = 1000;
    data_header_encode(&header, bytes);
    for (uint32_t i = 0; i < COUNT_ALL; i++) {
        streams[i] = hostile_open(&hostile, i % 2 == 0 ? NET_STREAM_DATA : NET_STREAM_MESSAGE);
        assert_true(hostile_say(&hostile, streams[i], bytes, 9));
        if (i == 0) {
            assert_true(hostile_say(&hostile, streams[i], bytes + 9, sizeof bytes - 9));
        }
    }
    assert_int_equal(hostile.downs, 0);
    struct net_stream *one_more = hostile_open(&hostile, NET_STREAM_DATA);
    (void)hostile_say(&hostile, one_more, bytes, 9);
    assert_true(hostile_was_dropped(&hostile, "the beginnings of too many headers"));
    for (uint32_t i = 0; i < COUNT_ALL; i++) {
        net_stream_reset(streams[i]);
    }
    net_stream_reset(one_more);
    hostile_leave(&hostile);
    assert_int_equal(parking.bytes, 0);
    assert_int_equal(parking.of_peer[0].begun, 0);
    hostile_stop(&hostile);
    stream_parking_free(&parking);
    buffers_free();
}

/* A peer's streams may keep half of the memory for such streams. The other half is for other peers. */
static void test_parked_bytes_are_bounded(void **state)
{
    (void)state;
    enum {
        KEPT = STREAM_PARKED_MAX_BYTES / 2 / (NET_STREAM_FIRST_WINDOW_BYTES + STREAM_PARKED_COST_BYTES),
        COUNT_ALL = KEPT + 8
    };
    static struct net_stream *streams[COUNT_ALL];
    static unsigned char window[NET_STREAM_FIRST_WINDOW_BYTES - DATA_HEADER_BYTES];
    struct hostile_outcome outcome;
    hostile_start(&hostile, SLICE);
    buffers_new();
    all_reduce(&outcome);
    struct data_header header = template();
    header.payload_bytes = sizeof window + 1;
    for (uint32_t i = 0; i < COUNT_ALL; i++) {
        uint8_t bytes[DATA_HEADER_BYTES];
        streams[i] = hostile_open(&hostile, NET_STREAM_DATA);
        assert_non_null(streams[i]);
        header.comm_id = 1000 + i;
        data_header_encode(&header, bytes);
        assert_int_equal(net_stream_send(streams[i], bytes, sizeof bytes, window, sizeof window, NULL, NULL),
                         STATUS_OK);
    }
    hostile_turns(&hostile, 4 * COUNT_ALL);
    assert_int_equal(hostile.downs, 0);
    uint32_t open = 0;
    for (uint32_t i = 0; i < COUNT_ALL; i++) {
        open += net_stream_send(streams[i], NULL, 0, "x", 1, NULL, NULL) == STATUS_OK;
    }
    assert_in_range(open, KEPT, KEPT + 2); /* the headers are read, and not kept */
    for (uint32_t i = 0; i < COUNT_ALL; i++) {
        net_stream_reset(streams[i]);
    }
    hostile_turns(&hostile, 4 * COUNT_ALL);
    struct net_stream *stream = hostile_open(&hostile, NET_STREAM_DATA); /* there is room again */
    assert_true(hostile_say_data(&hostile, stream, &header));
    assert_true(hostile_say(&hostile, stream, window, sizeof window));
    assert_int_equal(net_stream_send(stream, NULL, 0, "x", 1, NULL, NULL), STATUS_OK);
    net_stream_reset(stream);
    hostile_stop(&hostile);
    buffers_free();
}

static uint64_t next_deadline_ns(void)
{
    return time_min(exec_next_deadline_ns(hostile.exec), p2p_next_deadline_ns(hostile.p2p));
}

/* If no communicator claims a stream, the stream is given up after its own time, whatever other streams do.
 */
static void test_parked_streams_expire_in_turn(void **state)
{
    (void)state;
    const uint64_t step_ns = 1000000000u;
    struct net_stream *streams[4];
    uint64_t deadlines_ns[4];
    hostile_start(&hostile, SLICE);
    for (uint32_t i = 0; i < 4; i++) {
        streams[i] = hostile_open(&hostile, i % 2 == 0 ? NET_STREAM_DATA : NET_STREAM_MESSAGE);
        assert_true(hostile_say(&hostile, streams[i], payload, 8));
        deadlines_ns[i] = next_deadline_ns();
        hostile.now_ns += step_ns;
        hostile_turns(&hostile, 1);
    }
    assert_true(deadlines_ns[3] == deadlines_ns[0]); /* the first one's */
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t deadline_ns = next_deadline_ns();
        assert_true(i == 0 ? deadline_ns == deadlines_ns[0] : deadline_ns >= deadlines_ns[0] + i * step_ns);
        exec_tick(hostile.exec, deadline_ns);
        p2p_tick(hostile.p2p, deadline_ns);
        hostile_turns(&hostile, 50);
        for (uint32_t other = 0; other < 4; other++) {
            enum status status = net_stream_send(streams[other], NULL, 0, "x", 1, NULL, NULL);
            assert_int_equal(status, other > i ? STATUS_OK : STATUS_UNREACHABLE);
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        net_stream_reset(streams[i]);
    }
    hostile_turns(&hostile, 50);
    assert_int_equal(hostile.downs, 0);
    assert_int_equal(next_deadline_ns(), UINT64_MAX);
    hostile_stop(&hostile);
}

/* Half a payload comes, then its stream ends. The operation does not wait for its deadline. A node that wants
 * to say why has a moment to do so. */
static void test_a_stream_reset_within_a_message(void **state)
{
    (void)state;
    struct hostile_outcome outcome;
    hostile_start(&hostile, SLICE);
    buffers_new();
    all_reduce(&outcome);
    struct data_header header = template();
    struct net_stream *stream = hostile_open(&hostile, NET_STREAM_DATA);
    assert_true(hostile_say_data(&hostile, stream, &header));
    assert_true(hostile_say(&hostile, stream, payload, header.payload_bytes / 2));
    net_stream_reset(stream);
    hostile_turns(&hostile, 50);
    hostile.now_ns += 3 * TIME_S; /* time to notice that a node died, or for a stalled link to go on */
    hostile_turns(&hostile, 50);
    assert_int_equal(hostile.failures, 0);
    hostile.now_ns += STREAM_CUT_NS;
    hostile_turns(&hostile, 50);
    assert_int_equal(hostile.failures, 1);
    assert_int_equal(hostile.failure.status, STATUS_PROTOCOL);
    assert_non_null(strstr(hostile.failure.text, "node b reset a stream within a message"));
    buffers_free();
    hostile_stop(&hostile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_second_stream_for_a_lane),
        cmocka_unit_test(test_a_slice_on_both_links),
        cmocka_unit_test(test_agreements_on_the_bulk_link),
        cmocka_unit_test(test_data_for_an_idle_lane),
        cmocka_unit_test(test_half_a_payload),
        cmocka_unit_test(test_headers_that_cost_the_connection),
        cmocka_unit_test(test_another_call_keeps_the_connection),
        cmocka_unit_test(test_parked_streams_are_bounded),
        cmocka_unit_test(test_beginnings_of_headers_are_bounded),
        cmocka_unit_test(test_parked_bytes_are_bounded),
        cmocka_unit_test(test_parked_streams_expire_in_turn),
        cmocka_unit_test(test_a_stream_reset_within_a_message),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
