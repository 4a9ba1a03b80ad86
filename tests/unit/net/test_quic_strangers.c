#include "tests/unit/net/quic_nodes.h"

#include <arpa/inet.h>
#include <sys/time.h>
#include <unistd.h>

#include "daemon/net/quic_internal.h"

/* What somebody without a certificate can do to connections and to handshakes of others. */

static struct quic_node *b2; /* another endpoint of b: its next rail */

static int setup_rails(void **state)
{
    if (setup_nodes(state) != 0) {
        return -1;
    }
    b2 = quic_node_new(loop, pki, "b", NULL);
    return 0;
}

static int teardown_rails(void **state)
{
    quic_node_free(b2);
    b2 = NULL;
    return teardown_nodes(state);
}

static struct sockaddr_in loopback_address(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
}

static int stranger_open(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct timeval wait = {.tv_usec = 10000};
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait), 0);
    return fd;
}

/* Sends a packet that looks like one of the connection ID's to the port, and returns the answer's size. */
static size_t ask_about_connection(int fd, uint16_t port, const ngtcp2_cid *cid, uint8_t *answer, size_t size)
{
    uint8_t packet[64] = {0x40}; /* a short header: RFC 9000, 17.3.1 */
    struct sockaddr_in to = loopback_address(port);
    ssize_t received = -1;
    memcpy(packet + 1, cid->data, cid->datalen);
    assert_int_equal(sendto(fd, packet, sizeof packet, 0, (struct sockaddr *)&to, sizeof to), sizeof packet);
    for (unsigned i = 0; i < 100 && received < 0; i++) {
        quic_run_for(loop, 10);
        received = recv(fd, answer, size, 0);
    }
    assert_true(received >= NGTCP2_STATELESS_RESET_TOKENLEN);
    return (size_t)received;
}

/* RFC 9000, 21.11: otherwise whoever sees a packet may end its connection with what another port answers. */
static void one_rail_tells_nothing_of_another_rails_tokens(void **state)
{
    (void)state;
    uint8_t answer[256];
    quic_nodes_connect(a, b);
    struct quic_endpoint *endpoint = quic_endpoint_of(a->net);
    const ngtcp2_cid *seen = ngtcp2_conn_get_dcid(endpoint->peers[0]->up->transport);
    int fd = stranger_open();
    size_t size = ask_about_connection(fd, b2->port, seen, answer, sizeof answer);
    close(fd);
    assert_null(quic_connection_find(endpoint, true, answer + size - NGTCP2_STATELESS_RESET_TOKENLEN,
                                     NGTCP2_STATELESS_RESET_TOKENLEN));
    /* The same bytes as if b's host had sent them. */
    struct sockaddr_in to = loopback_address(a->port);
    assert_int_equal(
        sendto(quic_endpoint_of(b->net)->socket.fd, answer, size, 0, (struct sockaddr *)&to, sizeof to),
        size);
    quic_run_for(loop, 100);
    assert_true(both_up(NULL));
    assert_int_equal(a->down_calls[0], 0);
}

static void make_reset_token(const struct quic_node *node, const ngtcp2_cid *cid,
                             uint8_t token[NGTCP2_STATELESS_RESET_TOKENLEN])
{
    const struct quic_endpoint *endpoint = quic_endpoint_of(node->net);
    assert_int_equal(ngtcp2_crypto_generate_stateless_reset_token(token, endpoint->reset_secret,
                                                                  sizeof endpoint->reset_secret, cid),
                     0);
}

static void every_endpoint_has_secrets_of_its_own(void **state)
{
    (void)state;
    ngtcp2_cid cid;
    uint8_t of_first[NGTCP2_STATELESS_RESET_TOKENLEN];
    uint8_t of_second[NGTCP2_STATELESS_RESET_TOKENLEN];
    const struct quic_endpoint *first = quic_endpoint_of(b->net);
    const struct quic_endpoint *second = quic_endpoint_of(b2->net);
    ngtcp2_cid_init(&cid, (const uint8_t *)"01234567", QUIC_CID_BYTES);
    make_reset_token(b, &cid, of_first);
    make_reset_token(b2, &cid, of_second);
    assert_memory_not_equal(of_first, of_second, sizeof of_first);
    assert_memory_not_equal(first->retry_secret, second->retry_secret, QUIC_SECRET_BYTES);
    assert_memory_not_equal(first->reset_secret, first->retry_secret, QUIC_SECRET_BYTES);
    /* Two nodes may have one key, too. */
    uint8_t of_name[QUIC_SECRET_BYTES];
    struct error error;
    assert_int_equal(quic_tls_reset_secret(first->tls, "b", &first->socket.local, of_name, &error),
                     STATUS_OK);
    assert_memory_equal(of_name, first->reset_secret, QUIC_SECRET_BYTES);
    assert_int_equal(quic_tls_reset_secret(first->tls, "c", &first->socket.local, of_name, &error),
                     STATUS_OK);
    assert_memory_not_equal(of_name, first->reset_secret, QUIC_SECRET_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_rail_tells_nothing_of_another_rails_tokens, setup_rails,
                                        teardown_rails),
        cmocka_unit_test_setup_teardown(every_endpoint_has_secrets_of_its_own, setup_rails, teardown_rails),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_strangers", tests, setup_files, teardown_files);
}
