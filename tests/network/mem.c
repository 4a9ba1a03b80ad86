#include "tests/network/mem_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/hash.h"

/* --- Hosts and links --- */

struct mem_host *mem_host_intern(struct mem_network *network, const char *name)
{
    struct mem_host *host = NULL;
    HASH_FIND_STR(network->hosts, name, host);
    if (host != NULL) {
        return host;
    }
    assert(strlen(name) <= NODE_NAME_MAX_BYTES);
    host = calloc(1, sizeof *host);
    if (host == NULL) {
        return NULL;
    }
    host->network = network;
    host->id = network->host_count;
    memcpy(host->name, name, strlen(name));
    HASH_ADD_STR(network->hosts, name, host);
    if (!table_has(host, hh)) {
        free(host);
        return NULL;
    }
    network->host_count++;
    return host;
}

struct mem_link *mem_link_between(struct mem_host *from, struct mem_host *to)
{
    struct mem_network *network = from->network;
    uint64_t key = (uint64_t)from->id << 32 | to->id;
    struct mem_link *link = NULL;
    HASH_FIND(hh, network->links, &key, sizeof key, link);
    if (link != NULL) {
        return link;
    }
    link = calloc(1, sizeof *link);
    if (link == NULL) {
        return NULL;
    }
    link->key = key;
    link->from = from;
    link->to = to;
    link->conditions = network->conditions;
    HASH_ADD(hh, network->links, key, sizeof link->key, link);
    if (!table_has(link, hh)) {
        free(link);
        return NULL;
    }
    return link;
}

uint64_t mem_link_retransmission_ns(const struct mem_link *link)
{
    const struct mem_conditions *conditions = &link->conditions;
    if (conditions->retransmission_ns > 0) {
        return conditions->retransmission_ns;
    }
    uint64_t wait_ns = 4 * (conditions->delay_ns + conditions->jitter_ns);
    return wait_ns < MEM_RETRANSMISSION_MIN_NS ? MEM_RETRANSMISSION_MIN_NS : wait_ns;
}

uint32_t mem_link_packet_bytes(const struct mem_link *link)
{
    return link->conditions.packet_bytes == 0 ? MEM_PACKET_BYTES_DEFAULT : link->conditions.packet_bytes;
}

static bool mem_conditions_valid(const struct mem_conditions *conditions)
{
    return conditions->loss >= 0 && conditions->loss <= 1 && conditions->duplication >= 0 &&
           conditions->duplication <= 1 && conditions->packet_bytes <= MEM_PACKET_MAX_BYTES &&
           conditions->delay_ns <= 1000 * TIME_S && conditions->jitter_ns <= 1000 * TIME_S;
}

/* --- Packets --- */

void mem_trace(struct mem_network *network, uint32_t what, uint32_t from, uint32_t to, uint64_t offset,
               uint64_t size)
{
    uint64_t words[] = {network->now_ns, (uint64_t)from << 32 | to, what, offset, size};
    network->counters.trace_hash = hash_bytes(network->counters.trace_hash, words, sizeof words);
}

struct mem_channel *mem_channel_ref(struct mem_channel *channel)
{
    channel->references++;
    return channel;
}

void mem_channel_unref(struct mem_channel *channel)
{
    if (channel != NULL && --channel->references == 0) {
        free(channel);
    }
}

static void mem_packet_free(struct mem_packet *packet)
{
    mem_event_release(&packet->link->from->network->events, &packet->event);
    mem_end_unref(packet->from);
    mem_end_unref(packet->to);
    mem_flight_unref(packet->flight);
    mem_channel_unref(packet->channel);
    free(packet);
}

static void mem_packet_arrive(struct mem_event *event, uint64_t now_ns)
{
    struct mem_packet *packet = (struct mem_packet *)event;
    struct mem_host *host = packet->link->to;
    mem_trace(host->network, packet->kind, packet->link->from->id, host->id, packet->offset, packet->size);
    if (host->dead) {
        mem_packet_free(packet);
        return;
    }
    if (host->net != NULL) {
        mem_connection_receive(host->net, packet, now_ns);
    } else if (packet->from != NULL) {
        struct mem_packet *answer = mem_packet_new(host, packet->link->from, MEM_PACKET_NOBODY, 0);
        if (answer != NULL) {
            mem_packet_between(answer, NULL, packet->from);
            mem_packet_send(answer);
        }
    }
    mem_packet_free(packet);
}

