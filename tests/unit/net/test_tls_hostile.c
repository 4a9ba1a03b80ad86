#include "tests/unit/net/tls_nodes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include "daemon/net/quic_greeting.h"
#include "daemon/net/quic_tls.h"
#include "proto/little_endian.h"

/*
 * Strangers and hostile nodes at the TCP port of bulk links. Strangers end nothing. A node that breaks the
 * rules after it has shown its certificate loses all its connections, as with QUIC.
 */

/* --- A client of its own --- */

static int tcp_connect(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(b->port)};
    (void)inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_usec = 1000}, sizeof(struct timeval)),
        0);
    return fd;
}

/* Whether b closes the connection within that time. */
static bool closes(int fd, unsigned within_ms)
{
    for (unsigned i = 0; i < within_ms; i++) {
        char byte;
        quic_run_for(loop, 1);
        ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) {
            return true;
        }
    }
    return false;
}

struct client {
    int fd;
    struct quic_tls *certificates;
    struct error refusal;
    SSL *tls;
};

/* Connects with the certificate of that stem, for a node of that name. Returns whether b accepted it. */
static bool client_open(struct client *client, const char *stem, const char *name, bool foreign)
{
    struct quic_options options;
    struct error error;
    char byte;
    quic_node_options(pki, stem, &options);
    options.node_name = name;
    options.authority_path = foreign ? test_pki_path(pki, "other-ca.pem") : options.authority_path;
    assert_int_equal(quic_tls_new(&options, &client->certificates, &error), STATUS_OK);
    client->fd = tcp_connect();
    client->tls = quic_tls_stream(client->certificates, "b", &client->refusal);
    SSL_set_verify(client->tls, SSL_VERIFY_NONE, NULL);
    assert_int_equal(SSL_set_fd(client->tls, client->fd), 1);
    for (unsigned i = 0; i < 2000 && !SSL_is_init_finished(client->tls); i++) {
        if (SSL_do_handshake(client->tls) != 1 && SSL_get_error(client->tls, -1) != SSL_ERROR_WANT_READ) {
            return false;
        }
        quic_run_for(loop, 1);
    }
    for (unsigned i = 0; i < 50; i++) { /* the server's refusal comes after the handshake's end */
        quic_run_for(loop, 1);
        int got = SSL_read(client->tls, &byte, 1);
        if (got <= 0 && SSL_get_error(client->tls, got) != SSL_ERROR_WANT_READ) {
            return false;
        }
    }
    return true;
}

static void client_close(struct client *client)
{
    SSL_free(client->tls);
    quic_tls_free(client->certificates);
    (void)close(client->fd);
}

static void works(void)
{
    struct quic_source *source = quic_source_new(a, 0, 77, 3u << 20, 1u << 20, true);
    unsigned closed = sinks_closed(b);
    assert_true(quic_run_until(loop, source_done, source, 5000));
    assert_closed(b, closed + 1);
    assert_true(quic_sink_complete(b->sinks));
    assert_int_equal(source->failed, 0);
    quic_source_free(source);
    assert_int_equal(a->down_calls[0] + b->down_calls[0], 0);
}

/* --- Strangers --- */

/* The time of connections that have not shown a certificate is over. */
static void expire_strangers(void)
{
    for (struct tls_connection *each = tls_of(b)->connections; each != NULL; each = each->next) {
        each->deadline_ns = each->peer == NULL ? loop_now_ns() : each->deadline_ns;
    }
}

static void garbage_is_closed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        uint8_t bytes[300];
        for (size_t at = 0; at < sizeof bytes; at++) {
            bytes[at] = (uint8_t)(i * 37 + at * (i + 3));
        }
        int fd = tcp_connect();
        assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
        quic_run_for(loop, 5);
        expire_strangers(); /* some garbage looks like the first part of something long */
        assert_true(closes(fd, 2000));
        (void)close(fd);
    }
    works();
    assert_int_equal(peer_of(a)->lost_count, 0);
}

static void half_open_connections_have_a_limit_and_an_end(void **state)
{
    (void)state;
    enum { COUNT = TLS_HANDSHAKES_MAX + 8 };
    int fds[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        fds[i] = tcp_connect();
        quic_run_for(loop, 1);
    }
    assert_int_equal(tls_of(b)->handshakes, TLS_HANDSHAKES_MAX);
    assert_true(closes(fds[COUNT - 1], 1000));
    works(); /* a link that is there does not suffer */
    expire_strangers();
    assert_true(closes(fds[0], 2000));
    assert_true(closes(fds[TLS_HANDSHAKES_MAX - 1], 2000));
    assert_int_equal(tls_of(b)->handshakes, 0);
    for (unsigned i = 0; i < COUNT; i++) {
        (void)close(fds[i]);
    }
}

