#ifndef TESTS_UNIT_NET_NETWORK_NODES_H
#define TESTS_UNIT_NET_NETWORK_NODES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/log.h"
#include "daemon/base/random.h"
#include "daemon/base/time.h"
#include "proto/types.h"
#include "tests/lib/chance.h"
#include "tests/network/network.h"

/*
 * Nodes on either network of tests/network. They check what the network tells them against net.h's promises:
 * - peer_up and peer_down alternate;
 * - after peer_down, no handler of that connection is called;
 * - closed comes once for each stream that was received;
 * - sent comes once for each send, and never from within a call;
 * - bytes arrive complete and in order.
 * A stream's bytes are its id (4 bytes), then pattern(id, offset).
 */
#define NODES_MAX 8
#define INCOMING_MAX 4096

/* true: datagrams; false: pipes. */
static bool on_datagrams;

static const struct network_conditions good = {.delay_ns = 100 * TIME_US, .jitter_ns = 10 * TIME_US};
static const struct network_conditions bad = {
    .loss = 0.1, .duplication = 0.1, .delay_ns = 100 * TIME_US, .jitter_ns = 400 * TIME_US};

struct node;

struct incoming {
    struct node *node;
    struct net_stream *stream; /* null once closed */
    uint32_t id;
    uint64_t seen;
    uint64_t pieces;
    uint64_t odd_pieces; /* pieces that end within a 4-byte element */
    bool end;
    bool held;
    enum status status; /* the status that closed gave */
};

struct node {
    struct network *network;
    struct net *net;
    char name[16];
    struct random random;
    double hold_chance; /* chance of leaving bytes unconsumed */
    bool hold_all;      /* consumes nothing */
    bool calling;       /* a net function of this node is on the stack */
    unsigned up[NODES_MAX], down[NODES_MAX], failed[NODES_MAX], suspect[NODES_MAX];
    uint64_t changed_ns; /* of the last peer_up, peer_down or connect_failed */
    struct error cause;  /* of the last peer_down or connect_failed */
    struct incoming incoming[INCOMING_MAX];
    uint32_t incoming_count;
    bool recycle;                   /* records of closed streams are used again */
    uint32_t open_from[NODES_MAX];  /* incoming streams open, by peer */
    uint32_t sends_from[NODES_MAX]; /* sends not done, by peer */
    void (*on_peer_down)(struct node *node, uint32_t peer);
    void (*on_receive)(struct node *node, struct incoming *incoming);
    void (*on_closed)(struct node *node, struct incoming *incoming);
};

/* One send. It is done exactly once, and not within the call. */
struct sending {
    struct node *node;
    uint32_t peer;
    unsigned done;
    enum status status;
    uint64_t done_ns;
    uint64_t *order; /* shared by the sends of a stream: each takes the next number */
    uint64_t number;
    void (*on_sent)(struct sending *sending);
    void *user;
};

static inline uint8_t pattern(uint32_t id, uint64_t offset)
{
    return (uint8_t)(((offset + 1) * 2654435761u + id * 40503u) >> 11);
}

static inline void pattern_fill(uint32_t id, uint64_t offset, uint8_t *out, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        uint64_t at = offset + i;
        out[i] = (uint8_t)(at < 4 ? id >> (8 * at) : pattern(id, at));
    }
}

static inline void node_peer_up(void *context, uint32_t peer, uint64_t now_ns)
{
    struct node *node = context;
    assert_false(node->calling);
    assert_int_equal(node->up[peer], node->down[peer]);
    node->up[peer]++;
    node->changed_ns = now_ns;
}

static inline void node_peer_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    struct node *node = context;
    assert_false(node->calling);
    assert_int_equal(node->up[peer], node->down[peer] + 1);
    assert_int_equal(node->open_from[peer], 0);
    assert_int_equal(node->sends_from[peer], 0);
    assert_int_not_equal(cause->status, STATUS_OK);
    assert_true(cause->text[0] != '\0');
    node->down[peer]++;
    node->changed_ns = now_ns;
    node->cause = *cause;
    if (node->on_peer_down != NULL) {
        node->on_peer_down(node, peer);
    }
}

static inline void node_connect_failed(void *context, uint32_t peer, const struct error *cause,
                                       uint64_t now_ns)
{
    struct node *node = context;
    assert_false(node->calling);
    assert_int_equal(node->up[peer], node->down[peer]);
    assert_int_not_equal(cause->status, STATUS_OK);
    node->failed[peer]++;
    node->changed_ns = now_ns;
    node->cause = *cause;
}

static inline void node_peer_suspect(void *context, uint32_t peer, uint64_t now_ns)
{
    struct node *node = context;
    (void)now_ns;
    node->suspect[peer]++;
}

