#include "tests/unit/comm/comm_ops.h"

/* Operations that end early: by a deadline, by a rank that leaves or is lost, by an administrator, by a lost
 * node. */

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
    for (uint32_t rank = 0; rank < 5; rank++) {
        assert_error(&members[rank]->results[2], STATUS_TIMED_OUT,
                     "op 2 barrier on \"slow\": not done within 2000 ms; ");
        assert_string_equal(members[rank]->results[2].text, members[0]->results[2].text);
        assert_true(members[rank]->completed_ns >= begin_ns + 2000 * TIME_MS);
        assert_true(members[rank]->completed_ns <= begin_ns + 2100 * TIME_MS);
    }
    /* Only that operation ends. A rank that posts it later gets the same text, and the next operation
     * succeeds. */
    assert_int_equal(post_barrier(members[5], 0, &error), STATUS_OK);
    run(&world, 10 * TIME_MS);
    assert_string_equal(members[5]->results[2].text, members[0]->results[2].text);
    for (uint32_t rank = 0; rank < 6; rank++) {
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
    }
    run(&world, 10 * TIME_MS);
    for (uint32_t rank = 0; rank < 6; rank++) {
        assert_int_equal(members[rank]->completed, 3);
        assert_int_equal(members[rank]->results[3].status, STATUS_OK);
        assert_int_equal(members[rank]->aborted_count, 0);
    }
    leave_all(&world);
    /* All ranks have the same deadline. The node that knows who is late gives its verdict first. */
    form_ops(members, 3, 6, 1000, "slow");
    for (uint32_t rank = 0; rank < 5; rank++) {
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
    }
    run(&world, 2 * TIME_S);
    for (uint32_t rank = 0; rank < 5; rank++) {
        assert_error(&members[rank]->results[1], STATUS_TIMED_OUT,
                     "op 1 barrier on \"slow\": not done within 1000 ms; rank 5 (pid 105) of node c has not "
                     "posted it");
        assert_int_equal(members[rank]->aborted_count, 0);
    }
    world_stop(&world);
}

