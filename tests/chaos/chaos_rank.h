#ifndef TESTS_CHAOS_CHAOS_RANK_H
#define TESTS_CHAOS_CHAOS_RANK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <commclient.h>

/* What the files of chaos_rank share. It has one thread. */

#define CHAOS_OP_TIMEOUT_MS 20000u /* an operation that lasts so long is a fault of commd: check_chaos.py */
#define CHAOS_FORM_AGAIN_TIMEOUT_MS                                                                          \
    5000u /* a rank that is lost meanwhile could come again: others wait for it */

/* What check_chaos.py reads while the rank runs: which call is under way, and since when. */
struct chaos_status {
    uint64_t began_ns; /* CLOCK_MONOTONIC; 0: none is under way */
    uint64_t calls;    /* how many have ended */
    char call[48];
};

struct chaos_rank {
    const char *job;
    uint32_t first_rank; /* in the job's first communicator; comm_rank() may be less later */
    uint64_t seed;
    size_t most_bytes; /* of one buffer */
    uint32_t pause_us; /* between two steps */
    comm_client_t *client;
    comm_t *comm;
    uint32_t generation; /* how often the communicator has been shrunk */
    uint64_t step;       /* in this communicator, from 0 */
    struct chaos_status *status;
    uint64_t call_began_ns;
    uint8_t
        *buffers[4]; /* plain input and output, registered input and output; each of most_bytes + a guard */
    bool wrong;      /* an element was wrong */
    uint64_t operations;
    uint64_t elements; /* that were checked */
};

uint64_t chaos_now_ns(void);
/* Writes one line of output. */
void chaos_say(const struct chaos_rank *self, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Notes that a call of the library begins. */
void chaos_begin(struct chaos_rank *self, const char *call);

/* Maps the file, which holds a struct chaos_status. Returns false if that fails. */
bool chaos_status_open(struct chaos_rank *self, const char *path);
/* Makes the buffers. Returns false if the library refuses memory. */
bool chaos_buffers_new(struct chaos_rank *self);
void chaos_buffers_free(struct chaos_rank *self);

/*
 * Runs the operation of this step, checks it, and tells the other ranks whether this one wants to end. *over:
 * one of the ranks does. Returns the library's result of the first call that failed. If an element is wrong,
 * it says so, and sets self->wrong.
 */
comm_result_t chaos_step(struct chaos_rank *self, bool wants_end, bool *over);

#endif
