#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/mesh/member_records.h"
#include "tests/lib/case_count.h"
#include "tests/sim/cluster.h"
#include "tests/sim/members_world.h"

/*
 * Membership of whole clusters: deaths, restarts, partitions, flapping, stalls and lies. In the end, all
 * living nodes that reach each other agree. COMMD_CASES=20 runs each scenario with so many seeds.
 * COMMD_STORM=10000 starts so many nodes at once; 10,000 take 5 GB and some minutes.
 */
#define SEEDS 1
#define ALL_KNOW_NS (10 * TIME_S) /* a death, its patience of 4.25 s included */
#define BYTES_PER_S_MAX 2048u
#define MESSAGES_PER_S_MAX 64u

static uint32_t seeds(void)
{
    return (uint32_t)case_count(SEEDS);
}

static struct world *world_of(uint32_t count, uint32_t seed, bool settled)
{
    return world_new(&(struct world_options){
        .count = count, .seed = cluster_seed(1000 * seed + count), .settled = settled});
}

/* All nodes run, and are linked to their neighbours. */
static struct world *settled_world(uint32_t count, uint32_t seed)
{
    struct world *world = world_of(count, seed, count > WORLD_SMALL);
    world_start_all(world);
    world->options.settled = false;
    world_run(world, 3 * TIME_S);
    struct members_statistics all = world_statistics(world);
    assert_int_equal(all.votes_cast, 0);
    world->peak_messages = world->peak_bytes = 0;
    return world;
}

/* Runs until all answers are right. Fails if that takes longer. Returns how long it took. */
static uint64_t run_until_right(struct world *world, uint64_t most_ns, const char *what)
{
    uint64_t began_ns = world->now_ns;
    while (world_wrong(world) > 0) {
        if (world->now_ns - began_ns >= most_ns) {
            world_check(world, what);
        }
        world_run(world, 100 * TIME_MS);
    }
    return world->now_ns - began_ns;
}

static double in_s(uint64_t span_ns)
{
    return (double)span_ns / 1e9;
}

/* What was sent since `before`, for each node and second. */
static void print_traffic(const struct world *world, const struct members_statistics *before,
                          uint64_t span_ns, const char *what)
{
    struct members_statistics now = world_statistics(world);
    double node_s = (double)world->options.count * in_s(span_ns);
    double messages = (double)(now.messages_sent - before->messages_sent) / node_s;
    double bytes = (double)(now.bytes_sent - before->bytes_sent) / node_s;
    print_message("# %s, %u nodes: each sends %.2f messages/s, %.0f B/s in the mean of %.0f s; at most %llu "
                  "messages and %llu B in a second\n",
                  what, world->options.count, messages, bytes, in_s(span_ns),
                  (unsigned long long)world->peak_messages, (unsigned long long)world->peak_bytes);
    assert_true(messages <= MESSAGES_PER_S_MAX && bytes <= BYTES_PER_S_MAX);
}

/* --- Starting --- */

static void run_start(uint32_t count, uint32_t seed)
{
    struct world *world = world_of(count, seed, false);
    world_start_all(world);
    uint64_t took_ns = run_until_right(world, 60 * TIME_S, "all start");
    struct members_statistics started = world_statistics(world);
    print_message(
        "# %u nodes start at once: all know all after %.1f s; each sends %.0f messages, %.0f KB, %.1f "
        "records for each node; %llu votes\n",
        count, in_s(took_ns), (double)started.messages_sent / count, (double)started.bytes_sent / 1e3 / count,
        (double)started.records_sent / count / count, (unsigned long long)started.votes_cast);
    world_run(world, 10 * TIME_S);
    struct members_statistics before = world_statistics(world);
    world_run(world, 60 * TIME_S);
    struct members_statistics after = world_statistics(world);
    /* Each compares itself with a neighbour once a minute. */
    assert_true(after.messages_sent - before.messages_sent <= 2 * (uint64_t)count);
    assert_int_equal(after.records_sent, before.records_sent);
    assert_int_equal(after.votes_cast, 0);
    assert_int_equal(after.refutations, 0);
    assert_int_equal(world->false_downs, 0);
    world_check(world, "a minute after the start");
    world_free(world);
}

static void test_all_start_at_once(void **state)
{
    static const uint32_t counts[] = {2, 3, 9, 10, 11, 128, 1000};
    (void)state;
    for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        run_start(counts[i], 1);
    }
    for (uint32_t seed = 2; seed <= seeds(); seed++) {
        run_start(2 + seed * 7 % 150, seed);
    }
    const char *storm = getenv("COMMD_STORM");
    if (storm != NULL) {
        run_start((uint32_t)strtoul(storm, NULL, 10), 1);
    }
}

