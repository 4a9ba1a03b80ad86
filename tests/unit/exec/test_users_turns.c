#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/budget.h"
#include "daemon/base/time.h"
#include "daemon/exec/exec.h"
#include "tests/lib/hostile_node.h"

/* Communicators of two users in one exec. One user has many, all of them busy; the other has one. */

enum {
    RANKS = 2,
    MANY = 500,
    OTHERS = 5,
    SLICE_ELEMENTS = 4096,
    ELEMENTS = 1 << 18, /* several turns */
    ELEMENT_BYTES = 4,
    CROWD = 200,            /* ranks of a communicator whose pieces are many, and small */
    CROWD_ELEMENT_MAX = 16, /* bytes */
    CROWD_TURNS = CROWD * CROWD * 128 / (1 << 20)
};

struct setup {
    struct exec *exec;
    struct exec_comm *comms[MANY + 1]; /* the last one is the other user's */
    int32_t in[RANKS][ELEMENTS], out[RANKS][ELEMENTS];
    unsigned done[2]; /* of the user with many; of the other user */
};
static struct setup setup; /* large */

static void comm_failed(void *context, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
    fail_msg("%s", cause->text);
}

static void op_done(void *context, const struct error *result, uint64_t now_ns)
{
    (void)now_ns;
    assert_int_equal(result->status, STATUS_OK);
    ++*(unsigned *)context;
}

static uint64_t ticks; /* a look at the clock takes one */

static uint64_t tick(void)
{
    return ++ticks;
}

static enum status comm_try(uint64_t id, uint32_t owner_uid, struct budget_account *account,
                            struct exec_comm **out, struct error *error)
{
    static const uint32_t node_of_rank[RANKS] = {0}, peers[1] = {0};
    static const char *const names[1] = {"a"};
    const struct exec_comm_handler handler = {.failed = comm_failed};
    struct comm_map facts = {.comm_id = id,
                             .owner_uid = owner_uid,
                             .account = account,
                             .ranks = {.size = RANKS, .node_count = 1},
                             .node_of_rank = node_of_rank,
                             .peers = peers,
                             .node_names = names,
                             .slice_bytes = SLICE_ELEMENTS * ELEMENT_BYTES,
                             .name = "turns"};
    struct comm_map *map = NULL;
    enum status status = comm_map_new(&facts, &map, error);
    if (status == STATUS_OK) {
        status = exec_comm_new(setup.exec, map, &handler, out, error);
    }
    comm_map_release(map);
    return status;
}

static struct exec_comm *comm_new_of(uint64_t id, uint32_t owner_uid, struct budget_account *account)
{
    struct exec_comm *comm;
    struct error error;
    assert_int_equal(comm_try(id, owner_uid, account, &comm, &error), STATUS_OK);
    return comm;
}

static struct exec_comm *comm_new(uint64_t id, uint32_t owner_uid)
{
    return comm_new_of(id, owner_uid, NULL);
}

static void submit(struct exec_comm *comm, uint64_t seq, unsigned *done)
{
    struct exec_rank ranks[RANKS] = {{0}};
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i].input = setup.in[i];
        ranks[i].output = setup.out[i];
    }
    struct exec_call call = {.terms.kind = OP_KIND_ALL_REDUCE,
                             .terms.dtype = DTYPE_I32,
                             .terms.reduce = REDUCE_SUM,
                             .seq = seq,
                             .terms.count_elements = ELEMENTS,
                             .terms.bucket_ops = 1,
                             .rank_count = RANKS,
                             .ranks = ranks,
                             .done = op_done,
                             .context = done};
    assert_int_equal(exec_submit(comm, &call, NULL), STATUS_OK);
}

static void setup_start(void)
{
    memset(&setup, 0, sizeof setup);
    assert_int_equal(exec_new(NULL, &setup.exec, NULL), STATUS_OK);
    for (unsigned i = 0; i <= MANY; i++) {
        setup.comms[i] = comm_new(i + 1, i < MANY ? 1000 : 1001);
    }
}

static void setup_stop(void)
{
    for (unsigned i = 0; i <= MANY; i++) {
        exec_comm_free(setup.comms[i]);
    }
    exec_free(setup.exec);
}

