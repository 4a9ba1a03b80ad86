#include "client/lib/internal.h"
#include "client/lib/submit.h"

/* Messages from rank to rank. */

static comm_result_t message_begin(struct client_call *call, const char *name, enum op_kind kind,
                                   const struct comm_comm *comm, comm_dtype_t dtype, size_t count,
                                   uint32_t peer, uint32_t tag, const comm_call_options_t *options)
{
    comm_result_t result = call_begin(call, name, kind, comm, dtype, count, options);
    bool any = kind == OP_KIND_RECEIVE && peer == COMM_ANY_SOURCE;
    if (result == COMM_OK && peer >= comm->size && !any) {
        result = error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": rank %u, but there are %u ranks", name,
                              comm->name, peer, comm->size);
    }
    call->peer = peer;
    call->tag = tag;
    return result;
}

static comm_result_t begin_send(struct client_call *call, const struct comm_comm *comm, const void *buffer,
                                size_t count, comm_dtype_t dtype, uint32_t peer, uint32_t tag,
                                const comm_call_options_t *options)
{
    comm_result_t result =
        message_begin(call, "comm_send", OP_KIND_SEND, comm, dtype, count, peer, tag, options);
    return result == COMM_OK ? call_set_buffer(call, comm, &call->input, buffer, 1, "buffer") : result;
}

static comm_result_t begin_receive(struct client_call *call, const struct comm_comm *comm, void *buffer,
                                   size_t count, comm_dtype_t dtype, uint32_t peer, uint32_t tag,
                                   const comm_call_options_t *options)
{
    comm_result_t result =
        message_begin(call, "comm_recv", OP_KIND_RECEIVE, comm, dtype, count, peer, tag, options);
    return result == COMM_OK ? call_set_buffer(call, comm, &call->output, buffer, 1, "buffer") : result;
}

comm_result_t comm_send(comm_t *comm, const void *buffer, size_t count, comm_dtype_t dtype, uint32_t peer,
                        uint32_t tag, const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result = begin_send(&call, comm, buffer, count, dtype, peer, tag, options);
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

comm_result_t comm_recv(comm_t *comm, void *buffer, size_t count, comm_dtype_t dtype, uint32_t peer,
                        uint32_t tag, const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result = begin_receive(&call, comm, buffer, count, dtype, peer, tag, options);
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

/* comm_send_recv waits for both messages, so no handle and no queue would ever get them. */
static comm_result_t check_waits_itself(const comm_call_options_t *given)
{
    if (given->request != NULL) {
        *given->request = NULL;
    }
    return given->request == NULL && given->queue == NULL && given->persistent == 0
               ? COMM_OK
               : error_report(COMM_INVALID_ARGUMENT,
                              "comm_send_recv: it waits itself: it takes no handle and no queue");
}

comm_result_t comm_send_recv(comm_t *comm, const void *send, size_t send_count, uint32_t to, void *receive,
                             size_t receive_count, uint32_t from, comm_dtype_t dtype, uint32_t tag,
                             const comm_call_options_t *options)
{
    comm_request_t *requests[2] = {NULL, NULL};
    comm_call_options_t given = COMM_CALL_OPTIONS_INIT;
    comm_result_t result =
        options_copy(&given, sizeof given, options, "comm_send_recv", "COMM_CALL_OPTIONS_INIT");
    if (result == COMM_OK && group_is_open()) {
        result = error_report(COMM_INVALID_ARGUMENT,
                              "comm_send_recv: a group is open: a call cannot wait before comm_group_end");
    }
    if (result == COMM_OK) {
        result = check_waits_itself(&given);
    }
    if (result != COMM_OK) {
        return result;
    }
    given.request = &requests[0];
    struct client_call sending, receiving;
    bool is_right =
        begin_receive(&receiving, comm, receive, receive_count, dtype, from, tag, &given) == COMM_OK &&
        begin_send(&sending, comm, send, send_count, dtype, to, tag, &given) == COMM_OK;
    if (is_right && cells_send_at_once(comm, &sending)) { /* it has ended, so the receive may wait */
        result = call_submit(comm, &receiving);
        return result == COMM_OK ? comm_wait(&requests[0], NULL) : result;
    }
    result = comm_group_begin(); /* otherwise one operation would wait for the other in their stream */
    if (result != COMM_OK) {
        return result;
    }
    result = comm_recv(comm, receive, receive_count, dtype, from, tag, &given);
    if (result == COMM_OK) {
        given.request = &requests[1];
        result = comm_send(comm, send, send_count, dtype, to, tag, &given);
    }
    if (result != COMM_OK) {
        group_drop(); /* without the send, the receive must not be submitted */
        comm_request_free(requests[0]);
        return result;
    }
    result = comm_group_end();
    comm_result_t waited = comm_wait_all(requests, 2, NULL);
    return result != COMM_OK ? result : waited;
}
