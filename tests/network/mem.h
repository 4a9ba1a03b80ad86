#ifndef TESTS_NETWORK_MEM_H
#define TESTS_NETWORK_MEM_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/time.h"
#include "daemon/net/net.h"

/*
 * A network in memory, for whole clusters in one process: seeded, with time as an argument, so that a seed
 * reproduces a run bit for bit. Streams behave as over QUIC: cut into packets that are lost, delayed,
 * duplicated and reordered, sent again, put in order at the receiver, handed out in pieces that end anywhere
 * (also within an element), bounded by the window. Names stand for certificates.
 *
 * Payloads are read when a packet leaves, each time it does, as a zero-copy sender must: who changes one
 * before `sent` corrupts it.
 *
 * A connection is lost (NODE_LOST) when something it sent stays unacknowledged for MEM_IDLE_TIMEOUT_NS in
 * which nothing at all was heard from the peer. Unlike QUIC's, a connection without anything under way is
 * never lost: it costs no event, and only traffic, such as mesh's heartbeats, finds out. A packet for a
 * connection that its receiver has given up is answered, which ends it at the sender too (QUIC's stateless
 * reset). A packet for a name that is not of the network (any more) is answered by its host: peer_suspect, or
 * connect_failed UNREACHABLE. A killed host answers nothing.
 *
 * The network's clock is 0 until mem_network_advance moves it; what a net function starts, starts at that
 * time.
 */
struct mem_network;

#define MEM_IDLE_TIMEOUT_NS (30 * TIME_S)
#define MEM_CONNECT_TIMEOUT_NS (5 * TIME_S) /* connect_failed TIMED_OUT */
#define MEM_PACKET_MAX_BYTES (1u << 20)
#define MEM_STREAMS_MAX 65536 /* outgoing streams of a connection that are not yet over; beyond: LIMIT */

struct mem_conditions {
    double loss;                /* probability of a packet's loss, each way */
    double duplication;         /* probability that a packet arrives twice */
    uint64_t delay_ns;          /* one way */
    uint64_t jitter_ns;         /* uniform, added to the delay: reorders */
    uint64_t bandwidth_bytes_s; /* of each directed link; 0: unlimited */
    uint32_t packet_bytes;      /* payload of one packet, at most; 0: 1200; at most MEM_PACKET_MAX_BYTES */
    uint64_t retransmission_ns; /* after which a packet not acknowledged is sent again; 0: 4 × (delay +
                                   jitter), at least 1 ms */
};

/* INVALID_ARGUMENT, NO_MEMORY. */
enum status mem_network_new(uint64_t seed, const struct mem_conditions *conditions, struct mem_network **out,
                            struct error *error) COMM_MUST_USE;
/* After every net of it was freed. */
void mem_network_free(struct mem_network *network);

/*
 * One node's endpoint, freed by net_free. The address of net_add_peer is ignored: names find each other. A
 * name whose net was freed can be added again: a node that restarts. INVALID_ARGUMENT, ALREADY_EXISTS,
 * NO_MEMORY.
 */
enum status mem_network_add(struct mem_network *network, const char *name, struct net **out,
                            struct error *error) COMM_MUST_USE;

/* When something happens next; TIME_NEVER when nothing is under way. */
uint64_t mem_network_next_ns(const struct mem_network *network);

/* Lets happen whatever is due at now_ns, handlers included, in a fixed order. now_ns never goes back. */
void mem_network_advance(struct mem_network *network, uint64_t now_ns);

/*
 * For tests, like the two below: names are valid and may still be unknown; without memory the process ends.
 * Conditions of the directed link from one node to another; they hold for packets sent from now on.
 */
void mem_network_set_link(struct mem_network *network, const char *from, const char *to,
                          const struct mem_conditions *conditions);
/* While cut, packets from `from` to `to` vanish (one way). */
void mem_network_cut(struct mem_network *network, const char *from, const char *to, bool cut);
/*
 * A dead host: it sends and receives nothing any more, and nobody is told. Its net is still to be freed;
 * until then it is alone, and finds that out in its own time.
 */
void mem_network_kill(struct mem_network *network, const char *name);

struct mem_network_counters {
    uint64_t packets;             /* that left a host; copies by duplication not counted */
    uint64_t packets_lost;        /* by loss or on a cut link */
    uint64_t stream_bytes;        /* sent for the first time */
    uint64_t retransmitted_bytes; /* sent again */
    uint64_t copied_bytes;        /* of payloads that were not left where their senders had them */
    uint64_t trace_hash;          /* of every event so far, with its time: the same for the same run */
};
void mem_network_counters(const struct mem_network *network, struct mem_network_counters *out);

#endif
