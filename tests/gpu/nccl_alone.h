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

/* Returns false, with the reason in `why`, if there is no NCCL, or none that works. Later failures end the
 * process. */
bool nccl_alone_open(struct nccl_alone *nccl, char *why, size_t why_size);
void nccl_alone_close(struct nccl_alone *nccl);

/* Adds up the floats of the one rank, which is a copy. Runs in the GPU's stream. */
void nccl_alone_reduce(struct nccl_alone *nccl, const struct gpu *gpu, cuda_pointer input,
                       cuda_pointer output, size_t bytes);

#endif
