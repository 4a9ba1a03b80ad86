#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/case_count.h"
#include "tests/lib/chance.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sim_comm.h"

/*
 * Outages that are shorter than the patience, on real QUIC. They are:
 *   - a black hole of one node or one link, in one direction or both;
 *   - a path that from then on carries only small packets, at once or after a black hole;
 *   - a new address of a node, which dials or is dialled, or of two nodes, one after the other;
 *   - a tenth of all packets is lost.
 * Links are fresh or warm, the load is light or heavy, and packets are lost or not. No operation may fail,
 * and each result must be right. COMMD_CASES=100 draws 100 cases of each kind.
 */

#define CASES_DEFAULT 8
#define CASE_STRIDE 16 /* of seeds: cases stay what they are if a fault is added */
#define OUTAGE_MAX_MS 2000
#define TENTH 0.1
/* If two nodes move before an idle link between them has shown either's new address, neither finds the other.
 */
#define LEARNT_MS 1000
/* Added to the outage and to the operation's usual time. What stays changed has no end: from its beginning.
 */
#define STALL_BOUND_NS (1 * TIME_S)

enum fault {
    FAULT_HOLE,
    FAULT_ONE_WAY,
    FAULT_NODE,
    FAULT_NARROW,
    FAULT_ADDRESS,
    FAULT_HOLE_NARROW,
    FAULT_ADDRESSES,
    FAULT_LOSS,
    FAULT_COUNT
};

static const char *const fault_names[] = {
    "black hole of a link", "one way of a link", "black hole of a node",
    "narrower path",        "new address",       "black hole of a node, then a narrower path",
    "two new addresses",    "10 % loss"};

struct drawn {
    struct random random;
    struct network_conditions conditions;
    uint32_t nodes, rails;
    uint64_t outage_ns;
    enum fault fault;
    uint32_t node, other; /* where it happens */
    bool heavy, warm;
};

static bool stays_changed(enum fault fault)
{
    return fault == FAULT_NARROW || fault == FAULT_ADDRESS;
}

static void draw(struct drawn *drawn, enum fault fault, uint64_t seed)
{
    struct random *random = &drawn->random;
    random_seed(random, seed * CASE_STRIDE + fault);
    drawn->fault = fault;
    drawn->nodes = 2 + (uint32_t)random_below(random, 3);
    drawn->rails = 1 + (uint32_t)random_below(random, 3);
    drawn->node = (uint32_t)random_below(random, drawn->nodes);
    drawn->other = (drawn->node + 1 + (uint32_t)random_below(random, drawn->nodes - 1)) % drawn->nodes;
    drawn->heavy = random_chance(random, 0.5);
    drawn->warm = random_chance(random, 0.5);
    uint64_t least_ms = fault == FAULT_ADDRESSES ? LEARNT_MS : 100;
    drawn->outage_ns = (least_ms + random_below(random, OUTAGE_MAX_MS - least_ms)) * TIME_MS;
    static const double losses[] = {0, 0.01, TENTH};
    drawn->conditions = (struct network_conditions){.loss = losses[random_below(random, 3)],
                                                    .delay_ns = 100 * TIME_US,
                                                    .jitter_ns = 50 * TIME_US,
                                                    .bandwidth_bytes_s = 50000000};
}

/* Returns the network of a rail. */
static struct network *network_of(struct cluster *cluster, uint32_t rail)
{
    return rail == 0 ? cluster->network : cluster->rail_networks[rail];
}

/* Both ways between a node and all others, on all rails. */
static void set_links(struct cluster *cluster, const struct drawn *drawn, uint32_t node,
                      const struct network_conditions *conditions)
{
    for (uint32_t rail = 0; rail < drawn->rails; rail++) {
        for (uint32_t i = 0; i < drawn->nodes; i++) {
            const char *from = cluster->nodes[node].name, *to = cluster->nodes[i].name;
            if (i != node) {
                network_set_link(network_of(cluster, rail), from, to, conditions);
                network_set_link(network_of(cluster, rail), to, from, conditions);
            }
        }
    }
}

static void narrow(struct cluster *cluster, const struct drawn *drawn)
{
    struct network_conditions small = drawn->conditions;
    small.packet_bytes = 1472;
    set_links(cluster, drawn, drawn->node, &small);
}

static void lose(struct cluster *cluster, const struct drawn *drawn, double loss)
{
    struct network_conditions lossy = drawn->conditions;
    lossy.loss = loss;
    for (uint32_t node = 0; node < drawn->nodes; node++) {
        set_links(cluster, drawn, node, &lossy);
    }
}

static void cut(struct cluster *cluster, const struct drawn *drawn, bool is_cut)
{
    for (uint32_t i = 0; i < drawn->nodes; i++) {
        bool all = drawn->fault == FAULT_NODE || drawn->fault == FAULT_HOLE_NARROW;
        bool there = i != drawn->node && (all || i == drawn->other);
        if (there) {
            cluster_cut(cluster, drawn->node, i, is_cut);
        }
        if (there && drawn->fault != FAULT_ONE_WAY) {
            cluster_cut(cluster, i, drawn->node, is_cut);
        }
    }
}

static void move(struct cluster *cluster, const struct drawn *drawn, uint32_t node)
{
    for (uint32_t rail = 0; rail < drawn->rails; rail++) {
        network_rebind(network_of(cluster, rail), cluster->nodes[node].name);
    }
}

