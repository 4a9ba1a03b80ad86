#include "tests/unit/comm/comm_ops.h"

/* Operations that are done, refused, contradicted or seen. test_aborts.c: operations that are cut short. */

/* --- What is done --- */

static void test_results(void **state)
{
    (void)state;
    enum { SIZE = 5, COUNT = 37 };
    for (unsigned nodes = 1; nodes <= 3; nodes++) {
        struct member *members[SIZE];
        struct buffer inputs[SIZE], sums[SIZE], roots[SIZE];
        world_start(&world, 3, nodes, NULL);
        connect_all(&world);
        form_ops(members, nodes, SIZE, 0, "sums");
        for (uint32_t rank = 0; rank < SIZE; rank++) {
            inputs[rank] = buffer_new(COUNT, (int32_t)rank * 1000, 3 + (int32_t)rank);
            sums[rank] = buffer_new(COUNT, -1, 0);
            roots[rank] = buffer_new(COUNT, -1, 0);
            struct comms_op sum = {.terms.kind = OP_KIND_ALL_REDUCE,
                                   .terms.dtype = DTYPE_I32,
                                   .terms.reduce = REDUCE_SUM,
                                   .terms.count_elements = COUNT,
                                   .input = {inputs[rank].memory, 0},
                                   .output = {sums[rank].memory, 0}};
            struct comms_op root = {.terms.kind = OP_KIND_BROADCAST,
                                    .terms.dtype = DTYPE_I32,
                                    .terms.count_elements = COUNT - 1,
                                    .terms.root_rank = 3,
                                    .input = {rank == 3 ? inputs[3].memory : NULL, rank == 3 ? 4 : 0},
                                    .output = {roots[rank].memory, 0}};
            post_well(members[rank], &sum);
            post_well(members[rank], &root);
            post_well(members[rank], &(struct comms_op){.terms.kind = OP_KIND_BARRIER});
            assert_int_equal(members[rank]->completed, 0);
            run(&world, rank * TIME_MS);
        }
        run(&world, 100 * TIME_MS);
        assert_true(comms_idle(world.nodes[0].comms));
        for (uint32_t rank = 0; rank < SIZE; rank++) {
            assert_int_equal(members[rank]->completed, 3);
            for (uint64_t seq = 1; seq <= 3; seq++) {
                assert_int_equal(members[rank]->results[seq].status, STATUS_OK);
            }
            for (int32_t i = 0; i < COUNT; i++) {
                assert_int_equal(sums[rank].elements[i], 10000 + i * (3 * SIZE + 10));
                assert_int_equal(roots[rank].elements[i], i < COUNT - 1 ? 3000 + (i + 1) * 6 : -1);
            }
        }
        leave_all(&world);
        for (uint32_t rank = 0; rank < SIZE; rank++) {
            buffer_free(&inputs[rank]);
            buffer_free(&sums[rank]);
            buffer_free(&roots[rank]);
        }
        world_stop(&world);
    }
}

static void test_averages_are_of_all_ranks(void **state)
{
    (void)state;
    struct member *members[4];
    struct buffer buffers[4];
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    form_ops(members, 2, 4, 0, "mean");
    for (uint32_t rank = 0; rank < 4; rank++) {
        buffers[rank] = buffer_new(3, 100 * (int32_t)rank, 4);
        struct comms_op op = {.terms.kind = OP_KIND_ALL_REDUCE,
                              .terms.dtype = DTYPE_I32,
                              .terms.reduce = REDUCE_AVG,
                              .terms.count_elements = 3,
                              .input = {buffers[rank].memory, 0},
                              .output = {buffers[rank].memory, 0}};
        post_well(members[rank], &op);
    }
    run(&world, 100 * TIME_MS);
    for (uint32_t rank = 0; rank < 4; rank++) {
        for (int32_t i = 0; i < 3; i++) {
            assert_int_equal(buffers[rank].elements[i], 150 + 4 * i);
        }
    }
    leave_all(&world);
    for (uint32_t rank = 0; rank < 4; rank++) {
        buffer_free(&buffers[rank]);
    }
    world_stop(&world);
}

static void post_again(struct member *member, uint64_t seq)
{
    if (seq < 20) {
        struct error error;
        assert_int_equal(post_barrier(member, 0, &error), STATUS_OK);
    }
}

