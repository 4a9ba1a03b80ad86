#ifndef DAEMON_COMM_ROSTER_DRAFT_H
#define DAEMON_COMM_ROSTER_DRAFT_H

#include "daemon/comm/comms_internal.h"

/*
 * Complete rosters of several parts. The parts of each sender are kept aside until the last one has come. So
 * a roster of one sender neither changes what another one has said, nor takes effect by halves.
 *
 * Private to daemon/comm.
 */

/* Of one communicator, one for each sender. If there is one more, the oldest is dropped. */
#define COMMS_ROSTER_DRAFTS_MAX 8u
/* A roster has at most so many bytes for each rank of the communicator, and as many as a frame. */
#define COMMS_ROSTER_RANK_MAX_BYTES 512u

/* Keeps a part of a complete roster. Once all have come, returns the roster in one piece, which the caller
 * frees (commd__mesh__roster__free_unpacked). Returns null before, and without memory: the roster is lost. */
Commd__Mesh__Roster *comms_roster_draft_add(struct communicator *comm, uint32_t node,
                                            const Commd__Mesh__Roster *part);
/* The communicator is not forming any more. */
void comms_roster_drafts_free(struct communicator *comm);

#endif
