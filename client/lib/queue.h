#ifndef CLIENT_LIB_QUEUE_H
#define CLIENT_LIB_QUEUE_H

#include <commclient.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Completion queues. All functions need the client's lock, unless their comment says otherwise.
 *
 * An operation that has ended is its own completion: it leaves its communicator's list for the queue's list.
 * So no memory is needed at its end, except for a failure's text. The number of completions is bounded by the
 * number of operations, which the communicators bound.
 *
 * The queue's descriptor is an epoll descriptor. It watches the client's socket, its doorbell if it has
 * rings, an event descriptor for completions that another thread has handed out and for comm_queue_wake, and
 * a timer for the looks at commd's heartbeat. commd rings the doorbell only if the library says that it
 * sleeps. So a call that finds nothing arms the doorbell. From then on, each thread that has read events arms
 * it again.
 */
struct client_op;
struct client_call;
struct client_failure;
struct comm_comm;

#define QUEUE_COPY_NOW_MAX_BYTES                                                                             \
    ((size_t)16 << 10)                 /* more is copied by the thread that takes the completion */
#define QUEUE_LOOK_LATE_NS 1000000000u /* between looks for operations that commd does not end */

/* The place of an operation that is to end, or has ended, into a queue. */
struct queue_place {
    struct comm_queue *queue; /* null: none */
    void *cookie;
    struct client_op *next; /* among those that have ended */
    comm_result_t result;
    comm_received_t received;
    struct client_failure *failure; /* null: none, or there was no memory for it */
    bool withheld;                  /* its call has not returned, and may still fail */
    bool ended;
};

struct comm_queue {
    struct comm_client *client;
    struct comm_queue *next;        /* of the client */
    struct client_op *first, *last; /* have ended, oldest first */
    size_t pending;                 /* operations that are to end here */
    uint32_t sleepers;              /* threads that poll event_fd */
    bool armed;                     /* a thread may poll the queue's descriptor */
    bool signalled;                 /* event_fd was made readable */
    _Atomic uint32_t wakes;         /* of comm_queue_wake, not returned yet */
    int epoll_fd;
    int event_fd;
    int timer_fd;
    uint64_t timer_ends_ns; /* 0: the timer is not set */
    uint64_t idle_since_ns; /* since when operations are pending, and none has ended; 0: not known */
    uint64_t looked_late_ns;
    struct client_failure *told; /* failures that were given out, until their threads come again */
};

/* Whether the queue of the call's options exists and is of that communicator's client. Failures are reported.
 */
comm_result_t queue_check(const struct comm_comm *comm, const struct client_call *call);
/* The operation of the call is to end into the call's queue. */
void queue_expect(struct client_op *op, const struct client_call *call);
/* Takes an operation that has ended. Its place has result, received and failure. */
void queue_add(struct client_op *op);
/* A withheld operation's call returns. kept: it has not failed. Otherwise the operation goes on without its
 * queue, or is freed if it has ended. */
void queue_settle(struct client_op *op, bool kept);
/* The operation goes on, and ends without queue and handle. */
void queue_detach(struct client_op *op);
/* Makes the event descriptor readable, if somebody may wait for it. */
void queue_signal(struct comm_queue *queue);
/* Makes it unreadable. A wake that was not returned yet stays. */
void queue_quiet(struct comm_queue *queue);
/* To be called when a thread ends to read: another one may go on, and the doorbell must ring for those that
 * poll. */
void queues_reading_ended(struct comm_client *client);
/* When the client is closed. */
void queues_free_all(struct comm_client *client);

#endif
