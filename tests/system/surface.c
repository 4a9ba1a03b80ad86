/*
 * One rank of a program that calls everything in the library. It runs all collectives in all their forms: in
 * registered and in ordinary memory, in place and with layouts, with handles, persistent, in groups, and on
 * communicators from comm_split. It checks every result.
 *
 *   surface NAME RANK SIZE [TURNS [DEVICE]]
 *
 * It prints the number of checked operations, or prints what is wrong and exits with 1.
 */
#include "tests/system/surface.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/gpu_mirror.h"

static int64_t *memories[4]; /* registered, registered, ordinary, ordinary */

/* --- Compressed --- */

static float small_value(uint32_t of, uint64_t index)
{
    return (float)(value(of, index) % 1000) / 8;
}

/* What compression loses is kept in the residuals: with them, the sums over all steps are exact. */
static void compressed(size_t count, enum comm_compression compression)
{
    enum { STEPS = 4, COUNT_MAX = 1500 };
    static double totals[COUNT_MAX];
    int64_t *residuals = input + BUFFER_ELEMENTS / 2;
    float *send = (float *)(void *)input, *receive = (float *)(void *)output;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.compression = compression;
    options.top_k_permille = compression == COMM_COMPRESSION_TOP_K ? 200 : 0;
    void *left = turn % 2 == 0 ? at(residuals) : residuals; /* on the GPU, or the host */
    options.residual = left;
    memset(totals, 0, sizeof totals);
    memset(residuals, 0, count * sizeof *send);
    for (size_t i = 0; i < count; i++) {
        send[i] = small_value(rank, i);
    }
    (void)gpu_mirror_put(residuals, count * sizeof *send);
    (void)gpu_mirror_put(send, count * sizeof *send);
    for (int step = 0; step <= STEPS; step++) {
        bool last = step == STEPS; /* one more step sums up the residuals */
        poison(count);
        expect_ok(comm_all_reduce(comm, last ? left : at(input), at(output), count, COMM_F32, COMM_SUM,
                                  last ? NULL : &options),
                  "comm_all_reduce, compressed");
        done();
        for (size_t i = 0; i < count; i++) {
            totals[i] += (double)receive[i];
        }
    }
    for (size_t i = 0; i < count; i++) {
        double exact = 0, magnitude = 1;
        for (uint32_t r = 0; r < size; r++) {
            exact += STEPS * (double)small_value(r, i);
            magnitude += STEPS * fabs((double)small_value(r, i));
        }
        if (!(fabs(totals[i] - exact) <= magnitude * 0x1p-18)) {
            fprintf(stderr, "rank %u: compressed %d of %zu: element %zu is %g in all, not %g\n", rank,
                    (int)compression, count, i, totals[i], exact);
            exit(EXIT_FAILURE);
        }
    }
}

/* --- Communicators from comm_split --- */

static void parts(void)
{
    comm_t *part = NULL, *none = NULL, *inner = NULL;
    int64_t expected = 0;
    uint32_t members = 0;
    expect_ok(comm_split(comm, (int32_t)(rank % 2), -(int32_t)rank, &part), "comm_split");
    expect_ok(comm_split(comm, rank == 0 ? COMM_COLOR_NONE : 3, 0, &none), "comm_split");
    for (uint32_t r = rank % 2; r < size; r += 2) {
        expected += 1 + (int64_t)r;
        members++;
    }
    expect_ok(comm_size(part) == members ? COMM_OK : COMM_INTERNAL, "comm_size of a part");
    expect_ok(comm_rank(part) == members - 1 - rank / 2 ? COMM_OK : COMM_INTERNAL, "comm_rank by key");
    expect_ok((none == NULL) == (rank == 0) ? COMM_OK : COMM_INTERNAL, "comm_split without color");
    poison(1);
    input[0] = 1 + (int64_t)rank;
    expect_ok(
        comm_all_reduce(part, gpu_mirror_put(input, sizeof *input), at(output), 1, COMM_I64, COMM_SUM, NULL),
        "comm_all_reduce of a part");
    expect_ok(comm_sync(part, 0), "comm_sync of a part");
    get_output();
    check_at("the sum of a part", 0, expected);
    check_poison("the sum of a part", 1, 2);
    expect_ok(comm_split(part, 0, 0, &inner), "comm_split of a part");
    expect_ok(comm_barrier(inner, NULL), "comm_barrier of a part of a part");
    comm_destroy(inner);
    comm_destroy(none);
    comm_destroy(part);
    checked += 4;
}

/* --- A contradiction, which the communicator survives --- */

static void contradiction(void)
{
    fill(8);
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    expect_ok(
        comm_all_reduce(comm, at(input), at(output), rank == size - 1 ? 7 : 8, COMM_I64, COMM_SUM, &options),
        "comm_all_reduce");
    expect(comm_wait(&request, NULL), size > 1 ? COMM_MISMATCH : COMM_OK, "a contradiction");
    if (size > 1 &&
        (strstr(comm_last_error(), "of 7 i64") == NULL || strstr(comm_last_error(), "of 8 i64") == NULL)) {
        fprintf(stderr, "rank %u: both calls are not in: %s\n", rank, comm_last_error());
        exit(EXIT_FAILURE);
    }
    expect_ok(comm_barrier(comm, NULL), "comm_barrier after a contradiction");
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: surface NAME RANK SIZE [TURNS [DEVICE]]\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    uint64_t turns = argc > 4 ? strtoul(argv[4], NULL, 10) : 8;
    device = argc > 5 ? atoi(argv[5]) : COMM_DEVICE_HOST;
    static const size_t counts[] = {1, 0, 7, 100, 1023, 1024, 1025, 1500};
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    options.slice_bytes = 4096;
    size_t bytes = (BUFFER_ELEMENTS + 1) * sizeof *input;
    gpu_mirror_open(device);
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    expect_ok(comm_init(client, argv[1], rank, size, device, &options, &comm), "comm_init");
    for (int i = 0; i < 4; i++) {
        memories[i] = gpu_mirror_alloc(i < 2 ? client : NULL, bytes);
    }
    for (turn = 0; turn < turns; turn++) {
        size_t count = counts[turn % 8];
        input = memories[(turn + rank) % 2 * 2];
        output = memories[(turn / 2 + rank) % 2 * 2 + 1];
        vectors(count * 7);
        vectors_in_place(count * 3);
        places(count);
        gathers(count, turn % 3 == 0);
        scatters(count);
        exchanges(count, turn % 3 == 1);
        layouts(count);
        handles(count);
        persistent(count);
        groups(count);
        chains(count);
        messages(turn % 4 == 3 ? 65000 / size / 3 : count > 1000 ? 1000 : count);
        compressed(count, (enum comm_compression)(COMM_COMPRESSION_BF16 + turn % 3));
        if (turn % 4 == 1) {
            parts();
            contradiction();
        }
    }
    expect_ok(comm_barrier(comm, NULL), "comm_barrier");
    comm_destroy(comm);
    comm_client_close(client);
    printf("%lu operations checked\n", checked);
    return 0;
}
