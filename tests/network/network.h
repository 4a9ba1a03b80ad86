#ifndef TESTS_NETWORK_NETWORK_H
#define TESTS_NETWORK_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/time.h"
#include "daemon/net/net.h"

/*
 * Networks for tests: whole clusters in one process, seeded, with time as an argument, so that a seed
 * reproduces a run bit for bit. There are two:
 *
 *   pipes       ideal: ordered, nothing is lost. A connection is a pair of pipes with a delay; a link that is
 *               cut keeps what is on it until it is healed. Cheap: hundreds of nodes.
 *   datagrams   net/quic for real (ngtcp2, OpenSSL), with a clock and sockets in memory: datagrams are lost,
 *               delayed, doubled and overtaken. A few nodes.
 *
 * Names are of nodes; on either network they find each other by network_address. The clock is 0 until
 * network_advance moves it; what a net function starts, starts at that time. Whatever fails here (no memory)
 * ends the process.
 */
struct network;

#define NETWORK_ADDRESS_MAX_BYTES 32
/*
 * A connection is lost (NODE_LOST) when something that it sent stays unacknowledged for that long in which
 * nothing was heard from the peer. One of pipes without anything under way is never lost: it costs no event,
 * and only traffic, such as mesh's heartbeats, finds out.
 */
#define NETWORK_IDLE_TIMEOUT_NS (30 * TIME_S)
#define NETWORK_CONNECT_TIMEOUT_NS (5 * TIME_S) /* connect_failed TIMED_OUT */

struct network_conditions {
    uint64_t delay_ns;          /* one way */
    uint64_t jitter_ns;         /* uniform, added to the delay: pipes keep their order, datagrams do not */
    uint64_t bandwidth_bytes_s; /* of each directed link; 0: unlimited */
    uint32_t packet_bytes; /* pipes: a piece, at most; 0: 1200. Datagrams: larger ones are lost; 0: 65507 */
    double loss;           /* probability that a datagram is lost, each way. Pipes lose nothing */
    double duplication;    /* probability that a datagram arrives twice */
    double corruption;     /* probability that a byte of a datagram is changed */
};

struct network_counters {
    uint64_t packets;      /* that left a host; copies by duplication not counted */
    uint64_t packets_lost; /* by loss, on a cut link, or too large for it */
    uint64_t stream_bytes; /* pipes: of streams. Datagrams: all bytes of them */
    uint64_t copied_bytes; /* pipes: of payloads that were not left where their senders had them */
    uint64_t trace_hash;   /* of every event so far, with its time: the same for the same run */
};

/* network_pipe.c */
struct network *network_new_pipes(uint64_t seed, const struct network_conditions *conditions);
/* In programs that link tests/datagrams. Nodes listen on this port. */
struct network *network_new_datagrams(uint64_t seed, const struct network_conditions *conditions,
                                      uint16_t port);
/* After every net of it was freed. Null is accepted. */
void network_free(struct network *network);

/*
 * One node's endpoint, freed by net_free. A name whose net was freed can be added again: a node that
 * restarts.
 */
struct net *network_add(struct network *network, const char *name);
/* For net_add_peer. */
void network_address(const struct network *network, const char *name, char out[NETWORK_ADDRESS_MAX_BYTES]);

/* When something happens next; TIME_NEVER when nothing is under way. */
uint64_t network_next_ns(const struct network *network);
/* Lets happen whatever is due at now_ns, handlers included, in a fixed order. now_ns never goes back. */
void network_advance(struct network *network, uint64_t now_ns);

/* Conditions of the directed link from one node to another; they hold for packets sent from now on. */
void network_set_link(struct network *network, const char *from, const char *to,
                      const struct network_conditions *conditions);
/* Whether nothing gets from one node to the other any more. */
void network_cut(struct network *network, const char *from, const char *to, bool cut);
/*
 * A dead host: it sends and receives nothing any more, and nobody is told. Its net is still to be freed;
 * until then it is alone, and finds that out in its own time. A host whose net was freed lives, and says so
 * to who asks: peer_suspect, or connect_failed UNREACHABLE.
 */
void network_kill(struct network *network, const char *name);

/* Datagrams: others see another port of the host from now on, as behind a device that translates addresses.
 */
void network_rebind(struct network *network, const char *name);

void network_counters(const struct network *network, struct network_counters *out);

/* --- For what implements one --- */

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
    void (*rebind)(struct network *network, const char *name); /* null: there is no such thing */
};

struct network {
    const struct network_operations *operations;
    struct network_counters counters;
};

#endif
