#include "daemon/net/quic_internal.h"

/* --- Noting work --- */

void quic_wake(void *context)
{
    struct quic_endpoint *endpoint = context;
    if (!endpoint->wake_set && !endpoint->in_event && !endpoint->freeing) {
        endpoint->wake_set = true;
        loop_timer_set(endpoint->wake, 0);
    }
}

void quic_work_sender(struct quic_sender *sender)
{
    if (work_list_add(&sender->endpoint->sender_work, &sender->work, sender)) {
        quic_wake(sender->endpoint);
    }
}

void quic_work_receiver(struct quic_receiver *receiver)
{
    if (work_list_add(&receiver->endpoint->receiver_work, &receiver->work, receiver)) {
        quic_wake(receiver->endpoint);
    }
}

void quic_work_connection(struct quic_connection *connection)
{
    if (work_list_add(&connection->endpoint->connection_work, &connection->work, connection)) {
        quic_wake(connection->endpoint);
    }
}

void quic_work_flush(struct quic_connection *connection)
{
    if (connection->transport != NULL &&
        work_list_add(&connection->endpoint->flushes, &connection->flush, connection)) {
        quic_wake(connection->endpoint);
    }
}

void quic_work_forget_connection(struct quic_connection *connection)
{
    work_list_remove(&connection->endpoint->connection_work, &connection->work);
    work_list_remove(&connection->endpoint->flushes, &connection->flush);
}

void quic_work_dial(struct quic_endpoint *endpoint, struct quic_peer *peer)
{
    if (work_list_add(&endpoint->dials, &peer->dialling, peer)) {
        quic_wake(endpoint);
    }
}

/* --- Doing the work --- */

static const struct quic_address *quic_dial_address(struct quic_peer *peer)
{
    return peer->contact->spare.size > 0 && peer->contact->dial_count++ % 2 == 1 ? &peer->contact->spare
                                                                                 : &peer->address;
}

static void quic_dial(struct quic_endpoint *endpoint, struct quic_peer *peer, uint64_t now_ns)
{
    struct error error;
    bool is_suspended = peer->up != NULL && peer->up->state == QUIC_STATE_SUSPENDED;
    const struct quic_connection *present = peer->up != NULL && !is_suspended ? peer->up : peer->dial;
    bool goes_home = peer->contact->goes_home && present != NULL && present == peer->up && !present->failed &&
                     peer->dial == NULL;
    peer->contact->goes_home = false;
    if (present != NULL && !goes_home) {
        if (present->failed) {
            quic_work_dial(endpoint, peer); /* dial after the failed connection is closed */
        }
        return;
    }
    const struct quic_address *address = goes_home      ? &peer->address
                                         : is_suspended ? quic_session_address(peer->up)
                                                        : quic_dial_address(peer);
    if (quic_connection_dial(endpoint, peer, address, &error) == STATUS_OK) {
        return;
    }
    if (is_suspended) {
        quic_session_attempt_failed(peer->up, now_ns);
    } else if (!goes_home) {
        quic_peer_not_reached(endpoint, peer, &error, now_ns);
    }
}

/* Handles the work that is listed now. Work added by handlers waits for the next event, so that handlers
 * cannot prolong this one without end. */
static void quic_settle_receivers(struct quic_endpoint *endpoint, uint64_t now_ns)
{
    struct quic_receiver *receiver;
    for (uint32_t left = endpoint->receiver_work.count;
         (receiver = work_list_take(&endpoint->receiver_work, &left)) != NULL;) {
        quic_receiver_work(receiver, now_ns);
    }
}

static void quic_settle_senders(struct quic_endpoint *endpoint)
{
    struct quic_sender *sender;
    for (uint32_t left = endpoint->sender_work.count;
         (sender = work_list_take(&endpoint->sender_work, &left)) != NULL;) {
        quic_sender_work(sender);
    }
}

bool net_quic_hand_out(struct net *net, uint64_t now_ns)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    if (net == NULL || endpoint->receiver_work.count == 0) {
        return false;
    }
    endpoint->in_event = true;
    endpoint->now_ns = now_ns;
    quic_settle_receivers(endpoint, now_ns);
    spending_shares_end(&endpoint->base.spending);
    endpoint->in_event = false;
    quic_wake(endpoint); /* the rest follows in the next event */
    return true;
}

