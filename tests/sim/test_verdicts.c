#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/case_count.h"
#include "tests/sim/cluster.h"
#include "tests/sim/conditions.h"
#include "tests/sim/sim_comm.h"

/*
 * Verdicts, drawn at random: 2 to 6 nodes with up to 2 ranks each reduce, and at some moment a daemon is
 * killed, a host falls silent, or the cluster is cut in two, in both directions or one. Every rank that is
 * left is told within the bound (half of the cases lose no datagrams). All that go on were told the same
 * result, text, lost ranks and last operation; so were all others. Then every rank asks for the next
 * generation, in half of the cases once the cluster is whole again. It is formed once, and of those that go
 * on alone. COMMD_CASES says how many cases to draw (100), COMMD_SEED where to begin.
 */

enum { CASES = 100, NODES_LEAST = 2, NODES_MOST = 6, OPS = 3 };
enum fault { DAEMON_KILLED, HOST_SILENT, CUT_BOTH_WAYS, CUT_ONE_WAY, FAULTS };

static const char *const fault_names[FAULTS] = {"daemon killed", "host silent", "two-way partition",
                                                "one-way partition"};
/* If nothing is sent to a killed daemon, its host refuses nothing before the next heartbeat, which comes
 * within 500 ms; 450 ms later the node is lost. */
static const uint64_t bound_ns[FAULTS] = {TIME_S, 4500 * TIME_MS, 5 * TIME_S, 5 * TIME_S};

/* If datagrams get lost, so may messages of the agreement, and more than once. */
#define LOSS_SLACK_NS (250 * TIME_MS)

static const struct network_conditions narrow = {.delay_ns = 50 * TIME_US,
                                                 .jitter_ns = 100 * TIME_US,
                                                 .packet_bytes = 8192,
                                                 .bandwidth_bytes_s = 100000000};

static uint64_t worst_ns[FAULTS], lossy_worst_ns[FAULTS];
static uint32_t told[FAULTS];

/* What one rank was told. */
struct verdict {
    enum status status;
    const char *text;
    uint64_t last_seq;
    uint64_t lost; /* a bit for each rank */
};

static struct verdict verdict_of(const struct sim_rank *rank)
{
    struct comms_verdict_view view;
    struct verdict verdict = {.status = rank->abort_cause.status, .text = rank->abort_cause.text};
    assert_true(comms_member_verdict(rank->member, &view));
    verdict.last_seq = view.last_seq;
    assert_int_equal(view.size, rank->comm->size);
    assert_int_equal(view.minority, verdict.status == STATUS_ABORTED);
    for (uint32_t i = 0; i < view.size; i++) {
        verdict.lost |= (uint64_t)(view.lost[i / 8] >> i % 8 & 1) << i;
    }
    return verdict;
}

static void assert_same(const struct verdict *one, const struct verdict *other, uint64_t seed)
{
    if (one->status != other->status || strcmp(one->text, other->text) != 0 ||
        one->last_seq != other->last_seq || one->lost != other->lost) {
        fail_msg("case %llu: %s \"%s\" last %llu lost %llx, and %s \"%s\" last %llu lost %llx",
                 (unsigned long long)seed, status_name(one->status), one->text,
                 (unsigned long long)one->last_seq, (unsigned long long)one->lost, status_name(other->status),
                 other->text, (unsigned long long)other->last_seq, (unsigned long long)other->lost);
    }
}

/* Those that go on have one verdict. So do those of each side that do not: a side is the nodes below `first`,
 * or the others. */
static void check_verdicts(const struct sim_comm *comm, uint32_t first, uint64_t seed)
{
    struct verdict go_on = {0}, stop[2] = {{0}, {0}};
    uint64_t going_on = 0;
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct sim_rank *rank = &comm->ranks[i];
        if (rank->member == NULL) {
            continue;
        }
        struct verdict verdict = verdict_of(rank);
        bool goes_on = verdict.status == STATUS_NODE_LOST;
        assert_true(goes_on || verdict.status == STATUS_ABORTED);
        struct verdict *others = goes_on ? &go_on : &stop[rank->node->index >= first];
        if (others->text == NULL) {
            *others = verdict;
        }
        assert_same(others, &verdict, seed);
        going_on |= goes_on ? UINT64_C(1) << i : 0;
    }
    assert_int_equal(go_on.lost & going_on, 0); /* nobody who goes on is lost */
    if (go_on.text != NULL) {
        assert_int_equal(go_on.lost | going_on, (UINT64_C(1) << comm->size) - 1);
    }
}

