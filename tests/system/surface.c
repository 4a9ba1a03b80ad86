/*
 * One rank of a program that calls everything: every collective in all its forms, on registered and on
 * ordinary memory, in place and with layouts, by handles, persistent, in groups, on communicators split off;
 * each result is checked against what it must be.
 *
 *   surface NAME RANK SIZE [TURNS [DEVICE]]     prints what is wrong and exits with 1, or the number of
 * operations checked
 */
#include <commclient.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/gpu_mirror.h"

#define POISON 0xA5
#define BUFFER_ELEMENTS 65536u
#define SIZE_MAX_RANKS 32

static comm_client_t *client;
static comm_t *comm;
static uint32_t rank, size;
static int64_t *input, *output; /* of the turn: registered memory or not */
static int64_t *memories[4];    /* registered, registered, ordinary, ordinary */
static size_t poisoned;         /* elements of the output that are of interest */
static int device = COMM_DEVICE_HOST;
static unsigned long checked;
static uint64_t turn;

static void expect(comm_result_t result, comm_result_t expected, const char *what)
{
    if (result != expected) {
        fprintf(stderr, "rank %u, turn %llu: %s: %s instead of %s: %s\n", rank, (unsigned long long)turn,
                what, comm_result_text(result), comm_result_text(expected), comm_last_error());
        exit(EXIT_FAILURE);
    }
}

static void expect_ok(comm_result_t result, const char *what)
{
    expect(result, COMM_OK, what);
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t value = (a + 1) * 0x9e3779b97f4a7c15ull ^ (b + 1) * 0xbf58476d1ce4e5b9ull ^ turn << 17;
    value ^= value >> 29;
    value *= 0x94d049bb133111ebull;
    return value ^ (value >> 32);
}

/* What rank `of` has at `index` of its input. */
static int64_t value(uint32_t of, uint64_t index)
{
    return (int64_t)(mix(of, index) % 2000001) - 1000000;
}

static int64_t sum_of(uint32_t first, uint32_t end, uint64_t index)
{
    int64_t sum = 0;
    for (uint32_t r = first; r < end; r++) {
        sum += value(r, index);
    }
    return sum;
}

/* Where operations find it. */
static void *at(const int64_t *host)
{
    return gpu_mirror_at(host);
}

static void fill(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        input[i] = value(rank, i);
    }
    (void)gpu_mirror_put(input, count * sizeof *input);
}

static void poison(size_t count)
{
    poisoned = count + 1;
    memset(output, POISON, poisoned * sizeof *output);
    (void)gpu_mirror_put(output, poisoned * sizeof *output);
}

/* Into the output, from the element on: what an operation in place begins with. */
static void copy_input(size_t first, size_t count)
{
    memcpy(output + first, input, count * sizeof *output);
    (void)gpu_mirror_put(output + first, count * sizeof *output);
}

static void get_output(void)
{
    gpu_mirror_get(output, poisoned * sizeof *output);
}

static void check_at(const char *what, size_t i, int64_t expected)
{
    if (output[i] != expected) {
        fprintf(stderr, "rank %u, turn %llu: %s: element %zu is %lld, not %lld\n", rank,
                (unsigned long long)turn, what, i, (long long)output[i], (long long)expected);
        exit(EXIT_FAILURE);
    }
}

static void check_poison(const char *what, size_t from, size_t to)
{
    int64_t expected;
    memset(&expected, POISON, sizeof expected);
    for (size_t i = from; i < to; i++) {
        check_at(what, i, expected);
    }
}

static void done(void)
{
    expect_ok(comm_sync(comm, 0), "comm_sync");
    get_output();
    checked++;
}

/* --- Vectors --- */

