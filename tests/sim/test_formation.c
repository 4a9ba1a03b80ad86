#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/sim/cluster.h"
#include "tests/sim/conditions.h"
#include "tests/sim/sim_comm.h"
#include "tests/sim/sim_text.h"

/* How communicators form in whole clusters, and how nodes refuse ranks that do not fit. */

static const struct sim_call barrier = {.kind = OP_KIND_BARRIER};

/* Three ranks on three nodes form, although a rank that does not fit comes after two of them. */
static void run_misfit(uint32_t which, void (*misfit)(struct sim_comm *comm, uint32_t rank),
                       enum status status, const char *text)
{
    struct cluster *cluster = cluster_new(
        &(struct cluster_options){.seed = cluster_seed(which), .node_count = 4, .conditions = calm});
    cluster_connect(cluster);
    static const uint32_t node_of_rank[] = {0, 1, 2};
    static const uint32_t node_of_stranger[] = {3, 3, 3};
    struct sim_comm *comm = sim_comm_new(cluster, "fit", 3, node_of_rank);
    struct sim_comm *stranger = sim_comm_new(cluster, "fit", 3, node_of_stranger);
    sim_comm_join(comm, 0, 0, NULL);
    sim_comm_join(comm, 1, 0, NULL);
    cluster_run(cluster, 100 * TIME_MS);
    misfit(stranger, 1);
    cluster_run(cluster, TIME_S);
    assert_text(verdict_of(stranger, 1), status, "fit", text);
    sim_comm_join(comm, 2, 0, NULL);
    assert_true(cluster_run_until(cluster, sim_comm_formed, comm, 10 * TIME_S));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(verdict_of(comm, i)->status, STATUS_OK);
    }
    sim_comm_run(comm, &barrier);
    sim_comm_free(stranger);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void misfit_same_rank(struct sim_comm *comm, uint32_t rank)
{
    sim_comm_join(comm, rank, 0, NULL);
}

static void misfit_other_size(struct sim_comm *comm, uint32_t rank)
{
    sim_comm_join(comm, rank, 4, NULL);
}

static void misfit_other_slices(struct sim_comm *comm, uint32_t rank)
{
    sim_comm_join(comm, rank, 0, &(struct sim_options){.slice_bytes = 65536});
}

static void test_a_rank_that_is_taken(void **state)
{
    (void)state;
    run_misfit(10, misfit_same_rank, STATUS_ALREADY_EXISTS, "rank 1");
}

/* Two users form communicators with the same name at the same time, with ranks on the same nodes. */
static void test_a_name_of_two_users(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(11), .node_count = 3, .conditions = rough, .datagrams = true});
    cluster_connect(cluster);
    static const uint32_t node_of_rank[] = {0, 1, 2, 0};
    struct sim_comm *comm = sim_comm_new(cluster, "fit", 4, node_of_rank);
    struct sim_comm *other = sim_comm_new(cluster, "fit", 3, node_of_rank);
    for (uint32_t i = 0; i < 4; i++) {
        sim_comm_join(comm, i, 0, NULL);
        if (i < 3) {
            sim_comm_join(other, i, 0, &(struct sim_options){.uid = 2000});
        }
    }
    assert_true(cluster_run_until(cluster, sim_comm_formed, comm, 10 * TIME_S));
    assert_true(cluster_run_until(cluster, sim_comm_formed, other, 10 * TIME_S));
    sim_comm_run(comm, &barrier);
    sim_comm_run(other, &barrier);
    sim_comm_free(other);
    sim_comm_run(comm, &barrier);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_another_size(void **state)
{
    (void)state;
    run_misfit(12, misfit_other_size, STATUS_MISMATCH, "size");
}

static void test_another_option(void **state)
{
    (void)state;
    run_misfit(13, misfit_other_slices, STATUS_MISMATCH, "slice");
}

/* The same on one node, which refuses such ranks at once. */
static void test_misfits_of_one_node(void **state)
{
    (void)state;
    struct cluster *cluster =
        cluster_new(&(struct cluster_options){.seed = cluster_seed(14), .node_count = 1, .conditions = calm});
    static const uint32_t node_of_rank[] = {0, 0, 0};
    struct sim_comm *comm = sim_comm_new(cluster, "one", 3, node_of_rank);
    struct sim_comm *stranger = sim_comm_new(cluster, "one", 3, node_of_rank);
    sim_comm_join(comm, 0, 0, NULL);
    sim_comm_join(comm, 1, 0, NULL);
    sim_comm_join(stranger, 1, 0, NULL);
    assert_text(&stranger->ranks[1].refused, STATUS_ALREADY_EXISTS, "rank 1", "1001");
    sim_comm_join(stranger, 2, 4, NULL);
    assert_text(&stranger->ranks[2].refused, STATUS_MISMATCH, "size", "4");
    sim_comm_join(stranger, 2, 2, NULL);
    assert_int_not_equal(stranger->ranks[2].refused.status, STATUS_OK);
    sim_comm_join(comm, 2, 0, NULL);
    assert_true(cluster_run_until(cluster, sim_comm_formed, comm, TIME_S));
    sim_comm_run(comm,
                 &(struct sim_call){
                     .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 1001});
    sim_comm_free(stranger);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_missing_ranks_are_named_at_the_deadline(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(15), .node_count = 5, .conditions = rough, .datagrams = true});
    cluster_connect(cluster);
    static const uint32_t node_of_rank[] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4};
    struct sim_comm *comm = sim_comm_new(cluster, "late", 10, node_of_rank);
    struct sim_options options = {.form_timeout_ms = 2000};
    uint64_t begin_ns = cluster->now_ns;
    for (uint32_t i = 0; i < 10; i++) {
        if (i != 2 && i != 7 && i != 8) {
            sim_comm_join(comm, i, 0, &options);
        }
    }
    assert_true(cluster_run_until(cluster, sim_comm_formed, comm, 10 * TIME_S));
    for (uint32_t i = 0; i < 10; i++) {
        const struct sim_rank *rank = &comm->ranks[i];
        if (rank->member != NULL) {
            assert_text(&rank->formed_result, STATUS_TIMED_OUT, "2, 7-8", "late");
            assert_true(rank->formed_ns >= begin_ns + 2 * TIME_S - TIME_MS);
            assert_true(rank->formed_ns <= begin_ns + 2 * TIME_S + 100 * TIME_MS);
        }
    }
    /* The name is free again once they have left. */
    sim_comm_free(comm);
    comm = sim_comm_new(cluster, "late", 10, node_of_rank);
    sim_comm_form(comm, NULL, 10 * TIME_S);
    sim_comm_run(comm, &barrier);
    sim_comm_free(comm);
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_that_is_taken),
        cmocka_unit_test(test_a_name_of_two_users),
        cmocka_unit_test(test_another_size),
        cmocka_unit_test(test_another_option),
        cmocka_unit_test(test_misfits_of_one_node),
        cmocka_unit_test(test_missing_ranks_are_named_at_the_deadline),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
