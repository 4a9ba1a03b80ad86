#ifndef CLIENT_LIB_RINGS_H
#define CLIENT_LIB_RINGS_H

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/ring.h"
#include "proto/version.h"

/* Packets without the socket: two rings in memory that is shared with commd. */

#define RING_SPIN_MAX_NS 50000u /* about the cost of waking another process and being woken */
#define RING_SPIN_MIN_NS 2000u
#define RING_SHARED_NS 1500u  /* a yield that takes so long let another thread run; */
#define RING_SHARED_YIELDS 2u /* after so many in a row, this thread does not spin for a while */
/* If yielding takes this long, another process runs on our core: sleeping wakes us sooner than spinning. */
#define RING_CROWDED_NS 2000000u
#define RING_REST_MIN_NS 10000000u /* then there is no spinning for this long; longer if it happens again */
#define RING_REST_MAX_NS 1000000000u

struct client_rings {
    unsigned char *memory;
    int bell_fd;        /* the library's doorbell; commd rings it */
    int daemon_bell_fd; /* commd's doorbell; the library rings it */
    struct ring in, out;
    bool armed; /* rings_arm was called */
    /* The client has had a communicator of several nodes, for which commd has more to do. Set by any thread.
     */
    atomic_bool between_nodes;
    uint64_t spin_ns; /* how long to spin before sleeping; adapts */
    uint64_t rest_ns, rest_until_ns;
};

/* Whether the memory behind fd has at least that many bytes, and a seal prevents it from shrinking. An access
 * beyond its end would kill the process. */
bool memory_is_fixed(int fd, size_t least_bytes);
/* Whether commd cannot harm us with these descriptors: the memory stays, and doorbells never block. */
bool rings_are_safe(const int fds[CLIENT_RING_FDS]);
/* Takes ownership of the descriptors. Returns null if they cannot be used, or memory is short. */
struct client_rings *rings_open(const int fds[CLIENT_RING_FDS]);
void rings_close(struct client_rings *rings);
/*
 * Waits for a packet; the caller does not hold the lock. Spins for a moment, then polls the socket (for
 * `events`), the doorbell, and `other` unless null. Returns whether it polled: then the socket may be ready,
 * too, and other->revents is set.
 */
bool rings_wait(struct client_rings *rings, int socket_fd, short events, struct pollfd *other,
                uint64_t deadline_ns);
/* Makes commd ring the doorbell for the next packet, without waiting for it. Returns false if there already
 * is a packet: then commd need not ring. */
bool rings_arm(struct client_rings *rings);
/* After RING_FULL, commd rings the doorbell when there is room again. */
enum ring_result rings_send(struct client_rings *rings, const void *packet, size_t size_bytes);
/* Wakes commd. */
void rings_ring(const struct client_rings *rings);
/* As rings_send, without the doorbell: a sleeping commd sees the packet with the next one. */
enum ring_result rings_send_quietly(struct client_rings *rings, const void *packet, size_t size_bytes);
/* To be called after packets were taken: wakes a commd that waits for room. */
void rings_taken(struct client_rings *rings);

#endif
