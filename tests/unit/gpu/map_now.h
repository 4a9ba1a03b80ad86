#ifndef TESTS_UNIT_GPU_MAP_NOW_H
#define TESTS_UNIT_GPU_MAP_NOW_H

#include "daemon/gpu/cuda_memory.h"
#include "tests/unit/cuda_double/case.h"

static void mapped_now(struct gpu_mapping *mapping)
{
    CHECK_RESULT(mapping->status, STATUS_OK);
    mapping->size_bytes = 0;
}

/* Maps a chunk within this call: the GPUs have no threads, because nobody has started them. */
static void map_now(struct memory *memory, int fd, uint64_t size_bytes)
{
    struct error error;
    struct gpu_mapping mapping = {.memory = memory, .size_bytes = size_bytes, .done = mapped_now};
    CHECK_RESULT(gpu_memory_map(&mapping, fd, &error), STATUS_OK);
    CHECK(mapping.size_bytes == 0);
}

#endif
