#ifndef TESTS_UNIT_COMM_COMM_NODES_H
#define TESTS_UNIT_COMM_COMM_NODES_H

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
#include "daemon/base/time.h"
#include "daemon/comm/comms.h"
#include "daemon/exec/exec.h"
#include "tests/network/mesh_node.h"

/*
 * Nodes "a", "b", … with net (in memory), mesh, exec and comms, and members on them. The members check what
 * comms tells them against comms.h:
 * - formed comes once, and first;
 * - completed comes once for each submit, in order;
 * - aborted comes once, and last;
 * - nothing comes from within a call of the same member, or after it left.
 */
#define NODES_MAX 6
#ifndef MEMBERS_MAX
#define MEMBERS_MAX 64
#endif
#define OPS_MAX 64

/* The nodes' settings, for the next world_start; 0: the default. */
static uint64_t slice_bytes_settings[NODES_MAX];

struct world;

struct node {
    struct world *world;
    char name[2];
    struct net *net;
    struct mesh *mesh;
    struct exec *exec;
    struct p2p *p2p;
    struct comms *comms;
    bool alive;
    struct user_limit limit; /* of this node's configuration */
};

struct member {
    struct node *node;
    struct comms_client client;
    struct comms_member *handle; /* null when it has not joined, was refused, or left */
    bool calling;
    struct error join_result;
    unsigned formed_count;
    struct error formed;
    uint64_t formed_ns;
    uint64_t posted, completed;
    struct error results[OPS_MAX + 1]; /* by seq */
    uint64_t completed_ns;
    unsigned aborted_count;
    struct error aborted;
    void (*on_completed)(struct member *member, uint64_t seq);
    bool leave_when_formed;
};

struct world {
    struct network *network;
    uint64_t now_ns;
    struct node nodes[NODES_MAX];
    unsigned count;
    struct member members[MEMBERS_MAX];
    unsigned member_count;
    uint64_t instances;
    struct budget_account *account; /* of members that join; null: nothing is charged */
};

static inline void on_formed(void *context, struct comms_member *handle, const struct error *result,
                             uint64_t now_ns)
{
    struct member *member = context;
    assert_false(member->calling);
    assert_ptr_equal(handle, member->handle);
    assert_int_equal(member->formed_count, 0);
    member->formed_count++;
    member->formed = *result;
    member->formed_ns = now_ns;
    if (member->leave_when_formed) {
        member->handle = NULL;
        comms_member_leave(handle, COMMS_LEAVE_ORDERLY, now_ns);
    }
}

static inline void on_completed(void *context, struct comms_member *handle,
                                const struct comms_completion *completion, uint64_t now_ns)
{
    struct member *member = context;
    uint64_t seq = completion->ticket;
    assert_false(member->calling);
    assert_ptr_equal(handle, member->handle);
    assert_int_equal(member->formed_count, 1);
    assert_int_equal(member->aborted_count, 0);
    assert_int_equal(seq, member->completed + 1);
    assert_true(seq <= member->posted);
    member->completed = seq;
    member->completed_ns = now_ns;
    if (seq <= OPS_MAX) {
        member->results[seq] = *completion->result;
    }
    if (member->on_completed != NULL) {
        member->on_completed(member, seq);
    }
}

static inline void on_aborted(void *context, struct comms_member *handle, const struct error *cause,
                              uint64_t now_ns)
{
    struct member *member = context;
    (void)now_ns;
    assert_false(member->calling);
    assert_ptr_equal(handle, member->handle);
    assert_int_equal(member->formed_count, 1);
    assert_int_equal(member->formed.status, STATUS_OK);
    assert_int_equal(member->aborted_count, 0);
    assert_int_equal(member->completed, member->posted);
    assert_int_not_equal(cause->status, STATUS_OK);
    member->aborted_count++;
    member->aborted = *cause;
}

