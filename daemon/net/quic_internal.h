#ifndef DAEMON_NET_QUIC_INTERNAL_H
#define DAEMON_NET_QUIC_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>
#include <ngtcp2/ngtcp2_crypto_ossl.h>

#include "daemon/base/index_table.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/sparse.h"
#include "daemon/base/table.h"
#include "daemon/base/time.h"
#include "daemon/net/net.h"
#include "daemon/net/quic.h"
#include "daemon/net/quic_address.h"
#include "daemon/net/quic_admission.h"
#include "daemon/net/quic_greeting.h"
#include "daemon/net/quic_inbox.h"
#include "daemon/net/quic_memory.h"
#include "daemon/net/quic_session.h"
#include "daemon/net/quic_socket.h"
#include "daemon/net/quic_tls.h"
#include "daemon/net/stream_intake.h"
#include "daemon/net/stream_queue.h"
#include "daemon/net/work_list.h"
#include "proto/types.h"

#if NGTCP2_VERSION_NUM < 0x011800
#error "ngtcp2 1.24 or later is needed"
#endif

/*
 * The parts of the QUIC network, shared by quic*.c alone:
 *
 * - quic.c: the endpoint: options, peers, the table of operations, statistics.
 * - quic_directory.c: finds peers by name and by address.
 * - quic_event.c: the work that an event leaves: handlers called, connections changed, packets written.
 * - quic_inbox.c: datagrams that wait because others take long: the peers take turns.
 * - quic_accept.c: datagrams of no connection: new connections, Retry, version negotiation, stateless reset.
 * - quic_connection.c: a connection's life: made, read, lost, closed, freed.
 * - quic_callbacks.c: the functions that ngtcp2 calls.
 * - quic_peer.c: which connection is a peer's: up, replaced, refused, down.
 * - quic_write.c: outgoing packets: streams in turn, batches, pauses, path MTU.
 * - quic_session.c: what outlives a connection: it is lost, dialled again, and the streams go on.
 * - quic_watch.c: notices that a connection is lost.
 * - quic_home.c: brings a connection back from a spare address.
 * - quic_greeting.c, quic_numbers.c: what two nodes tell each other about that; they do not use the files
 * above.
 * - quic_send.c, quic_receive.c: outgoing and incoming streams (stream_queue.h, stream_intake.h).
 * - quic_begin.c: the beginning of an incoming stream, which says which one it is.
 * - quic_tls.c, quic_certificate.c, quic_socket.c, quic_address.c: as named; they do not use the files above.
 *
 * Every event has two steps. First the event (datagrams, a timer, a call from outside) reads packets and
 * notes what follows from them. Then quic_settle calls handlers, makes and frees connections, and writes
 * packets. So only one handler runs within ngtcp2: net_stream_handler.receive, which gets bytes in place. And
 * nothing is freed while a caller still uses it.
 */

#define QUIC_CID_BYTES 8u                       /* of every connection ID that we choose */
#define QUIC_HANDSHAKE_TIMEOUT_NS (10 * TIME_S) /* when the options say 0 */
#define QUIC_IDLE_TIMEOUT_NS (30 * TIME_S)      /* when the options say 0 */
#define QUIC_INITIAL_RTT_NS (20 * TIME_MS) /* before the first sample: a local network, not the Internet */
#define QUIC_MAX_ACK_DELAY_NS (1 * TIME_MS)
#define QUIC_ACK_THRESHOLD 8u /* datagrams after which an acknowledgement is sent at once */
/* So many are acknowledged at once when a connection is new. Its sender may have little under way until the
 * first acknowledgements come, and each of them makes that more. */
#define QUIC_QUICK_ACKS 64u
/* The last packet of a message comes in a batch of its own, this much later. */
#define QUIC_ACK_HOLD_MIN_NS (20 * TIME_US)
/* A datagram that comes alone is mostly a part of a small operation. Its sender waits for our part, which
 * takes the acknowledgement along. */
