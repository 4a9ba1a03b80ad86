#ifndef TESTS_UNIT_GATHER_GATHER_NODES_H
#define TESTS_UNIT_GATHER_GATHER_NODES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/gather/gathers_internal.h"
#include "tests/network/mesh_node.h"

/* Nodes with meshes and gathers on a network of pipes, and processes that join elastic jobs. Time is the
 * test's. */

enum { NODES_MAX = 8, PROCESSES_MAX = 80, VOIDS_MAX = 64, UID = 1000 };

struct node {
    char name[2];
    struct net *net; /* null: it does not run */
    struct mesh *mesh;
    struct gathers *gathers;
    struct budget *budget;
    struct user_limit limit;
    char voids[VOIDS_MAX][COMM_NAME_MAX_BYTES + 1];
    unsigned void_count;
};

struct process {
    struct node *node;
    struct gathers_entry *entry; /* null: it has left */
    struct budget_account *account;
    unsigned seated, grown; /* answers */
    struct error result;    /* of the last answer */
    struct gathers_seat seat;
    struct gathers_seat growth;
    uint32_t waiting;
    unsigned told; /* how often */
};

struct world {
    struct network *network;
    uint64_t now_ns;
    struct node nodes[NODES_MAX];
    unsigned count;
    struct process processes[PROCESSES_MAX];
    unsigned process_count;
};

static inline void on_voided(void *context, uint32_t uid, const char *comm_name, const struct error *cause,
                             uint64_t now_ns)
{
    struct node *node = context;
    (void)now_ns;
    assert_int_equal(uid, UID);
    assert_int_equal(cause->status, STATUS_RANK_LOST);
    assert_true(node->void_count < VOIDS_MAX);
    (void)snprintf(node->voids[node->void_count++], COMM_NAME_MAX_BYTES + 1, "%s", comm_name);
}

static inline void node_start(struct world *world, unsigned index, uint64_t instance)
{
    struct node *node = &world->nodes[index];
    struct error error;
    mesh_node_new(world->network, index, instance, world->now_ns, &node->limit, node->name, &node->net,
                  &node->mesh);
    struct gathers_options gathers_options = {.mesh = node->mesh,
                                              .seed_secure = instance * 7919,
                                              .now_ns = world->now_ns,
                                              .voided = on_voided,
                                              .context = node};
    assert_int_equal(gathers_new(&gathers_options, &node->gathers, &error), STATUS_OK);
    assert_int_equal(budget_new(NULL, &node->budget, &error), STATUS_OK);
    gathers_set_budget(node->gathers, node->budget);
    mesh_node_add_others(node->mesh, index, world->count);
}

/* What all accounts of the node have charged. */
static inline uint64_t used(const struct node *node)
{
    struct budget_totals totals;
    budget_totals(node->budget, &totals);
    return totals.used[BUDGET_COMMUNICATOR_BYTES];
}

static inline void leave(struct process *process)
{
    if (process->entry != NULL) {
        gathers_leave(process->entry);
        process->entry = NULL;
    }
    if (process->account != NULL) {
        budget_close(process->account);
        process->account = NULL;
    }
}

/* Its processes are gone, too. Others notice that it was silent, or, with `gone`, that nobody listens. */
static inline void node_stop(struct world *world, unsigned index)
{
    struct node *node = &world->nodes[index];
    for (unsigned i = 0; i < world->process_count; i++) {
        if (world->processes[i].node == node) {
            leave(&world->processes[i]);
        }
    }
    if (node->net != NULL) {
        gathers_free(node->gathers);
        assert_int_equal(used(node), 0);
        budget_free(node->budget);
        mesh_free(node->mesh);
        net_free(node->net);
        node->net = NULL;
    }
}

static inline uint64_t node_part_next_ns(const struct node *node)
{
    return gathers_next_deadline_ns(node->gathers);
}

static inline void node_part_tick(struct node *node, uint64_t now_ns)
{
    gathers_tick(node->gathers, now_ns);
}

