#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/budget.h"
#include "tests/lib/hostile_node.h"

/* Memory that slices between nodes work in is its user's: one that never gets on holds little of commd's. */
#define SLICE (64u << 10)
#define SLICES 32
#define COUNT (SLICES * SLICE)
#define ROOT 1 /* node b's: node a reduces in memory of its own */
#define USER 1000

static struct hostile hostile;
static struct hostile_buffer in[HOSTILE_LOCAL_RANKS], out[HOSTILE_LOCAL_RANKS];
static struct hostile_outcome outcome;
static struct budget *budget;
static struct budget_account *account;
static const struct hostile_call reduce_call = {
    .kind = OP_KIND_REDUCE, .dtype = DTYPE_U8, .count_elements = COUNT, .root_rank = ROOT};

static uint64_t lane_bytes(void)
{
    struct budget_info info;
    budget_account_info(account, &info);
    return info.used[BUDGET_LANES];
}

/* A reduction of node a's ranks, to whose root nobody listens. */
static void begin(uint64_t ceiling)
{
    uint64_t all[BUDGET_KINDS];
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        all[kind] = UINT64_C(1) << 40;
    }
    assert_int_equal(budget_new(all, &budget, NULL), STATUS_OK);
    budget_set_ceiling(budget, BUDGET_LANES, ceiling);
    assert_int_equal(budget_open(budget, USER, NULL, &account, NULL), STATUS_OK);
    hostile_start_charged(&hostile, SLICE, account);
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        in[i] = hostile_buffer_new(COUNT);
        out[i] = hostile_buffer_new(COUNT);
    }
    outcome = (struct hostile_outcome){0};
    assert_int_not_equal(hostile_submit(&hostile, &reduce_call, in, out, &outcome), 0);
}

static void end(void)
{
    hostile_stop(&hostile);
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        hostile_buffer_free(&in[i]);
        hostile_buffer_free(&out[i]);
    }
    assert_int_equal(lane_bytes(), 0);
    budget_close(account);
    budget_free(budget);
}

static void test_slices_are_charged_until_their_operation_ends(void **state)
{
    (void)state;
    begin(UINT64_C(1) << 30);
    hostile_turns(&hostile, 256);
    assert_in_range(lane_bytes(), 2 * SLICE, 8 * SLICE);
    end(); /* node b never says that it has ended there */
}

static void test_from_half_of_the_ceiling_on_one_slice_at_a_time(void **state)
{
    (void)state;
    uint64_t most = 0;
    begin(3 * SLICE / 2);
    for (int turn = 0; turn < 4096 && hostile.data_count < SLICES; turn++) {
        hostile_turns(&hostile, 1);
        most = lane_bytes() > most ? lane_bytes() : most;
    }
    assert_in_range(hostile.data_count, SLICES, HOSTILE_HEARD_MAX);
    assert_int_equal(most, SLICE);
    end();
}

static void test_beyond_the_ceiling_the_communicator_fails(void **state)
{
    (void)state;
    begin(SLICE / 2);
    hostile_turns(&hostile, 4);
    assert_int_equal(hostile.failures, 1);
    assert_int_equal(hostile.failure.status, STATUS_LIMIT);
    assert_non_null(strstr(hostile.failure.text, "user_limit_lane_bytes"));
    assert_int_equal(lane_bytes(), 0);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_are_charged_until_their_operation_ends),
        cmocka_unit_test(test_from_half_of_the_ceiling_on_one_slice_at_a_time),
        cmocka_unit_test(test_beyond_the_ceiling_the_communicator_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
