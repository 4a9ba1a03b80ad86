#include "tests/network/mem_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#define MEM_DIAL_RETRY_MAX_NS (250 * TIME_MS)

/* What mem_trace says of events that are no packets. */
enum { MEM_TRACE_TIMER = 100, MEM_TRACE_DISCONNECT };

/* --- Ends --- */

struct mem_peer *mem_end_peer(const struct mem_end *end)
{
    return end->net->peers[end->peer];
}

struct mem_end *mem_end_ref(struct mem_end *end)
{
    end->references++;
    return end;
}

void mem_end_unref(struct mem_end *end)
{
    if (end == NULL || --end->references > 0) {
        return;
    }
    assert(end->state == MEM_END_GONE && end->flights == NULL && end->senders == NULL &&
           end->receivers == NULL);
    free(end->cause);
    free(end);
}

static void mem_end_timer(struct mem_event *event, uint64_t now_ns);
static void mem_end_deferred(struct mem_event *event, uint64_t now_ns);

static struct mem_end *mem_end_new(struct mem_net *net, struct mem_peer *peer, enum mem_end_state state)
{
    struct mem_events *events = &net->network->events;
    struct mem_end *end = calloc(1, sizeof *end);
    if (end == NULL) {
        return NULL;
    }
    if (mem_event_claim(events, &end->timer, mem_end_timer) != STATUS_OK ||
        mem_event_claim(events, &end->deferred, mem_end_deferred) != STATUS_OK) {
        mem_event_release(events, &end->timer);
        free(end);
        return NULL;
    }
    end->references = 1;
    end->state = state;
    end->number = net->network->end_count++;
    end->host = net->host;
    end->remote = peer->host;
    end->net = net;
    end->incarnation = net->incarnation;
    end->peer = peer->index;
    end->deadline_ns = time_after(net->network->now_ns, MEM_CONNECT_TIMEOUT_NS);
    return end;
}

/* Takes the end out of business; its streams are the caller's to close. Drops the caller's reference. */
static void mem_end_retire(struct mem_end *end, const struct error *cause)
{
    struct mem_events *events = &end->host->network->events;
    assert(end->state != MEM_END_GONE);
    end->state = MEM_END_GONE;
    if (end->cause == NULL && cause != NULL) {
        end->cause = malloc(sizeof *end->cause);
        if (end->cause != NULL) {
            *end->cause = *cause;
        }
    }
    mem_event_release(events, &end->timer);
    mem_event_release(events, &end->deferred);
    mem_flight_give_up_all(end);
    struct mem_end *other = end->other;
    end->other = NULL;
    end->net = NULL;
    mem_end_unref(other);
    mem_end_unref(end);
}

static void mem_close_send(struct mem_host *from, struct mem_end *to, enum mem_packet_kind kind,
                           enum status status, const char *text)
{
    size_t size = strnlen(text, MEM_CLOSE_TEXT_MAX_BYTES);
    struct mem_packet *packet = mem_packet_new(from, to->host, kind, (uint32_t)size);
    if (packet != NULL) {
        mem_packet_between(packet, NULL, to);
        packet->status = status;
        memcpy(packet->bytes, text, size);
        mem_packet_send(packet);
    }
}

static void mem_end_tell(struct mem_end *end, enum status status, const char *text)
{
    if (end->other != NULL) {
        mem_close_send(end->host, end->other, MEM_PACKET_CLOSE, status, text);
    }
}

void mem_end_take_down(struct mem_end *end, const struct error *cause, uint64_t now_ns)
{
    struct mem_net *net = end->net;
    struct mem_peer *peer = mem_end_peer(end);
    struct error reason;
    error_set(&reason, cause->status == STATUS_OK ? STATUS_NODE_LOST : cause->status, "%s", cause->text);
    assert(peer->end == end && (end->state == MEM_END_UP || end->state == MEM_END_CLOSING));
    mem_end_ref(end);
    peer->end = NULL; /* who connects from a handler below begins anew */
    mem_end_retire(end, &reason);
    while (end->receivers != NULL) {
        mem_receiver_close(end->receivers, &reason, false, now_ns);
    }
    while (end->senders != NULL) {
        mem_sender_lose(end->senders, reason.status, now_ns);
    }
    uint32_t index = end->peer;
    mem_end_unref(end);
    if (net->base.peer_handler.peer_down != NULL) {
        net->base.peer_handler.peer_down(net->base.peer_handler.context, index, &reason, now_ns);
    }
}

