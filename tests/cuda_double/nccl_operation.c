#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/host/reduce.h"
#include "tests/cuda_double/memory.h"
#include "tests/cuda_double/nccl.h"

#define HANGING "/nccl-hangs"

static const struct {
    enum dtype dtype;
    const char *text;
} types[] = {
    [NCCL_TYPE_I8] = {DTYPE_I8, "i8"},
    [NCCL_TYPE_U8] = {DTYPE_U8, "u8"},
    [NCCL_TYPE_I32] = {DTYPE_I32, "i32"},
    [NCCL_TYPE_U32] = {DTYPE_U32, "u32"},
    [NCCL_TYPE_I64] = {DTYPE_I64, "i64"},
    [NCCL_TYPE_U64] = {DTYPE_U64, "u64"},
    [NCCL_TYPE_F16] = {DTYPE_F16, "f16"},
    [NCCL_TYPE_F32] = {DTYPE_F32, "f32"},
    [NCCL_TYPE_F64] = {DTYPE_F64, "f64"},
    [NCCL_TYPE_BF16] = {DTYPE_BF16, "bf16"},
    [NCCL_TYPE_F8E4M3] = {DTYPE_F8E4M3, "f8e4m3"},
    [NCCL_TYPE_F8E5M2] = {DTYPE_F8E5M2, "f8e5m2"},
};
#define TYPE_COUNT ((int)(sizeof types / sizeof types[0]))

static const enum reduce reduces[] = {[NCCL_REDUCE_SUM] = REDUCE_SUM,
                                      [NCCL_REDUCE_PROD] = REDUCE_PROD,
                                      [NCCL_REDUCE_MAX] = REDUCE_MAX,
                                      [NCCL_REDUCE_MIN] = REDUCE_MIN};
#define REDUCE_TYPE_COUNT ((int)(sizeof reduces / sizeof reduces[0]))

bool call_has_type(const struct call *call)
{
    return call->type >= 0 && call->type < TYPE_COUNT;
}

bool call_has_operator(const struct call *call)
{
    return call->reduce >= 0 && call->reduce < REDUCE_TYPE_COUNT;
}

static const char *const kinds[] = {"all_reduce", "reduce_scatter", "reduce",  "all_gather",
                                    "broadcast",  "send",           "receive", "window"};

const char *call_kind_text(const struct call *call)
{
    return kinds[call->kind];
}

void operation_unref(struct operation *operation)
{
    if (--operation->references == 0) {
        clique_unref(operation->clique);
        free(operation);
    }
}

/* Sets which operation the rank's next call belongs to. */
static void find_key(struct communicator *communicator, const struct call *call, struct operation *key)
{
    int rank = communicator->rank;
    *key = (struct operation){.sender = -1, .receiver = -1, .expected = communicator->clique->size};
    if (!call_is_pair(call)) {
        key->number = communicator->calls++;
        return;
    }
    bool sends = call->kind == PAIR_SEND;
    key->sender = sends ? rank : call->root;
    key->receiver = sends ? call->root : rank;
    key->number = sends ? communicator->sent[call->root]++ : communicator->received[call->root]++;
    key->expected = 2;
}

static struct operation *operation_of(struct clique *clique, const struct operation *key)
{
    struct operation **link = &clique->operations;
    for (; *link != NULL; link = &(*link)->next) {
        if ((*link)->number == key->number && (*link)->sender == key->sender &&
            (*link)->receiver == key->receiver) {
            return *link;
        }
    }
    struct operation *made = calloc(1, sizeof *made + (size_t)key->expected * sizeof(struct part));
    if (made != NULL) {
        *made = *key;
        made->clique = clique;
        made->references = 1;
        made->first_ns = now_ns();
        clique->references++;
        *link = made;
    }
    return made;
}

static void forget(struct operation *operation)
{
    struct operation **link = &operation->clique->operations;
    while (*link != operation) {
        link = &(*link)->next;
    }
    *link = operation->next;
    operation_unref(operation);
}

static bool same(const struct call *a, const struct call *b)
{
    bool alike = a->kind == b->kind && a->reduce == b->reduce && a->root == b->root;
    return (call_is_pair(a) || alike) && a->count == b->count && a->type == b->type;
}

/* Returns which part of the operation a rank's call is. */
static struct part *part_of(struct operation *operation, const struct communicator *communicator,
                            const struct call *call)
{
    return &operation->parts[call_is_pair(call) ? call->kind == PAIR_RECEIVE : communicator->rank];
}

