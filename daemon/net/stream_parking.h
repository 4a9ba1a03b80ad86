#ifndef DAEMON_NET_STREAM_PARKING_H
#define DAEMON_NET_STREAM_PARKING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Limits the memory for streams whose communicator is not known here yet, so that no user is known for them.
 * One limit covers all threads and kinds of streams. A peer may use at most as much as is left free, so at
 * most half. So a new peer finds room.
 */
#define STREAM_PARKED_MAX_BYTES (UINT64_C(64) << 20)
#define STREAM_PARKED_COST_BYTES 2048u /* of each stream, here and in the transport, besides its bytes */
/* Streams of one peer that have begun but whose first header is incomplete. A correct node sends a header in
 * one piece. It is split if a packet ends within it; the rest is late if the next packet is lost. */
#define STREAM_BEGUN_MAX 1024u

struct stream_parking_peer {
    uint64_t bytes;
    uint32_t begun;
};

struct stream_parking {
    pthread_mutex_t lock; /* protects all below */
    uint64_t bytes;
    struct stream_parking_peer *of_peer; /* by the net's index, which is the same on all threads */
    uint32_t peers;
};

/* Initialises the caller's struct, which is zero at first. */
void stream_parking_init(struct stream_parking *parking);
/* Call it after every stream was removed. */
void stream_parking_free(struct stream_parking *parking);
/* A stream of that peer now keeps `to` bytes instead of `from`. Returns false, and changes nothing, if that
 * is too much or there is no memory to count it. A decrease is always accepted. Any thread. */
bool stream_parking_count(struct stream_parking *parking, uint32_t peer, uint64_t from, uint64_t to);
/* A stream of that peer, already counted above, has begun (has_begun), or has its first header or is over
 * (not has_begun). Returns whether at most STREAM_BEGUN_MAX have begun. Any thread. */
bool stream_parking_begun(struct stream_parking *parking, uint32_t peer, bool has_begun);

#endif
