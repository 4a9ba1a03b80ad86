#ifndef DAEMON_NET_STREAM_INTAKE_H
#define DAEMON_NET_STREAM_INTAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/net/net.h"

/*
 * The bytes of an incoming stream, from the link to the handler, and what the handler has asked for. Both
 * kinds of link use it: QUIC (quic_receive.c) and the bulk links (tls_receive.c). Bytes that the handler does
 * not take are kept here, at most as many as were granted, and handed out again after net_stream_resume.
 * Single-threaded.
 */

/* Zero at first, but for the grant. */
struct stream_intake {
    uint8_t *buffer; /* bytes not consumed */
    size_t buffer_first;
    size_t buffer_bytes;
    size_t buffer_capacity;
    uint64_t consumed_end; /* end offset of what was consumed, or is not wanted */
    uint64_t expected_end; /* end offset of what it will consume: see net_stream_expect */
    uint64_t granted_end;  /* end offset of what the sender may send */
    bool announced;        /* receive was called */
    bool held;             /* bytes wait for resume */
    bool resumed;
    bool calling; /* the handler runs */
    bool stopped; /* cancelled by our side */
    bool reset;   /* by the sender */
    bool ended;   /* the last byte has come */
    bool closing; /* calls made by the handler have no effect any more */
};

static inline const struct net_stream_handler *stream_handler(const struct net_stream *stream)
{
    return &stream->net->stream_handlers[stream->kind];
}

/* Returns the offset to which the stream has been received, in order. */
static inline uint64_t stream_intake_received(const struct stream_intake *intake)
{
    return intake->consumed_end + intake->buffer_bytes;
}

/*
 * Hands out the stream's next bytes, or only its end. What the handler does not take is kept; so are bytes
 * behind it. Bytes of a stream that was cancelled count as consumed. Returns false when out of memory.
 */
bool stream_intake_take(struct stream_intake *intake, struct net_stream *stream, const uint8_t *bytes,
                        size_t size, uint64_t now_ns) COMM_MUST_USE;
/* Keeps the bytes and hands nothing out. Returns false when out of memory. */
bool stream_intake_keep(struct stream_intake *intake, const uint8_t *bytes, size_t size) COMM_MUST_USE;
/* After net_stream_resume: hands out what was kept. */
void stream_intake_again(struct stream_intake *intake, struct net_stream *stream, uint64_t now_ns);
/*
 * Returns the offset up to which the sender may send now, if that is worth telling: by what was consumed and
 * what is expected, not byte by byte. 0: nothing new.
 */
uint64_t stream_intake_grant(const struct stream_intake *intake, const struct net_stream *stream);
/* net_stream_expect: returns whether there is something to grant, perhaps. */
bool stream_intake_expect(struct stream_intake *intake, uint64_t size);
/* net_stream_resume: returns whether there is something to hand out, perhaps. */
bool stream_intake_resume(struct stream_intake *intake);
/* Tells the handler that the stream is over, unless quiet or it never heard of it, and drops what was kept.
 */
void stream_intake_close(struct stream_intake *intake, struct net_stream *stream, const struct error *cause,
                         bool quiet, uint64_t now_ns);
void stream_intake_drop(struct stream_intake *intake);

#endif
