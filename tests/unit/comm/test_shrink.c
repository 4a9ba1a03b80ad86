#include "tests/unit/comm/comm_nodes.h"

static struct world world;
#include "tests/unit/comm/comm_ops.h"

/* Verdicts, and the generations that follow them. Ranks are spread over the nodes in turn. */

#define RANKS_MAX 8

static struct member *shrink(struct member *failed)
{
    struct member *member = shrink_within(failed, 0);
    if (member->handle == NULL) {
        fail_msg("%s", member->join_result.text);
    }
    return member;
}

/* All survivors have the same verdict: these ranks are lost. */
static void assert_verdict(struct member **members, uint32_t size, uint32_t lost_bits, enum status status)
{
    struct comms_verdict_view first = {0}, view;
    const struct member *one = NULL;
    for (uint32_t rank = 0; rank < size; rank++) {
        if (members[rank]->handle == NULL) {
            continue;
        }
        assert_int_equal(members[rank]->aborted_count, 1);
        assert_int_equal(members[rank]->aborted.status, status);
        assert_true(comms_member_verdict(members[rank]->handle, &view));
        assert_int_equal(view.lost[0], lost_bits);
        one = one == NULL ? members[rank] : one;
        first = first.size == 0 ? view : first;
        assert_string_equal(one->aborted.text, members[rank]->aborted.text);
        assert_int_equal(view.last_seq, first.last_seq);
        assert_int_equal(view.generation, first.generation);
        assert_int_equal(view.minority, first.minority);
    }
    assert_non_null(one);
}

/* They are one communicator, in this order, and it works. */
static void assert_works(struct member **members, uint32_t size, uint32_t generation)
{
    uint64_t comm_id = 0;
    struct error error;
    for (uint32_t rank = 0; rank < size; rank++) {
        struct communicator_view view;
        assert_formed(members[rank]);
        comms_member_view(members[rank]->handle, &view);
        assert_int_equal(view.rank, rank);
        assert_int_equal(view.size, size);
        assert_int_equal(view.generation, generation);
        comm_id = rank == 0 ? view.comm_id : comm_id;
        assert_true(view.comm_id == comm_id);
        for (uint32_t i = 0; i < size; i++) {
            assert_string_equal(view.node_names[view.node_of_rank[i]], members[i]->node->name);
        }
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
    }
    run(&world, 20 * TIME_MS);
    for (uint32_t rank = 0; rank < size; rank++) {
        assert_int_equal(members[rank]->completed, members[rank]->posted);
        assert_error(&members[rank]->results[members[rank]->completed], STATUS_OK, "");
    }
}

/* Shrinks all that are left of `members`, and replaces them. Returns how many. */
static uint32_t shrink_all(struct member **members, uint32_t size)
{
    uint32_t left = 0;
    for (uint32_t rank = 0; rank < size; rank++) {
        if (members[rank]->handle != NULL) {
            members[left++] = shrink(members[rank]);
        }
    }
    run(&world, 20 * TIME_MS);
    return left;
}

static void begin_world(struct member **members, unsigned nodes, uint32_t size, uint64_t seed)
{
    world_start(&world, nodes, seed, NULL);
    connect_all(&world);
    form_ops(members, nodes, size, 0, "again");
}

/* Ranks are lost one after the other, until one is left. */
static void test_rank_after_rank(void **state)
{
    (void)state;
    for (unsigned nodes = 1; nodes <= 4; nodes++) {
        struct member *members[RANKS_MAX];
        uint32_t size = 6;
        begin_world(members, nodes, size, nodes);
        assert_works(members, size, 1);
        for (uint32_t generation = 2; size > 1; generation++) {
            uint32_t victim = generation % size;
            leave(members[victim], COMMS_LEAVE_LOST);
            run(&world, 5 * TIME_MS);
            assert_verdict(members, size, 1u << victim, STATUS_RANK_LOST);
            size = shrink_all(members, size);
            assert_works(members, size, generation);
        }
        world_stop(&world);
    }
}

static void test_in_the_midst_of_an_operation(void **state)
{
    (void)state;
    struct member *members[RANKS_MAX];
    struct comms_verdict_view view;
    struct error error;
    begin_world(members, 3, 6, 1);
    assert_works(members, 6, 1);
    for (uint32_t rank = 0; rank < 5; rank++) {
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
    }
    run(&world, TIME_MS);
    leave(members[5], COMMS_LEAVE_LOST);
    run(&world, 5 * TIME_MS);
    assert_verdict(members, 6, 1u << 5, STATUS_RANK_LOST);
    assert_true(comms_member_verdict(members[0]->handle, &view));
    assert_int_equal(view.last_seq, 1);
    for (uint32_t rank = 0; rank < 5; rank++) {
        assert_error(&members[rank]->results[2], STATUS_RANK_LOST, "rank 5");
    }
    assert_int_equal(shrink_all(members, 6), 5);
    assert_works(members, 5, 2);
    world_stop(&world);
}

