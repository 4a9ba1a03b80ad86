#include "tests/unit/gather/gather_nodes.h"

/* Node b has a certificate of the cluster, but follows no rule: the test writes its messages. Node a is real.
 */

static struct world world; /* large */
static char job[16];       /* a name for which node a decides, or node b */
static unsigned answers;

static void on_message(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    (void)context;
    (void)node;
    (void)now_ns;
    answers += message->body_case == COMMD__MESH__MESSAGE__BODY_GATHERED;
}

/* place: the node that decides for `job`. */
static void start(unsigned place)
{
    world_start(&world, 2);
    run(&world, 2 * GATHERS_GRACE_NS);
    for (unsigned i = 0; i == 0 || place_of(&world, job) != place; i++) {
        (void)snprintf(job, sizeof job, "job-%u", i);
    }
    struct mesh_handler handler = {.message = on_message};
    mesh_set_handler(world.nodes[1].mesh, MESH_ROOM_GATHER, &handler);
    answers = 0;
}

static Commd__Mesh__GatherEntry entry_of(uint64_t id)
{
    Commd__Mesh__GatherEntry entry = COMMD__MESH__GATHER_ENTRY__INIT;
    entry.id = id;
    entry.least = 1;
    entry.most = 4;
    return entry;
}

static void say_report(const char *name, const Commd__Mesh__GatherEntry *entries, size_t count)
{
    static Commd__Mesh__GatherEntry *list[GATHERS_ENTRIES_MAX + 1];
    Commd__Mesh__Gather body = COMMD__MESH__GATHER__INIT;
    for (size_t i = 0; i < count; i++) {
        list[i] = (Commd__Mesh__GatherEntry *)(uintptr_t)&entries[i];
    }
    body.name = (char *)(uintptr_t)name;
    body.owner_uid = UID;
    body.entries = list;
    body.n_entries = count;
    Commd__Mesh__Message message = MESH_MESSAGE(GATHER, gather, &body);
    assert_int_equal(mesh_send(world.nodes[1].mesh, 0, &message), STATUS_OK);
    run(&world, 10 * TIME_MS);
}

static void say_answer(const Commd__Mesh__GatherSeat *seat, const char *text)
{
    Commd__Mesh__GatherSeat *list[1] = {(Commd__Mesh__GatherSeat *)(uintptr_t)seat};
    Commd__Mesh__Gathered body = COMMD__MESH__GATHERED__INIT;
    body.name = job;
    body.owner_uid = UID;
    body.waiting = 7;
    body.text = (char *)(uintptr_t)text;
    body.seats = list;
    body.n_seats = seat != NULL;
    Commd__Mesh__Message message = MESH_MESSAGE(GATHERED, gathered, &body);
    assert_int_equal(mesh_send(world.nodes[1].mesh, 0, &message), STATUS_OK);
    run(&world, 10 * TIME_MS);
}

static void assert_out(const char *why)
{
    struct mesh_node_info info;
    assert_false(mesh_node_is_up(world.nodes[0].mesh, 0));
    mesh_node_info(world.nodes[0].mesh, 0, &info);
    if (strstr(info.last_error, why) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", why, info.last_error);
    }
}

static void test_reports_that_no_commd_sends(void **state)
{
    (void)state;
    static Commd__Mesh__GatherEntry many[GATHERS_ENTRIES_MAX + 1];
    static const char *const names[] = {
        "", "with space",
        "12345678901234567890123456789012345678901234567890123456789012345678901234567890x"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        Commd__Mesh__GatherEntry entry = entry_of(1);
        start(0);
        say_report(names[i], &entry, 1);
        assert_out("the name of an elastic job that cannot exist");
        world_stop(&world);
    }
    start(0);
    for (unsigned i = 0; i <= GATHERS_ENTRIES_MAX; i++) {
        many[i] = entry_of(i + 1);
    }
    say_report(job, many, GATHERS_ENTRIES_MAX + 1);
    assert_out("too many processes");
    world_stop(&world);
    for (unsigned i = 0; i < 8; i++) {
        Commd__Mesh__GatherEntry entry = entry_of(i == 0 ? 0 : 1);
        entry.least = i == 1 ? 0 : i == 2 ? 5 : 1;
        entry.most = i == 3 ? COMM_SIZE_MAX + 1 : 4;
        entry.generation = i == 4 ? UINT64_MAX : 0;
        entry.grow_from = i == 5 ? 3 : 0;
        entry.grow_to = i == 5 ? 2 : i == 6 ? COMM_SIZE_MAX + 1 : 0;
        entry.grow_number = i == 7;
        start(0);
        say_report(job, &entry, 1);
        assert_out("wants what cannot be");
        assert_null(world.nodes[0].gathers->meetings);
        world_stop(&world);
    }
}

