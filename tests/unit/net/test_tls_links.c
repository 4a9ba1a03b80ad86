#include "tests/unit/net/tls_nodes.h"

#include <linux/filter.h>
#include <sys/socket.h>

/* WAITS = True */

/* The life of bulk links: they are made, cut, refused, and made again. Streams go on, and nothing is lost. */

static bool link_is_lost(const void *context)
{
    return peer_of(context)->lost_count > 0 && both_tunnel(NULL);
}

/* Both have lost a connection since. */
static bool both_lost(const void *context)
{
    const uint64_t *before = context;
    return peer_of(a)->lost_count > before[0] && peer_of(b)->lost_count > before[1];
}

static void transfers_survive(unsigned cuts, uint64_t before_ms)
{
    enum { SIZE = 48 << 20, COUNT = 6 };
    struct quic_source *list[COUNT];
    struct sources sources = {list, COUNT};
    uint64_t lost_before[2];
    b->consume_max = 300007;
    for (unsigned i = 0; i < COUNT; i++) {
        list[i] = quic_source_new(i % 2 == 0 ? a : b, 0, 30 + i, SIZE / COUNT + i, (1u << 19) + 11, true);
    }
    for (unsigned i = 0; i < cuts; i++) {
        quic_run_for(loop, before_ms);
        peer_of(a)->dial = (struct backoff){0}; /* no pause: many cuts in a short time */
        if (both_linked(NULL)) {
            lost_before[0] = peer_of(a)->lost_count;
            lost_before[1] = peer_of(b)->lost_count;
            cut(i % 2 == 0 ? a : b);
            assert_true(quic_run_until(loop, both_lost, lost_before, 5000));
        }
    }
    assert_true(quic_run_until(loop, sources_done, &sources, 40000));
    assert_closed(a, COUNT / 2);
    assert_closed(b, COUNT / 2);
    assert_complete(a);
    assert_complete(b);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(list[i]->failed, 0);
        quic_source_free(list[i]);
    }
}

static void a_cut_link_loses_no_byte(void **state)
{
    (void)state;
    transfers_survive(1, 3);
    assert_int_equal(peer_of(a)->lost_count, 1);
    assert_int_equal(a->down_calls[0] + b->down_calls[0], 0);
    peer_of(a)->dial = (struct backoff){0};
    link_both(); /* it is made again */
    assert_int_equal(peer_of(a)->connected_count, 2);
}

static void many_cuts_lose_no_byte(void **state)
{
    (void)state;
    transfers_survive(30, 1);
    assert_true(peer_of(a)->lost_count >= 3);
    assert_int_equal(a->down_calls[0] + b->down_calls[0], 0);
}

/* The connection fails while TLS writes a stream's payload from its place, not while it reads. */
static void a_write_that_fails_ends_the_connection_alone(void **state)
{
    (void)state;
    uint64_t lost = peer_of(a)->lost_count;
    cut(a);
    loop_watch_set(peer_of(a)->connection->watch, 0); /* it writes before it reads that */
    struct quic_source *source = quic_source_new(a, 0, 41, 16u << 20, 4u << 20, true);
    assert_true(quic_run_until(loop, source_done, source, 20000));
    assert_int_equal(source->failed, 0);
    assert_int_equal(peer_of(a)->lost_count, lost + 1);
    assert_closed(b, 1);
    assert_complete(b);
    quic_source_free(source);
}

/* Streams that wait for their receiver, that are given up, and that end while there is no connection. */
static void streams_end_well_across_a_cut(void **state)
{
    (void)state;
    b->hold = true;
    struct quic_source *held = quic_source_new(a, 0, 1, 5u << 20, 1u << 20, true);
    struct quic_source *reset = quic_source_new(a, 0, 2, 5u << 20, 1u << 20, false);
    struct quic_source *small = quic_source_new(a, 0, 3, 100, 1u << 20, true);
    assert_true(quic_run_until_count(loop, &b->sink_count, 3, 5000));
    cut(a);
    net_stream_reset(reset->stream);
    assert_true(quic_run_until(loop, link_is_lost, a, 5000));
    assert_true(quic_run_until(loop, source_done, reset, 5000));
    for (struct quic_sink *sink = b->sinks; sink != NULL; sink = sink->next) {
        quic_sink_release(sink);
    }
    assert_true(quic_run_until(loop, source_done, held, 10000));
    assert_true(quic_run_until(loop, source_done, small, 10000));
    assert_closed(b, 3);
    unsigned complete = 0;
    for (const struct quic_sink *sink = b->sinks; sink != NULL; sink = sink->next) {
        assert_false(sink->wrong);
        complete += quic_sink_complete(sink);
    }
    assert_int_equal(complete, 2);
    quic_run_for(loop, 20);
    assert_int_equal(HASH_COUNT(peer_of(a)->senders) + HASH_COUNT(peer_of(b)->receivers), 0);
    quic_source_free(held);
    quic_source_free(reset);
    quic_source_free(small);
}

