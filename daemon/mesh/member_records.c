#include "daemon/mesh/member_records.h"

#include <assert.h>

#include "proto/little_endian.h"

void member_message_begin(struct member_message *message)
{
    message->size = MEMBER_HEADER_BYTES;
    message->count = 0;
    message->bytes[0] = MEMBER_FORMAT;
    message->bytes[1] = 0;
    put_u16_le(message->bytes + 2, 0);
}

void member_message_add_digest(struct member_message *message, const uint32_t *buckets, bool wants_answer)
{
    assert(message->size == MEMBER_HEADER_BYTES);
    message->bytes[1] = MEMBER_HAS_DIGEST | (wants_answer ? MEMBER_WANTS_DIGEST : 0);
    for (uint32_t i = 0; i < MEMBER_DIGEST_BUCKETS; i++) {
        put_u32_le(message->bytes + message->size, buckets[i]);
        message->size += 4;
    }
}

bool member_message_add(struct member_message *message, const struct member_record_wire *record)
{
    if (message->count >= MEMBER_RECORDS_MAX) {
        return false;
    }
    assert(message->size + MEMBER_RECORD_BYTES <= MEMBER_MESSAGE_MAX_BYTES);
    uint8_t *at = message->bytes + message->size;
    put_u64_le(at, record->id);
    put_u64_le(at + 8, record->incarnation);
    put_u32_le(at + 16, record->epoch);
    at[20] = record->votes;
    at[21] = record->left ? MEMBER_RECORD_LEFT : 0;
    put_u16_le(at + 22, 0);
    message->size += MEMBER_RECORD_BYTES;
    message->count++;
    put_u16_le(message->bytes + 2, (uint16_t)message->count);
    return true;
}

bool member_message_is_empty(const struct member_message *message)
{
    return message->size == MEMBER_HEADER_BYTES;
}

static const char *record_fault(const uint8_t *at)
{
    uint64_t incarnation = get_u64_le(at + 8);
    if (get_u64_le(at) == 0 || incarnation == 0 || incarnation > MEMBER_INCARNATION_MAX) {
        return "a member record with an impossible id or incarnation";
    }
    if ((at[21] & ~MEMBER_RECORD_LEFT) != 0 || get_u16_le(at + 22) != 0) {
        return "a member record with unknown flags";
    }
    return NULL;
}

static const char *message_fault(struct member_reader *reader, const uint8_t *bytes, size_t size)
{
    if (size < MEMBER_HEADER_BYTES || size > MEMBER_MESSAGE_MAX_BYTES) {
        return "member news of an impossible size";
    }
    uint8_t flags = bytes[1];
    if (bytes[0] != MEMBER_FORMAT || (flags & ~(MEMBER_HAS_DIGEST | MEMBER_WANTS_DIGEST)) != 0 ||
        flags == MEMBER_WANTS_DIGEST) {
        return "member news of an unknown format";
    }
    size_t digest_bytes = (flags & MEMBER_HAS_DIGEST) != 0 ? MEMBER_DIGEST_BYTES : 0;
    uint32_t count = get_u16_le(bytes + 2);
    if (size != MEMBER_HEADER_BYTES + digest_bytes + count * (size_t)MEMBER_RECORD_BYTES ||
        count > MEMBER_RECORDS_MAX || size == MEMBER_HEADER_BYTES) {
        return "member news whose count does not fit its size";
    }
    reader->digest = digest_bytes != 0 ? bytes + MEMBER_HEADER_BYTES : NULL;
    reader->records = bytes + MEMBER_HEADER_BYTES + digest_bytes;
    reader->count = count;
    reader->wants_digest = (flags & MEMBER_WANTS_DIGEST) != 0;
    for (uint32_t i = 0; i < count; i++) {
        const char *fault = record_fault(reader->records + i * (size_t)MEMBER_RECORD_BYTES);
        if (fault != NULL) {
            return fault;
        }
    }
    return NULL;
}

bool member_reader_begin(struct member_reader *reader, const uint8_t *bytes, size_t size, const char **why)
{
    const char *fault = message_fault(reader, bytes, size);
    if (fault != NULL && why != NULL) {
        *why = fault;
    }
    return fault == NULL;
}

uint32_t member_reader_bucket(const struct member_reader *reader, uint32_t bucket)
{
    assert(reader->digest != NULL && bucket < MEMBER_DIGEST_BUCKETS);
    return get_u32_le(reader->digest + 4 * (size_t)bucket);
}

struct member_record_wire member_reader_record(const struct member_reader *reader, uint32_t which)
{
    assert(which < reader->count);
    const uint8_t *at = reader->records + which * (size_t)MEMBER_RECORD_BYTES;
    return (struct member_record_wire){.id = get_u64_le(at),
                                       .incarnation = get_u64_le(at + 8),
                                       .epoch = get_u32_le(at + 16),
                                       .votes = at[20],
                                       .left = (at[21] & MEMBER_RECORD_LEFT) != 0};
}
