#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <stdint.h>

#include "proto/types.h"

/*
 * The kernels of the local stage, as their host sees them: names and arguments. Plain C, for daemon/gpu/cuda*
 * and for the double of the driver in tests/, which does the same on the CPU. Each kernel takes one struct by
 * value; any grid does, of blocks of up to KERNELS_BLOCK_THREADS (loops stride over the grid). Good is a
 * block for every 8 KiB of one buffer, and no more than a few for each multiprocessor.
 *
 * Names: "commd_reduce_<dtype>_<reduce>" (KERNELS_REDUCE_FORMAT with dtype_text and reduce_text), for every
 * pair that reduce_is_defined, with sum for avg and premul_sum, and with "_many" behind it for the struct
 * that has room for more buffers; "commd_copy" for every type.
 */
#define KERNELS_REDUCE_FORMAT "commd_reduce_%s_%s%s"
#define KERNELS_MANY "_many"
#define KERNELS_COPY "commd_copy"

#define KERNELS_BLOCK_THREADS 512u
#define KERNELS_FEW 8u /* buffers of the small struct: launching costs by the size of the arguments */
#define KERNELS_MANY_MAX                                                                                     \
    256u /* of the large one: more than 4 KiB of arguments need CUDA 12.1, driver 530                        \
          */

/*
 * As struct dev_reduction, on device memory: element i of every output becomes in[0][i] (op) in[1][i] ...,
 * folded from left to right, 16- and 8-bit floats in f32 and rounded once, each input multiplied by its
 * factor first where has_factors (in f32, or f64 for f64 and complex128), the result divided where divisor is
 * above 1. The same bits as dev_reduce, payloads of NaN excepted. Outputs may be inputs; other overlaps are
 * not allowed. Any alignment of at least that of the type.
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

/* Copies: each source to one target; no two overlap, but a source may be its own target. Any alignment. */
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
 * The kernels for the GPUs that this build knows, for module_load of the driver; of 0 bytes where it was made
 * without a CUDA toolkit, which a driver refuses and the double in tests/ does not. A driver loads what a
 * toolkit of its own major version or an earlier one made: that of toolkit 13 needs driver 580.
 */
extern const unsigned char kernels_image[];
extern const uint64_t kernels_image_bytes;

#endif
