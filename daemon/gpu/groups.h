#ifndef DAEMON_GPU_GROUPS_H
#define DAEMON_GPU_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/gpu/devices.h"
#include "daemon/gpu/queue.h"
#include "daemon/gpu/transfers.h"

/*
 * Sets of GPUs of this node among which NCCL works. All communicators whose ranks are on the same GPUs share
 * one group, because an NCCL communicator takes hundreds of MB of each GPU. Only the main thread may call
 * these functions, and none of them blocks: a thread makes NCCL's calls, one group's transfers after the
 * other's. Another thread ends a group, which can take as long as a GPU works.
 *
 * A group that cannot be formed is refused, with a warning in the log, and not tried again for
 * GPU_GROUP_RETRY_NS. A group that does not end in time (GPU_GROUP_END_NS, from the last wait on its GPUs on:
 * words.h) is leaked, and its GPUs are marked as failed. Once a call of NCCL's thread does not return, there
 * are no new groups.
 *
 * To end, a group must free memory, which waits for all work of its GPUs. So another group that hangs on one
 * of them holds it up. If a group has not ended after GPU_GROUP_ALONE_NS, other groups on its GPUs whose work
 * makes no progress for GPU_GROUP_STUCK_NS are given up, too, and have the rest of its time. Once it is
 * leaked, all groups on its GPUs are given up, and have GPU_GROUP_GRACE_NS.
 */
struct gpu_groups;
struct gpu_group;

#define GPU_GROUPS_MAX 16      /* also counts those that are being ended; one more is refused */
#define GPU_GROUPS_SPARE_MAX 2 /* formed, but held by nobody, for the next job on these GPUs */
#define GPU_GROUP_TRANSFERS_MAX 256
#define GPU_GROUP_SCRATCH_BYTES (UINT64_C(32) << 20) /* on each GPU of a group, for its user */
#define GPU_GROUP_SLOT_BYTES (UINT64_C(2) << 20)     /* likewise, for a slice */
#define GPU_GROUP_SLOTS 8u
#define GPU_GROUP_FORM_NS (UINT64_C(120) * 1000000000) /* NCCL may load kernels for a minute */
#define GPU_GROUP_END_NS (UINT64_C(10) * 1000000000)
#define GPU_GROUP_ALONE_NS (UINT64_C(1) * 1000000000)
#define GPU_GROUP_STUCK_NS (UINT64_C(4) * 1000000000)
#define GPU_GROUP_GRACE_NS (UINT64_C(2) * 1000000000)
#define GPU_GROUP_RETRY_NS (UINT64_C(60) * 1000000000)
#define GPU_GROUPS_CLOSE_MS 3000 /* gpu_groups_free waits at most so long */

/*
 * Takes a reference to the group of these GPUs, ascending, and begins to form it if there is none. Errors:
 * UNSUPPORTED if NCCL is not there or has refused this group; LIMIT; NO_MEMORY; or the failure of a GPU.
 */
enum status gpu_group_hold(struct gpu_devices *gpus, const uint32_t *list, uint32_t count, uint64_t now_ns,
                           struct gpu_group **out, struct error *error) COMM_MUST_USE;
/* The same for a formed group that has all of these GPUs, and maybe more. If there is none, a group of these.
 */
enum status gpu_group_hold_with(struct gpu_devices *gpus, const uint32_t *list, uint32_t count,
                                uint64_t now_ns, struct gpu_group **out, struct error *error) COMM_MUST_USE;
/* One more reference to a group that is held. */
void gpu_group_share(struct gpu_group *group);
/* Its GPUs, and where one of them is in its list; UINT32_MAX: it has not got that GPU. */
uint32_t gpu_group_size(const struct gpu_group *group);
uint32_t gpu_group_index(const struct gpu_group *group, uint32_t gpu);
/* Accepts null. */
void gpu_group_release(struct gpu_group *group, uint64_t now_ns);

/* The group ends when nobody holds it any more, instead of staying as a spare one. Who holds it again before,
 * keeps it. */
void gpu_group_discard(struct gpu_group *group);

enum gpu_group_state {
    GPU_GROUP_FORMS,
    GPU_GROUP_REFUSED, /* it could not be formed */
    GPU_GROUP_READY,
    GPU_GROUP_CALLS, /* its transfers are not in the streams yet */
    GPU_GROUP_FAILED /* NCCL has reported an error, or the group was given up */
};
/* How long the group has been forming, or was until now. */
uint64_t gpu_group_forming_ns(const struct gpu_group *group, uint64_t now_ns);
/* The error says why, if it is REFUSED or FAILED. */
enum gpu_group_state gpu_group_poll(struct gpu_group *group, uint64_t now_ns, struct error *error);

/*
 * Reserves a READY group for a user's calls. Returns false while another user has it, or has a group that
 * shares a GPU: NCCL's launches on a GPU must not race. While there are users, NCCL is asked for errors each
 * millisecond.
 */
bool gpu_group_take(struct gpu_group *group, const void *user);
/* The user makes no more calls. The work that it has in the streams must have ended if it used scratch
 * memory, or if not gpu_nccl_orders_launches. Otherwise it may still run. */
void gpu_group_leave(struct gpu_group *group, const void *user);
/* Whether a group that has this GPU is being ended. */
bool gpu_groups_end_on(const struct gpu_devices *gpus, uint32_t gpu);
/* Counts those whose work is in the streams, for gpu_group_take's promise. */
void gpu_group_watch(struct gpu_group *group, bool on);

