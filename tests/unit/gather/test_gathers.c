#include "tests/unit/gather/gather_nodes.h"

/* Which ranks the processes of an elastic job get, and when. */

static struct world world; /* large */

static void settle_all(struct process *const *processes, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        gathers_settle(processes[i]->entry, processes[i]->seat.generation);
    }
    run(&world, 10 * TIME_MS);
}

/* `most` processes get ranks at once: by node, and within a node as they came. */
static void test_as_many_as_there_may_be(void **state)
{
    (void)state;
    static const unsigned nodes[] = {2, 0, 1, 0, 2, 1};
    static const uint32_t ranks[] = {4, 0, 2, 1, 5, 3};
    struct process *processes[6];
    world_ready(&world, 3);
    for (unsigned i = 0; i < 6; i++) {
        processes[i] = join(&world, nodes[i], 2, 6);
        run(&world, TIME_MS);
        assert_int_equal(processes[0]->seated, i == 5);
    }
    for (unsigned i = 0; i < 6; i++) {
        assert_seat(processes[i], ranks[i], 6);
        assert_string_equal(processes[i]->seat.comm_name, processes[0]->seat.comm_name);
    }
    assert_memory_equal(processes[0]->seat.comm_name, "job#1.", 6);
    world_stop(&world);
}

/* With `least`, they wait for others, from the last one that came on. */
static void test_the_last_call(void **state)
{
    (void)state;
    struct process *processes[3];
    world_ready(&world, 3);
    for (unsigned i = 0; i < 3; i++) {
        processes[i] = join(&world, i, 2, 10);
        run(&world, 250 * TIME_MS);
        assert_int_equal(processes[0]->seated, 0);
    }
    run(&world, 100 * TIME_MS);
    for (unsigned i = 0; i < 3; i++) {
        assert_seat(processes[i], i, 3);
    }
    world_stop(&world);
}

static void test_too_few(void **state)
{
    (void)state;
    world_ready(&world, 2);
    struct gathers_wish wish = wish_of(3, 4);
    wish.timeout_ns = 5 * TIME_S;
    struct process *first = join_with(&world, 0, "job", &wish), *second = join_with(&world, 1, "job", &wish);
    run(&world, 6 * TIME_S);
    assert_int_equal(first->seated, 1);
    assert_fails(first, STATUS_TIMED_OUT, "2 processes wait: at least 3 are needed");
    assert_fails(second, STATUS_TIMED_OUT, "job \"job\": no rank in time");
    /* They may ask again. Those that have given up do not count. */
    struct error error;
    wish.least = 2;
    assert_int_equal(gathers_join_again(first->entry, &wish, world.now_ns, &error), STATUS_OK);
    run(&world, TIME_S);
    assert_int_equal(first->seated, 1);
    assert_int_equal(gathers_join_again(first->entry, &wish, world.now_ns, &error), STATUS_IN_PROGRESS);
    assert_int_equal(gathers_join_again(second->entry, &wish, world.now_ns, &error), STATUS_OK);
    run(&world, TIME_S);
    assert_seat(first, 0, 2);
    assert_seat(second, 1, 2);
    world_stop(&world);
}

static void test_contradicting_wishes(void **state)
{
    (void)state;
    world_ready(&world, 2);
    struct gathers_wish small = wish_of(1, 2), large = wish_of(4, 8);
    small.timeout_ns = large.timeout_ns = 2 * TIME_S;
    large.last_call_ns = 0;
    struct process *first = join_with(&world, 0, "job", &small);
    struct process *second = join_with(&world, 1, "job", &large);
    run(&world, 3 * TIME_S);
    assert_fails(first, STATUS_TIMED_OUT, "one process wants at least 4 ranks, and another one at most 2");
    assert_fails(second, STATUS_TIMED_OUT, "one process wants at least 4 ranks, and another one at most 2");
    world_stop(&world);
}

