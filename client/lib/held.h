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
 * What the window between library and commd has no place for: collectives, and records of events. held.c says
 * why. All with the client's lock, unless a function says otherwise.
 */
struct client_call;
struct client_op;
struct stream_order;

#define HELD_MAX (1u << 20)  /* of a communicator; beyond: COMM_LIMIT */
#define HELD_MANY (1u << 17) /* beyond, each call gives those in flight HELD_PAUSE_NS to end */
#define HELD_PAUSE_NS 1000000u
#define HELD_LOOK_NS 2000000u      /* between the feeder's looks */
#define HELD_LINGER_NS 1000000000u /* how long the feeder stays without anything to feed */
#define HELD_RETRY_NS 50000000u    /* after there was no memory to copy buffers through */

/* A collective, or the record of an event, that the window between library and commd has no place for yet. */
struct client_held {
    struct client_held *prev, *next;
    struct client_op *op;     /* null: a record */
    struct client_call *call; /* a copy; null for a record */
    size_t staged_bytes;      /* that its buffers need */
    uint64_t failed_ns;       /* since when there is no memory for these; 0: there is, as far as is known */
    struct fence_mark mark;   /* of a record: the word to be set */
    uint64_t ticket;          /* of a record: the last operation before it */
    uint32_t wait_count;
    struct fence_mark waits[]; /* as they were at the call */
};

/* Who sends what is held; see held.c. */
struct client_feeder {
    struct comm_comm *at; /* the communicator whose held ones some thread is sending; null: none */
    uint32_t held_count;  /* of all communicators */
    uint32_t max, many;   /* HELD_MAX, HELD_MANY; tests have less */
    pthread_t thread;
    pthread_cond_t wake;
    bool has_thread, runs, rests, closing;
};

/*
 * Whether one more collective, or one more record of an event, has to wait behind others. A message never
 * does: another rank may need it before anything that is in flight can end.
 */
bool held_must_wait(struct comm_comm *comm, enum op_kind kind, size_t staged_bytes);
bool held_record_must_wait(struct comm_comm *comm);
/* Takes a copy of the call. May let go of the lock. Reported. */
comm_result_t held_new(struct comm_comm *comm, const struct client_call *call, size_t staged_bytes,
                       const struct stream_order *order, struct client_op *op);
/* The operation, with its ticket, waits from now on. */
void held_push(struct comm_comm *comm, struct client_held *held);
/* A record of an event, likewise. Reported. */
comm_result_t held_push_record(struct comm_comm *comm, const struct fence_mark *mark);
/* Takes it out of the queue, if it is there, and frees it. */
void held_free(struct comm_comm *comm, struct client_held *held);
/* Lets go of records that are held; the operations are the list's. */
void held_forget_records(struct comm_comm *comm);
/* Waits, with the lock let go, until no thread is sending the communicator's, nor copying their buffers. */
void held_await(struct comm_comm *comm);
/* The same, and nothing of it is sent any more. */
void held_leave(struct comm_comm *comm);
/* Sends what there is room for. May let go of the lock. */
void held_feed(struct comm_client *client);
void held_init(struct client_feeder *feeder);
/* Waits for the feeder's thread. Without the lock. */
void held_close(struct comm_client *client);

#endif
