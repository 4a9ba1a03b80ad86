#include "proto/data_header.h"

#include <assert.h>
#include <string.h>

#include "proto/little_endian.h"

enum {
    OFFSET_MAGIC = 0,
    OFFSET_VERSION = 4,
    OFFSET_ZERO = 5,
    OFFSET_COMM_ID = 8,
    OFFSET_SEQ = 16,
    OFFSET_GENERATION = 24,
    OFFSET_SLICE = 28,
    OFFSET_ROUND = 32,
    OFFSET_ALGORITHM = 36,
    OFFSET_PAYLOAD_BYTES = 40,
    OFFSET_TERMS = 48
};

_Static_assert(OFFSET_TERMS + OP_TERMS_BYTES == DATA_HEADER_BYTES, "the fields fill the header");

void data_header_encode(const struct data_header *header, uint8_t out[DATA_HEADER_BYTES])
{
    assert(header->payload_bytes <= DATA_PAYLOAD_MAX_BYTES);
    put_u32_le(out + OFFSET_MAGIC, DATA_HEADER_MAGIC);
    out[OFFSET_VERSION] = DATA_HEADER_VERSION;
    memset(out + OFFSET_ZERO, 0, OFFSET_COMM_ID - OFFSET_ZERO);
    put_u64_le(out + OFFSET_COMM_ID, header->comm_id);
    put_u64_le(out + OFFSET_SEQ, header->seq);
    put_u32_le(out + OFFSET_GENERATION, header->generation);
    put_u32_le(out + OFFSET_SLICE, header->slice);
    put_u32_le(out + OFFSET_ROUND, header->round);
    put_u32_le(out + OFFSET_ALGORITHM, header->algorithm);
    put_u64_le(out + OFFSET_PAYLOAD_BYTES, header->payload_bytes);
    op_terms_encode(&header->terms, out + OFFSET_TERMS);
}

static enum status data_header_fail(enum status status, const char *field, const char **what)
{
    *what = field;
    return status;
}

enum status data_header_decode(const uint8_t in[DATA_HEADER_BYTES], struct data_header *header,
                               const char **what)
{
    struct data_header read = {
        .comm_id = get_u64_le(in + OFFSET_COMM_ID),
        .seq = get_u64_le(in + OFFSET_SEQ),
        .generation = get_u32_le(in + OFFSET_GENERATION),
        .slice = get_u32_le(in + OFFSET_SLICE),
        .round = get_u32_le(in + OFFSET_ROUND),
        .algorithm = get_u32_le(in + OFFSET_ALGORITHM),
        .payload_bytes = get_u64_le(in + OFFSET_PAYLOAD_BYTES),
    };
    if (get_u32_le(in + OFFSET_MAGIC) != DATA_HEADER_MAGIC) {
        return data_header_fail(STATUS_PROTOCOL, "magic", what);
    }
    if (in[OFFSET_VERSION] != DATA_HEADER_VERSION) {
        return data_header_fail(STATUS_VERSION, "version", what);
    }
    for (int i = OFFSET_ZERO; i < OFFSET_COMM_ID; i++) {
        if (in[i] != 0) {
            return data_header_fail(STATUS_PROTOCOL, "reserved", what);
        }
    }
    op_terms_decode(in + OFFSET_TERMS, &read.terms);
    if (!op_terms_are_valid(&read.terms, what)) {
        return STATUS_PROTOCOL;
    }
    if (read.payload_bytes > DATA_PAYLOAD_MAX_BYTES) {
        return data_header_fail(STATUS_PROTOCOL, "payload_bytes", what);
    }
    *header = read;
    return STATUS_OK;
}
