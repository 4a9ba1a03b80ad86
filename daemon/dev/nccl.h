#ifndef DAEMON_DEV_NCCL_H
#define DAEMON_DEV_NCCL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/dev/queue.h"
#include "proto/types.h"

/*
 * NCCL among GPUs of this node: one communicator with one rank a GPU, all of this process. Nothing here
 * waits: NCCL's own calls may still be under way after they returned (ncclInProgress), and dev_group_poll
 * says when they are not; until then no other is made. One thread for all groups, as NCCL asks of who issues
 * for several GPUs.
 */
struct dev_group;

#define DEV_GROUP_CTAS_MAX 16 /* what NCCL may take of each GPU, which clients compute on */

/* "2.28.9"; "" without NCCL. */
void dev_nccl_version(char *text, size_t size);

/* Whether there is an NCCL; loads it. */
bool dev_group_is_there(void);

/* Whether NCCL has that reduction, with our results: types by their own rules, NaN as ours. */
bool dev_group_reduces(enum dtype dtype, enum reduce reduce);

/* UNSUPPORTED without NCCL, the text says why. gpus are distinct. The group is to be polled before its first
 * use. */
enum status dev_group_new(struct dev_gpus *gpus, const uint32_t *list, uint32_t count, struct dev_group **out,
                          struct error *error) COMM_MUST_USE;
/* Ends what is under way, well or not. Null is accepted. */
void dev_group_free(struct dev_group *group);

enum dev_group_state { DEV_GROUP_BUSY, DEV_GROUP_READY, DEV_GROUP_FAILED };
enum dev_group_state dev_group_poll(struct dev_group *group, struct error *error);

/*
 * One buffer of each GPU, in the order of `list`, on queues of those GPUs; what is put there afterwards waits
 * for it once the group has been polled READY. count_elements: of the vector; of one GPU's block. In place:
 * inputs[i] == outputs[i], or the own block within the larger one.
 */
enum status dev_group_all_reduce(struct dev_group *group, struct dev_queue *const *queues,
                                 const void *const *inputs, void *const *outputs, uint64_t count_elements,
                                 enum dtype dtype, enum reduce reduce, struct error *error) COMM_MUST_USE;
enum status dev_group_reduce_scatter(struct dev_group *group, struct dev_queue *const *queues,
                                     const void *const *inputs, void *const *outputs, uint64_t count_elements,
                                     enum dtype dtype, enum reduce reduce, struct error *error) COMM_MUST_USE;

#endif
