#ifndef DAEMON_NET_QUIC_MEMORY_H
#define DAEMON_NET_QUIC_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include <ngtcp2/ngtcp2.h>

/*
 * Limits the memory that ngtcp2 holds for one connection. ngtcp2 keeps 8 KiB for each stream whose bytes
 * arrive out of order. So a peer that leaves out the first byte of 65,536 streams would make it hold 512 MiB.
 *
 * A correct peer stays far below the limit: packets that got lost, and packets under way (about 400 bytes
 * each), hold memory only for a round trip.
 */
#define QUIC_MEMORY_MAX_BYTES ((size_t)128 << 20)
#define QUIC_MEMORY_IN_PLACE_MAX_BYTES ((size_t)1 << 20) /* a connection with more is deleted by a thread */

/* Of one ngtcp2_conn. */
struct quic_memory {
    ngtcp2_mem functions; /* what ngtcp2 is given */
    size_t bytes;
    bool refused; /* ngtcp2 wanted more than QUIC_MEMORY_MAX_BYTES */
};

/* Returns null when out of memory. */
struct quic_memory *quic_memory_new(void);

/* A connection that a thread deletes. */
struct quic_memory_deletion;

/*
 * Deletes the connection (null: there is none) and the memory that was made for it. If it holds much, a
 * thread of its own does so, because that may take 50 ms; the thread is added to *deletions.
 */
void quic_memory_delete(struct quic_memory *memory, ngtcp2_conn *transport,
                        struct quic_memory_deletion **deletions);
/* Forgets the threads that have ended. all: waits for the others, too. */
void quic_memory_join(struct quic_memory_deletion **deletions, bool all);

#endif
