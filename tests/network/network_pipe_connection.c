#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/network/pipe_internal.h"

/* dials again after this time, because a cut link drops what it carries while dialling */
#define PIPE_DIAL_RETRY_NS (50 * TIME_MS)
/* A host whose handshakes wait so long drops further dials, as a full socket does: their diallers ask again.
 * If it took them all, it would work on attempts that have timed out, and never get to one that has not. */
#define PIPE_BACKLOG_NS (1 * TIME_S)

struct pipe_peer *pipe_end_peer(const struct pipe_end *end)
{
    return &end->net->peers[end->peer];
}

struct pipe_end *pipe_end_ref(struct pipe_end *end)
{
    end->references++;
    return end;
}

void pipe_end_unref(struct pipe_end *end)
{
    if (end != NULL && --end->references == 0) {
        assert(end->state == PIPE_END_GONE && end->senders == NULL && end->receivers == NULL);
        free(end);
    }
}

static void pipe_end_timer(struct pipe_event *event, uint64_t now_ns);
static void pipe_end_deferred(struct pipe_event *event, uint64_t now_ns);

static struct pipe_end *pipe_end_new(struct pipe_net *net, uint32_t peer, enum pipe_end_state state)
{
    struct pipe_end *end = pipe_alloc(1, sizeof *end);
    end->references = 1;
    end->state = state;
    end->number = net->network->end_count++;
    end->host = net->host;
    end->remote = net->peers[peer].host;
    end->net = net;
    end->incarnation = net->incarnation;
    end->peer = peer;
    end->deadline_ns = time_after(net->network->now_ns, NETWORK_CONNECT_TIMEOUT_NS);
    uint64_t now_ns = net->network->now_ns;
    uint64_t begins_ns = net->host->busy_ns > now_ns ? net->host->busy_ns : now_ns;
    net->host->busy_ns = end->worked_ns = begins_ns + net->network->conditions.handshake_ns;
    end->timer = (struct pipe_event){.node.index = TIMER_NODE_DISARMED, .fire = pipe_end_timer};
    end->deferred = (struct pipe_event){.node.index = TIMER_NODE_DISARMED, .fire = pipe_end_deferred};
    return end;
}

/* Ends this end of a connection. The caller must close its streams. Drops the caller's reference. */
static void pipe_end_retire(struct pipe_end *end, const struct error *cause)
{
    struct pipe_network *network = end->host->network;
    assert(end->state != PIPE_END_GONE);
    end->state = PIPE_END_GONE;
    if (end->cause.status == STATUS_OK && cause != NULL) {
        end->cause = *cause;
    }
    pipe_event_cancel(network, &end->timer);
    pipe_event_cancel(network, &end->deferred);
    struct pipe_end *other = end->other;
    end->other = NULL;
    end->net = NULL;
    pipe_end_unref(other);
    pipe_end_unref(end);
}

static void pipe_close_send(struct pipe_host *from, struct pipe_end *to, enum pipe_packet_kind kind,
                            bool process_ended, const struct error *cause)
{
    struct pipe_packet *packet = pipe_packet_new(from, to->host, kind);
    packet->to = pipe_end_ref(to);
    packet->cause = pipe_alloc(1, sizeof *packet->cause);
    *packet->cause = *cause;
    packet->process_ended = process_ended;
    pipe_packet_send(packet);
}

static void pipe_end_tell_close(const struct pipe_end *end, const struct error *cause)
{
    if (end->other != NULL) {
        pipe_close_send(end->host, end->other, PIPE_CLOSE, false, cause);
    }
}

/* Takes a connection down: closes its streams, ends its sends, calls peer_down. */
static void pipe_end_take_down(struct pipe_end *end, const struct error *cause, uint64_t now_ns)
{
    struct pipe_net *net = end->net;
    struct pipe_peer *peer = pipe_end_peer(end);
    struct error reason = *cause;
    reason.status = cause->status == STATUS_OK ? STATUS_NODE_LOST : cause->status;
    assert(peer->end == end && (end->state == PIPE_END_UP || end->state == PIPE_END_CLOSING));
    pipe_end_ref(end);
    peer->end = NULL; /* a handler below that connects begins a new attempt */
    pipe_end_retire(end, &reason);
    pipe_streams_lose(end, &reason, false, now_ns);
    uint32_t index = end->peer;
    pipe_end_unref(end);
    if (net->base.peer_handler.peer_down != NULL) {
        net->base.peer_handler.peer_down(net->base.peer_handler.context, index, &reason, now_ns);
    }
}

