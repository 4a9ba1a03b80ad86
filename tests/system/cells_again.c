/*
 * One rank: small operations that repeat the terms of the one before. The library checks less then. So this
 * asks whether it still does what it must: with other buffers, wrong arguments, other terms on one rank,
 * options, groups, another communicator, and a child of fork.
 */

#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/cells_rank.h"

#define TIMEOUT_MS 20000u
#define RANKS_MAX 8u
#define COUNT_MAX 64u
#define BLOCK_ELEMENTS (COUNT_MAX * RANKS_MAX)
#define SPARE 4u /* elements behind a buffer, which nobody may touch */
#define REPEATS 120u
#define THREAD_CALLS 20000u
#define POISON 0xdeadbeefu

enum kind { BROADCAST, SCATTER, REDUCE, GATHER, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, KINDS };

static const size_t counts[] = {1, 3, 20, COUNT_MAX};
static uint32_t input[BLOCK_ELEMENTS + SPARE], output[BLOCK_ELEMENTS + SPARE];

/* Any value: other ones for each rank, element and call. */
static uint32_t value(uint32_t of, size_t element, uint32_t call)
{
    return (of + 1) * 2654435761u + (uint32_t)element * 40503u + call * 97u;
}

static comm_result_t post(enum kind kind, const void *in, void *out, size_t count, uint32_t root,
                          const comm_call_options_t *options)
{
    switch (kind) {
    case BROADCAST:
        return comm_broadcast(comm, out, count, COMM_U32, root, options);
    case SCATTER:
        return comm_scatter(comm, in, out, count, COMM_U32, root, options);
    case REDUCE:
        return comm_reduce(comm, in, out, count, COMM_U32, COMM_SUM, root, options);
    case GATHER:
        return comm_gather(comm, in, out, count, COMM_U32, root, options);
    case ALL_REDUCE:
        return comm_all_reduce(comm, in, out, count, COMM_U32, COMM_SUM, options);
    case REDUCE_SCATTER:
        return comm_reduce_scatter(comm, in, out, count, COMM_U32, COMM_SUM, options);
    case ALL_GATHER:
        return comm_all_gather(comm, in, out, count, COMM_U32, options);
    case ALL_TO_ALL:
        return comm_all_to_all(comm, in, out, count, COMM_U32, options);
    case KINDS:
        break;
    }
    return COMM_INVALID_ARGUMENT;
}

static bool has_blocks_in(enum kind kind)
{
    return kind == SCATTER || kind == REDUCE_SCATTER || kind == ALL_TO_ALL;
}

static bool has_blocks_out(enum kind kind)
{
    return kind == GATHER || kind == ALL_GATHER || kind == ALL_TO_ALL;
}

static bool has_result(enum kind kind, uint32_t root)
{
    return (kind != REDUCE && kind != GATHER) || rank == root;
}

/* What element i of this rank's result must be, of operation `call`. */
static uint32_t expected(enum kind kind, size_t i, size_t count, uint32_t root, uint32_t call)
{
    uint32_t sum = 0;
    size_t block = i / count, at = i % count;
    switch (kind) {
    case BROADCAST:
        return value(root, i, call);
    case SCATTER:
        return value(root, rank * count + i, call);
    case GATHER:
    case ALL_GATHER:
        return value((uint32_t)block, at, call);
    case ALL_TO_ALL:
        return value((uint32_t)block, rank * count + at, call);
    case REDUCE:
    case ALL_REDUCE:
    case REDUCE_SCATTER:
        for (uint32_t each = 0; each < size; each++) {
            sum += value(each, kind == REDUCE_SCATTER ? rank * count + i : i, call);
        }
        return sum;
    case KINDS:
        break;
    }
    return 0;
}

