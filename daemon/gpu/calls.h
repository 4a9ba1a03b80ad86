#ifndef DAEMON_GPU_CALLS_H
#define DAEMON_GPU_CALLS_H

#include "daemon/base/loop.h"
#include "daemon/gpu/devices.h"

/*
 * Calls of the driver that may wait for all work of a GPU: those that open and close clients' memory, such as
 * cuIpcOpenMemHandle and cuMemUnmap. Threads for each GPU make them, in their order, so a GPU that hangs
 * holds up neither the loop nor other GPUs. Without gpu_calls_start, they are made in place.
 *
 * The queue lives in its owners' memory. A user's budget bounds how much of that user's memory waits there:
 * memory stays charged until it is closed. Who wants to open memory asks gpu_calls_check before.
 */
struct gpu_call {
    struct gpu_call *next;
    void (*run)(struct gpu_call *call);  /* on the GPU's thread */
    void (*done)(struct gpu_call *call); /* on the loop's thread; may free it */
};

/*
 * Whether the call opens or closes memory, or registers words (words.h). Operations need the former, and can
 * do without the latter. Streams may wait for a client when words are registered. So each kind has a thread
 * of its own for each GPU, and a call that does not return holds up its own kind.
 */
enum gpu_calls_kind { GPU_CALLS_MEMORY, GPU_CALLS_WORDS, GPU_CALLS_KINDS };

#define GPU_CALLS_MAX 1024u                    /* of one GPU and kind; then nothing more is opened there */
#define GPU_CALLS_LATE_NS UINT64_C(2000000000) /* a call takes milliseconds; then its GPU hangs */

/* Threads start with their first call. Call it once, before there are clients. `loop` must outlive the GPUs.
 * SYSTEM, NO_MEMORY. */
enum status gpu_calls_start(struct gpu_devices *gpus, struct loop *loop, struct error *error) COMM_MUST_USE;

/* The functions below: the loop's thread. */

/* Whether there is room for a call that opens something. LIMIT; DEVICE while a call has not returned for
 * GPU_CALLS_LATE_NS. */
enum status gpu_calls_check(const struct gpu_devices *gpus, uint32_t gpu, enum gpu_calls_kind kind,
                            struct error *error) COMM_MUST_USE;
/* The call belongs to the queue until `done`. If no thread can be started, it is made in place. */
void gpu_calls_put(struct gpu_devices *gpus, uint32_t gpu, enum gpu_calls_kind kind, struct gpu_call *call);

/* For gpu_devices_close. Waits a few seconds for the calls, then calls `done` of those that were made.
 * Returns false if a thread still uses the GPUs: it, and what waits for it, is left to the end of the
 * process. */
bool gpu_calls_end(struct gpu_devices *gpus) COMM_MUST_USE;

#endif
