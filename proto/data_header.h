#ifndef PROTO_DATA_HEADER_H
#define PROTO_DATA_HEADER_H

#include <stdint.h>

#include "proto/op_terms.h"
#include "proto/status.h"

/*
 * The header before every data message between nodes. It says which step of which operation the payload
 * belongs to. It also repeats the operation's terms: the receiver compares them with its own call before a
 * byte is stored or reduced.
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
/*
 * Data that are not compressed go in messages of so many bytes, in whole elements; the last one has the rest.
 */
#define DATA_MESSAGE_BYTES (1ull << 20)

struct data_header {
    uint64_t comm_id;
    uint64_t seq;
    uint32_t generation;
    uint32_t slice;
    uint32_t round;
    uint32_t algorithm;     /* its id in the registry */
    uint64_t payload_bytes; /* that follow this header, at most DATA_PAYLOAD_MAX_BYTES */
    struct op_terms terms;  /* of the operation; of a bucket: of its first, with the hash of all */
};

/* Writes all DATA_HEADER_BYTES. The caller ensures that payload_bytes is within its maximum and the terms are
 * valid. */
void data_header_encode(const struct data_header *header, uint8_t out[DATA_HEADER_BYTES]);

/*
 * Reads and checks a header from another node. Returns STATUS_VERSION if the version is unknown. Returns
 * STATUS_PROTOCOL for a wrong magic, invalid terms, a payload beyond the maximum, or a non-zero byte that
 * must be zero. On an error *header is untouched and *what names the field ("dtype"; static storage). This
 * does not check whether the fields agree with this node's operation.
 */
enum status data_header_decode(const uint8_t in[DATA_HEADER_BYTES], struct data_header *header,
                               const char **what) COMM_MUST_USE;

#endif