#define QUIC_ACK_ALONE_BYTES 9000u
#define QUIC_ACK_ALONE_NS (100 * TIME_US)
#define QUIC_STREAMS_MAX NET_STREAMS_MAX /* open incoming streams of a connection */
/* Data wait until those before them had their share of the congestion window's time. After fewer bytes,
 * setting a timer would cost more than the wait. */
#define QUIC_PACE_BYTES (16u << 10)
#define QUIC_PACE_PAUSE_MAX_NS (20 * TIME_MS) /* the longest such wait */
#define QUIC_ROUND_TRIP_MOST 2u               /* latest round trips: see quic_round_trip_ns */
/* A congestion window of bytes takes this part of a round trip (RFC 9002, 7.7). */
#define QUIC_PACE_PART 0.8
#define QUIC_CONNECTION_WINDOW_BYTES                                                                         \
    (256ull * NET_STREAM_WINDOW_BYTES) /* the most that may be under way: 1 GiB */
/* Open incoming streams of which bytes have come, but not the first one. ngtcp2 keeps at least 8 KiB for
 * each. A correct peer has few, for a round trip, when packets got lost. Beyond this, the connection is
 * closed. */
#define QUIC_UNBEGUN_MAX 2048u
#define QUIC_CONTROL_RESERVE_BYTES (1ull << 20) /* of that window: only for control streams */
#define QUIC_RETRY_TOKEN_TIMEOUT_NS (10 * TIME_S)
#define QUIC_RECEIVE_DATAGRAMS 256u           /* handled as they are read, before other work gets its turn */
#define QUIC_RECEIVE_BYTES (1u << 20)         /* likewise */
#define QUIC_RECEIVE_KEPT (1u << 10)          /* datagrams read in one event while some wait in the inbox */
#define QUIC_STREAM_QUANTUM_BYTES (64u << 10) /* of one stream before the next one gets its turn */
#define QUIC_VECTORS_MAX 16u                  /* pieces of one stream offered to one packet */
#define QUIC_FLUSH_BATCHES 32u                /* batches written before other work gets its turn */
#define QUIC_CLOSE_TEXT_MAX_BYTES 256u        /* of the reason in a CONNECTION_CLOSE */
#define QUIC_CLOSE_PACKET_MAX_BYTES 1200u
#define QUIC_DATAGRAM_BYTES 1452u       /* of an Ethernet frame over IPv6 */
#define QUIC_DATAGRAM_JUMBO_BYTES 8952u /* of a 9000-byte frame over IPv6 */
#define QUIC_BLACK_HOLE_TIMEOUTS                                                                             \
    3u /* probe timeouts without an answer after which large datagrams are suspected */
#define QUIC_BLACK_HOLE_MIN_NS (250 * TIME_MS) /* and at least this long: the peer may just be busy */
#define QUIC_BLACK_HOLE_HOLD_NS (5 * TIME_S)   /* how long small datagrams are sent then; doubles each time */
#define QUIC_BLACK_HOLE_HOLD_MAX_NS (640 * TIME_S)
/* From then on, a probe is sent at least that often. ngtcp2's own wait between probes doubles each time. */
#define QUIC_HURRY_NS (100 * TIME_MS)
#define QUIC_HURRY_MAX_NS (2 * TIME_S) /* a probe that is due later is left to ngtcp2 */

struct quic_endpoint;
struct quic_connection;
struct quic_peer;

/* --- Streams --- */

/* Outgoing. */
struct quic_sender {
    struct net_stream stream; /* first: what a net_stream pointer points to */
    struct stream_queue queue;
    struct quic_endpoint *endpoint;
    struct quic_connection *connection; /* null: lost, or stopped by the receiver */
    struct quic_sender *prev, *next;    /* in the connection's list, or the endpoint's lost_senders */
    struct quic_sender *ready_prev, *ready_next;
    struct work_item work;                     /* in the endpoint's sender_work */
    int64_t id;                                /* ngtcp2's, on the present connection; -1: it has none */
    uint64_t number;                           /* in the session; the greeting has none */
    uint8_t resumption[QUIC_RESUMPTION_BYTES]; /* sent first, if the stream goes on on a new connection */
    uint8_t resumption_bytes;                  /* 0: it began on this connection */
    uint8_t resumption_sent;
    uint64_t base;       /* offset from which it goes on */
    uint64_t turn_bytes; /* sent since it became the first ready one */
    bool ready;          /* in a ready list of the connection */
    bool blocked;        /* waits for the receiver's window */
    bool shut;           /* the receiver wants no more; the stream will end */
    bool finishing;
    bool fin_sent;
};

