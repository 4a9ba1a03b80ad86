#include "tests/unit/req/req_nodes.h"

#include "proto/types.h"

static struct world world; /* large */

/* --- Help --- */

/* Ranks round the nodes, formed. */
static void form_ops(struct member **members, unsigned nodes, uint32_t size, uint64_t op_timeout_ms,
                     const char *name)
{
    for (uint32_t rank = 0; rank < size; rank++) {
        struct req_terms terms = {
            .name = name, .rank = rank, .size = size, .op_timeout_ms = op_timeout_ms, .slice_bytes = 64};
        members[rank] = join_as(&world, rank % nodes, &terms, 1000);
    }
    run(&world, 20 * TIME_MS);
    for (uint32_t rank = 0; rank < size; rank++) {
        assert_formed(members[rank]);
    }
}

struct buffer {
    int32_t *elements;
    struct dev_memory *memory;
    uint32_t count;
};

static struct buffer buffer_new(uint32_t count, int32_t first, int32_t step)
{
    struct error error;
    struct buffer buffer = {.elements = malloc((count + 1) * sizeof(int32_t)), .count = count};
    assert_non_null(buffer.elements);
    for (uint32_t i = 0; i < count; i++) {
        buffer.elements[i] = first + (int32_t)i * step;
    }
    assert_int_equal(dev_memory_wrap(buffer.elements, (count + 1) * sizeof(int32_t), &buffer.memory, &error),
                     STATUS_OK);
    return buffer;
}

static void buffer_free(struct buffer *buffer)
{
    dev_memory_unref(buffer->memory);
    free(buffer->elements);
}

static enum status post(struct member *member, const struct req_op *op, struct error *error)
{
    struct req_op numbered = *op;
    numbered.ticket = member->posted + 1;
    member->calling = true;
    enum status status = req_submit(member->handle, &numbered, world.now_ns, error);
    member->calling = false;
    if (status == STATUS_OK) {
        member->posted++;
    } else {
        assert_int_equal(error->status, status);
    }
    return status;
}

