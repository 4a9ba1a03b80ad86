#ifndef TESTS_GPU_NCCL_ALONE_H
#define TESTS_GPU_NCCL_ALONE_H

#include "daemon/gpu/nccl_library.h"
#include "tests/gpu/gpu_device.h"

/* NCCL in this process, with one rank, on the first GPU. */
struct nccl_alone {
    const struct nccl_library *library;
    nccl_comm comm;
    int version; /* 22809 for 2.28.9 */
};

/* False, with a text for people in why, where there is no NCCL, or none that works. Whatever fails then ends
 * the process. */
bool nccl_alone_open(struct nccl_alone *nccl, char *why, size_t why_size);
void nccl_alone_close(struct nccl_alone *nccl);

/* The sum of the one rank's floats: a copy. In the GPU's stream. */
void nccl_alone_reduce(struct nccl_alone *nccl, const struct gpu *gpu, cuda_pointer input,
                       cuda_pointer output, size_t bytes);

#endif
