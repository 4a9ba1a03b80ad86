/*
 * One rank of a program whose operations are ordered by CUDA streams alone. For each round, it submits to a
 * stream the work that makes an input, the operation, and the work that reads the output. The next round's
 * input comes in the same place. The program waits only at its end. An operation that begins too early or
 * ends too late gives wrong results.
 *
 *   stream_order NAME RANK SIZE DEVICE [ROUNDS]
 *
 * If something is wrong, it prints that and exits with 1.
 */
#include <commclient.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/system/gpu_rank.h"

#define BYTES_MAX ((1u << 20) + 5)
#define LATE_BYTES (8u << 20) /* size of a copy that comes before the input, so that the input is late */

static comm_client_t *client;
static comm_t *comm;
static cuda_pointer input, output, late[2];
static unsigned char *results;

static unsigned char pattern(uint32_t of, uint32_t round)
{
    return (unsigned char)(of * 7 + round * 13 + 1);
}

static size_t bytes_of(uint32_t round)
{
    static const size_t sizes[] = {64, BYTES_MAX, 4096, 1, 300000};
    return sizes[round % 5];
}

static void put_round(cuda_stream stream, uint32_t round)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    size_t bytes = bytes_of(round);
    operations++;
    options.stream = stream;
    if ((round + rank) % 3 == 0) {
        check(driver->copy(late[1], late[0], LATE_BYTES, stream), "copy");
    }
    check(driver->set_bytes(input, pattern(rank, round), bytes, stream), "set_bytes");
    expect_ok(comm_all_reduce(comm, (void *)(uintptr_t)input, (void *)(uintptr_t)output, bytes, COMM_U8,
                              COMM_SUM, &options),
              "comm_all_reduce");
    check(driver->copy_to_host(results + (size_t)round * BYTES_MAX, output, bytes, stream), "copy_to_host");
    check(driver->set_bytes(output, 0, bytes, stream), "set_bytes");
}

static void check_round(const char *what, uint32_t round)
{
    const unsigned char *result = results + (size_t)round * BYTES_MAX;
    unsigned char expected = 0;
    for (uint32_t r = 0; r < size; r++) {
        expected = (unsigned char)(expected + pattern(r, round));
    }
    for (size_t i = 0; i < bytes_of(round); i++) {
        if (result[i] != expected) {
            fprintf(stderr, "rank %u, %s: operation %u: byte %zu is %u, not %u\n", rank, what, round, i,
                    result[i], expected);
            exit(EXIT_FAILURE);
        }
    }
}

static void run(const char *what, cuda_stream stream, uint32_t rounds)
{
    for (uint32_t round = 0; round < rounds; round++) {
        put_round(stream, round);
    }
    check(driver->stream_synchronize(stream), "stream_synchronize");
    expect_ok(comm_sync(comm, 0), what); /* after any failure the library has let the stream go on */
    for (uint32_t round = 0; round < rounds; round++) {
        check_round(what, round);
    }
}

static void *gpu_memory(int device, size_t bytes)
{
    void *memory;
    expect_ok(comm_mem_alloc(client, bytes, device, &memory), "comm_mem_alloc");
    return memory;
}

static cuda_stream begin(int device)
{
    cuda_stream stream;
    (void)open_gpu(device);
    check(driver->stream_create(&stream, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
    for (int i = 0; i < 2; i++) {
        check(driver->memory_alloc(&late[i], LATE_BYTES), "memory_alloc");
    }
    return stream;
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: stream_order NAME RANK SIZE DEVICE [ROUNDS]\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    int device = atoi(argv[4]);
    uint32_t rounds = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 60;
    void *memory;
    cuda_stream stream = begin(device);
    check(driver->host_alloc(&memory, (size_t)rounds * BYTES_MAX, 0), "host_alloc");
    results = memory;
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    expect_ok(comm_init(client, argv[1], rank, size, device, NULL, &comm), "comm_init");
    input = (cuda_pointer)(uintptr_t)gpu_memory(device, BYTES_MAX);
    output = (cuda_pointer)(uintptr_t)gpu_memory(device, BYTES_MAX);
    run("a stream", stream, rounds);
    run("the default stream", NULL, rounds);
    run("a stream again", stream, rounds);
    expect_ok(comm_barrier(comm, NULL), "comm_barrier");
    comm_destroy(comm);
    comm_client_close(client);
    printf("%u operations checked\n", 3 * rounds);
    return EXIT_SUCCESS;
}