struct mem_packet *mem_packet_new(struct mem_host *from, struct mem_host *to, enum mem_packet_kind kind,
                                  uint32_t size)
{
    struct mem_link *link = mem_link_between(from, to);
    if (link == NULL) {
        return NULL;
    }
    struct mem_packet *packet = calloc(1, sizeof *packet + size);
    if (packet == NULL) {
        return NULL;
    }
    if (mem_event_claim(&from->network->events, &packet->event, mem_packet_arrive) != STATUS_OK) {
        free(packet);
        return NULL;
    }
    packet->link = link;
    packet->kind = kind;
    packet->size = size;
    return packet;
}

void mem_packet_between(struct mem_packet *packet, struct mem_end *from, struct mem_end *to)
{
    packet->from = from == NULL ? NULL : mem_end_ref(from);
    packet->to = to == NULL ? NULL : mem_end_ref(to);
}

static struct mem_packet *mem_packet_copy(const struct mem_packet *packet)
{
    struct mem_packet *copy =
        mem_packet_new(packet->link->from, packet->link->to, packet->kind, packet->size);
    if (copy == NULL) {
        return NULL;
    }
    mem_packet_between(copy, packet->from, packet->to);
    copy->flight = packet->flight == NULL ? NULL : mem_flight_ref(packet->flight);
    copy->channel = packet->channel == NULL ? NULL : mem_channel_ref(packet->channel);
    copy->offset = packet->offset;
    copy->status = packet->status;
    copy->fin = packet->fin;
    memcpy(copy->bytes, packet->bytes, packet->size);
    return copy;
}

/* When a packet that left then arrives: never at once, or a handler's answer could arrive before the handler
 * is done. */
static uint64_t mem_packet_arrival_ns(struct mem_network *network, const struct mem_conditions *conditions,
                                      uint64_t left_ns)
{
    uint64_t delay_ns = conditions->delay_ns;
    if (conditions->jitter_ns > 0) {
        delay_ns += random_below(&network->random, conditions->jitter_ns + 1);
    }
    return left_ns + (delay_ns == 0 ? 1 : delay_ns);
}

uint64_t mem_packet_send(struct mem_packet *packet)
{
    struct mem_link *link = packet->link;
    struct mem_network *network = link->from->network;
    const struct mem_conditions *conditions = &link->conditions;
    if (link->from->dead) {
        mem_packet_free(packet);
        return network->now_ns;
    }
    uint64_t size = (uint64_t)packet->size + MEM_CONTROL_PACKET_BYTES;
    uint64_t left_ns = network->now_ns;
    if (conditions->bandwidth_bytes_s > 0) {
        left_ns = link->free_ns > left_ns ? link->free_ns : left_ns;
        left_ns += size * TIME_S / conditions->bandwidth_bytes_s;
        link->free_ns = left_ns;
    }
    network->counters.packets++;
    if (packet->from != NULL && packet->from->net != NULL) {
        mem_end_peer(packet->from)->sent_bytes += size;
    }
    bool lost = random_chance(&network->random, conditions->loss) || link->cut;
    bool doubled = random_chance(&network->random, conditions->duplication);
    if (lost) {
        network->counters.packets_lost++;
        mem_packet_free(packet);
        return left_ns;
    }
    struct mem_packet *copy = doubled ? mem_packet_copy(packet) : NULL;
    mem_event_schedule(&network->events, &packet->event, mem_packet_arrival_ns(network, conditions, left_ns));
    if (copy != NULL) {
        mem_event_schedule(&network->events, &copy->event,
                           mem_packet_arrival_ns(network, conditions, left_ns));
    }
    return left_ns;
}

/* --- Endpoints --- */

static void mem_free(struct net *base)
{
    struct mem_net *net = (struct mem_net *)base;
    net->freeing = true;
    for (uint32_t i = 0; i < net->peer_count; i++) {
        mem_peer_free(net, net->peers[i], net->network->now_ns);
    }
    while (net->lost_senders != NULL) {
        mem_sender_destroy(net->lost_senders, net->network->now_ns);
    }
    HASH_CLEAR(hh, net->peers_by_host);
    for (uint32_t i = 0; i < net->peer_count; i++) {
        free(net->peers[i]);
    }
    free(net->peers);
    net->host->net = NULL;
    free(net);
}

static bool mem_name_valid(const char *name)
{
    return name != NULL && name[0] != '\0' && strlen(name) <= NODE_NAME_MAX_BYTES;
}

static enum status mem_peers_grow(struct mem_net *net, struct error *error)
{
    if (net->peer_count < net->peer_capacity) {
        return STATUS_OK;
    }
    uint32_t capacity = net->peer_capacity == 0 ? 8 : net->peer_capacity * 2;
    struct mem_peer **peers = realloc(net->peers, capacity * sizeof *peers);
    if (peers == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for peer %u of node %s", net->peer_count,
                         net->host->name);
    }
    net->peers = peers;
    net->peer_capacity = capacity;
    return STATUS_OK;
}

