#ifndef TESTS_FUZZ_SCRIBBLE_H
#define TESTS_FUZZ_SCRIBBLE_H

#include <stdatomic.h>

#include "proto/ring.h"
#include "tests/fuzz/input.h"

/*
 * Changes the shared memory of a ring as the input says: one of its numbers, a length, or bytes, mostly near
 * the place of the next entry. `ring` is the writer's own side; its private state stays unchanged.
 */
static inline void fuzz_ring_scribble(struct ring *ring, struct fuzz_input *input)
{
    uint8_t where = fuzz_u8(input);
    _Atomic uint32_t *const numbers[] = {&ring->shared->tail, &ring->shared->head,
                                         &ring->shared->consumer_sleeps, &ring->shared->producer_sleeps};
    if ((where & 3) != 0) {
        uint32_t number = (uint32_t)fuzz_number(input);
        atomic_store(numbers[where / 4 % 4], where < 192 ? ring->own + 8 * number : number);
        return;
    }
    uint32_t at = (ring->own + 8 * (uint32_t)(int8_t)fuzz_u8(input)) & (ring->capacity_bytes - 1);
    if (where < 128) { /* an entry begins at a multiple of 8, with its length */
        uint32_t number = (uint32_t)fuzz_number(input);
        memcpy(ring->data + at, &number, sizeof number);
        return;
    }
    size_t taken;
    uint32_t room = ring->capacity_bytes - at;
    const uint8_t *bytes = fuzz_bytes(input, where < 255 ? where % 64u : 4096, &taken);
    memcpy(ring->data + at, bytes, taken < room ? taken : room);
}

#endif