static void begin_fault(struct cluster *cluster, const struct drawn *drawn)
{
    switch (drawn->fault) {
    case FAULT_HOLE:
    case FAULT_ONE_WAY:
    case FAULT_NODE:
        cut(cluster, drawn, true);
        break;
    case FAULT_NARROW:
        narrow(cluster, drawn);
        break;
    case FAULT_HOLE_NARROW:
        cut(cluster, drawn, true);
        narrow(cluster, drawn);
        break;
    case FAULT_ADDRESS:
    case FAULT_ADDRESSES:
        move(cluster, drawn, drawn->node);
        break;
    case FAULT_LOSS:
        lose(cluster, drawn, TENTH);
        break;
    case FAULT_COUNT:
        break;
    }
}

static void end_outage(struct cluster *cluster, const struct drawn *drawn)
{
    if (drawn->fault == FAULT_ADDRESSES) {
        move(cluster, drawn, drawn->other);
    } else if (drawn->fault == FAULT_LOSS) {
        lose(cluster, drawn, drawn->conditions.loss);
    } else if (!stays_changed(drawn->fault)) {
        cut(cluster, drawn, false);
    }
}

static uint64_t span_of(const struct sim_op *op)
{
    uint64_t last_ns = op->posted_ns;
    for (uint32_t i = 0; i < op->comm->size; i++) {
        last_ns = op->parts[i].done_ns > last_ns ? op->parts[i].done_ns : last_ns;
    }
    return last_ns - op->posted_ns;
}

static uint64_t run_timed(struct sim_comm *comm, const struct sim_call *call)
{
    struct sim_op *op = sim_comm_post_all(comm, call);
    sim_op_finish(op, 30 * TIME_S);
    uint64_t span_ns = span_of(op);
    sim_op_free(op);
    return span_ns;
}

/* Returns how much longer the slowest operation took than the outage and the operation's usual time. */
static uint64_t run_case(enum fault fault, uint64_t seed)
{
    static const uint32_t node_of_rank[] = {0, 1, 2, 3};
    struct drawn drawn;
    draw(&drawn, fault, seed);
    struct cluster *cluster =
        cluster_new(&(struct cluster_options){.seed = cluster_seed(300 + (uint32_t)seed),
                                              .node_count = drawn.nodes,
                                              .conditions = drawn.conditions,
                                              .slice_bytes = 65536,
                                              .rail_count = drawn.rails,
                                              .datagrams = true});
    cluster_connect(cluster);
    struct sim_comm *comm = sim_comm_new(cluster, "outage", drawn.nodes, node_of_rank);
    sim_comm_form(comm, NULL, 30 * TIME_S);
    struct sim_call call = {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I32, .reduce = REDUCE_SUM};
    call.count = drawn.heavy ? 600000 : 500;
    uint64_t usual_ns = 0;
    for (unsigned i = 0; i < (drawn.warm ? 5 : 1); i++) {
        uint64_t span_ns = run_timed(comm, &call);
        usual_ns = span_ns > usual_ns ? span_ns : usual_ns;
    }
    bool passes = stays_changed(drawn.fault);
    struct sim_op *under_way = sim_comm_post_all(comm, &call);
    cluster_run(cluster, random_below(&drawn.random, usual_ns + 1));
    begin_fault(cluster, &drawn);
    struct sim_op *next = sim_comm_post_all(comm, &call);
    cluster_run(cluster, drawn.outage_ns);
    end_outage(cluster, &drawn);
    sim_op_finish(under_way, 30 * TIME_S);
    sim_op_finish(next, 30 * TIME_S);
    uint64_t span_ns = span_of(next), allowed_ns = (passes ? 0 : drawn.outage_ns) + 8 * usual_ns;
    sim_op_free(under_way);
    sim_op_free(next);
    (void)run_timed(comm, &call);
    assert_true(cluster_connected(cluster));
    sim_comm_free(comm);
    cluster_free(cluster);
    return span_ns > allowed_ns ? span_ns - allowed_ns : 0;
}

static void run_cases(enum fault fault)
{
    uint64_t cases = case_count(CASES_DEFAULT);
    uint64_t most_ns = 0;
    for (uint64_t seed = 1; seed <= cases && seed <= 1000; seed++) {
        uint64_t late_ns = run_case(fault, seed);
        most_ns = late_ns > most_ns ? late_ns : most_ns;
        if (late_ns > STALL_BOUND_NS) {
            fail_msg("%s, case %llu: %llu ms late", fault_names[fault], (unsigned long long)seed,
                     (unsigned long long)(late_ns / TIME_MS));
        }
    }
    print_message("# %s: at most %llu ms after its end\n", fault_names[fault],
                  (unsigned long long)(most_ns / TIME_MS));
}

static void test_a_black_hole_of_a_link(void **state)
{
    (void)state;
    run_cases(FAULT_HOLE);
}

static void test_one_way_of_a_link(void **state)
{
    (void)state;
    run_cases(FAULT_ONE_WAY);
}

static void test_a_black_hole_of_a_node(void **state)
{
    (void)state;
    run_cases(FAULT_NODE);
}

static void test_a_narrower_path(void **state)
{
    (void)state;
    run_cases(FAULT_NARROW);
}

static void test_a_new_address(void **state)
{
    (void)state;
    run_cases(FAULT_ADDRESS);
}

static void test_a_narrower_path_behind_a_black_hole(void **state)
{
    (void)state;
    run_cases(FAULT_HOLE_NARROW);
}

static void test_two_new_addresses(void **state)
{
    (void)state;
    run_cases(FAULT_ADDRESSES);
}

static void test_loss(void **state)
{
    (void)state;
    run_cases(FAULT_LOSS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_black_hole_of_a_link),
        cmocka_unit_test(test_one_way_of_a_link),
        cmocka_unit_test(test_a_black_hole_of_a_node),
        cmocka_unit_test(test_a_narrower_path),
        cmocka_unit_test(test_a_new_address),
        cmocka_unit_test(test_a_narrower_path_behind_a_black_hole),
        cmocka_unit_test(test_two_new_addresses),
        cmocka_unit_test(test_loss),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
