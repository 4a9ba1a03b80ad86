#include <sched.h>
#include <string.h>

#include "client/lib/cells_internal.h"
#include "client/lib/submit.h"

/*
 * Calls that repeat. A program mostly calls the same small operation again and again, each time with other
 * data. What follows from the terms of such a call is kept, and the next call with these terms needs few
 * checks: of its buffers, and that nothing else is under way. Otherwise it goes the usual way (submit.c),
 * which carries out the same operation, or says what is wrong.
 */

/* Whoever needs nobody looks so seldom whether others have taken part: their cells are theirs until then. */
#define LOOKS_EVERY 32u

/*
 * Ranks that share processors take turns. A rank that has no room, or no data yet, gives up its turn so often
 * before it goes the usual way, which costs as much as ten calls. If that was in vain, or another process
 * took the processor for so long, the next calls do not try: the program may have better to do.
 */
#define TURNS_MAX 30u
#define TURN_LONG_NS 100000u
#define TURN_SKIPS_MAX 63u

/* Whether the options ask for nothing but a handle. */
static bool are_plain(const comm_call_options_t *options)
{
    return options == NULL ||
           (options->struct_size == sizeof *options && options->timeout_ms == 0 && options->stream == NULL &&
            options->persistent == 0 && options->compression == COMM_COMPRESSION_NONE &&
            options->top_k_permille == 0 && options->residual == NULL && options->queue == NULL);
}

void cells_keep_last(struct comm_comm *comm, const struct client_call *call, enum cells_needs needs)
{
    struct client_cells *cells = comm->cells;
    const struct op_terms *terms = &call->terms;
    struct cells_last *last = &cells->last[terms->kind];
    comm_call_options_t asked = call->options;
    asked.request = NULL;
    uint32_t window = cells_window(terms, cells->rank_count);
    if (cells_is_between_nodes(cells) || comm->gpu != NULL || window == CELLS_LONG_WINDOW ||
        terms->count_elements == 0 || op_kind_is_scan(terms->kind) || terms->reduce == REDUCE_PREMUL_SUM ||
        !are_plain(&asked)) {
        return;
    }
    bool has_in = op_kind_has_input_blocks(terms->kind), has_out = op_kind_has_output_blocks(terms->kind);
    size_t block_bytes = (size_t)terms->count_elements * dtype_size_bytes(terms->dtype);
    last->call = *call;
    last->call.options = (comm_call_options_t)COMM_CALL_OPTIONS_INIT;
    last->needs = needs;
    last->window = window;
    last->size_bytes = cells_size_bytes(cells, terms);
    last->count = cell_counts_of(cells->counts, terms->kind, last->size_bytes);
    last->input_bytes = call->input.at != NULL ? call_buffer_bytes(call, &call->input) : 0;
    last->output_bytes = call->output.at != NULL ? call_buffer_bytes(call, &call->output) : 0;
    last->own_bytes = has_in != has_out ? comm->rank * block_bytes : 0;
}

static bool is_same(const struct cells_last *last, const struct cells_arguments *arguments)
{
    const struct op_terms *terms = &last->call.terms; /* of the same kind; without a count if there is none */
    return terms->count_elements == arguments->count &&
           (unsigned)terms->dtype == (unsigned)arguments->dtype &&
           (unsigned)terms->reduce == (unsigned)arguments->op && terms->root_rank == arguments->root;
}

static bool is_range(const void *at, size_t size_bytes)
{
    return at != NULL && (uintptr_t)at <= UINTPTR_MAX - size_bytes;
}

/* As call_check_overlap. */
static bool may_overlap(const struct cells_last *last, const unsigned char *input,
                        const unsigned char *output)
{
    if (input + last->input_bytes <= output || output + last->output_bytes <= input) {
        return true;
    }
    return last->input_bytes > last->output_bytes ? output == input + last->own_bytes
                                                  : input == output + last->own_bytes;
}

/* Takes over the call's buffers, unless something is wrong with them. */
static bool take_buffers(struct cells_last *last, const struct cells_arguments *arguments)
{
    bool reads = last->input_bytes > 0, writes = last->output_bytes > 0;
    if ((reads && !is_range(arguments->send, last->input_bytes)) ||
        (writes && !is_range(arguments->receive, last->output_bytes)) ||
        (reads && writes && !may_overlap(last, arguments->send, arguments->receive))) {
        return false;
    }
    last->call.input.at = reads ? (void *)(uintptr_t)arguments->send : NULL;
    last->call.output.at = writes ? arguments->receive : NULL;
    last->call.stages_input = op_kind_has_input_blocks(last->call.terms.kind) &&
                              op_kind_has_output_blocks(last->call.terms.kind) &&
                              last->call.input.at == last->call.output.at;
    return true;
}

