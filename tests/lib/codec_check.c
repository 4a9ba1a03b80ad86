#include "tests/lib/codec_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/compress.h"
#include "kernels/kernels.h"
#include "tests/lib/kernel_values.h"

#define GUARD_BYTES 64u
#define ROUNDS 150u /* of each format and direction */
#define PARTS_MAX 9u
#define COUNT_MAX 9000u

static const enum compression formats[] = {COMPRESSION_BF16, COMPRESSION_F8, COMPRESSION_TOP_K};

struct code_part {
    size_t values, residual, encoded, offsets; /* in the arena; 0: none */
    size_t count;
    size_t encoded_bytes;
};

struct code_case {
    enum compression format;
    bool encodes;
    bool has_residual;
    bool in_place; /* encoding: replaces; decoding: adds */
    uint32_t permille;
    uint32_t part_count;
    struct code_part parts[PARTS_MAX];
    size_t used_bytes;
};

static uint64_t draw(struct kernel_check *check, uint64_t below)
{
    return kernel_random(&check->random) % below;
}

/* Random numbers of one size, of all sizes, few different ones, or any bits. */
static void fill(struct kernel_check *check, size_t at, size_t count)
{
    uint64_t style = draw(check, 5);
    for (size_t i = 0; i < count; i++) {
        uint64_t random = kernel_random(&check->random);
        float unit = (float)(int32_t)(random >> 32) * 0x1p-31f;
        uint32_t any = (uint32_t)random;
        float value = unit;
        switch (style) {
        case 0:
            break;
        case 1:
            value = ldexpf(unit, (int)(random % 280) - 150);
            break;
        case 2:
            value = (float)((int)(random % 5) - 2);
            break;
        case 3:
            memcpy(&value, &any, sizeof value);
            break;
        default:
            value = random % 61 == 0 ? (random & 64 ? NAN : -INFINITY) : unit;
            break;
        }
        memcpy(check->before + at + i * sizeof value, &value, sizeof value);
    }
}

static size_t draw_count(struct kernel_check *check)
{
    static const size_t edges[] = {0, 1, 2, 3, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049, 4100};
    return draw(check, 2) == 0 ? draw(check, COUNT_MAX) : edges[draw(check, sizeof edges / sizeof edges[0])];
}

static size_t take(size_t *at, size_t bytes, size_t align)
{
    size_t begin = (*at + GUARD_BYTES + align - 1) / align * align;
    *at = begin + bytes;
    return begin;
}

static uint64_t room_of(const struct code_case *one, size_t count)
{
    size_t blocks = (count + CODEC_TOP_K_BLOCK - 1) / CODEC_TOP_K_BLOCK;
    return one->format == COMPRESSION_TOP_K ? blocks * codec_top_k_stride(one->permille)
                                            : host_compress_max_bytes(one->format, one->permille, count);
}

/* Decoding needs a valid payload: of other values. */
static void make_payload(struct kernel_check *check, const struct code_case *one, struct code_part *part)
{
    float *values = calloc(part->count + 1, sizeof *values);
    uint32_t offsets[COUNT_MAX / CODEC_TOP_K_BLOCK + 1];
    if (values == NULL) {
        abort();
    }
    fill(check, part->values, part->count);
    memcpy(values, check->before + part->values, part->count * sizeof *values);
    unsigned char *encoded = check->before + part->encoded;
    part->encoded_bytes = host_compress(one->format, one->permille, values, NULL, part->count, encoded);
    if (host_compress_check(one->format, encoded, part->encoded_bytes, part->count, offsets, NULL) !=
        STATUS_OK) {
        abort();
    }
    memcpy(check->before + part->offsets, offsets,
           (part->count + CODEC_TOP_K_BLOCK - 1) / CODEC_TOP_K_BLOCK * sizeof offsets[0]);
    free(values);
}

static void draw_case(struct kernel_check *check, struct code_case *one)
{
    static const uint32_t permilles[] = {0, 1, 10, 333, 999, 1000, 5000};
    one->permille = permilles[draw(check, sizeof permilles / sizeof permilles[0])];
    one->has_residual = one->encodes && draw(check, 2) == 0;
    one->in_place = draw(check, 2) == 0;
    one->part_count = draw(check, 3) == 0 ? 1 + (uint32_t)draw(check, PARTS_MAX) : 1;
    size_t at = 0;
    for (uint32_t p = 0; p < one->part_count; p++) {
        struct code_part *part = &one->parts[p];
        part->count = draw_count(check);
        part->values = take(&at, part->count * sizeof(float), 4);
        part->residual = one->has_residual ? take(&at, part->count * sizeof(float), 4) : 0;
        part->encoded = take(&at, room_of(one, part->count), KERNELS_CODE_ALIGN_BYTES);
        part->offsets = take(&at, (COUNT_MAX / CODEC_TOP_K_BLOCK + 1) * sizeof(uint32_t), 4);
        if (!one->encodes) {
            make_payload(check, one, part);
        }
        fill(check, part->values, part->count);
        if (one->has_residual) {
            fill(check, part->residual, part->count);
        }
    }
    one->used_bytes = at + GUARD_BYTES;
}