static void check(enum kind kind, const uint32_t *result, size_t count, uint32_t root, uint32_t call)
{
    size_t elements = has_blocks_out(kind) ? size * count : count;
    for (size_t i = 0; i < elements && has_result(kind, root); i++) {
        uint32_t wanted = expected(kind, i, count, root, call);
        if (result[i] != wanted) {
            fprintf(stderr, "rank %u: kind %u, count %zu, root %u, call %u: element %zu is %u, not %u\n",
                    rank, kind, count, root, call, i, result[i], wanted);
            exit(EXIT_FAILURE);
        }
    }
}

static void check_spare(const uint32_t *buffer, size_t elements)
{
    for (size_t i = 0; i < SPARE; i++) {
        if (buffer[elements + i] != POISON) {
            fprintf(stderr, "rank %u: element %zu behind the buffer was written\n", rank, i);
            exit(EXIT_FAILURE);
        }
    }
}

static void fail_if(bool wrong, const char *what)
{
    if (wrong) {
        fprintf(stderr, "rank %u: %s: %s\n", rank, what, comm_last_error());
        exit(EXIT_FAILURE);
    }
}

/* One operation, with a handle or without, in place or not. */
static void run(enum kind kind, size_t count, uint32_t root, uint32_t call)
{
    bool in_place = call % 3 == 1 || kind == BROADCAST, has_handle = call % 2 == 0;
    size_t in_elements = has_blocks_in(kind) ? size * count : count;
    size_t out_elements = has_blocks_out(kind) ? size * count : count;
    size_t own =
        in_elements == out_elements ? 0 : rank * count; /* where the smaller buffer is in the larger */
    uint32_t *in = in_place && in_elements < out_elements ? input + own : input;
    uint32_t *out = !in_place ? output : in_elements > out_elements ? input + own : input;
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = has_handle ? &request : NULL;
    for (size_t i = 0; i < BLOCK_ELEMENTS + SPARE; i++) {
        input[i] = output[i] = POISON;
    }
    for (size_t i = 0; i < in_elements && (kind != BROADCAST || rank == root); i++) {
        in[i] = value(rank, i, call);
    }
    must(post(kind, in, out, count, root, has_handle || call % 4 == 1 ? &options : NULL), "a call");
    must(has_handle ? comm_wait(&request, NULL) : comm_sync(comm, 0), "its end");
    check(kind, out, count, root, call);
    check_spare(input, in_elements > out_elements || !in_place ? in_elements : out_elements);
    check_spare(output, out_elements);
}

static void repeat_all(void)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            for (uint32_t call = 0; call < REPEATS; call++) {
                run((enum kind)kind, counts[i], call / 8 % size, call);
            }
        }
    }
}

/* Without waiting: a root is ahead of the others by more operations than may be open. */
static void repeat_ahead(void)
{
    static uint32_t data[REPEATS];
    for (uint32_t call = 0; call < REPEATS; call++) {
        data[call] = rank == 0 ? value(0, 0, call) : POISON;
        must(comm_broadcast(comm, &data[call], 1, COMM_U32, 0, NULL), "a broadcast");
        if (rank == 1 && call % 40 == 39) {
            usleep(2000);
        }
    }
    must(comm_sync(comm, 0), "comm_sync");
    for (uint32_t call = 0; call < REPEATS; call++) {
        fail_if(data[call] != value(0, 0, call), "a broadcast ahead is wrong");
    }
}

/* Calls that are refused take no number: the other ranks make none. */
static void make_wrong_calls(enum kind kind, size_t count)
{
    comm_request_t *request = (comm_request_t *)(uintptr_t)1;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    fail_if(post(kind, NULL, NULL, count, 0, &options) != COMM_INVALID_ARGUMENT, "null pointers");
    fail_if(request != NULL, "a handle of a call that was refused");
    void *end = (void *)(UINTPTR_MAX - 3);
    fail_if(post(kind, end, end, count + 1, 0, NULL) != COMM_INVALID_ARGUMENT,
            "the end of the address space");
    fail_if(post(kind, end, end, count, 0, NULL) != COMM_INVALID_ARGUMENT, "the same");
    if (kind != BROADCAST && count > 1) {
        fail_if(post(kind, input, input + 1, count, rank, NULL) != COMM_INVALID_ARGUMENT,
                "buffers that overlap by all but an element");
    }
    if (kind <= GATHER) {
        fail_if(post(kind, input, output, count, size, NULL) != COMM_INVALID_ARGUMENT, "no such root");
    }
    options.struct_size = 3;
    fail_if(post(kind, input, output, count, 0, &options) != COMM_INVALID_ARGUMENT, "options of no size");
}