/* The other user's operation needs about as many runs as it has steps. The work of a run is bounded. */
static void test_many_communicators(void **state)
{
    (void)state;
    setup_start();
    unsigned alone = 0, beside = 0;
    submit(setup.comms[MANY], 1, &setup.done[1]);
    for (; setup.done[1] == 0; alone++) {
        (void)exec_run(setup.exec, TIME_S);
    }
    assert_true(alone > 3);
    for (unsigned i = 0; i <= MANY; i++) {
        submit(setup.comms[i], 2, &setup.done[i < MANY ? 0 : 1]);
    }
    for (; setup.done[1] == 1; beside++) {
        assert_true(exec_run(setup.exec, TIME_S));
        assert_true(setup.done[0] <= EXEC_RUN_STEPS * (beside + 1));
    }
    assert_true(beside <= alone);
    assert_int_equal(setup.done[0], 0); /* half of the steps went to 500 communicators */
    while (exec_run(setup.exec, TIME_S)) {
    }
    assert_int_equal(setup.done[0], MANY);
    setup_stop();
}

/* Each look at the clock takes half of a run's time. So a run ends after a few turns of the 500 that wait. */
static uint64_t slow_tick(void)
{
    return ticks += EXEC_RUN_NS / 2;
}

static void test_runs_are_short(void **state)
{
    (void)state;
    setup_start();
    exec_set_clock(setup.exec, slow_tick);
    for (unsigned i = 0; i < MANY; i++) {
        submit(setup.comms[i], 1, &setup.done[0]);
    }
    unsigned runs = 0;
    while (setup.done[0] < MANY) {
        unsigned before = setup.done[0];
        (void)exec_run(setup.exec, TIME_S);
        assert_in_range(setup.done[0] - before, 0, 3);
        runs++;
    }
    assert_true(runs > MANY);
    setup_stop();
}

/* Data come for a communicator between two runs, after its turn in the same round. The communicator still
 * gets a turn for them. */
static void test_news_within_a_round(void **state)
{
    (void)state;
    static struct hostile hostile;
    static const struct hostile_call call = {
        .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_U8, .count_elements = 64};
    const struct error cause = {.status = STATUS_TIMED_OUT};
    struct hostile_buffer in[HOSTILE_LOCAL_RANKS], out[HOSTILE_LOCAL_RANKS];
    struct hostile_outcome outcome;
    memset(&setup, 0, sizeof setup);
    hostile_start(&hostile, SLICE_ELEMENTS * ELEMENT_BYTES);
    exec_set_clock(hostile.exec, slow_tick);
    setup.exec = hostile.exec;
    for (unsigned i = 0; i < OTHERS; i++) {
        setup.comms[i] = comm_new(i + 1, 1000 + i);
    }
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        in[i] = hostile_buffer_new(64);
        out[i] = hostile_buffer_new(64);
    }
    for (unsigned runs = 1; runs < 2 * OTHERS; runs++) {
        uint64_t seq = hostile_submit(&hostile, &call, in, out, &outcome);
        hostile_turns(&hostile, HOSTILE_TURNS);
        for (unsigned i = 0; i < OTHERS; i++) {
            submit(setup.comms[i], runs, &setup.done[0]);
        }
        for (unsigned run = 0; run < runs; run++) {
            (void)exec_run(hostile.exec, hostile.now_ns);
        }
        assert_int_equal(outcome.calls, 0); /* node b sends nothing */
        exec_cancel(hostile.comm, seq, 1, &cause, hostile.now_ns);
        while (exec_run(hostile.exec, hostile.now_ns)) {
        }
        assert_int_equal(outcome.calls, 1);
        assert_int_equal(setup.done[0], runs * OTHERS);
    }
    for (unsigned i = 0; i < OTHERS; i++) {
        exec_comm_free(setup.comms[i]);
    }
    hostile_stop(&hostile);
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        hostile_buffer_free(&in[i]);
        hostile_buffer_free(&out[i]);
    }
}

/* Runs one operation of many ranks on this node, with one element for each. Returns how many turns
 * it takes. */
