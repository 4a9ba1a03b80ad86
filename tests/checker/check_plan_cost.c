#include <stdlib.h>

#include "daemon/base/checked.h"
#include "tests/checker/check_plan.h"

/* The cost of a plan: sums over its transfers. */

struct coll_plan_sums {
    uint64_t *round_elements; /* by round: the most that a node sends or receives */
    uint32_t *last_seen;      /* by node: the stamp of the receiver and round for which it was last counted */
    uint32_t stamp;
};

static bool coll_plan_add_direction(const struct coll_plan_transfers *transfers, const uint32_t *begin,
                                    uint32_t round_count, struct coll_plan_sums *sums, uint64_t *total)
{
    *total = 0;
    for (uint32_t round = 0; round < round_count; round++) {
        uint64_t elements = 0;
        for (uint32_t i = begin[round]; i < begin[round + 1]; i++) {
            if (!checked_add_u64(elements, transfers->list[i].at.count_elements, &elements)) {
                return false;
            }
        }
        uint64_t *most = &sums->round_elements[round];
        *most = elements > *most ? elements : *most;
        if (!checked_add_u64(*total, elements, total)) {
            return false;
        }
    }
    return true;
}

/* The most nodes that send to this one in one of its rounds. */
static uint32_t coll_plan_senders(const struct coll_plan *plan, const struct coll_plan_node *own,
                                  struct coll_plan_sums *sums)
{
    uint32_t most = 0;
    for (uint32_t round = 0; round < own->round_count; round++) {
        uint32_t senders = 0;
        sums->stamp += own->receive_begin[round + 1] > own->receive_begin[round];
        for (uint32_t i = own->receive_begin[round]; i < own->receive_begin[round + 1]; i++) {
            uint32_t *seen = &sums->last_seen[plan->receives.list[i].at.node];
            senders += *seen != sums->stamp;
            *seen = sums->stamp;
        }
        most = senders > most ? senders : most;
    }
    return most;
}

static void coll_plan_raise_u64(uint64_t *most, uint64_t value)
{
    *most = value > *most ? value : *most;
}

static void coll_plan_raise_u32(uint32_t *most, uint32_t value)
{
    *most = value > *most ? value : *most;
}

static bool coll_plan_add_node(const struct coll_plan *plan, uint32_t node, struct coll_plan_sums *sums,
                               struct coll_cost *cost)
{
    const struct coll_plan_node *own = &plan->nodes[node];
    uint32_t rounds = own->round_count;
    uint64_t sent;
    uint64_t received;
    if (!coll_plan_add_direction(&plan->sends, own->send_begin, rounds, sums, &sent) ||
        !coll_plan_add_direction(&plan->receives, own->receive_begin, rounds, sums, &received) ||
        !checked_add_u64(cost->sent_elements_total, sent, &cost->sent_elements_total)) {
        return false;
    }
    coll_plan_raise_u32(&cost->rounds, rounds);
    coll_plan_raise_u32(&cost->messages_max, own->send_begin[rounds] - own->send_begin[0]);
    coll_plan_raise_u32(&cost->messages_max, own->receive_begin[rounds] - own->receive_begin[0]);
    coll_plan_raise_u32(&cost->senders_max, coll_plan_senders(plan, own, sums));
    coll_plan_raise_u64(&cost->sent_elements_max, sent);
    coll_plan_raise_u64(&cost->busy_elements, sent);
    coll_plan_raise_u64(&cost->busy_elements, received);
    coll_plan_raise_u64(&cost->scratch_elements,
                        own->space_begin[COLL_SPACE_COUNT] - own->space_begin[COLL_SCRATCH]);
    return true;
}

enum status coll_plan_cost(const struct coll_plan *plan, struct coll_cost *cost, struct error *error)
{
    struct coll_cost sum = {.messages_total = plan->sends.count};
    uint32_t nodes = plan->call.node_count;
    uint32_t rounds = 0;
    for (uint32_t node = 0; node < nodes; node++) {
        coll_plan_raise_u32(&rounds, plan->nodes[node].round_count);
    }
    enum status status = STATUS_OK;
    struct coll_plan_sums sums = {.round_elements = calloc((size_t)rounds + 1, sizeof *sums.round_elements),
                                  .last_seen = calloc(nodes, sizeof *sums.last_seen)};
    if (sums.round_elements == NULL || sums.last_seen == NULL) {
        status = coll_plan_no_memory(plan, error);
        goto out;
    }
    bool fits = true;
    for (uint32_t node = 0; fits && node < nodes; node++) {
        fits = coll_plan_add_node(plan, node, &sums, &sum);
    }
    for (uint32_t round = 0; fits && round < rounds; round++) {
        fits = checked_add_u64(sum.path_elements, sums.round_elements[round], &sum.path_elements);
    }
    if (!fits) {
        status = coll_plan_limit(plan, error, "the elements sent do not fit in 64 bits");
        goto out;
    }
    *cost = sum;
out:
    free(sums.last_seen);
    free(sums.round_elements);
    return status;
}
