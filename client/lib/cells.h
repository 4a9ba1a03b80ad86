#ifndef CLIENT_LIB_CELLS_H
#define CLIENT_LIB_CELLS_H

#include <commclient.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/lib/cells_messages.h"
#include "client/lib/cells_remote.h"
#include "proto/cells.h"
#include "proto/node_cells.h"
#include "proto/records.h"

/*
 * Small operations of a communicator whose ranks are all on this node (proto/cells.h), or on several nodes
 * (proto/node_cells.h). An operation that is published is in its communicator's list like any other, and in
 * one of these slots. Threads that wait for it look at the cells; whoever finds it complete takes its result.
 * If it has to go to commd after all, it becomes a held operation (held.h), before all others that are held.
 *
 * A program may submit an operation and then compute. The feeder thread looks meanwhile, because another rank
 * may need commd for this operation.
 *
 * All functions need the client's lock, unless their comment says otherwise.
 */
struct comm_comm;
struct comm_client;
struct client_call;
struct client_held;
struct client_memory;
struct client_op;
struct cells_slot;

/* A slice: elements of each block, or of the vector. */
struct cells_slice {
    uint64_t begin, elements;
    uint32_t step, steps; /* from 0 on */
    const unsigned char *const
        *lent; /* of each rank: its whole input, if it lends that; otherwise null. May be null itself */
    struct cells_remote *remote; /* null: nobody's data are read from its process */
};

/* A slice of an operation with a count for each rank: which one of how many. */
struct cells_blocks_slice {
    uint64_t index, count;
    struct cells_remote *remote; /* as in cells_slice */
};

/* What a client knows of the cells of all its communicators. */
struct cells_use {
    bool offered;           /* commd makes cells */
    int fd;                 /* came with the packet that is handled now; -1: none */
    uint32_t open;          /* operations that were published and have not ended */
    uint32_t receives;      /* that wait without commd: see cells_messages.h */
    uint64_t used;          /* operations that were published so far, */
    uint64_t seen;          /* at the feeder's last look */
    uint32_t idle_looks;    /* of the feeder, without a new one */
    uint32_t looks;         /* of the feeder, in all */
    _Atomic uint32_t loans; /* mappings of other ranks' memory */
    bool hung_up; /* the feeder saw that commd has closed the connection, while another thread read it */
};

/* commd sent the communicator's segment; it came as client->cells.fd. local_ranks: 0 if all ranks are on this
 * node. */
void cells_handle(struct comm_client *client, uint32_t handle, uint32_t local_ranks);
/* Maps the segment of a communicator that has formed. If it cannot, the communicator goes on without cells.
 * May release the lock. */
void cells_open(struct comm_comm *comm);
void cells_close(struct comm_comm *comm);

/* Whether the operation may be published now. waits: it waits for events or streams. */
bool cells_may_publish(struct comm_comm *comm, const struct client_call *call, bool waits);
/* Whether the operation could be published in slices; of a communicator that has cells. waits: the program
 * will probably wait at once. Otherwise commd works better with memory that it reads where it is. */
bool cells_has_slices(const struct comm_comm *comm, const struct client_call *call, bool waits);
/* cells_may_publish of such an operation (cells_may_publish then says no). First call cells_write_first,
 * which copies its first slice without the lock, and ask again. cells_put then publishes what was copied. */
bool cells_may_publish_slices(struct comm_comm *comm, const struct client_call *call, bool waits);
void cells_write_first(struct comm_comm *comm, const struct client_call *call);
/* The program does not wait for the operation, which was published: if it goes in slices, the library's
 * thread goes on with them at once. */
void cells_attend_to(struct comm_comm *comm, const struct client_op *op);
/* A thread of the program waits no more: if none does, the library's thread goes on with such operations. */
void cells_waiter_left(struct comm_comm *comm);
/* Long operations go in slices from now on, or to commd because of the program's habit: for the log. */
void cells_use_slices(struct comm_comm *comm, bool uses);
/* The arguments of a call; send and receive are the same for a broadcast. Kinds without an operator give
 * COMM_SUM, those without a root 0. */
struct cells_arguments {
    struct comm_comm *comm;
    enum op_kind kind;
    const void *send;
    void *receive;
    size_t count;
    comm_dtype_t dtype;
    comm_op_t op;
    uint32_t root;
    const comm_call_options_t *options;
};
/* Carries out a small call if another one of its kind had the same terms, and nothing else is under way.
 * Takes the lock. Returns false if it did nothing. */
bool cells_call_again(const struct cells_arguments *arguments);
/* Publishes an operation that is in the communicator's list. Call cells_reserve before the operation is
 * appended. If the rank needs nothing of the others, the operation's handle ends with cells_put. */
