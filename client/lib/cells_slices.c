#include <string.h>

#include "client/lib/cells_internal.h"

/*
 * Operations of one node that are too long for a cell, slice by slice (proto/cells.h). The ranks do all the
 * work, while the data are in their caches. So each of them must look: while its program waits, or else in
 * the library's thread.
 */

#define SLICES_ABANDONED_NS 4000000u /* how long nobody waits, before the library's thread goes on */
#define LENT_SLICE_BYTES (16u << 20) /* if nothing is copied to a place */
#define ATTEND_NS 2000000u           /* then it waits so long at a time */

/* If the rest of the operation has to go to commd, it goes there whole. Its input must be as it was. */
static bool may_begin_again(const struct client_call *call)
{
    enum op_kind kind = call->terms.kind;
    return (kind != OP_KIND_ALL_TO_ALL && kind != OP_KIND_REDUCE_SCATTER) ||
           !call_reads_output_of(call, call);
}

static bool is_registered(const struct comm_client *client, const struct client_call *call,
                          const struct call_buffer *buffer)
{
    return buffer->at == NULL || memory_find(client, buffer->at, call_buffer_bytes(call, buffer)) != NULL;
}

/* By the terms and layouts alone. Sets the bytes that go through cells. */
static bool is_cut(const struct client_cells *cells, const struct client_call *call, uint64_t *size_bytes)
{
    if (call->terms.has_layouts == 0) {
        *size_bytes = cells_most_published_bytes(&call->terms, cells->rank_count);
        return cells_take_slices(&call->terms, cells->rank_count);
    }
    *size_bytes = call_buffer_bytes(call, &call->input);
    return cells_take(&call->terms, cells->rank_count) && !cells_blocks_fit(call, cells->rank_count);
}

static uint64_t registered_max_bytes(const struct comm_comm *comm, const struct client_call *call)
{
    const struct client_cells *cells = comm->cells;
    enum op_kind kind = call->terms.kind;
    bool may_be_lent = cells->crowded ? op_kind_has_blocks(kind) : kind != OP_KIND_BROADCAST;
    if (may_be_lent && cells_may_lend(comm, call)) {
        uint32_t blocks = op_kind_has_output_blocks(kind) && !op_kind_has_input_blocks(kind) ? comm->size : 1;
        return cells->crowded ? CELLS_LENT_SHARED_MAX_BYTES / blocks : CELLS_LENT_MAX_BYTES;
    }
    return cells->crowded || kind == OP_KIND_ALL_REDUCE ? CELLS_REGISTERED_MAX_BYTES
                                                        : CELLS_REGISTERED_SPREAD_MAX_BYTES;
}

bool cells_has_slices(const struct comm_comm *comm, const struct client_call *call, bool waits)
{
    const struct client_cells *cells = comm->cells;
    uint64_t size_bytes;
    if (cells_is_between_nodes(cells) || !is_cut(cells, call, &size_bytes)) {
        return false;
    }
    return (waits && size_bytes <= registered_max_bytes(comm, call)) ||
           !is_registered(comm->client, call, &call->input) ||
           !is_registered(comm->client, call, &call->output);
}

bool cells_may_publish_slices(struct comm_comm *comm, const struct client_call *call, bool waits)
{
    struct client_cells *cells = comm->cells;
    if (cells == NULL || cells->writing || !cells_has_slices(comm, call, true) ||
        !cells_have_room(comm, call, waits)) {
        return false;
    }
    bool is_one = call->terms.has_layouts == 0 && cells_cut(&call->terms, cells->rank_count).slice_count == 1;
    return is_one || may_begin_again(call);
}

void cells_use_slices(struct comm_comm *comm, bool uses)
{
    struct client_cells *cells = comm->cells;
    if (cells->uses_slices == uses) {
        return;
    }
    cells->uses_slices = uses;
    if (uses) {
        DEBUG("\"%s\": long operations go through cells in slices", comm->name);
    } else {
        DEBUG("\"%s\": the program does not wait at once: long operations on memory of comm_mem_alloc go to "
              "commd",
              comm->name);
    }
}

