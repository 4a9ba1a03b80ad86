#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/net/quic.h"
#include "daemon/net/quic_tls.h"
#include "daemon/net/tls_internal.h"

/* A TCP connection: connecting, the handshake, reading. */

void tls_connection_fail(struct tls_connection *connection, const char *format, ...)
{
    if (connection->state == TLS_STATE_FAILED) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    (void)error_set_list(&connection->cause, STATUS_NODE_LOST, format, arguments);
    va_end(arguments);
    connection->state = TLS_STATE_FAILED;
    connection->frame_sender = NULL;
    loop_watch_set(connection->watch, 0);
    tls_work_connection(connection);
}

void tls_connection_in_time(struct tls_connection *connection)
{
    if (connection->deadline_ns != TIME_NEVER) {
        connection->deadline_ns = TIME_NEVER;
        connection->endpoint->watched--;
    }
}

void tls_connection_free(struct tls_connection *connection)
{
    struct tls_endpoint *endpoint = connection->endpoint;
    DL_DELETE(endpoint->connections, connection);
    work_list_remove(&endpoint->connection_work, &connection->work);
    work_list_remove(&endpoint->lively, &connection->liveliness);
    tls_connection_in_time(connection);
    endpoint->handshakes -= !connection->dialled && connection->peer == NULL;
    loop_watch_free(connection->watch);
    if (connection->tls != NULL) {
        ERR_clear_error();
        SSL_free(connection->tls);
    }
    (void)close(connection->fd);
    tls_reader_clear(&connection->reader);
    free(connection->blob);
    free(connection);
}

void tls_connection_watch(struct tls_connection *connection)
{
    if (connection->state != TLS_STATE_FAILED) {
        bool writes = connection->blocked || connection->state == TLS_STATE_CONNECTING;
        loop_watch_set(connection->watch, LOOP_READ | (writes ? LOOP_WRITE : 0u));
    }
}

/* Why OpenSSL failed, in words. errno was 0 before. */
static const char *tls_text(struct tls_connection *connection, char out[160])
{
    int system_error = errno;
    connection->timed_out = system_error == ETIMEDOUT;
    unsigned long code = ERR_peek_last_error();
    const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;
    if (connection->refusal.status != STATUS_OK) {
        (void)snprintf(out, 160, "%.150s", connection->refusal.text);
    } else if (reason != NULL) {
        (void)snprintf(out, 160, "%.150s", reason);
    } else if (system_error != 0) {
        (void)snprintf(out, 160, "TCP: %.150s", strerror(system_error));
    } else {
        (void)snprintf(out, 160, "the connection ended");
    }
    ERR_clear_error();
    return out;
}

/* --- The handshake --- */

static bool is_peer(void *context, const char *name)
{
    const struct tls_endpoint *endpoint = context;
    const struct tls_peer *peer;
    for (uint32_t at = 0; (peer = sparse_next(&endpoint->peers, &at)) != NULL;) {
        if (peer->is_up && strcmp(peer->name, name) == 0) {
            return true;
        }
    }
    return false;
}

static struct tls_peer *peer_named(const struct tls_endpoint *endpoint, const char *name)
{
    struct tls_peer *peer;
    for (uint32_t at = 0; (peer = sparse_next(&endpoint->peers, &at)) != NULL;) {
        if (strcmp(peer->name, name) == 0) {
            return peer;
        }
    }
    return NULL;
}