/* Incoming. */
struct quic_receiver {
    struct net_stream stream; /* first, as above */
    struct stream_intake intake;
    struct quic_endpoint *endpoint;
    struct quic_connection *connection;
    struct quic_receiver *prev, *next; /* of the connection's */
    struct work_item work;             /* in the endpoint's receiver_work */
    int64_t id;          /* ngtcp2's, on the present connection; -1: it waits until the sender resumes it */
    uint64_t number;     /* in the session */
    uint64_t reset_code; /* with which the sender reset it */
    uint8_t beginning[QUIC_RESUMPTION_BYTES];
    uint8_t beginning_bytes;
    bool kind_known;     /* its beginning has come */
    bool early;          /* `buffer` has what came before the connection was in use */
    bool early_end;      /* likewise, and that is all */
    bool greeting;       /* it has the peer's greeting */
    bool over;           /* stopped by our side, and the handler knows; it stays until the sender knows */
    bool transport_over; /* ngtcp2 has forgotten the stream */
};

/* --- Connections --- */

/*
 * A key by which a connection is found: a connection ID that we gave the peer, or a token by which the peer's
 * host says that it has lost the connection (stateless reset).
 */
struct quic_cid {
    UT_hash_handle hh;
    struct quic_connection *connection;
    struct quic_cid *next; /* of the connection's */
    bool is_token;
    uint8_t size;
    uint8_t bytes[NGTCP2_MAX_CIDLEN];
};
_Static_assert(NGTCP2_MAX_CIDLEN >= NGTCP2_STATELESS_RESET_TOKENLEN, "both fit");

enum quic_state {
    QUIC_STATE_HANDSHAKE,
    QUIC_STATE_GREETING,  /* authenticated; the peer's greeting has not come yet */
    QUIC_STATE_UP,        /* in use for the peer, from just before peer_up */
    QUIC_STATE_SUSPENDED, /* it was in use, and is lost: it keeps the streams for the next connection */
    QUIC_STATE_CLOSED     /* closing or draining (RFC 9000, 10.2): kept to handle packets that still arrive */
};

struct quic_connection {
    struct quic_endpoint *endpoint;
    struct quic_connection *prev, *next; /* of the endpoint's */
    struct work_item work;               /* in the endpoint's connection_work */
    struct work_item flush;              /* in its flushes: it has, or may have, packets to write */
    enum quic_state state;
    bool dialled;
    bool holding;           /* it has packets to write, but delays them */
    bool authenticated;     /* both ways: will become the peer's connection */
    bool failed;            /* will be closed, for `cause` */
    bool silent;            /* close without telling the peer */
    bool closed_by_peer;    /* the peer closed it and gave the cause */
    bool process_ended;     /* the process that it led to: see net_peer_statistics */
    bool forgotten;         /* close and keep nothing: later packets belong to no connection */
    bool suspected;         /* an ICMP error came: peer_suspect will be called */
    bool greeted;           /* the peer's greeting has come */
    bool greeting_arrived;  /* the peer has ours: only then streams are sent, see quic_sender_ready */
    bool resumable;         /* failed, but its streams may go on on another connection */
    struct quic_slot slot;  /* of an incoming handshake */
    struct quic_peer *peer; /* null: incoming, not authenticated yet */
    struct quic_address remote;
    uint64_t created_ns;
    uint64_t completed_ns; /* when our side of the handshake was done */
    uint64_t authenticated_ns;
    struct loop_timer *timer;