/* If nothing is copied to a place, slices need not fit there. Longer ones are fewer, and ranks meet less
 * often.
 */
static struct cells_cut cut_of(const struct client_cells *cells, const struct op_terms *terms)
{
    struct cells_cut cut = cells_cut(terms, cells->rank_count);
    if (cut.steps == 1 && cells->lending.by_all) {
        return cells_cut_into(terms, cells->rank_count, LENT_SLICE_BYTES);
    }
    return cut;
}

/* By the number of the step, from 0 on. */
static struct cells_slice slice_of(struct client_cells *cells, const struct client_call *call, uint64_t step)
{
    struct cells_cut cut = cut_of(cells, &call->terms);
    uint64_t begin = step / cut.steps * cut.slice_elements, left = call->terms.count_elements - begin;
    return (struct cells_slice){.begin = begin,
                                .elements = left < cut.slice_elements ? left : cut.slice_elements,
                                .step = (uint32_t)(step % cut.steps),
                                .steps = cut.steps,
                                .lent = cells->lending.lent,
                                .remote = cells->lending.remote.any ? &cells->lending.remote : NULL};
}

/* With a count for each rank, the step 0 is the table. */
static struct cells_blocks_slice blocks_slice_of(struct client_cells *cells, const struct cells_slot *slot,
                                                 uint64_t step)
{
    return (struct cells_blocks_slice){.index = step - 1,
                                       .count = slot->step_count - (slot->ends_apart ? 2 : 1),
                                       .remote = cells->lending.remote.any ? &cells->lending.remote : NULL};
}

static void write_slice(struct client_cells *cells, uint64_t seq, const struct client_call *call,
                        uint64_t step)
{
    struct cells_slice slice = slice_of(cells, call, step);
    if (slice.step == 0 && cells_lends(cells)) {
        return;
    }
    cells_write_slice(cells->shared, cells->rank_count, cells->rank, seq, cells->place, call, &slice);
}

/* Whether it is the step in which a rank says that it has read everything. */
static bool is_apart(const struct cells_slot *slot, uint64_t step)
{
    return slot->ends_apart && step + 1 == slot->step_count;
}

static void write_next(struct client_cells *cells, const struct cells_slot *slot)
{
    if (is_apart(slot, slot->step + 1)) {
        return;
    }
    if (slot->call.terms.has_layouts != 0 && !cells_lends(cells)) {
        struct cells_blocks_slice slice = blocks_slice_of(cells, slot, slot->step + 1);
        cells_blocks_write_slice(cells->shared, cells->rank_count, cells->rank, cells->place, &slot->call,
                                 &slice);
    } else if (slot->call.terms.has_layouts == 0) {
        write_slice(cells, slot->seq + 1, &slot->call, slot->step + 1);
    }
}

static void read_this(struct client_cells *cells, const struct cells_slot *slot)
{
    if (is_apart(slot, slot->step)) {
        return;
    }
    if (slot->call.terms.has_layouts == 0) {
        struct cells_slice slice = slice_of(cells, &slot->call, slot->step);
        cells_read(cells->shared, cells->rank_count, cells->rank, slot->seq, &slot->call, &slice);
    } else if (slot->step > 0) {
        struct cells_blocks_slice slice = blocks_slice_of(cells, slot, slot->step);
        cells_blocks_read_slice(cells->shared, cells->rank_count, cells->rank, slot->seq, &slot->call,
                                &slice);
    }
}

void cells_write_first(struct comm_comm *comm, const struct client_call *call)
{
    struct client_cells *cells = comm->cells;
    if (call->terms.has_layouts != 0) {
        return; /* cells_put writes the table */
    }
    cells_lend_begin(comm, call);
    cells->writing = true;
    comm->copying++;
    client_leave(comm->client);
    uint64_t started_ns = cells_trial_start(&cells->lending.trials);
    write_slice(cells, cells->seq + 1, call, 0);
    cells_trial_stop(&cells->lending.trials, started_ns);
    pthread_mutex_lock(&comm->client->lock);
    comm->copying--;
    cells->writing = false;
    pthread_cond_broadcast(&comm->client->changed);
}

