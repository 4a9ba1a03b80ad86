#include <math.h>
#include <string.h>

#include "client/commctl/bench.h"

/*
 * The numbers for a type: whole numbers from 0 on, and how many ranks' numbers add up without rounding in any
 * order. f16 represents all whole numbers up to 2048, bf16 up to 256, f8e4m3 up to 16, f8e5m2 up to 8.
 * Integers wrap.
 */
struct numbers {
    unsigned kinds;
    uint32_t exact_ranks;
};

/* They repeat after ROW of each kind. */
#define ROW 1024u
#define KINDS_MAX 13u

static struct numbers numbers_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F16:
        return (struct numbers){KINDS_MAX, 2048 / (KINDS_MAX - 1)};
    case DTYPE_BF16:
        return (struct numbers){3, 256 / 2};
    case DTYPE_F8E4M3:
        return (struct numbers){2, 16};
    case DTYPE_F8E5M2:
        return (struct numbers){2, 8};
    case DTYPE_I8:
    case DTYPE_U8:
        return (struct numbers){3, COMM_SIZE_MAX};
    case DTYPE_BOOL:
        return (struct numbers){2, COMM_SIZE_MAX};
    case DTYPE_F64:
    case DTYPE_F32:
    case DTYPE_I64:
    case DTYPE_I32:
    case DTYPE_I16:
    case DTYPE_U64:
    case DTYPE_U32:
    case DTYPE_U16:
    case DTYPE_C64:
    case DTYPE_C128:
        break;
    }
    return (struct numbers){KINDS_MAX, COMM_SIZE_MAX};
}

/* A complex element is two numbers. */
static enum dtype number_dtype(enum dtype dtype)
{
    return dtype == DTYPE_C64 ? DTYPE_F32 : dtype == DTYPE_C128 ? DTYPE_F64 : dtype;
}

static size_t period_numbers(enum dtype dtype)
{
    return (size_t)ROW * numbers_of(dtype).kinds;
}

static size_t period_elements(enum dtype dtype)
{
    return period_numbers(dtype) * dtype_size_bytes(number_dtype(dtype)) / dtype_size_bytes(dtype);
}

/*
 * Every rank has its own sequence, which is not another rank's sequence shifted. So data in the wrong place
 * are detected. If the sum over all ranks would be rounded, ranks take turns, and the others have 0.
 */
static double value_of_rank(const struct bench_options *options, size_t index, uint32_t rank)
{
    struct numbers numbers = numbers_of(options->dtype);
    uint32_t place = (uint32_t)(index % period_numbers(options->dtype));
    uint32_t turns = (options->size + numbers.exact_ranks - 1) / numbers.exact_ranks;
    if (options->reduce == REDUCE_SUM && (place + rank) % turns != 0) {
        return 0;
    }
    uint32_t mixed = place * 2654435761u ^ (rank + 1) * 0x85ebca6bu;
    mixed ^= mixed >> 15;
    mixed *= 0x2c1b3c6du;
    mixed ^= mixed >> 12;
    return (double)(mixed % numbers.kinds);
}

static double reduce_values(const struct bench_options *options, double left, double right)
{
    if (options->reduce == REDUCE_MIN) {
        return left < right ? left : right;
    }
    bool adds = options->reduce == REDUCE_SUM && options->dtype != DTYPE_BOOL;
    return adds           ? left + right
           : left > right ? left
                          : right; /* the sum of truth values: whether one is true */
}

double bench_value(const struct bench_options *options, uint32_t source, size_t index)
{
    double value = value_of_rank(options, index, source == BENCH_REDUCED ? 0 : source);
    for (uint32_t rank = 1; source == BENCH_REDUCED && rank < options->size; rank++) {
        value = reduce_values(options, value, value_of_rank(options, index, rank));
    }
    return value;
}

