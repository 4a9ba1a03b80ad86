#ifndef DAEMON_GPU_NCCL_H
#define DAEMON_GPU_NCCL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/gpu/queue.h"
#include "proto/types.h"

/*
 * NCCL among GPUs of this node: one communicator with one rank for each GPU, all in this process. Nothing
 * here blocks. NCCL's own calls may still be in progress when they return (ncclInProgress). gpu_group_poll
 * tells when they are done; make no other call before that. One thread must serve all groups: NCCL requires
 * that of a process that issues for several GPUs.
 */
struct gpu_group;

#define GPU_GROUP_CTAS_MAX 16 /* the most that NCCL uses of each GPU: clients compute there, too */

/* "2.28.9"; "" without NCCL. */
void gpu_nccl_version(char *text, size_t size);

/* Whether NCCL is available; loads it. If not, gpu_nccl_absent says why, in at most size bytes. */
void gpu_nccl_absent(char *why, size_t size);
bool gpu_group_is_there(void);

/* Whether NCCL has that reduction with our results: the same rules for types and for NaN. */
bool gpu_group_reduces(enum dtype dtype, enum reduce reduce);

/* Returns UNSUPPORTED without NCCL, with the reason in the text. The GPUs in `list` must be distinct. Poll
 * the group before its first use. */
enum status gpu_group_new(struct gpu_devices *gpus, const uint32_t *list, uint32_t count,
                          struct gpu_group **out, struct error *error) COMM_MUST_USE;
/* Ends what is in progress, also if it failed. Accepts null. */
void gpu_group_free(struct gpu_group *group);

enum gpu_group_state { GPU_GROUP_BUSY, GPU_GROUP_READY, GPU_GROUP_FAILED };
enum gpu_group_state gpu_group_poll(struct gpu_group *group, struct error *error);

/*
 * Each takes one buffer of each GPU, in the order of `list`, and works on queues of those GPUs. Once the
 * group has been polled READY, later work on these queues waits for it. count_elements: of the vector
 * (all_reduce); of one GPU's block (reduce_scatter). In place: inputs[i] == outputs[i], or the own block
 * within the larger buffer.
 */
enum status gpu_group_all_reduce(struct gpu_group *group, struct gpu_queue *const *queues,
                                 const void *const *inputs, void *const *outputs, uint64_t count_elements,
                                 enum dtype dtype, enum reduce reduce, struct error *error) COMM_MUST_USE;
enum status gpu_group_reduce_scatter(struct gpu_group *group, struct gpu_queue *const *queues,
                                     const void *const *inputs, void *const *outputs, uint64_t count_elements,
                                     enum dtype dtype, enum reduce reduce, struct error *error) COMM_MUST_USE;

#endif
