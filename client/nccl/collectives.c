#include <stdint.h>
#include <stdio.h>

#include "client/nccl/communicator.h"

/* The operations: their arguments are checked at once, and then they are submitted, or collected by a group.
 */

bool type_of(ncclDataType_t type, comm_dtype_t *out)
{
    static const comm_dtype_t types[NCCL_TYPE_COUNT] = {
        [NCCL_INT8] = COMM_I8,       [NCCL_UINT8] = COMM_U8,          [NCCL_INT32] = COMM_I32,
        [NCCL_UINT32] = COMM_U32,    [NCCL_INT64] = COMM_I64,         [NCCL_UINT64] = COMM_U64,
        [NCCL_FLOAT16] = COMM_F16,   [NCCL_FLOAT32] = COMM_F32,       [NCCL_FLOAT64] = COMM_F64,
        [NCCL_BFLOAT16] = COMM_BF16, [NCCL_FLOAT8E4M3] = COMM_F8E4M3, [NCCL_FLOAT8E5M2] = COMM_F8E5M2};
    if (type < 0 || type >= NCCL_TYPE_COUNT) {
        return false;
    }
    *out = types[type];
    return true;
}

static comm_op_t op_of(ncclRedOp_t op)
{
    static const comm_op_t ops[NCCL_FIRST_OWN_OP] = {[NCCL_SUM] = COMM_SUM,
                                                     [NCCL_PROD] = COMM_PROD,
                                                     [NCCL_MAX] = COMM_MAX,
                                                     [NCCL_MIN] = COMM_MIN,
                                                     [NCCL_AVG] = COMM_AVG};
    return op < NCCL_FIRST_OWN_OP ? ops[op] : COMM_PREMUL_SUM;
}

static bool is_reduction(enum call_kind kind)
{
    return kind == CALL_ALL_REDUCE || kind == CALL_REDUCE || kind == CALL_REDUCE_SCATTER;
}

static ncclResult_t refuse(const struct nccl_call *call, const char *what, long long number)
{
    return group_note(failure_set(NCCL_INVALID_ARGUMENT, "%s: %s %lld", call->name, what, number));
}

static ncclResult_t check_buffer(const struct nccl_call *call, const void *buffer, const char *what)
{
    const struct cuda_driver *driver = process_driver();
    unsigned type = 0;
    int device = call->comm->device;
    if (driver == NULL) {
        return group_note(NCCL_UNHANDLED_CUDA_ERROR);
    }
    if (buffer == NULL ||
        driver->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (cuda_pointer)(uintptr_t)buffer) !=
            CUDA_RESULT_OK ||
        type != CUDA_MEMORY_DEVICE) {
        return group_note(
            failure_set(NCCL_INVALID_ARGUMENT, "%s: %s %p is not memory of a GPU", call->name, what, buffer));
    }
    if (driver->pointer_attribute(&device, CUDA_POINTER_DEVICE, (cuda_pointer)(uintptr_t)buffer) ==
            CUDA_RESULT_OK &&
        device != call->comm->device) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT,
                                      "%s: %s %p is on CUDA device %d, and the communicator's rank %d is on "
                                      "device %d",
                                      call->name, what, buffer, device, call->comm->rank,
                                      call->comm->device));
    }
    return NCCL_SUCCESS;
}

/* With a stream of another GPU, NCCL fails later, or hangs. */
static ncclResult_t check_stream(const struct nccl_call *call)
{
    const struct cuda_driver *driver = process_driver();
    cuda_context context, before;
    cuda_device of_stream = 0, of_comm = 0;
    if ((uintptr_t)call->stream <= CUDA_STREAM_PER_THREAD) {
        return NCCL_SUCCESS; /* of the communicator's GPU */
    }
    cuda_result result = driver->stream_context((cuda_stream)call->stream, &context);
    result = result == CUDA_RESULT_OK ? driver->context_get(&before) : result;
    result = result == CUDA_RESULT_OK ? driver->context_set(context) : result;
    if (result == CUDA_RESULT_OK) {
        result = driver->context_device(&of_stream);
        (void)driver->context_set(before);
    }
    result = result == CUDA_RESULT_OK ? driver->device_get(&of_comm, call->comm->device) : result;
    if (result != CUDA_RESULT_OK) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "%s: CUDA does not know the stream: error %d",
                                      call->name, result));
    }
    return of_stream == of_comm
               ? NCCL_SUCCESS
               : group_note(failure_set(NCCL_INVALID_ARGUMENT,
                                        "%s: the stream is of another GPU than the communicator's rank %d, "
                                        "which is on CUDA device %d",
                                        call->name, call->comm->rank, call->comm->device));
}