/* Two thirds are off at first, and come later one by one. */
static void run_late(uint32_t count, uint32_t seed)
{
    struct world *world = world_of(count, seed, false);
    for (uint32_t i = 0; i < count; i += 3) {
        world_start(world, i, 1000000 + i);
    }
    uint64_t took_ns = run_until_right(world, 120 * TIME_S, "a third is on");
    struct members_statistics third = world_statistics(world);
    uint64_t began_ns = world->now_ns;
    for (uint32_t i = 0; i < count; i++) {
        if (i % 3 != 0) {
            world_start(world, i, 200000000 + i);
            world_run(world, 20 * TIME_MS);
        }
    }
    (void)run_until_right(world, 60 * TIME_S, "all are on");
    print_message("# %u of %u nodes are on: all know all after %.1f s; the others come, each 20 ms after the "
                  "last: all know all %.1f s after the first; %llu votes, %llu false losses\n",
                  (count + 2) / 3, count, in_s(took_ns), in_s(world->now_ns - began_ns),
                  (unsigned long long)(world_statistics(world).votes_cast - third.votes_cast),
                  (unsigned long long)world->false_downs);
    world_run(world, 30 * TIME_S);
    world_check(world, "long after all are on");
    world_free(world);
}

static void test_two_thirds_come_later(void **state)
{
    static const uint32_t counts[] = {3, 9, 10, 30, 128, 1000};
    (void)state;
    for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        run_late(counts[i], 1);
    }
    for (uint32_t seed = 2; seed <= seeds(); seed++) {
        run_late(3 + seed * 7 % 150, seed);
    }
}

/* Node `of` lacks some nodes. */
static bool lacks_some(uint32_t of, uint32_t node)
{
    return of % 10 != 3 || node % 4 != 1;
}

static void test_configurations_that_differ(void **state)
{
    static const uint32_t counts[] = {10, 40, 128};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct world *world = world_new(&(struct world_options){
            .count = counts[i], .seed = cluster_seed(counts[i]), .knows = lacks_some});
        world_start_all(world);
        (void)run_until_right(world, 60 * TIME_S, "configurations differ");
        world_kill(world, 5);
        world_kill(world, 7);
        (void)run_until_right(world, 30 * TIME_S, "two died, configurations differ");
        world_run(world, 60 * TIME_S);
        world_check(world, "a minute later, configurations differ");
        world_free(world);
    }
}

/* --- Deaths --- */

static void run_death(uint32_t count, uint32_t seed)
{
    struct world *world = settled_world(count, seed);
    world->watched = world_draw(world, count);
    struct members_statistics before = world_statistics(world);
    uint64_t died_ns = world->now_ns;
    world_kill(world, world->watched);
    world_run(world, ALL_KNOW_NS);
    print_message("# one of %u nodes dies: all others know after %.2f s\n", count,
                  in_s(world->watched_ns - died_ns));
    print_traffic(world, &before, ALL_KNOW_NS, "a death");
    /* The bars hold for every node in every second, not only in the mean. */
    assert_true(world->peak_messages <= MESSAGES_PER_S_MAX && world->peak_bytes <= BYTES_PER_S_MAX);
    assert_int_equal(world->watched_down, count - 1);
    assert_int_equal(world->false_downs, 0);
    world_free(world);
}

static void test_one_dies(void **state)
{
    static const uint32_t counts[] = {2, 3, 9, 10, 128, 1000, 10000};
    (void)state;
    for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        run_death(counts[i], 1);
    }
    for (uint32_t seed = 2; seed <= seeds(); seed++) {
        run_death(2 + seed * 7 % 150, seed);
    }
}

/* A node that says goodbye is known to be gone before any patience ends, and nobody votes. */
static void test_one_leaves(void **state)
{
    static const uint32_t counts[] = {2, 3, 10, 128, 1000};
    (void)state;
    for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct world *world = settled_world(counts[i], 1);
        world->watched = world_draw(world, counts[i]);
        uint64_t left_ns = world->now_ns;
        world_leave(world, world->watched);
        world_run(world, TIME_S);
        print_message("# one of %u nodes leaves: all others know after %.2f s\n", counts[i],
                      in_s(world->watched_ns - left_ns));
        assert_int_equal(world->watched_down, counts[i] - 1);
        assert_int_equal(world_statistics(world).votes_cast, 0);
        world_free(world);
    }
}

