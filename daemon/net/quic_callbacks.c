#include <openssl/rand.h>
#include <string.h>

#include "daemon/net/quic_internal.h"

/* The functions that ngtcp2 calls. Each one only translates its arguments and passes them on. They note our
 * own failures before they return an error. */

static void quic_on_random(uint8_t *out, size_t size, const ngtcp2_rand_ctx *context)
{
    (void)context;
    if (RAND_bytes(out, (int)size) != 1) {
        memset(out, 0, size); /* ngtcp2 needs no secret numbers from this (ngtcp2_rand) */
    }
}

bool quic_cid_new(struct quic_connection *connection, ngtcp2_cid *out, size_t size)
{
    out->datalen = size;
    return RAND_bytes(out->data, (int)size) == 1 && quic_cid_add(connection, false, out->data, size);
}

static int quic_on_new_cid(ngtcp2_conn *transport, ngtcp2_cid *cid, ngtcp2_stateless_reset_token *token,
                           size_t size, void *context)
{
    (void)transport;
    struct quic_connection *connection = context;
    const struct quic_endpoint *endpoint = connection->endpoint;
    if (!quic_cid_new(connection, cid, size)) {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }
    if (ngtcp2_crypto_generate_stateless_reset_token(token->data, endpoint->reset_secret,
                                                     sizeof endpoint->reset_secret, cid) != 0) {
        quic_cid_remove(connection, false, cid->data, cid->datalen);
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }
    return 0;
}

static int quic_on_remove_cid(ngtcp2_conn *transport, const ngtcp2_cid *cid, void *context)
{
    (void)transport;
    quic_cid_remove(context, false, cid->data, cid->datalen);
    return 0;
}

/* Tokens of the connection IDs that we use at present. A stateless reset carries one of them. */
static int quic_on_dcid(ngtcp2_conn *transport, ngtcp2_connection_id_status_type type, uint64_t sequence,
                        const ngtcp2_cid *cid, const ngtcp2_stateless_reset_token *token, void *context)
{
    (void)transport;
    (void)sequence;
    (void)cid;
    if (token == NULL) {
        return 0;
    }
    switch (type) {
    case NGTCP2_CONNECTION_ID_STATUS_TYPE_ACTIVATE:
        (void)quic_cid_add(context, true, token->data, sizeof token->data);
        break;
    case NGTCP2_CONNECTION_ID_STATUS_TYPE_DEACTIVATE:
        quic_cid_remove(context, true, token->data, sizeof token->data);
        break;
    }
    return 0;
}

static int quic_on_stateless_reset(ngtcp2_conn *transport, const ngtcp2_pkt_stateless_reset2 *packet,
                                   void *context)
{
    (void)transport;
    (void)packet;
    struct quic_connection *connection = context;
    char text[QUIC_CONNECTION_TEXT_MAX_BYTES];
    char reason[QUIC_CONNECTION_TEXT_MAX_BYTES + 64];
    snprintf(reason, sizeof reason, "%s has lost the connection", quic_connection_text(connection, text));
    quic_connection_abort(connection, STATUS_NODE_LOST, reason);
    connection->silent = true;
    connection->resumable = true; /* if it was not restarted, but only gave the connection up */
    return 0;
}

/* --- The handshake --- */

static int quic_on_handshake_completed(ngtcp2_conn *transport, void *context)
{
    (void)transport;
    struct quic_connection *connection = context;
    struct error error;
    if (quic_peer_identify(connection, &error) != STATUS_OK) {
        connection->refusal = error;
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }
    connection->completed_ns = connection->endpoint->now_ns;
    if (!connection->dialled) {
        connection->authenticated = true;
        connection->authenticated_ns = connection->endpoint->now_ns;
        quic_work_connection(connection);
    }
    return 0;
}

/*
 * This tells the dialling side that the accepting side has accepted its certificate, too. In TLS 1.3 the
 * dialling side completes the handshake before that.
 */
static int quic_on_handshake_confirmed(ngtcp2_conn *transport, void *context)
{
    (void)transport;
    struct quic_connection *connection = context;
    if (connection->dialled) {
        connection->authenticated = true;
        connection->authenticated_ns = connection->endpoint->now_ns;
        quic_work_connection(connection);
    }
    return 0;
}

/* --- Streams --- */

/* Until the first byte of an incoming stream has come, its user data are the connection. */
static int quic_on_stream_open(ngtcp2_conn *transport, int64_t id, void *context)
{
    struct quic_connection *connection = context;
    ngtcp2_conn_set_stream_user_data(transport, id, connection);
    if (++connection->unbegun <= QUIC_UNBEGUN_MAX) {
        return 0;
    }
    char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
    char reason[QUIC_CONNECTION_TEXT_MAX_BYTES + 64];
    snprintf(reason, sizeof reason, "%s left out the beginning of more than %u streams",
             quic_connection_text(connection, who), QUIC_UNBEGUN_MAX);
    quic_connection_abort(connection, STATUS_PROTOCOL, reason);
    return NGTCP2_ERR_CALLBACK_FAILURE;
}