static void certificates_of_others_are_refused(void **state)
{
    static const struct {
        const char *stem, *name;
        bool foreign;
    } cases[] = {{"c", "c", false},       /* a node that b does not know */
                 {"b2", "b", false},      /* b itself */
                 {"foreign", "a", true}}; /* another authority */
    (void)state;
    test_pki_issue(pki, "b2", &(struct test_certificate){.name = "b"});
    test_pki_issue(pki, "foreign", &(struct test_certificate){.name = "a", .other_authority = true});
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct client client = {0};
        assert_false(client_open(&client, cases[i].stem, cases[i].name, cases[i].foreign));
        client_close(&client);
        assert_int_equal(tls_of(b)->handshakes, 0);
    }
    works();
}

/* The node has a new certificate, and somebody has its old one, which is revoked. */
static void a_revoked_certificate_is_refused(void **state)
{
    struct quic_options options;
    struct quic_tls *tls = NULL;
    struct error error;
    struct client client = {0};
    (void)state;
    test_pki_issue(pki, "stolen", &(struct test_certificate){.name = "a"});
    test_pki_revoke(pki, "stolen");
    quic_node_options(pki, "b", &options);
    options.revocation_path = test_pki_path(pki, "crl.pem");
    assert_int_equal(net_quic_load(&options, &tls, &error), STATUS_OK);
    net_quic_use(b->net, tls);
    net_quic_unload(tls);
    quic_run_for(loop, 50);
    assert_false(client_open(&client, "stolen", "a", false));
    client_close(&client);
    works();
}

/* --- A node that breaks the rules --- */

static void assert_offence(const char *text)
{
    assert_true(quic_run_until_count(loop, &b->down_calls[0], 1, 5000));
    assert_int_equal(b->down_cause.status, STATUS_PROTOCOL);
    assert_text(b->down_cause.text, text);
    assert_true(quic_run_until_count(loop, &a->down_calls[0], 1, 5000));
}

/* A second client with a's own certificate. */
static void send_first(const uint8_t *bytes, int size)
{
    struct client client = {0};
    assert_true(client_open(&client, "a", "a", false));
    assert_int_equal(SSL_write(client.tls, bytes, size), size);
    for (unsigned i = 0; i < 50; i++) {
        quic_run_for(loop, 1);
    }
    client_close(&client);
}

static void frames_before_a_greeting_are_an_offence(void **state)
{
    uint8_t bytes[TLS_FRAME_HEADER_BYTES];
    struct tls_frame frame = {.type = TLS_FRAME_RECEIPT, .number = 0, .offset = 1};
    (void)state;
    tls_frame_encode(&frame, bytes);
    send_first(bytes, sizeof bytes);
    assert_offence("before a greeting");
}

static void a_frame_that_is_too_large_is_an_offence(void **state)
{
    uint8_t bytes[TLS_FRAME_HEADER_BYTES];
    struct tls_frame frame = {.type = TLS_FRAME_GREETING, .number = 2, .body_bytes = 1u << 30};
    (void)state;
    tls_frame_encode(&frame, bytes);
    send_first(bytes, sizeof bytes);
    assert_offence("too large");
}

static void a_greeting_that_lies_is_an_offence(void **state)
{
    uint8_t bytes[TLS_FRAME_HEADER_BYTES + 5] = {0};
    struct tls_frame frame = {.type = TLS_FRAME_GREETING, .number = peer_of(b)->epoch + 1, .body_bytes = 5};
    (void)state;
    tls_frame_encode(&frame, bytes);
    send_first(bytes, sizeof bytes);
    assert_true(quic_run_until_count(loop, &b->down_calls[0], 1, 5000));
    assert_int_equal(b->down_cause.status, STATUS_PROTOCOL);
}

