#include "tests/sim/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/random.h"
#include "tests/lib/elements.h"

/* Half the distance between the smallest numbers of the short types. Rounding near zero may be off by that
 * much. */
static double data_smallest_step(enum dtype dtype)
{
    if (dtype == DTYPE_F8E4M3) {
        return 0x1p-10;
    }
    if (dtype == DTYPE_F8E5M2) {
        return 0x1p-17;
    }
    return dtype == DTYPE_F16 ? 0x1p-25 : 0;
}

/* --- Operands --- */

void data_fill(enum dtype dtype, enum reduce reduce, uint64_t seed, uint32_t rank, uint64_t count, void *out)
{
    struct random random;
    random_seed(&random, seed * 1000003 + rank);
    if (element_is_real(dtype)) {
        for (uint64_t i = 0; i < count * element_parts(dtype); i++) {
            double unit = (double)(random_u64(&random) >> 11) * 0x1p-52 - 1; /* in [-1, 1) */
            element_put_real(dtype, out, i, reduce == REDUCE_PROD ? 1 + unit / 64 : unit);
        }
        return;
    }
    size_t size = dtype_size_bytes(dtype);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = random_u64(&random);
        value = dtype == DTYPE_BOOL ? value % 2 : value;
        value |= reduce == REDUCE_PROD
                     ? 1
                     : 0; /* with an even factor from each of many ranks, only zero would be left */
        memcpy((uint8_t *)out + i * size, &value, size);
    }
}

/* --- References --- */

static void data_check_integer(enum dtype dtype, enum reduce reduce, uint32_t input_count,
                               const void *const *inputs, uint64_t index, const void *output)
{
    uint64_t expected = element_reduce_integers(dtype, reduce, input_count, inputs, index,
                                                reduce == REDUCE_AVG ? input_count : 0);
    uint64_t got = element_integer(dtype, output, index);
    if (got != expected) {
        fail_msg("%s %s of %u, element %llu: %llx instead of %llx", dtype_text(dtype), reduce_text(reduce),
                 input_count, (unsigned long long)index, (unsigned long long)got,
                 (unsigned long long)expected);
    }
}

static void data_check_real(enum dtype dtype, enum reduce reduce, uint32_t input_count,
                            const void *const *inputs, uint32_t steps, uint64_t index, const void *output)
{
    double expected = element_real(dtype, inputs[0], index);
    double magnitude = expected < 0 ? -expected : expected;
    for (uint32_t rank = 1; rank < input_count; rank++) {
        double value = element_real(dtype, inputs[rank], index);
        if (reduce == REDUCE_MIN || reduce == REDUCE_MAX) {
            expected = (value < expected) == (reduce == REDUCE_MIN) ? value : expected;
        } else if (reduce == REDUCE_PROD) {
            expected *= value;
            magnitude = magnitude > expected ? magnitude : expected;
        } else {
            expected += value;
            magnitude += value < 0 ? -value : value;
        }
    }
    double bound = 0;
    if (reduce != REDUCE_MIN && reduce != REDUCE_MAX) {
        double epsilon = element_unit_roundoff(dtype);
        bound = (steps + 1.0) * magnitude * epsilon + 1e-6 * magnitude * (epsilon > 0x1p-24);
        bound += steps * data_smallest_step(dtype);
    }
    if (reduce == REDUCE_AVG) {
        expected /= input_count;
        bound = bound / input_count + data_smallest_step(dtype);
    }
    double got = element_real(dtype, output, index);
    double off = got > expected ? got - expected : expected - got;
    if (!(off <= bound)) {
        fail_msg("%s %s of %u, element %llu: %.17g instead of %.17g, off by %g, allowed %g",
                 dtype_text(dtype), reduce_text(reduce), input_count, (unsigned long long)index, got,
                 expected, off, bound);
    }
}

void data_check_reduced(enum dtype dtype, enum reduce reduce, uint32_t input_count, const void *const *inputs,
                        uint32_t steps, uint64_t count, const void *output)
{
    assert_true(element_parts(dtype) == 1 || reduce == REDUCE_SUM || reduce == REDUCE_AVG);
    for (uint64_t i = 0; i < count * element_parts(dtype); i++) {
        if (element_is_real(dtype)) {
            data_check_real(dtype, reduce, input_count, inputs, steps, i, output);
        } else {
            data_check_integer(dtype, reduce, input_count, inputs, i, output);
        }
    }
}
