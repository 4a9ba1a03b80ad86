#ifndef TESTS_LIB_UDP_RELAY_H
#define TESTS_LIB_UDP_RELAY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/loop.h"

/*
 * A bad network for tests, because this kernel may have no netem. A UDP relay loses, delays, reorders (by
 * jitter), doubles, damages and cuts off datagrams; a seed makes that repeatable. It passes datagrams that
 * reach its port on to one target. Each sender gets a port of its own at the relay, as with network address
 * translation. Answers go back. It uses one thread, that of its loop.
 */
struct udp_relay;

#define UDP_RELAY_CLIENTS_MAX 32    /* senders; datagrams of further ones are dropped */
#define UDP_RELAY_PACKETS_MAX 65536 /* datagrams that are delayed at a time; further ones are dropped */

struct udp_relay_conditions {
    double loss;
    double duplication;
    double corruption; /* probability that one byte of a datagram is changed */
    uint64_t delay_ns;
    uint64_t jitter_ns;          /* evenly distributed, added to the delay */
    uint32_t datagram_max_bytes; /* larger datagrams vanish; 0: no limit */
    bool blackhole;
};

struct udp_relay_counters {
    uint64_t forwarded;
    uint64_t lost;
    uint64_t damaged;
    uint64_t doubled;
};

/* Addresses are "127.0.0.1:port". With port 0 in `listen`, the system chooses a port. Returns
 * INVALID_ARGUMENT, SYSTEM or NO_MEMORY if it fails. */
enum status udp_relay_new(struct loop *loop, const char *listen, const char *target, uint64_t seed,
                          struct udp_relay **out, struct error *error) COMM_MUST_USE;
void udp_relay_free(struct udp_relay *relay);
uint16_t udp_relay_port(const struct udp_relay *relay);

/* Sets the conditions for datagrams from now on. null leaves that direction unchanged. */
void udp_relay_set(struct udp_relay *relay, const struct udp_relay_conditions *to_target,
                   const struct udp_relay_conditions *from_target);

/* From now on, the target sees every sender at another port. Returns SYSTEM if it fails. */
enum status udp_relay_rebind(struct udp_relay *relay, struct error *error) COMM_MUST_USE;

/* From now on, senders see the target at another port. What reaches an earlier port vanishes, as with a NAT
 * that has lost its table. udp_relay_move_back ends that: the target is at the port of udp_relay_port again.
 * Returns SYSTEM if it fails. */
enum status udp_relay_move(struct udp_relay *relay, struct error *error) COMM_MUST_USE;
void udp_relay_move_back(struct udp_relay *relay);

void udp_relay_counters(const struct udp_relay *relay, struct udp_relay_counters *out);

#endif
