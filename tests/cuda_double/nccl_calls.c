#include "tests/cuda_double/nccl.h"

/* The calls of NCCL that move data, and what it refuses of them. */

static bool apart(const char *a, uint64_t a_bytes, const char *b, uint64_t b_bytes)
{
    return a + a_bytes <= b || b + b_bytes <= a;
}

/* In place means: the same buffer, or this rank's block of the larger buffer. The buffers may not overlap
 * in any other way. */
static bool buffers_are_sound(const struct call *call, int size, int rank)
{
    const char *send = call->send;
    const char *receive = call->receive;
    uint64_t mine = call_block_bytes(call) * (uint64_t)rank;
    uint64_t bytes = call_send_bytes(call, size, rank);
    bool in_place = false;
    switch (call->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_BROADCAST:
        in_place = send == receive;
        break;
    case COLLECTIVE_ALL_GATHER:
        in_place = send == receive + mine;
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        in_place = receive == send + mine;
        break;
    case PAIR_SEND:
    case PAIR_RECEIVE:
    case WINDOW:
        break;
    }
    uint64_t room = call_receive_bytes(call, size, rank);
    return (receive != NULL || room == 0) && (send != NULL || bytes == 0) &&
           (bytes == 0 || room == 0 || in_place || apart(send, bytes, receive, room));
}

static bool has_root(const struct call *call)
{
    return call->kind == COLLECTIVE_BROADCAST || call->kind == COLLECTIVE_REDUCE || call_is_pair(call);
}

/* FP8 came with 2.24. Its sums need devices of sm_90. */
static nccl_result check_type(const struct communicator *communicator, const struct call *call)
{
    bool is_f8 = call->type >= NCCL_TYPE_F8E4M3;
    if (!call_has_type(call) || (is_f8 && nccl_version_now() < 22400)) {
        return nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "%s: rank %d: type %d", call_kind_text(call),
                         communicator->rank, call->type);
    }
    if (is_f8 && call->kind <= COLLECTIVE_REDUCE && settings()->capability < 90) {
        return nccl_fail(NCCL_RESULT_INVALID_ARGUMENT,
                         "FP8 reduction support begins with sm90 capable devices.");
    }
    return NCCL_RESULT_OK;
}

static nccl_result check(const struct communicator *communicator, const struct call *call)
{
    struct stream *stream;
    nccl_result result = communicator_check(communicator);
    result = result == NCCL_RESULT_OK ? check_type(communicator, call) : result;
    if (result != NCCL_RESULT_OK) {
        return result;
    }
    int size = communicator->clique->size;
    bool reduces = call->kind <= COLLECTIVE_REDUCE || call->reduce >= 0;
    if ((reduces && !call_has_operator(call)) || call->root >= size || (has_root(call) && call->root < 0) ||
        !buffers_are_sound(call, size, communicator->rank)) {
        return nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "%s: rank %d: type, operator, root or buffers",
                         call_kind_text(call), communicator->rank);
    }
    if (stream_find_of(communicator->context, call->stream, &stream) != CUDA_RESULT_OK ||
        stream->context != communicator->context || stream->capture != NULL) {
        return nccl_fail(
            NCCL_RESULT_UNHANDLED_CUDA_ERROR,
            "%s: rank %d: the stream is not of its device, is capturing, or its context is broken",
            call_kind_text(call), communicator->rank);
    }
    return NCCL_RESULT_OK;
}

static nccl_result collective(const char *symbol, nccl_comm comm, const struct call *call)
{
    nccl_result result = nccl_enter(symbol);
    double_lock();
    struct communicator *communicator = object_get(OBJECT_COMMUNICATOR, (uintptr_t)comm);
    if (result == NCCL_RESULT_OK) {
        result = check(communicator, call);
    }
    if (result != NCCL_RESULT_OK) {
        result = group_note(result);
    } else if (call->count > 0) {
        result = group_add_call(communicator, call);
    }
    double_unlock();
    return result;
}

nccl_result ncclAllReduce(const void *send, void *receive, size_t count, int type, int reduce, nccl_comm comm,
                          cuda_stream stream)
{
    return collective(__func__, comm,
                      &(struct call){.kind = COLLECTIVE_ALL_REDUCE,
                                     .count = count,
                                     .type = type,
                                     .reduce = reduce,
                                     .root = -1,
                                     .send = send,
                                     .receive = receive,
                                     .stream = stream});
}

nccl_result ncclReduceScatter(const void *send, void *receive, size_t count, int type, int reduce,
                              nccl_comm comm, cuda_stream stream)
{
    return collective(__func__, comm,
                      &(struct call){.kind = COLLECTIVE_REDUCE_SCATTER,
                                     .count = count,
                                     .type = type,
                                     .reduce = reduce,
                                     .root = -1,
                                     .send = send,
                                     .receive = receive,
                                     .stream = stream});
}

nccl_result ncclAllGather(const void *send, void *receive, size_t count, int type, nccl_comm comm,
                          cuda_stream stream)
{
    return collective(__func__, comm,
                      &(struct call){.kind = COLLECTIVE_ALL_GATHER,
                                     .count = count,
                                     .type = type,
                                     .reduce = -1,
                                     .root = -1,
                                     .send = send,
                                     .receive = receive,
                                     .stream = stream});
}

nccl_result ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, nccl_comm comm,
                          cuda_stream stream)
{
    return collective(__func__, comm,
                      &(struct call){.kind = COLLECTIVE_BROADCAST,
                                     .count = count,
                                     .type = type,
                                     .reduce = -1,
                                     .root = root,
                                     .send = send,
                                     .receive = receive,
                                     .stream = stream});
}

nccl_result ncclReduce(const void *send, void *receive, size_t count, int type, int reduce, int root,
                       nccl_comm comm, cuda_stream stream)
{
    return collective(__func__, comm,
                      &(struct call){.kind = COLLECTIVE_REDUCE,
                                     .count = count,
                                     .type = type,
                                     .reduce = reduce,
                                     .root = root,
                                     .send = send,
                                     .receive = receive,
                                     .stream = stream});
}

nccl_result ncclSend(const void *send, size_t count, int type, int peer, nccl_comm comm, cuda_stream stream)
{
    return collective(__func__, comm,
                      &(struct call){.kind = PAIR_SEND,
                                     .count = count,
                                     .type = type,
                                     .reduce = -1,
                                     .root = peer,
                                     .send = send,
                                     .stream = stream});
}

nccl_result ncclRecv(void *receive, size_t count, int type, int peer, nccl_comm comm, cuda_stream stream)
{
    return collective(__func__, comm,
                      &(struct call){.kind = PAIR_RECEIVE,
                                     .count = count,
                                     .type = type,
                                     .reduce = -1,
                                     .root = peer,
                                     .receive = receive,
                                     .stream = stream});
}
