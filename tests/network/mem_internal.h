#ifndef TESTS_NETWORK_MEM_INTERNAL_H
#define TESTS_NETWORK_MEM_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/random.h"
#include "daemon/base/table.h"
#include "daemon/net/net.h"
#include "proto/types.h"
#include "tests/network/mem.h"
#include "tests/network/mem_event.h"

/*
 * The parts of the in-memory network, shared by mem*.c alone:
 *
 *   mem.c             the network: hosts, links, packets on their way; the endpoint's table of operations
 *   mem_event.c       what happens when
 *   mem_connection.c  the two ends of a connection: handshake, close, loss
 *   mem_flight.c      what an end has sent and keeps until it is acknowledged: sent again when not
 *   mem_send.c        outgoing streams
 *   mem_receive.c     incoming streams
 *
 * Everything that is acknowledged is a flight. A packet carries references to the flight, the end and the
 * channel (both ends' view of one stream) that it speaks of, where a real packet carries numbers: what a
 * packet still refers to stays allocated, however late it arrives.
 */

#define MEM_PACKET_BYTES_DEFAULT 1200u
#define MEM_SEGMENTS_MAX 128u        /* of one stream in flight */
#define MEM_CONTROL_PACKET_BYTES 40u /* what a packet without payload takes of a link's bandwidth */
#define MEM_RETRANSMISSION_MIN_NS TIME_MS
#define MEM_RETRANSMISSION_MAX_NS                                                                            \
    (100 * TIME_MS)                  /* backing off ends here, so that a healed link is noticed soon */
#define MEM_PROBES_MAX 2u            /* flights sent again at a time while nothing is acknowledged */
#define MEM_RESERVE_RETRY_NS TIME_MS /* after which a sender that got no memory tries again */
#define MEM_CLOSE_TEXT_MAX_BYTES 256u

struct mem_net;
struct mem_end;
struct mem_sender;
struct mem_receiver;

/* A name on the network. Made when first spoken of, kept until the network goes. */
struct mem_host {
    UT_hash_handle hh;
    struct mem_network *network;
    struct mem_net *net; /* null: nobody listens */
    uint32_t id;
    bool dead; /* killed */
    char name[NODE_NAME_MAX_BYTES + 1];
};

/* The way from one host to another. */
struct mem_link {
    UT_hash_handle hh;
    uint64_t key; /* ids of from and to */
    struct mem_host *from;
    struct mem_host *to;
    struct mem_conditions conditions;
    uint64_t free_ns; /* when the last byte put on it has left: bandwidth */
    bool cut;
};

struct mem_network {
    struct mem_events events;
    struct random random;
    struct mem_conditions conditions; /* of links not set */
    struct mem_host *hosts;           /* by name */
    struct mem_link *links;           /* by key */
    uint32_t host_count;
    uint64_t now_ns;
    uint64_t end_count; /* connections' ends made so far: numbers them */
    uint64_t net_count; /* likewise */
    bool advancing;
    struct mem_network_counters counters;
};

/* --- Packets (mem.c) --- */

enum mem_packet_kind {
    MEM_PACKET_DIAL,        /* from: the dialling end */
    MEM_PACKET_ANSWER,      /* from: the answering end, to: the dialling one */
    MEM_PACKET_REFUSE,      /* instead of an answer: the dialler's name is not known */
    MEM_PACKET_CONFIRM,     /* flight: the dialler has the answer */
    MEM_PACKET_SEGMENT,     /* flight: bytes of a stream */
    MEM_PACKET_RESET,       /* flight: the sender gave a stream up */
    MEM_PACKET_STOP,        /* flight: the receiver gave a stream up */
    MEM_PACKET_WINDOW,      /* flight: offset up to which a stream may be sent */
    MEM_PACKET_ACKNOWLEDGE, /* of a flight */
    MEM_PACKET_CLOSE,       /* the connection is over: status and text */
    MEM_PACKET_NOBODY       /* from a host without a net */
};

