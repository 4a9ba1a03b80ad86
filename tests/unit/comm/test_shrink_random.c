#define MEMBERS_MAX 256
#include "daemon/base/random.h"
#include "tests/unit/comm/comm_nodes.h"

static struct world world;
#include "tests/lib/case_count.h"
#include "tests/unit/comm/comm_ops.h"

/*
 * Processes die one after the other while the others shrink, each at a moment of its own: one communicator,
 * or two that share processes. With two, processes grow meanwhile: those that are left form one more
 * communicator, again and again. Some change their mind while it forms. Whatever happens:
 *   - no process's request for a next generation fails, and none waits for what another one does elsewhere;
 *   - in the end, the processes that are left are one communicator of each kind;
 *   - the communicator that forms is formed for all, or fails with a result that the case explains;
 *   - nothing is left of all that.
 * COMMD_CASES says how many cases to draw (1,000 with one communicator, 300 with two), COMMD_SEED where to
 * begin.
 */

enum { PROCESSES = 8, KINDS = 2, DEATHS_MAX = 5, GENERATIONS_MAX = DEATHS_MAX + 3, STEPS = 60 };

static const struct plan {
    unsigned kinds, cases, deaths;
    unsigned deaths_apart; /* in steps, on average */
    bool dies_at_once;
    bool grows;
    unsigned rounds_at_the_end;
} alone = {.kinds = 1,
           .cases = 1000,
           .deaths = 5,
           .deaths_apart = 8,
           .dies_at_once = true,
           .rounds_at_the_end = 10},
  shared = {
      .kinds = 2, .cases = 300, .deaths = 3, .deaths_apart = 12, .grows = true, .rounds_at_the_end = 20};

struct process {
    unsigned node;
    bool dead;
    struct member *all[KINDS][GENERATIONS_MAX]; /* of each kind: the newest last */
    unsigned count[KINDS];                      /* 0: it has no part in that kind */
    struct member *grown;                       /* null: it takes no part now */
    bool invited;                               /* it is to join, and has not */
    uint32_t rank;                              /* in that communicator */
};

static struct process processes[PROCESSES];
static struct random chance;
static struct {
    char name[16];
    unsigned round;
    uint32_t size;
    bool disturbed; /* a process died, or left, since it began */
} growing;
static struct {
    unsigned formed, failed, cancelled;
} seen;

static unsigned below(unsigned limit)
{
    return (unsigned)random_below(&chance, limit);
}

static struct member *now(const struct process *process, unsigned kind)
{
    return process->all[kind][process->count[kind] - 1];
}

/* --- What processes do --- */

static void die(struct process *process)
{
    process->dead = true;
    process->invited = false;
    growing.disturbed = true;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (unsigned i = 0; i < process->count[kind]; i++) {
            leave(process->all[kind][i], COMMS_LEAVE_LOST);
        }
    }
    if (process->grown != NULL) {
        leave(process->grown, COMMS_LEAVE_LOST);
        process->grown = NULL;
    }
}

/* It may be too early: some node does not know yet that this generation has failed. */
static void shrink(struct process *process, unsigned kind)
{
    struct member *member = shrink_within(now(process, kind), 0);
    if (member->join_result.status == STATUS_IN_PROGRESS) {
        world.member_count--;
        return;
    }
    if (member->handle == NULL) {
        fail_msg("%s", member->join_result.text);
    }
    assert_true(process->count[kind] < GENERATIONS_MAX);
    process->all[kind][process->count[kind]++] = member;
}

static void shrink_where_it_failed(const struct plan *plan, unsigned one_of)
{
    /* some processes begin with the one, some with the other */
    unsigned first = plan->kinds > 1 ? below(plan->kinds) : 0;
    for (unsigned i = 0; i < PROCESSES * plan->kinds; i++) {
        struct process *process = &processes[i % PROCESSES];
        unsigned kind = (first + i / PROCESSES + i % PROCESSES) % plan->kinds;
        if (!process->dead && process->count[kind] > 0 && now(process, kind)->aborted_count > 0 &&
            below(one_of) == 0) {
            shrink(process, kind);
        }
    }
}