static bool b_has_all(const void *context)
{
    const struct tls_receiver *receiver = peer_of(b)->receivers;
    (void)context;
    return receiver != NULL && receiver->intake.ended && receiver->owes_receipt;
}

/* b has a stream to its end, and a does not know. b's receipt comes on the next carrier, before the end does
 * so again. */
static void a_receipt_may_come_before_the_end_is_sent_again(void **state)
{
    (void)state;
    struct quic_source *source = quic_source_new(a, 0, 1, 100000, 100000, true);
    peer_of(b)->tunnel_bytes += TLS_TUNNEL_AHEAD_BYTES; /* b sends greetings alone on the tunnel */
    cut(a);
    assert_true(quic_run_until(loop, b_has_all, NULL, 5000));
    peer_of(a)->dial = (struct backoff){0};
    link_both();
    peer_of(b)->tunnel_bytes -= TLS_TUNNEL_AHEAD_BYTES;
    assert_true(quic_run_until(loop, source_done, source, 5000));
    assert_int_equal(source->failed, 0);
    assert_closed(b, 1);
    assert_complete(b);
    assert_int_equal(a->down_calls[0] + b->down_calls[0], 0);
    quic_source_free(source);
}

/* The other side reads nothing from TCP: the link is given up, and QUIC has the data. */
static void a_link_that_stands_still_is_given_up(void **state)
{
    (void)state;
    struct quic_source *source = quic_source_new(a, 0, 1, 64u << 20, 1u << 20, true);
    assert_true(quic_run_until_count(loop, &b->sink_count, 1, 5000));
    peer_of(b)->connection->more = false;
    loop_watch_set(peer_of(b)->connection->watch, 0);
    for (unsigned i = 0; i < 3000 && peer_of(a)->lost_count == 0; i++) {
        quic_run_for(loop, 1);
        if (peer_of(b)->connection != NULL) {
            loop_watch_set(peer_of(b)->connection->watch, 0);
        }
    }
    assert_int_equal(peer_of(a)->lost_count, 1);
    assert_text(peer_of(a)->why, "it carries too little");
    assert_true(quic_run_until(loop, source_done, source, 20000));
    assert_closed(b, 1);
    assert_complete(b);
    quic_source_free(source);
    uint64_t now_ns = loop_now_ns();
    assert_true(peer_of(a)->held_ns > now_ns); /* for a while it is not dialled */
    quic_run_for(loop, 100);
    assert_false(net_bulk_choose(a->net, 0, now_ns));
}

/*
 * The connection carries nothing more, and nobody says so. All that a sent is receipted; it waits for credit,
 * which is lost. So no data are under way whose receipts could be missed.
 */
