#include <stdio.h>

#include "daemon/base/time.h"
#include "daemon/exec/rails_internal.h"

/* Traffic of the rails' connections, for people. Only the rail's thread may read its connections' counters,
 * so it publishes them. */

/* Returns whether the link had new traffic. */
static bool publish(struct rails_link *link, const struct net_peer_statistics *seen)
{
    bool is_new = atomic_exchange_explicit(&link->sent_bytes, seen->sent_bytes, memory_order_relaxed) !=
                  seen->sent_bytes;
    is_new |= atomic_exchange_explicit(&link->received_bytes, seen->received_bytes, memory_order_relaxed) !=
              seen->received_bytes;
    atomic_store_explicit(&link->sent_packets, seen->sent_packets, memory_order_relaxed);
    atomic_store_explicit(&link->received_packets, seen->received_packets, memory_order_relaxed);
    atomic_store_explicit(&link->lost_packets, seen->lost_packets, memory_order_relaxed);
    atomic_store_explicit(&link->lost_bytes, seen->lost_bytes, memory_order_relaxed);
    atomic_store_explicit(&link->resumed_count, seen->resumed_count, memory_order_relaxed);
    atomic_store_explicit(&link->round_trip_ns, seen->round_trip_ns, memory_order_relaxed);
    return is_new;
}

static void publish_bulk(struct rails_bulk *bulk, const struct net_bulk_statistics *seen)
{
    atomic_store_explicit(&bulk->allowed, seen->allowed, memory_order_relaxed);
    atomic_store_explicit(&bulk->connected, seen->connected, memory_order_relaxed);
    atomic_store_explicit(&bulk->chosen, seen->chosen, memory_order_relaxed);
    for (unsigned way = 0; way < 2; way++) {
        atomic_store_explicit(&bulk->rates[way], seen->ways[way].rate, memory_order_relaxed);
        atomic_store_explicit(&bulk->bytes[way], seen->ways[way].bytes, memory_order_relaxed);
    }
    atomic_store_explicit(&bulk->connected_count, seen->connected_count, memory_order_relaxed);
    atomic_store_explicit(&bulk->lost_count, seen->lost_count, memory_order_relaxed);
}

/* After a turn: if nothing is scheduled, schedules a publication RAILS_PUBLISH_NS later, as the turn may have
 * had traffic. */
void rails_publish_traffic(struct rails_endpoint *endpoint, uint64_t now_ns)
{
    const struct net *net = endpoint->rails->nets[endpoint->rail];
    if (net == NULL || now_ns < endpoint->publish_ns) {
        bool waits = net == NULL || endpoint->publish_ns != TIME_NEVER;
        endpoint->publish_ns = waits ? endpoint->publish_ns : time_after(now_ns, RAILS_PUBLISH_NS);
        return;
    }
    bool is_new = false;
    for (uint32_t peer = 0; peer < endpoint->peer_count; peer++) {
        struct net_peer_statistics seen;
        net_peer_statistics(net, peer, &seen);
        is_new |= publish(endpoint->links[peer], &seen);
        struct net_bulk_statistics bulk;
        net_bulk_statistics(net, peer, &bulk);
        publish_bulk(&endpoint->links[peer]->bulk, &bulk);
    }
    endpoint->publish_ns = is_new ? time_after(now_ns, RAILS_PUBLISH_NS) : TIME_NEVER;
}

void rails_traffic(const struct rails *rails, uint32_t peer, struct rails_traffic *out)
{
    *out = (struct rails_traffic){0};
    for (uint32_t rail = 1; peer < rails->peer_count && rail < rails->network_count; rail++) {
        const struct rails_link *link = &rails->peers[peer]->links[rail];
        out->sent_bytes += atomic_load_explicit(&link->sent_bytes, memory_order_relaxed);
        out->received_bytes += atomic_load_explicit(&link->received_bytes, memory_order_relaxed);
        out->lost_packets += atomic_load_explicit(&link->lost_packets, memory_order_relaxed);
        out->resumed_count += atomic_load_explicit(&link->resumed_count, memory_order_relaxed);
        if (link->wanted == 0) {
            continue;
        }
        out->needed++;
        out->connected += link->up;
        if (!link->up && out->missing[0] == '\0') {
            (void)snprintf(out->missing, sizeof out->missing, "rail %u is not connected%s%.460s", rail,
                           link->why.text[0] == '\0' ? "" : ": ", link->why.text);
        }
    }
}

void rails_link_statistics(const struct rails *rails, uint32_t peer, uint32_t rail,
                           struct net_peer_statistics *out)
{
    *out = (struct net_peer_statistics){.up = false};
    if (peer >= rails->peer_count || rail == 0 || rail >= rails->network_count) {
        return;
    }
    const struct rails_link *link = &rails->peers[peer]->links[rail];
    out->up = link->up;
    out->sent_bytes = atomic_load_explicit(&link->sent_bytes, memory_order_relaxed);
    out->received_bytes = atomic_load_explicit(&link->received_bytes, memory_order_relaxed);
    out->sent_packets = atomic_load_explicit(&link->sent_packets, memory_order_relaxed);
    out->received_packets = atomic_load_explicit(&link->received_packets, memory_order_relaxed);
    out->lost_packets = atomic_load_explicit(&link->lost_packets, memory_order_relaxed);
    out->lost_bytes = atomic_load_explicit(&link->lost_bytes, memory_order_relaxed);
    out->resumed_count = atomic_load_explicit(&link->resumed_count, memory_order_relaxed);
    out->round_trip_ns = atomic_load_explicit(&link->round_trip_ns, memory_order_relaxed);
}

void rails_bulk_statistics(const struct rails *rails, uint32_t peer, uint32_t rail,
                           struct net_bulk_statistics *out)
{
    *out = (struct net_bulk_statistics){.allowed = false};
    if (peer >= rails->peer_count || rail == 0 || rail >= rails->network_count) {
        return;
    }
    const struct rails_bulk *bulk = &rails->peers[peer]->links[rail].bulk;
    out->allowed = atomic_load_explicit(&bulk->allowed, memory_order_relaxed);
    out->connected = atomic_load_explicit(&bulk->connected, memory_order_relaxed);
    out->chosen = atomic_load_explicit(&bulk->chosen, memory_order_relaxed);
    for (unsigned way = 0; way < 2; way++) {
        out->ways[way].rate = atomic_load_explicit(&bulk->rates[way], memory_order_relaxed);
        out->ways[way].bytes = atomic_load_explicit(&bulk->bytes[way], memory_order_relaxed);
    }
    out->connected_count = atomic_load_explicit(&bulk->connected_count, memory_order_relaxed);
    out->lost_count = atomic_load_explicit(&bulk->lost_count, memory_order_relaxed);
}

uint32_t rails_network_count(const struct rails *rails)
{
    return rails->network_count;
}
