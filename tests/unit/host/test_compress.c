#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/host/compress.h"
#include "daemon/host/reduce.h"
#include "kernels/convert_bits.h"

#define COUNT_MAX 5000
#define BYTES_MAX (COUNT_MAX * 7)
#define GUARD 32
#define POISON 0xA5
#define F8_BLOCK HOST_COMPRESS_F8_BLOCK
#define TOP_K_BLOCK HOST_COMPRESS_TOP_K_BLOCK

static const char *const levels[] = {"portable", "avx2", "avx512"};
static const size_t counts[] = {0,   1,   2,    7,    31,   33,   255,  256,  257,
                                511, 512, 1000, 1023, 1024, 1025, 2047, 2049, COUNT_MAX};
static const uint32_t permilles[] = {1, 10, 333, 1000};

enum content {
    CONTENT_RANDOM,
    CONTENT_SPREAD, /* any bits of a finite number: every exponent */
    CONTENT_STRUCTURED,
    CONTENT_TINY,
    CONTENT_HUGE,
    CONTENT_DENORMAL,
    CONTENT_ZERO,
    CONTENT_EQUAL,
    CONTENT_NOT_FINITE, /* some NaN and infinities among random */
    CONTENT_COUNT
};

static uint64_t hash_of(uint64_t number)
{
    number = (number + 1) * 0x9e3779b97f4a7c15ull;
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9ull;
    number = (number ^ (number >> 27)) * 0x94d049bb133111ebull;
    return number ^ (number >> 31);
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* In (-1, 1), different for every seed and element. */
static float random_value(uint64_t seed, size_t i)
{
    uint64_t hash = hash_of(seed * 1000003 + i);
    float value = (float)(hash & 0xffffffu) * 0x1p-24f;
    return (hash >> 40 & 1) != 0 ? -value : value;
}

static void fill(enum content content, uint64_t seed, float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t hash = (uint32_t)(hash_of(seed * 7919 + i) >> 13);
        float random = random_value(seed, i);
        switch (content) {
        case CONTENT_RANDOM:
        case CONTENT_COUNT:
            values[i] = random;
            break;
        case CONTENT_SPREAD:
            values[i] = float_of((hash & 0x7f800000u) == 0x7f800000u ? hash & 0xbfffffffu : hash);
            break;
        case CONTENT_STRUCTURED: /* a ramp over 30 binades, signs in turn, every third a power of two */
            values[i] =
                (i % 3 == 0 ? 1.0f : (float)(i + 1)) * ldexpf(i % 2 == 0 ? 1.0f : -1.0f, (int)(i % 30) - 20);
            break;
        case CONTENT_TINY:
            values[i] = random * 0x1p-120f;
            break;
        case CONTENT_HUGE:
            values[i] = i % 5 == 0 ? (i % 2 == 0 ? FLT_MAX : -FLT_MAX) : random * FLT_MAX;
            break;
        case CONTENT_DENORMAL:
            values[i] = float_of((hash & 0x80000000u) | (hash & (0x7fffffu >> (seed + i / F8_BLOCK) % 23)));
            break;
        case CONTENT_ZERO:
            values[i] = i % 3 == 0 ? -0.0f : 0.0f;
            break;
        case CONTENT_EQUAL:
            values[i] = i % 2 == 0 ? 3.0f : -3.0f;
            break;
        case CONTENT_NOT_FINITE:
            values[i] = hash % 97 != 0 ? random : hash % 5 == 0 ? -INFINITY : hash % 3 == 0 ? INFINITY : NAN;
            values[i] = hash % 97 == 0 && hash % 7 == 0 ? float_of(0xff801234u) : values[i];
            break;
        }
    }
}

/* The scale of a block, 2^exponent, by the definition. */
static double scale_expected(const float *x, size_t count)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++) {
        largest = isfinite(x[i]) ? fmax(largest, fabs((double)x[i])) : largest;
    }
    int exponent = -140;
    while (largest > ldexp(448, exponent)) {
        exponent++;
    }
    return largest == 0 ? 0 : ldexp(1, exponent);
}