/* Counts work that enters the streams (on) or has left them. Any thread, while the group is held. */
void gpu_group_works(struct gpu_group *group, bool on);

/* For the user: the list to fill before gpu_group_call. */
struct gpu_transfers *gpu_group_transfers(struct gpu_group *group);
void *gpu_group_scratch(const struct gpu_group *group, uint32_t index);
/* Begins the transfers on those queues, one for each GPU. Until the group is READY or FAILED, the list and
 * the queues belong to NCCL's thread. */
void gpu_group_call(struct gpu_group *group, struct gpu_queue *const *queues);

/*
 * The other way to begin transfers, for any number of users at the same time: NCCL's thread carries jobs out
 * one after the other, each at its own place in the streams of its own queues. Any thread may post jobs and
 * ask about them while the group is held and READY or CALLS. Only if gpu_nccl_orders_launches. A job belongs
 * to its user, except from gpu_group_post until gpu_group_ask says READY or FAILED.
 */
struct gpu_group_job {
    struct gpu_group_job *next;
    struct gpu_transfers transfers; /* for the GPUs of the group */
    cuda_stream streams[GPU_DEVICES_MAX];
    bool begun;
    bool done;
};
/* Takes a slot of scratch memory for such a user. UINT32_MAX: all are taken; others will give theirs back.
 * Any thread. */
uint32_t gpu_group_take_slot(struct gpu_group *group);
void gpu_group_give_slot(struct gpu_group *group, uint32_t slot);
unsigned char *gpu_group_slot(const struct gpu_group *group, uint32_t slot, uint32_t index);
/* queues: null for GPUs that the transfers do not use. */
void gpu_group_post(struct gpu_group *group, struct gpu_group_job *job, struct gpu_queue *const *queues);
/* READY: the transfers are in the streams. CALLS: not yet. FAILED: the group has failed, as the error says;
 * some may be in the streams. */
enum gpu_group_state gpu_group_ask(struct gpu_group *group, struct gpu_group_job *job, struct error *error);

/* Whether the group has failed; the error says how. Any thread, while the group is held. */
bool gpu_group_has_failed(const struct gpu_group *group, struct error *error);

/* Ends the group, with whatever its GPUs do for it. Who holds it gets FAILED; who asks next gets a new one.
 */
void gpu_group_give_up(struct gpu_group *group, const struct error *cause, uint64_t now_ns);
/* Whether NCCL's threads no longer use the queues of the last call. */
bool gpu_group_is_off(const struct gpu_group *group);

/* Deadline and timer: groups that do not form or end in time. */
uint64_t gpu_groups_deadline_ns(const struct gpu_devices *gpus);
void gpu_groups_tick(struct gpu_devices *gpus, uint64_t now_ns);

/* How many blocks of threads (CTAs) NCCL may use on each GPU: they are lost to clients meanwhile. 0: as many
 * as NCCL wants. Call it before the first group is held. */
#define GPU_GROUPS_CTAS_DEFAULT 16u
void gpu_groups_set_ctas(struct gpu_devices *gpus, uint32_t ctas);
uint32_t gpu_groups_ctas(const struct gpu_devices *gpus);

/* Whether NCCL registers clients' memory (registry.h), and whether as windows where it can (windows.h). Off
 * at the beginning. Call it before there are clients. */
void gpu_groups_set_register(struct gpu_devices *gpus, bool on, bool windows);
/* NCCL's thread has to deregister memory that is retired. */
void gpu_groups_sweep(struct gpu_devices *gpus);

/* Operations whose buffers are on GPUs, by who carried them out. Any thread may count. */
enum gpu_engine { GPU_ENGINE_NCCL, GPU_ENGINE_KERNELS, GPU_ENGINE_HOST, GPU_ENGINE_COUNT };
void gpu_engine_count(struct gpu_devices *gpus, enum gpu_engine engine);

/* Counts a message between two GPUs of the node. */
void gpu_message_count(struct gpu_devices *gpus, bool by_nccl);

/* Counts an operation that was put in a stream in advance. */
void gpu_ahead_count(struct gpu_devices *gpus);

/* For administrators. */
struct gpu_groups_info {
    uint64_t messages_by_nccl, messages_by_copies;
    uint64_t ran_ahead; /* operations that were put in a stream behind others in advance */
    uint64_t operations[GPU_ENGINE_COUNT];
    uint64_t calls;   /* groups of transfers that NCCL has begun */
    uint32_t groups;  /* formed now */
    uint64_t formed;  /* since the start */
    uint64_t refused; /* likewise */
    uint64_t failed;  /* given up */
    uint64_t leaked;
    uint64_t registered;            /* memory that NCCL has registered now, once for each communicator */
    uint64_t registered_ever;       /* since the start */
    uint64_t windows;               /* of it, windows that NCCL has now; each has memory of all GPUs */
    uint64_t windows_ever;          /* since the start */
    bool windows_refused;           /* NCCL failed at one: no more are tried */
    uint32_t retired;               /* memory of no client that NCCL must deregister first */
    char why[ERROR_TEXT_MAX_BYTES]; /* the last refusal or failure */
};
void gpu_groups_info(const struct gpu_devices *gpus, struct gpu_groups_info *out);

/* For gpu_devices_open and gpu_devices_close. gpu_groups_free waits at most GPU_GROUPS_CLOSE_MS. It returns
 * false if NCCL's threads still use the GPUs then, which must stay. It accepts null. */
struct gpu_groups *gpu_groups_new(struct gpu_devices *gpus);
bool gpu_groups_free(struct gpu_groups *groups) COMM_MUST_USE;

#endif