/* Both ends' view of one stream. */
struct mem_channel {
    uint32_t references;
    enum net_stream_kind kind;
    struct mem_sender *sender;     /* null once it has nothing to send any more */
    struct mem_receiver *receiver; /* null before the first segment, and afterwards */
    bool over;                     /* at the receiver: what still arrives is acknowledged and dropped */
};

struct mem_flight {
    uint32_t references;
    enum mem_packet_kind kind;
    struct mem_end *end;            /* whose it is; null once acknowledged or given up. No reference */
    struct mem_flight *prev, *next; /* among the end's, in the order of due_ns */
    struct mem_flight *segment_prev, *segment_next; /* among the stream's, in the order of offset */
    struct mem_channel *channel;                    /* reference; null for CONFIRM */
    uint64_t offset;
    uint32_t size;
    bool fin; /* no byte of the stream follows */
    bool acknowledged;
    uint64_t sent_ns;
    uint64_t due_ns;
    uint32_t transmissions;
};

struct mem_packet {
    struct mem_event event;
    struct mem_link *link;
    enum mem_packet_kind kind;
    struct mem_end *from;        /* reference or null */
    struct mem_end *to;          /* reference or null */
    struct mem_flight *flight;   /* reference or null: what is to be acknowledged, or is */
    struct mem_channel *channel; /* reference or null */
    uint64_t offset;
    enum status status; /* CLOSE, REFUSE: the bytes are its text */
    bool fin;
    uint32_t size;
    uint8_t bytes[];
};

struct mem_host *mem_host_intern(struct mem_network *network, const char *name);
/* Null when there is no memory. */
struct mem_link *mem_link_between(struct mem_host *from, struct mem_host *to);
uint64_t mem_link_retransmission_ns(const struct mem_link *link);
uint32_t mem_link_packet_bytes(const struct mem_link *link);

/* A packet from one host to another with room for size bytes; null when there is no memory: as good as lost.
 */
struct mem_packet *mem_packet_new(struct mem_host *from, struct mem_host *to, enum mem_packet_kind kind,
                                  uint32_t size);
void mem_packet_between(struct mem_packet *packet, struct mem_end *from, struct mem_end *to);
/* Puts it on its link, which may lose, delay or double it, and takes it over. Returns when it has left the
 * host. */
uint64_t mem_packet_send(struct mem_packet *packet);

/* Takes part in the trace whatever happens to a host beside packets. */
void mem_trace(struct mem_network *network, uint32_t what, uint32_t from, uint32_t to, uint64_t offset,
               uint64_t size);

struct mem_channel *mem_channel_ref(struct mem_channel *channel);
void mem_channel_unref(struct mem_channel *channel);

/* --- Endpoints and connections (mem_connection.c) --- */

enum mem_end_state {
    MEM_END_DIALING,
    MEM_END_ANSWERING, /* not yet known to have reached the dialler */
    MEM_END_UP,
    MEM_END_CLOSING, /* net_disconnect was called; peer_down follows */
    MEM_END_GONE
};

/* One end of a connection, or of an attempt at one. */
struct mem_end {
    uint32_t references;
    enum mem_end_state state;
    uint64_t number;
    struct mem_host *host; /* where it is */
    struct mem_host *remote;
    struct mem_net *net;       /* null once gone */
    uint64_t incarnation;      /* of net: one that came after it knows nothing of this end */
    uint32_t peer;             /* of net */
    struct mem_end *other;     /* reference; null when not known yet, and once gone */
    struct error *cause;       /* of the end; null while up or for want of memory */
    bool dialed;               /* by us */
    bool settled;              /* the other end is known to be up */
    bool crossed;              /* answers a peer that we were dialling ourselves */
    struct mem_event timer;    /* retries and the deadline of the handshake; flights */
    struct mem_event deferred; /* peer_down after net_disconnect */
    uint64_t deadline_ns;      /* of the handshake */
    uint64_t retry_ns;         /* of the handshake: the next interval */

