#ifndef CLIENT_LIB_WINDOW_H
#define CLIENT_LIB_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <commclient.h>

#include "proto/records.h"
#include "proto/window.h"

/*
 * Windows (proto/window.h): how a large collective of plain memory passes through a little staging memory.
 * window.c says who copies. All functions need the client's lock, unless their comment says otherwise.
 */
struct client_call;
struct client_memory;
struct client_op;
struct comm_client;
struct comm_comm;
struct submit_record;

/* How often in a row a program must have waited at once, before its next operation gets a window. */
#define WINDOW_WAITS_MIN 2
/* If nobody waited for an operation with a window, so many large ones have none. */
#define WINDOW_WAITS_AFTER_MISS (-6)
#define WINDOW_AT_ONCE_NS 200000u /* between the end of a call and a wait that comes at once */
/* How long nobody waits for an operation with a window, before a thread of the library copies. */
#define WINDOW_ABANDONED_NS 4000000u
#define WINDOW_STAGED_MIN_BYTES ((size_t)2 << 20) /* no smaller operation has a window */
#define WINDOW_RANKS_MAX 8u                       /* commd carries out the slices on one thread */

/* A window of an operation in flight. */
struct client_window {
    struct comm_comm *comm;
    struct window_shape shape;
    size_t element_bytes;
    const unsigned char *from;      /* the caller's input; null: it does not pass through the window */
    unsigned char *to;              /* the caller's output; likewise */
    unsigned char *input, *output;  /* the window's memory */
    uint64_t filled, done, drained; /* slices; drained <= done <= filled <= drained + WINDOW_SLOTS */
    uint64_t attended_ns;           /* when a thread of the program last waited for it */
    bool completed;                 /* commd has completed the operation while a slice was being copied */
    struct completion_record completion;
};

/* What the library has seen of a communicator's large operations. */
struct window_habit {
    int waits;             /* how often in a row the program waited at once; below 0: it did not */
    uint64_t submitted_ns; /* when the last one was submitted, if nobody has waited since; else 0 */
};

/* Whether the buffers of the call, whose registered memory was found, could pass through a window. */
bool window_is_possible(const struct comm_comm *comm, const struct client_call *call,
                        const struct client_op *op);
/* Whether they should: because the program waits at once, and nothing else has a window now. */
bool window_is_wanted(struct comm_comm *comm);
/* The bytes of staging that the window takes. */
size_t window_bytes(const struct comm_comm *comm, const struct client_call *call, const struct client_op *op);
/* Takes the window's memory and fills its first slots. May release the lock. Failures are reported. */
comm_result_t window_new(struct comm_comm *comm, const struct client_call *call, struct client_op *op);
/* The operation is in the communicator's list. */
void window_begin(struct client_op *op);
/* The operation ends: frees the window. An operation without one is accepted. */
void window_free(struct comm_client *client, struct client_op *op);
/* Adds the window to the operation's record. */
void window_add(const struct client_op *op, struct submit_record *record);

/* Whether the program will probably wait at once for the operation that it submits now. */
bool window_is_awaited(const struct comm_comm *comm);
/* The call has submitted an operation that could have had a window, or could go into cells with long data. */
void window_submitted(struct comm_comm *comm);
/* A thread of the program waits for operations of the communicator. */
void window_awaited(struct comm_comm *comm);

/* Copies one slice, if there is one to copy. Returns whether it did; then the operation may have ended.
 * Releases the lock meanwhile. */
bool window_work(struct comm_client *client);
/* For the library's thread: does the same until the operation has ended or a thread of the program waits for
 * it. Does nothing before WINDOW_ABANDONED_NS. */
void window_attend(struct comm_client *client);
/* Copies the last slices out; all are done. An operation without a window is accepted. */
void window_drain(struct client_op *op);
/* commd has done the first `slices` slices. Returns false if that is impossible. */
bool window_advance(struct client_op *op, uint64_t slices);
/* Whether an operation that has ended well has all its output in the caller's buffer or in its slots. */
bool window_is_complete(const struct client_op *op);

#endif
