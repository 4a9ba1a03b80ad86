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
 * After fork, the child must not use what its parent opened; it opens its own. What a process opened ends
 * with that process: a child that has its descriptors keeps no rank alive. A program that forks to become a
 * daemon opens its client afterwards.
 *
 * GPUs: the CUDA driver is loaded with the first communicator, or memory, that names one. A program that uses
 * none needs no driver.
 *
 * Threads of the library: a client whose operations are ordered by CUDA streams or events has one. A client
 * that keeps more than 16 MiB for staging has one until it has given that back. They take no signals.
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
    COMM_INTERNAL = 22,
    COMM_DEVICE = 23, /* a GPU or its driver failed */
    COMM_BUSY = 24    /* what was at the place of this memory before is still in use */
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

typedef struct comm_client comm_client_t;   /* a connection to commd */
typedef struct comm_comm comm_t;            /* one rank of a communicator */
typedef struct comm_request comm_request_t; /* one operation, to be waited for by itself */
typedef struct comm_event comm_event_t;     /* a point in a CUDA stream, or in a communicator */

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
 * A commd that stands still (stopped, or without processor time) is noticed within 3 seconds by whoever
 * waits; within a minute if it has said that it is in a call that may take long, such as pinning gigabytes.
 * Every call then fails with COMM_DAEMON_LOST. Such a commd may go on: until its process has ended it may
 * write to buffers that are registered, or on a GPU, and take part in operations. comm_mem_deregister waits
 * for that end, and says COMM_BUSY otherwise. Buffers that were staged it does not touch.
 */

/*
 * Closes the connection and frees everything made through it: communicators left (others that still need them
 * see COMM_RANK_LOST), memory of comm_mem_alloc unmapped. With operations pending it first tries to finish
 * them, for at most one second. Null is accepted. Never aborts the process. Streams that wait for operations
 * go on. Memory of comm_mem_alloc on a GPU is freed when the GPU's streams are done, which this waits for;
 * while one of them is being captured it stays until the process ends. Before, commd has a second to let go
 * of it.
 */
COMM_API void comm_client_close(comm_client_t *client);

/* --- Communicators --- */

#define COMM_DEVICE_HOST (-1)

typedef struct comm_init_options {
    size_t struct_size;     /* set by COMM_INIT_OPTIONS_INIT */
    uint32_t timeout_ms;    /* until all ranks are there; 0: 60,000 */
    uint32_t op_timeout_ms; /* deadline of each operation; 0: 60,000. All ranks must agree */
    uint64_t slice_bytes;   /* unit of pipelining; 0: the daemon's. All ranks must agree */
    const char *algorithms; /* null: $COMMD_ALGORITHMS, else the daemon's; or e.g.
                               "all_reduce:0-4k=tree,4k-=ring". All ranks must agree */
} comm_init_options_t;
#define COMM_INIT_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_init_options), 0, 0, 0, NULL                                                      \
    }

/*
 * Joins the communicator `name` as `rank` of `size`, and waits until all ranks have. name: 1 to 127 printable
 * ASCII characters without space, the same on all ranks; it belongs to the user who uses it first, until the
 * communicator is gone. device: COMM_DEVICE_HOST, or a CUDA device's number as this process sees it: its
 * primary context is held until the client is closed. Ranks may share a GPU. options may be null. A process
 * may hold several ranks (one call each, from different threads, since each waits for the others).
 *
 * COMM_TIMED_OUT (the message names the missing ranks), COMM_MISMATCH (who disagrees), COMM_ALREADY_EXISTS
 * (who has the rank), COMM_PERMISSION (who owns the name), COMM_UNSUPPORTED (no driver, no such GPU),
 * COMM_DEVICE (it fails), COMM_LIMIT, COMM_DAEMON_LOST.
 */
COMM_API COMM_CHECK comm_result_t comm_init(comm_client_t *client, const char *name, uint32_t rank,
                                            uint32_t size, int device, const comm_init_options_t *options,
                                            comm_t **comm);

