#ifndef DAEMON_EXEC_DEVICE_INTERNAL_H
#define DAEMON_EXEC_DEVICE_INTERNAL_H

#include "daemon/exec/device_bounce.h"
#include "daemon/exec/exec_device.h"
#include "daemon/exec/gpu_nccl.h"

/* What device.c, for the first operation of a communicator, and device_ahead.c, for those behind, share. */

struct exec_device {
    enum {
        DEVICE_WAITS,      /* for semaphores that streams write */
        DEVICE_FORMS,      /* for the group of NCCL that slices will use */
        DEVICE_GROUP,      /* for NCCL, until all of the operation is in the queues */
        DEVICE_LOCAL,      /* runs on GPUs from start to end: until the marks are reached */
        DEVICE_PINS,       /* until the memory of its bounce buffers is pinned */
        DEVICE_COPIES_IN,  /* until the marks are reached */
        DEVICE_RUNS,       /* runs as if on the host */
        DEVICE_COPIES_OUT, /* until the marks are reached */
        DEVICE_DONE
    } state;
    struct gpu_nccl *nccl;           /* null: not by NCCL */
    bool watches;                    /* call.group, on the main thread */
    uint64_t given_up_ns;            /* when it was cancelled, or 0 */
    uint64_t marks[GPU_DEVICES_MAX]; /* 0: nothing was queued there; or DEVICE_UNMARKED */
    uint64_t looked_ns;              /* when the driver was last asked whether the GPUs still work */
    bool is_ahead;                   /* it was put in a stream behind others, with waits for its words */
    uint64_t released_ns;            /* when these waits were last ended by commd, or 0 */
    struct device_bounces bounces;
};

#define DEVICE_PATIENCE_NS 5000000000ull   /* how long a cancelled operation waits for NCCL */
#define DEVICE_RELEASE_ALL_NS 100000000ull /* then a stream ends every wait, also those that look reached */
#define DEVICE_CHECK_NS 1000000ull         /* between questions to the driver, which are slow */

/* The ranks of all parts of the operation. */
static inline uint32_t device_entries(const struct exec_op *op)
{
    return op->call.terms.bucket_ops * op->call.rank_count;
}

/* device.c: puts the kernels of an operation, and what tells its end. */
enum status device_put_kernels(struct exec_comm *comm, struct exec_op *op, struct error *error) COMM_MUST_USE;
/* device_ahead.c: ends the waits of an operation that has failed. Call it until the GPU is done with it. */
void device_release_words(struct exec_comm *comm, const struct exec_op *op, uint64_t now_ns);

#endif