struct operation *operation_call(struct communicator *communicator, const struct call *call)
{
    struct clique *clique = communicator->clique;
    struct operation key;
    find_key(communicator, call, &key);
    struct operation *operation = operation_of(clique, &key);
    if (operation == NULL) {
        return NULL;
    }
    for (int i = 0; i < operation->expected; i++) {
        if (operation->parts[i].communicator != NULL && !same(&operation->parts[i].call, call)) {
            const struct part *other = &operation->parts[i];
            operation->mismatched = true;
            (void)nccl_fail(NCCL_RESULT_OK,
                            "%s of %zu %s (rank %d) meets %s of %zu %s (rank %d): NCCL would hang",
                            kinds[other->call.kind], other->call.count, types[other->call.type].text,
                            other->communicator->rank, kinds[call->kind], call->count, types[call->type].text,
                            communicator->rank);
        }
    }
    uint64_t sent = call_send_bytes(call, clique->size, communicator->rank),
             received = call_receive_bytes(call, clique->size, communicator->rank);
    *part_of(operation, communicator, call) =
        (struct part){.communicator = communicator,
                      .call = *call,
                      .registered = {registration_of(communicator, call->send, sent) != NULL,
                                     registration_of(communicator, call->receive, received) != NULL},
                      .places = {window_place(communicator, call->send, sent),
                                 window_place(communicator, call->receive, received)}};
    operation->references++;
    operation->called++;
    if (operation->called == operation->expected) {
        forget(operation);
        double_progress();
    }
    return operation;
}

nccl_result operation_state(struct operation *operation)
{
    struct clique *clique = operation->clique;
    if (operation->called == operation->expected && !operation->mismatched) {
        return NCCL_RESULT_OK;
    }
    if (now_ns() < hang_deadline(operation->first_ns)) {
        return NCCL_RESULT_IN_PROGRESS;
    }
    return clique_fail(
        clique, NCCL_RESULT_SYSTEM_ERROR,
        operation->mismatched
            ? "operation %llu: ranks have called different things; NCCL would hang"
            : "operation %llu: not all ranks have called it; NCCL would hang: one thread's calls "
              "on several ranks belong in one group",
        (unsigned long long)operation->number);
}

/* ---- in the streams */

/* One rank's work for the calls of one group. */
struct group_work {
    struct work work;
    struct communicator *communicator;
    size_t count;
    struct operation *operations[];
};

/* The memory that one rank's part touches. */
struct bytes {
    unsigned char *send;
    unsigned char *receive;
    struct pin send_pin;
    struct pin receive_pin;
};

uint64_t call_block_bytes(const struct call *call)
{
    return call->count * dtype_size_bytes(types[call->type].dtype);
}

uint64_t call_send_bytes(const struct call *call, int size, int rank)
{
    if ((call->kind == COLLECTIVE_BROADCAST && call->root != rank) || call->kind == PAIR_RECEIVE) {
        return 0;
    }
    return call_block_bytes(call) * (uint64_t)(call->kind == COLLECTIVE_REDUCE_SCATTER ? size : 1);
}

uint64_t call_receive_bytes(const struct call *call, int size, int rank)
{
    if ((call->kind == COLLECTIVE_REDUCE && call->root != rank) || call->kind == PAIR_SEND) {
        return 0;
    }
    return call_block_bytes(call) * (uint64_t)(call->kind == COLLECTIVE_ALL_GATHER ? size : 1);
}

static cuda_result touch(const struct part *part, int size, struct bytes *bytes)
{
    const struct call *call = &part->call;
    cuda_context context = part->communicator->context;
    unsigned alignment = (unsigned)dtype_size_bytes(types[call->type].dtype);
    cuda_result result = memory_resolve(context, (uint64_t)(uintptr_t)call->send,
                                        call_send_bytes(call, size, part->communicator->rank), alignment,
                                        TOUCH_KERNEL, &bytes->send, &bytes->send_pin);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    result = memory_resolve(context, (uint64_t)(uintptr_t)call->receive,
                            call_receive_bytes(call, size, part->communicator->rank), alignment, TOUCH_KERNEL,
                            &bytes->receive, &bytes->receive_pin);
    if (result != CUDA_RESULT_OK) {
        memory_unpin(&bytes->send_pin);
    }
    return result;
}

