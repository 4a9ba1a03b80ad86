#ifndef TESTS_NETWORK_PIPE_INTERNAL_H
#define TESTS_NETWORK_PIPE_INTERNAL_H

#include "daemon/base/random.h"
#include "daemon/base/table.h"
#include "daemon/base/timer_heap.h"
#include "proto/types.h"
#include "tests/network/network.h"

/*
 * The parts of the network of pipes. Only network_pipe*.c include this file.
 *
 *   network_pipe.c             hosts, links, events; the endpoint's table of operations
 *   network_pipe_connection.c  the two ends of a connection: handshake, close, loss
 *   network_pipe_stream.c      both ends of a stream
 *
 * A packet carries references to its end and its channel (both ends' view of one stream). A real packet would
 * carry numbers. The references keep both allocated. The bytes of a stream are read from the sender's own
 * buffers when a packet arrives.
 */

#define PIPE_PACKET_BYTES 40u  /* what a packet takes of a link's bandwidth, besides the bytes of streams */
#define PIPE_STREAMS_MAX 65536 /* outgoing streams of a connection that are not over; more: LIMIT */

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
    uint64_t busy_ns; /* until when its processor works on handshakes */
    char name[NODE_NAME_MAX_BYTES + 1];
};

/* The way from one host to another. Packets arrive in order. */
struct pipe_link {
    UT_hash_handle hh;
    uint64_t key; /* made of the ids of from and to */
    struct pipe_host *from, *to;
    struct network_conditions conditions;
    uint64_t free_ns; /* when the link has sent the last byte that was put on it (for bandwidth) */
    uint64_t last_ns; /* when the last packet on it arrives */
    struct pipe_packet *held, *held_last; /* packets that arrived while the link was cut */
    bool cut;
};

struct pipe_network {
    struct network base;
    struct timer_heap events;
    struct random random;
    struct network_conditions conditions; /* for links without conditions of their own */
    struct pipe_host *hosts;              /* by name */
    struct pipe_link *links;              /* by key */
    uint32_t host_count;
    uint64_t now_ns;
    uint64_t end_count; /* number of ends made so far, which numbers them */
    uint64_t net_count; /* the same for nets */
    bool advancing;
};

enum pipe_packet_kind {
    PIPE_DIAL,    /* from: the dialling end */
    PIPE_ANSWER,  /* from: the answering end, to: the dialling one */
    PIPE_REFUSE,  /* instead of an answer: the peer does not know the dialler's name */
    PIPE_NOBODY,  /* from a host without a net */
    PIPE_PROBE,   /* net_probe; from: no end */
    PIPE_PROBED,  /* its answer */
    PIPE_REFUSED, /* instead, from a host without a net */
    PIPE_CLOSE,   /* the connection is over; carries status and text */
    PIPE_CONFIRM, /* the dialler has the answer. Packets of this kind and those below are acknowledged */
    PIPE_BYTES,   /* bytes of a stream */
    PIPE_RESET,   /* the sender gave a stream up */
    PIPE_STOP,    /* the receiver gave a stream up */
    PIPE_WINDOW,  /* offset up to which the sender may send */
    /* acknowledges the next of the packets above, in order; for bytes: the offset up to which they arrived */
    PIPE_ACKNOWLEDGE,
    PIPE_KINDS
};

/* Both ends' view of one stream. */
struct pipe_channel {
    uint32_t references;
    enum net_stream_kind kind;
    struct pipe_sender *sender;     /* null when it has nothing more to send */
    struct pipe_receiver *receiver; /* null before the first bytes, and after the end */
    bool over; /* at the receiver: bytes that still arrive are acknowledged and dropped */
};

struct pipe_packet {
    struct pipe_event event;
    struct pipe_packet *next; /* in the list of packets that a cut link holds */
    struct pipe_link *link;
    enum pipe_packet_kind kind;
    struct pipe_end *from;        /* reference or null */
    struct pipe_end *to;          /* reference or null */
    struct pipe_channel *channel; /* reference or null */
    uint64_t offset;
    uint32_t size;       /* for PIPE_BYTES */
    bool fin;            /* the stream has no bytes behind these */
    struct error *cause; /* for PIPE_CLOSE and PIPE_REFUSE; the packet owns it */
    bool process_ended;  /* for PIPE_CLOSE: the process of the end that it is for knows nothing of it */
};

enum pipe_end_state {
    PIPE_END_DIALING,
    PIPE_END_ANSWERING, /* the dialler may not have the answer yet */
    PIPE_END_UP,
    PIPE_END_CLOSING, /* net_disconnect was called; peer_down follows */
    PIPE_END_GONE
};

