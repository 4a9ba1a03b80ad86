#ifndef DAEMON_HOST_MEMORY_INTERNAL_H
#define DAEMON_HOST_MEMORY_INTERNAL_H

#include "daemon/base/unmapper.h"
#include "daemon/host/guard.h"
#include "daemon/host/memory.h"

struct memory {
    unsigned char *base; /* a GPU address for GPU memory */
    uint64_t size_bytes;
    uint64_t mapped_bytes;  /* usable bytes, from base on */
    uint64_t address_bytes; /* what it takes of commd's address space */
    struct budget_account *charged;
    bool by_ipc;
    struct memory_origin origin; /* valid if by_ipc */
    uint32_t references;
    bool guarded;             /* it is a memfd: guard is in use */
    uint64_t huge_page_bytes; /* 0: the memfd is not of huge pages */
    struct guard guard;
    struct unmapper *unmapper;
    struct unmapping unmapping;
    pid_t owner_process; /* 0: not set */
    uint32_t owner_id;
    int gpu;
    struct gpu_devices *gpus; /* of daemon/gpu, for GPU memory */
    struct gpu_pool *pool;    /* of daemon/gpu, for memory of a CUDA memory pool; or null */
    uint32_t chunk_count;     /* of virtual memory */
    uint64_t *chunk_bytes;
    bool maps; /* a chunk is being mapped */
    /* Frees what the memory stands for, but not the struct; null where the unmapper does that. */
    void (*release)(struct memory *memory);
    /* Has another thread call `release`, and then calls memory_end. Null: `release` is called in place. */
    void (*release_later)(struct memory *memory);
    void *releasing;              /* what that needs, of daemon/gpu */
    void (*ended)(void *context); /* null: nobody asked */
    void *ended_context;
    /* After the last reference: whether the memory has to stay for a while. Then memory_finish ends it,
     * perhaps within this call. Null: it never has to. */
    bool (*stays)(struct memory *memory);
    struct gpu_words *words;             /* of daemon/gpu, for words that GPUs' streams use; or null */
    struct gpu_registrable *registrable; /* of daemon/gpu, for memory that NCCL can register; or null */
};

enum status memory_new(void *base, uint64_t size_bytes, void (*release)(struct memory *memory),
                       struct memory **out, struct error *error) COMM_MUST_USE;

/* Frees memory without references, and its struct: for memory that `stays` has kept. */
void memory_finish(struct memory *memory);
/* The memory stays for a while, but its client may free it now. */
void memory_say_ended(struct memory *memory);

/* For release_later, after `release`: discharges the account, says that the memory has ended, and frees the
 * struct (a struct memory). */
void memory_end(void *memory);

#endif
