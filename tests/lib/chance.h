#ifndef TESTS_LIB_CHANCE_H
#define TESTS_LIB_CHANCE_H

#include <stdbool.h>

#include "daemon/base/random.h"

/* Returns true with the given probability: never at 0 or below, always at 1 or above. Draws one number in
 * any case. */
static inline bool random_chance(struct random *random, double probability)
{
    double uniform = (double)(random_u64(random) >> 11) * 0x1p-53; /* in [0, 1), a multiple of 2^-53 */
    return uniform < probability;
}

#endif