    ngtcp2_conn *transport;     /* null once closed */
    struct quic_memory *memory; /* of the transport */
    ngtcp2_crypto_ossl_ctx *crypto;
    ngtcp2_crypto_conn_ref reference;
    SSL *tls;
    struct quic_cid *cids;

    struct quic_sender *senders;
    struct quic_sender *ready_control;
    struct quic_sender *ready_data;
    struct quic_receiver *receivers;
    uint32_t unbegun; /* see QUIC_UNBEGUN_MAX */

    struct quic_session session;      /* while it is in use or suspended */
    uint64_t early_bytes;             /* see QUIC_EARLY_MAX_BYTES */
    uint64_t greeting_id;             /* the session that our greeting names */
    struct quic_greeting greeting;    /* the peer's */
    struct quic_unresumed *unresumed; /* ascending by number */
    uint32_t unresumed_count;

    struct error refusal; /* why TLS refused the peer's certificate */
    struct error cause;
    ngtcp2_ccerr close; /* what is sent to the peer */
    char close_text[QUIC_CLOSE_TEXT_MAX_BYTES + 1];

    uint64_t armed_ns;        /* what the timer is set to */
    uint64_t ahead_ns;        /* how much ngtcp2's clock is ahead of ours: see quic_connection_hurry */
    uint64_t hurried_ns;      /* when that was last considered */
    unsigned unflushed;       /* datagrams read since packets were written */
    unsigned quick_acks;      /* datagrams that are still acknowledged at once: see QUIC_QUICK_ACKS */
    uint64_t read_ns;         /* the event in which one was last read */
    bool came_alone;          /* that one was small, and the first of its event */
    uint64_t paused_until_ns; /* data streams are: see pace */
    size_t unpaced_bytes;     /* sent since the last pause */
    size_t row_bytes;         /* sent since that was last considered */
    bool holds_long;          /* what is held waits for QUIC_ACK_ALONE_NS */
    /* When the first packet that the peer must answer was sent since one was received; 0: none. */
    uint64_t unanswered_ns;
    uint64_t answered_ns; /* when the first packet of it came; 0: none has */
    /* Where a packet of it came from last that was not the address of the peer: see quic_watch_origin. */
    struct quic_address elsewhere;
    uint64_t elsewhere_ns;   /* when; 0: never */
    uint64_t looked_ns;      /* when its streams were last looked at: see QUIC_STUCK_NS */
    uint64_t waits_since_ns; /* then: since when one of them waits for an acknowledgement; 0: none does */
    uint64_t excused_ns;     /* our own loop was late then: the peer's silence counts from there */
    uint64_t small_until_ns; /* datagrams are kept at 1200 bytes until then */
    uint64_t small_hold_ns;

    uint8_t *close_packet; /* sent again if packets still arrive */
    size_t close_packet_bytes;
    uint64_t closed_received;
};

/* What is known of a peer once it was dialled, or has sent something: most peers of a large cluster have
 * none.
 */
struct quic_contact {
    struct quic_address seen;  /* where it was when its connection was lost; size 0: unknown */
    struct quic_address spare; /* see net_set_spare; size 0: none */
    uint32_t dial_count;       /* attempts since the last session began: in turn at the two addresses */
    bool goes_home;            /* the next attempt goes to the first address, though a connection is up */
    bool closed_by_peer;       /* see net_peer_statistics */
    bool process_ended;        /* the same */
    uint64_t home_ns;          /* when it is due; 0: not known */
    uint64_t home_wait_ns;     /* before the last one; 0: there was none for long */
    uint32_t slots;            /* of incoming handshakes from this address and port */
    struct quic_line line;     /* datagrams from this address and port that wait */
    uint64_t connected_count;
    uint64_t certificate_ends_s;
    struct net_peer_statistics past; /* of connections that are over */
};

struct quic_peer {
    uint32_t index;
    bool has_address; /* otherwise the next is empty: the host is a name that is not resolved yet */
    bool outcome_due; /* net_connect was called, and peer_up or connect_failed has to follow */
    bool keep_alive;
    bool removed; /* until net_add_peer adds it again */
    struct quic_address address;
    struct quic_connection *up;
    struct quic_connection *dial;     /* our attempt, until it is up */
    struct quic_connection *greeting; /* the peer's attempt, authenticated, until it is up */
    struct work_item dialling;        /* in the endpoint's dials */
    struct quic_contact *contact;     /* null: see above; the peer of a connection has one */
    char name[];
};

