/*
 * One rank of a program with two communicators, each used in its own stream. Every second rank uses them in
 * the opposite order. This works only if streams do not hold up each other. If the two streams share a
 * connection to the GPU (CUDA_DEVICE_MAX_CONNECTIONS), each operation waits for the other, until a deadline
 * lets the streams go on.
 *
 *   two_orders NAME RANK SIZE DEVICE [TIMEOUT_MS [ROUNDS]]
 *
 * If everything is right, it exits with 0. If something is wrong, it prints that and exits with 1. If a
 * deadline has passed and the streams went on, it prints the library's error text and exits with 3.
 */
#include <commclient.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/system/gpu_rank.h"

#define COUNT 5000u
#define TIMED_OUT 3

static comm_client_t *client;

struct side {
    comm_t *comm;
    cuda_stream stream;
    cuda_pointer buffer;
    int64_t *values; /* pinned: both the input and the output */
};

static struct side make_side(const char *name, int which, int device, uint32_t timeout_ms)
{
    struct side side;
    char text[128];
    void *memory;
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    options.op_timeout_ms = timeout_ms;
    snprintf(text, sizeof text, "%s-%d", name, which);
    expect_ok(comm_init(client, text, rank, size, device, &options, &side.comm), "comm_init");
    check(driver->stream_create(&side.stream, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
    expect_ok(comm_mem_alloc(client, COUNT * sizeof(int64_t), device, &memory), "comm_mem_alloc");
    side.buffer = (cuda_pointer)(uintptr_t)memory;
    check(driver->host_alloc(&memory, COUNT * sizeof(int64_t), 0), "host_alloc");
    side.values = memory;
    return side;
}

/* Puts one round into the stream; nothing here waits. */
static void put(const struct side *side, uint32_t round)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    void *buffer = (void *)(uintptr_t)side->buffer;
    for (int64_t i = 0; i < COUNT; i++) {
        side->values[i] = (rank + 1) * (i + round);
    }
    options.stream = side->stream;
    check(driver->copy_from_host(side->buffer, side->values, COUNT * sizeof *side->values, side->stream),
          "copy");
    expect_ok(comm_all_reduce(side->comm, buffer, buffer, COUNT, COMM_I64, COMM_SUM, &options),
              "comm_all_reduce");
    check(driver->copy_to_host(side->values, side->buffer, COUNT * sizeof *side->values, side->stream),
          "copy");
}

static void check_side(const struct side *side, int which, uint32_t round)
{
    for (int64_t i = 0; i < COUNT; i++) {
        int64_t expected = (i + round) * size * (size + 1) / 2;
        if (side->values[i] != expected) {
            fprintf(stderr, "rank %u, communicator %d: value %lld is %lld, not %lld\n", rank, which,
                    (long long)i, (long long)side->values[i], (long long)expected);
            exit(EXIT_FAILURE);
        }
    }
}

static void run(const struct side *sides, uint32_t round)
{
    bool timed_out = false;
    for (uint32_t i = 0; i < 2; i++) {
        put(&sides[(i + rank) % 2], round);
    }
    for (uint32_t i = 0; i < 2; i++) {
        comm_result_t result = comm_sync(sides[i].comm, 0);
        timed_out = timed_out || result == COMM_TIMED_OUT;
        if (result == COMM_TIMED_OUT) {
            fprintf(stderr, "TIMED_OUT %s\n", comm_last_error());
        } else {
            expect_ok(result, "comm_sync");
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        check(driver->stream_synchronize(sides[i].stream), "stream_synchronize");
    }
    if (timed_out) {
        sleep(2); /* the other rank may still wait, and would lose this one */
        exit(TIMED_OUT);
    }
    for (int i = 0; i < 2; i++) {
        check_side(&sides[i], i, round);
    }
}

int main(int argc, char **argv)
{
    if (argc < 5 || argc > 7) {
        fprintf(stderr, "usage: two_orders NAME RANK SIZE DEVICE [TIMEOUT_MS [ROUNDS]]\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    int device = atoi(argv[4]);
    uint32_t timeout_ms = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0;
    uint32_t rounds = argc > 6 ? (uint32_t)strtoul(argv[6], NULL, 10) : 20;
    struct side sides[2];
    (void)open_gpu(device);
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    for (int i = 0; i < 2; i++) {
        sides[i] = make_side(argv[1], i, device, timeout_ms);
    }
    for (uint32_t round = 0; round < rounds; round++) {
        operations = 2ul * round;
        run(sides, round);
    }
    for (int i = 0; i < 2; i++) {
        expect_ok(comm_barrier(sides[i].comm, NULL), "comm_barrier");
        comm_destroy(sides[i].comm);
    }
    comm_client_close(client);
    printf("%u operations checked\n", 2 * rounds);
    return EXIT_SUCCESS;
}
