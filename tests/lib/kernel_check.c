#include "tests/lib/kernel_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/reduce.h"
#include "kernels/kernels.h"
#include "tests/lib/elements.h"
#include "tests/lib/kernel_values.h"

#define BUFFERS_MAX 17u
#define GUARD_BYTES 64u
#define SHAPES 12u       /* shapes that are drawn for each number of inputs */
#define COUNT_MAX 20000u /* most elements of a case; an element has at most 16 bytes */
#define SHAPE_BYTES_MAX 65536u
#define COPY_ROUNDS 400u

void kernel_check_open(struct kernel_check *check, const struct kernel_runner *runner)
{
    *check = (struct kernel_check){.runner = runner, .random = 1};
    check->before = aligned_alloc(256, KERNEL_ARENA_BYTES);
    check->expected = aligned_alloc(256, KERNEL_ARENA_BYTES);
    check->got = aligned_alloc(256, KERNEL_ARENA_BYTES);
    if (check->before == NULL || check->expected == NULL || check->got == NULL) {
        abort();
    }
    for (size_t i = 0; i < KERNEL_ARENA_BYTES; i++) {
        check->before[i] = (unsigned char)kernel_random(&check->random);
    }
}

void kernel_check_close(struct kernel_check *check)
{
    free(check->before);
    free(check->expected);
    free(check->got);
}

static uint64_t draw(struct kernel_check *check, uint64_t below)
{
    return kernel_random(&check->random) % below;
}

/* ---- one reduction */

struct reduce_case {
    enum dtype dtype;
    enum reduce reduce;
    size_t count;
    uint32_t input_count;
    uint32_t output_count;
    size_t inputs[BUFFERS_MAX]; /* offsets in the arena */
    size_t outputs[BUFFERS_MAX];
    size_t used_bytes;
    bool has_factors;
    double factors[BUFFERS_MAX];
    uint64_t divisor;
    bool many;
    uint32_t blocks;
    uint32_t threads;
};

static void expect(struct kernel_check *check, const struct reduce_case *one)
{
    const void *inputs[BUFFERS_MAX];
    void *outputs[BUFFERS_MAX];
    memcpy(check->expected, check->before, one->used_bytes);
    for (uint32_t k = 0; k < one->input_count; k++) {
        inputs[k] = check->expected + one->inputs[k];
    }
    for (uint32_t k = 0; k < one->output_count; k++) {
        outputs[k] = check->expected + one->outputs[k];
    }
    struct host_reduction reduction = {.dtype = one->dtype,
                                       .reduce = one->reduce,
                                       .count_elements = one->count,
                                       .input_count = one->input_count,
                                       .output_count = one->output_count,
                                       .inputs = inputs,
                                       .outputs = outputs,
                                       .factors = one->has_factors ? one->factors : NULL,
                                       .divisor = one->divisor};
    host_reduce(&reduction);
}

#define FILL_ARGUMENTS(arguments)                                                                            \
    do {                                                                                                     \
        (arguments).count_elements = one->count;                                                             \
        (arguments).divisor = one->divisor;                                                                  \
        (arguments).input_count = one->input_count;                                                          \
        (arguments).output_count = one->output_count;                                                        \
        (arguments).has_factors = one->has_factors;                                                          \
        for (uint32_t k = 0; k < one->input_count; k++) {                                                    \
            (arguments).inputs[k] = (const void *)(uintptr_t)(check->runner->arena + one->inputs[k]);        \
            (arguments).factors[k] = one->factors[k];                                                        \
        }                                                                                                    \
        for (uint32_t k = 0; k < one->output_count; k++) {                                                   \
            (arguments).outputs[k] = (void *)(uintptr_t)(check->runner->arena + one->outputs[k]);            \
        }                                                                                                    \
    } while (0)

static bool run_case(struct kernel_check *check, const struct reduce_case *one, const char *name)
{
    struct kernels_reduce_few few = {0};
    struct kernels_reduce_many many = {0};
    const struct kernel_runner *runner = check->runner;
    if (one->many) {
        FILL_ARGUMENTS(many);
    } else {
        FILL_ARGUMENTS(few);
    }
    return runner->upload(runner->context, check->before, one->used_bytes) &&
           runner->run(runner->context, name, one->many ? (void *)&many : (void *)&few,
                       one->many ? sizeof many : sizeof few, one->blocks, one->threads) &&
           runner->download(runner->context, check->got, one->used_bytes);
}

