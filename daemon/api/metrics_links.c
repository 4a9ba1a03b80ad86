#include <stdio.h>

#include "daemon/api/metrics.h"
#include "daemon/mesh/rail_links.h"

/* Other nodes, and the connections to them. */

/* The connections of one row: one, those of a node, or those of a rail. */
struct link_row {
    const char *peer; /* null: all nodes */
    bool has_rail;    /* otherwise all rails */
    char rail[12];
    struct net_peer_statistics sum;
    struct net_bulk_statistics bulk;
};

struct link_table {
    struct link_row rows[METRICS_LINKS_MAX];
    size_t count;
};

static struct link_table table; /* only the main thread writes metrics */

static void add_link(struct net_peer_statistics *sum, const struct net_peer_statistics *link)
{
    sum->sent_bytes += link->sent_bytes;
    sum->received_bytes += link->received_bytes;
    sum->sent_packets += link->sent_packets;
    sum->received_packets += link->received_packets;
    sum->lost_packets += link->lost_packets;
    sum->lost_bytes += link->lost_bytes;
    sum->connected_count += link->connected_count;
    sum->resumed_count += link->resumed_count;
}

static void add_bulk(struct net_bulk_statistics *sum, const struct net_bulk_statistics *link)
{
    sum->connected |= link->connected;
    sum->chosen |= link->chosen;
    sum->lost_count += link->lost_count;
    for (unsigned way = 0; way < 2; way++) {
        sum->ways[way].rate += link->ways[way].rate;
        sum->ways[way].bytes += link->ways[way].bytes;
    }
}

/* The row of a node's rail. Nodes come in order, and the rails of each. */
static struct link_row *row_of(const struct api *api, uint32_t node, uint32_t rail, bool by_peer,
                               bool by_rail)
{
    bool is_new = by_peer ? by_rail || rail == 0 : table.count <= rail;
    if (!is_new) {
        return by_peer ? &table.rows[table.count - 1] : &table.rows[rail];
    }
    struct link_row *row = &table.rows[table.count++];
    *row = (struct link_row){.peer = by_peer ? mesh_node_name(api->mesh, node) : NULL, .has_rail = by_rail};
    (void)snprintf(row->rail, sizeof row->rail, "%u", (unsigned)rail);
    return row;
}

static void fill_table(const struct api *api)
{
    uint32_t rails = mesh_rail_count(api->mesh);
    uint32_t nodes = mesh_configured_count(api->mesh);
    bool by_rail = nodes <= METRICS_LINKS_MAX / rails || nodes > METRICS_LINKS_MAX;
    bool by_peer = nodes <= METRICS_LINKS_MAX;
    table.count = 0;
    for (uint32_t node = 0; node < mesh_node_count(api->mesh); node++) {
        for (uint32_t rail = 0; rail < rails && !mesh_node_is_removed(api->mesh, node); rail++) {
            struct mesh_rail_statistics link;
            mesh_rail_statistics(api->mesh, node, rail, &link);
            struct link_row *row = row_of(api, node, rail, by_peer, by_rail);
            add_link(&row->sum, &link.net);
            add_bulk(&row->bulk, &link.bulk);
            if (by_peer && (by_rail || rail == 0)) {
                row->sum.round_trip_ns = link.net.round_trip_ns;
            }
        }
    }
}

/* --- Connections --- */

static const struct {
    struct metrics_family family;
    size_t offset;
} counters[] = {
    {{"commd_link_sent_bytes", "bytes", "Bytes sent to other nodes: of datagrams, and on bulk links.",
      METRICS_COUNTER},
     offsetof(struct net_peer_statistics, sent_bytes)},
    {{"commd_link_received_bytes", "bytes",
      "Bytes received from other nodes: of datagrams, and on bulk links.", METRICS_COUNTER},
     offsetof(struct net_peer_statistics, received_bytes)},
    {{"commd_link_sent_packets", "packets", "QUIC packets sent.", METRICS_COUNTER},
     offsetof(struct net_peer_statistics, sent_packets)},
    {{"commd_link_received_packets", "packets", "QUIC packets received.", METRICS_COUNTER},
     offsetof(struct net_peer_statistics, received_packets)},
    {{"commd_link_lost_packets", "packets", "QUIC packets that were sent and count as lost.",
      METRICS_COUNTER},
     offsetof(struct net_peer_statistics, lost_packets)},
    {{"commd_link_retransmitted_bytes", "bytes", "Bytes of lost packets, whose data were sent again.",
      METRICS_COUNTER},
     offsetof(struct net_peer_statistics, lost_bytes)},
    {{"commd_link_resumptions", "",
      "How often operations went on over another connection after one was lost.", METRICS_COUNTER},
     offsetof(struct net_peer_statistics, resumed_count)},
};
static const struct metrics_family round_trip = {"commd_link_round_trip_seconds", "seconds",
                                                 "Smoothed round trip of the connection that is up.",
                                                 METRICS_GAUGE};

