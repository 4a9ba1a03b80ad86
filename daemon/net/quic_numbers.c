#include "daemon/net/quic_numbers.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD_MAX (1u << 20) /* a peer has 65,536 streams open at most, and resets few of them unsent */
#define HOLES_MIN 8u

/* Returns the index of the first hole that ends above the number. */
static uint32_t hole_at(const struct quic_numbers *numbers, uint64_t number)
{
    uint32_t low = 0, high = numbers->hole_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (numbers->holes[middle].end > number) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static bool is_in_hole(const struct quic_numbers *numbers, uint32_t index, uint64_t number)
{
    return index < numbers->hole_count && numbers->holes[index].first <= number;
}

bool quic_numbers_have(const struct quic_numbers *numbers, uint64_t number)
{
    return number < numbers->end && !is_in_hole(numbers, hole_at(numbers, number), number);
}

static void remove_hole(struct quic_numbers *numbers, uint32_t index)
{
    numbers->hole_count--;
    memmove(&numbers->holes[index], &numbers->holes[index + 1],
            (numbers->hole_count - index) * sizeof *numbers->holes);
}

static enum status insert_hole(struct quic_numbers *numbers, uint32_t index, struct quic_hole hole)
{
    if (numbers->hole_count == numbers->hole_capacity) {
        uint32_t capacity = numbers->hole_capacity == 0 ? HOLES_MIN : 2 * numbers->hole_capacity;
        struct quic_hole *holes = realloc(numbers->holes, capacity * sizeof *holes);
        if (holes == NULL) {
            return STATUS_NO_MEMORY;
        }
        numbers->holes = holes;
        numbers->hole_capacity = capacity;
    }
    memmove(&numbers->holes[index + 1], &numbers->holes[index],
            (numbers->hole_count - index) * sizeof *numbers->holes);
    numbers->holes[index] = hole;
    numbers->hole_count++;
    if (numbers->hole_count > QUIC_HOLES_MAX) {
        remove_hole(numbers, 0);
    }
    return STATUS_OK;
}

static enum status fill(struct quic_numbers *numbers, uint32_t index, uint64_t number)
{
    struct quic_hole *hole = &numbers->holes[index];
    struct quic_hole after = {number + 1, hole->end};
    if (hole->first == number && hole->end == number + 1) {
        remove_hole(numbers, index);
    } else if (hole->first == number) {
        hole->first++;
    } else if (hole->end == number + 1) {
        hole->end--;
    } else {
        hole->end = number;
        enum status status = insert_hole(numbers, index + 1, after);
        if (status != STATUS_OK) {
            numbers->holes[index].end = after.end;
        }
        return status;
    }
    return STATUS_OK;
}

enum status quic_numbers_add(struct quic_numbers *numbers, uint64_t number)
{
    if (number < numbers->end) {
        uint32_t index = hole_at(numbers, number);
        return is_in_hole(numbers, index, number) ? fill(numbers, index, number) : STATUS_ALREADY_EXISTS;
    }
    if (number - numbers->end > AHEAD_MAX) {
        return STATUS_LIMIT;
    }
    if (number > numbers->end) {
        enum status status =
            insert_hole(numbers, numbers->hole_count, (struct quic_hole){numbers->end, number});
        if (status != STATUS_OK) {
            return status;
        }
    }
    numbers->end = number + 1;
    return STATUS_OK;
}

void quic_numbers_clear(struct quic_numbers *numbers)
{
    free(numbers->holes);
    *numbers = (struct quic_numbers){0};
}
