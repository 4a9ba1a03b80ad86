#ifndef CLIENT_LIB_MEMORY_H
#define CLIENT_LIB_MEMORY_H

#include <commclient.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/client.pb-c.h"

/*
 * Memory that commd has mapped: what the caller registered or allocated (memory.c), and blocks that buffers
 * of plain memory are copied through (staging.c). With the client's lock, as all of the library, unless a
 * function says otherwise.
 */
struct comm_client;
struct client_gpu;

#define STAGING_MIN_BYTES ((size_t)256) /* of a block */
#define STAGING_MAX_BYTES ((size_t)1 << 44)
/* Four block sizes for each power of two, from STAGING_MIN_BYTES on. */
#define STAGING_CLASSES (4u * (44u - 8u) + 1u)
#define STAGING_SLAB_MIN_BYTES                                                                               \
    ((size_t)64 << 10) /* what blocks are cut from; larger blocks have their own                             \
                        */
#define STAGING_SLAB_MAX_BYTES ((size_t)4 << 20)
#define STAGING_CACHED_MAX_BYTES                                                                             \
    ((size_t)512 << 20) /* of slabs that wait to be used again; beyond, they are freed at once */
#define STAGING_KEPT_BYTES ((size_t)16 << 20) /* of these, beyond: freed when not used for so long */
#define STAGING_KEPT_NS 1000000000u
#define STAGING_FLIGHT_MAX_BYTES                                                                             \
    ((size_t)1024 << 20) /* of a communicator's collectives in flight; beyond, they are held */

/* A part of memory on a GPU that was mapped at once; the whole of it unless it is virtual memory. */
struct client_chunk {
    unsigned char *base;
    size_t size_bytes;
    unsigned long long buffer_id; /* another one: other memory is at the address now; 0: none */
    unsigned long long block_id;  /* likewise, of virtual memory */
};

/* Memory that commd has mapped: the caller's, or a staging block. */
struct client_memory {
    uint32_t id;
    uint32_t uses; /* by operations, in flight or about to be */
    unsigned char *base;
    size_t size_bytes;
    uint64_t file_offset_bytes; /* of base, in the file that commd has mapped from its start */
    bool owned;                 /* mapped by us */
    struct staging_slab *slab;  /* a staging block: what it is cut from; null otherwise */
    bool ready;                 /* commd knows it, and nobody is about to forget it */
    bool gone;                  /* on a GPU: in no list any more, freed with its last use */
    struct client_gpu *gpu;     /* where it lies; null: on the host */
    size_t guard_bytes;         /* owned, on a GPU: as in struct gpu_allocation */
    bool is_virtual;            /* on a GPU: virtual memory */
    bool growing;               /* likewise: a thread is adding chunks; nobody else forgets it */
    size_t room_bytes;          /* likewise: that commd has reserved, from base on */
    uint32_t chunk_count;       /* on a GPU */
    struct client_chunk *chunks;
    struct client_memory *next_free;
};

/* Memory that commd has mapped, and that staging blocks of one size are cut from. */
struct staging_slab {
    struct staging_slab *prev, *next; /* of those of its class with a free block */
    struct client_memory *mapping;
    struct client_memory *free; /* blocks */
    unsigned class;
    uint32_t block_count;
    uint32_t used;
    bool doomed; /* commd may still write there: it is not used again */
    uint64_t idle_ns;
    struct client_memory blocks[];
};

struct staging_pool {
    struct staging_slab *slabs[STAGING_CLASSES]; /* with a free block, last used first */
    struct staging_slab *doomed;                 /* to be freed when commd can be told */
    size_t class_bytes[STAGING_CLASSES];         /* of all slabs of the class */
    size_t free_bytes;                           /* of slabs of which nothing is used */
    pthread_t keeper;                            /* frees what is not used; see staging.c */
    pthread_cond_t wake;
    bool has_keeper, keeper_runs, closing;
};

/* --- memory.c --- */

/* A file in memory that cannot change its size. Reported. */
comm_result_t memory_make_file(size_t size_bytes, const char *name, int *out);
/*
 * Makes all pages of a part of a memfd that is mapped at base, so that they are charged to this process's
 * memory cgroup: commd makes none, and an operation that meets a missing one fails. Pages that are there keep
 * what they hold. COMM_NO_MEMORY; otherwise commd says what is wrong with the file.
 */
comm_result_t memory_populate(void *base, int fd, uint64_t offset_bytes, uint64_t size_bytes);
/* Makes, maps and registers; lets go of the lock meanwhile. staging: it is no address that a caller may name.
 * Reported. */
comm_result_t memory_make(struct comm_client *client, size_t size_bytes, bool staging,
                          struct client_memory **out);
/* Tells commd of memory of the host, and waits for its answer. Reported. */
comm_result_t memory_announce(struct comm_client *client, struct client_memory *memory, int fd);
/* Asks what is answered by Done; without an answer, withdraws the memory. Reported. */
comm_result_t memory_ask(struct comm_client *client, Commd__Client__Request *request, uint32_t id, int fd);
/* The same without a descriptor, again and again as long as the answer is COMM_BUSY. */
comm_result_t memory_ask_until(struct comm_client *client, Commd__Client__Request *request, uint32_t id,
                               uint64_t deadline_ns);
/* The caller's memory that holds all of the range, or null. */
struct client_memory *memory_find(const struct comm_client *client, const void *address, size_t size_bytes);
/* The first one that has a byte of the range, or null. */
struct client_memory *memory_overlapping(const struct comm_client *client, const void *address,
                                         size_t size_bytes);
/* The last one that begins at the address, or before it, or null. */
struct client_memory *memory_before(const struct comm_client *client, const void *address);
/* Reported. */
comm_result_t memory_insert(struct comm_client *client, struct client_memory *memory);
void memory_remove(struct comm_client *client, const struct client_memory *memory);
/* Where `address` is in the file that commd has mapped, or in the memory on a GPU. */
uint64_t memory_offset_bytes(const struct client_memory *memory, const void *address);
void memory_withdraw(struct comm_client *client, uint32_t id); /* tells commd; may let go of the lock */
/* Of GPUs, at the end: waits until commd has closed them. May let go of the lock. */
void memory_withdraw_all(struct comm_client *client, uint64_t deadline_ns);
void memory_free(struct client_memory *memory);
void memory_free_all(struct comm_client *client);

/* --- staging.c --- */

void staging_init(struct staging_pool *pool);
/* A block of at least size_bytes. May let go of the lock. Reported. */
comm_result_t staging_take(struct comm_client *client, size_t size_bytes, struct client_memory **out);
/* reuse: commd is done with it; otherwise the block is not used again. */
void staging_give(struct comm_client *client, struct client_memory *block, bool reuse);
/* Waits for the keeper. Without the lock. */
void staging_free_all(struct comm_client *client);

#endif
