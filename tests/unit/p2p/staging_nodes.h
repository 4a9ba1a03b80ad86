#ifndef TESTS_UNIT_P2P_STAGING_NODES_H
#define TESTS_UNIT_P2P_STAGING_NODES_H

#include <stdbool.h>

#include "daemon/base/time.h"
#include "daemon/gpu/devices.h"
#include <utlist.h>

#include "daemon/p2p/p2p_internal.h"
#include "proto/message_header.h"
#include "tests/network/network.h"
#include "tests/unit/cuda_double/case.h"
#include "tests/unit/p2p/p2p_node.h"

/*
 * Messages of two nodes on a network of pipes. The nodes share the GPUs of this process, which are doubles.
 * Rank r is on node r % 2. It is for processes of case_run: anything unexpected ends the process. The
 * network's time is virtual, the GPUs' time is not.
 */
#define NODES 2u
#define NODES_RANKS 4u
#define NODES_TIMEOUT_S 100
#define CHUNK MESSAGE_PIPE_CHUNK_BYTES
#define RING (MESSAGE_PIPE_CHUNK_BYTES * MESSAGE_PIPE_CHUNKS_MAX)
#define ON_HOST (-1)

struct nodes;

struct nodes {
    struct network *network;
    struct gpu_devices *gpus;
    struct node at[NODES];
    const char *names[NODES];
    uint64_t now_ns;
    uint32_t under_way; /* messages */
};

struct buffer {
    int gpu;
    size_t bytes;
    void *at; /* bytes, and GUARD_BYTES that nobody touches */
};
#define GUARD_BYTES 64u
#define POISON 0x5a

/* One send or receive, of bytes. */
struct posted {
    struct p2p_message message; /* the first */
    uint32_t calls;
    struct error result;
    uint32_t source;
    uint64_t count;
};

static struct nodes nodes;
static struct budget_account *nodes_account; /* of both nodes' communicators that are made; null: nobody's */

/* Does what a daemon's loop does: a node that was not woken does not run. */
static void nodes_turn(void)
{
    uint64_t next_ns = network_next_ns(nodes.network);
    nodes.now_ns = next_ns == TIME_NEVER || next_ns <= nodes.now_ns ? nodes.now_ns + TIME_US : next_ns;
    network_advance(nodes.network, nodes.now_ns);
    for (uint32_t i = 0; i < NODES; i++) {
        node_turn(&nodes.at[i], nodes.now_ns);
    }
}

__attribute__((unused)) static void nodes_turns(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        nodes_turn();
    }
}

/* Prints what has not ended. */
static void nodes_print(void)
{
    for (uint32_t i = 0; i < NODES; i++) {
        const struct p2p_pair *pair;
        DL_FOREACH(nodes.at[i].comm->busy_pairs, pair)
        {
            const struct p2p_message *message;
            DL_FOREACH(pair->messages, message)
            {
                char text[192];
                p2p_describe(message, text, sizeof text);
                (void)fprintf(stderr, "n%u: rank %u, %llu bytes, state %d: %s\n", i, message->rank,
                              (unsigned long long)message->count_elements, message->state, text);
            }
        }
    }
}

__attribute__((unused)) static void nodes_wait(uint32_t under_way)
{
    time_t began = time(NULL);
    while (nodes.under_way > under_way) {
        bool in_time = time(NULL) - began < NODES_TIMEOUT_S;
        if (!in_time) {
            nodes_print();
        }
        CHECK(in_time);
        nodes_turn();
    }
}

static void message_done(void *context, struct p2p_message *message, const struct error *result,
                         uint64_t now_ns)
{
    struct posted *posted = (struct posted *)message;
    (void)context;
    (void)now_ns;
    posted->calls++;
    CHECK(posted->calls == 1);
    posted->result = *result;
    posted->source = p2p_message_source(message);
    posted->count = p2p_message_count(message);
    nodes.under_way--;
}