static void test_owners_post_from_within_their_callbacks(void **state)
{
    (void)state;
    struct member *members[5];
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    form_ops(members, 2, 5, 0, "chain");
    for (uint32_t rank = 0; rank < 5; rank++) {
        struct error error;
        members[rank]->on_completed = post_again;
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
    }
    run(&world, TIME_S);
    for (uint32_t rank = 0; rank < 5; rank++) {
        assert_int_equal(members[rank]->completed, 20);
    }
    world_stop(&world);
}

/* --- What is refused at once --- */

static void test_bad_calls(void **state)
{
    (void)state;
    struct member *members[2];
    struct error error;
    world_start(&world, 1, 1, NULL);
    struct member *early = join(&world, 0, "early", 0, 2);
    assert_int_equal(post_barrier(early, 0, &error), STATUS_IN_PROGRESS);
    form_ops(members, 1, 2, 0, "bad");
    struct buffer buffer = buffer_new(4, 0, 1); /* 20 bytes */
    const struct comms_op good = {.terms.kind = OP_KIND_ALL_REDUCE,
                                  .terms.dtype = DTYPE_I32,
                                  .terms.reduce = REDUCE_SUM,
                                  .terms.count_elements = 4,
                                  .input = {buffer.memory, 0},
                                  .output = {buffer.memory, 0}};
    struct comms_op op = good;
    op.terms.dtype = DTYPE_F32;
    op.terms.reduce = REDUCE_BXOR;
    assert_int_equal(post(members[0], &op, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.text, "bxor of f32"));
    op = good;
    op.input.memory = NULL;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "needs an input, and there is none"));
    op = good;
    op.output.offset_bytes = 5;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "output: 16 bytes at offset 5"));
    op = good;
    op.terms.count_elements = UINT64_MAX / 2;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    op = good;
    op.terms.kind = OP_KIND_BROADCAST;
    op.terms.root_rank = 2;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "the root is rank 2, but there are 2 ranks"));
    /* None of the refused calls used up a number or did harm. */
    for (unsigned i = 0; i < COMMS_PENDING_OPS_MAX; i++) {
        assert_int_equal(post_barrier(members[0], 0, &error), STATUS_OK);
    }
    for (unsigned i = 0; i < COMMS_PENDING_OPS_MAX; i++) {
        assert_int_equal(post_barrier(members[1], 0, &error), STATUS_OK);
    }
    run(&world, 10 * TIME_MS);
    assert_int_equal(members[0]->completed, COMMS_PENDING_OPS_MAX);
    assert_int_equal(members[1]->completed, COMMS_PENDING_OPS_MAX);
    leave_all(&world);
    buffer_free(&buffer);
    world_stop(&world);
}

/* --- Contradictions: the operation ends with the same words everywhere, the communicator goes on --- */

static void assert_op_ended(const struct member *member, enum status status, const char *text)
{
    assert_int_equal(member->completed, member->posted);
    assert_error(&member->results[member->posted], status, text);
    assert_int_equal(member->aborted_count, 0);
}

/* A whole bucket runs with the kind, type and operator of its first operation. So counts of a smaller type,
 * or of a kind with smaller buffers, would reach beyond the buffers. */
static void test_a_bucket_is_of_one_kind_type_and_operator(void **state)
{
    (void)state;
    struct member *members[1];
    struct error error;
    world_start(&world, 1, 1, NULL);
    form_ops(members, 1, 1, 0, "bucket");
    struct buffer buffer = buffer_new(4, 0, 1);
    struct comms_op op = {.terms = {.kind = OP_KIND_ALL_REDUCE,
                                    .dtype = DTYPE_I32,
                                    .reduce = REDUCE_SUM,
                                    .count_elements = 1,
                                    .bucket_ops = 2},
                          .input = {buffer.memory, 0},
                          .output = {buffer.memory, 0}};
    post_well(members[0], &op);
    op.terms.bucket_index = 1;
    op.terms.dtype = DTYPE_U8;
    op.terms.count_elements = 16;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    op.terms.dtype = DTYPE_I32;
    op.terms.count_elements = 3;
    op.terms.reduce = REDUCE_MAX;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    op.terms.reduce = REDUCE_SUM;
    op.terms.kind = OP_KIND_REDUCE_SCATTER;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    op.terms.kind = OP_KIND_ALL_REDUCE;
    post_well(members[0], &op);
    run(&world, TIME_S);
    assert_int_equal(members[0]->completed, 2);
    assert_int_equal(members[0]->results[2].status, STATUS_OK);
    world_stop(&world);
    buffer_free(&buffer);
}