static void test_answers_that_no_place_gives(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        Commd__Mesh__GatherSeat seat = COMMD__MESH__GATHER_SEAT__INIT;
        start(1);
        struct process *process =
            join_with(&world, 0, job, &(struct gathers_wish){1, 4, 0, 60 * TIME_S, false});
        run(&world, 10 * TIME_MS);
        seat.id = process->entry->id;
        seat.generation = i == 0 ? 0 : 1;
        seat.rank = i == 1 ? 2 : 0;
        seat.size = i == 1 ? 2 : i == 2 ? COMM_SIZE_MAX + 1 : i == 3 ? 0 : 1;
        seat.grow_number = i == 3;
        say_answer(&seat, "");
        assert_out("does not exist");
        assert_int_equal(process->seated, 0);
        world_stop(&world);
    }
}

/* Seats that nobody asked for, or from a node that is not the place, mean nothing. Texts are made printable.
 */
static void test_answers_out_of_turn(void **state)
{
    (void)state;
    Commd__Mesh__GatherSeat seat = COMMD__MESH__GATHER_SEAT__INIT;
    seat.generation = 1;
    seat.size = 1;
    start(0);
    struct process *process = join_with(&world, 0, job, &(struct gathers_wish){2, 4, 0, TIME_S, false});
    run(&world, 10 * TIME_MS);
    seat.id = process->entry->id;
    say_answer(&seat, "");
    assert_int_equal(process->seated, 0);
    world_stop(&world);
    start(1);
    process = join_with(&world, 0, job, &(struct gathers_wish){2, 4, 0, TIME_S, false});
    run(&world, 10 * TIME_MS);
    seat.id = process->entry->id + 1;
    say_answer(&seat, "");
    seat.id = process->entry->id;
    seat.grow_number = 3;
    say_answer(&seat, "a\nb\x1b[31m");
    assert_int_equal(process->seated, 0);
    run(&world, 2 * TIME_S);
    assert_fails(process, STATUS_TIMED_OUT, "7 processes wait: a?b?[31m");
    world_stop(&world);
}

/* A node that reports very often, and of many names, holds what it may and no more. */
static void test_many_names(void **state)
{
    (void)state;
    char name[24];
    Commd__Mesh__GatherEntry entry = entry_of(1);
    entry.least = 4;
    start(0);
    for (unsigned i = 0; i < GATHERS_NAMES_MAX + 10; i++) {
        (void)snprintf(name, sizeof name, "many-%u", i);
        say_report(name, &entry, 1);
    }
    assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
    assert_int_equal(HASH_COUNT(world.nodes[0].gathers->meetings), GATHERS_NAMES_MAX);
    assert_int_equal(answers, GATHERS_NAMES_MAX);
    for (unsigned i = 0; i < GATHERS_NAMES_MAX + 10; i++) {
        (void)snprintf(name, sizeof name, "many-%u", i);
        say_report(name, &entry, 0);
    }
    assert_null(world.nodes[0].gathers->meetings);
    assert_int_equal(used(&world.nodes[0]), 0);
    world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reports_that_no_commd_sends),
        cmocka_unit_test(test_answers_that_no_place_gives),
        cmocka_unit_test(test_answers_out_of_turn),
        cmocka_unit_test(test_many_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
