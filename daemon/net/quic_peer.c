#include <assert.h>
#include <string.h>

#include <utlist.h>

#include "daemon/net/bulk.h"
#include "daemon/net/quic_internal.h"

/* --- Identity --- */

static bool quic_peer_known(void *context, const char *name)
{
    const struct quic_peer *peer = quic_peer_find(context, name);
    return peer != NULL && !peer->removed;
}

enum status quic_peer_identify(struct quic_connection *connection, struct error *error)
{
    struct quic_endpoint *endpoint = connection->endpoint;
    char name[NODE_NAME_MAX_BYTES + 1];
    enum status status =
        quic_tls_peer_name(connection->tls, endpoint->node_name, quic_peer_known, endpoint, name, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct quic_peer *peer = quic_peer_find(endpoint, name);
    if (connection->dialled && connection->peer != peer) {
        return error_set(error, STATUS_CERTIFICATE, "the certificate is of node \"%s\", not of node \"%s\"",
                         name, connection->peer->name);
    }
    /* Certificates may have been reloaded since this handshake began. */
    status = quic_tls_check_again(endpoint->tls, connection->tls, connection->dialled, error);
    if (status == STATUS_OK && quic_contact_of(peer) == NULL) {
        status = error_set(error, STATUS_NO_MEMORY, "no memory for a connection to node %s", name);
    }
    if (status == STATUS_OK) {
        connection->peer = peer;
    }
    return status;
}

/* --- Down --- */

void quic_peer_lose_streams(struct quic_connection *connection, const struct error *cause, bool quiet,
                            uint64_t now_ns)
{
    while (connection->receivers != NULL) {
        quic_receiver_close(connection->receivers, cause, quiet, now_ns);
    }
    while (connection->senders != NULL) {
        quic_sender_lose(connection->senders, cause->status);
    }
}

/*
 * The peer is told if we have not greeted it: it may have given up an attempt of its own for this one. If we
 * have, it may use the connection already, and would take the end for that of the session.
 */
void quic_peer_drop_attempt(struct quic_connection **attempt, const char *why, uint64_t now_ns)
{
    struct quic_connection *connection = *attempt;
    *attempt = NULL;
    if (connection != NULL) {
        if (!connection->failed) {
            quic_connection_abort(connection, STATUS_NODE_LOST, why);
        }
        connection->silent = connection->silent || connection->state != QUIC_STATE_HANDSHAKE;
        quic_peer_lose_streams(connection, &connection->cause, true, now_ns);
        quic_connection_close(connection, now_ns);
    }
}

/* The session is over: attempts on which we have named it end. The peer is told, because it may use one of
 * them already. */
static void quic_peer_end_greetings(struct quic_peer *peer, const struct error *cause)
{
    struct quic_connection **const attempts[] = {&peer->dial, &peer->greeting};
    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++) {
        struct quic_connection *attempt = *attempts[i];
        if (attempt != NULL && attempt->state == QUIC_STATE_GREETING) {
            *attempts[i] = NULL;
            quic_connection_abort(attempt, cause->status, cause->text);
        }
    }
}

/* The session ends: peer_down. */
static void quic_peer_down(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_endpoint *endpoint = connection->endpoint;
    struct quic_peer *peer = connection->peer;
    struct error cause = connection->cause;
    assert(peer->up == connection);
    peer->contact->closed_by_peer = connection->closed_by_peer;
    peer->contact->process_ended = connection->process_ended;
    peer->up = NULL; /* a handler below that connects starts a new attempt */
    quic_peer_end_greetings(peer, &cause);
    quic_peer_lose_streams(connection, &cause, false, now_ns);
    stream_done_dispatch(&endpoint->done, now_ns);
    if (connection->state == QUIC_STATE_SUSPENDED) {
        quic_connection_free(connection);
    } else {
        quic_connection_close(connection, now_ns);
    }
    net_bulk_peer_down(&endpoint->base, peer->index, &cause, now_ns);
    if (endpoint->base.peer_handler.peer_down != NULL) {
        endpoint->base.peer_handler.peer_down(endpoint->base.peer_handler.context, peer->index, &cause,
                                              now_ns);
    }
}

