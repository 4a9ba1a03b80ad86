#include "proto/message_header.h"

#include <string.h>

#include "proto/little_endian.h"

void message_header_encode(const struct message_header *header, uint8_t out[MESSAGE_HEADER_BYTES])
{
    memset(out, 0, MESSAGE_HEADER_BYTES);
    put_u32_le(out, MESSAGE_HEADER_MAGIC);
    out[4] = MESSAGE_HEADER_VERSION;
    out[5] = (uint8_t)header->kind;
    out[6] = (uint8_t)header->dtype;
    out[7] = (uint8_t)header->status;
    put_u64_le(out + 8, header->comm_id);
    put_u64_le(out + 16, header->id);
    put_u32_le(out + 24, header->source_rank);
    put_u32_le(out + 28, header->to_rank);
    put_u32_le(out + 32, header->tag);
    put_u64_le(out + 40, header->count_elements);
    put_u64_le(out + 48, header->payload_bytes);
}

static bool kind_from_wire(unsigned number, enum message_kind *out)
{
    switch (number) {
#define X(name, value) case value:
        MESSAGE_KIND_LIST(X)
#undef X
        *out = (enum message_kind)number;
        return true;
    default:
        return false;
    }
}

/* Whether payload_bytes fits the header's kind, count and dtype. */
static bool payload_is_right(const struct message_header *header)
{
    uint64_t bytes;
    bool fits =
        !__builtin_mul_overflow(header->count_elements, (uint64_t)dtype_size_bytes(header->dtype), &bytes);
    switch (header->kind) {
    case MESSAGE_EAGER:
        return fits && bytes <= MESSAGE_EAGER_MAX_BYTES && header->payload_bytes == bytes;
    case MESSAGE_DATA:
        return fits && header->payload_bytes == bytes;
    case MESSAGE_ENVELOPE:
    case MESSAGE_ACCEPT:
    case MESSAGE_REFUSE:
    case MESSAGE_WITHDRAW:
    case MESSAGE_CREDIT:
        return header->payload_bytes == 0;
    }
    return false;
}

/* Only REFUSE and WITHDRAW have a status other than OK. */
static bool status_is_right(const struct message_header *header, unsigned number)
{
    bool fails = header->kind == MESSAGE_REFUSE || header->kind == MESSAGE_WITHDRAW;
    bool known = (unsigned)header->status == number && header->status != STATUS_IN_PROGRESS;
    return known && (header->status != STATUS_OK) == fails;
}

static enum status decode_fail(enum status status, const char *field, const char **what)
{
    *what = field;
    return status;
}

enum status message_header_decode(const uint8_t in[MESSAGE_HEADER_BYTES], struct message_header *header,
                                  const char **what)
{
    struct message_header read = {
        .comm_id = get_u64_le(in + 8),
        .id = get_u64_le(in + 16),
        .source_rank = get_u32_le(in + 24),
        .to_rank = get_u32_le(in + 28),
        .tag = get_u32_le(in + 32),
        .count_elements = get_u64_le(in + 40),
        .payload_bytes = get_u64_le(in + 48),
    };
    if (get_u32_le(in) != MESSAGE_HEADER_MAGIC) {
        return decode_fail(STATUS_PROTOCOL, "magic", what);
    }
    if (in[4] != MESSAGE_HEADER_VERSION) {
        return decode_fail(STATUS_VERSION, "version", what);
    }
    if (!kind_from_wire(in[5], &read.kind)) {
        return decode_fail(STATUS_PROTOCOL, "kind", what);
    }
    if (!dtype_from_wire(in[6], &read.dtype)) {
        return decode_fail(STATUS_PROTOCOL, "dtype", what);
    }
    read.status = status_from_wire(in[7]);
    if (!status_is_right(&read, in[7])) {
        return decode_fail(STATUS_PROTOCOL, "status", what);
    }
    if (get_u32_le(in + 36) != 0 || get_u64_le(in + 56) != 0) {
        return decode_fail(STATUS_PROTOCOL, "reserved", what);
    }
    if (!payload_is_right(&read)) {
        return decode_fail(STATUS_PROTOCOL, "payload_bytes", what);
    }
    *header = read;
    return STATUS_OK;
}
