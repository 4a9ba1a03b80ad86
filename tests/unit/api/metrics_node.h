#ifndef TESTS_UNIT_API_METRICS_NODE_H
#define TESTS_UNIT_API_METRICS_NODE_H

#include "daemon/api/metrics.h"
#include "daemon/mesh/rail_links.h"
#include "tests/unit/api/api_node.h"

/* A node for tests of metrics, with any number of peers, rails and communicators. It sends nothing. Every
 * counter has many digits. */
#define MANY UINT64_C(123456789012345)
#define PEER_NAME_FORMAT "gpu-node-%03u"

static inline enum status fake_add_peer(struct net *net, const char *name, const char *address,
                                        uint32_t *peer, struct error *error)
{
    (void)name;
    (void)address;
    (void)error;
    *peer = net->users_peers++;
    return STATUS_OK;
}

static inline enum status fake_connect(struct net *net, uint32_t peer, struct error *error)
{
    (void)net;
    (void)peer;
    (void)error;
    return STATUS_OK;
}

static inline void fake_peer_statistics(const struct net *net, uint32_t peer, struct net_peer_statistics *out)
{
    (void)net;
    *out = (struct net_peer_statistics){.up = true,
                                        .round_trip_ns = 123456789,
                                        .sent_bytes = MANY + peer,
                                        .received_bytes = MANY,
                                        .sent_packets = MANY,
                                        .received_packets = MANY,
                                        .lost_packets = MANY,
                                        .lost_bytes = MANY,
                                        .connected_count = 1,
                                        .certificate_ends_s = 1800000000};
}

static inline void fake_statistics(const struct net *net, struct net_statistics *out)
{
    (void)net;
    *out = (struct net_statistics){.received_datagrams = MANY, .certificate_ends_s = 1800000000};
}

static const struct net_operations fake_operations = {.add_peer = fake_add_peer,
                                                      .connect = fake_connect,
                                                      .peer_statistics = fake_peer_statistics,
                                                      .statistics = fake_statistics};

struct metrics_node {
    struct net nets[MESH_RAILS_MAX];
    struct mailbox mailboxes[MESH_RAILS_MAX];
    struct node *node;
    struct client client;
};

static inline void ignore_streams(void *context, uint32_t node, uint32_t rail)
{
    (void)context;
    (void)node;
    (void)rail;
}

/* Before the peers are added. */
static inline void metrics_node_set_rails(struct metrics_node *own, uint32_t rails)
{
    struct net *nets[MESH_RAILS_MAX];
    for (uint32_t rail = 0; rail < rails; rail++) {
        own->nets[rail].operations = &fake_operations;
        nets[rail] = &own->nets[rail];
    }
    struct mesh_rails_options options = {.count = rails,
                                         .nets = nets,
                                         .mailboxes = own->mailboxes,
                                         .handler = {.streams_lost = ignore_streams}};
    if (rails > 1) {
        must(mesh_set_rails(own->node->mesh, &options, error));
    }
}

/* What the rails' threads do: they get the peers, and publish their counters. */
static inline void metrics_node_run_rails(struct metrics_node *own, uint32_t rails)
{
    for (uint32_t rail = 1; rail < rails; rail++) {
        (void)mailbox_run(&own->mailboxes[rail], TIME_S);
        mesh_rail_run(own->node->mesh, rail, TIME_S);
        mesh_rail_run(own->node->mesh, rail, TIME_S + MESH_PUBLISH_NS);
    }
}

static inline struct metrics_node *metrics_node_new(uint32_t peers, uint32_t rails, const char *metrics)
{
    struct metrics_node *own = calloc(1, sizeof *own);
    assert_non_null(own);
    own->nets[0].operations = &fake_operations;
    own->node = node_new_on(&own->nets[0]);
    metrics_node_set_rails(own, rails);
    for (uint32_t i = 0; i < peers; i++) {
        char name[32];
        uint32_t index;
        snprintf(name, sizeof name, PEER_NAME_FORMAT, i);
        must(mesh_add_node(own->node->mesh, name, "192.0.2.1:7400", &index, error));
        mesh_need_rails(own->node->mesh, index, rails); /* so the rails know it */
    }
    metrics_node_run_rails(own, rails);
    struct api_options options = node_api_options(own->node);
    options.standalone = false;
    options.net = &own->nets[0];
    options.metrics = metrics;
    must(api_new(own->node->loop, &options, loop_now_ns(), &own->node->api, error));
    return own;
}

static inline void metrics_node_free(struct metrics_node *own)
{
    node_free(own->node);
    free(own);
}

/* Every kind, size and bucket of operations has happened, with three results. */
static inline void metrics_node_fill_ops(struct metrics_node *own)
{
    struct op_counts *counts = (struct op_counts *)(uintptr_t)&comms_totals(own->node->comms)->ops;
    for (unsigned kind = 0; kind < OP_KIND_COUNT; kind++) {
        for (unsigned class = 0; class < OP_BOUNDS_CLASSES; class ++) {
            struct op_counts_cell *cell = &counts->cells[kind][class];
            cell->results[STATUS_OK] = cell->results[STATUS_TIMED_OUT] = cell->results[STATUS_RANK_LOST] =
                MANY;
            cell->bytes = MANY;
            for (size_t i = 0; i <= HISTOGRAM_BUCKETS_MAX; i++) {
                cell->latency_ns.counts[i] = cell->bandwidth.counts[i] = MANY / 1000;
            }
            cell->latency_ns.sum = cell->bandwidth.sum = MANY;
        }
    }
}

/* Communicators of one rank each, of one client. */
static inline void metrics_node_form(struct metrics_node *own, uint32_t count)
{
    own->client = client_new(own->node);
    for (uint32_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "training-%u", (unsigned)i);
        uint64_t id = client_send_init(&own->client, i + 1, name, 0, 1);
        event_free(client_expect_reply(&own->client, id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
    }
}

#endif