/* Reduces as a ring does: each partial result is rounded to the type. Each range begins at another rank. */
static void reduce_range(const struct call *call, const struct bytes *bytes, int size, int first,
                         uint64_t offset, uint64_t count, unsigned char *target)
{
    enum dtype dtype = types[call->type].dtype;
    memcpy(target, bytes[first].send + offset, count * dtype_size_bytes(dtype));
    for (int i = 1; i < size; i++) {
        host_reduce_into(dtype, reduces[call->reduce], target, bytes[(first + i) % size].send + offset,
                         count);
    }
}

static void run_reduction(const struct call *call, const struct bytes *bytes, int size, unsigned char *room)
{
    uint64_t element = dtype_size_bytes(types[call->type].dtype);
    uint64_t total = call->kind == COLLECTIVE_REDUCE_SCATTER ? call->count * (uint64_t)size : call->count;
    uint64_t each = call->kind == COLLECTIVE_REDUCE_SCATTER
                        ? call->count
                        : (call->count + (uint64_t)size - 1) / (uint64_t)size;
    for (int part = 0; part < size; part++) {
        uint64_t begin = each * (uint64_t)part;
        uint64_t count = begin >= total ? 0 : total - begin < each ? total - begin : each;
        if (count > 0) {
            reduce_range(call, bytes, size, (part + 1) % size, begin * element, count,
                         room + begin * element);
        }
    }
    for (int rank = 0; rank < size; rank++) {
        bool scatters = call->kind == COLLECTIVE_REDUCE_SCATTER;
        if (call->kind == COLLECTIVE_REDUCE && rank != call->root) {
            continue;
        }
        memcpy(bytes[rank].receive, room + (scatters ? call_block_bytes(call) * (uint64_t)rank : 0),
               call_block_bytes(call));
    }
}

static void run_copies(const struct call *call, const struct bytes *bytes, int size, unsigned char *room)
{
    uint64_t block = call_block_bytes(call);
    bool gathers = call->kind == COLLECTIVE_ALL_GATHER;
    for (int rank = 0; rank < size && gathers; rank++) {
        memcpy(room + block * (uint64_t)rank, bytes[rank].send, block);
    }
    if (!gathers) {
        memcpy(room, bytes[call->root].send, block);
    }
    for (int rank = 0; rank < size; rank++) {
        memcpy(bytes[rank].receive, room, call_receive_bytes(call, size, rank));
    }
}

/* The last stream that reaches the operation runs it. A rank whose memory cannot be touched breaks its own
 * context. Locked. */
static void execute(struct operation *operation)
{
    int size = operation->expected;
    const struct call *call = &operation->parts[0].call;
    struct bytes *bytes = calloc((size_t)size, sizeof *bytes);
    unsigned char *room = malloc(call_block_bytes(call) * (uint64_t)size);
    int touched = 0;
    for (; touched < size && bytes != NULL && room != NULL; touched++) {
        cuda_result result = touch(&operation->parts[touched], size, &bytes[touched]);
        if (result != CUDA_RESULT_OK) {
            operation->parts[touched].communicator->failure = NCCL_RESULT_UNHANDLED_CUDA_ERROR;
            context_fail(operation->parts[touched].communicator->context, result);
            break;
        }
    }
    operation->done = touched == size;
    operation->abandoned = !operation->done;
    bool mixed = operation->done && (operation_is_mixed(operation) || operation_misses_windows(operation));
    if (operation->done) {
        operation->done = false; /* the other streams must still wait */
        double_unlock();
        if (call_is_pair(call)) {
            memcpy(bytes[1].receive, bytes[0].send, call_block_bytes(call));
        } else if (call->kind <= COLLECTIVE_REDUCE) {
            run_reduction(call, bytes, size, room);
        } else {
            run_copies(call, bytes, size, room);
        }
        for (int i = 0; i < size && mixed; i++) {
            const struct part *part = &operation->parts[i];
            memset(
                bytes[i].receive, POISON,
                call_receive_bytes(&part->call, part->communicator->clique->size, part->communicator->rank));
        }
        double_lock();
        operation->done = true;
    }
    for (int i = 0; i < touched; i++) {
        memory_unpin(&bytes[i].send_pin);
        memory_unpin(&bytes[i].receive_pin);
    }
    free(room);
    free(bytes);
    double_progress();
}

static bool all_done(const struct group_work *work)
{
    for (size_t i = 0; i < work->count; i++) {
        if (!work->operations[i]->done) {
            return false;
        }
    }
    return true;
}

/* From 2.26 on, if the program asks for it, NCCL's kernels begin on all devices in the order of their calls.
 */
