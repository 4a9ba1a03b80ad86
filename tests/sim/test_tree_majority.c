#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/large_cluster.h"
#include "tests/sim/sim_text.h"

/*
 * A large part of a communicator's nodes is lost at once. Its nodes form a tree, so most pairs of them
 * were never connected. Lost nodes that are proven to have ended do not count, silent ones do.
 */

enum { NODES_MAX = 64 };
/* The project's bar for a silent host. */
#define SILENT_BOUND_NS (4500 * TIME_MS)

/* `lost` nodes of the communicator, from `first` on, are lost: they fall silent, or are killed. */
struct loss {
    uint32_t nodes, first, lost;
    bool silent;
    bool fresh; /* no operation has run: there are no connections but those of the tree */
};

/* Two ranks on each node. All that are left are told the same within the bound. */
static void run_loss(uint32_t which, const struct loss *loss, uint64_t bound_ns)
{
    uint32_t nodes = loss->nodes, left = nodes - loss->lost;
    bool silent = loss->silent;
    bool minority = silent && (2 * left < nodes || (2 * left == nodes && loss->first == 0));
    uint32_t node_of_rank[NODES_MAX * 2];
    uint32_t ranks = 2 * nodes;
    struct cluster *cluster = large_cluster(which, nodes);
    const struct error *first = NULL;
    for (uint32_t i = 0; i < ranks; i++) {
        node_of_rank[i] = i % nodes;
    }
    struct sim_comm *comm = sim_comm_new(cluster, "tree", ranks, node_of_rank);
    sim_comm_form(comm, NULL, 5 * TIME_S);
    if (!loss->fresh) {
        sim_comm_run(comm, &sum);
    }
    cluster_run(cluster, 30 * TIME_S);
    uint64_t began_ns = cluster->now_ns;
    for (uint32_t node = loss->first; node < loss->first + loss->lost; node++) {
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
        assert_text(&rank->abort_cause, minority ? STATUS_ABORTED : STATUS_NODE_LOST,
                    minority ? "minority" : "lost", "");
        assert_string_equal(rank->abort_cause.text, first->text);
    }
    print_message("# %u of %u nodes %s, from %u on: told after %.2f s: %s\n", loss->lost, nodes,
                  silent ? "fall silent" : "are killed", loss->first, (double)took_ns * 1e-9, first->text);
    assert_true(took_ns <= bound_ns);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_daemons_that_were_killed_do_not_count(void **state)
{
    (void)state;
    for (uint32_t which = 700; which < 705; which++) {
        run_loss(which, &(struct loss){.nodes = 64, .lost = 48}, 5 * TIME_S);
    }
}

/* However many fall silent, and whichever: the first node leads the agreement, the next eight are its
 * children. */
static void test_silent_nodes_count(void **state)
{
    static const struct loss losses[] = {
        {24, 0, 15, true, false}, {64, 0, 48, true, false}, {64, 9, 48, true, false},
        {64, 0, 31, true, false}, {64, 0, 32, true, false}, {64, 1, 32, true, false},
        {64, 1, 33, true, false}, {64, 1, 63, true, false},
    };
    (void)state;
    for (uint32_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        run_loss(710 + i, &losses[i], SILENT_BOUND_NS);
    }
}

/* None of the first node's connections is silent, so it learns of the loss only when others report it. Then
 * it first has to ask the others. */
static void test_the_leader_hears_of_the_loss_from_others(void **state)
{
    (void)state;
    run_loss(720, &(struct loss){64, 9, 48, true, true}, SILENT_BOUND_NS + TIME_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_daemons_that_were_killed_do_not_count),
        cmocka_unit_test(test_silent_nodes_count),
        cmocka_unit_test(test_the_leader_hears_of_the_loss_from_others),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
