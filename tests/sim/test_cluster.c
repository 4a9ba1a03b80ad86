#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/coll/stage.h"
#include "tests/lib/own_process.h"
#include "tests/sim/cluster.h"
#include "tests/sim/conditions.h"
#include "tests/sim/sim_comm.h"
#include "tests/sim/sim_text.h"

/* Whole clusters run operations: right results, deadlines, many communicators. test_formation.c tests
 * formation, and test_faults.c tests faults. */

static const struct sim_call barrier = {.kind = OP_KIND_BARRIER};

/* Puts 1 to 3 ranks on each node, in random order, so the ranks of a node are not contiguous. Returns how
 * many ranks there are. */
static uint32_t scatter_ranks(struct cluster *cluster, uint32_t nodes, uint32_t *node_of_rank)
{
    uint32_t size = 0;
    for (uint32_t i = 0; i < nodes; i++) {
        uint32_t local = 1 + (uint32_t)random_below(&cluster->random, 3);
        while (local-- > 0) {
            uint32_t at = (uint32_t)random_below(&cluster->random, size + 1);
            node_of_rank[size++] = node_of_rank[at];
            node_of_rank[at] = i;
        }
    }
    return size;
}

/* --- All-reduce --- */

static uint64_t run_all_reduces(uint64_t seed)
{
    static const struct sim_call calls[] = {
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 1},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 63, .in_place = true},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F64, .reduce = REDUCE_SUM, .count = 64},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I32, .reduce = REDUCE_SUM, .count = 65},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_AVG, .count = 0},
        {.kind = OP_KIND_ALL_REDUCE,
         .dtype = DTYPE_F32,
         .reduce = REDUCE_AVG,
         .count = 4095,
         .in_place = true},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 4096},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_BF16, .reduce = REDUCE_SUM, .count = 8193},
        {.kind = OP_KIND_ALL_REDUCE,
         .dtype = DTYPE_F16,
         .reduce = REDUCE_MAX,
         .count = 20011,
         .in_place = true},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I64, .reduce = REDUCE_PROD, .count = 7777},
        {.kind = OP_KIND_ALL_REDUCE,
         .dtype = DTYPE_U8,
         .reduce = REDUCE_BXOR,
         .count = 50021,
         .in_place = true},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I16, .reduce = REDUCE_MIN, .count = 30001},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_BOOL, .reduce = REDUCE_LAND, .count = 1000},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_C64, .reduce = REDUCE_SUM, .count = 12345},
        {.kind = OP_KIND_ALL_REDUCE,
         .dtype = DTYPE_F64,
         .reduce = REDUCE_SUM,
         .count = 60013,
         .in_place = true},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F8E5M2, .reduce = REDUCE_MIN, .count = 333},
    };
    enum { CALLS = sizeof calls / sizeof *calls, AHEAD = 4 };
    struct cluster *cluster = cluster_new(
        &(struct cluster_options){.seed = seed, .node_count = 64, .conditions = rough, .slice_bytes = 16384});
    uint32_t node_of_rank[192];
    uint32_t size = scatter_ranks(cluster, 64, node_of_rank);
    struct sim_comm *comm = sim_comm_new(cluster, "all", size, node_of_rank);
    sim_comm_form(comm, NULL, 30 * TIME_S);
    /* Several operations are in flight at a time, as applications do it. */
    struct sim_op *ops[CALLS];
    for (uint32_t i = 0; i < CALLS + AHEAD; i++) {
        if (i < CALLS) {
            ops[i] = sim_comm_post_all(comm, &calls[i]);
        }
        if (i >= AHEAD) {
            sim_op_finish(ops[i - AHEAD], 60 * TIME_S);
            sim_op_free(ops[i - AHEAD]);
        }
    }
    uint64_t trace = cluster_trace(cluster);
    sim_comm_free(comm);
    cluster_free(cluster);
    return trace;
}

static void test_all_reduce_on_64_nodes(void **state)
{
    (void)state;
    (void)run_all_reduces(cluster_seed(1));
}