static void mem_end_up(struct mem_end *end, uint64_t now_ns)
{
    struct mem_net *net = end->net;
    end->state = MEM_END_UP;
    end->heard_ns = now_ns;
    mem_event_cancel(&net->network->events, &end->timer);
    mem_end_peer(end)->connected_count++;
    mem_end_peer(end)->closed_by_peer = false;
    if (end->dialed) {
        mem_flight_signal(end, MEM_PACKET_CONFIRM, NULL, 0);
    }
    if (net->base.peer_handler.peer_up != NULL) {
        net->base.peer_handler.peer_up(net->base.peer_handler.context, end->peer, now_ns);
    }
}

void mem_end_fail(struct mem_end *end, const struct error *cause)
{
    if (end->state == MEM_END_UP) {
        mem_disconnect(&end->net->base, end->peer, cause);
    }
}

static void mem_end_deferred(struct mem_event *event, uint64_t now_ns)
{
    struct mem_end *end = (struct mem_end *)((char *)event - offsetof(struct mem_end, deferred));
    mem_trace(end->host->network, MEM_TRACE_DISCONNECT, end->host->id, end->remote->id, 0, 0);
    struct error cause;
    if (end->cause != NULL) {
        cause = *end->cause;
    } else {
        error_set(&cause, STATUS_NO_MEMORY, "connection to node %s dropped", end->remote->name);
    }
    mem_end_take_down(end, &cause, now_ns);
}

/* --- Dialling --- */

static void mem_dial_failed(struct mem_end *end, const struct error *cause, uint64_t now_ns)
{
    struct mem_net *net = end->net;
    struct mem_peer *peer = mem_end_peer(end);
    assert(peer->end == end && end->state == MEM_END_DIALING);
    peer->end = NULL;
    mem_end_retire(end, cause);
    if (net->base.peer_handler.connect_failed != NULL) {
        net->base.peer_handler.connect_failed(net->base.peer_handler.context, peer->index, cause, now_ns);
    }
}

static void mem_dial_again(struct mem_end *end, uint64_t now_ns)
{
    struct error cause;
    if (now_ns >= end->deadline_ns) {
        error_set(&cause, STATUS_TIMED_OUT, "node %s did not answer node %s within %llu ms",
                  end->remote->name, end->host->name, (unsigned long long)(MEM_CONNECT_TIMEOUT_NS / TIME_MS));
        mem_dial_failed(end, &cause, now_ns);
        return;
    }
    struct mem_packet *packet = mem_packet_new(end->host, end->remote, MEM_PACKET_DIAL, 0);
    if (packet != NULL) {
        if (end->retry_ns == 0) {
            end->retry_ns = mem_link_retransmission_ns(packet->link);
        }
        mem_packet_between(packet, end, NULL);
        mem_packet_send(packet);
    }
    mem_event_schedule(&end->host->network->events, &end->timer,
                       time_min(end->deadline_ns, time_after(now_ns, end->retry_ns)));
    uint64_t most_ns = end->retry_ns > MEM_DIAL_RETRY_MAX_NS ? end->retry_ns : MEM_DIAL_RETRY_MAX_NS;
    end->retry_ns = time_min(2 * end->retry_ns, most_ns);
}