void quic_peer_not_reached(struct quic_endpoint *endpoint, struct quic_peer *peer, const struct error *cause,
                           uint64_t now_ns)
{
    const struct net_peer_handler *handler = &endpoint->base.peer_handler;
    peer->outcome_due = false;
    if (handler->connect_failed != NULL) {
        handler->connect_failed(handler->context, peer->index, cause, now_ns);
    }
}

static void quic_dial_failed(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_endpoint *endpoint = connection->endpoint;
    struct quic_peer *peer = connection->peer;
    struct error cause = connection->cause;
    bool current = peer->dial == connection; /* otherwise it was cancelled, or replaced */
    if (current) {
        peer->dial = NULL;
    }
    quic_connection_close(connection, now_ns);
    if (current && peer->up != NULL && peer->up->state == QUIC_STATE_SUSPENDED) {
        quic_session_attempt_failed(peer->up, now_ns);
    } else if (current && peer->up == NULL) {
        quic_peer_not_reached(endpoint, peer, &cause, now_ns);
    }
}

/* An incoming handshake failed. It is logged if it was refused, not if it timed out or ended silently. */
static void quic_handshake_failed(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_endpoint *endpoint = connection->endpoint;
    struct quic_peer *peer = connection->peer;
    struct error cause = connection->cause;
    uint64_t suppressed = 0;
    bool greeted = peer != NULL && peer->greeting == connection;
    if (greeted) {
        peer->greeting = NULL;
    }
    if (!connection->silent && connection->cause.status != STATUS_TIMED_OUT) {
        endpoint->statistics.refused_handshakes++;
        if (log_limit_pass(&endpoint->refusal_limit, now_ns, &suppressed)) {
            log_warning("network: refused a connection from %s (%llu such lines left out)",
                        connection->cause.text, (unsigned long long)suppressed);
        }
    }
    quic_connection_close(connection, now_ns);
    /* Our own attempt was given up for this connection. */
    if (greeted && peer->up != NULL && peer->up->state == QUIC_STATE_SUSPENDED) {
        quic_session_attempt_failed(peer->up, now_ns);
    } else if (greeted && peer->up == NULL && peer->dial == NULL && !work_is_listed(&peer->dialling) &&
               peer->outcome_due) {
        quic_peer_not_reached(endpoint, peer, &cause, now_ns);
    }
}

/* --- Up --- */

/* The peer's incoming connection is not needed. The peer is told. */
static void quic_connection_decline(struct quic_connection *connection, uint64_t now_ns)
{
    char reason[2 * NODE_NAME_MAX_BYTES + 64];
    snprintf(reason, sizeof reason, "node %s and node %s have another connection", connection->peer->name,
             connection->endpoint->node_name);
    if (!connection->failed) {
        quic_connection_abort(connection, STATUS_NODE_LOST, reason);
    }
    quic_peer_lose_streams(connection, &connection->cause, true, now_ns); /* no handler knows them */
    quic_connection_close(connection, now_ns);
}

/* Ends all attempts but one, which may be null. */
static void quic_peer_drop_others(struct quic_peer *peer, const struct quic_connection *kept, uint64_t now_ns)
{
    struct quic_connection **const attempts[] = {&peer->dial, &peer->greeting};
    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++) {
        if (*attempts[i] != kept) {
            quic_peer_drop_attempt(attempts[i], "another connection takes its place", now_ns);
        }
    }
}

/*
 * A peer that dials again has lost the connection that we still have, so its new one replaces ours. But if
 * both dial at once, each would replace the other's connection, and none would be left. Then the connection
 * dialled by the lower name stays. `connection` is incoming. The two cases differ in whether it came while
 * our own attempt was under way.
 */
static bool quic_peer_prefers_ours(const struct quic_connection *connection, uint64_t now_ns)
{
    const struct quic_peer *peer = connection->peer;
    if (connection->dialled || strcmp(connection->endpoint->node_name, peer->name) > 0) {
        return false;
    }
    if (peer->up != NULL && peer->up->state != QUIC_STATE_SUSPENDED) {
        return !peer->up->failed && peer->up->dialled && connection->created_ns <= peer->up->authenticated_ns;
    }
    /*
     * Once our side of the handshake is done, the peer takes our attempt, and gives up its own. Otherwise its
     * own is ahead, or we have a wrong address.
     */
    const struct quic_connection *ours = peer->dial;
    return ours != NULL && !ours->failed && ours->completed_ns != 0 &&
           now_ns < time_after(ours->completed_ns, QUIC_ATTEMPT_SILENT_NS);
}