static void test_the_seed_reproduces_a_run(void **state)
{
    (void)state;
    uint64_t first = run_all_reduces(cluster_seed(2));
    assert_true(run_all_reduces(cluster_seed(2)) == first);
    assert_true(run_all_reduces(cluster_seed(3)) != first);
}

/* --- Broadcast and barrier --- */

static void test_broadcast_from_every_kind_of_root(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(4), .node_count = 13, .conditions = rough, .slice_bytes = 8192});
    uint32_t node_of_rank[39];
    uint32_t size = scatter_ranks(cluster, 13, node_of_rank);
    struct sim_comm *comm = sim_comm_new(cluster, "roots", size, node_of_rank);
    sim_comm_form(comm, NULL, 30 * TIME_S);
    static const uint64_t counts[] = {0, 1, 1000, 2047, 2048, 2049, 30011};
    /* Every rank is the root once: first and last ranks of nodes, on first, last and other nodes. */
    for (uint32_t root = 0; root < size; root++) {
        struct sim_call call = {.kind = OP_KIND_BROADCAST,
                                .dtype = root % 2 == 0 ? DTYPE_F32 : DTYPE_I16,
                                .root = root,
                                .count = counts[root % 7],
                                .in_place = root % 3 == 0};
        sim_comm_run(comm, &call);
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* A root hears of nobody. Its small slices end as soon as they are copied, but the stream has room for a
 * limited number of copies: then it waits for acknowledgements. */
static void test_a_root_on_a_slow_link(void **state)
{
    (void)state;
    static const struct network_conditions slow = {.delay_ns = 100 * TIME_MS, .packet_bytes = 65536};
    static const uint32_t node_of_rank[] = {0, 1};
    static const struct sim_call large = {.kind = OP_KIND_BROADCAST,
                                          .dtype = DTYPE_I8,
                                          .count = EXEC_LANES_MAX * (NET_STREAM_COPY_MAX_BYTES + (1 << 20))};
    for (uint64_t slice_bytes = 32768; slice_bytes <= 65536; slice_bytes *= 2) {
        struct cluster *cluster = cluster_new(&(struct cluster_options){
            .seed = cluster_seed(40), .node_count = 2, .conditions = slow, .slice_bytes = slice_bytes});
        struct sim_comm *comm = sim_comm_new(cluster, "slow", 2, node_of_rank);
        sim_comm_form(comm, &(struct sim_options){.algorithms = "broadcast=tree"}, 30 * TIME_S);
        sim_comm_run(comm, &large);
        sim_comm_free(comm);
        cluster_free(cluster);
    }
}

/* No rank may pass a barrier before every rank has entered it. */
static void test_barriers(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(
        &(struct cluster_options){.seed = cluster_seed(5), .node_count = 17, .conditions = rough});
    uint32_t node_of_rank[51];
    uint32_t size = scatter_ranks(cluster, 17, node_of_rank);
    struct sim_comm *comm = sim_comm_new(cluster, "gate", size, node_of_rank);
    sim_comm_form(comm, NULL, 30 * TIME_S);
    for (uint32_t last = 0; last < size; last += 5) {
        struct sim_op *op = sim_op_new(comm, &barrier);
        for (uint32_t i = 0; i < size; i++) {
            if (i != last) {
                sim_op_post(op, i);
            }
        }
        cluster_run(cluster, TIME_S);
        for (uint32_t i = 0; i < size; i++) {
            assert_false(op->parts[i].done);
        }
        sim_op_post(op, last);
        sim_op_finish(op, 10 * TIME_S);
        sim_op_free(op);
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* --- Size --- */

static void test_200_nodes(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(20), .node_count = 200, .conditions = calm, .slice_bytes = 65536});
    static uint32_t node_of_rank[200];
    for (uint32_t i = 0; i < 200; i++) {
        node_of_rank[i] = (i * 77) % 200;
    }
    struct sim_comm *comm = sim_comm_new(cluster, "wide", 200, node_of_rank);
    sim_comm_form(comm, NULL, 30 * TIME_S);
    sim_comm_run(comm, &barrier);
    sim_comm_run(comm,
                 &(struct sim_call){
                     .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 100});
    sim_comm_run(comm,
                 &(struct sim_call){
                     .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I32, .reduce = REDUCE_SUM, .count = 40001});
    sim_comm_run(
        comm, &(struct sim_call){.kind = OP_KIND_BROADCAST, .dtype = DTYPE_F64, .root = 123, .count = 20001});
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* --- Deadlines of operations --- */

static void test_a_deadline_that_passes(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(30), .node_count = 4, .conditions = rough, .datagrams = true});
    static const uint32_t node_of_rank[] = {0, 1, 2, 3, 0, 1, 2, 3};
    struct sim_comm *comm = sim_comm_new(cluster, "slow", 8, node_of_rank);
    sim_comm_form(comm, NULL, 10 * TIME_S);
    struct sim_call call = {.kind = OP_KIND_ALL_REDUCE,
                            .dtype = DTYPE_F32,
                            .reduce = REDUCE_SUM,
                            .count = 1000,
                            .timeout_ms = 1500};
    sim_comm_run(comm, &call);
    uint64_t begin_ns = cluster->now_ns;
    struct sim_op *op = sim_op_new(comm, &call);
    for (uint32_t i = 0; i < 8; i++) {
        if (i != 6) {
            sim_op_post(op, i);
        }
    }
    assert_true(cluster_run_until(cluster, sim_op_done, op, 10 * TIME_S));
    for (uint32_t i = 0; i < 8; i++) {
        if (i != 6) {
            assert_text(&op->parts[i].result, STATUS_TIMED_OUT, "slow", "");
            assert_string_equal(op->parts[i].result.text, op->parts[0].result.text);
            assert_true(op->parts[i].done_ns >= begin_ns + 1500 * TIME_MS - TIME_MS);
            assert_true(op->parts[i].done_ns <= begin_ns + 1600 * TIME_MS);
        }
        assert_false(comm->ranks[i].aborted);
    }
    /* A rank that posts too late gets the same cause, and the communicator goes on. */
    sim_op_post(op, 6);
    assert_true(cluster_run_until(cluster, sim_op_done, op, TIME_S));
    assert_string_equal(op->parts[6].result.text, op->parts[0].result.text);
    sim_comm_run(comm, &call);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/*
 * Deadlines that pass at any moment of operations. Each late operation ends alone, the others have the right
 * values, and the communicator goes on.
 */
static void test_deadlines_that_pass_under_way(void **state)
{
    (void)state;
    static const struct sim_call calls[] = {
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 60000},
        {.kind = OP_KIND_ALL_GATHER, .dtype = DTYPE_I32, .count = 9000},
        {.kind = OP_KIND_BROADCAST, .dtype = DTYPE_F64, .count = 30000, .root = 2},
        {.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_I64, .count = 3000},
        {.kind = OP_KIND_REDUCE, .dtype = DTYPE_I32, .reduce = REDUCE_SUM, .count = 50000, .root = 1},
        {.kind = OP_KIND_GATHER, .dtype = DTYPE_I32, .count = 2000, .has_layouts = true, .layout_seed = 5},
    };
    static const uint32_t node_of_rank[] = {0, 1, 2, 1, 0};
    enum { KINDS = sizeof calls / sizeof *calls };
    unsigned late = 0, well = 0;
    for (uint32_t turn = 0; turn < 6 * KINDS; turn++) {
        struct network_conditions slow = {.delay_ns = TIME_MS, .bandwidth_bytes_s = 20u << 20};
        struct cluster *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(600 + turn),
                                                                        .node_count = 3,
                                                                        .conditions = slow,
                                                                        .slice_bytes = 32768,
                                                                        .datagrams = turn % 3 == 0});
        struct sim_comm *comm = sim_comm_new(cluster, "hasty", 5, node_of_rank);
        sim_comm_form(comm, NULL, 10 * TIME_S);
        struct sim_op *ops[4];
        for (uint32_t i = 0; i < 4; i++) {
            struct sim_call call = calls[(turn + i) % KINDS];
            call.timeout_ms = i == 2 ? 0 : 1 + (turn / KINDS) * 3 + 5 * i;
            ops[i] = sim_comm_post_all(comm, &call);
        }
        assert_true(cluster_run_until(cluster, sim_comm_idle, comm, 60 * TIME_S));
        for (uint32_t i = 0; i < 4; i++) {
            sim_op_check(ops[i]);
            for (uint32_t rank = 0; rank < 5; rank++) {
                const struct error *result = &ops[i]->parts[rank].result;
                assert_true(result->status == STATUS_OK || (i != 2 && result->status == STATUS_TIMED_OUT));
                late += result->status != STATUS_OK;
                well += result->status == STATUS_OK;
                assert_false(comm->ranks[rank].aborted);
            }
        }
        sim_comm_run(comm, &calls[turn % KINDS]);
        sim_comm_free(comm);
        cluster_free(cluster);
    }
    print_message("# late %u, well %u\n", late, well);
    assert_true(late > 20 && well > 20);
}

