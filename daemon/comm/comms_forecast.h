#ifndef DAEMON_COMM_COMMS_FORECAST_H
#define DAEMON_COMM_COMMS_FORECAST_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/coll/forecast.h"

/*
 * What a communicator costs in a cluster of its own nodes, with one rank on each: for `commctl plan`. This is
 * a model of formation.c, meeting.h and comms_tree.h. It counts connections and messages, and the processor
 * time of the busiest node, or of all nodes where they share processors. Pure and thread-safe.
 */
struct comms_plan {
    uint32_t node_count; /* 1 to COLL_NODES_MAX */
    struct coll_network network;
    double dial_s; /* processor time of a new connection, for each of its two nodes */
    double
        nodes_per_processor; /* at least 1: how many daemons share a processor, as in tests on one machine */
};

struct comms_forecast {
    bool by_tree;      /* connections are dialled when operations first need them */
    double fresh_s;    /* comm_init of all ranks at once, without connections beyond those to neighbours */
    double warm_s;     /* the same, if every connection is there */
    uint32_t links;    /* of a node in the middle, after forming */
    double node_bytes; /* memory of one commd: its links after forming, the known nodes, the communicator */
};

void comms_forecast(const struct comms_plan *plan, struct comms_forecast *out);
/* The network as each node has it while all work at once: nodes that share a processor slow each other. */
struct coll_network comms_forecast_network(const struct comms_plan *plan);
/*
 * How long the first operation takes: seconds, the forecast of a later one, and the connections that it
 * dials. links: as coll_links.
 */
double comms_forecast_first_s(const struct comms_plan *plan, const struct coll_forecast *operation,
                              uint32_t links);

#endif
