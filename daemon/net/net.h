#ifndef DAEMON_NET_NET_H
#define DAEMON_NET_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/base/fair.h"
#include "daemon/base/spending.h"

/*
 * Bytes between nodes: an interface, and quic.h, which implements it with ngtcp2. Tests have another
 * implementation, of ideal pipes in memory (tests/network).
 *
 * A `net` is one node's endpoint. Peers are the other nodes of the configuration, known by index (0-based, in
 * the order of net_add_peer) and by name; at most one authenticated connection to each. On a connection,
 * streams carry ordered bytes one way, from the node that opened them; each has a kind, which decides who
 * receives it.
 *
 * A node that is alone has none: its net is null. Null is accepted by net_set_peer_handler,
 * net_set_stream_handler, net_free, net_add_peer (UNREACHABLE) and net_statistics (all 0); without peers,
 * nothing else is called.
 *
 * Single-threaded: everything of a net happens on its loop's thread. Handlers are called from there and may
 * call back into the net, with one exception: none may call net_free.
 */
struct net;
struct net_stream;

#define NET_PEERS_MAX 16384
#define NET_STREAM_HEADER_MAX_BYTES 80
#define NET_STREAM_QUEUE_MAX 4096            /* messages of one stream that wait to be sent or acknowledged */
#define NET_STREAM_COPY_MAX_BYTES (4u << 20) /* bytes of one stream that the net holds copies of */
#define NET_STREAM_WINDOW_BYTES (4u << 20)   /* bytes of one stream under way, at most */
/* Bytes of one stream that come before its receiver says more: see net_stream_expect. So many may be left
 * unconsumed, of control streams NET_STREAM_WINDOW_BYTES. */
#define NET_STREAM_FIRST_WINDOW_BYTES (32u << 10)

enum net_stream_kind {
    NET_STREAM_CONTROL = 1, /* mesh: framed protobuf messages */
    NET_STREAM_DATA = 2,    /* exec: data headers and payloads */
    NET_STREAM_MESSAGE = 3  /* p2p: messages from rank to rank */
};
#define NET_STREAM_KIND_COUNT 4 /* arrays indexed by kind */

/* Connections, to daemon/mesh. Each peer_up is followed by exactly one peer_down before the next peer_up. */
struct net_peer_handler {
    void *context;
    /* Authenticated both ways, ready for streams. */
    void (*peer_up)(void *context, uint32_t peer, uint64_t now_ns);
    /*
     * The connection is gone, for the reason given (NODE_LOST, CERTIFICATE, PROTOCOL, SHUTTING_DOWN, …).
     * Before this call every stream of it was closed, and every send on them done.
     */
    void (*peer_down)(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns);
    /* net_connect failed before peer_up (UNREACHABLE, CERTIFICATE, TIMED_OUT); no attempt is under way any
     * more. */
    void (*connect_failed)(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns);
    /*
     * The peer's host says that nobody listens there any more (an ICMP error). It may be forged: a reason to
     * probe at once, not to give up. May be null.
     */
    void (*peer_suspect)(void *context, uint32_t peer, uint64_t now_ns);
};

/* Incoming streams of one kind. */
struct net_stream_handler {
    void *context;
    /*
     * The next bytes of a stream, straight from the decrypted packet (or from what was left unconsumed).
     * Returns how many were consumed; what is left stays with the net, within the stream's window, holds
     * the sender back, and comes again, with whatever arrived since, after net_stream_resume. `end`: no byte
     * follows `bytes`; the stream closes once they are all consumed. size may be 0 when end is true. `bytes`
     * needs no alignment and is valid during the call alone.
     */
    size_t (*receive)(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size, bool end,
                      uint64_t now_ns);
    /*
     * The stream is over: ended and consumed (cause null), reset by the sender, or lost with its connection.
     * The pointer is invalid after this call. Called exactly once for each stream for which receive was
     * called.
     */
    void (*closed)(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns);
    /* So many bytes have come behind those that receive left, and stay with the net, too. May be null. */
    void (*kept)(void *context, struct net_stream *stream, size_t size, uint64_t now_ns);
};

/*
 * The end of one send. STATUS_OK: the peer's transport has acknowledged every byte, so the payload may
 * change; anything else: the stream or its connection is gone. Called exactly once a send, never from within
 * net_stream_send.
 */
typedef void net_sent_function(void *context, enum status result, uint64_t now_ns);

struct net_peer_statistics {
    bool up;
    uint64_t round_trip_ns; /* smoothed; 0 when unknown */
    uint64_t sent_bytes;
    uint64_t received_bytes;
    uint64_t lost_packets;
    uint32_t datagram_bytes;  /* the largest datagram that the path is known to carry */
    uint64_t connected_count; /* how often peer_up was called */
    bool closed_by_peer;      /* the last connection that is over: its end, and the cause, are the peer's */
    /* When the certificate ends that it showed for its present or last connection, in seconds since 1970; 0:
     * not known. */
    uint64_t certificate_ends_s;
};