/* Which node is at the other end. Returns false, with the failure noted, if it may have no connection now. */
static bool identify(struct tls_connection *connection)
{
    struct tls_endpoint *endpoint = connection->endpoint;
    struct quic_tls *certificates = net_quic_certificates(endpoint->base.net);
    char name[NODE_NAME_MAX_BYTES + 1];
    struct error error;
    if (quic_tls_peer_name(connection->tls, endpoint->node_name, is_peer, endpoint, name, &error) !=
            STATUS_OK ||
        quic_tls_check_again(certificates, connection->tls, connection->dialled, &error) != STATUS_OK) {
        tls_connection_fail(connection, "%s", error.text);
        return false;
    }
    struct tls_peer *peer = peer_named(endpoint, name);
    if (connection->dialled ? peer != connection->peer : peer == NULL || peer->leads) {
        tls_connection_fail(connection, "node %s does not belong at the other end", name);
        return false;
    }
    if (!connection->dialled && endpoint->now_ns < peer->held_ns) {
        tls_connection_fail(connection, "the link to node %s was too slow a moment ago", name);
        return false;
    }
    if (!connection->dialled) {
        if (peer->attempt != NULL) {
            tls_connection_fail(peer->attempt, "another connection takes its place");
        }
        peer->attempt = connection;
        connection->peer = peer;
        endpoint->handshakes--;
    }
    connection->reader.peer = peer;
    connection->reader.connection = connection;
    return true;
}

/*
 * Records are read and written in batches, except by the kernel's own TLS. A filter does that, not TLS's own
 * read-ahead: OpenSSL loses bytes that were read ahead when the peer changes its key (seen with 3.5).
 */
static bool use_batches(struct tls_connection *connection)
{
    SSL *tls = connection->tls;
    BIO *socket = SSL_get_wbio(tls);
    if (BIO_get_ktls_send(socket) || BIO_get_ktls_recv(socket)) {
        return true;
    }
    BIO *buffer = BIO_new(BIO_f_buffer());
    if (buffer == NULL || BIO_set_write_buffer_size(buffer, (long)TLS_BATCH_BYTES) != 1 ||
        BIO_set_read_buffer_size(buffer, (long)TLS_READ_AHEAD_BYTES) != 1) {
        BIO_free(buffer);
        return false;
    }
    (void)BIO_up_ref(socket);
    (void)BIO_push(buffer, socket);
    (void)BIO_up_ref(buffer); /* for reading, and for writing */
    SSL_set0_rbio(tls, buffer);
    SSL_set0_wbio(tls, buffer);
    connection->batches = true;
    return true;
}

static void opened(struct tls_connection *connection)
{
    struct tls_peer *peer;
    if (!identify(connection)) {
        return;
    }
    if (!use_batches(connection)) {
        tls_connection_fail(connection, "no memory");
        return;
    }
    peer = connection->peer;
    connection->state = TLS_STATE_OPEN;
    connection->more = true; /* the greeting may have come with the handshake's end */
    tls_work_connection(connection);
    if (connection->dialled && tls_peer_flows(peer) && peer->connection == NULL) {
        tls_peer_switch(peer, connection, peer->epoch + 1);
    } else if (connection->dialled) {
        tls_connection_fail(connection, "it is not needed any more");
    }
}

static void shake_hands(struct tls_connection *connection)
{
    char text[160];
    ERR_clear_error();
    errno = 0;
    int result = SSL_do_handshake(connection->tls);
    if (result == 1) {
        connection->blocked = false;
        opened(connection);
        return;
    }
    int why = SSL_get_error(connection->tls, result);
    connection->blocked = why == SSL_ERROR_WANT_WRITE;
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
        struct tls_endpoint *endpoint = connection->endpoint;
        bool refused = connection->refusal.status != STATUS_OK;
        tls_connection_fail(connection, "the handshake failed: %s", tls_text(connection, text));
        if (refused && log_limit_pass(&endpoint->refusal_limit, endpoint->now_ns, NULL)) {
            log_warning("network: refused a bulk link: %s", connection->cause.text);
        }
    }
}

/* --- Reading --- */

void tls_connection_carried(struct tls_connection *connection)
{
    connection->carried_ns = connection->endpoint->now_ns;
    (void)work_list_add(&connection->endpoint->lively, &connection->liveliness, connection);
}