static unsigned crowd_turns(enum op_kind kind, enum dtype dtype, size_t element_bytes)
{
    static const uint32_t node_of_rank[CROWD] = {0}, peers[1] = {0};
    static const char *const names[1] = {"a"};
    static uint8_t in[CROWD][CROWD * CROWD_ELEMENT_MAX], out[CROWD][CROWD * CROWD_ELEMENT_MAX];
    struct exec_rank ranks[CROWD] = {{0}};
    struct exec_comm *comm;
    unsigned done = 0, turns = 0;
    const struct exec_comm_handler handler = {.failed = comm_failed};
    struct comm_map facts = {.comm_id = 1,
                             .ranks = {.size = CROWD, .node_count = 1},
                             .node_of_rank = node_of_rank,
                             .peers = peers,
                             .node_names = names,
                             .slice_bytes = EXEC_SLICE_BYTES_DEFAULT,
                             .name = "crowd"};
    struct comm_map *map;
    assert_int_equal(exec_new(NULL, &setup.exec, NULL), STATUS_OK);
    assert_int_equal(comm_map_new(&facts, &map, NULL), STATUS_OK);
    assert_int_equal(exec_comm_new(setup.exec, map, &handler, &comm, NULL), STATUS_OK);
    comm_map_release(map);
    for (unsigned i = 0; i < CROWD; i++) {
        for (unsigned k = 0; k < CROWD * CROWD_ELEMENT_MAX; k++) {
            in[i][k] = (uint8_t)(i * 7 + k * 3);
            out[i][k] = 0xa5;
        }
        ranks[i] = (struct exec_rank){.input = in[i], .output = out[i]};
    }
    struct exec_call call = {.terms.kind = kind,
                             .terms.dtype = dtype,
                             .terms.reduce = REDUCE_MAX,
                             .terms.count_elements = 1,
                             .terms.bucket_ops = 1,
                             .seq = 1,
                             .rank_count = CROWD,
                             .ranks = ranks,
                             .done = op_done,
                             .context = &done};
    assert_int_equal(exec_submit(comm, &call, NULL), STATUS_OK);
    for (; done == 0; turns++) {
        assert_true(turns < 1000);
        (void)exec_run(setup.exec, TIME_S);
    }
    for (unsigned i = 0; i < CROWD; i++) {
        for (unsigned k = 0; k < CROWD && kind == OP_KIND_ALL_TO_ALL; k++) {
            assert_memory_equal(&out[i][k * element_bytes], &in[k][i * element_bytes], element_bytes);
        }
        uint8_t most = 0;
        for (unsigned k = 0; k < CROWD; k++) {
            most = in[k][i] > most ? in[k][i] : most;
        }
        assert_true(kind != OP_KIND_REDUCE_SCATTER || out[i][0] == most);
    }
    exec_comm_free(comm);
    exec_free(setup.exec);
    return turns;
}

/* The number of pieces takes the time, not the bytes. So a turn is bounded by its pieces. */
static void test_small_pieces_take_turns(void **state)
{
    (void)state;
    assert_true(crowd_turns(OP_KIND_REDUCE_SCATTER, DTYPE_U8, 1) >= CROWD_TURNS);
    assert_true(crowd_turns(OP_KIND_ALL_GATHER, DTYPE_U8, 1) >= CROWD_TURNS);
    assert_int_equal(crowd_turns(OP_KIND_BROADCAST, DTYPE_U8, 1), 1);
}

/* The blocks that a rank sends lie in a row, which is one piece. It costs less, but turns are bounded all the
 * same. Every size of elements has the right blocks. */
static void test_rows_of_small_blocks(void **state)
{
    (void)state;
    assert_true(crowd_turns(OP_KIND_ALL_TO_ALL, DTYPE_U8, 1) > 1);
    assert_true(crowd_turns(OP_KIND_ALL_TO_ALL, DTYPE_U16, 2) > 1);
    assert_true(crowd_turns(OP_KIND_ALL_TO_ALL, DTYPE_U32, 4) > 1);
    assert_true(crowd_turns(OP_KIND_ALL_TO_ALL, DTYPE_F64, 8) > 1);
    assert_true(crowd_turns(OP_KIND_ALL_TO_ALL, DTYPE_C128, 16) > 1);
}