static void tell(const struct kernel_check *check, const struct reduce_case *one, const char *name, size_t at)
{
    size_t size = dtype_size_bytes(one->dtype);
    printf("%s (%s): %u inputs, %u outputs, %zu elements, divisor %llu, factors %d, grid %u x %u:\n", name,
           reduce_text(one->reduce), one->input_count, one->output_count, one->count,
           (unsigned long long)one->divisor, one->has_factors, one->blocks, one->threads);
    for (uint32_t k = 0; k < one->output_count; k++) {
        if (at >= one->outputs[k] && at < one->outputs[k] + one->count * size) {
            size_t element = (at - one->outputs[k]) / size;
            printf("  output %u, element %zu is", k, element);
            for (size_t i = 0; i < size; i++) {
                printf(" %02x", check->got[one->outputs[k] + element * size + i]);
            }
            printf(", expected");
            for (size_t i = 0; i < size; i++) {
                printf(" %02x", check->expected[one->outputs[k] + element * size + i]);
            }
            for (uint32_t j = 0; j < one->input_count && j < 4; j++) {
                printf("%s", j == 0 ? "; inputs" : ",");
                for (size_t i = 0; i < size; i++) {
                    printf(" %02x", check->before[one->inputs[j] + element * size + i]);
                }
            }
            printf("\n");
            return;
        }
    }
    printf("  byte %zu of the arena, outside of all outputs, was written\n", at);
}

/* Makes elements of outputs the same that are equal except for the payload of NaN. Then all the rest can
 * be compared. */
static void forgive_nan(struct kernel_check *check, const struct reduce_case *one)
{
    size_t size = dtype_size_bytes(one->dtype);
    for (uint32_t k = 0; k < one->output_count; k++) {
        unsigned char *got = check->got + one->outputs[k];
        const unsigned char *expected = check->expected + one->outputs[k];
        for (size_t i = 0; i < one->count * size; i += size) {
            if (memcmp(got + i, expected + i, size) != 0 &&
                element_is_same(one->dtype, got + i, expected + i)) {
                memcpy(got + i, expected + i, size);
            }
        }
    }
}

static bool check_case(struct kernel_check *check, const struct reduce_case *one)
{
    bool sums = one->reduce == REDUCE_AVG || one->reduce == REDUCE_PREMUL_SUM;
    char name[96];
    snprintf(name, sizeof name, KERNELS_REDUCE_FORMAT, dtype_text(one->dtype),
             reduce_text(sums ? REDUCE_SUM : one->reduce), one->many ? KERNELS_MANY : "");
    check->cases++;
    expect(check, one);
    if (!run_case(check, one, name)) {
        printf("%s: could not run\n", name);
        return false;
    }
    if (memcmp(check->got, check->expected, one->used_bytes) == 0) {
        return true;
    }
    forgive_nan(check, one);
    for (size_t i = 0; i < one->used_bytes; i++) {
        if (check->got[i] != check->expected[i]) {
            tell(check, one, name, i);
            return false;
        }
    }
    return true;
}

static void draw_operands(struct kernel_check *check, struct reduce_case *one)
{
    static const uint64_t divisors[] = {2, 3, 7, 8, 17, 1000, 65537, 1ull << 33, (1ull << 53) + 1};
    one->divisor = one->reduce == REDUCE_AVG ? divisors[draw(check, sizeof divisors / sizeof divisors[0])]
                                             : draw(check, 2);
    one->has_factors = one->reduce == REDUCE_PREMUL_SUM;
    for (uint32_t k = 0; k < one->input_count; k++) {
        one->factors[k] = ((double)draw(check, 4001) - 2000) / 512 + (double)draw(check, 1000) * 1e-9;
    }
}

static void draw_grid(struct kernel_check *check, struct reduce_case *one)
{
    static const uint32_t grids[][2] = {{1, 1}, {1, 32}, {3, 64}, {2, 100}, {5, 512}, {40, 512}, {300, 256}};
    const uint32_t *grid;
    do {
        grid = grids[draw(check, sizeof grids / sizeof grids[0])];
    } while (check->runner->grid_threads_most != 0 && grid[0] * grid[1] > check->runner->grid_threads_most);
    one->blocks = grid[0];
    one->threads = grid[1];
}

/* ---- shapes */

/* Lays out the buffers one after the other. Each begins `shift` bytes behind a boundary of 16 bytes; the
 * shift is a multiple of the type's alignment. */
