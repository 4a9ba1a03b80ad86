#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/comm/comms_forecast.h"
#include "daemon/comm/meeting_choice.h"
#include "tests/sim/large_cluster.h"

/*
 * 10,000 ranks form a communicator. COMMD_NODES=1000 spreads them over so many nodes instead of 250; that
 * takes 2 GB and some minutes. test_handshakes_take_turns then has 1,000 nodes, too.
 */
#define RANKS 10000u
#define NODES 250u
#define FORM_NS (2 * TIME_S)
#define MESSAGES_MEDIAN 40u /* that a node sends or receives */
#define DELAY_NS (50 * TIME_US)
#define HANDSHAKE_NS (2500 * TIME_US) /* plan's --dial-us, if nothing else is said */

static const struct network_conditions far = {
    .delay_ns = DELAY_NS, .jitter_ns = 10 * TIME_US, .packet_bytes = 65536, .loss = 0.01};

static uint64_t messages_of(const struct cluster *cluster, uint32_t node)
{
    const struct cluster_node *at = &cluster->nodes[node];
    uint64_t count = 0;
    for (uint32_t peer = 0; peer < mesh_node_count(at->mesh); peer++) {
        struct net_peer_statistics statistics;
        net_peer_statistics(at->net, peer, &statistics);
        count += statistics.sent_packets + statistics.received_packets;
    }
    return count;
}

static int number_order(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static uint32_t nodes_wanted(void)
{
    const char *said = getenv("COMMD_NODES");
    return said != NULL ? (uint32_t)strtoul(said, NULL, 10) : NODES;
}

static struct cluster *far_cluster(uint32_t which, uint32_t nodes, uint64_t handshake_ns)
{
    struct network_conditions conditions = far;
    conditions.handshake_ns = handshake_ns;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(which), .node_count = nodes, .conditions = conditions});
    cluster_connect(cluster);
    cluster_run(cluster, 3 * TIME_S);
    return cluster;
}

static struct sim_comm *comm_of(struct cluster *cluster, const char *name, uint32_t size)
{
    uint32_t *node_of_rank = calloc(size, sizeof *node_of_rank);
    assert_non_null(node_of_rank);
    for (uint32_t i = 0; i < size; i++) {
        node_of_rank[i] = (uint32_t)((uint64_t)i * 7919 % cluster->node_count);
    }
    struct sim_comm *comm = sim_comm_new(cluster, name, size, node_of_rank);
    free(node_of_rank);
    return comm;
}

/* All join at once. Returns how long it takes; messages[node] gets what each node sent and received. */
static uint64_t form(struct sim_comm *comm, uint64_t *messages)
{
    struct cluster *cluster = comm->cluster;
    for (uint32_t node = 0; node < cluster->node_count; node++) {
        messages[node] = messages_of(cluster, node);
    }
    uint64_t began_ns = cluster->now_ns;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        sim_comm_join(comm, rank, 0, NULL);
    }
    assert_true(cluster_run_until(cluster, sim_comm_formed, comm, 60 * TIME_S));
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        assert_int_equal(comm->ranks[rank].formed_result.status, STATUS_OK);
    }
    for (uint32_t node = 0; node < cluster->node_count; node++) {
        messages[node] = messages_of(cluster, node) - messages[node];
    }
    qsort(messages, cluster->node_count, sizeof *messages, number_order);
    return cluster->now_ns - began_ns;
}

static void test_many_ranks(void **state)
{
    (void)state;
    uint32_t nodes = nodes_wanted();
    struct cluster *cluster = far_cluster(400, nodes, 0);
    struct sim_comm *comm = comm_of(cluster, "many", RANKS);
    uint64_t *messages = calloc(nodes, sizeof *messages);
    assert_non_null(messages);
    uint64_t took_ns = form(comm, messages);
    print_message("# %u ranks on %u nodes form in %.0f ms; a node sends and receives %llu messages in the "
                  "median, at most %llu\n",
                  RANKS, nodes, (double)took_ns / 1e6, (unsigned long long)messages[nodes / 2],
                  (unsigned long long)messages[nodes - 1]);
    assert_true(took_ns <= FORM_NS);
    assert_true(messages[nodes / 2] <= MESSAGES_MEDIAN);
    sim_comm_free(comm);
    free(messages);
    cluster_free(cluster);
}