static void run_rack(uint32_t count, uint32_t dead, uint32_t seed)
{
    struct world *world = settled_world(count, seed);
    struct members_statistics before = world_statistics(world);
    uint64_t died_ns = world->now_ns;
    for (uint32_t i = 0; i < dead; i++) {
        world_kill(world, count / 3 + i);
    }
    uint64_t took_ns = run_until_right(world, 20 * TIME_S, "a rack dies");
    print_message("# %u of %u nodes die: all others know after %.1f s; %llu false losses\n", dead, count,
                  in_s(took_ns), (unsigned long long)world->false_downs);
    world_run(world, died_ns + 20 * TIME_S - world->now_ns);
    print_traffic(world, &before, 20 * TIME_S, "a rack of nodes dies");
    assert_int_equal(world->false_downs, 0);
    for (uint32_t i = 0; i < dead; i++) {
        world_start(world, count / 3 + i, 1790000100000000u);
    }
    (void)run_until_right(world, 20 * TIME_S, "the rack is back");
    world_free(world);
}

static void test_a_rack_dies(void **state)
{
    (void)state;
    run_rack(3, 2, 1);
    run_rack(9, 6, 1);
    run_rack(10, 4, 1);
    run_rack(128, 40, 1);
    run_rack(1000, 40, 1);
    for (uint32_t seed = 2; seed <= seeds(); seed++) {
        uint32_t count = 9 + seed * 7 % 150;
        run_rack(count, count / 3, seed);
    }
}

/* A node restarts; its clock may have gone back. */
static void run_restart(uint32_t count, uint64_t away_ns, int64_t clock_us, uint32_t seed)
{
    struct world *world = settled_world(count, seed);
    uint32_t node = world_draw(world, count);
    uint64_t earlier = world->nodes[node].incarnation;
    uint64_t incarnation = earlier + (uint64_t)clock_us;
    world_kill(world, node);
    world_run(world, away_ns);
    world_start(world, node, incarnation);
    uint64_t took_ns = run_until_right(world, 20 * TIME_S, "a restart");
    assert_int_equal(world->nodes[node].members->statistics.states[MEMBER_UP], count - 1);
    world_run(world, 10 * TIME_S);
    world_check(world, "a while after a restart");
    uint64_t own = members_own_incarnation(world->nodes[node].members);
    assert_true(clock_us > 0 ? own == incarnation : own > earlier);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(i == node || members_incarnation(world->nodes[i].members, node) == own);
    }
    print_message("# one of %u nodes is back after %.1f s, its clock %+.0f s: all agree after %.1f s\n",
                  count, in_s(away_ns), (double)clock_us / 1e6, in_s(took_ns));
    world_free(world);
}

static void test_a_node_restarts(void **state)
{
    static const uint32_t counts[] = {3, 10, 128};
    (void)state;
    for (uint32_t seed = 1; seed <= seeds(); seed++) {
        for (uint32_t i = 0; i < 3; i++) {
            run_restart(counts[i], 500 * TIME_MS, 1000000, seed);
            run_restart(counts[i], 500 * TIME_MS, -3600000000, seed);
            run_restart(counts[i], 4200 * TIME_MS, 4000000, seed);
            run_restart(counts[i], 20 * TIME_S, 20000000, seed);
            run_restart(counts[i], 20 * TIME_S, -3600000000, seed);
        }
    }
}

/* --- Networks --- */

static void run_split(uint32_t count, uint32_t seed)
{
    struct world *world = settled_world(count, seed);
    for (uint32_t i = 0; i < count; i++) {
        world->nodes[i].side = i % 2;
    }
    world_cut_changed(world);
    uint64_t split_ns = run_until_right(world, 60 * TIME_S, "an even split");
    world_run(world, 10 * TIME_S);
    world_check(world, "a while after the split");
    for (uint32_t i = 0; i < count; i++) {
        world->nodes[i].side = 0;
    }
    uint64_t healed_ns = run_until_right(world, 30 * TIME_S, "a healed split");
    world_run(world, 30 * TIME_S);
    world_check(world, "a while after the healing");
    print_message("# %u nodes split evenly: each half agrees after %.1f s; healed: all agree after %.1f s\n",
                  count, in_s(split_ns), in_s(healed_ns));
    world_free(world);
}

static void test_an_even_split(void **state)
{
    static const uint32_t counts[] = {2, 3, 9, 10, 128, 1000};
    (void)state;
    for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        run_split(counts[i], 1);
    }
    for (uint32_t seed = 2; seed <= seeds(); seed++) {
        run_split(2 + seed * 7 % 150, seed);
    }
}