/*
 * Leaves the communicator and frees it. With operations pending it first tries to finish them, for at most
 * one second. Messages that were sent are received later all the same. Its handles must have been waited for,
 * or freed, before. What this thread has collected for it in a group that has not ended is not submitted.
 * Null is accepted.
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
 * Memory that commd works on directly, zero copy. device as in comm_init. On the host: page-aligned, zeroed;
 * all its pages are made at once, and belong to the caller's memory cgroup. Do not take any out again
 * (MADV_REMOVE, fallocate): an operation that meets a missing page fails with COMM_INVALID_ARGUMENT.
 * On a GPU: in multiples of 2 MiB, so that what commd can see is this memory alone; to use as memory of
 * cudaMalloc, by the GPUs that can reach it as well. It is virtual memory (cuMemCreate), which commd gets by
 * descriptor: no other process can open it, and cudaIpcGetMemHandle does not take it. Where the GPU or its
 * driver has none, it is of cudaMalloc, and passed by legacy IPC handle.
 *
 * COMM_NO_MEMORY, COMM_LIMIT, COMM_UNSUPPORTED (device), COMM_PERMISSION (by handle alone, and commd refuses
 * handles).
 */
COMM_API COMM_CHECK comm_result_t comm_mem_alloc(comm_client_t *client, size_t size, int device,
                                                 void **memory);

/*
 * Frees it; waits for operations that still use it, and on a GPU, as cudaFree does, for its streams. Null is
 * accepted. Memory not from comm_mem_alloc: COMM_NOT_FOUND. COMM_UNSUPPORTED while a stream of the GPU is
 * being captured, which cannot be waited for: CUDA ends the capture, and the memory is there as before. What
 * is on a GPU is freed when commd has closed it, or after 5 seconds, or when commd has ended. Of the host's,
 * commd keeps up to 256 KiB mapped until the client's next call.
 */
COMM_API comm_result_t comm_mem_free(comm_client_t *client, void *memory);

/*
 * Registers memory that the caller mapped (MAP_SHARED) from a memfd: commd then works on it directly. offset:
 * where in the file `memory` starts, page-aligned. The fd may be closed afterwards. The memfd is sealed
 * against shrinking by this call if it was not. Pages that the file does not have are made, as by
 * comm_mem_alloc. COMM_INVALID_ARGUMENT for what is no memfd or cannot be sealed; COMM_NO_MEMORY.
 *
 * Memory on a GPU, with memfd -1 and offset 0, after the first comm_init on one: what its first use would do
 * otherwise.
 */
COMM_API COMM_CHECK comm_result_t comm_mem_register(comm_client_t *client, void *memory, size_t size,
                                                    int memfd, uint64_t offset);

/* Forgets a registration; waits for operations that still use it. On a GPU: of the allocation that holds the
 * address, whoever registered it; waits until commd has closed it, 5 seconds at most: after that it can be
 * freed. COMM_BUSY when commd stands still and its process has not ended within 5 seconds: it may write there
 * when it goes on, and the memory stays registered. */
COMM_API comm_result_t comm_mem_deregister(comm_client_t *client, void *memory);

/*
 * Splits a communicator: ranks of equal color make a new one, ordered by key, then by rank in `comm`. Every
 * rank must call it, as an operation; it waits for the others, and for the operations before it. color
 * COMM_COLOR_NONE takes part in none: *part gets null. Other colors are 0 or more. The new communicator has
 * the options of `comm`, may be split again, and must be destroyed; `comm` goes on as it is.
 */
#define COMM_COLOR_NONE (-1)
COMM_API COMM_CHECK comm_result_t comm_split(comm_t *comm, int32_t color, int32_t key, comm_t **part);

/* --- Operations --- */

