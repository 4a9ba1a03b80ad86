#include <stdlib.h>
#include <string.h>

#include "client/lib/cells_internal.h"
#include "client/lib/submit.h"

/*
 * Operations that end early for their caller. Handles end as soon as the rank has what it needs, as in MPI.
 * The operation itself goes on, until all ranks have taken part: so all are told the same if their terms
 * differ, and comm_sync waits for that. And an operation in which all take part at the same time ends within
 * the call that begins it: it needs no place in any list.
 */

#define NS_PER_MS 1000000u
#define LOOKS_AT_ONCE 60u        /* with a pause of some 10 ns between two, */
#define LOOKS_AT_ONCE_CROWDED 6u /* if some rank has no processor */
#define SKIPPED_MAX 64u          /* calls that do not look after one whose looks found nothing; doubles */
/* Measured: without this limit, an all-reduce of 8 KiB between 2 ranks took 5 us in place of 0.5. Why is not
 * known. */
#define AT_ONCE_MAX_BYTES 4096u

enum cells_needs cells_needs_of(const struct comm_comm *comm, const struct client_call *call, bool in_slices)
{
    const struct op_terms *terms = &call->terms;
    bool from_root = op_kind_is_from_root(terms->kind);
    bool is_root = comm->rank == terms->root_rank;
    if (!op_kind_has_root(terms->kind) || terms->has_layouts != 0 || in_slices || (is_root && !from_root)) {
        return CELLS_NEEDS_ALL;
    }
    return from_root && !is_root ? CELLS_NEEDS_ROOT : CELLS_NEEDS_NOBODY;
}

bool cells_has_root(const struct client_cells *cells, uint64_t seq, const struct op_terms *terms)
{
    return cells_is_between_nodes(cells) ? node_cells_root_is_there(&cells->node, seq, terms)
                                         : cells_root_is_there(cells->shared, seq, terms);
}

/* Takes the result of an operation of which the rank needs nobody's data, or the root's, which are there. */
static void take_early(const struct comm_comm *comm, uint64_t seq, const struct client_call *call)
{
    const struct client_cells *cells = comm->cells;
    if (cells_is_between_nodes(cells) && cells_needs_of(comm, call, false) == CELLS_NEEDS_NOBODY) {
        cells_nodes_take_own(&cells->node, comm->rank, call);
    } else if (cells_is_between_nodes(cells)) {
        cells_nodes_read(&cells->node, comm->rank, cells->rank, seq, call);
    } else {
        cells_read(cells->shared, cells->rank_count, cells->rank, seq, call, NULL);
    }
}

bool cells_disturbs(const struct comm_comm *comm, const struct client_call *call)
{
    struct client_cells *cells = comm->cells;
    size_t output_bytes = call_buffer_bytes(call, &call->output);
    for (uint32_t i = 0; cells->kept_count > 0 && i < cells->count; i++) {
        const struct cells_slot *slot = cells_slot_at(cells, i);
        if (!slot->let_go && &slot->call != call &&
            call_works_on(&slot->call, comm->size, call->output.at, output_bytes)) {
            return true;
        }
    }
    return false;
}

void cells_let_go(struct comm_comm *comm, struct cells_slot *slot)
{
    take_early(comm, slot->seq, &slot->call);
    slot->let_go = true;
    comm->cells->kept_count--;
    ops_let_go(comm, slot->op);
}

struct cells_slot *cells_reader(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    const struct client_op *op = cells->kept_count > 0 ? comm->ops : NULL;
    while (op != NULL && (op_kind_is_message(op->kind) || (op->cell != NULL && op->cell->let_go))) {
        op = op->next;
    }
    bool may = op != NULL && op->cell != NULL && op->request != NULL && comm->failure == COMM_OK;
    bool needs_root =
        may && cells_needs_of(comm, &op->cell->call, op->cell->step_count > 0) == CELLS_NEEDS_ROOT;
    return needs_root ? op->cell : NULL;
}

bool cells_let_readers_go(struct comm_comm *comm)
{
    struct cells_slot *slot;
    bool any = false;
    while (comm->cells != NULL && (slot = cells_reader(comm)) != NULL &&
           cells_has_root(comm->cells, slot->seq, &slot->call.terms)) {
        cells_let_go(comm, slot);
        any = true;
    }
    return any;
}

