#ifndef DAEMON_BASE_FENCE_H
#define DAEMON_BASE_FENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where streams of GPUs see a word: at *base + offset_bytes. They cannot, while base is null or *base is 0.
 */
struct gpu_word {
    const uint64_t *base;
    uint64_t offset_bytes;
};

/* 0: none yet. */
static inline uint64_t gpu_word_address(const struct gpu_word *word)
{
    return word->base != NULL && *word->base != 0 ? *word->base + word->offset_bytes : 0;
}

/* A word that a stream of the client writes. The fence is reached once the word is `value` or above, compared
 * by signed difference. The word may hold anything before. */
struct fence {
    const _Atomic uint64_t *word;
    uint64_t value;
    struct gpu_word gpu_word;
};

/* Whether all fences are reached. If so, the caller sees what the streams wrote before. */
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
