#ifndef DAEMON_BASE_WEIGHT_H
#define DAEMON_BASE_WEIGHT_H

#include <stdint.h>

/*
 * Highest random weight hashing (Thaler, Ravishankar, "Using name-based mappings to increase hit rates",
 * 1998): of all nodes, those with the highest weights for a user's name serve that name. So nodes that know
 * the same nodes choose the same ones, and a node that comes or goes changes the choice for few names. Equal
 * weights: the lower name (strcmp) is first.
 *
 * seed: one for each use, part of the protocol. node, name: end with 0. Any thread.
 */
uint64_t weight_of_node(uint64_t seed, const char *node, uint32_t uid, const char *name);

/* The best of some nodes; {0} before the first. */
struct weight_choice {
    const char *node_name; /* null: of none */
    uint32_t node;
    uint64_t weight;
};
/* Makes a node the choice if it comes before the one so far. `node` is for the caller. node_name must stay
 * valid as long as the choice. */
void weight_choose(struct weight_choice *choice, uint64_t seed, uint32_t node, const char *node_name,
                   uint32_t uid, const char *name);

#endif
