#include "daemon/base/random.h"
#include "daemon/exec/exec_internal.h"
#include "tests/unit/exec/exec_cluster.h"

/* Operations whose data are done on a node, and on which the nodes still agree: later ones run meanwhile. */

/* The numbers of one node's operations, in the order of their ends. */
static uint64_t ended[NODES_MAX][OPS_MAX];
static uint32_t ended_count[NODES_MAX];
static struct op_buffers ops[OPS_MAX];

static void begin(struct cluster *cluster, uint32_t nodes, double loss)
{
    memset(ops, 0, sizeof ops);
    memset(ended_count, 0, sizeof ended_count);
    cluster_start(cluster, nodes, loss);
    cluster_make_comm(cluster, 4096);
}

static void submit(struct cluster *cluster, uint64_t k, uint32_t node)
{
    op_submit(&ops[k], node, cluster->nodes[node].comm);
}

static void note_ends(const struct cluster *cluster, uint64_t count)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        uint32_t calls = 0;
        for (uint64_t k = 0; k < count; k++) {
            calls += ops[k].outcomes[i].calls;
            if (ops[k].outcomes[i].calls == 1 &&
                (ended_count[i] == 0 || ended[i][ended_count[i] - 1] < ops[k].seq)) {
                ended[i][ended_count[i]++] = ops[k].seq;
            }
        }
        assert_int_equal(calls, ended_count[i]); /* otherwise one has ended before an earlier one */
    }
}

static void turns(struct cluster *cluster, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        turn(cluster);
    }
}

static uint32_t ended_on(uint64_t count, uint32_t node)
{
    uint32_t sum = 0;
    for (uint64_t k = 0; k < count; k++) {
        sum += ops[k].outcomes[node].calls;
    }
    return sum;
}

static void check_and_free(struct cluster *cluster, uint64_t k)
{
    op_wait(cluster, &ops[k]);
    op_check(cluster, &ops[k]);
    op_free(cluster, &ops[k]);
}

/* The root sends its data as far ahead as it may. No operation ends before all nodes have taken part. */
static void test_a_root_is_ahead(void **state)
{
    enum { OPS = 2 * EXEC_CLOSING_MAX };
    struct cluster cluster;
    char text[256];
    (void)state;
    begin(&cluster, 3, 0);
    for (uint64_t k = 0; k < OPS; k++) {
        ops[k] = (struct op_buffers){.seq = k + 1, .count = 1 + k, .kind = OP_KIND_BROADCAST};
        op_prepare(&cluster, &ops[k], false);
        submit(&cluster, k, 0);
    }
    turns(&cluster, 1000);
    assert_int_equal(cluster.nodes[0].comm->closing_count, EXEC_CLOSING_MAX);
    assert_int_equal(cluster.nodes[0].comm->first_op->call.seq, EXEC_CLOSING_MAX + 1);
    exec_comm_describe_wait(cluster.nodes[0].comm, text, sizeof text);
    assert_string_equal(text, "waiting for the agreement of node n2, or of nodes behind it");
    for (uint64_t k = 0; k < OPS; k++) {
        submit(&cluster, k, 1);
    }
    turns(&cluster, 1000);
    assert_int_equal(ended_on(OPS, 0) + ended_on(OPS, 1), 0);
    for (uint64_t k = 0; k < OPS; k++) {
        submit(&cluster, k, 2);
        turns(&cluster, 1000);
        for (uint32_t node = 0; node < 3; node++) {
            assert_int_equal(ended_on(OPS, node), k + 1);
        }
    }
    for (uint64_t k = 0; k < OPS; k++) {
        check_and_free(&cluster, k);
    }
    assert_true(exec_comm_idle(cluster.nodes[0].comm));
    assert_int_equal(cluster.nodes[0].comm->agreement_rows, 0);
    cluster_free(&cluster);
}

/* Operations of all kinds and roots, at nodes that are ahead of each other. Each node ends them in order. */
static void test_in_order(void **state)
{
    (void)state;
    for (uint32_t nodes = 2; nodes <= NODES_MAX; nodes++) {
        struct cluster cluster;
        struct random random;
        uint64_t posted[NODES_MAX] = {0}, least = 0;
        random_seed(&random, nodes);
        begin(&cluster, nodes, 0.02);
        for (uint64_t k = 0; k < OPS_MAX; k++) {
            static const enum op_kind kinds[] = {OP_KIND_BROADCAST, OP_KIND_BROADCAST, OP_KIND_ALL_REDUCE,
                                                 OP_KIND_BARRIER};
            enum op_kind kind = kinds[random_below(&random, 4)];
            uint32_t root = (uint32_t)random_below(&random, nodes);
            ops[k] = (struct op_buffers){.seq = k + 1,
                                         .kind = kind,
                                         .count = kind == OP_KIND_BARRIER ? 0 : random_below(&random, 1500),
                                         .root_node = root,
                                         .root_local = (uint32_t)random_below(&random, ranks_of(root))};
            op_prepare(&cluster, &ops[k], k % 2 == 0);
        }
        while (least < OPS_MAX) {
            uint32_t node = (uint32_t)random_below(&random, nodes);
            if (posted[node] < OPS_MAX && posted[node] < least + 40) {
                submit(&cluster, posted[node]++, node);
            }
            least = posted[0];
            for (uint32_t i = 1; i < nodes; i++) {
                least = posted[i] < least ? posted[i] : least;
            }
            turn(&cluster);
            note_ends(&cluster, OPS_MAX);
        }
        while (!op_is_done(&cluster, &ops[OPS_MAX - 1])) {
            turn(&cluster);
            note_ends(&cluster, OPS_MAX);
        }
        for (uint64_t k = 0; k < OPS_MAX; k++) {
            check_and_free(&cluster, k);
        }
        cluster_free(&cluster);
    }
}

