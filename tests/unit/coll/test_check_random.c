#include <setjmp.h>
#include <stdarg.h>

#include "tests/unit/coll/script.h"

#include <cmocka.h>

#include "daemon/coll/check.h"

/*
 * Right schedules with a few random changes: whatever coll_check still accepts must come to the right end in
 * every order of events tried, although the network may read a buffer as late as it likes.
 */

#define RUNS_EACH 12
#define TRIALS_EACH 150

struct outcomes {
    uint32_t accepted; /* although changed */
    uint32_t refused;
};

static uint32_t pick(struct random *random, uint32_t limit)
{
    return (uint32_t)random_below(random, limit);
}

/* The line of the other direction that a line is matched with, as far as rounds are listed in order. */
static uint32_t partner(const struct script *script, uint32_t of)
{
    const struct script_line *line = &script->lines[of];
    uint32_t before = 0;
    for (uint32_t i = 0; i < of; i++) {
        before += script->lines[i].node == line->node && script->lines[i].direction == line->direction &&
                  script->lines[i].transfer.node == line->transfer.node;
    }
    for (uint32_t i = 0; i < script->line_count; i++) {
        const struct script_line *other = &script->lines[i];
        if (other->node == line->transfer.node && other->direction != line->direction &&
            other->transfer.node == line->node && before-- == 0) {
            return i;
        }
    }
    return script->line_count;
}

static void remove_line(struct script *script, uint32_t at)
{
    script->line_count--;
    memmove(&script->lines[at], &script->lines[at + 1], (script->line_count - at) * sizeof script->lines[0]);
}

static void swap_lines(struct script *script, uint32_t a, uint32_t b)
{
    struct script_line line = script->lines[a];
    script->lines[a] = script->lines[b];
    script->lines[b] = line;
}

/* Changes one transfer, often on both of its sides: what only one side has is the easier thing to find. */
static void change_transfer(struct script *script, struct random *random, const struct coll_call *call)
{
    uint32_t at = pick(random, script->line_count);
    uint32_t other = partner(script, at);
    struct coll_transfer transfer = script->lines[at].transfer;
    switch (pick(random, 5)) {
    case 0:
        transfer.offset_elements += pick(random, 3) - UINT64_C(1);
        break;
    case 1:
        transfer.count_elements += pick(random, 3) - UINT64_C(1);
        break;
    case 2:
        transfer.action = transfer.action == COLL_STORE ? COLL_REDUCE : COLL_STORE;
        break;
    case 3:
        transfer.offset_elements = pick(random, (uint32_t)call->count_elements + 1);
        break;
    case 4:
        transfer.node = pick(random, call->node_count);
        break;
    }
    script->lines[at].transfer = transfer;
    if (other < script->line_count && random_chance(random, 0.8)) {
        transfer.node = script->lines[other].transfer.node;
        script->lines[other].transfer = transfer;
    }
}

static void change(struct script *script, struct random *random, const struct coll_call *call)
{
    uint32_t at = pick(random, script->line_count);
    uint32_t other = partner(script, at);
    switch (pick(random, 6)) {
    case 0: /* a transfer fewer */
        if (other < script->line_count) {
            remove_line(script, at > other ? at : other);
            remove_line(script, at > other ? other : at);
        }
        break;
    case 1: /* another round, on one side or on both */
        script->lines[at].round = pick(random, script->round_count);
        if (other < script->line_count && random_chance(random, 0.5)) {
            script->lines[other].round = script->lines[at].round;
        }
        break;
    case 2: /* another order within a round */
        for (uint32_t i = 0; i < script->line_count; i++) {
            if (script->lines[i].node == script->lines[at].node &&
                script->lines[i].round == script->lines[at].round &&
                script->lines[i].direction == script->lines[at].direction) {
                swap_lines(script, i, at);
                break;
            }
        }
        break;
    case 3: /* two rounds of one node change places */
    {
        uint32_t node = script->lines[at].node;
        uint32_t first = pick(random, script->round_count);
        uint32_t second = pick(random, script->round_count);
        for (uint32_t i = 0; i < script->line_count; i++) {
            uint32_t *round = &script->lines[i].round;
            if (script->lines[i].node == node && (*round == first || *round == second)) {
                *round = *round == first ? second : first;
            }
        }
        break;
    }
    case 4: /* two rounds become one, on every node */
    {
        uint32_t round = pick(random, script->round_count);
        for (uint32_t i = 0; i < script->line_count; i++) {
            script->lines[i].round -= script->lines[i].round > round;
        }
        break;
    }
    case 5:
        change_transfer(script, random, call);
        break;
    }
}

