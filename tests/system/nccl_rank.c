/*
 * One process of a job that is written for NCCL. It checks every element of what it receives.
 *
 * usage: nccl_rank ID-FILE FIRST-RANK SIZE DEVICE ...    one rank for each device
 *
 * The process of rank 0 writes the id to the file; the others wait for it.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/nccl/nccl_api.h"
#include "proto/cuda_driver.h"

#define LOCAL_MAX 8
#define COUNT_MAX 5003
#define F32 7
#define TRIES 3000

struct local {
    ncclComm_t comm;
    cuda_context context;
    cuda_stream stream;
    cuda_pointer send, receive;
    int rank;
};

static const struct cuda_driver *driver;
static struct local locals[LOCAL_MAX];
static int local_count, size;
static unsigned long checked;
static float host[LOCAL_MAX * 4 * COUNT_MAX];

static void expect(ncclResult_t result, ncclResult_t wanted, const char *what)
{
    if (result != wanted) {
        fprintf(stderr, "rank %d: %s: %d in place of %d: %s\n", locals[0].rank, what, result, wanted,
                ncclGetLastError(NULL));
        exit(EXIT_FAILURE);
    }
}

static void cuda(cuda_result result, const char *what)
{
    if (result != CUDA_RESULT_OK) {
        fprintf(stderr, "rank %d: the test's own %s: %d\n", locals[0].rank, what, result);
        exit(EXIT_FAILURE);
    }
}

/* Small whole numbers, so that sums are exact. */
static float value_of(int rank, size_t index)
{
    return (float)((rank + 1) * (int)(index % 13) + rank);
}

static float sum_of(size_t index)
{
    float sum = 0;
    for (int rank = 0; rank < size; rank++) {
        sum += value_of(rank, index);
    }
    return sum;
}

static void upload(struct local *local, cuda_pointer at, size_t count)
{
    cuda(driver->copy_from_host(at, host, count * sizeof *host, local->stream), "copy_from_host");
    cuda(driver->stream_synchronize(local->stream), "stream_synchronize");
}

static void put(struct local *local, cuda_pointer at, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        host[i] = value_of(local->rank, i);
    }
    cuda(driver->context_set(local->context), "context_set");
    upload(local, at, count);
}

static void poison(struct local *local, size_t count)
{
    memset(host, 0xee, count * sizeof *host);
    cuda(driver->context_set(local->context), "context_set");
    upload(local, local->receive, count);
}

static void get(struct local *local, cuda_pointer at, size_t count)
{
    cuda(driver->context_set(local->context), "context_set");
    cuda(driver->copy_to_host(host, at, count * sizeof *host, local->stream), "copy_to_host");
    cuda(driver->stream_synchronize(local->stream), "stream_synchronize");
}

static void same(const struct local *local, const char *what, size_t index, float got, float wanted)
{
    if (!(got == wanted)) {
        fprintf(stderr, "rank %d: %s: element %zu is %g, not %g\n", local->rank, what, index, (double)got,
                (double)wanted);
        exit(EXIT_FAILURE);
    }
}

#define STREAM(local) ((cudaStream_t)(void *)(local)->stream)
#define AT(pointer) ((void *)(uintptr_t)(pointer))
#define EACH(local) for (struct local *local = locals; local < locals + local_count; local++)

static void fill(size_t send_count, size_t receive_count)
{
    EACH(local)
    {
        put(local, local->send, send_count);
        poison(local, receive_count);
    }
}

static void check_all_reduce(size_t count, bool in_place, ncclRedOp_t op, float scale)
{
    fill(count, count);
    expect(ncclGroupStart(), NCCL_SUCCESS, "ncclGroupStart");
    EACH(local)
    {
        cuda_pointer to = in_place ? local->send : local->receive;
        expect(ncclAllReduce(AT(local->send), AT(to), count, F32, op, local->comm, STREAM(local)),
               NCCL_SUCCESS, "ncclAllReduce");
    }
    expect(ncclGroupEnd(), NCCL_SUCCESS, "ncclGroupEnd");
    EACH(local)
    {
        get(local, in_place ? local->send : local->receive, count);
        for (size_t i = 0; i < count; i++) {
            same(local, "ncclAllReduce", i, host[i], sum_of(i) * scale);
        }
    }
    checked++;
}

static void check_premul(size_t count)
{
    ncclRedOp_t ops[LOCAL_MAX];
    float factor = 0.5F;
    fill(count, count);
    expect(ncclGroupStart(), NCCL_SUCCESS, "ncclGroupStart");
    EACH(local)
    {
        ncclRedOp_t *op = &ops[local - locals];
        expect(ncclRedOpCreatePreMulSum(op, &factor, F32, NCCL_SCALAR_HOST, local->comm), NCCL_SUCCESS,
               "ncclRedOpCreatePreMulSum");
        expect(
            ncclAllReduce(AT(local->send), AT(local->receive), count, F32, *op, local->comm, STREAM(local)),
            NCCL_SUCCESS, "ncclAllReduce");
        expect(ncclRedOpDestroy(*op, local->comm), NCCL_SUCCESS, "ncclRedOpDestroy");
    }
    expect(ncclGroupEnd(), NCCL_SUCCESS, "ncclGroupEnd");
    EACH(local)
    {
        get(local, local->receive, count);
        for (size_t i = 0; i < count; i++) {
            same(local, "pre-multiplied sum", i, host[i], sum_of(i) * 0.5F);
        }
    }
    checked++;
}

