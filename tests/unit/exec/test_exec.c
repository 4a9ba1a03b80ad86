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
};

struct outcome {
    uint32_t calls;
    struct error result;
};

static void peer_up(void *context, uint32_t peer, uint64_t now_ns)
{
    (void)peer;
    (void)now_ns;
    ((struct node *)context)->ups++;
}

static void peer_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)peer;
    (void)cause;
    (void)now_ns;
}

static void comm_failed(void *context, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    struct node *node = context;
    node->failures++;
    node->failure = *cause;
}

static void comm_disagreed(void *context, uint64_t seq, uint32_t other, const char *how, uint64_t now_ns)
{
    struct node *node = context;
    (void)now_ns;
    assert_string_equal(how, "they differ in: count");
    node->disputes++;
    node->disputed_seq = seq;
    node->disputed_node = other;
}

static void op_done(void *context, const struct error *result, uint64_t now_ns)
{
    (void)now_ns;
    struct outcome *outcome = context;
    outcome->calls++;
    outcome->result = *result;
}

/* A node's peers are all other nodes in order. So node j is peer j, or peer j - 1 if it comes after the node
 * itself. */
static uint32_t peer_of(uint32_t node, uint32_t other)
{
    return other < node ? other : other - 1;
}

static void turn(struct cluster *cluster)
{
    uint64_t next_ns = network_next_ns(cluster->network);
    cluster->now_ns =
        next_ns == TIME_NEVER || next_ns <= cluster->now_ns ? cluster->now_ns + TIME_US : next_ns;
    network_advance(cluster->network, cluster->now_ns);
    for (uint32_t i = 0; i < cluster->count; i++) {
        exec_run(cluster->nodes[i].exec, cluster->now_ns);
    }
}

static void cluster_start(struct cluster *cluster, uint32_t count, double loss)
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
static uint32_t ranks_of(uint32_t node)
{
    return 1 + node % RANKS_MAX;
}

static void comm_make(struct cluster *cluster, uint32_t i, uint64_t comm_id, uint64_t slice_bytes,
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

static void cluster_make_comm(struct cluster *cluster, uint64_t slice_bytes)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        comm_make(cluster, i, 99, slice_bytes, &cluster->nodes[i].comm);
    }
}

static void cluster_free(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        exec_comm_free(cluster->nodes[i].comm);
        exec_free(cluster->nodes[i].exec);
        net_free(cluster->nodes[i].net);
    }
    network_free(cluster->network);
}

static int64_t value_of(uint32_t rank, uint64_t element, uint64_t seq)
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

static uint32_t rank_number(uint32_t node, uint32_t local)
{
    uint32_t rank = local;
    for (uint32_t i = 0; i < node; i++) {
        rank += ranks_of(i);
    }
    return rank;
}

static void op_prepare(struct cluster *cluster, struct op_buffers *op, bool in_place)
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

static void op_submit(struct op_buffers *op, uint32_t i, struct exec_comm *comm)
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

static bool op_is_done(const struct cluster *cluster, const struct op_buffers *op)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        if (op->outcomes[i].calls == 0) {
            return false;
        }
    }
    return true;
}

static void op_wait(struct cluster *cluster, const struct op_buffers *op)
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

static void op_check(const struct cluster *cluster, const struct op_buffers *op)
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

static void op_free(const struct cluster *cluster, struct op_buffers *op)
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

/* With slice_bytes 64, a slice has 8 elements. The counts are around every boundary of slices, lanes and
 * parts. */
static void check_counts(uint32_t nodes, double loss)
{
    static const uint64_t counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 1000, 1001};
    struct cluster cluster;
    cluster_start(&cluster, nodes, loss);
    cluster_make_comm(&cluster, 64);
    uint64_t seq = 0;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (int variant = 0; variant < 6; variant++) {
            struct op_buffers op = {.seq = ++seq, .count = counts[c]};
            op.kind = variant < 3 ? OP_KIND_ALL_REDUCE : variant < 5 ? OP_KIND_BROADCAST : OP_KIND_BARRIER;
            op.avg = variant == 2;
            op.count = op.kind == OP_KIND_BARRIER ? 0 : op.count;
            op.root_node = op.kind == OP_KIND_BROADCAST ? (uint32_t)(c + (size_t)variant) % nodes : 0;
            op.root_local = op.kind == OP_KIND_BROADCAST ? ranks_of(op.root_node) - 1 : 0;
            op_prepare(&cluster, &op, variant % 2 == 1);
            for (uint32_t i = 0; i < nodes; i++) {
                op_submit(&op, i, cluster.nodes[i].comm);
            }
            op_wait(&cluster, &op);
            op_check(&cluster, &op);
            op_free(&cluster, &op);
        }
    }
    cluster_free(&cluster);
}