static void place(struct kernel_check *check, struct reduce_case *one, bool alike, bool in_place)
{
    size_t part = element_part_bytes(one->dtype);
    size_t bytes = one->count * dtype_size_bytes(one->dtype);
    size_t shift = draw(check, 2) == 0 ? 0 : draw(check, 16 / part) * part;
    size_t at = GUARD_BYTES;
    for (uint32_t k = 0; k < one->input_count + one->output_count; k++) {
        bool is_input = k < one->input_count;
        uint32_t output = k - one->input_count;
        if (!is_input && in_place && output < one->input_count) {
            one->outputs[output] = one->inputs[one->input_count - 1 - output];
            continue;
        }
        shift = alike ? shift : draw(check, 16 / part) * part;
        size_t offset = at + shift;
        *(is_input ? &one->inputs[k] : &one->outputs[output]) = offset;
        at = (offset + bytes + GUARD_BYTES + 15) / 16 * 16;
    }
    one->used_bytes = at + GUARD_BYTES;
}

static size_t draw_count(struct kernel_check *check, enum dtype dtype, uint32_t buffers)
{
    size_t pack = 16 / dtype_size_bytes(dtype);
    size_t edges[] = {0, 1, 2, pack, 2 * pack + 1, 64 * pack, 512 * pack, 2048 * pack + 3};
    size_t count = draw(check, 3) == 0 ? draw(check, COUNT_MAX)
                                       : edges[draw(check, sizeof edges / sizeof edges[0])] + draw(check, 3);
    size_t most = SHAPE_BYTES_MAX * 34 / buffers / dtype_size_bytes(dtype);
    return count < most ? count : most;
}

