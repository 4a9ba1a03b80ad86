#include "proto/cell_messages.h"

#include <string.h>

/* Words of slots. 0: open, and the slot had no message yet. */
#define WORD_FULL 2u
#define WORD_CLOSED 3u
#define WORD_STATES 4u

static uint64_t full(uint64_t number)
{
    return number * WORD_STATES + WORD_FULL;
}

static uint64_t closed(uint64_t number)
{
    return number * WORD_STATES + WORD_CLOSED;
}

/* What the slot of the message has while the ring is open and the message has not come. */
static uint64_t open_word(uint64_t number)
{
    return number > CELL_MESSAGES_SLOTS ? full(number - CELL_MESSAGES_SLOTS) : 0;
}

static struct cell_message_slot *slot_of(struct cell_messages *ring, uint64_t number)
{
    return &ring->slots[number % CELL_MESSAGES_SLOTS];
}

/* Where the data begin, if the places from `at` on are free. Sets *end. */
static uint64_t place(uint32_t data_bytes, uint64_t at, size_t size_bytes, uint64_t *end)
{
    if (size_bytes <= CELL_MESSAGE_SHORT_MAX_BYTES) {
        *end = at;
        return at;
    }
    uint64_t left = data_bytes - at % data_bytes;
    uint64_t begin = size_bytes <= left ? at : at + left;
    *end = begin +
           (size_bytes + CELL_MESSAGES_LINE_BYTES - 1) / CELL_MESSAGES_LINE_BYTES * CELL_MESSAGES_LINE_BYTES;
    return begin;
}

/* --- The sender --- */

static void read_freed(struct cell_messages_out *out)
{
    uint64_t freed = atomic_load_explicit(&out->ring->freed, memory_order_acquire);
    if (freed > out->freed && freed <= out->sent) {
        out->freed = freed;
        out->freed_at = out->ends[freed % CELL_MESSAGES_SLOTS];
    }
}

static bool has_room(const struct cell_messages_out *out, uint64_t end)
{
    return out->sent - out->freed < CELL_MESSAGES_SLOTS && end - out->freed_at <= out->data_bytes;
}

enum cell_message_fate cell_messages_put(struct cell_messages_out *out, const struct cell_message_said *said,
                                         const void *data, size_t size_bytes)
{
    struct cell_messages *ring = out->ring;
    uint64_t number = out->sent + 1, end, begin = place(out->data_bytes, out->at, size_bytes, &end);
    struct cell_message_slot *slot = slot_of(ring, number);
    if (atomic_load_explicit(&ring->from_commd, memory_order_acquire) != out->to_commd ||
        atomic_load_explicit(&ring->opened, memory_order_relaxed) == 0) {
        return CELL_MESSAGE_BY_COMMD;
    }
    if (!has_room(out, end)) {
        read_freed(out);
        if (!has_room(out, end)) {
            return CELL_MESSAGE_FULL;
        }
    }
    uint64_t expected = open_word(number);
    if (atomic_load_explicit(&slot->word, memory_order_relaxed) != expected) {
        return CELL_MESSAGE_BY_COMMD;
    }
    unsigned char *to =
        size_bytes <= CELL_MESSAGE_SHORT_MAX_BYTES ? slot->data : ring->data + begin % out->data_bytes;
    slot->count_elements = (uint32_t)said->count_elements;
    slot->tag = said->tag;
    slot->dtype = said->dtype;
    if (size_bytes > 0) {
        memcpy(to, data, size_bytes);
    }
    if (!atomic_compare_exchange_strong_explicit(&slot->word, &expected, full(number), memory_order_seq_cst,
                                                 memory_order_relaxed)) {
        return CELL_MESSAGE_BY_COMMD;
    }
    out->sent = number;
    out->at = end;
    out->ends[number % CELL_MESSAGES_SLOTS] = end;
    return CELL_MESSAGE_SENT;
}

void cell_messages_count_sent(struct cell_messages_out *out)
{
    atomic_store_explicit(&out->ring->to_commd, ++out->to_commd, memory_order_release);
}

/* --- The receiver --- */

enum cell_message_look cell_messages_look(const struct cell_messages_in *in, struct cell_message_found *out)
{
    struct cell_messages *ring = in->ring;
    uint64_t number = in->taken + 1, end;
    const struct cell_message_slot *slot = slot_of(ring, number);
    uint64_t word = in->open ? atomic_load_explicit(&slot->word, memory_order_acquire) : 0;
    if (word != full(number)) {
        return !in->open || word == open_word(number) ? CELL_MESSAGE_NONE : CELL_MESSAGE_NONSENSE;
    }
    const volatile uint32_t *count = &slot->count_elements, *tag = &slot->tag, *type = &slot->dtype;
    out->said = (struct cell_message_said){.count_elements = *count, .tag = *tag, .dtype = *type};
    enum dtype dtype;
    if (!dtype_from_wire(out->said.dtype, &dtype)) {
        return CELL_MESSAGE_NONSENSE;
    }
    uint64_t size_bytes = out->said.count_elements * dtype_size_bytes(dtype);
    if (size_bytes > cell_message_max_bytes(in->data_bytes)) {
        return CELL_MESSAGE_NONSENSE;
    }
    uint64_t begin = place(in->data_bytes, in->at, size_bytes, &end);
    out->size_bytes = (size_t)size_bytes;
    out->at = end;
    out->data = size_bytes <= CELL_MESSAGE_SHORT_MAX_BYTES ? slot->data : ring->data + begin % in->data_bytes;
    return CELL_MESSAGE_THERE;
}

void cell_messages_take(struct cell_messages_in *in, const struct cell_message_found *found)
{
    in->taken++;
    in->at = found->at;
}

void cell_messages_free_taken(struct cell_messages_in *in)
{
    atomic_store_explicit(&in->ring->freed, in->taken, memory_order_release);
}

bool cell_messages_close(struct cell_messages_in *in)
{
    uint64_t number = in->taken + 1, expected = open_word(number);
    if (in->open &&
        !atomic_compare_exchange_strong_explicit(&slot_of(in->ring, number)->word, &expected, closed(number),
                                                 memory_order_seq_cst, memory_order_relaxed)) {
        return false;
    }
    in->open = false;
    return true;
}

void cell_messages_open(struct cell_messages_in *in)
{
    struct cell_messages *ring = in->ring;
    uint64_t number = in->taken + 1;
    if (in->open) {
        return;
    }
    in->open = true;
    atomic_store_explicit(&slot_of(ring, number)->word, open_word(number), memory_order_release);
    atomic_store_explicit(&ring->opened, 1, memory_order_release);
}

void cell_messages_count_received(struct cell_messages_in *in)
{
    atomic_store_explicit(&in->ring->from_commd, ++in->from_commd, memory_order_release);
}

bool cell_messages_commd_has_any(const struct cell_messages_in *in)
{
    return atomic_load_explicit(&in->ring->to_commd, memory_order_acquire) != in->from_commd;
}

bool cell_messages_have_news(struct cell_messages *ring, uint64_t taken, uint64_t from_commd)
{
    uint64_t number = taken + 1;
    return atomic_load_explicit(&slot_of(ring, number)->word, memory_order_acquire) != open_word(number) ||
           atomic_load_explicit(&ring->to_commd, memory_order_relaxed) != from_commd;
}