static void test_mismatch_on_one_node(void **state)
{
    (void)state;
    struct member *members[4];
    struct buffer buffers[2] = {buffer_new(10, 0, 1), buffer_new(10, 0, 1)};
    struct error error;
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    form_ops(members, 2, 4, 0, "odd");
    assert_int_equal(post_barrier(members[1], 0, &error), STATUS_OK);
    post_well(members[0], &(struct comms_op){.terms.kind = OP_KIND_ALL_REDUCE,
                                             .terms.dtype = DTYPE_F32,
                                             .terms.reduce = REDUCE_SUM,
                                             .terms.count_elements = 10,
                                             .input = {buffers[0].memory, 0},
                                             .output = {buffers[0].memory, 0}});
    post_well(members[2], &(struct comms_op){.terms.kind = OP_KIND_BROADCAST,
                                             .terms.dtype = DTYPE_I32,
                                             .terms.count_elements = 10,
                                             .terms.root_rank = 0,
                                             .output = {buffers[1].memory, 0}});
    run(&world, 10 * TIME_MS);
    assert_int_equal(post_barrier(members[3], 0, &error), STATUS_OK);
    run(&world, 10 * TIME_MS);
    for (unsigned rank = 0; rank < 4; rank++) {
        assert_op_ended(members[rank], STATUS_MISMATCH,
                        "op 1 on \"odd\": rank 0 (pid 100): all_reduce of 10 f32, sum; rank 2 (pid 102): "
                        "broadcast of 10 i32 from rank 0");
        assert_string_equal(members[rank]->results[1].text, members[0]->results[1].text);
    }
    for (unsigned rank = 0; rank < 4; rank++) {
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
    }
    run(&world, 10 * TIME_MS);
    for (unsigned rank = 0; rank < 4; rank++) {
        assert_int_equal(members[rank]->completed, 2);
        assert_int_equal(members[rank]->results[2].status, STATUS_OK);
    }
    leave_all(&world);
    buffer_free(&buffers[0]);
    buffer_free(&buffers[1]);
    world_stop(&world);
}

static void test_mismatch_between_nodes(void **state)
{
    (void)state;
    struct member *members[2];
    struct buffer buffers[2] = {buffer_new(10, 0, 1), buffer_new(10, 0, 1)};
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    form_ops(members, 2, 2, 0, "odd");
    for (uint32_t rank = 0; rank < 2; rank++) {
        post_well(members[rank], &(struct comms_op){.terms.kind = OP_KIND_ALL_REDUCE,
                                                    .terms.dtype = DTYPE_I32,
                                                    .terms.reduce = rank == 0 ? REDUCE_SUM : REDUCE_MAX,
                                                    .terms.count_elements = 10,
                                                    .input = {buffers[rank].memory, 0},
                                                    .output = {buffers[rank].memory, 0}});
    }
    run(&world, 400 * TIME_MS);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_op_ended(members[rank], STATUS_MISMATCH, "max");
        assert_op_ended(members[rank], STATUS_MISMATCH, "sum");
        assert_op_ended(members[rank], STATUS_MISMATCH, "rank 0 (pid 100, node ");
        assert_op_ended(members[rank], STATUS_MISMATCH, "rank 1 (pid 101, node ");
    }
    leave_all(&world);
    buffer_free(&buffers[0]);
    buffer_free(&buffers[1]);
    world_stop(&world);
}

/* --- What is seen --- */

struct seen {
    unsigned count;
    struct comms_op_info info;
    char arrived[64], missing[64], waits[128];
};

static bool see(void *context, const struct comms_op_info *info)
{
    struct seen *seen = context;
    seen->count++;
    seen->info = *info;
    snprintf(seen->arrived, sizeof seen->arrived, "%s", info->arrived_ranks);
    snprintf(seen->missing, sizeof seen->missing, "%s", info->missing_ranks);
    snprintf(seen->waits, sizeof seen->waits, "%s", info->waiting_for);
    return true;
}

