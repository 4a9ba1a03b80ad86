#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"
#include "proto/status.h"
#include "proto/types.h"

static struct comm_comm *comm_by_handle(const struct comm_client *client, uint32_t handle)
{
    struct comm_comm *comm = client->comms;
    while (comm != NULL && comm->handle != handle) {
        comm = comm->next;
    }
    return comm;
}

static void comm_fail(struct comm_comm *comm, comm_result_t failure, const char *text)
{
    if (comm->failure == COMM_OK) {
        comm->failure = failure;
        snprintf(comm->failure_text, sizeof comm->failure_text, "%s",
                 text[0] != '\0' ? text : comm_result_text(failure));
    }
}

static void memory_unuse(struct comm_client *client, struct client_memory *memory)
{
    if (memory != NULL && --memory->uses == 0 && memory->staging) {
        staging_give(client, memory);
    }
}

static void op_release(struct comm_comm *comm, struct client_op *op)
{
    memory_unuse(comm->client, op->input);
    memory_unuse(comm->client, op->output);
    comm->in_flight--;
    free(op);
}

void ops_forget(struct comm_comm *comm)
{
    while (comm->first_op != NULL) {
        struct client_op *op = comm->first_op;
        comm->first_op = op->next;
        op_release(comm, op);
    }
    comm->last_op = &comm->first_op;
}

void ops_handle_complete(struct comm_client *client, const Commd__Client__Complete *complete)
{
    struct comm_comm *comm = comm_by_handle(client, complete->handle);
    if (comm == NULL) {
        return; /* of a communicator that was destroyed meanwhile */
    }
    struct client_op **link = &comm->first_op;
    while (*link != NULL && (*link)->ticket != complete->ticket) {
        link = &(*link)->next;
    }
    struct client_op *op = *link;
    if (op == NULL) {
        client_lose(client, COMM_PROTOCOL, "\"%s\": commd completed operation %llu, which is not in flight",
                    comm->name, (unsigned long long)complete->ticket);
        return;
    }
    *link = op->next;
    if (op->next == NULL) {
        comm->last_op = link;
    }
    if (complete->status != STATUS_OK) {
        comm_fail(comm, (comm_result_t)status_from_wire(complete->status), complete->text);
    } else if (op->copy_to != NULL) {
        memcpy(op->copy_to, op->copy_from, op->copy_bytes);
    }
    op_release(comm, op);
}

void ops_handle_aborted(struct comm_client *client, const Commd__Client__Aborted *aborted)
{
    struct comm_comm *comm = comm_by_handle(client, aborted->handle);
    enum status status = status_from_wire(aborted->status);
    if (comm != NULL) {
        comm_fail(comm, status == STATUS_OK ? COMM_ABORTED : (comm_result_t)status, aborted->text);
    }
}

/* Waits until no operation up to `ticket` is in flight. */
comm_result_t ops_finish(struct comm_comm *comm, uint64_t ticket, uint64_t timeout_ms)
{
    uint64_t until_ns = timeout_ms != 0 ? clock_after_ms(timeout_ms) : UINT64_MAX;
    while (comm->first_op != NULL && comm->first_op->ticket <= ticket && comm->client->lost == COMM_OK) {
        uint64_t frozen_ns = comm->first_op->deadline_ns;
        uint64_t deadline_ns = until_ns < frozen_ns ? until_ns : frozen_ns;
        if (client_progress(comm->client, deadline_ns) || comm->first_op == NULL ||
            comm->first_op->ticket > ticket) {
            continue;
        }
        if (clock_ns() >= until_ns) {
            return error_report(COMM_TIMED_OUT, "\"%s\": %u operations are still in flight after %llu ms",
                                comm->name, comm->in_flight, (unsigned long long)timeout_ms);
        }
        if (clock_ns() >= comm->first_op->deadline_ns) {
            comm_fail(comm, COMM_TIMED_OUT,
                      "commd does not answer: an operation's deadline passed and it did not say so");
            break;
        }
    }
    return comm->failure != COMM_OK ? error_repeat(comm->failure, comm->failure_text) : COMM_OK;
}

/* What a call submits. Buffers may be null where nothing is read or written. */
struct call {
    enum op_kind kind;
    enum dtype dtype;
    enum reduce reduce;
    size_t count;
    size_t size_bytes;
    uint32_t root;
    const void *input;
    void *output;
    comm_call_options_t options;
};

