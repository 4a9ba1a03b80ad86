#ifndef DAEMON_NET_QUIC_NUMBERS_H
#define DAEMON_NET_QUIC_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"

/*
 * The numbers of the streams that have come from a peer: all below `end`, but for the holes. The peer numbers
 * its streams from 0 in the order in which it opens them. A hole is a stream of which nothing has come yet.
 * There are few: packets overtake each other, or a stream was reset before anything of it was sent.
 */
#define QUIC_HOLES_MAX 4096u /* then the oldest hole counts as a stream that has come */

struct quic_hole {
    uint64_t first;
    uint64_t end;
};

struct quic_numbers {
    uint64_t end;
    struct quic_hole *holes; /* ascending, apart from each other */
    uint32_t hole_count;
    uint32_t hole_capacity;
};

bool quic_numbers_have(const struct quic_numbers *numbers, uint64_t number);
/* ALREADY_EXISTS if the number has come before, LIMIT if it is so large that the peer lies, NO_MEMORY. */
enum status quic_numbers_add(struct quic_numbers *numbers, uint64_t number) COMM_MUST_USE;
/* Frees the holes; all numbers are unknown afterwards. */
void quic_numbers_clear(struct quic_numbers *numbers);

#endif