static void pipe_end_up(struct pipe_end *end, uint64_t now_ns)
{
    struct pipe_net *net = end->net;
    end->state = PIPE_END_UP;
    end->heard_ns = now_ns;
    pipe_event_cancel(net->network, &end->timer);
    pipe_end_peer(end)->connected_count++;
    pipe_end_peer(end)->closed_by_peer = false;
    pipe_end_peer(end)->process_ended = false;
    if (end->dialed) {
        pipe_tell(end, PIPE_CONFIRM, NULL, 0);
    }
    if (net->base.peer_handler.peer_up != NULL) {
        net->base.peer_handler.peer_up(net->base.peer_handler.context, end->peer, now_ns);
    }
}

static void pipe_end_deferred(struct pipe_event *event, uint64_t now_ns)
{
    struct pipe_end *end = (struct pipe_end *)((char *)event - offsetof(struct pipe_end, deferred));
    struct error cause = end->cause;
    pipe_end_take_down(end, &cause, now_ns);
}

/* --- Silence --- */

void pipe_end_asks(struct pipe_end *end)
{
    struct pipe_network *network = end->host->network;
    if (end->unacknowledged++ == 0) {
        end->asked_ns = network->now_ns;
        end->heard_ns = network->now_ns;
        pipe_event_set(network, &end->timer, time_after(network->now_ns, NETWORK_IDLE_TIMEOUT_NS));
    }
}

static void pipe_end_acknowledged(struct pipe_end *end, uint64_t now_ns)
{
    assert(end->unacknowledged > 0);
    end->round_trip_ns = end->round_trip_ns == 0 ? now_ns - end->asked_ns : end->round_trip_ns;
    if (--end->unacknowledged == 0) {
        pipe_event_cancel(end->host->network, &end->timer);
    }
}

static void pipe_end_silent(struct pipe_end *end, uint64_t now_ns)
{
    uint64_t until_ns = time_after(end->heard_ns, NETWORK_IDLE_TIMEOUT_NS);
    if (now_ns < until_ns) {
        pipe_event_set(end->host->network, &end->timer, until_ns);
        return;
    }
    struct error cause;
    error_set(&cause, STATUS_NODE_LOST, "node %s has not answered for %llu ms", end->remote->name,
              (unsigned long long)(NETWORK_IDLE_TIMEOUT_NS / TIME_MS));
    pipe_end_take_down(end, &cause, now_ns);
}

/* --- Dialling --- */

static void pipe_dial_failed(struct pipe_end *end, const struct error *cause, uint64_t now_ns)
{
    struct pipe_net *net = end->net;
    uint32_t index = end->peer;
    assert(net->peers[index].end == end && end->state == PIPE_END_DIALING);
    net->peers[index].end = NULL;
    pipe_end_retire(end, cause);
    if (net->base.peer_handler.connect_failed != NULL) {
        net->base.peer_handler.connect_failed(net->base.peer_handler.context, index, cause, now_ns);
    }
}

static void pipe_dial(struct pipe_end *end, uint64_t now_ns)
{
    if (now_ns >= end->deadline_ns) {
        struct error cause;
        error_set(&cause, STATUS_TIMED_OUT, "node %s did not answer node %s within %llu ms",
                  end->remote->name, end->host->name,
                  (unsigned long long)(NETWORK_CONNECT_TIMEOUT_NS / TIME_MS));
        pipe_dial_failed(end, &cause, now_ns);
        return;
    }
    const struct network_conditions *conditions = &pipe_link_between(end->host, end->remote)->conditions;
    uint64_t again_ns = PIPE_DIAL_RETRY_NS + 4 * (conditions->delay_ns + conditions->jitter_ns);
    end->asked_ns = now_ns;
    pipe_tell(end, PIPE_DIAL, NULL, 0);
    pipe_event_set(end->host->network, &end->timer, time_min(end->deadline_ns, time_after(now_ns, again_ns)));
}

