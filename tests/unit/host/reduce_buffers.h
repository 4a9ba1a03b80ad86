#ifndef TESTS_UNIT_DEV_REDUCE_BUFFERS_H
#define TESTS_UNIT_DEV_REDUCE_BUFFERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/host/reduce.h"
#include "tests/lib/elements.h"

/* Buffers of elements of every type, filled, to be reduced at every level. */

#define INPUTS_MAX 17
#define COUNT_MAX 10007
#define GUARD 64
#define POISON 0xA5

static const char *const levels[] = {"portable", "avx2", "avx512"};
static unsigned char *inputs[INPUTS_MAX];
static unsigned char *outputs[3];
static unsigned char *first_level;

/* Different for every rank and element; moderate magnitudes, so that products stay finite. */
static inline void fill(enum dtype dtype, unsigned char *buffer, size_t count, unsigned rank)
{
    size_t size = element_part_bytes(dtype);
    for (size_t i = 0; i < count * element_parts(dtype); i++) {
        uint64_t hash = (i * 0x9e3779b97f4a7c15ull) ^ ((uint64_t)(rank + 1) * 0xbf58476d1ce4e5b9ull);
        hash ^= hash >> 29;
        hash *= 0x94d049bb133111ebull;
        hash ^= hash >> 32;
        double real = 0.5 + (double)(hash % 1000) / 999.0;
        real = (hash >> 20) % 3 == 0 ? -real : real;
        if (element_is_real(dtype)) {
            element_put_real(dtype, buffer, i, real);
        } else if (dtype == DTYPE_BOOL) {
            buffer[i] = (unsigned char)((hash & 3) != 0 ? 0 : 1 + hash % 255);
        } else {
            memcpy(buffer + i * size, &hash, size);
        }
    }
}

static inline int make_buffers(void **state)
{
    (void)state;
    size_t bytes = COUNT_MAX * DTYPE_SIZE_MAX_BYTES + 4 * GUARD;
    for (int k = 0; k < INPUTS_MAX; k++) {
        inputs[k] = malloc(bytes);
    }
    for (int o = 0; o < 3; o++) {
        outputs[o] = malloc(bytes);
    }
    first_level = malloc(bytes);
    return first_level == NULL;
}

static inline int free_buffers(void **state)
{
    (void)state;
    for (int k = 0; k < INPUTS_MAX; k++) {
        free(inputs[k]);
    }
    for (int o = 0; o < 3; o++) {
        free(outputs[o]);
    }
    free(first_level);
    return 0;
}

#endif
