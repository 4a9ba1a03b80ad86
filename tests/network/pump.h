#ifndef TESTS_NETWORK_PUMP_H
#define TESTS_NETWORK_PUMP_H

#include "tests/network/network.h"

/*
 * Runs a network and the parts of its nodes in the test's time. `next_ns` says when some node is due next, or
 * TIME_NEVER; `tick` runs all nodes that are due, and returns whether there was one.
 */
struct pump {
    struct network *network;
    uint64_t *now_ns;
    void *context;
    uint64_t (*next_ns)(void *context);
    bool (*tick)(void *context, uint64_t now_ns);
};

#define PUMP_TURNS_MAX 100000u /* without that the time goes on: something never ends */

/* Runs what is due now, and what that makes due now. */
static inline void pump_settle(const struct pump *pump)
{
    bool again = true;
    for (unsigned turn = 0; again; turn++) {
        assert_true(turn < PUMP_TURNS_MAX);
        network_advance(pump->network, *pump->now_ns);
        again = network_next_ns(pump->network) <= *pump->now_ns;
        again = pump->tick(pump->context, *pump->now_ns) || again;
    }
}

static inline void pump_run(const struct pump *pump, uint64_t span_ns)
{
    uint64_t until_ns = *pump->now_ns + span_ns;
    pump_settle(pump);
    for (;;) {
        uint64_t next_ns = time_min(network_next_ns(pump->network), pump->next_ns(pump->context));
        if (next_ns > until_ns) {
            break;
        }
        *pump->now_ns = next_ns > *pump->now_ns ? next_ns : *pump->now_ns;
        pump_settle(pump);
    }
    *pump->now_ns = until_ns;
    pump_settle(pump);
}

#endif
