#ifndef PROTO_MESSAGE_HEADER_H
#define PROTO_MESSAGE_HEADER_H

#include <stdint.h>

#include "proto/status.h"
#include "proto/types.h"

/*
 * The header of messages between ranks, on streams of their own. On the wire, little-endian:
 *    0 u32 magic     4 u8 version     5 u8 kind     6 u8 dtype     7 u8 status
 *    8 u64 comm_id                   16 u64 id
 *   24 u32 source_rank               28 u32 to_rank
 *   32 u32 tag                       36 u32 zero
 *   40 u64 count_elements            48 u64 payload_bytes
 *   56 u64 zero
 */
#define MESSAGE_HEADER_BYTES 64
#define MESSAGE_HEADER_MAGIC 0x4d44434du /* the bytes "MCDM" */
#define MESSAGE_HEADER_VERSION 2
#define MESSAGE_EAGER_MAX_BYTES 16384 /* payloads up to this go with their envelope */

/* X(name, number): the kind of a header, and its sender. */
#define MESSAGE_KIND_LIST(X)                                                                                 \
    X(EAGER, 1)    /* sender: a message, payload behind the header */                                        \
    X(ENVELOPE, 2) /* sender: a message whose payload is sent when it is accepted */                         \
    X(ACCEPT, 3)   /* receiver: a receive took that envelope: send its payload */                            \
    X(REFUSE, 4)   /* receiver: the message ends, for that status. MISMATCH: the receive has another dtype   \
                      or is too small: dtype and count are those of the receive */                           \
    X(DATA, 5)     /* sender: the payload, on a stream of its own */                                         \
    X(WITHDRAW, 6) /* sender: the message of that envelope ends, for that status */                          \
    X(CREDIT, 7)   /* receiver: of the pair's eager data count_elements bytes are taken; id is 0 */

enum message_kind {
#define X(name, number) MESSAGE_##name = number,
    MESSAGE_KIND_LIST(X)
#undef X
};

struct message_header {
    enum message_kind kind;
    enum dtype dtype;
    uint64_t comm_id;
    enum status status; /* of REFUSE and WITHDRAW: the reason; otherwise OK */
    uint64_t id; /* per sending node, communicator and receiving node: 1, 2, 3, … in the order sent */
    uint32_t source_rank;
    uint32_t to_rank;
    uint32_t tag;
    uint64_t count_elements;
    uint64_t payload_bytes; /* bytes that follow: of EAGER and DATA, count_elements elements; otherwise 0 */
};

void message_header_encode(const struct message_header *header, uint8_t out[MESSAGE_HEADER_BYTES]);

/*
 * Reads and checks a header from another node. Returns STATUS_VERSION for an unknown version. Returns
 * STATUS_PROTOCOL for a number that is not in its list, a payload that contradicts count and dtype (or is too
 * large for EAGER), or a non-zero field that must be zero. On an error *header is untouched and *what names
 * the field (static storage).
 */
enum status message_header_decode(const uint8_t in[MESSAGE_HEADER_BYTES], struct message_header *header,
                                  const char **what) COMM_MUST_USE;

#endif
