#ifndef PROTO_RECORDS_H
#define PROTO_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/op_terms.h"
#include "proto/status.h"
#include "proto/version.h"

/*
 * What a client submits, and what commd answers to it: records of a fixed layout, in a ring or in a packet of
 * the socket. A packet of the client's holds one submission or several, one behind the other; a packet of
 * commd's holds one completion. Everything else is protobuf (client.proto), and no message of that begins
 * with RECORD_MARK.
 *
 * Numbers are little-endian, the order of every machine that commd runs on, so a record is its struct.
 * Neither side trusts the other: it copies a record once, and checks the copy.
 */
#define RECORD_MARK 0x07 /* protobuf's wire type 7, which does not exist */
#define RECORD_VERSION 1

enum record_kind {
    RECORD_OPERATION = 1, /* answered by a completion of its ticket, also when it is refused */
    RECORD_EVENT = 2, /* when all that the rank submitted before has ended, and the waits are reached, commd
                         sets the word of its RECORD_ENDED. No answer. A ticket other than 0: messages with
                         higher tickets do not count, though they came before it. All but its head, ticket
                         and fences is zero */
    RECORD_COMPLETION = 3
};

/* Entries stand in this order; each comes once at most, but RECORD_WAIT. */
enum record_what {
    RECORD_INPUT = 1,
    RECORD_OUTPUT = 2,
    /* Counts and displacements where blocks differ: in the client's memory 2 × size numbers of 64 bits, how
     * many elements each rank's block has, then where each begins, in elements. Read once, before the answer.
     */
    RECORD_INPUT_LAYOUT = 3,  /* reduce_scatter_v, scatter_v (root), all_to_all_v */
    RECORD_OUTPUT_LAYOUT = 4, /* all_gather_v, gather_v (root), all_to_all_v */
    RECORD_RESIDUAL = 5,      /* count_elements f32, kept from call to call */
    RECORD_ENDED = 6, /* commd sets the word when the operation has ended, well or not, or is refused */
    RECORD_WAIT = 7   /* the operation begins when all these are reached; CLIENT_FENCES_MAX at most */
};
#define RECORD_ENTRIES_MAX (RECORD_ENDED + CLIENT_FENCES_MAX)

/* Where something lies in registered memory of the client's. */
struct record_entry {
    uint8_t what; /* enum record_what */
    uint8_t reserved[3];
    uint32_t memory;
    uint64_t offset_bytes;
    /* ENDED, WAIT: of a word of 64 bits in memory of the host, at a multiple of 8. Reached: the word is the
     * value or, as a signed difference, above it. Of others zero. */
    uint64_t value;
};

struct submit_record {
    uint8_t mark;
    uint8_t version;
    uint8_t kind; /* enum record_kind */
    uint8_t entry_count;
    uint32_t handle; /* of the communicator */
    uint64_t ticket; /* comes back in the completion; a rank's ascend */
    /* As the rank says them. hash and has_residual are zero: commd makes them of what it reads. */
    struct op_terms terms;
    double factor;       /* premul_sum */
    uint64_t timeout_ms; /* 0: the communicator's */
    uint32_t peer_rank;  /* send, recv; COMM_ANY_SOURCE_RANK */
    uint32_t tag;
    struct record_entry entries[RECORD_ENTRIES_MAX]; /* entry_count of them are sent */
};
#define SUBMIT_RECORD_MIN_BYTES offsetof(struct submit_record, entries)

struct completion_record {
    uint8_t mark;
    uint8_t version;
    uint8_t kind;
    uint8_t reserved;
    uint32_t handle;
    uint64_t ticket;
    uint64_t count_elements;                    /* recv: that came */
    uint32_t source_rank;                       /* recv */
    uint16_t status;                            /* proto/status.h */
    uint16_t text_bytes;                        /* 0 where the status is OK */
    char text[CLIENT_ERROR_TEXT_MAX_BYTES + 1]; /* text_bytes of it are sent; terminated here */
};
#define COMPLETION_RECORD_MIN_BYTES offsetof(struct completion_record, text)

_Static_assert(SUBMIT_RECORD_MIN_BYTES == 72 && offsetof(struct submit_record, terms) == 16 &&
                   sizeof(struct record_entry) == 24 && COMPLETION_RECORD_MIN_BYTES == 32,
               "the layout is fixed, without holes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a record is its struct");

static inline bool packet_is_record(const void *packet, size_t size_bytes)
{
    return size_bytes > 0 && *(const uint8_t *)packet == RECORD_MARK;
}

/* --- Writing --- */

/* A submission of nothing yet, on one rank: terms of an operation that runs alone, and no entries. */
void submit_record_begin(struct submit_record *record, enum record_kind kind, uint32_t handle);
/* Adds an entry; the caller keeps their order, and their maxima. value: of a fence; else 0. */
void submit_record_add(struct submit_record *record, enum record_what what, uint32_t memory,
                       uint64_t offset_bytes, uint64_t value);
/* What a record takes in a packet. */
static inline size_t submit_record_bytes(const struct submit_record *record)
{
    return SUBMIT_RECORD_MIN_BYTES + record->entry_count * sizeof record->entries[0];
}

/* A completion that ended well. */
void completion_record_begin(struct completion_record *record, uint32_t handle, uint64_t ticket);
/* Of one that did not. The text is cut to CLIENT_ERROR_TEXT_MAX_BYTES; null: none. */
void completion_record_fail(struct completion_record *record, enum status status, const char *text);
static inline size_t completion_record_bytes(const struct completion_record *record)
{
    return COMPLETION_RECORD_MIN_BYTES + record->text_bytes;
}

/* --- Reading what came --- */

/*
 * Copies the submission that the bytes begin with, and checks the copy, all but two: whether the terms are
 * valid (op_terms_are_valid: such an operation is refused alone), and whether handle and memories exist.
 * Returns its bytes; 0: it cannot be, and *what names the field (static storage).
 */
size_t submit_record_read(const void *bytes, size_t size_bytes, struct submit_record *out, const char **what);

/* The entry that comes once at most; null: there is none. */
const struct record_entry *submit_record_find(const struct submit_record *record, enum record_what what);

/* A packet that is a completion, likewise. False: it is none. */
bool completion_record_read(const void *packet, size_t size_bytes, struct completion_record *out,
                            const char **what);

#endif