static void check_f8_block(const float *x, const float *decoded, const unsigned char *payload, size_t count)
{
    double scale = scale_expected(x, count);
    float stored;
    memcpy(&stored, payload, sizeof stored);
    assert_true((double)stored == scale);
    double largest = 0;
    for (size_t i = 0; i < count; i++) {
        largest = isfinite(x[i]) ? fmax(largest, fabs((double)x[i])) : largest;
    }
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(x[i])) {
            assert_true(isnan(decoded[i]));
            continue;
        }
        double lost = fabs((double)x[i] - (double)decoded[i]);
        assert_true(isfinite(decoded[i]));
        assert_true(lost <= fmax(fabs((double)x[i]) * 0x1p-4, largest * 0x1p-17));
        assert_true(!signbit(x[i]) == !signbit(decoded[i]));
        /* No other code is nearer, if its value is a finite f32. */
        for (unsigned code = 0; code < 0x7f; code++) {
            double other = (double)bits_f8e4m3_to_f32((uint8_t)code) * scale;
            assert_true(other > (double)FLT_MAX || lost <= fabs(fabs((double)x[i]) - other));
        }
    }
}

static int by_magnitude(const void *left, const void *right)
{
    const float *a = *(const float *const *)left;
    const float *b = *(const float *const *)right;
    uint32_t a_bits = isnan(*a) ? 0x7fc00000u : bits_of(*a) & 0x7fffffffu;
    uint32_t b_bits = isnan(*b) ? 0x7fc00000u : bits_of(*b) & 0x7fffffffu;
    if (a_bits != b_bits) {
        return a_bits > b_bits ? -1 : 1;
    }
    return a < b ? -1 : a > b;
}

static void check_top_k_block(uint32_t permille, const float *x, const float *decoded, size_t count)
{
    const float *order[TOP_K_BLOCK];
    for (size_t i = 0; i < count; i++) {
        order[i] = &x[i];
    }
    qsort(order, count, sizeof order[0], by_magnitude);
    size_t kept = (size_t)ceil((double)permille * (double)count / 1000);
    kept = kept == 0 ? 1 : kept;
    for (size_t k = 0; k < count; k++) {
        float got = decoded[order[k] - x];
        float expected = k < kept && *order[k] != 0.0f ? *order[k] : 0.0f;
        assert_true(isnan(expected) ? bits_of(got) == 0x7fc00000u : bits_of(got) == bits_of(expected));
    }
}

static void check_bf16(float x, float decoded)
{
    if (isnan(x)) {
        assert_true(bits_of(decoded) == 0x7fc00000u);
        return;
    }
    if (isinf(x)) {
        assert_true(decoded == x);
        return;
    }
    double lost = fabs((double)x - (double)decoded);
    assert_true(isfinite(decoded));
    assert_true(lost <= fmax(fabs((double)x) * 0x1p-8, 0x1p-134));
    assert_true(!signbit(x) == !signbit(decoded));
    if (fabsf(x) <= 0x1.fep127f) {
        assert_true(bits_of(decoded) == bits_of(bits_bf16_to_f32(bits_f32_to_bf16(x))));
    }
}

static void check_decoded(enum compression compression, uint32_t permille, const float *x,
                          const float *decoded, const unsigned char *payload, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t f8_rest = count - i < F8_BLOCK ? count - i : F8_BLOCK;
        size_t top_k_rest = count - i < TOP_K_BLOCK ? count - i : TOP_K_BLOCK;
        switch (compression) {
        case COMPRESSION_NONE:
            assert_true(isnan(x[i]) ? isnan(decoded[i]) : bits_of(x[i]) == bits_of(decoded[i]));
            break;
        case COMPRESSION_BF16:
            check_bf16(x[i], decoded[i]);
            break;
        case COMPRESSION_F8:
            if (i % F8_BLOCK == 0) {
                check_f8_block(x + i, decoded + i, payload + i / F8_BLOCK * (F8_BLOCK + 4), f8_rest);
            }
            break;
        case COMPRESSION_TOP_K:
            if (i % TOP_K_BLOCK == 0) {
                check_top_k_block(permille, x + i, decoded + i, top_k_rest);
            }
            break;
        }
    }
}