/* Whether nothing of the client is under way but operations that were left behind, and one more fits. */
static bool is_free(const struct comm_comm *comm, uint32_t window)
{
    const struct client_cells *cells = comm->cells;
    return comm->failure == COMM_OK && comm->ops == NULL && comm->wait_count == 0 && !held_is_fed(comm) &&
           comm->client->gpus == NULL && comm->client->trace == NULL &&
           comm->client->cells.open == cells->count && cells->count < cells_window_beside(cells, window) &&
           atomic_load_explicit(&cells->shared->open_from, memory_order_relaxed) <= cells->seq + 1;
}

/* Publishes the call. Returns false if it did not. */
static bool publish(struct comm_comm *comm, struct cells_last *last, struct comm_request *request)
{
    struct client_cells *cells = comm->cells;
    struct client_entry entry = {
        .comm = comm, .call = &last->call, .request = request, .alone = true, .returns = true};
    if (last->needs != CELLS_NEEDS_ALL) {
        if (last->needs == CELLS_NEEDS_ROOT && !cells_root_comes(cells, &last->call.terms)) {
            return false;
        }
        cells_leave_behind(comm, entry.call, last->needs);
        submit_ended(&entry);
        return true;
    }
    if (cells->count > 0 || cells->crowded || cells->skips > 0 || !submit_has_spare(comm, entry.call)) {
        return false;
    }
    if (cells_end_with_all(comm, entry.call, last->needs, last->size_bytes, last->count)) {
        submit_ended(&entry);
        return true;
    }
    return submit_open(&entry, comm->op_timeout_ms);
}

/* Whether the operation can be left behind. has_waited: then there must be room for some more. */
static bool has_turn(const struct comm_comm *comm, const struct cells_last *last, bool has_waited)
{
    const struct client_cells *cells = comm->cells;
    uint32_t window = cells_window_beside(cells, last->window);
    return cells->count < (has_waited ? window / 2 : window) &&
           (last->needs == CELLS_NEEDS_NOBODY ||
            cells_root_is_there(cells->shared, cells->seq + 1, &last->call.terms));
}

/* Returns false if others did not need the processor, or for too long. */
static bool give_up_turn(struct comm_client *client)
{
    uint64_t began_ns = clock_ns();
    pthread_mutex_unlock(&client->lock);
    (void)sched_yield();
    pthread_mutex_lock(&client->lock);
    return clock_ns() - began_ns < TURN_LONG_NS;
}

/* Lets other ranks take their turns, if this one has to wait for them. */
static void take_turns(struct comm_comm *comm, const struct cells_last *last)
{
    struct client_cells *cells = comm->cells;
    uint32_t turns = 0;
    if (!cells->crowded || last->needs == CELLS_NEEDS_ALL || has_turn(comm, last, false)) {
        return;
    }
    if (cells->turn_skips > 0) {
        cells->turn_skips--;
        return;
    }
    while (turns < TURNS_MAX && comm->ops == NULL && !has_turn(comm, last, true)) {
        turns = give_up_turn(comm->client) ? turns + 1 : TURNS_MAX;
        (void)cells_take_ready(comm);
    }
    uint32_t more = 2 * cells->turn_skipped_last + 1;
    cells->turn_skipped_last = turns < TURNS_MAX ? 0 : more < TURN_SKIPS_MAX ? more : TURN_SKIPS_MAX;
    cells->turn_skips = cells->turn_skipped_last;
}

static bool carry_out(struct comm_comm *comm, const struct cells_arguments *arguments)
{
    struct client_cells *cells = comm->cells;
    struct cells_last *last = cells != NULL ? &cells->last[arguments->kind] : NULL;
    if (last == NULL || !is_same(last, arguments)) {
        return false;
    }
    if (cells->count > 0 && (last->needs == CELLS_NEEDS_ALL || cells->count % LOOKS_EVERY == 0)) {
        (void)cells_take_ready(comm);
    }
    take_turns(comm, last); /* another thread may make calls meanwhile, and change `last` */
    if (!is_free(comm, last->window) || !is_same(last, arguments) || !take_buffers(last, arguments)) {
        return false;
    }
    comm_request_t **handle = arguments->options != NULL ? arguments->options->request : NULL;
    struct comm_request *request = handle != NULL ? request_new(comm) : NULL;
    if ((handle != NULL && request == NULL) || !publish(comm, last, request)) {
        request_free(request);
        return false;
    }
    comm->collective_count++;
    if (handle != NULL) {
        *handle = request;
    }
    return true;
}

bool cells_call_again(const struct cells_arguments *arguments)
{
    struct comm_comm *comm = arguments->comm;
    if (comm == NULL || arguments->count - 1 >= CELLS_MIDDLE_MAX_BYTES || group_is_open() ||
        !are_plain(arguments->options) || client_enter(comm->client) != COMM_OK) {
        return false;
    }
    bool done = carry_out(comm, arguments);
    client_leave(comm->client);
    return done;
}
