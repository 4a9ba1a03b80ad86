/*
 * One rank of collectives with a count for each rank, some of which go through cells in slices
 * (proto/cells.h). The ranks have very different counts. Every element of every output is checked, and what
 * lies behind it.
 *
 *   slices_counts NAME RANK SIZE HOW
 *
 * It prints the number of checked operations, or prints what is wrong and exits with 1. HOW is one of:
 *
 *   - wait: the rank waits at once for each operation
 *   - later: three operations are started, then the rank computes, then it waits for all
 *   - in-place: one rank has its output in its input, so its operation cannot begin again
 *   - contradict: one rank expects another count than is sent; all get COMM_MISMATCH, and the next is right
 */
#include <commclient.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/system/cells_rank.h"

#define RANKS_MAX 8u
#define POISON 0xA5A5A5A5u
#define LARGE ((size_t)700000) /* elements: almost three slices */
#define STARTED 3u
#define TIMEOUT_MS 20000u

enum kind { ALL_GATHER, REDUCE_SCATTER, GATHER, SCATTER, ALL_TO_ALL, KINDS };
/* How many elements a rank sends to another one. */
enum shape {
    ONE_LARGE, /* one pair of ranks has a large block, and all other blocks are small */
    FALLING,   /* the sizes fall from large to nothing */
    BOUNDARY,  /* some blocks fit into a cell, and some just do not */
    TO_ITSELF, /* a rank has a large block for itself alone */
    EVEN,      /* the same for all */
    QUIET,     /* one rank has small blocks alone, both ways */
    SHAPES
};

static unsigned long checked;
static uint32_t quiet; /* the rank with small blocks */

static size_t elements(enum kind kind, enum shape shape, uint32_t from, uint32_t to)
{
    bool by_sender = kind == ALL_GATHER || kind == GATHER,
         by_receiver = kind == REDUCE_SCATTER || kind == SCATTER;
    uint32_t a = by_receiver ? 0 : from, b = by_sender ? 0 : to;
    switch (shape) {
    case ONE_LARGE:
        return a == 0 && (b == size - 1 || by_sender) ? LARGE : a + b;
    case FALLING:
        return LARGE / size * (size - 1 - (a + b) % size);
    case BOUNDARY:
        return 8192 / size - 8 + (a + b) % 13;
    case TO_ITSELF:
        return from == to && !by_sender && !by_receiver ? LARGE / 4 : 5;
    case QUIET:
        return a == quiet || b == quiet ? 3 : LARGE / size;
    case EVEN:
    case SHAPES:
        break;
    }
    return LARGE / size;
}

static uint32_t number_of(uint32_t from, uint32_t to, size_t index)
{
    return (uint32_t)(index * 2654435761u) ^ (from + 1) * 40503u ^ (to + 1) * 69069u;
}

struct job {
    enum kind kind;
    enum shape shape;
    uint32_t root;
    comm_request_t *request;
    uint32_t *in, *out;
    size_t in_counts[RANKS_MAX], out_counts[RANKS_MAX]; /* what it sends to each rank, and gets from each */
    size_t in_elements, out_elements;
};

static bool sends(const struct job *job)
{
    return job->kind != SCATTER || job->root == rank;
}

static bool receives(const struct job *job)
{
    return job->kind != GATHER || job->root == rank;
}

static size_t filled_blocks(const struct job *job)
{
    return job->kind == ALL_GATHER || job->kind == GATHER ? 1 : size;
}

static void fill(const struct job *job)
{
    size_t at = 0;
    for (uint32_t to = 0; to < filled_blocks(job) && sends(job); to++) {
        for (size_t i = 0; i < job->in_counts[to]; i++) {
            job->in[at++] = number_of(rank, filled_blocks(job) == 1 ? 0 : to, i);
        }
    }
}

/* in_place: the output is where the rank's own block of the input is. */
static struct job prepare(enum kind kind, enum shape shape, uint32_t root, bool in_place)
{
    struct job job = {.kind = kind, .shape = shape, .root = root};
    bool one_out = kind == REDUCE_SCATTER || kind == SCATTER;
    size_t before = 0;
    for (uint32_t other = 0; other < size; other++) {
        job.in_counts[other] = elements(kind, shape, rank, other);
        job.out_counts[other] = elements(kind, shape, other, rank);
        before += other < rank ? job.in_counts[other] : 0;
        job.in_elements += job.in_counts[other];
        job.out_elements += one_out ? 0 : job.out_counts[other];
    }
    job.out_elements = one_out ? elements(kind, shape, root, rank) : job.out_elements;
    job.in = malloc((job.in_elements + 1) * sizeof *job.in);
    job.out = in_place ? job.in + (kind == REDUCE_SCATTER ? before : 0)
                       : malloc((job.out_elements + 1) * sizeof *job.out);
    if (job.in == NULL || job.out == NULL) {
        exit(EXIT_FAILURE);
    }
    for (size_t i = 0; i <= job.out_elements && !in_place; i++) {
        job.out[i] = POISON;
    }
    fill(&job);
    return job;
}

static comm_result_t submit(struct job *job, bool handle)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = handle ? &job->request : NULL;
    switch (job->kind) {
    case ALL_GATHER:
        return comm_all_gather_v(comm, job->in, job->out, job->out_counts, NULL, COMM_U32, &options);
    case REDUCE_SCATTER:
        return comm_reduce_scatter_v(comm, job->in, job->out, job->in_counts, COMM_U32, COMM_SUM, &options);
    case GATHER:
        return comm_gather_v(comm, job->in, job->in_counts[0], job->out, job->out_counts, NULL, COMM_U32,
                             job->root, &options);
    case SCATTER:
        return comm_scatter_v(comm, job->in, job->in_counts, NULL, job->out, job->out_elements, COMM_U32,
                              job->root, &options);
    case ALL_TO_ALL:
    case KINDS:
        break;
    }
    return comm_all_to_all_v(comm, job->in, job->in_counts, NULL, job->out, job->out_counts, NULL, COMM_U32,
                             &options);
}

