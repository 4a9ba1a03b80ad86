#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/log.h"
#include "daemon/net/stream_reader.h"
#include "daemon/p2p/p2p.h"
#include "tests/lib/hostile_node.h"

/* Node b has a certificate, and lies about credit, replies and ends of messages. If it sends something that
 * no correct node sends, its connection ends. Messages that cross on the way, as they do with a correct node,
 * do no harm. */
#define BYTES 40000u /* more than MESSAGE_EAGER_MAX_BYTES */

static struct hostile hostile;
static unsigned char payload[BYTES];

static struct message_header header_of(enum message_kind kind, uint64_t id, uint64_t count)
{
    bool is_reply = kind == MESSAGE_ACCEPT || kind == MESSAGE_REFUSE || kind == MESSAGE_CREDIT;
    bool has_payload = kind == MESSAGE_EAGER || kind == MESSAGE_DATA;
    return (struct message_header){
        .kind = kind,
        .dtype = DTYPE_U8,
        .status = kind == MESSAGE_REFUSE || kind == MESSAGE_WITHDRAW ? STATUS_TIMED_OUT : STATUS_OK,
        .comm_id = HOSTILE_COMM_ID,
        .id = id,
        .source_rank = is_reply ? 0 : 1,
        .to_rank = is_reply ? 1 : 0,
        .tag = 7,
        .count_elements = count,
        .payload_bytes = has_payload ? count : 0};
}

static void say(struct net_stream *stream, enum message_kind kind, uint64_t id, uint64_t count)
{
    struct message_header header = header_of(kind, id, count);
    (void)hostile_say_message(&hostile, stream, &header);
    if (kind == MESSAGE_EAGER) {
        (void)hostile_say(&hostile, stream, payload, count);
    }
}

/* Node a posts a send, and its envelope has come. */
static void start_send(const struct hostile_buffer *buffer, struct hostile_outcome *outcome)
{
    hostile_start(&hostile, 1 << 20);
    assert_true(hostile_post(&hostile, true, 7, buffer, outcome));
    hostile_turns(&hostile, 50);
}

/* Node a posts a receive. An envelope for it comes on the stream that is returned. */
static struct net_stream *start_receive(const struct hostile_buffer *buffer, struct hostile_outcome *outcome)
{
    hostile_start(&hostile, 1 << 20);
    assert_true(hostile_post(&hostile, false, 7, buffer, outcome));
    struct net_stream *envelopes = hostile_open(&hostile, NET_STREAM_MESSAGE);
    say(envelopes, MESSAGE_ENVELOPE, 1, BYTES);
    hostile_turns(&hostile, 50);
    return envelopes;
}

/* Node b sends eager data beyond the credit of the pair. Nobody receives them. */
static void test_more_than_its_credit(void **state)
{
    (void)state;
    for (uint32_t tiny = 0; tiny < 2; tiny++) {
        uint32_t bytes = tiny == 1 ? 0 : MESSAGE_EAGER_MAX_BYTES;
        uint32_t fit = P2P_CREDIT_MAX_BYTES / (tiny == 1 ? P2P_CREDIT_LEAST_BYTES : MESSAGE_EAGER_MAX_BYTES);
        hostile_start(&hostile, 1 << 20);
        struct net_stream *stream = hostile_open(&hostile, NET_STREAM_MESSAGE);
        for (uint32_t id = 1; id <= fit; id++) {
            say(stream, MESSAGE_EAGER, id, bytes);
        }
        hostile_turns(&hostile, 50);
        assert_int_equal(hostile.downs, 0);
        say(stream, MESSAGE_EAGER, fit + 1, bytes);
        assert_true(hostile_was_dropped(&hostile, "more eager data than it has credit for"));
        net_stream_reset(stream);
        hostile_stop(&hostile);
    }
}