static struct world_link *any_link_of(struct world *world, uint32_t node)
{
    uint32_t first = world_draw(world, world->nodes[node].link_count);
    for (uint32_t i = 0; i < world->nodes[node].link_count; i++) {
        struct world_link *link = world->nodes[node].links[(first + i) % world->nodes[node].link_count];
        if (link->up[0] && link->up[1]) {
            return link;
        }
    }
    fail_msg("node %u has no link", node);
    return NULL;
}

/* The path between two nodes is cut for good, seen by both or by one of them. Others reach both. Then one
 * dies.
 */
static void run_cut(uint32_t count, bool both, uint32_t seed)
{
    struct world *world = settled_world(count, seed);
    uint32_t node = world_draw(world, count);
    struct world_link *link = any_link_of(world, node);
    struct members_statistics before = world_statistics(world);
    if (both) {
        link->cut = true;
        world_cut_changed(world);
    } else {
        link->cut = true; /* no dial succeeds, and the other end does not notice */
        world_run(world, 4 * TIME_S);
        world_lose(world, link, node);
    }
    world_run(world, 120 * TIME_S);
    world_check(world, "a cut between two nodes");
    print_traffic(world, &before, 120 * TIME_S, both ? "a cut path" : "a path cut one way");
    print_message("# %u nodes, a path is cut: %llu false losses, at most %.2f s\n", count,
                  (unsigned long long)world->false_downs, in_s(world->false_down_ns));
    assert_true(world->false_down_ns <= 2 * TIME_S);
    world_kill(world, link->ends[0]);
    (void)run_until_right(world, 10 * TIME_S, "death of a node with a cut path");
    world_free(world);
}

static void test_a_path_is_cut(void **state)
{
    static const uint32_t counts[] = {3, 4, 9, 10, 128};
    (void)state;
    for (uint32_t seed = 1; seed <= seeds(); seed++) {
        for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            run_cut(counts[i], true, seed);
            run_cut(counts[i], false, seed);
        }
    }
}

/* Links are lost and dialled again each second, for two minutes. */
static void run_flap(uint32_t count, uint32_t flapping, uint32_t seed)
{
    struct world *world = settled_world(count, seed);
    struct members_statistics before = world_statistics(world);
    struct world_link *links[16];
    for (uint32_t i = 0; i < flapping; i++) {
        links[i] = any_link_of(world, world_draw(world, count));
    }
    for (uint32_t turn = 0; turn < 120; turn++) {
        for (uint32_t i = 0; i < flapping; i++) {
            world_lose(world, links[i], links[i]->ends[0]);
            world_lose(world, links[i], links[i]->ends[1]);
        }
        world_run(world, TIME_S);
    }
    struct members_statistics now = world_statistics(world);
    print_traffic(world, &before, 120 * TIME_S, "links that flap");
    print_message(
        "# %u links of %u nodes flap for 2 minutes: %llu votes, %llu refutations, %llu false losses, "
        "at most %.2f s\n",
        flapping, count, (unsigned long long)now.votes_cast, (unsigned long long)now.refutations,
        (unsigned long long)world->false_downs, in_s(world->false_down_ns));
    assert_true(now.votes_cast <= (uint64_t)2 * flapping);
    assert_true(world->false_down_ns <= 2 * TIME_S);
    (void)run_until_right(world, 5 * TIME_S, "links that flapped");
    world_free(world);
}

static void test_links_flap(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= seeds(); seed++) {
        run_flap(3, 1, seed);
        run_flap(10, 2, seed);
        run_flap(128, 10, seed);
    }
}

/* --- Bad nodes --- */

static void run_stall(uint32_t count, uint64_t span_ns, uint32_t seed)
{
    struct world *world = settled_world(count, seed);
    uint32_t node = world_draw(world, count);
    world_stall(world, node, span_ns);
    world_run(world, span_ns);
    struct members_statistics before = world_statistics(world);
    (void)run_until_right(world, 20 * TIME_S, "a stall");
    world_run(world, 30 * TIME_S);
    struct members_statistics now = world_statistics(world);
    struct members_statistics own = world->nodes[node].members->statistics;
    print_message("# one of %u nodes stalls for %.1f s: it casts %llu votes, others %llu; %llu refutations\n",
                  count, in_s(span_ns), (unsigned long long)own.votes_cast,
                  (unsigned long long)(now.votes_cast - own.votes_cast), (unsigned long long)now.refutations);
    assert_int_equal(own.votes_cast, 0);
    assert_int_equal(own.stalls, 1);
    assert_int_equal(now.votes_cast, before.votes_cast); /* nothing more once it is back */
    assert_true(now.refutations <= 2);
    world_check(world, "long after a stall");
    world_free(world);
}

