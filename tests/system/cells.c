/*
 * One rank of a check of small operations on one node.
 *
 *   cells NAME RANK SIZE MODE ...
 *
 * MODE is one of:
 *   - random SEED STEPS: operations of all kinds, types and small sizes; prints a digest
 *   - slices SEED STEPS: the same, and some operations are long
 *   - mismatch: in every third operation the ranks contradict each other; the others are right
 *   - counts FILE: a number of operations that the test knows; goes on when the file exists
 *   - refused: between right calls, one rank makes calls that are refused
 *   - left: rank 0 hands an operation to commd, which times out, and leaves before rank 1 calls it
 *   - late ROUNDS: in each round, one rank is late for one operation; 320 more operations are right
 *
 * It prints its result as the last line. Or it prints what is wrong, and exits with 1.
 */
#include <commclient.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/cells_rank.h"

#define OPEN_MAX 8u
#define POISON 0xA5
#define MISMATCHES 300u
#define LATE_TIMEOUT_MS 400u
#define LATE_MS 900u
#define TIMEOUT_MS 20000u

/* --- Random operations --- */

struct step {
    comm_request_t *request;
    unsigned char *input, *output;
    size_t output_bytes;
    bool in_place;
    size_t float_bytes; /* of a part of its elements, if they may be sums with NaN; otherwise 0 */
    uint64_t infinity;  /* its bits */
};

static const size_t element_bytes[] = {8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1, 8, 16};
#define DTYPES (sizeof element_bytes / sizeof element_bytes[0])
#define OPS 11u
#define KINDS 16u
#define RANKS_MAX 40u

static bool has_slices;

/* What all ranks draw in the same way. */
struct draw {
    unsigned kind;
    comm_dtype_t dtype;
    comm_op_t op;
    size_t count;
    uint32_t root;
    bool in_place;
    bool waits; /* for all that was posted */
};

static bool is_defined(const struct draw *draw, bool scans)
{
    bool is_bool = draw->dtype == COMM_BOOL, is_complex = draw->dtype >= COMM_C64;
    bool is_real = draw->dtype <= COMM_F8E5M2;
    if (draw->op == COMM_SUM || draw->op == COMM_PROD) {
        return true;
    }
    if (draw->op == COMM_MIN || draw->op == COMM_MAX) {
        return !is_complex;
    }
    if (draw->op == COMM_AVG) {
        return !is_bool && !scans;
    }
    return draw->op == COMM_PREMUL_SUM ? !is_bool : !is_real && !is_complex;
}

static struct draw draw_next(uint64_t *state)
{
    static const size_t sizes_bytes[] = {0, 1, 8, 9, 72, 73, 80, 500, 4096, 8000, 32768, 32784, 70000};
    struct draw draw = {.kind = (unsigned)(next_random(state) % KINDS)};
    static const size_t in_slices_bytes[] = {70000, 300000, 1048576, 1048592, 2500000};
    size_t bytes = sizes_bytes[next_random(state) % (sizeof sizes_bytes / sizeof sizes_bytes[0])];
    if (has_slices && next_random(state) % 8 == 0) {
        bytes = in_slices_bytes[next_random(state) % (sizeof in_slices_bytes / sizeof in_slices_bytes[0])];
    }
    draw.root = (uint32_t)(next_random(state) % size);
    do {
        draw.dtype = (comm_dtype_t)(next_random(state) % DTYPES);
        draw.op = (comm_op_t)(next_random(state) % OPS);
    } while (!is_defined(&draw, draw.kind == 9 || draw.kind == 10));
    draw.count = bytes / element_bytes[draw.dtype];
    draw.count = next_random(state) % 2 == 0 ? draw.count : draw.count / size;
    draw.in_place = next_random(state) % 4 == 0;
    draw.waits = next_random(state) % 3 != 0;
    return draw;
}

/* Which numbers of blocks a kind reads and writes on this rank. */
static void blocks_of(const struct draw *draw, size_t *in, size_t *out)
{
    size_t of_root = draw->root == rank ? size : 0;
    *in = *out = draw->kind == 2 ? 0 : 1;
    switch (draw->kind) {
    case 3:
        *out = of_root > 0 ? 1 : 0;
        break;
    case 4:
        *out = size;
        break;
    case 5:
        *in = size;
        break;
    case 6:
        *out = of_root;
        break;
    case 7:
        *in = of_root;
        break;
    case 8:
        *in = *out = size;
        break;
    default:
        break;
    }
}