static void vectors(size_t count)
{
    uint32_t root = (uint32_t)(turn % size);
    fill(count);
    poison(count);
    expect_ok(comm_all_reduce(comm, at(input), at(output), count, COMM_I64, COMM_SUM, NULL),
              "comm_all_reduce");
    done();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_all_reduce", i, sum_of(0, size, i));
    }
    check_poison("comm_all_reduce", count, count + 1);
    poison(count);
    expect_ok(
        comm_reduce(comm, at(input), rank == root ? at(output) : NULL, count, COMM_I64, COMM_SUM, root, NULL),
        "comm_reduce");
    done();
    for (size_t i = 0; i < count && rank == root; i++) {
        check_at("comm_reduce", i, sum_of(0, size, i));
    }
    poison(count);
    expect_ok(comm_scan(comm, at(input), at(output), count, COMM_I64, COMM_SUM, NULL), "comm_scan");
    done();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_scan", i, sum_of(0, rank + 1, i));
    }
    poison(count);
    expect_ok(comm_exclusive_scan(comm, at(input), at(output), count, COMM_I64, COMM_SUM, NULL),
              "comm_exclusive_scan");
    done();
    for (size_t i = 0; i < count && rank > 0; i++) {
        check_at("comm_exclusive_scan", i, sum_of(0, rank, i));
    }
    if (rank == 0) {
        check_poison("comm_exclusive_scan", 0, count + 1);
    }
    poison(count);
    if (rank == root) {
        copy_input(0, count);
    }
    expect_ok(comm_broadcast(comm, at(output), count, COMM_I64, root, NULL), "comm_broadcast");
    done();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_broadcast", i, value(root, i));
    }
}

static void vectors_in_place(size_t count)
{
    uint32_t root = (uint32_t)(turn % size);
    fill(count);
    poison(count);
    copy_input(0, count);
    expect_ok(comm_reduce(comm, at(rank == root ? output : input), rank == root ? at(output) : NULL, count,
                          COMM_I64, COMM_SUM, root, NULL),
              "comm_reduce");
    done();
    for (size_t i = 0; i < count && rank == root; i++) {
        check_at("comm_reduce in place", i, sum_of(0, size, i));
    }
    copy_input(0, count);
    expect_ok(comm_scan(comm, at(output), at(output), count, COMM_I64, COMM_SUM, NULL), "comm_scan");
    done();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_scan in place", i, sum_of(0, rank + 1, i));
    }
    copy_input(0, count);
    expect_ok(comm_exclusive_scan(comm, at(output), at(output), count, COMM_I64, COMM_SUM, NULL),
              "comm_exclusive_scan");
    done();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_exclusive_scan in place", i, rank == 0 ? input[i] : sum_of(0, rank, i));
    }
    check_poison("vectors in place", count, count + 1);
}

/* What the host has and what a GPU has, in one call; on the host it is all the same. */
static void places(size_t count)
{
    fill(count);
    poison(count);
    expect_ok(comm_all_reduce(comm, at(input), output, count, COMM_I64, COMM_SUM, NULL), "comm_all_reduce");
    expect_ok(comm_sync(comm, 0), "comm_sync"); /* and nothing is copied from the GPU */
    for (size_t i = 0; i < count; i++) {
        check_at("comm_all_reduce to the host", i, sum_of(0, size, i));
    }
    check_poison("comm_all_reduce to the host", count, count + 1);
    poison(count * size);
    expect_ok(comm_all_gather(comm, input, at(output), count, COMM_I64, NULL), "comm_all_gather");
    done();
    for (size_t i = 0; i < count * size; i++) {
        check_at("comm_all_gather from the host", i, value((uint32_t)(i / count), i % count));
    }
    poison(count * size);
    fill(count * size);
    expect_ok(comm_all_to_all(comm, at(input), rank % 2 == 0 ? output : at(output), count, COMM_I64, NULL),
              "comm_all_to_all");
    expect_ok(comm_sync(comm, 0), "comm_sync");
    if (rank % 2 == 1) {
        get_output();
    }
    for (size_t i = 0; i < count * size; i++) {
        check_at("comm_all_to_all to host and GPU", i,
                 value((uint32_t)(i / count), rank * count + i % count));
    }
    checked += 2;
}

/* --- Equal blocks --- */

static void gathers(size_t count, bool in_place)
{
    uint32_t root = (uint32_t)(turn % size);
    fill(count);
    poison(count * size);
    copy_input(rank * count, in_place ? count : 0);
    expect_ok(comm_all_gather(comm, at(in_place ? output + rank * count : input), at(output), count, COMM_I64,
                              NULL),
              "comm_all_gather");
    done();
    for (size_t i = 0; i < count * size; i++) {
        check_at("comm_all_gather", i, value((uint32_t)(i / count), i % count));
    }
    poison(count * size);
    in_place = in_place && rank == root;
    copy_input(rank * count, in_place ? count : 0);
    expect_ok(comm_gather(comm, at(in_place ? output + rank * count : input),
                          rank == root ? at(output) : NULL, count, COMM_I64, root, NULL),
              "comm_gather");
    done();
    for (size_t i = 0; i < count * size && rank == root; i++) {
        check_at("comm_gather", i, value((uint32_t)(i / count), i % count));
    }
    check_poison("comm_gather", count * size, count * size + 1);
}