static comm_result_t place_input(struct comm_client *client, const struct call *call, struct client_op *op,
                                 Commd__Client__Range *range)
{
    op->input = memory_find(client, call->input, call->size_bytes);
    if (op->input == NULL) {
        comm_result_t result = staging_take(client, call->size_bytes, &op->input);
        if (result != COMM_OK) {
            return result;
        }
        memcpy(op->input->base, call->input, call->size_bytes);
    } else {
        range->offset_bytes = (uint64_t)((const unsigned char *)call->input - op->input->base);
    }
    op->input->uses++;
    range->memory = op->input->id;
    return COMM_OK;
}

static comm_result_t place_output(struct comm_client *client, const struct call *call, struct client_op *op,
                                  Commd__Client__Range *range)
{
    op->output = memory_find(client, call->output, call->size_bytes);
    if (op->output != NULL) {
        range->offset_bytes = (uint64_t)((unsigned char *)call->output - op->output->base);
    } else {
        if (op->input != NULL && op->input->staging) {
            op->output = op->input; /* one block does for both: the operation works in place there */
        } else {
            comm_result_t result = staging_take(client, call->size_bytes, &op->output);
            if (result != COMM_OK) {
                return result;
            }
        }
        op->copy_to = call->output;
        op->copy_from = op->output->base;
        op->copy_bytes = call->size_bytes;
    }
    op->output->uses++;
    range->memory = op->output->id;
    return COMM_OK;
}

static comm_result_t send_call(struct comm_comm *comm, const struct call *call, struct client_op *op)
{
    Commd__Client__Range input = COMMD__CLIENT__RANGE__INIT;
    Commd__Client__Range output = COMMD__CLIENT__RANGE__INIT;
    Commd__Client__Submit body = COMMD__CLIENT__SUBMIT__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    comm_result_t result = COMM_OK;
    if (call->input != NULL && call->size_bytes > 0) {
        result = place_input(comm->client, call, op, &input);
        body.input = &input;
    }
    if (result == COMM_OK && call->output != NULL && call->size_bytes > 0) {
        result = place_output(comm->client, call, op, &output);
        body.output = &output;
    }
    if (result != COMM_OK) {
        return result;
    }
    body.handle = comm->handle;
    body.ticket = op->ticket;
    body.kind = call->kind;
    body.dtype = call->dtype;
    body.reduce = call->reduce;
    body.count_elements = call->count;
    body.root_rank = call->root;
    body.factor = call->options.factor;
    body.timeout_ms = call->options.timeout_ms;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_SUBMIT;
    request.submit = &body;
    return client_send(comm->client, &request, -1);
}

/* With the lock held. */
static comm_result_t submit_locked(struct comm_comm *comm, const struct call *call)
{
    struct comm_client *client = comm->client;
    while (comm->failure == COMM_OK && comm->in_flight >= client->pending_ops_max) {
        comm_result_t result = ops_finish(comm, comm->first_op->ticket, 0);
        if (result != COMM_OK) {
            return result;
        }
    }
    if (client->lost != COMM_OK || comm->failure != COMM_OK) {
        return comm->failure != COMM_OK ? error_repeat(comm->failure, comm->failure_text)
                                        : error_repeat(client->lost, client->lost_text);
    }
    struct client_op *op = calloc(1, sizeof *op);
    if (op == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for an operation");
    }
    uint32_t timeout_ms = call->options.timeout_ms != 0 ? call->options.timeout_ms : comm->op_timeout_ms;
    op->ticket = ++comm->last_ticket;
    op->deadline_ns = clock_after_ms((uint64_t)timeout_ms + DAEMON_MARGIN_MS);
    /* In the list before it is sent: its completion may arrive while the send waits. */
    *comm->last_op = op;
    comm->last_op = &op->next;
    comm->in_flight++;
    comm_result_t result = send_call(comm, call, op);
    if (result == COMM_OK || client->lost != COMM_OK) {
        return result; /* when the connection is lost, the operation is forgotten already */
    }
    for (struct client_op **link = &comm->first_op; *link != NULL; link = &(*link)->next) {
        if (*link == op) {
            *link = op->next;
            if (op->next == NULL) {
                comm->last_op = link;
            }
            op_release(comm, op);
            break;
        }
    }
    return result;
}

