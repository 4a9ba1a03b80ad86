#ifndef TESTS_UNIT_STORE_STORE_NODES_H
#define TESTS_UNIT_STORE_STORE_NODES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/store/stores.h"
#include "tests/network/mesh_node.h"

/* Nodes with meshes and stores on a network of pipes, and processes that have stores open. Time is the
 * test's. */

enum { NODES_MAX = 16, PROCESSES_MAX = 8, ANSWERS_MAX = 1200 };

struct node {
    char name[2];
    struct net *net;
    struct mesh *mesh;
    struct stores *stores;
    struct budget *budget;
    struct user_limit limit;
};

struct answer {
    bool came;
    struct error result;
    char value[64]; /* its beginning */
    size_t size;
    int64_t number;
};

/* A process with one store. Requests are numbered from 0; OPEN is number 0. */
struct process {
    struct node *node;
    struct stores_handle *handle; /* null: not open */
    struct budget_account *account;
    struct answer answers[ANSWERS_MAX];
    uint64_t asked;
    bool is_full; /* it takes no answers */
};

struct world {
    struct network *network;
    uint64_t now_ns;
    struct node nodes[NODES_MAX];
    unsigned count;
    struct process processes[PROCESSES_MAX];
    unsigned process_count;
};

static inline void node_start(struct world *world, unsigned index, uint64_t instance)
{
    struct node *node = &world->nodes[index];
    struct error error;
    mesh_node_new(world->network, index, instance, world->now_ns, &node->limit, node->name, &node->net,
                  &node->mesh);
    struct stores_options stores_options = {.mesh = node->mesh, .seed_secure = instance * 7919};
    assert_int_equal(stores_new(&stores_options, &node->stores, &error), STATUS_OK);
    assert_int_equal(budget_new(NULL, &node->budget, &error), STATUS_OK);
    stores_set_budget(node->stores, node->budget);
    mesh_node_add_others(node->mesh, index, world->count);
}

/* What all accounts of the node have charged for stores. */
static inline uint64_t used(const struct node *node)
{
    struct budget_totals totals;
    budget_totals(node->budget, &totals);
    return totals.used[BUDGET_STORES];
}

static inline void node_stop(struct node *node)
{
    if (node->net != NULL) {
        stores_free(node->stores);
        assert_int_equal(used(node), 0);
        budget_free(node->budget);
        mesh_free(node->mesh);
        net_free(node->net);
        node->net = NULL;
    }
}

static inline uint64_t node_part_next_ns(const struct node *node)
{
    return stores_next_deadline_ns(node->stores);
}

static inline void node_part_tick(struct node *node, uint64_t now_ns)
{
    stores_tick(node->stores, now_ns);
}

#include "tests/network/part_nodes.h"

static inline void on_answered(void *context, uint64_t request, enum store_kind kind,
                               const struct stores_answer *answer)
{
    struct process *process = context;
    assert_true(request < ANSWERS_MAX);
    struct answer *to = &process->answers[request];
    assert_false(to->came);
    to->came = true;
    to->result = *answer->result;
    to->size = answer->value.size;
    to->number = answer->number;
    if (to->size > 0) {
        memcpy(to->value, answer->value.data, to->size < sizeof to->value ? to->size : sizeof to->value);
    }
    if (kind == STORE_KIND_OPEN && to->result.status != STATUS_OK) {
        stores_close(process->handle, 0);
        process->handle = NULL;
    }
}

static inline bool on_has_room(void *context, size_t size)
{
    (void)size;
    return !((struct process *)context)->is_full;
}

