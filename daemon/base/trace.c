#include "daemon/base/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/loop.h"

/* stamp: the record's number plus one; 0 while the record is being written. */
struct slot {
    _Atomic uint64_t stamp;
    _Atomic uint64_t words[TRACE_RECORD_WORDS];
};

_Atomic unsigned trace_areas;
static struct slot *_Atomic slots; /* TRACE_RECORDS_MAX; from the first trace until the process ends */
static _Atomic uint64_t record_count;
static struct trace_comm_name comm_names[TRACE_COMMS_MAX];
static uint64_t comm_name_count;

enum status trace_begin(unsigned areas, struct error *error)
{
    if (areas != 0 && atomic_load(&slots) == NULL) {
        struct slot *made = calloc(TRACE_RECORDS_MAX, sizeof *made);
        if (made == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for a trace");
        }
        atomic_store(&slots, made);
    }
    atomic_store(&trace_areas, areas);
    return STATUS_OK;
}

void trace_write(enum trace_event event, uint64_t comm_id, uint64_t seq, uint32_t kind, uint32_t row,
                 uint32_t slice, uint64_t value)
{
    struct trace_record record = {.time_ns = loop_now_ns(),
                                  .comm_id = comm_id,
                                  .seq = seq,
                                  .value = value,
                                  .row = row,
                                  .slice = slice,
                                  .event = event,
                                  .kind = kind};
    uint64_t words[TRACE_RECORD_WORDS];
    memcpy(words, &record, sizeof words);
    uint64_t number = atomic_fetch_add_explicit(&record_count, 1, memory_order_relaxed);
    struct slot *slot = &atomic_load_explicit(&slots, memory_order_relaxed)[number % TRACE_RECORDS_MAX];
    /* Acquire keeps the writes of the words after it. A reader that sees new words then sees a 0 or a
     * different stamp. */
    (void)atomic_exchange_explicit(&slot->stamp, 0, memory_order_acquire);
    for (int i = 0; i < TRACE_RECORD_WORDS; i++) {
        atomic_store_explicit(&slot->words[i], words[i], memory_order_relaxed);
    }
    atomic_store_explicit(&slot->stamp, number + 1, memory_order_release);
}

uint64_t trace_end(void)
{
    return atomic_load(&record_count);
}

static bool read_slot(struct slot *slot, uint64_t number, struct trace_record *out)
{
    uint64_t words[TRACE_RECORD_WORDS];
    if (atomic_load_explicit(&slot->stamp, memory_order_acquire) != number + 1) {
        return false;
    }
    for (int i = 0; i < TRACE_RECORD_WORDS; i++) {
        words[i] = atomic_load_explicit(&slot->words[i], memory_order_relaxed);
    }
    memcpy(out, words, sizeof words);
    /* Adding zero with release keeps the loads of the words before it. */
    return atomic_fetch_add_explicit(&slot->stamp, 0, memory_order_acq_rel) == number + 1;
}

size_t trace_read(uint64_t *next, uint64_t end, struct trace_record *out, size_t max)
{
    struct slot *ring = atomic_load(&slots);
    uint64_t last = trace_end();
    size_t count = 0;
    end = end < last ? end : last;
    if (last > TRACE_RECORDS_MAX && *next < last - TRACE_RECORDS_MAX) {
        *next = last - TRACE_RECORDS_MAX;
    }
    for (; ring != NULL && *next < end && count < max; (*next)++) {
        count += read_slot(&ring[*next % TRACE_RECORDS_MAX], *next, &out[count]) ? 1 : 0;
    }
    return count;
}

void trace_comm(uint64_t comm_id, uid_t owner_uid, const char *name)
{
    struct trace_comm_name *entry = &comm_names[comm_name_count++ % TRACE_COMMS_MAX];
    entry->comm_id = comm_id;
    entry->owner_uid = owner_uid;
    (void)snprintf(entry->name, sizeof entry->name, "%s", name);
}

const struct trace_comm_name *trace_comm_find(uint64_t comm_id)
{
    uint64_t known = comm_name_count < TRACE_COMMS_MAX ? comm_name_count : TRACE_COMMS_MAX;
    for (uint64_t i = 1; i <= known; i++) {
        const struct trace_comm_name *entry = &comm_names[(comm_name_count - i) % TRACE_COMMS_MAX];
        if (entry->comm_id == comm_id) {
            return entry;
        }
    }
    return NULL;
}