static void check_residual(const float *x, const float *decoded, const float *residual, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        assert_true(isfinite(residual[i]));
        if (isfinite(x[i])) {
            assert_true((double)x[i] == (double)decoded[i] + (double)residual[i]);
        } else {
            assert_true(residual[i] == 0.0f);
        }
    }
}

static unsigned char payload_space[BYTES_MAX + 2 * GUARD + 8];
static unsigned char payload_first[BYTES_MAX];
static float values[COUNT_MAX], residual_before[COUNT_MAX], x[COUNT_MAX];
static float residual_space[COUNT_MAX + 16], decoded_space[COUNT_MAX + 16], residual_first[COUNT_MAX];

static void poison(void *memory, size_t bytes)
{
    memset(memory, POISON, bytes);
}

static void check_poison(const void *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(((const unsigned char *)memory)[i], POISON);
    }
}

/* Encodes values (with residual_before) at the current level, decodes them, and checks both. The payload
 * begins at any address: shift. */
static uint64_t check_round(enum compression compression, uint32_t permille, size_t count, bool feedback,
                            size_t shift)
{
    unsigned char *payload = payload_space + GUARD + shift;
    float *residual = residual_space + 8, *decoded = decoded_space + 8;
    poison(payload_space, sizeof payload_space);
    poison(residual_space, sizeof residual_space);
    poison(decoded_space, sizeof decoded_space);
    memcpy(residual, residual_before, count * sizeof(float));
    uint64_t room = host_compress_max_bytes(compression, permille, count);
    uint64_t bytes = host_compress(compression, permille, values, feedback ? residual : NULL, count, payload);
    assert_true(compression == COMPRESSION_TOP_K ? bytes <= room : bytes == room);
    check_poison(payload_space, GUARD + shift);
    check_poison(payload + bytes, GUARD);
    check_poison(residual_space, 8 * sizeof(float));
    check_poison(residual + count, 8 * sizeof(float));
    struct error error;
    assert_int_equal(host_decompress(compression, payload, bytes, count, decoded, false, &error), STATUS_OK);
    check_poison(decoded_space, 8 * sizeof(float));
    check_poison(decoded + count, 8 * sizeof(float));
    check_decoded(compression, permille, x, decoded, payload, count);
    if (feedback) {
        check_residual(x, decoded, residual, count);
    }
    float *added = malloc(count * sizeof(float) + 1);
    for (size_t i = 0; i < count; i++) {
        added[i] = (float)i * 0.25f;
    }
    assert_int_equal(host_decompress(compression, payload, bytes, count, added, true, &error), STATUS_OK);
    for (size_t i = 0; i < count; i++) {
        float expected = (float)i * 0.25f + decoded[i];
        assert_true(isnan(expected) ? isnan(added[i]) : added[i] == expected);
    }
    free(added);
    return bytes;
}

