#include "tests/system/surface.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/gpu_mirror.h"

/* This rank, its buffers, and the expected contents of them. */

comm_client_t *client;
comm_t *comm;
uint32_t rank, size;
int64_t *input, *output;
int device = COMM_DEVICE_HOST;
unsigned long checked;
uint64_t turn;
static size_t poisoned; /* elements of the output that are of interest */

void expect(comm_result_t result, comm_result_t expected, const char *what)
{
    if (result != expected) {
        fprintf(stderr, "rank %u, turn %llu: %s: %s instead of %s: %s\n", rank, (unsigned long long)turn,
                what, comm_result_text(result), comm_result_text(expected), comm_last_error());
        exit(EXIT_FAILURE);
    }
}

void expect_ok(comm_result_t result, const char *what)
{
    expect(result, COMM_OK, what);
}

uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t value = (a + 1) * 0x9e3779b97f4a7c15ull ^ (b + 1) * 0xbf58476d1ce4e5b9ull ^ turn << 17;
    value ^= value >> 29;
    value *= 0x94d049bb133111ebull;
    return value ^ (value >> 32);
}

/* The value at `index` of the input of rank `of`. */
int64_t value(uint32_t of, uint64_t index)
{
    return (int64_t)(mix(of, index) % 2000001) - 1000000;
}

int64_t sum_of(uint32_t first, uint32_t end, uint64_t index)
{
    int64_t sum = 0;
    for (uint32_t r = first; r < end; r++) {
        sum += value(r, index);
    }
    return sum;
}

/* Returns the address that operations get for a host buffer: the same, or the buffer's place on the GPU. */
void *at(const int64_t *host)
{
    return gpu_mirror_at(host);
}

void fill(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        input[i] = value(rank, i);
    }
    (void)gpu_mirror_put(input, count * sizeof *input);
}

void poison(size_t count)
{
    poisoned = count + 1;
    memset(output, POISON, poisoned * sizeof *output);
    (void)gpu_mirror_put(output, poisoned * sizeof *output);
}

/* Copies the input into the output, from element `first` on. Operations in place start from this copy. */
void copy_input(size_t first, size_t count)
{
    memcpy(output + first, input, count * sizeof *output);
    (void)gpu_mirror_put(output + first, count * sizeof *output);
}

void get_output(void)
{
    gpu_mirror_get(output, poisoned * sizeof *output);
}

void check_at(const char *what, size_t i, int64_t expected)
{
    if (output[i] != expected) {
        fprintf(stderr, "rank %u, turn %llu: %s: element %zu is %lld, not %lld\n", rank,
                (unsigned long long)turn, what, i, (long long)output[i], (long long)expected);
        exit(EXIT_FAILURE);
    }
}

void check_poison(const char *what, size_t from, size_t to)
{
    int64_t expected;
    memset(&expected, POISON, sizeof expected);
    for (size_t i = from; i < to; i++) {
        check_at(what, i, expected);
    }
}

void done(void)
{
    expect_ok(comm_sync(comm, 0), "comm_sync");
    get_output();
    checked++;
}
