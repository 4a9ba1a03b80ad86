#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/cells_internal.h"

#define NS_PER_MS 1000000u
#define SEGMENT_LOOK_NS 1000000u /* between looks at commd for the segment */
#define OWN_AHEAD 4u             /* cells, whose lines other processors have: a store waits for them */

/* --- Beginning and end --- */

static void tell_retire(struct comm_comm *comm, bool late)
{
    Commd__Client__CellsRetire body = COMMD__CLIENT__CELLS_RETIRE__INIT;
    body.handle = comm->handle;
    body.late = late;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_CELLS_RETIRE;
    request.cells_retire = &body;
    client_tell(comm->client, &request);
}

/* The memory stays this process's: a child of fork that wrote there would take part in its place. */
static struct cells_shared *map_segment(int fd, size_t size_bytes)
{
    if (!memory_is_fixed(fd, size_bytes)) {
        return NULL;
    }
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    if (madvise(memory, size_bytes, MADV_DONTFORK) != 0) {
        (void)munmap(memory, size_bytes);
        return NULL;
    }
    (void)madvise(memory, size_bytes, MADV_DONTDUMP);
    return memory;
}

void cells_handle(struct comm_client *client, uint32_t handle, uint32_t local_ranks)
{
    struct comm_comm *comm = member_by_handle(client, handle);
    bool is_joining = comm != NULL && (comm->comm_id == 0 || comm->offers_cells);
    bool between_nodes = local_ranks > 0;
    if (!is_joining || comm->cells != NULL ||
        (between_nodes ? local_ranks > NODE_CELLS_RANKS_MAX : comm->size > CELLS_RANKS_MAX)) {
        return;
    }
    struct client_cells *cells = comm->cells = calloc(1, sizeof *cells);
    if (cells != NULL && client->cells.fd >= 0) {
        cells->rank_count = between_nodes ? local_ranks + 1 : comm->size;
        cells->size_bytes = between_nodes ? node_cells_bytes(local_ranks) : cells_bytes(cells->rank_count);
        cells->shared = map_segment(client->cells.fd, cells->size_bytes);
        cells->node.shared = between_nodes ? cells->shared : NULL;
    }
}

/* The event was sent before commd's answer. But the socket may not have been read since. */
static void await_segment(struct comm_comm *comm)
{
    struct comm_client *client = comm->client;
    uint64_t deadline_ns = clock_after_ms(REQUEST_TIMEOUT_MS);
    client_take_all(client);
    while (comm->cells == NULL && client->lost == COMM_OK && clock_ns() < deadline_ns) {
        client_progress(client, clock_ns() + SEGMENT_LOOK_NS);
        client_take_all(client);
    }
}

void cells_open(struct comm_comm *comm)
{
    await_segment(comm);
    comm->offers_cells = false;
    struct client_cells *cells = comm->cells;
    uint32_t rank_count = comm->node_count > 1 ? comm->local_size + 1 : comm->size;
    bool fits = cells != NULL && cells->rank_count == rank_count &&
                cells_is_between_nodes(cells) == (comm->node_count > 1);
    if (cells == NULL || cells->shared == NULL || !fits) {
        cells_close(comm);
        tell_retire(comm, false); /* otherwise the other ranks would wait for this rank's cells */
        return;
    }
    cells->rank = comm->local_rank;
    cells->node.local_count = comm->local_size;
    cells->node.rank_count = comm->size;
    cells->counts = &cells->shared->ranks[cells->rank].counts;
    cells_take_place(cells);
    cells->needs_fences = cells_need_fences(cells->shared);
    cells_lend_open(cells);
    if (!cells_is_between_nodes(cells)) {
        cells_messages_open(comm);
    }
}

void cells_close(struct comm_comm *comm)
{
    if (comm->cells != NULL) {
        comm->client->cells.open -= comm->cells->count;
        if (comm->cells->shared != NULL) {
            (void)munmap(comm->cells->shared, comm->cells->size_bytes);
            cells_lend_end(comm);
        }
        cells_messages_close(comm->cells);
        free(comm->cells);
        comm->cells = NULL;
    }
}

/* --- Publishing --- */

/* Whether its input is an output that is not there yet. */
static bool needs_open(struct client_cells *cells, const struct client_call *call)
{
    for (uint32_t i = 0; cells->kept_count > 0 && i < cells->count; i++) {
        const struct cells_slot *slot = cells_slot_at(cells, i);
        if (!slot->let_go && call_reads_output_of(call, &slot->call)) {
            return true;
        }
    }
    return false;
}

