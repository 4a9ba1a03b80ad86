#include "tests/system/surface.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/gpu_mirror.h"

/* Every collective, in place and out of place, and with layouts. */

/* --- Vectors --- */

void vectors(size_t count)
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

void vectors_in_place(size_t count)
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

/* Mixes buffers of the host and of a GPU in one call. Without a GPU all of them are on the host. */
void places(size_t count)
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

void gathers(size_t count, bool in_place)
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

void scatters(size_t count)
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

void exchanges(size_t count, bool in_place)
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

static void layouts_gathered(size_t most)
{
    size_t counts[SIZE_MAX_RANKS], displacements[SIZE_MAX_RANKS];
    uint32_t root = (uint32_t)(turn % size);
    for (uint32_t r = 0; r < size; r++) {
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
}

static void layouts_scattered(size_t most)
{
    size_t counts[SIZE_MAX_RANKS], displacements[SIZE_MAX_RANKS];
    uint32_t root = (uint32_t)(turn % size);
    size_t own = 0;
    for (uint32_t r = 0; r < size; r++) {
        own += r < rank ? block(r, 77, most) : 0;
        counts[r] = block(r, 77, most);
    }
    (void)place(counts, displacements, 3);
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
}

static void layouts_exchanged(size_t most)
{
    size_t counts[SIZE_MAX_RANKS], displacements[SIZE_MAX_RANKS], sent[SIZE_MAX_RANKS], from[SIZE_MAX_RANKS];
    for (uint32_t r = 0; r < size; r++) {
        sent[r] = block(rank, r, most);
        counts[r] = block(r, rank, most);
    }
    (void)place(sent, from, 2);
    size_t extent = place(counts, displacements, 1);
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

void layouts(size_t most)
{
    layouts_gathered(most);
    layouts_scattered(most);
    layouts_exchanged(most);
}