static void pipe_end_timer(struct pipe_event *event, uint64_t now_ns)
{
    struct pipe_end *end = (struct pipe_end *)((char *)event - offsetof(struct pipe_end, timer));
    switch (end->state) {
    case PIPE_END_DIALING:
        pipe_dial(end, now_ns);
        return;
    case PIPE_END_ANSWERING: /* the dialler has not confirmed in time; no handler is told */
        pipe_end_peer(end)->answering = NULL;
        pipe_end_retire(end, NULL);
        return;
    case PIPE_END_UP:
        pipe_end_silent(end, now_ns);
        return;
    case PIPE_END_CLOSING:
    case PIPE_END_GONE:
        return;
    }
}

enum status pipe_connect(struct net *base, uint32_t index, struct error *error)
{
    struct pipe_net *net = (struct pipe_net *)base;
    assert(index < net->peer_count);
    struct pipe_peer *peer = &net->peers[index];
    if (net->freeing) {
        return error_set(error, STATUS_SHUTTING_DOWN, "node %s is going", net->host->name);
    }
    if (peer->removed) {
        return error_set(error, STATUS_PERMISSION, "node %s is no peer of node %s any more", peer->host->name,
                         net->host->name);
    }
    if (peer->unresolved) {
        return error_set(error, STATUS_UNREACHABLE, "node %s: its name is not resolved yet",
                         peer->host->name);
    }
    if (peer->end == NULL) {
        peer->end = pipe_end_new(net, index, PIPE_END_DIALING);
        peer->end->dialed = true;
        peer->process_ended = false;
        if (peer->answering != NULL) {
            peer->answering->crossed = true;
        }
        pipe_event_set(net->network, &peer->end->timer, net->network->now_ns);
    }
    return STATUS_OK;
}

static void pipe_answering_drop(struct pipe_peer *peer, const struct error *cause)
{
    struct pipe_end *end = peer->answering;
    if (end != NULL) {
        peer->answering = NULL;
        if (cause != NULL) {
            pipe_end_tell_close(end, cause);
        }
        pipe_end_retire(end, cause);
    }
}

void pipe_disconnect(struct net *base, uint32_t index, const struct error *cause)
{
    struct pipe_net *net = (struct pipe_net *)base;
    assert(index < net->peer_count);
    struct pipe_peer *peer = &net->peers[index];
    struct pipe_end *end = peer->end;
    pipe_answering_drop(peer, cause);
    if (end == NULL || end->state == PIPE_END_CLOSING) {
        return;
    }
    pipe_end_tell_close(end, cause);
    if (end->state == PIPE_END_DIALING) {
        peer->end = NULL;
        pipe_end_retire(end, cause);
        return;
    }
    end->state = PIPE_END_CLOSING;
    end->cause = *cause;
    pipe_event_cancel(net->network, &end->timer);
    pipe_event_set(net->network, &end->deferred, net->network->now_ns);
}

void pipe_peer_free(struct pipe_net *net, struct pipe_peer *peer, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, STATUS_SHUTTING_DOWN, "node %s is shutting down", net->host->name);
    pipe_answering_drop(peer, &cause);
    struct pipe_end *end = peer->end;
    if (end == NULL) {
        return;
    }
    peer->end = NULL;
    if (end->state == PIPE_END_UP) {
        pipe_end_tell_close(end, &cause);
    }
    pipe_end_ref(end);
    pipe_end_retire(end, &cause);
    pipe_streams_lose(end, &cause, true, now_ns);
    pipe_end_unref(end);
}

/* --- Answering --- */

static void pipe_answer(struct pipe_net *net, const struct pipe_packet *packet)
{
    struct pipe_end *dialer = packet->from;
    uint32_t index = 0;
    while (index < net->peer_count && net->peers[index].host != packet->link->from) {
        index++;
    }
    if (index == net->peer_count || net->peers[index].removed) {
        struct error refusal;
        error_set(&refusal, STATUS_CERTIFICATE, "node %s does not know node %s", net->host->name,
                  packet->link->from->name);
        net->statistics.refused_handshakes++;
        pipe_close_send(net->host, dialer, PIPE_REFUSE, false, &refusal);
        return;
    }
    struct pipe_peer *peer = &net->peers[index];
    struct pipe_end *known[] = {peer->answering, peer->end};
    for (size_t i = 0; i < 2; i++) {
        if (known[i] == NULL || known[i]->dialed || known[i]->other == NULL) {
            continue;
        }
        if (known[i]->other == dialer) {
            pipe_tell(known[i], PIPE_ANSWER, NULL, 0);
            return;
        }
        if (known[i]->other->number > dialer->number) {
            return; /* an old attempt; a later one of the same peer is there already */
        }
    }
    if (net->host->busy_ns > time_after(net->network->now_ns, PIPE_BACKLOG_NS)) {
        return;
    }
    struct pipe_end *end = pipe_end_new(net, index, PIPE_END_ANSWERING);
    end->other = pipe_end_ref(dialer);
    end->settled = true;
    end->crossed = peer->end != NULL && peer->end->dialed && !peer->end->settled;
    pipe_answering_drop(peer, NULL);
    peer->answering = end;
    pipe_event_set(net->network, &end->timer, end->deadline_ns);
    pipe_tell(end, PIPE_ANSWER, NULL, 0);
}