static void test_a_node(void **state)
{
    (void)state;
    for (unsigned victim = 0; victim < 3; victim++) {
        struct member *members[RANKS_MAX];
        begin_world(members, 3, 6, 1 + victim);
        node_kill(&world, victim);
        run(&world, 5 * TIME_S);
        assert_verdict(members, 6, 9u << victim, STATUS_NODE_LOST);
        assert_int_equal(shrink_all(members, 6), 4);
        assert_works(members, 4, 2);
        world_stop(&world);
    }
}

/* All ranks of a node are lost, its daemon lives. */
static void test_all_ranks_of_a_node(void **state)
{
    (void)state;
    for (unsigned victim = 0; victim < 3; victim++) {
        struct member *members[RANKS_MAX];
        uint32_t size = 6;
        begin_world(members, 3, size, 1 + victim);
        for (uint32_t rank = victim; rank < 6; rank += 3) {
            leave(members[rank], COMMS_LEAVE_LOST);
        }
        run(&world, 5 * TIME_MS);
        size = shrink_all(members, size);
        run(&world, 20 * TIME_MS);
        assert_int_equal(size, 4);
        assert_int_equal(comm_count(&world, victim), 0);
        for (uint32_t rank = 0; rank < size; rank++) {
            struct communicator_view view;
            assert_formed(members[rank]);
            comms_member_view(members[rank]->handle, &view);
            assert_int_equal(view.size, 4);
            assert_int_equal(view.rank, rank);
        }
        world_stop(&world);
    }
}

static void test_a_loss_while_shrinking(void **state)
{
    (void)state;
    for (unsigned how = 0; how < 3; how++) {
        struct member *members[RANKS_MAX], *next[RANKS_MAX];
        uint32_t size = 0;
        begin_world(members, 3, 6, 1 + how);
        leave(members[1], COMMS_LEAVE_LOST);
        run(&world, 5 * TIME_MS);
        for (uint32_t rank = 0; rank < 6; rank++) {
            if (rank != 1 && rank != 5) {
                next[size++] = shrink(members[rank]);
            }
        }
        run(&world, 5 * TIME_MS);
        assert_int_equal(next[0]->formed_count, 0); /* rank 5 has not called */
        if (how == 0) {
            leave(members[5], COMMS_LEAVE_LOST); /* it never does */
        } else if (how == 1) {
            node_kill(&world, 2); /* rank 2, which has called, is there as well */
            next[1] = next[2];
            next[2] = next[3];
            size = 3;
        } else {
            leave(next[3], COMMS_LEAVE_LOST); /* rank 4: the process is lost, all that it has leaves */
            leave(members[4], COMMS_LEAVE_LOST);
            run(&world, 5 * TIME_MS); /* otherwise that generation might still form, and then fail */
            next[3] = shrink(members[5]);
        }
        run(&world, 5 * TIME_S);
        assert_works(next, size, 3);
        world_stop(&world);
    }
}

/* Nodes b and d lose each other while their ranks wait for the next generation. The others reach both, and go
 * on with one of the two. The other one is told that it is lost, as if it asked now. */
static void test_a_link_lost_while_shrinking(void **state)
{
    (void)state;
    struct member *members[RANKS_MAX], *next[RANKS_MAX];
    uint32_t size = 0, refused = 0;
    begin_world(members, 4, 8, 1);
    leave(members[0], COMMS_LEAVE_LOST);
    run(&world, 5 * TIME_MS);
    for (uint32_t rank = 1; rank < 8; rank++) {
        if (rank != 2) { /* rank 2, of node c, asks later */
            next[size++] = shrink(members[rank]);
        }
    }
    network_cut(world.network, "b", "d", true);
    network_cut(world.network, "d", "b", true);
    run(&world, 6 * TIME_S);
    next[size++] = shrink(members[2]);
    run(&world, 20 * TIME_MS);
    for (uint32_t i = 0; i < size; i++) {
        assert_int_equal(next[i]->formed_count, 1);
        if (next[i]->formed.status != STATUS_OK) {
            refused++;
            assert_true(strcmp(next[i]->node->name, "b") == 0 || strcmp(next[i]->node->name, "d") == 0);
            assert_error(&next[i]->formed, STATUS_RANK_LOST, "is itself lost");
        }
    }
    assert_int_equal(refused, 2);
    world_stop(&world);
}