/* A connection of a session that is over may come late. It is closed, and is no offence. */
static void a_greeting_of_another_session_is_none(void **state)
{
    struct quic_greeting greeting = {.own_id = 5, .peer_id = 7};
    uint8_t bytes[TLS_FRAME_HEADER_BYTES + 64];
    size_t size = quic_greeting_size(&greeting);
    struct tls_frame frame = {
        .type = TLS_FRAME_GREETING, .number = peer_of(b)->epoch + 1, .body_bytes = (uint32_t)size};
    (void)state;
    assert_true(size <= 64);
    tls_frame_encode(&frame, bytes);
    quic_greeting_encode(&greeting, bytes + TLS_FRAME_HEADER_BYTES);
    send_first(bytes, (int)(TLS_FRAME_HEADER_BYTES + size));
    works();
    assert_int_equal(peer_of(b)->lost_count, 0);
}

/* An epoch far ahead would let the next one overflow. */
static void an_epoch_far_ahead_is_an_offence(void **state)
{
    uint8_t bytes[TLS_FRAME_HEADER_BYTES + 1] = {0};
    struct tls_frame frame = {.type = TLS_FRAME_GREETING, .number = UINT64_MAX / 8, .body_bytes = 1};
    (void)state;
    tls_frame_encode(&frame, bytes);
    send_first(bytes, sizeof bytes);
    assert_offence("out of order");
}

/* Sends frames on the link itself, between those of a. */
static void inject(const struct tls_frame *frame, size_t body_bytes, const char *text)
{
    uint8_t *bytes = calloc(1, TLS_FRAME_HEADER_BYTES + body_bytes);
    assert_non_null(bytes);
    assert_int_equal(setup_linked(NULL), 0);
    tls_frame_encode(frame, bytes);
    tls_connection_greet(peer_of(a)->connection, bytes, TLS_FRAME_HEADER_BYTES + body_bytes);
    assert_offence(text);
    free_nodes();
    loop_free(loop);
}

static void frames_that_no_correct_node_sends_are_offences(void **state)
{
    enum { BODY = 100 };
    struct tls_frame data = {.type = TLS_FRAME_DATA, .kind = NET_STREAM_DATA, .body_bytes = BODY};
    struct tls_frame frame;
    (void)state;
    frame = data;
    frame.offset = 7;
    inject(&frame, BODY, "from the wrong place");
    frame = data;
    frame.number = UINT64_MAX / 8;
    inject(&frame, BODY, "out of order");
    frame = data;
    frame.body_bytes = NET_STREAM_FIRST_WINDOW_BYTES + 1;
    inject(&frame, frame.body_bytes, "more of a stream than it may");
    frame = data;
    frame.kind = NET_STREAM_CONTROL;
    inject(&frame, BODY, "wrong kind");
    frame = data;
    frame.body_bytes = 0;
    inject(&frame, 0, "without data");
    frame = (struct tls_frame){.type = TLS_FRAME_RECEIPT, .number = 0, .offset = 1};
    inject(&frame, 0, "never opened");
    frame = (struct tls_frame){.type = (enum tls_frame_type)9};
    inject(&frame, 0, "no known type");
    frame = (struct tls_frame){.type = TLS_FRAME_CREDIT, .end = true};
    inject(&frame, 0, "unknown flags");
}

/* A receipt for bytes that were never sent must not free their memory. */
static void a_receipt_that_lies_is_an_offence(void **state)
{
    (void)state;
    a->hold = true;
    struct quic_source *source = quic_source_new(b, 0, 1, 1u << 20, 1u << 18, true);
    assert_true(quic_run_until_count(loop, &a->sink_count, 1, 5000));
    struct tls_frame frame = {.type = TLS_FRAME_RECEIPT, .number = 0, .offset = 1u << 19};
    uint8_t *bytes = malloc(TLS_FRAME_HEADER_BYTES);
    assert_non_null(bytes);
    tls_frame_encode(&frame, bytes);
    tls_connection_greet(peer_of(a)->connection, bytes, TLS_FRAME_HEADER_BYTES);
    assert_offence("never sent");
    assert_true(source->failed > 0);
    quic_source_free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(garbage_is_closed, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(half_open_connections_have_a_limit_and_an_end, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(certificates_of_others_are_refused, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_revoked_certificate_is_refused, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(frames_before_a_greeting_are_an_offence, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(a_frame_that_is_too_large_is_an_offence, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(a_greeting_that_lies_is_an_offence, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_greeting_of_another_session_is_none, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(an_epoch_far_ahead_is_an_offence, setup_linked, teardown_nodes),
        cmocka_unit_test(frames_that_no_correct_node_sends_are_offences),
        cmocka_unit_test_setup_teardown(a_receipt_that_lies_is_an_offence, setup_linked, teardown_nodes),
    };
    return cmocka_run_group_tests(tests, setup_files, teardown_files);
}