static void scatters(size_t count)
{
    uint32_t root = (uint32_t)(turn % size);
    fill(count * size);
    poison(count);
    expect_ok(comm_scatter(comm, rank == root ? at(input) : NULL, at(output), count, COMM_I64, root, NULL),
              "comm_scatter");
    done();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_scatter", i, value(root, rank * count + i));
    }
    check_poison("comm_scatter", count, count + 1);
    poison(count);
    expect_ok(comm_reduce_scatter(comm, at(input), at(output), count, COMM_I64, COMM_SUM, NULL),
              "comm_reduce_scatter");
    done();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_reduce_scatter", i, sum_of(0, size, rank * count + i));
    }
    gpu_mirror_get(input, count * size * sizeof *input);
    for (size_t i = 0; i < count * size; i++) { /* the input is left as it was */
        int64_t was = input[i];
        if (was != value(rank, i)) {
            fprintf(stderr, "rank %u: comm_reduce_scatter wrote to its input\n", rank);
            exit(EXIT_FAILURE);
        }
    }
    size_t own = rank * count;
    poison(count * size);
    copy_input(0, count * size);
    expect_ok(comm_reduce_scatter(comm, at(output), at(output + own), count, COMM_I64, COMM_SUM, NULL),
              "comm_reduce_scatter in place");
    done();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_reduce_scatter in place", own + i, sum_of(0, size, own + i));
    }
    check_poison("comm_reduce_scatter in place", count * size, count * size + 1);
    copy_input(0, count * size);
    expect_ok(
        comm_scatter(comm, rank == root ? at(output) : NULL, at(output + own), count, COMM_I64, root, NULL),
        "comm_scatter in place");
    done();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_scatter in place", own + i, value(root, own + i));
    }
}

static void exchanges(size_t count, bool in_place)
{
    fill(count * size);
    poison(count * size);
    copy_input(0, in_place ? count * size : 0);
    expect_ok(comm_all_to_all(comm, at(in_place ? output : input), at(output), count, COMM_I64, NULL),
              "comm_all_to_all");
    done();
    for (size_t i = 0; i < count * size; i++) {
        check_at("comm_all_to_all", i, value((uint32_t)(i / count), rank * count + i % count));
    }
    check_poison("comm_all_to_all", count * size, count * size + 1);
}

/* --- Blocks of any size, with gaps --- */

static size_t block(uint32_t from, uint32_t to, size_t most)
{
    uint64_t number = mix(1000 + from, 2000 + to);
    return number % 4 == 0 ? 0 : number % (most + 1);
}

static size_t place(const size_t *counts, size_t *displacements, size_t gap)
{
    size_t at = 0;
    for (uint32_t r = 0; r < size; r++) {
        displacements[r] = at;
        at += counts[r] + gap;
    }
    return at;
}