static void check_gather_in_place(size_t count)
{
    EACH(local)
    {
        poison(local, count * (size_t)size);
        put(local, local->receive + (cuda_pointer)((size_t)local->rank * count * sizeof(float)), count);
    }
    expect(ncclGroupStart(), NCCL_SUCCESS, "ncclGroupStart");
    EACH(local)
    {
        char *own = (char *)AT(local->receive) + (size_t)local->rank * count * sizeof(float);
        expect(ncclAllGather(own, AT(local->receive), count, F32, local->comm, STREAM(local)), NCCL_SUCCESS,
               "ncclAllGather");
    }
    expect(ncclGroupEnd(), NCCL_SUCCESS, "ncclGroupEnd");
    EACH(local)
    {
        get(local, local->receive, count * (size_t)size);
        for (size_t i = 0; i < count * (size_t)size; i++) {
            same(local, "ncclAllGather", i, host[i], value_of((int)(i / count), i % count));
        }
    }
    checked++;
}

static void check_scatter_and_broadcast(size_t count, int root)
{
    fill(count * (size_t)size, count);
    expect(ncclGroupStart(), NCCL_SUCCESS, "ncclGroupStart");
    EACH(local)
    {
        expect(ncclReduceScatter(AT(local->send), AT(local->receive), count, F32, NCCL_SUM, local->comm,
                                 STREAM(local)),
               NCCL_SUCCESS, "ncclReduceScatter");
    }
    expect(ncclGroupEnd(), NCCL_SUCCESS, "ncclGroupEnd");
    EACH(local)
    {
        get(local, local->receive, count);
        for (size_t i = 0; i < count; i++) {
            same(local, "ncclReduceScatter", i, host[i], sum_of(i + (size_t)local->rank * count));
        }
    }
    fill(count, count);
    expect(ncclGroupStart(), NCCL_SUCCESS, "ncclGroupStart");
    EACH(local)
    {
        expect(
            ncclBroadcast(AT(local->send), AT(local->receive), count, F32, root, local->comm, STREAM(local)),
            NCCL_SUCCESS, "ncclBroadcast");
    }
    expect(ncclGroupEnd(), NCCL_SUCCESS, "ncclGroupEnd");
    EACH(local)
    {
        get(local, local->receive, count);
        for (size_t i = 0; i < count; i++) {
            same(local, "ncclBroadcast", i, host[i], value_of(root, i));
        }
    }
    checked += 2;
}

static void check_ring(size_t count)
{
    fill(count, count);
    expect(ncclGroupStart(), NCCL_SUCCESS, "ncclGroupStart");
    EACH(local)
    {
        int next = (local->rank + 1) % size, previous = (local->rank + size - 1) % size;
        expect(ncclSend(AT(local->send), count, F32, next, local->comm, STREAM(local)), NCCL_SUCCESS,
               "ncclSend");
        expect(ncclRecv(AT(local->receive), count, F32, previous, local->comm, STREAM(local)), NCCL_SUCCESS,
               "ncclRecv");
    }
    expect(ncclGroupEnd(), NCCL_SUCCESS, "ncclGroupEnd");
    EACH(local)
    {
        get(local, local->receive, count);
        for (size_t i = 0; i < count; i++) {
            same(local, "ncclRecv", i, host[i], value_of((local->rank + size - 1) % size, i));
        }
    }
    checked++;
}

static void check_refusals(void)
{
    struct local *local = &locals[0];
    static float plain[4];
    expect(ncclAllReduce(plain, plain, 4, F32, NCCL_SUM, local->comm, STREAM(local)), NCCL_INVALID_ARGUMENT,
           "host memory");
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 4, 12, NCCL_SUM, local->comm, STREAM(local)),
           NCCL_INVALID_ARGUMENT, "an unknown type");
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 4, F32, 9, local->comm, STREAM(local)),
           NCCL_INVALID_ARGUMENT, "an unknown operator");
    expect(ncclBroadcast(AT(local->send), AT(local->receive), 4, F32, size, local->comm, STREAM(local)),
           NCCL_INVALID_ARGUMENT, "a root beyond the ranks");
    expect(ncclGroupEnd(), NCCL_INVALID_USAGE, "the end of no group");
    expect(ncclGroupStart(), NCCL_SUCCESS, "ncclGroupStart");
    expect(ncclSend(AT(local->send), 4, F32, -1, local->comm, STREAM(local)), NCCL_INVALID_ARGUMENT,
           "a negative rank");
    expect(ncclGroupEnd(), NCCL_INVALID_ARGUMENT, "the end of a group with an error");
    checked++;
}