static size_t row_labels(const struct link_row *row, struct metrics_label labels[2])
{
    size_t count = 0;
    if (row->peer != NULL) {
        labels[count++] = (struct metrics_label){"peer", row->peer};
    }
    if (row->has_rail) {
        labels[count++] = (struct metrics_label){"rail", row->rail};
    }
    return count;
}

/* A rail without any traffic is left out. */
static bool has_traffic(const struct link_row *row)
{
    return row->sum.sent_bytes > 0 || row->sum.received_bytes > 0;
}

static void write_links(struct metrics_text *text)
{
    struct metrics_label labels[2];
    for (size_t counter = 0; counter < sizeof counters / sizeof counters[0]; counter++) {
        metrics_begin(text, &counters[counter].family);
        for (size_t i = 0; i < table.count; i++) {
            const struct link_row *row = &table.rows[i];
            const void *value = (const char *)&row->sum + counters[counter].offset;
            if (has_traffic(row)) {
                metrics_put(text, labels, row_labels(row, labels), *(const uint64_t *)value);
            }
        }
    }
    metrics_begin(text, &round_trip);
    for (size_t i = 0; i < table.count; i++) {
        const struct link_row *row = &table.rows[i];
        if (row->sum.round_trip_ns > 0) {
            metrics_put_ns(text, labels, row_labels(row, labels), row->sum.round_trip_ns);
        }
    }
}

/* --- Bulk links --- */

static const struct metrics_family bulk_bytes = {"commd_link_bulk_bytes", "bytes",
                                                 "Bulk data of collectives that other nodes have received, "
                                                 "by the way that they took: QUIC, or TLS over TCP.",
                                                 METRICS_COUNTER};
static const struct metrics_family bulk_rate = {
    "commd_link_bulk_rate", "",
    "Bytes a second that were measured last for bulk data, while some were under way.", METRICS_GAUGE};
static const struct metrics_family bulk_chosen = {
    "commd_link_bulk_chosen", "", "1 for the way that bulk data take at present, else 0.", METRICS_GAUGE};
static const struct metrics_family bulk_losses = {
    "commd_link_bulk_losses", "", "How often a bulk link over TCP was lost, so that QUIC took its data over.",
    METRICS_COUNTER};

typedef uint64_t way_function(const struct net_bulk_statistics *bulk, unsigned way);

static uint64_t way_bytes(const struct net_bulk_statistics *bulk, unsigned way)
{
    return bulk->ways[way].bytes;
}

static uint64_t way_rate(const struct net_bulk_statistics *bulk, unsigned way)
{
    return bulk->ways[way].rate;
}

static uint64_t way_chosen(const struct net_bulk_statistics *bulk, unsigned way)
{
    return bulk->chosen == (way == 1);
}

/* Rows without bulk data are left out. */
static void write_ways(struct metrics_text *text, const struct metrics_family *family, way_function *value)
{
    struct metrics_label labels[3];
    metrics_begin(text, family);
    for (size_t i = 0; i < table.count; i++) {
        const struct link_row *row = &table.rows[i];
        size_t count = row_labels(row, labels);
        bool any = row->bulk.ways[0].bytes > 0 || row->bulk.ways[1].bytes > 0;
        for (unsigned way = 0; any && way < 2; way++) {
            labels[count] = (struct metrics_label){"way", way == 0 ? "quic" : "tls"};
            metrics_put(text, labels, count + 1, value(&row->bulk, way));
        }
    }
}