static void layouts(size_t most)
{
    size_t counts[SIZE_MAX_RANKS], displacements[SIZE_MAX_RANKS], sent[SIZE_MAX_RANKS], from[SIZE_MAX_RANKS];
    uint32_t root = (uint32_t)(turn % size);
    size_t own = 0;
    for (uint32_t r = 0; r < size; r++) {
        own += r < rank ? block(r, 77, most) : 0;
        counts[r] = block(r, 77, most);
    }
    size_t extent = place(counts, displacements, 3);
    fill(BUFFER_ELEMENTS / 2);
    poison(extent);
    expect_ok(comm_all_gather_v(comm, at(input), at(output), counts, displacements, COMM_I64, NULL),
              "comm_all_gather_v");
    done();
    for (uint32_t r = 0; r < size; r++) {
        for (size_t i = 0; i < counts[r]; i++) {
            check_at("comm_all_gather_v", displacements[r] + i, value(r, i));
        }
        check_poison("comm_all_gather_v", displacements[r] + counts[r], displacements[r] + counts[r] + 3);
    }
    poison(extent);
    expect_ok(
        comm_gather_v(comm, at(input), counts[rank], at(output), counts, displacements, COMM_I64, root, NULL),
        "comm_gather_v");
    done();
    for (uint32_t r = 0; r < size && rank == root; r++) {
        for (size_t i = 0; i < counts[r]; i++) {
            check_at("comm_gather_v", displacements[r] + i, value(r, i));
        }
    }
    poison(most);
    expect_ok(comm_scatter_v(comm, at(input), counts, displacements, at(output), counts[rank], COMM_I64, root,
                             NULL),
              "comm_scatter_v");
    done();
    for (size_t i = 0; i < counts[rank]; i++) {
        check_at("comm_scatter_v", i, value(root, displacements[rank] + i));
    }
    check_poison("comm_scatter_v", counts[rank], most + 1);
    poison(most);
    expect_ok(comm_reduce_scatter_v(comm, at(input), at(output), counts, COMM_I64, COMM_SUM, NULL),
              "comm_reduce_scatter_v");
    done();
    for (size_t i = 0; i < counts[rank]; i++) {
        check_at("comm_reduce_scatter_v", i, sum_of(0, size, own + i));
    }
    for (uint32_t r = 0; r < size; r++) {
        sent[r] = block(rank, r, most);
        counts[r] = block(r, rank, most);
    }
    (void)place(sent, from, 2);
    extent = place(counts, displacements, 1);
    poison(extent);
    expect_ok(
        comm_all_to_all_v(comm, at(input), sent, from, at(output), counts, displacements, COMM_I64, NULL),
        "comm_all_to_all_v");
    done();
    for (uint32_t r = 0; r < size; r++) {
        size_t theirs = 0;
        for (uint32_t to = 0; to < rank; to++) {
            theirs += block(r, to, most) + 2;
        }
        for (size_t i = 0; i < counts[r]; i++) {
            check_at("comm_all_to_all_v", displacements[r] + i, value(r, theirs + i));
        }
        check_poison("comm_all_to_all_v", displacements[r] + counts[r], displacements[r] + counts[r] + 1);
    }
}

/* --- Handles, persistent operations, groups --- */

static void handles(size_t count)
{
    enum { FLIGHT = 12 };
    comm_request_t *requests[FLIGHT] = {NULL};
    fill(count * FLIGHT);
    poison(count * FLIGHT);
    for (size_t i = 0; i < FLIGHT; i++) {
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.request = &requests[i];
        options.stream = device != COMM_DEVICE_HOST && i % 3 == 0 ? COMM_STREAM_NONE : NULL;
        expect_ok(comm_all_reduce(comm, at(input + i * count), at(output + i * count), count, COMM_I64,
                                  i % 2 == 0 ? COMM_SUM : COMM_MAX, &options),
                  "comm_all_reduce");
    }
    size_t index;
    expect_ok(comm_wait_any(requests, FLIGHT, &index, NULL), "comm_wait_any");
    expect_ok(index < FLIGHT && requests[index] == NULL ? COMM_OK : COMM_INTERNAL, "comm_wait_any's index");
    for (int ended = 0; ended == 0;) {
        expect_ok(comm_test(&requests[FLIGHT - 1], &ended, NULL), "comm_test");
    }
    expect_ok(comm_wait_all(requests, FLIGHT, NULL), "comm_wait_all");
    get_output();
    checked += FLIGHT;
    for (size_t i = 0; i < count * FLIGHT; i++) {
        int64_t expected = sum_of(0, size, i);
        for (uint32_t r = 0; r < size && i / count % 2 == 1; r++) {
            expected = r == 0 || value(r, i) > expected ? value(r, i) : expected;
        }
        check_at("all_reduce by handle", i, expected);
    }
    check_poison("all_reduce by handle", count * FLIGHT, count * FLIGHT + 1);
}

static void persistent(size_t count)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    options.persistent = 1;
    expect_ok(comm_all_reduce(comm, at(input), at(output), count, COMM_I64, COMM_SUM, &options),
              "persistent");
    for (uint64_t again = 0; again < 5; again++) {
        turn += again << 32;
        fill(count);
        poison(count);
        expect_ok(comm_start(request), "comm_start");
        expect(comm_start(request), COMM_IN_PROGRESS, "comm_start twice");
        expect_ok(comm_wait(&request, NULL), "comm_wait");
        get_output();
        checked++;
        for (size_t i = 0; i < count; i++) {
            check_at("persistent all_reduce", i, sum_of(0, size, i));
        }
        turn -= again << 32;
    }
    comm_request_free(request);
}

