#ifndef CLIENT_LIB_POLICY_H
#define CLIENT_LIB_POLICY_H

#include "client/lib/internal.h"

/* What happens when a communicator loses a rank: comm_init_options_t.on_loss. Private to the library. */

/* INVALID_ARGUMENT if there is no such policy. The error is reported. call: for the text. */
comm_result_t policy_check(const comm_init_options_t *options, const char *call, const char *name);
/* The communicator has lost a rank, node or commd. If its policy says so, writes why and ends the process.
 * Does nothing while the communicator forms, and once this process leaves it or has aborted it. */
void policy_lost(const struct comm_comm *comm, comm_result_t result, const char *text);

#endif
