#include "client/lib/heap.h"

#include <stdlib.h>

/* A part of a range, free or used. The first block of a range is never merged into another, so it stays. */
struct heap_block {
    unsigned char *at;
    size_t size_bytes;
    struct heap_block *before, *after;  /* its neighbours in the range */
    struct heap_block *next, *previous; /* free: in its class; used: next in the table; spare: next */
    bool is_free;
};

#define TABLE_MIN 64u
#define SLAB_BLOCKS 64u

struct heap_slab {
    struct heap_slab *next;
    struct heap_block blocks[SLAB_BLOCKS];
};

/* --- Descriptors --- */

static bool spare_make(struct heap *heap)
{
    struct heap_slab *slab = malloc(sizeof *slab);
    if (slab == NULL) {
        return false;
    }
    slab->next = heap->slabs;
    heap->slabs = slab;
    for (size_t i = 0; i < SLAB_BLOCKS; i++) {
        slab->blocks[i].next = heap->spare;
        heap->spare = &slab->blocks[i];
    }
    heap->spare_count += SLAB_BLOCKS;
    return true;
}

static struct heap_block *spare_take(struct heap *heap)
{
    struct heap_block *block = heap->spare;
    heap->spare = block->next;
    heap->spare_count--;
    *block = (struct heap_block){0};
    return block;
}

static void spare_give(struct heap *heap, struct heap_block *block)
{
    block->next = heap->spare;
    heap->spare = block;
    heap->spare_count++;
}

/* --- Classes --- */

struct place {
    unsigned class, subclass;
};

/* The class whose blocks have at least the lower bound that the size reaches. In units, so that small sizes
 * have classes of their own. */
static struct place place_of(const struct heap *heap, size_t size_bytes)
{
    size_t units = size_bytes / heap->unit_bytes;
    if (units < HEAP_SUBCLASSES) {
        return (struct place){0, (unsigned)units};
    }
    unsigned top = 63u - (unsigned)__builtin_clzll(units);
    return (struct place){top - HEAP_SUBCLASS_BITS + 1,
                          (unsigned)(units >> (top - HEAP_SUBCLASS_BITS)) & (HEAP_SUBCLASSES - 1)};
}

static void list_insert(struct heap *heap, struct heap_block *block)
{
    struct place place = place_of(heap, block->size_bytes);
    struct heap_block **head = &heap->free[place.class][place.subclass];
    block->is_free = true;
    block->previous = NULL;
    block->next = *head;
    if (*head != NULL) {
        (*head)->previous = block;
    }
    *head = block;
    heap->subclasses[place.class] |= 1u << place.subclass;
    heap->classes |= (uint64_t)1 << place.class;
}

static void list_remove(struct heap *heap, struct heap_block *block)
{
    struct place place = place_of(heap, block->size_bytes);
    if (block->next != NULL) {
        block->next->previous = block->previous;
    }
    if (block->previous != NULL) {
        block->previous->next = block->next;
    } else {
        heap->free[place.class][place.subclass] = block->next;
    }
    if (heap->free[place.class][place.subclass] == NULL) {
        heap->subclasses[place.class] &= ~(1u << place.subclass);
        if (heap->subclasses[place.class] == 0) {
            heap->classes &= ~((uint64_t)1 << place.class);
        }
    }
    block->is_free = false;
    block->next = block->previous = NULL;
}

/* Returns a free block of the first class that is not empty, from the place on; or null. */
static struct heap_block *first_from(const struct heap *heap, struct place place)
{
    uint32_t subclasses = heap->subclasses[place.class] & (UINT32_MAX << place.subclass);
    if (subclasses == 0) {
        uint64_t classes = heap->classes & (UINT64_MAX << place.class) & ~((uint64_t)1 << place.class);
        if (classes == 0) {
            return NULL;
        }
        place.class = (unsigned)__builtin_ctzll(classes);
        subclasses = heap->subclasses[place.class];
    }
    return heap->free[place.class][__builtin_ctz(subclasses)];
}