static void mem_end_timer(struct mem_event *event, uint64_t now_ns)
{
    struct mem_end *end = (struct mem_end *)((char *)event - offsetof(struct mem_end, timer));
    mem_trace(end->host->network, MEM_TRACE_TIMER, end->host->id, end->remote->id, end->number, 0);
    switch (end->state) {
    case MEM_END_DIALING:
        mem_dial_again(end, now_ns);
        return;
    case MEM_END_ANSWERING: /* the dialler has not confirmed: nobody is told */
        mem_end_peer(end)->answering = NULL;
        mem_end_retire(end, NULL);
        return;
    case MEM_END_UP:
        mem_flight_timer(end, now_ns);
        return;
    case MEM_END_CLOSING:
    case MEM_END_GONE:
        return;
    }
}

enum status mem_connect(struct net *base, uint32_t index, struct error *error)
{
    struct mem_net *net = (struct mem_net *)base;
    assert(index < net->peer_count);
    struct mem_peer *peer = net->peers[index];
    if (net->freeing) {
        return error_set(error, STATUS_SHUTTING_DOWN, "node %s is going", net->host->name);
    }
    if (peer->removed) {
        return error_set(error, STATUS_PERMISSION, "node %s is no peer of node %s any more", peer->host->name,
                         net->host->name);
    }
    if (peer->end != NULL) {
        return STATUS_OK;
    }
    peer->end = mem_end_new(net, peer, MEM_END_DIALING);
    if (peer->end == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a connection to node %s", peer->host->name);
    }
    peer->end->dialed = true;
    if (peer->answering != NULL) {
        peer->answering->crossed = true;
    }
    mem_event_schedule(&net->network->events, &peer->end->timer, net->network->now_ns);
    return STATUS_OK;
}

static void mem_answering_drop(struct mem_peer *peer, const struct error *cause)
{
    struct mem_end *end = peer->answering;
    if (end != NULL) {
        peer->answering = NULL;
        if (cause != NULL) {
            mem_end_tell(end, cause->status, cause->text);
        }
        mem_end_retire(end, cause);
    }
}

void mem_disconnect(struct net *base, uint32_t index, const struct error *cause)
{
    struct mem_net *net = (struct mem_net *)base;
    assert(index < net->peer_count);
    struct mem_peer *peer = net->peers[index];
    struct mem_end *end = peer->end;
    mem_answering_drop(peer, cause);
    if (end == NULL || end->state == MEM_END_CLOSING) {
        return;
    }
    mem_end_tell(end, cause->status, cause->text);
    if (end->state == MEM_END_DIALING) {
        peer->end = NULL;
        mem_end_retire(end, cause);
        return;
    }
    end->state = MEM_END_CLOSING;
    end->cause = malloc(sizeof *end->cause);
    if (end->cause != NULL) {
        *end->cause = *cause;
    }
    mem_flight_give_up_all(end);
    mem_event_cancel(&net->network->events, &end->timer);
    mem_event_schedule(&net->network->events, &end->deferred, net->network->now_ns);
}

void mem_peer_free(struct mem_net *net, struct mem_peer *peer, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, STATUS_SHUTTING_DOWN, "node %s is shutting down", net->host->name);
    mem_answering_drop(peer, &cause);
    struct mem_end *end = peer->end;
    if (end == NULL) {
        return;
    }
    peer->end = NULL;
    if (end->state == MEM_END_UP) {
        mem_end_tell(end, cause.status, cause.text);
    }
    mem_end_ref(end);
    mem_end_retire(end, &cause);
    while (end->receivers != NULL) {
        mem_receiver_close(end->receivers, &cause, true, now_ns);
    }
    while (end->senders != NULL) {
        mem_sender_destroy(end->senders, now_ns);
    }
    mem_end_unref(end);
}

/* --- Answering --- */

static void mem_answer_send(struct mem_end *end, struct mem_end *dialer)
{
    struct mem_packet *packet = mem_packet_new(end->host, dialer->host, MEM_PACKET_ANSWER, 0);
    if (packet != NULL) {
        mem_packet_between(packet, end, dialer);
        mem_packet_send(packet);
    }
}

