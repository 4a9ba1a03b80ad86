#ifndef TESTS_CUDA_DOUBLE_STREAM_H
#define TESTS_CUDA_DOUBLE_STREAM_H

#include "tests/cuda_double/double.h"

/*
 * A piece of work of a stream. The stream's thread calls `run` without the lock when its turn comes. `run`
 * returns OK, or the failure that breaks the context. Work of graphs runs many times. The struct of each
 * implementation begins with this one.
 */
struct work {
    unsigned references;
    cuda_result (*run)(struct work *work, struct stream *stream);
    void (*destroy)(struct work *work); /* frees the work and what it refers to; locked */
};
void work_release(struct work *work);

struct task {
    struct work *work;
    struct task *next;
    uint64_t turn; /* its number in the connection */
};

struct stream {
    cuda_context context;
    cuda_stream handle;
    struct stream *next; /* in the context's list */
    unsigned references; /* held by the handle, the thread, and whatever waits for a number of the stream */
    bool blocking;       /* it waits for the legacy stream, and the legacy stream for it */
    bool closed;         /* its thread ends when it has nothing to do */
    bool forgotten;      /* its context has ended, so it does nothing any more */
    struct connection *connection; /* null: it shares no queue */
    pthread_cond_t arrived;
    struct task *first;
    struct task **last;
    uint64_t submitted; /* numbers of pieces of work: the last one submitted, the last one completed */
    uint64_t completed;
    uint64_t awaited_legacy; /* the number of the legacy stream for which it already waits */
    struct capture *capture; /* null: it does not capture */
    uint64_t captured_works; /* pieces of work, since it was made */
    bool unjoined;           /* it joined its capture, whose first stream has not waited for its last work */
    bool conditional;        /* what it captures is the body of a conditional node */
};

/* Callers of all functions hold the lock. NULL and CU_STREAM_LEGACY mean the current context's legacy
 * stream. 2 means the thread's own stream. */
cuda_result stream_find(cuda_stream handle, struct stream **out);
cuda_result stream_find_of(cuda_context context, cuda_stream handle, struct stream **out);
/* The same as stream_find, but the stream must be of the current context. */
cuda_result stream_find_here(cuda_stream handle, struct stream **out);
void stream_unref(struct stream *stream);

/* Takes over the reference to the work, even if it fails. *number is 0 when the work is captured; `number`
 * may be null. Locked. */
cuda_result stream_submit(struct stream *stream, struct work *work, uint64_t *number);
/* The same, without regard to captures. */
cuda_result stream_enqueue(struct stream *stream, struct work *work, uint64_t *number);
/* Waits until the piece of work is done. Returns the context's failure, if any. Locked; releases the lock
 * while it waits. */
cuda_result stream_await(struct stream *stream, uint64_t number);
/* Lets later work of `stream` wait for work of `other`. */
cuda_result stream_enqueue_wait(struct stream *stream, struct stream *other, uint64_t number);
/* Waits for all work of the context that is submitted by now. */
cuda_result context_await(cuda_context context);
/* Whether waiting work must give up, because the context is broken or has ended. */
bool stream_gives_up(const struct stream *stream);
void streams_forget_context(cuda_context context);

/* capture.c: adds the work to the stream's capture. Takes over the reference. */
cuda_result capture_take(struct stream *stream, struct work *work);
/* The id of its capture, or 0. */
uint64_t capture_id(const struct stream *stream);
/* A stream waits for an event. Another stream recorded the event in the capture of that id (0: in none),
 * after so many pieces of captured work. The waiting stream or the event, or both, are captured. */
cuda_result capture_wait(struct stream *stream, struct stream *recorded, uint64_t id, uint64_t works);
/* Refuses a call that a capturing stream does not allow. This makes the capture invalid. */
cuda_result capture_refuse(struct stream *stream);
/* Whether streams of the context capture. A call that waits for the whole context makes these captures
 * invalid, whatever their mode. */
bool capture_blocks_context(cuda_context context);
bool capture_blocks_legacy(cuda_context context);

#endif
