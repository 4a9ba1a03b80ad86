#include "daemon/base/weight.h"

#include <string.h>

#include "daemon/base/hash.h"

uint64_t weight_of_node(uint64_t seed, const char *node, uint32_t uid, const char *name)
{
    const uint8_t uid_bytes[4] = {(uint8_t)uid, (uint8_t)(uid >> 8), (uint8_t)(uid >> 16),
                                  (uint8_t)(uid >> 24)};
    uint64_t hash = hash_bytes(seed, node, strlen(node));
    hash = hash_bytes(hash, uid_bytes, sizeof uid_bytes);
    return hash_bytes(hash, name, strlen(name));
}