static bool needs_send(const struct nccl_call *call)
{
    bool is_root = call->comm->rank == call->peer;
    return call->kind != CALL_RECV &&
           ((call->kind != CALL_BROADCAST && call->kind != CALL_SCATTER) || is_root);
}

static bool needs_receive(const struct nccl_call *call)
{
    bool is_root = call->comm->rank == call->peer;
    return call->kind != CALL_SEND && ((call->kind != CALL_REDUCE && call->kind != CALL_GATHER) || is_root);
}

/* Copies the operator's factor. */
static ncclResult_t find_factor(struct nccl_call *call)
{
    int index = call->op >= call->comm->first_op ? call->op - call->comm->first_op : -1;
    if (call->op >= 0 && call->op < NCCL_FIRST_OWN_OP) {
        return NCCL_SUCCESS;
    }
    if (index < 0 || index >= COMMUNICATOR_FACTORS_MAX) {
        return refuse(call, "this communicator has no operator", call->op);
    }
    (void)pthread_mutex_lock(&call->comm->lock);
    call->factor = call->comm->factors[index];
    (void)pthread_mutex_unlock(&call->comm->lock);
    return call->factor.used && call->factor.type == call->type
               ? NCCL_SUCCESS
               : refuse(call, "this communicator and type have no operator", call->op);
}

static ncclResult_t run(struct nccl_call call)
{
    comm_dtype_t type;
    ncclResult_t result = communicator_check(call.comm, call.name);
    if (result != NCCL_SUCCESS) {
        return group_note(result);
    }
    if (!type_of(call.type, &type)) {
        return refuse(&call, "type", call.type);
    }
    if (call.peer < 0 || call.peer >= call.comm->size) {
        return refuse(&call, "rank", call.peer);
    }
    if (call.count > SIZE_MAX / 16 / (size_t)call.comm->size) {
        return refuse(&call, "count", (long long)call.count);
    }
    result = is_reduction(call.kind) ? find_factor(&call) : NCCL_SUCCESS;
    if (result == NCCL_SUCCESS && call.count == 0) {
        return NCCL_SUCCESS;
    }
    if (result == NCCL_SUCCESS && needs_send(&call)) {
        result = check_buffer(&call, call.send, "the send buffer");
    }
    if (result == NCCL_SUCCESS && needs_receive(&call)) {
        result = check_buffer(&call, call.receive, "the receive buffer");
    }
    result = result == NCCL_SUCCESS ? check_stream(&call) : result;
    return result == NCCL_SUCCESS ? group_add_call(&call) : result;
}

/* Works on the GPU of the communicator, for the null stream. */
static cuda_result enter(const struct nccl_call *call, const struct cuda_driver *driver, cuda_context *before)
{
    cuda_device device;
    cuda_context context;
    cuda_result result = driver->context_get(before);
    result = result == CUDA_RESULT_OK ? driver->device_get(&device, call->comm->device) : result;
    result = result == CUDA_RESULT_OK ? driver->context_retain(&context, device) : result;
    if (result == CUDA_RESULT_OK) {
        result = driver->context_set(context);
        (void)driver->context_release(device); /* the communicator keeps it */
    }
    return result;
}

