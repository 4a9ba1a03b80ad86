#include <assert.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/net/quic_internal.h"

/* --- Reasons --- */

static void quic_connection_note(struct quic_connection *connection, const struct error *cause)
{
    connection->cause = *cause;
    connection->failed = true;
    quic_work_connection(connection);
}

static void quic_close_text(struct quic_connection *connection, const char *text)
{
    snprintf(connection->close_text, sizeof connection->close_text, "%.*s", (int)QUIC_CLOSE_TEXT_MAX_BYTES,
             text);
}

/* Describes how a node broke a rule of QUIC, by the code for transport errors (RFC 9000, 20.1). Returns null
 * if the code is no violation. */
static const char *quic_violation_text(uint64_t code)
{
    switch (code) {
    case NGTCP2_FLOW_CONTROL_ERROR:
        return "more bytes than it was allowed";
    case NGTCP2_STREAM_LIMIT_ERROR:
        return "more streams than it was allowed";
    case NGTCP2_STREAM_STATE_ERROR:
        return "a frame for a stream that cannot have it";
    case NGTCP2_FINAL_SIZE_ERROR:
        return "a stream with two different ends";
    case NGTCP2_FRAME_ENCODING_ERROR:
        return "a malformed frame";
    case NGTCP2_TRANSPORT_PARAMETER_ERROR:
        return "wrong transport parameters";
    case NGTCP2_CONNECTION_ID_LIMIT_ERROR:
        return "more connection IDs than it was allowed";
    case NGTCP2_PROTOCOL_VIOLATION:
        return "what has no place there, such as an acknowledgement of a packet that was never sent";
    case NGTCP2_INVALID_TOKEN:
        return "an invalid token";
    case NGTCP2_CRYPTO_BUFFER_EXCEEDED:
        return "more handshake data than there is room for";
    case NGTCP2_KEY_UPDATE_ERROR:
        return "a wrong update of keys";
    default:
        return NULL;
    }
}

/* Sets the cause for a connection that ngtcp2 has failed: the rule that the peer broke, if the error code
 * tells, and ngtcp2's name of the failure. */
static void quic_connection_broken(struct quic_connection *connection, const char *who, int failure,
                                   struct error *cause)
{
    const char *sent = quic_violation_text(connection->close.error_code);
    if (sent == NULL) {
        error_set(cause, STATUS_PROTOCOL, "%s: the connection cannot go on (%s)", who,
                  ngtcp2_strerror(failure));
        return;
    }
    error_set(cause, STATUS_PROTOCOL, "%s broke a rule of QUIC: it sent %s (%s)", who, sent,
              ngtcp2_strerror(failure));
}

/* ngtcp2 got no memory: because the peer takes more than it may, or because there is none. */
static void quic_connection_short(const struct quic_connection *connection, const char *who,
                                  struct error *cause)
{
    if (connection->memory->refused) {
        error_set(cause, STATUS_PROTOCOL,
                  "%s holds more than %zu MiB in its connection: it leaves holes in its streams", who,
                  QUIC_MEMORY_MAX_BYTES >> 20);
    } else {
        error_set(cause, STATUS_NO_MEMORY, "%s: no memory for its connection", who);
    }
}

/* Copies the reason, with unprintable characters replaced: it came from outside. */
static void quic_reason_text(const ngtcp2_ccerr *close, char out[QUIC_CLOSE_TEXT_MAX_BYTES + 1])
{
    size_t size = close->reasonlen < QUIC_CLOSE_TEXT_MAX_BYTES ? close->reasonlen : QUIC_CLOSE_TEXT_MAX_BYTES;
    for (size_t i = 0; i < size; i++) {
        out[i] = close->reason[i] >= 0x20 && close->reason[i] < 0x7f ? (char)close->reason[i] : '?';
    }
    out[size] = '\0';
}

