#include "tests/unit/exec/exec_cluster.h"

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
