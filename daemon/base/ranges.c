#include "daemon/base/ranges.h"

#include <stdlib.h>
#include <string.h>

#define RANGES_FIRST 4u

static uint64_t range_end(const struct range *range)
{
    return range->first + range->count;
}

/* The index of the first range that ends above the number, or the count. */
static uint32_t ranges_index(const struct ranges *set, uint64_t number)
{
    uint32_t low = 0, high = set->count;
    if (high == 0 || range_end(&set->items[high - 1]) <= number) {
        return high; /* the case of most look-ups */
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (range_end(&set->items[middle]) <= number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool ranges_find(const struct ranges *set, uint64_t number, uint32_t *code)
{
    uint32_t index = ranges_index(set, number);
    if (index == set->count || set->items[index].first > number) {
        return false;
    }
    if (code != NULL) {
        *code = set->items[index].code;
    }
    return true;
}

uint64_t ranges_gap(const struct ranges *set, uint64_t *first, uint64_t end)
{
    uint32_t index = ranges_index(set, *first);
    while (index < set->count && *first < end && set->items[index].first <= *first) {
        *first = range_end(&set->items[index++]);
    }
    if (*first >= end) {
        return 0;
    }
    if (index < set->count && set->items[index].first < end) {
        end = set->items[index].first;
    }
    return end - *first;
}

static bool ranges_grow(struct ranges *set)
{
    uint32_t capacity = set->capacity > 0 ? 2 * set->capacity : RANGES_FIRST;
    struct range *items = realloc(set->items, capacity * sizeof *items);
    if (items == NULL) {
        return false;
    }
    set->items = items;
    set->capacity = capacity;
    return true;
}

static void ranges_remove(struct ranges *set, uint32_t from, uint32_t count)
{
    set->count -= count;
    memmove(&set->items[from], &set->items[from + count], (set->count - from) * sizeof *set->items);
}

static bool ranges_are_one(const struct range *low, const struct range *high)
{
    return range_end(low) == high->first && low->code == high->code && high->count <= UINT32_MAX - low->count;
}

/* Merges a range, of which the set has no number, into a neighbour if it can. */
static bool ranges_extend(struct ranges *set, uint32_t index, const struct range *range)
{
    struct range *low = index > 0 ? &set->items[index - 1] : NULL;
    struct range *high = index < set->count ? &set->items[index] : NULL;
    if (low != NULL && ranges_are_one(low, range)) {
        low->count += range->count;
        if (high != NULL && ranges_are_one(low, high)) {
            low->count += high->count;
            ranges_remove(set, index, 1);
        }
        return true;
    }
    if (high != NULL && ranges_are_one(range, high)) {
        high->first = range->first;
        high->count += range->count;
        return true;
    }
    return false;
}

static bool ranges_insert(struct ranges *set, const struct range *range, uint32_t max_ranges)
{
    uint32_t index = ranges_index(set, range->first);
    if (ranges_extend(set, index, range)) {
        return true;
    }
    if (set->count == max_ranges) {
        if (index == 0) {
            return true; /* the set forgets its lowest range, which is this one */
        }
        ranges_remove(set, 0, 1);
        index--;
    }
    if (set->count == set->capacity && !ranges_grow(set)) {
        return false;
    }
    memmove(&set->items[index + 1], &set->items[index], (set->count - index) * sizeof *set->items);
    set->items[index] = *range;
    set->count++;
    return true;
}

bool ranges_add(struct ranges *set, uint64_t first, uint64_t count, uint32_t code, uint32_t max_ranges)
{
    uint64_t end = first + count;
    for (uint64_t length; (length = ranges_gap(set, &first, end)) > 0; first += length) {
        length = length < UINT32_MAX ? length : UINT32_MAX;
        if (!ranges_insert(set, &(struct range){first, (uint32_t)length, code}, max_ranges)) {
            return false;
        }
    }
    return true;
}

void ranges_drop_below(struct ranges *set, uint64_t number)
{
    if (set->count > 0) {
        ranges_remove(set, 0, ranges_index(set, number));
    }
}

void ranges_free(struct ranges *set)
{
    free(set->items);
    *set = (struct ranges){0};
}