/* Returns the bits of a small whole number as a float with that many exponent and fraction bits. */
static uint16_t short_float_bits(double value, int exponent_bits, int fraction_bits)
{
    int exponent;
    double fraction = frexp(value, &exponent);
    if (value == 0) {
        return 0;
    }
    int bias = (1 << (exponent_bits - 1)) - 1;
    unsigned stored = (unsigned)(exponent - 1 + bias);
    unsigned bits = (unsigned)((fraction * 2 - 1) * (double)(1u << fraction_bits));
    return (uint16_t)(stored << fraction_bits | bits);
}

/* Integers are taken modulo 2^bits, as reductions do. */
static void put_integer(void *buffer, size_t index, size_t bytes, double value)
{
    uint64_t whole = (uint64_t)(int64_t)value;
    memcpy((unsigned char *)buffer + index * bytes, &whole, bytes); /* only right on little-endian machines */
}

static void put(enum dtype dtype, void *buffer, size_t index, double value)
{
    if (dtype == DTYPE_F64) {
        ((double *)buffer)[index] = value;
    } else if (dtype == DTYPE_F32) {
        ((float *)buffer)[index] = (float)value;
    } else if (dtype == DTYPE_F16) {
        ((uint16_t *)buffer)[index] = short_float_bits(value, 5, 10);
    } else if (dtype == DTYPE_BF16) {
        ((uint16_t *)buffer)[index] = short_float_bits(value, 8, 7);
    } else if (dtype == DTYPE_F8E4M3) {
        ((uint8_t *)buffer)[index] = (uint8_t)short_float_bits(value, 4, 3);
    } else if (dtype == DTYPE_F8E5M2) {
        ((uint8_t *)buffer)[index] = (uint8_t)short_float_bits(value, 5, 2);
    } else {
        put_integer(buffer, index, dtype_size_bytes(dtype), value);
    }
}

/* The parameters that determine the values of a source. */
struct pattern {
    enum dtype dtype;
    enum reduce reduce;
    uint32_t size;
    uint32_t source;
};

/* Two periods of a source's values, so that a whole period follows any index. Only one source is kept. */
static const unsigned char *pattern(const struct bench_options *options, uint32_t source)
{
    static _Alignas(16) unsigned char bytes[2 * ROW * KINDS_MAX * DTYPE_SIZE_MAX_BYTES];
    static struct pattern held = {.size = 0};
    size_t period_bytes = period_elements(options->dtype) * dtype_size_bytes(options->dtype);
    if (held.size != options->size || held.source != source || held.dtype != options->dtype ||
        held.reduce != options->reduce) {
        for (size_t i = 0; i < period_numbers(options->dtype); i++) {
            put(number_dtype(options->dtype), bytes, i, bench_value(options, source, i));
        }
        memcpy(bytes + period_bytes, bytes, period_bytes);
        held = (struct pattern){options->dtype, options->reduce, options->size, source};
    }
    return bytes;
}

void bench_fill(const struct bench_options *options, uint32_t source, size_t count, void *buffer)
{
    const unsigned char *values = pattern(options, source);
    size_t period = period_elements(options->dtype);
    size_t element = dtype_size_bytes(options->dtype);
    for (size_t done = 0; done < count; done += period) {
        size_t now = count - done < period ? count - done : period;
        memcpy((unsigned char *)buffer + done * element, values, now * element);
    }
}

size_t bench_wrong(const struct bench_options *options, uint32_t source, size_t first, size_t count,
                   const void *buffer)
{
    size_t period = period_elements(options->dtype);
    size_t element = dtype_size_bytes(options->dtype);
    const unsigned char *want = pattern(options, source) + first % period * element;
    const unsigned char *got = buffer;
    size_t wrong = 0;
    for (size_t done = 0; done < count; done += period, got += period * element) {
        size_t now = count - done < period ? count - done : period;
        if (memcmp(got, want, now * element) == 0) {
            continue;
        }
        for (size_t i = 0; i < now; i++) {
            wrong += memcmp(got + i * element, want + i * element, element) != 0;
        }
    }
    return wrong;
}