/* Each of these comes alone, on a fresh connection. Node a has offered one message before. */
static void test_what_no_node_says(void **state)
{
    (void)state;
    static const struct {
        enum message_kind kind;
        uint64_t id, count;
        const char *what;
    } lies[] = {
        {MESSAGE_ENVELOPE, 2, BYTES, "a message out of order"},
        {MESSAGE_ENVELOPE, 0, BYTES, "a message out of order"},
        {MESSAGE_WITHDRAW, 1, BYTES, "the end of a message that it never sent"},
        {MESSAGE_WITHDRAW, 0, BYTES, "the end of a message that it never sent"},
        {MESSAGE_CREDIT, 0, 1, "credit for more bytes than it received"},
        {MESSAGE_ACCEPT, 2, BYTES, "a reply to a message that was not sent"},
        {MESSAGE_REFUSE, 0, BYTES, "a reply to a message that was not sent"},
        {MESSAGE_DATA, 1, 100, "a payload that no receive waits for"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct hostile_buffer buffer = hostile_buffer_new(BYTES);
        struct hostile_outcome outcome;
        start_send(&buffer, &outcome);
        assert_int_equal(hostile.message_count, 1);
        assert_int_equal(hostile.messages[0].kind, MESSAGE_ENVELOPE);
        struct net_stream *stream = hostile_open(&hostile, NET_STREAM_MESSAGE);
        say(stream, lies[i].kind, lies[i].id, lies[i].count);
        assert_true(hostile_was_dropped(&hostile, lies[i].what));
        net_stream_reset(stream);
        hostile_stop(&hostile);
        hostile_buffer_free(&buffer);
    }
}

/* A second reply to a message, and a reply to a message of other ranks. */
static void test_second_replies(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 2; which++) {
        struct hostile_buffer buffer = hostile_buffer_new(BYTES);
        struct hostile_outcome outcome;
        start_send(&buffer, &outcome);
        struct net_stream *stream = hostile_open(&hostile, NET_STREAM_MESSAGE);
        struct message_header header = header_of(MESSAGE_ACCEPT, 1, BYTES);
        header.to_rank = which == 0 ? 1 : 3;
        uint8_t twice[2 * MESSAGE_HEADER_BYTES];
        message_header_encode(&header, twice);
        message_header_encode(&header, twice + MESSAGE_HEADER_BYTES);
        assert_true(hostile_say(&hostile, stream, twice, which == 0 ? sizeof twice : MESSAGE_HEADER_BYTES));
        assert_true(hostile_was_dropped(&hostile, which == 0 ? "a second reply to a message"
                                                             : "a reply to a message of other ranks"));
        net_stream_reset(stream);
        hostile_stop(&hostile);
        hostile_buffer_free(&buffer);
    }
}

/* When a message ends, its payload and replies to it may still be on their way. They have no effect, and no
 * node is blamed. */
static void test_words_that_cross(void **state)
{
    (void)state;
    struct hostile_buffer buffer = hostile_buffer_new(BYTES);
    struct hostile_outcome receive;
    struct net_stream *envelopes = start_receive(&buffer, &receive);
    assert_int_equal(hostile.message_count, 1);
    assert_int_equal(hostile.messages[0].kind, MESSAGE_ACCEPT);
    struct net_stream *data = hostile_open(&hostile, NET_STREAM_MESSAGE);
    say(data, MESSAGE_DATA, 1, BYTES);
    assert_true(hostile_say(&hostile, data, payload, 1000));
    say(envelopes, MESSAGE_WITHDRAW, 1, BYTES);
    hostile_turns(&hostile, 50);
    assert_int_equal(receive.calls, 1);
    assert_int_equal(receive.result.status, STATUS_TIMED_OUT);
    assert_non_null(strstr(receive.result.text, "the send of rank 1 (node b), tag 7, ended first"));
    memset(hostile_at(&buffer), HOSTILE_POISON, BYTES);
    (void)hostile_say(&hostile, data, payload, 1000);
    struct net_stream *late = hostile_open(&hostile, NET_STREAM_MESSAGE);
    say(late, MESSAGE_DATA, 1, BYTES);
    say(envelopes, MESSAGE_WITHDRAW, 1, BYTES);
    hostile_turns(&hostile, 50);
    assert_true(hostile_is_untouched(&buffer));
    assert_int_equal(hostile.downs, 0);
    assert_int_equal(hostile.failures, 0);
    net_stream_reset(envelopes);
    net_stream_reset(data);
    net_stream_reset(late);
    hostile_stop(&hostile);
    hostile_buffer_free(&buffer);
}

