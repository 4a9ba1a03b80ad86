#ifndef TESTS_UNIT_CLIENT_GPU_SEGMENT_H
#define TESTS_UNIT_CLIENT_GPU_SEGMENT_H

#include "tests/unit/client/gpu_pair.h"

#define SEGMENT_CHUNKS_MAX 64

/* A range of addresses, filled part by part, as an allocator with expandable segments does it. */
struct segment {
    cuda_pointer base;
    size_t chunk_bytes;
    unsigned count;
    int handle_types;
    cuda_allocation chunks[SEGMENT_CHUNKS_MAX];
};

static inline void segment_map(struct segment *segment, unsigned index)
{
    struct cuda_allocation_properties properties = {.type = CUDA_ALLOCATION_PINNED,
                                                    .handle_types = segment->handle_types,
                                                    .location = {.type = CUDA_LOCATION_DEVICE}};
    struct cuda_access access = {.location = properties.location, .flags = CUDA_ACCESS_READ_WRITE};
    cuda_pointer at = segment->base + index * segment->chunk_bytes;
    cuda_allocation *chunk = &segment->chunks[index];
    GPU_OK(cuda->allocation_create(chunk, segment->chunk_bytes, &properties, 0));
    GPU_OK(cuda->address_map(at, segment->chunk_bytes, 0, *chunk, 0));
    GPU_OK(cuda->address_set_access(at, segment->chunk_bytes, &access, 1));
}

static inline void segment_unmap(struct segment *segment, unsigned index)
{
    GPU_OK(cuda->address_unmap(segment->base + index * segment->chunk_bytes, segment->chunk_bytes));
    GPU_OK(cuda->allocation_release(segment->chunks[index]));
}

static inline void segment_grow(struct segment *segment)
{
    segment_map(segment, segment->count++);
}

static inline void segment_shrink(struct segment *segment)
{
    segment_unmap(segment, --segment->count);
}

static inline struct segment segment_make(size_t chunk_bytes, unsigned count)
{
    struct segment segment = {.chunk_bytes = chunk_bytes, .handle_types = CUDA_HANDLE_POSIX_FD};
    GPU_OK(cuda->address_reserve(&segment.base, SEGMENT_CHUNKS_MAX * chunk_bytes, 0, 0, 0));
    while (segment.count < count) {
        segment_grow(&segment);
    }
    return segment;
}

static inline void segment_free(struct segment *segment)
{
    while (segment->count > 0) {
        segment_shrink(segment);
    }
    GPU_OK(cuda->address_free(segment->base, SEGMENT_CHUNKS_MAX * segment->chunk_bytes));
}

#endif
