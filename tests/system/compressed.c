/*
 * One rank of a program of compressed all-reduces in all formats, with and without residuals, of sums and
 * averages. Each is called twice, so that the second call adds what the first one lost. It prints a hash of
 * the result and one of the residual for each, so that a test can compare ranks, and GPUs with the host.
 *
 *   compressed NAME RANK SIZE COUNT [DEVICE [FORMAT]]
 *
 * FORMAT: only that one (a number of enum comm_compression), once, without a residual. If a result is further
 * from the exact one than the format allows, it prints that and exits with 1.
 */
#include <commclient.h>

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/gpu_mirror.h"

#define POISON 0xa5

static comm_client_t *client;
static comm_t *comm;
static uint32_t rank, size;
static size_t count;
static float *input, *output, *residual;

static void expect_ok(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "rank %u: %s: %s\n", rank, what, comm_last_error());
        exit(EXIT_FAILURE);
    }
}

/* Differs for each rank and element, over 12 binades. */
static float value_of(uint32_t of, size_t i)
{
    uint64_t hash = (of * UINT64_C(1000003) + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    float unit = (float)(int32_t)(hash >> 32) * 0x1p-31f;
    return ldexpf(unit, (int)(hash % 12) - 6);
}

static uint64_t hash_of(const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* bf16 rounds each contribution by 2^-8 of it, and the sum again. f8: 2^-4 of the largest value near it. */
static void check_near(enum comm_compression compression, bool average)
{
    double bound = compression == COMM_COMPRESSION_BF16 ? 0x1p-7 : 0x1p-3;
    for (size_t i = 0; i < count && compression != COMM_COMPRESSION_TOP_K; i++) {
        double exact = 0, magnitude = 0;
        for (uint32_t r = 0; r < size; r++) {
            exact += (double)value_of(r, i);
            magnitude += 32; /* the largest value of all */
        }
        double got = (double)output[i] * (average ? size : 1);
        if (!(fabs(got - exact) <= bound * magnitude)) {
            fprintf(stderr, "rank %u, format %d: element %zu is %g, exact %g\n", rank, (int)compression, i,
                    got, exact);
            exit(EXIT_FAILURE);
        }
    }
}

static void run(enum comm_compression compression, bool average, bool feeds_back, int calls)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    size_t bytes = count * sizeof *input;
    options.compression = compression;
    options.top_k_permille = compression == COMM_COMPRESSION_TOP_K ? 50 : 0;
    memset(residual, 0, bytes);
    for (size_t i = 0; i < count; i++) {
        input[i] = value_of(rank, i);
    }
    void *source = gpu_mirror_put(input, bytes), *left = gpu_mirror_put(residual, bytes);
    options.residual = feeds_back ? left : NULL;
    for (int call = 0; call < calls; call++) {
        memset(output, POISON, bytes);
        expect_ok(comm_all_reduce(comm, source, gpu_mirror_put(output, bytes), count, COMM_F32,
                                  average ? COMM_AVG : COMM_SUM, &options),
                  "comm_all_reduce");
        expect_ok(comm_sync(comm, 0), "comm_sync");
        gpu_mirror_get(output, bytes);
        if (call == 0) {
            check_near(compression, average);
        }
    }
    gpu_mirror_get(residual, bytes);
    printf("%d %d %d %016" PRIx64 " %016" PRIx64 "\n", (int)compression, average, feeds_back,
           hash_of(output, bytes), hash_of(residual, bytes));
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: compressed NAME RANK SIZE COUNT [DEVICE [FORMAT]]\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    count = strtoul(argv[4], NULL, 10);
    int device = argc > 5 ? atoi(argv[5]) : COMM_DEVICE_HOST;
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    options.op_timeout_ms = 20000;
    gpu_mirror_open(device);
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    expect_ok(comm_init(client, argv[1], rank, size, device, &options, &comm), "comm_init");
    input = gpu_mirror_alloc(client, count * sizeof *input);
    output = gpu_mirror_alloc(client, count * sizeof *output);
    residual = gpu_mirror_alloc(client, count * sizeof *residual);
    if (argc > 6) {
        run((enum comm_compression)atoi(argv[6]), false, false, 1);
    } else {
        for (int way = 0; way < 12; way++) {
            run((enum comm_compression)(COMM_COMPRESSION_BF16 + way / 4), way % 2 != 0, way / 2 % 2 != 0, 2);
        }
    }
    expect_ok(comm_barrier(comm, NULL), "comm_barrier");
    comm_destroy(comm);
    comm_client_close(client);
    return 0;
}
