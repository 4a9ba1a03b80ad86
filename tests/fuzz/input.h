#ifndef TESTS_FUZZ_INPUT_H
#define TESTS_FUZZ_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes from which a fuzz target decodes its values. After their end everything is 0. */
struct fuzz_input {
    const uint8_t *bytes;
    size_t size;
    size_t at;
};

/* Checks what must hold. If it does not, the input is a finding. */
#define fuzz_require(truth) fuzz_require_at((truth), #truth, __FILE__, __LINE__)

static inline void fuzz_require_at(bool truth, const char *what, const char *file, int line)
{
    if (!truth) {
        fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
        abort();
    }
}

static inline bool fuzz_ended(const struct fuzz_input *input)
{
    return input->at >= input->size;
}

static inline uint8_t fuzz_u8(struct fuzz_input *input)
{
    return input->at < input->size ? input->bytes[input->at++] : 0;
}

/* Returns a number from 0 to count - 1. */
static inline uint32_t fuzz_below(struct fuzz_input *input, uint32_t count)
{
    return fuzz_u8(input) % count;
}

/* Returns at most `size` bytes. They still belong to the input. */
static inline const uint8_t *fuzz_bytes(struct fuzz_input *input, size_t size, size_t *taken)
{
    size_t left = input->size - input->at;
    const uint8_t *bytes = input->bytes + input->at;
    *taken = size < left ? size : left;
    input->at += *taken;
    return bytes;
}

static inline uint64_t fuzz_u64(struct fuzz_input *input)
{
    uint64_t number = 0;
    size_t taken;
    const uint8_t *bytes = fuzz_bytes(input, sizeof number, &taken);
    memcpy(&number, bytes, taken);
    return number;
}

/* Returns a number: mostly a small one, sometimes one where arithmetic goes wrong, sometimes any. */
static inline uint64_t fuzz_number(struct fuzz_input *input)
{
    static const uint64_t edges[] = {255,
                                     256,
                                     1000,
                                     1023,
                                     1024,
                                     4095,
                                     4096,
                                     4097,
                                     65535,
                                     65536,
                                     UINT64_C(1) << 20,
                                     INT32_MAX,
                                     UINT64_C(1) << 31,
                                     UINT32_MAX,
                                     UINT64_C(1) << 32,
                                     UINT64_C(1) << 40,
                                     UINT64_C(1) << 44,
                                     UINT64_C(1) << 60,
                                     UINT64_C(1) << 61,
                                     UINT64_C(1) << 62,
                                     INT64_MAX,
                                     UINT64_C(1) << 63,
                                     UINT64_MAX - 4096,
                                     UINT64_MAX - 7,
                                     UINT64_MAX - 1,
                                     UINT64_MAX};
    uint8_t first = fuzz_u8(input);
    uint32_t small = 255u - (uint32_t)(sizeof edges / sizeof *edges);
    return first < small ? first : first < 255 ? edges[first - small] : fuzz_u64(input);
}

#endif