static void test_too_late(void **state)
{
    (void)state;
    struct member *members[RANKS_MAX], *next[RANKS_MAX];
    begin_world(members, 2, 4, 1);
    leave(members[3], COMMS_LEAVE_LOST);
    run(&world, 5 * TIME_MS);
    next[0] = shrink_within(members[0], 50);
    next[1] = shrink_within(members[1], 60000);
    run(&world, 100 * TIME_MS);
    for (uint32_t i = 0; i < 2; i++) { /* both get the same */
        assert_int_equal(next[i]->formed_count, 1);
        assert_error(&next[i]->formed, STATUS_TIMED_OUT, "was not shrunk within 50 ms");
        assert_string_equal(next[i]->formed.text, next[0]->formed.text);
        leave(next[i], COMMS_LEAVE_ORDERLY);
    }
    for (uint32_t i = 0; i < 3; i++) {
        next[i] = shrink(members[i]);
    }
    run(&world, 20 * TIME_MS);
    assert_works(next, 3, 3);
    world_stop(&world);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    struct member *members[RANKS_MAX], *next[RANKS_MAX];
    begin_world(members, 2, 3, 1);
    const struct member *refused = shrink_within(members[0], 0);
    assert_error(&refused->join_result, STATUS_IN_PROGRESS, "it has not failed");
    leave(members[1], COMMS_LEAVE_LOST);
    run(&world, 5 * TIME_MS);
    next[0] = shrink(members[0]);
    refused = shrink_within(members[0], 0);
    assert_error(&refused->join_result, STATUS_ALREADY_EXISTS, "as rank 0");
    next[1] = shrink(members[2]);
    run(&world, 20 * TIME_MS);
    assert_works(next, 2, 2);
    refused = shrink_within(members[2], 0);
    assert_error(&refused->join_result, STATUS_ALREADY_EXISTS, "as rank 1");
    leave(next[0], COMMS_LEAVE_ORDERLY);
    leave(next[1], COMMS_LEAVE_ORDERLY);
    run(&world, 20 * TIME_MS);
    refused = shrink_within(members[0], 0); /* a generation is never formed twice */
    assert_error(&refused->join_result, STATUS_NOT_FOUND, "has ended already");
    world_stop(&world);
}

/* The other node of two falls silent: only the lower one may go on. */
static void test_minority(void **state)
{
    (void)state;
    for (unsigned survivor = 0; survivor < 2; survivor++) {
        struct member *members[RANKS_MAX];
        begin_world(members, 2, 4, 1 + survivor);
        node_kill(&world, 1 - survivor);
        run(&world, 5 * TIME_S);
        if (survivor == 0) {
            assert_verdict(members, 4, 0xa, STATUS_NODE_LOST);
            assert_int_equal(shrink_all(members, 4), 2);
            assert_works(members, 2, 2);
        } else {
            assert_verdict(members, 4, 0x5, STATUS_ABORTED);
            const struct member *refused = shrink_within(members[1], 0);
            assert_error(&refused->join_result, STATUS_ABORTED, "minority: only 1 of its 2 nodes");
        }
        world_stop(&world);
    }
}

/* The same, and all ranks have said that every group of nodes may go on. */
static void test_minority_continues(void **state)
{
    (void)state;
    for (unsigned survivor = 0; survivor < 2; survivor++) {
        struct member *members[RANKS_MAX];
        world_start(&world, 2, 1 + survivor, NULL);
        connect_all(&world);
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct comms_terms terms = {.name = "again", .rank = rank, .size = 4, .minority_continues = true};
            members[rank] = join_as(&world, rank % 2, &terms, 1000);
        }
        run(&world, 20 * TIME_MS);
        assert_works(members, 4, 1);
        node_kill(&world, 1 - survivor);
        run(&world, 5 * TIME_S);
        assert_verdict(members, 4, survivor == 0 ? 0xa : 0x5, STATUS_NODE_LOST);
        assert_int_equal(shrink_all(members, 4), 2);
        assert_works(members, 2, 2);
        world_stop(&world);
    }
}

/* One rank alone says so: the ranks disagree. */
static void test_minority_continues_is_agreed(void **state)
{
    (void)state;
    struct member *members[2];
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct comms_terms terms = {
            .name = "again", .rank = rank, .size = 2, .minority_continues = rank == 1};
        members[rank] = join_as(&world, rank, &terms, 1000);
    }
    run(&world, 20 * TIME_MS);
    assert_error(&members[1]->formed, STATUS_MISMATCH, "node b asks for minority_continues 1, node a has");
    world_stop(&world);
}

/* An administrator ends a healthy communicator. It is shrunk to the same ranks. */
static void test_after_an_abort(void **state)
{
    (void)state;
    struct member *members[RANKS_MAX];
    struct error cause = {.status = STATUS_ABORTED, .text = "begin anew"};
    begin_world(members, 3, 5, 1);
    comms_member_abort(members[2]->handle, &cause, world.now_ns);
    run(&world, 5 * TIME_MS);
    assert_verdict(members, 5, 0, STATUS_ABORTED);
    assert_int_equal(shrink_all(members, 5), 5);
    assert_works(members, 5, 2);
    world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_after_rank),
        cmocka_unit_test(test_in_the_midst_of_an_operation),
        cmocka_unit_test(test_a_node),
        cmocka_unit_test(test_all_ranks_of_a_node),
        cmocka_unit_test(test_a_loss_while_shrinking),
        cmocka_unit_test(test_a_link_lost_while_shrinking),
        cmocka_unit_test(test_too_late),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_minority),
        cmocka_unit_test(test_minority_continues),
        cmocka_unit_test(test_minority_continues_is_agreed),
        cmocka_unit_test(test_after_an_abort),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