/* One end of a connection, or of an attempt at one. */
struct pipe_end {
    uint32_t references;
    enum pipe_end_state state;
    uint64_t number;
    struct pipe_host *host; /* the host of this end */
    struct pipe_host *remote;
    struct pipe_net *net;       /* null once gone */
    uint64_t incarnation;       /* of net; a later net of the same host knows nothing of this end */
    uint32_t peer;              /* index of the peer in net */
    struct pipe_end *other;     /* a reference; null until it is known, and when this end is gone */
    struct error cause;         /* why the end is gone; OK while it is up */
    bool dialed;                /* this side dialled */
    bool settled;               /* the other end is known to be up */
    bool crossed;               /* answers a peer that this side was dialling at the same time */
    struct pipe_event timer;    /* for dialling again, for the handshake's deadline, and for silence */
    struct pipe_event deferred; /* calls peer_down after net_disconnect */
    uint64_t deadline_ns;       /* of the handshake */
    uint64_t worked_ns;         /* when the processor has done this end's part of it */
    uint64_t heard_ns;          /* when the peer was last heard, or was asked something after a pause */
    uint64_t asked_ns;       /* when the packet was sent that began the present wait for acknowledgements */
    uint64_t unacknowledged; /* packets that are not acknowledged */
    uint64_t round_trip_ns;
    struct pipe_sender *senders;
    struct pipe_receiver *receivers;
    uint32_t sender_count;
};

struct pipe_peer {
    struct pipe_host *host;
    struct pipe_end *end;       /* a reference to the end that dials, is up, or closes */
    struct pipe_end *answering; /* a reference to the end that answers the peer's own attempt */
    uint64_t sent_bytes;
    uint64_t received_bytes;
    uint64_t sent_packets, received_packets; /* of streams */
    uint64_t connected_count;
    bool closed_by_peer; /* see net_peer_statistics */
    bool process_ended;  /* the same */
    bool removed;        /* removed, until it is added again */
    bool unresolved;     /* its address began with "name" */
};

struct pipe_net {
    struct net base;
    struct pipe_network *network;
    struct pipe_host *host;
    struct pipe_peer *peers; /* by index */
    uint64_t incarnation;
    uint32_t peer_count;
    uint32_t peer_capacity;
    /* senders of lost connections, which their owners have not given up yet */
    struct pipe_sender *lost_senders;
    bool freeing;
    struct net_statistics statistics;
};

/* --- network_pipe.c --- */

void *pipe_alloc(size_t count, size_t size);
void pipe_event_set(struct pipe_network *network, struct pipe_event *event, uint64_t at_ns);
void pipe_event_cancel(struct pipe_network *network, struct pipe_event *event);

struct pipe_packet *pipe_packet_new(struct pipe_host *from, struct pipe_host *to, enum pipe_packet_kind kind);
/* Puts the packet on its link. Takes over the packet. */
void pipe_packet_send(struct pipe_packet *packet);
/* Sends a packet from one end of a connection to the other. `channel` may be null. */
void pipe_tell(struct pipe_end *end, enum pipe_packet_kind kind, struct pipe_channel *channel,
               uint64_t offset);
struct pipe_link *pipe_link_between(struct pipe_host *from, struct pipe_host *to);

/* --- network_pipe_connection.c --- */

struct pipe_peer *pipe_end_peer(const struct pipe_end *end);
struct pipe_end *pipe_end_ref(struct pipe_end *end);
void pipe_end_unref(struct pipe_end *end);
enum status pipe_connect(struct net *net, uint32_t peer, struct error *error);
void pipe_disconnect(struct net *net, uint32_t peer, const struct error *cause);
bool pipe_probe(struct net *net, uint32_t peer);
/* Receives a packet at a host that lives and has a net. */
void pipe_connection_receive(struct pipe_net *net, struct pipe_packet *packet, uint64_t now_ns);
/* Notes that one more packet of the end waits for its acknowledgement. */
void pipe_end_asks(struct pipe_end *end);
/* For net_free: tells the peer, and ends sends. Calls no other handler. */
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
/* Receives BYTES, RESET, STOP, WINDOW, or the acknowledgement of one of them, at an end that is up. */
void pipe_stream_receive(struct pipe_end *end, const struct pipe_packet *packet, uint64_t now_ns);
/* The connection is gone: closes every stream, and ends every send. quiet: calls no handler except `sent`. */
void pipe_streams_lose(struct pipe_end *end, const struct error *cause, bool quiet, uint64_t now_ns);
/* The net is being freed: frees the senders of lost connections that it still has. */
void pipe_lost_free(struct pipe_net *net, uint64_t now_ns);

#endif
