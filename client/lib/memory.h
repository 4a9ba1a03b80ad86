#ifndef CLIENT_LIB_MEMORY_H
#define CLIENT_LIB_MEMORY_H

#include <commclient.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/client.pb-c.h"
#include "proto/cuda_driver.h"

/*
 * Memory that commd has mapped: memory that the caller registered or allocated (memory.c), and staging blocks
 * for the buffers in other memory (staging.c). All functions need the client's lock, unless their comment
 * says otherwise.
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
#define STAGING_CACHED_MAX_BYTES ((size_t)512 << 20) /* of unused slabs; more than that is freed at once */
#define STAGING_KEPT_BYTES ((size_t)16 << 20) /* of unused slabs; more is freed after STAGING_KEPT_NS */
#define STAGING_KEPT_NS 1000000000u
#define STAGING_FLIGHT_MAX_BYTES                                                                             \
    ((size_t)1024 << 20) /* of a communicator's collectives in flight; further ones are held */

/* A part of GPU memory that was mapped at once: a chunk of virtual memory, or a whole other allocation. */
struct client_chunk {
    unsigned char *base;
    size_t size_bytes;
    unsigned long long buffer_id; /* if CUDA says another one, other memory is at the address; 0: none */
    unsigned long long block_id;  /* the same for virtual memory */
};

/* Memory that commd has mapped: the caller's, or a staging block. */
struct client_memory {
    uint32_t id;
    uint32_t uses; /* by operations, in flight or about to be */
    unsigned char *base;
    size_t size_bytes;
    uint64_t file_offset_bytes; /* of base, in the file that commd has mapped from its start */
    bool owned;                 /* mapped by the library */
    bool pooled;                /* owned, by a pool */
    enum comm_huge_pages pages; /* owned, on the host */
    bool has_fd;                /* on the host: `fd` is the file */
    bool offered;               /* owned: other ranks may have mapped the file */
    uint32_t lendable_uses;     /* owned: by operations that could have lent it, until it was offered */
    int fd;
    struct staging_slab *slab; /* the slab of a staging block; null otherwise */
    bool ready;                /* commd knows it, and no thread is removing it */
    bool gone;                 /* on a GPU: it is in no list any more, and is freed after its last use */
    struct client_gpu *gpu;    /* the GPU that holds it; null: on the host */
    size_t guard_bytes;        /* owned, on a GPU: as in struct gpu_allocation */
    bool is_virtual;           /* on a GPU: virtual memory */
    cuda_pool pool;            /* on a GPU: the CUDA memory pool that it is from, or null */
    bool growing;              /* virtual: a thread is adding chunks, so no other thread may remove it */
    size_t room_bytes;         /* virtual: size of the addresses that commd has reserved, from base on */
    uint32_t chunk_count;      /* on a GPU */
    struct client_chunk *chunks;
    struct client_memory *next_free;
};

/* Memory that commd has mapped, divided into staging blocks of one size. */
struct staging_slab {
    struct staging_slab *prev, *next; /* among the slabs of its class that have a free block */
    struct client_memory *mapping;
    struct client_memory *free; /* free blocks */
    unsigned class;
    uint32_t block_count;
    uint32_t used;
    bool doomed;      /* commd may still write to it, so it is not reused */
    uint64_t idle_ns; /* since when no block is used */
    struct client_memory blocks[];
};

struct staging_pool {
    struct staging_slab *slabs[STAGING_CLASSES]; /* with a free block, last used first */
    struct staging_slab *doomed;                 /* freed when a message to commd can be sent */
    size_t class_bytes[STAGING_CLASSES];         /* of all slabs of the class */
    size_t free_bytes;                           /* of slabs without a used block */
    pthread_t keeper;                            /* thread that frees unused slabs; see staging.c */
    pthread_cond_t wake;
    bool has_keeper, keeper_runs, closing;
};

/* How many descriptors of registered memory a client keeps, for comm_client_reopen. */
#define MEMORY_FDS_MAX 256u
/* The same of its own memory, of so many bytes at least, to lend it. */
#define MEMORY_LENT_FDS_MAX 32u
#define MEMORY_LENT_MIN_BYTES ((size_t)64 << 10)

/* --- pages.c: any thread, no lock --- */

/* Makes a memfd whose size cannot change. size_bytes: for huge pages, a multiple of them. Failures are
 * reported. */