static void write_bulk(struct metrics_text *text)
{
    struct metrics_label labels[2];
    write_ways(text, &bulk_bytes, way_bytes);
    write_ways(text, &bulk_rate, way_rate);
    write_ways(text, &bulk_chosen, way_chosen);
    metrics_begin(text, &bulk_losses);
    for (size_t i = 0; i < table.count; i++) {
        const struct link_row *row = &table.rows[i];
        if (row->bulk.ways[1].bytes > 0 || row->bulk.lost_count > 0) {
            metrics_put(text, labels, row_labels(row, labels), row->bulk.lost_count);
        }
    }
}

/* --- Nodes --- */

static const struct metrics_family nodes_configured = {"commd_nodes_configured", "",
                                                       "Other nodes in the configuration.", METRICS_GAUGE};
static const struct metrics_family nodes_up = {"commd_nodes_up", "", "Other nodes that are up.",
                                               METRICS_GAUGE};
static const struct metrics_family node_up = {"commd_node_up", "", "1 for a node that is up, else 0.",
                                              METRICS_GAUGE};
static const struct metrics_family node_connections = {
    "commd_node_connections", "", "How often the node was connected, on rail 0.", METRICS_COUNTER};
static const struct metrics_family heartbeat = {"commd_node_heartbeat_round_trip_seconds", "seconds",
                                                "Round trip of the last heartbeat, from commd to commd.",
                                                METRICS_GAUGE};
static const struct metrics_family expiry = {
    "commd_certificate_expiry_timestamp_seconds", "seconds",
    "When a certificate expires: this node's, and those that other nodes showed last. In seconds since 1970.",
    METRICS_GAUGE};

typedef void node_function(struct metrics_text *text, const struct metrics_label *peer,
                           const struct mesh_node_info *info);

static void put_up(struct metrics_text *text, const struct metrics_label *peer,
                   const struct mesh_node_info *info)
{
    metrics_put(text, peer, 1, info->state == MESH_NODE_UP || info->state == MESH_NODE_ALIVE);
}

static void put_connections(struct metrics_text *text, const struct metrics_label *peer,
                            const struct mesh_node_info *info)
{
    metrics_put(text, peer, 1, info->net.connected_count);
}

static void put_heartbeat(struct metrics_text *text, const struct metrics_label *peer,
                          const struct mesh_node_info *info)
{
    if (info->state == MESH_NODE_UP && info->heartbeat_round_trip_ns > 0) {
        metrics_put_ns(text, peer, 1, info->heartbeat_round_trip_ns);
    }
}

static void put_expiry(struct metrics_text *text, const struct metrics_label *peer,
                       const struct mesh_node_info *info)
{
    if (info->net.certificate_ends_s > 0) {
        const struct metrics_label node = {"node", peer->value};
        metrics_put(text, &node, 1, info->net.certificate_ends_s);
    }
}

static void each_node(const struct api *api, struct metrics_text *text, node_function *function)
{
    if (mesh_configured_count(api->mesh) > METRICS_LINKS_MAX) {
        return;
    }
    for (uint32_t node = 0; node < mesh_node_count(api->mesh); node++) {
        struct mesh_node_info info;
        if (!mesh_node_is_removed(api->mesh, node)) {
            mesh_node_info(api->mesh, node, &info);
            const struct metrics_label peer = {"peer", info.name};
            function(text, &peer, &info);
        }
    }
}

static void write_expiry(const struct api *api, struct metrics_text *text)
{
    struct net_statistics own;
    net_statistics(api->net, &own);
    metrics_begin(text, &expiry);
    if (own.certificate_ends_s > 0) {
        const struct metrics_label node = {"node", mesh_own_name(api->mesh)};
        metrics_put(text, &node, 1, own.certificate_ends_s);
    }
    each_node(api, text, put_expiry);
}

void metrics_write_links(const struct api *api, struct metrics_text *text)
{
    uint64_t up = 0;
    for (uint32_t node = 0; node < mesh_node_count(api->mesh); node++) {
        up += mesh_node_is_alive(api->mesh, node);
    }
    if (!api->standalone) {
        metrics_put_one(text, &nodes_configured, mesh_configured_count(api->mesh));
        metrics_put_one(text, &nodes_up, up);
    }
    metrics_begin(text, &node_up);
    each_node(api, text, put_up);
    metrics_begin(text, &node_connections);
    each_node(api, text, put_connections);
    metrics_begin(text, &heartbeat);
    each_node(api, text, put_heartbeat);
    write_expiry(api, text);
    fill_table(api);
    write_links(text);
    write_bulk(text);
}
