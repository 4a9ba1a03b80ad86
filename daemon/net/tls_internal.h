#ifndef DAEMON_NET_TLS_INTERNAL_H
#define DAEMON_NET_TLS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/backoff.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/sparse.h"
#include "daemon/base/table.h"
#include "daemon/base/time.h"
#include "daemon/net/bulk.h"
#include "daemon/net/quic_address.h"
#include "daemon/net/quic_numbers.h"
#include "daemon/net/stream_intake.h"
#include "daemon/net/stream_queue.h"
#include "daemon/net/tls.h"
#include "daemon/net/tls_choice.h"
#include "daemon/net/tls_frame.h"
#include "daemon/net/work_list.h"
#include "proto/types.h"

/*
 * The parts of the bulk links, shared by tls*.c alone:
 *
 * - tls.c: the endpoint: options, the table of operations, statistics.
 * - tls_event.c: the work that an event leaves: handlers called, streams freed, frames written; time.
 * - tls_peer.c: a link's session: which carrier it is on, greetings, what incoming frames mean.
 * - tls_resume.c: the streams of a link go on on another carrier.
 * - tls_send.c, tls_receive.c: outgoing and incoming streams.
 * - tls_compose.c: which frames are sent next.
 * - tls_connection.c, tls_write.c: a TCP connection, and how frames are written to it.
 * - tls_listen.c: connections that are accepted and dialled.
 * - tls_tunnel.c: the carrier over the net's connection.
 * - tls_frame.c, tls_choice.c, tls_socket.c: as named; they do not use the files above.
 *
 * A link's frames travel on one of two carriers: its TCP connection, or else two streams of the net's
 * connection, the tunnel. A change of carrier begins an epoch. A node that begins one stops reading the old
 * carrier, and sends a greeting with the epoch's number on the new one; the other node does the same when it
 * gets that. Each greeting says how much of each stream its sender has received, and the streams go on from
 * there. So each byte is handed out once. New streams are opened only while the carrier is TCP.
 *
 * Events work as in quic_internal.h: an event notes what follows, and tls_settle does it.
 */

#define TLS_RECORD_BYTES 16384u            /* the most plain text that a record has (RFC 8446, 5.1) */
#define TLS_TUNNEL_CHUNK_BYTES (64u << 10) /* of a message on the tunnel */
#define TLS_TUNNEL_AHEAD_BYTES (1u << 20)  /* on the tunnel and not acknowledged */
#define TLS_RECEIPT_NS (60 * TIME_US)      /* receipts wait so long for data that go the same way, */
#define TLS_RECEIPT_BYTES (128u << 10)     /* unless they are for so many bytes */
#define TLS_CREDIT_LEAST_BYTES (80u << 10) /* with so much left, a sender can send a message of 64 KiB */
#define TLS_HANDSHAKE_NS (5 * TIME_S)
#define TLS_HANDSHAKES_MAX 64u      /* incoming connections that are not authenticated yet */
#define TLS_LIVELY_NS (1 * TIME_MS) /* a connection that carries nothing for so long is not polled */
#define TLS_POLLED_MAX 16u          /* connections, in one poll; the rest come next */
#define TLS_READ_RECORDS 64u        /* read before other work gets its turn */
#define TLS_WRITE_BYTES (4u << 20)  /* likewise written */
/* Of records that one system call writes: a message of 64 KiB and its headers. Measured at MTU 1500: with
 * half or twice as much, transfers from 512 KiB on take 1.1 to 1.3 of the time. */
#define TLS_BATCH_BYTES (66u << 10)
/* One system call reads so much. */
#define TLS_READ_AHEAD_BYTES (2u * TLS_BATCH_BYTES)
/* The kernel takes so much beyond what is under way. */
#define TLS_NOT_SENT_BYTES (1u << 20)
/* So much is sent under one key. */
#define TLS_KEY_BYTES (64ull << 30)
#define TLS_DIAL_MIN_NS (500 * TIME_MS)
#define TLS_DIAL_MAX_NS (300 * TIME_S)
/* How long a link that was too slow gets no connection; doubles each time. */
#define TLS_HELD_MIN_NS (2 * TIME_S)
#define TLS_HELD_MAX_NS (600 * TIME_S)
#define TLS_HELD_FORGET_BYTES (1ull << 30) /* after so many bytes, a link counts as good again */
/* A connection is given up if less than the least arrives within a second, although more was sent, or if
 * nothing of some stream arrives for TLS_STUCK_NS. */