bool kernel_check_shapes(struct kernel_check *check, enum dtype dtype, enum reduce reduce)
{
    static const uint32_t input_counts[] = {1, 2, 3, 4, 5, 8, 9, 17};
    for (size_t c = 0; c < sizeof input_counts / sizeof input_counts[0]; c++) {
        for (uint32_t shape = 0; shape < SHAPES; shape++) {
            uint32_t inputs = input_counts[c];
            const uint32_t output_counts[] = {1, inputs, 1 + (uint32_t)draw(check, inputs)};
            struct reduce_case one = {.dtype = dtype,
                                      .reduce = reduce,
                                      .input_count = inputs,
                                      .output_count = output_counts[shape % 3],
                                      .many = inputs > KERNELS_FEW || draw(check, 4) == 0};
            one.count = draw_count(check, dtype, inputs + one.output_count);
            draw_operands(check, &one);
            draw_grid(check, &one);
            place(check, &one, draw(check, 4) != 0, draw(check, 2) == 0);
            enum kernel_fill fill = (enum kernel_fill)draw(check, KERNEL_FILL_COUNT);
            for (uint32_t k = 0; k < inputs; k++) {
                kernel_fill(dtype, fill, check->before + one.inputs[k], one.count, &check->random);
            }
            if (!check_case(check, &one)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- values */

/* Checks 65,536 elements of two inputs and one output. */
static bool check_pairs(struct kernel_check *check, enum dtype dtype, enum reduce reduce,
                        uint64_t (*pair)(enum dtype dtype, size_t index, size_t operand, size_t round),
                        size_t round)
{
    size_t count = 65536;
    size_t part = element_part_bytes(dtype);
    size_t parts = element_parts(dtype);
    struct reduce_case one = {.dtype = dtype,
                              .reduce = reduce,
                              .count = count / parts,
                              .input_count = 2,
                              .output_count = 1,
                              .inputs = {GUARD_BYTES, GUARD_BYTES + count * part},
                              .outputs = {GUARD_BYTES + 2 * count * part},
                              .used_bytes = GUARD_BYTES * 2 + 3 * count * part,
                              .blocks = 24,
                              .threads = KERNELS_BLOCK_THREADS};
    draw_operands(check, &one);
    for (size_t operand = 0; operand < 2; operand++) {
        for (size_t i = 0; i < count; i++) {
            uint64_t bits = pair(dtype, i, operand, round);
            memcpy(check->before + one.inputs[operand] + i * part, &bits, part);
        }
    }
    return check_case(check, &one);
}

static uint64_t pair_of_bytes(enum dtype dtype, size_t index, size_t operand, size_t round)
{
    (void)dtype;
    (void)round;
    return operand == 0 ? index >> 8 : index & 255;
}

static uint64_t pair_of_short(enum dtype dtype, size_t index, size_t operand, size_t round)
{
    return (operand ^ (round & 1)) == 0 ? index : kernel_edge(dtype, round);
}

/* Gives every pair of edges. Further pairs are edges with changed last bits, or random numbers. */
static uint64_t pair_of_edges(enum dtype dtype, size_t index, size_t operand, size_t round)
{
    size_t edges = kernel_edge_count(dtype);
    uint64_t state = index * 2 + operand + round * 131072 * 2;
    uint64_t random = kernel_random(&state);
    uint64_t edge = kernel_edge(dtype, operand == 0 ? index / edges : index % edges);
    if (index < edges * edges) {
        return edge;
    }
    return (random & 1) == 0 ? edge ^ (random >> 61) : random;
}

bool kernel_check_values(struct kernel_check *check, enum dtype dtype, enum reduce reduce)
{
    size_t part = element_part_bytes(dtype);
    size_t rounds = part == 2 ? kernel_edge_count(dtype) : part == 1 ? 3 : 2;
    for (size_t round = 0; round < rounds; round++) {
        if (!check_pairs(check, dtype, reduce,
                         part == 1   ? pair_of_bytes
                         : part == 2 ? pair_of_short
                                     : pair_of_edges,
                         round)) {
            return false;
        }
    }
    return true;
}

/* ---- copies */

static bool check_copy_round(struct kernel_check *check)
{
    static const uint64_t sizes[] = {1, 16, 100, 4096, 16384, 70000};
    struct kernels_copy arguments = {.count = 1 + (uint32_t)draw(check, KERNELS_COPIES_MAX)};
    const struct kernel_runner *runner = check->runner;
    size_t at = GUARD_BYTES;
    uint64_t most = sizes[draw(check, sizeof sizes / sizeof sizes[0])];
    arguments.count = draw(check, 3) == 0 ? 1 : arguments.count;
    memcpy(check->expected, check->before, KERNEL_ARENA_BYTES);
    for (uint32_t i = 0; i < arguments.count; i++) {
        uint64_t bytes = draw(check, most + 1);
        size_t source = at + draw(check, 16);
        size_t target = source + bytes + 1 + draw(check, 32);
        target = draw(check, 2) == 0 ? (target & ~(size_t)15) + 16 + (source & 15) : target;
        if (target + bytes + 32 > KERNEL_ARENA_BYTES) {
            arguments.count = i;
            break;
        }
        target = draw(check, 20) == 0 ? source : target;
        memmove(check->expected + target, check->expected + source, bytes);
        arguments.copies[i].source = (const void *)(uintptr_t)(runner->arena + source);
        arguments.copies[i].target = (void *)(uintptr_t)(runner->arena + target);
        arguments.copies[i].bytes = bytes;
        at = target + bytes;
    }
    struct reduce_case grid;
    draw_grid(check, &grid);
    size_t used = at + GUARD_BYTES < KERNEL_ARENA_BYTES ? at + GUARD_BYTES : KERNEL_ARENA_BYTES;
    check->cases++;
    if (!runner->upload(runner->context, check->before, used) ||
        !runner->run(runner->context, KERNELS_COPY, &arguments, sizeof arguments, grid.blocks,
                     grid.threads) ||
        !runner->download(runner->context, check->got, used)) {
        printf("%s: could not run\n", KERNELS_COPY);
        return false;
    }
    for (size_t i = 0; i < used; i++) {
        if (check->got[i] != check->expected[i]) {
            printf("%s, %u copies of up to %llu bytes, grid %u x %u: byte %zu of the arena is %02x, expected "
                   "%02x\n",
                   KERNELS_COPY, arguments.count, (unsigned long long)most, grid.blocks, grid.threads, i,
                   check->got[i], check->expected[i]);
            return false;
        }
    }
    return true;
}

bool kernel_check_copies(struct kernel_check *check)
{
    for (uint32_t round = 0; round < COPY_ROUNDS; round++) {
        if (!check_copy_round(check)) {
            return false;
        }
    }
    return true;
}

bool kernel_check_all(struct kernel_check *check)
{
    bool good = kernel_check_copies(check);
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (unsigned reduce = 0; reduce < REDUCE_COUNT; reduce++) {
            if (reduce_is_defined((enum dtype)dtype, (enum reduce)reduce)) {
                good = kernel_check_shapes(check, (enum dtype)dtype, (enum reduce)reduce) && good;
                good = kernel_check_values(check, (enum dtype)dtype, (enum reduce)reduce) && good;
            }
        }
    }
    return good;
}