/* While a generation runs, others wait. Its ranks know how many, and take them in. */
static void test_growing(void **state)
{
    (void)state;
    struct process *ranks[2], *late[3];
    world_ready(&world, 3);
    for (unsigned i = 0; i < 2; i++) {
        ranks[i] = join(&world, i, 2, 2);
    }
    run(&world, TIME_S);
    settle_all(ranks, 2);
    assert_int_equal(ranks[0]->waiting, 0);
    grow(&world, ranks[0], 2, 8);
    assert_string_equal(ranks[0]->growth.comm_name, "");
    assert_int_equal(ranks[0]->growth.size, 2);
    for (unsigned i = 0; i < 3; i++) {
        late[i] = join(&world, 2 - i, 2, i == 1 ? 3 : 8);
    }
    run(&world, 10 * TIME_S);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(ranks[i]->waiting, 3);
        assert_int_equal(late[i]->seated, 0);
    }
    /* The second one allows three ranks at most, so only one of them fits beside the first. */
    grow(&world, ranks[0], 2, 4);
    assert_int_equal(ranks[0]->growth.size, 4);
    assert_int_equal(late[1]->seated, 0);
    assert_seat(late[0], 3, 4);
    assert_seat(late[2], 2, 4);
    assert_string_equal(late[0]->seat.comm_name, ranks[0]->growth.comm_name);
    assert_int_equal(late[0]->seat.generation, 2);
    settle_all(&late[0], 1);
    settle_all(&late[2], 1);
    for (unsigned i = 0; i < 2; i++) {
        gathers_settle(ranks[i]->entry, 2);
    }
    run(&world, TIME_S);
    assert_int_equal(ranks[1]->waiting, 1);
    assert_int_equal(late[0]->waiting, 1);
    leave(late[1]);
    run(&world, TIME_S);
    assert_int_equal(ranks[1]->waiting, 0);
    world_stop(&world);
}

/* When the last rank has left, those that wait form the next generation. */
static void test_one_generation_after_the_other(void **state)
{
    (void)state;
    struct process *ranks[2], *late[2];
    world_ready(&world, 3);
    for (unsigned i = 0; i < 2; i++) {
        ranks[i] = join(&world, i, 2, 2);
    }
    run(&world, TIME_S);
    settle_all(ranks, 2);
    for (unsigned i = 0; i < 2; i++) {
        late[i] = join(&world, 2, 2, 2);
    }
    run(&world, 5 * TIME_S);
    assert_int_equal(late[0]->seated, 0);
    leave(ranks[1]);
    run(&world, TIME_S);
    assert_int_equal(late[0]->seated, 0);
    leave(ranks[0]);
    run(&world, TIME_S);
    assert_seat(late[0], 0, 2);
    assert_int_equal(late[0]->seat.generation, 2);
    assert_string_not_equal(late[0]->seat.comm_name, ranks[0]->seat.comm_name);
    assert_int_equal(world.nodes[0].void_count, 0);
    world_stop(&world);
}

/* A rank is lost before its communicator has formed: all nodes are told, and the others wait again. */
static void test_a_generation_that_is_void(void **state)
{
    (void)state;
    struct process *ranks[3];
    struct error error;
    world_ready(&world, 3);
    for (unsigned i = 0; i < 3; i++) {
        ranks[i] = join(&world, i, 2, 3);
    }
    run(&world, TIME_S);
    assert_seat(ranks[2], 2, 3);
    leave(ranks[2]);
    run(&world, 10 * TIME_MS);
    for (unsigned i = 0; i < 2; i++) {
        const char *name = ranks[i]->seat.comm_name;
        assert_int_equal(world.nodes[i].void_count, 1);
        assert_string_equal(world.nodes[i].voids[0], name);
        assert_int_equal(gathers_check(world.nodes[i].gathers, UID, name, &error), STATUS_RANK_LOST);
        assert_int_equal(gathers_check(world.nodes[i].gathers, UID + 1, name, &error), STATUS_OK);
        assert_int_equal(gathers_check(world.nodes[i].gathers, UID, "job#2.00", &error), STATUS_OK);
        struct gathers_wish wish = wish_of(2, 3);
        assert_int_equal(gathers_join_again(ranks[i]->entry, &wish, world.now_ns, &error), STATUS_OK);
        run(&world, 10 * TIME_MS);
    }
    assert_int_equal(world.nodes[0].void_count, 1);
    run(&world, TIME_S);
    assert_seat(ranks[0], 0, 2);
    assert_seat(ranks[1], 1, 2);
    assert_int_equal(ranks[0]->seat.generation, 2);
    settle_all(ranks, 2);
    leave(ranks[1]); /* a loss of a communicator that has formed is its own affair */
    run(&world, TIME_S);
    assert_int_equal(world.nodes[0].void_count, 1);
    world_stop(&world);
}