static void mem_answer(struct mem_net *net, struct mem_packet *packet)
{
    struct mem_end *dialer = packet->from;
    struct mem_peer *peer = NULL;
    uint32_t host_id = packet->link->from->id;
    HASH_FIND(hh, net->peers_by_host, &host_id, sizeof host_id, peer);
    if (peer == NULL || peer->removed) {
        struct error refusal;
        error_set(&refusal, STATUS_CERTIFICATE, "node %s does not know node %s", net->host->name,
                  packet->link->from->name);
        net->statistics.refused_handshakes++;
        mem_close_send(net->host, dialer, MEM_PACKET_REFUSE, refusal.status, refusal.text);
        return;
    }
    struct mem_end *known[] = {peer->answering, peer->end};
    for (size_t i = 0; i < 2; i++) {
        if (known[i] == NULL || known[i]->dialed || known[i]->other == NULL) {
            continue;
        }
        if (known[i]->other == dialer) {
            mem_answer_send(known[i], dialer);
            return;
        }
        if (known[i]->other->number > dialer->number) {
            return; /* of an attempt that a later one has overtaken */
        }
    }
    struct mem_end *end = mem_end_new(net, peer, MEM_END_ANSWERING);
    if (end == NULL) {
        return; /* as if lost: the peer tries again */
    }
    end->other = mem_end_ref(dialer);
    end->settled = true;
    end->crossed = peer->end != NULL && peer->end->dialed && !peer->end->settled;
    mem_answering_drop(peer, NULL);
    peer->answering = end;
    mem_event_schedule(&net->network->events, &end->timer, end->deadline_ns);
    mem_answer_send(end, dialer);
}

/*
 * The dialler has our answer: its connection replaces ours. When both dialled at once, both would replace the
 * other's, and none would be left: then the connection that the lower name dialled stays. Returns whether
 * this end is up.
 */
static bool mem_end_confirmed(struct mem_end *end, uint64_t now_ns)
{
    struct mem_peer *peer = mem_end_peer(end);
    struct mem_end *current = peer->end;
    struct error cause;
    error_set(&cause, STATUS_NODE_LOST, "node %s and node %s have another connection", end->remote->name,
              end->host->name);
    assert(peer->answering == end);
    peer->answering = NULL;
    if (current != NULL && current->state == MEM_END_UP && current->dialed && end->crossed &&
        strcmp(end->host->name, end->remote->name) < 0) {
        mem_end_tell(end, cause.status, cause.text);
        mem_end_retire(end, &cause);
        return false;
    }
    if (current != NULL && current->state != MEM_END_DIALING) {
        mem_end_tell(current, cause.status, cause.text);
        mem_end_take_down(current, current->cause == NULL ? &cause : current->cause, now_ns);
    }
    if (peer->end !=
        NULL) { /* an attempt, perhaps one that peer_down's handler has begun: it succeeds by this */
        struct mem_end *attempt = peer->end;
        peer->end = NULL;
        mem_end_retire(attempt, &cause);
    }
    peer->end = end;
    mem_end_up(end, now_ns);
    return end->state == MEM_END_UP;
}

/* --- What arrives --- */

/* A packet for a connection that is not, any more: whoever sent it is told, and why. */
static void mem_reject(struct mem_net *net, const struct mem_packet *packet)
{
    net->statistics.dropped_datagrams++;
    if (packet->from == NULL) {
        return;
    }
    struct error cause;
    if (packet->to->cause != NULL && packet->to->incarnation == net->incarnation) {
        cause = *packet->to->cause;
    } else {
        error_set(&cause, STATUS_NODE_LOST, "node %s has no such connection", net->host->name);
    }
    mem_close_send(net->host, packet->from, MEM_PACKET_CLOSE, cause.status, cause.text);
}

static void mem_closed_by_peer(struct mem_end *end, const struct mem_packet *packet, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, packet->status, "%.*s", (int)packet->size, (const char *)packet->bytes);
    switch (end->state) {
    case MEM_END_DIALING:
        if (packet->kind != MEM_PACKET_REFUSE) {
            cause.status = STATUS_UNREACHABLE;
        }
        mem_dial_failed(end, &cause, now_ns);
        return;
    case MEM_END_ANSWERING:
        mem_answering_drop(mem_end_peer(end), NULL);
        return;
    case MEM_END_UP:
        error_prefix(&cause, "node %s closed the connection", end->remote->name);
        mem_end_peer(end)->closed_by_peer = true;
        mem_end_take_down(end, &cause, now_ns);
        return;
    case MEM_END_CLOSING:
    case MEM_END_GONE:
        return;
    }
}

