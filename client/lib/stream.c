#include "client/lib/internal.h"

/*
 * An operation in a CUDA stream. When the stream reaches the operation, it writes the value that commd waits
 * for. Then it waits for the value that commd writes when the operation has ended. The host does not wait.
 *
 * No lock is held during the driver's calls. Such a call may wait for room in a stream, which may be blocked
 * by an operation that another thread has yet to submit.
 */

static comm_result_t find_capture(cuda_stream stream, struct stream_capture *capture)
{
    int status = CUDA_CAPTURE_NONE;
    *capture = (struct stream_capture){.id = 0};
    cuda_result result =
        gpu_driver()->stream_capture_info(stream, &status, &capture->id, &capture->graph, NULL, NULL);
    if (result != CUDA_RESULT_OK) {
        return gpu_report(result, "cuStreamGetCaptureInfo_v2");
    }
    if (status == CUDA_CAPTURE_INVALIDATED) {
        return error_report(COMM_UNSUPPORTED,
                            "the capture of the stream is invalid, because of an earlier call");
    }
    if (status != CUDA_CAPTURE_ACTIVE) {
        capture->id = 0;
    }
    return COMM_OK;
}

comm_result_t stream_find_capture(const struct client_gpu *gpu, cuda_stream stream,
                                  struct stream_capture *capture)
{
    struct gpu_scope scope;
    comm_result_t result = gpu_scope_enter_stream(gpu, stream, &scope);
    if (result == COMM_OK) {
        result = find_capture(stream, capture);
        gpu_scope_leave(&scope);
    }
    return result;
}

static comm_result_t check_not_captured(cuda_stream stream)
{
    struct stream_capture capture;
    comm_result_t result = find_capture(stream, &capture);
    return result != COMM_OK || capture.id == 0
               ? result
               : error_report(COMM_UNSUPPORTED, "the stream is being captured: %s", CAPTURE_ADVICE);
}

/* Within the stream's scope. */
static comm_result_t write_mark(cuda_stream stream, struct client_fences *fences, struct fence_slot *slot,
                                struct fence_mark *mark)
{
    *mark = fence_next(fences, slot, FENCE_READY);
    cuda_result written = gpu_driver()->stream_write_value(stream, fence_address(mark), mark->value, 0);
    if (written != CUDA_RESULT_OK) {
        fence_reach(mark);
        return gpu_report(written, "cuStreamWriteValue64_v2");
    }
    return COMM_OK;
}

comm_result_t stream_add(const struct client_gpu *gpu, cuda_stream stream, struct cuda_memop *memops,
                         unsigned count)
{
    struct gpu_scope scope;
    comm_result_t result = gpu_scope_enter_stream(gpu, stream, &scope);
    if (result != COMM_OK) {
        return result;
    }
    cuda_result added = gpu_driver()->stream_memops(stream, count, memops, 0);
    gpu_scope_leave(&scope);
    return added == CUDA_RESULT_OK ? COMM_OK : gpu_report(added, "cuStreamBatchMemOp_v2");
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
    result = result == COMM_OK ? write_mark(stream, fences, slot, mark) : result;
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
    cuda_stream stream = call->options.stream;
    struct fence_slot *slot = NULL;
    struct gpu_scope scope;
    comm_result_t result = watchdog_start(client);
    if (result == COMM_OK) {
        result = fence_take(client, &slot);
    }
    if (result == COMM_OK) {
        result = gpu_scope_enter_stream(comm->gpu, stream, &scope);
    }
    if (result == COMM_OK) {
        result = find_capture(stream, &order->capture);
        if (result == COMM_OK && order->capture.id == 0) {
            result = write_mark(stream, &client->fences, slot, &order->ready);
        }
        gpu_scope_leave(&scope);
    }
    if (result != COMM_OK || order->capture.id != 0) {
        fence_give(&client->fences, slot, false);
        return result == COMM_OK ? COMM_OK : error_within(result, "%s on \"%s\"", call->name, comm->name);
    }
    order->slot = slot;
    order->ended = fence_next(&client->fences, slot, FENCE_ENDED);
    return COMM_OK;
}

/* Whether both mean the same stream. Null and CUDA's special handles are streams of the rank's GPU. */
static bool is_same_stream(const struct comm_comm *one, cuda_stream stream, const struct comm_comm *other,
                           cuda_stream of_other)
{
    bool special = (uintptr_t)stream <= CUDA_STREAM_PER_THREAD;
    bool per_thread = (uintptr_t)stream == CUDA_STREAM_PER_THREAD;
    return special ? (uintptr_t)of_other <= CUDA_STREAM_PER_THREAD && one->gpu == other->gpu &&
                         per_thread == ((uintptr_t)of_other == CUDA_STREAM_PER_THREAD)
                   : stream == of_other;
}

comm_result_t stream_check(const struct comm_comm *comm, const struct client_call *call,
                           const struct stream_order *order)
{
    struct client_fences *fences = &comm->client->fences;
    const struct comm_comm *blocks = NULL;
    if (order->slot == NULL || op_kind_is_message(call->terms.kind)) {
        return COMM_OK;
    }
    pthread_mutex_lock(&fences->lock);
    for (const struct comm_comm *other = comm->client->comms; other != NULL; other = other->next) {
        const struct stream_tail *tail = &other->tail;
        if (other != comm && other->comm_id == comm->comm_id && tail->number > comm->collective_count &&
            is_same_stream(comm, call->options.stream, other, tail->stream) &&
            !fence_is_reached(&tail->ended)) {
            blocks = other;
        }
    }
    pthread_mutex_unlock(&fences->lock);
    return blocks == NULL
               ? COMM_OK
               : error_report(
                     COMM_INVALID_ARGUMENT,
                     "%s on \"%s\": the stream waits for an operation of rank %u of this process, which "
                     "needs this call to end: give each rank a stream of its own, or put the calls of "
                     "all ranks into one group",
                     call->name, comm->name, blocks->rank);
}

/* The stream will wait for the operation. */
static void set_tail(struct comm_comm *comm, const struct client_call *call, const struct stream_order *order)
{
    if (order->number != 0) {
        pthread_mutex_lock(&comm->client->fences.lock);
        comm->tail = (struct stream_tail){
            .stream = call->options.stream, .ended = order->ended, .number = order->number};
        pthread_mutex_unlock(&comm->client->fences.lock);
    }
}

comm_result_t stream_end(struct comm_comm *comm, const struct client_call *call,
                         const struct stream_order *order)
{
    if (order->slot == NULL || fence_is_reached(&order->ended)) {
        return COMM_OK;
    }
    comm_result_t result = stream_wait(comm->gpu, call->options.stream, &order->ended);
    if (result == COMM_OK) {
        set_tail(comm, call, order);
    }
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
