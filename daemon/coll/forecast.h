#ifndef DAEMON_COLL_FORECAST_H
#define DAEMON_COLL_FORECAST_H

#include "daemon/coll/registry.h"

/* What an operation would cost with an algorithm, from the algorithm's estimate of one slice. For `commctl
 * algorithms` and `commctl plan`. */
struct coll_forecast {
    double seconds; /* coll_predict */
    uint64_t slices;
    uint64_t rounds;     /* of one slice */
    double messages;     /* of the busiest node, all slices together */
    double sent_bytes;   /* headers and payload; of the busiest node, all slices together */
    double memory_bytes; /* of the daemon, without the ranks' own buffers: lanes, and the algorithm's scratch
                            memory */
};

/* The algorithm must serve the choice (coll_serves). network: null for the default. Thread-safe. */
void coll_forecast(const struct coll_algorithm *algorithm, const struct coll_choice *choice,
                   const struct coll_network *network, struct coll_forecast *out);

/*
 * With how many other nodes the busiest of a few nodes exchanges messages: so many connections does a node
 * need for the operation. Those nodes are the root, and some at the beginning, middle and end. 0 without
 * memory. Takes time in proportion to the rounds. Thread-safe.
 */
uint32_t coll_links(const struct coll_algorithm *algorithm, const struct coll_choice *choice);

#endif