static bool is_captured(cudaStream_t stream, const struct cuda_driver *driver)
{
    int status = CUDA_CAPTURE_NONE;
    cuda_result result = driver->stream_is_capturing((cuda_stream)stream, &status);
    return status != CUDA_CAPTURE_NONE || (result >= CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED &&
                                           result <= CUDA_RESULT_STREAM_CAPTURE_WRONG_THREAD);
}

/* A factor in device memory is read in the order of the stream; the host waits for that. */
static ncclResult_t read_factor(const struct nccl_call *call, comm_dtype_t type, double *out)
{
    const struct cuda_driver *driver = process_driver();
    unsigned char bytes[8] = {0};
    cuda_context before = NULL;
    *out = call->factor.value;
    if (call->factor.device_scalar == NULL) {
        return NCCL_SUCCESS;
    }
    if (is_captured(call->stream, driver)) {
        return failure_set(NCCL_INVALID_USAGE,
                           "%s: the stream is captured, and the operator's factor is in the GPU's memory: "
                           "pass the factor with ncclScalarHostImmediate",
                           call->name);
    }
    cuda_result result = enter(call, driver, &before);
    if (result == CUDA_RESULT_OK) {
        result = driver->copy_to_host(bytes, (cuda_pointer)(uintptr_t)call->factor.device_scalar,
                                      comm_dtype_size(type), (cuda_stream)call->stream);
        result = result == CUDA_RESULT_OK ? driver->stream_synchronize((cuda_stream)call->stream) : result;
        (void)driver->context_set(before);
    }
    return result == CUDA_RESULT_OK
               ? factor_decode(type, bytes, out, call->name)
               : failure_set(NCCL_UNHANDLED_CUDA_ERROR,
                             "%s: the operator's factor cannot be read: CUDA error %d", call->name, result);
}

/* The root's own output of a broadcast. */
static ncclResult_t copy_at_root(const struct nccl_call *call, comm_dtype_t type)
{
    const struct cuda_driver *driver = process_driver();
    cuda_context before = NULL;
    cuda_result result = enter(call, driver, &before);
    if (result == CUDA_RESULT_OK) {
        result = driver->copy((cuda_pointer)(uintptr_t)call->receive, (cuda_pointer)(uintptr_t)call->send,
                              call->count * comm_dtype_size(type), (cuda_stream)call->stream);
        (void)driver->context_set(before);
    }
    return result == CUDA_RESULT_OK
               ? NCCL_SUCCESS
               : failure_set(NCCL_UNHANDLED_CUDA_ERROR, "%s: the copy at the root failed: CUDA error %d",
                             call->name, result);
}

static ncclResult_t broadcast(const struct nccl_call *call, comm_dtype_t type,
                              const comm_call_options_t *options)
{
    bool copies = call->comm->rank == call->peer && call->receive != call->send;
    ncclResult_t result = copies ? copy_at_root(call, type) : NCCL_SUCCESS;
    return result != NCCL_SUCCESS
               ? result
               : failure_from_library(comm_broadcast(call->comm->comm, call->receive, call->count, type,
                                                     (uint32_t)call->peer, options));
}

static comm_result_t submit(const struct nccl_call *call, comm_dtype_t type,
                            const comm_call_options_t *options)
{
    comm_t *comm = call->comm->comm;
    uint32_t peer = (uint32_t)call->peer;
    comm_op_t op = op_of(call->op);
    switch (call->kind) {
    case CALL_ALL_REDUCE:
        return comm_all_reduce(comm, call->send, call->receive, call->count, type, op, options);
    case CALL_REDUCE:
        return comm_reduce(comm, call->send, call->receive, call->count, type, op, peer, options);
    case CALL_BROADCAST:
        return COMM_INTERNAL; /* see broadcast */
    case CALL_ALL_GATHER:
        return comm_all_gather(comm, call->send, call->receive, call->count, type, options);
    case CALL_REDUCE_SCATTER:
        return comm_reduce_scatter(comm, call->send, call->receive, call->count, type, op, options);
    case CALL_ALL_TO_ALL:
        return comm_all_to_all(comm, call->send, call->receive, call->count, type, options);
    case CALL_GATHER:
        return comm_gather(comm, call->send, call->receive, call->count, type, peer, options);
    case CALL_SCATTER:
        return comm_scatter(comm, call->send, call->receive, call->count, type, peer, options);
    case CALL_SEND: /* as bytes: NCCL does not compare the types of both sides */
        return comm_send(comm, call->send, call->count * comm_dtype_size(type), COMM_U8, peer, 0, options);
    case CALL_RECV:
        return comm_recv(comm, call->receive, call->count * comm_dtype_size(type), COMM_U8, peer, 0, options);
    }
    return COMM_INTERNAL;
}