/* --- The endpoint --- */

struct quic_endpoint {
    struct net base;
    struct loop *loop;
    struct loop_watch *watch;
    struct loop_timer *wake; /* runs quic_settle */
    bool wake_set;
    bool in_event;
    bool freeing;
    struct quic_socket socket;
    struct quic_inbox inbox;
    struct quic_memory_deletion *deletions; /* that threads are at */
    struct quic_line strangers;             /* datagrams from addresses of no peer that wait */
    struct quic_tls *tls;

    char node_name[NODE_NAME_MAX_BYTES + 1];
    uint32_t datagram_max_bytes;
    uint64_t handshake_timeout_ns;
    uint64_t idle_timeout_ns;
    uint64_t patience_ns;
    uint64_t connection_window_bytes;        /* QUIC_CONNECTION_WINDOW_BYTES but in tests */
    uint8_t reset_secret[QUIC_SECRET_BYTES]; /* for stateless resets: see quic_tls_reset_secret */
    uint8_t retry_secret[QUIC_SECRET_BYTES]; /* for Retry tokens: random, of this endpoint only */
    uint64_t probe_secret;                   /* random: see quic_probe.c */
    uint32_t process_id;                     /* random: the upper half of the ids of all its sessions */

    struct sparse peers; /* of struct quic_peer *: see quic_peer_of */
    uint32_t peer_count; /* the highest index, plus one */
    struct index_table peers_by_name;
    struct index_table peers_by_address;
    struct quic_cid *cids;
    struct quic_cid *last_cid; /* the connection ID of the last datagram */
    struct quic_cid *tokens;

    struct quic_connection *connections;
    struct quic_sender *lost_senders;
    struct quic_admission admission;

    /* What the next quic_settle does. */
    struct stream_done done;
    struct work_list sender_work, receiver_work, connection_work, dials, flushes;

    uint8_t *send_buffer;      /* QUIC_BATCH_MAX_BYTES */
    struct quic_batch blocked; /* in send_buffer, not yet taken by the socket; size 0: nothing */
    size_t blocked_sent_bytes;

    uint64_t now_ns; /* time of the present event, or the last */
    struct log_limit refusal_limit;
    struct log_limit garbage_limit;
    struct log_limit reset_limit; /* of stateless resets sent */
    struct log_limit loss_limit;  /* of connections that are lost and resumed */
    struct net_statistics statistics;
};

/* --- quic.c --- */

static inline struct quic_endpoint *quic_endpoint_of(struct net *net)
{
    return (struct quic_endpoint *)net;
}

/* --- quic_directory.c --- */

/* Returns the peer with that address and port. Null if there is none, or if it was removed. */
struct quic_peer *quic_peer_at(struct quic_endpoint *endpoint, const struct quic_address *address);
/* There is one with that index. */
static inline struct quic_peer *quic_peer_of(const struct quic_endpoint *endpoint, uint32_t index)
{
    return sparse_at(&endpoint->peers, index);
}
/* Returns null if no peer has that name. */
struct quic_peer *quic_peer_find(struct quic_endpoint *endpoint, const char *name);
/* Adds a peer with an index, of which it becomes the owner. ALREADY_EXISTS, NO_MEMORY: it stays the caller's.
 */
enum status quic_directory_add(struct quic_endpoint *endpoint, struct quic_peer *peer,
                               struct error *error) COMM_MUST_USE;
/* The peer has that address from now on; null: none that is known. NO_MEMORY: it has it, but is not found by
 * it. */
enum status quic_directory_move(struct quic_endpoint *endpoint, struct quic_peer *peer,
                                const struct quic_address *address, struct error *error) COMM_MUST_USE;