/* Ranks that asked to grow do not take the step: the newcomers wait again. */
static void test_growing_in_vain(void **state)
{
    (void)state;
    struct process *first, *late;
    struct error error;
    struct gathers_wish wish = wish_of(1, 8);
    for (unsigned how = 0; how < 2; how++) {
        world_ready(&world, 2);
        first = join(&world, 0, 1, 1);
        run(&world, TIME_S);
        settle_all(&first, 1);
        late = join(&world, 1, 1, 8);
        run(&world, TIME_S);
        grow(&world, first, 1, 8);
        assert_seat(late, 1, 2);
        assert_int_equal(world.nodes[1].void_count, 0);
        if (how == 0) {
            leave(first);
            run(&world, 10 * TIME_MS);
        } else {
            grow(&world, first, 1, 8);
            assert_string_equal(first->growth.comm_name, "");
        }
        assert_int_equal(world.nodes[1].void_count, 1);
        assert_string_equal(world.nodes[1].voids[0], late->seat.comm_name);
        assert_int_equal(gathers_join_again(late->entry, &wish, world.now_ns, &error), STATUS_OK);
        run(&world, TIME_S);
        assert_int_equal(late->seated, how == 0 ? 2 : 1);
        if (how == 1) {
            grow(&world, first, 1, 8);
        }
        assert_seat(late, how == 0 ? 0 : 1, how == 0 ? 1 : 2);
        world_stop(&world);
    }
}

/* The node that decides is lost: the next one learns what runs, and forms no second generation. */
static void test_another_place(void **state)
{
    (void)state;
    struct process *ranks[5];
    unsigned count = 0;
    world_ready(&world, 5);
    unsigned place = place_of(&world, "job");
    for (unsigned i = 0; i < 5; i++) {
        if (i != place) {
            ranks[count++] = join(&world, i, 4, 4);
        }
    }
    run(&world, TIME_S);
    settle_all(ranks, 4);
    struct process *late = join(&world, (place + 1) % 5, 1, 8);
    run(&world, TIME_S);
    assert_int_equal(ranks[0]->waiting, 1);
    network_kill(world.network, world.nodes[place].name);
    run(&world, 20 * TIME_S);
    assert_int_equal(late->seated, 0);
    grow(&world, ranks[0], 4, 8);
    assert_seat(late, 4, 5);
    assert_int_equal(late->seat.generation, 2);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(world.nodes[i].void_count, 0);
    }
    world_stop(&world);
}

/*
 * The node that decides is lost when it has given seats, and before the communicator has formed: its own rank
 * is lost, or one node has not been told of its seat. The next place notices, and all wait again.
 */
static void test_a_place_lost_with_a_rank(void **state)
{
    (void)state;
    struct error error;
    struct gathers_wish wish = wish_of(2, 2);
    for (unsigned how = 0; how < 2; how++) {
        world_ready(&world, 5);
        unsigned place = place_of(&world, "job"), other = (place + 1) % 5;
        struct process *told = join(&world, other, 2, 2);
        run(&world, TIME_S);
        struct process *lost = join(&world, how == 0 ? place : (place + 2) % 5, 2, 2);
        if (how == 1) {
            run(&world, 120 * TIME_US); /* its report is on its way */
            network_cut(world.network, world.nodes[place].name, lost->node->name, true);
        }
        run(&world, TIME_S);
        assert_int_equal(told->seated, 1);
        assert_int_equal(lost->seated, how == 0 ? 1 : 0);
        const char *name = told->seat.comm_name;
        network_kill(world.network, world.nodes[place].name);
        node_stop(&world, place);
        struct process *third = how == 0 ? join(&world, (place + 3) % 5, 2, 2) : lost;
        run(&world, 15 * TIME_S);
        assert_int_equal(told->node->void_count, 1);
        assert_string_equal(told->node->voids[0], name);
        assert_int_equal(gathers_join_again(told->entry, &wish, world.now_ns, &error), STATUS_OK);
        run(&world, GATHERS_GRACE_NS);
        assert_int_equal(told->seated, 2);
        assert_int_equal(told->seat.generation, 2);
        assert_string_equal(told->seat.comm_name, third->seat.comm_name);
        world_stop(&world);
    }
}