/*
 * Buffers: any address of the process. Within memory from comm_mem_alloc or comm_mem_register nothing is
 * copied; anything else of the host is staged: copied in on submission and copied out when the operation is
 * waited for (comm_sync, comm_barrier, comm_wait, comm_test). Buffers must stay as they are until then.
 * Memory for staging is kept for the next operation: beyond 16 MiB, for one second.
 *
 * No call that submits an operation waits for another operation to end. commd takes 1,024 collectives of a
 * communicator at a time, and 1 GiB of their staged buffers, or one larger collective. The library holds
 * those beyond, and sends them in order as earlier ones end; a thread of its own does so while the program
 * is elsewhere. The buffers of a held collective are read when it is sent, and its deadline counts from then.
 * Sends and receives are never held: a message that is submitted after any number of collectives goes out
 * before those that are held. A communicator holds at most 1,048,576 collectives and records of events;
 * beyond 131,072 each call that adds one may take a millisecond. With more, the call fails with COMM_LIMIT
 * and has submitted nothing. What commd refuses for its user's budget ends with COMM_LIMIT, too. If there is
 * no memory to stage a held collective for as long as its deadline says, the communicator fails.
 *
 * A rank on a GPU takes buffers on that GPU, and of the host. Memory of cudaMalloc, and virtual memory with
 * POSIX descriptors as handles (PyTorch's expandable segments), is registered when it is first used, each
 * allocation whole: that takes some 100 us, once. Memory that was freed and made again is noticed, and what
 * commd still had of the old one given up; until then commd keeps it occupied. Refused with COMM_UNSUPPORTED:
 * managed memory, that of CUDA's pools (cudaMallocAsync), that of another GPU; with COMM_PERMISSION, by a
 * commd that takes descriptors alone (cuda_ipc_handles in commd.conf(5)): memory of cudaMalloc. Buffers on a
 * GPU begin at a multiple of their elements' size (complex ones: of half of it); others fail with
 * COMM_INVALID_ARGUMENT.
 *
 * Counts are in elements; 0 is valid. Where there are blocks, one for each rank, in rank order, `count` is
 * that of one block; the _v forms take arrays of comm_size() counts and, where the blocks lie in the caller's
 * buffer, displacements, in elements from its start (null: one after the other). The arrays are read before
 * the call returns. What all ranks must give alike is named `agreed`: a contradiction ends the operation on
 * every rank with COMM_MISMATCH, naming two ranks and both calls, and leaves the communicator usable.
 *
 * Send and receive buffers must not overlap, but for the forms named `in place`.
 *
 * A failure of an operation is reported by comm_wait on its handle, or else by the next comm_sync or
 * comm_barrier; one that ends the communicator also by every later call on it. What ends what:
 *
 *   COMM_TIMED_OUT    the deadline passed, of a collective or message   that operation, on all its ranks
 *   COMM_MISMATCH     ranks contradict each other                       that operation, on all its ranks
 *   COMM_LIMIT        a budget of one rank's user does not allow it     that operation, on all its ranks
 *   COMM_RANK_LOST, of a message whose other rank has left              that message
 *   COMM_RANK_LOST    a rank has ended, or left, that others need       the communicator
 *   COMM_NODE_LOST    a node, or the connection to it, is lost          the communicator
 *   COMM_ABORTED      somebody aborted it                               the communicator
 *   COMM_INVALID_ARGUMENT, COMM_DEVICE   memory is not what it was, a GPU failed in a collective
 *                                                                       the communicator
 *   COMM_DAEMON_LOST  commd of this node has ended, or stands still     all communicators of the client
 *
 * A collective that times out ends with one text on all ranks on which it had not ended well before. Its
 * buffers are not touched any more; outputs hold any values. The next operations go on, also on a rank that
 * comes late. If a GPU or a connection does not let go of its buffers within two seconds, the communicator
 * ends, too. Should a GPU not let go of an operation of a communicator that has ended, it is reported within
 * two more seconds all the same, and may still touch its buffers.
 */

enum comm_compression {
    COMM_COMPRESSION_NONE = 0,
    COMM_COMPRESSION_BF16 = 1, /* half the bytes; relative error of a contribution at most 2^-8 */
    /* A quarter: e4m3. Error of a contribution x at most max(2^-4 |x|, 2^-17 M), M the largest of 256
       elements. */
    COMM_COMPRESSION_F8 = 2,
    COMM_COMPRESSION_TOP_K = 3 /* the largest of each 1,024 elements alone, as f32 */
};