struct net_statistics {
    uint64_t received_datagrams;
    uint64_t dropped_datagrams; /* not QUIC, or of no connection of ours */
    uint64_t refused_handshakes;
    uint64_t certificate_ends_s; /* our own, in seconds since 1970; 0: there is none */
};

/* What an implementation provides. Reached through the functions below alone. */
struct net_operations {
    void (*free)(struct net *net);
    enum status (*add_peer)(struct net *net, const char *name, const char *address, uint32_t *peer,
                            struct error *error);
    void (*remove_peer)(struct net *net, uint32_t peer, const struct error *cause);
    enum status (*move_peer)(struct net *net, uint32_t peer, const char *address, struct error *error);
    enum status (*connect)(struct net *net, uint32_t peer, struct error *error);
    void (*disconnect)(struct net *net, uint32_t peer, const struct error *cause);
    void (*keep_alive)(struct net *net, uint32_t peer, bool keep); /* null: connections stay anyway */
    enum status (*stream_open)(struct net *net, uint32_t peer, enum net_stream_kind kind,
                               struct net_stream **out, struct error *error);
    enum status (*stream_send)(struct net_stream *stream, const void *header, size_t header_bytes,
                               const void *payload, size_t payload_bytes, net_sent_function *sent,
                               void *context);
    void (*stream_finish)(struct net_stream *stream);
    void (*stream_reset)(struct net_stream *stream);
    void (*stream_resume)(struct net_stream *stream);
    void (*stream_expect)(struct net_stream *stream, uint64_t size);
    uint32_t (*stream_queued)(const struct net_stream *stream);
    void (*peer_statistics)(const struct net *net, uint32_t peer, struct net_peer_statistics *out);
    void (*statistics)(const struct net *net, struct net_statistics *out);
};

/*
 * Streams that were opened for users, by peer: one connection has NET_STREAMS_MAX, which all users of two
 * nodes share. A user may have open NET_STREAMS_SHARE times as many as are free: three quarters when alone,
 * and whoever comes anew finds some. Users are told apart as in daemon/base/fair.h.
 */
#define NET_STREAMS_MAX 65536u /* of a connection, in each direction, that are not over */
#define NET_STREAMS_SHARE 3u

struct net_users_streams {
    uint32_t count;
    uint32_t of_line[FAIR_LINES];
};

/* The head of every implementation's endpoint and stream; zero at first. */
struct stream_parking;

struct net {
    const struct net_operations *operations;
    struct net_users_streams *users_streams; /* by peer */
    uint32_t users_peers;
    struct net_peer_handler peer_handler;
    struct net_stream_handler stream_handlers[NET_STREAM_KIND_COUNT];
    struct spending_shares spending;
    struct stream_parking *parking; /* see net_set_parking */
};

struct net_stream {
    struct net *net;
    uint32_t peer;
    enum net_stream_kind kind;
    uint32_t users_line;            /* the line of the user that it was opened for, and 1; 0: nobody's */
    struct budget_account *account; /* see net_stream_charge */
    void *user; /* the stream handler's (incoming) or the opener's (outgoing); null at first */
};

/* Handlers are set once, before the first net_add_peer. */
void net_set_peer_handler(struct net *net, const struct net_peer_handler *handler);
void net_set_stream_handler(struct net *net, enum net_stream_kind kind,
                            const struct net_stream_handler *handler);

/* What events of the network take of processor time, decryption and handlers included, is charged to the
 * accounts of streams, in proportion to their bytes. Null, at first: nothing is. Null for net is accepted. */
void net_set_clock(struct net *net, uint64_t (*clock)(void));

/* Threads of one node share what streams may keep that are parked (stream_reader.h). Before anything comes;
 * outlives the net's readers. Null, at first: each has all of it. Null for net is accepted. */
void net_set_parking(struct net *net, struct stream_parking *parking);

/* Closes every connection (peers are told), ends every send, and frees. No handler is called any more but
 * sent. */
void net_free(struct net *net);

/*
 * Makes a node known, so that it may connect to us and we to it. address: "host:port", "[v6]:port"; resolved
 * here. LIMIT beyond NET_PEERS_MAX, ALREADY_EXISTS for a name known already, INVALID_ARGUMENT for an address
 * that does not parse. A node that was removed gets its index back.
 */
enum status net_add_peer(struct net *net, const char *name, const char *address, uint32_t *peer,
                         struct error *error) COMM_MUST_USE;

/*
 * Makes a node unknown: no connection to or from it is made any more, and the one there is ends as by
 * net_disconnect. Its index stays taken, for net_add_peer of the same name.
 */
void net_remove_peer(struct net *net, uint32_t peer, const struct error *cause);

/*
 * Another address of a known node, for connections dialled from now on. The connection there is stays; an
 * attempt under way is called off, and nobody is told. INVALID_ARGUMENT for an address that does not parse:
 * the old one stays.
 */
