#include "client/lib/window.h"

#include <stdlib.h>
#include <string.h>

#include "client/lib/buffers.h"
#include "client/lib/internal.h"

/*
 * A window saves a large operation of plain memory most of its way through the machine's memory: slices are
 * copied in just before commd needs them, and out just behind, while they are in the caches. The library
 * copies the first slices before the call returns. The threads that wait in the library copy the others.
 *
 * So an operation with a window needs a thread that waits. The library cannot know whether the program will
 * wait at once. It assumes so if the program did with its last large operations on the communicator.
 * Otherwise, and in groups, for persistent operations and with queues, buffers are copied whole at the call.
 * If the program then does not wait, the library's thread (held.c) copies instead after WINDOW_ABANDONED_NS,
 * and the next operations have no window. A client has one window at a time.
 *
 * While a thread copies, `staging` keeps the operation from ending: ops_drop marks it as dropped, and its
 * completion is kept in the window.
 */

/* --- Habits --- */

static void has_missed(struct window_habit *habit)
{
    habit->waits = habit->waits >= 0 ? -1 : habit->waits;
}

void window_submitted(struct comm_comm *comm)
{
    struct window_habit *habit = &comm->habit;
    if (habit->submitted_ns != 0) { /* nobody waited for the last one */
        has_missed(habit);
    }
    habit->submitted_ns = clock_ns();
}

bool window_is_awaited(const struct comm_comm *comm)
{
    return comm->habit.waits >= 0 && comm->habit.submitted_ns == 0;
}

void window_awaited(struct comm_comm *comm)
{
    struct window_habit *habit = &comm->habit;
    struct client_op *op = comm->client->windowed;
    if (op == NULL && habit->submitted_ns == 0) {
        return;
    }
    uint64_t now_ns = clock_ns();
    if (op != NULL) {
        op->window->attended_ns = now_ns;
    }
    if (habit->submitted_ns != 0) {
        bool at_once = now_ns - habit->submitted_ns <= WINDOW_AT_ONCE_NS;
        habit->submitted_ns = 0;
        if (!at_once) {
            has_missed(habit);
        } else if (habit->waits < WINDOW_WAITS_MIN && ++habit->waits == WINDOW_WAITS_MIN) {
            DEBUG("\"%s\": the program waits at once: large operations pass through a window", comm->name);
        }
    }
}

/* --- The window of an operation --- */

/* Which of its buffers would pass through a window: those that commd has not mapped. */
static bool stages_input(const struct client_call *call, const struct client_op *op)
{
    return call->input.at != NULL && op->uses[USE_INPUT] == NULL;
}

static bool stages_output(const struct client_call *call, const struct client_op *op)
{
    return call->output.at != NULL && op->uses[USE_OUTPUT] == NULL;
}

static bool may_have_window(const struct comm_comm *comm, const struct client_call *call)
{
    const struct comm_client *client = comm->client;
    bool on_one_node = comm->node_count == 1 && comm->size <= WINDOW_RANKS_MAX;
    bool is_ordered = client->gpus != NULL || comm->wait_count > 0;
    bool is_plain = call->options.queue == NULL && call->input.list == NULL && call->output.list == NULL &&
                    !call->keeps_output;
    return client->offers_windows && on_one_node && !is_ordered && is_plain;
}

bool window_is_possible(const struct comm_comm *comm, const struct client_call *call,
                        const struct client_op *op)
{
    struct window_shape shape;
    return may_have_window(comm, call) && (stages_input(call, op) || stages_output(call, op)) &&
           window_shape_of(&call->terms, comm->size, &shape);
}

bool window_is_wanted(struct comm_comm *comm)
{
    struct comm_client *client = comm->client;
    bool waits = comm->habit.waits >= WINDOW_WAITS_MIN && comm->habit.submitted_ns == 0;
    return waits && client->windowed == NULL && comm->held == NULL && client->feeder.at != comm &&
           held_start(client);
}

/* Whether one memory is both windows: a slice's output then replaces its input. */
static bool shares_memory(const struct window_shape *shape, const struct client_call *call,
                          const struct client_op *op)
{
    return stages_input(call, op) && stages_output(call, op) && shape->input_blocks == shape->output_blocks &&
           call->terms.kind != OP_KIND_ALL_TO_ALL; /* other blocks replace its input before it is sent */
}

