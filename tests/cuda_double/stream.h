#ifndef TESTS_CUDA_DOUBLE_STREAM_H
#define TESTS_CUDA_DOUBLE_STREAM_H

#include "tests/cuda_double/double.h"

/*
 * A piece of work of a stream. run is called without the lock, in the stream's thread, when its turn comes,
 * and returns what breaks the context. Work of graphs runs many times. The implementation's struct begins
 * with it.
 */
struct work {
    unsigned references;
    cuda_result (*run)(struct work *work, struct stream *stream);
    void (*destroy)(struct work *work); /* of what it refers to and of itself; locked */
};
void work_release(struct work *work);

struct task {
    struct work *work;
    struct task *next;
    uint64_t turn; /* of the connection */
};

struct stream {
    cuda_context context;
    cuda_stream handle;
    struct stream *next;           /* of the context */
    unsigned references;           /* of the handle, the thread, and whatever waits for a number of it */
    bool blocking;                 /* waits for the legacy stream, and it for this */
    bool closed;                   /* ends when it has nothing to do */
    bool forgotten;                /* its context has ended: does nothing any more */
    struct connection *connection; /* null: no other stream's concern */
    pthread_cond_t arrived;
    struct task *first;
    struct task **last;
    uint64_t submitted; /* numbers of pieces of work */
    uint64_t completed;
    uint64_t awaited_legacy; /* the legacy stream's number that is already waited for */
    struct capture *capture; /* null: none */
};

/* All locked. NULL and CU_STREAM_LEGACY are the current context's legacy stream, 2 is the thread's own. */
cuda_result stream_find(cuda_stream handle, struct stream **out);
cuda_result stream_find_of(cuda_context context, cuda_stream handle, struct stream **out);
/* The same as stream_find, and its context must be the current one. */
cuda_result stream_find_here(cuda_stream handle, struct stream **out);
void stream_unref(struct stream *stream);

/* Takes the reference to the work, also where it fails; number (may be null): 0 when captured. Locked. */
cuda_result stream_submit(struct stream *stream, struct work *work, uint64_t *number);
/* Past captures. */
cuda_result stream_enqueue(struct stream *stream, struct work *work, uint64_t *number);
/* Returns when the piece of work is done, or with the context's failure. Locked, lets go of the lock. */
cuda_result stream_await(struct stream *stream, uint64_t number);
/* Later work of the stream waits for that of another. */
cuda_result stream_enqueue_wait(struct stream *stream, struct stream *other, uint64_t number);
/* All work of a context that is submitted by now. */
cuda_result context_await(cuda_context context);
/* Whether work that waits is to give up: the context is broken or has ended. */
bool stream_gives_up(const struct stream *stream);
void streams_forget_context(cuda_context context);

/* capture.c: keeps the work; takes the reference. */
cuda_result capture_take(struct stream *stream, struct work *work);
/* A call that a capturing stream does not allow ends its capture. */
cuda_result capture_refuse(struct stream *stream);
/* What waits for a whole context ends the captures of its streams, whatever their mode. */
bool capture_blocks_context(cuda_context context);
bool capture_blocks_legacy(cuda_context context);

#endif
