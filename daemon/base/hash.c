#include "daemon/base/hash.h"

#include <string.h>

#include "proto/little_endian.h"

/* 2^64 divided by the golden ratio: keeps the state changing over runs of zero words. */
#define HASH_STEP 0x9e3779b97f4a7c15u

/* A permutation of 64 bits in which each input bit flips about half of the output's (splitmix64's finaliser).
 */
static uint64_t hash_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t hash_bytes(uint64_t seed, const void *data, size_t size)
{
    const uint8_t *at = data;
    /* The size distinguishes zero padding from data. */
    uint64_t hash = hash_mix(seed + HASH_STEP) ^ hash_mix(size);
    for (; size >= 8; at += 8, size -= 8) {
        hash = hash_mix((hash + HASH_STEP) ^ get_u64_le(at));
    }
    if (size > 0) {
        uint8_t last[8] = {0};
        memcpy(last, at, size);
        hash = hash_mix((hash + HASH_STEP) ^ get_u64_le(last));
    }
    return hash_mix(hash + HASH_STEP);
}