#define TLS_STUCK_NS (1500 * TIME_MS)
#define TLS_SLOW_NS (1 * TIME_S)
#define TLS_SLOW_LOOK_NS (250 * TIME_MS)
#define TLS_SLOW_LEAST_BYTES (256u << 10)
#define TLS_SLOW_PARTS 16u /* or less than this part of the rate of the net's connection */
#define TLS_WAY_NONE 2u
#define TLS_SMALL_DATAGRAM_BYTES 4096u /* smaller ones are small */
#define TLS_SMALL_FIRST 256u /* by then, the size of datagrams is known. See net_bulk_choose_small */
#define TLS_EPOCH_STEPS_MAX 1024u
#define TLS_EPOCHS_MAX 256u /* that a peer may begin at once; then TLS_EPOCH_NS for each */
#define TLS_EPOCH_NS (50 * TIME_MS)
#define TLS_TUNNEL_MAX_BYTES (16u << 20) /* greetings included */
#define TLS_STREAMS_MAX NET_STREAMS_MAX

struct tls_endpoint;
struct tls_peer;
struct tls_connection;
typedef struct ssl_st SSL;

/* --- Streams --- */

/* Outgoing. */
struct tls_sender {
    struct net_stream stream; /* first: what a net_stream pointer points to */
    struct stream_queue queue;
    UT_hash_handle hh; /* of the peer's, by number */
    struct tls_endpoint *endpoint;
    struct tls_peer *peer;          /* null: lost, or stopped by the receiver */
    struct tls_sender *prev, *next; /* in the endpoint's lost_senders */
    struct tls_sender *ready_prev, *ready_next;
    struct work_item work; /* in the endpoint's sender_work */
    uint64_t number;
    uint64_t granted_end; /* what the receiver allows */
    bool ready;
    bool finishing;
    bool fin_sent;     /* on the present carrier */
    bool fin_was_sent; /* on any carrier: the receiver may know the end */
};

/* Incoming. */
struct tls_receiver {
    struct net_stream stream; /* first, as above */
    struct stream_intake intake;
    UT_hash_handle hh; /* of the peer's, by number */
    struct tls_endpoint *endpoint;
    struct tls_peer *peer;
    struct tls_receiver *due_prev, *due_next; /* in the peer's list: it owes frames */
    struct work_item work;                    /* in the endpoint's receiver_work */
    uint64_t number;
    uint64_t told_end; /* the end that the sender was told last; it may have been granted more since */
    bool is_due;       /* in the due list, for any of these: */
    bool owes_receipt, owes_credit, owes_stop;
    bool gone; /* the sender has nothing more to say of it */
    bool over; /* stopped, and the handler knows; it stays until the sender knows */
};

/* --- Carriers --- */

/* Reads the frames that come on one carrier. */
struct tls_reader {
    struct tls_frame_reader frames;
    struct tls_peer *peer;
    struct tls_connection *connection; /* null: the tunnel */
    uint8_t *body;                     /* of a greeting */
};

enum tls_state { TLS_STATE_CONNECTING, TLS_STATE_HANDSHAKE, TLS_STATE_OPEN, TLS_STATE_FAILED };

struct tls_connection {
    struct tls_endpoint *endpoint;
    struct tls_connection *prev, *next;
    struct work_item work;       /* in the endpoint's connection_work: it failed, or has more to read */
    struct work_item liveliness; /* in the endpoint's list `lively` */
    uint64_t carried_ns;         /* when bytes of it were last read or written */
    struct tls_peer *peer;       /* null: incoming, not authenticated yet */
    enum tls_state state;
    int fd;
    bool dialled;
    bool greeted;         /* the peer's greeting has come */
    bool blocked;         /* the socket takes no more now */
    bool timed_out;       /* the kernel gave up, because what was sent was not acknowledged */
    bool more;            /* bytes wait within TLS: the descriptor does not say so */
    bool batches;         /* one system call reads several records, as many as there are */
    uint64_t deadline_ns; /* of connecting, handshake and greeting; TIME_NEVER afterwards */
    uint64_t key_bytes;   /* sent under the present key */
    SSL *tls;
    struct loop_watch *watch;
    struct error refusal; /* why TLS refused the peer's certificate */
    struct error cause;
    struct tls_reader reader;

