#ifndef COMMCLIENT_H
#define COMMCLIENT_H

/*
 * libcommclient: collectives through the node's commd.
 *
 * A process opens a connection to the commd of its node, joins communicators by name, and submits operations
 * on its buffers. Operations return at once; results are there, and buffers free to change, after comm_sync
 * (or comm_barrier). Operations of one communicator run in the order submitted, and every rank must submit
 * the same ones in the same order.
 *
 * Threads: every function may be called from any thread. The order between threads is undefined unless the
 * caller makes one. A client or communicator must not be closed or destroyed while another thread still uses
 * it.
 *
 * Errors: every function that can fail returns a comm_result_t. comm_result_text gives its short text;
 * comm_last_error the long message of the last failure in the calling thread: who, what and where.
 *
 * After fork, the child must not use what its parent opened; it opens its own.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COMM_VERSION_MAJOR 0
#define COMM_VERSION_MINOR 1
#define COMM_VERSION_PATCH 0

#if defined(__GNUC__)
#define COMM_API __attribute__((visibility("default")))
#define COMM_CHECK __attribute__((warn_unused_result))
#else
#define COMM_API
#define COMM_CHECK
#endif

typedef enum comm_result {
    COMM_OK = 0,
    COMM_IN_PROGRESS = 1,
    COMM_INVALID_ARGUMENT = 2,
    COMM_UNSUPPORTED = 3,
    COMM_MISMATCH = 4,
    COMM_PERMISSION = 5,
    COMM_NOT_FOUND = 6,
    COMM_ALREADY_EXISTS = 7,
    COMM_LIMIT = 8,
    COMM_NO_MEMORY = 9,
    COMM_TIMED_OUT = 10,
    COMM_PROTOCOL = 11,
    COMM_VERSION = 12,
    COMM_DAEMON_LOST = 13,
    COMM_NODE_LOST = 14,
    COMM_RANK_LOST = 15,
    COMM_ABORTED = 16,
    COMM_SHUTTING_DOWN = 17,
    COMM_CONFIG = 18,
    COMM_SYSTEM = 19,
    COMM_CERTIFICATE = 20,
    COMM_UNREACHABLE = 21,
    COMM_INTERNAL = 22
} comm_result_t;

typedef enum comm_dtype {
    COMM_F64 = 0,
    COMM_F32 = 1,
    COMM_F16 = 2,
    COMM_BF16 = 3,
    COMM_F8E4M3 = 4,
    COMM_F8E5M2 = 5,
    COMM_I64 = 6,
    COMM_I32 = 7,
    COMM_I16 = 8,
    COMM_I8 = 9,
    COMM_U64 = 10,
    COMM_U32 = 11,
    COMM_U16 = 12,
    COMM_U8 = 13,
    COMM_BOOL = 14,
    COMM_C64 = 15, /* two f32: real, imaginary */
    COMM_C128 = 16 /* two f64 */
} comm_dtype_t;

/*
 * sum and prod have a meaning for every type (bool: or, and); min and max for all but complex; avg for all
 * but bool (integers: the wrapping sum divided by the size, truncated toward zero); premul_sum, each rank's
 * input times its own factor, for floating point and complex; the bitwise and logical ones for integers and
 * bool. Everything else is refused with COMM_UNSUPPORTED. min and max propagate NaN. All ranks get identical
 * bits.
 */
typedef enum comm_op {
    COMM_SUM = 0,
    COMM_PROD = 1,
    COMM_MIN = 2,
    COMM_MAX = 3,
    COMM_AVG = 4,
    COMM_PREMUL_SUM = 5,
    COMM_BAND = 6,
    COMM_BOR = 7,
    COMM_BXOR = 8,
    COMM_LAND = 9,
    COMM_LOR = 10
} comm_op_t;

typedef struct comm_client comm_client_t; /* a connection to commd */
typedef struct comm_comm comm_t;          /* one rank of a communicator */

/* Short text of a result; never null. Static storage. */
COMM_API const char *comm_result_text(comm_result_t result);

/*
 * The long message of the last call in this thread that failed; "" when none has. Valid until the next call
 * of this library in the same thread.
 */
COMM_API const char *comm_last_error(void);

/* Size of one element in bytes; 0 for a number that is no type. */
COMM_API size_t comm_dtype_size(comm_dtype_t dtype);

/* "0.1.0", of the library. */
COMM_API const char *comm_version(void);

/* --- Connection --- */

typedef struct comm_open_options {
    size_t struct_size;      /* sizeof(struct comm_open_options): set by COMM_OPEN_OPTIONS_INIT */
    const char *socket_path; /* null: $COMMD_SOCKET, else /run/commd/commd.sock */
    uint32_t timeout_ms;     /* for connecting and the handshake; 0: 10,000 */
} comm_open_options_t;
#define COMM_OPEN_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_open_options), NULL, 0                                                            \
    }

/*
 * Connects to this node's commd. options may be null. COMM_DAEMON_LOST when nobody listens, COMM_PERMISSION,
 * COMM_VERSION when the two do not understand each other, COMM_TIMED_OUT.
 */
COMM_API COMM_CHECK comm_result_t comm_client_open(const comm_open_options_t *options,
                                                   comm_client_t **client);

/*
 * Closes the connection and frees everything made through it: communicators left (others that still need them
 * see COMM_RANK_LOST), memory of comm_mem_alloc unmapped. With operations pending it first tries to finish
 * them, for at most one second. Null is accepted. Never aborts the process.
 */
COMM_API void comm_client_close(comm_client_t *client);

/* --- Communicators --- */

#define COMM_DEVICE_HOST (-1)

