#ifndef DAEMON_MESH_MEMBER_RECORDS_H
#define DAEMON_MESH_MEMBER_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The wire form of what nodes tell each other about members. All integers are little-endian.
 *
 *     message: u8 format, u8 flags, u16 count; then a digest if the flags say so; then `count` records
 *     digest:  MEMBER_DIGEST_BUCKETS × u32
 *     record:  u64 id, u64 incarnation, u32 epoch, u8 votes, u8 flags, u16 zero
 *
 * A record says all that its sender knows of one node. It is a join-semilattice: of two records, the one with
 * the higher (incarnation, epoch) counts; at the same (incarnation, epoch) the votes and flags are united.
 * So records may come late, twice, and in any order.
 */
#define MEMBER_FORMAT 1u
#define MEMBER_HEADER_BYTES 4u
#define MEMBER_RECORD_BYTES 24u
#define MEMBER_DIGEST_BUCKETS 64u
#define MEMBER_DIGEST_BYTES (MEMBER_DIGEST_BUCKETS * 4u)
#define MEMBER_MESSAGE_MAX_BYTES 8192u
#define MEMBER_RECORDS_MAX                                                                                   \
    ((MEMBER_MESSAGE_MAX_BYTES - MEMBER_HEADER_BYTES - MEMBER_DIGEST_BYTES) / MEMBER_RECORD_BYTES)
/* An incarnation is 1 to this: microseconds of the wall clock, far from the end of 64 bits. */
#define MEMBER_INCARNATION_MAX (UINT64_MAX / 2)

#define MEMBER_HAS_DIGEST 1u   /* message flag */
#define MEMBER_WANTS_DIGEST 2u /* message flag: answer a digest that differs with yours */
#define MEMBER_RECORD_LEFT 1u  /* record flag: the node said goodbye */

struct member_record_wire {
    uint64_t id;
    uint64_t incarnation;
    uint32_t epoch;
    uint8_t votes; /* a bit for each of its observers that lost it */
    bool left;
};

/* A message under construction. It is sent if member_message_is_empty says no. */
struct member_message {
    uint32_t size;
    uint32_t count;
    uint8_t bytes[MEMBER_MESSAGE_MAX_BYTES];
};
void member_message_begin(struct member_message *message);
/* Adds the digest, before any record. */
void member_message_add_digest(struct member_message *message, const uint32_t *buckets, bool wants_answer);
/* Adds a record. Returns false if the message is full. */
bool member_message_add(struct member_message *message, const struct member_record_wire *record);
/* Whether it has neither a digest nor a record. */
bool member_message_is_empty(const struct member_message *message);

/* A message that was received. The bytes stay the caller's. */
struct member_reader {
    const uint8_t *digest;  /* or null */
    const uint8_t *records; /* `count` of them */
    uint32_t count;
    bool wants_digest;
};
/* Checks the whole message, every record included. Returns false and a reason if it is malformed. */
bool member_reader_begin(struct member_reader *reader, const uint8_t *bytes, size_t size, const char **why);
uint32_t member_reader_bucket(const struct member_reader *reader, uint32_t bucket);
struct member_record_wire member_reader_record(const struct member_reader *reader, uint32_t which);

#endif
