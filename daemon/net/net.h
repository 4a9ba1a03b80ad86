#ifndef DAEMON_NET_NET_H
#define DAEMON_NET_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/base/fair.h"
#include "daemon/base/spending.h"

/*
 * The transport between nodes: an interface, and quic.h, which implements it with ngtcp2. Tests have another
 * implementation, of ideal pipes in memory (tests/network).
 *
 * A `net` is one node's endpoint. Peers are the other nodes of the configuration. They are known by index
 * (0-based, in the order of net_add_peer) and by name. There is at most one authenticated connection to each
 * peer. On a connection, streams carry ordered bytes one way, from the node that opened them. Each stream has
 * a kind, which decides which handler receives it.
 *
 * A connection here outlives what it is made of: if the path fails for a while, or an address changes, the
 * implementation may replace what lies below, and the streams go on, with every byte handed out once.
 * peer_down means that this was not possible within its patience, that the peer gave a reason, or that it was
 * restarted.
 *
 * A node that is alone has no net: the pointer is null. Null is accepted by net_set_peer_handler,
 * net_set_stream_handler, net_free, net_add_peer (UNREACHABLE) and net_statistics (all 0). Without peers,
 * nothing else is called.
 *
 * Single-threaded: a net is used only on its loop's thread. Handlers are called on that thread and may call
 * back into the net, but not net_free.
 */
struct net;
struct net_stream;

#define NET_PEERS_MAX 16384
#define NET_PEER_ANY UINT32_MAX
#define NET_STREAM_HEADER_MAX_BYTES 80
#define NET_STREAM_QUEUE_MAX 4096            /* messages of a stream that are not yet acknowledged */
#define NET_STREAM_COPY_MAX_BYTES (4u << 20) /* bytes of one stream that the net holds copies of */
#define NET_STREAM_WINDOW_BYTES (4u << 20)   /* bytes of one stream that may be under way */
/* Bytes of one stream that may arrive before its receiver asks for more: see net_stream_expect. A handler may
 * leave that many unconsumed; for control streams, NET_STREAM_WINDOW_BYTES. */
#define NET_STREAM_FIRST_WINDOW_BYTES (128u << 10)

enum net_stream_kind {
    NET_STREAM_CONTROL = 1, /* mesh: framed protobuf messages */
    NET_STREAM_DATA = 2,    /* exec: data headers and payloads */
    NET_STREAM_MESSAGE = 3, /* p2p: messages from rank to rank */
    NET_STREAM_TUNNEL = 4   /* bulk links: their frames while they have no connection of their own (tls.h) */
};
#define NET_STREAM_KIND_COUNT 5 /* arrays indexed by kind */

/* Reports connections to daemon/mesh. Each peer_up is followed by exactly one peer_down before the next
 * peer_up. */
struct net_peer_handler {
    void *context;
    /* The connection is authenticated both ways and ready for streams. */
    void (*peer_up)(void *context, uint32_t peer, uint64_t now_ns);
    /*
     * The connection has ended, for the given reason (NODE_LOST, CERTIFICATE, PROTOCOL, SHUTTING_DOWN, …).
     * Before this call all its streams were closed, and all sends on them had ended.
     */
    void (*peer_down)(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns);
    /* net_connect failed before peer_up (UNREACHABLE, CERTIFICATE, TIMED_OUT). No attempt is under way any
     * more. */
    void (*connect_failed)(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns);
    /*
     * The peer's host reports that no process listens there any more (an ICMP error). The error may be
     * forged, so probe the peer at once, but do not give it up. May be null.
     */
    void (*peer_suspect)(void *context, uint32_t peer, uint64_t now_ns);
    /*
     * Some process answered net_probe at the peer's address. It has proved nothing, so only dial it. May be
     * null.
     */
    void (*peer_answers)(void *context, uint32_t peer, uint64_t now_ns);
    /*
     * The peer was asked by net_probe, and its host reports that no process listens there. There is neither a
     * connection nor an attempt. The error may be forged. May be null.
     */
    void (*peer_refuses)(void *context, uint32_t peer, uint64_t now_ns);
};

/* Handles incoming streams of one kind. */
struct net_stream_handler {
    void *context;
    /*
     * Gets the next bytes of a stream, directly from the decrypted packet or from the bytes left unconsumed.
     * Returns how many bytes it consumed. The net keeps the rest, up to the stream's window; the sender has
     * to wait meanwhile. After net_stream_resume, receive gets the rest again, with what has arrived since.
     * `end`: no byte follows `bytes`; the stream closes once all are consumed. size may be 0 when end is
     * true. `bytes` needs no alignment and is valid only during the call.
     */
    size_t (*receive)(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size, bool end,
                      uint64_t now_ns);
    /*
     * The stream is over: it ended and was consumed (cause null), the sender reset it, or its connection was
     * lost. The pointer is invalid after this call. Called exactly once for each stream for which receive was
     * called.
     */
    void (*closed)(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns);
    /* More bytes arrived after those that receive left unconsumed. `bytes` are all that the net keeps; valid
     * only during the call. May be null. */
    void (*kept)(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                 uint64_t now_ns);
};