/* A cancelled operation does not wait for those before it, and does not disturb those behind it. */
static void test_cancelled(void **state)
{
    enum { OPS = 6 };
    struct cluster cluster;
    struct error cause;
    (void)state;
    begin(&cluster, 2, 0);
    error_set(&cause, STATUS_TIMED_OUT, "late");
    for (uint64_t k = 0; k < OPS; k++) {
        ops[k] = (struct op_buffers){.seq = k + 1, .count = 10, .kind = OP_KIND_BROADCAST};
        op_prepare(&cluster, &ops[k], false);
        submit(&cluster, k, 0);
    }
    turns(&cluster, 500);
    assert_int_equal(cluster.nodes[0].comm->closing_count, OPS);
    for (uint32_t node = 0; node < 2; node++) {
        exec_cancel(cluster.nodes[node].comm, 3, 2, &cause, cluster.now_ns);
    }
    turns(&cluster, 2);
    for (uint64_t k = 0; k < OPS; k++) {
        assert_int_equal(ops[k].outcomes[0].calls, k == 2 || k == 3);
    }
    for (uint64_t k = 0; k < OPS; k++) {
        if (k != 2 && k != 3) {
            submit(&cluster, k, 1);
            check_and_free(&cluster, k);
            continue;
        }
        assert_int_equal(ops[k].outcomes[0].result.status, STATUS_TIMED_OUT);
        op_free(&cluster, &ops[k]);
    }
    assert_int_equal(cluster.nodes[0].failures + cluster.nodes[1].failures, 0);
    cluster_free(&cluster);
}

/* The other node's call differs: in data or in its word for the agreement. Both nodes notice, once. */
static void test_a_disagreement(void **state)
{
    (void)state;
    for (int all_reduces = 0; all_reduces < 2; all_reduces++) {
        struct cluster cluster;
        struct error cause;
        begin(&cluster, 2, 0.02);
        error_set(&cause, STATUS_MISMATCH, "they differ");
        for (uint64_t k = 0; k < 4; k++) {
            ops[k] = (struct op_buffers){.seq = k + 1, .count = 10, .kind = OP_KIND_BROADCAST};
            op_prepare(&cluster, &ops[k], false);
            submit(&cluster, k, 0);
        }
        turns(&cluster, 500);
        assert_int_equal(cluster.nodes[0].comm->closing_count, 4);
        struct op_buffers odd = {.seq = 2,
                                 .count = all_reduces ? 10 : 11,
                                 .kind = all_reduces ? OP_KIND_ALL_REDUCE : OP_KIND_BROADCAST};
        cluster.how = all_reduces ? "they differ in: kind" : "they differ in: count";
        op_prepare(&cluster, &odd, false);
        submit(&cluster, 0, 1);
        op_submit(&odd, 1, cluster.nodes[1].comm);
        submit(&cluster, 2, 1);
        submit(&cluster, 3, 1);
        turns(&cluster, 2000);
        for (uint32_t node = 0; node < 2; node++) {
            assert_int_equal(cluster.nodes[node].disputes, 1);
            assert_int_equal(cluster.nodes[node].disputed_seq, 2);
            exec_cancel(cluster.nodes[node].comm, 2, 1, &cause, cluster.now_ns);
        }
        check_and_free(&cluster, 0);
        check_and_free(&cluster, 2);
        check_and_free(&cluster, 3);
        assert_int_equal(ops[1].outcomes[0].result.status, STATUS_MISMATCH);
        assert_int_equal(odd.outcomes[1].result.status, STATUS_MISMATCH);
        assert_int_equal(cluster.nodes[0].failures + cluster.nodes[1].failures, 0);
        op_free(&cluster, &odd);
        op_free(&cluster, &ops[1]);
        cluster_free(&cluster);
    }
}

static void test_an_abort(void **state)
{
    struct cluster cluster;
    struct error cause;
    (void)state;
    begin(&cluster, 2, 0);
    error_set(&cause, STATUS_RANK_LOST, "rank 1 is gone");
    for (uint64_t k = 0; k < 20; k++) {
        ops[k] = (struct op_buffers){.seq = k + 1, .count = 10, .kind = OP_KIND_BROADCAST};
        op_prepare(&cluster, &ops[k], false);
        submit(&cluster, k, 0);
    }
    turns(&cluster, 500);
    exec_comm_abort(cluster.nodes[0].comm, &cause);
    turns(&cluster, 50);
    assert_true(exec_comm_idle(cluster.nodes[0].comm));
    for (uint64_t k = 0; k < 20; k++) {
        assert_int_equal(ops[k].outcomes[0].calls, 1);
        assert_int_equal(ops[k].outcomes[0].result.status, STATUS_RANK_LOST);
        op_free(&cluster, &ops[k]);
    }
    cluster_free(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_root_is_ahead), cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_cancelled),       cmocka_unit_test(test_a_disagreement),
        cmocka_unit_test(test_an_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