/* Half a payload comes, then its stream ends. The receive does not wait for its deadline. */
static void test_a_payload_that_is_cut(void **state)
{
    (void)state;
    for (uint32_t says = 0; says < 2; says++) {
        struct hostile_buffer buffer = hostile_buffer_new(BYTES);
        struct hostile_outcome receive;
        struct net_stream *envelopes = start_receive(&buffer, &receive);
        struct net_stream *data = hostile_open(&hostile, NET_STREAM_MESSAGE);
        say(data, MESSAGE_DATA, 1, BYTES);
        assert_true(hostile_say(&hostile, data, payload, 1000));
        net_stream_reset(data);
        hostile_turns(&hostile, 50);
        hostile.now_ns += 3 * TIME_S; /* time to notice that a node died, or for a stalled link to go on */
        hostile_turns(&hostile, 50);
        assert_int_equal(receive.calls, 0);
        if (says == 1) {
            say(envelopes, MESSAGE_WITHDRAW, 1, BYTES);
        }
        hostile.now_ns += says == 1 ? 0 : STREAM_CUT_NS;
        hostile_turns(&hostile, 50);
        assert_int_equal(receive.calls, 1);
        assert_int_equal(receive.result.status, says == 1 ? STATUS_TIMED_OUT : STATUS_PROTOCOL);
        assert_int_equal(hostile.downs, 0);
        assert_int_equal(hostile.failures, 0);
        net_stream_reset(envelopes);
        hostile_stop(&hostile);
        hostile_buffer_free(&buffer);
    }
}

/* Two payloads for one receive; a payload for none; one message's payload on the stream of another. */
static void test_payloads_that_nothing_waits_for(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++) {
        struct hostile_outcome outcome;
        struct hostile_buffer buffer = hostile_buffer_new(BYTES);
        struct net_stream *envelopes = start_receive(&buffer, &outcome);
        assert_int_equal(hostile.message_count, 1);
        assert_int_equal(hostile.messages[0].kind, MESSAGE_ACCEPT);
        struct net_stream *stream = hostile_open(&hostile, NET_STREAM_MESSAGE);
        struct net_stream *other = hostile_open(&hostile, NET_STREAM_MESSAGE);
        struct message_header header = header_of(MESSAGE_DATA, which == 1 ? 2 : 1, BYTES);
        assert_true(hostile_say_message(&hostile, stream, &header));
        (void)hostile_say(&hostile, stream, payload, which == 2 ? BYTES : BYTES / 2);
        if (which == 0) {
            (void)hostile_say_message(&hostile, other, &header);
        } else if (which == 2) {
            assert_int_equal(outcome.calls, 1);
            (void)hostile_say_message(&hostile, stream, &header);
        }
        assert_true(hostile_was_dropped(&hostile, which == 2 ? "that belong on two"
                                                             : "a payload that no receive waits for"));
        net_stream_reset(envelopes);
        net_stream_reset(stream);
        net_stream_reset(other);
        hostile_stop(&hostile);
        assert_true(hostile_guards_hold(&buffer));
        hostile_buffer_free(&buffer);
    }
}

static void test_streams_of_messages(void **state)
{
    (void)state;
    enum { SECOND, MIXED, RANKS, REPLY, HALF, CASES };
    static const char *const whats[CASES] = {"a second stream of envelopes", "that belong on two",
                                             "ranks that are elsewhere", "a reply to a message that was not",
                                             "half a message"};
    for (int which = 0; which < CASES; which++) {
        hostile_start(&hostile, 1 << 20);
        struct net_stream *stream = hostile_open(&hostile, NET_STREAM_MESSAGE);
        struct net_stream *other = hostile_open(&hostile, NET_STREAM_MESSAGE);
        struct message_header header =
            header_of(which == REPLY ? MESSAGE_ACCEPT : MESSAGE_ENVELOPE, 1, BYTES);
        header.source_rank = which == RANKS ? 0 : header.source_rank;
        assert_true(hostile_say_message(&hostile, stream, &header));
        if (which == SECOND) {
            assert_true(hostile_say_message(&hostile, other, &header));
        } else if (which == MIXED) {
            say(stream, MESSAGE_DATA, 1, BYTES);
        } else if (which == HALF) {
            assert_true(hostile_say(&hostile, stream, "half", 4));
            net_stream_finish(stream);
            stream = NULL;
        }
        assert_true(hostile_was_dropped(&hostile, whats[which]));
        net_stream_reset(other);
        if (stream != NULL) {
            net_stream_reset(stream);
        }
        hostile_stop(&hostile);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_than_its_credit),  cmocka_unit_test(test_what_no_node_says),
        cmocka_unit_test(test_second_replies),        cmocka_unit_test(test_words_that_cross),
        cmocka_unit_test(test_a_payload_that_is_cut), cmocka_unit_test(test_payloads_that_nothing_waits_for),
        cmocka_unit_test(test_streams_of_messages),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
