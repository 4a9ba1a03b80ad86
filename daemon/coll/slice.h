#ifndef DAEMON_COLL_SLICE_H
#define DAEMON_COLL_SLICE_H

#include <stdint.h>

/*
 * Cuts an operation into slices of whole elements. It is a pure function of agreed values (element count,
 * element size, the communicator's slice_bytes), so all nodes have the same slices. All slices but the last
 * hold the same number of elements. That number is at least one, even if slice_bytes is smaller than an
 * element. Zero elements make one empty slice, because a barrier or an empty operation still has one lane.
 * Only then may element_bytes be 0. No argument overflows. Thread-safe, as are all functions below.
 */
uint64_t coll_slice_count(uint64_t count_elements, uint64_t element_bytes, uint64_t slice_bytes);

/* The range of slice `index`; index < coll_slice_count(...) of the same arguments. */
void coll_slice_range(uint64_t count_elements, uint64_t element_bytes, uint64_t slice_bytes, uint64_t index,
                      uint64_t *offset_elements, uint64_t *slice_elements);

/*
 * slice_bytes for an all_to_all. Its vector is that of one rank, with a block for each of `ranks`. A slice
 * has a part of every block. All ranks of a node together bring COLL_EXCHANGE_SLICES × slice_bytes to it. It
 * is larger where a node's message to another node would be less than COLL_EXCHANGE_MESSAGE_BYTES. ranks,
 * nodes > 0.
 */
#define COLL_EXCHANGE_SLICES 4
#define COLL_EXCHANGE_MESSAGE_BYTES (64u << 10) /* or slice_bytes, where that is smaller */
uint64_t coll_exchange_slice_bytes(uint64_t slice_bytes, uint32_t ranks, uint32_t nodes);

/* Part `index` of `parts` of a range of count elements. Part sizes differ by at most one, the larger parts
 * come first. index < parts. */
void coll_part_range(uint64_t count_elements, uint32_t parts, uint32_t index, uint64_t *offset_elements,
                     uint64_t *part_elements);

#endif
