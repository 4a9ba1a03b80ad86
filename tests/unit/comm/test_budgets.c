#include <malloc.h>

#include "tests/unit/comm/comm_ops.h"

/* What ranks make comms hold is charged to their user, and all of it is given back. */

static struct budget *budget;

static void budget_start(struct budget_account **poor)
{
    struct error error;
    assert_int_equal(budget_new(NULL, &budget, &error), STATUS_OK);
    assert_int_equal(budget_open(budget, 1000, "", &world.account, &error), STATUS_OK);
    assert_int_equal(budget_open(budget, 1000, "/poor", poor, &error), STATUS_OK);
}

static uint64_t used(const struct budget_account *account, enum budget_kind kind)
{
    struct budget_info info;
    budget_account_info(account, &info);
    return info.used[kind];
}

/* Takes the rest of what the account may have for operations. */
static uint64_t exhaust(struct budget_account *account)
{
    uint64_t taken = 0;
    for (uint64_t step = 1u << 27; step > 0; step /= 2) {
        while (budget_charge(account, BUDGET_OPERATIONS, step, NULL) == STATUS_OK) {
            taken += step;
        }
    }
    return taken;
}

static void budget_end(struct budget_account *poor)
{
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        assert_int_equal(used(world.account, (enum budget_kind)kind), 0);
        assert_int_equal(used(poor, (enum budget_kind)kind), 0);
    }
    budget_close(poor);
    budget_close(world.account);
    budget_free(budget);
    world.account = NULL;
}

/* Nothing matches these 100,000 receives. They end with their rank, in bounded pieces. */
static void test_many_messages(void **state)
{
    (void)state;
    enum { MESSAGES = 100000 };
    struct budget_account *poor;
    struct member *members[2];
    world_start(&world, 3, 1, NULL);
    budget_start(&poor);
    form_ops(members, 1, 2, 0, "many");
    assert_int_equal(used(world.account, BUDGET_COMMUNICATORS), 2);
    struct buffer buffer = buffer_new(4, 0, 0);
    struct error error;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        struct comms_op receive = {.terms.kind = OP_KIND_RECEIVE,
                                   .terms.dtype = DTYPE_I32,
                                   .terms.count_elements = 4,
                                   .peer_rank = i % 2 == 0 ? 1 : COMM_ANY_SOURCE_RANK,
                                   .tag = i % 3,
                                   .output = {buffer.memory, 0}};
        assert_int_equal(comms_submit(members[0]->handle, &receive, world.now_ns, &error), STATUS_OK);
    }
    /* 256 bytes each: as many fit the default budget. */
    assert_in_range(used(world.account, BUDGET_OPERATIONS), MESSAGES * 256, MESSAGES * 256 + 1000);
    leave(members[0], COMMS_LEAVE_LOST);
    leave(members[1], COMMS_LEAVE_LOST);
    run(&world, TIME_S);
    assert_int_equal(comm_count(&world, 0), 0);
    budget_end(poor);
    buffer_free(&buffer);
    world_stop(&world);
}

/* A message that exceeds the budget fails for its caller alone. */
static void test_message_refused(void **state)
{
    (void)state;
    struct budget_account *poor;
    struct member *members[2];
    world_start(&world, 3, 1, NULL);
    budget_start(&poor);
    form_ops(members, 1, 2, 0, "messages");
    uint64_t taken = exhaust(world.account);
    struct buffer buffer = buffer_new(4, 0, 0);
    struct comms_op receive = {.terms.kind = OP_KIND_RECEIVE,
                               .terms.dtype = DTYPE_I32,
                               .terms.count_elements = 4,
                               .peer_rank = 1,
                               .output = {buffer.memory, 0}};
    struct error error;
    assert_int_equal(comms_submit(members[0]->handle, &receive, world.now_ns, &error), STATUS_LIMIT);
    assert_non_null(strstr(error.text, "user 1000 holds"));
    budget_release(world.account, BUDGET_OPERATIONS, taken);
    post_well(members[0], &(struct comms_op){.terms.kind = OP_KIND_BARRIER});
    post_well(members[1], &(struct comms_op){.terms.kind = OP_KIND_BARRIER});
    run(&world, 10 * TIME_MS);
    assert_int_equal(members[0]->results[1].status, STATUS_OK);
    leave_all(&world);
    budget_end(poor);
    buffer_free(&buffer);
    world_stop(&world);
}

/* A collective is refused to one rank. It ends with LIMIT on all ranks of every node, and uses up
 * its number. */