static size_t memory_bytes(const struct window_shape *shape, const struct client_call *call, uint32_t blocks)
{
    return window_elements(shape, blocks) * dtype_size_bytes(call->terms.dtype);
}

size_t window_bytes(const struct comm_comm *comm, const struct client_call *call, const struct client_op *op)
{
    struct window_shape shape;
    size_t sum = 0;
    if (window_shape_of(&call->terms, comm->size, &shape)) {
        sum += stages_input(call, op) ? memory_bytes(&shape, call, shape.input_blocks) : 0;
        sum += stages_output(call, op) && !shares_memory(&shape, call, op)
                   ? memory_bytes(&shape, call, shape.output_blocks)
                   : 0;
    }
    return sum;
}

static comm_result_t take_memories(struct comm_comm *comm, const struct client_call *call,
                                   struct client_op *op)
{
    struct client_window *window = op->window;
    const struct window_shape *shape = &window->shape;
    bool input = stages_input(call, op), output = stages_output(call, op);
    bool shared = shares_memory(shape, call, op);
    comm_result_t result = COMM_OK;
    if (input) {
        result = buffers_take_block(comm, op, USE_INPUT, memory_bytes(shape, call, shape->input_blocks));
    }
    if (result == COMM_OK && output && shared) {
        op->uses[USE_OUTPUT] = op->uses[USE_INPUT];
        op->uses[USE_OUTPUT]->uses++;
    } else if (result == COMM_OK && output) {
        result = buffers_take_block(comm, op, USE_OUTPUT, memory_bytes(shape, call, shape->output_blocks));
    }
    if (result == COMM_OK) {
        window->from = input ? call->input.at : NULL;
        window->to = output ? call->output.at : NULL;
        window->input = input ? op->uses[USE_INPUT]->base : NULL;
        window->output = output ? op->uses[USE_OUTPUT]->base : NULL;
    }
    return result;
}

/* --- Copies: without the lock --- */

static void fill(const struct client_window *window, uint64_t slice)
{
    const struct window_shape *shape = &window->shape;
    uint64_t offset, part;
    window_part(shape, slice, &offset, &part);
    for (uint32_t block = 0; window->from != NULL && block < shape->input_blocks; block++) {
        uint64_t place = window_place(shape, shape->input_blocks, slice, block);
        memcpy(window->input + place * window->element_bytes,
               window->from + (block * shape->count_elements + offset) * window->element_bytes,
               part * window->element_bytes);
    }
}

static void drain(const struct client_window *window, uint64_t slice)
{
    const struct window_shape *shape = &window->shape;
    uint64_t offset, part;
    window_part(shape, slice, &offset, &part);
    for (uint32_t block = 0; window->to != NULL && block < shape->output_blocks; block++) {
        uint64_t place = window_place(shape, shape->output_blocks, slice, block);
        memcpy(window->to + (block * shape->count_elements + offset) * window->element_bytes,
               window->output + place * window->element_bytes, part * window->element_bytes);
    }
}

/* --- Its life --- */

comm_result_t window_new(struct comm_comm *comm, const struct client_call *call, struct client_op *op)
{
    struct client_window *window = calloc(1, sizeof *window);
    if (window == NULL) {
        return error_report(COMM_NO_MEMORY, "%s on \"%s\": no memory for an operation", call->name,
                            comm->name);
    }
    op->window = window;
    op->staging = true; /* until window_begin */
    comm->client->windowed = op;
    window->comm = comm;
    window->element_bytes = dtype_size_bytes(call->terms.dtype);
    (void)window_shape_of(&call->terms, comm->size, &window->shape);
    comm_result_t result = take_memories(comm, call, op);
    if (result == COMM_OK) {
        client_leave(comm->client); /* no other thread knows the operation */
        for (; window->filled < WINDOW_SLOTS; window->filled++) {
            fill(window, window->filled);
        }
        pthread_mutex_lock(&comm->client->lock);
    }
    return result;
}

