#ifndef CLIENT_LIB_BUFFERS_H
#define CLIENT_LIB_BUFFERS_H

#include <stddef.h>

#include <commclient.h>

#include "client/lib/internal.h"

/* Where commd finds an operation's buffers. All functions need the client's lock. Failures are reported. */

/* Finds the buffers that commd has mapped already; the operation uses them. *staged_bytes: what the others
 * need. */
comm_result_t buffers_find(struct comm_comm *comm, const struct client_call *call, struct client_op *op,
                           size_t *staged_bytes);
/* Takes staging blocks for buffers that commd has not mapped, and copies inputs into them. Buffers that have
 * a block already are skipped. May release the lock. */
comm_result_t buffers_stage(struct comm_comm *comm, const struct client_call *call, struct client_op *op);

#endif
