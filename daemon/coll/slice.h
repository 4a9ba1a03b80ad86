#ifndef DAEMON_COLL_SLICE_H
#define DAEMON_COLL_SLICE_H

#include <stdint.h>

/*
 * Cuts an operation into slices of whole elements: a pure function of agreed values (the element count and
 * size, the communicator's slice_bytes), so that all nodes have the same slices. All slices but the last hold
 * the same number of elements, at least one, even if slice_bytes is smaller than an element. Zero elements
 * make one empty slice (a barrier, or an empty operation still has one lane), and only then may element_bytes
 * be 0. No argument overflows. Thread-safe, as is all below.
 */
uint64_t coll_slice_count(uint64_t count_elements, uint64_t element_bytes, uint64_t slice_bytes);

/* The range of slice `index`; index < coll_slice_count(...) of the same arguments. */
void coll_slice_range(uint64_t count_elements, uint64_t element_bytes, uint64_t slice_bytes, uint64_t index,
                      uint64_t *offset_elements, uint64_t *slice_elements);

/*
 * slice_bytes for an all_to_all, whose vector is that of one rank, a block for each of `ranks`: a slice has a
 * part of every block, COLL_EXCHANGE_SLICES slice_bytes for all ranks of a node together; more where a node's
 * message to another would be less than COLL_EXCHANGE_MESSAGE_BYTES. ranks, nodes > 0.
 */
#define COLL_EXCHANGE_SLICES 4
#define COLL_EXCHANGE_MESSAGE_BYTES (64u << 10) /* or slice_bytes, where that is smaller */
uint64_t coll_exchange_slice_bytes(uint64_t slice_bytes, uint32_t ranks, uint32_t nodes);

/* Part `index` of `parts` of a range of count elements: sizes differ by at most one, the larger ones first.
 * index < parts. */
void coll_part_range(uint64_t count_elements, uint32_t parts, uint32_t index, uint64_t *offset_elements,
                     uint64_t *part_elements);

#endif
