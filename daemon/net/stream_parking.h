#ifndef DAEMON_NET_STREAM_PARKING_H
#define DAEMON_NET_STREAM_PARKING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * What a node keeps of streams whose communicator is not known here yet: no user is known whose it is. It is
 * one bound for all threads and kinds of streams. One peer may have half of it: at most as much as is left
 * free, so that a peer that comes anew finds room.
 */
#define STREAM_PARKED_MAX_BYTES (UINT64_C(64) << 20)
#define STREAM_PARKED_COST_BYTES 2048u /* of each stream, here and in the transport, beside its bytes */

struct stream_parking {
    pthread_mutex_t lock; /* of all below */
    uint64_t bytes;
    uint64_t *of_peer; /* by the net's index, which is the same on all threads */
    uint32_t peers;
};

/* The struct is the caller's, zero at first. */
void stream_parking_init(struct stream_parking *parking);
/* After every stream was taken out. */
void stream_parking_free(struct stream_parking *parking);
/* A stream of that peer keeps `to` bytes, and not `from` as before. False, and nothing changes: that is too
 * much, or there is no memory to count it; fewer are always fine. Any thread. */
bool stream_parking_count(struct stream_parking *parking, uint32_t peer, uint64_t from, uint64_t to);

#endif