/*
 * Of a rank on a GPU, each operation has its place in a CUDA stream: it begins, and touches its buffers,
 * after what the stream holds at the call, and what is put there later waits until it has ended, whatever its
 * result. Nothing on the host waits for that. The stream may be another GPU's, whichever is current. A null
 * stream is the legacy default stream of the communicator's GPU; COMM_STREAM_NONE is none: such an operation
 * is ordered by events alone, or by the caller. Ranks on the host have no streams: null, or COMM_STREAM_NONE.
 *
 *   - Buffers of the host that are staged are read at the call, or later where the operation is held, and
 *     written when the operation is waited for: the stream's order does not hold for them.
 *   - COMM_STREAM_NONE: first synchronize with whatever wrote the buffers. cudaMemcpy does not do so: from
 *     pageable memory it returns before the GPU has all of it, and between buffers on GPUs it waits for
 * nothing.
 *   - Operations in one stream follow each other. Those that need each other to end, such as a receive and a
 *     send of two ranks to each other, go into a group, where the stream says at each call that it has come
 *     there, and waits for all of them at comm_group_end.
 *   - Streams share connections to their GPU, 8 or as many as CUDA_DEVICE_MAX_CONNECTIONS says (programs that
 *     shard models set 1): while one waits for an operation, what others put into the same connection later
 *     waits, too. Ranks that use several communicators, or send and receive outside of groups, then must do
 *     so in an order that needs no second stream; else operations end by their deadline, "waiting for the
 *     stream of rank 1". With COMM_STREAM_NONE and events nothing is held up before comm_event_wait.
 *   - A persistent operation takes its place at comm_start.
 *   - A stream that is being captured is refused with COMM_UNSUPPORTED, and the capture stays valid.
 *   - When commd ends, streams that wait for it go on, with what their buffers then hold; the next call says
 *     COMM_DAEMON_LOST.
 *   - The operation's deadline counts from the call, or from when a held operation is sent.
 */
#define COMM_STREAM_NONE ((void *)-1)

typedef struct comm_call_options {
    size_t struct_size;  /* set by COMM_CALL_OPTIONS_INIT */
    uint32_t timeout_ms; /* deadline of this operation; 0: the communicator's */
    double factor;       /* COMM_PREMUL_SUM: this rank's; otherwise ignored */
    void *stream;        /* CUDA stream (cudaStream_t, CUstream): see COMM_STREAM_NONE */
    /*
     * Not null: *request gets a handle of the operation, to be given to comm_wait or comm_test once. It is
     * null afterwards, and after any failure to submit.
     */
    comm_request_t **request;
    /*
     * Not 0: nothing is submitted; *request (which must be given) gets a handle that comm_start starts, as
     * often as wanted, each time to be waited for. Buffers and arguments stay those of this call.
     */
    int persistent;
    /* all_reduce of COMM_F32 with COMM_SUM or COMM_AVG: what goes over the network. Agreed. */
    enum comm_compression compression;
    uint32_t top_k_permille; /* COMM_COMPRESSION_TOP_K: how many of a thousand elements; 0: 10. Agreed */
    /*
     * Compression: null, or count elements that begin as zero and are given again with the next call on the
     * same data: what compression lost is added there, and added to what is sent next (error feedback: Seide
     * et al. 2014, Karimireddy et al. 2019). On all ranks or none. Agreed.
     */
    float *residual;
} comm_call_options_t;
#define COMM_CALL_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_call_options), 0, 1.0, NULL, NULL, 0, COMM_COMPRESSION_NONE, 0, NULL              \
    }
/* `options` may be null everywhere. */

/* receive[i] = reduction of send[i] over all ranks. In place: send == receive. Agreed: count, dtype, op. */
COMM_API COMM_CHECK comm_result_t comm_all_reduce(comm_t *comm, const void *send, void *receive, size_t count,
                                                  comm_dtype_t dtype, comm_op_t op,
                                                  const comm_call_options_t *options);

/* The same, on rank `root` alone; receive is ignored elsewhere. In place on the root: send == receive.
 * Agreed: count, dtype, op, root. */
COMM_API COMM_CHECK comm_result_t comm_reduce(comm_t *comm, const void *send, void *receive, size_t count,
                                              comm_dtype_t dtype, comm_op_t op, uint32_t root,
                                              const comm_call_options_t *options);

/* buffer of rank `root` to buffer of every rank. Agreed: count, dtype, root. */
COMM_API COMM_CHECK comm_result_t comm_broadcast(comm_t *comm, void *buffer, size_t count, comm_dtype_t dtype,
                                                 uint32_t root, const comm_call_options_t *options);

/* receive, of comm_size() × count elements, gets every rank's block. In place: send is the own block in
 * receive. Agreed: count, dtype. */
