#ifndef CLIENT_LIB_HEAP_H
#define CLIENT_LIB_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Divides ranges of addresses into allocations. This takes constant time, but for the growth of its tables,
 * and for a search that ends with the answer that the heap is full, or nearly so. The heap never touches the
 * ranges themselves. Not thread-safe.
 *
 * It is a two-level segregated fit: free blocks are kept in lists by size class, and bit maps say which lists
 * are not empty. Neighbours that are free are merged.
 */

#define HEAP_SUBCLASS_BITS 4u
#define HEAP_SUBCLASSES (1u << HEAP_SUBCLASS_BITS)
#define HEAP_CLASSES 60u
#define HEAP_MAX_BYTES ((size_t)1 << 46) /* of one range */
#define HEAP_PAGE_BYTES ((size_t)4096)   /* blocks from this size on are aligned to it, and rounded to it */

struct heap_block;
struct heap_slab;

struct heap {
    size_t unit_bytes; /* sizes and addresses of blocks are multiples of it */
    uint64_t classes;  /* bit i: subclasses[i] is not 0 */
    uint32_t subclasses[HEAP_CLASSES];
    struct heap_block *free[HEAP_CLASSES][HEAP_SUBCLASSES];
    struct heap_block **table; /* of used blocks, by address */
    size_t table_size;         /* a power of two; 0: not made yet */
    size_t used_count;
    struct heap_block *spare; /* unused descriptors of blocks */
    size_t spare_count;
    struct heap_slab *slabs; /* what descriptors are cut from */
};

/* unit_bytes: a power of two, at most HEAP_PAGE_BYTES. */
void heap_init(struct heap *heap, size_t unit_bytes);
/* Frees the heap's tables, with all ranges. */
void heap_close(struct heap *heap);
/* Returns the size as the heap rounds it; 0 if it is too large. Size 0 counts as 1. */
size_t heap_round(const struct heap *heap, size_t size_bytes);

/*
 * Adds a range. base: a multiple of HEAP_PAGE_BYTES; size_bytes: a multiple of it, at most HEAP_MAX_BYTES.
 * Returns its first block, by which the range is known from then on, or null if memory is short.
 */
struct heap_block *heap_add(struct heap *heap, unsigned char *base, size_t size_bytes);
/* Whether nothing of the range is allocated. */
bool heap_is_idle(const struct heap_block *range);
/* Removes a range in which nothing is allocated. */
void heap_remove(struct heap *heap, struct heap_block *range);

/*
 * Allocates. size_bytes: a result of heap_round. Returns null if no free block is large enough, and then
 * *is_full is true; or if memory for descriptors is short.
 */
unsigned char *heap_take(struct heap *heap, size_t size_bytes, bool *is_full);
/* Gives an allocation back. Returns false if it is none. */
bool heap_give(struct heap *heap, const unsigned char *at);
/* Whether an allocation of this size, a result of heap_round, would find a block. */
bool heap_has_room(const struct heap *heap, size_t size_bytes);

#endif
