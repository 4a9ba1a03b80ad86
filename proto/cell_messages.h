#ifndef PROTO_CELL_MESSAGES_H
#define PROTO_CELL_MESSAGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/types.h"

/*
 * Short messages between two ranks of one node, without commd in the way. For each sender and receiver, the
 * segment of the cells (proto/cells.h) has a ring: slots, one for each message, and places for longer data.
 * Only the sender writes there. A message that is in the ring has been sent: its sender needs nothing more.
 *
 * Messages also go through commd: long ones, those from GPUs, and all between nodes. A receive must take the
 * oldest message of its sender and tag, whichever way it came. So the two ways take turns:
 *
 * - The sender counts the messages that it has given to commd (`to_commd`), and the receiver those that it
 *   has received from there (`from_commd`). While the counts differ, the sender gives all to commd. So
 *   whatever is in the ring is older than whatever the receiver has not received from commd.
 * - Before the receiver gives a receive to commd, it takes all messages out of the ring, and closes it. While
 *   it is closed, the sender gives all to commd. When no receive for this sender is left there, the receiver
 *   opens the ring again.
 *
 * The word of the next slot decides between both sides. The sender publishes message n, and the receiver
 * closes the ring before message n, by exchanging the word that stands for "open". So one of them comes
 * first, and the other one sees it.
 *
 * If a message fails in commd, the counts may stay different. Then all messages of the pair go through commd.
 *
 * The receiver does not trust the ring: it reads each word once, and checks what is said. A sender that
 * writes nonsense harms its own communicator.
 */
#define CELL_MESSAGES_SLOTS 128u
/* Places for longer data, and the longest message: of two ranks. Longer messages wait in commd. */
#define CELL_MESSAGES_DATA_MAX_BYTES 262144u
#define CELL_MESSAGE_MAX_BYTES 65536u
#define CELL_MESSAGES_DATA_MIN_BYTES 32768u
#define CELL_MESSAGE_SHORT_MAX_BYTES 40u /* data that lie in the slot */
#define CELL_MESSAGES_LINE_BYTES ((size_t)64)

struct cell_message_said {
    uint64_t count_elements;
    uint32_t tag;
    uint32_t dtype;
};

/* One line: for a short message, the receiver fetches nothing else. */
struct cell_message_slot {
    _Alignas(64) _Atomic uint64_t word;
    uint32_t count_elements;
    uint32_t tag;
    uint32_t dtype;
    uint32_t unused;
    unsigned char data[CELL_MESSAGE_SHORT_MAX_BYTES];
};
_Static_assert(sizeof(struct cell_message_slot) == 64, "the layout is fixed");

/* From one rank to another one. All zero at first: it was never open. */
struct cell_messages {
    _Alignas(128) _Atomic uint64_t to_commd;   /* the sender's */
    _Alignas(128) _Atomic uint64_t from_commd; /* the receiver's, as `freed` */
    _Atomic uint64_t freed;                    /* so many messages' slots and places can be used again */
    _Atomic uint64_t opened;                   /* 1: the receiver has opened it once */
    _Alignas(128) struct cell_message_slot slots[CELL_MESSAGES_SLOTS];
    unsigned char data[]; /* cell_messages_data_bytes */
};
_Static_assert(sizeof(struct cell_messages) % 128 == 0, "rings follow each other");

/* So that the rings of one rank together take about a megabyte at most, if they are all used. */
static inline uint32_t cell_messages_data_bytes(uint32_t rank_count)
{
    uint32_t bytes = CELL_MESSAGES_DATA_MAX_BYTES;
    while (bytes > CELL_MESSAGES_DATA_MIN_BYTES && bytes * (rank_count - 1) > 1u << 20) {
        bytes /= 2;
    }
    return bytes;
}

static inline size_t cell_messages_bytes(uint32_t rank_count)
{
    return sizeof(struct cell_messages) + cell_messages_data_bytes(rank_count);
}

/* The longest message that a ring takes. */
static inline size_t cell_message_max_bytes(uint32_t data_bytes)
{
    return data_bytes / 4 < CELL_MESSAGE_MAX_BYTES ? data_bytes / 4 : CELL_MESSAGE_MAX_BYTES;
}

/* The sender's side. Zero but for `ring` and `data_bytes`. */
struct cell_messages_out {
    struct cell_messages *ring;
    uint32_t data_bytes;
    uint64_t sent;
    uint64_t freed;                     /* as read last, */
    uint64_t freed_at;                  /* and where the places in use begin */
    uint64_t at;                        /* where the next place may begin; ascends */
    uint64_t ends[CELL_MESSAGES_SLOTS]; /* `at` after each message */
    uint64_t to_commd;
};

/* The receiver's side. Zero but for `ring` and `data_bytes`. */
struct cell_messages_in {
    struct cell_messages *ring;
    uint32_t data_bytes;
    uint64_t taken;
    uint64_t at;
    uint64_t from_commd;
    bool open;
};

enum cell_message_fate {
    CELL_MESSAGE_SENT,
    CELL_MESSAGE_FULL,    /* the ring has no room now */
    CELL_MESSAGE_BY_COMMD /* it is closed, or commd has earlier messages */
};
/* Sends a message of at most cell_message_max_bytes, unless it says something else. Afterwards, wake the
 * receiver if it sleeps. */
enum cell_message_fate cell_messages_put(struct cell_messages_out *out, const struct cell_message_said *said,
                                         const void *data, size_t size_bytes);
/* Before the sender gives a message to commd. */
void cell_messages_count_sent(struct cell_messages_out *out);

enum cell_message_look {
    CELL_MESSAGE_NONE,
    CELL_MESSAGE_THERE,
    CELL_MESSAGE_NONSENSE /* the ring can be read no more */
};
/* The next message; its data stay where they are until it is taken. */
struct cell_message_found {
    struct cell_message_said said;
    size_t size_bytes;
    const unsigned char *data;
    uint64_t at; /* for cell_messages_take */
};
enum cell_message_look cell_messages_look(const struct cell_messages_in *in, struct cell_message_found *out);
/* The message that was found has been copied. */
void cell_messages_take(struct cell_messages_in *in, const struct cell_message_found *found);
/* Lets the sender use the slots and places of all messages that were taken. */
void cell_messages_free_taken(struct cell_messages_in *in);
/* Closes the ring, unless it is closed. Returns false if a message is there. */
bool cell_messages_close(struct cell_messages_in *in);
void cell_messages_open(struct cell_messages_in *in);
/* The receiver has received a message through commd. */
void cell_messages_count_received(struct cell_messages_in *in);
/* Whether the sender has given messages to commd that were not received. */
bool cell_messages_commd_has_any(const struct cell_messages_in *in);
/* Whether there is something new for a receiver that has taken so many messages and received so many through
 * commd. Any thread. */
bool cell_messages_have_news(struct cell_messages *ring, uint64_t taken, uint64_t from_commd);

#endif