void cells_put_slice(struct client_cells *cells, const struct cells_slot *slot)
{
    cells_write_header(cells->shared, cells->rank, slot->seq, cells->place, &slot->call);
    cells_header(cells->shared, cells->rank, slot->seq)->said.terms = cells_said(slot);
    cells_lend_write_note(cells, slot->seq);
    cells->place = (cells->place + 1) % CELLS_PLACES;
    cells_publish(cells->shared, cells->rank_count, cells->rank, slot->seq, true);
}

/* All ranks have published the first slice. If one lends, all take one more number. Returns whether nothing
 * may be read, and commd must carry out the operation. */
static bool look_for_loans(struct comm_comm *comm, struct cells_slot *slot)
{
    struct client_cells *cells = comm->cells;
    bool mixes, any = cells_lend_look(cells, slot, &mixes);
    if (any && cells_cut(&slot->call.terms, cells->rank_count).steps == 1) {
        slot->ends_apart = true;
        slot->may_fail = cells->lending.by_process;
        slot->step_count = cut_of(cells, &slot->call.terms).slice_count + 1;
        cells->seq = slot->seq + slot->step_count - 1;
    }
    if (mixes) {
        DEBUG("\"%s\": a rank works in place, and others would read processes: commd has the operation",
              comm->name);
    }
    return mixes || cells->lending.remote.failed;
}

enum cells_way cells_take_slice(struct comm_comm *comm, struct cells_slot *slot)
{
    struct client_cells *cells = comm->cells;
    struct client_op *op = slot->op;
    bool may_lend = slot->step == 0 && slot->call.terms.has_layouts == 0;
    bool refuses = may_lend && look_for_loans(comm, slot);
    bool more = slot->step + 1 < slot->step_count;
    op->staging = true; /* it must not end meanwhile */
    comm->copying++;
    client_leave(comm->client);
    if (!refuses) {
        uint64_t started_ns = cells_trial_start(&cells->lending.trials);
        read_this(cells, slot);
        if (more) {
            write_next(cells, slot);
        }
        cells_trial_stop(&cells->lending.trials, started_ns);
    }
    if (may_lend) {
        cells_lend_map(comm, slot->seq);
    }
    bool holds = !more || (!refuses && cells_lend_holds(cells));
    pthread_mutex_lock(&comm->client->lock);
    comm->copying--;
    pthread_cond_broadcast(&comm->client->changed);
    op->staging = false;
    if (!more) {
        cells_lend_ended_well(cells);
        op->dropped = false; /* the other ranks say that it ended well, so this one does, too */
        return CELLS_DIRECT;
    }
    if (op->dropped || comm->failure != COMM_OK) {
        ops_drop(comm, op);
        return CELLS_WAIT;
    }
    atomic_store_explicit(&cells->gone, slot->seq, memory_order_release); /* who waits looks at the next */
    slot->step++;
    op->number = ++slot->seq;
    if (!holds) {
        cells_hand_over(cells->shared, cells->rank_count, cells->rank, slot->seq);
        return CELLS_BY_COMMD;
    }
    cells_put_slice(cells, slot);
    return CELLS_WAIT;
}

enum cells_way cells_begin_slices(struct comm_comm *comm, struct cells_slot *slot)
{
    struct client_cells *cells = comm->cells;
    const struct op_terms *terms = &slot->call.terms;
    bool mixes, any = cells_lend_look_at_tables(cells, slot, &mixes);
    uint64_t most_bytes = any && cells->lending.by_all ? LENT_SLICE_BYTES : CELLS_SLICE_MAX_BYTES;
    uint64_t slices = cells_slices_of_blocks(cells->shared, cells->rank_count, slot->seq, terms, most_bytes);
    if (slices == 0) {
        return CELLS_DIRECT;
    }
    cells_trial_count(&cells->lending.trials);
    cells_lend_map(comm, slot->seq);
    if (mixes) {
        cells_lend_returned(cells);
    }
    if (mixes || cells->lending.remote.failed || !may_begin_again(&slot->call)) {
        slot->op->number = cells->seq = ++slot->seq; /* of the first slice */
        cells_hand_over(cells->shared, cells->rank_count, cells->rank, slot->seq);
        return CELLS_BY_COMMD;
    }
    slot->elements = cells_elements(cells->shared, cells->rank_count, slot->seq, terms);
    slot->ends_apart = slot->may_fail = any;
    slot->step_count = slices + (any ? 2 : 1);
    cells->seq = slot->seq + slot->step_count - 1;
    cells_use_slices(comm, true);
    return CELLS_WAIT;
}