void window_begin(struct client_op *op)
{
    struct comm_client *client = op->window->comm->client;
    op->window->attended_ns = clock_ns();
    op->staging = false;
    (void)held_start(client); /* the thread may rest again since window_is_wanted */
}

void window_free(struct comm_client *client, struct client_op *op)
{
    if (client->windowed == op) {
        client->windowed = NULL;
    }
    if (op->window != NULL) {
        free(op->window);
        op->window = NULL;
        op->staging = false;
    }
}

void window_add(const struct client_op *op, struct submit_record *record)
{
    const struct client_window *window = op->window;
    uint32_t which = (window->from != NULL ? (uint32_t)RECORD_WINDOW_INPUT : 0) |
                     (window->to != NULL ? (uint32_t)RECORD_WINDOW_OUTPUT : 0);
    submit_record_add(record, RECORD_WINDOW, which, window->filled, 0);
}

static void tell_filled(const struct client_window *window, uint64_t ticket)
{
    struct submit_record record;
    const struct comm_comm *comm = window->comm;
    submit_record_begin(&record, RECORD_FILLED, comm->handle);
    record.ticket = ticket;
    submit_record_add(&record, RECORD_WINDOW, 0, window->filled, 0);
    /* If commd does not read, the operation's deadline ends it. */
    (void)client_send_packet(comm->client, &record, submit_record_bytes(&record), -1,
                             clock_after_ms(comm->op_timeout_ms));
}

/* The slice was copied: the operation may end again. Returns whether it has not ended. */
static bool copied(struct comm_client *client, struct client_op *op)
{
    struct client_window *window = op->window;
    struct comm_comm *comm = window->comm;
    op->staging = false;
    comm->copying--;
    pthread_cond_broadcast(&client->changed);
    if (op->dropped) {
        ops_drop(comm, op);
        return false;
    }
    if (window->completed) {
        struct completion_record completion = window->completion;
        ops_handle_completion(client, &completion);
        return false;
    }
    return true;
}

bool window_work(struct comm_client *client)
{
    struct client_op *op = client->windowed;
    struct client_window *window = op != NULL ? op->window : NULL;
    if (op == NULL || op->staging || window->comm->failure != COMM_OK) {
        return false;
    }
    bool drains = window->drained < window->done;
    bool fills = !drains && window->filled < window->shape.slice_count &&
                 window->filled < window->drained + WINDOW_SLOTS;
    if (!drains && !fills) {
        return false;
    }
    op->staging = true;
    window->comm->copying++;
    client_leave(client);
    if (drains) {
        drain(window, window->drained);
    } else {
        fill(window, window->filled);
    }
    pthread_mutex_lock(&client->lock);
    window->drained += drains ? 1 : 0;
    window->filled += fills ? 1 : 0;
    if (copied(client, op) && fills) {
        tell_filled(window, op->ticket);
    }
    return true;
}

void window_attend(struct comm_client *client)
{
    while (client->windowed != NULL && client->waiters == 0 && client->lost == COMM_OK &&
           !client->feeder.closing) {
        struct client_window *window = client->windowed->window;
        uint64_t now_ns = clock_ns();
        if (client->windowed->staging || now_ns - window->attended_ns < WINDOW_ABANDONED_NS) {
            return;
        }
        if (window->comm->habit.waits != WINDOW_WAITS_AFTER_MISS) {
            DEBUG("\"%s\": nobody waits for an operation with a window", window->comm->name);
        }
        window->comm->habit = (struct window_habit){.waits = WINDOW_WAITS_AFTER_MISS};
        client_progress(client, now_ns + HELD_LOOK_NS);
    }
}

void window_drain(struct client_op *op)
{
    struct client_window *window = op->window;
    for (; window != NULL && window->drained < window->shape.slice_count; window->drained++) {
        drain(window, window->drained);
    }
}

bool window_advance(struct client_op *op, uint64_t slices)
{
    struct client_window *window = op->window;
    if (window == NULL || slices < window->done || slices > window->filled) {
        return false;
    }
    window->done = slices;
    return true;
}

bool window_is_complete(const struct client_op *op)
{
    return op->window == NULL || op->window->done == op->window->shape.slice_count;
}
