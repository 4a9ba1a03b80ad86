#include "tests/checker/check_plan.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The second half of building a plan: matches sends with their receives, and cuts both into parts. */

/* --- Sends and their receives --- */

static enum status coll_plan_compare(const struct coll_plan *plan, const struct coll_plan_transfer *send,
                                     const struct coll_plan_transfer *receive, struct error *error)
{
    uint32_t sender = receive->at.node;
    uint32_t receiver = send->at.node;
    if (send->at.count_elements != receive->at.count_elements) {
        return coll_plan_fault(plan, receiver, receive->round, error,
                               "receives %" PRIu64 " elements from node %" PRIu32 ", which sends %" PRIu64
                               " (its round %" PRIu32 ")",
                               receive->at.count_elements, sender, send->at.count_elements, send->round);
    }
    bool keeps_places = plan->call.kind != OP_KIND_ALL_TO_ALL && send->at.space == COLL_WORK &&
                        receive->at.space == COLL_WORK;
    if (keeps_places && send->at.offset_elements != receive->at.offset_elements) {
        return coll_plan_fault(plan, receiver, receive->round, error,
                               "receives at element %" PRIu64 " what node %" PRIu32
                               " sends from element %" PRIu64 " (its round %" PRIu32
                               "): elements keep their places",
                               receive->at.offset_elements, sender, send->at.offset_elements, send->round);
    }
    if (send->at.action != receive->at.action) {
        static const char *const does[] = {"stores", "reduces", "reduces behind", "makes a prefix of"};
        static const char *const done[] = {"stored", "reduced", "reduced before what is there", "a prefix"};
        return coll_plan_fault(plan, receiver, receive->round, error,
                               "%s what node %" PRIu32 " sends to be %s (its round %" PRIu32 ")",
                               does[receive->at.action], sender, done[send->at.action], send->round);
    }
    return STATUS_OK;
}

/* Takes the receives in order. Each gets the first send between its two nodes that no earlier receive got. */
static enum status coll_plan_match_receives(struct coll_plan *plan, uint32_t *first, const uint32_t *next,
                                            struct error *error)
{
    uint32_t nodes = plan->call.node_count;
    for (uint32_t node = 0; node < nodes; node++) {
        const struct coll_plan_node *own = &plan->nodes[node];
        for (uint32_t i = own->receive_begin[0]; i < own->receive_begin[own->round_count]; i++) {
            struct coll_plan_transfer *receive = &plan->receives.list[i];
            uint32_t *queue = &first[(size_t)receive->at.node * nodes + node];
            if (*queue == COLL_PLAN_NO_TRANSFER) {
                return coll_plan_fault(plan, node, receive->round, error,
                                       "receives %" PRIu64 " elements at %" PRIu64 " from node %" PRIu32
                                       ", which sends nothing for it",
                                       receive->at.count_elements, receive->at.offset_elements,
                                       receive->at.node);
            }
            struct coll_plan_transfer *send = &plan->sends.list[*queue];
            enum status status = coll_plan_compare(plan, send, receive, error);
            if (status != STATUS_OK) {
                return status;
            }
            send->match = i;
            receive->match = *queue;
            *queue = next[*queue];
        }
    }
    return STATUS_OK;
}

enum status coll_plan_match(struct coll_plan *plan, struct error *error)
{
    uint32_t nodes = plan->call.node_count;
    enum status status;
    uint32_t *first = malloc((size_t)nodes * nodes * sizeof *first);         /* by (sender, receiver) */
    uint32_t *next = malloc((plan->sends.count + (size_t)1) * sizeof *next); /* by send */
    if (first == NULL || next == NULL) {
        status = coll_plan_no_memory(plan, error);
        goto out;
    }
    memset(first, 0xff, (size_t)nodes * nodes * sizeof *first);
    for (uint32_t node = nodes; node-- > 0;) {
        const struct coll_plan_node *own = &plan->nodes[node];
        for (uint32_t i = own->send_begin[own->round_count]; i-- > own->send_begin[0];) {
            uint32_t *queue = &first[(size_t)node * nodes + plan->sends.list[i].at.node];
            next[i] = *queue;
            *queue = i;
        }
    }
    status = coll_plan_match_receives(plan, first, next, error);
    for (uint32_t node = 0; status == STATUS_OK && node < nodes; node++) {
        const struct coll_plan_node *own = &plan->nodes[node];
        for (uint32_t i = own->send_begin[0]; status == STATUS_OK && i < own->send_begin[own->round_count];
             i++) {
            const struct coll_plan_transfer *send = &plan->sends.list[i];
            if (send->match == COLL_PLAN_NO_TRANSFER) {
                status = coll_plan_fault(plan, node, send->round, error,
                                         "sends %" PRIu64 " elements at %" PRIu64 " to node %" PRIu32
                                         ", which does not receive them",
                                         send->at.count_elements, send->at.offset_elements, send->at.node);
            }
        }
    }
out:
    free(next);
    free(first);
    return status;
}

/* --- Parts --- */

static struct coll_cuts *coll_plan_cuts(const struct coll_plan *plan, uint32_t node)
{
    return &plan->cuts[plan->cuts_count > 1 ? node : 0];
}

/* Cuts at the ends of a node's spaces and blocks. */
static bool coll_plan_cut_spaces(struct coll_plan *plan, uint32_t node)
{
    struct coll_cuts *cuts = coll_plan_cuts(plan, node);
    const uint64_t *begin = plan->nodes[node].space_begin;
    struct coll_call call = coll_plan_call(plan, node);
    bool added = true;
    for (unsigned space = 0; added && space <= COLL_SPACE_COUNT; space++) {
        added = coll_cuts_add(cuts, begin[space]);
    }
    for (uint32_t block = 0; added && call.block_offsets != NULL && block <= call.node_count; block++) {
        added =
            coll_cuts_add(cuts, call.block_offsets[block]) &&
            (call.send_offsets == NULL || coll_cuts_add(cuts, begin[COLL_INPUT] + call.send_offsets[block]));
    }
    return added;
}