/* --- Growing --- */

static bool is_growing(void)
{
    for (unsigned i = 0; i < PROCESSES; i++) {
        if (processes[i].grown != NULL || processes[i].invited) {
            return true;
        }
    }
    return false;
}

static void invite(void)
{
    growing.size = 0;
    growing.disturbed = false;
    (void)snprintf(growing.name, sizeof growing.name, "grown%u", growing.round++);
    for (unsigned i = 0; i < PROCESSES; i++) {
        if (!processes[i].dead) {
            processes[i].invited = true;
            processes[i].rank = growing.size++;
        }
    }
}

static void grow(struct process *process)
{
    struct comms_terms terms = {
        .name = growing.name, .rank = process->rank, .size = growing.size, .form_timeout_ms = 100};
    struct member *member = join_as(&world, process->node, &terms, 1000);
    process->invited = false;
    if (member->handle == NULL) { /* its node knows already that it cannot form */
        assert_true(growing.disturbed);
        world.member_count--;
        return;
    }
    process->grown = member;
}

static void look_at_grown(struct process *process)
{
    struct member *member = process->grown;
    enum status status = member->formed.status;
    if (member->formed_count == 0) {
        if (below(40) == 0) {
            seen.cancelled++;
            growing.disturbed = true;
            leave(member, COMMS_LEAVE_ORDERLY);
            process->grown = NULL;
        }
        return;
    }
    if (status != STATUS_OK &&
        (!growing.disturbed ||
         (status != STATUS_RANK_LOST && status != STATUS_TIMED_OUT && status != STATUS_ABORTED))) {
        fail_msg("%s: %s", status_name(status), member->formed.text);
    }
    seen.formed += status == STATUS_OK;
    seen.failed += status != STATUS_OK;
    leave(member, COMMS_LEAVE_ORDERLY);
    growing.disturbed = true; /* a process may learn that it has formed when others have left already */
    process->grown = NULL;
}

static void grow_at_random(bool begins)
{
    if (begins && !is_growing() && below(3) == 0) {
        invite();
    }
    for (unsigned i = 0; i < PROCESSES; i++) {
        if (processes[i].invited && (!begins || below(2) == 0)) {
            grow(&processes[i]);
        } else if (processes[i].grown != NULL) {
            look_at_grown(&processes[i]);
        }
    }
}

/* --- What must hold --- */

static void look(void)
{
    for (unsigned i = 0; i < PROCESSES * KINDS; i++) {
        const struct process *process = &processes[i % PROCESSES];
        unsigned kind = i / PROCESSES;
        if (!process->dead && process->count[kind] > 0 && now(process, kind)->formed_count > 0 &&
            now(process, kind)->formed.status != STATUS_OK) {
            fail_msg("a survivor cannot go on: %s", now(process, kind)->formed.text);
        }
    }
}

static void check_end(unsigned kind)
{
    uint32_t count = 0, seats = 0;
    uint64_t comm_id = 0;
    for (unsigned i = 0; i < PROCESSES; i++) {
        count += !processes[i].dead && processes[i].count[kind] > 0;
    }
    for (unsigned i = 0; i < PROCESSES; i++) {
        if (processes[i].dead || processes[i].count[kind] == 0) {
            continue;
        }
        const struct member *member = now(&processes[i], kind);
        struct communicator_view view;
        assert_formed(member);
        assert_int_equal(member->aborted_count, 0);
        comms_member_view(member->handle, &view);
        assert_int_equal(view.size, count);
        assert_int_equal(seats >> view.rank & 1, 0);
        assert_true(kind > 0 || seats >> view.rank == 0); /* in the same order as before */
        seats |= 1u << view.rank;
        comm_id = comm_id == 0 ? view.comm_id : comm_id;
        assert_true(view.comm_id == comm_id);
    }
}

