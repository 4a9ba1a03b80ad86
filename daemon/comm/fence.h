#ifndef DAEMON_COMM_FENCE_H
#define DAEMON_COMM_FENCE_H

#include "daemon/comm/comms.h"

/*
 * Words in clients' memory that order operations against their streams: those that an operation waits for,
 * and the one that says that it has ended. Private to daemon/comm.
 */

/* Of one operation. Holds references to the memories. Zero: none. */
struct comms_fences {
    uint32_t wait_count;
    struct fence waits[COMMS_FENCES_MAX];
    struct memory *memories[COMMS_FENCES_MAX];
    _Atomic uint64_t *ended; /* null: nobody is told */
    uint64_t ended_value;
    struct memory *ended_memory;
};

/*
 * Checks and refers to what an operation asks for; *out is null where that is nothing. INVALID_ARGUMENT,
 * LIMIT, NO_MEMORY; the word that says the end is set then too, if there is one.
 */
enum status comms_fences_take(const struct comms_fence *waits, uint32_t wait_count,
                              const struct comms_fence *ended, struct comms_fences **out,
                              struct error *error) COMM_MUST_USE;
/* Sets the word. Null is accepted. */
void comms_fences_signal(const struct comms_fences *fences);
/* The end: sets the word and lets go. Null is accepted. */
void comms_fences_end(struct comms_fences *fences);

/* Records of a member (comms_record): those that are due are set. Returns whether one waits for a word. */
bool comms_records_step(struct comms_member *member);
/* All at once, whatever they wait for. */
void comms_records_end(struct comms_member *member);

#endif
