#ifndef TESTS_NETWORK_PIPE_INTERNAL_H
#define TESTS_NETWORK_PIPE_INTERNAL_H

#include "daemon/base/random.h"
#include "daemon/base/table.h"
#include "daemon/base/timer_heap.h"
#include "proto/types.h"
#include "tests/network/network.h"

/*
 * The parts of the network of pipes, shared by network_pipe*.c alone:
 *
 *   network_pipe.c             hosts, links, what happens when; the endpoint's table of operations
 *   network_pipe_connection.c  the two ends of a connection: handshake, close, loss
 *   network_pipe_stream.c      both ends of a stream
 *
 * A packet carries references to the end and the channel (both ends' view of one stream) that it speaks of,
 * where a real one carries numbers: what a packet still refers to stays allocated. The bytes of a stream are
 * read from the sender's own buffers when they arrive.
 */

#define PIPE_PACKET_BYTES 40u  /* what a packet takes of a link's bandwidth beside bytes of streams */
#define PIPE_STREAMS_MAX 65536 /* outgoing streams of a connection that are not yet over; beyond: LIMIT */

struct pipe_end;
struct pipe_net;
struct pipe_sender;
struct pipe_receiver;

struct pipe_event {
    struct timer_node node;
    void (*fire)(struct pipe_event *event, uint64_t now_ns);
};

struct pipe_host {
    UT_hash_handle hh;
    struct pipe_network *network;
    struct pipe_net *net; /* null: nobody listens */
    uint32_t id;
    bool dead;
    char name[NODE_NAME_MAX_BYTES + 1];
};

/* The way from one host to another. What is on it arrives in order. */
struct pipe_link {
    UT_hash_handle hh;
    uint64_t key; /* ids of from and to */
    struct pipe_host *from, *to;
    struct network_conditions conditions;
    uint64_t free_ns;                     /* when the last byte put on it has left: bandwidth */
    uint64_t last_ns;                     /* when the last packet on it arrives */
    struct pipe_packet *held, *held_last; /* arrived while it was cut */
    bool cut;
};

struct pipe_network {
    struct network base;
    struct timer_heap events;
    struct random random;
    struct network_conditions conditions; /* of links not set */
    struct pipe_host *hosts;              /* by name */
    struct pipe_link *links;              /* by key */
    uint32_t host_count;
    uint64_t now_ns;
    uint64_t end_count; /* ends made so far: numbers them */
    uint64_t net_count; /* likewise */
    bool advancing;
};

enum pipe_packet_kind {
    PIPE_DIAL,        /* from: the dialling end */
    PIPE_ANSWER,      /* from: the answering end, to: the dialling one */
    PIPE_REFUSE,      /* instead of an answer: the dialler's name is not known */
    PIPE_NOBODY,      /* from a host without a net */
    PIPE_CLOSE,       /* the connection is over: status and text */
    PIPE_CONFIRM,     /* the dialler has the answer. This and what follows is received */
    PIPE_BYTES,       /* of a stream */
    PIPE_RESET,       /* the sender gave a stream up */
    PIPE_STOP,        /* the receiver gave a stream up */
    PIPE_WINDOW,      /* offset up to which a stream may be sent */
    PIPE_ACKNOWLEDGE, /* of the next in order of those above; of bytes: offset up to which they are there */
    PIPE_KINDS
};

/* Both ends' view of one stream. */
struct pipe_channel {
    uint32_t references;
    enum net_stream_kind kind;
    struct pipe_sender *sender;     /* null once it has nothing to send any more */
    struct pipe_receiver *receiver; /* null before the first bytes, and afterwards */
    bool over;                      /* at the receiver: what still arrives is acknowledged and dropped */
};

struct pipe_packet {
    struct pipe_event event;
    struct pipe_packet *next; /* among those that a cut link holds */
    struct pipe_link *link;
    enum pipe_packet_kind kind;
    struct pipe_end *from;        /* reference or null */
    struct pipe_end *to;          /* reference or null */
    struct pipe_channel *channel; /* reference or null */
    uint64_t offset;
    uint32_t size;       /* of BYTES */
    bool fin;            /* no byte of the stream follows */
    struct error *cause; /* of CLOSE and REFUSE: owned */
};

enum pipe_end_state {
    PIPE_END_DIALING,
    PIPE_END_ANSWERING, /* not yet known to have reached the dialler */
    PIPE_END_UP,
    PIPE_END_CLOSING, /* net_disconnect was called; peer_down follows */
    PIPE_END_GONE
};