static void refuse(void)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            for (uint32_t call = 0; call < 12; call++) {
                run((enum kind)kind, counts[i], 0, call);
                if (rank == size - 1 && call % 4 == 3) {
                    make_wrong_calls((enum kind)kind, counts[i]);
                }
            }
        }
    }
    comm_dtype_t dtype = (comm_dtype_t)99;
    fail_if(comm_all_reduce(comm, input, output, 1, dtype, COMM_SUM, NULL) != COMM_INVALID_ARGUMENT, "dtype");
    fail_if(comm_all_reduce(comm, input, output, 1, COMM_U32, (comm_op_t)99, NULL) != COMM_INVALID_ARGUMENT,
            "op");
    fail_if(comm_all_reduce(NULL, input, output, 1, COMM_U32, COMM_SUM, NULL) != COMM_INVALID_ARGUMENT,
            "comm");
}

/* One rank changes a term in the middle. All are told, and the next operation goes on. */
static void contradict(void)
{
    for (uint32_t odd = 0; odd < size; odd++) {
        for (unsigned kind = 0; kind < KINDS; kind++) {
            for (uint32_t call = 0; call < 6; call++) {
                run((enum kind)kind, 3, odd, call);
            }
            comm_request_t *request = NULL;
            comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
            options.request = &request;
            must(post((enum kind)kind, input, kind == BROADCAST ? input : output, rank == odd ? 4 : 3, odd,
                      &options),
                 "a call");
            comm_result_t result = comm_wait(&request, NULL);
            comm_result_t later = comm_sync(comm, 0);
            bool may_end = kind <= GATHER; /* a rank that needs nobody else has its result */
            fail_if(result != COMM_MISMATCH && !(may_end && result == COMM_OK), "a contradiction");
            fail_if(later != COMM_OK && later != COMM_MISMATCH, "after a contradiction");
        }
    }
    for (uint32_t call = 0; call < 20; call++) {
        run(ALL_REDUCE, 3, 0, call);
    }
}

/* What the short way leaves to the usual one, between operations that take it. */
static void mix(const char *name)
{
    comm_t *other;
    char second[64];
    snprintf(second, sizeof second, "%s-second", name);
    must(comm_init(client, second, rank, size, COMM_DEVICE_HOST, NULL, &other), "comm_init");
    for (uint32_t call = 0; call < REPEATS; call++) {
        static double sums[3];
        comm_request_t *request = NULL;
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        uint32_t own = value(rank, 0, call), sum = 0, wanted = 0;
        double half = rank + 1;
        options.request = &request;
        must(comm_all_reduce(other, &own, &sum, 1, COMM_U32, COMM_SUM, &options), "on another communicator");
        run((enum kind)(call % KINDS), 3, 0, call);
        must(comm_wait(&request, NULL), "comm_wait");
        for (uint32_t each = 0; each < size; each++) {
            wanted += value(each, 0, call);
        }
        fail_if(sum != wanted, "the other communicator's sum is wrong");
        options = (comm_call_options_t)COMM_CALL_OPTIONS_INIT;
        options.factor = 1 + call % 2;
        must(comm_all_reduce(comm, &half, &sums[0], 1, COMM_F64, COMM_PREMUL_SUM, &options), "premul_sum");
        options.factor = 1;
        options.timeout_ms = TIMEOUT_MS / 2;
        must(comm_all_reduce(comm, &half, &sums[1], 1, COMM_F64, COMM_SUM, &options), "with a deadline");
        must(comm_all_reduce(comm, &half, &sums[2], 1, COMM_F64, COMM_SUM, NULL), "before a group");
        must(comm_sync(comm, 0), "comm_sync");
        sums[2] = -1;
        must(comm_group_begin(), "comm_group_begin");
        must(comm_all_reduce(comm, &half, &sums[2], 1, COMM_F64, COMM_SUM, NULL), "in a group");
        usleep(call % 16 == 0 ? 1000 : 0);
        fail_if(sums[2] != -1, "an operation of a group began before its end");
        must(comm_group_end(), "comm_group_end");
        must(comm_sync(comm, 0), "comm_sync");
        double plain = size * (size + 1) / 2.0;
        fail_if(sums[0] != plain * (1 + call % 2) || sums[1] != plain || sums[2] != plain, "a sum is wrong");
    }
    comm_destroy(other);
}

