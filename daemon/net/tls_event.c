#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/net/tls_internal.h"

/* --- Noting work --- */

void tls_wake(void *context)
{
    struct tls_endpoint *endpoint = context;
    if (!endpoint->wake_set && !endpoint->in_event && !endpoint->freeing) {
        endpoint->wake_set = true;
        loop_timer_set(endpoint->wake, 0);
    }
}

void tls_work_sender(struct tls_sender *sender)
{
    if (work_list_add(&sender->endpoint->sender_work, &sender->work, sender)) {
        tls_wake(sender->endpoint);
    }
}

void tls_work_receiver(struct tls_receiver *receiver)
{
    if (work_list_add(&receiver->endpoint->receiver_work, &receiver->work, receiver)) {
        tls_wake(receiver->endpoint);
    }
}

void tls_work_connection(struct tls_connection *connection)
{
    if (work_list_add(&connection->endpoint->connection_work, &connection->work, connection)) {
        tls_wake(connection->endpoint);
    }
}

void tls_work_flush(struct tls_peer *peer)
{
    if (peer->is_up && work_list_add(&peer->endpoint->flushes, &peer->flush, peer)) {
        tls_wake(peer->endpoint);
    }
}

void tls_work_receipt(struct tls_peer *peer)
{
    struct tls_endpoint *endpoint = peer->endpoint;
    if (peer->unreceipted_bytes >= TLS_RECEIPT_BYTES || peer->connection == NULL) {
        tls_work_flush(peer);
    } else if (peer->is_up && work_list_add(&endpoint->receipts, &peer->receipt, peer)) {
        endpoint->receipts_ns = time_min(endpoint->receipts_ns, time_after(endpoint->now_ns, TLS_RECEIPT_NS));
    }
}

/* --- Doing the work --- */

/* Sends the receipts that have waited long enough, and with them the others. */
static void send_receipts(struct tls_endpoint *endpoint, uint64_t now_ns)
{
    struct tls_peer *peer;
    if (now_ns < endpoint->receipts_ns) {
        return;
    }
    endpoint->receipts_ns = TIME_NEVER;
    for (uint32_t all = UINT32_MAX; (peer = work_list_take(&endpoint->receipts, &all)) != NULL;) {
        tls_work_flush(peer);
    }
}

/* Those that have more come again after others had their turn. */
static void tls_flush(struct tls_endpoint *endpoint)
{
    struct tls_peer *peer;
    for (uint32_t left = endpoint->flushes.count;
         (peer = work_list_take(&endpoint->flushes, &left)) != NULL;) {
        if (peer->connection != NULL) {
            tls_connection_write(peer->connection);
        } else {
            tls_tunnel_write(peer);
            tls_dial(peer, endpoint->now_ns);
        }
    }
}

/* The link was too slow: it gets no connection for a while. */
static void hold(struct tls_peer *peer, uint64_t now_ns)
{
    peer->hold_ns = peer->hold_ns == 0 ? TLS_HELD_MIN_NS : time_min(2 * peer->hold_ns, TLS_HELD_MAX_NS);
    peer->held_ns = time_after(now_ns, peer->hold_ns);
    peer->good_bytes = 0;
    peer->slow_since_ns = 0;
}

/* A connection is over: the link goes on without it. */
static void connection_over(struct tls_connection *connection)
{
    struct tls_peer *peer = connection->peer;
    struct tls_endpoint *endpoint = connection->endpoint;
    if (peer != NULL && peer->connection == connection) {
        if (connection->timed_out) {
            hold(peer, endpoint->now_ns);
        }
        if (peer->is_up && !peer->failed) {
            tls_peer_abandon(peer, connection->cause.text);
        } else {
            peer->connection = NULL;
        }
    } else if (peer != NULL && peer->attempt == connection) {
        peer->attempt = NULL;
        (void)snprintf(peer->why, sizeof peer->why, "%.127s", connection->cause.text);
        backoff_failed(&peer->dial, TLS_DIAL_MIN_NS, TLS_DIAL_MAX_NS, &endpoint->random, endpoint->now_ns);
        tls_dial(peer, endpoint->now_ns); /* notes when to dial again */
    }
    tls_connection_free(connection);
}

/* Does what is due now; what comes up meanwhile is done after others had their turn. */
static void connections_work(struct tls_endpoint *endpoint)
{
    struct tls_connection *connection;
    for (uint32_t left = endpoint->connection_work.count;
         (connection = work_list_take(&endpoint->connection_work, &left)) != NULL;) {
        if (connection->more && connection->state == TLS_STATE_OPEN) {
            (void)tls_connection_read(connection);
        }
        if (connection->state == TLS_STATE_FAILED) {
            connection_over(connection);
        }
    }
}

static bool has_work(const struct tls_endpoint *endpoint)
{
    return endpoint->done.first != NULL || endpoint->sender_work.count > 0 ||
           endpoint->receiver_work.count > 0 || endpoint->connection_work.count > 0 ||
           endpoint->flushes.count > 0;
}

void tls_settle(struct tls_endpoint *endpoint, uint64_t now_ns)
{
    bool outer = endpoint->in_event;
    endpoint->in_event = true;
    endpoint->now_ns = now_ns;
    struct tls_receiver *receiver;
    for (uint32_t all = UINT32_MAX; (receiver = work_list_take(&endpoint->receiver_work, &all)) != NULL;) {
        tls_receiver_work(receiver, now_ns);
    }
    struct tls_sender *sender;
    for (uint32_t all = UINT32_MAX; (sender = work_list_take(&endpoint->sender_work, &all)) != NULL;) {
        tls_sender_work(sender);
    }
    stream_done_dispatch(&endpoint->done, now_ns);
    connections_work(endpoint);
    tls_flush(endpoint);
    spending_shares_end(&endpoint->base.net->spending);
    endpoint->in_event = outer;
    if (has_work(endpoint)) {
        tls_wake(endpoint);
    }
    tls_arm(endpoint);
}