/* The peer has closed the connection. Its reason becomes the cause. */
static void quic_connection_closed_by_peer(struct quic_connection *connection, struct error *cause)
{
    const ngtcp2_ccerr *close = ngtcp2_conn_get_ccerr2(connection->transport);
    char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
    char reason[QUIC_CLOSE_TEXT_MAX_BYTES + 1];
    quic_connection_text(connection, who);
    quic_reason_text(close, reason);
    const char *verb =
        connection->state == QUIC_STATE_UP ? "closed the connection" : "refuses the connection";
    if (close->type == NGTCP2_CCERR_TYPE_APPLICATION) {
        enum status status = close->error_code < STATUS_COUNT ? status_from_wire((unsigned)close->error_code)
                                                              : STATUS_PROTOCOL;
        connection->process_ended =
            connection->state == QUIC_STATE_UP && status == STATUS_SHUTTING_DOWN; /* a goodbye */
        if (connection->state != QUIC_STATE_UP) {
            status = STATUS_UNREACHABLE;
        } else if (status == STATUS_OK) {
            status = STATUS_NODE_LOST;
        }
        error_set(cause, status, "%s %s: %s", who, verb, reason[0] != '\0' ? reason : status_text(status));
    } else if (close->error_code >= NGTCP2_CRYPTO_ERROR &&
               close->error_code <= (NGTCP2_CRYPTO_ERROR | 0xffu)) {
        unsigned alert = (unsigned)close->error_code & 0xffu;
        error_set(cause, quic_alert_status(alert), "%s %s: %s", who, verb,
                  reason[0] != '\0' ? reason : quic_alert_text(alert));
    } else {
        const char *sent = quic_violation_text(close->error_code);
        error_set(cause, connection->state == QUIC_STATE_UP ? STATUS_PROTOCOL : STATUS_UNREACHABLE,
                  "%s %s: %s%s (QUIC error 0x%llx)", who, verb,
                  reason[0] == '\0' && sent != NULL ? "it says that it was sent " : "",
                  reason[0] != '\0' ? reason
                  : sent != NULL    ? sent
                                    : "no reason given",
                  (unsigned long long)close->error_code);
    }
}

/* TLS has refused the peer, or the check of its identity after TLS has. */
static void quic_connection_refuse(struct quic_connection *connection, int failure, struct error *cause)
{
    char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
    unsigned alert = failure == NGTCP2_ERR_CRYPTO ? ngtcp2_conn_get_tls_alert2(connection->transport)
                                                  : (unsigned)SSL_AD_CERTIFICATE_UNKNOWN;
    const struct error *refusal = &connection->refusal;
    quic_connection_text(connection, who);
    if (refusal->status != STATUS_OK) {
        if (refusal->status == STATUS_VERSION) {
            alert = SSL_AD_NO_APPLICATION_PROTOCOL;
        }
        error_set(cause, refusal->status, "%s: %s", who, refusal->text);
        quic_close_text(connection, refusal->text);
    } else {
        const char *reason = ERR_reason_error_string(ERR_peek_error());
        const char *text =
            quic_alert_status(alert) == STATUS_PROTOCOL && reason != NULL ? reason : quic_alert_text(alert);
        error_set(cause, quic_alert_status(alert), "%s: TLS handshake: %s", who, text);
        quic_close_text(connection, text);
    }
    ERR_clear_error();
    ngtcp2_ccerr_set_tls_alert(&connection->close, (uint8_t)alert, (const uint8_t *)connection->close_text,
                               strlen(connection->close_text));
}

