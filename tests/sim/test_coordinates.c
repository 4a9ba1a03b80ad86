#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/large_cluster.h"

/*
 * A cluster of three racks, in which each node has connections to 8 others. After some minutes, every node
 * estimates its round trips to all others (daemon/mesh/estimate.c), and measured ones stay measured.
 */

enum { NODES = 36, RACKS = 3 };

static uint64_t one_way_ns(uint32_t from, uint32_t to)
{
    return (from % RACKS == to % RACKS ? 50 : 400) * TIME_US;
}

static void lay_cables(struct cluster *cluster)
{
    for (uint32_t i = 0; i < NODES; i++) {
        for (uint32_t j = 0; j < NODES; j++) {
            struct network_conditions conditions = {.delay_ns = one_way_ns(i, j), .jitter_ns = 5 * TIME_US};
            if (i != j) {
                network_set_link(cluster->network, cluster->nodes[i].name, cluster->nodes[j].name,
                                 &conditions);
            }
        }
    }
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static uint32_t index_of(const struct cluster *cluster, const char *name)
{
    for (uint32_t i = 0; i < NODES; i++) {
        if (strcmp(cluster->nodes[i].name, name) == 0) {
            return i;
        }
    }
    fail_msg("no node %s", name);
    return 0;
}

static void test_round_trips_are_estimated(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(400, NODES);
    lay_cables(cluster);
    cluster_run(cluster, 5 * 60 * TIME_S);
    static uint64_t errors[NODES * NODES];
    size_t count = 0;
    for (uint32_t i = 0; i < NODES; i++) {
        const struct mesh *mesh = cluster->nodes[i].mesh;
        for (uint32_t node = 0; node < mesh_node_count(mesh); node++) {
            uint64_t is_ns = 2 * one_way_ns(i, index_of(cluster, mesh_node_name(mesh, node)));
            uint64_t guess_ns = mesh_estimated_round_trip_ns(mesh, node);
            if (mesh_node_is_up(mesh, node)) {
                assert_int_equal(guess_ns, 0);
                continue;
            }
            assert_true(guess_ns > 0);
            errors[count++] = (guess_ns > is_ns ? guess_ns - is_ns : is_ns - guess_ns) * 1000 / is_ns;
        }
    }
    assert_true(count > NODES * NODES / 2);
    qsort(errors, count, sizeof errors[0], compare);
    print_message(
        "# %zu pairs without a link: estimates are off by %llu per mille in the median, 90 %% by at "
        "most %llu\n",
        count, (unsigned long long)errors[count / 2], (unsigned long long)errors[count * 9 / 10]);
    assert_in_range(errors[count / 2], 0, 100);
    assert_in_range(errors[count * 3 / 4], 0, 400);
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trips_are_estimated)};
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