/*
 * In an all_to_all, a node of many ranks has too many blocks for a table. So it packs small blocks, and
 * handles large ones in turns. A node of few ranks does neither. Both kinds of nodes must work together.
 */
static void test_many_blocks(void **state)
{
    (void)state;
    static const struct sim_call calls[] = {
        {.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_U8, .count = 1},
        {.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_I64, .count = 3},
        {.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_I64, .count = 40}, /* too large to be packed */
        {.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_I16, .count = 5, .has_layouts = true, .layout_seed = 1},
        {.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_I64, .count = 90, .has_layouts = true, .layout_seed = 2},
    };
    enum { ON_TWO = 70, ON_THIRD = 5, RANKS = 2 * ON_TWO + ON_THIRD };
    assert_true(ON_TWO * ON_TWO > COLL_STAGE_MANY_BLOCKS && ON_THIRD * RANKS < COLL_STAGE_MANY_BLOCKS);
    for (uint32_t turn = 0; turn < 4; turn++) {
        struct cluster *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(650 + turn),
                                                                        .node_count = 3,
                                                                        .slice_bytes = turn < 2 ? 0 : 4096,
                                                                        .datagrams = turn == 1});
        uint32_t node_of_rank[RANKS];
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            bool third = rank >= 2 * ON_TWO;
            node_of_rank[rank] = third ? 2 : turn % 2 == 0 ? rank / ON_TWO : rank % 2;
        }
        struct sim_comm *comm = sim_comm_new(cluster, "crowd", RANKS, node_of_rank);
        sim_comm_form(comm, NULL, 10 * TIME_S);
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            sim_comm_run(comm, &calls[i]);
        }
        sim_comm_free(comm);
        cluster_free(cluster);
    }
}

