#ifndef DAEMON_GPU_WINDOWS_H
#define DAEMON_GPU_WINDOWS_H

#include "daemon/gpu/nccl_ranks.h"

/*
 * Windows of NCCL (ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC, 2.27.3 and later). A window is memory
 * of all GPUs of a communicator, one piece of each, of the same size. NCCL's kernels for windows are its
 * fastest ones. They find a peer's buffer by their own buffer's place in the window. So commd uses a window
 * only for calls whose buffers lie at the same place in it on all GPUs, and ends it before any other call.
 * All ranks register windows in the same order, and end them together: NCCL counts on that.
 *
 * NCCL registers a window in the background, and the call waits for it. An error there ends the whole
 * communicator of NCCL. So commd first tries one with memory of its own, when the communicator has formed. If
 * that fails, the communicator counts as refused, and the next one forms without windows. After a failure
 * with clients' memory, commd makes no windows either until it restarts.
 *
 * Like nccl_ranks.h, only for one thread at a time, and not the loop's.
 */
struct nccl_window;

/* After the communicator has formed: tries a window. *busy: call it again when NCCL is not busy. */
enum status nccl_windows_try(struct nccl_ranks *ranks, bool *busy, struct error *error) COMM_MUST_USE;

/* Before a call: ends windows that do not fit it, and registers those that do. *waits: try again later. */
enum status nccl_windows_prepare(struct nccl_ranks *ranks, const struct gpu_transfers *transfers, bool *waits,
                                 struct error *error) COMM_MUST_USE;

/* Ends a window on all ranks; no work may use it. for_good: its memory never becomes part of one again. */
void nccl_window_end(struct nccl_ranks *ranks, struct nccl_window *window, bool for_good);

/* The communicator has ended, and its windows with it. */
void nccl_windows_end(struct nccl_ranks *ranks);

#endif
