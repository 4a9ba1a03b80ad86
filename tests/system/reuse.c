/*
 * One rank of a program that keeps allocating and freeing GPU memory. So addresses, and the handles that
 * belong to them, are used again. If commd still maps the memory that was there before, results are wrong,
 * or memory changes that no operation uses.
 *
 *   reuse NAME RANK SIZE TURNS DEVICE
 *
 * It prints the number of operations, or prints what is wrong and exits with 1.
 */
#include <commclient.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/system/gpu_rank.h"

#define COUNT_MAX 600000u /* elements of an operation: 4.6 MiB */
#define CHUNK_BYTES ((size_t)2 << 20)
#define CHUNKS 6u
#define CANARIES 3u
#define CANARY_ELEMENTS 1000u

static comm_client_t *client;
static comm_t *comm;
static int device;
static int64_t *host;

static void wrong(const char *what, size_t at, int64_t is, int64_t expected)
{
    fprintf(stderr, "rank %u, operation %lu: %s: element %zu is %lld, not %lld\n", rank, operations, what, at,
            (long long)is, (long long)expected);
    exit(EXIT_FAILURE);
}

static void put(cuda_pointer to, size_t count)
{
    check(driver->copy_from_host(to, host, count * sizeof *host, NULL), "copy_from_host");
    check(driver->stream_synchronize(NULL), "stream_synchronize");
}

static void get(cuda_pointer from, size_t count)
{
    check(driver->copy_to_host(host, from, count * sizeof *host, NULL), "copy_to_host");
    check(driver->stream_synchronize(NULL), "stream_synchronize");
}

static int64_t value(uint32_t of, size_t index)
{
    return (int64_t)((of + 1) * (index % 1009 + operations));
}

/* Runs an all-reduce in place, and checks its result. */
static void reduce(cuda_pointer at, size_t count)
{
    operations++;
    for (size_t i = 0; i < count; i++) {
        host[i] = value(rank, i);
    }
    put(at, count);
    void *buffer = (void *)(uintptr_t)at;
    expect_ok(comm_all_reduce(comm, buffer, buffer, count, COMM_I64, COMM_SUM, NULL), "comm_all_reduce");
    expect_ok(comm_sync(comm, 0), "comm_sync");
    get(at, count);
    for (size_t i = 0; i < count; i++) {
        int64_t sum = (int64_t)size * (size + 1) / 2 * value(0, i);
        if (host[i] != sum) {
            wrong("comm_all_reduce", i, host[i], sum);
        }
    }
}

/* --- Memory that no operation is given --- */

static struct {
    cuda_pointer at;
    int64_t pattern;
} canaries[CANARIES];

static void canary_check(uint32_t which)
{
    if (canaries[which].at == 0) {
        return;
    }
    get(canaries[which].at, CANARY_ELEMENTS);
    for (size_t i = 0; i < CANARY_ELEMENTS; i++) {
        if (host[i] != canaries[which].pattern) {
            wrong("memory of no operation", i, host[i], canaries[which].pattern);
        }
    }
}

static void canary_free(uint32_t which)
{
    canary_check(which);
    if (canaries[which].at != 0) {
        check(driver->memory_free(canaries[which].at), "memory_free");
        canaries[which].at = 0;
    }
}

/* Renews it, mostly at an address where something was freed. */
static void canary_renew(uint32_t which)
{
    canary_free(which);
    canaries[which].pattern = -(int64_t)operations * 7 - which;
    check(driver->memory_alloc(&canaries[which].at, CANARY_ELEMENTS * sizeof *host), "memory_alloc");
    for (size_t i = 0; i < CANARY_ELEMENTS; i++) {
        host[i] = canaries[which].pattern;
    }
    put(canaries[which].at, CANARY_ELEMENTS);
}

/* --- Virtual memory --- */

static struct cuda_allocation_properties properties;
static struct cuda_access access;

static void map(cuda_pointer at, size_t bytes)
{
    cuda_allocation allocation;
    check(driver->allocation_create(&allocation, bytes, &properties, 0), "allocation_create");
    check(driver->address_map(at, bytes, 0, allocation, 0), "address_map");
    check(driver->address_set_access(at, bytes, &access, 1), "address_set_access");
    check(driver->allocation_release(allocation), "allocation_release");
}

/* Uses a segment that grows by a chunk at a time, in operations that span its chunks. Then replaces a chunk
 * in the middle. */
static void grow(void)
{
    cuda_pointer base;
    size_t chunk_elements = CHUNK_BYTES / sizeof *host;
    check(driver->address_reserve(&base, CHUNKS * CHUNK_BYTES, 0, 0, 0), "address_reserve");
    for (uint32_t chunks = 1; chunks <= CHUNKS; chunks++) {
        map(base + (chunks - 1) * CHUNK_BYTES, CHUNK_BYTES);
        uint32_t spans = chunks == 1 ? 1 : 2;
        reduce(base + (chunks - spans) * CHUNK_BYTES + 4096, spans * chunk_elements - 1024);
    }
    for (uint32_t again = 0; again < 3; again++) {
        cuda_pointer middle = base + (1 + again) * CHUNK_BYTES;
        check(driver->address_unmap(middle, CHUNK_BYTES), "address_unmap");
        map(middle, CHUNK_BYTES);
        reduce(middle - CHUNK_BYTES / 2, 2 * chunk_elements);
    }
    check(driver->address_unmap(base + 3 * CHUNK_BYTES, 3 * CHUNK_BYTES), "address_unmap");
    reduce(base + CHUNK_BYTES, chunk_elements);
    check(driver->address_unmap(base, 3 * CHUNK_BYTES), "address_unmap");
    check(driver->address_free(base, CHUNKS * CHUNK_BYTES), "address_free");
}

