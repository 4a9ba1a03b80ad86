#ifndef DAEMON_BASE_RANGES_H
#define DAEMON_BASE_RANGES_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A set of numbers, each with a code, kept as ranges in ascending order. Neighbours with the same code form
 * one range. The owner limits the number of ranges; a set that would exceed the limit forgets its lowest
 * range.
 *
 * A look-up takes O(log n), an addition at the end O(1), any other addition O(n). Zero at first. One thread.
 */
struct range {
    uint64_t first;
    uint32_t count;
    uint32_t code;
};

struct ranges {
    struct range *items;
    uint32_t count;
    uint32_t capacity;
};

/*
 * Adds count >= 1 numbers from `first` on; first + count does not wrap. Numbers already in the set keep their
 * code. Returns false when out of memory: some of the numbers may be missing then.
 */
bool ranges_add(struct ranges *set, uint64_t first, uint64_t count, uint32_t code, uint32_t max_ranges);
/* Whether the set has the number; *code gets its code, if not null. */
bool ranges_find(const struct ranges *set, uint64_t number, uint32_t *code);
/* Finds the first run of numbers in [*first, end) that the set does not have. Sets *first to its start and
 * returns its length; 0 if the set has all. */
uint64_t ranges_gap(const struct ranges *set, uint64_t *first, uint64_t end);
/* Forgets ranges that lie entirely below the number. */
void ranges_drop_below(struct ranges *set, uint64_t number);
void ranges_free(struct ranges *set);

#endif
