#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/cluster.h"
#include "tests/sim/sim_comm.h"

/* Clusters whose nodes have several rails: what they carry, and what happens when one of them is in trouble.
 */

#define RAILS 3

static const struct mem_conditions calm = {
    .delay_ns = 50 * TIME_US, .jitter_ns = 20 * TIME_US, .packet_bytes = 8192};

/* 61 slices of 4 KiB: every rail has its share. */
static const struct sim_call spread = {
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 62000};

static struct cluster *cluster_of(uint32_t which, uint32_t node_count,
                                  const struct mem_conditions *conditions)
{
    struct cluster *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(which),
                                                                    .node_count = node_count,
                                                                    .conditions = *conditions,
                                                                    .slice_bytes = 4096,
                                                                    .rail_count = RAILS});
    cluster_connect(cluster);
    return cluster;
}

/* --- What they carry --- */

struct answer {
    unsigned count;
    struct rails_traffic traffic[4];
    uint32_t peers;
};

static void answered(void *context, const struct rails_traffic *traffic, uint64_t now_ns)
{
    struct answer *answer = context;
    (void)now_ns;
    answer->count++;
    memcpy(answer->traffic, traffic, answer->peers * sizeof *traffic);
}

static struct answer ask(struct cluster *cluster, uint32_t node, uint32_t first, uint32_t peers)
{
    struct error error;
    struct answer answer = {.peers = peers};
    assert_int_equal(rails_ask_traffic(cluster->nodes[node].rails, first, peers, answered, &answer, &error),
                     STATUS_OK);
    assert_int_equal(answer.count, 0);
    cluster_run(cluster, 0);
    assert_int_equal(answer.count, 1);
    return answer;
}

static void test_traffic_of_all_rails(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(200, 3, &calm);
    const struct cluster_node *node = &cluster->nodes[0];
    struct answer before = ask(cluster, 0, 0, 2);
    assert_int_equal(before.traffic[0].needed, 0);
    assert_int_equal(before.traffic[0].sent_bytes, 0);

    static const uint32_t node_of_rank[] = {0, 1};
    struct sim_comm *comm = sim_comm_new(cluster, "pair", 2, node_of_rank);
    sim_comm_form(comm, NULL, 10 * TIME_S);
    sim_comm_run(comm, &spread);
    struct answer after = ask(cluster, 0, 0, 2);
    uint64_t sent_bytes = 0;
    for (uint32_t rail = 1; rail < RAILS; rail++) {
        struct net_peer_statistics seen;
        net_peer_statistics(node->rail_nets[rail], 0, &seen);
        assert_true(seen.sent_bytes > spread.count * 4 / RAILS / 2);
        sent_bytes += seen.sent_bytes;
    }
    assert_int_equal(after.traffic[0].sent_bytes, sent_bytes);
    assert_true(after.traffic[0].received_bytes > 0);
    assert_int_equal(after.traffic[0].needed, RAILS - 1);
    assert_int_equal(after.traffic[0].connected, RAILS - 1);
    assert_string_equal(after.traffic[0].missing, "");
    /* The third node is no member: nothing is needed to it. */
    assert_int_equal(after.traffic[1].needed, 0);
    assert_int_equal(after.traffic[1].sent_bytes, 0);
    struct answer one = ask(cluster, 0, 1, 1);
    assert_int_equal(one.traffic[0].needed, 0);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_question_that_is_forgotten(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(201, 3, &calm);
    struct rails *rails = cluster->nodes[1].rails;
    struct answer answer = {.peers = 2};
    struct error error;
    assert_int_equal(rails_ask_traffic(rails, 0, 3, answered, &answer, &error), STATUS_NOT_FOUND);
    assert_int_equal(rails_ask_traffic(rails, 2, 1, answered, &answer, &error), STATUS_NOT_FOUND);
    assert_int_equal(rails_ask_traffic(rails, 0, 2, answered, &answer, &error), STATUS_OK);
    rails_forget_traffic(rails, &answer);
    cluster_run(cluster, TIME_MS);
    assert_int_equal(answer.count, 0);
    /* And one that is still under way at the end. */
    assert_int_equal(rails_ask_traffic(rails, 0, 2, answered, &answer, &error), STATUS_OK);
    rails_forget_traffic(rails, &answer);
    cluster_free(cluster);
    assert_int_equal(answer.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traffic_of_all_rails),
        cmocka_unit_test(test_a_question_that_is_forgotten),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