/* --- Kinds with a count for each rank --- */

/* How many elements `from` sends to `to`. In all_gather_v, it sends them to all; in reduce_scatter_v, all
 * send them to `to`. */
static size_t sent(const struct draw *draw, uint32_t from, uint32_t to)
{
    bool by_sender = draw->kind == 11 || draw->kind == 13;
    bool by_receiver = draw->kind == 12 || draw->kind == 14;
    size_t mixed = (by_receiver ? 0 : from * 7u) + (by_sender ? 0 : to * 3u) + draw->root;
    return (draw->count + mixed) % (draw->count + 2);
}

/* A gap of an element is before each block of rank 1. */
static void lay_out(const struct draw *draw, bool sends, size_t counts[RANKS_MAX], size_t places[RANKS_MAX],
                    size_t *extent)
{
    *extent = 0;
    for (uint32_t other = 0; other < size; other++) {
        counts[other] = sends ? sent(draw, rank, other) : sent(draw, other, rank);
        *extent += other == 1 && draw->kind != 12 ? 1 : 0;
        places[other] = *extent;
        *extent += counts[other];
    }
}

static comm_result_t post_counted(const struct draw *draw, struct step *step,
                                  const comm_call_options_t *options)
{
    size_t out[RANKS_MAX], out_places[RANKS_MAX], in[RANKS_MAX], in_places[RANKS_MAX], extent;
    lay_out(draw, true, out, out_places, &extent);
    lay_out(draw, false, in, in_places, &extent);
    switch (draw->kind) {
    case 11:
        return comm_all_gather_v(comm, step->input, step->output, in, in_places, draw->dtype, options);
    case 12:
        return comm_reduce_scatter_v(comm, step->input, step->output, out, draw->dtype, draw->op, options);
    case 13:
        return comm_gather_v(comm, step->input, sent(draw, rank, draw->root), step->output, in, in_places,
                             draw->dtype, draw->root, options);
    case 14:
        return comm_scatter_v(comm, step->input, out, out_places, step->output, sent(draw, draw->root, rank),
                              draw->dtype, draw->root, options);
    default:
        return comm_all_to_all_v(comm, step->input, out, out_places, step->output, in, in_places, draw->dtype,
                                 options);
    }
}

/* Which numbers of elements they read and write on this rank. */
static void extents_of(const struct draw *draw, size_t *in, size_t *out)
{
    size_t counts[RANKS_MAX], places[RANKS_MAX];
    bool is_root = draw->root == rank;
    *in = *out = 0;
    if (draw->kind == 11 || draw->kind == 13) {
        *in = sent(draw, rank, draw->root);
    } else if (draw->kind != 14 || is_root) {
        lay_out(draw, true, counts, places, in);
    }
    if (draw->kind == 12 || draw->kind == 14) {
        *out = sent(draw, draw->root, rank);
    } else if (draw->kind != 13 || is_root) {
        lay_out(draw, false, counts, places, out);
    }
}

static comm_result_t post(const struct draw *draw, struct step *step, const comm_call_options_t *options)
{
    const void *in = step->input;
    void *out = step->output;
    size_t count = draw->count;
    switch (draw->kind) {
    case 0:
        return comm_all_reduce(comm, in, out, count, draw->dtype, draw->op, options);
    case 1:
        return comm_broadcast(comm, out, count, draw->dtype, draw->root, options);
    case 2:
        return comm_barrier(comm, options);
    case 3:
        return comm_reduce(comm, in, out, count, draw->dtype, draw->op, draw->root, options);
    case 4:
        return comm_all_gather(comm, in, out, count, draw->dtype, options);
    case 5:
        return comm_reduce_scatter(comm, in, out, count, draw->dtype, draw->op, options);
    case 6:
        return comm_gather(comm, in, out, count, draw->dtype, draw->root, options);
    case 7:
        return comm_scatter(comm, in, out, count, draw->dtype, draw->root, options);
    case 8:
        return comm_all_to_all(comm, in, out, count, draw->dtype, options);
    case 9:
        return comm_scan(comm, in, out, count, draw->dtype, draw->op, options);
    case 10:
        return comm_exclusive_scan(comm, in, out, count, draw->dtype, draw->op, options);
    default:
        return post_counted(draw, step, options);
    }
}

