#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/array.h"
#include "daemon/base/hash.h"
#include "tests/network/pipe_internal.h"

void *pipe_alloc(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static struct pipe_network *pipe_network_of(struct network *network)
{
    return (struct pipe_network *)network;
}

/* --- Events --- */

void pipe_event_set(struct pipe_network *network, struct pipe_event *event, uint64_t at_ns)
{
    if (!timer_heap_reserve(&network->events, network->events.count + 1)) {
        abort();
    }
    timer_heap_set(&network->events, &event->node, at_ns);
}

void pipe_event_cancel(struct pipe_network *network, struct pipe_event *event)
{
    timer_heap_remove(&network->events, &event->node);
}

static uint64_t pipes_next_ns(const struct network *network)
{
    const struct timer_node *first = timer_heap_first(&((const struct pipe_network *)network)->events);
    return first == NULL ? TIME_NEVER : first->deadline_ns;
}

static void pipes_advance(struct network *base, uint64_t now_ns)
{
    struct pipe_network *network = pipe_network_of(base);
    assert(now_ns >= network->now_ns);
    assert(!network->advancing); /* handlers must not call this */
    network->advancing = true;
    for (struct timer_node *first; (first = timer_heap_first(&network->events)) != NULL;) {
        if (first->deadline_ns > now_ns) {
            break;
        }
        timer_heap_remove(&network->events, first);
        network->now_ns = first->deadline_ns > network->now_ns ? first->deadline_ns : network->now_ns;
        struct pipe_event *event = (struct pipe_event *)((char *)first - offsetof(struct pipe_event, node));
        event->fire(event, network->now_ns);
    }
    network->now_ns = now_ns;
    network->advancing = false;
}

/* --- Hosts and links --- */

static struct pipe_host *pipe_host_intern(struct pipe_network *network, const char *name)
{
    struct pipe_host *host = NULL;
    HASH_FIND_STR(network->hosts, name, host);
    if (host == NULL) {
        host = pipe_alloc(1, sizeof *host);
        assert(strlen(name) <= NODE_NAME_MAX_BYTES);
        host->network = network;
        host->id = network->host_count++;
        memcpy(host->name, name, strlen(name));
        HASH_ADD_STR(network->hosts, name, host);
    }
    return host;
}

struct pipe_link *pipe_link_between(struct pipe_host *from, struct pipe_host *to)
{
    struct pipe_network *network = from->network;
    uint64_t key = (uint64_t)from->id << 32 | to->id;
    struct pipe_link *link = NULL;
    HASH_FIND(hh, network->links, &key, sizeof key, link);
    if (link == NULL) {
        link = pipe_alloc(1, sizeof *link);
        link->key = key;
        link->from = from;
        link->to = to;
        link->conditions = network->conditions;
        HASH_ADD(hh, network->links, key, sizeof link->key, link);
    }
    return link;
}

static struct pipe_link *pipe_link_named(struct network *base, const char *from, const char *to)
{
    struct pipe_network *network = pipe_network_of(base);
    return pipe_link_between(pipe_host_intern(network, from), pipe_host_intern(network, to));
}

static void pipes_set_link(struct network *network, const char *from, const char *to,
                           const struct network_conditions *conditions)
{
    pipe_link_named(network, from, to)->conditions = *conditions;
}

static void pipes_kill(struct network *network, const char *name)
{
    pipe_host_intern(pipe_network_of(network), name)->dead = true;
}

/* --- Packets --- */

static void pipe_packet_free(struct pipe_packet *packet)
{
    pipe_end_unref(packet->from);
    pipe_end_unref(packet->to);
    pipe_channel_unref(packet->channel);
    free(packet->cause);
    free(packet);
}

static void pipe_packet_trace(const struct pipe_packet *packet)
{
    struct pipe_network *network = packet->link->from->network;
    uint64_t words[] = {network->now_ns, packet->link->key, packet->kind, packet->offset, packet->size};
    network->base.counters.trace_hash = hash_bytes(network->base.counters.trace_hash, words, sizeof words);
}

static void pipe_packet_arrive(struct pipe_event *event, uint64_t now_ns)
{
    struct pipe_packet *packet = (struct pipe_packet *)event;
    struct pipe_host *host = packet->link->to;
    if (packet->link->cut) {
        if (packet->kind <= PIPE_CLOSE) {
            /* dropped: a dialling end dials again, and later packets learn that the connection is closed */
            pipe_packet_free(packet);
            return;
        }
        *(packet->link->held == NULL ? &packet->link->held : &packet->link->held_last->next) = packet;
        packet->link->held_last = packet;
        return;
    }
    pipe_packet_trace(packet);
    if (!host->dead && host->net != NULL) {
        pipe_connection_receive(host->net, packet, now_ns);
    } else if (!host->dead && packet->from != NULL) {
        struct pipe_packet *answer = pipe_packet_new(host, packet->link->from, PIPE_NOBODY);
        answer->to = pipe_end_ref(packet->from);
        pipe_packet_send(answer);
    } else if (!host->dead && packet->kind == PIPE_PROBE) {
        struct pipe_packet *answer = pipe_packet_new(host, packet->link->from, PIPE_REFUSED);
        answer->offset = packet->offset;
        pipe_packet_send(answer);
    }
    pipe_packet_free(packet);
}

struct pipe_packet *pipe_packet_new(struct pipe_host *from, struct pipe_host *to, enum pipe_packet_kind kind)
{
    struct pipe_packet *packet = pipe_alloc(1, sizeof *packet);
    packet->event = (struct pipe_event){.node.index = TIMER_NODE_DISARMED, .fire = pipe_packet_arrive};
    packet->link = pipe_link_between(from, to);
    packet->kind = kind;
    return packet;
}

/* Returns when a packet arrives, which is never at once: a handler's answer must not arrive before the
 * handler is done. */
static uint64_t pipe_arrival_ns(struct pipe_link *link, uint64_t left_ns)
{
    const struct network_conditions *conditions = &link->conditions;
    uint64_t delay_ns = conditions->delay_ns;
    if (conditions->jitter_ns > 0) {
        delay_ns += random_below(&link->from->network->random, conditions->jitter_ns + 1);
    }
    uint64_t at_ns = left_ns + (delay_ns == 0 ? 1 : delay_ns);
    link->last_ns = at_ns > link->last_ns ? at_ns : link->last_ns;
    return link->last_ns;
}

void pipe_packet_send(struct pipe_packet *packet)
{
    struct pipe_link *link = packet->link;
    struct pipe_network *network = link->from->network;
    if (link->from->dead || (link->cut && packet->kind <= PIPE_CLOSE)) {
        pipe_packet_free(packet);
        return;
    }
    uint64_t size = (uint64_t)packet->size + PIPE_PACKET_BYTES;
    bool shakes_hands = packet->kind == PIPE_DIAL || packet->kind == PIPE_ANSWER;
    uint64_t left_ns = network->now_ns;
    if (shakes_hands && packet->from->worked_ns > left_ns) {
        left_ns = packet->from->worked_ns;
    }
    if (link->conditions.bandwidth_bytes_s > 0) {
        left_ns = link->free_ns > left_ns ? link->free_ns : left_ns;
        left_ns += size * TIME_S / link->conditions.bandwidth_bytes_s;
        link->free_ns = left_ns;
    }
    network->base.counters.packets++;
    network->base.counters.stream_bytes += packet->size;
    if (packet->from != NULL && packet->from->net != NULL) {
        pipe_end_peer(packet->from)->sent_bytes += size;
        pipe_end_peer(packet->from)->sent_packets += packet->kind == PIPE_BYTES;
    }
    pipe_event_set(network, &packet->event, pipe_arrival_ns(link, left_ns));
}

void pipe_tell(struct pipe_end *end, enum pipe_packet_kind kind, struct pipe_channel *channel,
               uint64_t offset)
{
    struct pipe_packet *packet = pipe_packet_new(end->host, end->remote, kind);
    packet->from = pipe_end_ref(end);
    packet->to = end->other == NULL ? NULL : pipe_end_ref(end->other);
    packet->offset = offset;
    if (channel != NULL) {
        channel->references++;
        packet->channel = channel;
    }
    if (kind >= PIPE_CONFIRM && kind < PIPE_ACKNOWLEDGE) {
        pipe_end_asks(end);
    }
    pipe_packet_send(packet);
}

/* Cuts or heals a link. After healing, the packets that it held arrive at once, in order, before those
 * still under way. */
static void pipes_cut(struct network *base, const char *from, const char *to, bool cut)
{
    struct pipe_link *link = pipe_link_named(base, from, to);
    link->cut = cut;
    while (!cut && link->held != NULL) {
        struct pipe_packet *packet = link->held;
        link->held = packet->next;
        packet->next = NULL;
        pipe_event_set(pipe_network_of(base), &packet->event, pipe_network_of(base)->now_ns);
    }
}

/* --- Endpoints --- */

static void pipe_free(struct net *base)
{
    struct pipe_net *net = (struct pipe_net *)base;
    net->freeing = true;
    for (uint32_t i = 0; i < net->peer_count; i++) {
        pipe_peer_free(net, &net->peers[i], net->network->now_ns);
    }
    pipe_lost_free(net, net->network->now_ns);
    net->host->net = NULL;
    free(net->peers);
    free(net);
}

/* Addresses mean nothing here, except that one like "name:1" is not resolved. */
static bool is_name(const char *address)
{
    return address != NULL && strncmp(address, "name", 4) == 0;
}

static enum status pipe_add_peer(struct net *base, const char *name, const char *address, uint32_t *index,
                                 struct error *error)
{
    struct pipe_net *net = (struct pipe_net *)base;
    struct pipe_host *host = pipe_host_intern(net->network, name);
    if (host == net->host) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "node %s cannot be its own peer", name);
    }
    for (uint32_t i = 0; i < net->peer_count; i++) {
        if (net->peers[i].host == host) {
            *index = i;
            if (!net->peers[i].removed) {
                return error_set(error, STATUS_ALREADY_EXISTS, "node %s has a peer %s already",
                                 net->host->name, name);
            }
            net->peers[i].removed = false;
            net->peers[i].unresolved = is_name(address);
            return STATUS_OK;
        }
    }
    *index = *index == NET_PEER_ANY ? net->peer_count : *index;
    struct pipe_peer *peers = array_reserve(net->peers, &net->peer_capacity, sizeof *peers, *index + 1);
    if (peers == NULL) {
        abort();
    }
    net->peers = peers;
    if (peers[*index].host != NULL) {
        return error_set(error, STATUS_ALREADY_EXISTS, "node %s has another peer %u", net->host->name,
                         *index);
    }
    net->peer_count = *index < net->peer_count ? net->peer_count : *index + 1;
    net->peers[*index] = (struct pipe_peer){.host = host, .unresolved = is_name(address)};
    return STATUS_OK;
}