static enum status mem_add_peer(struct net *base, const char *name, const char *address, uint32_t *index,
                                struct error *error)
{
    struct mem_net *net = (struct mem_net *)base;
    (void)address;
    if (!mem_name_valid(name)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "a node's name has 1 to %d bytes: \"%s\"",
                         NODE_NAME_MAX_BYTES, name == NULL ? "" : name);
    }
    if (net->peer_count >= NET_PEERS_MAX) {
        return error_set(error, STATUS_LIMIT, "node %s: more than %d peers at %s", net->host->name,
                         NET_PEERS_MAX, name);
    }
    struct mem_host *host = mem_host_intern(net->network, name);
    if (host == net->host) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "node %s cannot be its own peer", name);
    }
    struct mem_peer *peer = NULL;
    if (host != NULL) {
        HASH_FIND(hh, net->peers_by_host, &host->id, sizeof host->id, peer);
        if (peer != NULL && !peer->removed) {
            return error_set(error, STATUS_ALREADY_EXISTS, "node %s has a peer %s already", net->host->name,
                             name);
        }
        if (peer != NULL) {
            peer->removed = false;
            *index = peer->index;
            return STATUS_OK;
        }
        peer = calloc(1, sizeof *peer);
    }
    if (peer == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for peer %s of node %s", name, net->host->name);
    }
    peer->host_id = host->id;
    peer->host = host;
    peer->index = net->peer_count;
    enum status status = mem_peers_grow(net, error);
    if (status == STATUS_OK) {
        HASH_ADD(hh, net->peers_by_host, host_id, sizeof peer->host_id, peer);
        if (!table_has(peer, hh)) {
            status =
                error_set(error, STATUS_NO_MEMORY, "no memory for peer %s of node %s", name, net->host->name);
        }
    }
    if (status != STATUS_OK) {
        free(peer);
        return status;
    }
    net->peers[net->peer_count++] = peer;
    *index = peer->index;
    return STATUS_OK;
}

static void mem_remove_peer(struct net *base, uint32_t index, const struct error *cause)
{
    const struct mem_net *net = (const struct mem_net *)base;
    assert(index < net->peer_count);
    net->peers[index]->removed = true;
    mem_disconnect(base, index, cause);
}

/* Names are addresses here. */
static enum status mem_move_peer(struct net *base, uint32_t index, const char *address, struct error *error)
{
    const struct mem_net *net = (const struct mem_net *)base;
    (void)address;
    (void)error;
    assert(index < net->peer_count);
    const struct mem_end *end = net->peers[index]->end;
    if (end != NULL && end->state == MEM_END_DIALING) {
        struct error cause;
        error_set(&cause, STATUS_UNREACHABLE, "node %s has moved", net->peers[index]->host->name);
        mem_disconnect(base, index, &cause);
    }
    return STATUS_OK;
}

static void mem_stream_reset(struct net_stream *stream)
{
    if (((struct mem_stream *)stream)->incoming) {
        mem_receiver_reset((struct mem_receiver *)stream);
    } else {
        mem_sender_reset((struct mem_sender *)stream);
    }
}

static void mem_peer_statistics(const struct net *base, uint32_t index, struct net_peer_statistics *out)
{
    const struct mem_net *net = (const struct mem_net *)base;
    assert(index < net->peer_count);
    const struct mem_peer *peer = net->peers[index];
    const struct mem_link *link = mem_link_between(net->host, peer->host);
    *out = (struct net_peer_statistics){
        .up = peer->end != NULL && peer->end->state == MEM_END_UP,
        .round_trip_ns = peer->end == NULL ? 0 : peer->end->round_trip_ns,
        .sent_bytes = peer->sent_bytes,
        .received_bytes = peer->received_bytes,
        .lost_packets = peer->lost_packets,
        .datagram_bytes = link == NULL ? MEM_PACKET_BYTES_DEFAULT : mem_link_packet_bytes(link),
        .connected_count = peer->connected_count,
        .closed_by_peer = peer->closed_by_peer,
    };
}

static void mem_statistics(const struct net *base, struct net_statistics *out)
{
    *out = ((const struct mem_net *)base)->statistics;
}