static void try_one(struct script *script, const struct coll_call *call, struct random *random,
                    struct outcomes *outcomes)
{
    script->transfers_max = script->line_count;
    struct coll_algorithm algorithm = script_algorithm(script, call->kind);
    struct error error = {.status = STATUS_OK};
    enum status status = coll_check(&algorithm, call, NULL, &error);
    if (status != STATUS_OK) {
        assert_int_equal(status, STATUS_INTERNAL);
        assert_int_equal(error.status, STATUS_INTERNAL);
        assert_non_null(strstr(error.text, ": node "));
        assert_non_null(strstr(error.text, ", round "));
        outcomes->refused++;
        return;
    }
    outcomes->accepted++;
    for (int run = 0; run < RUNS_EACH; run++) {
        if (!script_runs_right(script, call, random)) {
            fail_msg("accepted, but run %d went wrong", run);
        }
    }
}

/* Many changed versions of one call. Most must be refused, and some be harmless. */
static void try_call(const struct coll_algorithm *algorithm, const struct coll_call *call, uint64_t seed,
                     struct outcomes *outcomes)
{
    struct random random;
    random_seed(&random, seed);
    struct script right;
    assert_true(script_record(&right, algorithm, call));
    struct outcomes unchanged = {0};
    try_one(&right, call, &random, &unchanged);
    assert_int_equal(unchanged.accepted, 1);
    for (int trial = 0; trial < TRIALS_EACH && right.line_count > 0; trial++) {
        struct script changed = right;
        for (uint32_t changes = 1 + pick(&random, 3); changes > 0 && changed.line_count > 0; changes--) {
            change(&changed, &random, call);
        }
        try_one(&changed, call, &random, outcomes);
    }
}

static void try_algorithm(const struct coll_algorithm *algorithm, uint64_t count_max)
{
    struct outcomes outcomes = {0};
    for (uint32_t nodes = 2; nodes <= 6; nodes++) {
        for (uint64_t count = count_max > 0 ? 1 : 0; count <= count_max; count += 1 + count / 2) {
            struct coll_call call = {.kind = algorithm->kind,
                                     .node_count = nodes,
                                     .root_node = algorithm->kind == OP_KIND_BROADCAST ? nodes / 2 : 0,
                                     .count_elements = count};
            try_call(algorithm, &call, nodes * 1000 + count, &outcomes);
        }
    }
    print_message("%s: of the changed, %u accepted and %u refused\n", algorithm->name, outcomes.accepted,
                  outcomes.refused);
    assert_true(outcomes.accepted > 0);
    assert_true(outcomes.refused > outcomes.accepted);
}

static void test_ring_changed(void **state)
{
    (void)state;
    try_algorithm(&coll_ring_all_reduce, 13);
}

static void test_direct_changed(void **state)
{
    (void)state;
    try_algorithm(&coll_direct_all_reduce, 13);
}

static void test_tree_changed(void **state)
{
    (void)state;
    try_algorithm(&coll_tree_broadcast, 5);
}

static void test_dissemination_changed(void **state)
{
    (void)state;
    try_algorithm(&coll_dissemination_barrier, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_changed),
        cmocka_unit_test(test_direct_changed),
        cmocka_unit_test(test_tree_changed),
        cmocka_unit_test(test_dissemination_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