static void nodes_comm(uint32_t i)
{
    uint32_t peers[NODES] = {0, 0};
    uint32_t node_of_rank[NODES_RANKS] = {0, 1, 0, 1};
    const struct p2p_comm_handler handler = {
        .context = &nodes.at[i], .done = message_done, .failed = node_failed};
    struct comm_map facts = {.comm_id = 99,
                             .ranks = {.size = NODES_RANKS, .node_count = NODES, .node_index = i},
                             .node_of_rank = node_of_rank,
                             .peers = peers,
                             .node_names = nodes.names,
                             .name = "test",
                             .account = nodes_account};
    struct comm_map *map;
    CHECK_RESULT(comm_map_new(&facts, &map, NULL), STATUS_OK);
    CHECK_RESULT(p2p_comm_new(nodes.at[i].p2p, map, NULL, &handler, &nodes.at[i].comm, NULL), STATUS_OK);
    comm_map_release(map);
}

/* Starts the nodes. The double reads its environment at this call. */
__attribute__((unused)) static void nodes_start(const struct network_conditions *conditions)
{
    static const struct network_conditions usual = {
        .delay_ns = 20 * TIME_US, .jitter_ns = 20 * TIME_US, .packet_bytes = 65536};
    struct error error;
    uint32_t peer;
    memset(&nodes, 0, sizeof nodes);
    nodes.now_ns = TIME_S;
    CHECK_RESULT(gpu_devices_open(true, &nodes.gpus, &error), STATUS_OK);
    case_load();
    nodes.network = network_new_pipes(4711, conditions != NULL ? conditions : &usual);
    for (uint32_t i = 0; i < NODES; i++) {
        struct node *node = &nodes.at[i];
        (void)snprintf(node->name, sizeof node->name, "n%u", i);
        nodes.names[i] = node->name;
        node->net = network_add(nodes.network, node->name);
        struct net_peer_handler handler = {
            .context = node, .peer_up = node_up, .peer_down = node_down, .connect_failed = node_down};
        net_set_peer_handler(node->net, &handler);
        CHECK_RESULT(p2p_new(node->net, &node->p2p, NULL), STATUS_OK);
        p2p_set_gpus(node->p2p, nodes.gpus);
    }
    for (uint32_t i = 0; i < NODES; i++) {
        CHECK_RESULT(net_add_peer(nodes.at[i].net, nodes.names[1 - i], "x:1", &peer, NULL), STATUS_OK);
    }
    CHECK_RESULT(net_connect(nodes.at[0].net, 0, NULL), STATUS_OK);
    while (nodes.at[0].ups == 0 || nodes.at[1].ups == 0) {
        nodes_turn();
    }
    nodes_comm(0);
    nodes_comm(1);
}

__attribute__((unused)) static void nodes_abort(uint32_t i, const char *text)
{
    struct error cause;
    error_set(&cause, STATUS_RANK_LOST, "%s", text);
    p2p_comm_abort(nodes.at[i].comm, &cause);
}

/* Checks that every message has ended, and that every GPU is as it was before. */
__attribute__((unused)) static void nodes_stop(void)
{
    CHECK(nodes.under_way == 0);
    for (uint32_t i = 0; i < NODES; i++) {
        CHECK(p2p_comm_idle(nodes.at[i].comm));
        p2p_comm_free(nodes.at[i].comm);
        p2p_free(nodes.at[i].p2p);
        net_free(nodes.at[i].net);
    }
    network_free(nodes.network);
    gpu_devices_close(nodes.gpus);
}

/* --- Buffers --- */

static unsigned char byte_of(uint64_t seed, uint64_t at)
{
    return (unsigned char)((seed + 1) * 167 + at * 13 + (at >> 8) * 5 + (at >> 19) * 7);
}

static void buffer_set(const struct buffer *buffer, size_t offset, const void *bytes, size_t size)
{
    if (buffer->gpu == ON_HOST) {
        memcpy((unsigned char *)buffer->at + offset, bytes, size);
    } else if (size > 0) {
        OK(beyond.copy_from_host_now((cuda_pointer)(uintptr_t)buffer->at + offset, bytes, size));
    }
}

static void buffer_get(const struct buffer *buffer, size_t offset, void *bytes, size_t size)
{
    if (buffer->gpu == ON_HOST) {
        memcpy(bytes, (const unsigned char *)buffer->at + offset, size);
    } else if (size > 0) {
        OK(beyond.copy_to_host_now(bytes, (cuda_pointer)(uintptr_t)buffer->at + offset, size));
    }
}