static comm_result_t check_call(const comm_t *comm, comm_dtype_t dtype, size_t count,
                                const comm_call_options_t *options, struct call *call)
{
    call->options = (comm_call_options_t)COMM_CALL_OPTIONS_INIT;
    if (comm == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "the communicator is a null pointer");
    }
    if (!options_copy(&call->options, sizeof call->options, options)) {
        return error_report(COMM_INVALID_ARGUMENT, "\"%s\": options of an unknown size", comm->name);
    }
    if (call->options.stream != NULL) {
        return error_report(COMM_UNSUPPORTED, "\"%s\": a CUDA stream on a host communicator", comm->name);
    }
    if (!dtype_from_wire((unsigned)dtype, &call->dtype)) {
        return error_report(COMM_INVALID_ARGUMENT, "\"%s\": %d is no element type", comm->name, (int)dtype);
    }
    if (__builtin_mul_overflow(count, dtype_size_bytes(call->dtype), &call->size_bytes)) {
        return error_report(COMM_INVALID_ARGUMENT, "\"%s\": %zu elements of %s exceed the address space",
                            comm->name, count, dtype_text(call->dtype));
    }
    call->count = count;
    return COMM_OK;
}

static comm_result_t submit(comm_t *comm, const struct call *call, bool then_sync)
{
    comm_result_t result = client_enter(comm->client);
    if (result != COMM_OK) {
        return result;
    }
    result = submit_locked(comm, call);
    if (result == COMM_OK && then_sync) {
        result = ops_finish(comm, comm->last_ticket, 0);
    }
    client_leave(comm->client);
    return result;
}

comm_result_t comm_all_reduce(comm_t *comm, const void *send, void *receive, size_t count, comm_dtype_t dtype,
                              comm_op_t op, const comm_call_options_t *options)
{
    struct call call = {.kind = OP_KIND_ALL_REDUCE, .input = send, .output = receive};
    comm_result_t result = check_call(comm, dtype, count, options, &call);
    if (result != COMM_OK) {
        return result;
    }
    if (!reduce_from_wire((unsigned)op, &call.reduce)) {
        return error_report(COMM_INVALID_ARGUMENT, "\"%s\": %d is no operator", comm->name, (int)op);
    }
    if (!reduce_is_defined(call.dtype, call.reduce)) {
        return error_report(COMM_UNSUPPORTED, "\"%s\": %s of %s has no meaning", comm->name,
                            reduce_text(call.reduce), dtype_text(call.dtype));
    }
    if (count > 0 && (send == NULL || receive == NULL)) {
        return error_report(COMM_INVALID_ARGUMENT, "\"%s\": all_reduce of %zu elements with a null buffer",
                            comm->name, count);
    }
    const unsigned char *from = send, *to = receive;
    if (send != receive && from < to + call.size_bytes && to < from + call.size_bytes) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "\"%s\": all_reduce: the buffers overlap in part; they must be the same, or apart", comm->name);
    }
    return submit(comm, &call, false);
}

comm_result_t comm_broadcast(comm_t *comm, void *buffer, size_t count, comm_dtype_t dtype, uint32_t root,
                             const comm_call_options_t *options)
{
    struct call call = {.kind = OP_KIND_BROADCAST, .output = buffer, .root = root};
    comm_result_t result = check_call(comm, dtype, count, options, &call);
    if (result != COMM_OK) {
        return result;
    }
    if (root >= comm->size) {
        return error_report(COMM_INVALID_ARGUMENT, "\"%s\": broadcast from rank %u of %u", comm->name, root,
                            comm->size);
    }
    if (count > 0 && buffer == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "\"%s\": broadcast of %zu elements with a null buffer",
                            comm->name, count);
    }
    call.input = root == comm->rank ? buffer : NULL;
    return submit(comm, &call, false);
}

comm_result_t comm_barrier(comm_t *comm, const comm_call_options_t *options)
{
    struct call call = {.kind = OP_KIND_BARRIER};
    comm_result_t result = check_call(comm, COMM_U8, 0, options, &call);
    return result == COMM_OK ? submit(comm, &call, true) : result;
}

comm_result_t comm_sync(comm_t *comm, uint32_t timeout_ms)
{
    if (comm == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "the communicator is a null pointer");
    }
    comm_result_t result = client_enter(comm->client);
    if (result != COMM_OK) {
        return result;
    }
    result = ops_finish(comm, comm->last_ticket, timeout_ms);
    client_leave(comm->client);
    return result;
}