static uint32_t expected(const struct job *job, uint32_t from, size_t index)
{
    uint32_t sum = 0;
    if (job->kind != REDUCE_SCATTER) {
        return number_of(from, filled_blocks(job) == 1 ? 0 : rank, index);
    }
    for (uint32_t each = 0; each < size; each++) {
        sum += number_of(each, rank, index);
    }
    return sum;
}

static void check(const struct job *job, bool in_place)
{
    bool one = job->kind == REDUCE_SCATTER || job->kind == SCATTER;
    size_t at = 0;
    for (uint32_t from = 0; from < (one ? 1 : size) && receives(job); from++) {
        size_t count = one ? job->out_elements : job->out_counts[from];
        for (size_t i = 0; i < count; i++, at++) {
            uint32_t wanted = expected(job, one ? job->root : from, i);
            if (job->out[at] != wanted) {
                fprintf(stderr,
                        "rank %u, operation %lu, kind %d, shape %d: element %zu of rank %u is %u, not %u\n",
                        rank, checked, (int)job->kind, (int)job->shape, i, from, job->out[at], wanted);
                exit(EXIT_FAILURE);
            }
        }
    }
    if (!in_place && job->out[job->out_elements] != POISON) {
        fprintf(stderr, "rank %u, operation %lu: written behind the end\n", rank, checked);
        exit(EXIT_FAILURE);
    }
    checked++;
}

static void end(struct job *job, bool in_place)
{
    check(job, in_place);
    free(job->in);
    if (!in_place) {
        free(job->out);
    }
}

static void run_waiting(void)
{
    for (int i = 0; i < (int)KINDS * SHAPES * 3; i++) {
        struct job job =
            prepare((enum kind)(i % KINDS), (enum shape)(i / KINDS % SHAPES), (uint32_t)i % size, false);
        bool handle = i % 2 == 0;
        must(submit(&job, handle), "an operation");
        must(handle ? comm_wait(&job.request, NULL) : comm_sync(comm, 0), "waiting");
        end(&job, false);
    }
}

static void compute(long ns)
{
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - began.tv_sec) * 1000000000L + now.tv_nsec - began.tv_nsec < ns);
}

static void run_later(void)
{
    for (int i = 0; i < (int)KINDS * SHAPES; i++) {
        struct job jobs[STARTED];
        for (uint32_t k = 0; k < STARTED; k++) {
            jobs[k] = prepare((enum kind)((i + (int)k) % KINDS), (enum shape)(i / KINDS % SHAPES),
                              (uint32_t)i % size, false);
            must(submit(&jobs[k], true), "an operation");
        }
        compute((long)(next_random(&(uint64_t){(uint64_t)i * size + rank}) % 10) * 1000000L);
        for (uint32_t k = 0; k < STARTED; k++) {
            must(comm_wait(&jobs[k].request, NULL), "comm_wait");
            end(&jobs[k], false);
        }
    }
}

/* In place, all_to_all_v has the same counts both ways. */
static void run_in_place(void)
{
    for (int i = 0; i < 8 * SHAPES; i++) {
        enum kind kind = i % 2 == 0 ? REDUCE_SCATTER : ALL_TO_ALL;
        quiet = (uint32_t)i / 2 % size;
        bool in_place = quiet == rank;
        enum shape shape = kind == REDUCE_SCATTER ? (enum shape)(i / 2 % SHAPES) : i % 3 == 0 ? EVEN : QUIET;
        struct job job = prepare(kind, shape, 0, in_place);
        must(submit(&job, true), "an operation");
        must(comm_wait(&job.request, NULL), "comm_wait");
        end(&job, in_place);
    }
}

static void run_contradicting(void)
{
    for (int i = 0; i < 20; i++) {
        struct job job = prepare(ALL_TO_ALL, ONE_LARGE, 0, false);
        job.out_counts[0] -= rank == size - 1 ? 1 : 0;
        comm_result_t result = submit(&job, true);
        result = result == COMM_OK ? comm_wait(&job.request, NULL) : result;
        if (result != COMM_MISMATCH || strstr(comm_last_error(), "all_to_all_v") == NULL) {
            fprintf(stderr, "rank %u: %s: %s\n", rank, comm_result_text(result), comm_last_error());
            exit(EXIT_FAILURE);
        }
        free(job.in);
        free(job.out);
        job = prepare(ALL_TO_ALL, ONE_LARGE, 0, false);
        must(submit(&job, true), "an operation");
        must(comm_wait(&job.request, NULL), "comm_wait");
        end(&job, false);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: slices_counts NAME RANK SIZE HOW\n");
        return 2;
    }
    join(argv, TIMEOUT_MS);
    if (size > RANKS_MAX) {
        return 2;
    }
    if (strcmp(argv[4], "wait") == 0) {
        run_waiting();
    } else if (strcmp(argv[4], "later") == 0) {
        run_later();
    } else if (strcmp(argv[4], "in-place") == 0) {
        run_in_place();
    } else {
        run_contradicting();
    }
    leave();
    printf("%lu operations checked\n", checked);
    return 0;
}