static bool is_plain(const struct comm_comm *comm, const struct client_call *call)
{
    return call->input.list == NULL && call->output.list == NULL && call->options.queue == NULL &&
           comm->client->gpus == NULL;
}

/* By the terms alone, but for layouts. */
static bool fits_in_cells(const struct comm_comm *comm, const struct client_call *call)
{
    const struct client_cells *cells = comm->cells;
    if (cells_is_between_nodes(cells)) {
        return comm->client->rings != NULL && node_cells_take(&cells->node, &call->terms);
    }
    return cells_take(&call->terms, cells->rank_count) &&
           (call->terms.has_layouts == 0 || cells_blocks_fit(call, cells->rank_count));
}

/* Slices take several numbers, one more if a rank lends. Nothing is published between them. With a count for
 * each rank, slices may follow.
 */
static bool is_amid_slices(struct client_cells *cells)
{
    const struct cells_slot *last = cells->count > 0 ? cells_slot_at(cells, cells->count - 1) : NULL;
    return last != NULL && (last->step_count > 0 || last->call.terms.has_layouts != 0);
}

/* The call's own window; others may be open that need a smaller one. */
static uint32_t own_window(const struct client_cells *cells, const struct client_call *call)
{
    if (!cells_is_between_nodes(cells)) {
        return cells_window(&call->terms, cells->rank_count);
    }
    return node_cells_are_short(&cells->node, &call->terms) ? NODE_CELLS_WINDOW : CELLS_LONG_WINDOW;
}

uint32_t cells_window_of(const struct client_cells *cells, const struct client_call *call)
{
    return cells_window_beside(cells, own_window(cells, call));
}

bool cells_have_room(struct comm_comm *comm, const struct client_call *call, bool waits)
{
    struct client_cells *cells = comm->cells;
    return comm->failure == COMM_OK && !waits && comm->collectives_in_flight == 0 &&
           cells->count < cells_window_of(cells, call) && is_plain(comm, call) && !is_amid_slices(cells) &&
           !needs_open(cells, call) &&
           atomic_load_explicit(&cells->shared->open_from, memory_order_relaxed) <= cells->seq + 1;
}

bool cells_may_publish(struct comm_comm *comm, const struct client_call *call, bool waits)
{
    return comm->cells != NULL && fits_in_cells(comm, call) && cells_have_room(comm, call, waits);
}

static void keep_counts(struct client_cells *cells, struct cells_slot *slot)
{
    size_t index =
        (size_t)(slot - cells->slots) % CELLS_LONG_WINDOW; /* no more are open, one behind the other */
    const size_t **counts[4] = {&slot->call.input.counts, &slot->call.input.displacements,
                                &slot->call.output.counts, &slot->call.output.displacements};
    for (size_t i = 0; i < 4; i++) {
        if (*counts[i] != NULL) {
            memcpy(cells->kept[index][i], *counts[i], cells->rank_count * sizeof(size_t));
            *counts[i] = cells->kept[index][i];
        }
    }
}

/* Of an operation in one cell, without a count for each rank, the size is known before. */
static bool has_known_size(const struct cells_slot *slot)
{
    return slot->step_count == 0 && slot->call.terms.has_layouts == 0;
}

static bool may_be_timed(const struct client_cells *cells, const struct cells_slot *slot)
{
    const struct op_terms *terms = &slot->call.terms;
    uint64_t size_bytes = cells_size_bytes(cells, terms);
    return !has_known_size(slot) ||
           cell_counts_times_next(cell_counts_of(cells->counts, terms->kind, size_bytes), cells->count - 1);
}

struct cells_slot *cells_reserve_slot(struct comm_comm *comm, const struct client_call *call)
{
    struct client_cells *cells = comm->cells;
    struct cells_slot *slot = cells_slot_at(cells, cells->count++);
    slot->op = NULL;
    slot->window = own_window(cells, call);
    cells->long_count += slot->window == CELLS_LONG_WINDOW;
    cells->kept_count++;
    cells->seq += cells->is_ahead ? 0 : 1;
    slot->seq = cells->seq;
    slot->call = *call;
    slot->step = slot->step_count = 0;
    slot->attended = slot->let_go = slot->left_behind = slot->begins = slot->ends_apart = slot->may_fail =
        false;
    if (slot->window == CELLS_LONG_WINDOW && call->terms.has_layouts == 0 && !fits_in_cells(comm, call)) {
        struct cells_cut cut = cells_cut(&call->terms, cells->rank_count);
        slot->step_count = cut.slice_count * cut.steps;
        cells->seq += slot->step_count - 1;
    }
    if (call->terms.has_layouts != 0) {
        keep_counts(cells, slot);
    }
    slot->began_ns = cells_is_between_nodes(cells) || may_be_timed(cells, slot) ? clock_ns() : 0;
    comm->client->cells.open++;
    comm->client->cells.used++;
    return slot;
}