/* Sends three probes within the time that a peer waits, so that two may be lost; and twice a second, so that
 * a node to which the other side sends in vain notices that within its patience, and dials. */
void quic_peer_keep_alive(const struct quic_peer *peer)
{
    if (peer->up != NULL && peer->up->transport != NULL) {
        uint64_t every_ns = time_min(peer->up->endpoint->idle_timeout_ns / 3, QUIC_KEEP_ALIVE_NS);
        ngtcp2_conn_set_keep_alive_timeout(peer->up->transport, peer->keep_alive ? every_ns : UINT64_MAX);
        quic_work_flush(peer->up); /* its timer is set anew: otherwise it sleeps until something else comes */
    }
}

/* The connection is authenticated. If it is to be the peer's, the nodes greet each other on it. */
static void quic_peer_authenticated(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_peer *peer = connection->peer;
    connection->authenticated = false;
    quic_admission_give_back(&connection->endpoint->admission, &connection->slot);
    if (quic_peer_prefers_ours(connection, now_ns)) {
        quic_connection_decline(connection, now_ns);
        return;
    }
    if (peer->up != NULL && peer->up->failed && !peer->up->resumable) {
        quic_peer_down(peer->up, now_ns);
    } else if (peer->up != NULL && peer->up->state == QUIC_STATE_UP) {
        quic_session_suspend(peer->up, now_ns);
    }
    quic_peer_drop_others(peer, connection, now_ns);
    *(connection->dialled ? &peer->dial : &peer->greeting) = connection;
    quic_session_greet(connection);
    quic_work_flush(connection);
}

/* Hands out what came before. */
static void quic_peer_take_early(struct quic_connection *connection)
{
    struct quic_receiver *receiver, *next;
    DL_FOREACH_SAFE(connection->receivers, receiver, next)
    {
        if (connection->failed) {
            return;
        }
        quic_work_receiver(receiver);
        quic_receiver_take_early(receiver);
    }
    quic_work_flush(connection);
}

static void quic_peer_log_resumed(const struct quic_connection *connection, uint64_t span_ns, uint64_t now_ns)
{
    char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
    if (log_limit_pass(&connection->endpoint->loss_limit, now_ns, NULL)) {
        log_info("network: %s: the streams go on after %llu ms", quic_connection_text(connection, who),
                 (unsigned long long)(span_ns / TIME_MS));
    }
}

/* The connection takes over the streams of the suspended one. */
static void quic_peer_go_on(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_peer *peer = connection->peer;
    struct quic_connection *suspended = peer->up;
    struct error cause;
    peer->up = connection;
    if (!quic_session_resume(connection, suspended)) {
        cause = connection->cause; /* the session ends */
        quic_peer_lose_streams(suspended, &cause, false, now_ns);
    } else {
        quic_peer_log_resumed(connection, now_ns - suspended->session.suspended_ns, now_ns);
        quic_peer_take_early(connection);
    }
    quic_connection_free(suspended);
}

static void quic_peer_begin(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_endpoint *endpoint = connection->endpoint;
    struct quic_peer *peer = connection->peer;
    if (peer->up != NULL) {
        struct quic_connection *suspended = peer->up;
        char reason[NODE_NAME_MAX_BYTES + 96];
        /* A restart proves that the old process is gone. A process that has given us up may have gone on
         * without us: see comms_loss_node_down. */
        suspended->process_ended = !quic_session_same_process(connection, suspended);
        snprintf(reason, sizeof reason, "node %s has lost the connection: %s", peer->name,
                 suspended->process_ended ? "it was restarted" : "it gave this node up after the patience");
        quic_connection_abort(suspended, STATUS_NODE_LOST, reason);
        quic_peer_down(suspended, now_ns);
    }
    connection->session =
        (struct quic_session){.own_id = connection->greeting_id, .peer_id = connection->greeting.own_id};
    peer->up = connection;
    peer->outcome_due = false;
    peer->contact->connected_count++;
    peer->contact->dial_count = 0;
    net_bulk_peer_up(&endpoint->base, peer->index);
    if (endpoint->base.peer_handler.peer_up != NULL) {
        endpoint->base.peer_handler.peer_up(endpoint->base.peer_handler.context, peer->index, now_ns);
    }
    quic_peer_take_early(connection);
}

