#include "tests/unit/net/quic_nodes.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* WAITS = True */

/* The life of a connection: dialled, replaced, lost, closed. */

/* --- Conditions --- */

static bool a_was_down(const void *context)
{
    (void)context;
    return a->down_calls[0] > 0;
}

static bool a_down(const void *context)
{
    (void)context;
    return !a->up[0];
}

static bool a_failed(const void *context)
{
    (void)context;
    return a->failed_calls[0] > 0;
}

static bool source_delivered(const void *context)
{
    const struct quic_source *source = context;
    return quic_source_done(source) && b->sinks != NULL && b->sinks->closed;
}

static bool first_sinks_closed(const void *context)
{
    (void)context;
    return a->sinks != NULL && b->sinks != NULL && a->sinks->closed && b->sinks->closed;
}

/* Both nodes have agreed on one connection. Checks that it carries data both ways. */
static void assert_connection_works(void)
{
    struct quic_source *forth = quic_source_new(a, 0, 1, 100000, 7000, true);
    struct quic_source *back = quic_source_new(b, 0, 2, 100000, 7000, true);
    assert_true(quic_run_until(loop, source_done, forth, 5000));
    assert_true(quic_run_until(loop, source_done, back, 5000));
    assert_true(quic_run_until(loop, first_sinks_closed, NULL, 5000));
    assert_true(quic_sink_complete(a->sinks));
    assert_true(quic_sink_complete(b->sinks));
    assert_false(a->wrong_order);
    assert_false(b->wrong_order);
    quic_source_free(forth);
    quic_source_free(back);
}

static void disconnect_and_wait(void)
{
    struct error cause;
    error_set(&cause, STATUS_ABORTED, "a test");
    net_disconnect(a->net, 0, &cause);
    assert_true(quic_run_until(loop, both_down, NULL, 5000));
}

/* --- Connecting --- */

static void connects(void **state)
{
    (void)state;
    quic_nodes_connect(a, b);
    assert_int_equal(a->up_calls[0], 1);
    assert_int_equal(b->up_calls[0], 1);
    struct net_peer_statistics statistics;
    net_peer_statistics(a->net, 0, &statistics);
    assert_true(statistics.up);
    assert_int_equal(statistics.connected_count, 1);
    assert_true(statistics.sent_bytes >= 1200);
    assert_true(statistics.received_bytes > 0);
    assert_true(statistics.round_trip_ns > 0);
    assert_int_equal(statistics.lost_packets, 0);
    quic_node_connect(a, 0); /* connected already: nothing happens */
    quic_node_connect(b, 0);
    quic_run_for(loop, 50);
    assert_int_equal(a->up_calls[0], 1);
    assert_int_equal(a->down_calls[0], 0);
    assert_connection_works();
}

static void connects_when_dialled_by_the_second(void **state)
{
    (void)state;
    quic_nodes_connect(b, a);
    assert_connection_works();
}

static void a_peer_nobody_listens_for_is_unreachable(void **state)
{
    (void)state;
    uint16_t port = b->port;
    quic_node_free(b);
    b = NULL;
    quic_node_add_peer(a, "b", port);
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, a_failed, NULL, 2000));
    assert_int_equal(a->failed_cause.status, STATUS_UNREACHABLE);
    assert_text(a->failed_cause.text, "node b");
    assert_text(a->failed_cause.text, "nobody listens");
    quic_run_for(loop, 100);
    assert_int_equal(a->failed_calls[0], 1);
    quic_node_connect(a, 0); /* and again */
    assert_true(quic_run_until_count(loop, &a->failed_calls[0], 2, 5000));
}

static void a_peer_that_does_not_answer_times_out(void **state)
{
    (void)state;
    struct quic_options options;
    quic_node_free(a);
    quic_node_options(pki, "a", &options);
    options.handshake_timeout_ns = 300 * TIME_MS;
    a = quic_node_new(loop, pki, "a", &options);
    struct sockaddr_in silent = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof silent;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&silent, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&silent, &size), 0);
    quic_node_add_peer(a, "b", ntohs(silent.sin_port));
    quic_node_connect(a, 0);
    uint64_t start_ns = loop_now_ns();
    assert_true(quic_run_until(loop, a_failed, NULL, 5000));
    assert_int_equal(a->failed_cause.status, STATUS_TIMED_OUT);
    assert_true(loop_now_ns() - start_ns >= 290 * TIME_MS);
    close(fd);
}

/* --- A peer that dies --- */

/* Starts node b in a process of its own, to be dialled by node a. Returns the process; *port is where it
 * listens. */
static pid_t start_child(uint16_t *port)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct loop *own = NULL;
        struct error error;
        if (loop_new(&own, &error) != STATUS_OK) {
            _exit(1);
        }
        struct quic_node *node = quic_node_new(own, pki, "b", NULL);
        quic_node_add_peer(node, "a", a->port);
        if (write(ends[1], &node->port, sizeof node->port) != sizeof node->port) {
            _exit(1);
        }
        for (;;) {
            quic_run_for(own, 1000);
        }
    }
    assert_int_equal(read(ends[0], port, sizeof *port), sizeof *port);
    close(ends[0]);
    close(ends[1]);
    return child;
}

