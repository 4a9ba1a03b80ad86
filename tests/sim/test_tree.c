#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/large_cluster.h"
#include "tests/sim/sim_messages.h"
#include "tests/sim/sim_text.h"

/*
 * Communicators of many ranks in clusters in which not every node is connected to every other: they form by a
 * tree, and their nodes connect to others only when they need to (daemon/comm/roster.h, comms_tree.h).
 */

static const struct sim_call barrier = {.kind = OP_KIND_BARRIER};
static const struct sim_call exchange = {
    .kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_I32, .reduce = REDUCE_SUM, .count = 7};

/* Rank r is on node (size - 1 - r) * step of the cluster. */
static struct sim_comm *comm_of(struct cluster *cluster, const char *name, uint32_t size, uint32_t step)
{
    uint32_t node_of_rank[CLUSTER_NODES_MAX];
    for (uint32_t i = 0; i < size; i++) {
        node_of_rank[i] = (size - 1 - i) * step % cluster->node_count;
    }
    return sim_comm_new(cluster, name, size, node_of_rank);
}

static uint32_t all_links(const struct cluster *cluster)
{
    uint32_t count = 0;
    for (uint32_t node = 0; node < cluster->node_count; node++) {
        count += cluster->nodes[node].alive ? links_of(cluster, node) : 0;
    }
    return count / 2;
}

/* --- It forms, and works --- */

/* Nodes form with few connections, and the first operations dial what they need. */
static void test_links(void **state)
{
    (void)state;
    enum { NODES = 80 };
    struct cluster *cluster = large_cluster(200, NODES);
    struct sim_comm *comm = comm_of(cluster, "tree", NODES, 1);
    uint32_t before = all_links(cluster);
    sim_comm_form(comm, &(struct sim_options){.algorithms = "all_to_all=pairwise"}, TIME_S);
    /* A connection of each node to the place, and one to its parent. */
    assert_in_range(all_links(cluster), before, before + 2 * (NODES - 1));
    sim_comm_run(comm,
                 &(struct sim_call){.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM});
    sim_comm_run(comm, &barrier);
    sim_comm_run(comm, &sum);
    assert_in_range(all_links(cluster), before, NODES * (NODES - 1) / 4);
    sim_comm_run(comm, &exchange);
    assert_int_equal(all_links(cluster), NODES * (NODES - 1) / 2);
    cluster_run(cluster, 30 * TIME_S); /* connections that it needs stay */
    assert_int_equal(all_links(cluster), NODES * (NODES - 1) / 2);
    sim_comm_run(comm, &sum);
    sim_comm_free(comm);
    cluster_run(cluster, 30 * TIME_S);
    assert_in_range(all_links(cluster), 1, before);
    cluster_free(cluster);
}

/* The same with QUIC on datagrams, some of which are lost. Nodes that need each other dial at once, so their
 * attempts cross. */
static void test_datagrams(void **state)
{
    (void)state;
    enum { NODES = 40 };
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(216), .node_count = NODES, .conditions = rough, .datagrams = true});
    cluster_connect(cluster);
    struct sim_comm *comm = comm_of(cluster, "quic", NODES, 1);
    sim_comm_form(comm, NULL, 3 * TIME_S);
    sim_comm_run(comm, &(struct sim_call){
                           .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 2});
    sim_comm_run(comm, &sum);
    sim_comm_run(comm, &exchange);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_several_ranks_on_a_node(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(201, 40);
    struct sim_comm *many = comm_of(cluster, "many", 100, 3), *few;
    static const uint32_t two[64] = {[7] = 5, [8] = 5, [33] = 5};
    few = sim_comm_new(cluster, "few", 64, two);
    sim_comm_form(many, NULL, 2 * TIME_S);
    sim_comm_form(few, NULL, 2 * TIME_S);
    sim_comm_run(many, &sum);
    sim_comm_run(few, &sum);
    sim_comm_run(many, &exchange);
    sim_comm_run(few, &exchange);
    sim_comm_free(few);
    sim_comm_free(many);
    cluster_free(cluster);
}

