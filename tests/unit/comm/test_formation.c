#include "tests/unit/comm/comm_nodes.h"

static struct world world; /* large */

/* --- What is formed --- */

/* Forms a communicator. Its nodes have unequal numbers of ranks, which are not contiguous. */
static void form(unsigned nodes, const unsigned *node_of_rank, uint32_t size, uint64_t seed,
                 const struct network_conditions *conditions, bool connected)
{
    struct member *members[16];
    world_start(&world, nodes, seed, conditions);
    if (connected) {
        connect_all(&world);
    }
    for (uint32_t i = 0; i < size; i++) {
        uint32_t rank = (i * 5 + (uint32_t)seed) % size; /* size is not a multiple of 5 */
        members[rank] = join(&world, node_of_rank[rank], "comm", rank, size);
        if (i % 3 == 0) {
            run(&world, 300 * TIME_US);
        }
    }
    run(&world, connected ? TIME_S : 10 * TIME_S);
    struct communicator_view first = {0};
    for (uint32_t rank = 0; rank < size; rank++) {
        assert_formed(members[rank]);
        struct communicator_view view;
        comms_member_view(members[rank]->handle, &view);
        if (rank == 0) {
            first = view;
        }
        assert_int_equal(view.comm_id, first.comm_id);
        assert_int_not_equal(view.comm_id, 0);
        assert_int_equal(view.size, size);
        assert_int_equal(view.rank, rank);
        assert_int_equal(view.node_count, first.node_count);
        uint32_t local_rank = 0, local_size = 0;
        uint32_t highest = 0;
        for (uint32_t i = 0; i < size; i++) {
            assert_int_equal(view.node_of_rank[i], first.node_of_rank[i]);
            assert_string_equal(view.node_names[view.node_of_rank[i]], world.nodes[node_of_rank[i]].name);
            local_rank += i < rank && node_of_rank[i] == node_of_rank[rank];
            local_size += node_of_rank[i] == node_of_rank[rank];
            /* Nodes are numbered in the order of their lowest rank. */
            assert_true(view.node_of_rank[i] <= highest);
            highest += view.node_of_rank[i] == highest;
        }
        assert_int_equal(view.node_count, highest);
        assert_int_equal(view.local_rank, local_rank);
        assert_int_equal(view.local_size, local_size);
    }
    world_stop(&world);
}

static void test_one_to_five_nodes(void **state)
{
    (void)state;
    static const unsigned one[] = {0, 0, 0};
    static const unsigned alone[] = {1};
    static const unsigned two[] = {1, 0, 1, 1};
    static const unsigned three[] = {2, 0, 1, 2, 2, 0, 2};
    static const unsigned five[] = {4, 4, 3, 0, 1, 4, 2, 2, 0, 4, 1, 4, 3};
    static const struct network_conditions rough = {.delay_ns = TIME_MS, .jitter_ns = 2 * TIME_MS};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const struct network_conditions *conditions = seed % 2 == 0 ? &rough : NULL;
        bool connected = seed % 3 != 0; /* else nodes find each other while it forms */
        form(1, one, 3, seed, conditions, connected);
        form(2, alone, 1, seed, conditions, connected);
        form(2, two, 4, seed, conditions, connected);
        form(3, three, 7, seed, conditions, connected);
        form(5, five, 13, seed, conditions, connected);
    }
}

static void test_a_name_is_used_again_50_times(void **state)
{
    (void)state;
    uint64_t last_id = 0;
    world_start(&world, 3, 1, NULL);
    connect_all(&world);
    for (unsigned turn = 0; turn < 50; turn++) {
        struct member *members[4];
        for (uint32_t rank = 0; rank < 4; rank++) {
            members[rank] = join(&world, rank % 3, "again", rank, 4);
        }
        run(&world, 10 * TIME_MS);
        struct communicator_view view;
        comms_member_view(members[0]->handle, &view);
        assert_int_not_equal(view.comm_id, last_id);
        assert_int_equal(view.generation, turn + 1);
        last_id = view.comm_id;
        for (uint32_t rank = 0; rank < 4; rank++) {
            assert_formed(members[rank]);
            assert_int_equal(members[rank]->aborted_count, 0);
        }
        leave_all(&world);
    }
    world_stop(&world);
}

