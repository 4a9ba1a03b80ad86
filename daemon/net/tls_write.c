#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/tls_internal.h"

/*
 * Writing to a TCP connection. Frames are gathered in the stage, a record's worth at a time. But where a
 * whole record of a stream's payload lies in one piece, TLS reads it from its place.
 */

/* Gives TLS some bytes, of which it takes a record's worth at most. Returns how many; 0: the socket is
 * blocked, or the connection failed. */
static size_t give(struct tls_connection *connection, const uint8_t *bytes, size_t size)
{
    size_t done = 0;
    ERR_clear_error();
    if (SSL_write_ex(connection->tls, bytes, size, &done) == 1) {
        connection->key_bytes += done;
        tls_connection_carried(connection);
        connection->peer->sent_bytes += done;
        /* Now, as no record is half written: then it would be refused. */
        if (connection->key_bytes >= TLS_KEY_BYTES &&
            SSL_key_update(connection->tls, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
            connection->key_bytes = 0;
        }
        return done;
    }
    int why = SSL_get_error(connection->tls, 0);
    if (why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ) {
        connection->blocked = true;
    } else {
        tls_connection_fail(connection, "TCP: it was closed while data were written");
    }
    ERR_clear_error();
    return 0;
}

void tls_connection_greet(struct tls_connection *connection, uint8_t *bytes, size_t size)
{
    connection->blob = bytes;
    connection->blob_bytes = size;
    connection->blob_done = 0;
    tls_work_flush(connection->peer);
}

/* The frame's bytes go on from a copy, as its sender's memory is lost to us. */
void tls_connection_forget(struct tls_connection *connection, const struct tls_sender *sender)
{
    if (connection->frame_sender != sender || connection->state == TLS_STATE_FAILED) {
        return;
    }
    struct tls_sender *from = connection->frame_sender;
    uint8_t *blob = malloc(connection->frame_left + 1);
    connection->frame_sender = NULL;
    if (blob == NULL) {
        tls_connection_fail(connection, "no memory for the rest of a frame");
        return;
    }
    connection->blob = blob;
    connection->blob_bytes = connection->frame_left;
    connection->blob_done = 0;
    for (size_t at = 0; connection->frame_left > 0;) {
        size_t size;
        const uint8_t *piece = stream_queue_piece(&from->queue, &size);
        size = size < connection->frame_left ? size : connection->frame_left;
        memcpy(blob + at, piece, size);
        tls_sender_sent(from, size);
        at += size;
        connection->frame_left -= size;
    }
}

/* Copies the frame's next bytes behind what is staged. */
static void stage_piece(struct tls_connection *connection)
{
    while (connection->frame_left > 0 && connection->stage_bytes < TLS_RECORD_BYTES) {
        size_t room = TLS_RECORD_BYTES - connection->stage_bytes, size;
        const uint8_t *piece = stream_queue_piece(&connection->frame_sender->queue, &size);
        size = size < connection->frame_left ? size : connection->frame_left;
        size = size < room ? size : room;
        memcpy(connection->stage + connection->stage_bytes, piece, size);
        connection->stage_bytes += size;
        connection->frame_left -= size;
        tls_sender_sent(connection->frame_sender, size);
    }
}

static void frame_done(struct tls_connection *connection)
{
    if (connection->frame_sender != NULL && connection->frame_left == 0) {
        struct tls_sender *sender = connection->frame_sender;
        connection->frame_sender = NULL;
        tls_sender_turn_over(sender, connection->frame_end);
    }
}

/* Begins what comes next, in the stage. Returns false if there is nothing. */
static bool begin_next(struct tls_connection *connection)
{
    struct tls_peer *peer = connection->peer;
    connection->stage_done = 0;
    connection->stage_bytes = 0;
    if (!tls_peer_flows(peer)) {
        return false;
    }
    connection->stage_bytes = tls_compose_control(peer, connection->stage, TLS_RECORD_BYTES / 2);
    while (connection->stage_bytes == 0 && peer->ready != NULL) {
        struct tls_sender *sender = peer->ready;
        struct tls_frame frame;
        if (!tls_sender_frame(sender, TLS_FRAME_DATA_MAX_BYTES - TLS_FRAME_HEADER_BYTES, &frame)) {
            tls_sender_turn_over(sender, false);
            continue;
        }
        tls_frame_encode(&frame, connection->stage);
        connection->stage_bytes = TLS_FRAME_HEADER_BYTES;
        connection->frame_sender = sender;
        connection->frame_left = frame.body_bytes;
        connection->frame_end = frame.end;
        stage_piece(connection);
        frame_done(connection);
    }
    return connection->stage_bytes > 0;
}

/* Writes the next part. Returns how many bytes; 0: nothing is left, or no more can be written now. */
static size_t write_part(struct tls_connection *connection)
{
    size_t done;
    if (connection->stage_done < connection->stage_bytes) {
        done = give(connection, connection->stage + connection->stage_done,
                    connection->stage_bytes - connection->stage_done);
        connection->stage_done += done;
        return done;
    }
    if (connection->blob != NULL) {
        done = give(connection, connection->blob + connection->blob_done,
                    connection->blob_bytes - connection->blob_done);
        connection->blob_done += done;
        if (connection->blob_done == connection->blob_bytes) {
            free(connection->blob);
            connection->blob = NULL;
        }
        return done;
    }
    if (connection->frame_sender != NULL) {
        size_t size;
        const uint8_t *piece = stream_queue_piece(&connection->frame_sender->queue, &size);
        size = size < connection->frame_left ? size : connection->frame_left;
        if (size < TLS_RECORD_BYTES) {
            connection->stage_done = connection->stage_bytes = 0;
            stage_piece(connection);
            frame_done(connection);
            return write_part(connection);
        }
        done = give(connection, piece, size);
        if (done > 0) { /* otherwise the connection may have failed, and has no frame then */
            connection->frame_left -= done;
            tls_sender_sent(connection->frame_sender, done);
            frame_done(connection);
        }
        return done;
    }
    return begin_next(connection) ? write_part(connection) : 0;
}

void tls_connection_write(struct tls_connection *connection)
{
    size_t written = 0, part = 1;
    if (connection->state != TLS_STATE_OPEN || connection->blocked) {
        return;
    }
    while (part > 0 && written < TLS_WRITE_BYTES && connection->state == TLS_STATE_OPEN) {
        part = write_part(connection);
        written += part;
    }
    if (connection->state == TLS_STATE_OPEN && BIO_flush(SSL_get_wbio(connection->tls)) != 1) {
        connection->blocked = true; /* a failure shows when the socket is read */
    }
    if (part > 0 && !connection->blocked) {
        tls_work_flush(connection->peer);
    }
    tls_connection_watch(connection);
}