static bool coll_plan_cut_transfers(struct coll_plan *plan, uint32_t node)
{
    const struct coll_plan_node *own = &plan->nodes[node];
    struct coll_cuts *cuts = coll_plan_cuts(plan, node);
    bool added = true;
    for (uint32_t i = own->send_begin[0]; added && i < own->send_begin[own->round_count]; i++) {
        const struct coll_plan_transfer *send = &plan->sends.list[i];
        added =
            coll_cuts_add(cuts, send->place) && coll_cuts_add(cuts, send->place + send->at.count_elements);
    }
    for (uint32_t i = own->receive_begin[0]; added && i < own->receive_begin[own->round_count]; i++) {
        const struct coll_plan_transfer *receive = &plan->receives.list[i];
        added = coll_cuts_add(cuts, receive->place) &&
                coll_cuts_add(cuts, receive->place + receive->at.count_elements);
    }
    return added;
}

/* Cuts a scan's prefix and its running value at the same places. */
static bool coll_plan_cut_prefix(struct coll_plan *plan)
{
    struct coll_cuts *cuts = coll_plan_cuts(plan, 0);
    uint64_t count = plan->call.count_elements;
    bool added = true;
    size_t settled = cuts->settled;
    for (size_t i = 0; added && i < settled && cuts->list[i] <= 2 * count; i++) {
        uint64_t place = cuts->list[i];
        added = coll_cuts_add(cuts, place <= count ? place + count : place - count);
    }
    return added;
}

/* A transfer may move elements to other places. Then the cuts of the sender's range become cuts of the
 * receiver's range. */
static bool coll_plan_cut_moved(struct coll_plan *plan, const struct coll_plan_transfer *send)
{
    const struct coll_plan_transfer *receive = &plan->receives.list[send->match];
    const struct coll_cuts *from = coll_plan_cuts(plan, receive->at.node);
    struct coll_cuts *to = coll_plan_cuts(plan, send->at.node);
    if (from == to && send->place == receive->place) {
        return true;
    }
    bool added = true;
    uint64_t end = send->place + send->at.count_elements;
    for (size_t i = coll_cuts_at(from, send->place); added && i < from->settled && from->list[i] < end; i++) {
        added = coll_cuts_add(to, receive->place + (from->list[i] - send->place));
    }
    return added;
}

static bool coll_plan_settle(struct coll_plan *plan, uint64_t *cell_count)
{
    bool grew = false;
    *cell_count = 0;
    for (uint32_t i = 0; i < plan->cuts_count; i++) {
        grew = coll_cuts_settle(&plan->cuts[i]) || grew;
        *cell_count += plan->cuts[i].settled - 1;
    }
    *cell_count *= plan->cuts_count > 1 ? 1 : plan->call.node_count;
    return grew;
}

/* Cuts until the same happens to all elements of each part. */
static enum status coll_plan_cut_all(struct coll_plan *plan, struct error *error)
{
    bool added = true;
    uint64_t cells;
    for (uint32_t node = 0; added && node < plan->call.node_count; node++) {
        added = coll_plan_cut_spaces(plan, node) && coll_plan_cut_transfers(plan, node);
    }
    while (added && coll_plan_settle(plan, &cells)) {
        if (cells > COLL_PLAN_CELLS_MAX) {
            return coll_plan_limit(plan, error, "cut into more than %u parts", COLL_PLAN_CELLS_MAX);
        }
        for (uint32_t i = 0; added && i < plan->sends.count; i++) {
            added = coll_plan_cut_moved(plan, &plan->sends.list[i]);
        }
        if (added && coll_plan_is_scan(plan)) {
            added = coll_plan_cut_prefix(plan);
        }
    }
    return added ? STATUS_OK : coll_plan_no_memory(plan, error);
}

static void coll_plan_find_parts(const struct coll_cuts *cuts, struct coll_plan_transfer *transfer)
{
    transfer->part_first = (uint32_t)coll_cuts_at(cuts, transfer->place);
    transfer->part_end = (uint32_t)coll_cuts_at(cuts, transfer->place + transfer->at.count_elements);
}

enum status coll_plan_cut(struct coll_plan *plan, struct error *error)
{
    uint32_t lines = plan->call.kind == OP_KIND_ALL_TO_ALL ? plan->call.node_count : 1;
    plan->cuts = calloc(lines, sizeof *plan->cuts);
    if (plan->cuts == NULL) {
        return coll_plan_no_memory(plan, error);
    }
    plan->cuts_count = lines;
    enum status status = coll_plan_cut_all(plan, error);
    for (uint32_t node = 0; status == STATUS_OK && node < plan->call.node_count; node++) {
        struct coll_plan_node *own = &plan->nodes[node];
        own->cuts = coll_plan_cuts(plan, node);
        own->part_count = (uint32_t)own->cuts->settled - 1;
        for (uint32_t i = own->send_begin[0]; i < own->send_begin[own->round_count]; i++) {
            coll_plan_find_parts(own->cuts, &plan->sends.list[i]);
        }
        for (uint32_t i = own->receive_begin[0]; i < own->receive_begin[own->round_count]; i++) {
            coll_plan_find_parts(own->cuts, &plan->receives.list[i]);
        }
    }
    return status;
}
