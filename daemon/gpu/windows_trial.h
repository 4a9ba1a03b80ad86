#ifndef DAEMON_GPU_WINDOWS_TRIAL_H
#define DAEMON_GPU_WINDOWS_TRIAL_H

#include "daemon/gpu/nccl_ranks.h"

/* A window of commd's own memory, which came by a descriptor as clients' memory does (windows.h). */
struct nccl_windows_trial;

/* Frees the memory of a trial that is under way. The communicator has ended, or has no such window. */
void nccl_windows_trial_free(struct nccl_ranks *ranks);

#endif
