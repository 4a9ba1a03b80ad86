#ifndef DAEMON_GPU_NCCL_H
#define DAEMON_GPU_NCCL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/gpu/queue.h"
#include "proto/types.h"

/*
 * NCCL among GPUs of this node: one communicator with one rank a GPU, all of this process. Nothing here
 * waits: NCCL's own calls may still be under way after they returned (ncclInProgress), and gpu_group_poll
 * says when they are not; until then no other is made. One thread for all groups, as NCCL asks of who issues
 * for several GPUs.
 */
struct gpu_group;

#define GPU_GROUP_CTAS_MAX 16 /* what NCCL may take of each GPU, which clients compute on */

/* "2.28.9"; "" without NCCL. */
void gpu_nccl_version(char *text, size_t size);

/* Whether there is an NCCL; loads it. */
bool gpu_group_is_there(void);

/* Whether NCCL has that reduction, with our results: types by their own rules, NaN as ours. */
bool gpu_group_reduces(enum dtype dtype, enum reduce reduce);

/* UNSUPPORTED without NCCL, the text says why. gpus are distinct. The group is to be polled before its first
 * use. */
enum status gpu_group_new(struct gpu_devices *gpus, const uint32_t *list, uint32_t count,
                          struct gpu_group **out, struct error *error) COMM_MUST_USE;
/* Ends what is under way, well or not. Null is accepted. */
void gpu_group_free(struct gpu_group *group);

enum gpu_group_state { GPU_GROUP_BUSY, GPU_GROUP_READY, GPU_GROUP_FAILED };
enum gpu_group_state gpu_group_poll(struct gpu_group *group, struct error *error);

/*
 * One buffer of each GPU, in the order of `list`, on queues of those GPUs; what is put there afterwards waits
 * for it once the group has been polled READY. count_elements: of the vector; of one GPU's block. In place:
 * inputs[i] == outputs[i], or the own block within the larger one.
 */
enum status gpu_group_all_reduce(struct gpu_group *group, struct gpu_queue *const *queues,
                                 const void *const *inputs, void *const *outputs, uint64_t count_elements,
                                 enum dtype dtype, enum reduce reduce, struct error *error) COMM_MUST_USE;
enum status gpu_group_reduce_scatter(struct gpu_group *group, struct gpu_queue *const *queues,
                                     const void *const *inputs, void *const *outputs, uint64_t count_elements,
                                     enum dtype dtype, enum reduce reduce, struct error *error) COMM_MUST_USE;

#endif
