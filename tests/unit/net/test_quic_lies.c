#include "daemon/net/quic_internal.h"
#include "tests/unit/net/session_nodes.h"

/* Nodes with a certificate that lie about their streams: in a greeting, in what follows it, or by sending
 * none. */

static struct quic_connection *connection_of(const struct quic_node *node)
{
    return quic_peer_of((struct quic_endpoint *)node->net, 0)->up;
}

static void claim_bytes_that_were_not_sent(struct quic_connection *connection)
{
    connection->receivers->intake.consumed_end += 1u << 20;
}

static void take_back_bytes(struct quic_connection *connection)
{
    connection->receivers->intake.consumed_end = 100; /* less than was acknowledged */
}

static void claim_a_stream_that_never_was(struct quic_connection *connection)
{
    assert_int_equal(quic_numbers_add(&connection->session.seen, 1000), STATUS_OK);
    connection->receivers->number = 1000;
}

static void claim_that_an_open_stream_is_over(struct quic_connection *connection)
{
    connection->receivers->number = connection->session.seen.end;
    assert_int_equal(quic_numbers_add(&connection->session.seen, connection->session.seen.end), STATUS_OK);
}

/* Makes node a resume its stream from another place than node b asked for. */
static void expect_elsewhere(struct quic_connection *connection)
{
    connection->receivers->intake.consumed_end += 4;
}

static void forget_the_stream(struct quic_connection *connection)
{
    connection->unresumed[0].number = 77;
    quic_numbers_clear(&connection->session.seen);
}

typedef void lie_function(struct quic_connection *connection);

/* Makes node b wait until node a resumes its stream. */
static bool is_about_to_resume(const void *context)
{
    (void)context;
    const struct quic_connection *connection = connection_of(b);
    return connection != NULL && connection->state == QUIC_STATE_UP && connection->unresumed_count == 1 &&
           connection->unresumed[0].receiver != NULL;
}

static bool liar_is_disconnected(const void *context)
{
    const struct quic_node *node = context;
    return node->down_calls[0] > 0;
}

/* During an outage, the state of one node is changed, so that it lies on the next connection. The other one
 * ends the session, and only that. */
static void assert_lie_is_noticed(lie_function *tell, bool receiver_lies, bool after_resumption,
                                  const char *text)
{
    start_nodes(200, &narrow);
    struct quic_source *source = quic_source_new(a, 0, 1, 600000, 1000, false);
    quic_run_for(loop, 60);
    cut_network(true);
    quic_run_for(loop, 1200);
    struct quic_node *victim = receiver_lies ? a : b;
    if (after_resumption) {
        cut_network(false);
        assert_true(quic_run_until(loop, is_about_to_resume, NULL, 3000));
        tell(connection_of(b));
    } else {
        tell(connection_of(receiver_lies ? b : a));
        cut_network(false);
    }
    if (!quic_run_until(loop, liar_is_disconnected, victim, 5000)) {
        fail_msg("nobody notices what should be called \"%s\"", text);
    }
    assert_int_equal(victim->down_cause.status, STATUS_PROTOCOL);
    assert_text(victim->down_cause.text, text);
    assert_true(quic_run_until(loop, source_done, source, 5000));
    net_stream_finish(source->stream);
    quic_source_free(source);
    quic_run_for(loop, 100);
    assert_int_equal(b->down_calls[0], 1); /* the liar is told */
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, both_up, NULL, 5000));
    struct quic_source *again = quic_source_new(a, 0, 5, 100000, 10000, true);
    assert_true(quic_run_until(loop, source_done, again, 5000));
    assert_int_equal(again->failed, 0);
    quic_source_free(again);
    free_network();
}

static void lies_end_the_session(void **state)
{
    (void)state;
    assert_lie_is_noticed(claim_bytes_that_were_not_sent, true, false,
                          "a greeting that is wrong about stream 0");
    assert_lie_is_noticed(take_back_bytes, true, false, "a greeting that is wrong about stream 0");
    assert_lie_is_noticed(claim_that_an_open_stream_is_over, true, false,
                          "a greeting that is wrong about stream 0");
    assert_lie_is_noticed(claim_a_stream_that_never_was, true, false,
                          "a greeting that is wrong about stream 0");
    assert_lie_is_noticed(expect_elsewhere, false, true, "the rest of a stream from the wrong place");
    assert_lie_is_noticed(forget_the_stream, false, true, "the rest of a stream that it never began");
}

static void numbers_that_lie_end_the_session(void **state)
{
    (void)state;
    const uint64_t wrong[] = {0, 1ull << 40};
    for (unsigned i = 0; i < 2; i++) {
        start_nodes(210 + i, &fine);
        struct quic_source *first = quic_source_new(a, 0, 1, 1000, 1000, false);
        quic_run_for(loop, 50);
        connection_of(a)->session.next_number = wrong[i];
        struct quic_source *second = quic_source_new(a, 0, 2, 1000, 1000, false);
        assert_true(quic_run_until(loop, liar_is_disconnected, b, 3000));
        assert_int_equal(b->down_cause.status, STATUS_PROTOCOL);
        assert_text(b->down_cause.text, "two streams of one number, or a number out of order");
        quic_run_for(loop, 100);
        net_stream_finish(first->stream);
        net_stream_finish(second->stream);
        quic_source_free(first);
        quic_source_free(second);
        free_network();
    }
}

static struct quic_connection *greeting_of_b(void)
{
    return quic_peer_of((struct quic_endpoint *)b->net, 0)->greeting;
}

static bool b_awaits_the_greeting(const void *context)
{
    (void)context;
    return greeting_of_b() != NULL && greeting_of_b()->state == QUIC_STATE_GREETING;
}

/* A peer whose greeting does not come cannot fill the memory with streams. */
static void streams_before_the_greeting_are_bounded(void **state)
{
    (void)state;
    static const uint8_t bytes[NET_STREAM_FIRST_WINDOW_BYTES] = {NET_STREAM_DATA};
    make_nodes(220, 0, 0);
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, b_awaits_the_greeting, NULL, 1000));
    struct quic_connection *connection = greeting_of_b();
    uint64_t taken = 0;
    for (int64_t i = 0; !connection->failed; i++) {
        int result = quic_receiver_bytes(connection, NULL, 4 * (10000 + i) + 2, bytes, sizeof bytes, false);
        assert_true(connection->failed == (result != 0));
        taken += sizeof bytes;
        assert_true(taken <= QUIC_EARLY_MAX_BYTES + sizeof bytes);
    }
    assert_int_equal(connection->cause.status, STATUS_PROTOCOL);
    assert_text(connection->cause.text, "sent streams, but no greeting");
    quic_run_for(loop, 100);
    assert_null(greeting_of_b());
    assert_int_equal(b->up_calls[0], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lies_end_the_session, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(numbers_that_lie_end_the_session, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(streams_before_the_greeting_are_bounded, setup_loop, teardown),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_lies", tests, setup_files, teardown_files);
}