/* --- Left behind --- */

/*
 * An operation of which the rank needs nobody's data has ended for it once it is published: that of a
 * broadcast's root, for example. So has that of a reader if the root's data are there. If it is the call's
 * only one, it gets a place among the open operations, and no struct client_op: the rank has little to do.
 * Almost always, all ranks take part later, and its place is free again. Otherwise the operation is made:
 * commd has to carry it out, its deadline has come, or somebody waits for all.
 */
void cells_leave_behind(struct comm_comm *comm, const struct client_call *call, enum cells_needs needs)
{
    struct client_cells *cells = comm->cells;
    struct cells_slot *slot = cells_reserve_slot(comm, call);
    slot->let_go = slot->left_behind = true;
    cells->kept_count--;
    cells->behind_count++;
    slot->ticket = ++comm->last_ticket;
    slot->deadline_ns = 0;
    cells_put_whole(comm, slot->seq, slot->ticket, call, needs);
    take_early(comm, slot->seq, call);
    held_watch(comm->client);
}

bool cells_behind_is_early(const struct comm_comm *comm, struct cells_slot *slot, uint64_t now_ns)
{
    if (slot->deadline_ns == 0) {
        slot->deadline_ns = now_ns + (uint64_t)cells_timeout_ms(comm, slot) * NS_PER_MS;
    }
    return now_ns < slot->deadline_ns;
}

static void fetch(struct comm_comm *comm, struct cells_slot *slot, struct client_op *op)
{
    slot->left_behind = false;
    comm->cells->behind_count--;
    slot->op = op;
    op->cell = slot;
    op->number = slot->seq;
    op->ticket = slot->ticket;
    op->deadline_ns =
        slot->deadline_ns != 0 ? slot->deadline_ns : clock_after_ms(cells_timeout_ms(comm, slot));
    op->submitted_ns = op->deadline_ns - (uint64_t)cells_timeout_ms(comm, slot) * NS_PER_MS;
    ops_insert(comm, op);
}

void cells_fetch_behind(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    for (uint32_t i = 0; cells != NULL && cells->behind_count > 0; i++) {
        struct cells_slot *slot = cells_slot_at(cells, i);
        if (!slot->left_behind) {
            continue;
        }
        struct client_op *op = comm->failure == COMM_OK ? op_new(comm, &slot->call) : NULL;
        if (op == NULL) {
            member_fail(comm, COMM_NO_MEMORY, "%s on \"%s\": no memory for an operation", slot->call.name,
                        comm->name);
            cells_forget_behind(comm);
            return;
        }
        fetch(comm, slot, op);
    }
}

/* --- At once --- */

static bool is_of_plain_kind(const struct comm_comm *comm, const struct client_call *call)
{
    return comm->client->trace == NULL && call->terms.has_layouts == 0;
}

/* Whether nothing else is under way, and looking is worth it. */
static bool may_end_at_once(struct comm_comm *comm, const struct client_call *call)
{
    struct client_cells *cells = comm->cells;
    if (comm->ops != NULL || cells->count > 0 || cells->crowded || cells_is_between_nodes(cells) ||
        cells_most_published_bytes(&call->terms, cells->rank_count) > AT_ONCE_MAX_BYTES) {
        return false;
    }
    if (cells->skips > 0) {
        cells->skips--;
        return false;
    }
    return true;
}

/* Looks found something, or did not: then the next calls do not look. Returns whether they did. */
static bool looked(struct client_cells *cells, bool found)
{
    cells->skipped_last = found                               ? 0
                          : cells->skipped_last < SKIPPED_MAX ? 2 * cells->skipped_last + 1
                                                              : SKIPPED_MAX;
    cells->skips = cells->skipped_last;
    return found;
}

bool cells_root_comes(struct client_cells *cells, const struct op_terms *terms)
{
    uint32_t looks = 0, most = cells->skips > 0 || cells->crowded ? 1 : LOOKS_AT_ONCE;
    while (!cells_root_is_there(cells->shared, cells->seq + 1, terms)) {
        if (++looks == most) {
            return most > 1 && looked(cells, false);
        }
        cells_pause();
    }
    return looked(cells, true);
}

