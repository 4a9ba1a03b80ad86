#ifndef DAEMON_HOST_COMPRESS_LEVEL_H
#define DAEMON_HOST_COMPRESS_LEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The kernels for compress.c at one vector width. Encoded bytes may have any alignment. residual may be null.
 * No two buffers overlap.
 */
struct compress_kernels {
    void (*bf16_encode)(unsigned char *out, const float *values, float *residual, size_t count);
    void (*bf16_decode)(float *out, const unsigned char *in, size_t count, bool add);
    /* For one block: scale and codes. count is at most HOST_COMPRESS_F8_BLOCK. */
    void (*f8_encode)(unsigned char *out, const float *values, float *residual, size_t count);
    void (*f8_decode)(float *out, const unsigned char *codes, float scale, size_t count, bool add);
    /*
     * Computes x = values + residual without loss; every NaN becomes one NaN value. Also gives the bits of
     * its magnitude, which have the same order as the magnitudes. Sets residual to its value for the case
     * that nothing of x is sent.
     */
    void (*gather)(float *x, uint32_t *magnitudes, const float *values, float *residual, size_t count);
};

extern const struct compress_kernels compress_kernels_portable;
extern const struct compress_kernels compress_kernels_avx2;
extern const struct compress_kernels compress_kernels_avx512;

#endif
