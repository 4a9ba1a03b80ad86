#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/lib/internal.h"

/* Failures as data: what a program gets, and what a hostile commd can send. */

static void test_the_last_failure(void **state)
{
    (void)state;
    comm_failure_t failure = COMM_FAILURE_INIT;
    comm_failure_t known = failure_data(COMM_RANK_LOST, "barrier");
    known.seq = 17;
    known.rank_count = 2;
    known.ranks[0] = 5;
    known.ranks[1] = 9;
    known.pids[1] = -3;
    (void)error_repeat_failure(&known, "rank 5 is gone");
    assert_int_equal(comm_last_failure(&failure), 1);
    assert_int_equal(failure.result, COMM_RANK_LOST);
    assert_string_equal(failure.operation, "barrier");
    assert_int_equal(failure.seq, 17);
    assert_int_equal(failure.ranks[1], 9);
    assert_int_equal(failure.pids[1], -3);
    assert_string_equal(failure.text, "rank 5 is gone");
    assert_int_equal(failure.struct_size, sizeof failure);

    (void)error_within(COMM_RANK_LOST, "comm_init"); /* the data stay */
    assert_int_equal(comm_last_failure(&failure), 1);
    assert_int_equal(failure.rank_count, 2);
    assert_string_equal(failure.text, "comm_init: rank 5 is gone");

    (void)error_report(COMM_LIMIT, "another one");
    assert_int_equal(comm_last_failure(&failure), 1);
    assert_int_equal(failure.result, COMM_LIMIT);
    assert_int_equal(failure.rank_count, 0);
    assert_string_equal(failure.operation, "");
}

/* An older program has a shorter struct, a newer one a longer struct. */
static void test_structs_of_other_sizes(void **state)
{
    (void)state;
    struct {
        comm_failure_t known;
        uint64_t added;
    } longer;
    (void)error_report(COMM_LIMIT, "it is full");
    assert_int_equal(comm_last_failure(NULL), 0);
    memset(&longer, 0x55, sizeof longer);
    longer.known.struct_size = 0;
    assert_int_equal(comm_last_failure(&longer.known), 0);
    longer.known.struct_size = SIZE_MAX;
    assert_int_equal(comm_last_failure(&longer.known), 0);
    longer.known.struct_size = offsetof(comm_failure_t, seq);
    assert_int_equal(comm_last_failure(&longer.known), 1);
    assert_int_equal(longer.known.struct_size, offsetof(comm_failure_t, seq));
    assert_int_equal(longer.known.result, COMM_LIMIT);
    assert_int_equal(longer.known.seq, UINT64_C(0x5555555555555555)); /* beyond its end */
    longer.known.struct_size = sizeof longer;
    assert_int_equal(comm_last_failure(&longer.known), 1);
    assert_int_equal(longer.added, 0);
    assert_string_equal(longer.known.text, "it is full");
}

static void test_a_hostile_message(void **state)
{
    (void)state;
    uint32_t ranks[200];
    int32_t pids[200];
    char node[500];
    for (uint32_t i = 0; i < 200; i++) {
        ranks[i] = i * 3;
        pids[i] = (int32_t)(i * 7);
    }
    memset(node, 'n', sizeof node - 1);
    node[sizeof node - 1] = '\0';
    Commd__Client__Failure message = COMMD__CLIENT__FAILURE__INIT;
    message.kind = UINT32_MAX;
    message.seq = UINT64_MAX;
    message.rank_count = UINT32_MAX;
    message.n_ranks = 200;
    message.ranks = ranks;
    message.n_pids = 3;
    message.pids = pids;
    message.node = node;
    comm_failure_t failure = failure_from_message(&message);
    assert_string_equal(failure.operation, "");
    assert_int_equal(failure.ranks[COMM_FAILURE_RANKS_MAX - 1], 3 * (COMM_FAILURE_RANKS_MAX - 1));
    assert_int_equal(failure.pids[2], 14);
    assert_int_equal(failure.pids[3], 0);
    assert_int_equal(failure.rank_count, UINT32_MAX); /* more than are listed */
    assert_int_equal(strlen(failure.node), COMM_FAILURE_NODE_BYTES - 1);

    message.n_ranks = 2; /* a number of ranks that are not listed would be read as ranks */
    assert_int_equal(failure_from_message(&message).rank_count, 2);
    message.n_ranks = 0;
    message.kind = OP_KIND_ALL_REDUCE + 1;
    failure = failure_from_message(&message);
    assert_int_equal(failure.rank_count, 0);
    assert_string_equal(failure.operation, "all_reduce");
}

static void test_without_memory(void **state)
{
    (void)state;
    for (int result = COMM_OK; result < STATUS_COUNT; result++) {
        assert_int_equal(failure_plain((comm_result_t)result)->result, result);
        assert_string_equal(failure_plain((comm_result_t)result)->text,
                            comm_result_text((comm_result_t)result));
    }
    assert_int_equal(failure_plain((comm_result_t)1000)->result, COMM_INTERNAL);
}

static void test_long_texts(void **state)
{
    (void)state;
    char text[2 * ERROR_TEXT_BYTES];
    memset(text, 't', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    comm_failure_t data = failure_data(COMM_SYSTEM, "send");
    struct client_failure *failure = failure_new(&data, text);
    assert_non_null(failure);
    assert_int_equal(strlen(failure->data.text), ERROR_TEXT_BYTES - 1);
    free(failure);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_failure),  cmocka_unit_test(test_structs_of_other_sizes),
        cmocka_unit_test(test_a_hostile_message), cmocka_unit_test(test_without_memory),
        cmocka_unit_test(test_long_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