/* Eight bytes at a time; so each of the two costs less than the operation. */
static void fill_randomly(unsigned char *bytes, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
        uint64_t word = next_random(state);
        memcpy(bytes + i, &word, count - i < sizeof word ? count - i : sizeof word);
    }
}

static void fold(uint64_t *digest, const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, count - i < sizeof word ? count - i : sizeof word);
        *digest = (*digest ^ word) * 0x100000001b3u;
        *digest ^= *digest >> 29;
    }
}

/* Which NaN a sum of two has depends on the schedule between nodes, which commd chooses by measurement. */
static void settle_nan(const struct step *step)
{
    for (size_t at = 0; step->float_bytes != 0 && at < step->output_bytes; at += step->float_bytes) {
        uint64_t bits = 0, sign = UINT64_C(1) << (8 * step->float_bytes - 1);
        memcpy(&bits, step->output + at, step->float_bytes);
        if ((bits & ~sign) > step->infinity) {
            bits = sign - 1;
            memcpy(step->output + at, &bits, step->float_bytes);
        }
    }
}

static void expect_nan(const struct draw *draw, struct step *step)
{
    static const uint64_t infinities[] = {0x7ff0000000000000, 0x7f800000, 0x7c00, 0x7f80, 0x7e, 0x7c};
    bool reduces = draw->kind == 0 || draw->kind == 3 || draw->kind == 5 || draw->kind == 9 ||
                   draw->kind == 10 || draw->kind == 12;
    unsigned part = draw->dtype == COMM_C64 ? COMM_F32 : draw->dtype == COMM_C128 ? COMM_F64 : draw->dtype;
    if (reduces && part < sizeof infinities / sizeof infinities[0]) {
        step->float_bytes = element_bytes[part];
        step->infinity = infinities[part];
    }
}

static void make_buffers(const struct draw *draw, struct step *step, uint64_t number)
{
    size_t in_blocks, out_blocks;
    uint64_t state = number * 1000003 + rank + 1;
    blocks_of(draw, &in_blocks, &out_blocks);
    size_t block_bytes = draw->count * element_bytes[draw->dtype];
    if (draw->kind > 10) {
        extents_of(draw, &in_blocks, &out_blocks);
        block_bytes = element_bytes[draw->dtype];
    }
    step->in_place = draw->in_place && (draw->kind == 0 || (draw->kind >= 8 && draw->kind <= 10));
    step->output_bytes = out_blocks * block_bytes;
    expect_nan(draw, step);
    step->input = malloc(in_blocks * block_bytes + 1);
    step->output = step->in_place ? step->input : malloc(step->output_bytes + 1);
    if (step->input == NULL || step->output == NULL) {
        exit(EXIT_FAILURE);
    }
    memset(step->output, POISON, step->output_bytes);
    fill_randomly(step->input, in_blocks * block_bytes, &state);
    if (draw->kind == 1 && draw->root == rank) {
        memcpy(step->output, step->input, step->output_bytes);
    }
}

static void end(struct step *step, uint64_t *digest, uint64_t *chance)
{
    int done = 0;
    for (unsigned tries = (unsigned)(next_random(chance) % 3); tries > 0 && !done; tries--) {
        must(comm_test(&step->request, &done, NULL), "comm_test");
    }
    if (!done) {
        must(comm_wait(&step->request, NULL), "comm_wait");
    }
    settle_nan(step);
    fold(digest, step->output, step->output_bytes);
    free(step->input);
    if (!step->in_place) {
        free(step->output);
    }
    *step = (struct step){0};
}

static void run_random(uint64_t seed, uint64_t steps)
{
    struct step open[OPEN_MAX] = {0};
    uint64_t digest = 0xcbf29ce484222325u, first = 0, state = seed, chance = seed * 31 + rank;
    for (uint64_t number = 0; number < steps; number++) {
        struct draw draw = draw_next(&state);
        struct step *step = &open[number % OPEN_MAX];
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        if (number - first == OPEN_MAX) {
            end(&open[first++ % OPEN_MAX], &digest, &chance);
        }
        make_buffers(&draw, step, number);
        options.request = &step->request;
        options.factor = (draw.dtype <= COMM_F8E5M2 || draw.dtype >= COMM_C64 ? 0.5 : -2) + rank;
        must(post(&draw, step, &options), "an operation");
        if (next_random(&chance) % 50 == 0) { /* another one is late */
            usleep((useconds_t)(next_random(&chance) % 5000));
        }
        while (draw.waits && first <= number) {
            end(&open[first++ % OPEN_MAX], &digest, &chance);
        }
    }
    while (first < steps) {
        end(&open[first++ % OPEN_MAX], &digest, &chance);
    }
    printf("digest %016llx\n", (unsigned long long)digest);
}

