#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <stdint.h>

#include "proto/types.h"

/*
 * The kernels of the local stage, as the host sees them: names and arguments. Plain C, for daemon/gpu/cuda*
 * and for the double of the driver in tests/, which does the same on the CPU. Each kernel takes one struct by
 * value. Any grid of blocks of up to KERNELS_BLOCK_THREADS works, because loops stride over the grid. A good
 * size is one block for every 8 KiB of one buffer, but only a few blocks for each multiprocessor.
 *
 * "commd_copy" serves every type. The names of reductions are "commd_reduce_<dtype>_<reduce>"
 * (KERNELS_REDUCE_FORMAT with dtype_text and reduce_text), for every pair for which reduce_is_defined. avg
 * and premul_sum use sum. The suffix "_many" means the struct with room for more buffers.
 */
#define KERNELS_REDUCE_FORMAT "commd_reduce_%s_%s%s"
#define KERNELS_MANY "_many"
#define KERNELS_COPY "commd_copy"

#define KERNELS_BLOCK_THREADS 512u
#define KERNELS_FEW 8u        /* buffers of the small struct: larger arguments make a launch slower */
#define KERNELS_MANY_MAX 256u /* of the large one: over 4 KiB of arguments need CUDA 12.1, driver 530 */

/*
 * Like struct host_reduction, on device memory: element i of every output becomes in[0][i] (op) in[1][i] ...,
 * folded from left to right. 16- and 8-bit floats are folded in f32 and rounded once. With has_factors, each
 * input is first multiplied by its factor (in f32, or f64 for f64 and complex128). If divisor is above 1, the
 * result is divided. The bits are the same as those of host_reduce, except for payloads of NaN. Outputs may
 * be inputs; other overlaps are not allowed. Any alignment that is at least that of the type.
 */
#define KERNELS_REDUCE_MEMBERS(room)                                                                         \
    uint64_t count_elements;                                                                                 \
    uint64_t divisor;                                                                                        \
    uint32_t input_count;                                                                                    \
    uint32_t output_count;                                                                                   \
    uint32_t has_factors;                                                                                    \
    uint32_t reserved;                                                                                       \
    const void *inputs[room];                                                                                \
    void *outputs[room];                                                                                     \
    double factors[room]

struct kernels_reduce_few {
    KERNELS_REDUCE_MEMBERS(KERNELS_FEW);
};
struct kernels_reduce_many {
    KERNELS_REDUCE_MEMBERS(KERNELS_MANY_MAX);
};

/*
 * Copies each source to one target. No two ranges overlap, but a source may be its own target. Any alignment.
 */
#define KERNELS_COPIES_MAX 64u
struct kernels_copy {
    uint32_t count;
    uint32_t reserved;
    struct {
        const void *source;
        void *target;
        uint64_t bytes;
    } copies[KERNELS_COPIES_MAX];
};

/*
 * The codec of compressed all-reduces, with the bits of host_compress and host_decompress, except for
 * payloads of NaN where a decoded NaN is added. "commd_encode_<compression>" and "commd_decode_<compression>"
 * (KERNELS_ENCODE_FORMAT, KERNELS_DECODE_FORMAT with compression_text) exist for bf16, f8 and top_k. Values
 * and residuals have the alignment of f32; encoded bytes begin at a multiple of KERNELS_CODE_ALIGN_BYTES.
 * None of the parts' ranges overlap.
 *
 * Encoding: residual may be null. With `replaces`, each value becomes what the others decode. top_k leaves
 * the room of the most elements for each block, so that blocks need not wait for each other: block b begins
 * at b * codec_top_k_stride(permille). Its sender moves the blocks together.
 *
 * Decoding: with `adds`, adds to the values. top_k needs offsets: where each block begins in `encoded`, as
 * the wire has the blocks. The kernels trust that host_compress_check has accepted the payload.
 */
#define KERNELS_ENCODE_FORMAT "commd_encode_%s"
#define KERNELS_DECODE_FORMAT "commd_decode_%s"
#define KERNELS_CODE_PARTS_MAX 64u
#define KERNELS_CODE_ALIGN_BYTES 16u
struct kernels_code {
    uint32_t part_count;
    uint32_t top_k_permille;
    uint32_t replaces;
    uint32_t adds;
    struct kernels_code_part {
        float *values;
        float *residual;
        unsigned char *encoded;
        const uint32_t *offsets;
        uint64_t count_elements;
    } parts[KERNELS_CODE_PARTS_MAX];
};

/*
 * The kernels for the GPUs that this build knows, for the driver's module_load. Without a CUDA toolkit the
 * build makes an image of 0 bytes: a driver refuses it, the double in tests/ does not. A driver loads images
 * of toolkits of its own major version or an earlier one: an image of toolkit 13 needs driver 580.
 */
extern const unsigned char kernels_image[];
extern const uint64_t kernels_image_bytes;

#endif
