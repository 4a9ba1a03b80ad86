#include <stdio.h>

#include <utlist.h>

#include "daemon/net/quic_internal.h"

/*
 * Notices that a connection is lost: the peer is silent, or acknowledges nothing. ngtcp2 itself would wait
 * longer and longer: its probe timeouts double (RFC 9002, 6.2.1).
 */

static void lose(struct quic_connection *connection, const char *why, uint64_t since_ns, uint64_t now_ns)
{
    char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
    char reason[QUIC_CONNECTION_TEXT_MAX_BYTES + 64];
    snprintf(reason, sizeof reason, "%s %s for %llu ms", quic_connection_text(connection, who), why,
             (unsigned long long)((now_ns - since_ns) / TIME_MS));
    quic_connection_abort(connection, STATUS_NODE_LOST, reason);
    connection->silent = true;
    connection->resumable = true;
}

static uint64_t later(uint64_t left_ns, uint64_t right_ns)
{
    return left_ns > right_ns ? left_ns : right_ns;
}

/* Looks at the streams now and then: one may wait for an acknowledgement although packets come. */
static void watch_streams(struct quic_connection *connection, uint64_t now_ns)
{
    const struct quic_sender *sender;
    uint64_t since_ns = TIME_NEVER;
    if (now_ns - connection->looked_ns < QUIC_STUCK_LOOK_NS) {
        return;
    }
    DL_FOREACH(connection->senders, sender)
    {
        if (sender->sent_end > sender->acknowledged_end) {
            since_ns = time_min(since_ns, later(sender->waits_since_ns, connection->excused_ns));
        }
    }
    connection->looked_ns = now_ns;
    connection->waits_since_ns = since_ns == TIME_NEVER ? 0 : since_ns;
    if (since_ns != TIME_NEVER && now_ns - since_ns >= QUIC_STUCK_NS) {
        lose(connection, "has acknowledged nothing of a stream", since_ns, now_ns);
    }
}

static uint64_t greeting_deadline_ns(const struct quic_connection *connection)
{
    return connection->state == QUIC_STATE_GREETING
               ? time_after(connection->authenticated_ns, connection->endpoint->handshake_timeout_ns)
               : TIME_NEVER;
}

void quic_watch(struct quic_connection *connection, uint64_t now_ns)
{
    bool is_watched = connection->state == QUIC_STATE_GREETING || connection->state == QUIC_STATE_UP;
    if (!is_watched || connection->failed) {
        return;
    }
    if (connection->armed_ns != 0 && now_ns > connection->armed_ns &&
        now_ns - connection->armed_ns > QUIC_LATE_NS) {
        connection->excused_ns = now_ns;
    }
    uint64_t since_ns = later(connection->unanswered_ns, connection->excused_ns);
    if (connection->unanswered_ns != 0 && now_ns - since_ns >= QUIC_SILENT_NS) {
        lose(connection, "is silent", since_ns, now_ns);
    } else if (connection->state == QUIC_STATE_GREETING && now_ns >= greeting_deadline_ns(connection)) {
        lose(connection, "sends no greeting", connection->authenticated_ns, now_ns);
    } else if (connection->state == QUIC_STATE_UP) {
        watch_streams(connection, now_ns);
    }
}

uint64_t quic_watch_deadline_ns(const struct quic_connection *connection)
{
    bool is_watched = connection->state == QUIC_STATE_GREETING || connection->state == QUIC_STATE_UP;
    uint64_t silent_ns =
        is_watched && connection->unanswered_ns != 0
            ? time_after(later(connection->unanswered_ns, connection->excused_ns), QUIC_SILENT_NS)
            : TIME_NEVER;
    return time_min(silent_ns, greeting_deadline_ns(connection));
}
