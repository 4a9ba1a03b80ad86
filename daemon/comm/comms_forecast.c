#include "daemon/comm/comms_forecast.h"

#include "daemon/comm/comms_internal.h"
#include "daemon/comm/comms_tree.h"
#include "daemon/comm/meeting.h"
#include "daemon/comm/meeting_choice.h"
#include "daemon/comm/meeting_relay.h"
#include "daemon/mesh/member_rings.h"

#include <math.h>

#define HANDSHAKE_LATENCIES 4 /* QUIC's two round trips, with Hello */
#define DIALS_AT_ONCE 2       /* need.c */
#define NEIGHBOURS 8          /* members.h */
/* The most that a link may hold while it is idle. ngtcp2 keeps up to 30 KiB more after bulk data. */
#define LINK_BYTES (128.0 * 1024)
#define KNOWN_NODE_BYTES 512.0  /* of a node without a link, with any number of rails */
#define ROSTER_ENTRY_BYTES 48.0 /* a name of 8 bytes, one rank */
#define RANK_BYTES (sizeof(uint32_t) + sizeof(bool) + sizeof(uint64_t) + sizeof(uint32_t))

static double larger(double a, double b)
{
    return a > b ? a : b;
}

struct coll_network comms_forecast_network(const struct comms_plan *plan)
{
    struct coll_network network = plan->network;
    network.message_s *= plan->nodes_per_processor;
    network.bandwidth_bytes_per_s /= plan->nodes_per_processor;
    return network;
}

/* How long work takes of which one node has so much, and all nodes together so much. */
static double work_s(const struct comms_plan *plan, double busiest, double all)
{
    double processors = plan->node_count / plan->nodes_per_processor;
    return larger(busiest, all / processors);
}

/* Dialling: `busiest` connections on one node, `all` in the cluster. */
static double dial_s(const struct comms_plan *plan, double busiest, double all)
{
    return work_s(plan, busiest * plan->dial_s, 2 * all * plan->dial_s);
}

static uint32_t tree_levels(uint32_t node_count)
{
    uint32_t levels = 0;
    for (uint32_t last = node_count - 1; last > 0; last = (last - 1) / COMMS_TREE_WIDTH) {
        levels++;
    }
    return levels;
}

/* How nodes report. */
struct reporting {
    double groups;  /* 0: to the place itself */
    double busiest; /* messages, or new connections: of the busiest relay, and then of the place */
};

static struct reporting reporting_of(const struct comms_plan *plan)
{
    double others = plan->node_count - 1;
    double groups = meeting_groups(plan->node_count, plan->node_count);
    double mean = groups > 0 ? others / groups : 0;
    /* Names choose the groups by chance, so the largest one is larger than the mean. */
    return (struct reporting){groups, groups > 0 ? mean + 2 * sqrt(mean) + groups : others};
}

/* Reports to a relay, which hands them on to the place, or to the place. */
static double report_s(const struct comms_plan *plan, const struct reporting *reporting)
{
    const struct coll_network *network = &plan->network;
    double others = plan->node_count - 1;
    double all_messages_s = 2 * (others + reporting->groups) * network->message_s;
    double place = network->latency_s + (double)MEETING_TELL_NS * 1e-9;
    double relay = reporting->groups > 0 ? network->latency_s + (double)MEETING_RELAY_TELL_NS * 1e-9 : 0;
    return place + relay + work_s(plan, reporting->busiest * network->message_s, all_messages_s);
}

/* Reports; the roster down the tree; ready, up and down again. */
static double tree_form_s(const struct comms_plan *plan, bool fresh)
{
    double others = plan->node_count - 1, levels = tree_levels(plan->node_count);
    const struct coll_network *network = &plan->network;
    struct reporting reporting = reporting_of(plan);
    double all_messages_s = 2 * others * network->message_s;
    double way = levels * network->latency_s +
                 work_s(plan, levels * COMMS_TREE_WIDTH * network->message_s, all_messages_s);
    double roster_bytes = COMMS_TREE_WIDTH * plan->node_count * ROSTER_ENTRY_BYTES;
    double down = way + levels * roster_bytes / network->bandwidth_bytes_per_s;
    double ready = 2 * way;
    double dialled = 0;
    if (fresh) {
        double turns = (reporting.groups > 0 ? 2 : 1) + levels;
        double handshakes = turns * HANDSHAKE_LATENCIES * network->latency_s;
        dialled = dial_s(plan, reporting.busiest, others + reporting.groups) +
                  dial_s(plan, levels * (COMMS_TREE_WIDTH + 1), others) + handshakes;
    }
    return report_s(plan, &reporting) + down + ready + dialled;
}

/* Every node announces its ranks to every other, answers, and promises. Nodes of larger clusters meet first.
 */
static double pairs_form_s(const struct comms_plan *plan, bool meets, bool fresh)
{
    double others = plan->node_count - 1;
    const struct coll_network *network = &plan->network;
    double message_s = network->message_s * plan->nodes_per_processor;
    double seconds = 3 * (network->latency_s + others * message_s);
    if (meets) {
        seconds += 2 * network->latency_s + (double)MEETING_TELL_NS * 1e-9 + MEETING_FIRST * message_s;
    }
    if (meets && fresh) {
        seconds += dial_s(plan, others, others * plan->node_count / 2) +
                   (MEETING_FIRST + others) / DIALS_AT_ONCE * HANDSHAKE_LATENCIES * network->latency_s;
    }
    return seconds;
}

void comms_forecast(const struct comms_plan *plan, struct comms_forecast *out)
{
    uint32_t nodes = plan->node_count;
    bool meets = nodes > MEMBER_RINGS_SMALL;
    *out = (struct comms_forecast){.by_tree = meets && nodes >= COMMS_TREE_RANKS_LEAST};
    if (nodes > 1) {
        out->fresh_s = out->by_tree ? tree_form_s(plan, true) : pairs_form_s(plan, meets, true);
        out->warm_s = out->by_tree ? tree_form_s(plan, false) : pairs_form_s(plan, meets, false);
        out->links = out->by_tree ? NEIGHBOURS + 2 : nodes - 1; /* most nodes are leaves: place, parent */
    }
    out->node_bytes = out->links * LINK_BYTES + nodes * KNOWN_NODE_BYTES +
                      (double)nodes * (COMMS_NODE_COST_BYTES + RANK_BYTES);
}

double comms_forecast_first_s(const struct comms_plan *plan, const struct coll_forecast *operation,
                              uint32_t links)
{
    struct comms_forecast formed;
    comms_forecast(plan, &formed);
    if (!formed.by_tree) {
        return operation->seconds; /* formation has dialled all */
    }
    double rounds = operation->rounds > 0 ? (double)operation->rounds : 1;
    double turns = larger(1, links / rounds / DIALS_AT_ONCE); /* of handshakes, in each round */
    double waits = larger(1, rounds < links ? rounds : links) * turns;
    return operation->seconds + dial_s(plan, links, (double)links * plan->node_count / 2) +
           waits * HANDSHAKE_LATENCIES * plan->network.latency_s;
}
