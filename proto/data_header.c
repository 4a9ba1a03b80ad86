#include "proto/data_header.h"

#include <assert.h>

#include "proto/little_endian.h"

enum {
    OFFSET_MAGIC = 0,
    OFFSET_VERSION = 4,
    OFFSET_KIND = 5,
    OFFSET_DTYPE = 6,
    OFFSET_REDUCE = 7,
    OFFSET_COMM_ID = 8,
    OFFSET_SEQ = 16,
    OFFSET_GENERATION = 24,
    OFFSET_SLICE = 28,
    OFFSET_ROUND = 32,
    OFFSET_ROOT = 36,
    OFFSET_COUNT_ELEMENTS = 40,
    OFFSET_PAYLOAD_BYTES = 48,
    OFFSET_ALGORITHM = 56,
    OFFSET_DETAIL = 60
};

_Static_assert(OFFSET_DETAIL + 4 == DATA_HEADER_BYTES, "the fields fill the header");
_Static_assert(OP_KIND_COUNT <= 256 && DTYPE_COUNT <= 256 && REDUCE_COUNT <= 256, "each fits one byte");

void data_header_encode(const struct data_header *header, uint8_t out[DATA_HEADER_BYTES])
{
    assert(header->payload_bytes <= DATA_PAYLOAD_MAX_BYTES);
    put_u32_le(out + OFFSET_MAGIC, DATA_HEADER_MAGIC);
    out[OFFSET_VERSION] = DATA_HEADER_VERSION;
    out[OFFSET_KIND] = (uint8_t)header->kind;
    out[OFFSET_DTYPE] = (uint8_t)header->dtype;
    out[OFFSET_REDUCE] = (uint8_t)header->reduce;
    put_u64_le(out + OFFSET_COMM_ID, header->comm_id);
    put_u64_le(out + OFFSET_SEQ, header->seq);
    put_u32_le(out + OFFSET_GENERATION, header->generation);
    put_u32_le(out + OFFSET_SLICE, header->slice);
    put_u32_le(out + OFFSET_ROUND, header->round);
    put_u32_le(out + OFFSET_ROOT, header->root);
    put_u64_le(out + OFFSET_COUNT_ELEMENTS, header->count_elements);
    put_u64_le(out + OFFSET_PAYLOAD_BYTES, header->payload_bytes);
    put_u32_le(out + OFFSET_ALGORITHM, header->algorithm);
    put_u32_le(out + OFFSET_DETAIL, header->detail);
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
        .generation = get_u32_le(in + OFFSET_GENERATION),
        .comm_id = get_u64_le(in + OFFSET_COMM_ID),
        .seq = get_u64_le(in + OFFSET_SEQ),
        .slice = get_u32_le(in + OFFSET_SLICE),
        .round = get_u32_le(in + OFFSET_ROUND),
        .root = get_u32_le(in + OFFSET_ROOT),
        .algorithm = get_u32_le(in + OFFSET_ALGORITHM),
        .count_elements = get_u64_le(in + OFFSET_COUNT_ELEMENTS),
        .payload_bytes = get_u64_le(in + OFFSET_PAYLOAD_BYTES),
        .detail = get_u32_le(in + OFFSET_DETAIL),
    };
    if (get_u32_le(in + OFFSET_MAGIC) != DATA_HEADER_MAGIC) {
        return data_header_fail(STATUS_PROTOCOL, "magic", what);
    }
    if (in[OFFSET_VERSION] != DATA_HEADER_VERSION) {
        return data_header_fail(STATUS_VERSION, "version", what);
    }
    if (!op_kind_from_wire(in[OFFSET_KIND], &read.kind)) {
        return data_header_fail(STATUS_PROTOCOL, "kind", what);
    }
    if (!dtype_from_wire(in[OFFSET_DTYPE], &read.dtype)) {
        return data_header_fail(STATUS_PROTOCOL, "dtype", what);
    }
    if (!reduce_from_wire(in[OFFSET_REDUCE], &read.reduce)) {
        return data_header_fail(STATUS_PROTOCOL, "reduce", what);
    }
    if (read.payload_bytes > DATA_PAYLOAD_MAX_BYTES) {
        return data_header_fail(STATUS_PROTOCOL, "payload_bytes", what);
    }
    *header = read;
    return STATUS_OK;
}
