#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/sim/cluster.h"
#include "tests/sim/sim_comm.h"

/*
 * Anything goes wrong, at random times. Links, hosts, daemons and processes come and go while communicators
 * form and work. Some callers are late, or contradict each other. Even so, every operation ends once, and
 * none that ends well has a wrong bit. When all nodes and links are back, everything works.
 */
enum { STORM_NODES = 7, STORM_COMMS = 5, STORM_RANKS_MAX = 12, STORM_TURNS = 600, STORM_SEEDS = 12 };
#define STORM_TIMEOUT_MS 4000

struct storm {
    struct cluster *cluster;
    struct random *random;
    struct sim_comm *comms[STORM_COMMS];
    bool broken[STORM_COMMS]; /* a caller never posts its part, so nothing more is posted */
    uint32_t named;
    uint32_t succeeded, failed; /* parts of operations */
};

static uint64_t dice(struct storm *storm, uint64_t sides)
{
    return random_below(storm->random, sides);
}

static void begin_comm(struct storm *storm, uint32_t slot)
{
    uint32_t node_of_rank[STORM_RANKS_MAX];
    uint32_t size = 1 + (uint32_t)dice(storm, STORM_RANKS_MAX);
    for (uint32_t i = 0; i < size; i++) {
        do {
            node_of_rank[i] = (uint32_t)dice(storm, STORM_NODES);
        } while (!storm->cluster->nodes[node_of_rank[i]].alive);
    }
    char name[16];
    /* names are used again, sometimes too early */
    (void)snprintf(name, sizeof name, "storm-%u", storm->named % 7);
    storm->named++;
    storm->comms[slot] = sim_comm_new(storm->cluster, name, size, node_of_rank);
    storm->broken[slot] = false;
    sim_comm_join_all(storm->comms[slot], &(struct sim_options){.form_timeout_ms = STORM_TIMEOUT_MS,
                                                                .op_timeout_ms = STORM_TIMEOUT_MS,
                                                                .slice_bytes = 8192});
}

static void end_comm(struct storm *storm, uint32_t slot)
{
    struct sim_comm *comm = storm->comms[slot];
    for (const struct sim_op *op = comm->ops; op != NULL; op = op->next) {
        sim_op_check(op);
        for (uint32_t i = 0; i < comm->size; i++) {
            storm->succeeded += op->parts[i].done && op->parts[i].result.status == STATUS_OK;
            storm->failed += op->parts[i].done && op->parts[i].result.status != STATUS_OK;
        }
    }
    sim_comm_free(comm);
    storm->comms[slot] = NULL;
}

/* Whether every rank is there and was told that it formed. */
static bool ready(const struct sim_comm *comm)
{
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct sim_rank *rank = &comm->ranks[i];
        if (rank->member == NULL || !rank->formed || rank->formed_result.status != STATUS_OK ||
            rank->aborted) {
            return false;
        }
    }
    return true;
}

static void post(struct storm *storm, uint32_t slot)
{
    struct sim_comm *comm = storm->comms[slot];
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_I32, DTYPE_U8, DTYPE_BF16};
    struct sim_call call = {.kind = (enum op_kind)dice(storm, OP_KIND_SEND), /* no messages */
                            .dtype = dtypes[dice(storm, 4)],
                            .reduce = dice(storm, 2) == 0 ? REDUCE_SUM : REDUCE_MAX,
                            .count = dice(storm, dice(storm, 4) == 0 ? 60000 : 500),
                            .root = (uint32_t)dice(storm, comm->size),
                            .in_place = dice(storm, 2) == 0,
                            .has_layouts = dice(storm, 3) == 0,
                            .layout_seed = dice(storm, 1000)};
    uint64_t trouble = dice(storm, 20);
    uint32_t odd = (uint32_t)dice(storm, comm->size);
    if (trouble >= 3) {
        (void)sim_comm_post_all(comm, &call);
        return;
    }
    struct sim_op *op = sim_op_new(comm, &call);
    for (uint32_t i = 0; i < comm->size; i++) {
        if (i != odd) {
            sim_op_post(op, i);
        }
    }
    if (trouble == 0) { /* one rank never posts */
        storm->broken[slot] = true;
        return;
    }
    cluster_run(storm->cluster, dice(storm, TIME_S));
    if (trouble == 1) { /* one rank contradicts the others: this operation fails, the next ones do not */
        op->call.reduce = call.reduce == REDUCE_SUM ? REDUCE_MAX : REDUCE_SUM;
    }
    if (comm->ranks[odd].member != NULL) {
        sim_op_post(op, odd);
    }
    op->call.reduce = call.reduce;
}

static void forget_node(struct storm *storm, uint32_t node)
{
    for (uint32_t slot = 0; slot < STORM_COMMS; slot++) {
        if (storm->comms[slot] != NULL) {
            sim_comm_forget_node(storm->comms[slot], node);
        }
    }
    cluster_bury(storm->cluster, node);
}