static int quic_on_stream_data(ngtcp2_conn *transport, uint32_t flags, int64_t id, uint64_t offset,
                               const uint8_t *bytes, size_t size, void *context, void *stream)
{
    (void)transport;
    (void)offset;
    struct quic_connection *connection = context;
    bool begins = stream == connection;
    connection->unbegun -= begins ? 1 : 0;
    return quic_receiver_bytes(connection, begins ? NULL : stream, id, bytes, size,
                               (flags & NGTCP2_STREAM_DATA_FLAG_FIN) != 0);
}

static int quic_on_stream_acknowledged(ngtcp2_conn *transport, int64_t id, uint64_t offset, uint64_t size,
                                       void *context, void *stream)
{
    (void)transport;
    (void)id;
    if (stream != NULL) { /* null: the stream was reset meanwhile */
        quic_sender_acknowledged(stream, offset + size);
    }
    struct quic_connection *connection = context;
    if (connection->ready_control != NULL || connection->ready_data != NULL) {
        quic_work_flush(connection); /* more bytes may be under way now */
    }
    return 0;
}

static int quic_on_stream_close(ngtcp2_conn *transport, uint32_t flags, int64_t id, uint64_t code,
                                void *context, void *stream)
{
    (void)flags;
    (void)code;
    struct quic_connection *connection = context;
    if (ngtcp2_conn_is_local_stream2(transport, id)) {
        if (stream != NULL) {
            quic_sender_closed(stream);
        }
    } else if (stream != NULL && stream != connection) {
        quic_receiver_transport_over(stream);
    } else {
        connection->unbegun -= stream == connection ? 1 : 0;
        ngtcp2_conn_extend_max_streams_uni(transport, 1);
    }
    return 0;
}

static int quic_on_stream_reset(ngtcp2_conn *transport, int64_t id, uint64_t size, uint64_t code,
                                void *context, void *stream)
{
    (void)transport;
    (void)size;
    struct quic_connection *connection = context;
    struct quic_receiver *receiver = stream != connection ? stream : NULL;
    if (stream == connection && code >= QUIC_RESET_NUMBERED) { /* the code tells which stream it is */
        receiver = quic_receiver_new(connection, id);
        connection->unbegun -= receiver != NULL ? 1 : 0;
    }
    if (receiver != NULL) {
        quic_receiver_reset_received(receiver, code);
    }
    return 0;
}

/* ngtcp2 resets the stream. Its end comes when the peer has acknowledged that. */
static int quic_on_stop(ngtcp2_conn *transport, int64_t id, uint64_t code, void *context, void *stream)
{
    (void)transport;
    (void)id;
    (void)code;
    (void)context;
    struct quic_sender *sender = stream;
    if (sender != NULL) {
        sender->shut = true;
        quic_sender_unready(sender);
    }
    return 0;
}

static int quic_on_stream_window(ngtcp2_conn *transport, int64_t id, uint64_t limit, void *context,
                                 void *stream)
{
    (void)transport;
    (void)id;
    (void)limit;
    (void)context;
    struct quic_sender *sender = stream;
    if (sender != NULL) {
        sender->blocked = false;
        quic_sender_ready(sender);
    }
    return 0;
}

const ngtcp2_callbacks quic_callbacks = {
    .client_initial = ngtcp2_crypto_client_initial_cb,
    .recv_client_initial = ngtcp2_crypto_recv_client_initial_cb,
    .recv_crypto_data = ngtcp2_crypto_recv_crypto_data_cb,
    .encrypt = ngtcp2_crypto_encrypt_cb,
    .decrypt = ngtcp2_crypto_decrypt_cb,
    .hp_mask = ngtcp2_crypto_hp_mask_cb,
    .recv_retry = ngtcp2_crypto_recv_retry_cb,
    .update_key = ngtcp2_crypto_update_key_cb,
    .delete_crypto_aead_ctx = ngtcp2_crypto_delete_crypto_aead_ctx_cb,
    .delete_crypto_cipher_ctx = ngtcp2_crypto_delete_crypto_cipher_ctx_cb,
    .get_path_challenge_data2 = ngtcp2_crypto_get_path_challenge_data2_cb,
    .version_negotiation = ngtcp2_crypto_version_negotiation_cb,
    .rand = quic_on_random,
    .get_new_connection_id2 = quic_on_new_cid,
    .remove_connection_id = quic_on_remove_cid,
    .dcid_status2 = quic_on_dcid,
    .recv_stateless_reset2 = quic_on_stateless_reset,
    .handshake_completed = quic_on_handshake_completed,
    .handshake_confirmed = quic_on_handshake_confirmed,
    .stream_open = quic_on_stream_open,
    .recv_stream_data = quic_on_stream_data,
    .acked_stream_data_offset = quic_on_stream_acknowledged,
    .stream_close = quic_on_stream_close,
    .stream_reset = quic_on_stream_reset,
    .extend_max_stream_data = quic_on_stream_window,
    .recv_stop_sending = quic_on_stop,
};
