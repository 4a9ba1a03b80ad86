#ifndef CLIENT_LIB_HELD_H
#define CLIENT_LIB_HELD_H

#include <commclient.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/lib/fence.h"
#include "proto/types.h"

/*
 * Collectives and event records that commd cannot take yet, because its limits per communicator are reached.
 * held.c explains why. All functions need the client's lock, unless their comment says otherwise.
 */
struct client_call;
struct client_op;
struct stream_order;

#define HELD_MAX (1u << 20)  /* The most of a communicator. Then COMM_LIMIT. */
#define HELD_MANY (1u << 17) /* Beyond, each call waits up to HELD_PAUSE_NS. */
#define HELD_PAUSE_NS 1000000u
#define HELD_LOOK_NS 2000000u      /* between the feeder's looks */
#define HELD_LINGER_NS 1000000000u /* how long the feeder thread stays while nothing is held */
#define HELD_RETRY_NS 50000000u    /* before staging is tried again, after memory was short */

/* A collective or an event record that commd cannot take yet. */
struct client_held {
    struct client_held *prev, *next;
    struct client_op *op;     /* null: a record */
    struct client_call *call; /* a copy; null for a record */
    size_t staged_bytes;      /* of staging that its buffers need */
    uint64_t failed_ns;       /* when staging first lacked memory; 0: it did not */
    struct fence_mark mark;   /* of a record: the word to be set */
    uint64_t ticket;          /* of a record: the last operation before it */
    bool returned;            /* it was published in a cell, which has its number (cells.h) */
    bool in_slices;           /* it may be published in slices */
    uint32_t wait_count;
    struct fence_mark waits[]; /* as they were at the call */
};

/* Who sends what is held; see held.c. */
struct client_feeder {
    struct comm_comm *at; /* the communicator whose held operations a thread is sending; null: none */
    uint32_t held_count;  /* of all communicators */
    uint32_t max, many;   /* HELD_MAX, HELD_MANY; tests have less */
    pthread_t thread;
    pthread_cond_t wake;
    bool has_thread, runs, rests, closing;
};

/*
 * Whether one more collective, or one more event record, must be held. A message never is: another rank may
 * need it before any operation in flight can end.
 */
bool held_must_wait(struct comm_comm *comm, enum op_kind kind, size_t staged_bytes);
bool held_record_must_wait(struct comm_comm *comm);
/* Whether operations are held, or being sent. */
bool held_is_fed(const struct comm_comm *comm);
/* Holds an operation that was published, before all operations after it. Returns false if memory is short. */
bool held_return(struct comm_comm *comm, const struct client_call *call, struct client_op *op);
/* The feeder looks at operations that are published from now on; held_wake: at once. */
void held_watch(struct comm_client *client);
void held_wake(struct comm_client *client);
/* Makes op->held, with a copy of the call. May release the lock. Failures are reported. */
comm_result_t held_new(struct comm_comm *comm, const struct client_call *call, size_t staged_bytes,
                       const struct stream_order *order, struct client_op *op);
/* Appends the operation to the queue. It must have its ticket. */
void held_push(struct comm_comm *comm, struct client_held *held);
/* Appends an event record to the queue. Failures are reported. */
comm_result_t held_push_record(struct comm_comm *comm, const struct fence_mark *mark);
/* Takes the entry out of the queue, if it is there, and frees it. Null is accepted. */
void held_free(struct comm_comm *comm, struct client_held *held);
/* Marks held records as reached and frees them. Held operations are freed with the list of operations. */
void held_forget_records(struct comm_comm *comm);
/* Waits until no thread sends the communicator's held operations, or copies buffers. Releases the lock
 * meanwhile. */
void held_await(struct comm_comm *comm);
/*
 * Whether another thread may soon publish the next operation in cells, where commd says nothing of it. If so,
 * waits for a change, but not for long: the thread is needed for the operation then. Releases the lock
 * meanwhile.
 */
bool held_await_cells(struct comm_comm *comm, uint64_t deadline_ns);
/* As held_await; afterwards no held operation of the communicator is sent. */
void held_leave(struct comm_comm *comm);
/* Sends the held operations that there is room for. May release the lock. */
void held_feed(struct comm_client *client);
void held_init(struct client_feeder *feeder);
/* Ends the feeder thread and waits for it. Without the lock. */
void held_close(struct comm_client *client);

#endif