/* The same, when ranks that run take in a rank of that node. */
static void test_a_place_lost_with_a_new_rank(void **state)
{
    (void)state;
    world_ready(&world, 5);
    unsigned place = place_of(&world, "job");
    struct process *rank = join(&world, (place + 1) % 5, 1, 1);
    run(&world, TIME_S);
    settle_all(&rank, 1);
    struct process *late = join(&world, place, 1, 8);
    run(&world, TIME_S);
    grow(&world, rank, 1, 8);
    assert_seat(late, 1, 2);
    const char *name = rank->growth.comm_name;
    node_stop(&world, place);
    run(&world, 15 * TIME_S);
    assert_int_equal(rank->node->void_count, 1);
    assert_string_equal(rank->node->voids[0], name);
    assert_int_equal(rank->entry->generation, 1);
    late = join(&world, (place + 2) % 5, 1, 8);
    run(&world, TIME_S);
    grow(&world, rank, 1, 8);
    assert_seat(late, 1, 2);
    assert_int_equal(late->seat.generation, 3);
    world_stop(&world);
}

/* The place comes back, restarted. It knows nothing, and learns before it decides. */
static void test_a_place_that_returns(void **state)
{
    (void)state;
    struct process *ranks[4];
    unsigned count = 0;
    world_ready(&world, 3);
    unsigned place = place_of(&world, "job");
    for (unsigned i = 0; i < 4; i++) {
        ranks[count++] = join(&world, (place + 1 + i % 2) % 3, 4, 4);
    }
    run(&world, TIME_S);
    settle_all(ranks, 4);
    node_stop(&world, place);
    run(&world, 10 * TIME_S);
    node_start(&world, place, 900);
    struct process *early = join(&world, place, 1, 8); /* before anybody has told the place */
    run(&world, 20 * TIME_S);
    assert_int_equal(place_of(&world, "job"), place);
    assert_int_equal(early->seated, 0);
    assert_int_equal(ranks[0]->waiting, 1);
    world_stop(&world);
}

/* A minority of the nodes forms no generation, unless its processes say that it may. */
static void test_a_minority(void **state)
{
    (void)state;
    for (unsigned may = 0; may < 2; may++) {
        world_ready(&world, 5);
        for (unsigned i = 0; i < 2; i++) {
            for (unsigned j = 2; j < 5; j++) {
                network_cut(world.network, world.nodes[i].name, world.nodes[j].name, true);
                network_cut(world.network, world.nodes[j].name, world.nodes[i].name, true);
            }
        }
        run(&world, 20 * TIME_S);
        struct gathers_wish wish = wish_of(2, 2);
        wish.minority_continues = may == 1;
        wish.timeout_ns = 15 * TIME_S;
        struct process *few = join_with(&world, 0, "job", &wish);
        (void)join_with(&world, 1, "job", &wish);
        struct process *many = join_with(&world, 3, "job", &wish);
        (void)join_with(&world, 4, "job", &wish);
        run(&world, 16 * TIME_S);
        assert_seat(many, 0, 2);
        if (may == 1) {
            assert_seat(few, 0, 2);
            assert_string_not_equal(few->seat.comm_name, many->seat.comm_name);
        } else {
            assert_fails(few, STATUS_TIMED_OUT, "sees only 2 of the cluster's 5 nodes");
        }
        world_stop(&world);
    }
}