/* Whether all ranks take part within a moment. */
static bool all_come_at_once(struct client_cells *cells, uint64_t seq, const struct op_terms *terms)
{
    uint32_t most = cells->crowded ? LOOKS_AT_ONCE_CROWDED : LOOKS_AT_ONCE;
    for (uint32_t looks = 0; looks < most; looks++) {
        switch (cells_look(cells->shared, cells->rank_count, cells->rank, seq, terms)) {
        case CELLS_DIRECT:
            return looked(cells, true);
        case CELLS_BY_COMMD:
            return false;
        case CELLS_WAIT:
            cells_pause();
            break;
        }
    }
    return looked(cells, false);
}

bool cells_end_with_all(struct comm_comm *comm, const struct client_call *call, enum cells_needs needs,
                        uint64_t size_bytes, struct cell_count *count)
{
    struct client_cells *cells = comm->cells;
    uint64_t began_ns = cell_counts_times_next(count, 0) ? clock_ns() : 0;
    uint64_t seq = ++cells->seq;
    cells_put_whole(comm, seq, 0, call, needs);
    if (!all_come_at_once(cells, seq, &call->terms)) {
        cells->is_ahead = true;
        return false;
    }
    cells_read(cells->shared, cells->rank_count, cells->rank, seq, call, NULL);
    cells_count(count, size_bytes, began_ns);
    atomic_store_explicit(&cells->gone, seq, memory_order_release);
    comm->client->cells.used++;
    comm->last_ticket++;
    return true;
}

bool cells_end_at_once(struct comm_comm *comm, const struct client_call *call)
{
    struct client_cells *cells = comm->cells;
    enum cells_needs needs = cells_needs_of(comm, call, false);
    if (!is_of_plain_kind(comm, call)) {
        return false;
    }
    cells_keep_last(comm, call, needs);
    bool has_all = needs == CELLS_NEEDS_NOBODY ||
                   (needs == CELLS_NEEDS_ROOT && cells_has_root(cells, cells->seq + 1, &call->terms));
    if (has_all && !cells_disturbs(comm, call)) {
        cells_leave_behind(comm, call, needs);
        return true;
    }
    if (!may_end_at_once(comm, call)) {
        return false;
    }
    uint64_t size_bytes = cells_size_bytes(cells, &call->terms);
    struct cell_count *count = cell_counts_of(cells->counts, call->terms.kind, size_bytes);
    return cells_end_with_all(comm, call, needs, size_bytes, count);
}

bool cells_may_look_later(const struct comm_comm *comm, const struct client_call *call)
{
    const struct client_cells *cells = comm->cells;
    if (cells->count > 0 && cells_needs_of(comm, call, false) == CELLS_NEEDS_ALL) {
        return false;
    }
    return cells->count < cells_window_of(cells, call) / 2 && comm->client->cells.open == cells->count &&
           cells->kept_count == 0;
}

bool cells_keep_data(const struct comm_comm *comm, struct cells_slot *slot)
{
    const struct client_cells *cells = comm->cells;
    struct client_call *call = &slot->call;
    size_t input_bytes = call_buffer_bytes(call, &call->input);
    size_t output_bytes = call_buffer_bytes(call, &call->output);
    size_t published_bytes = cells_published_bytes(&call->terms, comm->size, comm->rank);
    unsigned char *kept = malloc(input_bytes + output_bytes + 1);
    if (kept == NULL) {
        return false;
    }
    const unsigned char *published =
        cells_is_between_nodes(cells)
            ? node_cells_input(&cells->node, &call->terms, comm->rank, cells->rank, slot->seq)
            : cells_data(cells->shared, cells->rank_count, cells->rank, slot->seq, published_bytes);
    memcpy(kept, published, published_bytes < input_bytes ? published_bytes : input_bytes);
    if (call->output.at != NULL) { /* the caller has its result */
        call->output.at = call->output.at == call->input.at ? kept : kept + input_bytes;
    }
    call->input.at = call->input.at != NULL ? kept : NULL;
    slot->op->kept = kept;
    return true;
}