comm_result_t pages_make_file(size_t size_bytes, enum comm_huge_pages pages, const char *name, int *out);
/* Maps the whole file. Failures are reported. */
comm_result_t pages_map(int fd, size_t size_bytes, enum comm_huge_pages pages, unsigned char **out);
/* Returns what the size of a file with such pages should be a multiple of. */
size_t pages_unit_bytes(enum comm_huge_pages pages, size_t size_bytes);
/*
 * Makes all pages of a part of a memfd that is mapped at base, so that they are charged to this process's
 * memory cgroup. commd makes no pages, and an operation that meets a missing page fails. Pages that exist
 * keep their contents. Returns COMM_NO_MEMORY if memory is short. commd reports other faults of the file.
 */
comm_result_t pages_populate(void *base, int fd, uint64_t offset_bytes, uint64_t size_bytes);

/* --- memory.c --- */

enum memory_kind { MEMORY_STAGING, MEMORY_REGISTERED, MEMORY_ALLOCATED, MEMORY_POOLED };

/* Makes a memfd, maps it and registers it with commd; releases the lock meanwhile. Memory for staging is not
 * added to the caller's memories. Failures are reported. */
comm_result_t memory_make(struct comm_client *client, size_t size_bytes, enum memory_kind kind,
                          enum comm_huge_pages pages, struct client_memory **out);
/* As pages_populate; releases the lock meanwhile. */
comm_result_t memory_populate(struct comm_client *client, void *base, int fd, uint64_t offset_bytes,
                              uint64_t size_bytes);
/* Ends the memory of that kind that begins at the address. Waits for operations that use it; without `wait`,
 * fails with COMM_BUSY if there are any. Without the lock. Failures are reported. */
comm_result_t memory_drop(struct comm_client *client, void *base, enum memory_kind kind, bool wait,
                          const char *call);
/* Registers host memory with commd, and waits for its reply. Failures are reported. */
comm_result_t memory_announce(struct comm_client *client, struct client_memory *memory, int fd);
/* Sends a request whose reply is Done, and waits. Without a reply, withdraws the memory. Failures are
 * reported. */
comm_result_t memory_ask(struct comm_client *client, Commd__Client__Request *request, uint32_t id, int fd);
/* As memory_ask. Repeats the request while the reply is COMM_BUSY. */
comm_result_t memory_ask_until(struct comm_client *client, Commd__Client__Request *request, uint32_t id,
                               int fd, uint64_t deadline_ns);
/* Finds the caller's memory that holds the whole range, or returns null. */
struct client_memory *memory_find(const struct comm_client *client, const void *address, size_t size_bytes);
/* Finds the caller's first memory that holds a byte of the range, or returns null. */
struct client_memory *memory_overlapping(const struct comm_client *client, const void *address,
                                         size_t size_bytes);
/* Finds the caller's last memory that begins at or before the address, or returns null. */
struct client_memory *memory_before(const struct comm_client *client, const void *address);
/* Adds it to the caller's memories. Failures are reported. */
comm_result_t memory_insert(struct comm_client *client, struct client_memory *memory);
void memory_remove(struct comm_client *client, const struct client_memory *memory);
/* Returns how many memories keep their file. owned: of those that the library has mapped, or of the others.
 */
unsigned memory_files_kept(const struct comm_client *client, bool owned);
/* Returns the offset of `address` in the file that commd has mapped, or in the memory on a GPU. */
uint64_t memory_offset_bytes(const struct client_memory *memory, const void *address);
void memory_withdraw(struct comm_client *client, uint32_t id); /* tells commd; may release the lock */
/* When a client is closed: withdraws GPU memory and waits until commd has closed it. May release the lock. */
void memory_withdraw_all(struct comm_client *client, uint64_t deadline_ns);
/* Gives up one of its uses; memory may be null. clean: commd has finished with it. After the last use, a
 * staging block is given back, and memory that is `gone` is freed. */
void memory_unuse(struct comm_client *client, struct client_memory *memory, bool clean);
void memory_free(struct client_memory *memory);
void memory_free_all(struct comm_client *client);

/* --- staging.c --- */

void staging_init(struct staging_pool *pool);
/* Takes a block of at least size_bytes. May release the lock. Failures are reported. */
comm_result_t staging_take(struct comm_client *client, size_t size_bytes, struct client_memory **out);
/* reuse: commd has finished with the block; otherwise it is not reused. */
void staging_give(struct comm_client *client, struct client_memory *block, bool reuse);
/* Ends the keeper thread, and frees all blocks. Without the lock. */
void staging_free_all(struct comm_client *client);

#endif