/* Ranks leave and come again while others have not left yet. No rank waits for another. */
static void test_a_name_is_used_again_at_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        world_start(&world, 3, seed, NULL);
        connect_all(&world);
        struct member *old[5], *new[5];
        for (uint32_t rank = 0; rank < 5; rank++) {
            old[rank] = join(&world, rank % 3, "x", rank, 5);
        }
        run(&world, 10 * TIME_MS);
        for (uint32_t i = 0; i < 5; i++) {
            uint32_t rank = (uint32_t)((i * 2 + seed) % 5);
            leave(old[rank], COMMS_LEAVE_ORDERLY);
            new[rank] = join(&world, rank % 3, "x", rank, 5);
            assert_int_equal(new[rank]->join_result.status, STATUS_OK);
            run(&world, seed % 2 == 0 ? 0 : TIME_MS);
        }
        run(&world, 100 * TIME_MS);
        for (uint32_t rank = 0; rank < 5; rank++) {
            assert_int_equal(old[rank]->aborted_count, 0);
            assert_formed(new[rank]);
        }
        world_stop(&world);
    }
}

static void test_an_owner_leaves_from_within_its_callback(void **state)
{
    (void)state;
    world_start(&world, 2, 3, NULL);
    connect_all(&world);
    struct member *members[4];
    for (uint32_t rank = 0; rank < 4; rank++) {
        members[rank] = join(&world, rank / 2, "short", rank, 4);
        members[rank]->leave_when_formed = true;
    }
    run(&world, TIME_S);
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_formed(members[rank]);
        assert_null(members[rank]->handle);
    }
    assert_int_equal(comm_count(&world, 0) + comm_count(&world, 1), 0);
    world_stop(&world);
}

/* --- Who is refused --- */

static void test_bad_terms(void **state)
{
    (void)state;
    static char long_name[COMM_NAME_MAX_BYTES + 2];
    memset(long_name, 'n', sizeof long_name - 1);
    const struct {
        struct comms_terms terms;
        const char *text;
    } cases[] = {
        {{.name = "", .size = 1}, "name"},
        {{.name = NULL, .size = 1}, "name"},
        {{.name = "a b", .size = 1}, "name"},
        {{.name = "a\x7f", .size = 1}, "name"},
        {{.name = "\xc3\xa4", .size = 1}, "name"},
        {{.name = long_name, .size = 1}, "127"},
        {{.name = "x", .size = 0}, "size 0"},
        {{.name = "x", .size = COMM_SIZE_MAX + 1}, "size 65537"},
        {{.name = "x", .size = 3, .rank = 3}, "rank 3, but the size is 3"},
        {{.name = "x", .size = 3, .algorithms = "a b"}, "algorithms"},
    };
    world_start(&world, 1, 1, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct member *member = join_as(&world, 0, &cases[i].terms, 1000);
        assert_error(&member->join_result, STATUS_INVALID_ARGUMENT, cases[i].text);
    }
    assert_int_equal(comm_count(&world, 0), 0);
    long_name[COMM_NAME_MAX_BYTES] = '\0';
    struct member *member = join(&world, 0, long_name, 0, 1);
    run(&world, TIME_MS);
    assert_formed(member);
    comms_drain(world.nodes[0].comms, "node a is draining: new kernel", world.now_ns);
    assert_error(&join(&world, 0, "late", 0, 1)->join_result, STATUS_SHUTTING_DOWN,
                 "\"late\": node a is draining: new kernel");
    world_stop(&world);
}