/* Ranks of several nodes are missing. On every node, the text names all of them, with their processes. */
static void test_deadline_names_who_is_late_on_all_nodes(void **state)
{
    (void)state;
    struct member *members[6];
    struct error error;
    world_start(&world, 3, 1, NULL);
    connect_all(&world);
    form_ops(members, 3, 6, 0, "slow");
    for (unsigned round = 1; round <= 2; round++) { /* with a long deadline, and with a short one */
        for (uint32_t rank = 0; rank < 6; rank++) {
            if (rank != 1 && rank != 4 && rank != 5) {
                assert_int_equal(post_barrier(members[rank], round == 1 ? 4000 : 400, &error), STATUS_OK);
            }
        }
        run(&world, 5 * TIME_S);
        for (uint32_t rank = 0; rank < 4; rank++) {
            const struct error *result = &members[rank]->results[round];
            if (rank != 1) {
                assert_error(result, STATUS_TIMED_OUT,
                             round == 1 ? "op 1 barrier on \"slow\"" : "op 2 barrier");
                assert_non_null(strstr(result->text, "ranks 1 (pid 101), 4 (pid 104) of node b"));
                assert_non_null(strstr(result->text, "rank 5 (pid 105) of node c"));
                assert_non_null(strstr(result->text, "have not posted it"));
            }
        }
        for (uint32_t rank = 1; rank < 6; rank++) {
            if (rank == 1 || rank == 4 || rank == 5) {
                assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
            }
        }
        run(&world, 10 * TIME_MS);
    }
    leave_all(&world);
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
        leave(members[2], COMMS_LEAVE_ORDERLY);
        run(&world, 10 * TIME_MS);
        unsigned late = local == 0 ? 1 : 0;
        assert_int_equal(members[late]->aborted_count, 0);
        assert_int_equal(post_barrier(members[late], 0, &error), STATUS_OK);
        run(&world, 10 * TIME_MS);
        for (uint32_t rank = 0; rank < 4; rank++) {
            if (rank != 2) {
                assert_int_equal(members[rank]->aborted_count, 1);
                assert_error(&members[rank]->aborted, STATUS_RANK_LOST,
                             "\"leave\": rank 2 (pid 102) of node a has left after op 1");
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
    leave(members[1], COMMS_LEAVE_ORDERLY);
    run(&world, 10 * TIME_MS);
    assert_ended(members[0], STATUS_ABORTED,
                 "\"early\": rank 1 (pid 101) of node b left before op 1 was done");
    assert_ended(members[2], STATUS_ABORTED, "rank 1 (pid 101) of node b left");
    world_stop(&world);
}

/* A rank has posted an operation; another rank of its node leaves without posting it. */
static void test_posting_what_one_that_left_will_not(void **state)
{
    (void)state;
    struct member *members[2];
    struct error error;
    world_start(&world, 1, 1, NULL);
    form_ops(members, 1, 2, 0, "alone");
    assert_int_equal(post_barrier(members[0], 0, &error), STATUS_OK);
    leave(members[1], COMMS_LEAVE_ORDERLY);
    run(&world, TIME_MS);
    assert_ended(members[0], STATUS_RANK_LOST, "rank 1 (pid 101) of node a has left after op 0");
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
        leave(members[3], COMMS_LEAVE_LOST);
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

/* Ranks on its node and on another one wait for messages of a process that is lost, and one posts a receive
 * later. All are told what the communicator's failure is, and not that a rank has left. */
static void test_messages_of_a_lost_process(void **state)
{
    (void)state;
    for (unsigned nodes = 1; nodes <= 3; nodes++) {
        struct member *members[4];
        struct buffer buffer = buffer_new(4, 0, 0);
        struct comms_op receive = {.terms.kind = OP_KIND_RECEIVE,
                                   .terms.dtype = DTYPE_I32,
                                   .terms.count_elements = 4,
                                   .peer_rank = 3,
                                   .output = {buffer.memory, 0}};
        struct error error;
        world_start(&world, nodes, 1, NULL);
        connect_all(&world);
        form_ops(members, nodes, 4, 0, "lost");
        post_well(members[0], &receive);
        post_well(members[1], &receive);
        run(&world, TIME_MS);
        leave(members[3], COMMS_LEAVE_LOST);
        if (post(members[2], &receive, &error) != STATUS_OK) { /* a node alone has decided already */
            assert_int_equal(nodes, 1);
            assert_error(&error, STATUS_RANK_LOST, "\"lost\": the process of rank 3 (pid 103) of node");
        }
        run(&world, 10 * TIME_MS);
        for (uint32_t rank = 0; rank < 3; rank++) {
            assert_ended(members[rank], STATUS_RANK_LOST,
                         "\"lost\": the process of rank 3 (pid 103) of node");
        }
        leave_all(&world);
        world_stop(&world);
        buffer_free(&buffer);
    }
}

/* A process ends after its last operation, which still goes on elsewhere. It ends well there, too. */
static void test_a_process_that_ends_after_its_last_operation(void **state)
{
    static const struct network_conditions slow = {.delay_ns = 300 * TIME_US, .jitter_ns = 200 * TIME_US};
    uint32_t behind = 0;
    (void)state;
    for (unsigned seed = 1; seed <= 10; seed++) {
        struct member *members[3];
        struct error error;
        uint32_t first = 3;
        world_start(&world, 3, seed, &slow);
        connect_all(&world);
        form_ops(members, 3, 3, 0, "last");
        for (uint32_t rank = 0; rank < 3; rank++) {
            assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
        }
        for (int step = 0; first == 3 && step < 10000; step++) {
            run(&world, 5 * TIME_US);
            for (uint32_t rank = 0; rank < 3; rank++) {
                first = members[rank]->completed == 1 ? rank : first;
            }
        }
        assert_true(first < 3);
        leave(members[first], COMMS_LEAVE_LOST);
        for (uint32_t rank = 0; rank < 3; rank++) {
            behind += members[rank]->completed == 0 ? 1 : 0;
        }
        run(&world, 50 * TIME_MS);
        for (uint32_t rank = 0; rank < 3; rank++) {
            if (rank != first) {
                assert_int_equal(members[rank]->completed, 1);
                assert_error(&members[rank]->results[1], STATUS_OK, "");
                assert_int_equal(members[rank]->aborted_count, 1);
                assert_error(&members[rank]->aborted, STATUS_RANK_LOST, "the process of rank");
            }
        }
        world_stop(&world);
    }
    assert_true(behind >= 5);
}

/* The same, while what node b needs is still on its way from node c, and the news of the end comes first. */
static void test_a_process_that_ends_before_data_of_others_arrive(void **state)
{
    static const struct network_conditions near = {.delay_ns = 100 * TIME_US};
    static const struct network_conditions far = {.delay_ns = 5 * TIME_MS};
    struct member *members[3];
    struct error error;
    (void)state;
    world_start(&world, 3, 1, &near);
    connect_all(&world);
    form_ops(members, 3, 3, 0, "last");
    network_set_link(world.network, "c", "b", &far);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
    }
    run(&world, TIME_MS);
    assert_int_equal(members[0]->completed, 1);
    assert_int_equal(members[1]->completed, 0);
    leave(members[0], COMMS_LEAVE_LOST);
    run(&world, TIME_MS);
    assert_int_equal(members[1]->completed, 0); /* it knows, and waits */
    run(&world, 50 * TIME_MS);
    for (uint32_t rank = 1; rank < 3; rank++) {
        assert_int_equal(members[rank]->completed, 1);
        assert_error(&members[rank]->results[1], STATUS_OK, "");
        assert_int_equal(members[rank]->aborted_count, 1);
        assert_error(&members[rank]->aborted, STATUS_RANK_LOST, "the process of rank 0 (pid 100) of node a");
    }
    leave_all(&world);
    world_stop(&world);
}

/* Buffers stay referenced until nobody uses them: the process ends in the middle of its operation. */
static void test_memory_outlives_its_owner(void **state)
{
    (void)state;
    enum { COUNT = 200000 };
    static const struct network_conditions narrow = {.delay_ns = 100 * TIME_US,
                                                     .bandwidth_bytes_s = 10000000};
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
        post_well(members[rank], &(struct comms_op){.terms.kind = OP_KIND_ALL_REDUCE,
                                                    .terms.dtype = DTYPE_I32,
                                                    .terms.reduce = REDUCE_SUM,
                                                    .terms.count_elements = COUNT,
                                                    .input = {buffers[rank].memory, 0},
                                                    .output = {buffers[rank].memory, 0}});
    }
    run(&world, 10 * TIME_MS);
    assert_int_equal(members[0]->completed, 0);
    assert_false(comms_idle(world.nodes[0].comms));
    leave(members[0], COMMS_LEAVE_LOST);
    memory_unref(buffers[0].memory);
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
    assert_int_equal(comms_abort(world.nodes[1].comms, 1000, "hand", &cause, world.now_ns), STATUS_OK);
    assert_int_equal(comms_abort(world.nodes[1].comms, 1000, "hand", &cause, world.now_ns), STATUS_NOT_FOUND);
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
    comms_abort_all(world.nodes[0].comms, &cause, world.now_ns);
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
    run(&world, 4500 * TIME_MS);
    for (uint32_t rank = 0; rank < 6; rank++) {
        if (rank % 3 != 2) {
            assert_ended(members[rank], STATUS_NODE_LOST, "node c lost: no heartbeat answered for ");
            assert_string_equal(members[rank]->aborted.text, members[0]->aborted.text);
            assert_true(members[rank]->completed_ns - killed_ns <= 4500 * TIME_MS);
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

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadline_names_who_is_late),
        cmocka_unit_test(test_deadline_names_who_is_late_on_all_nodes),
        cmocka_unit_test(test_leaving_in_order),
        cmocka_unit_test(test_leaving_before_an_operation_is_done),
        cmocka_unit_test(test_posting_what_one_that_left_will_not),
        cmocka_unit_test(test_a_process_is_lost),
        cmocka_unit_test(test_messages_of_a_lost_process),
        cmocka_unit_test(test_a_process_that_ends_after_its_last_operation),
        cmocka_unit_test(test_a_process_that_ends_before_data_of_others_arrive),
        cmocka_unit_test(test_memory_outlives_its_owner),
        cmocka_unit_test(test_aborted_by_hand),
        cmocka_unit_test(test_a_lost_node_and_its_survivors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