/* Jobs of other names and users have nothing to do with each other. */
static void test_other_jobs(void **state)
{
    (void)state;
    world_ready(&world, 2);
    struct gathers_wish wish = wish_of(1, 1);
    struct process *first = join_with(&world, 0, "one", &wish), *second = join_with(&world, 0, "two", &wish);
    run(&world, TIME_S);
    assert_seat(first, 0, 1);
    assert_seat(second, 0, 1);
    world_stop(&world);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t least, most;
    } bad[] = {{"", 1, 1},
               {"with space", 1, 1},
               {"123456789012345678901234567890123456789012345678901234567890123456789012345678901", 1, 1},
               {"job", 0, 1},
               {"job", 2, 1},
               {"job", 1, COMM_SIZE_MAX + 1}};
    struct error error;
    world_ready(&world, 2);
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct gathers_wish wish = wish_of(bad[i].least, bad[i].most);
        assert_null(join_with(&world, 0, bad[i].name, &wish)->entry);
        assert_int_equal(world.processes[i].result.status, STATUS_INVALID_ARGUMENT);
    }
    struct process *process = join(&world, 0, 1, 1);
    assert_int_equal(gathers_grow(process->entry, 1, 2, TIME_S, world.now_ns, &error), STATUS_NOT_FOUND);
    run(&world, TIME_S);
    assert_int_equal(gathers_grow(process->entry, 2, 1, TIME_S, world.now_ns, &error),
                     STATUS_INVALID_ARGUMENT);
    assert_int_equal(gathers_grow(process->entry, 1, 2, TIME_S, world.now_ns, &error), STATUS_OK);
    assert_int_equal(gathers_grow(process->entry, 1, 2, TIME_S, world.now_ns, &error), STATUS_IN_PROGRESS);
    run(&world, TIME_S);
    /* A node that drains gives no ranks, and those who wait are told. */
    struct process *waits = join(&world, 0, 1, 8);
    run(&world, TIME_S);
    gathers_drain(world.nodes[0].gathers, "node a is draining: new kernel", world.now_ns);
    assert_fails(waits, STATUS_SHUTTING_DOWN, "new kernel");
    struct gathers_wish wish = wish_of(1, 1);
    assert_fails(join_with(&world, 0, "job", &wish), STATUS_SHUTTING_DOWN, "new kernel");
    assert_int_equal(gathers_join_again(waits->entry, &wish, world.now_ns, &error), STATUS_SHUTTING_DOWN);
    gathers_drain(world.nodes[0].gathers, NULL, world.now_ns);
    assert_int_equal(gathers_join_again(waits->entry, &wish, world.now_ns, &error), STATUS_OK);
    /* A user who may not be on the node any more. */
    world.nodes[0].limit.uid = UID;
    world.nodes[0].limit.nodes = "b";
    gathers_recheck_users(world.nodes[0].gathers, world.now_ns);
    assert_fails(waits, STATUS_PERMISSION, "users in commd.conf");
    assert_fails(join_with(&world, 0, "job", &wish), STATUS_PERMISSION, "users in commd.conf");
    world_stop(&world);
}

static void test_limits(void **state)
{
    (void)state;
    static struct gathers_entry *entries[GATHERS_ENTRIES_MAX + GATHERS_NAMES_MAX];
    struct gathers_wish wish = wish_of(COMM_SIZE_MAX, COMM_SIZE_MAX);
    struct gathers_handler handler = {&world.processes[0], on_seated, on_grown, on_waiting};
    struct gathers_entry *more;
    struct error error;
    unsigned count = 0;
    world_ready(&world, 2);
    struct gathers *gathers = world.nodes[0].gathers;
    for (unsigned i = 0; i < GATHERS_ENTRIES_MAX; i++) {
        assert_int_equal(
            gathers_join(gathers, UID, NULL, "job", &wish, &handler, world.now_ns, &entries[count++], &error),
            STATUS_OK);
    }
    assert_int_equal(gathers_join(gathers, UID, NULL, "job", &wish, &handler, world.now_ns, &more, &error),
                     STATUS_LIMIT);
    for (unsigned i = 1; i < GATHERS_NAMES_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "job-%u", i);
        assert_int_equal(
            gathers_join(gathers, UID, NULL, name, &wish, &handler, world.now_ns, &entries[count++], &error),
            STATUS_OK);
    }
    assert_int_equal(
        gathers_join(gathers, UID, NULL, "one-more", &wish, &handler, world.now_ns, &more, &error),
        STATUS_LIMIT);
    run(&world, TIME_S);
    assert_true(used(&world.nodes[0]) + used(&world.nodes[1]) > 0);
    while (count > 0) {
        gathers_leave(entries[--count]);
    }
    run(&world, TIME_S);
    assert_int_equal(used(&world.nodes[0]), 0);
    assert_int_equal(used(&world.nodes[1]), 0);
    assert_null(world.nodes[0].gathers->here);
    assert_null(world.nodes[0].gathers->meetings);
    assert_null(world.nodes[1].gathers->meetings);
    assert_int_equal(gathers_next_deadline_ns(world.nodes[1].gathers), TIME_NEVER);
    world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_many_as_there_may_be),
        cmocka_unit_test(test_the_last_call),
        cmocka_unit_test(test_too_few),
        cmocka_unit_test(test_contradicting_wishes),
        cmocka_unit_test(test_growing),
        cmocka_unit_test(test_one_generation_after_the_other),
        cmocka_unit_test(test_a_generation_that_is_void),
        cmocka_unit_test(test_growing_in_vain),
        cmocka_unit_test(test_another_place),
        cmocka_unit_test(test_a_place_lost_with_a_rank),
        cmocka_unit_test(test_a_place_lost_with_a_new_rank),
        cmocka_unit_test(test_a_place_that_returns),
        cmocka_unit_test(test_a_minority),
        cmocka_unit_test(test_other_jobs),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