static void groups(size_t count)
{
    enum { MEMBERS = 40 };
    fill(count * MEMBERS);
    poison(count * MEMBERS + 8);
    expect_ok(comm_group_begin(), "comm_group_begin");
    for (size_t i = 0; i < MEMBERS; i++) {
        expect_ok(comm_all_reduce(comm, at(input + i * count), at(output + i * count), count, COMM_I64,
                                  COMM_SUM, NULL),
                  "comm_all_reduce in a group");
    }
    expect(comm_sync(comm, 0), COMM_INVALID_ARGUMENT, "comm_sync in a group");
    expect_ok(comm_group_end(), "comm_group_end");
    done();
    for (size_t i = 0; i < count * MEMBERS; i++) {
        check_at("all_reduces of a group", i, sum_of(0, size, i));
    }
}

/* --- Messages --- */

static comm_request_t *post(bool sends, int64_t *buffer, size_t count, uint32_t peer, uint32_t tag)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    options.stream = device != COMM_DEVICE_HOST && turn % 2 == 0 ? COMM_STREAM_NONE : NULL;
    expect_ok(sends ? comm_send(comm, at(buffer), count, COMM_I64, peer, tag, &options)
                    : comm_recv(comm, at(buffer), count, COMM_I64, peer, tag, &options),
              sends ? "comm_send" : "comm_recv");
    return request;
}

/* Everybody to everybody, oneself included: two of each tag in order, the second tag taken first; then any
 * source. In a group every other time: then a stream does not come between them. */
static void messages(size_t count)
{
    comm_request_t *requests[SIZE_MAX_RANKS * 6];
    comm_received_t received;
    size_t posted = 0;
    fill(count * 3);
    poison(count * size * 3);
    if (turn % 2 == 1) {
        expect_ok(comm_group_begin(), "comm_group_begin");
    }
    for (uint32_t peer = 0; peer < size; peer++) {
        requests[posted++] = post(true, input, count, peer, 1);
        requests[posted++] = post(true, input + count, count, peer, 1);
        requests[posted++] = post(true, input + 2 * count, count, peer, 2);
    }
    for (uint32_t peer = 0; peer < size; peer++) {
        requests[posted++] = post(false, output + (peer * 3 + 2) * count, count, peer, 2);
        requests[posted++] = post(false, output + peer * 3 * count, count, peer, 1);
        requests[posted++] = post(false, output + (peer * 3 + 1) * count, count, peer, 1);
    }
    if (turn % 2 == 1) {
        expect_ok(comm_group_end(), "comm_group_end of messages");
    }
    expect_ok(comm_wait_all(requests, posted, NULL), "comm_wait_all of messages");
    get_output();
    checked += posted;
    for (size_t i = 0; i < count * size * 3; i++) {
        check_at("messages", i, value((uint32_t)(i / count / 3), i % (3 * count)));
    }
    check_poison("messages", count * size * 3, count * size * 3 + 1);
    uint32_t right = (rank + 1) % size, left = (rank + size - 1) % size;
    poison(count);
    expect_ok(comm_group_begin(), "comm_group_begin");
    requests[0] = post(false, output, count + 5, COMM_ANY_SOURCE, 9);
    expect_ok(comm_send(comm, at(input), count, COMM_I64, right, 9, NULL), "comm_send");
    expect_ok(comm_group_end(), "comm_group_end of a message");
    expect_ok(comm_wait(&requests[0], &received), "comm_wait of any source");
    expect_ok(received.source == left && received.count == count ? COMM_OK : COMM_INTERNAL, "comm_received");
    get_output();
    for (size_t i = 0; i < count; i++) {
        check_at("a shorter message", i, value(left, i));
    }
    check_poison("a shorter message", count, count + 1);
    expect_ok(comm_sync(comm, 0), "comm_sync");
    poison(count);
    expect_ok(comm_send_recv(comm, at(input), count, right, at(output), count, left, COMM_I64, 3, NULL),
              "comm_send_recv");
    get_output();
    for (size_t i = 0; i < count; i++) {
        check_at("comm_send_recv", i, value(left, i));
    }
    checked += 2;
}

/* --- Compressed --- */

static float small_value(uint32_t of, uint64_t index)
{
    return (float)(value(of, index) % 1000) / 8;
}

/* What is lost on the way is in the residuals: with them, the sums over all steps are whole. */
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
        bool last = step == STEPS; /* the sum of what is left */
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

/* --- Parts --- */

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
