#ifndef TESTS_CUDA_DOUBLE_NCCL_H
#define TESTS_CUDA_DOUBLE_NCCL_H

#include "daemon/gpu/nccl_library.h"
#include "tests/cuda_double/stream.h"

#define NCCL_DECLARE(name, symbol, result, parameters) CUDA_DOUBLE_EXPORT result symbol parameters;
NCCL_LIBRARY_FUNCTIONS(NCCL_DECLARE)
NCCL_LIBRARY_LATER_FUNCTIONS(NCCL_DECLARE)

/*
 * Exports a function that NCCL has from a version on. If CUDA_DOUBLE_NCCL_VERSION is older, dlsym does not
 * find it: the dynamic linker asks the resolver, which has no address. The double must not call it itself.
 */
#define NCCL_SINCE(number, symbol, function)                                                                 \
    static __typeof__(symbol) *resolve_##symbol(void)                                                        \
    {                                                                                                        \
        return nccl_version_now() >= (number) ? function : NULL;                                             \
    }                                                                                                        \
    __typeof__(symbol) symbol __attribute__((ifunc("resolve_" #symbol)));

/*
 * Communicators. All ranks of one NCCL communicator are in this process; together they are a clique. The
 * collective calls of each rank are numbered. The calls with the same number, one of each rank, are one
 * operation. So are the nth send from one rank to another, and the nth receive there. All calls of a rank in
 * one group are one piece of work of its stream. Callers of all functions hold the lock.
 */

#define POLLS 3 /* after a state has changed, this many more polls still report it as in progress */
#define TEXT_BYTES 256
#define PENDING_MAX 4096 /* calls of a rank in one group */
#define HANGS (-1)       /* as the result of an injected fault: the call does not return */

enum collective {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_REDUCE,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_BROADCAST,
    PAIR_SEND,
    PAIR_RECEIVE,
    WINDOW /* `send` becomes a window, of `count` bytes */
};

#define RANKS_MAX 64

struct call {
    enum collective kind;
    size_t count;
    int type;
    int reduce; /* -1: none */
    int root;   /* of sends and receives: the peer. -1: none */
    const void *send;
    void *receive;
    cuda_stream stream;
    nccl_window_handle *window; /* of WINDOW: where its handle goes */
    int flags;
};

/* Where a buffer is in a window. */
struct place {
    uint64_t window; /* 0: in none */
    uint64_t offset;
};

struct part {
    /* null: this rank has not called yet. It lives while the operation is in its stream */
    struct communicator *communicator;
    struct call call;
    /* What it sends, what it receives: when it was called, as NCCL looks then. */
    bool registered[2];
    struct place places[2];
};

struct operation {
    struct operation *next; /* in the clique's list */
    struct clique *clique;
    uint64_t number;
    int sender, receiver; /* -1: a collective operation */
    int expected;         /* how many parts it has */
    unsigned references;
    int called;
    int arrived; /* how many streams have reached it */
    bool mismatched;
    bool done;
    bool abandoned; /* it will never be done */
    uint64_t first_ns;
    struct part parts[];
};

struct clique {
    struct clique *next; /* in the list of cliques that are not complete */
    struct nccl_id id;
    int size;
    int joined;
    unsigned references;
    unsigned outstanding; /* pieces of work of all ranks in their streams */
    uint32_t devices;     /* bits of the ordinals on which it has memory */
    uint64_t first_ns;
    nccl_result verdict; /* IN_PROGRESS until all are there */
    char text[TEXT_BYTES];
    struct operation *operations; /* operations that not all ranks have called */
    struct communicator *ranks[];
};

static inline bool operation_is_window(const struct operation *operation)
{
    return operation->sender < 0 && operation->parts[0].call.kind == WINDOW;
}

#define NCCL_VERSION_DEFAULT 22809

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
    uint64_t sent[RANKS_MAX], received[RANKS_MAX];
    unsigned outstanding;    /* how many operations are in its stream */
    struct pending *pending; /* operations that are called, but not yet in its stream */
    struct registration *registrations;
    struct communicator *next; /* in the list of those that have registrations */
};

/* Memory of ncclCommRegister, or of ncclCommWindowRegister. */
struct registration {
    struct registration *next;
    uintptr_t handle;
    uint64_t address;
    uint64_t bytes;
    uint64_t window;             /* the same number on all ranks; 0: no window */
    struct operation *formed_by; /* of a window; held */
    unsigned uses;               /* pieces of work in streams that touch it */
};

void communicator_unref(struct communicator *communicator);
void clique_unref(struct clique *clique);
/* Lets all ranks of the clique fail. ncclGetLastError returns the text. */
nccl_result clique_fail(struct clique *clique, nccl_result result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Keeps the text for ncclGetLastError. Returns `result`. */
nccl_result nccl_fail(nccl_result result, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t hang_deadline(uint64_t first_ns);
/* CUDA_DOUBLE_NCCL_VERSION. */
int nccl_version_now(void);
/* Locks the double and finds a communicator that can be used for a call. On failure it is not locked. */
nccl_result nccl_begin(const char *function, nccl_comm comm, struct communicator **communicator);
/* Injects faults; every exported function calls it first. */
nccl_result nccl_enter(const char *symbol);

/* Adds a rank to its clique. The last rank sets the clique's verdict. */
nccl_result clique_join(struct communicator *communicator, int size, const struct nccl_id *id);

/* Returns OK if the communicator can be used for a call; otherwise why not. */
nccl_result communicator_check(const struct communicator *communicator);

/* nccl_operation.c: adds this rank's part to its next operation. Returns null if there is no memory. */
struct operation *operation_call(struct communicator *communicator, const struct call *call);
/* Returns OK when all ranks have made the same call; IN_PROGRESS before that; or a failure. */
nccl_result operation_state(struct operation *operation);
/* Puts the rank's parts of the operations into its stream, as one piece of work. Takes over a reference to
 * each operation, also if it fails. */
nccl_result operations_enqueue(struct operation *const *operations, size_t count,
                               struct communicator *communicator);
void operation_unref(struct operation *operation);

/* nccl_register.c: the registration in which the range lies, or null. */
struct registration *registration_of(const struct communicator *communicator, const void *address,
                                     uint64_t bytes);
/* Notes that a call's work enters the stream (+1) or leaves it (-1). */
void registrations_use(const struct communicator *communicator, const struct call *call, int change);
/* Registers memory, which becomes part of a window unless `window` is 0. */
nccl_result registration_add(struct communicator *communicator, uint64_t address, uint64_t bytes,
                             uint64_t window, void **handle);
/* Ends the registration. `of_window`: it must be a window's. */
nccl_result registration_remove(struct communicator *communicator, uintptr_t handle, bool of_window);

/* nccl_window.c: all ranks have called for the window. */
nccl_result window_form(struct communicator *communicator, struct operation *operation);
/* Where a buffer of a call is, among windows. */
struct place window_place(const struct communicator *communicator, const void *address, uint64_t bytes);
/* Whether NCCL's kernels for windows would find other buffers at the peers than these. */
bool operation_misses_windows(const struct operation *operation);

/* Whether some ranks pass memory that their communicator has registered, and others do not. */
bool operation_is_mixed(const struct operation *operation);
/* Ends them all, with the communicator. */
void registrations_end(struct communicator *communicator);
/* For cuMemUnmap: if a communicator has registered some of this memory, its context fails. */
void registrations_unmapped(uint64_t address, uint64_t bytes);

static inline bool call_is_pair(const struct call *call)
{
    return call->kind == PAIR_SEND || call->kind == PAIR_RECEIVE;
}
/* nccl_operation.c: whether NCCL has the call's type, or its operator; its name; the bytes of its count. */
bool call_has_type(const struct call *call);
bool call_has_operator(const struct call *call);
const char *call_kind_text(const struct call *call);
uint64_t call_block_bytes(const struct call *call);
/* nccl_operation.c: the bytes that a rank's call reads and writes. */
uint64_t call_send_bytes(const struct call *call, int size, int rank);
uint64_t call_receive_bytes(const struct call *call, int size, int rank);

/* nccl_group.c: run the call now, or when the group ends. */
nccl_result group_add_init(struct communicator *communicator);
nccl_result group_add_call(struct communicator *communicator, const struct call *call);
/* Ends the communicator, which is aborted, now or when the group ends. Takes over the reference. */
nccl_result group_add_abort(struct communicator *communicator);
/* nccl.c: waits for the aborted communicator's work and memory to go. Takes over the reference. */
nccl_result communicator_end_aborted(struct communicator *communicator);
/* Notes that a call inside a group has failed. Then the group fails, too. */
nccl_result group_note(nccl_result result);

#endif
