#ifndef DAEMON_GPU_REGISTRATIONS_INTERNAL_H
#define DAEMON_GPU_REGISTRATIONS_INTERNAL_H

#include "daemon/base/table.h"
#include "daemon/gpu/registrations.h"

/* What registrations.c and windows.c share. */

struct nccl_window;

/* Memory that a communicator of NCCL has registered, or was to register. */
struct nccl_registration {
    struct gpu_registrable *memory; /* the key; held */
    uint32_t rank;
    void *handle;               /* null: NCCL has not registered it */
    bool refused;               /* it is never registered */
    bool no_window;             /* never as part of a window */
    struct nccl_window *window; /* null: of ncclCommRegister, if anything */
    UT_hash_handle hh;
};

/* The place for this memory, or null. Accepts null. */
struct nccl_registration *nccl_registration_find(const struct nccl_ranks *ranks,
                                                 struct gpu_registrable *memory);
/* The same; adds one if there is none. Null: there is no room. */
struct nccl_registration *nccl_registration_of(struct nccl_ranks *ranks, uint32_t rank,
                                               struct gpu_registrable *memory);
/* Counts registrations that NCCL has made, or ended. */
void nccl_registrations_count(struct nccl_ranks *ranks, int64_t change);
/* Whether work that uses registered memory has not ended. */
bool nccl_registrations_in_use(const struct nccl_ranks *ranks);
/* Gives each GPU an event, behind the work that uses registered memory. */
bool nccl_registrations_have_events(struct nccl_ranks *ranks);
/* How many bytes a rank reads or writes in a transfer. */
uint64_t nccl_transfer_bytes(const struct nccl_ranks *ranks, const struct gpu_transfers *transfers,
                             const struct gpu_transfer *transfer, bool is_input);

#endif