/*
 * The dialler has this end's answer, so its connection replaces the existing one. If both dialled at once,
 * each would replace the other's connection, and none would be left. Then the connection stays that the lower
 * name dialled. Returns whether this end is up.
 */
static bool pipe_end_confirmed(struct pipe_end *end, uint64_t now_ns)
{
    struct pipe_peer *peer = pipe_end_peer(end);
    struct pipe_end *current = peer->end;
    struct error cause;
    error_set(&cause, STATUS_NODE_LOST, "node %s and node %s have another connection", end->remote->name,
              end->host->name);
    assert(peer->answering == end);
    peer->answering = NULL;
    if (current != NULL && current->state == PIPE_END_UP && current->dialed && end->crossed &&
        strcmp(end->host->name, end->remote->name) < 0) {
        pipe_end_tell_close(end, &cause);
        pipe_end_retire(end, &cause);
        return false;
    }
    if (current != NULL && current->state != PIPE_END_DIALING) {
        struct error why = current->cause.status == STATUS_OK ? cause : current->cause;
        pipe_end_tell_close(current, &cause);
        pipe_end_take_down(current, &why, now_ns);
    }
    if (peer->end !=
        NULL) { /* an attempt, perhaps one that peer_down's handler has begun: this connection fulfils it */
        struct pipe_end *attempt = peer->end;
        peer->end = NULL;
        pipe_end_retire(attempt, &cause);
    }
    peer->end = end;
    pipe_end_up(end, now_ns);
    return end->state == PIPE_END_UP;
}

/* --- Receiving --- */

/* A packet came for a connection that does not exist any more. Tells the sender why. */
static void pipe_reject(struct pipe_net *net, const struct pipe_packet *packet)
{
    net->statistics.dropped_datagrams++;
    if (packet->from == NULL) {
        return;
    }
    struct error cause = packet->to->cause;
    bool process_ended = packet->to->incarnation != net->incarnation;
    if (cause.status == STATUS_OK || process_ended) {
        error_set(&cause, STATUS_NODE_LOST, "node %s has no such connection", net->host->name);
    }
    pipe_close_send(net->host, packet->from, PIPE_CLOSE, process_ended, &cause);
}

static void pipe_closed_by_peer(struct pipe_end *end, const struct pipe_packet *packet, uint64_t now_ns)
{
    struct error cause = *packet->cause;
    switch (end->state) {
    case PIPE_END_DIALING:
        if (packet->kind != PIPE_REFUSE) {
            cause.status = STATUS_UNREACHABLE;
        }
        pipe_dial_failed(end, &cause, now_ns);
        return;
    case PIPE_END_ANSWERING:
        pipe_answering_drop(pipe_end_peer(end), NULL);
        return;
    case PIPE_END_UP:
        error_prefix(&cause, "node %s closed the connection", end->remote->name);
        pipe_end_peer(end)->closed_by_peer = true;
        pipe_end_peer(end)->process_ended = packet->process_ended || cause.status == STATUS_SHUTTING_DOWN;
        pipe_end_take_down(end, &cause, now_ns);
        return;
    case PIPE_END_CLOSING:
    case PIPE_END_GONE:
        return;
    }
}

static void pipe_nobody(struct pipe_end *end, uint64_t now_ns)
{
    struct pipe_net *net = end->net;
    if (end->state == PIPE_END_DIALING) {
        struct error cause;
        error_set(&cause, STATUS_UNREACHABLE, "nobody listens at node %s", end->remote->name);
        pipe_end_peer(end)->process_ended = true;
        pipe_dial_failed(end, &cause, now_ns);
    } else if (end->state == PIPE_END_UP && net->base.peer_handler.peer_suspect != NULL) {
        net->base.peer_handler.peer_suspect(net->base.peer_handler.context, end->peer, now_ns);
    }
}