void quic_connection_fail(struct quic_connection *connection, int failure)
{
    if (connection->failed) {
        return; /* the first reason counts; a callback may have noted it */
    }
    const struct quic_endpoint *endpoint = connection->endpoint;
    struct error cause;
    char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
    quic_connection_text(connection, who);
    ngtcp2_ccerr_set_liberr(&connection->close, failure, NULL, 0);
    switch (failure) {
    case NGTCP2_ERR_DRAINING:
        quic_connection_closed_by_peer(connection, &cause);
        connection->closed_by_peer = true;
        connection->silent = true;
        break;
    case NGTCP2_ERR_IDLE_CLOSE:
        error_set(&cause, STATUS_NODE_LOST, "%s: nothing was heard of it for %llu ms", who,
                  (unsigned long long)(endpoint->idle_timeout_ns / TIME_MS));
        connection->silent = true;
        connection->forgotten = true;
        connection->resumable = true; /* perhaps our own machine stood still, and the peer is there */
        break;
    case NGTCP2_ERR_RETRY:
    case NGTCP2_ERR_DROP_CONN:
        error_set(&cause, STATUS_PROTOCOL, "%s: what it sent cannot begin a connection", who);
        connection->silent = true;
        connection->forgotten = true;
        break;
    case NGTCP2_ERR_CRYPTO:
    case NGTCP2_ERR_CALLBACK_FAILURE:
        quic_connection_refuse(connection, failure, &cause);
        break;
    case NGTCP2_ERR_NOMEM:
        quic_connection_short(connection, who, &cause);
        break;
    default:
        quic_connection_broken(connection, who, failure, &cause);
        break;
    }
    quic_connection_note(connection, &cause);
}

void quic_connection_abort(struct quic_connection *connection, enum status status, const char *text)
{
    if (connection->failed) {
        return;
    }
    struct error cause;
    error_set(&cause, status, "%s", text);
    quic_close_text(connection, text);
    ngtcp2_ccerr_set_application_error(&connection->close, (uint64_t)status,
                                       (const uint8_t *)connection->close_text,
                                       strlen(connection->close_text));
    quic_connection_note(connection, &cause);
}

/* --- Closing --- */

static void quic_connection_tell(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_endpoint *endpoint = connection->endpoint;
    uint8_t packet[QUIC_CLOSE_PACKET_MAX_BYTES];
    ngtcp2_path_storage path;
    ngtcp2_path_storage_zero(&path);
    ngtcp2_ssize size =
        ngtcp2_conn_write_connection_close(connection->transport, &path.path, NULL, packet, sizeof packet,
                                           &connection->close, quic_transport_ns(connection, now_ns));
    struct quic_address local;
    struct quic_address remote;
    if (size <= 0 || !quic_address_set(&local, path.path.local.addr, path.path.local.addrlen) ||
        !quic_address_set(&remote, path.path.remote.addr, path.path.remote.addrlen)) {
        return;
    }
    quic_write_single(endpoint, &local, &remote, packet, (size_t)size);
    connection->close_packet = malloc((size_t)size);
    if (connection->close_packet != NULL) {
        memcpy(connection->close_packet, packet, (size_t)size);
        connection->close_packet_bytes = (size_t)size;
    }
}

void quic_connection_account(const struct quic_connection *connection, struct net_peer_statistics *sum)
{
    ngtcp2_conn_info info;
    ngtcp2_conn_get_conn_info2(connection->transport, &info);
    sum->sent_bytes += info.bytes_sent;
    sum->received_bytes += info.bytes_recv;
    sum->sent_packets += info.pkt_sent;
    sum->received_packets += info.pkt_recv;
    sum->lost_packets += info.pkt_lost;
    sum->lost_bytes += info.bytes_lost;
}

void quic_connection_close(struct quic_connection *connection, uint64_t now_ns)
{
    assert(connection->senders == NULL && connection->receivers == NULL && connection->transport != NULL);
    if (!connection->silent) {
        quic_connection_tell(connection, now_ns);
    }
    if (connection->peer != NULL) {
        quic_connection_account(connection, &connection->peer->contact->past);
    }
    uint64_t linger_ns = connection->forgotten ? 0 : 3 * ngtcp2_conn_get_pto2(connection->transport);
    quic_work_forget_connection(connection);
    quic_connection_dissolve(connection);
    struct quic_cid *cid;
    struct quic_cid *next;
    LL_FOREACH_SAFE(connection->cids, cid, next)
    {
        if (cid->is_token || connection->forgotten) {
            quic_cid_drop(connection, cid);
        }
    }
    quic_session_clear(connection);
    connection->state = QUIC_STATE_CLOSED;
    connection->peer = NULL;
    loop_timer_set(connection->timer, time_after(now_ns, linger_ns));
}
