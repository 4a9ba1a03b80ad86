#ifndef DAEMON_GPU_NCCL_RANKS_H
#define DAEMON_GPU_NCCL_RANKS_H

#include "daemon/gpu/devices.h"
#include "daemon/gpu/nccl_library.h"
#include "daemon/gpu/transfers.h"

/*
 * One NCCL communicator whose ranks are GPUs of this node, all in this process, and NCCL's calls on it. Only
 * one thread at a time may use it; none of these functions may be called on the loop's thread. The
 * communicator is non-blocking, so most calls only begin something. Texts of errors name a GPU and hold
 * NCCL's own words.
 */
struct nccl_ranks {
    struct gpu_devices *gpus;
    const struct nccl_library *nccl;
    uint32_t count;
    uint32_t ctas; /* the most that NCCL uses of each GPU; 0: as many as it wants */
    uint32_t list[GPU_DEVICES_MAX];
    nccl_comm comms[GPU_DEVICES_MAX];
    cuda_pointer scratch[GPU_DEVICES_MAX];   /* for the user and the slots */
    bool windows;                            /* windows.h: NCCL registers windows */
    struct nccl_windows_trial *trial;        /* likewise; null: none is under way */
    struct nccl_window *forming;             /* likewise: the windows that NCCL is registering */
    struct nccl_registration *registrations; /* registrations.h, like the rest */
    uint32_t registered_count;               /* of them, those that NCCL has */
    cuda_event events[GPU_DEVICES_MAX];      /* null: not made yet */
    cuda_stream last[GPU_DEVICES_MAX];       /* where the event was recorded last; null: never */
};

/* The status for the result of a call on a rank; IN_PROGRESS is no error. */
enum status nccl_ranks_status(const struct nccl_ranks *ranks, uint32_t rank, const char *call,
                              nccl_result result, struct error *error) COMM_MUST_USE;

/* Begins to form the communicator, and allocates the scratch memory. May take a second. */
enum status nccl_ranks_form(struct nccl_ranks *ranks, struct error *error) COMM_MUST_USE;

/* Whether the last call is over. *busy: not yet. An error is one that NCCL noticed at any time since. */
enum status nccl_ranks_poll(const struct nccl_ranks *ranks, bool *busy, struct error *error) COMM_MUST_USE;

/* Begins the transfers, as one NCCL group: they enter the streams, of which each GPU has one. */
enum status nccl_ranks_call(const struct nccl_ranks *ranks, const struct gpu_transfers *transfers,
                            const cuda_stream *streams, struct error *error) COMM_MUST_USE;

/* Ends everything, in any state, and frees the scratch memory. Blocks until the GPUs are done with it. */
void nccl_ranks_abort(struct nccl_ranks *ranks);

#endif