    struct mem_flight *flights;
    uint64_t heard_ns;      /* when the peer was last heard, or the first of flights was sent */
    uint64_t probe_ns;      /* while backing off: not to send again before */
    uint32_t backoff;       /* time-outs in a row without an acknowledgement */
    uint64_t round_trip_ns; /* smoothed */

    struct mem_sender *senders;
    struct mem_receiver *receivers;
    uint32_t sender_count;
};

struct mem_peer {
    UT_hash_handle hh;
    uint32_t host_id;
    uint32_t index;
    struct mem_host *host;
    struct mem_end *end;       /* reference: dialling, up, or closing */
    struct mem_end *answering; /* reference: the peer's own attempt */
    uint64_t sent_bytes;
    uint64_t received_bytes;
    uint64_t lost_packets;
    uint64_t connected_count;
    bool closed_by_peer; /* see net_peer_statistics */
    bool removed;        /* until it is added again */
};

struct mem_net {
    struct net base;
    struct mem_network *network;
    struct mem_host *host;
    struct mem_peer **peers; /* by index */
    uint64_t incarnation;
    uint32_t peer_count;
    uint32_t peer_capacity;
    struct mem_peer *peers_by_host;
    struct mem_sender *lost_senders; /* of connections lost, which their owners still hold */
    bool freeing;
    struct net_statistics statistics;
};

struct mem_peer *mem_end_peer(const struct mem_end *end);
struct mem_end *mem_end_ref(struct mem_end *end);
void mem_end_unref(struct mem_end *end);

enum status mem_connect(struct net *net, uint32_t peer, struct error *error);
void mem_disconnect(struct net *net, uint32_t peer, const struct error *cause);
/* A packet has arrived at a host that lives and has a net. */
void mem_connection_receive(struct mem_net *net, struct mem_packet *packet, uint64_t now_ns);
/* The connection cannot go on (no memory for what arrived): peer_down follows, not within this call. */
void mem_end_fail(struct mem_end *end, const struct error *cause);
/* Streams closed, sends done, peer_down. The end is gone when this is called from the idle timer or by the
 * peer. */
void mem_end_take_down(struct mem_end *end, const struct error *cause, uint64_t now_ns);
/* net_free: the peer is told, sends are done, nothing else is called. */
void mem_peer_free(struct mem_net *net, struct mem_peer *peer, uint64_t now_ns);

/* --- Flights (mem_flight.c) --- */

/* A new one, not sent yet. Null when there is no memory. The caller's reference passes to the end with
 * mem_flight_launch. */
struct mem_flight *mem_flight_new(enum mem_packet_kind kind, struct mem_channel *channel);
void mem_flight_launch(struct mem_end *end, struct mem_flight *flight);
/* Makes and launches one; without memory the connection fails. */
void mem_flight_signal(struct mem_end *end, enum mem_packet_kind kind, struct mem_channel *channel,
                       uint64_t offset);
/* Not sent again. */
void mem_flight_give_up(struct mem_flight *flight);
void mem_flight_give_up_all(struct mem_end *end);
void mem_flight_acknowledged(struct mem_end *end, struct mem_flight *flight, uint64_t now_ns);
/* The end's timer: sends again what is overdue; the connection is lost after MEM_IDLE_TIMEOUT_NS of silence.
 */
void mem_flight_timer(struct mem_end *end, uint64_t now_ns);
struct mem_flight *mem_flight_ref(struct mem_flight *flight);
void mem_flight_unref(struct mem_flight *flight);

/* --- Streams (mem_send.c, mem_receive.c) --- */

struct mem_stream {
    struct net_stream base;
    bool incoming;
};

