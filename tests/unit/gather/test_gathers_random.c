#include "daemon/base/random.h"
#include "tests/lib/case_count.h"
#include "tests/unit/gather/gather_nodes.h"

/*
 * Jobs whose processes come, go, die and grow at random, on nodes that die and return. Whatever happens:
 * every rank of a generation is given once, all its ranks know the same size, no new generation begins while
 * ranks of another one are there, and in the end everybody who waits gets a rank.
 *
 * COMMD_CASES says how many jobs to draw (150), COMMD_SEED where to begin.
 */

enum { NODES = 5, STEPS = 150, SEEDS = 150, LIVING_MAX = 12 };

static struct world world; /* large */
static struct random chance;
static unsigned seats_seen[PROCESSES_MAX]; /* answers that were looked at */
static bool is_rank[PROCESSES_MAX];        /* its communicator has formed */
static bool is_down[NODES];
static struct {
    unsigned first, grown, voids; /* generations */
} seen;

static unsigned below(unsigned limit)
{
    return (unsigned)random_below(&chance, limit);
}

static struct gathers_wish patient_wish(void)
{
    struct gathers_wish wish = wish_of(1 + below(3), 64);
    wish.timeout_ns = 100000 * TIME_S;
    return wish;
}

static bool lives(unsigned i)
{
    return world.processes[i].entry != NULL;
}

static unsigned living(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < world.process_count; i++) {
        count += lives(i);
    }
    return count;
}

static bool has_seat(unsigned i)
{
    return lives(i) && world.processes[i].seated > 0 && world.processes[i].result.status == STATUS_OK &&
           world.processes[i].entry->generation != 0;
}

/* No two have the same rank, and all agree on the size. */
static void check_seat(unsigned i)
{
    const struct gathers_seat *seat = &world.processes[i].seat;
    assert_true(seat->rank < seat->size);
    for (unsigned j = 0; j < world.process_count; j++) {
        const struct gathers_seat *other = &world.processes[j].seat;
        if (j != i && world.processes[j].seated > 0 && strcmp(seat->comm_name, other->comm_name) == 0) {
            assert_int_not_equal(seat->rank, other->rank);
            assert_int_equal(seat->size, other->size);
        }
    }
}

/* A generation that begins anew has a rank 0 among its seats. Then nobody else may be a rank. */
static void check_alone(unsigned i)
{
    if (world.processes[i].seat.rank == 0) {
        for (unsigned j = 0; j < world.process_count; j++) {
            assert_false(lives(j) && is_rank[j]);
        }
    }
}

static bool is_void(unsigned i)
{
    struct error error;
    return gathers_check(world.processes[i].node->gathers, UID, world.processes[i].seat.comm_name, &error) !=
           STATUS_OK;
}

static void look_at_seats(void)
{
    for (unsigned i = 0; i < world.process_count; i++) {
        if (lives(i) && world.processes[i].seated > seats_seen[i]) {
            seats_seen[i] = world.processes[i].seated;
            if (world.processes[i].result.status == STATUS_OK) {
                check_seat(i);
                check_alone(i);
            }
        }
    }
}

/* The communicator of a new generation forms if all its ranks live, those that were there before included. */
static void form(bool at_once)
{
    for (unsigned i = 0; i < world.process_count; i++) {
        unsigned members = 0, before = 0;
        if (!has_seat(i) || is_rank[i] || (!at_once && below(3) != 0)) {
            continue;
        }
        const struct gathers_seat *seat = &world.processes[i].seat;
        for (unsigned j = 0; j < world.process_count; j++) {
            members +=
                has_seat(j) && !is_rank[j] && strcmp(world.processes[j].seat.comm_name, seat->comm_name) == 0;
            before += lives(j) && is_rank[j];
        }
        if (members + before == seat->size && !is_void(i)) {
            seen.first += before == 0;
            seen.grown += before > 0;
            uint64_t generation = seat->generation;
            char name[COMM_NAME_MAX_BYTES + 1];
            memcpy(name, seat->comm_name, sizeof name);
            for (unsigned j = 0; j < world.process_count; j++) {
                if (lives(j) &&
                    (is_rank[j] || (has_seat(j) && strcmp(world.processes[j].seat.comm_name, name) == 0))) {
                    is_rank[j] = true;
                    gathers_settle(world.processes[j].entry, generation);
                }
            }
        } else if (is_void(i) || (!at_once && below(4) == 0)) {
            seen.voids +=
                is_void(i); /* or it has waited too long for the others; in calm times nobody has to */
            struct gathers_wish wish = patient_wish();
            struct error error;
            assert_int_equal(gathers_join_again(world.processes[i].entry, &wish, world.now_ns, &error),
                             STATUS_OK);
        }
    }
}

