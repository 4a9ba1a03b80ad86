#include <malloc.h>

#include "tests/unit/comm/comm_ops.h"

/* Collectives that end on all ranks because one rank was refused or contradicted, whoever posts them, and
 * when. */

static size_t in_use(void)
{
    return mallinfo2().uordblks + mallinfo2().hblkhd;
}

static void post_barriers(struct member *member, unsigned count)
{
    struct error error;
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(post_barrier(member, 0, &error), STATUS_OK);
    }
}

static void on_last_completed(struct member *member, uint64_t seq)
{
    (void)seq;
    member->results[0] = member->results[OPS_MAX];
}

/* The operation beyond the most that can be pending ends with LIMIT on all ranks, and uses up its number. */
static void test_beyond_pending(void **state)
{
    (void)state;
    enum { SIZE = 4 };
    for (unsigned nodes = 1; nodes <= 2; nodes++) {
        for (uint32_t eager = 0; eager < SIZE; eager++) {
            struct member *members[SIZE];
            struct error error;
            world_start(&world, 2, 1, NULL);
            connect_all(&world);
            form_ops(members, nodes, SIZE, 0, "eager");
            post_barriers(members[eager], COMMS_PENDING_OPS_MAX);
            assert_int_equal(post_barrier(members[eager], 0, &error), STATUS_LIMIT);
            assert_non_null(strstr(error.text, "op 1025 on \"eager\""));
            assert_non_null(strstr(error.text, "at most 1024 operations pending, and op 1 has not ended"));
            run(&world, 20 * TIME_MS);
            for (uint32_t rank = 0; rank < SIZE; rank++) {
                if (rank != eager) {
                    post_barriers(members[rank], COMMS_PENDING_OPS_MAX);
                }
            }
            run(&world, TIME_S);
            for (uint32_t rank = 0; rank < SIZE; rank++) {
                assert_int_equal(members[rank]->completed, COMMS_PENDING_OPS_MAX);
                members[rank]->posted = members[rank]->completed = 0; /* results from 1 on */
                if (rank != eager) {
                    post_barriers(members[rank], 1);
                }
            }
            run(&world, 20 * TIME_MS);
            for (uint32_t rank = 0; rank < SIZE; rank++) {
                if (rank != eager) {
                    assert_int_equal(members[rank]->completed, 1);
                    assert_error(&members[rank]->results[1], STATUS_LIMIT, "and op 1 has not ended");
                }
                post_barriers(members[rank], 1);
            }
            run(&world, 20 * TIME_MS);
            for (uint32_t rank = 0; rank < SIZE; rank++) {
                assert_int_equal(members[rank]->completed, members[rank]->posted);
                assert_int_equal(members[rank]->results[members[rank]->posted].status, STATUS_OK);
                assert_int_equal(members[rank]->aborted_count, 0);
            }
            world_stop(&world);
        }
    }
}

/*
 * A rank posts more and more operations beyond those that may be pending. Each of them costs no memory, and
 * no message between nodes. Ranks that post later get LIMIT for each of them, and all ranks go on with the
 * next operation.
 */
static void test_many_refusals(void **state)
{
    (void)state;
    enum { SIZE = 4, REFUSED = 20000, MAX_BYTES = 65536 };
    struct member *members[SIZE];
    struct error error;
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    form_ops(members, 2, SIZE, 0, "many");
    for (uint32_t rank = 0; rank < 2; rank++) { /* one of each node */
        post_barriers(members[rank], COMMS_PENDING_OPS_MAX);
    }
    run(&world, 20 * TIME_MS);
    size_t before = in_use();
    for (unsigned i = 0; i < REFUSED; i++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_LIMIT);
        }
    }
    run(&world, 100 * TIME_MS);
    assert_in_range(in_use() - before, 0, MAX_BYTES);
    for (uint32_t rank = 2; rank < SIZE; rank++) {
        post_barriers(members[rank], COMMS_PENDING_OPS_MAX);
    }
    run(&world, TIME_S);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_int_equal(members[rank]->completed, COMMS_PENDING_OPS_MAX);
        members[rank]->posted = members[rank]->completed = 0;
    }
    for (unsigned left = REFUSED; left > 0;) {
        unsigned count = left < OPS_MAX ? left : OPS_MAX;
        for (uint32_t rank = 2; rank < SIZE; rank++) {
            members[rank]->posted = members[rank]->completed = 0;
            post_barriers(members[rank], count);
        }
        run(&world, TIME_MS);
        for (unsigned i = 1; i <= count; i++) {
            assert_error(&members[2]->results[i], STATUS_LIMIT, "");
            assert_error(&members[3]->results[i], STATUS_LIMIT, "");
        }
        left -= count;
    }
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        members[rank]->posted = members[rank]->completed = 0;
        post_barriers(members[rank], 1);
    }
    run(&world, 20 * TIME_MS);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_int_equal(members[rank]->results[1].status, STATUS_OK);
        assert_int_equal(members[rank]->aborted_count, 0);
    }
    world_stop(&world);
}

