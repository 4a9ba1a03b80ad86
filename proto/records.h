#ifndef PROTO_RECORDS_H
#define PROTO_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/op_terms.h"
#include "proto/status.h"
#include "proto/version.h"

/*
 * What a client submits, and what commd answers: records of a fixed layout, in a ring or in a packet of the
 * socket. A packet from the client holds one or more submissions, one after the other. A packet from commd
 * holds one completion. Everything else is protobuf (client.proto), and no protobuf message begins with
 * RECORD_MARK.
 *
 * Numbers are little-endian, the byte order of every machine that commd runs on, so a record is its struct.
 * Neither side trusts the other: it copies a record once, and checks the copy.
 */
#define RECORD_MARK 0x07 /* protobuf's wire type 7, which does not exist */
#define RECORD_VERSION 1

enum record_kind {
    RECORD_OPERATION = 1, /* answered by a completion of its ticket, also if it is refused */
    /* commd sets the word of its RECORD_ENDED when the rank's earlier submissions have ended, and the waits
     * are reached. No answer. With a ticket other than 0, earlier messages with higher tickets do not count.
     * Only its head, ticket and fences are not zero. */
    RECORD_EVENT = 2,
    RECORD_COMPLETION = 3,
    /*
     * An operation of a CUDA graph. commd keeps it, and answers by a completion whether it does. Its
     * RECORD_WAIT is a word that the graph sets to 1 at each replay; commd then sets it to 0 and runs the
     * operation. Its RECORD_ENDED is a word that commd sets to 1 at each end, however the operation ended.
     * Replays are not answered, but those that fail are: by a completion of the same ticket. A communicator's
     * captured operations run in the order in which they came, again and again.
     */
    RECORD_CAPTURED = 4
    /* 5 and 6 belonged to operations in windows, which are gone. */
};

/* Entries must have this order. Each occurs at most once, except RECORD_WAIT. */
enum record_what {
    RECORD_INPUT = 1,
    RECORD_OUTPUT = 2,
    /* Counts and displacements, where blocks differ: 2 × size numbers of 64 bits in the client's memory.
     * First the element count of each rank's block, then where each begins, in elements. commd reads them
     * once, before the answer. */
    RECORD_INPUT_LAYOUT = 3,  /* reduce_scatter_v, scatter_v (root), all_to_all_v */
    RECORD_OUTPUT_LAYOUT = 4, /* all_gather_v, gather_v (root), all_to_all_v */
    RECORD_RESIDUAL = 5,      /* count_elements f32, kept between calls */
    RECORD_ENDED = 6,         /* commd sets the word when the operation has ended, failed, or is refused */
    RECORD_WAIT = 7, /* the operation begins when all of these are reached; at most CLIENT_FENCES_MAX */
    /* 8 belonged to operations in windows, which are gone. */
    /* The collective's number, if the communicator has cells (proto/cells.h). The numbers that are left out
     * are operations that went through cells. Instead of the offset: for how many milliseconds the collective
     * has waited there already. */
    RECORD_NUMBER = 9
};
#define RECORD_ENTRIES_MAX (RECORD_ENDED + CLIENT_FENCES_MAX + 1)

/* A place in registered memory of the client. */
struct record_entry {
    uint8_t what; /* enum record_what */
    uint8_t reserved[3];
    uint32_t memory;
    uint64_t offset_bytes;
    /* ENDED, WAIT: value of a 64-bit word in host memory, at a multiple of 8. A WAIT is reached when the word
     * equals the value or, as a signed difference, is above it. NUMBER: the number. Other entries: zero. */
    uint64_t value;
};

struct submit_record {
    uint8_t mark;
    uint8_t version;
    uint8_t kind; /* enum record_kind */
    uint8_t entry_count;
    uint32_t handle; /* of the communicator */
    uint64_t ticket; /* comes back in the completion; a rank's tickets ascend */
    /* As the rank gives them. hash and has_residual are zero: commd derives them from what it reads. */
    struct op_terms terms;
    double factor;       /* premul_sum */
    uint64_t timeout_ms; /* 0: the communicator's timeout */
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
    uint64_t count_elements;                    /* recv: elements received */
    uint32_t source_rank;                       /* recv */
    uint16_t status;                            /* proto/status.h */
    uint16_t text_bytes;                        /* 0 if the status is OK */
    char text[CLIENT_ERROR_TEXT_MAX_BYTES + 1]; /* text_bytes of it are sent; terminated in memory */
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

/* Starts a submission: terms of an operation that runs alone, and no entries. */
void submit_record_begin(struct submit_record *record, enum record_kind kind, uint32_t handle);
/* Adds an entry. The caller keeps the order and the limits. value: of a fence or a number; else 0. */
void submit_record_add(struct submit_record *record, enum record_what what, uint32_t memory,
                       uint64_t offset_bytes, uint64_t value);
/* The bytes that a record takes in a packet. */
static inline size_t submit_record_bytes(const struct submit_record *record)
{
    return SUBMIT_RECORD_MIN_BYTES + record->entry_count * sizeof record->entries[0];
}

/* A successful completion. */
void completion_record_begin(struct completion_record *record, uint32_t handle, uint64_t ticket);
/* Makes it a failed one. Cuts the text to CLIENT_ERROR_TEXT_MAX_BYTES; null: no text. */
void completion_record_fail(struct completion_record *record, enum status status, const char *text);
static inline size_t completion_record_bytes(const struct completion_record *record)
{
    return COMPLETION_RECORD_MIN_BYTES + record->text_bytes;
}

/* --- Reading what came --- */

/*
 * Copies the first submission of the bytes, and checks the copy. It does not check whether the terms are
 * valid (op_terms_are_valid: only that operation is refused), or whether handle and memories exist. Returns
 * the record's bytes, or 0 if it is malformed; *what then names the field (static storage).
 */
size_t submit_record_read(const void *bytes, size_t size_bytes, struct submit_record *out, const char **what);

/* Finds an entry that occurs at most once. Returns null if there is none. */
const struct record_entry *submit_record_find(const struct submit_record *record, enum record_what what);

/* Copies and checks a completion packet, like submit_record_read. Returns false if the packet is not a
 * completion. */
bool completion_record_read(const void *packet, size_t size_bytes, struct completion_record *out,
                            const char **what);

#endif