struct mem_message {
    uint64_t end_offset; /* of the stream, behind its last byte */
    const uint8_t *payload;
    uint8_t *copy; /* owned: the payload without `sent` */
    size_t payload_bytes;
    uint32_t header_bytes;
    uint8_t header[NET_STREAM_HEADER_MAX_BYTES];
    net_sent_function *sent;
    void *context;
};

struct mem_sender {
    struct mem_stream stream;
    struct mem_net *net;
    struct mem_end *end;            /* reference; null once lost */
    struct mem_sender *prev, *next; /* among the end's, or the net's lost ones */
    struct mem_channel *channel;
    struct mem_event deferred; /* completions that were due within a call; trying again for want of memory */
    struct mem_message *messages; /* a ring */
    uint32_t message_first, message_count, message_capacity;
    struct mem_flight *segments; /* in flight; acknowledged ones behind the first that is not */
    uint32_t segment_count;
    uint64_t queued_end;
    uint64_t sent_end;
    uint64_t acknowledged_end;
    uint64_t limit; /* what the receiver allows */
    size_t copied_bytes;
    bool finishing; /* finish was called */
    bool fin_sent;
    bool reset;    /* reset was called */
    bool lost;     /* the connection is gone, or the receiver asked to stop */
    uint32_t busy; /* its functions on the stack: who leaves last frees what is over */
};

enum status mem_stream_open(struct net *net, uint32_t peer, enum net_stream_kind kind,
                            struct net_stream **out, struct error *error);
enum status mem_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, net_sent_function *sent,
                            void *context);
void mem_stream_finish(struct net_stream *stream);
void mem_sender_reset(struct mem_sender *sender);
/* Copies bytes [offset, offset + size) of the stream as they are now. */
void mem_sender_read(const struct mem_sender *sender, uint64_t offset, uint8_t *out, uint32_t size);
void mem_sender_acknowledged(struct mem_sender *sender, uint64_t now_ns);
void mem_sender_window(struct mem_sender *sender, uint64_t limit);
/* The connection is gone, or the receiver wants no more: every send is done with the status. */
void mem_sender_lose(struct mem_sender *sender, enum status status, uint64_t now_ns);
/* The net goes. */
void mem_sender_destroy(struct mem_sender *sender, uint64_t now_ns);

/* Bytes that arrived before those in front of them. */
struct mem_piece {
    struct mem_piece *next;
    uint64_t offset;
    uint32_t size;
    uint8_t bytes[];
};

struct mem_receiver {
    struct mem_stream stream;
    struct mem_end *end; /* no reference: it closes its receivers */
    struct mem_receiver *prev, *next;
    struct mem_channel *channel;
    struct mem_event deferred; /* resume, or closed after reset */
    uint8_t *buffer;           /* received in order and not consumed */
    size_t buffer_first, buffer_size, buffer_capacity;
    struct mem_piece *pieces; /* in the order of offset */
    uint64_t received_end;    /* in order */
    uint64_t consumed_end;
    uint64_t expected_end; /* by the handler: see net_stream_expect */
    uint64_t announced_limit;
    uint64_t final_size; /* UINT64_MAX: not known yet */
    bool announced;      /* receive was called */
    bool held;           /* bytes were left unconsumed: nothing more before resume */
    bool calling;        /* receive is on the stack */
    bool stopped;        /* reset by our side: closed follows */
};

void mem_receive_segment(struct mem_end *end, struct mem_packet *packet, uint64_t now_ns);
void mem_receive_reset(struct mem_end *end, struct mem_channel *channel, uint64_t now_ns);
void mem_receiver_reset(struct mem_receiver *receiver);
void mem_stream_resume(struct net_stream *stream);
void mem_stream_expect(struct net_stream *stream, uint64_t size);
uint32_t mem_stream_queued(const struct net_stream *stream);
/* closed is called unless quiet or receive never was; frees. */
void mem_receiver_close(struct mem_receiver *receiver, const struct error *cause, bool quiet,
                        uint64_t now_ns);

#endif
