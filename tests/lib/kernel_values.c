#include "tests/lib/kernel_values.h"

#include <string.h>

#include "tests/lib/elements.h"

uint64_t kernel_random(uint64_t *state)
{
    uint64_t hash = *state += 0x9e3779b97f4a7c15ull;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ull;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebull;
    return hash ^ (hash >> 31);
}

/* Each edge appears with both signs. */
#define REAL_EDGES 20u

static uint64_t real_edge(struct element_layout layout, size_t index)
{
    unsigned fraction = layout.fraction;
    uint64_t one = 1;
    uint64_t unit = one << fraction; /* the lowest bit of the exponent */
    uint64_t infinity = ((one << layout.exponent) - 1) << fraction;
    uint64_t bias = (one << (layout.exponent - 1)) - 1;
    const uint64_t magnitudes[REAL_EDGES] = {
        0,
        1, /* the smallest denormal */
        2,
        unit - 1, /* the largest denormal */
        unit,     /* the smallest normal */
        unit + 1,
        bias * unit, /* 1 */
        bias * unit + 1,
        bias * unit - 1,
        (bias + 1) * unit, /* 2 */
        (bias + 1) * unit + 1,
        bias * unit + unit / 2, /* 1.5 */
        (bias - 1) * unit,      /* 0.5 */
        (bias + fraction) * unit + 1,
        (bias - fraction) * unit,
        infinity - 1, /* the largest finite number, except for f8e4m3 */
        infinity - unit,
        infinity,
        infinity + 1,        /* NaN, signalling */
        infinity + unit / 2, /* NaN, quiet */
    };
    uint64_t sign = (index & 1) << (fraction + layout.exponent);
    return sign | magnitudes[index / 2 % REAL_EDGES];
}

static const uint64_t integer_edges[] = {0,
                                         1,
                                         2,
                                         3,
                                         7,
                                         10,
                                         0x7e,
                                         0x7f,
                                         0x80,
                                         0x81,
                                         0xfe,
                                         0xff,
                                         0x100,
                                         0x7fff,
                                         0x8000,
                                         0x8001,
                                         0xffff,
                                         0x10000,
                                         0x7fffffff,
                                         0x80000000,
                                         0x80000001,
                                         0xffffffff,
                                         0x100000000,
                                         0x7fffffffffffffff,
                                         0x8000000000000000,
                                         0x8000000000000001,
                                         0xffffffffffff8000,
                                         0xffffffffffffff80,
                                         0xfffffffffffffffe,
                                         0xffffffffffffffff};

size_t kernel_edge_count(enum dtype dtype)
{
    return element_is_real(dtype) ? (size_t)2 * REAL_EDGES : sizeof integer_edges / sizeof integer_edges[0];
}

uint64_t kernel_edge(enum dtype dtype, size_t index)
{
    struct element_layout layout = element_layout(dtype);
    index %= kernel_edge_count(dtype);
    return layout.fraction != 0 ? real_edge(layout, index) : integer_edges[index];
}

/* Gives numbers within a few powers of two around 1, so that sums must round. Integers are small, and 0
 * now and then. */
static uint64_t moderate(enum dtype dtype, uint64_t hash)
{
    struct element_layout layout = element_layout(dtype);
    if (layout.fraction == 0) {
        return (hash & 3) == 0 ? 0 : (uint64_t)((int64_t)(hash >> 8) % 100);
    }
    uint64_t one = 1;
    uint64_t bias = (one << (layout.exponent - 1)) - 1;
    uint64_t fraction = (hash >> 12) & ((one << layout.fraction) - 1);
    return (hash & 1) << (layout.fraction + layout.exponent) |
           (bias - 3 + (hash >> 1) % 7) << layout.fraction | fraction;
}

void kernel_fill(enum dtype dtype, enum kernel_fill fill, void *buffer, size_t elements, uint64_t *random)
{
    size_t size = element_part_bytes(dtype);
    unsigned char *at = buffer;
    for (size_t i = 0; i < elements * element_parts(dtype); i++) {
        uint64_t bits = kernel_random(random);
        if (fill == KERNEL_FILL_MODERATE) {
            bits = moderate(dtype, bits);
        } else if (fill == KERNEL_FILL_EDGES) {
            bits = kernel_edge(dtype, (size_t)(bits >> 16));
        } else if (dtype == DTYPE_BOOL) {
            bits = (bits & 1) != 0 ? bits >> 8 : 0;
        }
        memcpy(at + i * size, &bits, size);
    }
}
