#ifndef CLIENT_LIB_CELLS_MESSAGES_H
#define CLIENT_LIB_CELLS_MESSAGES_H

#include <commclient.h>

#include <stdbool.h>
#include <stdint.h>

/*
 * Short messages between ranks of one node, without commd in the way (proto/cell_messages.h).
 *
 * A short send ends within its call, once its message is in the receiver's ring. A receive takes a message
 * that has come, and ends within its call, too. If none has come, the receive waits here, in the
 * communicator's list of operations; commd does not know it. It is given to commd if nobody waits for it, if
 * no message has come for some time, or if the sender has given one to commd. commd then tells who is
 * missing, and keeps the deadline.
 *
 * All functions need the client's lock, unless their comment says otherwise. A communicator without cells, or
 * of several nodes, has no such messages; the functions then do nothing.
 */
struct client_cells;
struct client_call;
struct client_entry;
struct client_op;
struct cells_messages;
struct cells_receive;
struct comm_client;
struct comm_comm;
struct completion_record;
struct fence_mark;

#define CELLS_ASKS_ANY UINT32_MAX
#define CELLS_WATCHED_MAX 32u /* rings */

/* When the communicator's cells are open. If memory is short, its messages go through commd. */
void cells_messages_open(struct comm_comm *comm);
void cells_messages_close(struct client_cells *cells);
/* This rank leaves: nobody sends it a message any more that it would not receive. */
void cells_messages_end(struct comm_comm *comm);

/*
 * Sends or receives without commd, if it can. Returns whether it did: the call has submitted its operation,
 * which may have ended. Otherwise all receives that wait here are commd's afterwards, if this is a receive.
 * May release the lock.
 */
bool cells_submit_message(struct client_entry *entry, uint32_t timeout_ms);
/* Sends a short message, if it can end within its call. Takes the lock. Returns whether it did. */
bool cells_send_at_once(struct comm_comm *comm, const struct client_call *call);
/*
 * The message of the list is about to be given to commd; it waits for `waits`. Returns false if it must not,
 * because it is a receive, and its message has come: then the operation has ended, or ends without commd.
 */
bool cells_pass_message(struct comm_comm *comm, struct client_op *op, const struct client_call *call,
                        const struct fence_mark *waits, uint32_t wait_count);
/* A receive has ended in commd. */
void cells_count_received(struct comm_comm *comm, const struct client_op *op,
                          const struct completion_record *completion);
/* The operation leaves the list. */
void cells_forget_receive(struct comm_comm *comm, struct client_op *op);
const struct client_call *cells_receive_call(const struct cells_receive *receive);

/* Gives all receives that wait here to commd. Returns false if there were none. May release the lock. */
bool cells_hand_over_receives(struct comm_comm *comm);
/* The same of all communicators. Lowers *until_ns to a moment if another thread does so now. */
bool cells_hand_over_all_receives(struct comm_client *client, uint64_t *until_ns);
/* The same, and waits until no other thread gives any to commd. Releases the lock. */
void cells_settle_receives(struct comm_comm *comm);
/*
 * Ends receives whose messages have come, and gives receives to commd if it is time. is_feeder: it may be
 * time because nobody waits for them. Returns whether there was any; may release the lock then.
 */
bool cells_receive_ready(struct comm_comm *comm, bool is_feeder);
/* The same of all communicators. */
void cells_receive_all_ready(struct comm_client *client, bool is_feeder);

/* What a waiting thread looks at, without the lock: the rings of all communicators in which receives wait, if
 * they are not too many. */
struct cells_messages_watch {
    uint32_t count;    /* 0: no receive waits here */
    uint64_t until_ns; /* then they are given to commd */
    struct {
        struct comm_comm *comm;
        struct cell_messages *ring;
        uint64_t taken, from_commd;
    } rings[CELLS_WATCHED_MAX];
};
void cells_messages_watch(struct comm_client *client, struct cells_messages_watch *out);
/* Before and after the lock is released: none of these communicators may be left meanwhile. */
void cells_messages_hold(const struct cells_messages_watch *watch);
void cells_messages_release(struct comm_client *client, const struct cells_messages_watch *watch);
/* Without the lock. */
bool cells_messages_came(const struct cells_messages_watch *watch);
/* Whether another thread gives receives to commd now. It may need what commd answers. */
bool cells_receives_are_handed(const struct comm_comm *comm);
/* Whether an event record after that operation must wait: commd does not know a receive before it, whose
 * message has come, but not the event that keeps it from its buffer. */
bool cells_record_must_wait(const struct comm_comm *comm, uint64_t ticket);
/* How many receives of the communicator wait here. */
uint32_t cells_receive_count(const struct comm_comm *comm);

#endif
