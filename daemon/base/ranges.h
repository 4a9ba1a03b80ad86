#ifndef DAEMON_BASE_RANGES_H
#define DAEMON_BASE_RANGES_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A set of numbers, each with a code, kept as ranges in ascending order. Neighbours with the same code are
 * one range. A set has at most as many ranges as its owner allows; beyond, it forgets its lowest range.
 *
 * A look-up takes O(log n), an addition at the end O(1), another O(n). Zero at first. One thread.
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
 * Adds count >= 1 numbers from `first` on; first + count does not wrap. Numbers that the set has keep their
 * code. False without memory: some of the numbers may be missing then.
 */
bool ranges_add(struct ranges *set, uint64_t first, uint64_t count, uint32_t code, uint32_t max_ranges);
/* Whether the set has the number; *code gets its code, where not null. */
bool ranges_find(const struct ranges *set, uint64_t number, uint32_t *code);
/* The first numbers of [*first, end) that the set has not, as far as they are together. Returns how many; 0:
 * it has all. */
uint64_t ranges_gap(const struct ranges *set, uint64_t *first, uint64_t end);
/* Forgets ranges that end below the number. */
void ranges_drop_below(struct ranges *set, uint64_t number);
void ranges_free(struct ranges *set);

#endif
