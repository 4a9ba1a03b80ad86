#ifndef DAEMON_EXEC_GPU_SLICES_INTERNAL_H
#define DAEMON_EXEC_GPU_SLICES_INTERNAL_H

#include "daemon/exec/gpu_slices.h"

/* What gpu_slices.c, which puts pieces, and gpu_slices_end.c share. */

struct gpu_slice {
    struct gpu_group *group;
    uint32_t gpu_count;
    uint32_t gpus[GPU_DEVICES_MAX];
    struct gpu_queue *queues[GPU_DEVICES_MAX];
    uint64_t marks[GPU_DEVICES_MAX]; /* 0: none */
    bool used[GPU_DEVICES_MAX];      /* something was put in the queue */
    struct gpu_group_job job;
    bool is_posted;
    bool by_nccl;       /* transfers were begun in this step */
    uint64_t looked_ns; /* when the group was last asked whether it has failed */
    /* Copies behind the transfers, by GPU: a growing list. */
    struct slice_copy {
        uint32_t index;
        struct host_copy_range range;
    } * copies;
    uint32_t copy_count, copy_capacity;
    uint32_t slot;       /* UINT32_MAX: none */
    uint64_t slot_bytes; /* used of it */
};

/* Gives back the slot of scratch memory, if the slice has one. */
void gpu_slice_give_slot(struct gpu_slice *slice);

#endif