/* One rank is later than the deadline of one call. */
static void be_late(void)
{
    for (uint32_t late = 0; late < size; late++) {
        uint32_t own = 1, sum = 0;
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        for (uint32_t call = 0; call < 6; call++) {
            run(ALL_REDUCE, 1, 0, call);
        }
        options.timeout_ms = 100;
        usleep(rank == late ? 400000 : 0);
        must(comm_all_reduce(comm, &own, &sum, 1, COMM_U32, COMM_SUM, &options), "with a deadline");
        fail_if(comm_sync(comm, 0) != COMM_TIMED_OUT, "a deadline");
        run(ALL_REDUCE, 1, 0, 0);
    }
}

/* Two threads of the root, with the same terms and other data. Which comes first is not known, but each value
 * arrives once. */
static void *broadcast_many(void *context)
{
    uint32_t thread = (uint32_t)(uintptr_t)context;
    for (uint32_t i = 0; i < THREAD_CALLS; i++) {
        uint32_t data = thread * THREAD_CALLS + i;
        comm_request_t *request = NULL;
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.request = &request;
        must(comm_broadcast(comm, &data, 1, COMM_U32, 0, &options), "a thread's broadcast");
        must(comm_wait(&request, NULL), "a thread's comm_wait");
    }
    return NULL;
}

static void use_threads(void)
{
    static uint8_t seen[2 * THREAD_CALLS];
    pthread_t threads[2];
    for (uint32_t i = 0; rank == 0 && i < 2; i++) {
        fail_if(pthread_create(&threads[i], NULL, broadcast_many, (void *)(uintptr_t)i) != 0, "a thread");
    }
    for (uint32_t i = 0; rank == 0 && i < 2; i++) {
        fail_if(pthread_join(threads[i], NULL) != 0, "a thread");
    }
    for (uint32_t i = 0; rank != 0 && i < 2 * THREAD_CALLS; i++) {
        uint32_t data = POISON;
        must(comm_broadcast(comm, &data, 1, COMM_U32, 0, NULL), "a broadcast of a thread");
        must(comm_sync(comm, 0), "comm_sync");
        fail_if(data >= 2 * THREAD_CALLS || seen[data]++ != 0, "a value came twice, or none was sent");
    }
    must(comm_sync(comm, 0), "comm_sync");
}

static void fork_child(void)
{
    run(ALL_REDUCE, 3, 0, 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        comm_result_t result = comm_all_reduce(comm, input, output, 3, COMM_U32, COMM_SUM, NULL);
        _exit(result == COMM_INVALID_ARGUMENT ? 0 : 1);
    }
    int status = -1;
    fail_if(waitpid(child, &status, 0) != child || status != 0, "a child used its parent's communicator");
    run(ALL_REDUCE, 3, 0, 1);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: cells_again NAME RANK SIZE\n");
        return 2;
    }
    join(argv, TIMEOUT_MS);
    repeat_all();
    repeat_ahead();
    refuse();
    contradict();
    mix(argv[1]);
    be_late();
    use_threads();
    fork_child();
    leave();
    puts("checked");
    return 0;
}
