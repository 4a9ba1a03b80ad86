#include "daemon/gpu/mark_words.h"

#include <stdlib.h>

#include "daemon/gpu/cuda_internal.h"

#define FEW_WORDS (GPU_MARK_BLOCK_WORDS / 4) /* then the next block is pinned */

struct word_block {
    struct word_block *next;
    struct gpu_pinned pinned; /* without its memory: the next block, which is being pinned */
    uint32_t free_count;
    uint16_t free[GPU_MARK_BLOCK_WORDS];
};

struct gpu_mark_words {
    struct gpu_devices *gpus;
    pthread_mutex_t lock;      /* protects the fields below */
    struct word_block *blocks; /* at most the first one is not there yet */
    uint32_t free_count;
};

/* With the lock. Begins to pin a block, unless one is being pinned. */
static enum status block_begin(struct gpu_mark_words *words, struct error *error)
{
    if (words->blocks != NULL && words->blocks->pinned.memory == NULL) {
        return STATUS_OK;
    }
    struct word_block *block = calloc(1, sizeof *block);
    if (block == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a queue of a GPU");
    }
    enum status status = gpu_pinned_begin(words->gpus, (uint64_t)GPU_MARK_BLOCK_WORDS * GPU_MARK_WORD_BYTES,
                                          &block->pinned, error);
    if (status != STATUS_OK) {
        free(block);
        return status;
    }
    block->next = words->blocks;
    words->blocks = block;
    return STATUS_OK;
}

/* With the lock, after block_begin. waits: until the block is there. */
static enum status block_end(struct gpu_mark_words *words, bool waits, struct error *error)
{
    struct word_block *block = words->blocks;
    enum status status = waits ? cuda_pinned_await(words->gpus, &block->pinned, error)
                               : gpu_pinned_poll(words->gpus, &block->pinned, error);
    if (status != STATUS_OK) {
        words->blocks = block->next;
        free(block);
        return status;
    }
    if (block->pinned.memory != NULL && block->free_count == 0) {
        for (uint32_t i = 0; i < GPU_MARK_BLOCK_WORDS; i++) {
            block->free[block->free_count++] = (uint16_t)(GPU_MARK_BLOCK_WORDS - 1 - i);
        }
        words->free_count += block->free_count;
    }
    return STATUS_OK;
}

struct gpu_mark_words *gpu_mark_words_new(struct gpu_devices *gpus)
{
    struct gpu_mark_words *words = calloc(1, sizeof *words);
    if (words != NULL) {
        words->gpus = gpus;
        pthread_mutex_init(&words->lock, NULL);
    }
    return words;
}

void gpu_mark_words_free(struct gpu_mark_words *words)
{
    while (words != NULL && words->blocks != NULL) {
        struct word_block *block = words->blocks;
        words->blocks = block->next;
        gpu_pinned_drop(words->gpus, &block->pinned);
        free(block);
    }
    if (words != NULL) {
        pthread_mutex_destroy(&words->lock);
        free(words);
    }
}

void gpu_mark_words_prepare(struct gpu_mark_words *words)
{
    struct error error;
    pthread_mutex_lock(&words->lock);
    if (words->free_count <= FEW_WORDS && block_begin(words, &error) == STATUS_OK) {
        (void)block_end(words, false, NULL); /* if it fails, who finds no word tries again */
    }
    pthread_mutex_unlock(&words->lock);
}

enum status gpu_mark_word_take(struct gpu_mark_words *words, struct gpu_mark_word *out, struct error *error)
{
    enum status status = STATUS_OK;
    gpu_mark_words_prepare(words);
    pthread_mutex_lock(&words->lock);
    if (words->free_count == 0) {
        status = block_begin(words, error);
        status = status == STATUS_OK ? block_end(words, true, error) : status;
    }
    struct word_block *block = words->blocks;
    while (status == STATUS_OK && block->free_count == 0) {
        block = block->next;
    }
    if (status == STATUS_OK) {
        uint32_t index = block->free[--block->free_count];
        words->free_count--;
        unsigned char *memory = block->pinned.memory;
        out->block = memory;
        out->at = (_Atomic uint64_t *)(void *)(memory + (size_t)index * GPU_MARK_WORD_BYTES);
        atomic_store(out->at, 0);
    }
    pthread_mutex_unlock(&words->lock);
    return status;
}

void gpu_mark_word_give(struct gpu_mark_words *words, const struct gpu_mark_word *word)
{
    if (word->block == NULL) {
        return;
    }
    pthread_mutex_lock(&words->lock);
    struct word_block *block = words->blocks;
    while (block->pinned.memory != word->block) {
        block = block->next;
    }
    size_t offset = (size_t)((const unsigned char *)(const void *)word->at - (unsigned char *)word->block);
    block->free[block->free_count++] = (uint16_t)(offset / GPU_MARK_WORD_BYTES);
    words->free_count++;
    pthread_mutex_unlock(&words->lock);
}