/* What `commctl plan` says of forming, with a rank on each node, is what happens: time without processors. */
static void test_what_is_planned_is_what_happens(void **state)
{
    (void)state;
    struct cluster *cluster = far_cluster(401, NODES, 0);
    struct sim_comm *comm = comm_of(cluster, "plan", NODES);
    uint64_t messages[NODES];
    double took_s = (double)form(comm, messages) * 1e-9;
    struct comms_plan plan = {.node_count = NODES,
                              .network = {.latency_s = DELAY_NS * 1e-9, .bandwidth_bytes_per_s = 1e18},
                              .nodes_per_processor = 1};
    struct comms_forecast forecast;
    comms_forecast(&plan, &forecast);
    print_message("# %u ranks form in %.1f ms, planned %.1f ms; %llu messages in the median\n", NODES,
                  took_s * 1e3, forecast.fresh_s * 1e3, (unsigned long long)messages[NODES / 2]);
    assert_true(forecast.by_tree);
    assert_true(took_s >= forecast.fresh_s / 2 && took_s <= forecast.fresh_s * 2);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/*
 * A rank on each node, and a new connection takes each of its two nodes processor time. Relays report for
 * about sqrt(nodes) nodes each, so no node has many new connections.
 */
static void test_handshakes_take_turns(void **state)
{
    (void)state;
    uint32_t nodes = nodes_wanted();
    struct cluster *cluster = far_cluster(402, nodes, HANDSHAKE_NS);
    struct sim_comm *comm = comm_of(cluster, "turns", nodes);
    uint64_t *messages = calloc(nodes, sizeof *messages);
    assert_non_null(messages);
    double took_s = (double)form(comm, messages) * 1e-9;
    struct comms_plan plan = {.node_count = nodes,
                              .network = {.latency_s = DELAY_NS * 1e-9, .bandwidth_bytes_per_s = 1e18},
                              .dial_s = HANDSHAKE_NS * 1e-9,
                              .nodes_per_processor = 1};
    struct comms_forecast forecast;
    comms_forecast(&plan, &forecast);
    print_message(
        "# %u nodes, each with a rank, form in %.2f s with handshakes of %.1f ms, planned %.2f s; %llu "
        "messages in the median\n",
        nodes, took_s, HANDSHAKE_NS / 1e6, forecast.fresh_s, (unsigned long long)messages[nodes / 2]);
    assert_true(took_s >= forecast.fresh_s / 2 && took_s <= forecast.fresh_s * 2);
    assert_true(messages[nodes / 2] <= MESSAGES_MEDIAN);
    sim_comm_free(comm);
    free(messages);
    cluster_free(cluster);
}

/* All handshakes together take the name's place three times as long as a dialler waits: it forms all the
 * same. So few ranks report to the place itself, not to relays. */
static void test_handshakes_that_take_long(void **state)
{
    (void)state;
    enum { FEW = MEETING_RELAYED_RANKS_LEAST - 1 };
    struct cluster *cluster = far_cluster(403, NODES, 3 * NETWORK_CONNECT_TIMEOUT_NS / FEW);
    struct sim_comm *comm = comm_of(cluster, "long", FEW);
    uint64_t messages[NODES];
    double took_s = (double)form(comm, messages) * 1e-9;
    print_message("# %d nodes form in %.1f s with handshakes of %.0f ms\n", FEW, took_s,
                  3e-6 * (double)NETWORK_CONNECT_TIMEOUT_NS / FEW);
    assert_in_range((uint64_t)took_s, 10, 30);
    sim_comm_free(comm);
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_what_is_planned_is_what_happens),
        cmocka_unit_test(test_handshakes_take_turns),
        cmocka_unit_test(test_handshakes_that_take_long),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