/* Even and odd ranks, in reverse order. */
static void check_split(void)
{
    ncclComm_t parts[LOCAL_MAX];
    int count = 0, rank = -1;
    expect(ncclGroupStart(), NCCL_SUCCESS, "ncclGroupStart");
    EACH(local)
    {
        expect(ncclCommSplit(local->comm, local->rank % 2, -local->rank, &parts[local - locals], NULL),
               NCCL_SUCCESS, "ncclCommSplit");
    }
    expect(ncclGroupEnd(), NCCL_SUCCESS, "ncclGroupEnd");
    EACH(local)
    {
        int members = (size + 1 - local->rank % 2) / 2;
        expect(ncclCommCount(parts[local - locals], &count), NCCL_SUCCESS, "ncclCommCount");
        expect(ncclCommUserRank(parts[local - locals], &rank), NCCL_SUCCESS, "ncclCommUserRank");
        same(local, "size of a part", 0, (float)count, (float)members);
        same(local, "rank in a part", 0, (float)rank, (float)(members - 1 - local->rank / 2));
    }
    for (int i = 0; i < local_count; i++) {
        expect(ncclCommDestroy(parts[i]), NCCL_SUCCESS, "ncclCommDestroy");
    }
    checked++;
}

static void exchange_id(const char *path, int first, ncclUniqueId *id)
{
    char part[4096];
    FILE *file;
    if (first == 0) {
        expect(ncclGetUniqueId(id), NCCL_SUCCESS, "ncclGetUniqueId");
        (void)snprintf(part, sizeof part, "%s.part", path);
        file = fopen(part, "wb");
        if (file == NULL || fwrite(id, sizeof *id, 1, file) != 1 || fclose(file) != 0 ||
            rename(part, path) != 0) {
            exit(EXIT_FAILURE);
        }
        return;
    }
    for (int i = 0; (file = fopen(path, "rb")) == NULL && i < TRIES; i++) {
        (void)usleep(10000);
    }
    if (file == NULL || fread(id, sizeof *id, 1, file) != 1) {
        exit(EXIT_FAILURE);
    }
    (void)fclose(file);
}

static void open_devices(int first, char **devices)
{
    size_t bytes = sizeof host;
    char why[256];
    if (!cuda_driver_load(&driver, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        exit(EXIT_FAILURE);
    }
    EACH(local)
    {
        cuda_device device;
        local->rank = first + (int)(local - locals);
        cuda(driver->device_get(&device, atoi(devices[local - locals])), "device_get");
        cuda(driver->context_retain(&local->context, device), "context_retain");
        cuda(driver->context_set(local->context), "context_set");
        cuda(driver->stream_create(&local->stream, 1, 0), "stream_create");
        cuda(driver->memory_alloc(&local->send, bytes), "memory_alloc");
        cuda(driver->memory_alloc(&local->receive, bytes), "memory_alloc");
    }
}

int main(int count, char **arguments)
{
    static const size_t counts[] = {1, 7, 1024, COUNT_MAX};
    ncclUniqueId id;
    if (count < 5 || count - 4 > LOCAL_MAX) {
        return EXIT_FAILURE;
    }
    size = atoi(arguments[3]);
    local_count = count - 4;
    open_devices(atoi(arguments[2]), &arguments[4]);
    exchange_id(arguments[1], locals[0].rank, &id);
    expect(ncclGroupStart(), NCCL_SUCCESS, "ncclGroupStart");
    EACH(local)
    {
        cuda(driver->context_set(local->context), "context_set");
        expect(ncclCommInitRank(&local->comm, size, id, local->rank), NCCL_SUCCESS, "ncclCommInitRank");
    }
    expect(ncclGroupEnd(), NCCL_SUCCESS, "ncclGroupEnd");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_all_reduce(counts[i], false, NCCL_SUM, 1.0F);
        check_all_reduce(counts[i], true, NCCL_SUM, 1.0F);
        check_premul(counts[i]);
        check_gather_in_place(counts[i]);
        check_scatter_and_broadcast(counts[i], (int)i % size);
        check_ring(counts[i]);
    }
    check_refusals();
    check_split();
    EACH(local)
    {
        ncclResult_t error = NCCL_INTERNAL_ERROR;
        expect(ncclCommGetAsyncError(local->comm, &error), NCCL_SUCCESS, "ncclCommGetAsyncError");
        expect(error, NCCL_SUCCESS, "the asynchronous error");
    }
    EACH(local)
    {
        expect(ncclCommDestroy(local->comm), NCCL_SUCCESS, "ncclCommDestroy");
    }
    printf("%lu operations checked\n", checked);
    return EXIT_SUCCESS;
}
