#ifndef DAEMON_EXEC_STREAM_READER_H
#define DAEMON_EXEC_STREAM_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/net/net.h"

/*
 * One stream that another node opened to us: messages of a header and a payload. Private to daemon/exec; data
 * (receive.c) and messages (message_streams.c) are read alike, and differ in what stream_reader_kind has.
 *
 * A stream is parked until its first header names a communicator that is known here. From then on it belongs
 * to that communicator, and to the lane or the flow of messages that its kind claims for it, until it ends:
 * whatever a later header says, its bytes go nowhere else. What no correct node sends drops the connection
 * (stream_reader_violates).
 */
struct exec;
struct exec_comm;
struct error;
struct stream_reader;

#define STREAM_HEADER_BYTES 64 /* of either kind */
enum stream_reader_index { STREAM_READER_DATA, STREAM_READER_MESSAGES };
#define STREAM_READER_KINDS 2

enum stream_ready { STREAM_READY, STREAM_WAIT };

struct stream_reader_kind {
    uint32_t index;      /* of its lists */
    size_t reader_bytes; /* of a struct whose head is a struct stream_reader */
    const char *header_text;
    /* Decodes header_bytes, and sets comm_id and payload_bytes. Null, or the name of the wrong field. */
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
};

struct stream_reader {
    const struct stream_reader_kind *kind;
    struct stream_reader *prev, *next; /* of the communicator's, or of those that are parked */
    struct exec *exec;
    struct net_stream *stream; /* null: it ended behind a message without payload, which still waits */
    uint32_t peer;             /* the net's */
    struct exec_comm *comm;    /* null: parked */
    uint32_t node;             /* index in comm */
    uint8_t header_bytes[STREAM_HEADER_BYTES];
    uint32_t header_have;
    bool in_message; /* the header is whole */
    uint64_t comm_id, payload_bytes;
    uint64_t taken_bytes;   /* of the payload */
    bool expecting;         /* the network was told that the payload will be taken */
    uint64_t kept_bytes;    /* that the network keeps, as its call was not posted */
    uint64_t charged_bytes; /* of these: to the owner of the communicator */
    bool stalled;
    bool resetting;
    uint64_t expires_ns; /* while parked */
};

/* Those of data and of messages: receive.c, message_streams.c. */
extern const struct stream_reader_kind data_reader_kind, message_reader_kind;

void stream_readers_register(struct exec *exec);
/* What the peer of the stream sent breaks the protocol: see exec_peer_violates. The communicator, if the
 * stream has one, hears of it first. */
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
/* The communicator is new: streams that are parked for it are its, and wait. */
void stream_readers_claim(struct exec_comm *comm);
/* The communicator ends: so do its streams. */
void stream_readers_detach(struct exec_comm *comm, const struct stream_reader_kind *kind);
/* The communicator ends: nobody waits for the reason of a stream's end any more. */
void stream_readers_forget_cut(struct exec_comm *comm);
/* Those of either kind that are parked for too long are reset; communicators that were cut fail. */
void stream_readers_expire(struct exec *exec, uint64_t now_ns);
uint64_t stream_readers_deadline_ns(const struct exec *exec);
/* After every communicator was freed. */
void stream_readers_free(struct exec *exec);

#endif