static void check_case(enum compression compression, uint32_t permille, enum content content, size_t count,
                       bool feedback)
{
    static uint64_t seed;
    uint64_t first_bytes = UINT64_MAX;
    fill(content, ++seed, values, count);
    for (size_t i = 0; i < count; i++) {
        residual_before[i] = values[i] * 0.01f * random_value(seed + 1, i);
        residual_before[i] = isfinite(residual_before[i]) ? residual_before[i] : 0.125f;
        x[i] = feedback ? values[i] + residual_before[i] : values[i];
    }
    for (size_t level = 0; level < 3; level++) {
        if (host_reduce_force_level(levels[level], NULL) != STATUS_OK) {
            continue;
        }
        uint64_t bytes = check_round(compression, permille, count, feedback, (count + level) % 5);
        const unsigned char *payload = payload_space + GUARD + (count + level) % 5;
        if (first_bytes == UINT64_MAX) {
            first_bytes = bytes;
            memcpy(payload_first, payload, bytes);
            memcpy(residual_first, residual_space + 8, count * sizeof(float));
        }
        assert_int_equal(bytes, first_bytes);
        assert_memory_equal(payload, payload_first, bytes);
        assert_memory_equal(residual_space + 8, residual_first, count * sizeof(float));
    }
}

static void test_bounds_of_all_contents(void **state)
{
    (void)state;
    for (int content = 0; content < CONTENT_COUNT; content++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            for (int feedback = 0; feedback < 2; feedback++) {
                check_case(COMPRESSION_NONE, 0, (enum content)content, counts[c], feedback != 0);
                check_case(COMPRESSION_BF16, 0, (enum content)content, counts[c], feedback != 0);
                check_case(COMPRESSION_F8, 0, (enum content)content, counts[c], feedback != 0);
                for (size_t p = 0; p < sizeof permilles / sizeof permilles[0]; p++) {
                    check_case(COMPRESSION_TOP_K, permilles[p], (enum content)content, counts[c],
                               feedback != 0);
                }
            }
        }
    }
}

/* Every power of two and its neighbours as the block's maximum. */
static void test_f8_scales(void **state)
{
    (void)state;
    static const uint32_t fractions[] = {0, 1, 0x400000, 0x5fffff, 0x600000, 0x600001, 0x7fffff};
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        for (size_t f = 0; f < sizeof fractions / sizeof fractions[0]; f++) {
            float block[3] = {float_of(exponent << 23 | fractions[f]), 0, 0};
            block[1] = -block[0] * 0.37f;
            block[2] = block[0] * 0x1p-12f + 0.0f;
            block[1] = block[1] + 0.0f; /* no -0, because adding the residual leaves none */
            unsigned char payload[7];
            float decoded[3], residual[3] = {0, 0, 0};
            assert_int_equal(host_compress(COMPRESSION_F8, 0, block, residual, 3, payload), 7);
            assert_int_equal(host_decompress(COMPRESSION_F8, payload, 7, 3, decoded, false, NULL), STATUS_OK);
            check_f8_block(block, decoded, payload, 3);
            check_residual(block, decoded, residual, 3);
        }
    }
}

/* The bytes themselves, by hand: these are a wire format. */
static void test_golden_bytes(void **state)
{
    (void)state;
    const float in[5] = {448.0f, 1.0f, -0.5f, 0.0f, NAN};
    const unsigned char f8[9] = {0x00, 0x00, 0x80, 0x3f, 0x7e, 0x38, 0xb0, 0x00, 0x7f};
    const unsigned char bf16[10] = {0xe0, 0x43, 0x80, 0x3f, 0x00, 0xbf, 0x00, 0x00, 0xc0, 0x7f};
    const unsigned char top_k[14] = {0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0xe0,
                                     0x43, 0x04, 0x00, 0x00, 0x00, 0xc0, 0x7f};
    unsigned char out[64];
    assert_int_equal(host_compress(COMPRESSION_F8, 0, in, NULL, 5, out), sizeof f8);
    assert_memory_equal(out, f8, sizeof f8);
    assert_int_equal(host_compress(COMPRESSION_BF16, 0, in, NULL, 5, out), sizeof bf16);
    assert_memory_equal(out, bf16, sizeof bf16);
    assert_int_equal(host_compress(COMPRESSION_TOP_K, 400, in, NULL, 5, out), sizeof top_k);
    assert_memory_equal(out, top_k, sizeof top_k);

    const float edge[4] = {FLT_MAX, -FLT_MAX, INFINITY, -INFINITY};
    const unsigned char f8_edge[8] = {0x00, 0x00, 0x80, 0x7b, 0x77, 0xf7, 0x7f, 0x7f};
    const unsigned char bf16_edge[8] = {0x7f, 0x7f, 0x7f, 0xff, 0x80, 0x7f, 0x80, 0xff};
    assert_int_equal(host_compress(COMPRESSION_F8, 0, edge, NULL, 4, out), sizeof f8_edge);
    assert_memory_equal(out, f8_edge, sizeof f8_edge);
    assert_int_equal(host_compress(COMPRESSION_BF16, 0, edge, NULL, 4, out), sizeof bf16_edge);
    assert_memory_equal(out, bf16_edge, sizeof bf16_edge);
}