COMM_API COMM_CHECK comm_result_t comm_all_gather(comm_t *comm, const void *send, void *receive, size_t count,
                                                  comm_dtype_t dtype, const comm_call_options_t *options);
/* Rank i sends counts[i] elements. Agreed: counts, dtype. */
COMM_API COMM_CHECK comm_result_t comm_all_gather_v(comm_t *comm, const void *send, void *receive,
                                                    const size_t *counts, const size_t *displacements,
                                                    comm_dtype_t dtype, const comm_call_options_t *options);

/*
 * Rank i gets block i of the reduction over all ranks: send has comm_size() × count elements, receive count.
 * send is left as it is, unless in place: receive is the own block in send. Agreed: count, dtype, op.
 */
COMM_API COMM_CHECK comm_result_t comm_reduce_scatter(comm_t *comm, const void *send, void *receive,
                                                      size_t count, comm_dtype_t dtype, comm_op_t op,
                                                      const comm_call_options_t *options);
/* Rank i gets counts[i] elements. Agreed: counts, dtype, op. */
COMM_API COMM_CHECK comm_result_t comm_reduce_scatter_v(comm_t *comm, const void *send, void *receive,
                                                        const size_t *counts, comm_dtype_t dtype,
                                                        comm_op_t op, const comm_call_options_t *options);

/* receive of rank `root`, comm_size() × count elements, gets every rank's block; it is ignored elsewhere. In
 * place on the root: send is the own block in receive. Agreed: count, dtype, root. */
COMM_API COMM_CHECK comm_result_t comm_gather(comm_t *comm, const void *send, void *receive, size_t count,
                                              comm_dtype_t dtype, uint32_t root,
                                              const comm_call_options_t *options);
/* Every rank sends send_count elements of its own; counts and displacements are the root's alone, and must
 * say the same. Agreed: dtype, root. */
COMM_API COMM_CHECK comm_result_t comm_gather_v(comm_t *comm, const void *send, size_t send_count,
                                                void *receive, const size_t *counts,
                                                const size_t *displacements, comm_dtype_t dtype,
                                                uint32_t root, const comm_call_options_t *options);

/* Rank i gets block i of send of rank `root`, which is ignored elsewhere. In place on the root: receive is
 * the own block in send. Agreed: count, dtype, root. */
COMM_API COMM_CHECK comm_result_t comm_scatter(comm_t *comm, const void *send, void *receive, size_t count,
                                               comm_dtype_t dtype, uint32_t root,
                                               const comm_call_options_t *options);
/* As comm_gather_v, the other way. */
COMM_API COMM_CHECK comm_result_t comm_scatter_v(comm_t *comm, const void *send, const size_t *counts,
                                                 const size_t *displacements, void *receive,
                                                 size_t receive_count, comm_dtype_t dtype, uint32_t root,
                                                 const comm_call_options_t *options);

/* Block j of rank i's send goes to block i of rank j's receive; both have comm_size() × count elements. In
 * place: send == receive. Agreed: count, dtype. */
COMM_API COMM_CHECK comm_result_t comm_all_to_all(comm_t *comm, const void *send, void *receive, size_t count,
                                                  comm_dtype_t dtype, const comm_call_options_t *options);
/* What rank i sends to rank j, rank j must expect of rank i. Agreed: that, and dtype. */
COMM_API COMM_CHECK comm_result_t comm_all_to_all_v(comm_t *comm, const void *send, const size_t *send_counts,
                                                    const size_t *send_displacements, void *receive,
                                                    const size_t *receive_counts,
                                                    const size_t *receive_displacements, comm_dtype_t dtype,
                                                    const comm_call_options_t *options);

/* receive[i] of rank r = reduction of send[i] over ranks 0 to r, in their order. avg has no meaning here. In
 * place: send == receive. Agreed: count, dtype, op. */
COMM_API COMM_CHECK comm_result_t comm_scan(comm_t *comm, const void *send, void *receive, size_t count,
                                            comm_dtype_t dtype, comm_op_t op,
                                            const comm_call_options_t *options);