void quic_settle(struct quic_endpoint *endpoint, uint64_t now_ns)
{
    bool outer = endpoint->in_event;
    endpoint->in_event = true;
    endpoint->now_ns = now_ns;
    stream_done_dispatch(&endpoint->done, now_ns);
    quic_settle_senders(endpoint);
    quic_settle_receivers(endpoint, now_ns);
    struct quic_connection *connection;
    for (uint32_t left = endpoint->connection_work.count;
         (connection = work_list_take(&endpoint->connection_work, &left)) != NULL;) {
        quic_peer_settle(connection, now_ns);
    }
    struct quic_peer *peer;
    for (uint32_t left = endpoint->dials.count; (peer = work_list_take(&endpoint->dials, &left)) != NULL;) {
        quic_dial(endpoint, peer, now_ns);
    }
    quic_flush(endpoint, now_ns);
    spending_shares_end(&endpoint->base.spending);
    endpoint->in_event = outer;
    bool blocked = endpoint->blocked.size > 0;
    if (endpoint->done.first != NULL || endpoint->sender_work.count > 0 ||
        endpoint->receiver_work.count > 0 || endpoint->connection_work.count > 0 ||
        endpoint->dials.count > 0 || quic_inbox_waits(&endpoint->inbox) ||
        (endpoint->flushes.count > 0 && !blocked)) {
        quic_wake(endpoint);
    }
}

/* Reads the socket. The inbox handles some of what waits there. Returns how many datagrams were read. */
static size_t quic_receive(struct quic_endpoint *endpoint)
{
    struct quic_inbox *inbox = &endpoint->inbox;
    size_t count = 0;
    bool more = true;
    quic_inbox_begin(inbox, endpoint->base.spending.clock);
    while (more && (quic_inbox_waits(inbox)
                        ? count < QUIC_RECEIVE_KEPT
                        : count < QUIC_RECEIVE_DATAGRAMS && inbox->handled_bytes < QUIC_RECEIVE_BYTES)) {
        count += quic_socket_receive(&endpoint->socket, quic_datagram_arrived, endpoint, &more);
    }
    quic_inbox_serve(inbox);
    return count;
}

/* ICMP errors make the socket ready, too. */
static void quic_receive_errors(struct quic_endpoint *endpoint, bool look)
{
    if (look || endpoint->socket.has_errors) {
        quic_socket_read_errors(&endpoint->socket, quic_peer_unreachable, endpoint);
    }
}

void quic_woken(void *context, uint64_t now_ns)
{
    struct quic_endpoint *endpoint = context;
    endpoint->wake_set = false;
    if (quic_inbox_waits(&endpoint->inbox)) {
        endpoint->in_event = true;
        endpoint->now_ns = now_ns;
        quic_receive_errors(endpoint, quic_receive(endpoint) == 0);
        endpoint->in_event = false;
    }
    quic_settle(endpoint, now_ns);
}

void quic_socket_ready(void *context, unsigned events, uint64_t now_ns)
{
    struct quic_endpoint *endpoint = context;
    endpoint->in_event = true;
    endpoint->now_ns = now_ns;
    if ((events & LOOP_WRITE) != 0) {
        quic_flush_blocked(endpoint);
    }
    if ((events & LOOP_READ) != 0) {
        quic_receive_errors(endpoint, quic_receive(endpoint) == 0);
    }
    endpoint->in_event = false;
    quic_settle(endpoint, now_ns);
}

bool net_quic_poll(struct net *net, bool reads, uint64_t now_ns)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    size_t count = 0;
    if (net == NULL) {
        return false;
    }
    if (reads) {
        endpoint->in_event = true;
        endpoint->now_ns = now_ns;
        count = quic_receive(endpoint);
        quic_receive_errors(endpoint, false);
        endpoint->in_event = false;
    }
    if (endpoint->wake_set) {
        endpoint->wake_set = false;
        loop_timer_set(endpoint->wake, TIME_NEVER);
        quic_settle(endpoint, now_ns);
    } else if (count > 0) {
        quic_settle(endpoint, now_ns);
    }
    return count > 0;
}
