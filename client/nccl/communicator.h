#ifndef CLIENT_NCCL_COMMUNICATOR_H
#define CLIENT_NCCL_COMMUNICATOR_H

#include <commclient.h>

#include <pthread.h>
#include <stdbool.h>

#include "client/nccl/comm_config.h"
#include "client/nccl/failure.h"
#include "client/nccl/nccl_api.h"
#include "proto/cuda_driver.h"

/* What the library's files share: communicators, and what makes them. */

#define COMMUNICATOR_FACTORS_MAX 256 /* pre-multiplied sums of one communicator that exist at once */

struct factor {
    bool used;
    ncclDataType_t type;
    double value;
    const void *device_scalar; /* null: value holds it */
};

struct ncclComm {
    pthread_mutex_t lock; /* guards all that follows */
    int references;       /* the program's, of the threads that make or split it, and of `calls` */
    ncclResult_t state;   /* IN_PROGRESS while it is being made; later its first failure */
    char text[FAILURE_TEXT_BYTES];
    int splits;     /* how many of its splits have not ended: they use `comm` */
    int calls;      /* how many calls are being made, or are collected by threads' groups: the same */
    int alone;      /* how many of these the program's thread does not wait for */
    bool abandoned; /* the program has left it, perhaps while another thread uses it */
    bool finalized;
    bool revoked;
    uint32_t part_count; /* of the names that were made of this one */
    char name[68];       /* of the communicator in commd */
    char joins[68];      /* a thread waits, or will wait, for the other ranks of that name; "": none does */
    comm_t *comm;        /* null before it is made */
    int rank;
    int size;
    int device;
    struct nccl_config config;
    int first_op; /* the number of the operator in factors[0]: other communicators have other numbers */
    struct factor factors[COMMUNICATOR_FACTORS_MAX];
};

/* --- process.c --- */

/* Returns this process's connection to commd, and opens it first. It lasts as long as the process. */
ncclResult_t process_take_client(comm_client_t **out);
/* The connection is lost: later calls open another one. What was made through it stays. */
void process_forget_client(comm_client_t *client);
/* Returns the current CUDA device of this thread. */
ncclResult_t process_device(int *out);
/* Returns CUDA's functions, or null without a driver. */
const struct cuda_driver *process_driver(void);

/* --- communicator.c --- */

/* Returns null if memory is short. */
struct ncclComm *communicator_new(int rank, int size, int device, struct nccl_config config);
void communicator_drop(struct ncclComm *comm);
/* Ends the making of a communicator: sets its state and text, or destroys what an abandoned one has. */
void communicator_made(struct ncclComm *comm, comm_t *made, ncclResult_t result);
/* The thread that makes it is about to wait for the other ranks of that name. Returns false if the program
 * has left the communicator; if it does so later, the wait is cancelled, whenever it begins. */
bool communicator_joins(struct ncclComm *comm, const char *name);
/* A split of it keeps it. */
void communicator_split_begins(struct ncclComm *comm);
/* The program's thread does not wait for the split: the communicator is in progress until it has ended. */
void communicator_split_alone(struct ncclComm *comm);
/* The last use destroys what an abandoned communicator has. The caller may not use it afterwards. */
void communicator_split_ended(struct ncclComm *comm, bool alone);
/* A call keeps it until the call has been submitted or dropped: another thread may abort it meanwhile. */
void communicator_call_begins(struct ncclComm *comm);
void communicator_call_ended(struct ncclComm *comm);
/* Whether the program has left it. */
bool communicator_is_left(struct ncclComm *comm);
/* Returns SUCCESS if operations may be called on it: it is ready, and not finalized. */
ncclResult_t communicator_check(struct ncclComm *comm, const char *call);

/* --- formation.c --- */

struct formation {
    struct formation *next;  /* in the group */
    struct formation *after; /* the next split of the same communicator: the same thread carries it out */
    pthread_t thread;
    bool started;            /* its thread is to be joined */
    bool blocking;           /* the program's thread waits for it */
    bool alone;              /* communicator_split_alone was called */
    struct ncclComm *comm;   /* the new one; null: this rank joins none */
    ncclComm_t *out;         /* where the program has it. A blocking formation that fails makes it null */
    struct ncclComm *parent; /* of a split, or of one that grows; null: neither */
    int color, key;
    bool grows;    /* its present ranks first tell each other the name */
    char name[68]; /* "": of a split, or not known yet */
    ncclResult_t result;
    char text[FAILURE_TEXT_BYTES];
};

/* Adds a formation. If it is of a new communicator, the program gets its handle at once; null for one that is
 * to be new: no memory. */
ncclResult_t formation_add(const struct formation *model, struct ncclComm *comm);
/* Runs the formations, each on a thread of its own, but the splits of one communicator in their order. Those
 * of blocking communicators are waited for; this returns their first failure. Frees the list. */
ncclResult_t formation_run_all(struct formation *list);
/* They fail with the result, and this thread's last error, unrun. Frees the list. */
void formation_drop_all(struct formation *list, ncclResult_t result);

/* --- recovery.c --- */

/* The name of a communicator that is made of this one, with these bytes, which all its ranks have. */
void communicator_name_part(struct ncclComm *comm, const void *bytes, size_t size, char out[68]);
/* For a communicator that grows: its present ranks learn the name from the one that has the id. Waits. */
ncclResult_t formation_find_name(struct formation *formation);

/* --- group.c --- */

enum call_kind {
    CALL_ALL_REDUCE,
    CALL_REDUCE,
    CALL_BROADCAST,
    CALL_ALL_GATHER,
    CALL_REDUCE_SCATTER,
    CALL_ALL_TO_ALL,
    CALL_GATHER,
    CALL_SCATTER,
    CALL_SEND,
    CALL_RECV
};

struct nccl_call {
    enum call_kind kind;
    const char *name;
    struct ncclComm *comm;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* or the root */
    cudaStream_t stream;
    struct factor factor; /* of a pre-multiplied sum: the operator may be destroyed before the group ends */
};

/* Notes an error in an argument, which is also the result of the group. Returns `result`. */
ncclResult_t group_note(ncclResult_t result);
/* Runs the call, or collects it if a group is open. */
ncclResult_t group_add_call(const struct nccl_call *call);
/* The communicator is left: this thread's group drops its calls on it. */
void group_forget(struct ncclComm *comm);
/* Takes over the formation. */
ncclResult_t group_add_formation(struct formation *formation);

/* --- factor.c --- */

/* Reads a number of the type. Errors: INVALID_USAGE for an integer that a double does not hold. */
ncclResult_t factor_decode(comm_dtype_t type, const void *bytes, double *out, const char *call);

/* --- collectives.c --- */

/* Submits a call whose arguments have been checked. */
ncclResult_t call_submit(const struct nccl_call *call);
/* Maps NCCL's type. Returns false if there is none of this number. */
bool type_of(ncclDataType_t type, comm_dtype_t *out);

#endif
