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
 * Words of 64 bits in memory that commd has mapped and CUDA streams can write and wait at: a stream says with
 * one that an operation may begin, and commd with the other that it has ended.
 *
 * What is given out of a word only ascends. A slot serves again when both its words have reached what was
 * given out of them: nobody is left then who could set one back. Since the waits of streams at a word that
 * was reached may be carried out at any later time, the memory stays mapped as long as the process lives.
 *
 * Everything here is under a lock of its own, which is never held while something waits: a stream that is
 * held up holds up a thread in the driver, perhaps one with the client's lock, and must be let go of then.
 */
struct comm_client;
struct client_gpu;

enum fence_word {
    FENCE_READY, /* written by streams; without a GPU by the library */
    FENCE_ENDED, /* written by commd */
    FENCE_WORDS
};

struct fence_area;
struct fence_slot {
    struct fence_slot *next; /* of those not in use */
    struct fence_area *area;
    uint64_t values[FENCE_WORDS]; /* given out */
    bool retired;
};

/* A word and the value, or more, that is waited for. */
struct fence_mark {
    struct fence_slot *slot;
    enum fence_word word;
    uint64_t value;
};

struct client_fences {
    pthread_mutex_t lock;
    struct fence_area *areas;
    struct fence_slot *first; /* not in use; the one that has been there for the longest first */
    struct fence_slot **last;
    uint32_t area_count;
    bool released; /* commd is gone: every word of its has what was given out, and gets it at once */
    bool watched;
    pthread_t watchdog;
    int watchdog_fd; /* written to: it ends */
};

void fences_init(struct client_fences *fences);
/* After everything of the client has ended; ends the watchdog. */
void fences_close(struct client_fences *fences);

/*
 * A slot, until fence_give. Without the client's lock, which it takes where commd must be told of new memory.
 * Reported.
 */
comm_result_t fence_take(struct comm_client *client, struct fence_slot **out);
/* Null is accepted. retire: commd may write to it at any time, nobody gets it again. */
void fence_give(struct client_fences *fences, struct fence_slot *slot, bool retire);
/* The next value of a word. One of commd's that can get no more from it is reached at once. */
struct fence_mark fence_next(struct client_fences *fences, struct fence_slot *slot, enum fence_word word);
bool fence_is_reached(const struct fence_mark *mark);
/* Sets the word in place of whoever was to. */
void fence_reach(const struct fence_mark *mark);
cuda_pointer fence_address(const struct fence_mark *mark); /* for streams */
/* Whether both words have reached what was given out. */
bool fence_slot_rests(const struct fence_slot *slot);
/* Adds a GPU to the client's, at their end, after it knows the words that events have so far. With the
 * client's lock. Reported. */
comm_result_t fences_join_gpu(struct comm_client *client, struct client_gpu *gpu);
/* commd is gone: lets go of every stream that waits for it. Any thread. */
void fences_release(struct client_fences *fences);

/* Adds the word to a submission: RECORD_ENDED, or RECORD_WAIT. */
void fence_add(struct submit_record *record, enum record_what what, const struct fence_mark *mark);

/* --- watchdog.c --- */

/* Starts the thread that lets go of every stream when the connection ends, once a client. Reported. */
comm_result_t watchdog_start(struct comm_client *client);
void watchdog_stop(struct client_fences *fences);

#endif
