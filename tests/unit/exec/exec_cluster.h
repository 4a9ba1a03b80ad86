#ifndef TESTS_UNIT_EXEC_EXEC_CLUSTER_H
#define TESTS_UNIT_EXEC_EXEC_CLUSTER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/time.h"
#include "daemon/exec/exec.h"
#include "tests/network/network.h"

/* Engines of several nodes on a network of pipes, driven by hand. */
#define NODES_MAX 5
#define RANKS_MAX 3
#define OPS_MAX 400
#define POISON 0x5A

struct cluster;

struct node {
    struct cluster *cluster;
    uint32_t index;
    char name[16];
    struct net *net;
    struct exec *exec;
    struct exec_comm *comm;
    uint32_t ups;
    uint32_t failures;
    struct error failure;
    uint32_t disputes;
    uint64_t disputed_seq;
    uint32_t disputed_node;
};

struct cluster {
    struct network *network;
    struct node nodes[NODES_MAX];
    const char *names[NODES_MAX];
    uint32_t count;
    uint64_t now_ns;
    const char *how; /* what a disagreement is about; null: the count */
};

struct outcome {
    uint32_t calls;
    struct error result;
};

static inline void peer_up(void *context, uint32_t peer, uint64_t now_ns)
{
    (void)peer;
    (void)now_ns;
    ((struct node *)context)->ups++;
}

static inline void peer_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)peer;
    (void)cause;
    (void)now_ns;
}

static inline void comm_failed(void *context, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    struct node *node = context;
    node->failures++;
    node->failure = *cause;
}

static inline void comm_disagreed(void *context, uint64_t seq, uint32_t other, const char *how,
                                  uint64_t now_ns)
{
    struct node *node = context;
    (void)now_ns;
    assert_string_equal(how, node->cluster->how != NULL ? node->cluster->how : "they differ in: count");
    node->disputes++;
    node->disputed_seq = seq;
    node->disputed_node = other;
}

static inline void op_done(void *context, const struct error *result, uint64_t now_ns)
{
    (void)now_ns;
    struct outcome *outcome = context;
    outcome->calls++;
    outcome->result = *result;
}

/* A node's peers are all other nodes in order. So node j is peer j, or peer j - 1 if it comes after the node
 * itself. */
static inline uint32_t peer_of(uint32_t node, uint32_t other)
{
    return other < node ? other : other - 1;
}

static inline void turn(struct cluster *cluster)
{
    uint64_t next_ns = network_next_ns(cluster->network);
    cluster->now_ns =
        next_ns == TIME_NEVER || next_ns <= cluster->now_ns ? cluster->now_ns + TIME_US : next_ns;
    network_advance(cluster->network, cluster->now_ns);
    for (uint32_t i = 0; i < cluster->count; i++) {
        exec_run(cluster->nodes[i].exec, cluster->now_ns);
    }
}

static inline void cluster_start(struct cluster *cluster, uint32_t count, double loss)
{
    struct network_conditions conditions = {
        .loss = loss, .delay_ns = 50 * TIME_US, .jitter_ns = 200 * TIME_US};
    memset(cluster, 0, sizeof *cluster);
    cluster->count = count;
    cluster->now_ns = TIME_S;
    cluster->network = network_new_pipes(4711 + count, &conditions);
    for (uint32_t i = 0; i < count; i++) {
        struct node *node = &cluster->nodes[i];
        node->cluster = cluster;
        node->index = i;
        snprintf(node->name, sizeof node->name, "n%u", i);
        cluster->names[i] = node->name;
        node->net = network_add(cluster->network, node->name);
        struct net_peer_handler handler = {
            .context = node, .peer_up = peer_up, .peer_down = peer_down, .connect_failed = peer_down};
        net_set_peer_handler(node->net, &handler);
        assert_int_equal(exec_new(node->net, &node->exec, NULL), STATUS_OK);
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < count; j++) {
            uint32_t peer;
            if (i != j) {
                assert_int_equal(net_add_peer(cluster->nodes[i].net, cluster->names[j], "x:1", &peer, NULL),
                                 STATUS_OK);
                assert_int_equal(peer, peer_of(i, j));
            }
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = i + 1; j < count; j++) {
            assert_int_equal(net_connect(cluster->nodes[i].net, peer_of(i, j), NULL), STATUS_OK);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        for (int turns = 0; cluster->nodes[i].ups < count - 1; turns++) {
            assert_true(turns < 100000);
            turn(cluster);
        }
    }
}

/* Ranks per node differ: node i has 1 + i % RANKS_MAX. */
static inline uint32_t ranks_of(uint32_t node)
{
    return 1 + node % RANKS_MAX;
}

static inline void comm_make(struct cluster *cluster, uint32_t i, uint64_t comm_id, uint64_t slice_bytes,
                             struct exec_comm **out)
{
    uint32_t peers[NODES_MAX] = {0};
    uint32_t node_of_rank[NODES_MAX * RANKS_MAX];
    uint32_t size = 0;
    for (uint32_t j = 0; j < cluster->count; j++) {
        for (uint32_t r = 0; r < ranks_of(j); r++) {
            node_of_rank[size++] = j;
        }
    }
    for (uint32_t j = 0; j < cluster->count; j++) {
        peers[j] = j != i ? peer_of(i, j) : 0;
    }
    const struct exec_comm_handler handler = {
        .context = &cluster->nodes[i], .failed = comm_failed, .disagreed = comm_disagreed};
    struct comm_map facts = {.comm_id = comm_id,
                             .ranks = {.size = size, .node_count = cluster->count, .node_index = i},
                             .node_of_rank = node_of_rank,
                             .peers = peers,
                             .node_names = cluster->names,
                             .slice_bytes = slice_bytes,
                             .name = "test",
                             .network = coll_network_default};
    struct comm_map *map;
    assert_int_equal(comm_map_new(&facts, &map, NULL), STATUS_OK);
    assert_int_equal(exec_comm_new(cluster->nodes[i].exec, map, &handler, out, NULL), STATUS_OK);
    comm_map_release(map);
}

