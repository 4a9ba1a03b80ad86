#ifndef DAEMON_HOST_MEMORY_INTERNAL_H
#define DAEMON_HOST_MEMORY_INTERNAL_H

#include "daemon/base/unmapper.h"
#include "daemon/host/guard.h"
#include "daemon/host/memory.h"

struct memory {
    unsigned char *base; /* a GPU's address, if it is there */
    uint64_t size_bytes;
    uint64_t mapped_bytes;  /* from base on: what can be used */
    uint64_t address_bytes; /* what it takes of our addresses */
    struct budget_account *charged;
    bool by_ipc;
    struct memory_origin origin; /* by_ipc */
    uint32_t references;
    bool guarded; /* a memfd: */
    struct guard guard;
    struct unmapper *unmapper;
    struct unmapping unmapping;
    pid_t owner_process; /* 0: nobody said */
    uint32_t owner_id;
    int gpu;
    struct gpu_devices *gpus; /* of daemon/gpu, where it is a GPU's */
    uint32_t chunk_count;     /* of virtual memory */
    uint64_t *chunk_bytes;
    /* What it stands for, not the struct; null where the unmapper does that. */
    void (*release)(struct memory *memory);
};

enum status memory_new(void *base, uint64_t size_bytes, void (*release)(struct memory *memory),
                       struct memory **out, struct error *error) COMM_MUST_USE;

#endif