static inline struct incoming *node_incoming(struct node *node, struct net_stream *stream)
{
    if (stream->user == NULL) {
        uint32_t slot = node->incoming_count;
        for (uint32_t i = 0; node->recycle && i < node->incoming_count; i++) {
            slot = node->incoming[i].stream == NULL ? i : slot;
        }
        assert_true(slot < INCOMING_MAX);
        node->incoming_count += slot == node->incoming_count;
        struct incoming *incoming = &node->incoming[slot];
        *incoming = (struct incoming){.node = node, .stream = stream};
        node->open_from[stream->peer]++;
        stream->user = incoming;
    }
    return stream->user;
}

static inline size_t node_receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                                  bool end, uint64_t now_ns)
{
    struct node *node = context;
    (void)now_ns;
    assert_false(node->calling);
    assert_int_equal(node->up[stream->peer], node->down[stream->peer] + 1);
    assert_true(size > 0 || end);
    struct incoming *incoming = node_incoming(node, stream);
    assert_true(incoming->stream == stream);
    assert_false(incoming->held);
    incoming->pieces++;
    incoming->odd_pieces += (incoming->seen + size) % 4 != 0;
    size_t used = size;
    if (!node->hold_all) {
        net_stream_expect(stream, NET_STREAM_WINDOW_BYTES);
    }
    if (node->hold_all) {
        used = 0;
    } else if (size > 0 && random_chance(&node->random, node->hold_chance)) {
        used = (size_t)random_below(&node->random, size);
    }
    for (size_t i = 0; i < used; i++, incoming->seen++) {
        if (incoming->seen < 4) {
            incoming->id |= (uint32_t)bytes[i] << (8 * incoming->seen);
        } else if (bytes[i] != pattern(incoming->id, incoming->seen)) {
            fail_msg("stream %u: wrong byte at %llu", incoming->id, (unsigned long long)incoming->seen);
        }
    }
    incoming->held = used < size;
    incoming->end = end && used == size;
    if (node->on_receive != NULL) {
        node->on_receive(node, incoming);
    }
    return used;
}

static inline void node_closed(void *context, struct net_stream *stream, const struct error *cause,
                               uint64_t now_ns)
{
    struct node *node = context;
    (void)now_ns;
    struct incoming *incoming = stream->user;
    assert_false(node->calling);
    assert_non_null(incoming);
    assert_true(incoming->stream == stream);
    assert_true(node->open_from[stream->peer] > 0);
    assert_true(cause != NULL || incoming->end);
    node->open_from[stream->peer]--;
    incoming->status = cause == NULL ? STATUS_OK : cause->status;
    if (node->on_closed != NULL) {
        node->on_closed(node, incoming);
    }
    incoming->stream = NULL;
    incoming->held = false;
}

static inline void node_start(struct node *node, struct network *network, const char *name, uint64_t seed)
{
    memset(node, 0, sizeof *node);
    node->network = network;
    random_seed(&node->random, seed);
    (void)snprintf(node->name, sizeof node->name, "%s", name);
    node->net = network_add(network, name);
    struct net_peer_handler peers = {
        node, node_peer_up, node_peer_down, node_connect_failed, node_peer_suspect, NULL, NULL};
    struct net_stream_handler streams = {node, node_receive, node_closed, NULL};
    net_set_peer_handler(node->net, &peers);
    net_set_stream_handler(node->net, NET_STREAM_DATA, &streams);
}

static inline uint32_t node_knows(struct node *node, const char *name)
{
    uint32_t peer = UINT32_MAX;
    char address[NETWORK_ADDRESS_MAX_BYTES];
    network_address(node->network, name, address);
    assert_int_equal(net_add_peer(node->net, name, address, &peer, NULL), STATUS_OK);
    net_keep_alive(node->net, peer, true);
    return peer;
}

static inline void node_connect(struct node *node, uint32_t peer)
{
    node->calling = true;
    assert_int_equal(net_connect(node->net, peer, NULL), STATUS_OK);
    node->calling = false;
}

static inline bool node_is_up(const struct node *node, uint32_t peer)
{
    struct net_peer_statistics statistics;
    net_peer_statistics(node->net, peer, &statistics);
    assert_int_equal(statistics.up, node->up[peer] == node->down[peer] + 1);
    assert_int_equal(statistics.connected_count, node->up[peer]);
    return statistics.up;
}

static inline void sending_done(void *context, enum status status, uint64_t now_ns)
{
    struct sending *sending = context;
    assert_false(sending->node->calling);
    assert_int_equal(sending->done, 0);
    assert_true(sending->node->sends_from[sending->peer] > 0);
    sending->node->sends_from[sending->peer]--;
    sending->done = 1;
    sending->status = status;
    sending->done_ns = now_ns;
    if (sending->order != NULL) {
        assert_int_equal(*sending->order, sending->number);
        ++*sending->order;
    }
    if (sending->on_sent != NULL) {
        sending->on_sent(sending);
    }
}