static const struct net_operations mem_operations = {
    .free = mem_free,
    .add_peer = mem_add_peer,
    .remove_peer = mem_remove_peer,
    .move_peer = mem_move_peer,
    .connect = mem_connect,
    .disconnect = mem_disconnect,
    .stream_open = mem_stream_open,
    .stream_send = mem_stream_send,
    .stream_finish = mem_stream_finish,
    .stream_reset = mem_stream_reset,
    .stream_resume = mem_stream_resume,
    .stream_expect = mem_stream_expect,
    .stream_queued = mem_stream_queued,
    .peer_statistics = mem_peer_statistics,
    .statistics = mem_statistics,
};

/* --- The network --- */

enum status mem_network_new(uint64_t seed, const struct mem_conditions *conditions, struct mem_network **out,
                            struct error *error)
{
    if (!mem_conditions_valid(conditions)) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "network conditions: loss %g, duplication %g, packets of %u bytes", conditions->loss,
                         conditions->duplication, conditions->packet_bytes);
    }
    struct mem_network *network = calloc(1, sizeof *network);
    if (network == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a network");
    }
    network->conditions = *conditions;
    random_seed(&network->random, seed);
    *out = network;
    return STATUS_OK;
}

void mem_network_free(struct mem_network *network)
{
    if (network == NULL) {
        return;
    }
    /* Once the nets are gone, only packets are left. */
    for (struct mem_host *host = network->hosts; host != NULL; host = host->hh.next) {
        assert(host->net == NULL);
    }
    struct mem_event *event;
    while ((event = mem_event_take(&network->events, TIME_NEVER)) != NULL) {
        mem_packet_free((struct mem_packet *)event);
    }
    assert(network->events.claimed == 0);
    timer_heap_free(&network->events.heap);
    struct mem_link *link, *next_link;
    HASH_ITER (hh, network->links, link, next_link) {
        HASH_DEL(network->links, link);
        free(link);
    }
    struct mem_host *host, *next_host;
    HASH_ITER (hh, network->hosts, host, next_host) {
        HASH_DEL(network->hosts, host);
        free(host);
    }
    free(network);
}

enum status mem_network_add(struct mem_network *network, const char *name, struct net **out,
                            struct error *error)
{
    if (!mem_name_valid(name)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "a node's name has 1 to %d bytes: \"%s\"",
                         NODE_NAME_MAX_BYTES, name == NULL ? "" : name);
    }
    struct mem_host *host = mem_host_intern(network, name);
    if (host != NULL && host->net != NULL) {
        return error_set(error, STATUS_ALREADY_EXISTS, "the network has a node %s already", name);
    }
    struct mem_net *net = host == NULL ? NULL : calloc(1, sizeof *net);
    if (net == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", name);
    }
    net->base.operations = &mem_operations;
    net->network = network;
    net->host = host;
    net->incarnation = network->net_count++;
    host->net = net;
    host->dead = false;
    *out = &net->base;
    return STATUS_OK;
}

uint64_t mem_network_next_ns(const struct mem_network *network)
{
    return mem_event_next_ns(&network->events);
}

void mem_network_advance(struct mem_network *network, uint64_t now_ns)
{
    assert(now_ns >= network->now_ns);
    assert(!network->advancing); /* not from a handler */
    network->advancing = true;
    struct mem_event *event;
    while ((event = mem_event_take(&network->events, now_ns)) != NULL) {
        if (event->node.deadline_ns > network->now_ns) {
            network->now_ns = event->node.deadline_ns;
        }
        event->fire(event, network->now_ns);
    }
    network->now_ns = now_ns;
    network->advancing = false;
}

/* For what tests call, which have no use for a failure. */
static struct mem_link *mem_link_named(struct mem_network *network, const char *from, const char *to)
{
    struct mem_host *from_host = mem_host_intern(network, from);
    struct mem_host *to_host = mem_host_intern(network, to);
    struct mem_link *link =
        from_host == NULL || to_host == NULL ? NULL : mem_link_between(from_host, to_host);
    if (link == NULL) {
        abort();
    }
    return link;
}

void mem_network_set_link(struct mem_network *network, const char *from, const char *to,
                          const struct mem_conditions *conditions)
{
    assert(mem_conditions_valid(conditions));
    mem_link_named(network, from, to)->conditions = *conditions;
}

void mem_network_cut(struct mem_network *network, const char *from, const char *to, bool cut)
{
    mem_link_named(network, from, to)->cut = cut;
}

void mem_network_kill(struct mem_network *network, const char *name)
{
    struct mem_host *host = mem_host_intern(network, name);
    if (host == NULL) {
        abort();
    }
    host->dead = true;
}

void mem_network_counters(const struct mem_network *network, struct mem_network_counters *out)
{
    *out = network->counters;
}