/* --- Contradictions --- */

/* The rank's part of an operation. The rank contradicts the others by another operator or count. */
static comm_result_t post_odd(unsigned form, bool contradicts, unsigned char *in, unsigned char *out)
{
    size_t own = rank + 1u + (contradicts ? 1 : 0), counts[RANKS_MAX] = {0};
    for (uint32_t other = 0; other < size; other++) {
        counts[other] = other + 1u + (contradicts && other == (rank + 1) % size ? 1 : 0);
    }
    switch (form) {
    case 0:
        return comm_all_reduce(comm, in, out, 1, COMM_I32, contradicts ? COMM_MAX : COMM_SUM, NULL);
    case 1:
        return comm_all_gather_v(comm, in, out, counts, NULL, COMM_I32, NULL);
    case 2:
        counts[rank] = own;
        return comm_gather_v(comm, in, own, out, counts, NULL, COMM_I32, 0, NULL);
    default:
        for (uint32_t other = 0; other < size; other++) {
            counts[other] = 2;
        }
        size_t sends[RANKS_MAX];
        memcpy(sends, counts, sizeof sends);
        sends[(rank + 1) % size] += contradicts ? 1 : 0;
        return comm_all_to_all_v(comm, in, sends, NULL, out, counts, NULL, COMM_I32, NULL);
    }
}

static void run_mismatch(void)
{
    static unsigned char in[4096], out[4096];
    for (uint64_t number = 0; number < MISMATCHES; number++) {
        bool is_odd = number % 3 == 1;
        unsigned form = (unsigned)(number / 3 / size % 4);
        uint32_t odd = (uint32_t)(number / 3 % size);
        must(post_odd(form, is_odd && rank == odd && (form != 2 || rank != 0), in, out), "an operation");
        comm_result_t result = comm_sync(comm, 0);
        bool is_right = result == (is_odd && (form != 2 || odd != 0) ? COMM_MISMATCH : COMM_OK);
        char expected[32];
        (void)snprintf(expected, sizeof expected, "op %llu on ", (unsigned long long)number + 1);
        if (!is_right || (result != COMM_OK && strstr(comm_last_error(), expected) == NULL)) {
            fprintf(stderr, "rank %u: operation %llu, form %u: %s: %s\n", rank, (unsigned long long)number,
                    form, comm_result_text(result), comm_last_error());
            exit(EXIT_FAILURE);
        }
    }
    puts("checked");
}

/* --- Counts, refusals, deadlines --- */