static size_t alignment_of(const struct heap *heap, size_t size_bytes)
{
    return size_bytes >= HEAP_PAGE_BYTES ? HEAP_PAGE_BYTES : heap->unit_bytes;
}

/* How many bytes before the first aligned address of the block. */
static size_t gap_of(const struct heap_block *block, size_t alignment)
{
    return (size_t)(-(uintptr_t)block->at & (alignment - 1));
}

static bool fits(const struct heap_block *block, size_t size_bytes, size_t alignment)
{
    size_t gap = gap_of(block, alignment);
    return gap <= block->size_bytes && block->size_bytes - gap >= size_bytes;
}

static struct place place_after(struct place place)
{
    place.subclass++;
    return place.subclass < HEAP_SUBCLASSES ? place : (struct place){place.class + 1, 0};
}

/* Looks at all blocks of the classes from the first place to the one before the last. */
static struct heap_block *find_among(const struct heap *heap, size_t size_bytes, struct place first,
                                     struct place last)
{
    size_t alignment = alignment_of(heap, size_bytes);
    while (first.class != last.class || first.subclass != last.subclass) {
        struct heap_block *block = heap->free[first.class][first.subclass];
        while (block != NULL && !fits(block, size_bytes, alignment)) {
            block = block->next;
        }
        if (block != NULL) {
            return block;
        }
        first = place_after(first);
    }
    return NULL;
}

/*
 * Finds a free block that holds the size at an aligned address. First looks at one block of the size's own
 * class, which is often a block of exactly this size. Then takes a class in which every block fits. Before it
 * says that there is none, it looks at every block that might fit: growing takes much longer.
 */
static struct heap_block *find(const struct heap *heap, size_t size_bytes)
{
    size_t alignment = alignment_of(heap, size_bytes);
    struct place own = place_of(heap, size_bytes);
    struct heap_block *block = heap->free[own.class][own.subclass];
    if (block != NULL && fits(block, size_bytes, alignment)) {
        return block;
    }
    block = first_from(heap, place_after(own));
    if (block != NULL && fits(block, size_bytes, alignment)) {
        return block;
    }
    /* Each block of a class beyond this one's has room for the size behind any gap. */
    struct place sure = place_after(place_of(heap, size_bytes + alignment - heap->unit_bytes));
    block = first_from(heap, sure);
    return block != NULL ? block : find_among(heap, size_bytes, own, sure);
}

/* --- The table of used blocks --- */

static size_t slot_of(const struct heap *heap, const unsigned char *at)
{
    uint64_t number = (uint64_t)(uintptr_t)at / heap->unit_bytes * 0x9e3779b97f4a7c15u;
    return (size_t)(number >> 32) & (heap->table_size - 1);
}

static void table_insert(struct heap *heap, struct heap_block *block)
{
    struct heap_block **slot = &heap->table[slot_of(heap, block->at)];
    block->next = *slot;
    *slot = block;
    heap->used_count++;
}

/* If memory is short, a table that exists keeps its size and gets slower. */
static bool table_grow(struct heap *heap)
{
    size_t size_before = heap->table_size;
    size_t size = size_before != 0 ? 2 * size_before : TABLE_MIN;
    struct heap_block **before = heap->table;
    struct heap_block **grown = calloc(size, sizeof(struct heap_block *));
    if (grown == NULL) {
        return before != NULL;
    }
    heap->table = grown;
    heap->table_size = size;
    heap->used_count = 0;
    for (size_t i = 0; i < size_before; i++) {
        for (struct heap_block *block = before[i], *next; block != NULL; block = next) {
            next = block->next;
            table_insert(heap, block);
        }
    }
    free(before);
    return true;
}

/* --- The heap --- */

void heap_init(struct heap *heap, size_t unit_bytes)
{
    *heap = (struct heap){.unit_bytes = unit_bytes};
}

