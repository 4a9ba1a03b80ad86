#ifndef DAEMON_BASE_FENCE_H
#define DAEMON_BASE_FENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A word that a stream of the client's writes: reached once it is `value` or, in the order of signed
 * differences, above. It may hold anything. */
struct fence {
    const _Atomic uint64_t *word;
    uint64_t value;
};

/* Whether all of them are reached. What the streams wrote before is seen afterwards. */
static inline bool fences_are_reached(const struct fence *fences, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t now = atomic_load_explicit(fences[i].word, memory_order_acquire);
        if ((int64_t)(now - fences[i].value) < 0) {
            return false;
        }
    }
    return true;
}

#endif