/*
 * Reports the end of one send. STATUS_OK: the peer's net has every byte, and has handed it out or keeps it,
 * so the payload may change. This is the receiver's receipt: a connection that replaces this one never needs
 * the bytes again. Any other result: the stream or its connection is gone. Called exactly once per send,
 * never from within net_stream_send.
 */
typedef void net_sent_function(void *context, enum status result, uint64_t now_ns);

struct net_peer_statistics {
    bool up;
    uint64_t round_trip_ns; /* smoothed; 0 when unknown */
    uint64_t sent_bytes;    /* those of the bulk link included */
    uint64_t received_bytes;
    uint64_t sent_packets;
    uint64_t received_packets;
    uint64_t lost_packets;
    uint64_t lost_bytes;      /* in lost packets; their data is sent again */
    uint32_t datagram_bytes;  /* the largest datagram that the path is known to carry */
    uint64_t connected_count; /* how often peer_up was called */
    uint64_t resumed_count;   /* how often the streams went on after a connection was lost */
    bool waits;               /* up, but its connection is lost, and another one is dialled */
    bool unresolved;          /* its address has a name, which is not resolved: it cannot be dialled */
    bool closed_by_peer;      /* the peer ended the last closed connection and gave the cause */
    /* That connection's peer has said goodbye, or has proved to be another process; or the last attempt
     * failed because its host said that nobody listens. */
    bool process_ended;
    /* When the peer's certificate for its present or last connection expires, in seconds since 1970; 0: not
     * known. */
    uint64_t certificate_ends_s;
};

struct net_statistics {
    uint64_t received_datagrams;
    uint64_t dropped_datagrams; /* not QUIC, of no connection of ours, or too many */
    uint64_t refused_handshakes;
    uint64_t certificate_ends_s; /* when ours expires, in seconds since 1970; 0: there is none */
};

/* What an implementation provides. Callers use the functions below instead. */
struct net_stream_operations {
    enum status (*send)(struct net_stream *stream, const void *header, size_t header_bytes,
                        const void *payload, size_t payload_bytes, net_sent_function *sent, void *context);
    void (*finish)(struct net_stream *stream);
    void (*reset)(struct net_stream *stream);
    void (*resume)(struct net_stream *stream);
    void (*expect)(struct net_stream *stream, uint64_t size);
};

struct net_operations {
    void (*free)(struct net *net);
    /* *peer: the wanted index, or NET_PEER_ANY; then the one that the peer has got. */
    enum status (*add_peer)(struct net *net, const char *name, const char *address, uint32_t *peer,
                            struct error *error);
    void (*remove_peer)(struct net *net, uint32_t peer, const struct error *cause);
    enum status (*move_peer)(struct net *net, uint32_t peer, const char *address, struct error *error);
    void (*set_spare)(struct net *net, uint32_t peer, const char *address); /* null: spares are not used */
    enum status (*connect)(struct net *net, uint32_t peer, struct error *error);
    void (*disconnect)(struct net *net, uint32_t peer, const struct error *cause);
    void (*keep_alive)(struct net *net, uint32_t peer, bool keep); /* null: connections stay anyway */
    bool (*probe)(struct net *net, uint32_t peer);                 /* null: there are no probes */
    enum status (*stream_open)(struct net *net, uint32_t peer, enum net_stream_kind kind,
                               struct net_stream **out, struct error *error);
    struct net_stream_operations streams;
    void (*peer_statistics)(const struct net *net, uint32_t peer, struct net_peer_statistics *out);
    void (*statistics)(const struct net *net, struct net_statistics *out);
};

/*
 * Counts, for one peer, the open streams that were opened for users. All users of two nodes share the
 * NET_STREAMS_MAX streams of one connection. A user may have open at most NET_STREAMS_SHARE times as many as
 * are free. So a user alone gets three quarters, and a new user finds some free. Users map to lines as in
 * daemon/base/fair.h.
 */
#define NET_STREAMS_MAX 65536u /* open streams of a connection, in each direction */
#define NET_STREAMS_SHARE 3u

struct net_users_streams {
    uint32_t count;
    uint32_t of_line[FAIR_LINES];
};

