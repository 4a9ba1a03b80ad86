#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/coll/forecast.h"
#include "daemon/coll/overrides.h"
#include "tests/sim/sim_comm.h"

/*
 * Compares `commctl plan` for 256 nodes with 256 simulated nodes. It compares the bytes that the busiest node
 * sends, and the rounds. The number of rounds is the time of an operation divided by the network's delay.
 */
enum { PLAN_NODES = 256 };
#define PLAN_DELAY_NS (100 * TIME_US)
#define PLAN_SLICE_BYTES (256u << 10)

/* A network that has only delay. */
static const struct network_conditions calm = {.delay_ns = PLAN_DELAY_NS, .packet_bytes = 65536};

static uint64_t sent_bytes(const struct cluster *cluster, uint32_t node)
{
    uint64_t sum = 0;
    const struct cluster_node *at = &cluster->nodes[node];
    for (uint32_t peer = 0; peer < mesh_node_count(at->mesh); peer++) {
        struct net_peer_statistics statistics;
        net_peer_statistics(at->net, peer, &statistics);
        sum += statistics.sent_bytes;
    }
    return sum;
}

static void assert_within(const char *what, const char *name, double counted, double planned)
{
    if (counted < planned * 0.9 || counted > planned * 1.1) {
        fail_msg("%s of %s: %g counted, %g planned", what, name, counted, planned);
    }
}

static void remember_sent(const struct cluster *cluster, uint64_t *sent)
{
    for (uint32_t i = 0; i < PLAN_NODES; i++) {
        sent[i] = sent_bytes(cluster, i);
    }
}

static void compare(struct cluster *cluster, const char *rule, enum op_kind kind, uint64_t count)
{
    static uint64_t before[PLAN_NODES], after[PLAN_NODES];
    static uint32_t node_of_rank[PLAN_NODES];
    for (uint32_t i = 0; i < PLAN_NODES; i++) {
        node_of_rank[i] = i;
    }
    struct sim_comm *comm = sim_comm_new(cluster, "plan", PLAN_NODES, node_of_rank);
    sim_comm_form(comm, &(struct sim_options){.algorithms = rule}, 60 * TIME_S);
    cluster_run(cluster, TIME_S); /* places still tell nodes of each other */
    struct sim_call call = {.kind = kind, .dtype = DTYPE_I32, .reduce = REDUCE_SUM, .count = count};
    sim_comm_run(comm, &call); /* the first one waits for connections */
    remember_sent(cluster, before);
    struct sim_op *op = sim_op_new(comm, &call);
    for (uint32_t i = 0; i < PLAN_NODES; i++) {
        sim_op_post(op, i);
    }
    uint64_t begin_ns = cluster->now_ns;
    assert_true(cluster_run_until(cluster, sim_op_done, op, 60 * TIME_S));
    double rounds = (double)(cluster->now_ns - begin_ns) / PLAN_DELAY_NS;
    uint64_t took_ns = cluster->now_ns - begin_ns;
    uint64_t busiest = 0;
    remember_sent(cluster, after);
    cluster_run(cluster, took_ns); /* only heartbeats are sent now */
    for (uint32_t i = 0; i < PLAN_NODES; i++) {
        uint64_t idle = sent_bytes(cluster, i) - after[i];
        uint64_t sent = after[i] - before[i] - idle;
        busiest = sent > busiest && after[i] - before[i] > idle ? sent : busiest;
    }
    sim_op_finish(op, TIME_S);
    sim_op_free(op);
    bool blocks = op_kind_has_blocks(kind);
    struct coll_choice choice = {.kind = kind,
                                 .node_count = PLAN_NODES,
                                 .size_bytes = count * 4 * (blocks ? PLAN_NODES : 1),
                                 .element_bytes = 4,
                                 .slice_bytes = PLAN_SLICE_BYTES,
                                 .blocks_are_equal = true};
    struct coll_overrides overrides;
    struct coll_forecast forecast;
    assert_int_equal(coll_overrides_parse(rule, &overrides, NULL), STATUS_OK);
    coll_forecast(coll_select(&choice, NULL, &overrides), &choice, NULL, &forecast);
    assert_within("bytes", rule, (double)busiest, forecast.sent_bytes);
    if (forecast.slices == 1) {
        /* If payloads are not copied, the last acknowledgement comes one round later. */
        assert_within("rounds", rule, rounds - (rounds > (double)forecast.rounds + 0.5),
                      (double)forecast.rounds);
    }
    sim_comm_free(comm);
}

static struct cluster *start(void)
{
    struct cluster *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(1),
                                                                    .node_count = PLAN_NODES,
                                                                    .conditions = calm,
                                                                    .slice_bytes = PLAN_SLICE_BYTES});
    cluster_connect(cluster);
    return cluster;
}

static void test_what_is_planned_is_what_happens(void **state)
{
    (void)state;
    struct cluster *cluster = start();
    /* Rounds are only counted where messages fit the first window. Larger messages also wait for their
     * receiver to widen the window. */
    compare(cluster, "all_reduce=halving_doubling", OP_KIND_ALL_REDUCE, 8000);
    compare(cluster, "all_reduce=halving_doubling", OP_KIND_ALL_REDUCE, 200000);
    compare(cluster, "all_reduce=recursive_doubling", OP_KIND_ALL_REDUCE, 8000);
    compare(cluster, "all_reduce=ring", OP_KIND_ALL_REDUCE, 65536);
    compare(cluster, "all_gather=bruck", OP_KIND_ALL_GATHER, 60);
    compare(cluster, "reduce_scatter=halving", OP_KIND_REDUCE_SCATTER, 60);
    compare(cluster, "all_to_all=pairwise", OP_KIND_ALL_TO_ALL, 250);
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_planned_is_what_happens),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