void cells_reserve(struct comm_comm *comm, const struct client_call *call, struct client_op *op);
void cells_put(struct comm_comm *comm, struct client_op *op);
/* The operation goes to commd, with this record. It takes the next number, unless it has one. */
void cells_pass(struct comm_comm *comm, struct client_op *op, struct submit_record *record);
/* What the operation works on; null: it was let go, and its buffers belong to the caller. */
const struct client_call *cells_call_of(const struct cells_slot *slot);
/* Whether an operation, or a record, that cannot be published must wait until all that were published have
 * ended. */
bool cells_must_wait(const struct comm_comm *comm);
/* The same of a held operation. */
bool cells_may_feed(struct comm_comm *comm, const struct client_held *held);
/* The operation leaves the list. */
void cells_forget(struct comm_comm *comm, struct client_op *op);

/*
 * Operations that ended for their caller within their calls, and that have not ended for all: see
 * cells_early.c. They have no struct client_op, so they are in no list. The first function makes one for
 * each; if memory is short, the communicator fails. The second one drops them all.
 */
void cells_fetch_behind(struct comm_comm *comm);
void cells_forget_behind(struct comm_comm *comm);

/* Ends operations of all communicators that are complete, and hands over those that go to commd. May release
 * the lock. */
void cells_progress(struct comm_client *client);
/* Whether this operation may be published without cells_progress before it: all that are open were let go,
 * the window has much room, and the rank does not need all others for it. */
bool cells_may_look_later(const struct comm_comm *comm, const struct client_call *call);
/*
 * Publishes an operation for which cells_may_publish said yes, if nothing else is under way, and looks for a
 * moment whether all ranks take part. Returns whether it has ended, with its result in the caller's memory,
 * and a ticket. Otherwise the operation must be reserved, appended and put now, whether it was published or
 * not.
 */
bool cells_end_at_once(struct comm_comm *comm, const struct client_call *call);
/* Waits until operations of the communicator may have ended; releases the lock meanwhile. awaited: the one
 * that the caller waits for; null: for the next end of any. spins: before it sleeps. Returns false at once if
 * the next end is to come from commd. */
bool cells_wait(struct comm_comm *comm, const struct client_op *awaited, uint64_t deadline_ns, bool spins);
/* For the library's thread: goes on with operations in slices for which nobody waits. Releases the lock
 * meanwhile. */
void cells_attend(struct comm_client *client);
/* Whether the feeder must look. */
bool cells_are_busy(struct comm_client *client);
/* The feeder's look at commd: operations in cells do not notice that commd is gone. */
void cells_look_at_commd(struct comm_client *client);

/* cells_lend.c: the operation has failed on this rank, so its memory is the program's again: what others read
 * of it from here on does not count. */
void cells_lend_withdraw(struct comm_comm *comm, const struct cells_slot *slot);
/* The memory is about to be freed: it is not offered any more. */
void cells_lend_forget(struct comm_client *client, const struct client_memory *memory);

/* cells_blocks.c: operations with a count for each rank. Whether the data fit into a cell; cells_write and
 * cells_read for them. */
bool cells_blocks_fit(const struct client_call *call, uint32_t rank_count);
void cells_blocks_write(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                        const struct client_call *call);
void cells_blocks_read(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                       const struct client_call *call);
/* The same of one slice, if the blocks go in slices. cells_blocks_write then writes the table alone. */
void cells_blocks_write_slice(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint32_t place,
                              const struct client_call *call, const struct cells_blocks_slice *slice);
void cells_blocks_read_slice(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                             const struct client_call *call, const struct cells_blocks_slice *slice);

/* cells_nodes.c: the same of a communicator of several nodes. */
void cells_nodes_write(const struct node_cells *cells, uint32_t rank, uint32_t local_rank, uint64_t seq,
                       uint64_t ticket, const struct client_call *call);
void cells_nodes_read(const struct node_cells *cells, uint32_t rank, uint32_t local_rank, uint64_t seq,
                      const struct client_call *call);
/* What a rank gets of its own data, if it needs nobody else's. */
void cells_nodes_take_own(const struct node_cells *cells, uint32_t rank, const struct client_call *call);

/* cells_take.c: writes the cell's data; takes the result of a complete operation. Any thread that owns the
 * operation. */
void cells_write(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                 const struct client_call *call);
/* The same of a step of a slice: first the data, then their header. The second step reads the cells of the
 * first, which has the number before. */
void cells_write_slice(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                       uint32_t place, const struct client_call *call, const struct cells_slice *slice);
void cells_write_header(struct cells_shared *shared, uint32_t rank, uint64_t seq, uint32_t place,
                        const struct client_call *call);
/* Copies data that another rank reads soon, or has just written. */
void cells_copy(unsigned char *to, const unsigned char *from, size_t size_bytes);
/* slice: null of an operation without slices. */
void cells_read(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                const struct client_call *call, const struct cells_slice *slice);

#endif
