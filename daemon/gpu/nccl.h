#ifndef DAEMON_GPU_NCCL_H
#define DAEMON_GPU_NCCL_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/types.h"

/* What is known of this machine's NCCL. daemon/gpu/groups.h uses it. Any thread may call these functions. The
 * first call loads the library, which may take a second: make it before the loop runs. */

/* "2.28.9"; "" without NCCL. */
void gpu_nccl_version(char *text, size_t size);

/* gpu_engine is "kernels": NCCL is not loaded, whoever asks. Call it before all others. */
void gpu_nccl_forbid(void);

/* Whether NCCL is available. If not, gpu_nccl_absent says why, in at most size bytes. */
bool gpu_nccl_is_there(void);
void gpu_nccl_absent(char *why, size_t size);

/* Whether NCCL has that reduction with our results: the same rules for types and for NaN. */
bool gpu_nccl_reduces(enum dtype dtype, enum reduce reduce);

/* Whether operations of several NCCL communicators that share GPUs may be at work at once. */
bool gpu_nccl_orders_launches(void);

#endif
