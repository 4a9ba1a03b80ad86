#ifndef DAEMON_BASE_HASH_H
#define DAEMON_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/*
 * A 64-bit hash, the same on machines of either byte order: nodes derive a communicator's identity with it
 * and must agree. Every bit of seed, size and data reaches every bit of the result. To chain calls, pass the
 * result of one as the seed of the next. It does not resist an attacker who looks for collisions. data may be
 * null when size is 0.
 */
uint64_t hash_bytes(uint64_t seed, const void *data, size_t size);

#endif