static void test_collective_refused(void **state)
{
    (void)state;
    enum { SIZE = 4 };
    for (unsigned nodes = 1; nodes <= 2; nodes++) {
        for (uint32_t refused = 0; refused < SIZE; refused++) {
            struct budget_account *poor;
            struct member *members[SIZE];
            world_start(&world, 3, nodes, NULL);
            budget_start(&poor);
            connect_all(&world);
            struct budget_account *rich = world.account;
            for (uint32_t rank = 0; rank < SIZE; rank++) {
                struct comms_terms terms = {.name = "refused", .rank = rank, .size = SIZE, .slice_bytes = 64};
                world.account = rank == refused ? poor : rich;
                members[rank] = join_as(&world, rank % nodes, &terms, 1000);
            }
            world.account = rich;
            run(&world, 20 * TIME_MS);
            uint64_t taken = exhaust(poor);
            for (uint32_t rank = 0; rank < SIZE; rank++) {
                assert_formed(members[rank]);
                struct error error = {.status = STATUS_OK};
                enum status status = post_barrier(members[rank], 0, &error);
                assert_int_equal(status, rank == refused ? STATUS_LIMIT : STATUS_OK);
                assert_true(rank != refused || strstr(error.text, "user 1000 holds") != NULL);
            }
            run(&world, 20 * TIME_MS);
            budget_release(poor, BUDGET_OPERATIONS, taken);
            for (uint32_t rank = 0; rank < SIZE; rank++) {
                assert_int_equal(members[rank]->completed, rank != refused);
                if (rank != refused) {
                    assert_error(&members[rank]->results[1], STATUS_LIMIT, "user 1000 holds");
                }
                post_well(members[rank], &(struct comms_op){.terms.kind = OP_KIND_BARRIER});
            }
            run(&world, 20 * TIME_MS);
            for (uint32_t rank = 0; rank < SIZE; rank++) {
                assert_int_equal(members[rank]->completed, 1 + (rank != refused));
                assert_int_equal(members[rank]->results[members[rank]->completed].status, STATUS_OK);
                assert_int_equal(members[rank]->aborted_count, 0);
            }
            leave_all(&world);
            budget_end(poor);
            world_stop(&world);
        }
    }
}

/* The node that is to give the verdict may still be forming: the last promise reaches it later than the
 * others. */
static void test_refused_early(void **state)
{
    (void)state;
    enum { SIZE = 3 };
    const struct network_conditions slow = {.delay_ns = 50 * TIME_MS};
    struct budget_account *poor;
    struct member *members[SIZE];
    struct error error;
    world_start(&world, SIZE, 1, NULL);
    budget_start(&poor);
    connect_all(&world);
    struct budget_account *rich = world.account;
    members[0] = join(&world, 0, "early", 0, SIZE);
    members[2] = join(&world, 2, "early", 2, SIZE);
    run(&world, 10 * TIME_MS);
    network_set_link(world.network, "c", "a", &slow); /* node c's promise arrives late */
    world.account = poor;
    members[1] = join(&world, 1, "early", 1, SIZE);
    world.account = rich;
    uint64_t taken = exhaust(poor);
    for (unsigned i = 0; members[1]->formed_count == 0; i++) {
        assert_true(i < 1000);
        run(&world, TIME_MS);
    }
    assert_int_equal(post_barrier(members[1], 0, &error), STATUS_LIMIT);
    run(&world, 5 * TIME_MS);
    assert_int_equal(members[0]->formed_count, 0);
    run(&world, 200 * TIME_MS);
    budget_release(poor, BUDGET_OPERATIONS, taken);
    for (uint32_t rank = 0; rank < SIZE; rank += 2) {
        assert_formed(members[rank]);
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
    }
    run(&world, 200 * TIME_MS);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        if (rank != 1) {
            assert_int_equal(members[rank]->completed, 1);
            assert_error(&members[rank]->results[1], STATUS_LIMIT, "user 1000 holds");
        }
        assert_int_equal(post_barrier(members[rank], 0, &error), STATUS_OK);
    }
    run(&world, 500 * TIME_MS);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_int_equal(members[rank]->results[members[rank]->completed].status, STATUS_OK);
        assert_int_equal(members[rank]->completed, members[rank]->posted);
    }
    leave_all(&world);
    run(&world, TIME_S);
    budget_end(poor);
    world_stop(&world);
}

static size_t in_use(void)
{
    return mallinfo2().uordblks + mallinfo2().hblkhd;
}

/* What one of many ranks posts is charged to its account. Refused operations take no memory each, however
 * many ranks of the node are still to post them. */
static void test_memory_is_charged(void **state)
{
    (void)state;
    enum { SIZE = 60, OPS = 500, REFUSED_MAX_BYTES = 8192 };
    struct budget_account *poor;
    struct member *members[SIZE];
    world_start(&world, 3, 1, NULL);
    budget_start(&poor);
    form_ops(members, 1, SIZE, 0, "ranks");
    size_t before = in_use();
    for (uint32_t i = 0; i < OPS; i++) {
        post_well(members[0], &(struct comms_op){.terms.kind = OP_KIND_BARRIER});
    }
    assert_in_range(in_use() - before, 0, used(world.account, BUDGET_OPERATIONS));
    uint64_t taken = exhaust(world.account);
    before = in_use();
    for (uint32_t i = 0; i < OPS; i++) {
        struct error error;
        assert_int_equal(post_barrier(members[0], 0, &error), STATUS_LIMIT);
    }
    run(&world, 10 * TIME_MS);
    assert_in_range(in_use() - before, 0, REFUSED_MAX_BYTES);
    budget_release(world.account, BUDGET_OPERATIONS, taken);
    leave_all(&world);
    budget_end(poor);
    world_stop(&world);
}

