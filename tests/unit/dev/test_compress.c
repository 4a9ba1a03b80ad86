#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/random.h"
#include "daemon/dev/compress.h"

#define COUNT_MAX 5000

static struct random random_state;
static float values[COUNT_MAX], residual[COUNT_MAX], decoded[COUNT_MAX];
static unsigned char packed[8 * COUNT_MAX];

static const enum compression compressions[] = {COMPRESSION_BF16, COMPRESSION_F8, COMPRESSION_TOP_K};
static const uint64_t counts[] = {0, 1, 2, 255, 256, 257, 1023, 1024, 1025, 2048, 4097, COUNT_MAX};

static bool is_finite(float value)
{
    return isfinite(value) != 0;
}

static float draw(float scale)
{
    double unit = (double)(random_u64(&random_state) >> 11) * 0x1p-52 - 1;
    return (float)(unit * unit * unit) * scale;
}

static void fill(uint64_t count, float scale)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = draw(scale);
    }
}

static uint64_t encode(enum compression compression, uint32_t permille, float *rest, uint64_t count)
{
    uint64_t most = dev_compress_max_bytes(compression, permille, count);
    memset(packed, 0x5a, sizeof packed);
    uint64_t size = dev_compress(compression, permille, values, rest, count, packed);
    assert_true(size <= most);
    for (uint64_t i = size; i < sizeof packed && i < size + 64; i++) {
        assert_int_equal(packed[i], 0x5a);
    }
    return size;
}

static void decode(enum compression compression, uint64_t size, uint64_t count, bool add)
{
    struct error error;
    if (dev_decompress(compression, packed, size, count, decoded, add, &error) != STATUS_OK) {
        fail_msg("%s: %s", compression_text(compression), error.text);
    }
}

/* The bounds that compress.h states. */
static float bound(enum compression compression, float x, float largest)
{
    switch (compression) {
    case COMPRESSION_BF16:
        return fabsf(x) / 256 + 0x1p-134f;
    case COMPRESSION_F8:
        return fmaxf(fabsf(x) / 16, 2 * largest / 448 / 1024) + 0x1p-126f;
    case COMPRESSION_NONE:
    case COMPRESSION_TOP_K:
        break;
    }
    return 0;
}

static void test_errors_are_within_their_bounds(void **state)
{
    static const float scales[] = {1, 1e-30f, 1e30f, 448, 1e-38f, 7};
    (void)state;
    for (uint32_t which = 0; which < 2; which++) {
        for (uint32_t s = 0; s < 6; s++) {
            for (uint32_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                fill(counts[c], scales[s]);
                uint64_t size = encode(compressions[which], 0, NULL, counts[c]);
                assert_int_equal(size, dev_compress_max_bytes(compressions[which], 0, counts[c]));
                decode(compressions[which], size, counts[c], false);
                for (uint64_t i = 0; i < counts[c]; i++) {
                    if (!(fabsf(decoded[i] - values[i]) <=
                          bound(compressions[which], values[i], scales[s]))) {
                        fail_msg("%s: %g became %g (scale %g)", compression_text(compressions[which]),
                                 (double)values[i], (double)decoded[i], (double)scales[s]);
                    }
                }
            }
        }
    }
}

static void test_top_k_keeps_the_largest(void **state)
{
    static const uint32_t permilles[] = {1, 10, 100, 500, 1000};
    (void)state;
    for (uint32_t p = 0; p < 5; p++) {
        for (uint32_t c = 1; c < sizeof counts / sizeof *counts; c++) {
            uint64_t count = counts[c];
            fill(count, 5);
            decode(COMPRESSION_TOP_K, encode(COMPRESSION_TOP_K, permilles[p], NULL, count), count, false);
            for (uint64_t begin = 0; begin < count; begin += DEV_COMPRESS_TOP_K_BLOCK) {
                uint64_t end =
                    begin + DEV_COMPRESS_TOP_K_BLOCK < count ? begin + DEV_COMPRESS_TOP_K_BLOCK : count;
                float least_kept = INFINITY, largest_left = 0;
                uint64_t kept = 0;
                for (uint64_t i = begin; i < end; i++) {
                    if (decoded[i] != 0) {
                        assert_true(decoded[i] == values[i]);
                        least_kept = fminf(least_kept, fabsf(values[i]));
                        kept++;
                    } else {
                        largest_left = fmaxf(largest_left, fabsf(values[i]));
                    }
                }
                assert_true(least_kept >= largest_left);
                uint64_t wanted = (permilles[p] * (end - begin) + 999) / 1000;
                assert_int_equal(kept, wanted < 1 ? 1 : wanted);
            }
        }
    }
    for (uint64_t i = 0; i < 100; i++) {
        values[i] = i % 2 == 0 ? -1.0f : 1.0f; /* equal magnitudes: the first */
    }
    decode(COMPRESSION_TOP_K, encode(COMPRESSION_TOP_K, 100, NULL, 100), 100, false);
    for (uint64_t i = 0; i < 100; i++) {
        assert_true((decoded[i] != 0) == (i < 10));
    }
}

