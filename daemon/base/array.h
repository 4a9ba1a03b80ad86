#ifndef DAEMON_BASE_ARRAY_H
#define DAEMON_BASE_ARRAY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * An array from malloc that is indexed by small numbers, such as peer indices. Makes room for `count`
 * entries, at least 1; new entries are zero. Returns the array, which may have moved. Returns null when out
 * of memory; the array is then unchanged. The caller bounds count: (3 × count + 16) × entry_bytes must fit a
 * size_t.
 */
static inline void *array_reserve(void *entries, uint32_t *capacity, size_t entry_bytes, uint32_t count)
{
    if (count <= *capacity) {
        return entries;
    }
    uint32_t room = count + count / 2 + 8;
    unsigned char *larger = realloc(entries, room * entry_bytes);
    if (larger != NULL) {
        memset(larger + *capacity * entry_bytes, 0, (room - *capacity) * entry_bytes);
        *capacity = room;
    }
    return larger;
}

#endif
