#ifndef DAEMON_GPU_GRID_H
#define DAEMON_GPU_GRID_H

#include <stdint.h>

#include "kernels/kernels.h"

/*
 * How many blocks of KERNELS_BLOCK_THREADS a kernel is launched with. Also for tests that measure kernels
 * alone (tests/gpu).
 */
#define GRID_BLOCKS_A_MULTIPROCESSOR 2u /* fills its threads: the kernels' launch bounds */
#define GRID_BYTES_A_THREAD 16u         /* each thread moves at least so many */

/* The number of blocks for buffers of so many bytes; at least 1. */
static inline uint32_t grid_blocks(uint64_t bytes, uint64_t blocks_max)
{
    uint64_t wanted = bytes / ((uint64_t)KERNELS_BLOCK_THREADS * GRID_BYTES_A_THREAD) + 1;
    return (uint32_t)(wanted < blocks_max ? wanted : blocks_max);
}

#endif