/* Frees all peers. */
void quic_directory_free(struct quic_endpoint *endpoint);
/* Returns the peer's contact, made if there is none. Null without memory, and for no peer. */
struct quic_contact *quic_contact_of(struct quic_peer *peer);

/* --- quic_event.c --- */

/* Does the work that the event has left. */
void quic_settle(struct quic_endpoint *endpoint, uint64_t now_ns);
/* Makes quic_settle run soon. The context is the endpoint. */
void quic_wake(void *context);
void quic_work_sender(struct quic_sender *sender);
void quic_work_receiver(struct quic_receiver *receiver);
void quic_work_connection(struct quic_connection *connection);
void quic_work_dial(struct quic_endpoint *endpoint, struct quic_peer *peer);
/* The connection may have packets to write. */
void quic_work_flush(struct quic_connection *connection);
void quic_work_forget_connection(struct quic_connection *connection);

/* The socket's and the wake-up's callbacks. */
void quic_socket_ready(void *context, unsigned events, uint64_t now_ns);
void quic_woken(void *context, uint64_t now_ns);

/* --- quic_accept.c --- */

/* --- quic_probe.c --- */

/* Whether a version is one that no endpoint speaks, for questions. */
bool quic_probe_is_reserved(uint32_t version);
bool quic_probe(struct net *net, uint32_t index);
/* A Version Negotiation packet of no connection. Returns false if it answers no probe of ours. */
bool quic_probe_answered(struct quic_endpoint *endpoint, const struct quic_datagram *datagram,
                         const ngtcp2_version_cid *ids);

/* --- quic_accept.c --- */

/* Handles a datagram of any kind, now or after those that wait. */
void quic_datagram_arrived(void *context, const struct quic_datagram *datagram);
/* Handles it now. */
void quic_datagram_received(void *context, const struct quic_datagram *datagram);

/* --- quic_connection.c --- */

/* Starts a handshake with the peer at that address; the connection becomes peer->dial. */
enum status quic_connection_dial(struct quic_endpoint *endpoint, struct quic_peer *peer,
                                 const struct quic_address *address, struct error *error) COMM_MUST_USE;
/*
 * Makes a connection for a first Initial. original is the destination connection ID from before a Retry, null
 * without one. Returns null when it cannot be made; the datagram is dropped then.
 */
struct quic_connection *quic_connection_accept(struct quic_endpoint *endpoint, const ngtcp2_pkt_hd *header,
                                               const ngtcp2_cid *original,
                                               const struct quic_datagram *datagram);
/* Returns 0, or the error that ngtcp2 returned, which is noted already. */
int quic_connection_read(struct quic_connection *connection, const struct quic_datagram *datagram);
/* The time that ngtcp2 is told for a connection; it never goes back. */
static inline uint64_t quic_transport_ns(const struct quic_connection *connection, uint64_t now_ns)
{
    return now_ns + connection->ahead_ns;
}
void quic_connection_arm(struct quic_connection *connection);
/*
 * Something is to be sent, but may wait for an eighth of a round trip (QUIC_ACK_HOLD_MIN_NS to
 * QUIC_MAX_ACK_DELAY_NS). Meanwhile an answer may take it along, or more of the same may come. After a small
 * datagram that came alone, it may wait for QUIC_ACK_ALONE_NS.
 */
void quic_connection_hold(struct quic_connection *connection);
/*
 * The smoothed round-trip time, or twice the latest one if that is less. A peer that computes (in the
 * handshake), a process that stood still, or a path that was cut leaves measurements that are up to a
 * thousand times too long. The smoothed time takes dozens of measurements to forget them (RFC 9002, 5.3), and
 * a connection that carries little makes few in minutes.
 */
uint64_t quic_round_trip_ns(const ngtcp2_conn_info *info);

void quic_connection_free(struct quic_connection *connection);
/* Frees what belongs to ngtcp2 and TLS. */
void quic_connection_dissolve(struct quic_connection *connection);
/* `node "b" (127.0.0.1:4242)`, or the address alone. Returns text. */
#define QUIC_CONNECTION_TEXT_MAX_BYTES 160
const char *quic_connection_text(const struct quic_connection *connection,
                                 char text[QUIC_CONNECTION_TEXT_MAX_BYTES]);

