#include <math.h>
#include <string.h>

#include "client/commctl/bench.h"

/* Those whose small whole numbers are told from each other, and whose sums have a meaning. */
bool bench_dtype_is_supported(enum dtype dtype)
{
    return dtype_size_bytes(dtype) <= 8 && dtype != DTYPE_BOOL && dtype != DTYPE_F8E4M3 &&
           dtype != DTYPE_F8E5M2 && dtype != DTYPE_C64;
}

/* Values repeat after so many elements. bf16 counts to 256 without a gap, i8 to 127. */
#define ROW 1024u
#define KINDS_MAX 13u

static unsigned kinds_of(enum dtype dtype)
{
    return dtype == DTYPE_BF16 || dtype == DTYPE_I8 || dtype == DTYPE_U8 ? 3 : KINDS_MAX;
}

static size_t period_of(enum dtype dtype)
{
    return (size_t)ROW * kinds_of(dtype);
}

/* Every rank has a sequence of its own, not one that is another's shifted: what is in the wrong place shows.
 */
static double value_of_rank(enum dtype dtype, size_t index, uint32_t rank)
{
    uint32_t mixed = (uint32_t)(index % period_of(dtype)) * 2654435761u ^ (rank + 1) * 0x85ebca6bu;
    mixed ^= mixed >> 15;
    mixed *= 0x2c1b3c6du;
    mixed ^= mixed >> 12;
    return (double)(mixed % kinds_of(dtype));
}

static double value_reduced(const struct bench_options *options, size_t index)
{
    double reduced = value_of_rank(options->dtype, index, 0);
    for (uint32_t rank = 1; rank < options->size; rank++) {
        double value = value_of_rank(options->dtype, index, rank);
        if (options->reduce == REDUCE_SUM) {
            reduced += value;
        } else if (options->reduce == REDUCE_MIN ? value < reduced : value > reduced) {
            reduced = value;
        }
    }
    return reduced;
}

double bench_value(const struct bench_options *options, uint32_t source, size_t index)
{
    return source == BENCH_REDUCED ? value_reduced(options, index)
                                   : value_of_rank(options->dtype, index, source);
}

/* The bits of a small whole number in a float of that many exponent and fraction bits. */
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
    memcpy((unsigned char *)buffer + index * bytes, &whole, bytes); /* little-endian machines alone */
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
    } else {
        put_integer(buffer, index, dtype_size_bytes(dtype), value);
    }
}

/* What the values of a source depend on. */
struct pattern {
    enum dtype dtype;
    enum reduce reduce;
    uint32_t size;
    uint32_t source;
};

/* The values of a source, twice over: from any index on, a period lies together. One at a time is kept. */
static const unsigned char *pattern(const struct bench_options *options, uint32_t source)
{
    static _Alignas(16) unsigned char bytes[2 * ROW * KINDS_MAX * DTYPE_SIZE_MAX_BYTES];
    static struct pattern held = {.size = 0};
    size_t period = period_of(options->dtype);
    size_t element = dtype_size_bytes(options->dtype);
    if (held.size != options->size || held.source != source || held.dtype != options->dtype ||
        held.reduce != options->reduce) {
        for (size_t i = 0; i < period; i++) {
            put(options->dtype, bytes, i, bench_value(options, source, i));
        }
        memcpy(bytes + period * element, bytes, period * element);
        held = (struct pattern){options->dtype, options->reduce, options->size, source};
    }
    return bytes;
}

void bench_fill(const struct bench_options *options, uint32_t source, size_t count, void *buffer)
{
    const unsigned char *values = pattern(options, source);
    size_t period = period_of(options->dtype);
    size_t element = dtype_size_bytes(options->dtype);
    for (size_t done = 0; done < count; done += period) {
        size_t now = count - done < period ? count - done : period;
        memcpy((unsigned char *)buffer + done * element, values, now * element);
    }
}

size_t bench_wrong(const struct bench_options *options, uint32_t source, size_t first, size_t count,
                   const void *buffer)
{
    size_t period = period_of(options->dtype);
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
