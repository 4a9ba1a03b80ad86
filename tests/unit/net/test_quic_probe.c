#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/quic_internal.h"
#include "tests/unit/net/quic_nodes.h"

/* WAITS = True */

/* Probes: whether a process listens at a peer's address. */

#define WAIT_MS 300u

static void test_a_node_answers(void **state)
{
    struct net_statistics statistics;
    (void)state;
    uint32_t peer = quic_node_add_peer(a, "b", b->port);
    assert_true(net_probe(a->net, peer));
    assert_int_equal(a->answer_calls[peer], 0); /* not from within the call */
    assert_true(quic_run_until_count(loop, &a->answer_calls[peer], 1, 5000));
    quic_run_for(loop, WAIT_MS);
    assert_int_equal(a->answer_calls[peer], 1);
    assert_int_equal(a->up_calls[peer] + a->failed_calls[peer], 0);
    net_statistics(b->net, &statistics); /* b need not know a, and counts it as no fault */
    assert_int_equal(statistics.received_datagrams, 1);
    assert_int_equal(statistics.dropped_datagrams, 0);
}

static void test_nobody_answers(void **state)
{
    struct error error, cause = {.status = STATUS_PERMISSION};
    uint32_t gone = quic_node_add_peer(a, "b", 9), named;
    (void)state;
    assert_true(net_probe(a->net, gone));
    assert_int_equal(a->refuse_calls[gone], 0); /* not from within the call */
    assert_int_equal(net_add_peer(a->net, "c", "no-such-host.invalid:4242", &named, &error), STATUS_OK);
    assert_false(net_probe(a->net, named)); /* it has no address */
    assert_true(quic_run_until_count(loop, &a->refuse_calls[gone], 1, 5000));
    quic_run_for(loop, WAIT_MS);
    net_remove_peer(a->net, gone, &cause);
    assert_false(net_probe(a->net, gone));
    quic_run_for(loop, WAIT_MS);
    assert_int_equal(a->answer_calls[gone] + a->answer_calls[named], 0);
    assert_int_equal(a->failed_calls[gone] + a->suspect_calls[gone], 0);
    assert_int_equal(a->refuse_calls[gone], 1);
    assert_int_equal(a->refuse_calls[named], 0);
}

/* Version Negotiation packets from the peer's address that answer nothing of ours. */
static void test_forged_answers(void **state)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in to = own;
    socklen_t size = sizeof own;
    uint8_t probe[2048], answer[27] = {0x80};
    (void)state;
    int liar = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(liar, (const struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(getsockname(liar, (struct sockaddr *)&own, &size), 0);
    to.sin_port = htons(a->port);
    uint32_t peer = quic_node_add_peer(a, "b", ntohs(own.sin_port));
    assert_true(net_probe(a->net, peer));
    quic_run_for(loop, 10);
    assert_int_equal(recv(liar, probe, sizeof probe, 0), NGTCP2_MAX_UDP_PAYLOAD_SIZE);
    memcpy(answer + 5, probe + 5, 18); /* both connection IDs */
    answer[26] = 1;
    for (size_t i = 5; i < 23; i++) { /* one bit is wrong: a length, or an ID */
        answer[i] ^= 1;
        assert_int_equal(sendto(liar, answer, sizeof answer, 0, (const struct sockaddr *)&to, sizeof to),
                         sizeof answer);
        answer[i] ^= 1;
    }
    quic_run_for(loop, WAIT_MS);
    assert_int_equal(a->answer_calls[peer], 0);
    assert_int_equal(sendto(liar, answer, sizeof answer, 0, (const struct sockaddr *)&to, sizeof to),
                     sizeof answer);
    assert_true(quic_run_until_count(loop, &a->answer_calls[peer], 1, 5000));
    close(liar);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_node_answers, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(test_nobody_answers, setup_nodes, teardown_nodes),
        cmocka_unit_test_setup_teardown(test_forged_answers, setup_nodes, teardown_nodes),
    };
    return cmocka_run_group_tests(tests, setup_files, teardown_files);
}
