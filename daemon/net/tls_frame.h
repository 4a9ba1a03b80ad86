#ifndef DAEMON_NET_TLS_FRAME_H
#define DAEMON_NET_TLS_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The frames of a bulk link (tls.h). Each is a header, and for some types a body. Wire format, little-endian:
 *
 *   u8 type, u8 flags, u16 kind, u32 body bytes, u64 number, u64 offset, u64 zero
 *
 * The number is the stream's, except in greetings. Pure: no I/O, no memory.
 */
#define TLS_FRAME_HEADER_BYTES 32u
#define TLS_FRAME_DATA_MAX_BYTES (256u << 10) /* of a frame of data, its header included */

enum tls_frame_type {
    TLS_FRAME_DATA = 1,    /* bytes of a stream from `offset` on; flag: they end it */
    TLS_FRAME_CREDIT = 2,  /* the stream may send up to `offset` */
    TLS_FRAME_RECEIPT = 3, /* the receiver has the stream up to `offset`; flag: and its end */
    TLS_FRAME_RESET = 4,   /* the sender gives the stream up */
    TLS_FRAME_STOP = 5,    /* the receiver wants no more of the stream */
    /* quic_greeting.h is the body; the number is the epoch, `offset` is 0. See tls_peer.c. */
    TLS_FRAME_GREETING = 6,
    /* The node that dials sends its bulk data this way now, 0 or 1 of tls_choice.h, which is the number. */
    TLS_FRAME_WAY = 7
};
#define TLS_FRAME_END 1u /* flag */

struct tls_frame {
    enum tls_frame_type type;
    bool end;
    uint16_t kind; /* of DATA: enum net_stream_kind */
    uint32_t body_bytes;
    uint64_t number;
    uint64_t offset;
};

void tls_frame_encode(const struct tls_frame *frame, uint8_t out[TLS_FRAME_HEADER_BYTES]);

/*
 * Cuts a sequence of bytes into frames. Zero at first. The owner's functions are called in the order of the
 * frames; each returns whether to go on.
 */
struct tls_frame_reader {
    uint8_t header[TLS_FRAME_HEADER_BYTES];
    uint32_t header_have;
    bool in_frame;
    struct tls_frame frame;
    uint32_t left; /* bytes of the body that have not come yet */
};

struct tls_frame_handler {
    void *context;
    /* A header has come, and no body is taken yet. */
    bool (*begin)(void *context, const struct tls_frame *frame);
    /* The next bytes of the body, at least one. */
    bool (*body)(void *context, const struct tls_frame *frame, uint64_t at, const uint8_t *bytes,
                 size_t size);
    /* All of the frame has come. */
    bool (*end)(void *context, const struct tls_frame *frame);
    void (*wrong)(void *context, const char *what);
};

/* Returns false if a function said so, or after `wrong`. The reader is not used again then. */
bool tls_frame_read(struct tls_frame_reader *reader, const struct tls_frame_handler *handler,
                    const uint8_t *bytes, size_t size);

#endif
