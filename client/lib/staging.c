#include <stdlib.h>

#include <utlist.h>

#include "client/lib/internal.h"

/*
 * Staging blocks: buffers that commd has not mapped are copied through them. Small blocks are parts of slabs.
 * Slabs get larger the more blocks are in use, so many messages need few mappings. Unused slabs are kept for
 * reuse. While they exceed STAGING_KEPT_BYTES, the keeper thread runs and frees slabs that were not used for
 * STAGING_KEPT_NS.
 */

static size_t block_bytes(unsigned class)
{
    return (STAGING_MIN_BYTES << class / 4) / 4 * (4 + class % 4);
}

/* Returns the smallest class that holds size_bytes, or STAGING_CLASSES. The size of blocks within a page is a
 * power of two, so they are aligned. */
static unsigned class_of(size_t size_bytes)
{
    unsigned class = 0;
    while (class < STAGING_CLASSES && block_bytes(class) < size_bytes) {
        class += block_bytes(class) < STAGING_SLAB_MIN_BYTES ? 4 : 1;
    }
    return class;
}

static void slab_free(struct staging_slab *slab)
{
    memory_free(slab->mapping);
    free(slab);
}

/* Takes out a slab to free: a doomed one, one beyond the limits, or one unused since `idle_ns`; or null. */
static struct staging_slab *take_surplus(struct staging_pool *pool, uint64_t idle_ns)
{
    struct staging_slab *slab = pool->doomed;
    if (slab != NULL) {
        DL_DELETE(pool->doomed, slab);
        return slab;
    }
    bool too_much = pool->free_bytes > STAGING_CACHED_MAX_BYTES;
    for (unsigned i = STAGING_CLASSES; i > 0 && pool->free_bytes > STAGING_KEPT_BYTES; i--) {
        DL_FOREACH(pool->slabs[i - 1], slab)
        {
            if (slab->used == 0 && (too_much || slab->idle_ns <= idle_ns)) {
                DL_DELETE(pool->slabs[i - 1], slab);
                pool->class_bytes[i - 1] -= slab->mapping->size_bytes;
                pool->free_bytes -= slab->mapping->size_bytes;
                return slab;
            }
        }
    }
    return NULL;
}

/* Not called when blocks are given back, because that happens while the socket is read, and this may send. */
static void trim(struct comm_client *client, uint64_t idle_ns)
{
    struct staging_slab *slab;
    while ((slab = take_surplus(&client->staging, idle_ns)) != NULL) {
        uint32_t id = slab->mapping->id;
        slab_free(slab);
        memory_withdraw(client, id);
    }
}

/* --- The keeper --- */

static void *keep(void *argument)
{
    struct comm_client *client = argument;
    struct staging_pool *pool = &client->staging;
    pthread_mutex_lock(&client->lock);
    while (!pool->closing && pool->free_bytes > STAGING_KEPT_BYTES) {
        uint64_t until_ns = clock_ns() + STAGING_KEPT_NS / 2;
        struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                 .tv_nsec = (long)(until_ns % 1000000000u)};
        (void)pthread_cond_timedwait(&pool->wake, &client->lock, &until);
        trim(client, clock_ns() - STAGING_KEPT_NS);
    }
    pool->keeper_runs = false;
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

/* If no thread can be started, the memory is kept until it is used, or the client is closed. */
static void start_keeper(struct comm_client *client)
{
    struct staging_pool *pool = &client->staging;
    if (pool->keeper_runs || pool->closing) {
        return;
    }
    if (pool->has_keeper) {
        pthread_join(pool->keeper, NULL); /* it is about to return */
    }
    pool->has_keeper = client_thread_start(client, keep, &pool->keeper) == 0;
    pool->keeper_runs = pool->has_keeper;
}

void staging_init(struct staging_pool *pool)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->wake, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* --- Blocks --- */

/* The size of a new slab: as much as its class has already, within the limits. */
static size_t slab_bytes(const struct staging_pool *pool, unsigned class)
{
    size_t wanted = pool->class_bytes[class];
    wanted = wanted > STAGING_SLAB_MIN_BYTES ? wanted : STAGING_SLAB_MIN_BYTES;
    wanted = wanted < STAGING_SLAB_MAX_BYTES ? wanted : STAGING_SLAB_MAX_BYTES;
    return block_bytes(class) < STAGING_SLAB_MIN_BYTES ? wanted / block_bytes(class) * block_bytes(class)
                                                       : block_bytes(class);
}