/* The peer's greeting has come: the connection is in use from now on. */
static void quic_peer_greeted(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_peer *peer = connection->peer;
    connection->greeted = false;
    quic_peer_drop_others(peer, connection, now_ns);
    peer->dial = peer->greeting = NULL;
    work_list_remove(&connection->endpoint->dials, &peer->dialling);
    peer->contact->certificate_ends_s = quic_certificate_ends_s(SSL_get0_peer_certificate(connection->tls));
    connection->state = QUIC_STATE_UP;
    if (peer->up != NULL && quic_session_matches(connection, peer->up)) {
        quic_peer_go_on(connection, now_ns);
    } else {
        quic_peer_begin(connection, now_ns);
    }
    quic_greeting_clear(&connection->greeting);
    quic_peer_keep_alive(peer);
}

static void quic_peer_suspected(struct quic_connection *connection, uint64_t now_ns)
{
    const struct net_peer_handler *handler = &connection->endpoint->base.peer_handler;
    connection->suspected = false;
    if (handler->peer_suspect != NULL) {
        handler->peer_suspect(handler->context, connection->peer->index, now_ns);
    }
}

void quic_peer_settle(struct quic_connection *connection, uint64_t now_ns)
{
    bool in_use = connection->state == QUIC_STATE_UP || connection->state == QUIC_STATE_SUSPENDED;
    if (connection->transport == NULL && connection->state != QUIC_STATE_SUSPENDED) {
        return;
    }
    if (!connection->failed) {
        if (connection->authenticated) {
            quic_peer_authenticated(connection, now_ns);
        } else if (connection->greeted) {
            quic_peer_greeted(connection, now_ns);
        } else if (connection->suspected && in_use) {
            quic_peer_suspected(connection, now_ns);
        }
        return;
    }
    if (connection->state == QUIC_STATE_UP && connection->resumable && !connection->peer->removed) {
        quic_session_suspend(connection, now_ns);
        return;
    }
    if (in_use) {
        quic_peer_down(connection, now_ns);
        return;
    }
    /* Streams that came with the handshake: no handler knows them. */
    quic_peer_lose_streams(connection, &connection->cause, true, now_ns);
    if (connection->dialled) {
        quic_dial_failed(connection, now_ns);
    } else {
        quic_handshake_failed(connection, now_ns);
    }
}

/* --- ICMP --- */

void quic_peer_unreachable(void *context, const struct quic_address *remote, enum quic_unreachable kind)
{
    struct quic_endpoint *endpoint = context;
    const struct net_peer_handler *handler = &endpoint->base.peer_handler;
    struct quic_peer *peer = quic_peer_at(endpoint, remote);
    if (peer == NULL) {
        return;
    }
    if (peer->dial == NULL && peer->up == NULL && kind == QUIC_UNREACHABLE_PORT &&
        handler->peer_refuses != NULL) {
        handler->peer_refuses(handler->context, peer->index, endpoint->now_ns);
    }
    if (peer->dial != NULL && !peer->dial->failed) {
        char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
        char reason[QUIC_CONNECTION_TEXT_MAX_BYTES + 32];
        snprintf(reason, sizeof reason, "%s: %s", quic_connection_text(peer->dial, who),
                 kind == QUIC_UNREACHABLE_PORT ? "nobody listens there" : "the host is unreachable");
        quic_connection_abort(peer->dial, STATUS_UNREACHABLE, reason);
        peer->dial->silent = true;
        peer->contact->process_ended = peer->up == NULL && kind == QUIC_UNREACHABLE_PORT;
    }
    /* An unreachable host may be a link that is down for a moment. It proves nothing about the peer's
     * process. */
    if (kind == QUIC_UNREACHABLE_PORT && peer->up != NULL && !peer->up->failed) {
        peer->up->suspected = true;
        quic_work_connection(peer->up);
    }
}
