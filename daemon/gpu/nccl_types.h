#ifndef DAEMON_GPU_NCCL_TYPES_H
#define DAEMON_GPU_NCCL_TYPES_H

#include <stdint.h>

#include "proto/types.h"

/* A reduction in NCCL's terms. type or reduce is -1 if NCCL has none with our results. */
struct nccl_reduction {
    int type;
    int reduce;
    uint64_t elements; /* how many of NCCL's elements make one of ours */
};
struct nccl_reduction nccl_reduction_of(enum dtype dtype, enum reduce reduce);

#endif