/* May let go of the lock. */
static comm_result_t slab_make(struct comm_client *client, unsigned class, struct staging_slab **out)
{
    size_t size_bytes = slab_bytes(&client->staging, class);
    uint32_t count = (uint32_t)(size_bytes / block_bytes(class));
    struct staging_slab *slab = calloc(1, sizeof *slab + count * sizeof slab->blocks[0]);
    if (slab == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for a staging block");
    }
    comm_result_t result =
        memory_make(client, size_bytes, MEMORY_STAGING, COMM_HUGE_PAGES_NONE, &slab->mapping);
    if (result != COMM_OK) {
        free(slab);
        return result;
    }
    slab->class = class;
    slab->block_count = count;
    for (uint32_t i = count; i-- > 0;) {
        struct client_memory *block = &slab->blocks[i];
        block->slab = slab;
        block->id = slab->mapping->id;
        block->size_bytes = block_bytes(class);
        block->file_offset_bytes = i * block->size_bytes;
        block->base = slab->mapping->base + block->file_offset_bytes;
        block->ready = true;
        block->next_free = slab->free;
        slab->free = block;
    }
    client->staging.class_bytes[class] += size_bytes;
    client->staging.free_bytes += size_bytes;
    DL_PREPEND(client->staging.slabs[class], slab);
    *out = slab;
    return COMM_OK;
}

static struct client_memory *slab_take(struct staging_pool *pool, struct staging_slab *slab)
{
    struct client_memory *block = slab->free;
    slab->free = block->next_free;
    block->next_free = NULL;
    if (slab->used++ == 0) {
        pool->free_bytes -= slab->mapping->size_bytes;
    }
    if (slab->used == slab->block_count) {
        DL_DELETE(pool->slabs[slab->class], slab);
    }
    return block;
}

comm_result_t staging_take(struct comm_client *client, size_t size_bytes, struct client_memory **out)
{
    struct staging_pool *pool = &client->staging;
    unsigned class = class_of(size_bytes);
    comm_result_t result = COMM_OK;
    if (class >= STAGING_CLASSES) {
        return error_report(
            COMM_LIMIT,
            "%zu bytes are too many to copy (at most %zu): use memory of comm_mem_alloc or comm_mem_register",
            size_bytes, STAGING_MAX_BYTES);
    }
    if (pool->slabs[class] == NULL) {
        client_take_events(client); /* waiting completions may give blocks back */
    }
    if (pool->doomed != NULL || pool->free_bytes > STAGING_CACHED_MAX_BYTES) {
        trim(client, 0);
    }
    struct staging_slab *slab = pool->slabs[class];
    if (slab == NULL) {
        result = slab_make(client, class, &slab);
    }
    if (result == COMM_OK) {
        *out = slab_take(pool, slab);
    }
    return result;
}

/* The slab has no used block any more. */
static void slab_rest(struct comm_client *client, struct staging_slab *slab)
{
    struct staging_pool *pool = &client->staging;
    if (slab->doomed) {
        DL_PREPEND(pool->doomed, slab);
        return;
    }
    pool->free_bytes += slab->mapping->size_bytes;
    slab->idle_ns = clock_ns();
    if (pool->free_bytes > STAGING_KEPT_BYTES) {
        start_keeper(client);
    }
}

void staging_give(struct comm_client *client, struct client_memory *block, bool reuse)
{
    struct staging_slab *slab = block->slab;
    struct staging_pool *pool = &client->staging;
    bool is_full = slab->used == slab->block_count;
    if (!reuse && !slab->doomed) {
        slab->doomed = true;
        pool->class_bytes[slab->class] -= slab->mapping->size_bytes;
        if (!is_full) {
            DL_DELETE(pool->slabs[slab->class], slab);
        }
    } else if (!slab->doomed && is_full) {
        DL_PREPEND(pool->slabs[slab->class], slab);
    }
    block->next_free = slab->free;
    slab->free = block;
    slab->used--;
    if (slab->used == 0) {
        slab_rest(client, slab);
    }
}

void staging_free_all(struct comm_client *client)
{
    struct staging_pool *pool = &client->staging;
    struct staging_slab *slab, *next;
    pthread_mutex_lock(&client->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&client->lock);
    if (pool->has_keeper) {
        pthread_join(pool->keeper, NULL);
    }
    DL_FOREACH_SAFE(pool->doomed, slab, next)
    {
        slab_free(slab);
    }
    for (unsigned i = 0; i < STAGING_CLASSES; i++) {
        DL_FOREACH_SAFE(pool->slabs[i], slab, next)
        {
            slab_free(slab);
        }
    }
    pthread_cond_destroy(&pool->wake);
}