static void test_max_bytes(void **state)
{
    (void)state;
    assert_int_equal(host_compress_max_bytes(COMPRESSION_NONE, 0, 1000), 4000);
    assert_int_equal(host_compress_max_bytes(COMPRESSION_BF16, 0, 1000), 2000);
    assert_int_equal(host_compress_max_bytes(COMPRESSION_F8, 0, 512), 520);
    assert_int_equal(host_compress_max_bytes(COMPRESSION_F8, 0, 513), 525);
    /* k = ceil(10.24) of a whole block, ceil(0.01) of one element */
    assert_int_equal(host_compress_max_bytes(COMPRESSION_TOP_K, 10, 1024), 2 + 6 * 11);
    assert_int_equal(host_compress_max_bytes(COMPRESSION_TOP_K, 10, 2049), 2 * (2 + 6 * 11) + 8);
    assert_int_equal(host_compress_max_bytes(COMPRESSION_TOP_K, 0, 1024), 8);
    assert_int_equal(host_compress_max_bytes(COMPRESSION_TOP_K, 5000, 1024), 2 + 6 * 1024);
    for (int compression = 0; compression < COMPRESSION_COUNT; compression++) {
        assert_int_equal(host_compress_max_bytes((enum compression)compression, 10, 0), 0);
        assert_true(host_compress_max_bytes((enum compression)compression, 1000, UINT64_MAX) == UINT64_MAX);
        assert_true(host_compress_max_bytes((enum compression)compression, 1000, UINT64_MAX / 8) <
                    UINT64_MAX);
        float none = 0;
        assert_int_equal(host_decompress((enum compression)compression, (const unsigned char *)"", 0,
                                         UINT64_MAX, &none, false, NULL),
                         STATUS_PROTOCOL);
    }
}

/* Over many steps, the decoded values sum up to the given values less the residual that is left. */
static void check_feedback(enum compression compression, uint32_t permille)
{
    enum { COUNT = 1300, STEPS = 200 };
    static float residual[COUNT], decoded[COUNT], step_values[COUNT];
    static double sum_given[COUNT], sum_decoded[COUNT], slack[COUNT];
    static unsigned char payload[COUNT * 7];
    memset(residual, 0, sizeof residual);
    memset(sum_given, 0, sizeof sum_given);
    memset(sum_decoded, 0, sizeof sum_decoded);
    memset(slack, 0, sizeof slack);
    for (uint64_t step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < COUNT; i++) { /* a constant and noise, of different sizes along the vector */
            step_values[i] = (random_value(99, i) + 0.5f * random_value(step, i)) * (float)(1 + i % 17);
            sum_given[i] += (double)step_values[i];
            slack[i] += (fabs((double)step_values[i]) + fabs((double)residual[i])) * 0x1p-24;
        }
        uint64_t bytes = host_compress(compression, permille, step_values, residual, COUNT, payload);
        assert_int_equal(host_decompress(compression, payload, bytes, COUNT, decoded, false, NULL),
                         STATUS_OK);
        for (size_t i = 0; i < COUNT; i++) {
            sum_decoded[i] += (double)decoded[i];
        }
    }
    for (size_t i = 0; i < COUNT; i++) {
        double difference = sum_given[i] - sum_decoded[i] - (double)residual[i];
        assert_true(fabs(difference) <= slack[i] + 1e-9);
        if (compression != COMPRESSION_TOP_K) { /* the residual is the error of one step, not of all */
            assert_true(fabs((double)residual[i]) <= 17 * 1.5 * 1.1 * 0x1p-4);
        }
    }
    if (compression == COMPRESSION_TOP_K) { /* the residual does not grow with the steps */
        double left = 0, given = 0;
        for (size_t i = 0; i < COUNT; i++) {
            left += fabs((double)residual[i]);
            given += fabs(sum_given[i]);
        }
        assert_true(left < 0.2 * given);
    }
}