/* One end of a connection, or of an attempt at one. */
struct pipe_end {
    uint32_t references;
    enum pipe_end_state state;
    uint64_t number;
    struct pipe_host *host; /* where it is */
    struct pipe_host *remote;
    struct pipe_net *net;       /* null once gone */
    uint64_t incarnation;       /* of net: one that came after it knows nothing of this end */
    uint32_t peer;              /* of net */
    struct pipe_end *other;     /* reference; null when not known yet, and once gone */
    struct error cause;         /* of the end; OK while up */
    bool dialed;                /* by us */
    bool settled;               /* the other end is known to be up */
    bool crossed;               /* answers a peer that we were dialling ourselves */
    struct pipe_event timer;    /* dialling again, the handshake's deadline; silence */
    struct pipe_event deferred; /* peer_down after net_disconnect */
    uint64_t deadline_ns;       /* of the handshake */
    uint64_t heard_ns;          /* when the peer was last heard, or was asked something */
    uint64_t asked_ns;          /* when what is acknowledged next was sent, if nothing was before */
    uint64_t unacknowledged;    /* packets */
    uint64_t round_trip_ns;
    struct pipe_sender *senders;
    struct pipe_receiver *receivers;
    uint32_t sender_count;
};

struct pipe_peer {
    struct pipe_host *host;
    struct pipe_end *end;       /* reference: dialling, up, or closing */
    struct pipe_end *answering; /* reference: the peer's own attempt */
    uint64_t sent_bytes;
    uint64_t received_bytes;
    uint64_t connected_count;
    bool closed_by_peer; /* see net_peer_statistics */
    bool removed;        /* until it is added again */
};

struct pipe_net {
    struct net base;
    struct pipe_network *network;
    struct pipe_host *host;
    struct pipe_peer *peers; /* by index */
    uint64_t incarnation;
    uint32_t peer_count;
    uint32_t peer_capacity;
    struct pipe_sender *lost_senders; /* of connections lost, which their owners still hold */
    bool freeing;
    struct net_statistics statistics;
};

/* --- network_pipe.c --- */

void *pipe_alloc(size_t count, size_t size);
void pipe_event_set(struct pipe_network *network, struct pipe_event *event, uint64_t at_ns);
void pipe_event_cancel(struct pipe_network *network, struct pipe_event *event);

struct pipe_packet *pipe_packet_new(struct pipe_host *from, struct pipe_host *to, enum pipe_packet_kind kind);
/* Puts it on its link and takes it over. */
void pipe_packet_send(struct pipe_packet *packet);
/* From one end of a connection to the other. channel may be null. */
void pipe_tell(struct pipe_end *end, enum pipe_packet_kind kind, struct pipe_channel *channel,
               uint64_t offset);
struct pipe_link *pipe_link_between(struct pipe_host *from, struct pipe_host *to);

/* --- network_pipe_connection.c --- */

struct pipe_peer *pipe_end_peer(const struct pipe_end *end);
struct pipe_end *pipe_end_ref(struct pipe_end *end);
void pipe_end_unref(struct pipe_end *end);
enum status pipe_connect(struct net *net, uint32_t peer, struct error *error);
void pipe_disconnect(struct net *net, uint32_t peer, const struct error *cause);
/* A packet has arrived at a host that lives and has a net. */
void pipe_connection_receive(struct pipe_net *net, struct pipe_packet *packet, uint64_t now_ns);
/* One more packet of the end waits for its acknowledgement. */
void pipe_end_asks(struct pipe_end *end);
/* net_free: the peer is told, sends are done, nothing else is called. */
void pipe_peer_free(struct pipe_net *net, struct pipe_peer *peer, uint64_t now_ns);

/* --- network_pipe_stream.c --- */

void pipe_channel_unref(struct pipe_channel *channel);
enum status pipe_stream_open(struct net *net, uint32_t peer, enum net_stream_kind kind,
                             struct net_stream **out, struct error *error);
enum status pipe_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                             const void *payload, size_t payload_bytes, net_sent_function *sent,
                             void *context);
void pipe_stream_finish(struct net_stream *stream);
void pipe_stream_reset(struct net_stream *stream);
void pipe_stream_resume(struct net_stream *stream);
void pipe_stream_expect(struct net_stream *stream, uint64_t size);
uint32_t pipe_stream_queued(const struct net_stream *stream);
/* BYTES, RESET, STOP, WINDOW, or the acknowledgement of one, at the end of a connection that is up. */
void pipe_stream_receive(struct pipe_end *end, const struct pipe_packet *packet, uint64_t now_ns);
/* The connection is gone: every stream is closed, every send done. quiet: no handler is called but sent. */
void pipe_streams_lose(struct pipe_end *end, const struct error *cause, bool quiet, uint64_t now_ns);
/* The net goes, with what it still holds of lost streams. */
void pipe_lost_free(struct pipe_net *net, uint64_t now_ns);

#endif
