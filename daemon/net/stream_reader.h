#ifndef DAEMON_NET_STREAM_READER_H
#define DAEMON_NET_STREAM_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/net/net.h"
#include "daemon/net/stream_parking.h"

/*
 * Incoming streams of one kind, which carry messages of a header and a payload. Collectives and messages
 * between ranks read them alike; struct stream_reader_kind has what differs.
 *
 * A stream is parked until its first header names a communicator that is known here. From then on it belongs
 * to that communicator, and to what its kind claims for it there, until it ends: whatever a later header
 * says, its bytes go nowhere else. What no correct node sends drops the connection (stream_reader_violates).
 *
 * Single-threaded, as its net is.
 */
struct stream_reader;

#define STREAM_HEADER_MAX_BYTES 80
/* Streams whose communicator is not known here yet are bounded by stream_parking.h: one that brings more is
 * reset; its sender's communicator gets no further there, and ends at its deadline. */
#define STREAM_PARKED_NS (60ull * 1000000000ull) /* then they are reset */

/* How long a node that reset a stream within a message has to say why, on another stream. A node that died
 * before it could is found meanwhile (heartbeat_timeout_ms where commd.conf says none), as is a link that
 * stood still for 2 s. */
#define STREAM_CUT_NS (5ull * 1000000000ull)

enum stream_ready { STREAM_READY, STREAM_WAIT };

/* The streams of one communicator; it lies in the owner's communicator. All but `readers` is the owner's. */
struct stream_group {
    uint64_t comm_id;
    const uint32_t *peers; /* node_count: the net's peer of each node; our own is ignored */
    uint32_t node_count;
    uint32_t node_index; /* ours */
    /* The streams' part of the network's time, and what it keeps of them, as nobody takes it, are charged to
     * it; null: nothing is. */
    struct budget_account *account;
    struct stream_reader *readers;
};

struct stream_reader_kind {
    enum net_stream_kind stream_kind;
    size_t reader_bytes;   /* of a struct whose head is a struct stream_reader */
    uint32_t header_bytes; /* at most STREAM_HEADER_MAX_BYTES */
    const char *header_text;
    /* The communicator of that id; null: not known here. */
    struct stream_group *(*find)(void *owner, uint64_t comm_id);
    /* Decodes the header, and sets comm_id and payload_bytes. Null, or the name of the wrong field. */
    const char *(*decode)(struct stream_reader *reader);
    /* A stream's first header, once it has its communicator; and each later one. Null, or what it sent. */
    const char *(*claim)(struct stream_reader *reader);
    const char *(*check_next)(const struct stream_reader *reader);
    /* Whether the payload can be taken now. May violate, and fail the communicator; then it waits. */
    enum stream_ready (*begin)(struct stream_reader *reader, uint64_t now_ns);
    /* Takes of the payload; size is at most what is left of it. 0: not now, or a violation. */
    size_t (*take)(struct stream_reader *reader, const uint8_t *bytes, size_t size);
    /* The payload is whole: ends with stream_reader_next_message. */
    void (*done)(struct stream_reader *reader, uint64_t now_ns);
    /* Ends what the stream has of its communicator. */
    void (*let_go)(struct stream_reader *reader);
    /* The node of the stream, which has a communicator, sent that: the communicator is to fail for it. */
    void (*violated)(struct stream_reader *reader, const char *what);
    /* The sender has reset the stream within a message. */
    void (*cut)(struct stream_reader *reader, uint64_t now_ns);
    /* The account has no room for what the network keeps: the communicator is to fail for it. */
    void (*crowded)(struct stream_reader *reader, const struct error *why);
};

/* All streams of a kind. All zero before stream_readers_register. */
struct stream_readers {
    const struct stream_reader_kind *kind;
    struct net *net;
    void *owner;
    uint64_t *now_ns; /* the owner's clock: set to the time of each call of the net */
    /* In the order of their deadlines; and those whose deadline has passed, until their stream is closed. */
    struct stream_reader *parked, *expired;
    struct stream_parking own_parking; /* unless the net shares one with others */
};

struct stream_reader {
    struct stream_readers *readers;
    struct stream_reader *prev, *next; /* of the communicator's, or of those that are parked */
    struct net_stream *stream;  /* null: it ended behind a message without payload, which still waits */
    uint32_t peer;              /* the net's */
    struct stream_group *group; /* null: parked */
    uint32_t node;              /* index in the communicator */
    uint8_t header[STREAM_HEADER_MAX_BYTES];
    uint32_t header_have;
    bool in_message; /* the header is whole */
    bool has_begun;  /* and its first one is not: counted so */
    uint64_t comm_id, payload_bytes;
    uint64_t taken_bytes;   /* of the payload */
    bool expecting;         /* the network was told that the payload will be taken */
    uint64_t kept_bytes;    /* that the network keeps, as nobody took them */
    uint64_t charged_bytes; /* of these: to the communicator's account */
    uint64_t parked_bytes;  /* that it is counted as while parked */
    bool stalled;
    bool resetting;
    uint64_t expires_ns; /* while parked */
};

/* Takes the net's streams of that kind. owner and now_ns outlive the readers. */
void stream_readers_register(struct stream_readers *readers, const struct stream_reader_kind *kind,
                             struct net *net, void *owner, uint64_t *now_ns);
/* After every communicator was freed. */
void stream_readers_free(struct stream_readers *readers);
/* The communicator is new: streams that are parked for it are its, and wait for stream_reader_resume. */
void stream_readers_claim(struct stream_readers *readers, const struct stream_group *group);
/* The communicator ends: so do its streams. */
void stream_readers_detach(struct stream_readers *readers, struct stream_group *group);
/* Those that are parked for too long are reset. */
void stream_readers_expire(struct stream_readers *readers, uint64_t now_ns);
uint64_t stream_readers_deadline_ns(const struct stream_readers *readers);

/* What the peer of the stream sent is what no correct node sends, whatever its users call: the communicator,
 * if the stream has one, hears of it first; then the connection is dropped. */
void stream_reader_violates(struct stream_reader *reader, const char *what);
/* The message is over: the next bytes are a header. */
void stream_reader_next_message(struct stream_reader *reader);
/* Lets go on what waited and now may. Returns whether a message came to its end. */
bool stream_reader_resume(struct stream_reader *reader, uint64_t now_ns);
/* A payload of so many bytes will be taken as it comes: its header need not have come. */
void stream_reader_expect(struct stream_reader *reader, uint64_t payload_bytes);
/* No more bytes are taken of it; closed follows. */
void stream_reader_reset(struct stream_reader *reader);
/* Takes it out of its list, and frees it; its stream is gone. */
void stream_reader_free(struct stream_reader *reader);

#endif