static void pipe_remove_peer(struct net *base, uint32_t index, const struct error *cause)
{
    ((struct pipe_net *)base)->peers[index].removed = true;
    pipe_disconnect(base, index, cause);
}

/* Hosts are found by name, so an address has no meaning here. */
static enum status pipe_move_peer(struct net *base, uint32_t index, const char *address, struct error *error)
{
    const struct pipe_net *net = (const struct pipe_net *)base;
    const struct pipe_end *end = net->peers[index].end;
    (void)error;
    net->peers[index].unresolved = is_name(address);
    if (end != NULL && end->state == PIPE_END_DIALING) {
        struct error cause;
        error_set(&cause, STATUS_UNREACHABLE, "node %s has moved", net->peers[index].host->name);
        pipe_disconnect(base, index, &cause);
    }
    return STATUS_OK;
}

static void pipe_peer_statistics(const struct net *base, uint32_t index, struct net_peer_statistics *out)
{
    const struct pipe_net *net = (const struct pipe_net *)base;
    const struct pipe_peer *peer = &net->peers[index];
    *out = (struct net_peer_statistics){
        .up = peer->end != NULL && peer->end->state == PIPE_END_UP,
        .round_trip_ns = peer->end == NULL ? 0 : peer->end->round_trip_ns,
        .sent_bytes = peer->sent_bytes,
        .received_bytes = peer->received_bytes,
        .sent_packets = peer->sent_packets,
        .received_packets = peer->received_packets,
        .datagram_bytes = net->network->conditions.packet_bytes,
        .connected_count = peer->connected_count,
        .closed_by_peer = peer->closed_by_peer,
        .process_ended = peer->process_ended,
        .unresolved = peer->unresolved,
    };
}