/* --- Freed and allocated again --- */

static void allocate_reduce_free(uint64_t turn)
{
    static const size_t counts[] = {500, 40000, COUNT_MAX, 3000};
    size_t count = counts[turn % 4], bytes = count * sizeof *host + 512;
    cuda_pointer at = 0;
    void *memory = NULL;
    switch ((turn / 2 + rank) % 3) {
    case 0: /* memory that the library allocates */
        expect_ok(comm_mem_alloc(client, bytes, device, &memory), "comm_mem_alloc");
        reduce((cuda_pointer)(uintptr_t)memory + turn % 2 * 512, count);
        expect_ok(comm_mem_free(client, memory), "comm_mem_free");
        return;
    case 1: /* registered first, and not deregistered before it is freed */
        check(driver->memory_alloc(&at, bytes), "memory_alloc");
        memory = (void *)(uintptr_t)at;
        expect_ok(comm_mem_register(client, memory, bytes, -1, 0), "comm_mem_register");
        break;
    default:
        check(driver->memory_alloc(&at, bytes), "memory_alloc");
        break;
    }
    reduce(at + turn % 2 * 512, count);
    check(driver->memory_free(at), "memory_free");
}

/*
 * Rank 0 frees the memory of an operation that cannot end yet, and gets the same address again. The operation
 * may then fail, but must not write there. The other ranks begin once that is done.
 */
static void free_in_flight(void)
{
    /* large enough for a block of its own: a part of a block would be the very same memory again */
    enum { COUNT = 300000 };
    int64_t go = 1;
    cuda_pointer at, again;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = COMM_STREAM_NONE;
    check(driver->memory_alloc(&at, COUNT * sizeof *host), "memory_alloc");
    for (size_t i = 0; i < COUNT; i++) {
        host[i] = value(rank, i);
    }
    put(at, COUNT);
    if (rank != 0) {
        expect_ok(comm_recv(comm, &go, 1, COMM_I64, 0, 5, NULL), "comm_recv");
        expect_ok(comm_sync(comm, 0), "comm_sync");
    }
    void *buffer = (void *)(uintptr_t)at;
    expect_ok(comm_all_reduce(comm, buffer, buffer, COUNT, COMM_I64, COMM_SUM, &options), "comm_all_reduce");
    if (rank == 0) {
        check(driver->memory_free(at), "memory_free");
        check(driver->memory_alloc(&again, COUNT * sizeof *host), "memory_alloc");
        for (size_t i = 0; i < COUNT; i++) {
            host[i] = -1;
        }
        put(again, COUNT);
        at = again;
        for (uint32_t peer = 1; peer < size; peer++) {
            comm_result_t sent = comm_send(comm, &go, 1, COMM_I64, peer, 5, &options);
            expect_ok(sent, "comm_send");
        }
    }
    comm_result_t ended = comm_sync(comm, 0);
    if (rank == 0) {
        get(at, COUNT);
        for (size_t i = 0; i < COUNT; i++) {
            if (host[i] != -1) {
                wrong("memory allocated where other was freed", i, host[i], -1);
            }
        }
    }
    if (ended != COMM_OK) {
        fprintf(stderr, "rank %u: %s\n", rank, comm_last_error());
    }
    check(driver->memory_free(at), "memory_free");
    operations++;
}

static void begin(void)
{
    cuda_device handle = open_gpu(device);
    properties = (struct cuda_allocation_properties){.type = CUDA_ALLOCATION_PINNED,
                                                     .handle_types = CUDA_HANDLE_POSIX_FD,
                                                     .location = {CUDA_LOCATION_DEVICE, handle}};
    access = (struct cuda_access){{CUDA_LOCATION_DEVICE, handle}, CUDA_ACCESS_READ_WRITE};
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: reuse NAME RANK SIZE TURNS DEVICE\n");
        return 2;
    }
    char second[160];
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    uint64_t turns = strtoul(argv[4], NULL, 10);
    device = atoi(argv[5]);
    host = malloc(COUNT_MAX * sizeof *host);
    if (host == NULL) {
        return EXIT_FAILURE;
    }
    begin();
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    expect_ok(comm_init(client, argv[1], rank, size, device, NULL, &comm), "comm_init");
    for (uint64_t turn = 0; turn < turns; turn++) {
        if (turn % 3 == 2) {
            canary_renew((uint32_t)(turn / 3 % CANARIES));
        }
        allocate_reduce_free(turn);
    }
    grow();
    free_in_flight();
    comm_destroy(comm);
    (void)snprintf(second, sizeof second, "%s-again", argv[1]);
    expect_ok(comm_init(client, second, rank, size, device, NULL, &comm), "comm_init");
    allocate_reduce_free(2);
    for (uint32_t which = 0; which < CANARIES; which++) {
        canary_free(which);
    }
    comm_destroy(comm);
    comm_client_close(client);
    free(host);
    printf("%lu operations checked\n", operations);
    return EXIT_SUCCESS;
}