/* The first member of every implementation's endpoint and stream struct; zero at first. */
struct stream_parking;
struct stream_queue;

struct net {
    const struct net_operations *operations;
    struct net_bulk *bulk;                    /* bulk.h; null: bulk data has no links of its own */
    struct net_users_streams **users_streams; /* by peer; null: none was opened */
    uint32_t users_peers;
    struct net_peer_handler peer_handler;
    struct net_stream_handler stream_handlers[NET_STREAM_KIND_COUNT];
    struct spending_shares spending;
    struct stream_parking *parking; /* see net_set_parking */
    const char *farewell;           /* see net_set_farewell */
};

struct net_stream {
    struct net *net;
    const struct stream_queue *queue; /* outgoing: its messages (stream_queue.h) */
    uint32_t peer;
    enum net_stream_kind kind;
    bool incoming;                  /* the peer opened it */
    bool on_bulk;                   /* a bulk link carries it, not a connection of the net */
    uint32_t users_line;            /* line of the user it was opened for, plus 1; 0: nobody */
    struct budget_account *account; /* see net_stream_charge */
    void *user; /* belongs to the stream handler (incoming) or opener (outgoing); null at first */
};

/* Handlers are set once, before the first net_add_peer. */
void net_set_peer_handler(struct net *net, const struct net_peer_handler *handler);
void net_set_stream_handler(struct net *net, enum net_stream_kind kind,
                            const struct net_stream_handler *handler);

/*
 * Charges the processor time of network events, decryption and handlers included, to the accounts of streams,
 * in proportion to their bytes. With a null clock, the default, nothing is charged. A null net is accepted.
 */
void net_set_clock(struct net *net, uint64_t (*clock)(void));

/*
 * Makes several threads of a node share one limit for what parked streams may keep (stream_reader.h). Call it
 * before anything arrives; `parking` outlives the net's readers. With null, the default, each reader has a
 * limit of its own. A null net is accepted.
 */
void net_set_parking(struct net *net, struct stream_parking *parking);

/* Closes every connection and notifies the peers, ends every send, and frees. Of the handlers, only `sent` is
 * still called. */
void net_free(struct net *net);

/* Sets the reason that peers get when net_free ends their connections. The caller keeps the text. Null, as at
 * the start: "node NAME is shutting down". */
void net_set_farewell(struct net *net, const char *text);

/*
 * Makes a node known, so that it may connect to us and we to it. address: "host:port" or "[v6]:port". Nothing
 * is resolved here: if the host is a name, net_connect fails with UNREACHABLE until net_move_peer gives the
 * node an IP address. LIMIT beyond NET_PEERS_MAX, ALREADY_EXISTS for a known name, INVALID_ARGUMENT for an
 * address that does not parse. A node that was removed gets its index back.
 */
enum status net_add_peer(struct net *net, const char *name, const char *address, uint32_t *peer,
                         struct error *error) COMM_MUST_USE;

/*
 * As net_add_peer, for a peer that has this index, below NET_PEERS_MAX. So the nets of several rails use the
 * same indices, and each knows only the peers that it needs. No call may name an index without a peer.
 * ALREADY_EXISTS if another peer has the index.
 */
enum status net_add_peer_at(struct net *net, const char *name, const char *address, uint32_t peer,
                            struct error *error) COMM_MUST_USE;

/*
 * Makes a node unknown: no connection to or from it is made any more. A present connection ends as by
 * net_disconnect. The index stays reserved for net_add_peer of the same name.
 */
void net_remove_peer(struct net *net, uint32_t peer, const struct error *cause);

/*
 * Changes the address of a known node, for connections dialled from now on. A present connection stays. An
 * attempt under way is cancelled, and no handler is called for it. INVALID_ARGUMENT for an address that does
 * not parse: the old one stays.
 */
enum status net_move_peer(struct net *net, uint32_t peer, const char *address,
                          struct error *error) COMM_MUST_USE;

/*
 * Says at which other address a known node can be reached, for example that of another network card. It is
 * dialled in turn with the first one, until there is a connection. So a session whose path fails goes on over
 * the other one. "", a name, or what does not parse: none, as at first. net_move_peer does not change it.
 */
void net_set_spare(struct net *net, uint32_t peer, const char *address);

/*
 * Starts one attempt to connect. Its outcome is peer_up or connect_failed, never from within this call. Does
 * nothing when connected or connecting. PERMISSION for a node that was removed. If the peer opens an
 * authenticated connection meanwhile, that one replaces ours. If ours was up, its streams go on, or peer_down
 * comes first.
 */
enum status net_connect(struct net *net, uint32_t peer, struct error *error) COMM_MUST_USE;