typedef struct comm_init_options {
    size_t struct_size;     /* set by COMM_INIT_OPTIONS_INIT */
    uint32_t timeout_ms;    /* until all ranks are there; 0: 60,000 */
    uint32_t op_timeout_ms; /* deadline of each operation; 0: 60,000. All ranks must agree */
    uint64_t slice_bytes;   /* unit of pipelining; 0: the daemon's. All ranks must agree */
    const char *algorithms; /* null, or e.g. "all_reduce=ring,broadcast=tree". All ranks must agree */
} comm_init_options_t;
#define COMM_INIT_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_init_options), 0, 0, 0, NULL                                                      \
    }

/*
 * Joins the communicator `name` as `rank` of `size`, and waits until all ranks have. name: 1 to 127 printable
 * ASCII characters without space, the same on all ranks; it belongs to the user who uses it first, until the
 * communicator is gone. device: COMM_DEVICE_HOST, or a CUDA device's number. options may be null. A process
 * may hold several ranks (one call each, from different threads, since each waits for the others).
 *
 * COMM_TIMED_OUT (the message names the missing ranks), COMM_MISMATCH (who disagrees), COMM_ALREADY_EXISTS
 * (who has the rank), COMM_PERMISSION (who owns the name), COMM_UNSUPPORTED (device), COMM_LIMIT,
 * COMM_DAEMON_LOST.
 */
COMM_API COMM_CHECK comm_result_t comm_init(comm_client_t *client, const char *name, uint32_t rank,
                                            uint32_t size, int device, const comm_init_options_t *options,
                                            comm_t **comm);

/*
 * Leaves the communicator and frees it. With operations pending it first tries to finish them, for at most
 * one second. Null is accepted.
 */
COMM_API void comm_destroy(comm_t *comm);

COMM_API uint32_t comm_rank(const comm_t *comm);
COMM_API uint32_t comm_size(const comm_t *comm);
COMM_API uint32_t comm_local_rank(const comm_t *comm); /* among the ranks of this node, in rank order */
COMM_API uint32_t comm_local_size(const comm_t *comm);
/* Name of the node that holds `rank`; null when rank is out of range. Valid as long as the communicator. */
COMM_API const char *comm_node_of(const comm_t *comm, uint32_t rank);

/* --- Memory --- */

/*
 * Memory that commd works on directly, zero copy: page-aligned, zeroed. device as in comm_init.
 * COMM_NO_MEMORY, COMM_LIMIT, COMM_UNSUPPORTED (device).
 */
COMM_API COMM_CHECK comm_result_t comm_mem_alloc(comm_client_t *client, size_t size, int device,
                                                 void **memory);

/* Frees it; waits for operations that still use it. Null is accepted. Memory not from comm_mem_alloc:
 * COMM_NOT_FOUND. */
COMM_API comm_result_t comm_mem_free(comm_client_t *client, void *memory);

/*
 * Registers memory that the caller mapped (MAP_SHARED) from a memfd: commd then works on it directly. offset:
 * where in the file `memory` starts, page-aligned. The fd may be closed afterwards. The memfd is sealed
 * against shrinking by this call if it was not. COMM_INVALID_ARGUMENT for what is no memfd or cannot be
 * sealed.
 */
COMM_API COMM_CHECK comm_result_t comm_mem_register(comm_client_t *client, void *memory, size_t size,
                                                    int memfd, uint64_t offset);

/* Forgets a registration; waits for operations that still use it. */
COMM_API comm_result_t comm_mem_deregister(comm_client_t *client, void *memory);

/* --- Operations --- */

/*
 * Buffers: any address of the process. Within memory from comm_mem_alloc or comm_mem_register nothing is
 * copied; anything else is staged: copied in on submission and copied out during comm_sync. Buffers must stay
 * as they are until the operation is done. count is in elements; 0 is valid. The calls return as soon as the
 * operation is submitted; with 1,024 of a communicator in flight, or 1 GiB of its buffers staged, they wait
 * for one to end.
 *
 * A failure of an operation is reported by comm_sync, and by every later call on the communicator.
 */

typedef struct comm_call_options {
    size_t struct_size;  /* set by COMM_CALL_OPTIONS_INIT */
    uint32_t timeout_ms; /* deadline of this operation; 0: the communicator's */
    double factor;       /* COMM_PREMUL_SUM: this rank's; otherwise ignored */
    void *stream;        /* CUDA stream; null on the host */
} comm_call_options_t;
#define COMM_CALL_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_call_options), 0, 1.0, NULL                                                       \
    }

/* receive[i] = reduction of send[i] over all ranks. send == receive: in place. options may be null. */
COMM_API COMM_CHECK comm_result_t comm_all_reduce(comm_t *comm, const void *send, void *receive, size_t count,
                                                  comm_dtype_t dtype, comm_op_t op,
                                                  const comm_call_options_t *options);

/* buffer of rank `root` to buffer of every rank. options may be null. */
COMM_API COMM_CHECK comm_result_t comm_broadcast(comm_t *comm, void *buffer, size_t count, comm_dtype_t dtype,
                                                 uint32_t root, const comm_call_options_t *options);

/* Waits until every rank has reached it; implies comm_sync. options may be null. */
COMM_API COMM_CHECK comm_result_t comm_barrier(comm_t *comm, const comm_call_options_t *options);

/*
 * Waits until every operation that was submitted on the communicator has ended: outputs valid, inputs
 * reusable. Returns the first failure of any of them. timeout_ms: 0 waits as long as the operations' own
 * deadlines let it; otherwise COMM_TIMED_OUT after it, and the operations go on.
 */
COMM_API COMM_CHECK comm_result_t comm_sync(comm_t *comm, uint32_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
