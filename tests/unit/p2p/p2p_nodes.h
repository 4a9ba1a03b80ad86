#ifndef TESTS_UNIT_P2P_P2P_NODES_H
#define TESTS_UNIT_P2P_P2P_NODES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/time.h"
#include "daemon/p2p/p2p_internal.h"
#include "tests/network/network.h"
#include "tests/unit/p2p/p2p_node.h"

/* One communicator on a few nodes of an in-memory network, with virtual time. Rank r is on node r % nodes.
 * The buffers are host memory. */
#define NODES_MAX 4u
#define TURNS_MAX 4000000u

struct world {
    struct network *network;
    uint32_t node_count, size;
    struct node nodes[NODES_MAX];
    const char *names[NODES_MAX];
    uint64_t now_ns;
    uint32_t pending;
};
static struct world world;

/* One send or receive, of bytes. */
struct post {
    struct p2p_message message; /* the first */
    uint32_t calls;
    const struct error *result_at; /* where the result was: only to be compared */
    struct error result;
    uint32_t source;
    uint64_t count;
};

static void on_done(void *context, struct p2p_message *message, const struct error *result, uint64_t now_ns)
{
    struct post *post = (struct post *)message;
    (void)context;
    (void)now_ns;
    assert_int_equal(post->calls, 0);
    post->calls++;
    post->result = *result;
    post->result_at = result;
    post->source = p2p_message_source(message);
    post->count = p2p_message_count(message);
    world.pending--;
}

static inline void turn(void)
{
    uint64_t next_ns = network_next_ns(world.network);
    world.now_ns = next_ns == TIME_NEVER || next_ns <= world.now_ns ? world.now_ns + TIME_US : next_ns;
    network_advance(world.network, world.now_ns);
    for (uint32_t i = 0; i < world.node_count; i++) {
        node_turn(&world.nodes[i], world.now_ns);
    }
}

static inline void turns(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        turn();
    }
}

/* Runs until no more than that many messages are under way. */
static inline void settle(uint32_t pending)
{
    for (uint32_t i = 0; world.pending > pending; i++) {
        if (i == TURNS_MAX) {
            fail_msg("%u messages do not end", world.pending);
        }
        turn();
    }
}

/* Connects each node with each other. */
static inline void connect_all(void)
{
    uint32_t unused, node_count = world.node_count;
    for (uint32_t i = 0; i < node_count; i++) {
        for (uint32_t other = 0; other < node_count; other++) {
            if (other != i) {
                char address[NETWORK_ADDRESS_MAX_BYTES];
                network_address(world.network, world.names[other], address);
                assert_int_equal(net_add_peer(world.nodes[i].net, world.names[other], address, &unused, NULL),
                                 STATUS_OK);
            }
        }
        for (uint32_t peer = 0; peer < i; peer++) {
            assert_int_equal(net_connect(world.nodes[i].net, peer, NULL), STATUS_OK);
        }
    }
    for (uint32_t i = 0; i < node_count; i++) {
        while (world.nodes[i].ups < node_count - 1) {
            turn();
        }
    }
}

/* accounts: one for each rank, or null. */
static inline void start(uint32_t node_count, uint32_t size, struct budget_account *const *accounts)
{
    struct network_conditions conditions = {
        .delay_ns = 20 * TIME_US, .jitter_ns = 20 * TIME_US, .packet_bytes = 65536};
    uint32_t peers[NODES_MAX], node_of_rank[64];
    memset(&world, 0, sizeof world);
    world.now_ns = TIME_S;
    world.node_count = node_count;
    world.size = size;
    for (uint32_t rank = 0; rank < size; rank++) {
        node_of_rank[rank] = rank % node_count;
    }
    world.network = network_new_pipes(4711, &conditions);
    for (uint32_t i = 0; i < node_count; i++) {
        struct node *node = &world.nodes[i];
        (void)snprintf(node->name, sizeof node->name, "n%u", i);
        world.names[i] = node->name;
        node->net = network_add(world.network, node->name);
        struct net_peer_handler handler = {
            .context = node, .peer_up = node_up, .peer_down = node_down, .connect_failed = node_down};
        net_set_peer_handler(node->net, &handler);
        assert_int_equal(p2p_new(node->net, &node->p2p, NULL), STATUS_OK);
    }
    connect_all();
    for (uint32_t i = 0; i < node_count; i++) {
        struct budget_account *own[64];
        uint32_t own_count = 0;
        for (uint32_t node = 0; node < node_count; node++) {
            peers[node] = node < i ? node : node - 1;
        }
        for (uint32_t rank = i; accounts != NULL && rank < size; rank += node_count) {
            own[own_count++] = accounts[rank];
        }
        const struct p2p_comm_handler handler = {
            .context = &world.nodes[i], .done = on_done, .failed = node_failed};
        struct comm_map facts = {.comm_id = 99,
                                 .ranks = {.size = size, .node_count = node_count, .node_index = i},
                                 .node_of_rank = node_of_rank,
                                 .peers = peers,
                                 .node_names = world.names,
                                 .name = "test"};
        struct comm_map *map;
        assert_int_equal(comm_map_new(&facts, &map, NULL), STATUS_OK);
        assert_int_equal(p2p_comm_new(world.nodes[i].p2p, map, accounts != NULL ? own : NULL, &handler,
                                      &world.nodes[i].comm, NULL),
                         STATUS_OK);
        comm_map_release(map);
    }
}

