#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/case_count.h"
#include "tests/sim/large_cluster.h"
#include "tests/sim/sim_text.h"

/*
 * A large part of a communicator's nodes is lost at once. Its nodes form a tree, so most pairs of them
 * were never connected. Lost nodes that are proven to have ended do not count, silent ones do.
 */

enum { NODES_MAX = 80, CASES = 2 };
/* The project's bar for a silent host. */
#define SILENT_BOUND_NS (4500 * TIME_MS)
/* The same for a killed daemon. */
#define KILLED_BOUND_NS (1 * TIME_S)

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
    for (uint32_t which = 700; which < 703; which++) {
        run_loss(which, &(struct loss){.nodes = 64, .lost = 48}, KILLED_BOUND_NS);
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

/* None of the first node's connections is silent. It gets hints from others, and asks before they report the
 * loss. Node 75 is three connections away. */
static void test_the_leader_has_no_silent_connection(void **state)
{
    static const struct loss losses[] = {
        {64, 9, 48, true, true}, {64, 20, 1, true, true}, {64, 20, 1, true, false}, {80, 75, 1, true, true}};
    (void)state;
    for (uint32_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        run_loss(720 + i, &losses[i], SILENT_BOUND_NS);
    }
}

/* The host of a killed daemon refuses a node that has a connection to it. That node gives the first one a
 * hint, which asks the host itself. */
static void test_the_leader_has_no_connection_to_a_killed_daemon(void **state)
{
    static const struct loss losses[] = {{64, 20, 1, false, false}, {80, 75, 1, false, true}};
    (void)state;
    for (uint32_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        run_loss(730 + i, &losses[i], KILLED_BOUND_NS);
    }
}

/* Drawn at random: COMMD_CASES says how many cases (2), COMMD_SEED where to begin. */
static void test_any_nodes_are_lost(void **state)
{
    uint64_t begin = cluster_seed(0), count = case_count(CASES);
    (void)state;
    for (uint64_t i = 0; i < count; i++) {
        struct random chance;
        random_seed(&chance, begin + i);
        uint32_t nodes = 16 + (uint32_t)random_below(&chance, NODES_MAX - 16 + 1);
        uint32_t first = (uint32_t)random_below(&chance, nodes), left = nodes - first;
        bool all = random_below(&chance, 2) == 0 && first > 0;
        uint32_t lost = all ? 1 + (uint32_t)random_below(&chance, left) : 1;
        bool fresh = random_below(&chance, 2) == 0, silent = i % 2 == 0;
        run_loss((uint32_t)(800 + i), &(struct loss){nodes, first, lost, silent, fresh},
                 silent ? SILENT_BOUND_NS : KILLED_BOUND_NS);
    }
}

/* --- Hints that lie --- */

/* How many times the first node has had an answer of that one, to which it has no connection, since. */
struct answers {
    struct cluster *cluster;
    uint32_t node;
    uint64_t last_ns;
    uint32_t count;
};

static void hint(const struct cluster *cluster, uint32_t from, uint32_t to, uint64_t comm_id)
{
    Commd__Mesh__Silence body = COMMD__MESH__SILENCE__INIT;
    body.comm_id = comm_id;
    Commd__Mesh__Message message = MESH_MESSAGE(SILENCE, silence, &body);
    uint32_t node;
    assert_true(mesh_find_node(cluster->nodes[from].mesh, cluster->nodes[to].name, &node));
    enum status status = mesh_send(cluster->nodes[from].mesh, node, &message);
    (void)status; /* the other side may have ended the connection */
}

/* Hints all the time, and counts. */
static void hint_for(struct answers *answers, uint64_t comm_id, uint64_t span_ns)
{
    struct cluster *cluster = answers->cluster;
    const struct mesh *mesh = cluster->nodes[0].mesh;
    uint32_t node;
    assert_true(mesh_find_node(mesh, cluster->nodes[answers->node].name, &node));
    answers->count = 0;
    for (uint64_t end_ns = cluster->now_ns + span_ns; cluster->now_ns < end_ns;) {
        hint(cluster, 1, 0, comm_id);
        cluster_touch(cluster);
        cluster_run(cluster, 10 * TIME_MS);
        uint64_t answered_ns = mesh_node_answered_ns(mesh, node);
        answers->count += answered_ns != answers->last_ns;
        answers->last_ns = answered_ns;
    }
}

/* The first node asks for one patience, four times a second. Then it believes that node no hints for a while.
 * Nobody is lost. */
static void test_a_node_that_hints_all_the_time(void **state)
{
    uint32_t node_of_rank[64];
    struct cluster *cluster = large_cluster(790, 32);
    struct communicator_view view;
    (void)state;
    for (uint32_t i = 0; i < 64; i++) {
        node_of_rank[i] = i % 32;
    }
    struct sim_comm *comm = sim_comm_new(cluster, "tree", 64, node_of_rank);
    sim_comm_form(comm, NULL, 5 * TIME_S);
    cluster_run(cluster, 30 * TIME_S);
    comms_member_view(comm->ranks[0].member, &view);
    struct answers answers = {.cluster = cluster, .node = 31};
    for (unsigned round = 0; round < 2; round++) {
        hint_for(&answers, view.comm_id, 5 * TIME_S);
        assert_in_range(answers.count, 12, 20);
        hint_for(&answers, view.comm_id, 26 * TIME_S);
        assert_int_equal(answers.count, 0);
        cluster_run(cluster, 2 * TIME_S);
    }
    sim_comm_run(comm, &sum);
    sim_comm_free(comm);
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_daemons_that_were_killed_do_not_count),
        cmocka_unit_test(test_silent_nodes_count),
        cmocka_unit_test(test_the_leader_has_no_silent_connection),
        cmocka_unit_test(test_the_leader_has_no_connection_to_a_killed_daemon),
        cmocka_unit_test(test_any_nodes_are_lost),
        cmocka_unit_test(test_a_node_that_hints_all_the_time),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