enum status net_move_peer(struct net *net, uint32_t peer, const char *address,
                          struct error *error) COMM_MUST_USE;

/*
 * Starts one attempt to connect; its outcome is peer_up or connect_failed, never from within this call. Does
 * nothing when connected or connecting. PERMISSION for a node that was removed. An authenticated connection
 * that the peer opens meanwhile replaces ours, with peer_down first if ours was up.
 */
enum status net_connect(struct net *net, uint32_t peer, struct error *error) COMM_MUST_USE;

/* Drops the connection or attempt, telling the peer the cause's text. peer_down follows, not within this
 * call, if it was up. */
void net_disconnect(struct net *net, uint32_t peer, const struct error *cause);

/*
 * Whether connections to the peer, this and later ones, are kept when nothing is sent on them; otherwise the
 * transport drops them after its idle time-out. At first they are not: the mesh's heartbeats do that.
 */
void net_keep_alive(struct net *net, uint32_t peer, bool keep);

/* UNREACHABLE when not connected; LIMIT when the peer allows no further stream. The first byte sent names the
 * kind. */
enum status net_stream_open(struct net *net, uint32_t peer, enum net_stream_kind kind,
                            struct net_stream **out, struct error *error) COMM_MUST_USE;
/* The same for a user, whose share counts it until it is finished or reset. LIMIT: also beyond that share.
 * account: see net_stream_charge. */
enum status net_stream_open_for(struct net *net, uint32_t peer, enum net_stream_kind kind, uint32_t uid,
                                struct budget_account *account, struct net_stream **out,
                                struct error *error) COMM_MUST_USE;
/* Whose bytes the stream carries, in either direction: see net_set_clock. Null, at first: nobody's. The
 * stream refers to the account until it is over. */
void net_stream_charge(struct net_stream *stream, struct budget_account *account);

/*
 * Queues header (copied, at most NET_STREAM_HEADER_MAX_BYTES) and payload as the stream's next bytes. With
 * `sent`, payload stays the net's until it calls it; without (null), payload is copied before return. LIMIT,
 * and nothing queued, beyond NET_STREAM_QUEUE_MAX or NET_STREAM_COPY_MAX_BYTES; UNREACHABLE when the stream
 * is closed already (its connection lost).
 */
enum status net_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, net_sent_function *sent,
                            void *context) COMM_MUST_USE;

/*
 * Outgoing streams. finish: no more sends; what is queued is still delivered, and the net frees the stream by
 * itself afterwards. reset: what is queued is given up (its sends are done with STATUS_ABORTED, not within
 * this call) and the receiver is told. After either, the pointer is the net's: do not use it again. An
 * outgoing stream whose connection was lost stays valid until one of the two is called. Incoming streams:
 * reset asks the sender to stop, and closed follows, not within this call.
 */
void net_stream_finish(struct net_stream *stream);
void net_stream_reset(struct net_stream *stream);

/* Outgoing: how many sends wait to be sent or acknowledged, of NET_STREAM_QUEUE_MAX. */
uint32_t net_stream_queued(const struct net_stream *stream);

/* Incoming: calls receive again soon, not within this call, with what was left unconsumed. */
void net_stream_resume(struct net_stream *stream);

/*
 * Incoming: so many bytes, from the first unconsumed one on, will be consumed as they come. The sender may
 * then send them, and NET_STREAM_FIRST_WINDOW_BYTES more, up to NET_STREAM_WINDOW_BYTES at once. During
 * receive the first unconsumed byte is the first one that it was called with. What nobody has said this of
 * is left with its sender, so that it takes no memory here, and no time of the network's.
 */
void net_stream_expect(struct net_stream *stream, uint64_t size);

/* For implementations: the stream has carried so many bytes, in an event that began at now_ns; the end of an
 * event is spending_shares_end. Before a stream is freed, net_stream_charge(stream, NULL). */
static inline void net_stream_carried(struct net_stream *stream, uint64_t size, uint64_t now_ns)
{
    spending_share(&stream->net->spending, stream->account, size, now_ns);
}

/* For implementations: the offset up to which a stream may be sent. */
static inline uint64_t net_stream_limit(const struct net_stream *stream, uint64_t consumed_end,
                                        uint64_t expected_end)
{
    uint64_t ahead = expected_end > consumed_end ? expected_end - consumed_end : 0;
    uint64_t most = NET_STREAM_WINDOW_BYTES - NET_STREAM_FIRST_WINDOW_BYTES;
    bool all = stream->kind == NET_STREAM_CONTROL || ahead > most;
    return consumed_end + NET_STREAM_FIRST_WINDOW_BYTES + (all ? most : ahead);
}

void net_peer_statistics(const struct net *net, uint32_t peer, struct net_peer_statistics *out);
void net_statistics(const struct net *net, struct net_statistics *out);

#endif