static void a_link_that_carries_nothing_is_noticed_without_data(void **state)
{
    (void)state;
    struct sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {1, &drop};
    b->hold = true;
    struct quic_source *source = quic_source_new(a, 0, 1, 5u << 20, 1u << 20, true);
    assert_true(quic_run_until_count(loop, &b->sink_count, 1, 5000));
    quic_run_for(loop, 50);
    assert_int_equal(peer_of(a)->under_way_bytes, 0);
    assert_int_equal(
        setsockopt(peer_of(a)->connection->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
    b->hold = false;
    quic_sink_release(b->sinks);
    assert_true(quic_run_until(loop, source_done, source, 5000));
    assert_closed(b, 1);
    assert_complete(b);
    assert_int_equal(peer_of(b)->lost_count, 1);
    assert_text(peer_of(b)->why, "timed out");
    assert_true(peer_of(b)->held_ns > loop_now_ns());
    quic_source_free(source);
}

static bool a_lost_a_link(const void *context)
{
    return peer_of(a)->lost_count > *(const uint64_t *)context;
}

/* The node that gives a link up may be the one that does not dial. Then the other one may not have it back.
 */
static void a_link_that_either_node_gave_up_is_not_made_again_at_once(void **state)
{
    (void)state;
    uint64_t lost = peer_of(a)->lost_count, connected = peer_of(a)->connected_count;
    peer_of(b)->held_ns = time_after(loop_now_ns(), 300 * TIME_MS);
    tls_peer_abandon(peer_of(b), "it carries too little");
    assert_true(quic_run_until(loop, a_lost_a_link, &lost, 5000));
    assert_true(peer_of(a)->dial.next_ns > loop_now_ns());
    peer_of(a)->dial = (struct backoff){0}; /* an a that does not wait is refused */
    for (unsigned i = 0; i < 50; i++) {
        assert_false(net_bulk_choose(a->net, 0, loop_now_ns()));
        peer_of(a)->dial = (struct backoff){0};
        quic_run_for(loop, 1);
    }
    assert_int_equal(peer_of(a)->connected_count, connected);
    quic_run_for(loop, 300);
    peer_of(a)->dial = (struct backoff){0};
    link_both();
}

static void without_a_listener_there_is_no_link(void **state)
{
    struct net_bulk_statistics statistics = {.why = ""};
    (void)state;
    attach_both();
    tls_listen_close(tls_of(b));
    for (unsigned i = 0; i < 50 || (statistics.why[0] == '\0' && i < 5000); i++) {
        assert_false(net_bulk_choose(a->net, 0, loop_now_ns()));
        quic_run_for(loop, 1);
        net_bulk_statistics(a->net, 0, &statistics);
    }
    assert_true(statistics.allowed);
    assert_false(statistics.connected);
    assert_text(statistics.why, "Connection refused");
    struct net_stream *stream;
    struct error error;
    assert_int_equal(net_stream_open_bulk(a->net, 0, NET_STREAM_DATA, 0, NULL, &stream, &error),
                     STATUS_UNREACHABLE);
    tls_listen(tls_of(b)); /* it is dialled again, although nobody asks */
    peer_of(a)->dial.next_ns = 0;
    tls_dial(peer_of(a), loop_now_ns());
    link_both();
}

static void the_link_needs_both_nodes(void **state)
{
    (void)state;
    attach(a);
    quic_nodes_connect(a, b);
    for (unsigned i = 0; i < 20; i++) {
        assert_false(net_bulk_choose(a->net, 0, loop_now_ns()));
        assert_false(net_bulk_choose(b->net, 0, loop_now_ns()));
        quic_run_for(loop, 1);
    }
    net_bulk_allow(a->net, 0, true); /* a mistake: b does not take it, and nothing breaks */
    for (unsigned i = 0; i < 20; i++) {
        assert_false(net_bulk_choose(a->net, 0, loop_now_ns()));
        quic_run_for(loop, 1);
    }
    assert_true(a->up[0] && b->up[0]);
    assert_int_equal(a->down_calls[0] + b->down_calls[0], 0);
}

/* The node that does not dial asks, and the other one dials. */
static bool b_is_linked(const void *context)
{
    (void)context;
    return net_bulk_choose(b->net, 0, loop_now_ns());
}

static void either_node_may_ask(void **state)
{
    (void)state;
    attach_both();
    assert_true(quic_run_until(loop, b_is_linked, NULL, 5000));
}

/* TCP may be faster than QUIC: the greeting there comes before the one that has told of the session. */
static void tcp_may_overtake_the_first_greeting(void **state)
{
    (void)state;
    cut(a);
    assert_true(quic_run_until(loop, link_is_lost, a, 5000));
    peer_of(b)->session.peer_id = 0;
    peer_of(a)->dial = (struct backoff){0};
    link_both();
    assert_int_equal(peer_of(b)->session.peer_id, peer_of(a)->session.own_id);
    assert_int_equal(a->down_calls[0] + b->down_calls[0], 0);
}

/* Keys are changed again and again while data flow both ways. */
static void keys_are_updated(void **state)
{
    (void)state;
    struct quic_source *list[] = {quic_source_new(a, 0, 1, 64u << 20, 1u << 20, true),
                                  quic_source_new(b, 0, 2, 64u << 20, 1u << 20, true)};
    struct sources sources = {list, 2};
    unsigned updates = 0;
    while (!sources_done(&sources) && peer_of(a)->connection != NULL && peer_of(b)->connection != NULL) {
        quic_run_for(loop, 1);
        updates += peer_of(a)->connection != NULL && peer_of(a)->connection->key_bytes < TLS_KEY_BYTES;
        for (unsigned i = 0; i < 2; i++) {
            struct tls_connection *connection = peer_of(i == 0 ? a : b)->connection;
            if (connection != NULL) {
                connection->key_bytes = TLS_KEY_BYTES;
            }
        }
    }
    assert_true(updates > 3);
    assert_int_equal(peer_of(a)->lost_count + peer_of(b)->lost_count, 0);
    assert_true(quic_run_until(loop, sources_done, &sources, 10000));
    assert_closed(a, 1);
    assert_closed(b, 1);
    assert_complete(a);
    assert_complete(b);
    free_sources(list, 2);
}

static void a_revoked_certificate_ends_the_link(void **state)
{
    struct quic_options options;
    struct quic_tls *tls = NULL;
    struct error error;
    (void)state;
    test_pki_revoke(pki, "a");
    quic_node_options(pki, "b", &options);
    options.revocation_path = test_pki_path(pki, "crl.pem");
    assert_int_equal(net_quic_load(&options, &tls, &error), STATUS_OK);
    net_quic_use(b->net, tls);
    net_quic_unload(tls);
    assert_true(quic_run_until(loop, both_down, NULL, 5000));
    assert_int_equal(b->down_cause.status, STATUS_CERTIFICATE);
    assert_null(peer_of(b)->connection);
    assert_false(net_bulk_choose(a->net, 0, loop_now_ns()));
}

static void poll_often(uint64_t now_ns)
{
    for (int i = 0; i < 1000; i++) {
        (void)net_bulk_poll(a->net, true, now_ns);
        (void)net_bulk_poll(b->net, true, now_ns);
    }
}

static void count_sent(void *context, enum status result, uint64_t now_ns)
{
    (void)now_ns;
    assert_int_equal(result, STATUS_OK);
    *(unsigned *)context += 1;
}

static void send_counted(struct net_stream *stream, size_t size, unsigned *count)
{
    static const uint8_t zeros[TLS_RECEIPT_BYTES];
    assert_int_equal(net_stream_send(stream, NULL, 0, zeros, size, count_sent, count), STATUS_OK);
}

static void a_receipt_waits_for_data_that_go_the_same_way(void **state)
{
    enum { SIZE = 1000 };
    (void)state;
    struct error error;
    struct net_stream *streams[2];
    unsigned sent[2] = {0, 0};
    uint64_t now_ns = loop_now_ns();
    for (int i = 0; i < 2; i++) { /* the first data bring credit, which leaves at once */
        struct net *net = i == 0 ? a->net : b->net;
        assert_int_equal(net_stream_open_bulk(net, 0, NET_STREAM_DATA, 0, NULL, &streams[i], &error),
                         STATUS_OK);
        send_counted(streams[i], SIZE, &sent[i]);
    }
    poll_often(now_ns);
    now_ns = time_after(now_ns, TLS_RECEIPT_NS);
    poll_often(now_ns);
    uint64_t said_bytes = peer_of(b)->sent_bytes, heard_bytes = peer_of(b)->received_bytes;
    sent[0] = sent[1] = 0;
    send_counted(streams[0], SIZE, &sent[0]);
    poll_often(now_ns);
    assert_true(peer_of(b)->received_bytes >= heard_bytes + SIZE);
    assert_int_equal(peer_of(b)->sent_bytes, said_bytes);
    send_counted(streams[1], SIZE, &sent[1]); /* the data of b carry the receipt */
    poll_often(now_ns);
    assert_int_equal(sent[0], 1);
    poll_often(time_after(now_ns, TLS_RECEIPT_NS - 1));
    assert_int_equal(sent[1], 0);
    now_ns = time_after(now_ns, TLS_RECEIPT_NS);
    poll_often(now_ns); /* nothing goes the other way */
    assert_int_equal(sent[1], 1);
    send_counted(streams[0], TLS_RECEIPT_BYTES, &sent[0]); /* so many bytes get a receipt at once */
    poll_often(now_ns);
    assert_true(peer_of(a)->receipted_bytes >= TLS_RECEIPT_BYTES);
}

/* Each part lets b grant as much again. */
static void credit_waits_while_the_sender_has_enough(void **state)
{
    enum { PART = 40 << 10 };
    (void)state;
    struct error error;
    struct net_stream *stream;
    unsigned sent = 0;
    uint64_t now_ns = loop_now_ns();
    b->no_more = true;
    assert_int_equal(net_stream_open_bulk(a->net, 0, NET_STREAM_DATA, 0, NULL, &stream, &error), STATUS_OK);
    send_counted(stream, PART, &sent);
    poll_often(now_ns);
    now_ns = time_after(now_ns, TLS_RECEIPT_NS);
    poll_often(now_ns);
    assert_int_equal(sent, 1);
    uint64_t said_bytes = peer_of(b)->sent_bytes;
    send_counted(stream, PART, &sent);
    poll_often(now_ns);
    assert_int_equal(peer_of(b)->sent_bytes, said_bytes); /* a may send 88 KiB more */
    send_counted(stream, PART, &sent);
    poll_often(now_ns); /* 48 KiB are left, so the credit leaves at once, and the receipt with it */
    assert_true(peer_of(b)->sent_bytes > said_bytes);
    assert_int_equal(sent, 3);
}

/* No turn of the loop: both nodes do nothing but poll. */
static void data_move_by_polls_alone(void **state)
{
    enum { SIZE = 200000 }; /* less than fills a socket */
    (void)state;
    uint64_t now_ns = loop_now_ns(); /* of the polls: for the link, the test's process never pauses */
    struct quic_source *list[] = {quic_source_new(a, 0, 1, SIZE, SIZE / 2 + 1, true),
                                  quic_source_new(b, 0, 2, SIZE, SIZE / 2 + 1, true)};
    struct sources sources = {list, 2};
    uint64_t until_ns = time_after(loop_now_ns(), 10 * TIME_S);
    while (!sources_done(&sources) && loop_now_ns() < until_ns) {
        (void)net_bulk_poll(a->net, true, now_ns);
        (void)net_bulk_poll(b->net, true, now_ns);
        now_ns += TIME_US;
    }
    uint64_t later_ns = time_after(now_ns, TLS_LIVELY_NS + 1);
    assert_false(net_bulk_poll(a->net, true, later_ns));
    assert_int_equal(tls_of(a)->lively.count, 0); /* it is read by the loop again */
    assert_true(sources_done(&sources));
    assert_closed(a, 1);
    assert_closed(b, 1);
    assert_complete(a);
    assert_complete(b);
    free_sources(list, 2);
}

static uint32_t datagram_bytes;

static void say_datagram_bytes(const struct net *net, uint32_t peer, struct net_peer_statistics *out)
{
    (void)net;
    (void)peer;
    out->datagram_bytes = datagram_bytes;
}

/* Small data are not measured: the size of datagrams decides, once it is known. */
static void small_data_use_the_link_if_datagrams_are_small(void **state)
{
    (void)state;
    struct net_operations operations = *a->net->operations;
    const struct net_operations *own = a->net->operations;
    operations.peer_statistics = say_datagram_bytes;
    a->net->operations = &operations;
    datagram_bytes = 1452;
    for (unsigned i = 1; i < TLS_SMALL_FIRST; i++) {
        assert_false(net_bulk_choose_small(a->net, 0, loop_now_ns()));
    }
    assert_true(net_bulk_choose_small(a->net, 0, loop_now_ns()));
    datagram_bytes = 8952;
    assert_false(net_bulk_choose_small(a->net, 0, loop_now_ns()));
    datagram_bytes = 1452;
    net_bulk_allow(a->net, 0, false);
    assert_false(net_bulk_choose_small(a->net, 0, loop_now_ns()));
    a->net->operations = own;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_cut_link_loses_no_byte, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(many_cuts_lose_no_byte, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_write_that_fails_ends_the_connection_alone, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(streams_end_well_across_a_cut, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_receipt_may_come_before_the_end_is_sent_again, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(a_link_that_stands_still_is_given_up, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_link_that_carries_nothing_is_noticed_without_data, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(a_link_that_either_node_gave_up_is_not_made_again_at_once,
                                        setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(without_a_listener_there_is_no_link, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(the_link_needs_both_nodes, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(either_node_may_ask, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(tcp_may_overtake_the_first_greeting, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(keys_are_updated, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_receipt_waits_for_data_that_go_the_same_way, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(credit_waits_while_the_sender_has_enough, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(data_move_by_polls_alone, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(small_data_use_the_link_if_datagrams_are_small, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(a_revoked_certificate_ends_the_link, setup_linked, teardown_nodes),
    };
    return cmocka_run_group_tests(tests, setup_files, teardown_files);
}
