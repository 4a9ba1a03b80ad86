#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utlist.h>

#include "client/lib/heap.h"
#include "client/lib/internal.h"

/*
 * Memory pools: chunks that commd has mapped, divided by a heap. Each pool has two locks. `lock` guards the
 * heap and is held for moments only. `growth` is held by the thread that adds or removes chunks, also while
 * it asks commd. It is taken first; the client's lock is taken last.
 */

#define CHUNK_DEFAULT_BYTES ((size_t)32 << 20)
#define CHUNK_GPU_UNIT_BYTES ((size_t)2 << 20) /* comm_mem_alloc rounds to it on a GPU */
#define UNIT_HOST_BYTES ((size_t)64)
#define UNIT_GPU_BYTES ((size_t)512)

struct pool_chunk {
    struct pool_chunk *next;
    unsigned char *base;
    size_t size_bytes;
    struct heap_block *range; /* null: nothing can be allocated in it, because memory was short */
};

struct comm_pool {
    struct comm_pool *prev, *next; /* of the client's */
    struct comm_client *client;
    comm_pool_options_t options;
    /* A page with a 1, which the kernel replaces by zeros in a child. So no call needs to ask for the
       process's number. Null: the kernel cannot do that. */
    volatile unsigned char *mark;
    pthread_mutex_t growth;
    pthread_mutex_t lock;
    struct heap heap;
    struct pool_chunk *chunks; /* changed with both locks */
    size_t total_bytes;        /* of all chunks; with `growth` */
};

static size_t mark_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static volatile unsigned char *mark_make(void)
{
    unsigned char *mark =
        mmap(NULL, mark_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mark == MAP_FAILED) {
        return NULL;
    }
    if (madvise(mark, mark_bytes(), MADV_WIPEONFORK) != 0) {
        munmap(mark, mark_bytes());
        return NULL;
    }
    *mark = 1;
    return mark;
}

static bool is_of_parent(const struct comm_pool *pool)
{
    return pool->mark != NULL ? *pool->mark == 0 : pool->client->pid != getpid();
}

static comm_result_t check_pool(const struct comm_pool *pool, const char *call)
{
    if (pool == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s: the pool is a null pointer", call);
    }
    if (is_of_parent(pool)) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "%s: this pool was made by process %d, before a fork: process %d must make its own", call,
            (int)pool->client->pid, (int)getpid());
    }
    return COMM_OK;
}

/* --- Making and freeing --- */

static comm_result_t check_options(const comm_pool_options_t *options)
{
    if (options->device < COMM_DEVICE_HOST) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_pool_create: device %d: expected a GPU's number, or COMM_DEVICE_HOST (%d)",
                            options->device, COMM_DEVICE_HOST);
    }
    if ((unsigned)options->huge_pages > COMM_HUGE_PAGES_1G) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_pool_create: huge_pages is %d: expected 0 to %d",
                            (int)options->huge_pages, COMM_HUGE_PAGES_1G);
    }
    if (options->chunk_bytes > HEAP_MAX_BYTES) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_pool_create: chunk_bytes is %zu: expected at most %zu",
                            options->chunk_bytes, HEAP_MAX_BYTES);
    }
    return COMM_OK;
}

comm_result_t comm_pool_create(comm_client_t *client, const comm_pool_options_t *options, comm_pool_t **out)
{
    comm_pool_options_t given = COMM_POOL_OPTIONS_INIT;
    if (out == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_pool_create: the argument for the pool is a null pointer");
    }
    *out = NULL;
    comm_result_t result =
        options_copy(&given, sizeof given, options, "comm_pool_create", "COMM_POOL_OPTIONS_INIT");
    result = result == COMM_OK ? check_options(&given) : result;
    result = result == COMM_OK ? client_check(client) : result;
    if (result != COMM_OK) {
        return result;
    }
    struct comm_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return error_report(COMM_NO_MEMORY, "comm_pool_create: no memory for a pool");
    }
    given.chunk_bytes = given.chunk_bytes != 0 ? given.chunk_bytes : CHUNK_DEFAULT_BYTES;
    pool->client = client;
    pool->options = given;
    pool->mark = mark_make();
    pthread_mutex_init(&pool->growth, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    heap_init(&pool->heap, given.device == COMM_DEVICE_HOST ? UNIT_HOST_BYTES : UNIT_GPU_BYTES);
    pthread_mutex_lock(&client->lock);
    DL_APPEND(client->pools, pool);
    pthread_mutex_unlock(&client->lock);
    *out = pool;
    return COMM_OK;
}

/* Frees what the pool keeps, but not the memory of its chunks. */
static void pool_free(struct comm_pool *pool)
{
    while (pool->chunks != NULL) {
        struct pool_chunk *next = pool->chunks->next;
        free(pool->chunks);
        pool->chunks = next;
    }
    heap_close(&pool->heap);
    if (pool->mark != NULL) {
        munmap((void *)(uintptr_t)pool->mark, mark_bytes());
    }
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->growth);
    free(pool);
}

