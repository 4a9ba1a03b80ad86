#ifndef CLIENT_LIB_SUBMIT_H
#define CLIENT_LIB_SUBMIT_H

#include "client/lib/internal.h"

/* Turns calls into operations, and makes their records for commd (submit.c). The functions need the client's
 * lock, unless their comment says otherwise. */

/* Submits the call, or collects it in the open group, or makes a persistent handle. Takes the lock. Failures
 * are reported. */
comm_result_t call_submit(struct comm_comm *comm, const struct client_call *call);
/* Submits the call, and waits until all operations submitted so far have ended. */
comm_result_t call_submit_and_sync(struct comm_comm *comm, const struct client_call *call);
/* Submits several calls at once, in one packet if they fit. A request may be null. Failures are reported.
 * Operations submitted before a failure stay; the places of the others in streams are abandoned. */
struct client_entry {
    struct comm_comm *comm;
    const struct client_call *call;
    struct comm_request *request;
    struct stream_order order;
    /* Made before the submission if the operation is to end into a queue; null otherwise. It becomes null
     * when the operation is submitted. */
    struct client_op *op;
    bool alone;    /* it is neither in a group nor persistent */
    bool large;    /* by submit: it could be published in slices, */
    bool attended; /* and the library's thread goes on with them, for the program does not wait */
    bool returns;  /* its call may still fail after the submission, because of its stream */
    struct client_op *withheld; /* by submit: its queue does not show it before submit_end */
};
/* Makes the operation of a call, which is not submitted yet. Returns null if memory is short. */
struct client_op *op_new(const struct comm_comm *comm, const struct client_call *call);
/* After the submission, without the lock: the stream waits for the operation. */
comm_result_t submit_end(const struct client_entry *entry);
/*
 * An operation in cells, without a list of counts, that may end within its call: then submit_ended ends its
 * handle. If it does not, it has been published, and cannot fail any more. So there must be a spare struct
 * client_op before, which submit_open takes. submit_open returns false if there is none, and memory is short.
 */
bool submit_has_spare(struct comm_comm *comm, const struct client_call *call);
void submit_ended(const struct client_entry *entry);
bool submit_open(struct client_entry *entry, uint32_t timeout_ms);
/* Makes the entry's operation, and appends it to the list. Returns null if memory is short. */
struct client_op *submit_append(struct client_entry *entry, uint32_t timeout_ms);
comm_result_t call_submit_entries(struct comm_client *client, struct client_entry *entries, size_t count);

/* Several records, in one packet. */
struct submit_packet {
    size_t size_bytes;
    uint32_t timeout_ms; /* of the first one's communicator */
    unsigned char bytes[REQUEST_MAX_BYTES];
};
/* Adds a record. If it does not fit, packet_add first calls packet_send, which may release the lock. */
void packet_add(struct comm_client *client, struct submit_packet *packet, const struct comm_comm *comm,
                const struct submit_record *record);
void packet_send(struct comm_client *client, struct submit_packet *packet);

/* Makes the record of an operation, without its ticket. All its buffers must be staged or mapped. */
void submit_make_record(const struct comm_comm *comm, const struct client_call *call,
                        const struct client_op *op, const struct fence_mark *waits, uint32_t wait_count,
                        struct submit_record *out);

#endif
