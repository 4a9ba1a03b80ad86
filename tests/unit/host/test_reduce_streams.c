#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/host/reduce.h"
#include "tests/lib/elements.h"

/*
 * Compares reductions that write past the caches, some of them in place, with reductions that write through
 * the caches, beside their inputs. Blocks and stores differ; the bits of the result are the same.
 * test_reduce.c checks that the result is right.
 */

enum {
    BUFFERS = 9,
    COUNT_MAX = 4200,
    GUARD = 64,
    OFFSETS = 66, /* a line and two bytes */
    POISON = 0xA5,
    PLACE_BYTES = COUNT_MAX * DTYPE_SIZE_MAX_BYTES + 2 * GUARD + OFFSETS
};

struct shape {
    enum dtype dtype;
    enum reduce reduce;
    uint32_t input_count, output_count;
    size_t count;
    size_t offset;     /* of the outputs, from a line */
    bool apart;        /* each has another offset */
    uint32_t in_place; /* bit o: output o is an input, the last one that is left */
};

static const char *const levels[] = {"portable", "avx2", "avx512"};
static _Alignas(64) unsigned char inputs[BUFFERS][PLACE_BYTES], kept[BUFFERS][PLACE_BYTES];
static _Alignas(64) unsigned char plain[BUFFERS][PLACE_BYTES], streamed[BUFFERS][PLACE_BYTES];

static size_t shape_bytes(const struct shape *shape)
{
    return shape->count * dtype_size_bytes(shape->dtype);
}

static size_t output_offset(const struct shape *shape, uint32_t output)
{
    return GUARD + (shape->offset + (shape->apart ? output * 11u : 0)) % OFFSETS;
}

static size_t input_offset(const struct shape *shape, uint32_t input)
{
    return (shape->offset * 7 + input * 5u) % OFFSETS;
}

/* Any bits, but the highest bit of a floating-point exponent is 0. So there is no infinity, and no NaN, whose
 * payloads may differ. */
static void fill_inputs(enum dtype dtype, size_t bytes)
{
    uint64_t state = 88172645463325252u + (uint64_t)dtype;
    for (uint32_t k = 0; k < BUFFERS; k++) {
        for (size_t i = 0; i < bytes; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            kept[k][i] = (unsigned char)(state >> 24);
            kept[k][i] &= (i + 1) % element_part_bytes(dtype) == 0 ? 0xbf : 0xff;
        }
    }
}

static void reduce(const struct shape *shape, unsigned char (*places)[PLACE_BYTES], bool streams)
{
    static const double factors[BUFFERS] = {0.5, -2, 1.25, 3, 0.75, -1, 2, 0.1, 1};
    const void *from[BUFFERS];
    void *to[BUFFERS];
    size_t bytes = shape_bytes(shape);
    uint32_t left = shape->input_count;
    for (uint32_t k = 0; k < shape->input_count; k++) {
        unsigned char *input = inputs[k] + input_offset(shape, k);
        memcpy(input, kept[k], bytes);
        from[k] = input;
    }
    for (uint32_t o = 0; o < shape->output_count; o++) {
        memset(places[o], POISON, bytes + 2 * GUARD + OFFSETS);
        to[o] = places[o] + output_offset(shape, o);
        if ((shape->in_place >> o & 1) != 0 && left > 0) {
            memcpy(to[o], from[--left], bytes);
            from[left] = to[o];
        }
    }
    host_reduce(&(struct host_reduction){
        .dtype = shape->dtype,
        .reduce = shape->reduce,
        .count_elements = shape->count,
        .input_count = shape->input_count,
        .output_count = shape->output_count,
        .inputs = from,
        .outputs = to,
        .factors = shape->reduce == REDUCE_PREMUL_SUM && shape->dtype <= DTYPE_F8E5M2 ? factors : NULL,
        .divisor = shape->reduce == REDUCE_AVG ? 3 : 0,
        .streams = streams});
    for (uint32_t k = 0; k < left; k++) {
        assert_memory_equal(from[k], kept[k], bytes);
    }
}

static bool is_poison(const unsigned char *bytes, size_t count)
{
    size_t i = 0;
    while (i < count && bytes[i] == POISON) {
        i++;
    }
    return i == count;
}