void cells_reserve(struct comm_comm *comm, const struct client_call *call, struct client_op *op)
{
    struct cells_slot *slot = cells_reserve_slot(comm, call);
    slot->op = op;
    op->cell = slot;
    op->number = slot->seq;
}

static void put_between_nodes(struct comm_comm *comm, uint64_t seq, uint64_t ticket,
                              const struct client_call *call)
{
    const struct client_cells *cells = comm->cells;
    cells_nodes_write(&cells->node, comm->rank, cells->rank, seq, ticket, call);
    if (node_cells_publish(&cells->node, cells->rank, seq)) {
        rings_ring(comm->client->rings);
    }
}

void cells_put_whole(struct comm_comm *comm, uint64_t seq, uint64_t ticket, const struct client_call *call,
                     enum cells_needs needs)
{
    const struct client_cells *cells = comm->cells;
    if (cells_is_between_nodes(cells)) {
        put_between_nodes(comm, seq, ticket, call);
        return;
    }
    cell_counts_raise(&cells->counts->published, 1);
    cells_own_soon(cells_header(cells->shared, cells->rank, seq + OWN_AHEAD));
    cells_write(cells->shared, cells->rank_count, cells->rank, seq, call);
    if (call->terms.has_layouts != 0) {
        cells_lend_write_note(cells, seq);
    }
    /* A rank that needs all others fences: a look at their cells before its own is written disturbs them. */
    cells_publish(cells->shared, cells->rank_count, cells->rank, seq,
                  cells->needs_fences || needs == CELLS_NEEDS_ALL);
}

void cells_put(struct comm_comm *comm, struct client_op *op)
{
    struct client_cells *cells = comm->cells;
    if (op->cell->step_count > 0) {
        cell_counts_raise(&cells->counts->published, 1);
        cells_use_slices(comm, true);
        cells_put_slice(cells, op->cell);
    } else if (!cells->is_ahead) {
        enum cells_needs needs = cells_needs_of(comm, &op->cell->call, false);
        if (op->cell->call.terms.has_layouts != 0) {
            cells_lend_begin(comm, &op->cell->call);
        }
        cells_put_whole(comm, op->cell->seq, op->ticket, &op->cell->call, needs);
        bool ends_early = op->request != NULL && needs == CELLS_NEEDS_NOBODY;
        if (ends_early && !cells_disturbs(comm, &op->cell->call)) {
            cells_let_go(comm, op->cell);
        }
    }
    cells->is_ahead = false;
    held_watch(comm->client);
}

void cells_pass(struct comm_comm *comm, struct client_op *op, struct submit_record *record)
{
    struct client_cells *cells = comm->cells;
    if (cells == NULL || op_kind_is_message(op->kind)) {
        return;
    }
    if (op->number == 0) {
        op->number = ++cells->seq;
        if (cells_is_between_nodes(cells)) { /* commd tells the others */
            atomic_store_explicit(&cells->shared->ranks[cells->rank].by_commd, op->number,
                                  memory_order_release);
        } else {
            cells_hand_over(cells->shared, cells->rank_count, cells->rank, op->number);
        }
    }
    uint64_t now_ns = clock_ns();
    bool has_waited = op->waits_since_ns != 0 && op->waits_since_ns < now_ns;
    uint64_t waited_ns = has_waited ? now_ns - op->waits_since_ns : 0;
    submit_record_add(record, RECORD_NUMBER, 0, waited_ns / NS_PER_MS, op->number);
}

const struct client_call *cells_call_of(const struct cells_slot *slot)
{
    return slot->let_go ? NULL : &slot->call;
}

bool cells_must_wait(const struct comm_comm *comm)
{
    return comm->cells != NULL && comm->cells->count > 0;
}

bool cells_may_feed(struct comm_comm *comm, const struct client_held *held)
{
    if (!cells_must_wait(comm) || held->returned) {
        return true;
    }
    return held->op != NULL && cells_may_publish(comm, held->call, held->wait_count > 0);
}

/* --- The end --- */

