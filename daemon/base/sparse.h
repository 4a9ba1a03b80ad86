#ifndef DAEMON_BASE_SPARSE_H
#define DAEMON_BASE_SPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Pointers by index, of which most may be null: for what only few peers of a large cluster have. There are
 * pages of 32, made when they are needed. A table whose highest index is n takes n / 4 bytes, and 256 for
 * each page in use. All zero is an empty table. The pointers are the caller's. One thread at a time.
 */
#define SPARSE_PAGE 32u

struct sparse {
    void ***pages; /* null: none of its pointers was ever set */
    uint32_t page_count;
};

/* Sets the pointer, which may be null. Returns false without memory; then nothing has changed. */
bool sparse_set(struct sparse *sparse, uint32_t index, void *pointer) __attribute__((warn_unused_result));
/* Null also for an index that was never set. */
static inline void *sparse_at(const struct sparse *sparse, uint32_t index)
{
    uint32_t page = index / SPARSE_PAGE;
    return page < sparse->page_count && sparse->pages[page] != NULL ? sparse->pages[page][index % SPARSE_PAGE]
                                                                    : NULL;
}
/* The first pointer from *index on that is not null, and in *index the index after it. Null: there is none.
 */
void *sparse_next(const struct sparse *sparse, uint32_t *index);
/* The table is empty afterwards. */
void sparse_free(struct sparse *sparse);

#endif