/* Over ranks 0 to r - 1; receive of rank 0 is left as it is. */
COMM_API COMM_CHECK comm_result_t comm_exclusive_scan(comm_t *comm, const void *send, void *receive,
                                                      size_t count, comm_dtype_t dtype, comm_op_t op,
                                                      const comm_call_options_t *options);

/*
 * Messages from rank to rank, of any size, also to oneself. A receive takes the first message that `peer`
 * sent to this rank with that tag and that no earlier receive took; messages of one sender and tag are taken
 * in the order sent. They are no part of the order of the collectives, and no other rank has to know of them.
 * A message may be shorter than the receive's count; one that is longer, or of another dtype, fails the
 * receive with COMM_MISMATCH.
 *
 * A message of at most 16 KiB is copied, and its send ends at once, on one node and between nodes. That holds
 * while at most 64 KiB from this sender wait for receives. With more than 256 ranks the bound is smaller: 16
 * MiB for all senders to one rank. Any other send ends when its message is received. On a GPU, the receive's
 * stream must have come to it. What one pair of ranks does not receive delays no other pair, tag or
 * collective.
 *
 * A failure ends that message alone, on both ranks, and the communicator goes on:
 *   COMM_TIMED_OUT   its deadline passed, here or there
 *   COMM_MISMATCH    it does not fit its receive
 *   COMM_LIMIT       the receiver's user has no room for more messages that nobody received
 *   COMM_DEVICE, COMM_NO_MEMORY   a GPU, or memory for it, failed here or there
 *   COMM_RANK_LOST   the other rank has left the communicator. What it sent before is received first. A
 *                    receive from any source ends so once every other rank has left
 */
#define COMM_ANY_SOURCE UINT32_MAX
COMM_API COMM_CHECK comm_result_t comm_send(comm_t *comm, const void *buffer, size_t count,
                                            comm_dtype_t dtype, uint32_t peer, uint32_t tag,
                                            const comm_call_options_t *options);
/* peer: a rank, or COMM_ANY_SOURCE. */
COMM_API COMM_CHECK comm_result_t comm_recv(comm_t *comm, void *buffer, size_t count, comm_dtype_t dtype,
                                            uint32_t peer, uint32_t tag, const comm_call_options_t *options);
/* Both at once; waits for both. options: its deadline and stream count. */
COMM_API COMM_CHECK comm_result_t comm_send_recv(comm_t *comm, const void *send, size_t send_count,
                                                 uint32_t to, void *receive, size_t receive_count,
                                                 uint32_t from, comm_dtype_t dtype, uint32_t tag,
                                                 const comm_call_options_t *options);

/*
 * Between comm_group_begin and comm_group_end, of one thread, operations are collected, on any communicators
 * of any clients, and submitted together by the latter. all_reduces of one communicator, dtype and op that
 * follow each other run as one (agreed: that they do): one round of messages for all of them. Groups nest;
 * the outermost end submits. comm_group_end returns the first failure to submit. A call that waits is refused
 * in a group. comm_start is collected like any other call. Handles that a group has collected cannot be
 * waited for before it ends, by any thread.
 */
COMM_API COMM_CHECK comm_result_t comm_group_begin(void);
COMM_API COMM_CHECK comm_result_t comm_group_end(void);

/* Waits until every rank has reached it; implies comm_sync. */
COMM_API COMM_CHECK comm_result_t comm_barrier(comm_t *comm, const comm_call_options_t *options);

/* --- Waiting --- */

/* What a receive took. */
typedef struct comm_received {
    uint32_t source; /* rank */
    size_t count;    /* elements */
} comm_received_t;

/*
 * Waits until the operation has ended, and returns its result; received may be null. The handle is freed and
 * *request null, unless it is persistent: that can be started again. A null handle has ended well.
 */
COMM_API COMM_CHECK comm_result_t comm_wait(comm_request_t **request, comm_received_t *received);
/* Whether it has ended: *done 1, and all as above; otherwise *done 0, and COMM_OK. */
COMM_API COMM_CHECK comm_result_t comm_test(comm_request_t **request, int *done, comm_received_t *received);
/* Waits for all; returns the first failure, by index. received: null, or `count` of them. */
COMM_API COMM_CHECK comm_result_t comm_wait_all(comm_request_t **requests, size_t count,
                                                comm_received_t *received);
