#include <setjmp.h>
#include <stdarg.h>

#include "tests/unit/coll/script.h"

#include <cmocka.h>

#include "daemon/coll/registry.h"
#include "tests/checker/check.h"
#include "tests/lib/chance.h"
#include "tests/unit/coll/layouts.h"

/* Runs every algorithm on random values, and with a few random changes. What coll_check still accepts must
 * give the right result in every order of events tried. The network may read a buffer as late as it likes. */

#define RUNS_EACH 12
#define TRIALS_EACH 40
#define NODES_MAX 6

struct outcomes {
    uint32_t accepted; /* although changed */
    uint32_t refused;
};

static uint32_t pick(struct random *random, uint32_t limit)
{
    return (uint32_t)random_below(random, limit);
}

/* Returns the line of the other direction that matches a line. It is right if the list has its rounds in
 * order. */
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

/* Changes one transfer, often on both of its sides: a change on one side only is easier to find. */
static void change_transfer(struct script *script, struct random *random, const struct coll_call *call)
{
    uint32_t at = pick(random, script->line_count);
    uint32_t other = partner(script, at);
    struct coll_transfer transfer = script->lines[at].transfer;
    switch (pick(random, 6)) {
    case 0:
        transfer.offset_elements += pick(random, 3) - UINT64_C(1);
        break;
    case 1:
        transfer.count_elements += pick(random, 3) - UINT64_C(1);
        break;
    case 2:
        transfer.action = (enum coll_action)pick(random, COLL_PREFIX + 1);
        break;
    case 3:
        transfer.offset_elements = pick(random, (uint32_t)call->count_elements + 1);
        break;
    case 4:
        transfer.node = pick(random, call->node_count);
        break;
    case 5:
        transfer.space = (enum coll_space)pick(random, SCRIPT_SPACES);
        break;
    }
    struct coll_transfer *both = other < script->line_count ? &script->lines[other].transfer : NULL;
    if (both != NULL && random_chance(random, 0.8)) {
        both->offset_elements += transfer.offset_elements - script->lines[at].transfer.offset_elements;
        both->count_elements = transfer.count_elements;
        both->action = transfer.action;
    }
    script->lines[at].transfer = transfer;
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
    case 3: /* two rounds of one node are exchanged */
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
    enum status status = script->counts != NULL
                             ? coll_check_all_to_all(&algorithm, call, script->counts, NULL, &error)
                             : coll_check(&algorithm, call, NULL, &error);
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

/* Many changed versions of one call. Many must be refused, and some be harmless. */
static void try_call(const struct coll_algorithm *algorithm, const struct coll_call *call,
                     const uint64_t *counts, uint64_t seed, struct outcomes *outcomes)
{
    struct random random;
    random_seed(&random, seed);
    struct script right;
    assert_true(script_record(&right, algorithm, call, counts));
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

/* Whether a layout fits a script. */
static bool is_small(const struct layout_call *made)
{
    uint64_t most = made->call.count_elements;
    uint32_t nodes = made->call.node_count;
    for (uint32_t node = 0; made->call.kind == OP_KIND_ALL_TO_ALL && node < nodes; node++) {
        uint64_t sent = 0;
        uint64_t received = 0;
        for (uint32_t other = 0; other < nodes; other++) {
            sent += made->counts[node * nodes + other];
            received += made->counts[other * nodes + node];
        }
        most = sent > most ? sent : most;
        most = received > most ? received : most;
    }
    return most <= SCRIPT_ELEMENTS_MAX;
}

static void try_algorithm(const struct coll_algorithm *algorithm)
{
    struct outcomes outcomes = {0};
    for (uint32_t nodes = 2; nodes <= NODES_MAX; nodes++) {
        for (enum layout layout = 0; layout < LAYOUT_COUNT; layout++) {
            uint32_t root = op_kind_has_root(algorithm->kind) ? (nodes + layout) % nodes : 0;
            struct layout_call made = layout_call(algorithm->kind, nodes, root, layout);
            bool served = algorithm->serves == NULL || algorithm->serves(&made.call);
            if (layout_exists(algorithm->kind, layout) && is_small(&made) && served) {
                bool uneven = made.call.kind == OP_KIND_ALL_TO_ALL && !made.call.blocks_are_equal;
                try_call(algorithm, &made.call, uneven ? made.counts : NULL,
                         algorithm->id * 1000 + nodes * 20 + layout, &outcomes);
            }
            layout_free(&made);
        }
    }
    print_message("%s=%s: of the changed, %u accepted and %u refused\n", op_kind_text(algorithm->kind),
                  algorithm->name, outcomes.accepted, outcomes.refused);
    assert_true(outcomes.accepted > 0);
    assert_true(outcomes.refused > outcomes.accepted / 2);
}

static void test_every_algorithm_changed(void **state)
{
    (void)state;
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    for (uint32_t i = 0; i < count; i++) {
        try_algorithm(all[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