static bool orders_launches(void)
{
    const char *asked = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return nccl_version_now() >= 22600 && asked != NULL && atoi(asked) != 0;
}

/* Without that order, kernels of two communicators may fill a device each, and wait for the other's place on
 * the other device. So a device has room for the kernel of one communicator at a time. Locked. */
static struct communicator *now_on[DEVICES_MAX];

static bool take_device(struct communicator *communicator, struct stream *stream)
{
    struct communicator **now = &now_on[communicator->context->ordinal];
    if (orders_launches()) {
        return false;
    }
    while (*now != NULL && !communicator->aborted && !stream_gives_up(stream)) {
        double_wait(0);
    }
    if (*now != NULL) {
        return false;
    }
    *now = communicator;
    return true;
}

/* Tells tests that it hangs now. */
static void mark_hanging(void)
{
    char path[sizeof settings()->folder + sizeof HANGING];
    (void)snprintf(path, sizeof path, "%s" HANGING, settings()->folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        (void)close(fd);
    }
}

static cuda_result group_work_run(struct work *work, struct stream *stream)
{
    const struct group_work *parts = (const struct group_work *)work;
    struct communicator *communicator = parts->communicator;
    int unused;
    bool hangs = fail_now("ncclKernel", &unused);
    settings_delay_nccl();
    if (hangs) {
        mark_hanging();
    }
    double_lock();
    bool took = take_device(communicator, stream);
    for (size_t i = 0; i < parts->count && !hangs; i++) {
        struct operation *operation = parts->operations[i];
        operation->abandoned |= communicator->aborted;
        if (++operation->arrived == operation->expected && !operation->abandoned) {
            execute(operation);
        }
    }
    while (!all_done(parts) && !communicator->aborted && !stream_gives_up(stream)) {
        double_wait(0);
    }
    for (size_t i = 0; i < parts->count; i++) {
        struct operation *operation = parts->operations[i];
        operation->abandoned |= !operation->done && operation->arrived < operation->expected;
    }
    if (took) {
        now_on[communicator->context->ordinal] = NULL;
        double_progress();
    }
    double_unlock();
    return CUDA_RESULT_OK;
}

/* The rank's own part of the operation. A send to itself has two. */
static void use_registrations(const struct group_work *work, const struct operation *operation, int change)
{
    for (int i = 0; i < operation->expected; i++) {
        if (operation->parts[i].communicator == work->communicator) {
            registrations_use(work->communicator, &operation->parts[i].call, change);
        }
    }
}

static void group_work_destroy(struct work *work)
{
    struct group_work *parts = (struct group_work *)work;
    parts->communicator->outstanding--;
    parts->communicator->clique->outstanding--;
    double_progress();
    for (size_t i = 0; i < parts->count; i++) {
        use_registrations(parts, parts->operations[i], -1);
        operation_unref(parts->operations[i]);
    }
    communicator_unref(parts->communicator);
    free(parts);
}

nccl_result operations_enqueue(struct operation *const *operations, size_t count,
                               struct communicator *communicator)
{
    struct stream *stream = NULL;
    const struct operation *first = operations[0];
    bool receives = first->sender >= 0 && first->receiver == communicator->rank &&
                    first->parts[1].communicator == communicator;
    const struct call *call = &first->parts[first->sender < 0 ? communicator->rank : receives].call;
    cuda_result found = stream_find_of(communicator->context, call->stream, &stream);
    struct group_work *parts =
        found == CUDA_RESULT_OK ? malloc(sizeof *parts + count * sizeof parts->operations[0]) : NULL;
    if (parts == NULL) {
        for (size_t i = 0; i < count; i++) {
            operation_unref(operations[i]);
        }
        return nccl_fail(NCCL_RESULT_UNHANDLED_CUDA_ERROR, "rank %d: its stream is gone", communicator->rank);
    }
    *parts =
        (struct group_work){.work = {.references = 1, .run = group_work_run, .destroy = group_work_destroy},
                            .communicator = communicator,
                            .count = count};
    memcpy(parts->operations, operations, count * sizeof parts->operations[0]);
    for (size_t i = 0; i < count; i++) {
        use_registrations(parts, operations[i], 1);
    }
    communicator->references++;
    communicator->outstanding++;
    communicator->clique->outstanding++;
    return stream_submit(stream, &parts->work, NULL) == CUDA_RESULT_OK ? NCCL_RESULT_OK
                                                                       : NCCL_RESULT_UNHANDLED_CUDA_ERROR;
}