/* Receives a packet from the other end of a connection that is up. */
static void pipe_end_receive(struct pipe_end *end, const struct pipe_packet *packet, uint64_t now_ns)
{
    if (packet->kind == PIPE_ACKNOWLEDGE) {
        pipe_end_acknowledged(end, now_ns);
    } else {
        pipe_tell(end, PIPE_ACKNOWLEDGE, packet->kind == PIPE_BYTES ? packet->channel : NULL,
                  packet->offset + packet->size);
    }
    if (packet->channel != NULL) {
        pipe_stream_receive(end, packet, now_ns);
    }
}

/* --- Probes: their packets carry the peer's index of the host that asks --- */

bool pipe_probe(struct net *base, uint32_t index)
{
    const struct pipe_net *net = (const struct pipe_net *)base;
    if (net->peers[index].removed || net->peers[index].unresolved) {
        return false;
    }
    struct pipe_packet *packet = pipe_packet_new(net->host, net->peers[index].host, PIPE_PROBE);
    packet->offset = index;
    pipe_packet_send(packet);
    return true;
}

static void pipe_probe_receive(struct pipe_net *net, const struct pipe_packet *packet, uint64_t now_ns)
{
    const struct net_peer_handler *handler = &net->base.peer_handler;
    if (packet->kind == PIPE_PROBE) {
        struct pipe_packet *answer = pipe_packet_new(net->host, packet->link->from, PIPE_PROBED);
        answer->offset = packet->offset;
        pipe_packet_send(answer);
    } else if (packet->offset >= net->peer_count) {
        return;
    } else if (packet->kind == PIPE_PROBED && handler->peer_answers != NULL) {
        handler->peer_answers(handler->context, (uint32_t)packet->offset, now_ns);
    } else if (packet->kind == PIPE_REFUSED && handler->peer_refuses != NULL &&
               net->peers[packet->offset].end == NULL) {
        handler->peer_refuses(handler->context, (uint32_t)packet->offset, now_ns);
    }
}

void pipe_connection_receive(struct pipe_net *net, struct pipe_packet *packet, uint64_t now_ns)
{
    net->statistics.received_datagrams++;
    if (packet->kind == PIPE_DIAL) {
        pipe_answer(net, packet);
        return;
    }
    if (packet->kind == PIPE_PROBE || packet->kind == PIPE_PROBED || packet->kind == PIPE_REFUSED) {
        pipe_probe_receive(net, packet, now_ns);
        return;
    }
    struct pipe_end *end = packet->to;
    if (end->state == PIPE_END_GONE || end->net != net) {
        pipe_reject(net, packet);
        return;
    }
    pipe_end_peer(end)->received_bytes += packet->size + PIPE_PACKET_BYTES;
    pipe_end_peer(end)->received_packets += packet->kind == PIPE_BYTES;
    if (end->state == PIPE_END_CLOSING) {
        return;
    }
    switch (packet->kind) {
    case PIPE_DIAL:
    case PIPE_PROBE:
    case PIPE_PROBED:
    case PIPE_REFUSED:
    case PIPE_KINDS:
        break;
    case PIPE_ANSWER:
        if (end->state == PIPE_END_DIALING) {
            end->other = pipe_end_ref(packet->from);
            end->round_trip_ns = now_ns - end->asked_ns;
            pipe_end_up(end, now_ns);
        }
        break;
    case PIPE_REFUSE:
    case PIPE_CLOSE:
        pipe_closed_by_peer(end, packet, now_ns);
        break;
    case PIPE_NOBODY:
        pipe_nobody(end, now_ns);
        break;
    case PIPE_CONFIRM:
    case PIPE_BYTES:
    case PIPE_RESET:
    case PIPE_STOP:
    case PIPE_WINDOW:
    case PIPE_ACKNOWLEDGE:
        end->heard_ns = now_ns;
        end->settled = true;
        if (end->state == PIPE_END_UP ||
            (end->state == PIPE_END_ANSWERING && pipe_end_confirmed(end, now_ns))) {
            pipe_end_receive(end, packet, now_ns);
        }
        break;
    }
}
