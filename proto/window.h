#ifndef PROTO_WINDOW_H
#define PROTO_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/op_terms.h"

/*
 * Windows: how a large collective within one node passes through a little memory of the client. Its buffers
 * are cut into slices, and the memory holds the last WINDOW_SLOTS of them. The library copies a slice's input
 * into its slot and tells commd (RECORD_FILLED). commd carries out the slice and tells the library
 * (RECORD_DONE), which copies the output out of the slot and fills it with a later slice. So the data stay in
 * the processor's caches.
 *
 * Slice s uses slot s % WINDOW_SLOTS. A slot holds the slice's part of each of the buffer's blocks, one after
 * the other, each at a multiple of slot_elements. The shape is a pure function of terms that all ranks agree
 * on, so the ranks with windows and commd have the same one.
 */
#define WINDOW_SLOTS 4u
#define WINDOW_SLICE_BYTES (UINT64_C(512) << 10) /* of the larger buffer of a rank */
#define WINDOW_SLICES_MIN 8u       /* a smaller operation has no window: the caches hold it whole, */
#define WINDOW_RANK_SLICES_MIN 32u /* and so one of fewer slices, those of all ranks together */
#define WINDOW_PART_MIN_BYTES (UINT64_C(64) << 10)

struct window_shape {
    uint64_t count_elements; /* of a block */
    uint64_t slice_count;
    uint64_t slot_elements; /* the most of a block that a slice has */
    uint32_t input_blocks, output_blocks;
    bool has_blocks; /* the slices' parts of a block differ by one element at most */
};

/* Returns false if such an operation has no window. ranks: of the communicator, at least 1. Thread-safe. */
bool window_shape_of(const struct op_terms *terms, uint32_t ranks, struct window_shape *out);

/* The slice's part of each block; slice < slice_count. */
void window_part(const struct window_shape *shape, uint64_t slice, uint64_t *offset_elements,
                 uint64_t *part_elements);

/* Elements of the memory for a buffer of so many blocks. */
static inline uint64_t window_elements(const struct window_shape *shape, uint32_t blocks)
{
    return WINDOW_SLOTS * shape->slot_elements * blocks;
}

/* Where the memory has the slice's part of that block. */
static inline uint64_t window_place(const struct window_shape *shape, uint32_t blocks, uint64_t slice,
                                    uint64_t block)
{
    return (slice % WINDOW_SLOTS * blocks + block) * shape->slot_elements;
}

#endif