static void test_error_feedback(void **state)
{
    (void)state;
    check_feedback(COMPRESSION_NONE, 0);
    check_feedback(COMPRESSION_BF16, 0);
    check_feedback(COMPRESSION_F8, 0);
    check_feedback(COMPRESSION_TOP_K, 50);
    check_feedback(COMPRESSION_TOP_K, 200);
}

/* The payload in memory of exactly its size, so that a sanitizer sees a read beyond it. */
static enum status decode_exact(enum compression compression, const unsigned char *payload, uint64_t bytes,
                                size_t count, bool add)
{
    unsigned char *exact = malloc(bytes == 0 ? 1 : (size_t)bytes);
    float *out = malloc(count == 0 ? 1 : count * sizeof(float));
    struct error error = {STATUS_OK, ""};
    memcpy(exact, payload, (size_t)bytes);
    memset(out, 0x3e, count * sizeof(float));
    /* An empty payload is at the end of the allocation. */
    enum status status =
        host_decompress(compression, bytes == 0 ? exact + 1 : exact, bytes, count, out, add, &error);
    if (status != STATUS_OK) {
        assert_int_equal(status, STATUS_PROTOCOL);
        assert_int_equal(error.status, STATUS_PROTOCOL);
        assert_non_null(strstr(error.text, "compressed payload"));
        for (size_t i = 0; i < count * sizeof(float); i++) {
            assert_int_equal(((unsigned char *)out)[i], 0x3e);
        }
    }
    free(exact);
    free(out);
    return status;
}