static void test_a_contradiction_names_both_calls(void **state)
{
    (void)state;
    static const uint32_t node_of_rank[] = {0, 1, 2, 0, 1, 2};
    for (uint32_t wrong = 0; wrong < 6; wrong++) {
        struct cluster *cluster = cluster_new(&(struct cluster_options){
            .seed = cluster_seed(40 + wrong), .node_count = 3, .conditions = rough, .datagrams = true});
        struct sim_comm *comm = sim_comm_new(cluster, "odd", 6, node_of_rank);
        sim_comm_form(comm, NULL, 10 * TIME_S);
        struct sim_op *op = sim_op_new(
            comm, &(struct sim_call){
                      .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 1000});
        for (uint32_t i = 0; i < 6; i++) {
            /* If one rank of a node is wrong, the node notices. If both are wrong, the nodes notice. */
            bool differs = i == wrong || (wrong >= 3 && i == wrong - 3);
            op->call.dtype = differs ? DTYPE_I32 : DTYPE_F32;
            sim_op_post(op, i);
        }
        assert_true(cluster_run_until(cluster, sim_op_done, op, 10 * TIME_S));
        for (uint32_t i = 0; i < 6; i++) {
            const struct error *result = op->parts[i].posted ? &op->parts[i].result : &op->parts[i].refused;
            assert_text(result, STATUS_MISMATCH, "f32", "i32");
        }
        sim_comm_free(comm);
        cluster_free(cluster);
    }
}