static void test_refused_at_once_on_one_node(void **state)
{
    (void)state;
    world_start(&world, 1, 1, NULL);
    join(&world, 0, "one", 0, 3); /* pid 100 */
    join(&world, 0, "one", 2, 3);
    assert_error(&join(&world, 0, "one", 2, 3)->join_result, STATUS_ALREADY_EXISTS,
                 "\"one\": rank 2 is taken by pid 101 of node a");
    assert_error(&join(&world, 0, "one", 1, 4)->join_result, STATUS_MISMATCH,
                 "\"one\": rank 1 (pid 103) asks for size 4, rank 0 (pid 100) has size 3");
    struct comms_terms terms = {.name = "one", .rank = 1, .size = 3};
    terms.op_timeout_ms = 7;
    assert_error(&join_as(&world, 0, &terms, 1000)->join_result, STATUS_MISMATCH, "op_timeout_ms 7");
    terms.op_timeout_ms = 0;
    terms.slice_bytes = 4096;
    assert_error(&join_as(&world, 0, &terms, 1000)->join_result, STATUS_MISMATCH, "slice_bytes 4096");
    terms.slice_bytes = 0;
    terms.algorithms = "all_reduce=ring";
    assert_error(&join_as(&world, 0, &terms, 1000)->join_result, STATUS_MISMATCH,
                 "algorithms \"all_reduce=ring\"");
    /* Defaults that are given explicitly are the same terms. */
    struct member *last = join_as(&world, 0,
                                  &(struct comms_terms){.name = "one",
                                                        .rank = 1,
                                                        .size = 3,
                                                        .algorithms = "",
                                                        .op_timeout_ms = COMMS_TIMEOUT_DEFAULT_MS,
                                                        .slice_bytes = EXEC_SLICE_BYTES_DEFAULT},
                                  1000);
    run(&world, TIME_MS);
    assert_formed(last);
    assert_error(&join(&world, 0, "one", 1, 3)->join_result, STATUS_ALREADY_EXISTS, "rank 1 is taken by pid");
    world_stop(&world);
}

/* Ranks 0 and 1 of 3 are there. Another node comes with terms that do not fit. Rank 2, which fits, comes
 * afterwards, or has come before (formed_first). */
static void refuse(const struct comms_terms *terms, uid_t uid, enum status status, const char *text,
                   bool formed_first)
{
    world_start(&world, 4, 2, NULL);
    connect_all(&world);
    struct member *members[3];
    members[0] = join(&world, 1, "fit", 0, 3);
    members[1] = join(&world, 2, "fit", 1, 3);
    members[2] = formed_first ? join(&world, 3, "fit", 2, 3) : NULL;
    run(&world, 10 * TIME_MS);
    struct member *stranger = join_as(&world, 0, terms, uid);
    assert_int_equal(stranger->join_result.status, STATUS_OK);
    run(&world, 10 * TIME_MS);
    assert_int_equal(stranger->formed_count, 1);
    assert_error(&stranger->formed, status, text);
    if (!formed_first) {
        members[2] = join(&world, 3, "fit", 2, 3);
        run(&world, 10 * TIME_MS);
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_formed(members[i]);
        assert_int_equal(members[i]->aborted_count, 0);
    }
    /* Once the refused member has left, its node may use the name for something else, on that node alone. */
    leave(stranger, COMMS_LEAVE_ORDERLY);
    world_stop(&world);
}

static void test_refused_by_another_node(void **state)
{
    (void)state;
    for (unsigned formed_first = 0; formed_first < 2; formed_first++) {
        struct comms_terms terms = {.name = "fit", .rank = 1, .size = 3};
        refuse(&terms, 1000, STATUS_ALREADY_EXISTS,
               "\"fit\": rank 1 is taken by pid 101 of node c; node a asks for it", formed_first);
        terms.size = 4;
        refuse(&terms, 1000, STATUS_MISMATCH, "node a asks for size 4, node ", formed_first);
        terms.size = 3;
        terms.op_timeout_ms = 1234;
        refuse(&terms, 1000, STATUS_MISMATCH, "op_timeout_ms 1234", formed_first);
        terms.op_timeout_ms = 0;
        terms.slice_bytes = 999;
        refuse(&terms, 1000, STATUS_MISMATCH, "slice_bytes 999", formed_first);
        terms.slice_bytes = 0;
        terms.algorithms = "broadcast=tree";
        refuse(&terms, 1000, STATUS_MISMATCH, "algorithms \"broadcast=tree\"", formed_first);
    }
}

