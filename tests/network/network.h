#ifndef TESTS_NETWORK_NETWORK_H
#define TESTS_NETWORK_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/time.h"
#include "daemon/net/net.h"

/*
 * Networks for tests: whole clusters in one process, with a seed, and with time as an argument. So a seed
 * reproduces a run bit for bit. There are two networks:
 *
 *   pipes       ideal: packets stay in order, and nothing is lost. A connection is a pair of pipes
 *               with a delay. A cut link keeps what is on it until it is healed. Cheap: hundreds of nodes.
 *   datagrams   the real net/quic (ngtcp2, OpenSSL), with a clock and sockets in memory. Datagrams are
 *               lost, delayed, doubled and overtaken. For a few nodes.
 *
 * Names are those of nodes. On either network, nodes find each other by network_address. The clock is 0 until
 * network_advance moves it. What a net function starts, it starts at that time. Any failure here (no memory)
 * ends the process.
 */
struct network;

#define NETWORK_ADDRESS_MAX_BYTES 32
/*
 * A connection is lost (NODE_LOST) if something that it sent is unacknowledged, and nothing was heard from
 * the peer for this time. A connection of pipes with nothing under way is never lost: it costs no event. Only
 * traffic, such as mesh's heartbeats, shows the loss.
 */
#define NETWORK_IDLE_TIMEOUT_NS (30 * TIME_S)
#define NETWORK_CONNECT_TIMEOUT_NS (5 * TIME_S) /* then connect_failed says TIMED_OUT */

struct network_conditions {
    uint64_t delay_ns;  /* one way */
    uint64_t jitter_ns; /* evenly distributed, added to the delay. Pipes keep their order, datagrams do not */
    uint64_t bandwidth_bytes_s; /* of each directed link; 0: unlimited */
    /* pipes: the most bytes of a piece; 0: 1200. Datagrams: larger ones are lost; 0: 65507 */
    uint32_t packet_bytes;
    double loss;        /* probability that a datagram is lost, for each direction. Pipes lose nothing */
    double duplication; /* probability that a datagram arrives twice */
    double corruption;  /* probability that a byte of a datagram is changed */
    /*
     * Processor time of a new connection on each of its two hosts; 0: none. A host has one processor, so its
     * handshakes take turns. Pipes: for the whole network. Datagrams: drawn between 0 and twice that;
     * meanwhile the host reads nothing, but its timers run.
     */
    uint64_t handshake_ns;
};

struct network_counters {
    uint64_t packets; /* packets that left a host, without copies by duplication */
    /* datagrams lost by chance, on a cut link, because they were too large, or in a full queue */
    uint64_t packets_lost;
    uint64_t stream_bytes; /* pipes: bytes of streams. Datagrams: all bytes of datagrams */
    /* pipes: bytes of payloads that were copied, instead of left in their senders' buffers */
    uint64_t copied_bytes;
    uint64_t trace_hash; /* a hash of every event so far, with its time; equal runs have equal hashes */
};

/* network_pipe.c */
struct network *network_new_pipes(uint64_t seed, const struct network_conditions *conditions);
/* For programs that link tests/datagrams. Nodes listen on this port. */
struct network *network_new_datagrams(uint64_t seed, const struct network_conditions *conditions,
                                      uint16_t port);
/* Call it after every net of the network is freed. Accepts null. */
void network_free(struct network *network);

/*
 * Returns one node's endpoint, which net_free frees. After that the same name can be added again, as a node
 * that restarts.
 */
struct net *network_add(struct network *network, const char *name);
/* Gives the address of a node, for net_add_peer. */
void network_address(const struct network *network, const char *name, char out[NETWORK_ADDRESS_MAX_BYTES]);

/* Returns the time of the next event, or TIME_NEVER if nothing is under way. */
uint64_t network_next_ns(const struct network *network);
/* Moves the clock to now_ns. Runs all that is due until then, handlers included, in a fixed order. now_ns
 * must not go back. */
void network_advance(struct network *network, uint64_t now_ns);

/* Sets the conditions of the directed link from one node to another, for packets that are sent from now
 * on. */
void network_set_link(struct network *network, const char *from, const char *to,
                      const struct network_conditions *conditions);
/* Cuts or heals the way from one node to the other. Nothing gets through a cut link. */
void network_cut(struct network *network, const char *from, const char *to, bool cut);
/*
 * Kills a host: it sends and receives nothing any more, and nobody is told. Its net must still be freed.
 * Until then the net is alone, and notices that in its own time. If instead the net of a living host is
 * freed, the host says so to peers that ask: peer_suspect, or connect_failed UNREACHABLE.
 */
void network_kill(struct network *network, const char *name);

/* Datagrams only: from now on, others see the host at another port, as behind a device that translates
 * addresses. */
void network_rebind(struct network *network, const char *name);

/*
 * Datagrams only: the host's process stands still, or goes on. Meanwhile it sends nothing, and what arrives
 * waits, in order. Its timers run, because all nodes share them.
 */
void network_hold(struct network *network, const char *name, bool held);

void network_counters(const struct network *network, struct network_counters *out);

/* --- For implementations of a network --- */

struct network_operations {
    void (*free)(struct network *network);
    struct net *(*add)(struct network *network, const char *name);
    void (*address)(const struct network *network, const char *name, char out[NETWORK_ADDRESS_MAX_BYTES]);
    uint64_t (*next_ns)(const struct network *network);
    void (*advance)(struct network *network, uint64_t now_ns);
    void (*set_link)(struct network *network, const char *from, const char *to,
                     const struct network_conditions *conditions);
    void (*cut)(struct network *network, const char *from, const char *to, bool cut);
    void (*kill)(struct network *network, const char *name);
    void (*rebind)(struct network *network, const char *name);          /* null: the network cannot do this */
    void (*hold)(struct network *network, const char *name, bool held); /* likewise */
};

struct network {
    const struct network_operations *operations;
    struct network_counters counters;
};

#endif