static inline enum status node_send(struct node *node, struct net_stream *stream, const void *header,
                                    size_t header_bytes, const void *payload, size_t payload_bytes,
                                    struct sending *sending)
{
    if (sending != NULL) {
        sending->node = node;
        sending->peer = stream->peer;
    }
    bool outermost = !node->calling;
    node->calling = true;
    enum status status = net_stream_send(stream, header, header_bytes, payload, payload_bytes,
                                         sending == NULL ? NULL : sending_done, sending);
    node->calling = !outermost;
    if (status == STATUS_OK && sending != NULL) {
        node->sends_from[stream->peer]++;
    }
    return status;
}

static inline void node_call(struct node *node, void (*function)(struct net_stream *),
                             struct net_stream *stream)
{
    bool outermost = !node->calling;
    node->calling = true;
    function(stream);
    node->calling = !outermost;
}

/* Frees the net. Of the handlers, only sent may be called meanwhile, and no send is left. */
static inline void node_stop(struct node *node)
{
    net_free(node->net);
    node->net = NULL;
    for (uint32_t i = 0; i < NODES_MAX; i++) {
        assert_int_equal(node->sends_from[i], 0);
    }
}

/* Lets the network run for a span of time. */
static inline void run_for(struct network *network, uint64_t *now_ns, uint64_t span_ns)
{
    uint64_t until_ns = *now_ns + span_ns;
    uint64_t next_ns;
    while ((next_ns = network_next_ns(network)) <= until_ns) {
        *now_ns = next_ns > *now_ns ? next_ns : *now_ns;
        network_advance(network, *now_ns);
    }
    *now_ns = until_ns;
    network_advance(network, until_ns);
}

static inline void node_resume_all(struct node *node)
{
    for (uint32_t i = 0; i < node->incoming_count; i++) {
        if (node->incoming[i].held) {
            node->incoming[i].held = false;
            node_call(node, net_stream_resume, node->incoming[i].stream);
        }
    }
}

/* Two nodes that know each other; connected when connect is set. */
struct pair {
    struct network *network;
    uint64_t now_ns;
    struct node *a, *b;
};

static inline void pair_start(struct pair *pair, uint64_t seed, const struct network_conditions *conditions,
                              bool connect)
{
    memset(pair, 0, sizeof *pair);
    log_set_level(LOG_LEVEL_ERROR);
    pair->network =
        on_datagrams ? network_new_datagrams(seed, conditions, 4700) : network_new_pipes(seed, conditions);
    pair->a = malloc(sizeof *pair->a);
    pair->b = malloc(sizeof *pair->b);
    assert_non_null(pair->a);
    assert_non_null(pair->b);
    node_start(pair->a, pair->network, "a", seed + 1);
    node_start(pair->b, pair->network, "b", seed + 2);
    assert_int_equal(node_knows(pair->a, "b"), 0);
    assert_int_equal(node_knows(pair->b, "a"), 0);
    if (connect) {
        node_connect(pair->a, 0);
        for (unsigned i = 0; i < 100 && !(node_is_up(pair->a, 0) && node_is_up(pair->b, 0)); i++) {
            run_for(pair->network, &pair->now_ns, 100 * TIME_MS);
        }
        assert_true(node_is_up(pair->a, 0));
        assert_true(node_is_up(pair->b, 0));
    }
}

static inline void pair_run(struct pair *pair, uint64_t span_ns)
{
    run_for(pair->network, &pair->now_ns, span_ns);
}

/* With pipes, nothing is under way and no timer is set. QUIC always has timers to keep connections alive. */
static inline void pair_check_quiet(const struct pair *pair)
{
    assert_true(on_datagrams || network_next_ns(pair->network) == TIME_NEVER);
}

static inline void pair_stop(struct pair *pair)
{
    node_stop(pair->a);
    node_stop(pair->b);
    free(pair->a);
    free(pair->b);
    network_free(pair->network);
}

static inline struct net_stream *pair_open(struct node *node)
{
    struct net_stream *stream = NULL;
    assert_int_equal(net_stream_open(node->net, 0, NET_STREAM_DATA, &stream, NULL), STATUS_OK);
    assert_null(stream->user);
    assert_int_equal(stream->kind, NET_STREAM_DATA);
    return stream;
}

/* Setups of a group of tests. */
static inline int use_pipes(void **state)
{
    (void)state;
    on_datagrams = false;
    return 0;
}

static inline int use_datagrams(void **state)
{
    (void)state;
    on_datagrams = true;
    return 0;
}

#endif