/* No operation beyond the last one that ended on all survivors may matter; those up to it ended well. */
static void check_ops(const struct sim_comm *comm)
{
    for (const struct sim_op *op = comm->ops; op != NULL; op = op->next) {
        sim_op_check(op);
        for (uint32_t i = 0; i < comm->size; i++) {
            const struct sim_rank *rank = &comm->ranks[i];
            if (rank->member != NULL && verdict_of(rank).status == STATUS_NODE_LOST &&
                op->seq <= verdict_of(rank).last_seq) {
                assert_true(op->parts[i].done);
                assert_int_equal(op->parts[i].result.status, STATUS_OK);
            }
        }
    }
}

/* --- The next generation --- */

struct next {
    struct comms_member *member; /* null: this rank is not there, or was refused */
    bool formed;
};

struct nexts {
    struct next of[2 * NODES_MOST];
    uint32_t count;
};

static void on_formed(void *context, struct comms_member *member, const struct error *result, uint64_t now_ns)
{
    struct next *next = context;
    (void)member;
    (void)now_ns;
    if (result->status != STATUS_OK) {
        fail_msg("the next generation does not form: %s", result->text);
    }
    next->formed = true;
}

static bool all_formed(const void *context)
{
    const struct nexts *nexts = context;
    for (uint32_t i = 0; i < sizeof nexts->of / sizeof *nexts->of; i++) {
        if (nexts->of[i].member != NULL && !nexts->of[i].formed) {
            return false;
        }
    }
    return true;
}

static void ask_for_next(struct cluster *cluster, const struct sim_rank *rank, struct nexts *nexts)
{
    struct next *next = &nexts->of[rank->rank];
    struct comms_member_handler handler = {
        .context = next, .formed = on_formed, .completed = sim_next_completed, .aborted = sim_next_aborted};
    struct error error;
    enum status status = comms_member_shrink(rank->member, &(struct comms_shrink){0}, &handler,
                                             cluster->now_ns, &next->member, &error);
    bool goes_on = rank->abort_cause.status == STATUS_NODE_LOST;
    if (status != (goes_on ? STATUS_OK : STATUS_ABORTED)) {
        fail_msg("rank %u, which %s on: %s", rank->rank, goes_on ? "goes" : "does not go",
                 status == STATUS_OK ? "OK" : error.text);
    }
    next->member = goes_on ? next->member : NULL;
    nexts->count += goes_on;
}

static void check_next(struct cluster *cluster, const struct sim_comm *comm)
{
    struct nexts nexts = {0};
    struct communicator_view first = {0}, view;
    for (uint32_t i = 0; i < comm->size; i++) {
        if (comm->ranks[i].member != NULL) {
            ask_for_next(cluster, &comm->ranks[i], &nexts);
        }
    }
    cluster_touch(cluster);
    assert_true(cluster_run_until(cluster, all_formed, &nexts, 5 * TIME_S));
    for (uint32_t i = 0, rank = 0; i < comm->size; i++) {
        if (nexts.of[i].member != NULL) {
            comms_member_view(nexts.of[i].member, &view);
            first = rank == 0 ? view : first;
            assert_true(view.comm_id == first.comm_id);
            assert_int_equal(view.generation, 2);
            assert_int_equal(view.size, nexts.count);
            assert_int_equal(view.rank, rank++);
        }
    }
    for (uint32_t i = 0; i < comm->size; i++) {
        if (nexts.of[i].member != NULL) {
            comms_member_leave(nexts.of[i].member, COMMS_LEAVE_ORDERLY, cluster->now_ns);
        }
    }
    cluster_touch(cluster);
    cluster_run(cluster, 100 * TIME_MS);
}

/* --- Cases --- */

static void heal(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->node_count * cluster->node_count; i++) {
        if (i / cluster->node_count != i % cluster->node_count) {
            cluster_cut(cluster, i / cluster->node_count, i % cluster->node_count, false);
        }
    }
    cluster_run(cluster, 10 * TIME_S);
}

static struct sim_comm *draw_comm(struct cluster *cluster)
{
    uint32_t node_of_rank[2 * NODES_MOST];
    uint32_t size = 0;
    for (uint32_t node = 0; node < cluster->node_count; node++) {
        for (uint64_t ranks = 1 + random_below(&cluster->random, 2); ranks > 0; ranks--) {
            node_of_rank[size++] = node;
        }
    }
    for (uint32_t i = size - 1; i > 0; i--) {
        uint32_t other = (uint32_t)random_below(&cluster->random, i + 1), kept = node_of_rank[i];
        node_of_rank[i] = node_of_rank[other];
        node_of_rank[other] = kept;
    }
    return sim_comm_new(cluster, "verdicts", size, node_of_rank);
}