static void pop(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    const struct cells_slot *slot = &cells->slots[cells->first];
    bool was_ahead = slot->let_go;
    uint64_t seq = slot->seq;
    cells->long_count -= slot->window == CELLS_LONG_WINDOW;
    cells->kept_count -= !was_ahead;
    cells->behind_count -= slot->left_behind;
    cells->first = (cells->first + 1) % CELLS_WINDOW;
    cells->count--;
    cells->slots[cells->first].begins = cells->count > 0 && was_ahead;
    comm->client->cells.open--;
    atomic_store_explicit(&cells->gone, seq, memory_order_release);
}

static void pop_dropped(struct comm_comm *comm)
{
    const struct client_cells *cells = comm->cells;
    while (cells->count > 0 && cells->slots[cells->first].op == NULL &&
           !cells->slots[cells->first].left_behind) {
        pop(comm);
    }
}

void cells_forget(struct comm_comm *comm, struct client_op *op)
{
    if (op->cell != NULL) {
        op->cell->op = NULL;
        op->cell = NULL;
        pop_dropped(comm);
    }
}

void cells_forget_behind(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    for (uint32_t i = 0; cells != NULL && cells->behind_count > 0; i++) {
        struct cells_slot *slot = cells_slot_at(cells, i);
        cells->behind_count -= slot->left_behind;
        slot->left_behind = false;
    }
    if (cells != NULL) {
        pop_dropped(comm);
    }
}

bool cells_is_oldest(const struct comm_comm *comm, uint64_t ticket)
{
    const struct client_op *oldest = comm->ops;
    while (oldest != NULL && op_kind_is_message(oldest->kind)) {
        oldest = oldest->next;
    }
    return oldest == NULL || oldest->ticket >= ticket;
}

uint32_t cells_timeout_ms(const struct comm_comm *comm, const struct cells_slot *slot)
{
    return slot->call.options.timeout_ms != 0 ? slot->call.options.timeout_ms : comm->op_timeout_ms;
}

/* The oldest operation, of a rank that was ahead of others: its time begins when the others reach it. */
static void begin_if_due(const struct comm_comm *comm, struct cells_slot *slot)
{
    if (slot->begins) {
        slot->begins = false;
        slot->op->deadline_ns = clock_after_ms(cells_timeout_ms(comm, slot));
    }
}

/* Hands the oldest published operation to commd. */
static void give_back(struct comm_comm *comm, struct cells_slot *slot)
{
    struct client_op *op = slot->op;
    if (!cells_is_between_nodes(comm->cells)) {
        cell_counts_raise(&comm->cells->counts->published, UINT64_MAX); /* one less */
    }
    if (slot->step_count > 0) {
        cells_return_slices(comm->cells, slot);
    }
    begin_if_due(comm, slot);
    op->waits_since_ns = op->deadline_ns - (uint64_t)cells_timeout_ms(comm, slot) * NS_PER_MS;
    if ((!slot->let_go || cells_keep_data(comm, slot)) && held_return(comm, &slot->call, op)) {
        cells_forget(comm, op);
    } else {
        member_fail(comm, COMM_NO_MEMORY, "%s on \"%s\": no memory for an operation", slot->call.name,
                    comm->name);
        ops_drop(comm, op);
    }
}

/* The size is that which commd counts: of the whole vector, or of all blocks. */
static void count_end(const struct client_cells *cells, const struct cells_slot *slot)
{
    const struct op_terms *terms = &slot->call.terms;
    uint64_t size_bytes = cells_size_bytes(cells, terms);
    if (slot->step_count > 0 && terms->has_layouts != 0) {
        size_bytes = slot->elements * dtype_size_bytes(terms->dtype);
    } else if (terms->has_layouts != 0) {
        size_bytes = cells_elements(cells->shared, cells->rank_count, slot->seq, terms) *
                     dtype_size_bytes(terms->dtype);
    }
    struct cell_count *count = cell_counts_of(cells->counts, terms->kind, size_bytes);
    bool is_timed = has_known_size(slot) || cell_counts_times_next(count, 0);
    cells_count(count, size_bytes, is_timed ? slot->began_ns : 0);
}

static enum cells_way look(const struct client_cells *cells, const struct cells_slot *slot)
{
    if (cells_is_between_nodes(cells)) {
        return node_cells_look(&cells->node, slot->seq);
    }
    struct op_terms said = cells_said(slot);
    return cells_look(cells->shared, cells->rank_count, cells->rank, slot->seq, &said);
}

