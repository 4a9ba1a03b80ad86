#include "daemon/base/sparse.h"

#include <stdlib.h>
#include <string.h>

#define GROWTH 8 /* pages */

static bool grow(struct sparse *sparse, uint32_t count)
{
    uint32_t room = count + GROWTH;
    void ***pages = realloc(sparse->pages, room * sizeof *pages);
    if (pages == NULL) {
        return false;
    }
    memset(pages + sparse->page_count, 0, (room - sparse->page_count) * sizeof *pages);
    sparse->pages = pages;
    sparse->page_count = room;
    return true;
}

bool sparse_set(struct sparse *sparse, uint32_t index, void *pointer)
{
    uint32_t page = index / SPARSE_PAGE;
    if (pointer == NULL && sparse_at(sparse, index) == NULL) {
        return true;
    }
    if (page >= sparse->page_count && !grow(sparse, page + 1)) {
        return false;
    }
    if (sparse->pages[page] == NULL) {
        sparse->pages[page] = calloc(SPARSE_PAGE, sizeof(void *));
    }
    if (sparse->pages[page] == NULL) {
        return false;
    }
    sparse->pages[page][index % SPARSE_PAGE] = pointer;
    return true;
}

void *sparse_next(const struct sparse *sparse, uint32_t *index)
{
    while (*index / SPARSE_PAGE < sparse->page_count) {
        if (sparse->pages[*index / SPARSE_PAGE] == NULL) {
            *index = (*index / SPARSE_PAGE + 1) * SPARSE_PAGE;
            continue;
        }
        void *pointer = sparse_at(sparse, (*index)++);
        if (pointer != NULL) {
            return pointer;
        }
    }
    return NULL;
}

void sparse_free(struct sparse *sparse)
{
    for (uint32_t page = 0; page < sparse->page_count; page++) {
        free(sparse->pages[page]);
    }
    free(sparse->pages);
    *sparse = (struct sparse){0};
}