    /* What is being written, in this order: the stage, the blob, the rest of a frame from the stream's own
     * memory. */
    uint8_t stage[TLS_RECORD_BYTES];
    size_t stage_bytes, stage_done;
    uint8_t *blob; /* a greeting, or the rest of a frame whose stream is gone */
    size_t blob_bytes, blob_done;
    struct tls_sender *frame_sender; /* null: no frame of data is begun */
    size_t frame_left;
    bool frame_end;
};

/* A message on the tunnel. */
struct tls_chunk {
    struct tls_chunk *prev, *next;
    struct tls_endpoint *endpoint; /* null: it is gone */
    struct tls_peer *peer;
    size_t size;
    uint8_t bytes[];
};

struct tls_session {
    uint64_t own_id;
    uint64_t peer_id; /* 0: not known yet */
    uint64_t next_number;
    struct quic_numbers seen;
};

struct tls_peer {
    struct tls_endpoint *endpoint;
    uint32_t index;
    char name[NODE_NAME_MAX_BYTES + 1];
    bool is_up;
    bool failed; /* the net's connection will end: nothing more is taken */
    bool allowed;
    bool leads;               /* our name sorts first: we dial */
    struct work_item flush;   /* in the endpoint's flushes */
    struct work_item receipt; /* in the endpoint's receipts */
    size_t unreceipted_bytes; /* received since receipts were sent last */

    struct tls_session session;
    uint64_t epoch;                    /* 0: no session */
    struct log_limit epochs;           /* that the peer may begin */
    struct tls_connection *connection; /* the epoch's carrier; null: the tunnel */
    struct tls_connection *attempt;    /* a connection that may become the carrier */
    bool greeted;                      /* the peer's greeting of this epoch has come */

    struct net_stream *tunnel; /* outgoing; null: not opened */
    size_t tunnel_bytes;       /* not acknowledged */
    struct net_stream *tunnel_in;
    struct tls_reader tunnel_reader;

    struct tls_sender *senders; /* by number */
    struct tls_sender *ready;
    struct tls_receiver *receivers; /* by number */
    struct tls_receiver *due;
    uint64_t *resets; /* numbers of streams that were reset, to be told */
    uint32_t reset_count, reset_capacity;

    struct backoff dial;
    uint64_t held_ns; /* none is dialled or accepted before, as the last one was too slow */
    uint64_t hold_ns; /* the present length */
    uint64_t good_bytes;
    struct tls_choice choice;
    uint32_t small_asked; /* how often net_bulk_choose_small was asked, up to TLS_SMALL_FIRST */
    unsigned told_way;    /* what the peer was told last, if we dial; TLS_WAY_NONE: nothing on this carrier */
    bool way_due;
    unsigned asked_way; /* what the peer, which dials, does: we do the same. TLS_WAY_NONE: not known */
    /* See TLS_SLOW_NS: */
    uint64_t under_way_bytes; /* sent on this epoch's carrier, not receipted */
    uint64_t receipted_bytes;
    uint64_t looked_bytes;
    uint64_t slow_since_ns; /* 0: nothing waits for a receipt */
    uint64_t sent_bytes, received_bytes;
    uint64_t connected_count, lost_count;
    char why[128];
};

struct tls_endpoint {
    struct net_bulk base;
    struct loop *loop;
    enum net_bulk_mode mode;
    uint32_t processors;
    const char *node_name;
    int listener;
    struct loop_watch *listen_watch;
    struct loop_timer *wake; /* runs tls_settle */
    struct loop_timer *tick; /* deadlines */
    bool wake_set;
    bool in_event;
    bool freeing;
    struct random random;
    struct sparse peers; /* of struct tls_peer *, by the net's index; null: never connected */
    struct tls_connection *connections;
    uint32_t handshakes; /* incoming, not authenticated yet */
    struct tls_sender *lost_senders;
    struct tls_chunk *chunks;
    struct stream_done done;
    uint32_t watched; /* connections with a deadline, and peers with bytes under way */
    struct work_list sender_work, receiver_work, connection_work, flushes;
    struct work_list receipts; /* peers that are owed nothing but receipts */
    uint64_t receipts_ns;      /* when these leave; TIME_NEVER: there are none */
    struct work_list lively;   /* connections that net_bulk_poll reads */
    uint64_t tick_ns;          /* what the timer is set to */
    uint64_t redial_ns;        /* when some node may be dialled again */
    uint8_t *read_buffer;      /* TLS_RECORD_BYTES */
    uint64_t now_ns;
    struct log_limit refusal_limit, loss_limit;
};