/* A rank counts at once, before its communicator has formed. */
static void test_communicators_refused(void **state)
{
    (void)state;
    struct budget_account *poor;
    world_start(&world, 3, 1, NULL);
    budget_start(&poor);
    budget_set_ceiling(budget, BUDGET_COMMUNICATORS, 2);
    struct member *first = join(&world, 0, "first", 0, 1), *second = join(&world, 0, "second", 0, 1);
    struct member *third = join(&world, 0, "third", 0, 1);
    assert_error(&third->join_result, STATUS_LIMIT, "the limit for one user is 2");
    leave(second, COMMS_LEAVE_ORDERLY);
    run(&world, 10 * TIME_MS);
    struct member *fourth = join(&world, 0, "third", 0, 1);
    assert_non_null(fourth->handle);
    assert_non_null(first->handle);
    leave_all(&world);
    budget_end(poor);
    world_stop(&world);
}

/* What a communicator holds is charged in bytes. It and its ranks are charged at the join, other nodes when
 * they send something. What exec and p2p take is charged when it forms. */
static void test_communicators_bytes(void **state)
{
    (void)state;
    enum { LARGE = 60000 };
    struct budget_account *poor;
    world_start(&world, 3, 1, NULL);
    budget_start(&poor);
    struct member *first = join(&world, 0, "one", 0, 1);
    uint64_t joined = used(world.account, BUDGET_COMMUNICATOR_BYTES);
    assert_in_range(joined, COMMS_PENDING_OPS_MAX * sizeof(void *), 65536);
    run(&world, 10 * TIME_MS);
    uint64_t formed = used(world.account, BUDGET_COMMUNICATOR_BYTES);
    assert_true(formed > joined);
    leave(first, COMMS_LEAVE_ORDERLY);
    run(&world, 10 * TIME_MS);
    assert_int_equal(used(world.account, BUDGET_COMMUNICATOR_BYTES), 0);

    first = join(&world, 0, "large", 0, LARGE);
    uint64_t large = used(world.account, BUDGET_COMMUNICATOR_BYTES);
    assert_in_range(large - joined, LARGE * 16, LARGE * 24);
    struct member *second = join(&world, 0, "large", 1, LARGE);
    uint64_t with_second = used(world.account, BUDGET_COMMUNICATOR_BYTES);
    assert_in_range(with_second - large, 512, 8192);
    run(&world, 10 * TIME_MS); /* nodes b and c have answered */
    assert_in_range(used(world.account, BUDGET_COMMUNICATOR_BYTES) - with_second, 2 * 64, 2 * 512);

    budget_set_ceiling(budget, BUDGET_COMMUNICATOR_BYTES, used(world.account, BUDGET_COMMUNICATOR_BYTES));
    struct member *refused = join(&world, 0, "other", 0, 1);
    assert_error(&refused->join_result, STATUS_LIMIT, "user_limit_communicator_bytes");
    assert_non_null(second->handle);
    leave_all(&world);
    budget_end(poor);
    world_stop(&world);
}

/* The communicator exceeds the budget when it forms. Every rank gets LIMIT with the reason, and what was
 * charged is given back. */
static void test_no_bytes_to_form(void **state)
{
    (void)state;
    struct budget_account *poor;
    world_start(&world, 3, 1, NULL);
    budget_start(&poor);
    struct member *members[2] = {join(&world, 0, "late", 0, 2), NULL};
    run(&world, 10 * TIME_MS);
    uint64_t waiting = used(world.account, BUDGET_COMMUNICATOR_BYTES);
    budget_set_ceiling(budget, BUDGET_COMMUNICATOR_BYTES, 2 * waiting + 64);
    members[1] = join(&world, 1, "late", 1, 2);
    run(&world, TIME_S);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(members[i]->formed_count, 1);
        assert_error(&members[i]->formed, STATUS_LIMIT, "user_limit_communicator_bytes");
    }
    leave_all(&world);
    budget_end(poor);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_messages),         cmocka_unit_test(test_message_refused),
        cmocka_unit_test(test_collective_refused),    cmocka_unit_test(test_memory_is_charged),
        cmocka_unit_test(test_communicators_refused), cmocka_unit_test(test_refused_early),
        cmocka_unit_test(test_communicators_bytes),   cmocka_unit_test(test_no_bytes_to_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