/* Finds a connection by connection ID, or by the token of a stateless reset. Null when there is none. */
struct quic_connection *quic_connection_find(struct quic_endpoint *endpoint, bool is_token,
                                             const uint8_t *bytes, size_t size);
/* Returns false when out of memory, or if the ID is taken already. */
bool quic_cid_add(struct quic_connection *connection, bool is_token, const uint8_t *bytes, size_t size);
void quic_cid_remove(struct quic_connection *connection, bool is_token, const uint8_t *bytes, size_t size);
void quic_cid_drop(struct quic_connection *connection, struct quic_cid *cid);

/* --- quic_close.c --- */

/* Notes that the connection will be closed, because of an ngtcp2 error. The first reason stays. */
void quic_connection_fail(struct quic_connection *connection, int failure);
/* The same for a reason of our own. The peer is sent the status and the text. */
void quic_connection_abort(struct quic_connection *connection, enum status status, const char *text);
/* Adds what the connection has sent, received and lost. */
void quic_connection_account(const struct quic_connection *connection, struct net_peer_statistics *sum);
/* Tells the peer, unless silent, and frees everything except what closing needs. Its streams must be over. */
void quic_connection_close(struct quic_connection *connection, uint64_t now_ns);

/* --- quic_callbacks.c --- */

extern const ngtcp2_callbacks quic_callbacks;
/* Makes and registers a connection ID that is not in use. Returns false when out of memory. */
bool quic_cid_new(struct quic_connection *connection, ngtcp2_cid *out, size_t size);

/* --- quic_peer.c --- */

/* Finds out which peer is at the other end of a handshake that TLS has accepted. */
enum status quic_peer_identify(struct quic_connection *connection, struct error *error) COMM_MUST_USE;
/* Applies the peer's keep_alive to its connection. */
void quic_peer_keep_alive(const struct quic_peer *peer);
/* Does what the connection's flags ask for: it becomes the peer's, or it ends. */
void quic_peer_settle(struct quic_connection *connection, uint64_t now_ns);
/* Ends the streams and sends of a connection. Handlers of incoming streams are told unless quiet. */
void quic_peer_lose_streams(struct quic_connection *connection, const struct error *cause, bool quiet,
                            uint64_t now_ns);
/* The attempt that net_connect began has failed: connect_failed. */
void quic_peer_not_reached(struct quic_endpoint *endpoint, struct quic_peer *peer, const struct error *cause,
                           uint64_t now_ns);
/* Ends an attempt, because another one takes its place. Accepts null. */
void quic_peer_drop_attempt(struct quic_connection **attempt, const char *why, uint64_t now_ns);
/* An ICMP error came for datagrams to that address. */
void quic_peer_unreachable(void *context, const struct quic_address *remote, enum quic_unreachable kind);

/* --- quic_write.c --- */

/* Whether data streams make a pause now. */
bool quic_write_pauses(const struct quic_connection *connection);
/* Writes packets of the connections in the flush list, in turn, within a budget. */
void quic_flush(struct quic_endpoint *endpoint, uint64_t now_ns);
/* The socket is writable again. */
void quic_flush_blocked(struct quic_endpoint *endpoint);
/*
 * Writes one packet outside of batches, of no connection or of one that is closing. Drops it when the socket
 * is full.
 */
void quic_write_single(struct quic_endpoint *endpoint, const struct quic_address *local,
                       const struct quic_address *remote, const uint8_t *bytes, size_t size);
/* Whether datagrams are kept small now because larger ones seem to be lost. */
bool quic_write_small(const struct quic_connection *connection);

/* --- quic_send.c --- */

enum status quic_stream_open(struct net *net, uint32_t peer, enum net_stream_kind kind,
                             struct net_stream **out, struct error *error) COMM_MUST_USE;
enum status quic_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                             const void *payload, size_t payload_bytes, net_sent_function *sent,
                             void *context) COMM_MUST_USE;