/* All ranks have their results, and only tell each other so. */
static void keep_nothing(struct client_call *call)
{
    call->terms.count_elements = 0;
    call->input.elements = call->output.elements = 0;
}

/* The slices of blocks are no operation for commd: it carries out all of it again. */
static void keep_rest(struct client_call *call, uint64_t begin)
{
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    struct call_buffer *buffers[] = {&call->input, &call->output};
    call->terms.count_elements -= begin;
    for (size_t i = 0; i < 2; i++) {
        if (buffers[i]->at != NULL) {
            buffers[i]->at = (unsigned char *)buffers[i]->at + begin * element_bytes;
            buffers[i]->elements -= begin;
        }
    }
}

void cells_return_slices(struct client_cells *cells, struct cells_slot *slot)
{
    if (slot->step_count > 1) {
        cells->seq = slot->seq; /* ranks that had no slices have taken no number for them */
    }
    if (slot->step > 0) {
        cells_lend_returned(cells);
    }
    uint64_t step = slot->step - (slot->may_fail ? 1 : 0);
    if (is_apart(slot, step)) {
        keep_nothing(&slot->call);
    } else if (slot->call.terms.has_layouts == 0 && !op_kind_has_blocks(slot->call.terms.kind)) {
        keep_rest(&slot->call, slice_of(cells, &slot->call, step).begin);
    }
}

void cells_attend_to(struct comm_comm *comm, const struct client_op *op)
{
    if (op->cell != NULL && (op->cell->step_count > 0 || op->cell->call.terms.has_layouts != 0)) {
        op->cell->attended = true;
        cells_waiter_left(comm);
    }
}

void cells_waiter_left(struct comm_comm *comm)
{
    const struct client_cells *cells = comm->cells;
    if (comm->waiters == 0 && cells != NULL && cells->count > 0 && cells_slot_at(comm->cells, 0)->attended) {
        held_wake(comm->client);
    }
}

/* Whether nobody waits for the oldest published operation, which goes in slices. */
static bool is_unattended(const struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    const struct cells_slot *slot = cells != NULL && cells->count > 0 ? cells_slot_at(cells, 0) : NULL;
    return !comm->leaving && comm->waiters == 0 && slot != NULL && (slot->step_count > 0 || slot->attended) &&
           slot->op != NULL && !slot->op->staging &&
           (slot->attended || clock_ns() - slot->began_ns >= SLICES_ABANDONED_NS);
}

/* Returns null if there is none. One whose next slice is complete goes first. */
static struct comm_comm *find_unattended(const struct comm_client *client)
{
    struct comm_comm *found = NULL;
    for (struct comm_comm *comm = client->comms; comm != NULL; comm = comm->next) {
        if (!is_unattended(comm)) {
            continue;
        }
        const struct client_cells *cells = comm->cells;
        if (cells_have_news(cells->shared, cells->rank_count, cells->rank,
                            cells_slot_at(comm->cells, 0)->seq)) {
            return comm;
        }
        found = found == NULL ? comm : found;
    }
    return found;
}

void cells_attend(struct comm_client *client)
{
    struct comm_comm *comm;
    while (client->lost == COMM_OK && !client->feeder.closing && (comm = find_unattended(client)) != NULL) {
        if (!cells_slot_at(comm->cells, 0)->attended) {
            comm->habit.waits = HABIT_WAITS_AFTER_MISS;
        }
        comm->copying++; /* it must not be left meanwhile */
        bool waited = cells_wait(comm, NULL, clock_ns() + ATTEND_NS, false);
        comm->copying--;
        pthread_cond_broadcast(&client->changed);
        if (!waited) {
            return;
        }
    }
}
