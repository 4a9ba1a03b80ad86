#ifndef PROTO_DATA_HEADER_H
#define PROTO_DATA_HEADER_H

#include <stdint.h>

#include "proto/op_terms.h"
#include "proto/status.h"

/*
 * The header before every data message between nodes. It says which step of which operation the payload
 * belongs to, and repeats the operation's terms, so that the receiver can compare them with its own call
 * before a byte is stored or reduced.
 *
 * On the wire, little-endian:
 *    0 u32 magic    4 u8 version      5 three bytes of zero
 *    8 u64 comm_id                   16 u64 seq
 *   24 u32 generation                28 u32 slice
 *   32 u32 round                     36 u32 algorithm
 *   40 u64 payload_bytes             48 terms (proto/op_terms.h)
 */
#define DATA_HEADER_BYTES 80
#define DATA_HEADER_MAGIC 0x44444d43u /* the bytes "CMDD" */
#define DATA_HEADER_VERSION 2         /* changes with the layout above */
#define DATA_PAYLOAD_MAX_BYTES (1ull << 30)
/* What is not compressed goes in messages of so many bytes, as whole elements, and one of the rest. */
#define DATA_MESSAGE_BYTES (1ull << 20)

struct data_header {
    uint64_t comm_id;
    uint64_t seq;
    uint32_t generation;
    uint32_t slice;
    uint32_t round;
    uint32_t algorithm;     /* the registry's id */
    uint64_t payload_bytes; /* that follow this header, at most DATA_PAYLOAD_MAX_BYTES */
    struct op_terms terms;  /* of the whole operation; of a bucket, its first with the hash of all */
};

/* Writes all DATA_HEADER_BYTES. The caller keeps payload_bytes within its maximum and the terms valid. */
void data_header_encode(const struct data_header *header, uint8_t out[DATA_HEADER_BYTES]);

/*
 * Reads and checks what came from another node. STATUS_VERSION for a version that is not understood,
 * STATUS_PROTOCOL for a wrong magic, terms that are not valid, a payload beyond the maximum or a byte that
 * must be zero and is not; then *header is untouched and *what names the field ("dtype"; static storage).
 * Whether the fields agree with this node's operation is not known here.
 */
enum status data_header_decode(const uint8_t in[DATA_HEADER_BYTES], struct data_header *header,
                               const char **what) COMM_MUST_USE;

#endif