static inline void node_start(struct world *world, unsigned index)
{
    struct node *node = &world->nodes[index];
    struct error error;
    uint64_t instance = ++world->instances;
    node->world = world;
    mesh_node_new(world->network, index, instance, world->now_ns, &node->limit, node->name, &node->net,
                  &node->mesh);
    assert_int_equal(exec_new(node->net, &node->exec, &error), STATUS_OK);
    assert_int_equal(p2p_new(node->net, &node->p2p, &error), STATUS_OK);
    struct comms_options comms_options = {.mesh = node->mesh,
                                          .slice_bytes = slice_bytes_settings[index],
                                          .exec = node->exec,
                                          .p2p = node->p2p,
                                          .seed_secure = instance * 7919};
    assert_int_equal(comms_new(&comms_options, &node->comms, &error), STATUS_OK);
    mesh_node_add_others(node->mesh, index, world->count);
    node->alive = true;
}

static inline void world_start(struct world *world, unsigned count, uint64_t seed,
                               const struct network_conditions *conditions)
{
    static const struct network_conditions calm = {.delay_ns = 50 * TIME_US, .jitter_ns = 50 * TIME_US};
    memset(world, 0, sizeof *world);
    world->network = network_new_pipes(seed, conditions != NULL ? conditions : &calm);
    world->count = count;
    world->instances = seed * 1000;
    for (unsigned i = 0; i < count; i++) {
        node_start(world, i);
    }
}

/* Does everything that is to be done at this moment, until nothing is left. */
static inline void settle(struct world *world)
{
    bool again = true;
    for (unsigned turn = 0; again; turn++) {
        assert_true(turn < 100000);
        again = false;
        network_advance(world->network, world->now_ns);
        for (unsigned i = 0; i < world->count; i++) {
            struct node *node = &world->nodes[i];
            if (node->net == NULL) {
                continue;
            }
            if (exec_has_work(node->exec) || p2p_has_work(node->p2p)) {
                (void)exec_run(node->exec, world->now_ns);
                (void)p2p_run(node->p2p, world->now_ns);
                again = true;
            }
            if (mesh_next_deadline_ns(node->mesh) <= world->now_ns) {
                mesh_tick(node->mesh, world->now_ns);
                again = true;
            }
            if (exec_next_deadline_ns(node->exec) <= world->now_ns) {
                exec_tick(node->exec, world->now_ns);
            }
            if (p2p_next_deadline_ns(node->p2p) <= world->now_ns) {
                p2p_tick(node->p2p, world->now_ns);
            }
            if (comms_next_deadline_ns(node->comms) <= world->now_ns) {
                comms_tick(node->comms, world->now_ns);
                again = true;
            }
        }
        again |= network_next_ns(world->network) <= world->now_ns;
    }
}

static inline void run(struct world *world, uint64_t span_ns)
{
    uint64_t until_ns = world->now_ns + span_ns;
    settle(world);
    for (;;) {
        uint64_t next_ns = network_next_ns(world->network);
        for (unsigned i = 0; i < world->count; i++) {
            if (world->nodes[i].net != NULL) {
                next_ns = time_min(next_ns, mesh_next_deadline_ns(world->nodes[i].mesh));
                next_ns = time_min(next_ns, exec_next_deadline_ns(world->nodes[i].exec));
                next_ns = time_min(next_ns, p2p_next_deadline_ns(world->nodes[i].p2p));
                next_ns = time_min(next_ns, comms_next_deadline_ns(world->nodes[i].comms));
            }
        }
        if (next_ns > until_ns) {
            break;
        }
        world->now_ns = next_ns > world->now_ns ? next_ns : world->now_ns;
        settle(world);
    }
    world->now_ns = until_ns;
    settle(world);
}

/* Every live node is up for every other. */
static inline void connect_all(struct world *world)
{
    run(world, 2 * TIME_S);
    for (unsigned i = 0; i < world->count; i++) {
        for (uint32_t j = 0; world->nodes[i].alive && j + 1 < world->count; j++) {
            unsigned other = j < i ? j : j + 1;
            assert_true(!world->nodes[other].alive || mesh_node_is_up(world->nodes[i].mesh, j));
        }
    }
}

