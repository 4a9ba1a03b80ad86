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

void weight_choose(struct weight_choice *choice, uint64_t seed, uint32_t node, const char *node_name,
                   uint32_t uid, const char *name)
{
    uint64_t weight = weight_of_node(seed, node_name, uid, name);
    if (choice->node_name == NULL || weight > choice->weight ||
        (weight == choice->weight && strcmp(node_name, choice->node_name) < 0)) {
        *choice = (struct weight_choice){node_name, node, weight};
    }
}