static void post_well(struct member *member, const struct req_op *op)
{
    struct error error;
    if (post(member, op, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
}

static void assert_ended(const struct member *member, enum status status, const char *text)
{
    assert_int_equal(member->completed, member->posted);
    if (member->posted > 0) {
        assert_error(&member->results[member->posted], status, text);
    }
    assert_int_equal(member->aborted_count, 1);
    assert_error(&member->aborted, status, text);
}

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
            struct req_op sum = {.kind = OP_KIND_ALL_REDUCE,
                                 .dtype = DTYPE_I32,
                                 .reduce = REDUCE_SUM,
                                 .count_elements = COUNT,
                                 .input = {inputs[rank].memory, 0},
                                 .output = {sums[rank].memory, 0}};
            struct req_op root = {.kind = OP_KIND_BROADCAST,
                                  .dtype = DTYPE_I32,
                                  .count_elements = COUNT - 1,
                                  .root_rank = 3,
                                  .input = {rank == 3 ? inputs[3].memory : NULL, rank == 3 ? 4 : 0},
                                  .output = {roots[rank].memory, 0}};
            post_well(members[rank], &sum);
            post_well(members[rank], &root);
            post_well(members[rank], &(struct req_op){.kind = OP_KIND_BARRIER});
            assert_int_equal(members[rank]->completed, 0);
            run(&world, rank * TIME_MS);
        }
        run(&world, 100 * TIME_MS);
        assert_true(req_idle(world.nodes[0].req));
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
        struct req_op op = {.kind = OP_KIND_ALL_REDUCE,
                            .dtype = DTYPE_I32,
                            .reduce = REDUCE_AVG,
                            .count_elements = 3,
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
    const struct req_op good = {.kind = OP_KIND_ALL_REDUCE,
                                .dtype = DTYPE_I32,
                                .reduce = REDUCE_SUM,
                                .count_elements = 4,
                                .input = {buffer.memory, 0},
                                .output = {buffer.memory, 0}};
    struct req_op op = good;
    op.reduce = REDUCE_PREMUL_SUM;
    assert_int_equal(post(members[0], &op, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.text, "premul_sum of i32"));
    op = good;
    op.input.memory = NULL;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "needs an input, and there is none"));
    op = good;
    op.output.offset_bytes = 5;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "output: 16 bytes at offset 5"));
    op = good;
    op.count_elements = UINT64_MAX / 2;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    op = good;
    op.kind = OP_KIND_BROADCAST;
    op.root_rank = 2;
    assert_int_equal(post(members[0], &op, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "root 2 of 2"));
    /* None of them took a number, nor hurt. */
    for (unsigned i = 0; i < REQ_PENDING_OPS_MAX; i++) {
        assert_int_equal(post_barrier(members[0], 0, &error), STATUS_OK);
    }
    assert_int_equal(post_barrier(members[0], 0, &error), STATUS_LIMIT);
    for (unsigned i = 0; i < REQ_PENDING_OPS_MAX; i++) {
        assert_int_equal(post_barrier(members[1], 0, &error), STATUS_OK);
    }
    run(&world, 10 * TIME_MS);
    assert_int_equal(members[0]->completed, REQ_PENDING_OPS_MAX);
    assert_int_equal(members[1]->completed, REQ_PENDING_OPS_MAX);
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
    post_well(members[0], &(struct req_op){.kind = OP_KIND_ALL_REDUCE,
                                           .dtype = DTYPE_F32,
                                           .reduce = REDUCE_SUM,
                                           .count_elements = 10,
                                           .input = {buffers[0].memory, 0},
                                           .output = {buffers[0].memory, 0}});
    post_well(members[2], &(struct req_op){.kind = OP_KIND_BROADCAST,
                                           .dtype = DTYPE_I32,
                                           .count_elements = 10,
                                           .root_rank = 0,
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
        post_well(members[rank], &(struct req_op){.kind = OP_KIND_ALL_REDUCE,
                                                  .dtype = DTYPE_I32,
                                                  .reduce = rank == 0 ? REDUCE_SUM : REDUCE_MAX,
                                                  .count_elements = 10,
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

/* --- Deadlines --- */

static void test_deadline_names_who_is_late(void **state)
{
    (void)state;
    struct member *members[6];
    struct error error;
    world_start(&world, 3, 1, NULL);
    connect_all(&world);
    form_ops(members, 3, 6, 5000, "slow");
    uint64_t begin_ns = world.now_ns;
    for (uint32_t rank = 0; rank < 6; rank++) {
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
        if (rank != 5) {
            assert_int_equal(post_barrier(members[rank], rank == 1 ? 2000 : 0, &error), STATUS_OK);
        }
    }
    run(&world, 1999 * TIME_MS);
    for (uint32_t rank = 0; rank < 6; rank++) {
        assert_int_equal(members[rank]->completed, 1);
    }
    run(&world, 5 * TIME_S);
    for (uint32_t rank = 0; rank < 6; rank++) {
        assert_int_equal(members[rank]->aborted_count, 1);
        assert_int_equal(members[rank]->aborted.status, STATUS_TIMED_OUT);
        assert_string_equal(members[rank]->aborted.text, members[0]->aborted.text);
        assert_int_equal(members[rank]->completed, members[rank]->posted);
        if (rank != 5) {
            assert_error(&members[rank]->results[2], STATUS_TIMED_OUT,
                         "op 2 barrier on \"slow\": not done within 2000 ms; ");
            assert_true(members[rank]->completed_ns >= begin_ns + 2000 * TIME_MS);
            assert_true(members[rank]->completed_ns <= begin_ns + 2100 * TIME_MS);
        }
    }
    leave_all(&world);
    /* All with the same deadline: the node that knows who is late speaks first. */
    form_ops(members, 3, 6, 1000, "slow");
    for (uint32_t rank = 0; rank < 5; rank++) {
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
    }
    run(&world, 2 * TIME_S);
    for (uint32_t rank = 0; rank < 6; rank++) {
        assert_ended(members[rank], STATUS_TIMED_OUT,
                     "op 1 barrier on \"slow\": not done within 1000 ms; rank 5 (pid 105) of node c has not "
                     "posted it");
    }
    world_stop(&world);
}

/* --- Leaving --- */

static void test_leaving_in_order(void **state)
{
    (void)state;
    struct member *members[4];
    struct error error;
    for (unsigned local = 0; local < 2;
         local++) { /* the one left behind is on the same node, or on another */
        world_start(&world, 2, 1, NULL);
        connect_all(&world);
        form_ops(members, 2, 4, 0, "leave");
        for (uint32_t rank = 0; rank < 4; rank++) {
            assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
        }
        run(&world, 10 * TIME_MS);
        leave(members[2], REQ_LEAVE_ORDERLY);
        run(&world, 10 * TIME_MS);
        unsigned late = local == 0 ? 1 : 0;
        assert_int_equal(members[late]->aborted_count, 0);
        assert_int_equal(post_barrier(members[late], 0, &error), STATUS_OK);
        run(&world, 10 * TIME_MS);
        for (uint32_t rank = 0; rank < 4; rank++) {
            if (rank != 2) {
                assert_int_equal(members[rank]->aborted_count, 1);
                assert_error(&members[rank]->aborted, STATUS_RANK_LOST,
                             "\"leave\": rank 2 (node a) has left after op 1");
            }
        }
        assert_int_equal(members[late]->completed, 2);
        world_stop(&world);
    }
}

static void test_leaving_before_an_operation_is_done(void **state)
{
    (void)state;
    struct member *members[3];
    struct error error;
    world_start(&world, 3, 1, NULL);
    connect_all(&world);
    form_ops(members, 3, 3, 0, "early");
    assert_int_equal(post_barrier(members[0], 0, &error), STATUS_OK);
    assert_int_equal(post_barrier(members[1], 0, &error), STATUS_OK);
    run(&world, 10 * TIME_MS);
    leave(members[1], REQ_LEAVE_ORDERLY);
    run(&world, 10 * TIME_MS);
    assert_ended(members[0], STATUS_ABORTED,
                 "\"early\": rank 1 (pid 101) of node b left before op 1 was done");
    assert_ended(members[2], STATUS_ABORTED, "rank 1 (pid 101) of node b left");
    world_stop(&world);
}

/* A rank posts what a rank of its node, gone since, had not. */
static void test_posting_what_one_that_left_will_not(void **state)
{
    (void)state;
    struct member *members[2];
    struct error error;
    world_start(&world, 1, 1, NULL);
    form_ops(members, 1, 2, 0, "alone");
    assert_int_equal(post_barrier(members[0], 0, &error), STATUS_OK);
    leave(members[1], REQ_LEAVE_ORDERLY);
    run(&world, TIME_MS);
    assert_ended(members[0], STATUS_RANK_LOST, "rank 1 (node a) has left after op 0");
    world_stop(&world);
}

static void test_a_process_is_lost(void **state)
{
    (void)state;
    for (unsigned posted = 0; posted < 2; posted++) {
        struct member *members[5];
        struct error error;
        world_start(&world, 3, 1 + posted, NULL);
        connect_all(&world);
        form_ops(members, 3, 5, 0, "lost");
        for (uint32_t rank = 0; posted && rank < 4; rank++) {
            assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
        }
        run(&world, TIME_MS);
        leave(members[3], REQ_LEAVE_LOST);
        run(&world, 5 * TIME_MS);
        for (uint32_t rank = 0; rank < 5; rank++) {
            if (rank != 3) {
                assert_ended(members[rank], STATUS_RANK_LOST,
                             "\"lost\": the process of rank 3 (pid 103) of node a is gone");
                assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_RANK_LOST);
            }
        }
        leave_all(&world);
        form_ops(members, 3, 5, 0, "lost"); /* the name is free */
        world_stop(&world);
    }
}

/* Buffers stay referenced until nobody uses them: the process goes in the middle of its operation. */
static void test_memory_outlives_its_owner(void **state)
{
    (void)state;
    enum { COUNT = 200000 };
    static const struct mem_conditions narrow = {.delay_ns = 100 * TIME_US, .bandwidth_bytes_s = 10000000};
    struct member *members[2];
    struct buffer buffers[2];
    world_start(&world, 2, 1, &narrow);
    connect_all(&world);
    for (uint32_t rank = 0; rank < 2; rank++) {
        members[rank] = join(&world, rank, "big", rank, 2);
        buffers[rank] = buffer_new(COUNT, (int32_t)rank, 1);
    }
    run(&world, 20 * TIME_MS);
    for (uint32_t rank = 0; rank < 2; rank++) {
        post_well(members[rank], &(struct req_op){.kind = OP_KIND_ALL_REDUCE,
                                                  .dtype = DTYPE_I32,
                                                  .reduce = REDUCE_SUM,
                                                  .count_elements = COUNT,
                                                  .input = {buffers[rank].memory, 0},
                                                  .output = {buffers[rank].memory, 0}});
    }
    run(&world, 10 * TIME_MS);
    assert_int_equal(members[0]->completed, 0);
    assert_false(req_idle(world.nodes[0].req));
    leave(members[0], REQ_LEAVE_LOST);
    dev_memory_unref(buffers[0].memory);
    buffers[0].memory = NULL;
    run(&world, TIME_S);
    assert_ended(members[1], STATUS_RANK_LOST, "rank 0 (pid 100) of node a is gone");
    assert_int_equal(comm_count(&world, 0), 0);
    leave_all(&world);
    buffer_free(&buffers[0]);
    buffer_free(&buffers[1]);
    world_stop(&world);
}

/* --- By hand, and nodes --- */

static void test_aborted_by_hand(void **state)
{
    (void)state;
    struct member *members[6], *other[2];
    struct error error, cause = {.status = STATUS_ABORTED, .text = "aborted by the operator"};
    world_start(&world, 3, 1, NULL);
    connect_all(&world);
    form_ops(members, 3, 6, 0, "hand");
    form_ops(other, 2, 2, 0, "other");
    for (uint32_t rank = 0; rank < 5; rank++) {
        for (unsigned i = 0; i < 5; i++) {
            assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
        }
    }
    run(&world, 5 * TIME_MS);
    assert_int_equal(req_abort(world.nodes[1].req, "hand", &cause, world.now_ns), STATUS_OK);
    assert_int_equal(req_abort(world.nodes[1].req, "hand", &cause, world.now_ns), STATUS_NOT_FOUND);
    assert_int_equal(members[1]->aborted_count, 0); /* told later */
    run(&world, 5 * TIME_MS);
    for (uint32_t rank = 0; rank < 6; rank++) {
        assert_ended(members[rank], STATUS_ABORTED, "aborted by the operator");
        for (uint64_t seq = 1; seq <= members[rank]->posted; seq++) {
            assert_string_equal(members[rank]->results[seq].text, "aborted by the operator");
        }
    }
    assert_int_equal(post_barrier(other[0], 0, &error), STATUS_OK);
    assert_int_equal(post_barrier(other[1], 0, &error), STATUS_OK);
    run(&world, 5 * TIME_MS);
    assert_int_equal(other[0]->completed, 1);
    assert_int_equal(other[1]->aborted_count, 0);
    cause.status = STATUS_SHUTTING_DOWN;
    req_abort_all(world.nodes[0].req, &cause, world.now_ns);
    run(&world, 5 * TIME_MS);
    assert_int_equal(other[1]->aborted.status, STATUS_SHUTTING_DOWN);
    world_stop(&world);
}

static void test_a_lost_node_and_its_survivors(void **state)
{
    (void)state;
    struct member *members[6], *survivors[4], *apart[2];
    struct error error;
    world_start(&world, 4, 1, NULL);
    connect_all(&world);
    form_ops(members, 3, 6, 0, "cluster");
    apart[0] = join(&world, 0, "apart", 0, 2);
    apart[1] = join(&world, 3, "apart", 1, 2);
    run(&world, 10 * TIME_MS);
    for (uint32_t rank = 0; rank < 6; rank++) {
        if (rank % 3 != 2) {
            assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
        }
    }
    run(&world, 10 * TIME_MS);
    uint64_t killed_ns = world.now_ns;
    node_kill(&world, 2);
    run(&world, 3 * TIME_S);
    for (uint32_t rank = 0; rank < 6; rank++) {
        if (rank % 3 != 2) {
            assert_ended(members[rank], STATUS_NODE_LOST, "node c lost: no heartbeat answered for 2");
            assert_string_equal(members[rank]->aborted.text, members[0]->aborted.text);
            assert_true(members[rank]->completed_ns - killed_ns <= 2900 * TIME_MS);
        }
    }
    assert_int_equal(apart[0]->aborted_count + apart[1]->aborted_count, 0);
    form_ops(survivors, 2, 4, 0, "cluster");
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(post_barrier(survivors[rank], 0, &error), STATUS_OK);
    }
    run(&world, 10 * TIME_MS);
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(survivors[rank]->completed, 1);
        assert_int_equal(survivors[rank]->results[1].status, STATUS_OK);
    }
    world_stop(&world);
}

/* --- What is seen --- */

struct seen {
    unsigned count;
    struct req_op_info info;
    char arrived[64], missing[64], waits[128];
};

static bool see(void *context, const struct req_op_info *info)
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
    run(&world, TIME_S);
    req_visit_ops(world.nodes[0].req, world.now_ns, see, &seen);
    req_visit_ops(world.nodes[1].req, world.now_ns, see, &seen);
    assert_int_equal(seen.count, 1);
    assert_string_equal(seen.arrived, "2 (pid 102)");
    assert_string_equal(seen.missing, "0 (pid 100)");
    assert_int_equal(seen.info.age_ns, TIME_S);
    assert_int_equal(seen.info.deadline_in_ns, 2 * TIME_S);
    assert_false(seen.info.running);
    assert_int_equal(seen.info.kind, OP_KIND_BARRIER);
    assert_int_equal(post_barrier(members[0], 0, &error), STATUS_OK);
    run(&world, 10 * TIME_MS);
    req_visit_ops(world.nodes[0].req, world.now_ns, see, &seen);
    assert_int_equal(seen.count, 2);
    assert_true(seen.info.running);
    assert_string_equal(seen.missing, "");
    assert_non_null(strstr(seen.waits, "b"));
    assert_int_equal(post_barrier(members[1], 0, &error), STATUS_OK);
    assert_int_equal(post_barrier(members[3], 0, &error), STATUS_OK);
    run(&world, 10 * TIME_MS);
    req_visit_ops(world.nodes[0].req, world.now_ns, see, &seen);
    assert_int_equal(seen.count, 2);
    assert_int_equal(members[0]->completed, 1);
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
        cmocka_unit_test(test_mismatch_on_one_node),
        cmocka_unit_test(test_mismatch_between_nodes),
        cmocka_unit_test(test_deadline_names_who_is_late),
        cmocka_unit_test(test_leaving_in_order),
        cmocka_unit_test(test_leaving_before_an_operation_is_done),
        cmocka_unit_test(test_posting_what_one_that_left_will_not),
        cmocka_unit_test(test_a_process_is_lost),
        cmocka_unit_test(test_memory_outlives_its_owner),
        cmocka_unit_test(test_aborted_by_hand),
        cmocka_unit_test(test_a_lost_node_and_its_survivors),
        cmocka_unit_test(test_what_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