static void check(const struct shape *shape)
{
    size_t bytes = shape_bytes(shape);
    struct shape beside = *shape;
    beside.in_place = 0;
    reduce(&beside, plain, false);
    reduce(shape, streamed, true);
    for (uint32_t o = 0; o < shape->output_count; o++) {
        size_t before = output_offset(shape, o);
        size_t behind = before + bytes;
        if (memcmp(streamed[o] + before, plain[o] + before, bytes) != 0 || !is_poison(streamed[o], before) ||
            !is_poison(streamed[o] + behind, 2 * GUARD + OFFSETS - before)) {
            fail_msg("%s: %s %s, %u inputs, %u outputs, %zu elements, offset %zu%s, in place %#x: output %u "
                     "differs past the caches",
                     host_reduce_level_text(), dtype_text(shape->dtype), reduce_text(shape->reduce),
                     shape->input_count, shape->output_count, shape->count, shape->offset,
                     shape->apart ? ", apart" : "", shape->in_place, o);
        }
    }
}

/* Calls `work` at every level, for every type and the operators that it has. */
static void for_all(void (*work)(enum dtype dtype, enum reduce reduce))
{
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        fill_inputs((enum dtype)dtype, COUNT_MAX * dtype_size_bytes((enum dtype)dtype));
        for (size_t level = 0; level < sizeof levels / sizeof levels[0]; level++) {
            bool offered = host_reduce_force_level(levels[level], NULL) == STATUS_OK;
            for (unsigned reduce = 0; reduce < REDUCE_COUNT && offered; reduce++) {
                if (reduce_is_defined((enum dtype)dtype, (enum reduce)reduce)) {
                    work((enum dtype)dtype, (enum reduce)reduce);
                }
            }
        }
    }
}

/* All numbers of inputs and outputs. Offsets, tails and the outputs in place change from case to case. */
static void every_number_of_buffers(enum dtype dtype, enum reduce reduce)
{
    static const size_t counts[] = {129, 0, 31, 300, 1, 64, 513, 17, 250, 3, 127};
    static unsigned turn;
    struct shape shape = {.dtype = dtype, .reduce = reduce};
    for (uint32_t pair = 0; pair < 3 * BUFFERS * BUFFERS; pair++, turn++) {
        shape.input_count = 1 + pair % BUFFERS;
        shape.output_count = 1 + pair / BUFFERS % BUFFERS;
        shape.count = counts[turn % (sizeof counts / sizeof counts[0])];
        shape.offset = turn % OFFSETS;
        shape.apart = turn % 5 == 0;
        shape.in_place = turn % 3 == 0 ? 0 : turn * 0x9e3779b1u >> 23;
        check(&shape);
    }
}

static void test_every_type_operator_and_number(void **state)
{
    (void)state;
    for_all(every_number_of_buffers);
}

static void every_offset(enum dtype dtype, enum reduce reduce)
{
    struct shape shape = {.dtype = dtype, .reduce = reduce, .input_count = 3, .output_count = 3};
    for (shape.offset = 0; shape.offset < OFFSETS; shape.offset++) {
        for (size_t tail = 0; tail < 3; tail++) {
            shape.count = 64 * tail + (shape.offset * 5 + tail) % 67;
            shape.apart = tail == 1;
            shape.in_place = tail == 2 ? 2 : 0;
            check(&shape);
        }
    }
}

static void test_every_offset(void **state)
{
    (void)state;
    for_all(every_offset);
}

/* Counts around the sizes of all kinds of blocks: 512 bytes, 512 converted values, 8192 bytes. */
static void around_blocks(enum dtype dtype, enum reduce reduce)
{
    static const size_t blocks[] = {32, 64, 128, 256, 512, 1024, 2048, 4096};
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
        for (size_t count = blocks[b] - 1; count <= blocks[b] + 1; count++) {
            check(&(struct shape){.dtype = dtype,
                                  .reduce = reduce,
                                  .input_count = 2 + (uint32_t)(b % 2),
                                  .output_count = 2,
                                  .count = count,
                                  .offset = b % 3 * 16,
                                  .apart = count % 2 != 0,
                                  .in_place = b % 4});
        }
    }
}

static void test_blocks(void **state)
{
    (void)state;
    for_all(around_blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_operator_and_number),
        cmocka_unit_test(test_every_offset),
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