static unsigned char *bytes_new(size_t size)
{
    unsigned char *bytes = malloc(size);
    CHECK(bytes != NULL);
    return bytes;
}

/* Makes a buffer full of poison. */
__attribute__((unused)) static struct buffer buffer_new(int gpu, size_t bytes)
{
    struct buffer buffer = {.gpu = gpu, .bytes = bytes};
    unsigned char *poison = bytes_new(bytes + GUARD_BYTES);
    if (gpu == ON_HOST) {
        buffer.at = bytes_new(bytes + GUARD_BYTES);
    } else {
        (void)case_context(gpu);
        buffer.at = (void *)(uintptr_t)case_alloc(bytes + GUARD_BYTES);
    }
    memset(poison, POISON, bytes + GUARD_BYTES);
    buffer_set(&buffer, 0, poison, bytes + GUARD_BYTES);
    free(poison);
    return buffer;
}

__attribute__((unused)) static void buffer_free(const struct buffer *buffer)
{
    if (buffer->gpu == ON_HOST) {
        free(buffer->at);
    } else {
        (void)case_context(buffer->gpu);
        OK(cuda->memory_free((cuda_pointer)(uintptr_t)buffer->at));
    }
}

__attribute__((unused)) static void buffer_fill(const struct buffer *buffer, uint64_t seed)
{
    unsigned char *bytes = bytes_new(buffer->bytes + 1);
    for (size_t i = 0; i < buffer->bytes; i++) {
        bytes[i] = byte_of(seed, i);
    }
    buffer_set(buffer, 0, bytes, buffer->bytes);
    free(bytes);
}

/* Checks that the first `count` bytes are the sender's, and all others poison. */
__attribute__((unused)) static void buffer_check(const struct buffer *buffer, uint64_t seed, size_t count)
{
    unsigned char *bytes = bytes_new(buffer->bytes + GUARD_BYTES);
    buffer_get(buffer, 0, bytes, buffer->bytes + GUARD_BYTES);
    for (size_t i = 0; i < buffer->bytes + GUARD_BYTES; i++) {
        unsigned char expected = i < count ? byte_of(seed, i) : POISON;
        if (bytes[i] != expected) {
            (void)fprintf(stderr, "byte %zu of %zu is %u, not %u\n", i, count, bytes[i], expected);
            _exit(1);
        }
    }
    free(bytes);
}

/* --- Messages --- */

static enum status message_post(struct posted *posted, bool sends, uint32_t rank, uint32_t peer, uint32_t tag,
                                const struct buffer *buffer, const struct fence *fence, struct error *error)
{
    *posted = (struct posted){.calls = 0};
    struct p2p_call call = {.sends = sends,
                            .rank = rank,
                            .peer_rank = peer,
                            .tag = tag,
                            .dtype = DTYPE_U8,
                            .count_elements = buffer->bytes,
                            .buffer = buffer->at,
                            .on_gpu = buffer->gpu != ON_HOST,
                            .gpu = buffer->gpu == ON_HOST ? 0 : (uint32_t)buffer->gpu,
                            .waits = fence,
                            .wait_count = fence != NULL ? 1 : 0};
    enum status status = p2p_post(nodes.at[rank % NODES].comm, &call, &posted->message, error);
    nodes.under_way += status == STATUS_OK ? 1 : 0;
    return status;
}

__attribute__((unused)) static void message_send(struct posted *posted, uint32_t rank, uint32_t peer,
                                                 uint32_t tag, const struct buffer *buffer)
{
    CHECK_RESULT(message_post(posted, true, rank, peer, tag, buffer, NULL, NULL), STATUS_OK);
}

__attribute__((unused)) static void message_receive(struct posted *posted, uint32_t rank, uint32_t peer,
                                                    uint32_t tag, const struct buffer *buffer)
{
    CHECK_RESULT(message_post(posted, false, rank, peer, tag, buffer, NULL, NULL), STATUS_OK);
}

#endif