#include "tests/network/part_nodes.h"

static inline void world_stop(struct world *world)
{
    for (unsigned i = 0; i < world->process_count; i++) {
        leave(&world->processes[i]);
    }
    for (unsigned i = 0; i < world->count; i++) {
        node_stop(world, i);
    }
    network_free(world->network);
}

static inline void on_seated(void *context, const struct error *result, const struct gathers_seat *seat,
                             uint64_t now_ns)
{
    struct process *process = context;
    (void)now_ns;
    process->seated++;
    process->result = *result;
    if (result->status == STATUS_OK) {
        process->seat = *seat;
    }
}

static inline void on_grown(void *context, const struct error *result, const struct gathers_seat *seat,
                            uint64_t now_ns)
{
    struct process *process = context;
    (void)now_ns;
    process->grown++;
    process->result = *result;
    if (result->status == STATUS_OK) {
        process->growth = *seat;
    }
}

static inline void on_waiting(void *context, uint32_t waiting)
{
    struct process *process = context;
    process->waiting = waiting;
    process->told++;
}

static inline struct gathers_wish wish_of(uint32_t least, uint32_t most)
{
    return (struct gathers_wish){
        .least = least, .most = most, .last_call_ns = 300 * TIME_MS, .timeout_ns = 60 * TIME_S};
}

static inline struct process *join_with(struct world *world, unsigned node, const char *name,
                                        const struct gathers_wish *wish)
{
    assert_true(world->process_count < PROCESSES_MAX);
    struct process *process = &world->processes[world->process_count++];
    struct error error;
    memset(process, 0, sizeof *process);
    process->node = &world->nodes[node];
    assert_int_equal(budget_open(process->node->budget, UID, "/client", &process->account, &error),
                     STATUS_OK);
    struct gathers_handler handler = {process, on_seated, on_grown, on_waiting};
    enum status status = gathers_join(process->node->gathers, UID, process->account, name, wish, &handler,
                                      world->now_ns, &process->entry, &error);
    if (status != STATUS_OK) {
        process->entry = NULL;
        process->result = error;
    }
    return process;
}

static inline struct process *join(struct world *world, unsigned node, uint32_t least, uint32_t most)
{
    struct gathers_wish wish = wish_of(least, most);
    struct process *process = join_with(world, node, "job", &wish);
    assert_non_null(process->entry);
    return process;
}

/* All nodes are up, and every place decides without delay. */
static inline void world_ready(struct world *world, unsigned count)
{
    world_start(world, count);
    run(world, 2 * GATHERS_GRACE_NS);
}

static inline void assert_seat(const struct process *process, uint32_t rank, uint32_t size)
{
    if (process->seated == 0 || process->result.status != STATUS_OK) {
        fail_msg("no seat: %s", process->result.text);
    }
    assert_int_equal(process->seat.rank, rank);
    assert_int_equal(process->seat.size, size);
    assert_true(process->seat.generation > 0);
}

static inline void assert_fails(const struct process *process, enum status status, const char *text)
{
    assert_int_equal(process->result.status, status);
    if (strstr(process->result.text, text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, process->result.text);
    }
}

/* The node that decides for the name. */
static inline unsigned place_of(const struct world *world, const char *name)
{
    struct owned_name key;
    (void)owned_name_make(&key, UID, name);
    for (unsigned i = 0; i < world->count; i++) {
        if (world->nodes[i].net != NULL &&
            gathers_choose(world->nodes[i].gathers, &key, false, NULL, world->now_ns) == MESH_NODE_OWN) {
            return i;
        }
    }
    fail_msg("no node decides for %s", name);
    return 0;
}

static inline void grow(struct world *world, struct process *process, uint32_t from, uint32_t to)
{
    struct error error;
    unsigned before = process->grown;
    if (gathers_grow(process->entry, from, to, TIME_S, world->now_ns, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    run(world, 10 * TIME_MS);
    assert_int_equal(process->grown, before + 1);
    assert_int_equal(process->result.status, STATUS_OK);
}

#endif