static void test_an_observer_stalls(void **state)
{
    static const uint32_t counts[] = {3, 9, 10, 128};
    (void)state;
    for (uint32_t seed = 1; seed <= seeds(); seed++) {
        for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            run_stall(counts[i], 3 * TIME_S, seed);
            run_stall(counts[i], 6 * TIME_S, seed);
            run_stall(counts[i], 30 * TIME_S, seed);
        }
    }
}

/* The liars say that everybody is down, with these votes, to all their neighbours, once a second. */
static void lie(struct world *world, const uint32_t *liars, uint32_t liar_count, bool own_vote)
{
    struct member_message message;
    for (uint32_t which = 0; which < liar_count; which++) {
        const struct world_node *liar = &world->nodes[liars[which]];
        for (uint32_t begin = 0; begin < world->options.count; begin += MEMBER_RECORDS_MAX) {
            member_message_begin(&message);
            for (uint32_t i = begin; i < world->options.count && i < begin + MEMBER_RECORDS_MAX; i++) {
                const struct world_node *victim = &world->nodes[i];
                if (i != liars[which] && world->rings != NULL) {
                    const struct member_record_wire wire = {
                        .id = member_rings_id(world->rings, i),
                        .incarnation = members_own_incarnation(victim->members),
                        .epoch = members_own_epoch(victim->members),
                        .votes = (uint8_t)(own_vote ? 1u << which : 0xffu)};
                    assert_true(member_message_add(&message, &wire));
                }
            }
            for (uint32_t i = 0; i < liar->link_count; i++) {
                const struct world_link *link = liar->links[i];
                uint32_t other = link->ends[0] == liar->number ? link->ends[1] : link->ends[0];
                if (link->up[0] && link->up[1]) {
                    world_inject(world, liar->number, other, message.bytes, message.size);
                }
            }
        }
    }
}

static void run_lies(uint32_t count, bool own_vote, uint32_t seed)
{
    struct world *world = settled_world(count, seed);
    struct members_statistics before = world_statistics(world);
    uint32_t liars[3] = {world_draw(world, count / 3), count / 3 + world_draw(world, count / 3),
                         2 * count / 3 + world_draw(world, count / 3)};
    uint64_t wrong = 0, turns = 15;
    for (uint32_t turn = 0; turn < turns; turn++) {
        lie(world, liars, own_vote ? 2 : 3, own_vote);
        for (uint32_t i = 0; i < 4; i++) {
            world_run(world, 250 * TIME_MS);
            wrong += world_wrong(world);
        }
    }
    struct members_statistics now = world_statistics(world);
    double node_s = (double)count * (double)turns;
    uint64_t took_ns = run_until_right(world, 5 * TIME_S, "liars");
    print_message(
        "# %u nodes, %s accuse everybody each second: %.1f %% of answers are wrong meanwhile, each "
        "loss at most %.2f s; all agree %.2f s after the last lie; each sends %.0f messages/s, %.1f "
        "KB/s\n",
        count, own_vote ? "two liars with a vote each" : "three liars with forged votes",
        100.0 * (double)wrong / (4.0 * (double)turns * count * count), in_s(world->false_down_ns),
        in_s(took_ns), (double)(now.messages_sent - before.messages_sent) / node_s,
        (double)(now.bytes_sent - before.bytes_sent) / 1e3 / node_s);
    if (own_vote) {
        assert_int_equal(world->false_downs, 0);
    }
    assert_true(world->false_down_ns <= 2 * TIME_S);
    world_run(world, 20 * TIME_S);
    world_check(world, "long after the lies");
    world_free(world);
}

static void test_liars_accuse_everybody(void **state)
{
    (void)state;
    run_lies(128, true, 1);
    run_lies(128, false, 1);
    run_lies(400, true, 1);
    run_lies(400, false, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_start_at_once),
        cmocka_unit_test(test_two_thirds_come_later),
        cmocka_unit_test(test_one_dies),
        cmocka_unit_test(test_one_leaves),
        cmocka_unit_test(test_a_rack_dies),
        cmocka_unit_test(test_a_node_restarts),
        cmocka_unit_test(test_an_even_split),
        cmocka_unit_test(test_a_path_is_cut),
        cmocka_unit_test(test_links_flap),
        cmocka_unit_test(test_an_observer_stalls),
        cmocka_unit_test(test_liars_accuse_everybody),
        cmocka_unit_test(test_configurations_that_differ),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
