#ifndef DAEMON_BASE_RANDOM_H
#define DAEMON_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"

/*
 * A seeded generator for simulations and jitter: xoshiro256** (Blackman and Vigna, "Scrambled linear
 * pseudorandom number generators", 2021), its state filled by splitmix64. The same seed gives the same
 * numbers on every machine. Not for secrets: use random_secure. One thread at a time.
 */
struct random {
    uint64_t state[4];
};

void random_seed(struct random *random, uint64_t seed);

uint64_t random_u64(struct random *random);

/* Uniform in [0, limit), without bias. limit is at least 1. */
uint64_t random_below(struct random *random, uint64_t limit);

/* Fills out with the kernel's random bytes, getrandom(2), waiting until the kernel's pool is ready at boot.
 * Thread-safe. */
enum status random_secure(void *out, size_t size, struct error *error) COMM_MUST_USE;

#endif