/* Ranks may pass any value that the operation does not use. */
static void test_what_has_no_use_is_not_compared(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(48), .node_count = 3, .conditions = rough, .datagrams = true});
    static const uint32_t node_of_rank[] = {0, 1, 2, 0, 1, 2};
    struct sim_comm *comm = sim_comm_new(cluster, "useless", 6, node_of_rank);
    sim_comm_form(comm, NULL, 10 * TIME_S);
    for (uint32_t turn = 0; turn < 3; turn++) {
        static const enum op_kind kinds[] = {OP_KIND_BARRIER, OP_KIND_BROADCAST, OP_KIND_ALL_REDUCE};
        struct sim_op *op = sim_op_new(
            comm,
            &(struct sim_call){.kind = kinds[turn], .dtype = DTYPE_I32, .reduce = REDUCE_SUM, .count = 500});
        for (uint32_t i = 0; i < 6; i++) {
            op->call.reduce = turn < 2 ? (enum reduce)i : REDUCE_SUM;
            op->call.dtype = turn == 0 ? (enum dtype)i : DTYPE_I32;
            op->call.root = turn == 1 ? 0 : i;
            sim_op_post(op, i);
        }
        sim_op_finish(op, 10 * TIME_S);
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* --- Many communicators --- */

enum { MANY = 24, MANY_NODES = 8, MANY_ROUNDS = 6 };

static void test_many_communicators_at_once(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(50), .node_count = MANY_NODES, .conditions = rough, .slice_bytes = 8192});
    struct sim_comm *comms[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t node_of_rank[24];
        uint32_t size = 2 + (uint32_t)random_below(&cluster->random, 10);
        for (uint32_t j = 0; j < size; j++) {
            node_of_rank[j] = (uint32_t)random_below(&cluster->random, MANY_NODES);
        }
        char name[16];
        (void)snprintf(name, sizeof name, "many-%u", i);
        comms[i] = sim_comm_new(cluster, name, size, node_of_rank);
        sim_comm_join_all(comms[i], NULL);
    }
    struct sim_op *ops[MANY][MANY_ROUNDS];
    for (uint32_t i = 0; i < MANY; i++) {
        assert_true(cluster_run_until(cluster, sim_comm_formed, comms[i], 30 * TIME_S));
        for (uint32_t j = 0; j < comms[i]->size; j++) {
            assert_int_equal(verdict_of(comms[i], j)->status, STATUS_OK);
        }
    }
    for (uint32_t round = 0; round < MANY_ROUNDS; round++) {
        for (uint32_t i = 0; i < MANY; i++) {
            struct sim_call call = {.kind = (enum op_kind)((round + i) % OP_KIND_SEND),
                                    .dtype = i % 2 == 0 ? DTYPE_F32 : DTYPE_U16,
                                    .reduce = round % 2 == 0 ? REDUCE_SUM : REDUCE_MAX,
                                    .count = random_below(&cluster->random, 9000),
                                    .root = round % comms[i]->size,
                                    .in_place = round % 2 == 1};
            ops[i][round] = sim_comm_post_all(comms[i], &call);
        }
    }
    for (uint32_t i = 0; i < MANY; i++) {
        for (uint32_t round = 0; round < MANY_ROUNDS; round++) {
            sim_op_finish(ops[i][round], 60 * TIME_S);
            sim_op_free(ops[i][round]);
        }
    }
    for (uint32_t i = 0; i < MANY; i++) {
        sim_comm_free(comms[i]);
    }
    cluster_free(cluster);
}

