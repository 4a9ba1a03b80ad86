#ifndef DAEMON_GPU_GROUPS_INTERNAL_H
#define DAEMON_GPU_GROUPS_INTERNAL_H

#include <pthread.h>

#include "daemon/gpu/groups.h"
#include "daemon/gpu/nccl_ranks.h"

/* What groups.c and groups_end.c, on the main thread, and groups_threads.c share. */

enum group_job { GROUP_JOB_NONE, GROUP_JOB_FORM, GROUP_JOB_CALL };

struct gpu_group {
    struct gpu_group *next; /* changed by the main thread, with the lock */
    struct gpu_groups *owner;

    /* The main thread's. */
    uint32_t references;
    const void *user;
    bool refused;
    bool formed;
    bool given_up;
    bool leaked;
    bool discarded;      /* not to be kept as a spare one */
    uint64_t since_ns;   /* when its forming, or its end, began; another group's end if that one held it up */
    uint64_t seen_steps; /* of the last look */
    uint64_t seen_ns;    /* when they were seen first; 0: it was not at work */
    uint64_t retry_ns;   /* refused: until then */
    struct gpu_transfers transfers;
    cuda_stream streams[GPU_DEVICES_MAX];

    /* Used by the thread that is inside. */
    struct nccl_ranks ranks;
    bool begun; /* the job */

    /* Protected by the lock. */
    enum group_job job;
    uint32_t slots;                /* bits of those that are taken */
    struct gpu_group_job *posted;  /* not begun, the oldest first */
    struct gpu_group_job *current; /* begun; then `job` waits */
    bool inside;                   /* NCCL's thread makes calls on it */
    bool ending;                   /* NCCL's thread must not begin any */
    bool sweeps;                   /* some of its registered memory is retired */
    bool held_back;                /* the next call waits until registered memory is not in use */
    bool ended;
    uint32_t watchers;
    uint32_t works; /* in the streams */
    uint64_t steps; /* how much work has entered the streams or left them */
    bool has_failed;
    struct error failure;
};

struct gpu_groups {
    struct gpu_devices *gpus;
    struct gpu_group *all;
    pthread_mutex_t lock;
    pthread_cond_t work;    /* NCCL's thread has something to do */
    pthread_cond_t changed; /* it is out of a group, or a group has ended */
    pthread_t thread;
    bool has_thread;
    bool stops;
    uint32_t ctas;
    uint64_t look_ns;  /* the main thread's: for retired memory */
    uint64_t hangs_ns; /* the main thread's: the next look for groups that hang, while some end */
    bool stuck;        /* the main thread's: NCCL's thread does not come back */
    uint64_t formed, refused, failed, leaked, calls;
    char why[ERROR_TEXT_MAX_BYTES];
};

/* NCCL's thread. Its context is the groups. */
void *gpu_groups_serve(void *context);
/* Whether the groups have a GPU in common. */
bool gpu_groups_share_a_gpu(const struct gpu_group *one, const struct gpu_group *other);
/* The thread that ends a group, its context. */
void *gpu_group_end_now(void *context);
/* Waits for `condition`, at most so long. With the lock. */
void gpu_groups_wait(struct gpu_groups *groups, pthread_cond_t *condition, uint64_t limit_ns);

/* groups_end.c, on the main thread. A thread ends the group. */
void gpu_group_begin_end(struct gpu_group *group, uint64_t now_ns);
bool gpu_group_has_ended(const struct gpu_group *group);
/* Ends it because NCCL refuses it: gpu_group_hold finds it so for GPU_GROUP_RETRY_NS. */
void gpu_group_refuse(struct gpu_group *group, uint64_t now_ns);
/* It has not ended in time: its threads keep its memory. */
void gpu_group_leak(struct gpu_group *group, uint64_t now_ns);
/* While groups end: gives up others that hold them up. */
void gpu_groups_look(struct gpu_groups *groups, uint64_t now_ns);
/* When a group that is being ended is leaked. TIME_NEVER: not while streams wait for clients on its GPUs. */
uint64_t gpu_group_leak_ns(const struct gpu_group *group);
/* No thread uses it any more. */
void gpu_group_free(struct gpu_group *group);
/* Frees what has ended, and nobody holds; ends spare groups if there are too many. */
void gpu_groups_tidy(struct gpu_groups *groups, uint32_t spare_most, uint64_t now_ns);

#endif