void pools_free_all(struct comm_client *client)
{
    struct comm_pool *pool, *next;
    DL_FOREACH_SAFE(client->pools, pool, next)
    {
        DL_DELETE(client->pools, pool);
        pool_free(pool);
    }
}

void pools_move(struct comm_client *client, struct comm_client *from)
{
    struct comm_pool *pool;
    DL_FOREACH(from->pools, pool)
    {
        pool->client = client;
    }
    DL_CONCAT(client->pools, from->pools);
    from->pools = NULL;
}

void comm_pool_destroy(comm_pool_t *pool)
{
    if (pool == NULL || check_pool(pool, "comm_pool_destroy") != COMM_OK) {
        return;
    }
    for (struct pool_chunk *chunk = pool->chunks; chunk != NULL; chunk = chunk->next) {
        /* What cannot be freed now is freed with the client. */
        (void)memory_drop(pool->client, chunk->base, MEMORY_POOLED, true, "comm_pool_destroy");
    }
    pthread_mutex_lock(&pool->client->lock);
    DL_DELETE(pool->client->pools, pool);
    pthread_mutex_unlock(&pool->client->lock);
    pool_free(pool);
}

/* --- Chunks --- */

static comm_result_t make_on_gpu(struct comm_pool *pool, size_t size_bytes, unsigned char **out)
{
    struct comm_client *client = pool->client;
    void *base;
    comm_result_t result = gpu_memory_make(client, size_bytes, pool->options.device, &base);
    if (result == COMM_OK) {
        pthread_mutex_lock(&client->lock);
        struct client_memory *memory = memory_find(client, base, size_bytes);
        if (memory != NULL) {
            memory->pooled = true;
        }
        pthread_mutex_unlock(&client->lock);
        *out = base;
    }
    return result;
}

static comm_result_t make_on_host(struct comm_pool *pool, size_t size_bytes, unsigned char **out)
{
    struct client_memory *memory;
    comm_result_t result = client_enter(pool->client);
    if (result != COMM_OK) {
        return result;
    }
    result = memory_make(pool->client, size_bytes, MEMORY_POOLED, pool->options.huge_pages, &memory);
    if (result == COMM_OK) {
        *out = memory->base;
    }
    client_leave(pool->client);
    return result;
}

/* Adds a chunk of exactly this size. With `growth`. */
static comm_result_t add_chunk(struct comm_pool *pool, size_t size_bytes)
{
    struct pool_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for a chunk of a pool");
    }
    comm_result_t result = pool->options.device == COMM_DEVICE_HOST
                               ? make_on_host(pool, size_bytes, &chunk->base)
                               : make_on_gpu(pool, size_bytes, &chunk->base);
    if (result != COMM_OK) {
        free(chunk);
        return result;
    }
    chunk->size_bytes = size_bytes;
    pthread_mutex_lock(&pool->lock);
    chunk->range = heap_add(&pool->heap, chunk->base, size_bytes);
    if (chunk->range != NULL) {
        LL_PREPEND(pool->chunks, chunk);
    }
    pthread_mutex_unlock(&pool->lock);
    if (chunk->range == NULL) {
        (void)memory_drop(pool->client, chunk->base, MEMORY_POOLED, true, "comm_pool_alloc");
        free(chunk);
        return error_report(COMM_NO_MEMORY, "no memory for a chunk of a pool");
    }
    pool->total_bytes += size_bytes;
    return COMM_OK;
}