static inline struct tls_endpoint *tls_endpoint_of(struct net_bulk *bulk)
{
    return (struct tls_endpoint *)bulk;
}

/* --- tls.c --- */

/* Returns null if the node was never connected. */
struct tls_peer *tls_peer_at(const struct tls_endpoint *endpoint, uint32_t index);

/* --- tls_event.c --- */

/* The context is the endpoint. */
void tls_wake(void *context);
void tls_settle(struct tls_endpoint *endpoint, uint64_t now_ns);
void tls_woken(void *context, uint64_t now_ns);
void tls_ticked(void *context, uint64_t now_ns);
void tls_work_sender(struct tls_sender *sender);
void tls_work_receiver(struct tls_receiver *receiver);
void tls_work_connection(struct tls_connection *connection);
void tls_work_flush(struct tls_peer *peer);
/* The peer is owed a receipt. It leaves with the next data, or soon. */
void tls_work_receipt(struct tls_peer *peer);
/* Sets the timer of deadlines. */
void tls_arm(struct tls_endpoint *endpoint);

/* --- tls_peer.c --- */

/* Takes bytes from a carrier. Returns false if the carrier is to be read no more. */
bool tls_reader_take(struct tls_reader *reader, const uint8_t *bytes, size_t size);
void tls_reader_clear(struct tls_reader *reader);
/* Begins a session, if there is none, so that a link can be made. */
void tls_peer_begin(struct tls_peer *peer);
/* Begins an epoch on that connection, or on the tunnel: null. */
void tls_peer_switch(struct tls_peer *peer, struct tls_connection *connection, uint64_t epoch);
/* The connection is lost, or no good: the streams go on on the tunnel. */
void tls_peer_abandon(struct tls_peer *peer, const char *why);
/* The link has no carrier any more. If it has streams, the net's connection ends. */
void tls_peer_give_up(struct tls_peer *peer);
/* Whether the link's streams can move now, and whether on a connection of its own. */
bool tls_peer_flows(const struct tls_peer *peer);
bool tls_peer_is_connected(const struct tls_peer *peer);
/* The peer sent what no correct peer sends: the net's connection to it ends. */
void tls_peer_offends(struct tls_peer *peer, const char *what);
/* The same for a reason of our own. */
void tls_peer_fail(struct tls_peer *peer, enum status status, const char *text);
/* The net's connection is lost, and with it the session. quiet: no handler is told. */
void tls_peer_down(struct tls_peer *peer, const struct error *cause, bool quiet, uint64_t now_ns);

/* --- tls_resume.c --- */

/* The encoded greeting behind its frame's header; null without memory. The caller frees it. */
uint8_t *tls_greeting_make(struct tls_peer *peer, size_t *size);
/*
 * Whether the greeting is of the present session. On TCP it may be late, and of one that is over. It may also
 * be early: before the peer's first greeting, which travels on the tunnel.
 */
bool tls_greeting_is_ours(const struct tls_peer *peer, const uint8_t *bytes, size_t size);
/* The peer's greeting of this epoch has come. Returns false if the peer lies, or memory is short; then the
 * net's connection ends. */
bool tls_greeting_take(struct tls_peer *peer, const uint8_t *bytes, size_t size);

/* --- tls_send.c --- */

enum status tls_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, net_sent_function *sent,
                            void *context) COMM_MUST_USE;
void tls_stream_finish(struct net_stream *stream);
void tls_sender_reset(struct tls_sender *sender);
void tls_sender_work(struct tls_sender *sender);
/* The next frame of data, whose body has at most max_bytes. Returns false if there is none. */
bool tls_sender_frame(const struct tls_sender *sender, size_t max_bytes, struct tls_frame *out);
void tls_sender_sent(struct tls_sender *sender, size_t size);
/* A whole frame was sent: another stream has its turn. */
void tls_sender_turn_over(struct tls_sender *sender, bool end);
void tls_sender_credit(struct tls_sender *sender, uint64_t limit);
/* Returns false if the peer has more than was sent. */
bool tls_sender_receipt(struct tls_sender *sender, uint64_t offset, bool end);
/* Goes on on another carrier, from that offset. */
void tls_sender_resume(struct tls_sender *sender, uint64_t offset);
/* The peer has everything. */
void tls_sender_complete(struct tls_sender *sender);
void tls_sender_lose(struct tls_sender *sender, enum status status);
void tls_sender_free(struct tls_sender *sender);

