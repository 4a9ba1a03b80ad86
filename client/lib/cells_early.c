#include <stdlib.h>
#include <string.h>

#include "client/lib/cells_internal.h"

/*
 * Operations that end early for their caller. Handles end as soon as the rank has what it needs, as in MPI.
 * The operation itself goes on, until all ranks have taken part: so all are told the same if their terms
 * differ, and comm_sync waits for that. And an operation in which all take part at the same time ends within
 * the call that begins it: it needs no place in any list.
 */

#define LOOKS_AT_ONCE 6u /* with a pause of some 10 ns between two */
#define SKIPPED_MAX 64u  /* calls that do not look after one whose looks found nothing; doubles */
/* Measured: without this limit, an all-reduce of 8 KiB between 2 ranks took 5 us in place of 0.5. Why is not
 * known. */
#define AT_ONCE_MAX_BYTES 4096u

enum cells_needs cells_needs_of(const struct client_cells *cells, const struct client_call *call,
                                bool in_slices)
{
    const struct op_terms *terms = &call->terms;
    bool from_root = op_kind_is_from_root(terms->kind);
    bool is_root = cells->rank == terms->root_rank;
    if (!op_kind_has_root(terms->kind) || terms->has_layouts != 0 || in_slices ||
        cells_is_between_nodes(cells) || (is_root && !from_root)) {
        return CELLS_NEEDS_ALL;
    }
    return from_root && !is_root ? CELLS_NEEDS_ROOT : CELLS_NEEDS_NOBODY;
}

static enum cells_needs slot_needs(const struct client_cells *cells, const struct cells_slot *slot)
{
    return cells_needs_of(cells, &slot->call, slot->step_count > 0);
}

void cells_let_go(struct comm_comm *comm, struct cells_slot *slot)
{
    const struct client_cells *cells = comm->cells;
    cells_read(cells->shared, cells->rank_count, cells->rank, slot->seq, &slot->call, NULL);
    slot->let_go = true;
    ops_let_go(comm, slot->op);
}

struct cells_slot *cells_reader(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    const struct client_op *op = comm->ops;
    while (op != NULL && (op_kind_is_message(op->kind) || (op->cell != NULL && op->cell->let_go))) {
        op = op->next;
    }
    bool may = op != NULL && op->cell != NULL && op->request != NULL && comm->failure == COMM_OK;
    return may && slot_needs(cells, op->cell) == CELLS_NEEDS_ROOT ? op->cell : NULL;
}

bool cells_let_readers_go(struct comm_comm *comm)
{
    struct cells_slot *slot;
    bool any = false;
    while (comm->cells != NULL && (slot = cells_reader(comm)) != NULL &&
           cells_root_is_there(comm->cells->shared, slot->seq, &slot->call.terms)) {
        cells_let_go(comm, slot);
        any = true;
    }
    return any;
}

static bool may_end_at_once(struct comm_comm *comm, const struct client_call *call)
{
    struct client_cells *cells = comm->cells;
    if (comm->ops != NULL || cells_is_between_nodes(cells) || cells->crowded || comm->client->trace != NULL ||
        call->terms.has_layouts != 0 ||
        cells_most_published_bytes(&call->terms, cells->rank_count) > AT_ONCE_MAX_BYTES ||
        cells_needs_of(cells, call, false) == CELLS_NEEDS_NOBODY) {
        return false;
    }
    if (cells->skips > 0) {
        cells->skips--;
        return false;
    }
    return true;
}

/* Whether all ranks take part within a moment. */
static bool all_come_at_once(struct client_cells *cells, uint64_t seq, const struct op_terms *terms)
{
    for (uint32_t looks = 0; looks < LOOKS_AT_ONCE; looks++) {
        switch (cells_look(cells->shared, cells->rank_count, cells->rank, seq, terms)) {
        case CELLS_DIRECT:
            cells->skipped_last = 0;
            return true;
        case CELLS_BY_COMMD:
            return false;
        case CELLS_WAIT:
            cells_pause();
            break;
        }
    }
    cells->skipped_last = cells->skipped_last < SKIPPED_MAX ? 2 * cells->skipped_last + 1 : SKIPPED_MAX;
    cells->skips = cells->skipped_last;
    return false;
}

bool cells_end_at_once(struct comm_comm *comm, const struct client_call *call)
{
    struct client_cells *cells = comm->cells;
    if (!may_end_at_once(comm, call)) {
        return false;
    }
    uint64_t size_bytes = cells_size_bytes(cells, &call->terms);
    struct cell_count *count = cell_counts_of(cells->counts, call->terms.kind, size_bytes);
    uint64_t began_ns = cell_counts_times_next(count, 0) ? clock_ns() : 0;
    uint64_t seq = ++cells->seq;
    cells_put_whole(cells, seq, call, cells_needs_of(cells, call, false));
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

bool cells_may_look_later(const struct comm_comm *comm)
{
    const struct client_cells *cells = comm->cells;
    if (cells->count >= CELLS_WINDOW / 2 || comm->client->cells.open != cells->count) {
        return false;
    }
    for (uint32_t i = 0; i < cells->count; i++) {
        if (!cells->slots[(cells->first + i) % CELLS_WINDOW].let_go) {
            return false;
        }
    }
    return true;
}

bool cells_keep_data(const struct client_cells *cells, struct cells_slot *slot)
{
    struct client_call *call = &slot->call;
    size_t input_bytes = call_buffer_bytes(call, &call->input);
    size_t output_bytes = call_buffer_bytes(call, &call->output);
    size_t published_bytes = cells_published_bytes(&call->terms, cells->rank_count, cells->rank);
    unsigned char *kept = malloc(input_bytes + output_bytes + 1);
    if (kept == NULL) {
        return false;
    }
    memcpy(kept, cells_data(cells->shared, cells->rank_count, cells->rank, slot->seq, published_bytes),
           published_bytes < input_bytes ? published_bytes : input_bytes);
    if (call->output.at != NULL) { /* the caller has its result */
        call->output.at = call->output.at == call->input.at ? kept : kept + input_bytes;
    }
    call->input.at = call->input.at != NULL ? kept : NULL;
    slot->op->kept = kept;
    return true;
}