static void pipe_statistics(const struct net *base, struct net_statistics *out)
{
    *out = ((const struct pipe_net *)base)->statistics;
}

static const struct net_operations net_operations = {
    .free = pipe_free,
    .add_peer = pipe_add_peer,
    .remove_peer = pipe_remove_peer,
    .move_peer = pipe_move_peer,
    .connect = pipe_connect,
    .disconnect = pipe_disconnect,
    .probe = pipe_probe,
    .stream_open = pipe_stream_open,
    .streams.send = pipe_stream_send,
    .streams.finish = pipe_stream_finish,
    .streams.reset = pipe_stream_reset,
    .streams.resume = pipe_stream_resume,
    .streams.expect = pipe_stream_expect,
    .peer_statistics = pipe_peer_statistics,
    .statistics = pipe_statistics,
};

static struct net *pipes_add(struct network *base, const char *name)
{
    struct pipe_network *network = pipe_network_of(base);
    struct pipe_host *host = pipe_host_intern(network, name);
    struct pipe_net *net = pipe_alloc(1, sizeof *net);
    assert(host->net == NULL);
    net->base.operations = &net_operations;
    net->network = network;
    net->host = host;
    net->incarnation = network->net_count++;
    host->net = net;
    host->dead = false;
    return &net->base;
}

