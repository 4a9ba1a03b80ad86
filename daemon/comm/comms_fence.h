#ifndef DAEMON_COMM_COMMS_FENCE_H
#define DAEMON_COMM_COMMS_FENCE_H

#include "daemon/comm/comms.h"

/*
 * Semaphores (64-bit words) in clients' memory that order operations against the clients' streams. An
 * operation waits for some, and sets one when it has ended. Private to daemon/comm.
 */

/* The semaphores of one operation, with references to their memories. All zero: none. */
struct comms_fences {
    uint32_t wait_count;
    struct fence waits[COMMS_FENCES_MAX];
    struct memory *memories[COMMS_FENCES_MAX];
    _Atomic uint64_t *ended; /* null: no word is set at the end */
    uint64_t ended_value;
    struct memory *ended_memory;
    struct gpu_word ended_gpu_word;
    bool ended_by_gpu; /* a stream writes it, so it must not be set back */
};

/*
 * Checks the semaphores of an operation, and takes references. *out is null if there are none.
 * INVALID_ARGUMENT, LIMIT, NO_MEMORY; even then the word `ended` is set, if there is one.
 */
enum status comms_fences_take(const struct comms_fence *waits, uint32_t wait_count,
                              const struct comms_fence *ended, struct comms_fences **out,
                              struct error *error) COMM_MUST_USE;
/* Finds where streams of GPUs see the words, at once or later. of_gpu: memory on a GPU. */
void comms_fences_find(struct comms_fences *fences, const struct memory *of_gpu);
/* Sets the word `ended`. Null is accepted. */
void comms_fences_signal(const struct comms_fences *fences);
/* Sets the word `ended`, releases the memories, and frees fences. Null is accepted. */
void comms_fences_end(struct comms_fences *fences);

/* Sets the words of a member's records (comms_record) that are due. Returns whether a record waits for a
 * semaphore. */
bool comms_records_step(struct comms_member *member);
/* Sets the words of all records at once, whatever they wait for. */
void comms_records_end(struct comms_member *member);

#endif
