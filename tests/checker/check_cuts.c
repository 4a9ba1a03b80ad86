#include "tests/checker/check_cuts.h"

#include <stdlib.h>

#define CUTS_FIRST_CAPACITY 16

static int coll_cuts_compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static bool coll_cuts_grow(struct coll_cuts *cuts)
{
    size_t capacity = cuts->capacity > 0 ? cuts->capacity * 2 : CUTS_FIRST_CAPACITY;
    uint64_t *list = reallocarray(cuts->list, capacity, sizeof *list);
    if (list == NULL) {
        return false;
    }
    cuts->list = list;
    cuts->capacity = capacity;
    return true;
}

static bool coll_cuts_ascend(const uint64_t *list, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (list[i - 1] > list[i]) {
            return false;
        }
    }
    return true;
}

static size_t coll_cuts_unique(uint64_t *list, size_t count)
{
    if (!coll_cuts_ascend(list, count)) {
        qsort(list, count, sizeof *list, coll_cuts_compare);
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || list[kept - 1] != list[i]) {
            list[kept++] = list[i];
        }
    }
    return kept;
}

/* The same places are often added again. So when the array is full, the new places are sorted first and
 * repeated ones removed. The array grows only if it is still at least half full. */
bool coll_cuts_add(struct coll_cuts *cuts, uint64_t place)
{
    size_t at = coll_cuts_at(cuts, place);
    if ((at < cuts->settled && cuts->list[at] == place) ||
        (cuts->count > cuts->settled && cuts->list[cuts->count - 1] == place)) {
        return true;
    }
    if (cuts->count == cuts->capacity) {
        uint64_t *added = cuts->list == NULL ? NULL : cuts->list + cuts->settled;
        if (cuts->count > cuts->settled) {
            cuts->count = cuts->settled + coll_cuts_unique(added, cuts->count - cuts->settled);
        }
        if (cuts->count >= cuts->capacity / 2 && !coll_cuts_grow(cuts)) {
            return false;
        }
    }
    cuts->list[cuts->count++] = place;
    return true;
}

bool coll_cuts_settle(struct coll_cuts *cuts)
{
    size_t before = cuts->settled;
    if (cuts->count > before) {
        cuts->settled = coll_cuts_unique(cuts->list, cuts->count);
        cuts->count = cuts->settled;
    }
    return cuts->settled > before;
}

size_t coll_cuts_at(const struct coll_cuts *cuts, uint64_t place)
{
    size_t low = 0;
    size_t high = cuts->settled;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cuts->list[middle] < place) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void coll_cuts_free(struct coll_cuts *cuts)
{
    free(cuts->list);
    *cuts = (struct coll_cuts){0};
}