static void one_grows(void)
{
    unsigned ranks = 0, first = PROCESSES_MAX;
    struct error error;
    for (unsigned i = 0; i < world.process_count; i++) {
        if (lives(i) && is_rank[i]) {
            ranks++;
            first = first == PROCESSES_MAX ? i : first;
        }
    }
    if (ranks > 0) {
        enum status status =
            gathers_grow(world.processes[first].entry, ranks, ranks + 3, 5 * TIME_S, world.now_ns, &error);
        assert_true(status == STATUS_OK || status == STATUS_IN_PROGRESS);
    }
}

static void restart_or_stop(void)
{
    unsigned node = below(NODES), down = 0;
    for (unsigned i = 0; i < NODES; i++) {
        down += is_down[i];
    }
    if (is_down[node]) {
        node_start(&world, node, 1000 + below(100000));
        is_down[node] = false;
    } else if (down == 0) {
        node_stop(&world, node);
        is_down[node] = true;
    }
}

static void step(void)
{
    unsigned what = below(20);
    unsigned node = below(NODES);
    if (what < 6 && !is_down[node] && living() < LIVING_MAX && world.process_count < PROCESSES_MAX) {
        is_rank[world.process_count] = false;
        seats_seen[world.process_count] = 0;
        struct gathers_wish wish = patient_wish();
        assert_non_null(join_with(&world, node, "job", &wish)->entry);
    } else if (what < 9 && world.process_count > 0) {
        leave(&world.processes[below(world.process_count)]);
    } else if (what < 10) {
        restart_or_stop();
    } else if (what < 14) {
        one_grows();
    }
    run(&world, below(3) == 0 ? 2 * TIME_S : below(200) * TIME_MS);
    look_at_seats();
    form(false);
}

/* Calm: all nodes run, and the ranks take in whoever waits. */
static void rest(void)
{
    for (unsigned node = 0; node < NODES; node++) {
        if (is_down[node]) {
            node_start(&world, node, 2000 + node);
            is_down[node] = false;
        }
    }
    for (unsigned i = 0; i < 60; i++) {
        one_grows();
        run(&world, TIME_S);
        look_at_seats();
        form(true);
    }
    for (unsigned i = 0; i < world.process_count; i++) {
        if (lives(i) && !is_rank[i]) {
            fail_msg("process %u of %u on node %s has no rank: waits %d, result %s", i, living(),
                     world.processes[i].node->name, world.processes[i].entry->asks,
                     world.processes[i].result.text);
        }
    }
}

static void test_random(void **state)
{
    const char *from = getenv("COMMD_SEED");
    unsigned first = from != NULL ? (unsigned)strtoul(from, NULL, 10) : 0;
    unsigned count = (unsigned)case_count(SEEDS);
    (void)state;
    for (unsigned seed = first; seed < first + count; seed++) {
        print_message("COMMD_SEED=%u\n", seed);
        random_seed(&chance, seed);
        memset(is_down, 0, sizeof is_down);
        world_ready(&world, NODES);
        for (unsigned i = 0; i < STEPS; i++) {
            step();
        }
        rest();
        world_stop(&world);
    }
    print_message("%u first generations, %u that grew, %u void\n", seen.first, seen.grown, seen.voids);
    if (count >= SEEDS) {
        assert_true(seen.first > SEEDS && seen.grown > SEEDS && seen.voids > SEEDS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
