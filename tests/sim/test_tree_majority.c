#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/large_cluster.h"
#include "tests/sim/sim_text.h"

/*
 * The larger part of a communicator's nodes is lost at once. Its nodes form a tree, so most pairs of them
 * were never connected. The others go on if the lost nodes are proven to have ended, and only then.
 */

enum { NODES_MAX = 64 };

/* Two ranks on each node. All that are left are told the same within the bound. */
static void run_loss(uint32_t which, uint32_t nodes, uint32_t lost, bool silent, uint64_t bound_ns)
{
    uint32_t node_of_rank[NODES_MAX * 2];
    uint32_t ranks = 2 * nodes;
    struct cluster *cluster = large_cluster(which, nodes);
    const struct error *first = NULL;
    for (uint32_t i = 0; i < ranks; i++) {
        node_of_rank[i] = i % nodes;
    }
    struct sim_comm *comm = sim_comm_new(cluster, "tree", ranks, node_of_rank);
    sim_comm_form(comm, NULL, 5 * TIME_S);
    sim_comm_run(comm, &sum);
    cluster_run(cluster, 30 * TIME_S);
    uint64_t began_ns = cluster->now_ns;
    for (uint32_t node = 0; node < lost; node++) {
        (silent ? cluster_kill : cluster_crash)(cluster, node);
        sim_comm_forget_node(comm, node);
        cluster_bury(cluster, node);
    }
    assert_true(cluster_run_until(cluster, sim_comm_all_told, comm, 120 * TIME_S));
    uint64_t took_ns = cluster->now_ns - began_ns;
    for (uint32_t i = 0; i < ranks; i++) {
        const struct sim_rank *rank = &comm->ranks[i];
        if (rank->member == NULL) {
            continue;
        }
        first = first == NULL ? &rank->abort_cause : first;
        assert_text(&rank->abort_cause, silent ? STATUS_ABORTED : STATUS_NODE_LOST,
                    silent ? "minority" : "lost", "");
        assert_string_equal(rank->abort_cause.text, first->text);
    }
    print_message("# %u of %u nodes %s: told after %.2f s: %s\n", lost, nodes,
                  silent ? "fall silent" : "are killed", (double)took_ns * 1e-9, first->text);
    assert_true(took_ns <= bound_ns);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_daemons_that_were_killed_do_not_count(void **state)
{
    (void)state;
    for (uint32_t which = 700; which < 705; which++) {
        run_loss(which, 64, 48, false, 5 * TIME_S);
    }
}

static void test_silent_nodes_count(void **state)
{
    (void)state;
    for (uint32_t which = 710; which < 713; which++) {
        run_loss(which, 24, 15, true, 15 * TIME_S);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_daemons_that_were_killed_do_not_count),
        cmocka_unit_test(test_silent_nodes_count),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
