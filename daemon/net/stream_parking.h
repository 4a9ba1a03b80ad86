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
/* Streams of one peer that have begun, and whose first header has not come whole. A correct node sends a
 * header in one piece: it is parted where a packet ends, and the rest is late where that packet is lost. */
#define STREAM_BEGUN_MAX 1024u

struct stream_parking_peer {
    uint64_t bytes;
    uint32_t begun;
};

struct stream_parking {
    pthread_mutex_t lock; /* of all below */
    uint64_t bytes;
    struct stream_parking_peer *of_peer; /* by the net's index, which is the same on all threads */
    uint32_t peers;
};

/* The struct is the caller's, zero at first. */
void stream_parking_init(struct stream_parking *parking);
/* After every stream was taken out. */
void stream_parking_free(struct stream_parking *parking);
/* A stream of that peer keeps `to` bytes, and not `from` as before. False, and nothing changes: that is too
 * much, or there is no memory to count it; fewer are always fine. Any thread. */
bool stream_parking_count(struct stream_parking *parking, uint32_t peer, uint64_t from, uint64_t to);
/* A stream of that peer, which is counted above, has begun, or has its first header, or is over. Returns
 * whether these are STREAM_BEGUN_MAX at most. Any thread. */
bool stream_parking_begun(struct stream_parking *parking, uint32_t peer, bool has_begun);

#endif