/* The second kind has some of the processes, in the reverse order. */
static void form_kinds(unsigned nodes)
{
    static const unsigned some[] = {6, 5, 3, 2, 0};
    enum { SOME = sizeof some / sizeof some[0] };
    for (unsigned i = 0; i < PROCESSES; i++) {
        processes[i] = (struct process){.node = i % nodes};
        processes[i].all[0][processes[i].count[0]++] = join(&world, i % nodes, "all", i, PROCESSES);
    }
    for (unsigned i = 0; i < SOME; i++) {
        struct process *process = &processes[some[i]];
        process->all[1][process->count[1]++] = join(&world, process->node, "some", i, SOME);
    }
    run(&world, 20 * TIME_MS);
    for (unsigned i = 0; i < PROCESSES * KINDS; i++) {
        if (processes[i % PROCESSES].count[i / PROCESSES] > 0) {
            assert_formed(now(&processes[i % PROCESSES], i / PROCESSES));
        }
    }
}

static void form_one(unsigned nodes)
{
    struct member *members[PROCESSES];
    form_ops(members, nodes, PROCESSES, 0, "again");
    for (unsigned i = 0; i < PROCESSES; i++) {
        processes[i] = (struct process){.node = i % nodes, .all = {{members[i]}}, .count = {1}};
    }
}

static void one_case(const struct plan *plan, unsigned seed)
{
    unsigned nodes = 1 + seed % 4, deaths = 0;
    random_seed(&chance, seed);
    growing.round = 0;
    world_start(&world, nodes, seed, NULL);
    connect_all(&world);
    plan->kinds == 1 ? form_one(nodes) : form_kinds(nodes);
    for (unsigned step = 0; step < STEPS; step++) {
        if (deaths < plan->deaths && ((step == 0 && plan->dies_at_once) || below(plan->deaths_apart) == 0)) {
            struct process *victim = &processes[below(PROCESSES)];
            deaths += !victim->dead;
            if (!victim->dead) {
                die(victim);
            }
        }
        shrink_where_it_failed(plan, 3);
        if (plan->grows) {
            grow_at_random(growing.round < 8);
        }
        run(&world, below(4) * 60 * TIME_US);
        look();
    }
    for (unsigned i = 0; i < plan->rounds_at_the_end; i++) {
        shrink_where_it_failed(plan, 1);
        grow_at_random(false);
        run(&world, 20 * TIME_MS);
        look();
    }
    assert_false(is_growing());
    for (unsigned kind = 0; kind < plan->kinds; kind++) {
        check_end(kind);
    }
    world_stop(&world);
}

static unsigned draw_cases(const struct plan *plan)
{
    const char *from = getenv("COMMD_SEED");
    unsigned first = from != NULL ? (unsigned)strtoul(from, NULL, 10) : 0;
    unsigned count = (unsigned)case_count(plan->cases);
    for (unsigned seed = first; seed < first + count; seed++) {
        print_message("COMMD_SEED=%u\n", seed);
        one_case(plan, seed);
    }
    return count;
}

static void test_one_communicator(void **state)
{
    (void)state;
    (void)draw_cases(&alone);
}

/* Cases that found faults: a node that had no survivor answered too late; a generation failed before its
 * ranks came. */
static void test_cases_that_failed(void **state)
{
    (void)state;
    one_case(&alone, 362);
    one_case(&alone, 4665);
}

static void test_two_that_share_processes(void **state)
{
    (void)state;
    unsigned count = draw_cases(&shared);
    print_message("# formed %u times, failed %u times, cancelled %u times\n", seen.formed, seen.failed,
                  seen.cancelled);
    assert_true(count < 20 || (seen.formed > 0 && seen.failed > 0 && seen.cancelled > 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases_that_failed),
        cmocka_unit_test(test_one_communicator),
        cmocka_unit_test(test_two_that_share_processes),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
