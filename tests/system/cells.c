/*
 * One rank of checks of small operations on one node:
 *
 *   cells NAME RANK SIZE random SEED STEPS     random operations of all kinds, types and sizes; prints a
 * digest cells NAME RANK SIZE until [TIMEOUT_MS]    all-reduces, until one fails; prints how many ended well
 *   cells NAME RANK SIZE mismatch              every third operation contradicts; the others are right
 *   cells NAME RANK SIZE scribble SEED         as until; rank 0 also writes anywhere into the cells
 *
 * It prints its result as the last line, or what is wrong, and exits with 1.
 */
#include <commclient.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPEN_MAX 8u
#define POISON 0xA5
#define MISMATCHES 300u
#define SCRIBBLED_MAX 20000u /* operations: where the cells are no longer used, all end well */

static comm_client_t *client;
static comm_t *comm;
static uint32_t rank, size;

static void must(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "rank %u: %s: %s: %s\n", rank, what, comm_result_text(result), comm_last_error());
        exit(EXIT_FAILURE);
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    uint64_t value = *state;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

/* --- Random operations --- */

struct step {
    comm_request_t *request;
    unsigned char *input, *output;
    size_t output_bytes;
    bool in_place;
};

static const size_t element_bytes[] = {8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1, 8, 16};
#define DTYPES (sizeof element_bytes / sizeof element_bytes[0])
#define OPS 11u

/* What all ranks draw alike. */
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
    struct draw draw = {.kind = (unsigned)(next_random(state) % 11)};
    size_t bytes = sizes_bytes[next_random(state) % (sizeof sizes_bytes / sizeof sizes_bytes[0])];
    draw.root = (uint32_t)(next_random(state) % size);
    do {
        draw.dtype = (comm_dtype_t)(next_random(state) % DTYPES);
        draw.op = (comm_op_t)(next_random(state) % OPS);
    } while (!is_defined(&draw, draw.kind >= 9));
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
    default:
        return comm_exclusive_scan(comm, in, out, count, draw->dtype, draw->op, options);
    }
}

static void fold(uint64_t *digest, const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        *digest = (*digest ^ bytes[i]) * 0x100000001b3u;
    }
}

