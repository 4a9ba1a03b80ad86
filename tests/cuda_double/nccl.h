#ifndef TESTS_CUDA_DOUBLE_NCCL_H
#define TESTS_CUDA_DOUBLE_NCCL_H

#include "daemon/gpu/nccl_library.h"
#include "tests/cuda_double/stream.h"

#define NCCL_DECLARE(name, symbol, result, parameters) CUDA_DOUBLE_EXPORT result symbol parameters;
NCCL_LIBRARY_FUNCTIONS(NCCL_DECLARE)

/*
 * Communicators: all ranks of one are in this process; together they are a clique. One rank's calls are
 * numbered, and the calls of one number, one of each rank, are an operation. All of it locked.
 */

#define POLLS 3 /* times that a state is still in progress after it need not be */
#define TEXT_BYTES 256

enum collective {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_BROADCAST
};

struct call {
    enum collective kind;
    size_t count;
    int type;
    int reduce; /* -1: none */
    int root;   /* -1: none */
    const void *send;
    void *receive;
    cuda_stream stream;
};

struct part {
    struct communicator *communicator; /* null: has not called yet; lives while it is in its stream */
    struct call call;
};

struct operation {
    struct operation *next; /* of the clique */
    struct clique *clique;
    uint64_t number;
    unsigned references;
    int called;
    int arrived; /* streams that have reached it */
    bool mismatched;
    bool done;
    bool abandoned; /* never will be done */
    uint64_t first_ns;
    struct part parts[];
};

struct clique {
    struct clique *next; /* of those that are not complete */
    struct nccl_id id;
    int size;
    int joined;
    unsigned references;
    uint64_t first_ns;
    nccl_result verdict; /* IN_PROGRESS until all are there */
    char text[TEXT_BYTES];
    struct operation *operations; /* that not all have called */
    struct communicator *ranks[];
};

struct pending {
    struct pending *next;
    struct operation *operation;
};

struct communicator {
    nccl_comm handle;
    struct clique *clique;
    cuda_context context;
    int rank;
    unsigned references;
    bool blocking;
    bool forming;
    bool finalized;
    bool finalizing;
    bool aborted;
    nccl_result failure; /* OK: none */
    int polls;
    uint64_t calls;
    unsigned outstanding;    /* operations in its stream */
    struct pending *pending; /* called, not yet in its stream */
};

void communicator_unref(struct communicator *communicator);
void clique_unref(struct clique *clique);
/* All ranks of its clique have failed. The text is for ncclGetLastError. */
nccl_result clique_fail(struct clique *clique, nccl_result result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Keeps the text, returns the result. */
nccl_result nccl_fail(nccl_result result, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t hang_deadline(uint64_t first_ns);
/* Faults to inject. */
nccl_result nccl_enter(const char *symbol);

/* Enters the clique; its verdict when the last one comes. */
nccl_result clique_join(struct communicator *communicator, int size, const struct nccl_id *id);

/* Usable for a call: OK, or why not. */
nccl_result communicator_check(const struct communicator *communicator);

/* nccl_operation.c: this rank's part of its next operation. Null: no memory. */
struct operation *operation_call(struct communicator *communicator, const struct call *call);
/* OK when all have called the same, IN_PROGRESS, or a failure. */
nccl_result operation_state(struct operation *operation);
/* Puts the rank's part into its stream; takes over a reference. */
nccl_result operation_enqueue(struct operation *operation, struct communicator *communicator);
void operation_unref(struct operation *operation);

/* nccl_group.c: now, or when the group ends. */
nccl_result group_add_init(struct communicator *communicator);
nccl_result group_add_call(struct communicator *communicator, const struct call *call);
/* A call inside a group has failed, and so will the group. */
nccl_result group_note(nccl_result result);

#endif