static void test_malformed_named(void **state)
{
    (void)state;
    unsigned char payload[BYTES_MAX];
    fill(CONTENT_RANDOM, 5, values, 2000);
    for (int c = 0; c < COMPRESSION_COUNT; c++) {
        enum compression compression = (enum compression)c;
        uint64_t bytes = host_compress(compression, 20, values, NULL, 2000, payload);
        assert_int_equal(decode_exact(compression, payload, bytes, 2000, false), STATUS_OK);
        for (uint64_t shorter = 0; shorter < bytes; shorter += 1 + shorter / 50) {
            assert_int_equal(decode_exact(compression, payload, shorter, 2000, false), STATUS_PROTOCOL);
        }
        assert_int_equal(decode_exact(compression, payload, bytes + 1, 2000, false), STATUS_PROTOCOL);
        assert_int_equal(decode_exact(compression, payload, bytes, 800, true), STATUS_PROTOCOL);
        assert_int_equal(decode_exact(compression, payload, bytes, 3100, true), STATUS_PROTOCOL);
    }
    static const uint32_t bad_scales[] = {1,          0x100,      0x300,      0x7fffff,
                                          0x3f800001, 0x3fc00000, 0x7c000000, 0x7f800000,
                                          0x7fc00000, 0x80000000, 0xbf800000, 0xffffffff};
    for (size_t s = 0; s < sizeof bad_scales / sizeof bad_scales[0]; s++) {
        uint64_t bytes = host_compress(COMPRESSION_F8, 0, values, NULL, 300, payload);
        memcpy(payload + 260, &bad_scales[s], 4);
        assert_int_equal(decode_exact(COMPRESSION_F8, payload, bytes, 300, true), STATUS_PROTOCOL);
    }
    static const uint32_t good_scales[] = {0, 0x200, 0x400, 0x400000, 0x800000, 0x3f800000, 0x7b800000};
    for (size_t s = 0; s < sizeof good_scales / sizeof good_scales[0]; s++) {
        uint64_t bytes = host_compress(COMPRESSION_F8, 0, values, NULL, 300, payload);
        memcpy(payload + 260, &good_scales[s], 4);
        assert_int_equal(decode_exact(COMPRESSION_F8, payload, bytes, 300, true), STATUS_OK);
    }
    /* Payloads with two of three elements, whose indices are equal, fall, or lie beyond the block. Then a
     * payload with more elements than the block. */
    static const unsigned char bad_indices[][2] = {{1, 1}, {1, 0}, {2, 3}, {3, 4}, {0, 255}};
    for (size_t b = 0; b < sizeof bad_indices / sizeof bad_indices[0]; b++) {
        unsigned char pair[14] = {2, 0, bad_indices[b][0], 0, 0, 0, 0, 0, bad_indices[b][1]};
        assert_int_equal(decode_exact(COMPRESSION_TOP_K, pair, 14, 3, true), STATUS_PROTOCOL);
    }
    unsigned char many[2 + 4 * 6] = {4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 3};
    assert_int_equal(decode_exact(COMPRESSION_TOP_K, many, sizeof many, 3, true), STATUS_PROTOCOL);
    assert_int_equal(decode_exact(COMPRESSION_TOP_K, many, sizeof many, 4, true), STATUS_OK);
}

static void test_malformed_random(void **state)
{
    (void)state;
    unsigned char payload[BYTES_MAX];
    unsigned accepted = 0, refused = 0;
    for (uint64_t round = 0; round < 20000; round++) {
        uint64_t hash = hash_of(round);
        enum compression compression = (enum compression)(hash % COMPRESSION_COUNT);
        size_t count = (size_t)(hash >> 8) % 2100;
        uint64_t bytes;
        if (host_reduce_force_level(levels[(hash >> 60) % 3], NULL) != STATUS_OK) {
            continue;
        }
        if (hash >> 4 & 1) { /* noise */
            bytes = host_compress_max_bytes(compression, (uint32_t)(hash >> 20) % 30, count);
            for (uint64_t i = 0; i < bytes; i++) {
                payload[i] = (unsigned char)(hash_of(hash + i) & (i % 2 == 0 ? 0xff : 0x83));
            }
        } else { /* a payload with some bytes changed, cut or made longer */
            fill(CONTENT_RANDOM, round, values, count);
            bytes = host_compress(compression, (uint32_t)(hash >> 20) % 30, values, NULL, count, payload);
            for (uint64_t change = hash >> 40 & 3; change > 0 && bytes > 0; change--) {
                payload[hash_of(hash + change) % bytes] ^= (unsigned char)(1u << (hash >> (44 + change) & 7));
            }
            bytes = (hash >> 50 & 7) == 0 ? bytes - bytes % 7 % (bytes + 1) : bytes;
            if ((hash >> 50 & 7) == 1) {
                payload[bytes++] = (unsigned char)hash;
            }
        }
        bool ok = decode_exact(compression, payload, bytes, count, (hash >> 55 & 1) != 0) == STATUS_OK;
        accepted += ok;
        refused += !ok;
    }
    assert_true(accepted > 1000 && refused > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_bytes),     cmocka_unit_test(test_max_bytes),
        cmocka_unit_test(test_f8_scales),        cmocka_unit_test(test_bounds_of_all_contents),
        cmocka_unit_test(test_error_feedback),   cmocka_unit_test(test_malformed_named),
        cmocka_unit_test(test_malformed_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