bool tls_connection_read(struct tls_connection *connection)
{
    struct tls_endpoint *endpoint = connection->endpoint;
    char text[160];
    unsigned i;
    connection->more = false;
    for (i = 0; connection->state == TLS_STATE_OPEN; i++) {
        size_t size = 0;
        if (i == TLS_READ_RECORDS) {
            connection->more = true;
            tls_work_connection(connection);
            break;
        }
        ERR_clear_error();
        errno = 0;
        int result = SSL_read_ex(connection->tls, endpoint->read_buffer, TLS_RECORD_BYTES, &size);
        if (result != 1) {
            int why = SSL_get_error(connection->tls, 0);
            if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
                tls_connection_fail(connection, "%s", tls_text(connection, text));
            }
            break;
        }
        tls_connection_carried(connection);
        connection->peer->received_bytes += size;
        if (!tls_reader_take(&connection->reader, endpoint->read_buffer, size)) {
            tls_connection_fail(connection, "the node broke the rules");
        }
        if (connection->batches && BIO_pending(SSL_get_rbio(connection->tls)) == 0) {
            i++;
            break; /* the last read took all that there was */
        }
    }
    return i > 0;
}

static void ready(void *context, unsigned events, uint64_t now_ns)
{
    struct tls_connection *connection = context;
    struct tls_endpoint *endpoint = connection->endpoint;
    endpoint->now_ns = now_ns;
    endpoint->in_event = true;
    if (connection->state == TLS_STATE_CONNECTING && (events & LOOP_WRITE) != 0) {
        int error = tls_socket_error(connection->fd);
        if (error != 0) {
            tls_connection_fail(connection, "TCP: %s", strerror(error));
        } else {
            connection->state = TLS_STATE_HANDSHAKE;
        }
    }
    if (connection->state == TLS_STATE_HANDSHAKE) {
        shake_hands(connection);
    }
    if (connection->state == TLS_STATE_OPEN && (events & LOOP_READ) != 0) {
        (void)tls_connection_read(connection);
    }
    if (connection->state == TLS_STATE_OPEN && (events & LOOP_WRITE) != 0 && connection->blocked) {
        connection->blocked = false;
        tls_work_flush(connection->peer);
    }
    tls_connection_watch(connection);
    endpoint->in_event = false;
    tls_settle(endpoint, now_ns);
}

/* --- Making one --- */

static SSL *tls_new(struct tls_connection *connection)
{
    struct quic_tls *certificates = net_quic_certificates(connection->endpoint->base.net);
    SSL *tls = quic_tls_stream(certificates, connection->dialled ? connection->peer->name : NULL,
                               &connection->refusal);
    if (tls == NULL || SSL_set_fd(tls, connection->fd) != 1) {
        SSL_free(tls);
        return NULL;
    }
    SSL_set_options(tls, SSL_OP_ENABLE_KTLS | SSL_OP_NO_RENEGOTIATION);
    SSL_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                          SSL_MODE_RELEASE_BUFFERS);
    return tls;
}

struct tls_connection *tls_connection_new(struct tls_endpoint *endpoint, int fd, struct tls_peer *dialled)
{
    struct error error;
    struct tls_connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL) {
        (void)close(fd);
        return NULL;
    }
    connection->endpoint = endpoint;
    connection->fd = fd;
    connection->dialled = dialled != NULL;
    connection->peer = dialled;
    connection->state = dialled != NULL ? TLS_STATE_CONNECTING : TLS_STATE_HANDSHAKE;
    connection->deadline_ns = time_after(endpoint->now_ns, TLS_HANDSHAKE_NS);
    DL_APPEND(endpoint->connections, connection);
    endpoint->watched++;
    endpoint->handshakes += dialled == NULL;
    connection->tls = tls_new(connection);
    if (connection->tls == NULL || loop_watch_new(endpoint->loop, fd, LOOP_READ | LOOP_WRITE, ready,
                                                  connection, &connection->watch, &error) != STATUS_OK) {
        connection->state = TLS_STATE_FAILED;
        tls_connection_free(connection);
        return NULL;
    }
    return connection;
}