/* Drops the connection or attempt and sends the cause's text to the peer. If the connection was up, peer_down
 * follows, not within this call. */
void net_disconnect(struct net *net, uint32_t peer, const struct error *cause);

/*
 * Sets whether this and later connections to the peer stay open when nothing is sent on them. Otherwise the
 * transport drops them after its idle time-out. The default is false: the mesh's heartbeats keep its
 * connections open.
 */
void net_keep_alive(struct net *net, uint32_t peer, bool keep);

/*
 * Asks whether a process listens at the peer's address: one datagram, a hundredth of the processor time of an
 * attempt to connect, and no state. peer_answers follows, or peer_refuses, or nothing, and not from within
 * this call. Returns false if the peer cannot be asked: its name is not resolved, or this net has no probes.
 */
bool net_probe(struct net *net, uint32_t peer);

/* UNREACHABLE when not connected; LIMIT when the peer allows no further stream. The first byte that is sent
 * tells the peer the kind. */
enum status net_stream_open(struct net *net, uint32_t peer, enum net_stream_kind kind,
                            struct net_stream **out, struct error *error) COMM_MUST_USE;
/* As net_stream_open, for a user. The stream counts in that user's share until it is finished or reset. LIMIT
 * also when the share is used up. account: see net_stream_charge. */
enum status net_stream_open_for(struct net *net, uint32_t peer, enum net_stream_kind kind, uint32_t uid,
                                struct budget_account *account, struct net_stream **out,
                                struct error *error) COMM_MUST_USE;
/*
 * As net_stream_open_for, on the peer's bulk link (bulk.h). Everything said of streams holds for it, too.
 * UNREACHABLE if there is no such link now: use net_stream_open_for.
 */
enum status net_stream_open_bulk(struct net *net, uint32_t peer, enum net_stream_kind kind, uint32_t uid,
                                 struct budget_account *account, struct net_stream **out,
                                 struct error *error) COMM_MUST_USE;
/* Sets the account to which the stream's bytes, in either direction, are charged: see net_set_clock. Null,
 * the default: no account. The stream holds a reference to the account until it is over. */
void net_stream_charge(struct net_stream *stream, struct budget_account *account);

/*
 * Queues header (copied, at most NET_STREAM_HEADER_MAX_BYTES) and payload as the stream's next bytes. If
 * `sent` is not null, the payload belongs to the net until `sent` is called. If `sent` is null, the payload
 * is copied before the call returns. LIMIT, with nothing queued, beyond NET_STREAM_QUEUE_MAX or
 * NET_STREAM_COPY_MAX_BYTES. UNREACHABLE if the stream is closed already (its connection was lost).
 * NO_MEMORY.
 */
enum status net_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, net_sent_function *sent,
                            void *context) COMM_MUST_USE;

/*
 * Outgoing streams. finish: no more sends follow. What is queued is still delivered; then the net frees the
 * stream. reset: what is queued is dropped, and the receiver is notified. The dropped sends end with
 * STATUS_ABORTED, not within this call. After either call, do not use the pointer again. If its connection is
 * lost, an outgoing stream stays valid until one of the two is called.
 *
 * Incoming streams: reset asks the sender to stop, and closed follows, not within this call.
 */
void net_stream_finish(struct net_stream *stream);
void net_stream_reset(struct net_stream *stream);

/* Outgoing: how many sends are not yet acknowledged, of NET_STREAM_QUEUE_MAX. */
uint32_t net_stream_queued(const struct net_stream *stream);
/* Outgoing: how many bytes the net holds copies of, of NET_STREAM_COPY_MAX_BYTES. */
size_t net_stream_copied(const struct net_stream *stream);

/* Incoming: calls receive again soon, not within this call, with the bytes left unconsumed. */
void net_stream_resume(struct net_stream *stream);

/*
 * Incoming: the handler will consume `size` bytes, from the first unconsumed one on, as they arrive. The
 * sender may then send them and NET_STREAM_FIRST_WINDOW_BYTES more, up to NET_STREAM_WINDOW_BYTES at once.
 * During receive, the first unconsumed byte is the first one of that call. The sender keeps bytes that no
 * handler expects, so that they take no memory and no network time here.
 */
void net_stream_expect(struct net_stream *stream, uint64_t size);

/*
 * For implementations: the stream has carried `size` bytes in an event that began at now_ns. Call
 * spending_shares_end at the end of the event. Before a stream is freed, call net_stream_charge(stream,
 * NULL).
 */
static inline void net_stream_carried(struct net_stream *stream, uint64_t size, uint64_t now_ns)
{
    spending_share(&stream->net->spending, stream->account, size, now_ns);
}

/* For implementations: the offset up to which the sender may send. */
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
