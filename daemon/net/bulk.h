#ifndef DAEMON_NET_BULK_H
#define DAEMON_NET_BULK_H

#include "daemon/net/net.h"

/*
 * Bulk links: a second kind of link beside a net's connections, for the large slices of collectives. tls.h
 * implements them. A bulk link belongs to the connection that the net has to the peer: it exists only while
 * that is up, and all its streams end before peer_down. If it is cut, its streams go on over the net's
 * connection. So its loss costs bandwidth, and no operation.
 *
 * Single-threaded, as its net is. All functions accept a null net, and a net without bulk links.
 */
enum net_bulk_mode { NET_BULK_AUTO, NET_BULK_TLS };

/* What is known of a peer's bulk link, and of both ways that bulk data may take. */
struct net_bulk_way {
    uint64_t rate;    /* bytes a second that were measured, while some were under way; 0: not measured yet */
    uint64_t bytes;   /* sent and received by the peer, in all */
    uint64_t cost_ns; /* of processor time of the network thread for 1 MiB */
};

struct net_bulk_statistics {
    bool allowed;                /* both nodes have bulk links */
    bool connected;              /* the link has a connection of its own now */
    bool chosen;                 /* bulk data goes over it at present */
    struct net_bulk_way ways[2]; /* [0]: the net's connection; [1]: the bulk link */
    uint64_t sent_bytes;         /* on the link's own connections, frames included */
    uint64_t received_bytes;
    uint64_t connected_count; /* how often it got a connection */
    uint64_t lost_count;      /* how often it lost one, so that its streams went on over the net's */
    char why[128];            /* why it is not connected; "" if that is not known */
};

/* The first member of the endpoint of bulk links: see net_tls_attach. */
struct net_bulk {
    const struct net_stream_operations *streams;
    struct net *net;
};

/* The peer has said, or has not, that it takes bulk links. A link that is there already stays. */
void net_bulk_allow(struct net *net, uint32_t peer, bool allowed);

/*
 * Whether the next bulk data to that peer should go over its bulk link, by what was measured. Makes the link
 * if there is none yet; until it is there, the answer is no.
 */
bool net_bulk_choose(struct net *net, uint32_t peer, uint64_t now_ns);

/*
 * The same for data that are not measured, because copies of them are sent. The size of the connection's
 * datagrams decides: see tls.c.
 */
bool net_bulk_choose_small(struct net *net, uint32_t peer, uint64_t now_ns);

/*
 * Measures: bulk data is under way to the peer, on the bulk link or on the net's connection. Each call of
 * net_bulk_began is followed by one of net_bulk_ended, with the bytes that the peer has received.
 */
void net_bulk_began(struct net *net, uint32_t peer, bool on_bulk, uint64_t now_ns);
void net_bulk_ended(struct net *net, uint32_t peer, bool on_bulk, uint64_t bytes, uint64_t now_ns);

/*
 * Does at once what the next turn of the loop would do: sends what waits to be sent. With `reads`, it also
 * reads links that carried something a moment ago. See net_quic_poll. Returns whether anything has come.
 */
bool net_bulk_poll(struct net *net, bool reads, uint64_t now_ns);

void net_bulk_statistics(const struct net *net, uint32_t peer, struct net_bulk_statistics *out);

/* --- For net.c and implementations of a net --- */

void net_bulk_free(struct net *net);
/* Call them just before the net's peer_up and peer_down. Then the streams of the peer's link have ended. */
void net_bulk_peer_up(struct net *net, uint32_t peer);
void net_bulk_peer_down(struct net *net, uint32_t peer, const struct error *cause, uint64_t now_ns);
/* The net's certificates are others now, and present links are checked again. */
void net_bulk_certificates_changed(struct net *net);
/* See net_stream_open_bulk. */
enum status net_bulk_open(struct net *net, uint32_t peer, enum net_stream_kind kind, struct net_stream **out,
                          struct error *error) COMM_MUST_USE;

#endif