static void kill_child(pid_t child)
{
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static bool a_up(const void *context)
{
    (void)context;
    return a->up[0];
}

static bool a_suspects(const void *context)
{
    (void)context;
    return a->suspect_calls[0] > 0;
}

static void a_killed_peer_is_suspected_then_lost(void **state)
{
    (void)state;
    struct quic_options options;
    uint16_t port = 0;
    quic_node_free(a);
    quic_node_free(b);
    b = NULL;
    quic_node_options(pki, "a", &options);
    options.idle_timeout_ns = 1500 * TIME_MS;
    a = quic_node_new(loop, pki, "a", &options);
    pid_t child = start_child(&port);
    quic_node_add_peer(a, "b", port);
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, a_up, NULL, 5000));
    kill_child(child);
    struct quic_source *source = quic_source_new(a, 0, 3, 50000, 5000, true);
    uint64_t start_ns = loop_now_ns();
    assert_true(quic_run_until(loop, a_suspects, NULL, 1000));
    assert_int_equal(a->down_calls[0], 0); /* the sign of b's death may be forged */
    assert_true(quic_run_until(loop, a_down, NULL, 10000));
    assert_true(loop_now_ns() - start_ns >= 1000 * TIME_MS);
    assert_int_equal(a->down_cause.status, STATUS_NODE_LOST);
    assert_text(a->down_cause.text, "node b");
    assert_true(quic_source_done(source));
    assert_int_equal(source->failed, source->sends);
    assert_int_equal(source->result, STATUS_NODE_LOST);
    quic_source_free(source);
}

/* Node b becomes a process that is killed while node a is connected to it. Then it starts anew, at the same
 * port. */
static void restart_b(void)
{
    struct quic_options options;
    char address[32];
    uint16_t port = 0;
    quic_node_free(b);
    b = NULL;
    pid_t child = start_child(&port);
    quic_node_add_peer(a, "b", port);
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, a_up, NULL, 5000));
    kill_child(child);
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    quic_node_options(pki, "b", &options);
    options.bind_address = address;
    b = quic_node_new(loop, pki, "b", &options);
    quic_node_add_peer(b, "a", a->port);
}

/* Node b's host tells node a: the secret of stateless resets is the same after a restart. */
static void a_restarted_peer_is_noticed_at_once(void **state)
{
    (void)state;
    restart_b();
    struct quic_source *source = quic_source_new(a, 0, 3, 50000, 5000, true);
    assert_true(quic_run_until(loop, a_was_down, NULL, 5000)); /* before the idle time-out */
    assert_int_equal(a->down_cause.status, STATUS_NODE_LOST);
    assert_text(a->down_cause.text, "restarted");
    assert_true(quic_source_done(source));
    quic_source_free(source);
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, both_up, NULL, 5000));
    assert_connection_works();
}

/* Node b dials anew while node a still takes the old connection for alive. The new connection replaces it. */
static void a_restarted_peer_that_dials_replaces_the_old_connection(void **state)
{
    (void)state;
    restart_b();
    quic_node_connect(b, 0);
    assert_true(quic_run_until_count(loop, &a->up_calls[0], 2, 5000));
    assert_true(quic_run_until(loop, both_up, NULL, 5000));
    assert_int_equal(a->down_calls[0], 1);
    assert_int_equal(a->down_cause.status, STATUS_NODE_LOST);
    assert_connection_works();
}

/* --- Options --- */