/* --- The network --- */

static void pipes_address(const struct network *network, const char *name,
                          char out[NETWORK_ADDRESS_MAX_BYTES])
{
    (void)network;
    (void)name;
    (void)snprintf(out, NETWORK_ADDRESS_MAX_BYTES, "127.0.0.1:1");
}

static void pipes_free(struct network *base)
{
    struct pipe_network *network = pipe_network_of(base);
    struct timer_node *first;
    /* All nets are gone, so the remaining events are packets. */
    while ((first = timer_heap_first(&network->events)) != NULL) {
        timer_heap_remove(&network->events, first);
        pipe_packet_free((struct pipe_packet *)((char *)first - offsetof(struct pipe_packet, event.node)));
    }
    timer_heap_free(&network->events);
    struct pipe_link *link, *next_link;
    HASH_ITER (hh, network->links, link, next_link) {
        HASH_DEL(network->links, link);
        while (link->held != NULL) {
            struct pipe_packet *packet = link->held;
            link->held = packet->next;
            pipe_packet_free(packet);
        }
        free(link);
    }
    struct pipe_host *host, *next_host;
    HASH_ITER (hh, network->hosts, host, next_host) {
        assert(host->net == NULL);
        HASH_DEL(network->hosts, host);
        free(host);
    }
    free(network);
}

static const struct network_operations pipes_operations = {
    .free = pipes_free,
    .add = pipes_add,
    .address = pipes_address,
    .next_ns = pipes_next_ns,
    .advance = pipes_advance,
    .set_link = pipes_set_link,
    .cut = pipes_cut,
    .kill = pipes_kill,
};

struct network *network_new_pipes(uint64_t seed, const struct network_conditions *conditions)
{
    struct pipe_network *network = pipe_alloc(1, sizeof *network);
    network->base.operations = &pipes_operations;
    network->conditions = *conditions;
    random_seed(&network->random, seed);
    return &network->base;
}
