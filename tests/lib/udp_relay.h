#ifndef TESTS_LIB_UDP_RELAY_H
#define TESTS_LIB_UDP_RELAY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/loop.h"

/*
 * A bad network for tests, as this kernel may have no netem: a UDP relay that loses, delays, reorders (by
 * jitter), doubles, damages and cuts off what passes, seeded. Whoever sends to its port is passed on to one
 * target from a port of the relay's of its own, as by network address translation; answers go back. One
 * thread: its loop's.
 */
struct udp_relay;

#define UDP_RELAY_CLIENTS_MAX 32    /* addresses that send to it; further ones are dropped */
#define UDP_RELAY_PACKETS_MAX 65536 /* delayed at a time; further ones are dropped */

struct udp_relay_conditions {
    double loss;
    double duplication;
    double corruption; /* probability that one byte of a datagram is changed */
    uint64_t delay_ns;
    uint64_t jitter_ns;          /* uniform, added to the delay */
    uint32_t datagram_max_bytes; /* larger ones vanish; 0: none */
    bool blackhole;
};

struct udp_relay_counters {
    uint64_t forwarded;
    uint64_t lost;
    uint64_t damaged;
    uint64_t doubled;
};

/* Addresses are "127.0.0.1:port", port 0 to listen picks one. INVALID_ARGUMENT, SYSTEM, NO_MEMORY. */
enum status udp_relay_new(struct loop *loop, const char *listen, const char *target, uint64_t seed,
                          struct udp_relay **out, struct error *error) COMM_MUST_USE;
void udp_relay_free(struct udp_relay *relay);
uint16_t udp_relay_port(const struct udp_relay *relay);

/* For what passes from now on; either may be null: as it was. */
void udp_relay_set(struct udp_relay *relay, const struct udp_relay_conditions *to_target,
                   const struct udp_relay_conditions *from_target);

/* The target sees everybody come from another port from now on. SYSTEM. */
enum status udp_relay_rebind(struct udp_relay *relay, struct error *error) COMM_MUST_USE;

void udp_relay_counters(const struct udp_relay *relay, struct udp_relay_counters *out);

#endif
