#ifndef COMMCLIENT_MESSAGES_H
#define COMMCLIENT_MESSAGES_H

/* Messages from rank to rank. Included by commclient.h; do not include it alone. */

/*
 * Messages of any size from one rank to another, or to itself. A receive takes the oldest message from rank
 * `peer` with that tag which no earlier receive took. Messages are not ordered with collectives, and no third
 * rank takes part in them. A message may be shorter than the receive's count. If it is longer, or has another
 * dtype, the receive fails with COMM_MISMATCH.
 *
 * A message of at most 16 KiB is copied, and its send ends at once, on one node and between nodes. This
 * requires that at most 64 KiB from this sender wait for receives. With more than 256 ranks the limit is
 * smaller: 16 MiB for all senders to one rank together. Any other send ends when its message is received. On
 * a GPU, the stream of the receive must also have reached the receive. Messages that one pair of ranks does
 * not receive delay no other pair, tag or collective. On one node, sends of up to 64 KiB may end at once,
 * too: do not rely on either.
 *
 * A failure ends only that message, on both ranks, and the communicator goes on:
 *   COMM_TIMED_OUT   the deadline of the send or of the receive passed.
 *   COMM_MISMATCH    the message does not fit its receive.
 *   COMM_LIMIT       the receiver's user has no room for more unexpected messages.
 *   COMM_DEVICE, COMM_NO_MEMORY   a GPU failed, or memory for the message was missing, on either rank.
 *   COMM_RANK_LOST   the other rank has left the communicator, and all its messages have been received. A
 *                    receive from COMM_ANY_SOURCE fails so when every other rank has left.
 */
#define COMM_ANY_SOURCE UINT32_MAX
COMM_API COMM_CHECK comm_result_t comm_send(comm_t *comm, const void *buffer, size_t count,
                                            comm_dtype_t dtype, uint32_t peer, uint32_t tag,
                                            const comm_call_options_t *options);
/* peer: a rank, or COMM_ANY_SOURCE. */
COMM_API COMM_CHECK comm_result_t comm_recv(comm_t *comm, void *buffer, size_t count, comm_dtype_t dtype,
                                            uint32_t peer, uint32_t tag, const comm_call_options_t *options);
/* Sends and receives at the same time, and waits for both. Of options, timeout_ms and stream are used. A
 * request, a queue or `persistent` is refused with COMM_INVALID_ARGUMENT. */
COMM_API COMM_CHECK comm_result_t comm_send_recv(comm_t *comm, const void *send, size_t send_count,
                                                 uint32_t to, void *receive, size_t receive_count,
                                                 uint32_t from, comm_dtype_t dtype, uint32_t tag,
                                                 const comm_call_options_t *options);

#endif
