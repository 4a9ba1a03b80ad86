#ifndef CLIENT_LIB_FENCE_H
#define CLIENT_LIB_FENCE_H

#include <commclient.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/client.pb-c.h"
#include "proto/cuda_driver.h"
#include "proto/records.h"
#include "proto/version.h"

/*
 * Words of 64 bits that order operations and CUDA streams. commd has mapped their memory, and streams can
 * write to them and wait for them. A slot has two words: a stream writes one to say that an operation may
 * begin, and commd writes the other to say that the operation has ended.
 *
 * The values given out for a word only ascend. A slot can be reused when both words have reached the last
 * value given out: then no writer is left that could set a word back. A stream may carry out its wait long
 * after the word was reached, so the memory stays mapped as long as the process lives.
 *
 * All this has its own lock, which is never held during a wait. A blocked stream can block a thread in the
 * driver, perhaps one that holds the client's lock; it must be possible to release the stream then.
 */
struct comm_client;
struct client_gpu;

enum fence_word {
    FENCE_READY, /* written by streams, or by the library if there is no GPU */
    FENCE_ENDED, /* written by commd */
    FENCE_WORDS
};

struct fence_area;
struct fence_slot {
    struct fence_slot *next; /* in the list of slots not in use */
    struct fence_area *area;
    uint64_t values[FENCE_WORDS]; /* the last values given out */
    bool retired;
};

/* A word and the value that it must reach or exceed. */
struct fence_mark {
    struct fence_slot *slot;
    enum fence_word word;
    uint64_t value;
};

struct client_fences {
    pthread_mutex_t lock;
    struct fence_area *areas;
    struct fence_slot *first; /* slots not in use; the one unused for longest is first */
    struct fence_slot **last;
    uint32_t area_count;
    bool released; /* commd is gone: all its words are reached, and new marks of them are reached at once */
    bool watched;
    pthread_t watchdog;
    int watchdog_fd; /* a write to it ends the watchdog */
};

void fences_init(struct client_fences *fences);
/* Ends the watchdog. To be called after everything else of the client has ended. */
void fences_close(struct client_fences *fences);

/*
 * Takes a slot, until fence_give. The caller does not hold the client's lock; fence_take takes it if commd
 * must get new memory. Failures are reported.
 */
comm_result_t fence_take(struct comm_client *client, struct fence_slot **out);
/* Null is accepted. retire: the slot is never reused, because commd may still write to it. */
void fence_give(struct client_fences *fences, struct fence_slot *slot, bool retire);
/* Gives out the next value of a word. If commd is gone, its word reaches that value at once. */
struct fence_mark fence_next(struct client_fences *fences, struct fence_slot *slot, enum fence_word word);
bool fence_is_reached(const struct fence_mark *mark);
/* Sets the word to the mark's value in place of its writer, unless it is there already. */
void fence_reach(const struct fence_mark *mark);
cuda_pointer fence_address(const struct fence_mark *mark); /* for streams */
/*
 * For an operation that a CUDA graph holds, the words of a slot are flags: fence_lend sets both to 0, and
 * fence_take_back makes them numbers again, when nobody writes to them any more.
 */
void fence_lend(const struct fence_slot *slot);
void fence_take_back(const struct fence_slot *slot);
_Atomic uint64_t *fence_word(const struct fence_slot *slot, enum fence_word word);
/* Whether both words have reached the last value given out. */
bool fence_slot_rests(const struct fence_slot *slot);
/* Maps all words so far on the GPU, then appends the GPU to the client's list. With the client's lock.
 * Failures are reported. */
comm_result_t fences_join_gpu(struct comm_client *client, struct client_gpu *gpu);
/* commd is gone: releases every stream that waits for it. Any thread. */
void fences_release(struct client_fences *fences);

/* Adds the word to a record; what: RECORD_ENDED or RECORD_WAIT. */
void fence_add(struct submit_record *record, enum record_what what, const struct fence_mark *mark);

/* --- watchdog.c --- */

/* Starts the client's thread that releases all streams when the connection ends, if it does not run yet.
 * Failures are reported. */
comm_result_t watchdog_start(struct comm_client *client);
void watchdog_stop(struct client_fences *fences);

#endif
