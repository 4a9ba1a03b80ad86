#include "daemon/base/random.h"

#include <assert.h>
#include <errno.h>
#include <sys/random.h>

static uint64_t splitmix64_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void random_seed(struct random *random, uint64_t seed)
{
    for (unsigned i = 0; i < 4; i++) {
        random->state[i] = splitmix64_next(&seed);
    }
}

static uint64_t rotate_left(uint64_t x, unsigned bits)
{
    return (x << bits) | (x >> (64 - bits));
}

uint64_t random_u64(struct random *random)
{
    uint64_t *s = random->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate_left(s[3], 45);
    return result;
}

/*
 * Lemire, "Fast random integer generation in an interval", 2019: the high half of a product is uniform if the
 * (2^64 mod limit) smallest low halves are rejected.
 */
uint64_t random_below(struct random *random, uint64_t limit)
{
    assert(limit >= 1);
    uint64_t refused = (0 - limit) % limit;
    for (;;) {
        unsigned __int128 product = (unsigned __int128)random_u64(random) * limit;
        if ((uint64_t)product >= refused) {
            return (uint64_t)(product >> 64);
        }
    }
}

enum status random_secure(void *out, size_t size, struct error *error)
{
    unsigned char *at = out;
    while (size > 0) {
        ssize_t got = getrandom(at, size, 0);
        if (got < 0) {
            if (errno == EINTR) {
                continue;
            }
            return error_set_errno(error, errno, "getrandom of %zu bytes", size);
        }
        at += got;
        size -= (size_t)got;
    }
    return STATUS_OK;
}