static void test_what_is_seen(void **state)
{
    (void)state;
    struct member *members[4];
    struct error error;
    struct seen seen = {0};
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    form_ops(members, 2, 4, 0, "look");
    assert_int_equal(post_barrier(members[2], 3000, &error), STATUS_OK);
    run(&world, 900 * TIME_MS);
    comms_visit_ops(world.nodes[0].comms, world.now_ns, see, &seen);
    comms_visit_ops(world.nodes[1].comms, world.now_ns, see, &seen);
    assert_int_equal(seen.count, 1);
    assert_string_equal(seen.arrived, "2 (pid 102)");
    assert_string_equal(seen.missing, "0 (pid 100)");
    assert_int_equal(seen.info.age_ns, 900 * TIME_MS);
    assert_int_equal(seen.info.deadline_in_ns, 2100 * TIME_MS);
    assert_false(seen.info.running);
    assert_int_equal(seen.info.terms.kind, OP_KIND_BARRIER);
    assert_int_equal(post_barrier(members[0], 0, &error), STATUS_OK);
    run(&world, 10 * TIME_MS);
    comms_visit_ops(world.nodes[0].comms, world.now_ns, see, &seen);
    assert_int_equal(seen.count, 2);
    assert_true(seen.info.running);
    assert_string_equal(seen.missing, "");
    run(&world, 400 * TIME_MS); /* the missing ranks of other nodes are known after a second */
    comms_visit_ops(world.nodes[0].comms, world.now_ns, see, &seen);
    assert_string_equal(seen.missing, "ranks 1 (pid 101), 3 (pid 103) of node b");
    seen.count = 2;
    assert_non_null(strstr(seen.waits, "b"));
    assert_int_equal(post_barrier(members[1], 0, &error), STATUS_OK);
    assert_int_equal(post_barrier(members[3], 0, &error), STATUS_OK);
    run(&world, 10 * TIME_MS);
    comms_visit_ops(world.nodes[0].comms, world.now_ns, see, &seen);
    assert_int_equal(seen.count, 2);
    assert_int_equal(members[0]->completed, 1);
    world_stop(&world);
}

/* comms_visit_ops shows messages, too: the oldest ones of each rank. */
static void test_messages_are_seen(void **state)
{
    (void)state;
    struct member *members[4];
    struct seen seen = {0};
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    form_ops(members, 2, 4, 0, "look");
    struct buffer buffer = buffer_new(10, 1, 1);
    struct comms_op receive = {.terms.kind = OP_KIND_RECEIVE,
                               .terms.dtype = DTYPE_I32,
                               .terms.count_elements = 10,
                               .peer_rank = 3,
                               .tag = 7,
                               .timeout_ms = 3000,
                               .output = {.memory = buffer.memory}};
    for (unsigned i = 0; i < COMMS_VISIT_MESSAGES_MAX + 5; i++) {
        post_well(members[2], &receive);
    }
    run(&world, TIME_S);
    comms_visit_ops(world.nodes[0].comms, world.now_ns, see, &seen);
    assert_int_equal(seen.count, COMMS_VISIT_MESSAGES_MAX);
    assert_string_equal(seen.arrived, "2 (pid 102)");
    assert_string_equal(seen.waits, "recv from rank 3 (node b), tag 7: nothing has come");
    assert_int_equal(seen.info.terms.kind, OP_KIND_RECEIVE);
    assert_int_equal(seen.info.terms.count_elements, 10);
    assert_int_equal(seen.info.age_ns, TIME_S);
    assert_int_equal(seen.info.deadline_in_ns, 2 * TIME_S);
    leave_all(&world);
    run(&world, 10 * TIME_MS);
    buffer_free(&buffer);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results),
        cmocka_unit_test(test_averages_are_of_all_ranks),
        cmocka_unit_test(test_owners_post_from_within_their_callbacks),
        cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_a_bucket_is_of_one_kind_type_and_operator),
        cmocka_unit_test(test_mismatch_on_one_node),
        cmocka_unit_test(test_mismatch_between_nodes),
        cmocka_unit_test(test_what_is_seen),
        cmocka_unit_test(test_messages_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
