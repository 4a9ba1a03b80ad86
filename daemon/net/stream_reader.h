#ifndef DAEMON_NET_STREAM_READER_H
#define DAEMON_NET_STREAM_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/net/net.h"
#include "daemon/net/stream_parking.h"

/*
 * Reads incoming streams of one kind. They carry messages of a header and a payload. Collectives and messages
 * between ranks read them alike; struct stream_reader_kind holds the differences.
 *
 * A stream is parked until its first header names a communicator that is known here. From then on it belongs
 * to that communicator, and to what its kind claims for it there, until it ends. Later headers cannot move
 * its bytes elsewhere. If a node sends what no correct node sends, the connection is dropped
 * (stream_reader_violates).
 *
 * Single-threaded, as its net is.
 */
struct stream_reader;

#define STREAM_HEADER_MAX_BYTES 80
/* stream_parking.h limits parked streams. A stream that exceeds the limit is reset. Its sender's communicator
 * then makes no progress here, and ends at its deadline. */
#define STREAM_PARKED_NS (60ull * 1000000000ull) /* then a parked stream is reset */

/*
 * A node that has reset a stream within a message has this long to say why, on another stream. This is long
 * enough to notice that the node died first (with the default heartbeat_timeout_ms), or that a link stood
 * still for 2 s.
 */
#define STREAM_CUT_NS (5ull * 1000000000ull)

#define STREAM_AHEAD_NODES 16u /* see ahead_max_bytes */

enum stream_ready { STREAM_READY, STREAM_WAIT };

/* The streams of one communicator, embedded in the owner's communicator. The owner sets all members except
 * the last two. */
struct stream_group {
    uint64_t comm_id;
    const uint32_t *peers; /* node_count entries: the net's peer of each node; our own is ignored */
    uint32_t node_count;
    uint32_t node_index; /* ours */
    /* The streams' part of the network's time, and the bytes that it keeps because no one takes them yet, are
     * charged to this account. Null: nothing is charged. */
    struct budget_account *account;
    struct stream_reader *readers;
    uint32_t stalled_count; /* of the readers: without any, stream_reader_resume has nothing to do */
};

struct stream_reader_kind {
    enum net_stream_kind stream_kind;
    size_t reader_bytes;   /* of a struct that starts with a struct stream_reader */
    uint32_t header_bytes; /* at most STREAM_HEADER_MAX_BYTES */
    const char *header_text;
    /* After a message the next one of the same size may come, too, before anybody has asked for it: up to so
     * many bytes, in communicators of at most STREAM_AHEAD_NODES nodes. Operations of one size follow each
     * other, and the sender would wait for the end of each one to be asked for. 0: it may not. */
    uint32_t ahead_max_bytes;
    /* Returns the communicator of that id; null: not known here. */
    struct stream_group *(*find)(void *owner, uint64_t comm_id);
    /*
     * Decodes the header, and sets comm_id and payload_bytes. Returns null, or the name of the wrong field.
     */
    const char *(*decode)(struct stream_reader *reader);
    /* claim checks a stream's first header, once its communicator is known; check_next checks each later one.
     * They return null, or a text for the invalid thing that the peer sent. */
    const char *(*claim)(struct stream_reader *reader);
    const char *(*check_next)(const struct stream_reader *reader);
    /* Returns whether the payload can be taken now. May report a violation or fail the communicator; the
     * stream then waits. */
    enum stream_ready (*begin)(struct stream_reader *reader, uint64_t now_ns);
    /* Takes bytes of the payload; size is at most what is left of it. Returns how many it took; 0: none now,
     * or a violation. */
    size_t (*take)(struct stream_reader *reader, const uint8_t *bytes, size_t size);
    /* Null, or called while the stream waits for `begin`, and has a communicator. `bytes` are those that the
     * network keeps: the rest of the payload, and what follows it. */
    void (*waits)(struct stream_reader *reader, const uint8_t *bytes, size_t size);
    /* The payload is complete. `done` must end by calling stream_reader_next_message. */
    void (*done)(struct stream_reader *reader, uint64_t now_ns);
    /* Ends what the stream holds of its communicator. */
    void (*let_go)(struct stream_reader *reader);
    /* The node at the other end of a stream with a communicator sent `what`, a violation: fail the
     * communicator for it. */
    void (*violated)(struct stream_reader *reader, const char *what);
    /* The sender has reset the stream within a message. */
    void (*cut)(struct stream_reader *reader, uint64_t now_ns);
    /* The account has no room for what the network keeps: fail the communicator for it. */
    void (*crowded)(struct stream_reader *reader, const struct error *why);
};

/* All streams of a kind. All zero before stream_readers_register. */
struct stream_readers {
    const struct stream_reader_kind *kind;
    struct net *net;
    void *owner;
    uint64_t *now_ns; /* the owner's time: set at each call of the net */
    /* parked: in the order of their deadlines. expired: those whose deadline has passed, until their stream
     * is closed. */
    struct stream_reader *parked, *expired;
    struct stream_parking own_parking; /* used unless the net shares one */
};

struct stream_reader {
    struct stream_readers *readers;
    struct stream_reader *prev, *next; /* in the communicator's list, or a list of parked ones */
    struct net_stream *stream;         /* null: it ended after a message without payload, which still waits */
    uint32_t peer;                     /* the net's */
    struct stream_group *group;        /* null: parked */
    uint32_t node;                     /* index in the communicator */
    uint8_t header[STREAM_HEADER_MAX_BYTES];
    uint32_t header_have;
    bool in_message; /* the header is complete */
    bool has_begun;  /* its first header is incomplete, and it is counted as begun */
    uint64_t comm_id, payload_bytes;
    uint64_t taken_bytes;   /* of the payload */
    bool expecting;         /* the network knows that the payload will be taken */
    uint64_t kept_bytes;    /* kept by the network, as nobody took them */
    uint64_t charged_bytes; /* of these, charged to the communicator's account */
    uint64_t parked_bytes;  /* counted for it while parked */
    bool stalled;
    bool resetting;
    uint64_t expires_ns; /* while parked */
};

/* Takes the net's streams of that kind. owner and now_ns outlive the readers. */
void stream_readers_register(struct stream_readers *readers, const struct stream_reader_kind *kind,
                             struct net *net, void *owner, uint64_t *now_ns);
/* Call it after every communicator was freed. */
void stream_readers_free(struct stream_readers *readers);
/* The communicator is new: streams parked for it become its own, and wait for stream_reader_resume. */
void stream_readers_claim(struct stream_readers *readers, const struct stream_group *group);
/* The communicator ends, and so do its streams. */
void stream_readers_detach(struct stream_readers *readers, struct stream_group *group);
/* Resets streams that are parked for too long. */
void stream_readers_expire(struct stream_readers *readers, uint64_t now_ns);
uint64_t stream_readers_deadline_ns(const struct stream_readers *readers);

/* The peer of the stream sent what no correct node sends, whatever its users call. If the stream has a
 * communicator, its `violated` is called first; then the connection is dropped. */
void stream_reader_violates(struct stream_reader *reader, const char *what);
/* The message is over: the next bytes are a header. */
void stream_reader_next_message(struct stream_reader *reader);
/* Continues a stream that waited and now may go on. Returns whether a message was completed. */
bool stream_reader_resume(struct stream_reader *reader, uint64_t now_ns);
/* A payload of that many bytes will be taken as it arrives. Its header need not have arrived. */
void stream_reader_expect(struct stream_reader *reader, uint64_t payload_bytes);
/* Takes no more bytes of the stream; `closed` follows. */
void stream_reader_reset(struct stream_reader *reader);

#endif