static void wrong_peers_are_refused_by_name(void **state)
{
    (void)state;
    struct error error;
    uint32_t peer;
    assert_int_equal(net_add_peer(a->net, "b", "127.0.0.1:4242", &peer, &error), STATUS_OK);
    assert_int_equal(net_add_peer(a->net, "b", "127.0.0.1:4243", &peer, &error), STATUS_ALREADY_EXISTS);
    static const char *const wrong[] = {"",        "127.0.0.1",     "127.0.0.1:",   "127.0.0.1:65536",
                                        ":4242",   "::1:4242",      "[::1]",        "[::1:4242",
                                        "[]:4242", "127.0.0.1:42x", "127.0.0.1:-1", "no such host.invalid:1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(net_add_peer(a->net, "x", wrong[i], &peer, &error), STATUS_INVALID_ARGUMENT);
        assert_text(error.text, wrong[i]);
        assert_text(error.text, "x");
    }
    assert_int_equal(net_add_peer(a->net, "a", "127.0.0.1:4242", &peer, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(net_add_peer(a->net, "", "127.0.0.1:4242", &peer, &error), STATUS_INVALID_ARGUMENT);
}

/* The peer's address has a name, which an endpoint does not resolve. The endpoint cannot dial the peer, but
 * the peer may connect. */
static void a_peer_with_a_name_waits_for_its_address(void **state)
{
    (void)state;
    struct error error;
    struct net_peer_statistics statistics;
    uint32_t peer;
    assert_int_equal(net_add_peer(a->net, "x", "no-such-host.invalid:4242", &peer, &error), STATUS_OK);
    net_peer_statistics(a->net, peer, &statistics);
    assert_true(statistics.unresolved);
    assert_int_equal(net_connect(a->net, peer, &error), STATUS_UNREACHABLE);
    assert_text(error.text, "node x: its name is not resolved yet");
    assert_int_equal(net_move_peer(a->net, peer, "127.0.0.1:4242", &error), STATUS_OK);
    net_peer_statistics(a->net, peer, &statistics);
    assert_false(statistics.unresolved);
    assert_int_equal(net_connect(a->net, peer, &error), STATUS_OK);
    assert_int_equal(net_move_peer(a->net, peer, "other.invalid:4242", &error), STATUS_OK);
    net_peer_statistics(a->net, peer, &statistics);
    assert_true(statistics.unresolved);
}

static void a_port_in_use_is_an_error(void **state)
{
    (void)state;
    struct quic_options options;
    char address[32];
    struct net *net = NULL;
    struct error error;
    quic_node_options(pki, "c", &options);
    snprintf(address, sizeof address, "127.0.0.1:%u", a->port);
    options.bind_address = address;
    assert_int_equal(net_quic_new(loop, &options, &net, &error), STATUS_SYSTEM);
    assert_text(error.text, address);
    options.bind_address = "nonsense";
    assert_int_equal(net_quic_new(loop, &options, &net, &error), STATUS_INVALID_ARGUMENT);
    options.bind_address = "127.0.0.1:0";
    options.datagram_max_bytes = 1199;
    assert_int_equal(net_quic_new(loop, &options, &net, &error), STATUS_CONFIG);
    assert_text(error.text, "1199");
}

/* An endpoint can bind to any address of IPv4, to any of both families at once, or to one of IPv6. */
static void every_kind_of_address_can_be_bound(void **state)
{
    (void)state;
    static const char *const binds[][2] = {
        {"0.0.0.0:0", "127.0.0.3"}, {"[::]:0", "127.0.0.3"}, {"[::1]:0", "[::1]"}};
    for (size_t i = 0; i < sizeof binds / sizeof binds[0]; i++) {
        struct quic_options options;
        struct net *probe = NULL;
        struct error error;
        char address[64];
        uint32_t peer;
        quic_node_options(pki, "b", &options);
        options.bind_address = binds[i][0];
        if (net_quic_new(loop, &options, &probe, &error) != STATUS_OK) {
            print_message("no %s here: %s\n", binds[i][0], error.text);
            continue;
        }
        net_free(probe);
        quic_node_free(a);
        quic_node_free(b);
        b = quic_node_new(loop, pki, "b", &options);
        quic_node_options(pki, "a", &options);
        options.bind_address = i == 2 ? "[::1]:0" : "127.0.0.1:0";
        a = quic_node_new(loop, pki, "a", &options);
        snprintf(address, sizeof address, "%s:%u", binds[i][1], b->port);
        assert_int_equal(net_add_peer(a->net, "b", address, &peer, &error), STATUS_OK);
        snprintf(address, sizeof address, "%s:%u", i == 2 ? "[::1]" : "127.0.0.1", a->port);
        assert_int_equal(net_add_peer(b->net, "a", address, &peer, &error), STATUS_OK);
        quic_node_connect(a, 0);
        assert_true(quic_run_until(loop, both_up, NULL, 5000));
        assert_connection_works();
        disconnect_and_wait();
        quic_node_connect(b, 0);
        assert_true(quic_run_until(loop, both_up, NULL, 5000));
    }
}

static void datagrams_grow_to_what_the_path_carries(void **state)
{
    (void)state;
    static const uint32_t limits[] = {0, 1200, 1452, 8952, 20000};
    static const uint32_t found[] = {65000, 1200, 1452, 8952, 20000};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct quic_options options;
        quic_node_free(a);
        quic_node_free(b);
        quic_node_options(pki, "a", &options);
        options.datagram_max_bytes = limits[i];
        a = quic_node_new(loop, pki, "a", &options);
        b = quic_node_new(loop, pki, "b", NULL);
        quic_nodes_connect(a, b);
        struct quic_source *source = quic_source_new(a, 0, i, 4u << 20, 1u << 20, true);
        assert_true(quic_run_until(loop, source_delivered, source, 10000));
        assert_true(quic_sink_complete(b->sinks));
        quic_source_free(source);
        struct net_peer_statistics statistics;
        net_peer_statistics(a->net, 0, &statistics);
        assert_int_equal(statistics.datagram_bytes, found[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(connects, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(connects_when_dialled_by_the_second, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_peer_nobody_listens_for_is_unreachable, setup_nodes,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(a_peer_that_does_not_answer_times_out, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_killed_peer_is_suspected_then_lost, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_restarted_peer_is_noticed_at_once, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_restarted_peer_that_dials_replaces_the_old_connection, setup_nodes,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(wrong_peers_are_refused_by_name, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_peer_with_a_name_waits_for_its_address, setup_nodes,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(a_port_in_use_is_an_error, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(every_kind_of_address_can_be_bound, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(datagrams_grow_to_what_the_path_carries, setup_nodes, teardown_nodes),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic", tests, setup_files, teardown_files);
}
