#include "tests/checker/check_run.h"

#include <inttypes.h>
#include <stdbool.h>

/* Checks what every node must hold at the end of a run: the right column of coll_call's table. */

/* A fault at a node's end is reported for its last round, or for round 0 if it has no rounds. */
static uint32_t coll_run_last_round(const struct coll_run *run, uint32_t node)
{
    uint32_t rounds = run->plan->nodes[node].round_count;
    return rounds > 0 ? rounds - 1 : 0;
}

enum coll_wanted {
    WANTED_NOTHING,
    WANTED_ONE,       /* what one node contributed */
    WANTED_ALL,       /* reduced over all nodes */
    WANTED_ALL_ALIKE, /* and with the same bits on every node */
    WANTED_PREFIX     /* reduced over the nodes below this one, in order */
};

/* Returns what a part must hold at the end. For WANTED_ONE, sets *whose to the contributor, and *origin to
 * the place in its line. */
static enum coll_wanted coll_run_wanted(const struct coll_plan *plan, uint32_t node, uint64_t place,
                                        uint32_t *whose, uint64_t *origin)
{
    struct coll_call call = coll_plan_call(plan, node);
    const uint64_t *begin = plan->nodes[node].space_begin;
    *origin = place;
    *whose = call.root_node;
    if (place >= begin[COLL_INPUT]) {
        return WANTED_NOTHING;
    }
    switch (call.kind) {
    case OP_KIND_ALL_REDUCE:
        return WANTED_ALL_ALIKE;
    case OP_KIND_REDUCE:
        return node == call.root_node ? WANTED_ALL : WANTED_NOTHING;
    case OP_KIND_REDUCE_SCATTER:
        return coll_plan_block(plan, call.block_offsets, place) == node ? WANTED_ALL : WANTED_NOTHING;
    case OP_KIND_BROADCAST:
        return WANTED_ONE;
    case OP_KIND_SCATTER:
        return coll_plan_block(plan, call.block_offsets, place) == node ? WANTED_ONE : WANTED_NOTHING;
    case OP_KIND_ALL_GATHER:
        *whose = coll_plan_block(plan, call.block_offsets, place);
        return WANTED_ONE;
    case OP_KIND_GATHER:
        *whose = coll_plan_block(plan, call.block_offsets, place);
        return node == call.root_node ? WANTED_ONE : WANTED_NOTHING;
    case OP_KIND_ALL_TO_ALL:
        *whose = coll_plan_block(plan, call.block_offsets, place);
        *origin = plan->nodes[*whose].space_begin[COLL_INPUT] +
                  coll_plan_call(plan, *whose).send_offsets[node] + (place - call.block_offsets[*whose]);
        /* the executor copies the own block, not the schedule */
        return *whose == node ? WANTED_NOTHING : WANTED_ONE;
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        *origin = place - call.count_elements;
        return node > 0 && place >= call.count_elements ? WANTED_PREFIX : WANTED_NOTHING;
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return WANTED_NOTHING;
}

static enum status coll_run_check_part(const struct coll_run *run, uint32_t node, uint32_t part,
                                       struct error *error)
{
    const struct coll_plan *plan = run->plan;
    const struct coll_cell *cell = coll_run_cell(run, node, part);
    uint32_t whose;
    uint64_t origin;
    enum coll_wanted wanted = coll_run_wanted(plan, node, coll_run_place(run, node, part), &whose, &origin);
    if (wanted == WANTED_NOTHING) {
        return STATUS_OK;
    }
    uint32_t round = cell->written != COLL_RUN_NEVER ? cell->written : coll_run_last_round(run, node);
    const char *when = cell->written != COLL_RUN_NEVER ? "written here for the last time" : "never written";
    char text[COLL_PART_TEXT_BYTES];
    coll_plan_part_text(plan, node, part, text);
    if (cell->value == COLL_VALUE_NONE && wanted == WANTED_ONE) {
        return coll_plan_fault(plan, node, round, error, "ends without %s of node %" PRIu32 " (%s)", text,
                               whose, when);
    }
    if (cell->value == COLL_VALUE_NONE || cell->origin != origin) {
        return coll_plan_fault(plan, node, round, error, "%s (%s) end %s", text, when,
                               cell->value == COLL_VALUE_NONE ? "with nothing in them"
                                                              : "with elements of another place");
    }
    if (wanted == WANTED_ONE && cell->value != coll_values_contribution(&run->values, whose)) {
        return coll_plan_fault(plan, node, round, error,
                               "%s (%s) end with others than those of node %" PRIu32, text, when, whose);
    }
    if (wanted == WANTED_PREFIX && !coll_values_is_run(&run->values, cell->value, 0, node - 1)) {
        return coll_plan_fault(plan, node, round, error,
                               "%s (%s) are not the fold of nodes 0 to %" PRIu32 " in order", text, when,
                               node - 1);
    }
    uint32_t missing = coll_values_missing(&run->values, cell->value);
    if ((wanted == WANTED_ALL || wanted == WANTED_ALL_ALIKE) && missing < plan->call.node_count) {
        return coll_plan_fault(plan, node, round, error,
                               "%s (%s) end without the contribution of node %" PRIu32, text, when, missing);
    }
    if (wanted == WANTED_ALL_ALIKE && cell->value != coll_run_cell(run, 0, part)->value) {
        return coll_plan_fault(plan, node, round, error,
                               "%s (%s) are reduced in another order than at node 0", text, when);
    }
    return STATUS_OK;
}

enum status coll_run_check_end(const struct coll_run *run, struct error *error)
{
    uint32_t nodes = run->plan->call.node_count;
    for (uint32_t node = 0; node < nodes; node++) {
        for (uint32_t part = 0; part < run->plan->nodes[node].part_count; part++) {
            enum status status = coll_run_check_part(run, node, part, error);
            if (status != STATUS_OK) {
                return status;
            }
        }
        const uint32_t *known = coll_run_known(run, run->known, node);
        for (uint32_t other = 0; run->plan->call.kind == OP_KIND_BARRIER && other < nodes; other++) {
            if (known[other] == 0) {
                return coll_plan_fault(
                    run->plan, node, coll_run_last_round(run, node), error,
                    "passes the barrier without knowing that node %" PRIu32 " has entered it", other);
            }
        }
    }
    return STATUS_OK;
}
