#ifndef TESTS_UNIT_MESH_MESH_NODES_H
#define TESTS_UNIT_MESH_MESH_NODES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/mesh/mesh.h"
#include "tests/network/network.h"

/* Meshes on a network of pipes. Their handlers check that node_up and node_down alternate. */

enum { NODES_MAX = 6 };

struct node {
    const char *name;
    struct net *net;
    struct mesh *mesh;
    unsigned ups[NODES_MAX], downs[NODES_MAX], suspicions[NODES_MAX], messages;
    uint64_t changed_ns[NODES_MAX];
    struct error cause; /* of the last node_down */
    char text[64];      /* of the last message */
};

struct world {
    struct network *network;
    uint64_t now_ns;
    struct node nodes[NODES_MAX];
    unsigned count;
};

/* Of nodes that are started next. */
static uint64_t settings_slice_bytes;
static const char *settings_algorithms = "";
static uint64_t settings_incarnation;

static const struct network_conditions calm = {.delay_ns = 50 * TIME_US, .jitter_ns = 50 * TIME_US};

static inline void on_up(void *context, uint32_t peer, uint64_t now_ns)
{
    struct node *node = context;
    assert_int_equal(node->ups[peer], node->downs[peer]);
    assert_true(mesh_node_is_up(node->mesh, peer));
    node->ups[peer]++;
    node->changed_ns[peer] = now_ns;
}

static inline void on_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    struct node *node = context;
    assert_int_equal(node->ups[peer], node->downs[peer] + 1);
    assert_false(mesh_node_is_up(node->mesh, peer));
    assert_int_not_equal(cause->status, STATUS_OK);
    node->downs[peer]++;
    node->changed_ns[peer] = now_ns;
    node->cause = *cause;
}

static inline void on_suspect(void *context, uint32_t peer, uint64_t now_ns)
{
    struct node *node = context;
    (void)now_ns;
    assert_true(mesh_node_is_up(node->mesh, peer));
    assert_true(mesh_node_is_suspect(node->mesh, peer));
    node->suspicions[peer]++;
}

static inline void on_message(void *context, uint32_t peer, const Commd__Mesh__Message *message,
                              uint64_t now_ns)
{
    struct node *node = context;
    (void)now_ns;
    assert_true(mesh_node_is_up(node->mesh, peer));
    assert_int_equal(message->body_case, COMMD__MESH__MESSAGE__BODY_WITHDRAW);
    node->messages++;
    snprintf(node->text, sizeof node->text, "%s", message->withdraw->text);
}

static inline void node_start(struct world *world, unsigned index, const char *name, const char *cluster,
                              uint64_t instance)
{
    struct node *node = &world->nodes[index];
    struct mesh_options options;
    struct error error;
    memset(node, 0, sizeof *node);
    node->name = name;
    node->net = network_add(world->network, name);
    mesh_options_default(&options);
    options.node_name = name;
    options.cluster_name = cluster;
    options.version_text = "9.9";
    options.instance = instance;
    options.seed = instance;
    options.now_ns = world->now_ns;
    options.incarnation = settings_incarnation;
    options.slice_bytes = settings_slice_bytes;
    options.algorithms = settings_algorithms;
    assert_int_equal(mesh_new(node->net, &options, &node->mesh, &error), STATUS_OK);
    mesh_set_handler(node->mesh, MESH_ROOM_COMM,
                     &(struct mesh_handler){node, on_up, on_down, on_message, on_suspect});
}

static inline void node_stop(struct node *node)
{
    if (node->net != NULL) {
        mesh_free(node->mesh);
        net_free(node->net);
        node->mesh = NULL;
        node->net = NULL;
    }
}

static inline uint32_t knows(struct node *node, const char *name)
{
    uint32_t peer = UINT32_MAX;
    struct error error;
    assert_int_equal(mesh_add_node(node->mesh, name, "127.0.0.1:1", &peer, &error), STATUS_OK);
    return peer;
}

static inline void run(struct world *world, uint64_t span_ns)
{
    uint64_t until_ns = world->now_ns + span_ns;
    for (;;) {
        uint64_t next_ns = network_next_ns(world->network);
        for (unsigned i = 0; i < world->count; i++) {
            if (world->nodes[i].mesh != NULL) {
                next_ns = time_min(next_ns, mesh_next_deadline_ns(world->nodes[i].mesh));
            }
        }
        if (next_ns > until_ns) {
            break;
        }
        world->now_ns = next_ns > world->now_ns ? next_ns : world->now_ns;
        network_advance(world->network, world->now_ns);
        for (unsigned i = 0; i < world->count; i++) {
            if (world->nodes[i].mesh != NULL) {
                mesh_tick(world->nodes[i].mesh, world->now_ns);
            }
        }
    }
    world->now_ns = until_ns;
    network_advance(world->network, until_ns);
}

static const char *const names[NODES_MAX] = {"a", "b", "c", "d", "e", "f"};

static inline void world_start(struct world *world, unsigned count,
                               const struct network_conditions *conditions, uint64_t seed)
{
    memset(world, 0, sizeof *world);
    world->network = network_new_pipes(seed, conditions);
    world->count = count;
    for (unsigned i = 0; i < count; i++) {
        node_start(world, i, names[i], "test", seed * 100 + i + 1);
    }
    for (unsigned i = 0; i < count; i++) {
        for (unsigned j = 0; j < count; j++) {
            if (i != j) {
                assert_int_equal(knows(&world->nodes[i], names[j]), j < i ? j : j - 1);
            }
        }
    }
}

static inline void world_stop(struct world *world)
{
    for (unsigned i = 0; i < world->count; i++) {
        node_stop(&world->nodes[i]);
    }
    network_free(world->network);
}

static inline bool is_up(const struct world *world, unsigned from, unsigned to)
{
    uint32_t peer;
    assert_true(mesh_find_node(world->nodes[from].mesh, names[to], &peer));
    return mesh_node_is_up(world->nodes[from].mesh, peer);
}

#endif
