#ifndef DAEMON_GPU_NCCL_REGISTRY_H
#define DAEMON_GPU_NCCL_REGISTRY_H

#include "daemon/gpu/devices.h"

/*
 * Clients' memory that NCCL can register (ncclCommRegister): virtual memory that came by a descriptor, and of
 * which the first chunk is here. NCCL's thread registers it, for a communicator, at its first use, and each
 * registration holds the memory.
 *
 * Memory must be deregistered before it is unmapped, and only NCCL's thread may do that. So memory that is
 * held stays mapped, and charged to its user, when its last reference is gone. It is retired: NCCL's thread
 * drops it between two calls, and the main thread frees it at its next tick. A user's budget bounds how much
 * of that user's memory is retired. A communicator of NCCL that ends drops all. If a communicator does not
 * end, its memory stays until commd restarts.
 *
 * The main thread calls the functions unless it says otherwise.
 */
struct nccl_registry;
struct memory;

struct gpu_registrable {
    struct gpu_registrable *next; /* in the list of retired memory */
    uint64_t base, size_bytes;
    uint32_t gpu;
    struct memory *memory;
    uint32_t holders; /* this one and the next: changed with the registry's lock */
    bool retired;
};

#define NCCL_REGISTRY_LOOK_NS UINT64_C(1000000) /* between looks whether retired memory is dropped */

/* NO_MEMORY gives null: then NCCL registers nothing. */
struct nccl_registry *nccl_registry_new(void);
/* Frees all retired memory. NCCL's communicators must have ended. Accepts null. */
void nccl_registry_free(struct nccl_registry *registry);

/* Whether NCCL registers memory at all. Off at the beginning. Call it before there are clients. */
void nccl_registry_switch(struct nccl_registry *registry, bool on);
/* Any thread. */
bool nccl_registry_is_on(const struct nccl_registry *registry);

/* For memory whose first chunk, of size_bytes, is mapped. Without room, or if off, it is never registered. */
void nccl_registry_add(struct nccl_registry *registry, struct memory *memory, uint64_t size_bytes);
/* For memory without references. True: it is held, and will be freed later; otherwise free it now. The caller
 * then wakes NCCL's thread. */
bool nccl_registry_retire(struct nccl_registry *registry, struct memory *memory) COMM_MUST_USE;
/* Frees retired memory that nobody holds any more. */
void nccl_registry_tick(struct nccl_registry *registry);
uint32_t nccl_registry_retired(const struct nccl_registry *registry); /* how many wait */

/* Any thread. The memory in which the range lies, or null. It must be in use by an operation. */
struct gpu_registrable *nccl_registry_find(struct nccl_registry *registry, uint32_t gpu, const void *address,
                                           uint64_t size_bytes);
void nccl_registry_hold(struct nccl_registry *registry, struct gpu_registrable *memory);
void nccl_registry_drop(struct nccl_registry *registry, struct gpu_registrable *memory);
/* The holder may look at it. */
bool nccl_registry_is_retired(struct nccl_registry *registry, const struct gpu_registrable *memory);

#endif