/* A rank conflict refuses that rank alone: the other rank of the same node stays. */
static void test_one_rank_of_two_is_refused(void **state)
{
    (void)state;
    world_start(&world, 2, 2, NULL);
    connect_all(&world);
    struct member *first = join(&world, 1, "part", 1, 3);
    run(&world, 10 * TIME_MS);
    struct member *zero = join(&world, 0, "part", 0, 3);
    run(&world, 10 * TIME_MS);
    assert_error(&join(&world, 0, "part", 1, 3)->join_result, STATUS_ALREADY_EXISTS,
                 "rank 1 is taken, on node b");
    struct member *two = join(&world, 0, "part", 2, 3);
    run(&world, 10 * TIME_MS);
    assert_formed(first);
    assert_formed(zero);
    assert_formed(two);
    leave_all(&world);
    /* Both nodes claim rank 1 at once. The node with the lower name keeps all its ranks. The other node keeps
     * the ranks that nobody else claims. */
    struct member *a1 = join(&world, 0, "tie", 1, 4);
    struct member *a0 = join(&world, 0, "tie", 0, 4);
    struct member *b1 = join(&world, 1, "tie", 1, 4);
    struct member *b2 = join(&world, 1, "tie", 2, 4);
    run(&world, 10 * TIME_MS);
    assert_int_equal(b1->formed_count, 1);
    assert_error(&b1->formed, STATUS_ALREADY_EXISTS,
                 "rank 1 is taken by pid 100 of node a; node b asks for it");
    assert_int_equal(a0->formed_count + a1->formed_count + b2->formed_count, 0);
    struct member *b3 = join(&world, 1, "tie", 3, 4);
    run(&world, 10 * TIME_MS);
    assert_formed(a0);
    assert_formed(a1);
    assert_formed(b2);
    assert_formed(b3);
    world_stop(&world);
}

static void test_both_at_once_with_other_terms(void **state)
{
    (void)state;
    world_start(&world, 3, 2, NULL);
    connect_all(&world);
    struct member *a = join(&world, 0, "tie", 0, 2);
    struct member *b = join(&world, 1, "tie", 1, 3);
    run(&world, 10 * TIME_MS);
    assert_int_equal(a->formed_count, 0);
    assert_int_equal(b->formed_count, 1);
    assert_error(&b->formed, STATUS_MISMATCH, "\"tie\": node b asks for size 3, node a has size 2");
    struct member *c = join(&world, 2, "tie", 1, 2);
    run(&world, 10 * TIME_MS);
    assert_formed(a);
    assert_formed(c);
    world_stop(&world);
}

/*
 * The configurations of two nodes differ, and no program sets the value itself. Whichever node comes first,
 * both are told at once. A program that sets the value itself is not affected.
 */
static void test_nodes_with_other_settings(void **state)
{
    (void)state;
    static const char text[] = "asks for slice_bytes ", why[] = "(commd.conf of the two nodes differs)";
    slice_bytes_settings[1] = 65536;
    for (unsigned order = 0; order < 3; order++) {
        world_start(&world, 3, 2 + order, NULL);
        connect_all(&world);
        struct member *first = join(&world, order == 1, "differ", order == 1, 3);
        run(&world, order == 2 ? 0 : 10 * TIME_MS);
        struct member *second = join(&world, order != 1, "differ", order != 1, 3);
        run(&world, 10 * TIME_MS);
        assert_int_equal(first->formed_count + second->formed_count, 2);
        assert_error(&first->formed, STATUS_MISMATCH, text);
        assert_error(&second->formed, STATUS_MISMATCH, text);
        assert_error(&first->formed, STATUS_MISMATCH, why);
        struct comms_terms terms = {.name = "agreed", .rank = 0, .size = 2, .slice_bytes = 8192};
        struct member *zero = join_as(&world, 0, &terms, 1000);
        terms.rank = 1;
        struct member *one = join_as(&world, 1, &terms, 1000);
        run(&world, 10 * TIME_MS);
        assert_formed(zero);
        assert_formed(one);
        world_stop(&world);
    }
    slice_bytes_settings[1] = 0;
}

/* All ranks come twice, at once. A complete set forms. Two sets may form if their nodes did not hear of each
 * other in time. Every member gets a result. No member stays in a set that is not complete. */