static inline void cluster_make_comm(struct cluster *cluster, uint64_t slice_bytes)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        comm_make(cluster, i, 99, slice_bytes, &cluster->nodes[i].comm);
    }
}

static inline void cluster_free(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        exec_comm_free(cluster->nodes[i].comm);
        exec_free(cluster->nodes[i].exec);
        net_free(cluster->nodes[i].net);
    }
    network_free(cluster->network);
}

static inline int64_t value_of(uint32_t rank, uint64_t element, uint64_t seq)
{
    return (int64_t)((rank + 1) * (element * 7 + seq * 1000003 + 1));
}

struct op_buffers {
    int64_t *in[NODES_MAX][RANKS_MAX];
    int64_t *out[NODES_MAX][RANKS_MAX];
    struct outcome outcomes[NODES_MAX];
    uint64_t seq, count;
    enum op_kind kind;
    uint32_t root_node, root_local;
    bool avg;
};

static inline uint32_t rank_number(uint32_t node, uint32_t local)
{
    uint32_t rank = local;
    for (uint32_t i = 0; i < node; i++) {
        rank += ranks_of(i);
    }
    return rank;
}

static inline void op_prepare(struct cluster *cluster, struct op_buffers *op, bool in_place)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        for (uint32_t r = 0; r < ranks_of(i); r++) {
            op->out[i][r] = malloc((op->count + 1) * 8);
            op->in[i][r] = in_place ? op->out[i][r] : malloc((op->count + 1) * 8);
            memset(op->out[i][r], POISON, (op->count + 1) * 8);
            bool has_input = op->kind == OP_KIND_ALL_REDUCE || (i == op->root_node && r == op->root_local);
            for (uint64_t e = 0; e < op->count && has_input; e++) {
                op->in[i][r][e] = value_of(rank_number(i, r), e, op->seq);
            }
        }
    }
}

static inline void op_submit(struct op_buffers *op, uint32_t i, struct exec_comm *comm)
{
    struct exec_rank ranks[RANKS_MAX];
    for (uint32_t r = 0; r < ranks_of(i); r++) {
        ranks[r] = (struct exec_rank){.input = op->in[i][r], .output = op->out[i][r], .factor = 1};
    }
    struct exec_call call = {.terms.kind = op->kind,
                             .terms.dtype = DTYPE_I64,
                             .terms.reduce = op->avg ? REDUCE_AVG : REDUCE_SUM,
                             .seq = op->seq,
                             .terms.count_elements = op->count,
                             .terms.root_rank = rank_number(op->root_node, op->root_local),
                             .terms.bucket_ops = 1,
                             .rank_count = ranks_of(i),
                             .ranks = ranks,
                             .done = op_done,
                             .context = &op->outcomes[i]};
    assert_int_equal(exec_submit(comm, &call, NULL), STATUS_OK);
    assert_int_equal(op->outcomes[i].calls, 0);
}

static inline bool op_is_done(const struct cluster *cluster, const struct op_buffers *op)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        if (op->outcomes[i].calls == 0) {
            return false;
        }
    }
    return true;
}

static inline void op_wait(struct cluster *cluster, const struct op_buffers *op)
{
    for (int turns = 0; !op_is_done(cluster, op); turns++) {
        if (turns == 2000000) {
            char text[256];
            for (uint32_t i = 0; i < cluster->count; i++) {
                exec_comm_describe_wait(cluster->nodes[i].comm, text, sizeof text);
                print_message("%s: %s\n", cluster->names[i], text);
            }
            fail_msg("operation %llu does not end", (unsigned long long)op->seq);
        }
        turn(cluster);
    }
}

static inline void op_check(const struct cluster *cluster, const struct op_buffers *op)
{
    uint32_t size = rank_number(cluster->count, 0);
    for (uint32_t i = 0; i < cluster->count; i++) {
        assert_int_equal(op->outcomes[i].calls, 1);
        assert_int_equal(op->outcomes[i].result.status, STATUS_OK);
        for (uint32_t r = 0; r < ranks_of(i); r++) {
            for (uint64_t e = 0; e < op->count; e++) {
                int64_t expected = 0;
                for (uint32_t each = 0; each < size && op->kind == OP_KIND_ALL_REDUCE; each++) {
                    expected += value_of(each, e, op->seq);
                }
                if (op->kind == OP_KIND_BROADCAST) {
                    expected = value_of(rank_number(op->root_node, op->root_local), e, op->seq);
                }
                expected /= op->avg ? (int64_t)size : 1;
                if (op->out[i][r][e] != expected) {
                    fail_msg("op %llu, count %llu, node %u, rank %u, element %llu: %lld, expected %lld",
                             (unsigned long long)op->seq, (unsigned long long)op->count, i, r,
                             (unsigned long long)e, (long long)op->out[i][r][e], (long long)expected);
                }
            }
            unsigned char guard[8];
            memset(guard, POISON, 8);
            assert_memory_equal(&op->out[i][r][op->count], guard, 8);
        }
    }
}

static inline void op_free(const struct cluster *cluster, struct op_buffers *op)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        for (uint32_t r = 0; r < ranks_of(i); r++) {
            if (op->in[i][r] != op->out[i][r]) {
                free(op->in[i][r]);
            }
            free(op->out[i][r]);
        }
    }
}

#endif