/* Returns the first node of the other side. */
static uint32_t make_fault(struct cluster *cluster, struct sim_comm *comm, enum fault fault)
{
    uint32_t node = (uint32_t)random_below(&cluster->random, cluster->node_count);
    uint32_t first = 1 + (uint32_t)random_below(&cluster->random, cluster->node_count - 1);
    if (fault == DAEMON_KILLED || fault == HOST_SILENT) {
        (fault == HOST_SILENT ? cluster_kill : cluster_crash)(cluster, node);
        sim_comm_forget_node(comm, node);
        cluster_bury(cluster, node);
        return 0; /* one side */
    }
    bool forth = random_below(&cluster->random, 2) == 0;
    for (uint32_t low = 0; low < first; low++) {
        for (uint32_t high = first; high < cluster->node_count; high++) {
            if (fault == CUT_BOTH_WAYS || forth) {
                cluster_cut(cluster, low, high, true);
            }
            if (fault == CUT_BOTH_WAYS || !forth) {
                cluster_cut(cluster, high, low, true);
            }
        }
    }
    return first;
}

static void run_case(uint64_t seed, enum fault fault)
{
    struct random chance;
    random_seed(&chance, seed * FAULTS + fault);
    uint32_t node_count = NODES_LEAST + (uint32_t)random_below(&chance, NODES_MOST - NODES_LEAST + 1);
    struct network_conditions conditions = narrow;
    conditions.loss = random_below(&chance, 2) == 0 ? 0 : 0.02;
    struct cluster *cluster =
        cluster_new(&(struct cluster_options){.seed = random_u64(&chance),
                                              .node_count = node_count,
                                              .conditions = conditions,
                                              .slice_bytes = 32768,
                                              .datagrams = random_below(&chance, 2) == 0});
    const struct sim_call call = {.kind = OP_KIND_ALL_REDUCE,
                                  .dtype = DTYPE_I32,
                                  .reduce = REDUCE_SUM,
                                  .count = 1 + random_below(&chance, 200000)};
    struct sim_comm *comm = draw_comm(cluster);
    sim_comm_form(comm, NULL, 30 * TIME_S);
    for (unsigned i = 0; i < OPS; i++) {
        (void)sim_comm_post_all(comm, &call);
    }
    cluster_run(cluster, random_below(&chance, 60 * TIME_MS));
    uint32_t first = make_fault(cluster, comm, fault);
    uint64_t began_ns = cluster->now_ns;
    assert_true(cluster_run_until(cluster, sim_comm_all_told, comm, 20 * TIME_S));
    uint64_t took_ns = cluster->now_ns - began_ns;
    if (took_ns > bound_ns[fault] + (conditions.loss > 0 ? LOSS_SLACK_NS : 0)) {
        fail_msg("case %llu, %s: told after %llu ms", (unsigned long long)seed, fault_names[fault],
                 (unsigned long long)(took_ns / TIME_MS));
    }
    if (conditions.loss > 0) {
        lossy_worst_ns[fault] = took_ns > lossy_worst_ns[fault] ? took_ns : lossy_worst_ns[fault];
    } else {
        worst_ns[fault] = took_ns > worst_ns[fault] ? took_ns : worst_ns[fault];
    }
    told[fault]++;
    check_verdicts(comm, first, seed);
    check_ops(comm);
    if (random_below(&chance, 2) == 0) {
        heal(cluster);
    }
    check_next(cluster, comm);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void run_cases(enum fault fault)
{
    uint64_t begin = cluster_seed(0), count = case_count(CASES);
    for (uint64_t i = 0; i < count; i++) {
        run_case(begin + i, fault);
    }
    print_message("%s: %u cases, told after at most %llu ms, and with 2 %% loss %llu ms\n",
                  fault_names[fault], told[fault], (unsigned long long)(worst_ns[fault] / TIME_MS),
                  (unsigned long long)(lossy_worst_ns[fault] / TIME_MS));
}

static void test_a_daemon_is_killed(void **state)
{
    (void)state;
    run_cases(DAEMON_KILLED);
}

static void test_a_host_falls_silent(void **state)
{
    (void)state;
    run_cases(HOST_SILENT);
}

static void test_a_two_way_partition(void **state)
{
    (void)state;
    run_cases(CUT_BOTH_WAYS);
}

static void test_a_one_way_partition(void **state)
{
    (void)state;
    run_cases(CUT_ONE_WAY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_daemon_is_killed),
        cmocka_unit_test(test_a_host_falls_silent),
        cmocka_unit_test(test_a_two_way_partition),
        cmocka_unit_test(test_a_one_way_partition),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
