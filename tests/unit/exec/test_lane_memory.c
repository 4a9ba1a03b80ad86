#include "daemon/exec/exec_internal.h"
#include "tests/unit/exec/charged.h"

/* The memory for slices between nodes is charged to their user. An operation that makes no progress holds
 * little of commd's memory. */
#define SLICE (64u << 10)
#define SLICES 32
#define COUNT (SLICES * SLICE)
#define ROOT 1 /* on node b: node a reduces in commd's memory */

static const struct hostile_call reduce_call = {
    .kind = OP_KIND_REDUCE, .dtype = DTYPE_U8, .count_elements = COUNT, .root_rank = ROOT};

static uint64_t lane_bytes(void)
{
    return charged(BUDGET_LANES);
}

/* Begins an operation of node a's ranks. Node b does nothing for it. */
static void begin_call(const struct hostile_call *call, uint64_t ceiling)
{
    charged_begin(BUDGET_LANES, ceiling, SLICE, call);
}

/* Begins a reduction to a root on node b, which does not answer. */
static void begin(uint64_t ceiling)
{
    begin_call(&reduce_call, ceiling);
}

static void end(void)
{
    charged_end(BUDGET_LANES);
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

/* Encoded data, and the copies of it that are sent, are commd's memory, too. */
static void test_compressed_copies_are_charged(void **state)
{
    (void)state;
    const struct hostile_call call = {.kind = OP_KIND_ALL_REDUCE,
                                      .dtype = DTYPE_F32,
                                      .count_elements = SLICE / 4,
                                      .compression = COMPRESSION_BF16};
    uint64_t most = 0;
    begin_call(&call, UINT64_C(1) << 30);
    for (int turn = 0; turn < 256; turn++) {
        hostile_turns(&hostile, 1);
        most = lane_bytes() > most ? lane_bytes() : most;
    }
    /* Half of the slice's elements go to node b, at half their size. */
    assert_in_range(most, SLICE / 4, SLICE);
    end();
    begin_call(&call, SLICE / 8);
    hostile_turns(&hostile, 4);
    assert_int_equal(hostile.failures, 1);
    assert_int_equal(hostile.failure.status, STATUS_LIMIT);
    assert_non_null(strstr(hostile.failure.text, "user_limit_lane_bytes"));
    end();
}

/* The network gets no more of a large transfer than it can be busy with. If a node takes none of it, it is
 * sent no more. */
static void test_a_large_transfer_waits_for_acknowledgements(void **state)
{
    (void)state;
    enum { MESSAGES = EXEC_SENDS_AHEAD_MAX + 16 };
    struct hostile_call call = reduce_call;
    call.count_elements = MESSAGES * DATA_MESSAGE_BYTES;
    charged_begin(BUDGET_LANES, UINT64_C(1) << 30, call.count_elements, &call);
    const struct exec_lane *lane = &hostile.comm->lanes[0];
    for (int turn = 0; turn < 100000 && lane->unacknowledged < EXEC_SENDS_AHEAD_MAX; turn++) {
        hostile_turns(&hostile, 1);
    }
    hostile_turns(&hostile, 2 * MESSAGES);
    assert_int_equal(lane->unacknowledged, EXEC_SENDS_AHEAD_MAX);
    assert_in_range(lane->sent_elements / DATA_MESSAGE_BYTES, EXEC_SENDS_AHEAD_MAX,
                    EXEC_SENDS_AHEAD_MAX + 8); /* some are */
    assert_int_equal(hostile.failures, 0);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_are_charged_until_their_operation_ends),
        cmocka_unit_test(test_from_half_of_the_ceiling_on_one_slice_at_a_time),
        cmocka_unit_test(test_beyond_the_ceiling_the_communicator_fails),
        cmocka_unit_test(test_compressed_copies_are_charged),
        cmocka_unit_test(test_a_large_transfer_waits_for_acknowledgements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
