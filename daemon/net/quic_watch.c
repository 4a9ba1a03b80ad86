#include <stdio.h>
#include <string.h>

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

bool quic_watch_origin(struct quic_connection *connection, const struct quic_address *remote)
{
    struct quic_address_key from, known;
    if (!connection->dialled || connection->state != QUIC_STATE_UP) {
        return true;
    }
    quic_address_key(remote, &from);
    quic_address_key(&connection->remote, &known);
    if (memcmp(&from, &known, sizeof from) == 0) {
        return true;
    }
    connection->elsewhere = *remote;
    connection->elsewhere_ns = connection->endpoint->now_ns;
    return false;
}

bool quic_watch_has_moved(const struct quic_connection *connection)
{
    return connection->unanswered_ns != 0 && connection->elsewhere_ns > connection->unanswered_ns;
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
        if (sender->queue.sent_end > sender->queue.received_end) {
            since_ns = time_min(since_ns, later(sender->queue.waits_since_ns, connection->excused_ns));
        }
    }
    connection->looked_ns = now_ns;
    connection->waits_since_ns = since_ns == TIME_NEVER ? 0 : since_ns;
    if (since_ns != TIME_NEVER && now_ns - since_ns >= QUIC_STUCK_NS) {
        lose(connection, "has acknowledged nothing of a stream", since_ns, now_ns);
    }
}

/* By when the nodes must have greeted each other. At the end of the handshake, the dialling side waits to be
 * told that it was accepted. */
static uint64_t greeting_deadline_ns(const struct quic_connection *connection)
{
    uint64_t most_ns = connection->endpoint->handshake_timeout_ns;
    switch (connection->state) {
    case QUIC_STATE_HANDSHAKE:
        most_ns += ngtcp2_conn_get_handshake_completed2(connection->transport) ? most_ns / 2 : 0;
        return time_after(connection->created_ns, most_ns);
    case QUIC_STATE_GREETING:
        return time_after(connection->authenticated_ns, most_ns);
    case QUIC_STATE_UP:
    case QUIC_STATE_SUSPENDED:
    case QUIC_STATE_CLOSED:
        break;
    }
    return TIME_NEVER;
}

/* The peer is told, so that it tries again at once. */
static void greeting_fails(struct quic_connection *connection, uint64_t now_ns)
{
    char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
    char reason[QUIC_CONNECTION_TEXT_MAX_BYTES + 64];
    snprintf(reason, sizeof reason, "%s: no connection within %llu ms", quic_connection_text(connection, who),
             (unsigned long long)((now_ns - connection->created_ns) / TIME_MS));
    quic_connection_abort(connection, STATUS_TIMED_OUT, reason);
}

/*
 * How long the peer may be silent. A peer that answers slowly, because its machine has too much work, gets
 * more time, and still more while the nodes connect for the first time: another handshake would make it even
 * slower. A peer that has not answered at all has until the handshake's deadline.
 */
static uint64_t silence_ns(const struct quic_connection *connection)
{
    bool is_first = connection->state == QUIC_STATE_GREETING && connection->peer->up == NULL;
    ngtcp2_conn_info info;
    uint64_t least_ns = QUIC_SILENT_NS;
    unsigned round_trips = QUIC_SILENT_ROUND_TRIPS;
    if (quic_watch_has_moved(connection)) {
        least_ns = QUIC_MOVED_NS;
        round_trips = QUIC_MOVED_ROUND_TRIPS;
    }
    switch (connection->state) {
    case QUIC_STATE_HANDSHAKE:
    case QUIC_STATE_GREETING:
    case QUIC_STATE_UP:
        ngtcp2_conn_get_conn_info2(connection->transport, &info);
        if (info.pkt_recv == 0) {
            return TIME_NEVER;
        }
        return is_first || connection->state == QUIC_STATE_HANDSHAKE
                   ? QUIC_SILENT_MAX_NS
                   : later(time_min(round_trips * info.smoothed_rtt, QUIC_SILENT_MAX_NS), least_ns);
    case QUIC_STATE_SUSPENDED:
    case QUIC_STATE_CLOSED:
        break;
    }
    return TIME_NEVER;
}

/* When the peer has been silent for too long. */
static uint64_t silence_deadline_ns(const struct quic_connection *connection)
{
    if (connection->unanswered_ns == 0) {
        return TIME_NEVER;
    }
    return time_after(later(connection->unanswered_ns, connection->excused_ns), silence_ns(connection));
}

bool quic_watch_has_answers(const struct quic_connection *attempt, uint64_t now_ns)
{
    if (attempt == NULL || attempt->failed || attempt->answered_ns == 0) {
        return false;
    }
    uint64_t silent_ns = time_after(later(attempt->read_ns, attempt->excused_ns), QUIC_ATTEMPT_SILENT_NS);
    return now_ns < time_min(silent_ns, time_after(attempt->answered_ns, QUIC_ATTEMPT_ENDS_NS));
}

void quic_watch(struct quic_connection *connection, uint64_t now_ns)
{
    if (connection->failed) {
        return;
    }
    if (connection->armed_ns != 0 && now_ns > connection->armed_ns &&
        now_ns - connection->armed_ns > QUIC_LATE_NS) {
        connection->excused_ns = now_ns;
    }
    bool is_first = connection->peer == NULL || connection->peer->up == NULL;
    bool is_silent = now_ns >= silence_deadline_ns(connection);
    if (is_silent && !is_first) {
        lose(connection, "is silent", later(connection->unanswered_ns, connection->excused_ns), now_ns);
    } else if (is_silent || now_ns >= greeting_deadline_ns(connection)) {
        greeting_fails(connection, now_ns);
    } else if (connection->state == QUIC_STATE_UP) {
        watch_streams(connection, now_ns);
        quic_home_watch(connection, now_ns);
    }
}

uint64_t quic_watch_deadline_ns(const struct quic_connection *connection)
{
    uint64_t deadline_ns = time_min(silence_deadline_ns(connection), greeting_deadline_ns(connection));
    return time_min(deadline_ns, quic_home_deadline_ns(connection));
}