/* Asks for the store; answers[0] says what came of it. An immediate error is put there, too. */
static inline struct process *open_as(struct world *world, unsigned node, const char *name,
                                      uint64_t timeout_ns, uint32_t uid)
{
    assert_true(world->process_count < PROCESSES_MAX);
    struct process *process = &world->processes[world->process_count++];
    struct error error;
    memset(process, 0, sizeof *process);
    process->node = &world->nodes[node];
    process->asked = 1;
    assert_int_equal(budget_open(process->node->budget, uid, "/client", &process->account, &error),
                     STATUS_OK);
    struct stores_client client = {.uid = uid, .account = process->account};
    struct stores_handler handler = {.context = process, .answered = on_answered, .has_room = on_has_room};
    enum status status = stores_open(process->node->stores, &client, name, 0, timeout_ns, &handler,
                                     world->now_ns, &process->handle, &error);
    if (status != STATUS_OK) {
        process->answers[0].came = true;
        process->answers[0].result = error;
        process->handle = NULL;
    }
    return process;
}

static inline struct process *open_store(struct world *world, unsigned node, const char *name)
{
    struct process *process = open_as(world, node, name, TIME_S, 1000);
    run(world, TIME_MS);
    assert_true(process->answers[0].came);
    if (process->answers[0].result.status != STATUS_OK) {
        fail_msg("%s", process->answers[0].result.text);
    }
    return process;
}

static inline void close_store(struct world *world, struct process *process)
{
    if (process->handle != NULL) {
        stores_close(process->handle, world->now_ns);
        process->handle = NULL;
    }
    budget_close(process->account);
    process->account = NULL;
}

static inline void world_stop(struct world *world)
{
    for (unsigned i = 0; i < world->process_count; i++) {
        close_store(world, &world->processes[i]);
    }
    for (unsigned i = 0; i < world->count; i++) {
        node_stop(&world->nodes[i]);
    }
    network_free(world->network);
}

static inline struct store_bytes bytes(const char *text)
{
    return (struct store_bytes){.data = (const uint8_t *)text, .size = strlen(text)};
}

/* Makes a request, and returns where its answer will be. */
static inline const struct answer *ask(struct world *world, struct process *process, enum store_kind kind,
                                       const char *key, const char *value, int64_t delta, uint64_t timeout_ns)
{
    struct store_bytes key_bytes = bytes(key != NULL ? key : "");
    struct error error;
    struct stores_ask request = {.request = process->asked++,
                                 .kind = kind,
                                 .keys = &key_bytes,
                                 .key_count = key != NULL ? 1 : 0,
                                 .value = bytes(value != NULL ? value : ""),
                                 .delta = delta,
                                 .timeout_ns = timeout_ns};
    struct answer *answer = &process->answers[request.request];
    assert_int_equal(stores_ask_check(&request, &error), STATUS_OK);
    if (stores_request(process->handle, &request, world->now_ns, &error) != STATUS_OK) {
        answer->came = true;
        answer->result = error;
    }
    return answer;
}

static inline const struct answer *set(struct world *world, struct process *process, const char *key,
                                       const char *value)
{
    return ask(world, process, STORE_KIND_SET, key, value, 0, TIME_S);
}

static inline const struct answer *get(struct world *world, struct process *process, const char *key,
                                       uint64_t timeout_ns)
{
    return ask(world, process, STORE_KIND_GET, key, NULL, 0, timeout_ns);
}

static inline int64_t add(struct world *world, struct process *process, const char *key, int64_t delta)
{
    const struct answer *answer = ask(world, process, STORE_KIND_ADD, key, NULL, delta, TIME_S);
    run(world, TIME_MS);
    assert_true(answer->came);
    assert_int_equal(answer->result.status, STATUS_OK);
    return answer->number;
}

static inline void assert_value(const struct answer *answer, const char *value)
{
    assert_true(answer->came);
    assert_int_equal(answer->result.status, STATUS_OK);
    assert_int_equal(answer->size, strlen(value));
    assert_memory_equal(answer->value, value, answer->size);
}

static inline void assert_fails(const struct answer *answer, enum status status, const char *text)
{
    assert_true(answer->came);
    assert_int_equal(answer->result.status, status);
    if (strstr(answer->result.text, text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, answer->result.text);
    }
}

#endif
