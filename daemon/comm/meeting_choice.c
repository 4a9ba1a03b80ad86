#include "daemon/comm/meeting_choice.h"

#include <string.h>

#include "daemon/base/hash.h"
#include "daemon/base/weight.h"

/* Parts of the protocol: all nodes must have the same. */
#define PLACE_SEED 0x706c61636573u
#define RELAY_SEED 0x72656c617973u
#define GROUP_SEED 0x67726f757073u
#define WITNESS_SEED 0x7769746e657373u

uint32_t meeting_groups(uint32_t size, uint32_t node_count)
{
    uint32_t nodes = size < node_count ? size : node_count;
    uint32_t root = 0;
    if (size < MEETING_RELAYED_RANKS_LEAST) {
        return 0;
    }
    while ((uint64_t)root * root < nodes) {
        root++;
    }
    return root;
}

uint32_t meeting_group_of(const char *node, uint32_t groups)
{
    return (uint32_t)(hash_bytes(GROUP_SEED, node, strlen(node)) % groups);
}

static uint64_t seed_of(const struct meeting_chooser *chooser)
{
    if (chooser->about != NULL) {
        return hash_bytes(WITNESS_SEED + chooser->group, chooser->about, strlen(chooser->about));
    }
    return chooser->relay ? RELAY_SEED + chooser->group : PLACE_SEED;
}

/* Whether the user may have ranks on that node, which is this one or one of the configuration. */
static bool may_serve(const struct comms *comms, uint32_t owner_uid, uint32_t node)
{
    return node == MESH_NODE_OWN ||
           (!mesh_node_is_removed(comms->mesh, node) && mesh_user_may(comms->mesh, owner_uid, node));
}

bool meeting_choose(const struct meeting_chooser *chooser, uint32_t *out)
{
    const struct comms *comms = chooser->comms;
    const struct owned_name *key = chooser->key;
    uint32_t node_count = mesh_node_count(comms->mesh);
    struct weight_choice near = {0}, far = {0};
    for (uint32_t i = 0; i <= node_count; i++) {
        bool own = i == node_count;
        uint32_t node = own ? MESH_NODE_OWN : i;
        if ((chooser->is_taken != NULL && chooser->is_taken(chooser->context, node)) ||
            !may_serve(comms, key->owner_uid, node)) {
            continue;
        }
        weight_choose(!own && mesh_node_is_out_of_reach(comms->mesh, i) ? &far : &near, seed_of(chooser),
                      node, mesh_node_name(comms->mesh, node), key->owner_uid, key->name);
    }
    *out = near.node_name != NULL ? near.node : far.node;
    return near.node_name != NULL || far.node_name != NULL;
}

/* Whether the node is one of the first `most`, reachable or not. Only `relay` and `group` of the chooser
 * matter beside comms and key. */
static bool is_among_first(const struct meeting_chooser *chooser, uint32_t node, uint32_t most)
{
    const struct comms *comms = chooser->comms;
    const struct owned_name *key = chooser->key;
    uint64_t seed = seed_of(chooser);
    uint32_t node_count = mesh_node_count(comms->mesh), before = 0;
    uint64_t weight = weight_of_node(seed, mesh_node_name(comms->mesh, node), key->owner_uid, key->name);
    for (uint32_t i = 0; i <= node_count && before < most; i++) {
        uint32_t other = i == node_count ? MESH_NODE_OWN : i;
        before +=
            other != node && may_serve(comms, key->owner_uid, other) &&
            weight_of_node(seed, mesh_node_name(comms->mesh, other), key->owner_uid, key->name) > weight;
    }
    return before < most && may_serve(comms, key->owner_uid, node);
}

bool meeting_trusts_relay(const struct comms *comms, const struct owned_name *key, uint32_t group,
                          uint32_t relay)
{
    const struct meeting_chooser chooser = {.comms = comms, .key = key, .relay = true, .group = group};
    return is_among_first(&chooser, relay, MEETING_RELAYS_TRUSTED);
}

bool meeting_may_be_place(const struct comms *comms, const struct owned_name *key, uint32_t node)
{
    const struct meeting_chooser chooser = {.comms = comms, .key = key};
    return is_among_first(&chooser, node, MEETING_PLACES_DOUBTED);
}
