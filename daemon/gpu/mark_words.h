#ifndef DAEMON_GPU_MARK_WORDS_H
#define DAEMON_GPU_MARK_WORDS_H

#include "daemon/gpu/devices.h"

/*
 * The words in pinned memory to which queues write their marks. A new queue must not wait for the driver to
 * pin memory, so blocks of words are pinned in advance: the first one with the GPUs, and the next one when
 * few words are left. Any thread.
 */
struct gpu_mark_words;

struct gpu_mark_word {
    _Atomic uint64_t *at; /* 0 at first */
    void *block; /* the pinned memory that it is in, for the driver: the word is at an offset of it */
};

#define GPU_MARK_WORD_BYTES 64u    /* each word has a cache line */
#define GPU_MARK_BLOCK_WORDS 1024u /* words of a block */

/* Null if there is no memory. */
struct gpu_mark_words *gpu_mark_words_new(struct gpu_devices *gpus);
/* Gives up the memory. No word is in use. Accepts null. */
void gpu_mark_words_free(struct gpu_mark_words *words);

/* Begins to pin the next block if few words are left. Does not wait. */
void gpu_mark_words_prepare(struct gpu_mark_words *words);
/* Waits only if all words are in use, and the next block is not pinned yet. Errors: as gpu_pinned_begin. */
enum status gpu_mark_word_take(struct gpu_mark_words *words, struct gpu_mark_word *out,
                               struct error *error) COMM_MUST_USE;
void gpu_mark_word_give(struct gpu_mark_words *words, const struct gpu_mark_word *word);

#endif