static void test_a_crowd(void **state)
{
    (void)state;
    static const struct network_conditions rough = {.delay_ns = TIME_MS, .jitter_ns = 3 * TIME_MS};
    unsigned whole = 0, connected = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        world_start(&world, 4, seed, &rough);
        if (seed % 4 != 0) {
            connect_all(&world);
        }
        struct member *members[8];
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t at = (uint32_t)((i * 3 + seed) % 8);
            members[at] = join_as(
                &world, at / 2,
                &(struct comms_terms){.name = "crowd", .rank = at % 4, .size = 4, .form_timeout_ms = 8000},
                1000);
            run(&world, seed % 3 == 0 ? 0 : (seed % 3) * 700 * TIME_US);
        }
        run(&world, 20 * TIME_S);
        unsigned good = 0;
        uint64_t ids[8];
        for (uint32_t i = 0; i < 8; i++) {
            if (members[i]->join_result.status != STATUS_OK) {
                assert_error(&members[i]->join_result, STATUS_ALREADY_EXISTS, "crowd");
                continue;
            }
            assert_int_equal(members[i]->formed_count, 1);
            if (members[i]->formed.status != STATUS_OK) {
                assert_non_null(strstr(members[i]->formed.text, "crowd"));
            } else if (members[i]->aborted_count == 0) {
                struct communicator_view view;
                comms_member_view(members[i]->handle, &view);
                ids[good++] = view.comm_id;
            }
        }
        for (unsigned i = 0; i < good; i++) {
            unsigned same = 0;
            for (unsigned j = 0; j < good; j++) {
                same += ids[j] == ids[i];
            }
            assert_int_equal(same, 4);
        }
        whole += good > 0;
        connected += seed % 4 != 0;
        world_stop(&world);
    }
    print_message("a set formed in %u of 30 crowds\n", whole);
    assert_true(whole >= connected);
}

/* --- What is seen --- */

struct seen {
    unsigned count;
    struct communicator_info info;
    char missing[64], nodes[64], error[256];
};

static bool see(void *context, const struct communicator_info *info)
{
    struct seen *seen = context;
    seen->count++;
    seen->info = *info;
    snprintf(seen->missing, sizeof seen->missing, "%s", info->missing_ranks);
    snprintf(seen->error, sizeof seen->error, "%s", info->error);
    seen->nodes[0] = '\0';
    for (uint32_t i = 0; i < info->node_count; i++) {
        strcat(seen->nodes, info->node_names[i]);
    }
    return true;
}

static void test_what_is_seen(void **state)
{
    (void)state;
    struct seen seen = {0};
    world_start(&world, 3, 5, NULL);
    connect_all(&world);
    join(&world, 2, "look", 0, 4);
    join(&world, 0, "look", 2, 4);
    run(&world, 10 * TIME_MS);
    comms_visit_comms(world.nodes[0].comms, see, &seen);
    assert_int_equal(seen.count, 1);
    assert_int_equal(seen.info.state, COMMS_COMM_FORMING);
    assert_int_equal(seen.info.size, 4);
    assert_int_equal(seen.info.local_size, 1);
    assert_int_equal(seen.info.known_ranks, 2);
    assert_string_equal(seen.missing, "1, 3");
    assert_string_equal(seen.nodes, "ac");
    join(&world, 1, "look", 1, 4);
    join(&world, 1, "look", 3, 4);
    run(&world, 10 * TIME_MS);
    comms_visit_comms(world.nodes[0].comms, see, &seen);
    assert_int_equal(seen.info.state, COMMS_COMM_FORMED);
    assert_string_equal(seen.missing, "");
    assert_string_equal(seen.nodes, "cba");
    assert_int_equal(seen.info.owner_uid, 1000);
    struct error cause = {.status = STATUS_ABORTED, .text = "by hand"};
    assert_int_equal(comms_abort(world.nodes[1].comms, 1000, "look", &cause, world.now_ns), STATUS_OK);
    assert_int_equal(comms_abort(world.nodes[1].comms, 1000, "nothing", &cause, world.now_ns),
                     STATUS_NOT_FOUND);
    run(&world, 10 * TIME_MS);
    comms_visit_comms(world.nodes[0].comms, see, &seen);
    assert_int_equal(seen.info.state, COMMS_COMM_FAILED);
    assert_string_equal(seen.error, "by hand");
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_to_five_nodes),
        cmocka_unit_test(test_a_name_is_used_again_50_times),
        cmocka_unit_test(test_a_name_is_used_again_at_once),
        cmocka_unit_test(test_an_owner_leaves_from_within_its_callback),
        cmocka_unit_test(test_bad_terms),
        cmocka_unit_test(test_refused_at_once_on_one_node),
        cmocka_unit_test(test_refused_by_another_node),
        cmocka_unit_test(test_one_rank_of_two_is_refused),
        cmocka_unit_test(test_both_at_once_with_other_terms),
        cmocka_unit_test(test_nodes_with_other_settings),
        cmocka_unit_test(test_a_crowd),
        cmocka_unit_test(test_what_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
