#ifndef CLIENT_LIB_CAPTURE_H
#define CLIENT_LIB_CAPTURE_H

#include <commclient.h>

#include <stdbool.h>
#include <stddef.h>

#include "client/lib/gpu/devices.h"

/* Operations on streams that are being captured: they become part of the CUDA graph. */
struct client_call;
struct client_graph;
struct client_op;
struct comm_comm;
struct fence_slot;

#define CAPTURE_PERSISTENT "it is a persistent operation, and a replay starts the operation anew in any case"

/* A call that has been checked, and its buffers found, on its way into the graph. */
struct capture_entry {
    struct comm_comm *comm;
    const struct client_call *call;
    struct stream_capture at;
    struct client_op *op; /* holds the buffers */
    struct fence_slot *slot;
    struct client_graph *graph; /* of this capture and communicator; null: not found yet, or it failed */
    bool lent;                  /* commd may write to the slot's words */
    bool kept;                  /* the graph owns operation and slot */
    bool added;                 /* the graph writes the words */
};

/*
 * Adds the call to the graph that captures its stream, or collects it in the open group. All ranks do that
 * for the same calls. Waits for commd, and at the first call of a capture for all ranks, but not for the GPU.
 * Without the lock. Failures are reported; the capture stays valid unless the driver refused the words.
 */
comm_result_t capture_submit(struct comm_comm *comm, const struct client_call *call,
                             const struct stream_capture *at);
/*
 * Adds the calls of a group. Several ranks of the process may be among them, with streams of one capture or
 * of several: this waits for all of them together. The streams wait for their operations after all
 * operations are ready. Releases what the entries hold. Without the lock. The first failure is reported.
 */
comm_result_t captures_commit(struct capture_entry *entries, size_t count);
/* Releases what the entry still holds. With the client's lock. */
void capture_release(struct capture_entry *entry);
/* The same without the lock. */
void capture_drop(struct capture_entry *entry);
/* Refuses a call if its stream is captured. */
comm_result_t capture_refuse(const struct comm_comm *comm, const struct client_call *call,
                             const struct stream_capture *at, const char *why);

#endif
