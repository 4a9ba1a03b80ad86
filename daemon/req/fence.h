#ifndef DAEMON_REQ_FENCE_H
#define DAEMON_REQ_FENCE_H

#include "daemon/req/req.h"

/*
 * Words in clients' memory that order operations against their streams: those that an operation waits for,
 * and the one that says that it has ended. Private to daemon/req.
 */

/* Of one operation. Holds references to the memories. Zero: none. */
struct req_fences {
    uint32_t wait_count;
    struct exec_fence waits[REQ_FENCES_MAX];
    struct dev_memory *memories[REQ_FENCES_MAX];
    _Atomic uint64_t *ended; /* null: nobody is told */
    uint64_t ended_value;
    struct dev_memory *ended_memory;
};

/*
 * Checks and refers to what an operation asks for; *out is null where that is nothing. INVALID_ARGUMENT,
 * LIMIT, NO_MEMORY; the word that says the end is set then too, if there is one.
 */
enum status req_fences_take(const struct req_fence *waits, uint32_t wait_count, const struct req_fence *ended,
                            struct req_fences **out, struct error *error) COMM_MUST_USE;
/* Sets the word. Null is accepted. */
void req_fences_signal(const struct req_fences *fences);
/* The end: sets the word and lets go. Null is accepted. */
void req_fences_end(struct req_fences *fences);

/* Records of a member (req_record): those that are due are set. Returns whether one waits for a word. */
bool req_records_step(struct req_member *member);
/* All at once, whatever they wait for. */
void req_records_end(struct req_member *member);

#endif