/* --- tls_receive.c --- */

/* Whether the stream may have this frame now. Returns null, or what is wrong with it. */
const char *tls_receiver_check(struct tls_peer *peer, const struct tls_frame *frame);
/* Takes bytes of a stream. Returns null, or what is wrong with them. */
const char *tls_receiver_bytes(struct tls_peer *peer, const struct tls_frame *frame, uint64_t offset,
                               const uint8_t *bytes, size_t size);
/* The stream ends at that offset. Returns null, or what is wrong. */
const char *tls_receiver_end(struct tls_peer *peer, const struct tls_frame *frame, uint64_t offset);
const char *tls_receiver_reset(struct tls_peer *peer, uint64_t number);
/* It owes the sender frames. */
void tls_receiver_due(struct tls_receiver *receiver);
void tls_receiver_not_due(struct tls_receiver *receiver);
void tls_receiver_stop(struct tls_receiver *receiver);
void tls_receiver_work(struct tls_receiver *receiver, uint64_t now_ns);
void tls_receiver_close(struct tls_receiver *receiver, const struct error *cause, bool quiet,
                        uint64_t now_ns);
void tls_stream_resume(struct net_stream *stream);
void tls_stream_expect(struct net_stream *stream, uint64_t size);

/* --- tls_compose.c --- */

/* Writes frames that streams owe, without data. Returns how many bytes. */
size_t tls_compose_control(struct tls_peer *peer, uint8_t *out, size_t room);
/* The same, and then frames of data, copied. */
size_t tls_compose(struct tls_peer *peer, uint8_t *out, size_t room);
/* The number is of a stream that was reset: the peer will be told. Returns false without memory. */
bool tls_compose_reset(struct tls_peer *peer, uint64_t number);

/* --- tls_connection.c --- */

/* Makes a connection of a socket, which belongs to it. Dialled: peer is given. Returns null on a failure,
 * with the socket closed. */
struct tls_connection *tls_connection_new(struct tls_endpoint *endpoint, int fd, struct tls_peer *dialled);
/* Notes that it is lost; it is freed when the event ends. */
void tls_connection_fail(struct tls_connection *connection, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void tls_connection_free(struct tls_connection *connection);
/* The handshake and the greeting are done: nothing more is due. */
void tls_connection_in_time(struct tls_connection *connection);
/* Returns whether there was anything. */
bool tls_connection_read(struct tls_connection *connection);
/* Bytes of it were read or written. */
void tls_connection_carried(struct tls_connection *connection);
/* Sets for what the socket is watched. */
void tls_connection_watch(struct tls_connection *connection);

/* --- tls_write.c --- */

/* Writes what the link has to send, as far as the socket takes it. */
void tls_connection_write(struct tls_connection *connection);
/* The stream is gone while a frame of it is begun: the rest is copied. */
void tls_connection_forget(struct tls_connection *connection, const struct tls_sender *sender);
/* Sends the greeting, of which it becomes the owner. */
void tls_connection_greet(struct tls_connection *connection, uint8_t *bytes, size_t size);

/* --- tls_listen.c --- */

void tls_listen(struct tls_endpoint *endpoint);
void tls_listen_close(struct tls_endpoint *endpoint);
/* Dials the peer if it is time, and nothing is there yet. */
void tls_dial(struct tls_peer *peer, uint64_t now_ns);

/* --- tls_tunnel.c --- */

void tls_tunnel_write(struct tls_peer *peer);
/* Sends the greeting, of which it becomes the owner. Returns false if that is not possible. */
bool tls_tunnel_greet(struct tls_peer *peer, uint8_t *bytes, size_t size);
void tls_tunnel_close(struct tls_peer *peer);
void tls_tunnel_register(struct tls_endpoint *endpoint);
void tls_tunnel_unregister(struct tls_endpoint *endpoint);

/* --- tls_socket.c --- */

/* Returns a listening socket, or -1 with errno. */
int tls_socket_listen(const struct quic_address *local);
/* Returns a socket that connects from the local address, or -1 with errno. */
int tls_socket_dial(const struct quic_address *local, const struct quic_address *remote);
/* Returns an accepted socket, or -1 with errno. */
int tls_socket_accept(int listener, struct quic_address *remote);
/* The error of a connection attempt that has ended; 0: it is connected. */
int tls_socket_error(int fd);

#endif