static void upset_node(struct storm *storm)
{
    struct cluster *cluster = storm->cluster;
    uint32_t node = (uint32_t)dice(storm, STORM_NODES);
    uint32_t alive = 0;
    for (uint32_t i = 0; i < STORM_NODES; i++) {
        alive += cluster->nodes[i].alive;
    }
    if (!cluster->nodes[node].alive) {
        cluster_restart(cluster, node);
    } else if (alive > 3) {
        (dice(storm, 2) == 0 ? cluster_kill : cluster_crash)(cluster, node);
        forget_node(storm, node);
        if (dice(storm, 3) == 0) {
            cluster_restart(cluster, node);
        }
    }
}

static void upset_link(struct storm *storm)
{
    uint32_t from = (uint32_t)dice(storm, STORM_NODES);
    uint32_t to = (uint32_t)dice(storm, STORM_NODES);
    bool cut = dice(storm, 3) == 0;
    if (from != to) {
        cluster_cut(storm->cluster, from, to, cut);
        if (dice(storm, 2) == 0) {
            cluster_cut(storm->cluster, to, from, cut);
        }
    }
}

static void turn(struct storm *storm)
{
    uint32_t slot = (uint32_t)dice(storm, STORM_COMMS);
    struct sim_comm *comm = storm->comms[slot];
    uint64_t what = dice(storm, 100);
    if (what < 4) {
        upset_node(storm);
    } else if (what < 12) {
        upset_link(storm);
    } else if (comm == NULL) {
        begin_comm(storm, slot);
    } else if (what < 16) {
        sim_comm_leave(comm, (uint32_t)dice(storm, comm->size),
                       dice(storm, 2) == 0 ? COMMS_LEAVE_LOST : COMMS_LEAVE_ORDERLY);
    } else if (what < 20) {
        end_comm(storm, slot);
    } else if (ready(comm) && !storm->broken[slot]) {
        post(storm, slot);
    } else if (sim_comm_formed(comm) && sim_comm_idle(comm)) {
        end_comm(storm, slot);
    }
    cluster_run(storm->cluster, dice(storm, dice(storm, 10) == 0 ? 2 * TIME_S : 20 * TIME_MS));
}

/* Everything that has begun must end, though dead nodes and cut links stay as they are. */
static void settle(struct storm *storm)
{
    cluster_run(storm->cluster, 2 * STORM_TIMEOUT_MS * TIME_MS);
    for (uint32_t slot = 0; slot < STORM_COMMS; slot++) {
        if (storm->comms[slot] != NULL) {
            assert_true(sim_comm_formed(storm->comms[slot]));
            assert_true(sim_comm_idle(storm->comms[slot]));
            end_comm(storm, slot);
        }
    }
}

static void clear_sky(struct storm *storm)
{
    struct cluster *cluster = storm->cluster;
    uint32_t node_of_rank[STORM_NODES];
    for (uint32_t i = 0; i < STORM_NODES; i++) {
        node_of_rank[i] = STORM_NODES - 1 - i;
        for (uint32_t j = 0; j < STORM_NODES; j++) {
            if (i != j) {
                cluster_cut(cluster, i, j, false);
            }
        }
        if (!cluster->nodes[i].alive) {
            cluster_restart(cluster, i);
        }
    }
    cluster_connect(cluster);
    struct sim_comm *comm = sim_comm_new(cluster, "fair", STORM_NODES, node_of_rank);
    sim_comm_form(comm, NULL, 10 * TIME_S);
    sim_comm_run(comm,
                 &(struct sim_call){
                     .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F64, .reduce = REDUCE_SUM, .count = 4321});
    sim_comm_free(comm);
}

static uint64_t succeeded, failed; /* parts of operations, in all storms */

static uint64_t run_storm(uint64_t seed)
{
    struct network_conditions conditions = {.loss = 0.02,
                                            .duplication = 0.01,
                                            .delay_ns = 50 * TIME_US,
                                            .jitter_ns = 100 * TIME_US,
                                            .packet_bytes = 4096,
                                            .bandwidth_bytes_s = 50000000};
    struct storm storm = {.cluster = cluster_new(&(struct cluster_options){
                              .seed = seed, .node_count = STORM_NODES, .conditions = conditions})};
    storm.random = &storm.cluster->random;
    cluster_connect(storm.cluster);
    for (uint32_t i = 0; i < STORM_TURNS; i++) {
        turn(&storm);
    }
    settle(&storm);
    clear_sky(&storm);
    succeeded += storm.succeeded;
    failed += storm.failed;
    uint64_t trace = cluster_trace(storm.cluster);
    cluster_free(storm.cluster);
    return trace;
}

static void test_storms(void **state)
{
    (void)state;
    uint64_t first = 0;
    for (uint32_t i = 0; i < STORM_SEEDS; i++) {
        uint64_t seed = cluster_seed(1000 + i);
        uint64_t trace = run_storm(seed);
        if (i == 0) {
            first = trace;
        }
    }
    assert_true(run_storm(cluster_seed(1000)) == first);
    print_message("# operations' parts: %llu ended well, %llu did not\n", (unsigned long long)succeeded,
                  (unsigned long long)failed);
    /* The storms broke something, and still let work through. */
    assert_true(succeeded > 50 * STORM_SEEDS);
    assert_true(failed > 10 * STORM_SEEDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_storms)};
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