/* What the host does, with a GPU's gaps between the blocks of top_k. */
static void expect_encoded(const struct code_case *one, const struct code_part *part, unsigned char *arena)
{
    bool apart = one->format == COMPRESSION_TOP_K;
    size_t step = apart ? CODEC_TOP_K_BLOCK : part->count;
    float *values = (float *)(void *)(arena + part->values);
    float *residual = one->has_residual ? (float *)(void *)(arena + part->residual) : NULL;
    unsigned char *encoded = arena + part->encoded;
    for (size_t done = 0; done < part->count; done += step) {
        size_t count = part->count - done < step ? part->count - done : step;
        uint64_t bytes = host_compress(one->format, one->permille, values + done,
                                       residual == NULL ? NULL : residual + done, count, encoded);
        if (one->in_place &&
            host_decompress(one->format, encoded, bytes, count, values + done, false, NULL) != STATUS_OK) {
            abort();
        }
        encoded += codec_top_k_stride(one->permille);
    }
}

static void expect(struct kernel_check *check, const struct code_case *one)
{
    memcpy(check->expected, check->before, one->used_bytes);
    for (uint32_t p = 0; p < one->part_count; p++) {
        const struct code_part *part = &one->parts[p];
        if (one->encodes) {
            expect_encoded(one, part, check->expected);
        } else if (host_decompress(one->format, check->expected + part->encoded, part->encoded_bytes,
                                   part->count, (float *)(void *)(check->expected + part->values),
                                   one->in_place, NULL) != STATUS_OK) {
            abort();
        }
    }
}

static bool run(struct kernel_check *check, const struct code_case *one, const char *name)
{
    static const uint32_t grids[][2] = {{1, 1}, {1, 32}, {3, 64}, {2, 100}, {5, 512}, {40, 512}};
    const uint32_t *grid = grids[draw(check, sizeof grids / sizeof grids[0])];
    const struct kernel_runner *runner = check->runner;
    struct kernels_code arguments = {.part_count = one->part_count,
                                     .top_k_permille = one->permille,
                                     .replaces = one->encodes && one->in_place,
                                     .adds = !one->encodes && one->in_place};
    for (uint32_t p = 0; p < one->part_count; p++) {
        const struct code_part *part = &one->parts[p];
        uintptr_t arena = (uintptr_t)runner->arena;
        arguments.parts[p] = (struct kernels_code_part){
            .values = (float *)(arena + part->values),
            .residual = one->has_residual ? (float *)(arena + part->residual) : NULL,
            .encoded = (unsigned char *)(arena + part->encoded),
            .offsets = one->encodes ? NULL : (const uint32_t *)(arena + part->offsets),
            .count_elements = part->count};
    }
    return runner->upload(runner->context, check->before, one->used_bytes) &&
           runner->run(runner->context, name, &arguments, sizeof arguments, grid[0], grid[1]) &&
           runner->download(runner->context, check->got, one->used_bytes);
}

/* The payload of NaN may differ only where a decoded NaN is added. */
static bool is_nan_sum(const struct kernel_check *check, const struct code_case *one, size_t at)
{
    for (uint32_t p = 0; p < one->part_count; p++) {
        const struct code_part *part = &one->parts[p];
        if (!one->encodes && at >= part->values && at < part->values + part->count * sizeof(float)) {
            float got, expected;
            size_t element = part->values + (at - part->values) / sizeof got * sizeof got;
            memcpy(&got, check->got + element, sizeof got);
            memcpy(&expected, check->expected + element, sizeof expected);
            return one->in_place && isnan(got) && isnan(expected);
        }
    }
    return false;
}

static bool check_case(struct kernel_check *check, struct code_case *one)
{
    char name[64];
    (void)snprintf(name, sizeof name, one->encodes ? KERNELS_ENCODE_FORMAT : KERNELS_DECODE_FORMAT,
                   compression_text(one->format));
    draw_case(check, one);
    expect(check, one);
    check->cases++;
    if (!run(check, one, name)) {
        printf("%s: could not run\n", name);
        return false;
    }
    for (size_t i = 0; i < one->used_bytes; i++) {
        if (check->got[i] != check->expected[i] && !is_nan_sum(check, one, i)) {
            printf("%s, %u parts, the first of %zu elements, %u permille, residual %d, in place %d: byte %zu "
                   "of the arena is %02x, expected %02x (values from %zu, encoded from %zu)\n",
                   name, one->part_count, one->parts[0].count, one->permille, one->has_residual,
                   one->in_place, i, check->got[i], check->expected[i], one->parts[0].values,
                   one->parts[0].encoded);
            return false;
        }
    }
    return true;
}

bool codec_check(struct kernel_check *check)
{
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        for (uint32_t round = 0; round < 2 * ROUNDS; round++) {
            struct code_case one = {.format = formats[f], .encodes = round % 2 == 0};
            if (!check_case(check, &one)) {
                return false;
            }
        }
    }
    return true;
}