/* Ranks come one by one, over seconds: it forms when the last one has come. */
static void test_ranks_that_come_late(void **state)
{
    (void)state;
    enum { SIZE = 70 };
    struct cluster *cluster = large_cluster(202, 90);
    struct sim_comm *comm = comm_of(cluster, "slow", SIZE, 1);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        uint32_t next = (rank * 11 + 5) % SIZE;
        sim_comm_join(comm, next, 0, &(struct sim_options){.form_timeout_ms = 60000});
        cluster_run(cluster, random_below(&cluster->random, 400) * TIME_MS);
    }
    assert_true(cluster_run_until(cluster, sim_comm_formed, comm, TIME_S));
    assert_int_equal(verdict_of(comm, 11)->status, STATUS_OK);
    sim_comm_run(comm, &sum);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* The same name again and again, with ranks on other nodes each time. */
static void test_a_name_again(void **state)
{
    (void)state;
    enum { SIZE = 40 };
    struct cluster *cluster = large_cluster(203, 61);
    for (uint32_t round = 1; round < 8; round++) {
        struct sim_comm *comm = comm_of(cluster, "again", SIZE, round);
        sim_comm_form(comm, NULL, 4 * TIME_S);
        sim_comm_run(comm, &sum);
        sim_comm_free(comm);
        cluster_run(cluster, random_below(&cluster->random, 100) * TIME_MS);
    }
    cluster_free(cluster);
}

/* Messages between nodes that were never connected, some of which leave at once. */
static void test_messages(void **state)
{
    (void)state;
    enum { SIZE = 50 };
    struct cluster *cluster = large_cluster(204, SIZE);
    struct sim_comm *comm = comm_of(cluster, "mail", SIZE, 1);
    sim_comm_form(comm, NULL, 2 * TIME_S);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        uint32_t to = (rank + 17) % SIZE;
        for (uint32_t size = 1; size <= 100000; size *= 100) {
            sim_message_post(
                comm,
                &(struct sim_message_call){
                    .sends = true, .rank = rank, .peer = to, .tag = 3, .dtype = DTYPE_F32, .count = size});
            sim_message_post(comm,
                             &(struct sim_message_call){
                                 .rank = to, .peer = rank, .tag = 3, .dtype = DTYPE_F32, .count = size});
        }
    }
    assert_true(cluster_run_until(cluster, sim_comm_idle, comm, 20 * TIME_S));
    sim_messages_check(comm);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* Ranks leave in turn, those in the middle of the tree first. A receive from a rank that has left fails. */