static void test_one_node(void **state)
{
    (void)state;
    check_counts(1, 0);
}

static void test_two_nodes(void **state)
{
    (void)state;
    check_counts(2, 0);
}

static void test_three_nodes_with_loss(void **state)
{
    (void)state;
    check_counts(3, 0.05);
}

static void test_five_nodes_with_loss(void **state)
{
    (void)state;
    check_counts(5, 0.05);
}

/* These buffers are too large to be copied: the network sends from the buffers themselves. An average is
 * divided there afterwards. */
static void test_large_in_place_average(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_start(&cluster, 3, 0.05);
    cluster_make_comm(&cluster, 1 << 17);
    for (uint64_t seq = 1; seq <= 2; seq++) {
        struct op_buffers op = {.seq = seq, .count = 100003, .kind = OP_KIND_ALL_REDUCE, .avg = true};
        op_prepare(&cluster, &op, seq == 2);
        for (uint32_t i = 0; i < 3; i++) {
            op_submit(&op, i, cluster.nodes[i].comm);
        }
        op_wait(&cluster, &op);
        op_check(&cluster, &op);
        op_free(&cluster, &op);
    }
    cluster_free(&cluster);
}

/* Large payloads leave from the ranks' own buffers, at every step. */
static void test_large_payloads_are_not_copied(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_start(&cluster, 3, 0.01);
    cluster_make_comm(&cluster, 1 << 19);
    struct network_counters before, after;
    struct op_buffers op = {.seq = 1, .count = 3 << 16, .kind = OP_KIND_ALL_REDUCE};
    op_prepare(&cluster, &op, false);
    network_counters(cluster.network, &before);
    for (uint32_t i = 0; i < 3; i++) {
        op_submit(&op, i, cluster.nodes[i].comm);
    }
    op_wait(&cluster, &op);
    op_check(&cluster, &op);
    network_counters(cluster.network, &after);
    assert_true(after.stream_bytes - before.stream_bytes > 3 * 8 * (3 << 16));
    assert_int_equal(after.copied_bytes, before.copied_bytes);
    op_free(&cluster, &op);
    cluster_free(&cluster);
}

/* One node posts hundreds of operations long before the others. Nothing is lost, and all results are right
 * and in order. */
static void test_many_queued_and_a_late_node(void **state)
{
    (void)state;
    static struct op_buffers ops[OPS_MAX];
    struct cluster cluster;
    memset(ops, 0, sizeof ops);
    cluster_start(&cluster, 3, 0.02);
    cluster_make_comm(&cluster, 4096);
    for (uint64_t k = 0; k < OPS_MAX; k++) {
        ops[k] = (struct op_buffers){
            .seq = k + 1, .count = k * 3 % 1500, .kind = k % 5 == 4 ? OP_KIND_BARRIER : OP_KIND_ALL_REDUCE};
        ops[k].count = ops[k].kind == OP_KIND_BARRIER ? 0 : ops[k].count;
        op_prepare(&cluster, &ops[k], k % 2 == 0);
        op_submit(&ops[k], 0, cluster.nodes[0].comm);
        op_submit(&ops[k], 1, cluster.nodes[1].comm);
    }
    for (int turns = 0; turns < 3000; turns++) {
        turn(&cluster);
    }
    assert_int_equal(ops[OPS_MAX - 1].outcomes[0].calls, 0);
    for (uint64_t k = 0; k < OPS_MAX; k++) {
        op_submit(&ops[k], 2, cluster.nodes[2].comm);
    }
    for (uint64_t k = 0; k < OPS_MAX; k++) {
        op_wait(&cluster, &ops[k]);
        op_check(&cluster, &ops[k]);
        op_free(&cluster, &ops[k]);
    }
    cluster_free(&cluster);
}

/* Data that comes before the communicator is known is kept, and used once it is. */
static void test_parked_then_claimed(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_start(&cluster, 2, 0);
    struct op_buffers op = {.seq = 1, .count = 5000, .kind = OP_KIND_ALL_REDUCE};
    op_prepare(&cluster, &op, false);
    comm_make(&cluster, 0, 99, 4096, &cluster.nodes[0].comm);
    op_submit(&op, 0, cluster.nodes[0].comm);
    for (int turns = 0; turns < 2000; turns++) {
        turn(&cluster);
    }
    assert_int_equal(op.outcomes[0].calls, 0);
    comm_make(&cluster, 1, 99, 4096, &cluster.nodes[1].comm);
    op_submit(&op, 1, cluster.nodes[1].comm);
    op_wait(&cluster, &op);
    op_check(&cluster, &op);
    op_free(&cluster, &op);
    cluster_free(&cluster);
}