static size_t round_up(size_t size_bytes, size_t unit_bytes)
{
    return (size_bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

/* Adds a chunk in which an allocation of this size has room. With `growth`. */
static comm_result_t grow(struct comm_pool *pool, size_t size_bytes)
{
    const comm_pool_options_t *options = &pool->options;
    size_t wanted = size_bytes > options->chunk_bytes ? size_bytes : options->chunk_bytes;
    size_t unit = options->device == COMM_DEVICE_HOST ? pages_unit_bytes(options->huge_pages, wanted)
                                                      : CHUNK_GPU_UNIT_BYTES;
    size_t least = round_up(size_bytes, unit);
    wanted = round_up(wanted, unit);
    if (options->most_bytes != 0) {
        size_t left = options->most_bytes > pool->total_bytes ? options->most_bytes - pool->total_bytes : 0;
        if (least > left) {
            return error_report(COMM_LIMIT,
                                "the pool has %zu bytes, and its limit is %zu: %zu more are too many",
                                pool->total_bytes, options->most_bytes, least);
        }
        wanted = wanted < left ? wanted : left / unit * unit;
    }
    comm_result_t result = add_chunk(pool, wanted);
    if ((result == COMM_NO_MEMORY || result == COMM_LIMIT) && least < wanted) {
        result = add_chunk(pool, least);
    }
    return result;
}

static unsigned char *take(struct comm_pool *pool, size_t size_bytes, bool *is_full)
{
    pthread_mutex_lock(&pool->lock);
    unsigned char *at = heap_take(&pool->heap, size_bytes, is_full);
    pthread_mutex_unlock(&pool->lock);
    return at;
}

/* --- Allocations --- */

static comm_result_t round_size(const struct comm_pool *pool, size_t size, const char *call, size_t *out)
{
    *out = heap_round(&pool->heap, size);
    return *out != 0 ? COMM_OK
                     : error_report(COMM_INVALID_ARGUMENT, "%s: %zu bytes: expected at most %zu", call, size,
                                    HEAP_MAX_BYTES);
}

/* Allocates from a pool that seemed full. */
static comm_result_t take_or_grow(struct comm_pool *pool, size_t size_bytes, void **memory)
{
    bool is_full = true;
    comm_result_t result = COMM_OK;
    pthread_mutex_lock(&pool->growth);
    *memory = take(pool, size_bytes, &is_full); /* another thread may have added a chunk */
    while (*memory == NULL && is_full && result == COMM_OK) {
        result = grow(pool, size_bytes);
        *memory = result == COMM_OK ? take(pool, size_bytes, &is_full) : NULL;
    }
    pthread_mutex_unlock(&pool->growth);
    if (result == COMM_OK && *memory == NULL) {
        result = error_report(COMM_NO_MEMORY, "no memory for what the pool keeps");
    }
    return result;
}

comm_result_t comm_pool_alloc(comm_pool_t *pool, size_t size, void **memory)
{
    bool is_full;
    size_t size_bytes;
    if (memory == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_pool_alloc: the argument for the address is a null pointer");
    }
    *memory = NULL;
    comm_result_t result = check_pool(pool, "comm_pool_alloc");
    result = result == COMM_OK ? round_size(pool, size, "comm_pool_alloc", &size_bytes) : result;
    if (result != COMM_OK) {
        return result;
    }
    *memory = take(pool, size_bytes, &is_full);
    if (*memory != NULL) {
        return COMM_OK;
    }
    result = take_or_grow(pool, size_bytes, memory);
    return result == COMM_OK ? COMM_OK : error_within(result, "comm_pool_alloc");
}

comm_result_t comm_pool_reserve(comm_pool_t *pool, size_t size)
{
    size_t size_bytes;
    comm_result_t result = check_pool(pool, "comm_pool_reserve");
    result = result == COMM_OK ? round_size(pool, size, "comm_pool_reserve", &size_bytes) : result;
    if (result != COMM_OK) {
        return result;
    }
    pthread_mutex_lock(&pool->growth);
    pthread_mutex_lock(&pool->lock);
    bool has_room = heap_has_room(&pool->heap, size_bytes);
    pthread_mutex_unlock(&pool->lock);
    result = has_room ? COMM_OK : grow(pool, size_bytes);
    pthread_mutex_unlock(&pool->growth);
    return result == COMM_OK ? COMM_OK : error_within(result, "comm_pool_reserve");
}

comm_result_t comm_pool_free(comm_pool_t *pool, void *memory)
{
    comm_result_t result = check_pool(pool, "comm_pool_free");
    if (result != COMM_OK || memory == NULL) {
        return result;
    }
    pthread_mutex_lock(&pool->lock);
    bool is_known = heap_give(&pool->heap, memory);
    pthread_mutex_unlock(&pool->lock);
    return is_known
               ? COMM_OK
               : error_report(COMM_NOT_FOUND, "comm_pool_free: %p is no allocation of this pool", memory);
}

/* --- Trimming --- */

/* Takes all chunks out of the pool in which nothing is allocated. */
static struct pool_chunk *take_idle(struct comm_pool *pool)
{
    struct pool_chunk *idle = NULL, *chunk, *next;
    pthread_mutex_lock(&pool->lock);
    LL_FOREACH_SAFE(pool->chunks, chunk, next)
    {
        if (chunk->range == NULL || heap_is_idle(chunk->range)) {
            if (chunk->range != NULL) {
                heap_remove(&pool->heap, chunk->range);
            }
            LL_DELETE(pool->chunks, chunk);
            LL_PREPEND(idle, chunk);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return idle;
}

static void put_back(struct comm_pool *pool, struct pool_chunk *chunk)
{
    pthread_mutex_lock(&pool->lock);
    chunk->range = heap_add(&pool->heap, chunk->base, chunk->size_bytes);
    LL_PREPEND(pool->chunks, chunk);
    pthread_mutex_unlock(&pool->lock);
}

size_t comm_pool_trim(comm_pool_t *pool)
{
    size_t trimmed_bytes = 0;
    if (check_pool(pool, "comm_pool_trim") != COMM_OK) {
        return 0;
    }
    pthread_mutex_lock(&pool->growth);
    struct pool_chunk *chunk = take_idle(pool), *next;
    for (; chunk != NULL; chunk = next) {
        next = chunk->next;
        if (memory_drop(pool->client, chunk->base, MEMORY_POOLED, false, "comm_pool_trim") != COMM_OK) {
            put_back(pool, chunk);
            continue;
        }
        trimmed_bytes += chunk->size_bytes;
        free(chunk);
    }
    pool->total_bytes -= trimmed_bytes;
    pthread_mutex_unlock(&pool->growth);
    return trimmed_bytes;
}
