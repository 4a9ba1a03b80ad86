/*
 * One rank of a program whose stream does not come to its second operation: it waits for a word that the
 * program writes only after that operation has failed. The third operation is right.
 *
 *   stream_stuck NAME RANK SIZE DEVICE TIMEOUT_MS
 *
 * It prints the second operation's result and text after "SECOND", and goes on.
 */
#include <commclient.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/gpu_rank.h"

#define BYTES (1u << 20)

static comm_client_t *client;
static comm_t *comm;
static unsigned char *input, *output;
static _Atomic uint64_t *words; /* for the stream: before the first operation, and before the second */
static cuda_pointer words_at;

static void put(cuda_stream stream, unsigned char value)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = stream;
    operations++;
    check(driver->set_bytes((cuda_pointer)(uintptr_t)input, value, BYTES, stream), "set_bytes");
    expect_ok(comm_all_reduce(comm, input, output, BYTES, COMM_U8, COMM_SUM, &options), "comm_all_reduce");
}

static void expect_sum(cuda_stream stream, unsigned char expected)
{
    static unsigned char result[BYTES];
    check(driver->copy_to_host(result, (cuda_pointer)(uintptr_t)output, BYTES, stream), "copy_to_host");
    check(driver->stream_synchronize(stream), "stream_synchronize");
    for (size_t i = 0; i < BYTES; i++) {
        if (result[i] != expected) {
            fprintf(stderr, "rank %u: byte %zu is %u, not %u\n", rank, i, result[i], expected);
            exit(EXIT_FAILURE);
        }
    }
}

static cuda_stream begin(char **argv)
{
    cuda_stream stream;
    void *memory;
    int device = atoi(argv[4]);
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    options.op_timeout_ms = (uint32_t)strtoul(argv[5], NULL, 10);
    (void)open_gpu(device);
    check(driver->stream_create(&stream, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
    check(driver->host_alloc(&memory, 4096, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP), "host_alloc");
    memset(memory, 0, 4096);
    words = memory;
    check(driver->host_device_pointer(&words_at, memory, 0), "host_device_pointer");
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    expect_ok(comm_init(client, argv[1], rank, size, device, &options, &comm), "comm_init");
    expect_ok(comm_mem_alloc(client, BYTES, device, &memory), "comm_mem_alloc");
    input = memory;
    expect_ok(comm_mem_alloc(client, BYTES, device, &memory), "comm_mem_alloc");
    output = memory;
    return stream;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: stream_stuck NAME RANK SIZE DEVICE TIMEOUT_MS\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    cuda_stream stream = begin(argv);
    check(driver->stream_wait_value(stream, words_at, 1, CUDA_WAIT_VALUE_GEQ), "stream_wait_value");
    put(stream, 1);
    if (rank == 0) {
        check(driver->stream_wait_value(stream, words_at + 8, 1, CUDA_WAIT_VALUE_GEQ), "stream_wait_value");
    }
    put(stream, 2);
    words[0] = 1;
    comm_result_t result = comm_sync(comm, 0);
    printf("SECOND %s %s\n", comm_result_text(result), result == COMM_OK ? "" : comm_last_error());
    (void)fflush(stdout);
    words[1] = 1;
    put(stream, 3);
    expect_ok(comm_sync(comm, 0), "comm_sync");
    expect_sum(stream, (unsigned char)(3 * size));
    printf("OK\n");
    comm_destroy(comm);
    comm_client_close(client);
    return EXIT_SUCCESS;
}