static void mem_nobody(struct mem_end *end, uint64_t now_ns)
{
    struct mem_net *net = end->net;
    if (end->state == MEM_END_DIALING) {
        struct error cause;
        error_set(&cause, STATUS_UNREACHABLE, "nobody listens at node %s", end->remote->name);
        mem_dial_failed(end, &cause, now_ns);
    } else if (end->state == MEM_END_UP && net->base.peer_handler.peer_suspect != NULL) {
        net->base.peer_handler.peer_suspect(net->base.peer_handler.context, end->peer, now_ns);
    }
}

/* Of the other end of a connection that is up: a flight, or the acknowledgement of ours. */
static void mem_flight_receive(struct mem_end *end, struct mem_packet *packet, uint64_t now_ns)
{
    if (packet->kind == MEM_PACKET_ACKNOWLEDGE) {
        mem_flight_acknowledged(end, packet->flight, now_ns);
        return;
    }
    if (packet->kind == MEM_PACKET_SEGMENT) {
        mem_receive_segment(end, packet, now_ns);
        return;
    }
    struct mem_packet *answer = mem_packet_new(end->host, end->remote, MEM_PACKET_ACKNOWLEDGE, 0);
    if (answer != NULL) {
        mem_packet_between(answer, end, packet->from);
        answer->flight = mem_flight_ref(packet->flight);
        mem_packet_send(answer);
    }
    struct mem_channel *channel = packet->channel;
    if (packet->kind == MEM_PACKET_RESET) {
        mem_receive_reset(end, channel, now_ns);
    } else if (packet->kind == MEM_PACKET_STOP && channel->sender != NULL) {
        mem_sender_lose(channel->sender, STATUS_ABORTED, now_ns);
    } else if (packet->kind == MEM_PACKET_WINDOW && channel->sender != NULL) {
        mem_sender_window(channel->sender, packet->offset);
    }
}

void mem_connection_receive(struct mem_net *net, struct mem_packet *packet, uint64_t now_ns)
{
    net->statistics.received_datagrams++;
    if (packet->kind == MEM_PACKET_DIAL) {
        mem_answer(net, packet);
        return;
    }
    struct mem_end *end = packet->to;
    if (end->state == MEM_END_GONE || end->net != net) {
        mem_reject(net, packet);
        return;
    }
    mem_end_peer(end)->received_bytes += packet->size + MEM_CONTROL_PACKET_BYTES;
    if (end->state == MEM_END_CLOSING) {
        return;
    }
    mem_end_ref(end);
    switch (packet->kind) {
    case MEM_PACKET_DIAL:
        break;
    case MEM_PACKET_ANSWER:
        end->heard_ns = now_ns;
        if (end->state == MEM_END_DIALING) {
            end->other = mem_end_ref(packet->from);
            mem_end_up(end, now_ns);
        }
        break;
    case MEM_PACKET_REFUSE:
    case MEM_PACKET_CLOSE:
        mem_closed_by_peer(end, packet, now_ns);
        break;
    case MEM_PACKET_NOBODY:
        mem_nobody(end, now_ns);
        break;
    case MEM_PACKET_CONFIRM:
    case MEM_PACKET_SEGMENT:
    case MEM_PACKET_RESET:
    case MEM_PACKET_STOP:
    case MEM_PACKET_WINDOW:
    case MEM_PACKET_ACKNOWLEDGE:
        end->heard_ns = now_ns;
        if (end->state == MEM_END_UP || (end->state == MEM_END_ANSWERING && mem_end_confirmed(end, now_ns))) {
            mem_flight_receive(end, packet, now_ns);
        }
        break;
    }
    mem_end_unref(end);
}