/* Ranks leave as soon as their last operation is done, while the last messages of others are still under
 * way. */
static void test_ranks_leave_as_soon_as_they_can(void **state)
{
    (void)state;
    static const uint32_t node_of_rank[] = {0, 1, 2, 3, 4, 1};
    static const enum op_kind kinds[] = {OP_KIND_BARRIER, OP_KIND_BROADCAST, OP_KIND_GATHER,
                                         OP_KIND_ALL_REDUCE};
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(70), .node_count = 5, .conditions = rough, .datagrams = true});
    for (uint32_t turn = 0; turn < 200; turn++) {
        struct sim_comm *comm = sim_comm_new(cluster, "brief", 6, node_of_rank);
        sim_comm_form(comm, NULL, 10 * TIME_S);
        struct sim_op *op = sim_comm_post_all(comm, &(struct sim_call){.kind = kinds[turn % 4],
                                                                       .dtype = DTYPE_F32,
                                                                       .reduce = REDUCE_SUM,
                                                                       .count = turn,
                                                                       .root = turn % 6});
        for (uint32_t step = 0; step < 100000 && !sim_op_done(op); step++) {
            cluster_run(cluster, 5 * TIME_US);
            for (uint32_t i = 0; i < 6; i++) {
                if (op->parts[i].done) {
                    assert_int_equal(op->parts[i].result.status, STATUS_OK);
                    sim_comm_leave(comm, i, COMMS_LEAVE_ORDERLY);
                }
            }
        }
        for (uint32_t i = 0; i < 6; i++) {
            assert_true(op->parts[i].done);
            assert_int_equal(op->parts[i].result.status, STATUS_OK);
        }
        sim_op_check(op);
        sim_comm_free(comm);
    }
    cluster_free(cluster);
}

static void test_names_are_used_again_and_memory_is_flat(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(
        &(struct cluster_options){.seed = cluster_seed(60), .node_count = 4, .conditions = rough});
    static const uint32_t node_of_rank[] = {3, 0, 1, 2, 1, 0};
    /* commd remembers a limited number of ended communicators. Memory grows until that limit is reached. */
    enum { TURNS_BEFORE = 700, TURNS = 1400 };
    size_t before = 0;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        struct sim_comm *comm = sim_comm_new(cluster, "again", 6, node_of_rank);
        sim_comm_form(comm, NULL, 10 * TIME_S);
        for (uint32_t i = 0; i < 5; i++) {
            sim_comm_run(comm, &(struct sim_call){.kind = (enum op_kind)(i % OP_KIND_SEND),
                                                  .dtype = DTYPE_F32,
                                                  .reduce = REDUCE_SUM,
                                                  .count = 500 + turn,
                                                  .root = i});
        }
        sim_comm_free(comm);
        cluster_run(cluster, TIME_S);
        if (turn == TURNS_BEFORE) {
            before = allocated_bytes();
        }
    }
    /* Memory for heartbeats and their packets varies. A leak for each communicator would be larger. */
    size_t after = allocated_bytes();
    if (after > before + 16384) {
        fail_msg("%d communicators left %zu bytes behind", TURNS - TURNS_BEFORE, after - before);
    }
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce_on_64_nodes),
        cmocka_unit_test(test_the_seed_reproduces_a_run),
        cmocka_unit_test(test_broadcast_from_every_kind_of_root),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_a_root_on_a_slow_link),
        cmocka_unit_test(test_200_nodes),
        cmocka_unit_test(test_a_deadline_that_passes),
        cmocka_unit_test(test_deadlines_that_pass_under_way),
        cmocka_unit_test(test_many_blocks),
        cmocka_unit_test(test_a_contradiction_names_both_calls),
        cmocka_unit_test(test_what_has_no_use_is_not_compared),
        cmocka_unit_test(test_many_communicators_at_once),
        cmocka_unit_test(test_ranks_leave_as_soon_as_they_can),
        cmocka_unit_test(test_names_are_used_again_and_memory_is_flat),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
