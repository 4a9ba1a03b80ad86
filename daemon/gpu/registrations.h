#ifndef DAEMON_GPU_REGISTRATIONS_H
#define DAEMON_GPU_REGISTRATIONS_H

#include "daemon/gpu/nccl_ranks.h"

/*
 * What a communicator of NCCL has registered (daemon/gpu/nccl_registry.h says what that can be). As with all
 * of nccl_ranks.h, only one thread at a time may call these functions, and not the loop's.
 *
 * The memory of all transfers of a call is registered, or none: NCCL's results are undefined if some GPUs
 * pass registered memory and others do not. If a call also uses other memory, or a registration fails, then
 * what the call uses is deregistered first, and never registered again. NCCL's work may still use it, so the
 * call waits for that.
 */
#define GPU_REGISTRATIONS_MAX 1024u /* of a communicator; more memory counts as memory of another kind */

struct nccl_registration;

/*
 * Before a call: registers its memory, or deregisters it. `streams`: of the call, or null; they wait for
 * earlier work that uses registered memory. *waits: try again later. Earlier work uses memory that must be
 * deregistered, or NCCL registers a window. An error is the communicator's.
 */
enum status nccl_registrations_prepare(struct nccl_ranks *ranks, const struct gpu_transfers *transfers,
                                       const cuda_stream *streams, bool *waits,
                                       struct error *error) COMM_MUST_USE;
/* After a call, when its transfers are in the streams. */
void nccl_registrations_called(struct nccl_ranks *ranks, const cuda_stream *streams);
/* Deregisters memory that is retired. No call may be under way. False: some is in a window that is in use;
 * try again later. */
bool nccl_registrations_sweep(struct nccl_ranks *ranks) COMM_MUST_USE;
/* The communicator has ended, and its registrations with it. */
void nccl_registrations_end(struct nccl_ranks *ranks);

#endif