/* Waits for one; *index gets which, its result is returned. Null handles and persistent ones that are not
 * started are left out; when nothing else is there, *index gets `count`. */
COMM_API COMM_CHECK comm_result_t comm_wait_any(comm_request_t **requests, size_t count, size_t *index,
                                                comm_received_t *received);
/* Starts a persistent operation; COMM_IN_PROGRESS when it has not been waited for since. */
COMM_API COMM_CHECK comm_result_t comm_start(comm_request_t *request);
/* Frees a handle without waiting: what is under way goes on, and comm_sync reports of it. Null is accepted.
 */
COMM_API void comm_request_free(comm_request_t *request);

/*
 * Waits until every operation that was submitted on the communicator has ended: outputs valid, inputs
 * reusable. Returns the first failure of any of them. timeout_ms: 0 waits as long as the operations' own
 * deadlines let it; otherwise COMM_TIMED_OUT after it, and the operations go on.
 */
COMM_API COMM_CHECK comm_result_t comm_sync(comm_t *comm, uint32_t timeout_ms);

/* --- Events --- */

/*
 * Points of CUDA streams, and of communicators, that others wait for, so that computing and communicating
 * overlap. None of these calls waits, but where it says so, nor asks commd anything. The seven steps, of
 * which no other makes the host wait:
 *
 *   comm_event_create(client, &event);
 *   comm_event_record(event, compute);      (after what was put on the compute stream,
 *   comm_event_wait_comm(event, comm);       the communicator goes on)
 *   comm_all_reduce(comm, ..., &options);   (options.stream = COMM_STREAM_NONE)
 *   comm_event_record_comm(event, comm);    (and after that,
 *   comm_event_wait(event, compute);         the compute stream does)
 *   comm_event_destroy(event);
 *
 * stream: a CUDA stream of a GPU on which the client has, or had, a communicator; null is the legacy default
 * stream, of the current context's GPU if the client has one there, else of its first. COMM_STREAM_NONE, and
 * null as long as the client has used no GPU, is the calling thread: what it records is reached at once, and
 * it waits itself. So the same program runs without a GPU.
 *
 * An event that was never recorded is reached. Recording it again replaces what later waits are for, and
 * nothing of earlier ones. It belongs to its client, and works with the communicators of that; it may be used
 * by several threads at once, and destroyed while others wait for what was recorded; what is left of them is
 * freed with the client.
 *
 * COMM_UNSUPPORTED: a stream of a client without a GPU, or one that is being captured. COMM_DAEMON_LOST,
 * COMM_DEVICE, COMM_INVALID_ARGUMENT, COMM_LIMIT.
 */
COMM_API COMM_CHECK comm_result_t comm_event_create(comm_client_t *client, comm_event_t **event);
/* Null is accepted. */
COMM_API void comm_event_destroy(comm_event_t *event);

/* The event is reached when the stream has done what it holds now. */
COMM_API COMM_CHECK comm_result_t comm_event_record(comm_event_t *event, void *stream);
/*
 * The event is reached when every operation that was submitted on this rank of the communicator has ended,
 * and the events that it was to wait for are reached. Also when the communicator fails. Refused in a group,
 * whose operations are not submitted yet. With 1,024 of a communicator that are not reached, the next ones
 * are held, as collectives are.
 */
COMM_API COMM_CHECK comm_result_t comm_event_record_comm(comm_event_t *event, comm_t *comm);

/* What is put on the stream from now on begins after the event. The calling thread waits as long as commd's
 * deadlines let it: COMM_TIMED_OUT. */
COMM_API COMM_CHECK comm_result_t comm_event_wait(comm_event_t *event, void *stream);
/*
 * Operations that are submitted on this rank of the communicator from now on, messages as well, begin after
 * the event. With more than 15 such events that are not reached, they also begin after the operations before.
 */
COMM_API COMM_CHECK comm_result_t comm_event_wait_comm(comm_event_t *event, comm_t *comm);

/*
 * Waits, in the calling thread, until everything that was asked of the communicator has ended: operations, as
 * in comm_sync, whose results it returns, and what they were to wait for. timeout_ms: as in comm_sync.
 */
COMM_API COMM_CHECK comm_result_t comm_sync_stream(comm_t *comm, uint32_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
