#ifndef TESTS_SIM_LARGE_CLUSTER_H
#define TESTS_SIM_LARGE_CLUSTER_H

#include "tests/sim/cluster.h"
#include "tests/sim/conditions.h"
#include "tests/sim/sim_comm.h"

/* Clusters in which not every node is connected to every other. Include cmocka.h before this file. */

static const struct sim_call sum = {
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 1001};

static inline struct cluster *large_cluster(uint32_t which, uint32_t node_count)
{
    struct cluster *cluster = cluster_new(
        &(struct cluster_options){.seed = cluster_seed(which), .node_count = node_count, .conditions = calm});
    cluster_connect(cluster);
    return cluster;
}

static inline uint32_t links_of(const struct cluster *cluster, uint32_t node)
{
    const struct mesh *mesh = cluster->nodes[node].mesh;
    uint32_t count = 0;
    for (uint32_t i = 0; i < mesh_node_count(mesh); i++) {
        count += mesh_node_is_up(mesh, i);
    }
    return count;
}

#endif