ncclResult_t call_submit(const struct nccl_call *call)
{
    comm_dtype_t type = COMM_F32;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    (void)type_of(call->type, &type);
    options.stream = call->stream;
    ncclResult_t result = call->factor.used ? read_factor(call, type, &options.factor) : NCCL_SUCCESS;
    if (result != NCCL_SUCCESS) {
        return result;
    }
    return call->kind == CALL_BROADCAST ? broadcast(call, type, &options)
                                        : failure_from_library(submit(call, type, &options));
}

#define CALL(kind_of_call, text, ...)                                                                        \
    run((struct nccl_call){.kind = kind_of_call,                                                             \
                           .name = text,                                                                     \
                           .comm = comm,                                                                     \
                           .count = count,                                                                   \
                           .type = type,                                                                     \
                           .stream = stream,                                                                 \
                           __VA_ARGS__})

NCCL_EXPORT(ncclResult_t, ncclAllReduce, const void *send, void *receive, size_t count, ncclDataType_t type,
            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_ALL_REDUCE, "ncclAllReduce", .send = send, .receive = receive, .op = op);
}

NCCL_EXPORT(ncclResult_t, ncclReduceScatter, const void *send, void *receive, size_t count,
            ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_REDUCE_SCATTER, "ncclReduceScatter", .send = send, .receive = receive, .op = op);
}

NCCL_EXPORT(ncclResult_t, ncclReduce, const void *send, void *receive, size_t count, ncclDataType_t type,
            ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_REDUCE, "ncclReduce", .send = send, .receive = receive, .op = op, .peer = root);
}

NCCL_EXPORT(ncclResult_t, ncclBroadcast, const void *send, void *receive, size_t count, ncclDataType_t type,
            int root, ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_BROADCAST, "ncclBroadcast", .send = send, .receive = receive, .peer = root);
}

NCCL_EXPORT(ncclResult_t, ncclBcast, void *buffer, size_t count, ncclDataType_t type, int root,
            ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_BROADCAST, "ncclBcast", .send = buffer, .receive = buffer, .peer = root);
}

NCCL_EXPORT(ncclResult_t, ncclAllGather, const void *send, void *receive, size_t count, ncclDataType_t type,
            ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_ALL_GATHER, "ncclAllGather", .send = send, .receive = receive);
}

NCCL_EXPORT(ncclResult_t, ncclAlltoAll, const void *send, void *receive, size_t count, ncclDataType_t type,
            ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_ALL_TO_ALL, "ncclAlltoAll", .send = send, .receive = receive);
}

NCCL_EXPORT(ncclResult_t, ncclGather, const void *send, void *receive, size_t count, ncclDataType_t type,
            int root, ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_GATHER, "ncclGather", .send = send, .receive = receive, .peer = root);
}

NCCL_EXPORT(ncclResult_t, ncclScatter, const void *send, void *receive, size_t count, ncclDataType_t type,
            int root, ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_SCATTER, "ncclScatter", .send = send, .receive = receive, .peer = root);
}

NCCL_EXPORT(ncclResult_t, ncclSend, const void *send, size_t count, ncclDataType_t type, int peer,
            ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_SEND, "ncclSend", .send = send, .peer = peer);
}

NCCL_EXPORT(ncclResult_t, ncclRecv, void *receive, size_t count, ncclDataType_t type, int peer,
            ncclComm_t comm, cudaStream_t stream)
{
    return CALL(CALL_RECV, "ncclRecv", .receive = receive, .peer = peer);
}