static inline struct member *join_as(struct world *world, unsigned node, const struct comms_terms *terms,
                                     uid_t uid)
{
    assert_true(world->member_count < MEMBERS_MAX);
    struct member *member = &world->members[world->member_count++];
    memset(member, 0, sizeof *member);
    member->node = &world->nodes[node];
    member->client = (struct comms_client){
        .pid = (pid_t)(99 + world->member_count), .uid = uid, .account = world->account};
    struct comms_member_handler handler = {
        .context = member, .formed = on_formed, .completed = on_completed, .aborted = on_aborted};
    member->calling = true;
    enum status status = comms_member_join(member->node->comms, &member->client, terms, &handler,
                                           world->now_ns, &member->handle, &member->join_result);
    member->calling = false;
    if (status != STATUS_OK) {
        assert_int_equal(status, member->join_result.status);
        member->handle = NULL;
    } else {
        member->join_result.status = STATUS_OK;
    }
    return member;
}

static inline struct member *join(struct world *world, unsigned node, const char *name, uint32_t rank,
                                  uint32_t size)
{
    return join_as(world, node, &(struct comms_terms){.name = name, .rank = rank, .size = size}, 1000);
}

static inline void leave(struct member *member, enum comms_leave how)
{
    if (member->handle != NULL) {
        struct comms_member *handle = member->handle;
        member->handle = NULL;
        member->calling = true;
        comms_member_leave(handle, how, member->node->world->now_ns);
        member->calling = false;
    }
}

static inline void leave_all(struct world *world)
{
    for (unsigned i = 0; i < world->member_count; i++) {
        leave(&world->members[i], COMMS_LEAVE_ORDERLY);
    }
    run(world, 10 * TIME_MS);
    world->member_count = 0;
}

static inline bool count_info(void *context, const struct communicator_info *info)
{
    (void)info;
    ++*(unsigned *)context;
    return true;
}

static inline unsigned comm_count(const struct world *world, unsigned node)
{
    unsigned count = 0;
    comms_visit_comms(world->nodes[node].comms, count_info, &count);
    return count;
}

static inline void node_stop(struct node *node)
{
    if (node->net != NULL) {
        comms_free(node->comms);
        exec_free(node->exec);
        p2p_free(node->p2p);
        mesh_free(node->mesh);
        net_free(node->net);
        node->net = NULL;
        node->alive = false;
    }
}

/* The node dies without a word, and its members with it. */
static inline void node_kill(struct world *world, unsigned index)
{
    struct node *node = &world->nodes[index];
    network_kill(world->network, node->name);
    for (unsigned i = 0; i < world->member_count; i++) {
        if (world->members[i].node == node) {
            leave(&world->members[i], COMMS_LEAVE_LOST);
        }
    }
    settle(world);
    node_stop(node);
}

static inline void world_stop(struct world *world)
{
    leave_all(world);
    for (unsigned i = 0; i < world->count; i++) {
        if (world->nodes[i].net != NULL) {
            assert_true(comms_idle(world->nodes[i].comms));
            assert_int_equal(comm_count(world, i), 0);
        }
        node_stop(&world->nodes[i]);
    }
    network_free(world->network);
}

static inline void assert_error(const struct error *error, enum status status, const char *text)
{
    if (error->status != status || strstr(error->text, text) == NULL) {
        fail_msg("%s \"%s\" instead of %s with \"%s\"", status_name(error->status), error->text,
                 status_name(status), text);
    }
}

static inline void assert_formed(const struct member *member)
{
    assert_int_equal(member->join_result.status, STATUS_OK);
    assert_int_equal(member->formed_count, 1);
    if (member->formed.status != STATUS_OK) {
        fail_msg("not formed: %s", member->formed.text);
    }
}

/* Posts a barrier; for tests that are not about data. */
static inline enum status post_barrier(struct member *member, uint64_t timeout_ms, struct error *error)
{
    struct comms_op op = {
        .ticket = member->posted + 1, .terms.kind = OP_KIND_BARRIER, .timeout_ms = timeout_ms};
    member->calling = true;
    enum status status = comms_submit(member->handle, &op, member->node->world->now_ns, error);
    member->calling = false;
    if (status == STATUS_OK) {
        member->posted++;
    }
    return status;
}

#endif