/* Two nodes disagree about an operation. The error comes once, both nodes give up the operation, and the next
 * one is right. That holds whether the data sent are small or large. */
static void test_a_disagreement_ends_one_operation(void **state)
{
    (void)state;
    static const uint64_t counts[] = {100, 300000};
    for (uint32_t large = 0; large < 2; large++) {
        struct cluster cluster;
        cluster_start(&cluster, 2, 0.02);
        cluster_make_comm(&cluster, 1 << 17);
        struct op_buffers ops[2] = {{.seq = 1, .count = counts[large], .kind = OP_KIND_ALL_REDUCE},
                                    {.seq = 1, .count = counts[large] + 1, .kind = OP_KIND_ALL_REDUCE}};
        struct op_buffers next = {.seq = 2, .count = 5000, .kind = OP_KIND_ALL_REDUCE};
        op_prepare(&cluster, &next, false);
        for (uint32_t i = 0; i < 2; i++) {
            op_prepare(&cluster, &ops[i], false);
            op_submit(&ops[i], i, cluster.nodes[i].comm);
            op_submit(&next, i, cluster.nodes[i].comm);
        }
        for (int turns = 0; turns < 20000; turns++) {
            turn(&cluster);
        }
        struct error cause;
        error_set(&cause, STATUS_MISMATCH, "they differ");
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(cluster.nodes[i].disputes, 1);
            assert_int_equal(cluster.nodes[i].disputed_seq, 1);
            assert_int_equal(cluster.nodes[i].disputed_node, 1 - i);
            assert_int_equal(ops[i].outcomes[i].calls, 0);
            exec_cancel(cluster.nodes[i].comm, 1, 1, &cause, cluster.now_ns);
            assert_int_equal(ops[i].outcomes[i].calls, 0);
        }
        op_wait(&cluster, &next);
        op_check(&cluster, &next);
        op_free(&cluster, &next);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(ops[i].outcomes[i].calls, 1);
            assert_int_equal(ops[i].outcomes[i].result.status, STATUS_MISMATCH);
            assert_int_equal(cluster.nodes[i].failures, 0);
            assert_true(exec_comm_idle(cluster.nodes[i].comm));
            op_free(&cluster, &ops[i]);
        }
        cluster_free(&cluster);
    }
}

static void test_abort_in_flight(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_start(&cluster, 3, 0.02);
    cluster_make_comm(&cluster, 1 << 16);
    struct op_buffers ops[3];
    for (uint64_t k = 0; k < 3; k++) {
        ops[k] = (struct op_buffers){.seq = k + 1, .count = 200000, .kind = OP_KIND_ALL_REDUCE};
        op_prepare(&cluster, &ops[k], true);
        for (uint32_t i = 0; i < 3; i++) {
            op_submit(&ops[k], i, cluster.nodes[i].comm);
        }
    }
    for (int turns = 0; turns < 200; turns++) {
        turn(&cluster);
    }
    struct error cause;
    error_set(&cause, STATUS_RANK_LOST, "rank 1 is gone");
    for (uint32_t i = 0; i < 3; i++) {
        exec_comm_abort(cluster.nodes[i].comm, &cause);
    }
    for (uint64_t k = 0; k < 3; k++) {
        op_wait(&cluster, &ops[k]);
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(ops[k].outcomes[i].calls, 1);
            assert_int_equal(ops[k].outcomes[i].result.status, STATUS_RANK_LOST);
            assert_string_equal(ops[k].outcomes[i].result.text, "rank 1 is gone");
        }
        op_free(&cluster, &ops[k]);
    }
    cluster_free(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node),
        cmocka_unit_test(test_two_nodes),
        cmocka_unit_test(test_three_nodes_with_loss),
        cmocka_unit_test(test_five_nodes_with_loss),
        cmocka_unit_test(test_large_in_place_average),
        cmocka_unit_test(test_large_payloads_are_not_copied),
        cmocka_unit_test(test_many_queued_and_a_late_node),
        cmocka_unit_test(test_parked_then_claimed),
        cmocka_unit_test(test_a_disagreement_ends_one_operation),
        cmocka_unit_test(test_abort_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