static void make_buffers(const struct draw *draw, struct step *step, uint64_t number)
{
    size_t in_blocks, out_blocks;
    uint64_t state = number * 1000003 + rank + 1;
    blocks_of(draw, &in_blocks, &out_blocks);
    size_t block_bytes = draw->count * element_bytes[draw->dtype];
    step->in_place = draw->in_place && (draw->kind == 0 || draw->kind >= 8);
    step->output_bytes = out_blocks * block_bytes;
    step->input = malloc(in_blocks * block_bytes + 1);
    step->output = step->in_place ? step->input : malloc(step->output_bytes + 1);
    if (step->input == NULL || step->output == NULL) {
        exit(EXIT_FAILURE);
    }
    memset(step->output, POISON, step->output_bytes);
    for (size_t i = 0; i < in_blocks * block_bytes; i++) {
        step->input[i] = (unsigned char)(next_random(&state) >> 20);
    }
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

/* --- Failures --- */

/* Writes at random places of this process's mapping of the cells. */
static void scribble(uint64_t *state)
{
    static unsigned char *from, *to;
    char line[512];
    FILE *maps = from == NULL ? fopen("/proc/self/maps", "re") : NULL;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        if (strstr(line, "memfd:commd-cells") != NULL) {
            char *rest;
            from = (unsigned char *)(uintptr_t)strtoull(line, &rest, 16); /* "begin-end ..." */
            to = (unsigned char *)(uintptr_t)strtoull(rest + 1, NULL, 16);
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
    if (from == NULL) {
        fprintf(stderr, "rank %u has no cells\n", rank);
        exit(EXIT_FAILURE);
    }
    size_t bytes = (size_t)(to - from) < 8192 ? (size_t)(to - from) : 8192;
    for (int i = 0; i < 20; i++) {
        from[next_random(state) % bytes] = (unsigned char)next_random(state);
    }
}

static void run_until(bool scribbles, uint64_t seed)
{
    uint64_t ended = 0, state = seed;
    comm_result_t result = COMM_OK;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (result == COMM_OK && !(scribbles && ended == SCRIBBLED_MAX)) {
        int64_t value = (int64_t)(ended * size + rank);
        if (ended == 1000) {
            puts("READY");
        }
        if (scribbles && rank == 0 && ended > 1000) {
            scribble(&state);
        }
        comm_request_t *request = NULL;
        comm_call_options_t call = COMM_CALL_OPTIONS_INIT;
        call.request = &request;
        result = comm_all_reduce(comm, &value, &value, 1, COMM_I64, COMM_SUM, &call);
        result = result == COMM_OK ? comm_wait(&request, NULL) : result;
        int64_t expected = (int64_t)(ended * size * size + (uint64_t)size * (size - 1) / 2);
        if (result == COMM_OK && value != expected && !scribbles) {
            fprintf(stderr, "rank %u: operation %llu: %lld, expected %lld\n", rank, (unsigned long long)ended,
                    (long long)value, (long long)expected);
            exit(EXIT_FAILURE);
        }
        ended += result == COMM_OK;
    }
    printf("%llu %s %s\n", (unsigned long long)ended, comm_result_text(result), comm_last_error());
}

static void run_mismatch(void)
{
    for (uint64_t number = 0; number < MISMATCHES; number++) {
        int32_t value = (int32_t)(number + rank);
        bool contradicts = number % 3 == 1 && rank == number / 3 % size;
        comm_op_t op = contradicts ? COMM_MAX : COMM_SUM;
        must(comm_all_reduce(comm, &value, &value, 1, COMM_I32, op, NULL), "comm_all_reduce");
        comm_result_t result = comm_sync(comm, 0);
        bool is_right = number % 3 == 1 ? result == COMM_MISMATCH && strstr(comm_last_error(), "max") != NULL
                                        : result == COMM_OK;
        if (!is_right) {
            fprintf(stderr, "rank %u: operation %llu: %s: %s\n", rank, (unsigned long long)number,
                    comm_result_text(result), comm_last_error());
            exit(EXIT_FAILURE);
        }
        char expected[32];
        (void)snprintf(expected, sizeof expected, "op %llu on ", (unsigned long long)number + 1);
        if (result != COMM_OK && strstr(comm_last_error(), expected) == NULL) {
            fprintf(stderr, "rank %u: \"%s\" is not in: %s\n", rank, expected, comm_last_error());
            exit(EXIT_FAILURE);
        }
    }
    puts("checked");
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: cells NAME RANK SIZE random|until|mismatch|scribble [NUMBER [STEPS]]\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    uint64_t seed = argc > 5 ? strtoull(argv[5], NULL, 10) : 1;
    uint64_t steps = argc > 6 ? strtoull(argv[6], NULL, 10) : 1000;
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    options.op_timeout_ms = 20000;
    if (strcmp(argv[4], "scribble") == 0 || (strcmp(argv[4], "until") == 0 && argc > 5)) {
        options.op_timeout_ms = argc > 5 && argv[4][0] == 'u' ? (uint32_t)seed : 1000;
    }
    must(comm_client_open(NULL, &client), "comm_client_open");
    must(comm_init(client, argv[1], rank, size, COMM_DEVICE_HOST, &options, &comm), "comm_init");
    if (strcmp(argv[4], "random") == 0) {
        run_random(seed, steps);
    } else if (strcmp(argv[4], "mismatch") == 0) {
        run_mismatch();
    } else {
        run_until(strcmp(argv[4], "scribble") == 0, seed);
    }
    comm_destroy(comm);
    comm_client_close(client);
    return 0;
}