void heap_close(struct heap *heap)
{
    while (heap->slabs != NULL) {
        struct heap_slab *next = heap->slabs->next;
        free(heap->slabs);
        heap->slabs = next;
    }
    free(heap->table);
    heap_init(heap, heap->unit_bytes);
}

size_t heap_round(const struct heap *heap, size_t size_bytes)
{
    size_t unit = size_bytes >= HEAP_PAGE_BYTES ? HEAP_PAGE_BYTES : heap->unit_bytes;
    if (size_bytes > HEAP_MAX_BYTES) {
        return 0;
    }
    return size_bytes != 0 ? (size_bytes + unit - 1) / unit * unit : unit;
}

struct heap_block *heap_add(struct heap *heap, unsigned char *base, size_t size_bytes)
{
    if (heap->spare_count == 0 && !spare_make(heap)) {
        return NULL;
    }
    struct heap_block *range = spare_take(heap);
    range->at = base;
    range->size_bytes = size_bytes;
    list_insert(heap, range);
    return range;
}

bool heap_is_idle(const struct heap_block *range)
{
    return range->is_free && range->before == NULL && range->after == NULL;
}

void heap_remove(struct heap *heap, struct heap_block *range)
{
    list_remove(heap, range);
    spare_give(heap, range);
}

/* Cuts the block, which is in no list, after `size_bytes`. The rest becomes a free block. */
static void cut(struct heap *heap, struct heap_block *block, size_t size_bytes)
{
    if (block->size_bytes == size_bytes) {
        return;
    }
    struct heap_block *rest = spare_take(heap);
    rest->at = block->at + size_bytes;
    rest->size_bytes = block->size_bytes - size_bytes;
    rest->before = block;
    rest->after = block->after;
    if (rest->after != NULL) {
        rest->after->before = rest;
    }
    block->after = rest;
    block->size_bytes = size_bytes;
    list_insert(heap, rest);
}

unsigned char *heap_take(struct heap *heap, size_t size_bytes, bool *is_full)
{
    struct heap_block *block = find(heap, size_bytes);
    *is_full = block == NULL;
    if (block == NULL || (heap->spare_count < 2 && !spare_make(heap)) ||
        (heap->used_count >= heap->table_size && !table_grow(heap))) {
        return NULL;
    }
    size_t gap = gap_of(block, alignment_of(heap, size_bytes));
    list_remove(heap, block);
    if (gap > 0) {
        struct heap_block *front = block;
        cut(heap, front, gap);
        block = front->after;
        list_remove(heap, block);
        list_insert(heap, front);
    }
    cut(heap, block, size_bytes);
    table_insert(heap, block);
    return block->at;
}

/* Merges the block after `block` into it. Both are in no list. */
static void merge_after(struct heap *heap, struct heap_block *block)
{
    struct heap_block *after = block->after;
    block->size_bytes += after->size_bytes;
    block->after = after->after;
    if (block->after != NULL) {
        block->after->before = block;
    }
    spare_give(heap, after);
}

bool heap_give(struct heap *heap, const unsigned char *at)
{
    struct heap_block **link = heap->table_size != 0 ? &heap->table[slot_of(heap, at)] : NULL;
    while (link != NULL && *link != NULL && (*link)->at != at) {
        link = &(*link)->next;
    }
    if (link == NULL || *link == NULL) {
        return false;
    }
    struct heap_block *block = *link;
    *link = block->next;
    heap->used_count--;
    if (block->after != NULL && block->after->is_free) {
        list_remove(heap, block->after);
        merge_after(heap, block);
    }
    if (block->before != NULL && block->before->is_free) {
        block = block->before;
        list_remove(heap, block);
        merge_after(heap, block);
    }
    list_insert(heap, block);
    return true;
}

bool heap_has_room(const struct heap *heap, size_t size_bytes)
{
    return find(heap, size_bytes) != NULL;
}