static void run_counts(const char *file)
{
    static unsigned char in[20000], out[20000];
    for (unsigned i = 0; i < 300; i++) {
        must(comm_all_reduce(comm, in, out, 1, COMM_I64, COMM_SUM, NULL), "comm_all_reduce");
    }
    for (unsigned i = 0; i < 100; i++) {
        must(comm_all_gather(comm, in, out, 1000, COMM_U8, NULL), "comm_all_gather");
        must(comm_barrier(comm, NULL), "comm_barrier");
    }
    for (unsigned i = 0; i < 50; i++) {
        must(comm_broadcast(comm, out, 5000, COMM_F32, 0, NULL), "comm_broadcast");
        must(comm_sync(comm, 0), "comm_sync");
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("READY");
    while (access(file, F_OK) != 0) {
        usleep(10000);
    }
    puts("counted");
}

static void add_and_check(uint64_t number)
{
    int32_t value = (int32_t)(number * size + rank);
    int32_t expected = (int32_t)(number * size * size + (uint64_t)size * (size - 1) / 2);
    must(comm_all_reduce(comm, &value, &value, 1, COMM_I32, COMM_SUM, NULL), "comm_all_reduce");
    must(comm_sync(comm, 0), "comm_sync");
    if (value != expected) {
        fprintf(stderr, "rank %u: number %llu: %d, expected %d\n", rank, (unsigned long long)number, value,
                expected);
        exit(EXIT_FAILURE);
    }
}

/* One rank's call is refused. It uses up no number, so the ranks' later operations still match. */
static void run_refused(void)
{
    static float residual[3];
    for (uint64_t number = 0; number < 60; number++) {
        float values[2] = {1, 2};
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.compression = COMM_COMPRESSION_BF16;
        options.residual = number % 2 == 0 ? NULL : (float *)(void *)((char *)residual + 1);
        if (rank == number % size) {
            comm_op_t op = number % 2 == 0 ? COMM_MAX : COMM_SUM;
            comm_result_t result = comm_all_reduce(comm, values, values, 2, COMM_F32, op, &options);
            result = result == COMM_OK ? comm_sync(comm, 0) : result;
            if (result != (number % 2 == 0 ? COMM_UNSUPPORTED : COMM_INVALID_ARGUMENT)) {
                fprintf(stderr, "rank %u: %s: %s\n", rank, comm_result_text(result), comm_last_error());
                exit(EXIT_FAILURE);
            }
        }
        add_and_check(number);
    }
    puts("checked");
}

/* All ranks learn that the same operation timed out, and go on. */
static void run_late(uint64_t rounds)
{
    for (uint64_t round = 0; round < rounds; round++) {
        int32_t value = 1;
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.timeout_ms = LATE_TIMEOUT_MS;
        if (rank == round % size) {
            usleep(LATE_MS * 1000);
        }
        must(comm_all_reduce(comm, &value, &value, 1, COMM_I32, COMM_SUM, &options), "comm_all_reduce");
        comm_result_t result = comm_sync(comm, 0);
        char expected[64];
        (void)snprintf(expected, sizeof expected, "op %llu all_reduce", (unsigned long long)round * 321 + 1);
        if (result != COMM_TIMED_OUT || strstr(comm_last_error(), expected) == NULL) {
            fprintf(stderr, "rank %u: %s: %s\n", rank, comm_result_text(result), comm_last_error());
            exit(EXIT_FAILURE);
        }
        for (uint64_t number = 0; number < 320; number++) {
            add_and_check(number);
        }
    }
    puts("checked");
}

/* With a queue, an operation is not for cells. Both ranks learn the same, though rank 0 has left. */
static void run_left(void)
{
    int32_t value = 1;
    size_t taken = 0;
    comm_queue_t *queue;
    comm_completion_t completion;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    add_and_check(0);
    must(comm_queue_create(client, &queue), "comm_queue_create");
    options.queue = queue;
    options.timeout_ms = LATE_TIMEOUT_MS;
    usleep(rank == 0 ? 0 : 2 * LATE_MS * 1000);
    must(comm_all_reduce(comm, &value, &value, 1, COMM_I32, COMM_SUM, &options), "comm_all_reduce");
    must(comm_queue_next(queue, &completion, 1, &taken, TIMEOUT_MS), "comm_queue_next");
    if (taken != 1 || completion.result != COMM_TIMED_OUT) {
        fprintf(stderr, "rank %u: %s\n", rank, comm_result_text(completion.result));
        exit(EXIT_FAILURE);
    }
    comm_queue_destroy(queue);
    puts("checked");
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: cells NAME RANK SIZE random|slices|mismatch|counts|refused|left|late "
                        "[ARGUMENT [STEPS]]\n");
        return 2;
    }
    const char *mode = argv[4], *argument = argc > 5 ? argv[5] : "1";
    join(argv, TIMEOUT_MS);
    has_slices = strcmp(mode, "slices") == 0;
    if (strcmp(mode, "random") == 0 || has_slices) {
        run_random(strtoull(argument, NULL, 10), argc > 6 ? strtoull(argv[6], NULL, 10) : 1000);
    } else if (strcmp(mode, "mismatch") == 0) {
        run_mismatch();
    } else if (strcmp(mode, "counts") == 0) {
        run_counts(argument);
    } else if (strcmp(mode, "refused") == 0) {
        run_refused();
    } else if (strcmp(mode, "left") == 0) {
        run_left();
    } else {
        run_late(strtoull(argument, NULL, 10));
    }
    leave();
    return 0;
}