/* For a rank that posts later, commd keeps the texts of the last few verdicts, and the status of all. */
static void test_words_of_verdicts(void **state)
{
    (void)state;
    enum { SIZE = 3, VERDICTS = 400, MAX_BYTES = 16384 };
    struct member *members[SIZE];
    world_start(&world, 1, 1, NULL);
    form_ops(members, 1, SIZE, 0, "words");
    struct buffer buffer = buffer_new(4, 0, 0);
    size_t before = in_use();
    for (unsigned i = 0; i < VERDICTS; i++) {
        post_well(members[0], &(struct comms_op){.terms.kind = OP_KIND_BARRIER});
        post_well(members[1], &(struct comms_op){.terms.kind = OP_KIND_BROADCAST,
                                                 .terms.dtype = DTYPE_I32,
                                                 .terms.count_elements = 4,
                                                 .output = {buffer.memory, 0}});
        run(&world, TIME_MS);
        assert_int_equal(members[0]->completed, i + 1);
        assert_int_equal(members[1]->completed, i + 1);
    }
    assert_in_range(in_use() - before, 0, MAX_BYTES);
    struct member *late = members[2];
    late->on_completed = on_last_completed;
    for (unsigned i = 1; i <= VERDICTS; i++) {
        late->posted = late->completed = OPS_MAX - 1; /* the result is kept */
        post_barriers(late, 1);
        run(&world, TIME_MS);
        assert_error(&late->results[OPS_MAX], STATUS_MISMATCH,
                     i == VERDICTS ? "rank 1 (pid 101): broadcast of 4 i32"
                     : i == 1      ? "op 1 on \"words\" ended before this rank posted it"
                                   : "");
    }
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        members[rank]->posted = members[rank]->completed = 0;
        post_barriers(members[rank], 1);
    }
    run(&world, 20 * TIME_MS);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_int_equal(members[rank]->results[1].status, STATUS_OK);
    }
    leave_all(&world);
    buffer_free(&buffer);
    world_stop(&world);
}

/* A refused rank may leave. The other ranks hear of the refusal, and of nothing else. */
static void test_refused_leaves(void **state)
{
    (void)state;
    enum { SIZE = 2 };
    struct member *members[SIZE];
    struct error error;
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    form_ops(members, 2, SIZE, 0, "leaves");
    post_barriers(members[1], COMMS_PENDING_OPS_MAX);
    post_barriers(members[0], COMMS_PENDING_OPS_MAX);
    assert_int_equal(post_barrier(members[1], 0, &error), STATUS_LIMIT);
    run(&world, TIME_S);
    assert_int_equal(members[1]->completed, COMMS_PENDING_OPS_MAX);
    leave(members[1], COMMS_LEAVE_ORDERLY);
    members[0]->posted = members[0]->completed = 0;
    post_barriers(members[0], 1);
    run(&world, 20 * TIME_MS);
    assert_int_equal(members[0]->completed, 1);
    assert_error(&members[0]->results[1], STATUS_LIMIT, "rank 1 (pid 101, node b)");
    assert_int_equal(members[0]->aborted_count, 0);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beyond_pending),
        cmocka_unit_test(test_many_refusals),
        cmocka_unit_test(test_words_of_verdicts),
        cmocka_unit_test(test_refused_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
