#ifndef PROTO_DATA_HEADER_H
#define PROTO_DATA_HEADER_H

#include <stdint.h>

#include "proto/status.h"
#include "proto/types.h"

/*
 * The header before every data message between nodes. It says which step of which operation the payload
 * belongs to, and repeats what the ranks called, so that the receiver can compare it with its own call before
 * a byte is stored or reduced.
 *
 * On the wire, little-endian:
 *    0 u32 magic    4 u8 version      5 u8 kind      6 u8 dtype    7 u8 reduce
 *    8 u64 comm_id                   16 u64 seq
 *   24 u32 generation                28 u32 slice
 *   32 u32 round                     36 u32 root
 *   40 u64 count_elements            48 u64 payload_bytes
 *   56 u32 algorithm                 60 u32 detail
 */
#define DATA_HEADER_BYTES 64
#define DATA_HEADER_MAGIC 0x44444d43u /* the bytes "CMDD" */
#define DATA_HEADER_VERSION 1         /* changes with the layout above */
#define DATA_PAYLOAD_MAX_BYTES (1ull << 30)

struct data_header {
    enum op_kind kind;
    enum dtype dtype;
    enum reduce reduce;
    uint32_t generation;
    uint64_t comm_id;
    uint64_t seq;
    uint32_t slice;
    uint32_t round;
    uint32_t root;           /* rank */
    uint32_t algorithm;      /* the registry's id */
    uint64_t count_elements; /* of the whole operation */
    uint64_t payload_bytes;  /* that follow this header, at most DATA_PAYLOAD_MAX_BYTES */
    uint32_t detail;         /* a digest of whatever else the ranks must agree on */
};

/* Writes all DATA_HEADER_BYTES. The caller keeps payload_bytes within its maximum and the enums listed. */
void data_header_encode(const struct data_header *header, uint8_t out[DATA_HEADER_BYTES]);

/*
 * Reads and checks what came from another node. STATUS_VERSION for a version that is not understood,
 * STATUS_PROTOCOL for a wrong magic, a number that is not in its list or a payload beyond the maximum; then
 * *header is untouched and *what names the field ("dtype"; static storage). Whether the fields agree with
 * this node's operation is not known here.
 */
enum status data_header_decode(const uint8_t in[DATA_HEADER_BYTES], struct data_header *header,
                               const char **what) COMM_MUST_USE;

#endif
