#ifndef DAEMON_BASE_TRACE_H
#define DAEMON_BASE_TRACE_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

#include "daemon/base/error.h"
#include "proto/trace_event.h"

/*
 * The trace: what happened to operations lately, in one ring of records for the whole process. Any thread
 * records. A reader takes no lock and stops no other thread. While the trace is off, a trace point costs a
 * probe's nop and a branch on trace_areas.
 *
 * trace_op_taken(comm_id, seq, kind, row, slice, value), and likewise for every event of TRACE_EVENTS.
 */
#define TRACE_RECORDS_MAX (1u << 18) /* 16 MiB from the first trace_begin on; overwrites the oldest */
#define TRACE_COMMS_MAX 1024u        /* communicators whose names are known; then the oldest is replaced */

/* What is recorded now: TRACE_AREA_*. */
extern _Atomic unsigned trace_areas;

void trace_write(enum trace_event event, uint64_t comm_id, uint64_t seq, uint32_t kind, uint32_t row,
                 uint32_t slice, uint64_t value);

#define TRACE_POINT(NAME, name, area)                                                                        \
    static inline void trace_##name(uint64_t comm_id, uint64_t seq, uint32_t kind, uint32_t row,             \
                                    uint32_t slice, uint64_t value)                                          \
    {                                                                                                        \
        TRACE_PROBE(name, comm_id, seq, kind, row, slice, value);                                            \
        unsigned areas = atomic_load_explicit(&trace_areas, memory_order_relaxed);                           \
        if (__builtin_expect((areas & TRACE_AREA_##area) != 0, 0)) {                                         \
            trace_write(TRACE_##NAME, comm_id, seq, kind, row, slice, value);                                \
        }                                                                                                    \
    }
TRACE_EVENTS(TRACE_POINT)
#undef TRACE_POINT

/* Records these areas from now on; 0: none. Earlier records stay readable. NO_MEMORY. */
enum status trace_begin(unsigned areas, struct error *error) COMM_MUST_USE;

/* The number of the next record; the first one's is 0. */
uint64_t trace_end(void);
/*
 * Copies records from number *next on and below `end`, at most max of them, and moves *next past the last.
 * Returns how many were copied. That is fewer than *next moved if records were overwritten meanwhile, or are
 * being written.
 */
size_t trace_read(uint64_t *next, uint64_t end, struct trace_record *out, size_t max);

/* Call it when a communicator has formed: its records are shown under this name, and to that user. Only the
 * main thread. */
void trace_comm(uint64_t comm_id, uid_t owner_uid, const char *name);
/* Returns null if the communicator is not known (any more). */
struct trace_comm_name {
    uint64_t comm_id;
    uid_t owner_uid;
    char name[128];
};
const struct trace_comm_name *trace_comm_find(uint64_t comm_id);

#endif