/* Returns whether the operation has its result. May release the lock. */
static bool take_result(struct comm_comm *comm, struct cells_slot *slot)
{
    const struct client_cells *cells = comm->cells;
    if (cells_is_between_nodes(cells)) { /* commd counts */
        if (!slot->let_go) {
            cells_nodes_read(&cells->node, comm->rank, cells->rank, slot->seq, &slot->call);
        }
        return true;
    }
    bool has_tables = slot->call.terms.has_layouts != 0 && slot->step_count == 0;
    if (has_tables && cells_begin_slices(comm, slot) == CELLS_BY_COMMD) {
        give_back(comm, slot);
        return false;
    }
    enum cells_way way = slot->step_count > 0 ? cells_take_slice(comm, slot) : CELLS_DIRECT;
    if (way == CELLS_BY_COMMD) {
        give_back(comm, slot);
    }
    if (way != CELLS_DIRECT) {
        return false;
    }
    if (slot->step_count == 0 && !slot->let_go) {
        cells_read(cells->shared, cells->rank_count, cells->rank, slot->seq, &slot->call, NULL);
    }
    count_end(cells, slot);
    return true;
}

/* The same of an operation that was left behind. If it does not end well, it is made, and handled then. */
static bool step_behind(struct comm_comm *comm, const struct cells_slot *slot)
{
    enum cells_way way = look(comm->cells, slot);
    bool waits = way == CELLS_DIRECT && comm->failure == COMM_OK && !cells_is_oldest(comm, slot->ticket);
    if (waits || (way == CELLS_WAIT && comm->failure == COMM_OK)) {
        return false;
    }
    if (way == CELLS_DIRECT) {
        if (!cells_is_between_nodes(comm->cells)) {
            count_end(comm->cells, slot);
        }
        pop(comm);
        pop_dropped(comm);
    } else {
        cells_fetch_behind(comm);
    }
    return true;
}

/* Returns whether the oldest published operation has ended, left its cell, or come to its next slice. May
 * release the lock. */
static bool step(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    struct cells_slot *slot = &cells->slots[cells->first];
    struct client_op *op = slot->op;
    if (slot->left_behind) {
        return step_behind(comm, slot);
    }
    if (op->staging) {
        return false; /* another thread takes its result */
    }
    enum cells_way way = look(cells, slot);
    bool failed = comm->failure != COMM_OK;
    if (way == CELLS_DIRECT && (failed || cells_is_oldest(comm, op->ticket))) {
        if (take_result(comm, slot)) {
            ops_end_well(comm, op);
        }
        return true;
    }
    if (failed) {
        ops_drop(comm, op);
        return true;
    }
    if (way == CELLS_BY_COMMD) {
        give_back(comm, slot);
        return true;
    }
    return false;
}

bool cells_take_ready(struct comm_comm *comm)
{
    bool any = false;
    while (comm->cells != NULL && comm->cells->count > 0 && step(comm)) {
        any = true;
    }
    return cells_let_readers_go(comm) || any;
}

/* A deadline has passed, so commd is to say who is missing. May release the lock. */
static bool retire_late(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    if (cells == NULL || cells->count == 0 || comm->failure != COMM_OK) {
        return false;
    }
    struct cells_slot *slot = &cells->slots[cells->first];
    uint64_t now_ns = clock_ns();
    if (slot->left_behind && cells_behind_is_early(comm, slot, now_ns)) {
        return false;
    }
    cells_fetch_behind(comm);
    if (comm->failure != COMM_OK) {
        return false;
    }
    begin_if_due(comm, slot);
    uint64_t deadline_ns = slot->op->deadline_ns;
    if (cells_is_between_nodes(cells)) {
        if (now_ns >= deadline_ns && cells_is_oldest(comm, slot->op->ticket)) {
            give_back(comm, slot); /* commd says who is missing */
        }
        return false;
    }
    bool asked = cells->asked_seq >= slot->seq;
    if (asked && now_ns > deadline_ns + (uint64_t)DAEMON_MARGIN_MS * NS_PER_MS) {
        member_fail(comm, COMM_TIMED_OUT,
                    "\"%s\": a rank has damaged the communicator's cells, or commd at %s "
                    "does not answer: an operation is past its deadline, and has not ended",
                    comm->name, comm->client->path);
        (void)cells_take_ready(comm);
        return false;
    }
    if (asked || now_ns < deadline_ns) {
        return false;
    }
    cells->asked_seq = slot->seq;
    tell_retire(comm, true);
    return true;
}

void cells_progress(struct comm_client *client)
{
    bool any = false;
    cells_receive_all_ready(client, false);
    if (client->cells.open == 0) {
        return;
    }
    for (struct comm_comm *comm = client->comms; comm != NULL; comm = comm->next) {
        any = cells_take_ready(comm) || any;
        if (retire_late(comm)) {
            break; /* the list may be another one now */
        }
    }
    if (any) {
        pthread_cond_broadcast(&client->changed);
    }
}