static inline struct p2p_comm *comm_of(uint32_t rank)
{
    return world.nodes[rank % world.node_count].comm;
}

static inline void stop(void)
{
    struct error cause;
    error_set(&cause, STATUS_ABORTED, "over");
    for (uint32_t i = 0; i < world.node_count; i++) {
        p2p_comm_abort(world.nodes[i].comm, &cause);
    }
    settle(0);
    for (uint32_t i = 0; i < world.node_count; i++) {
        assert_int_equal(world.nodes[i].failures, 0);
        assert_true(p2p_comm_idle(world.nodes[i].comm));
        p2p_comm_free(world.nodes[i].comm);
        p2p_free(world.nodes[i].p2p);
        net_free(world.nodes[i].net);
    }
    network_free(world.network);
}

static inline enum status try_post(struct post *post, bool sends, uint32_t rank, uint32_t peer, uint32_t tag,
                                   void *buffer, uint64_t bytes, struct error *error)
{
    struct p2p_call call = {.sends = sends,
                            .rank = rank,
                            .peer_rank = peer,
                            .tag = tag,
                            .dtype = DTYPE_U8,
                            .count_elements = bytes,
                            .buffer = buffer};
    *post = (struct post){.calls = 0};
    enum status status = p2p_post(comm_of(rank), &call, &post->message, error);
    world.pending += status == STATUS_OK ? 1 : 0;
    return status;
}

static inline void post_send(struct post *post, uint32_t rank, uint32_t peer, uint32_t tag,
                             const void *buffer, uint64_t bytes)
{
    assert_int_equal(try_post(post, true, rank, peer, tag, (void *)(uintptr_t)buffer, bytes, NULL),
                     STATUS_OK);
}

static inline void post_receive(struct post *post, uint32_t rank, uint32_t peer, uint32_t tag, void *buffer,
                                uint64_t bytes)
{
    assert_int_equal(try_post(post, false, rank, peer, tag, buffer, bytes, NULL), STATUS_OK);
}

static inline void cancel(struct post *post, const char *why)
{
    struct error error;
    error_set(&error, STATUS_TIMED_OUT, "%s", why);
    p2p_cancel(&post->message, &error, world.now_ns);
}

#define PID_OF(rank) ((int32_t)(5000 + (rank)))

/* The rank leaves in good order, and all nodes are told. */
static inline void leave(uint32_t rank)
{
    uint32_t node = rank % world.node_count;
    p2p_rank_leaves(world.nodes[node].comm, rank, PID_OF(rank), world.now_ns);
    for (uint32_t other = 0; other < world.node_count; other++) {
        if (other != node) {
            p2p_rank_left(world.nodes[other].comm, rank, PID_OF(rank),
                          p2p_sent_count(world.nodes[node].comm, other), world.now_ns);
        }
    }
}

#define assert_ended(post, status_expected)                                                                  \
    do {                                                                                                     \
        assert_int_equal((post)->calls, 1);                                                                  \
        if ((post)->result.status != (status_expected)) {                                                    \
            fail_msg("status %d: %s", (int)(post)->result.status, (post)->result.text);                      \
        }                                                                                                    \
    } while (0)

#endif
