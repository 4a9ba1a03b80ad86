#include "client/lib/internal.h"

/*
 * An operation in a CUDA stream. When the stream reaches the operation, it writes the value that commd waits
 * for. Then it waits for the value that commd writes when the operation has ended. The host does not wait.
 *
 * No lock is held during the driver's calls. Such a call may wait for room in a stream, which may be blocked
 * by an operation that another thread has yet to submit.
 */

static comm_result_t check_not_captured(cuda_stream stream)
{
    int status = CUDA_CAPTURE_NONE;
    cuda_result result = gpu_driver()->stream_is_capturing(stream, &status);
    if (result != CUDA_RESULT_OK) {
        return gpu_report(result, "cuStreamIsCapturing");
    }
    return status == CUDA_CAPTURE_NONE
               ? COMM_OK
               : error_report(COMM_UNSUPPORTED, "the stream is being captured: %s", CAPTURE_ADVICE);
}

comm_result_t stream_write(const struct client_gpu *gpu, cuda_stream stream, struct client_fences *fences,
                           struct fence_slot *slot, struct fence_mark *mark)
{
    struct gpu_scope scope;
    comm_result_t result = gpu_scope_enter_stream(gpu, stream, &scope);
    if (result != COMM_OK) {
        return result;
    }
    result = check_not_captured(stream);
    if (result == COMM_OK) {
        *mark = fence_next(fences, slot, FENCE_READY);
        cuda_result written = gpu_driver()->stream_write_value(stream, fence_address(mark), mark->value, 0);
        if (written != CUDA_RESULT_OK) {
            fence_reach(mark);
            result = gpu_report(written, "cuStreamWriteValue64_v2");
        }
    }
    gpu_scope_leave(&scope);
    return result;
}

comm_result_t stream_wait(const struct client_gpu *gpu, cuda_stream stream, const struct fence_mark *mark)
{
    struct gpu_scope scope;
    comm_result_t result = gpu_scope_enter_stream(gpu, stream, &scope);
    if (result != COMM_OK) {
        return result;
    }
    result = check_not_captured(stream);
    if (result == COMM_OK) {
        cuda_result waits =
            gpu_driver()->stream_wait_value(stream, fence_address(mark), mark->value, CUDA_WAIT_VALUE_GEQ);
        result = waits == CUDA_RESULT_OK ? COMM_OK : gpu_report(waits, "cuStreamWaitValue64_v2");
    }
    gpu_scope_leave(&scope);
    return result;
}

comm_result_t stream_begin(struct comm_comm *comm, const struct client_call *call, struct stream_order *order)
{
    struct comm_client *client = comm->client;
    *order = (struct stream_order){0};
    if (comm->gpu == NULL || call->options.stream == COMM_STREAM_NONE) {
        return COMM_OK;
    }
    struct fence_slot *slot = NULL;
    comm_result_t result = watchdog_start(client);
    if (result == COMM_OK) {
        result = fence_take(client, &slot);
    }
    if (result == COMM_OK) {
        result = stream_write(comm->gpu, call->options.stream, &client->fences, slot, &order->ready);
    }
    if (result != COMM_OK) {
        fence_give(&client->fences, slot, false);
        return error_within(result, "%s on \"%s\"", call->name, comm->name);
    }
    order->slot = slot;
    order->ended = fence_next(&client->fences, slot, FENCE_ENDED);
    return COMM_OK;
}

comm_result_t stream_end(struct comm_comm *comm, const struct client_call *call,
                         const struct stream_order *order)
{
    if (order->slot == NULL || fence_is_reached(&order->ended)) {
        return COMM_OK;
    }
    comm_result_t result = stream_wait(comm->gpu, call->options.stream, &order->ended);
    return result == COMM_OK
               ? COMM_OK
               : error_within(result, "%s on \"%s\", which was submitted: the stream does not wait for it",
                              call->name, comm->name);
}

void stream_abandon(struct comm_comm *comm, struct stream_order *order)
{
    if (order->slot != NULL) {
        fence_reach(&order->ended);
        fence_give(&comm->client->fences, order->slot, false);
        order->slot = NULL;
    }
}
