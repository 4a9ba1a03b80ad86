#ifndef TESTS_CUDA_DOUBLE_TRAFFIC_H
#define TESTS_CUDA_DOUBLE_TRAFFIC_H

#include "tests/cuda_double/memory.h"

/* Opens the file of CUDA_DOUBLE_TRAFFIC, if it is set. */
void traffic_open(void);
/* Work in that context reads or writes these bytes, which count if they are pinned host memory. Locked. */
void traffic_count(cuda_context context, uint64_t address, uint64_t bytes, bool writes);

#endif
