#include "daemon/net/quic_memory.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/thread.h"

/* --- Counting --- */

static bool memory_fits(struct quic_memory *memory, size_t bytes)
{
    bool fits = bytes <= QUIC_MEMORY_MAX_BYTES && memory->bytes <= QUIC_MEMORY_MAX_BYTES - bytes;
    memory->refused = memory->refused || !fits;
    return fits;
}

static void *memory_malloc(size_t size, void *context)
{
    struct quic_memory *memory = context;
    void *block = memory_fits(memory, size) ? malloc(size) : NULL;
    memory->bytes += malloc_usable_size(block);
    return block;
}

static void memory_free(void *block, void *context)
{
    struct quic_memory *memory = context;
    memory->bytes -= malloc_usable_size(block);
    free(block);
}

static void *memory_calloc(size_t count, size_t size, void *context)
{
    struct quic_memory *memory = context;
    bool fits = size == 0 || (count <= SIZE_MAX / size && memory_fits(memory, count * size));
    void *block = fits ? calloc(count, size) : NULL;
    memory->bytes += malloc_usable_size(block);
    return block;
}

static void *memory_realloc(void *block, size_t size, void *context)
{
    struct quic_memory *memory = context;
    size_t before = malloc_usable_size(block);
    void *after = memory_fits(memory, size) ? realloc(block, size) : NULL;
    if (after != NULL) {
        memory->bytes += malloc_usable_size(after) - before;
    }
    return after;
}

struct quic_memory *quic_memory_new(void)
{
    struct quic_memory *memory = calloc(1, sizeof *memory);
    if (memory != NULL) {
        memory->functions = (ngtcp2_mem){.user_data = memory,
                                         .malloc = memory_malloc,
                                         .free = memory_free,
                                         .calloc = memory_calloc,
                                         .realloc = memory_realloc};
    }
    return memory;
}

/* --- Deleting --- */

struct quic_memory_deletion {
    struct quic_memory_deletion *next;
    struct quic_memory *memory;
    ngtcp2_conn *transport;
    pthread_t thread;
    atomic_bool over;
};

static void *deletion_main(void *context)
{
    struct quic_memory_deletion *deletion = context;
    ngtcp2_conn_del(deletion->transport);
    free(deletion->memory);
    atomic_store(&deletion->over, true);
    return NULL;
}

static struct quic_memory_deletion *deletion_start(struct quic_memory *memory, ngtcp2_conn *transport)
{
    struct quic_memory_deletion *deletion = calloc(1, sizeof *deletion);
    if (deletion != NULL) {
        deletion->memory = memory;
        deletion->transport = transport;
        if (thread_start(&deletion->thread, NULL, deletion_main, deletion) == 0) {
            return deletion;
        }
    }
    free(deletion);
    return NULL;
}

void quic_memory_delete(struct quic_memory *memory, ngtcp2_conn *transport,
                        struct quic_memory_deletion **deletions)
{
    struct quic_memory_deletion *deletion = NULL;
    quic_memory_join(deletions, false);
    if (transport != NULL && memory->bytes > QUIC_MEMORY_IN_PLACE_MAX_BYTES) {
        deletion = deletion_start(memory, transport);
    }
    if (deletion != NULL) {
        LL_PREPEND(*deletions, deletion);
        return;
    }
    ngtcp2_conn_del(transport);
    free(memory);
}

void quic_memory_join(struct quic_memory_deletion **deletions, bool all)
{
    struct quic_memory_deletion *deletion;
    struct quic_memory_deletion *next;
    LL_FOREACH_SAFE(*deletions, deletion, next)
    {
        if (all || atomic_load(&deletion->over)) {
            (void)pthread_join(deletion->thread, NULL);
            LL_DELETE(*deletions, deletion);
            free(deletion);
        }
    }
}