void tls_woken(void *context, uint64_t now_ns)
{
    struct tls_endpoint *endpoint = context;
    endpoint->wake_set = false;
    tls_settle(endpoint, now_ns);
}

/* Reads connections that carried something a moment ago. Returns whether anything has come. */
static bool read_lively(struct tls_endpoint *endpoint)
{
    struct tls_connection *connection;
    bool any = false;
    uint32_t left = endpoint->lively.count < TLS_POLLED_MAX ? endpoint->lively.count : TLS_POLLED_MAX;
    while ((connection = work_list_take(&endpoint->lively, &left)) != NULL) {
        if (connection->state == TLS_STATE_OPEN &&
            endpoint->now_ns < time_after(connection->carried_ns, TLS_LIVELY_NS)) {
            (void)work_list_add(&endpoint->lively, &connection->liveliness, connection);
            any = tls_connection_read(connection) || any;
        }
    }
    return any;
}

bool net_bulk_poll(struct net *net, bool reads, uint64_t now_ns)
{
    if (net == NULL || net->bulk == NULL) {
        return false;
    }
    struct tls_endpoint *endpoint = tls_endpoint_of(net->bulk);
    bool any = false;
    if (reads && endpoint->lively.count > 0) {
        endpoint->now_ns = now_ns;
        endpoint->in_event = true;
        any = read_lively(endpoint);
        endpoint->in_event = false;
    }
    send_receipts(endpoint, now_ns);
    if (endpoint->wake_set || any || has_work(endpoint)) {
        if (endpoint->wake_set) {
            endpoint->wake_set = false;
            loop_timer_set(endpoint->wake, TIME_NEVER);
        }
        tls_settle(endpoint, now_ns);
    }
    return any;
}

/* --- Time --- */

static bool is_stuck(const struct tls_peer *peer, uint64_t now_ns)
{
    for (const struct tls_sender *sender = peer->senders; sender != NULL; sender = sender->hh.next) {
        if (sender->queue.sent_end > sender->queue.received_end &&
            now_ns >= time_after(sender->queue.waits_since_ns, TLS_STUCK_NS)) {
            return true;
        }
    }
    return false;
}

static void hold_off(struct tls_peer *peer, uint64_t now_ns)
{
    hold(peer, now_ns);
    tls_peer_abandon(peer, "it carries too little");
}

/* Gives the connection up if it carries next to nothing although there is much to carry. */
static void watch_rate(struct tls_peer *peer, uint64_t now_ns)
{
    uint64_t least = peer->choice.ways[0].rate / TLS_SLOW_PARTS;
    least = least > TLS_SLOW_LEAST_BYTES ? least : TLS_SLOW_LEAST_BYTES;
    if (peer->under_way_bytes == 0) {
        peer->slow_since_ns = 0;
        return;
    }
    if (is_stuck(peer, now_ns)) {
        hold_off(peer, now_ns);
        return;
    }
    uint64_t moved = peer->receipted_bytes - peer->looked_bytes;
    if (peer->slow_since_ns == 0 || moved >= least) {
        peer->slow_since_ns = now_ns;
        peer->looked_bytes = peer->receipted_bytes;
        peer->good_bytes += moved;
        peer->hold_ns = peer->good_bytes >= TLS_HELD_FORGET_BYTES ? 0 : peer->hold_ns;
    } else if (now_ns - peer->slow_since_ns >= TLS_SLOW_NS) {
        hold_off(peer, now_ns);
    }
}

void tls_ticked(void *context, uint64_t now_ns)
{
    struct tls_endpoint *endpoint = context;
    struct tls_connection *connection;
    bool redial = now_ns >= endpoint->redial_ns;
    endpoint->redial_ns = redial ? TIME_NEVER : endpoint->redial_ns;
    endpoint->now_ns = now_ns;
    endpoint->in_event = true;
    endpoint->tick_ns = TIME_NEVER;
    DL_FOREACH(endpoint->connections, connection)
    {
        if (now_ns >= connection->deadline_ns) {
            tls_connection_fail(connection, "no answer within %llu s",
                                (unsigned long long)(TLS_HANDSHAKE_NS / TIME_S));
        }
    }
    struct tls_peer *peer;
    for (uint32_t at = 0; (peer = sparse_next(&endpoint->peers, &at)) != NULL;) {
        if (tls_peer_is_connected(peer)) {
            watch_rate(peer, now_ns);
        } else if (redial) {
            tls_dial(peer, now_ns);
        }
    }
    send_receipts(endpoint, now_ns);
    endpoint->in_event = false;
    tls_settle(endpoint, now_ns);
}

/* Without connections, nothing is looked at but the time to dial again. */
void tls_arm(struct tls_endpoint *endpoint)
{
    uint64_t look_ns = endpoint->watched > 0 ? time_after(endpoint->now_ns, TLS_SLOW_LOOK_NS) : TIME_NEVER;
    uint64_t tick_ns = time_min(time_min(look_ns, endpoint->redial_ns), endpoint->receipts_ns);
    if (tick_ns < endpoint->tick_ns || tick_ns == TIME_NEVER) {
        endpoint->tick_ns = tick_ns;
        loop_timer_set(endpoint->tick, tick_ns);
    }
}