/* Every communicator takes its steps until all operations have ended: none is left out. */
static void test_none_is_left_out(void **state)
{
    (void)state;
    setup_start();
    for (unsigned i = 0; i <= MANY; i++) {
        submit(setup.comms[i], 2, &setup.done[i < MANY ? 0 : 1]);
    }
    unsigned runs = 0;
    while (exec_run(setup.exec, TIME_S)) {
        assert_true(++runs < 100000);
    }
    assert_int_equal(setup.done[0], MANY);
    assert_int_equal(setup.done[1], 1);
    setup_stop();
}

static uint64_t spent_ns(const struct budget_account *account)
{
    struct budget_info info;
    budget_account_info(account, &info);
    return info.spent_ns;
}

/* Each look at the clock takes a nanosecond: a run of two users takes two, one for each. */
static void test_time_is_charged(void **state)
{
    (void)state;
    struct budget *budget;
    struct budget_account *accounts[2];
    struct exec_comm *comms[2];
    unsigned done[2] = {0};
    uint64_t runs = 0;
    assert_int_equal(budget_new(NULL, &budget, NULL), STATUS_OK);
    assert_int_equal(exec_new(NULL, &setup.exec, NULL), STATUS_OK);
    exec_set_clock(setup.exec, tick);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(budget_open(budget, 1000 + i, NULL, &accounts[i], NULL), STATUS_OK);
        comms[i] = comm_new_of(1 + i, 1000 + i, accounts[i]);
    }
    submit(comms[0], 1, &done[0]);
    for (; done[0] == 0; runs++) {
        (void)exec_run(setup.exec, TIME_S);
    }
    assert_int_equal(spent_ns(accounts[0]), runs);
    assert_int_equal(spent_ns(accounts[1]), 0);
    submit(comms[1], 1, &done[1]);
    while (done[1] == 0) {
        (void)exec_run(setup.exec, TIME_S);
    }
    assert_int_equal(spent_ns(accounts[0]), runs);
    assert_int_equal(spent_ns(accounts[1]), runs);
    for (unsigned i = 0; i < 2; i++) {
        exec_comm_free(comms[i]);
        budget_close(accounts[i]);
    }
    exec_free(setup.exec);
    budget_free(budget);
}

/* A communicator beyond the ceiling is refused. What it took is given back. */
static void test_communicators_are_charged(void **state)
{
    (void)state;
    struct budget *budget;
    struct budget_account *account;
    struct budget_info info;
    struct error error;
    assert_int_equal(budget_new(NULL, &budget, NULL), STATUS_OK);
    assert_int_equal(budget_open(budget, 1000, NULL, &account, NULL), STATUS_OK);
    assert_int_equal(exec_new(NULL, &setup.exec, NULL), STATUS_OK);
    struct exec_comm *first = comm_new_of(1, 1000, account), *second = NULL;
    budget_account_info(account, &info);
    uint64_t bytes = info.used[BUDGET_COMMUNICATOR_BYTES];
    assert_in_range(bytes, 1024, 65536);
    budget_set_ceiling(budget, BUDGET_COMMUNICATOR_BYTES, bytes);
    /* The ceiling counts even within the minimum that is set aside for the user. */
    assert_int_equal(comm_try(2, 1000, account, &second, &error), STATUS_LIMIT);
    assert_non_null(strstr(error.text, "\"turns\""));
    assert_non_null(strstr(error.text, "user_limit_communicator_bytes"));
    exec_comm_free(first);
    budget_account_info(account, &info);
    assert_int_equal(info.used[BUDGET_COMMUNICATOR_BYTES], 0);
    assert_int_equal(comm_try(2, 1000, account, &second, &error), STATUS_OK);
    exec_comm_free(second);
    exec_free(setup.exec);
    budget_close(account);
    budget_free(budget);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_communicators),   cmocka_unit_test(test_runs_are_short),
        cmocka_unit_test(test_news_within_a_round),  cmocka_unit_test(test_small_pieces_take_turns),
        cmocka_unit_test(test_rows_of_small_blocks), cmocka_unit_test(test_none_is_left_out),
        cmocka_unit_test(test_time_is_charged),      cmocka_unit_test(test_communicators_are_charged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