void quic_stream_finish(struct net_stream *stream);
/* Makes the sender of our greeting, of which it takes a copy. Returns false when out of memory. */
bool quic_sender_greet(struct quic_connection *connection, const uint8_t *bytes, size_t size);
/* The stream's connection is lost: it waits for the next one. */
void quic_sender_suspend(struct quic_sender *sender);
/* The peer has everything that was sent. */
void quic_sender_complete(struct quic_sender *sender);
/* The stream goes on on this connection, from that offset, to which the peer has received it. Returns false
 * when out of memory. */
bool quic_sender_resume(struct quic_sender *sender, struct quic_connection *connection, uint64_t offset);
void quic_sender_reset(struct quic_sender *sender);
/*
 * Returns the next bytes that the sender has to send: at most QUIC_VECTORS_MAX pieces and max_bytes. Returns
 * the number of pieces; *total is their size; *fin is whether the stream ends with them.
 */
size_t quic_sender_offer(const struct quic_sender *sender, uint64_t max_bytes,
                         ngtcp2_vec vectors[QUIC_VECTORS_MAX], size_t *total, bool *fin);
void quic_sender_sent(struct quic_sender *sender, size_t size, bool fin);
void quic_sender_acknowledged(struct quic_sender *sender, uint64_t offset);
/*
 * Call it when the window has grown, or there is more to send. Before the peer has our greeting, nothing else
 * is sent: the peer would acknowledge it, and forget it if the connection is lost before it is in use.
 */
void quic_sender_ready(struct quic_sender *sender);
void quic_sender_unready(struct quic_sender *sender);
/* ngtcp2 has forgotten the stream. */
void quic_sender_closed(struct quic_sender *sender);
void quic_sender_lose(struct quic_sender *sender, enum status status);
void quic_sender_work(struct quic_sender *sender);
void quic_sender_free(struct quic_sender *sender);

/* --- quic_receive.c --- */

/* Takes the next bytes from ngtcp2. Returns 0, or NGTCP2_ERR_CALLBACK_FAILURE with the connection's failure
 * noted. */
int quic_receiver_bytes(struct quic_connection *connection, struct quic_receiver *receiver, int64_t id,
                        const uint8_t *bytes, size_t size, bool end);
/* Makes the receiver of a stream of which something has come. Returns null when out of memory. */
struct quic_receiver *quic_receiver_new(struct quic_connection *connection, int64_t id);
/* Takes what came before the connection was in use. */
void quic_receiver_take_early(struct quic_receiver *receiver);
/* The bytes were consumed by this room itself. */
void quic_receiver_consumed(struct quic_receiver *receiver, size_t size);
void quic_receiver_reset_received(struct quic_receiver *receiver, uint64_t code);
void quic_receiver_transport_over(struct quic_receiver *receiver);
void quic_receiver_stop(struct quic_receiver *receiver);
void quic_stream_resume(struct net_stream *stream);
void quic_stream_expect(struct net_stream *stream, uint64_t size);
void quic_receiver_work(struct quic_receiver *receiver, uint64_t now_ns);
/* Calls `closed`, unless quiet or `receive` was never called, and frees. */
void quic_receiver_close(struct quic_receiver *receiver, const struct error *cause, bool quiet,
                         uint64_t now_ns);

/* --- quic_begin.c --- */

/*
 * Takes the next bytes of a stream's beginning, and returns how many they were, at most `size`. If the
 * beginning is complete, kind_known is set. If the stream goes on from another connection, *receiver becomes
 * the one that waits for it. Returns -1, with the failure noted, for a beginning that no correct peer sends.
 */
ptrdiff_t quic_begin_take(struct quic_receiver **receiver, const uint8_t *bytes, size_t size);
/* Counts bytes that come before the connection is in use. Returns false, with the failure noted, for too
 * many. */
bool quic_begin_early(struct quic_connection *connection, size_t size);
/* Takes the bytes of the peer's greeting. Returns false with the failure noted. */
bool quic_begin_greeting(struct quic_receiver *receiver, const uint8_t *bytes, size_t size);

#endif
