#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/convert_bits.h"

/* The reference works on values, not on bits. A short type is the sorted list of its finite non-negative
 * values. The answer is the nearest value. Of two that are equally near, it is the one with the even code. */
struct format {
    int exponent_bits;
    int mantissa_bits;
    bool has_infinity;
    unsigned top_code; /* the largest finite one */
};

static const struct format format_f16 = {5, 10, true, 0x7bff};
static const struct format format_bf16 = {8, 7, true, 0x7f7f};
static const struct format format_f8e4m3 = {4, 3, false, 0x7e};
static const struct format format_f8e5m2 = {5, 2, true, 0x7b};

static double value_of(const struct format *format, unsigned code)
{
    int bias = (1 << (format->exponent_bits - 1)) - 1;
    int exponent = (int)(code >> format->mantissa_bits);
    double mantissa = (double)(code & ((1u << format->mantissa_bits) - 1));
    double one = (double)(1u << format->mantissa_bits);
    return exponent == 0 ? ldexp(mantissa / one, 1 - bias) : ldexp(1 + mantissa / one, exponent - bias);
}

/* Returns the code nearest to a finite magnitude. saturates (f8): every larger value becomes the top. Without
 * it, values from half a step above the top on overflow. */
static unsigned nearest_code(const struct format *format, double magnitude, bool saturates)
{
    unsigned low = 0, high = format->top_code;
    double top = value_of(format, high);
    double step = top - value_of(format, high - 1);
    if (magnitude >= top) {
        return saturates || magnitude < top + step / 2 ? high : high + 1;
    }
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (value_of(format, middle) <= magnitude) {
            low = middle;
        } else {
            high = middle;
        }
    }
    double below = magnitude - value_of(format, low);
    double above = value_of(format, low + 1) - magnitude;
    if (below == above) {
        return low % 2 == 0 ? low : low + 1;
    }
    return below < above ? low : low + 1;
}

static float f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

struct conversion {
    const struct format *format;
    unsigned sign;
    bool saturates;
    float (*to_f32)(unsigned code);
    unsigned (*from_f32)(float value);
};

static float f16_up(unsigned code)
{
    return bits_f16_to_f32((uint16_t)code);
}
static unsigned f16_down(float value)
{
    return bits_f32_to_f16(value);
}
static float bf16_up(unsigned code)
{
    return bits_bf16_to_f32((uint16_t)code);
}
static unsigned bf16_down(float value)
{
    return bits_f32_to_bf16(value);
}
static float e4m3_up(unsigned code)
{
    return bits_f8e4m3_to_f32((uint8_t)code);
}
static unsigned e4m3_down(float value)
{
    return bits_f32_to_f8e4m3(value);
}
static float e5m2_up(unsigned code)
{
    return bits_f8e5m2_to_f32((uint8_t)code);
}
static unsigned e5m2_down(float value)
{
    return bits_f32_to_f8e5m2(value);
}

static const struct conversion f16 = {&format_f16, 0x8000, false, f16_up, f16_down};
static const struct conversion bf16 = {&format_bf16, 0x8000, false, bf16_up, bf16_down};
static const struct conversion f8e4m3 = {&format_f8e4m3, 0x80, true, e4m3_up, e4m3_down};
static const struct conversion f8e5m2 = {&format_f8e5m2, 0x80, true, e5m2_up, e5m2_down};

static void check_down(const struct conversion *conversion, float value)
{
    unsigned got = conversion->from_f32(value);
    unsigned sign = signbit(value) ? conversion->sign : 0;
    unsigned magnitude = got & (conversion->sign - 1);
    if (isnan(value)) {
        assert_true(isnan(conversion->to_f32(got)));
        assert_int_equal(got & conversion->sign, sign);
        return;
    }
    unsigned expected;
    if (isinf(value)) {
        expected = conversion->format->has_infinity ? conversion->format->top_code + 1
                                                    : conversion->format->top_code;
    } else {
        expected = nearest_code(conversion->format, fabs((double)value), conversion->saturates);
    }
    if (magnitude != expected || (got & conversion->sign) != sign) {
        fail_msg("%a (0x%08x): got 0x%x, expected 0x%x", (double)value, bits_from_f32(value), got,
                 expected | sign);
    }
}

/* Converts every code to f32 and back. Also converts values around the midpoint between every two neighbours
 * down to the short type. Both with both signs. */
static void check_all(const struct conversion *conversion)
{
    unsigned codes = conversion->sign * 2;
    for (unsigned code = 0; code < codes; code++) {
        float value = conversion->to_f32(code);
        unsigned magnitude = code & (conversion->sign - 1);
        if (magnitude > conversion->format->top_code) {
            bool infinite = conversion->format->has_infinity && magnitude == conversion->format->top_code + 1;
            assert_true(infinite ? isinf(value) : isnan(value));
            assert_int_equal(signbit(value) != 0, (code & conversion->sign) != 0);
            check_down(conversion, value);
            continue;
        }
        double expected = value_of(conversion->format, magnitude);
        assert_true((double)value == ((code & conversion->sign) != 0 ? -expected : expected));
        assert_int_equal(conversion->from_f32(value), code);
        double middle = (expected + value_of(conversion->format, magnitude + 1)) / 2;
        uint32_t around = bits_from_f32((float)middle);
        for (uint32_t bits = around > 2 ? around - 2 : 0; bits <= around + 2; bits++) {
            check_down(conversion, f32_from_bits(bits | ((code & conversion->sign) != 0 ? 0x80000000u : 0)));
        }
    }
    uint32_t bits = 12345;
    for (int i = 0; i < 300000; i++) {
        bits = bits * 1664525u + 1013904223u;
        check_down(conversion, f32_from_bits(bits));
    }
    static const uint32_t special[] = {0,           0x80000000u, 1,           0x007fffffu, 0x7f7fffffu,
                                       0x7f800000u, 0xff800000u, 0x7f800001u, 0xffc00001u, 0x7fffffffu};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        check_down(conversion, f32_from_bits(special[i]));
    }
}

static void test_f16(void **state)
{
    (void)state;
    check_all(&f16);
}
static void test_bf16(void **state)
{
    (void)state;
    check_all(&bf16);
}
static void test_f8e4m3(void **state)
{
    (void)state;
    check_all(&f8e4m3);
}
static void test_f8e5m2(void **state)
{
    (void)state;
    check_all(&f8e5m2);
}

static void test_carry_into_the_exponent(void **state)
{
    (void)state;
    assert_int_equal(bits_f32_to_f16(1.9998f), 0x4000); /* 2.0: an earlier implementation lost this carry */
    assert_int_equal(bits_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(bits_f32_to_f16(65520.0f), 0x7c00);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f8e4m3),
        cmocka_unit_test(test_f8e5m2),
        cmocka_unit_test(test_carry_into_the_exponent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