static void test_leaving(void **state)
{
    (void)state;
    enum { SIZE = 75, LAST = 74 };
    struct cluster *cluster = large_cluster(205, SIZE);
    struct sim_comm *comm = comm_of(cluster, "leave", SIZE, 1);
    sim_comm_form(comm, NULL, 2 * TIME_S);
    struct sim_message *last = sim_message_post(
        comm, &(struct sim_message_call){.rank = LAST, .peer = 73, .tag = 1, .dtype = DTYPE_F32, .count = 5});
    for (uint32_t rank = 0; rank < 73; rank++) {
        sim_comm_leave(comm, rank, COMMS_LEAVE_ORDERLY);
        cluster_run(cluster, random_below(&cluster->random, 300) * TIME_MS);
    }
    cluster_run(cluster, 20 * TIME_S);
    assert_false(last->done);
    assert_false(comm->ranks[LAST].aborted);
    sim_comm_leave(comm, 73, COMMS_LEAVE_ORDERLY);
    cluster_run(cluster, 100 * TIME_MS);
    assert_true(last->done);
    assert_int_equal(last->result.status, STATUS_RANK_LOST);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* --- What does not fit --- */

/* members: of the communicator; size: what the stranger asks for. */
static void run_stranger(uint32_t which, bool late, uint32_t members, uint32_t size, enum status status,
                         const char *text)
{
    struct cluster *cluster = large_cluster(which, members + 10);
    struct sim_comm *comm = comm_of(cluster, "fit", members, 1);
    uint32_t there[CLUSTER_NODES_MAX] = {[9] = members + 5};
    struct sim_comm *stranger = sim_comm_new(cluster, "fit", members, there);
    if (late) {
        sim_comm_form(comm, NULL, 2 * TIME_S);
        cluster_run(cluster, 30 * TIME_S);
    } else {
        for (uint32_t rank = 0; rank < members - 1; rank++) {
            sim_comm_join(comm, rank, 0, NULL);
        }
        cluster_run(cluster, 100 * TIME_MS);
    }
    sim_comm_join(stranger, 9, size, NULL);
    cluster_run(cluster, 4 * TIME_S);
    assert_text(verdict_of(stranger, 9), status, "fit", text);
    if (!late) {
        sim_comm_join(comm, members - 1, 0, NULL);
        assert_true(cluster_run_until(cluster, sim_comm_formed, comm, 5 * TIME_S));
    }
    for (uint32_t rank = 0; rank < members; rank++) {
        assert_int_equal(verdict_of(comm, rank)->status, STATUS_OK);
    }
    sim_comm_run(comm, &sum);
    sim_comm_free(stranger);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_rank_that_is_taken(void **state)
{
    (void)state;
    run_stranger(206, false, 40, 40, STATUS_ALREADY_EXISTS, "rank 9");
    run_stranger(207, true, 40, 40, STATUS_ALREADY_EXISTS, "rank 9");
    run_stranger(260, false, 80, 80, STATUS_ALREADY_EXISTS, "rank 9");
    run_stranger(261, true, 80, 80, STATUS_ALREADY_EXISTS, "rank 9");
}

static void test_another_size(void **state)
{
    (void)state;
    run_stranger(208, false, 40, 41, STATUS_MISMATCH, "size 41");
    run_stranger(209, true, 40, 41, STATUS_MISMATCH, "size 41");
    run_stranger(262, false, 80, 81, STATUS_MISMATCH, "size 81");
    run_stranger(263, true, 80, 81, STATUS_MISMATCH, "size 81");
}

/* --- Losses --- */

/* All ranks that are left were told the same, which names the node. */
static void assert_one_verdict(const struct sim_comm *comm, const char *name)
{
    const struct error *first = NULL;
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct sim_rank *rank = &comm->ranks[i];
        if (rank->member == NULL) {
            continue;
        }
        assert_true(rank->aborted);
        first = first == NULL ? &rank->abort_cause : first;
        assert_text(&rank->abort_cause, STATUS_NODE_LOST, name, "");
        assert_string_equal(rank->abort_cause.text, first->text);
    }
}

/* The next generation of a rank. */
struct next {
    struct comms_member *member;
    struct error result;
    bool formed;
};

static void on_formed(void *context, struct comms_member *member, const struct error *result, uint64_t now_ns)
{
    struct next *next = context;
    (void)member;
    (void)now_ns;
    next->formed = true;
    next->result = *result;
}

struct nexts {
    struct next of[CLUSTER_NODES_MAX];
    uint32_t size;
};

static bool nexts_formed(const void *context)
{
    const struct nexts *nexts = context;
    for (uint32_t i = 0; i < nexts->size; i++) {
        if (nexts->of[i].member != NULL && !nexts->of[i].formed) {
            return false;
        }
    }
    return true;
}

/* All that are left shrink, and the next generation forms. */
static void shrink(struct cluster *cluster, struct sim_comm *comm)
{
    static struct nexts nexts;
    memset(&nexts, 0, sizeof nexts);
    nexts.size = comm->size;
    for (uint32_t i = 0; i < comm->size; i++) {
        struct comms_member_handler handler = {.context = &nexts.of[i],
                                               .formed = on_formed,
                                               .completed = sim_next_completed,
                                               .aborted = sim_next_aborted};
        struct error error;
        if (comm->ranks[i].member != NULL) {
            enum status status = comms_member_shrink(comm->ranks[i].member, &(struct comms_shrink){0},
                                                     &handler, cluster->now_ns, &nexts.of[i].member, &error);
            if (status != STATUS_OK) {
                fail_msg("rank %u: %s", i, error.text);
            }
        }
    }
    cluster_touch(cluster);
    assert_true(cluster_run_until(cluster, nexts_formed, &nexts, 5 * TIME_S));
    for (uint32_t i = 0; i < comm->size; i++) {
        if (nexts.of[i].member != NULL) {
            assert_int_equal(nexts.of[i].result.status, STATUS_OK);
            comms_member_leave(nexts.of[i].member, COMMS_LEAVE_ORDERLY, cluster->now_ns);
        }
    }
    cluster_touch(cluster);
    cluster_run(cluster, 100 * TIME_MS);
}

/* A node dies: rank says whose. All others are told in time, and go on without it. */
static void run_loss(uint32_t which, uint32_t lost_rank, bool host, const struct sim_call *call)
{
    enum { SIZE = 70 };
    struct cluster *cluster = large_cluster(which, SIZE);
    struct sim_comm *comm = comm_of(cluster, "lose", SIZE, 1);
    uint32_t node = comm->ranks[lost_rank].node->index;
    sim_comm_form(comm, NULL, 2 * TIME_S);
    sim_comm_run(comm, &barrier);
    struct sim_op *op = call != NULL ? sim_op_new(comm, call) : NULL;
    for (uint32_t rank = 0; op != NULL && rank < SIZE; rank++) {
        if (rank != lost_rank) {
            sim_op_post(op, rank);
        }
    }
    cluster_run(cluster, 2 * TIME_MS);
    (host ? cluster_kill : cluster_crash)(cluster, node);
    sim_comm_forget_node(comm, node);
    cluster_bury(cluster, node);
    assert_true(cluster_run_until(cluster, sim_comm_all_told, comm, host ? 6 * TIME_S : 3 * TIME_S));
    assert_one_verdict(comm, cluster->nodes[node].name);
    shrink(cluster, comm);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_node_is_lost(void **state)
{
    (void)state;
    run_loss(210, 0, false, &sum);
    run_loss(211, 0, true, NULL);
    run_loss(212, 3, false, NULL);
    run_loss(213, 5, true, &sum);
    run_loss(214, 69, false, NULL);
    run_loss(215, 69, true, &exchange);
}

/* The ranks that are left were told that the node is lost, either because it has not formed, or later. */
static void assert_told_of(const struct sim_comm *comm, const char *name)
{
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct sim_rank *rank = &comm->ranks[i];
        if (rank->member != NULL) {
            assert_text(rank->aborted ? &rank->abort_cause : &rank->formed_result, STATUS_NODE_LOST, name,
                        "lost");
        }
    }
}

/* A node is lost at any time of the formation; `missing` ranks do not come. Either all others form it and
 * then lose it, or it ends at once, everywhere. */
static void run_loss_while_forming(uint32_t which, uint32_t size, uint32_t missing, uint32_t node, bool host,
                                   uint64_t after_ns)
{
    struct cluster *cluster = large_cluster(which, size);
    struct sim_comm *comm = comm_of(cluster, "early", size, 1);
    for (uint32_t rank = 0; rank < size; rank++) {
        if (comm->ranks[rank].node->index == node || rank % 20 >= missing) {
            sim_comm_join(comm, rank, 0, &(struct sim_options){.form_timeout_ms = 60000});
        }
    }
    cluster_run(cluster, after_ns);
    (host ? cluster_kill : cluster_crash)(cluster, node);
    sim_comm_forget_node(comm, node);
    cluster_bury(cluster, node);
    assert_true(cluster_run_until(cluster, sim_comm_all_told, comm, host ? 6 * TIME_S : 3 * TIME_S));
    assert_told_of(comm, cluster->nodes[node].name);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_node_is_lost_while_it_forms(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t size = i % 2 == 0 ? 60 : 80; /* without relays and with them */
        run_loss_while_forming(220 + i, size, 0, i * 7 % size, i % 3 == 2, (20 + i * 2) * TIME_MS);
    }
}

/* Ranks are missing, so the others wait. Then each node in turn is lost, also the one that collects reports.
 */
static void test_a_node_is_lost_while_others_wait(void **state)
{
    (void)state;
    for (uint32_t node = 0; node < 60; node += 1 + node % 3) {
        run_loss_while_forming(250, 60, 1, node, node % 8 == 7, 100 * TIME_MS + node % 5 * TIME_S);
    }
    for (uint32_t node = 0; node < 80; node += 1 + node % 3) { /* also each relay */
        run_loss_while_forming(264, 80, 1, node, node % 8 == 7, 100 * TIME_MS + node % 5 * TIME_S);
    }
}

/* A node's own rank comes while others wait. It is lost right after, and all others are told, also if it is
 * the one that collects reports, so nobody else has heard of its rank. */
static void run_loss_after_coming(uint32_t which, uint32_t size, uint32_t step)
{
    struct cluster *cluster = large_cluster(which, size);
    for (uint32_t node = 0; node < size - 1; node += step) {
        struct sim_comm *comm = comm_of(cluster, "late", size, 1);
        for (uint32_t rank = 1; rank < size; rank++) {
            if (comm->ranks[rank].node->index != node) {
                sim_comm_join(comm, rank, 0, NULL);
            }
        }
        cluster_run(cluster, 50 * TIME_MS + random_below(&cluster->random, 2 * TIME_S));
        sim_comm_join(comm, size - 1 - node, 0, NULL);
        cluster_run(cluster, 2 * TIME_MS + random_below(&cluster->random, 20 * TIME_MS));
        cluster_crash(cluster, node);
        sim_comm_forget_node(comm, node);
        cluster_bury(cluster, node);
        assert_true(cluster_run_until(cluster, sim_comm_all_told, comm, 3 * TIME_S));
        assert_told_of(comm, cluster->nodes[node].name);
        sim_comm_free(comm);
        cluster_restart(cluster, node);
        cluster_connect(cluster);
    }
    cluster_free(cluster);
}

static void test_a_node_is_lost_after_its_rank_has_come(void **state)
{
    (void)state;
    run_loss_after_coming(252, 40, 1);
    run_loss_after_coming(265, 72, 2);
}

/* A process is lost: that is told everywhere within 100 ms. */
static void run_rank_loss(uint32_t which, uint32_t size)
{
    enum { LOST = 7 };
    struct cluster *cluster = large_cluster(which, size);
    struct sim_comm *comm = comm_of(cluster, "early", size, 1);
    for (uint32_t rank = 1; rank < size; rank++) {
        sim_comm_join(comm, rank, 0, NULL);
    }
    cluster_run(cluster, 100 * TIME_MS);
    sim_comm_leave(comm, LOST, COMMS_LEAVE_LOST);
    assert_true(cluster_run_until(cluster, sim_comm_all_told, comm, 100 * TIME_MS));
    for (uint32_t rank = 1; rank < size; rank++) {
        if (rank != LOST) {
            assert_text(verdict_of(comm, rank), STATUS_RANK_LOST, "rank 7", comm->ranks[LOST].node->name);
            sim_comm_leave(comm, rank, COMMS_LEAVE_ORDERLY);
        }
    }
    sim_comm_form(comm, NULL, 3 * TIME_S); /* all come again, and the name is free */
    sim_comm_run(comm, &sum);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_rank_is_lost_while_others_wait(void **state)
{
    (void)state;
    run_rank_loss(251, 60);
    run_rank_loss(266, 90);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_datagrams),
        cmocka_unit_test(test_several_ranks_on_a_node),
        cmocka_unit_test(test_ranks_that_come_late),
        cmocka_unit_test(test_a_name_again),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_a_rank_that_is_taken),
        cmocka_unit_test(test_another_size),
        cmocka_unit_test(test_a_node_is_lost),
        cmocka_unit_test(test_a_node_is_lost_while_it_forms),
        cmocka_unit_test(test_a_node_is_lost_while_others_wait),
        cmocka_unit_test(test_a_node_is_lost_after_its_rank_has_come),
        cmocka_unit_test(test_a_rank_is_lost_while_others_wait),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