/* Whatever is lost is in the residual: after many steps the sums differ by no more than that. */
static void test_error_feedback_loses_nothing(void **state)
{
    enum { STEPS = 60 };
    const uint32_t count = 3000;
    static double sent[COUNT_MAX], given[COUNT_MAX];
    (void)state;
    for (uint32_t which = 0; which < 3; which++) {
        memset(residual, 0, sizeof residual);
        memset(sent, 0, sizeof sent);
        memset(given, 0, sizeof given);
        for (uint32_t step = 0; step < STEPS; step++) {
            fill(count, 1);
            decode(compressions[which], encode(compressions[which], 50, residual, count), count, false);
            for (uint32_t i = 0; i < count; i++) {
                given[i] += (double)values[i];
                sent[i] += (double)decoded[i];
            }
        }
        for (uint32_t i = 0; i < count; i++) {
            double off = given[i] - sent[i] - (double)residual[i];
            assert_true(off < 1e-4 && off > -1e-4);
        }
    }
}

static void test_what_is_not_finite_stays_so(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 3; which++) {
        fill(300, 1);
        values[7] = NAN;
        values[260] = -INFINITY;
        memset(residual, 0, sizeof residual);
        decode(compressions[which], encode(compressions[which], 100, residual, 300), 300, false);
        assert_false(is_finite(decoded[7]));
        assert_false(is_finite(decoded[260]));
        assert_true(residual[7] == 0 && residual[260] == 0);
        for (uint32_t i = 0; i < 300; i++) {
            assert_true(is_finite(residual[i]));
            assert_true(i == 7 || i == 260 || is_finite(decoded[i]));
        }
    }
}

static void test_decoding_adds(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 3; which++) {
        float once[700];
        fill(700, 3);
        uint64_t size = encode(compressions[which], 200, NULL, 700);
        decode(compressions[which], size, 700, false);
        memcpy(once, decoded, sizeof once);
        decode(compressions[which], size, 700, true);
        for (uint32_t i = 0; i < 700; i++) {
            assert_true(decoded[i] == once[i] + once[i]);
        }
    }
}

/* Whatever comes off the wire is refused, or decoded within its bounds: under the sanitizers. */
static void test_malformed_payloads(void **state)
{
    struct error error;
    uint32_t refused = 0;
    (void)state;
    for (uint32_t turn = 0; turn < 30000; turn++) {
        enum compression compression = compressions[turn % 3];
        uint64_t count = random_below(&random_state, 3000);
        float *out = malloc((count + 1) * sizeof *out);
        fill(count, 1);
        uint64_t size = encode(compression, 30, NULL, count);
        for (uint64_t flips = random_below(&random_state, 4); flips > 0 && size > 0; flips--) {
            packed[random_below(&random_state, size)] ^=
                (unsigned char)(1u << random_below(&random_state, 8));
        }
        if (random_below(&random_state, 3) == 0) {
            size = random_below(&random_state, size + 3);
        }
        unsigned char *exact = malloc(size + 1);
        memcpy(exact, packed, size);
        refused += dev_decompress(compression, exact, size, count, out, turn % 2 == 0 && count == 0,
                                  &error) != STATUS_OK;
        free(exact);
        free(out);
    }
    assert_true(refused > 1000);
}

int main(void)
{
    random_seed(&random_state, 4711);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_are_within_their_bounds),
        cmocka_unit_test(test_top_k_keeps_the_largest),
        cmocka_unit_test(test_error_feedback_loses_nothing),
        cmocka_unit_test(test_what_is_not_finite_stays_so),
        cmocka_unit_test(test_decoding_adds),
        cmocka_unit_test(test_malformed_payloads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
