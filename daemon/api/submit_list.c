#include <stdlib.h>
#include <string.h>

#include "daemon/api/session.h"

/*
 * Lists of submits, one by one: a packet may hold 30,000, whose structs take a hundred times its bytes and a
 * long time. Only the framing of protobuf is looked at here (protobuf.dev, "Encoding"); each submit is
 * unpacked when its turn comes.
 */

#define WIRE_VARINT 0u
#define WIRE_BYTES 2u
#define FIELD_ID 1u           /* Request.id */
#define FIELD_SUBMIT_LIST 16u /* Request.submit_list */
#define FIELD_SUBMITS 1u      /* SubmitList.submits */

/* False at the end, and for what is no number of at most 64 bits. */
static bool take_varint(const uint8_t *bytes, size_t size, size_t *at, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && *at < size; shift += 7) {
        uint8_t byte = bytes[(*at)++];
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            return true;
        }
    }
    return false;
}

/* A field of that number and kind BYTES at *at; *at is behind it then. */
static bool take_bytes(const uint8_t *bytes, size_t size, size_t *at, uint64_t field, size_t *begin,
                       size_t *length)
{
    uint64_t key, count;
    size_t next = *at;
    if (!take_varint(bytes, size, &next, &key) || key != (field << 3 | WIRE_BYTES) ||
        !take_varint(bytes, size, &next, &count) || count > size - next) {
        return false;
    }
    *begin = next;
    *length = (size_t)count;
    *at = next + (size_t)count;
    return true;
}

bool api_list_find(const uint8_t *packet, size_t size, const uint8_t **list, size_t *list_size)
{
    size_t at = 0, begin;
    uint64_t id;
    if (size > 0 && packet[0] == (FIELD_ID << 3 | WIRE_VARINT)) {
        at = 1;
        if (!take_varint(packet, size, &at, &id)) {
            return false;
        }
    }
    if (!take_bytes(packet, size, &at, FIELD_SUBMIT_LIST, &begin, list_size) || at != size) {
        return false;
    }
    *list = packet + begin;
    return true;
}

bool api_list_next(const uint8_t *list, size_t list_size, size_t *at, const uint8_t **submit,
                   size_t *submit_size)
{
    size_t begin;
    if (!take_bytes(list, list_size, at, FIELD_SUBMITS, &begin, submit_size)) {
        return false;
    }
    *submit = list + begin;
    return true;
}
