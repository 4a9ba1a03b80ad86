#ifndef CLIENT_LIB_OP_H
#define CLIENT_LIB_OP_H

#include <commclient.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/lib/fence.h"
#include "client/lib/queue.h"
#include "proto/client.pb-c.h"
#include "proto/records.h"
#include "proto/types.h"

/*
 * The operations of a communicator that are in flight or held: from their submission until they end. All
 * functions need the client's lock.
 */
struct client_memory;
struct client_op;
struct comm_queue;
struct cells_receive;
struct cells_slot;
struct client_held;

/* What to copy out of a staging block when the operation has ended well. */
struct client_copy {
    void *to;
    const void *from;
    size_t size_bytes;
};

enum client_use { USE_INPUT, USE_OUTPUT, USE_LAYOUTS, USE_RESIDUAL, USE_COUNT };

/* An operation in flight or held, in its communicator's list, oldest first. */
struct client_op {
    struct client_op *prev, *next;
    struct client_held *held;      /* its entry in the queue; null: it was sent to commd, or published */
    struct cells_slot *cell;       /* where it was published; null: it was not, or commd has it */
    struct cells_receive *receive; /* a receive that commd does not know (cells_messages.h); else null */
    uint32_t asks;           /* of a receive that commd knows: 1 + the sender, or CELLS_ASKS_ANY; else 0 */
    uint64_t number;         /* of a collective of a communicator with cells; 0: none yet */
    uint64_t waits_since_ns; /* it was published first, at that time; 0: it was not */
    bool staging; /* its buffers are being copied, because it is held or goes in slices: it must not end */
    bool dropped; /* it was dropped during staging, and ends after the copy */
    struct client_op *next_in_bucket; /* of the communicator's table by ticket */
    uint64_t ticket;
    uint64_t submitted_ns; /* in cells: up to CLOCK_COARSE_TICK_NS early */
    uint64_t deadline_ns;  /* commd's; commd has DAEMON_MARGIN_MS more to report it */
    enum op_kind kind;
    enum dtype dtype;
    struct client_memory *uses[USE_COUNT]; /* memory of each use; null: none */
    size_t staged_bytes;                   /* of a collective; 0: nothing is staged */
    size_t places_bytes[USE_COUNT];        /* where in a staging block the buffer begins */
    struct fence_slot *slot;               /* its words; null: no stream is ordered against it */
    struct fence_mark ended;
    struct comm_request *request; /* its handle; null: none */
    struct queue_place place;     /* where it ends; see queue.h */
    comm_failure_t *known;        /* of its failure, before the completion comes; null: nothing */
    void *kept;                   /* its data, if its handle ended before commd got it; null otherwise */
    uint32_t copy_count;
    struct client_copy copies[];
};

/* Makes the communicator's table of operations in flight. Returns false if memory is short. */
bool ops_init(struct comm_comm *comm);
void ops_handle_completion(struct comm_client *client, const struct completion_record *completion);
void ops_handle_failed(struct comm_client *client, const Commd__Client__Failed *failed);
void ops_handle_aborted(struct comm_client *client, const Commd__Client__Aborted *aborted);
/* Ends all operations of the communicator, and releases its held records. */
void ops_forget(struct comm_comm *comm);
/*
 * Waits until no operation up to `ticket` is in flight; releases the lock meanwhile. Returns the
 * communicator's failure, or a failure of an operation without handle that was not returned yet. Returns
 * COMM_TIMED_OUT at the deadline. If commd does not report an operation in time after its deadline, the
 * communicator fails.
 */
comm_result_t ops_finish(struct comm_comm *comm, uint64_t ticket, uint64_t deadline_ns);
/* The latest time at which ops_finish expects the communicator's operations to have ended. Without
 * operations: DAEMON_MARGIN_MS from now. */
uint64_t ops_latest_ns(const struct comm_comm *comm);
/* Whether an operation that has not ended works on some of the memory: by commd, in cells, by a copy to it,
 * or later, because it is held. */
bool ops_use(const struct comm_client *client, const struct client_memory *memory);
/* Waits for the end of an operation that uses the memory, or of others. Releases the lock meanwhile. */
void ops_await_user(struct comm_client *client, const struct client_memory *memory, uint64_t deadline_ns);
/* As ops_latest_ns, for the operations that use the memory; 0 without any. */
uint64_t ops_deadline_ns(const struct comm_client *client, const struct client_memory *memory);
/* Waits until the handle's operation has ended, or commd is too late to report it. Releases the lock. Returns
 * false if it has not ended at the deadline. */
bool ops_finish_request(struct comm_request *request, uint64_t deadline_ns);
/* One step of ops_finish_request. *began_ns: at first 0. */
void ops_progress(const struct comm_request *request, uint64_t *began_ns, uint64_t deadline_ns);
/* Appends the operation to the list, which owns it from then on. Sets its ticket and deadline. */
void ops_append(struct comm_comm *comm, struct client_op *op, uint32_t timeout_ms);
/* Puts an operation in cells into the list, which is in the order of tickets. It has its ticket and deadline.
 */
void ops_insert(struct comm_comm *comm, struct client_op *op);
/*
 * Sends records of appended operations, in one packet. If it cannot be sent within timeout_ms plus
 * DAEMON_MARGIN_MS, the communicators of all these operations fail. May release the lock. Failures are not
 * reported: see member_check.
 */
void ops_send(struct comm_client *client, const void *packet, size_t size_bytes, uint32_t timeout_ms);
/* Counts a held operation as in flight, because it is about to be sent. Its deadline starts now. */
void ops_release(struct comm_comm *comm, struct client_op *op, uint32_t timeout_ms);
/* Ends an operation of the list without an answer of commd, with the communicator's failure if it has one. */
void ops_drop(struct comm_comm *comm, struct client_op *op);
/* Ends the handle of an operation that goes on. If the operation fails later, the next comm_sync says so. */
void ops_let_go(struct comm_comm *comm, struct client_op *op);
/* Ends an operation of the list whose result this rank has taken itself. */
void ops_end_well(struct comm_comm *comm, struct client_op *op);
/* Ends a receive of the list whose message this rank has taken itself, or whose message does not fit. */
void ops_end_receive(struct comm_comm *comm, struct client_op *op, const comm_received_t *received);
void ops_end_badly(struct comm_comm *comm, struct client_op *op, comm_result_t result, const char *text);
/* Gives back an operation's memory, and lets its stream go on. clean: commd has finished with it. */
void op_release(struct comm_client *client, struct client_op *op, bool clean);
/* Releases and frees it. */
void op_free(struct comm_client *client, struct client_op *op, bool clean);
/* Copies the outputs of an operation that has ended well out of its staging blocks. */
void op_copy_out(const struct client_op *op);
/* Ends an operation that is in no list and was not sent. data: of a failure; its operation is this one. */
void op_fail_unsent(struct comm_comm *comm, struct client_op *op, const comm_failure_t *data,
                    const char *text);
/* For a thread that waits at this queue since began_ns: if commd does not report an operation in time after
 * its deadline, the operation's communicator fails, and its operations end into the queue. */
void ops_check_late(struct comm_client *client, const struct comm_queue *queue, uint64_t began_ns);

#endif
