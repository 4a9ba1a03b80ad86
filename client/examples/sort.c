/*
 * Sample sort (Frazer and McKellar, 1970). Every rank sorts its numbers and gives a few samples to all ranks.
 * From the samples all ranks compute the same borders. Every number goes to the rank between whose borders it
 * lies, and is sorted there.
 *
 *   sort [--name NAME] [--rank R --size N]
 */
#include "client/examples/example.h"

enum { COUNT = 50000, SAMPLES = 32 };

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 11;
}

/* Where each rank's share of the sorted numbers ends. */
static void find_shares(const uint64_t *numbers, const uint64_t *borders, uint32_t size, size_t *counts)
{
    size_t at = 0;
    for (uint32_t peer = 0; peer < size; peer++) {
        size_t begin = at;
        while (at < COUNT && (peer + 1 == size || numbers[at] < borders[peer])) {
            at++;
        }
        counts[peer] = at - begin;
    }
}

/* Whether the numbers are sorted across all ranks, and none was lost or added. */
static int check(struct example *example, const uint64_t *sorted, size_t count, uint64_t sum)
{
    uint64_t edges[2] = {count > 0 ? sorted[0] : UINT64_MAX, count > 0 ? sorted[count - 1] : 0};
    uint64_t before = 0, totals[2] = {count, 0}, expected = sum;
    int good = 1;
    for (size_t i = 0; i < count; i++) {
        good = good && (i == 0 || sorted[i - 1] <= sorted[i]);
        totals[1] += sorted[i];
    }
    example_check(comm_exclusive_scan(example->comm, &edges[1], &before, 1, COMM_U64, COMM_MAX, NULL),
                  "scan");
    example_check(comm_all_reduce(example->comm, totals, totals, 2, COMM_U64, COMM_SUM, NULL), "all-reduce");
    example_check(comm_all_reduce(example->comm, &expected, &expected, 1, COMM_U64, COMM_SUM, NULL),
                  "all-reduce");
    example_check(comm_sync(example->comm, 0), "check");
    return good && before <= edges[0] && totals[0] == (uint64_t)COUNT * example->size &&
           totals[1] == expected;
}

int main(int argc, char **argv)
{
    struct example example = example_begin(argc, argv, "sort");
    uint32_t size = example.size;
    uint64_t *numbers = example_allocate(COUNT, sizeof *numbers);
    uint64_t *samples = example_allocate((size_t)SAMPLES * size, sizeof *samples);
    uint64_t *borders = example_allocate(size, sizeof *borders);
    size_t *send_counts = example_allocate(size, sizeof *send_counts);
    size_t *receive_counts = example_allocate(size, sizeof *receive_counts);
    uint64_t state = example.rank + 1, sum = 0;
    for (size_t i = 0; i < COUNT; i++) {
        uint64_t number = draw(&state);
        numbers[i] = i % 3 == 0 ? number >> 20 : number; /* not evenly spread */
        sum += numbers[i];
    }
    qsort(numbers, COUNT, sizeof *numbers, compare);
    uint64_t own[SAMPLES];
    for (size_t i = 0; i < SAMPLES; i++) {
        own[i] = numbers[(2 * i + 1) * COUNT / ((size_t)2 * SAMPLES)];
    }
    example_check(comm_all_gather(example.comm, own, samples, SAMPLES, COMM_U64, NULL), "all_gather");
    example_check(comm_sync(example.comm, 0), "all_gather");
    qsort(samples, (size_t)SAMPLES * size, sizeof *samples, compare);
    for (uint32_t peer = 0; peer + 1 < size; peer++) {
        borders[peer] = samples[(size_t)SAMPLES * (peer + 1)];
    }
    find_shares(numbers, borders, size, send_counts);
    example_check(comm_all_to_all(example.comm, send_counts, receive_counts, 1, COMM_U64, NULL),
                  "all_to_all");
    example_check(comm_sync(example.comm, 0), "all_to_all");
    size_t count = 0;
    for (uint32_t peer = 0; peer < size; peer++) {
        count += receive_counts[peer];
    }
    uint64_t *sorted = example_allocate(count, sizeof *sorted);
    example_check(comm_all_to_all_v(example.comm, numbers, send_counts, NULL, sorted, receive_counts, NULL,
                                    COMM_U64, NULL),
                  "all_to_all_v");
    example_check(comm_sync(example.comm, 0), "all_to_all_v");
    qsort(sorted, count, sizeof *sorted, compare);
    int good = check(&example, sorted, count, sum);
    free(numbers);
    free(samples);
    free(borders);
    free(send_counts);
    free(receive_counts);
    free(sorted);
    return example_end(&example, good, "sorted numbers");
}
