#include "tests/unit/comm/comm_ops.h"

/* Ranks that state wrong numbers of operations. A gap in the numbers means operations that went through
 * cells. */

static void form_with_cells(struct member *members[2])
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct comms_terms terms = {.name = "cells", .rank = rank, .size = 2, .takes_cells = true};
        members[rank] = join_as(&world, 0, &terms, 1000);
    }
    run(&world, 20 * TIME_MS);
    assert_formed(members[0]);
    assert_formed(members[1]);
    assert_true(comms_member_has_cells(members[0]->handle));
}

static void post_number(struct member *member, uint64_t number)
{
    post_well(member, &(struct comms_op){.terms.kind = OP_KIND_BARRIER, .number = number});
}

static void test_numbers_are_skipped(void **state)
{
    struct member *members[2];
    (void)state;
    world_start(&world, 1, 1, NULL);
    form_with_cells(members);
    for (uint64_t number = 5; number < 5000; number *= 10) {
        post_number(members[0], number);
        post_number(members[1], number);
        run(&world, TIME_MS);
        assert_int_equal(members[0]->completed, members[0]->posted);
        assert_int_equal(members[1]->completed, members[1]->posted);
    }
    world_stop(&world);
}

/* No rank uses cells while commd has an operation of it. A rank that says so does not make commd look through
 * all the numbers between. */
static void test_a_gap_among_pending_operations(void **state)
{
    struct member *members[2];
    (void)state;
    world_start(&world, 1, 1, NULL);
    form_with_cells(members);
    post_number(members[0], 5);
    post_number(members[0], UINT64_C(1) << 47);
    post_number(members[0], UINT64_MAX);
    for (uint64_t number = 5; number < 8; number++) { /* its second and third number are the next ones */
        post_number(members[1], number);
    }
    run(&world, TIME_MS);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(members[rank]->completed, 3);
        assert_int_equal(members[rank]->results[3].status, STATUS_OK);
    }
    world_stop(&world);
}

/* Ranks cannot skip to where the numbers would overflow. */
static void test_the_highest_numbers(void **state)
{
    const uint64_t step = UINT64_C(1) << 48, most = UINT64_C(1) << 62;
    struct member *members[2];
    (void)state;
    world_start(&world, 1, 1, NULL);
    form_with_cells(members);
    for (uint64_t number = step; number != 0 && number <= most + step; number += step) {
        post_number(members[0], number);
        post_number(members[1], number);
        settle(&world);
    }
    struct error error;
    struct comms_op broadcast = {.terms.kind = OP_KIND_BROADCAST,
                                 .terms.root_rank = 2,
                                 .terms.bucket_ops = 1,
                                 .number = UINT64_MAX - 1};
    assert_int_equal(post(members[0], &broadcast, &error), STATUS_INVALID_ARGUMENT);
    post_number(members[0], UINT64_MAX);
    post_number(members[1], 0); /* the refusal used up a number: it ends this one, too */
    post_number(members[1], 0);
    run(&world, TIME_MS);
    assert_int_equal(members[0]->completed, members[0]->posted);
    assert_int_equal(members[1]->completed, members[1]->posted);
    world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_are_skipped),
        cmocka_unit_test(test_a_gap_among_pending_operations),
        cmocka_unit_test(test_the_highest_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
