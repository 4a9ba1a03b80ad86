#ifndef CLIENT_LIB_GROUP_H
#define CLIENT_LIB_GROUP_H

#include <commclient.h>

#include <stdbool.h>
#include <stdint.h>

#include "client/lib/fence.h"
#include "client/lib/gpu/devices.h"

/* Groups of a thread: the operations called within a group are submitted together, at its end. */
struct capture_entry;
struct client_call;
struct comm_comm;
struct comm_request;

bool group_is_open(void);
/* Refuses a call that waits for other ranks, if a group is open. The failure is reported. */
comm_result_t group_allows_wait(const char *call, const char *name);
/* Whether a stream of that capture (0: none) may be part of the open group: one capture for all streams of a
 * rank, and all ranks of a communicator captured or none. Failures are reported. */
comm_result_t group_check_capture(const struct comm_comm *comm, const struct client_call *call,
                                  uint64_t capture_id);
/* Takes over what the entry holds, and copies its call, if it succeeds. Failures are reported. */
comm_result_t group_add_captured(const struct capture_entry *entry);
/* Adds a call to the open group. The caller marks the handle as collected before, and undoes that if this
 * fails. */
comm_result_t group_add(struct comm_comm *comm, const struct client_call *call, struct comm_request *request,
                        const struct stream_order *order);
/* To be called when the communicator is left. Removes what the open groups of all threads have collected for
 * it: handles end with COMM_ABORTED, and so does comm_group_end of another thread. With the client's lock. */
void group_forget(struct comm_comm *comm);
/* Ends the thread's groups without submitting their operations. Their handles then have no operation. */
void group_drop(void);

#endif
