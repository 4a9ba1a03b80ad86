#include "tests/network/network.h"

void network_free(struct network *network)
{
    if (network != NULL) {
        network->operations->free(network);
    }
}

struct net *network_add(struct network *network, const char *name)
{
    return network->operations->add(network, name);
}

void network_address(const struct network *network, const char *name, char out[NETWORK_ADDRESS_MAX_BYTES])
{
    network->operations->address(network, name, out);
}

uint64_t network_next_ns(const struct network *network)
{
    return network->operations->next_ns(network);
}

void network_advance(struct network *network, uint64_t now_ns)
{
    network->operations->advance(network, now_ns);
}

void network_set_link(struct network *network, const char *from, const char *to,
                      const struct network_conditions *conditions)
{
    network->operations->set_link(network, from, to, conditions);
}

void network_cut(struct network *network, const char *from, const char *to, bool cut)
{
    network->operations->cut(network, from, to, cut);
}

void network_kill(struct network *network, const char *name)
{
    network->operations->kill(network, name);
}

void network_hold(struct network *network, const char *name, bool held)
{
    network->operations->hold(network, name, held);
}

void network_rebind(struct network *network, const char *name)
{
    network->operations->rebind(network, name);
}

void network_counters(const struct network *network, struct network_counters *out)
{
    *out = network->counters;
}
