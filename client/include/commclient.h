#ifndef COMMCLIENT_H
#define COMMCLIENT_H

/*
 * libcommclient: collectives through the node's commd.
 *
 * A process opens a connection to the commd of its node, joins communicators by name, and submits operations
 * on its buffers. Operations return at once. After comm_sync (or comm_barrier) the results are valid and the
 * buffers may be changed. Operations of one communicator run in the order submitted. Every rank must submit
 * the same operations in the same order.
 *
 * Threads: every function may be called from any thread. If two threads use one communicator, the program
 * must define the order of their calls. Do not close or destroy a client or communicator while another thread
 * uses it.
 *
 * Errors: every function that can fail returns a comm_result_t. comm_result_text returns its short text.
 * comm_last_error returns the long message of the last failure in the calling thread: who, what and where.
 *
 * Null pointers: a call that returns a result refuses a null pointer with COMM_INVALID_ARGUMENT, unless its
 * comment accepts it. Do not use anything that was destroyed, closed or freed: the library cannot tell.
 *
 * The end of a process: leave in order, with comm_sync, comm_destroy and comm_client_close. If a process ends
 * in another way (return from main, exit, _exit, exec, a signal), its ranks are lost. Its pending operations
 * do not go on. Other ranks get COMM_RANK_LOST, also of an operation whose handle had ended on that rank: see
 * "a handle may end" below.
 *
 * Signals: handlers may interrupt every call; calls go on afterwards. In a handler, call only
 * comm_queue_wake.
 *
 * Do not cancel a thread that may be in a call (pthread_cancel), and do not leave a call by longjmp or an
 * exception: the client would stay locked. A thread that must not wait for long uses comm_wait_for.
 *
 * Descriptors: keep 0, 1 and 2 open. Otherwise the connection may get one of these numbers, and whatever the
 * program prints goes there. The library closes its own descriptors; the program must not.
 *
 * After fork, the child must not use the parent's clients; it opens its own. A connection ends when the
 * process that opened it ends, even if a child has inherited its descriptors. A program that forks to become
 * a daemon opens its client after the fork.
 *
 * GPUs: the library loads the CUDA driver when the first communicator or memory on a GPU is made. A program
 * that uses no GPU needs no driver.
 *
 * Threads of the library: a client has one thread if its operations are ordered by CUDA streams or events,
 * one while it holds collectives or has some in shared memory, and one while it keeps more than 16 MiB
 * for staging. These threads block all signals, except those of faults, such as SIGSEGV and SIGBUS: a buffer
 * that the program has unmapped faults in the thread that copies it.
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
    COMM_BUSY = 24    /* memory that was at this address before is still in use */
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
 * Which types each operator accepts; other combinations fail with COMM_UNSUPPORTED:
 *   - sum, prod: all types. On bool they mean "or" and "and".
 *   - min, max: all but complex. NaN propagates.
 *   - avg: all but bool. On integers: the wrapping sum divided by the size, truncated toward zero.
 *   - premul_sum: all but bool. Each rank's input is multiplied by that rank's factor. For integers, the
 * factor is a whole number of at most 2^53, and products wrap.
 *   - bitwise and logical operators: integers and bool.
 * All ranks get identical bits, those of NaN too. Another run may round differently between nodes, because
 * commd chooses the order of the operands by measured times. In host memory, the same algorithms
 * (comm_init_options_t) on the same nodes give the same bits in every run.
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
typedef struct comm_request comm_request_t; /* a handle to wait for one operation */
typedef struct comm_event comm_event_t;     /* a point in a CUDA stream, or in a communicator */
typedef struct comm_queue comm_queue_t;     /* where operations end: commclient/queue.h */

/* The message that a receive took. */
typedef struct comm_received {
    uint32_t source; /* rank */
    size_t count;    /* elements */
} comm_received_t;

/* Returns the short text of a result, in static storage; never null. */
COMM_API const char *comm_result_text(comm_result_t result);

/*
 * Returns the long message of the last call that failed in this thread, or "" if none has failed. It is valid
 * until this thread calls the library again.
 */
COMM_API const char *comm_last_error(void);

#include "commclient/failure.h"

/* Returns the size of one element in bytes, or 0 if the number is not a dtype. */
COMM_API size_t comm_dtype_size(comm_dtype_t dtype);

/* Returns the library's version, such as "0.1.0". */
COMM_API const char *comm_version(void);

/* --- Connection --- */

typedef struct comm_open_options {
    size_t struct_size;      /* sizeof(struct comm_open_options); COMM_OPEN_OPTIONS_INIT sets it */
    const char *socket_path; /* null: $COMMD_SOCKET if set, else /run/commd/commd.sock */
    uint32_t timeout_ms;     /* for connecting and the handshake; 0: 10,000 */
    uint32_t wait_ms;        /* how long to wait for a commd that does not run, or is being restarted;
                                0: $COMMD_WAIT_MS if set, else not at all */
} comm_open_options_t;
#define COMM_OPEN_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_open_options), NULL, 0, 0                                                         \
    }

/*
 * Connects to this node's commd. options may be null. Errors: COMM_DAEMON_LOST (no commd listens),
 * COMM_PERMISSION, COMM_VERSION (library and commd have incompatible versions), COMM_TIMED_OUT,
 * COMM_INVALID_ARGUMENT (the environment), COMM_LIMIT (no descriptor is left), COMM_NO_MEMORY.
 *
 * With wait_ms, the call tries again while the socket, or its folder, does not exist, nobody listens at it,
 * or commd ends. Other failures are returned at once.
 *
 * Before commd ends in order, it says so to its clients. Their calls then fail with COMM_DAEMON_LOST, and the
 * message says "restarting" or "stopping", with the reason that its administrator gave. Close such a client,
 * and open another one with wait_ms.
 */
COMM_API COMM_CHECK comm_result_t comm_client_open(const comm_open_options_t *options,
                                                   comm_client_t **client);

/*
 * If commd stands still (it is stopped, or gets no processor time), a thread that waits in this library waits
 * as long as the other nodes do: heartbeat_timeout_ms of commd.conf, 4 seconds by default, and 0.4 to 1.2
 * seconds more. If commd has announced a call that may take long, such as pinning gigabytes, it waits for at
 * least a minute. Every call then fails with COMM_DAEMON_LOST.
 *
 * A commd that stood still may run again. Until its process has ended, it may write to registered buffers and
 * to buffers on a GPU, and take part in operations. comm_mem_deregister waits for the end of the process, or
 * fails with COMM_BUSY. commd never touches buffers that were staged.
 */

/*
 * Closes the connection and frees everything made through it. Null is accepted. Never aborts the process.
 *   - Pending operations get at most one second to finish.
 *   - All communicators are left. Other ranks that still need this rank get COMM_RANK_LOST.
 *   - CUDA streams that wait for operations go on.
 *   - Memory from comm_mem_alloc is unmapped. For memory on a GPU, commd first gets one second to close it.
 *     The call then waits for the GPU's streams and frees the memory. If one of the streams is being
 *     captured, the memory stays until the process ends.
 */
COMM_API void comm_client_close(comm_client_t *client);

/* --- Communicators --- */

#define COMM_DEVICE_HOST (-1)
enum comm_on_loss {
    COMM_ON_LOSS_RETURN, /* calls return the error; comm_recover makes a communicator of the survivors */
    COMM_ON_LOSS_ABORT   /* writes why to stderr, in a line, and calls abort(), like MPI_ERRORS_ARE_FATAL */
};

typedef struct comm_init_options {
    size_t struct_size;     /* COMM_INIT_OPTIONS_INIT sets it */
    uint32_t timeout_ms;    /* how long to wait for all ranks; 0: 60,000 */
    uint32_t op_timeout_ms; /* deadline of each operation; 0: 60,000. All ranks must agree */
    uint64_t slice_bytes;   /* unit of pipelining; 0: commd's default. All ranks must agree */
    const char *algorithms; /* e.g. "all_reduce:0-4k=tree,4k-=ring"; null: $COMMD_ALGORITHMS if set,
                               else commd's default. All ranks must agree */
    int minority_continues; /* 1: if nodes cannot reach each other, each group of them may go on with
                               comm_shrink (commclient/recovery.h). All ranks must agree */
    int reserved;           /* 0 */
    int on_loss; /* enum comm_on_loss: what this process does in its present or next call, once the formed
                    communicator loses a process, node or commd, a partition leaves it in a minority, or
                    another rank calls comm_abort. Ranks may differ. Later generations and parts inherit it */
} comm_init_options_t;
#define COMM_INIT_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_init_options), 0, 0, 0, NULL, 0, 0, COMM_ON_LOSS_RETURN                           \
    }

/*
 * Joins the communicator `name` as `rank` of `size`, and waits until all ranks have joined.
 *   - name: 1 to 127 printable ASCII characters without space, the same on all ranks. The name belongs to the
 *     user who uses it first, until the communicator is gone.
 *   - device: COMM_DEVICE_HOST, or a CUDA device's number as this process sees it. The client keeps the
 *     device's primary context until it is closed. Ranks may share a GPU.
 *   - options: may be null.
 * A process may hold several ranks. It then calls comm_init once for each rank, from different threads,
 * because each call waits for the other ranks.
 *
 * The call ends on all ranks that wait if one is lost: its process ends (COMM_RANK_LOST), or the commd of its
 * node ends, is started again, or does not answer for the patience, heartbeat_timeout_ms in commd.conf
 * (COMM_NODE_LOST). The message names it, and says why. The name is free then, and all may join again. A rank
 * whose call timed out or was cancelled (comm_cancel) is not lost: the others wait, and it may come again.
 *
 * Errors: COMM_RANK_LOST, COMM_NODE_LOST, COMM_TIMED_OUT (it names missing ranks), COMM_MISMATCH (who
 * disagrees), COMM_ALREADY_EXISTS (who has the rank), COMM_PERMISSION (who owns the name), COMM_UNSUPPORTED
 * (no driver or such GPU), COMM_DEVICE (the GPU failed), COMM_LIMIT, COMM_DAEMON_LOST.
 */
COMM_API COMM_CHECK comm_result_t comm_init(comm_client_t *client, const char *name, uint32_t rank,
                                            uint32_t size, int device, const comm_init_options_t *options,
                                            comm_t **comm);

#include "commclient/launcher.h"

/*
 * Leaves the communicator and frees it. Null is accepted. Pending operations get at most one second to
 * finish. Other ranks can still receive the messages that this rank has sent. The caller must have waited
 * for, or freed, all handles of the communicator before. Operations on it that a group has collected are not
 * submitted. If the group is another thread's, comm_group_end returns COMM_ABORTED there.
 */
COMM_API void comm_destroy(comm_t *comm);

/* These return 0 if comm is null. */
COMM_API uint32_t comm_rank(const comm_t *comm);
COMM_API uint32_t comm_size(const comm_t *comm);
COMM_API uint32_t comm_local_rank(const comm_t *comm); /* among the ranks of this node, in rank order */
COMM_API uint32_t comm_local_size(const comm_t *comm);
/* Returns the name of the node that holds `rank`, or null if rank is out of range or comm is null. The text
 * is valid as long as the communicator. */
COMM_API const char *comm_node_of(const comm_t *comm, uint32_t rank);

#include "commclient/memory.h"

/* --- Operations --- */

/*
 * Host buffers may be at any address. Memory from comm_mem_alloc or comm_mem_register is used in place.
 * Other host memory is staged. It is copied in on submission, and copied out when the program waits for the
 * operation (comm_sync, comm_barrier, comm_wait, comm_test), or takes its completion from a queue
 * (comm_queue_next). Do not change buffers until then. The library
 * keeps staging memory for later operations: up to 16 MiB without limit of time, more for one second.
 *
 * Collectives within one node of more than 32 KiB (all-reduces of three ranks or more: 16 KiB) go from rank
 * to rank, in slices of at most 1 MiB. The call copies the first slice. The thread that waits for the
 * operation does the rest; while none waits, a thread of the library does, so no other rank waits for a rank
 * that computes. In memory that commd has mapped, only up to 1 MiB do (2 MiB if each rank has a processor,
 * except an all-reduce), and only if the program waited at once for the ones before: otherwise they go to
 * commd. So do scans, and operations in groups, with queues, streams or lists of pointers.
 *
 * No call that submits an operation waits for another operation to end. For each communicator, commd accepts
 * 1,024 collectives at a time, with 1 GiB of staged buffers, or one larger collective. The library holds
 * further collectives, and sends them in order as earlier ones end. While the program does not call the
 * library, a thread of the library sends them. The buffers of a held collective are read when it is sent, and
 * its deadline starts then. Sends and receives are never held; they overtake held collectives.
 *
 * A communicator holds at most 1,048,576 collectives and event records. A call that would add one more fails
 * with COMM_LIMIT and submits nothing. While more than 131,072 are held, each call that adds one may take a
 * millisecond. An operation that commd refuses because of its user's budget ends with COMM_LIMIT, too. A held
 * collective may lack memory for staging; if that lasts as long as its timeout, the communicator fails.
 *
 * A rank on a GPU takes buffers on that GPU and host buffers.
 *   - Memory from cudaMalloc is registered on first use, the whole allocation at once. So is virtual memory
 *     whose handles are POSIX descriptors (PyTorch's expandable segments). This takes about 100 us, once.
 *   - If memory was freed and other memory was allocated at its address, the library notices that, and commd
 *     closes the old memory. Until then, the old memory stays occupied on the GPU.
 *   - Memory from a CUDA memory pool (cudaMallocAsync) must be registered with comm_mem_register, and the
 * pool must have POSIX descriptors as handles. Otherwise it fails with COMM_UNSUPPORTED.
 *   - Managed memory and memory of another GPU fail with COMM_UNSUPPORTED.
 *   - Memory from cudaMalloc fails with COMM_PERMISSION if commd accepts only descriptors (cuda_ipc_handles
 *     in commd.conf(5)).
 *   - Buffers on a GPU must be aligned to the size of their elements (complex: to half of it). Others fail
 *     with COMM_INVALID_ARGUMENT.
 *
 * Counts are in elements; 0 is valid. If a buffer has one block for each rank, the blocks are in rank order,
 * and `count` is the count of one block. The _v forms take an array of comm_size() counts. They also take
 * displacements of the blocks in the caller's buffer, in elements from its start (null: the blocks follow
 * each other). The arrays are read before the call returns.
 *
 * "Agreed" lists the arguments that must be equal on all ranks. If they differ, the operation ends on every
 * rank with COMM_MISMATCH, and the message names two ranks and both calls. The communicator stays usable.
 *
 * Send and receive buffers must not overlap, except where "in place" is described.
 *
 * A failure of an operation is returned by comm_wait on its handle. Without a handle, the next comm_sync or
 * comm_barrier returns it. A failure that ends the communicator is also returned by every later call on it.
 *
 * As in MPI, a handle may end before all ranks have taken part. In a small operation it ends once this rank's
 * part is done: that of a root that sends, or of a rank that only sends to the root, or of a rank that has
 * the root's data. If the operation fails later, the next comm_sync or comm_barrier says so. comm_sync waits
 * until all ranks have taken part; comm_destroy does so for at most one second.
 *
 * What each failure ends:
 *
 *   COMM_TIMED_OUT    a collective's or message's deadline passed       that operation, on all its ranks
 *   COMM_MISMATCH     ranks contradict each other                       that operation, on all its ranks
 *   COMM_LIMIT        a budget of one rank's user does not allow it     that operation, on all its ranks
 *   COMM_RANK_LOST    of a message: the other rank has left             that message
 *   COMM_RANK_LOST    a rank that others need has ended or left         the communicator
 *   COMM_NODE_LOST    a node, or the connection to it, is lost          the communicator
 *   COMM_ABORTED      a user or a rank aborted the communicator         the communicator
 *   COMM_INVALID_ARGUMENT   a buffer's memory changed, e.g. lost pages  the communicator
 *   COMM_DEVICE       a GPU failed in a collective                      the communicator
 *   COMM_DAEMON_LOST  commd of this node has ended, or stands still     all communicators of the client
 *
 * A collective that times out ends with the same text on all ranks, except on ranks where it had ended well
 * before. commd does not touch its buffers any more, and the contents of its outputs are undefined. Later
 * operations go on, also on a rank that comes late. If a GPU or a connection still uses the buffers after two
 * seconds, the communicator ends, too, and the operation's failure is reported. If a GPU is still running an
 * operation when its communicator ends for another reason, the operation's failure is reported within two
 * seconds. The GPU may then still touch its buffers.
 */

enum comm_compression {
    COMM_COMPRESSION_NONE = 0,
    COMM_COMPRESSION_BF16 = 1, /* half the bytes; relative error of a contribution at most 2^-8 */
    /* A quarter of the bytes: e4m3. The error of a contribution x is at most max(2^-4 |x|, 2^-17 M), where M
       is the largest of 256 elements. */
    COMM_COMPRESSION_F8 = 2,
    COMM_COMPRESSION_TOP_K = 3 /* only the largest of each 1,024 elements, as f32 */
};

/*
 * Operations of a rank on a GPU are ordered by a CUDA stream. The operation begins, and touches its buffers,
 * after the work that is in the stream at the call. Work that is put on the stream later begins after the
 * operation has ended, whatever its result. The host does not wait. The stream may belong to any GPU, which
 * need not be the current one. Null means the legacy default stream of the communicator's GPU. With
 * COMM_STREAM_NONE, only events or the caller order the operation. Ranks on the host have no streams: they
 * pass null or COMM_STREAM_NONE.
 *
 *   - Staged host buffers do not follow the stream's order. They are read at the call (or later if the
 *     operation is held), and written when the program waits for the operation.
 *   - Before a call with COMM_STREAM_NONE, synchronize with the work that wrote the buffers. cudaMemcpy is
 *     not enough: from pageable memory it returns before the GPU has all bytes, and between buffers on GPUs
 *     it does not wait at all.
 *   - Operations in one stream run one after the other. If operations need each other to end, put them into
 *     one group, as two ranks that each send to and receive from the other. The stream marks its position at
 *     each call of the group, and waits for all operations at comm_group_end. If a process has several ranks
 *     of a communicator, and a stream waits for a collective of one of them, the same collective of another
 *     one fails in that stream with COMM_INVALID_ARGUMENT: neither could end.
 *   - Streams share connections to their GPU: 8, or the number in CUDA_DEVICE_MAX_CONNECTIONS (programs that
 *     shard models set 1). While one stream waits for an operation, later work of other streams on the same
 *     connection waits, too. This matters for ranks that use several communicators, or that send and receive
 *     outside of groups. Their order of operations must be possible with a single stream. Otherwise
 *     operations fail at their deadline with "waiting for the stream of rank 1". With COMM_STREAM_NONE and
 *     events, no stream is blocked before comm_event_wait.
 *   - A persistent operation takes its place in the stream at comm_start.
 *   - If the stream is being captured, the operation becomes part of the CUDA graph: see below.
 *   - If commd ends, streams that wait for it go on, with whatever their buffers hold. The next call returns
 *     COMM_DAEMON_LOST.
 *   - The operation's deadline counts from the call, or from when a held operation is sent.
 *
 * CUDA graphs. A collective, a send or a receive on a stream that is being captured is not submitted. Each
 * replay of the graph runs it, with the buffers' contents of that time. A replay takes no call of this
 * library and no CPU time of the program.
 *
 *   - All ranks capture the same operations of a communicator, in the same order, each in one graph. The
 * first of a capture waits until all ranks have come; each waits for commd. A different operation is found at
 * the first replay (COMM_MISMATCH).
 *   - The n-th replay of the graph on one rank runs with the n-th replay on the others. Between different
 * graphs, and between graphs and other operations, ranks need no common order.
 *   - Within a replay, the operations of a communicator begin in the order of their capture.
 *   - Messages of a graph match messages of the same graph only, in the order of the replays.
 *   - In a group, one graph captures all streams of a rank, or none does; and all ranks of a communicator are
 * captured, or none is. Each rank may have a capture of its own, or one capture may spread over the streams
 * of all ranks. comm_group_end adds the operations to the graphs. One thread that captures several ranks of a
 * communicator needs a group. Operations of a captured group do not run as one.
 *   - Two replays of a graph must not run at once. CUDA prevents that for one executable of the graph, but
 * not for two. commd ends the communicator with COMM_INVALID_ARGUMENT when it sees that, which it cannot
 * always.
 *   - The deadline of an operation counts from its turn in the replay.
 *   - A replay whose operation fails goes on, with whatever the buffers hold. The failure is the
 * communicator's: comm_sync, comm_last_failure and later calls return it. If the communicator has failed, was
 * destroyed, or commd is gone, replays go on as well, and their operations do nothing.
 *   - What the graph needs is released when the graph and all executables of it are destroyed. Destroy them
 * before the buffers are freed.
 *   - Refused with COMM_UNSUPPORTED, and the capture stays valid: host buffers that are not of comm_mem_alloc
 * or registered; options.request, options.queue and comm_start; calls that wait (comm_barrier,
 * comm_send_recv); events (comm_event_record, comm_event_wait); the bodies of conditional nodes; the legacy
 * stream. A graph holds at most 4,096 operations of a communicator (COMM_LIMIT).
 *   - Waits that comm_event_wait_comm has set up hold for operations outside of graphs.
 */
#define COMM_STREAM_NONE ((void *)-1)

typedef struct comm_call_options {
    size_t struct_size;  /* COMM_CALL_OPTIONS_INIT sets it */
    uint32_t timeout_ms; /* deadline of this operation; 0: op_timeout_ms of the communicator */
    double factor;       /* COMM_PREMUL_SUM: this rank's factor; otherwise ignored */
    void *stream;        /* CUDA stream (cudaStream_t, CUstream): see COMM_STREAM_NONE */
    /*
     * If not null, *request gets a handle of the operation, for comm_wait or comm_test. These set it to null
     * when the operation has ended. If the call fails to submit, *request is null, too.
     */
    comm_request_t **request;
    /*
     * If not 0, the call submits nothing, and `request` is required. comm_start on the handle submits the
     * operation with the buffers and arguments of this call. It may be started again after each wait.
     */
    int persistent;
    /* Format on the network, for all_reduce of COMM_F32 with COMM_SUM or COMM_AVG. Agreed. */
    enum comm_compression compression;
    uint32_t top_k_permille; /* COMM_COMPRESSION_TOP_K: how many of a thousand elements; 0: 10. Agreed */
    /*
     * With compression: null, or an array of count elements, zero before the first call. Pass it again with
     * each call on the same data. A call stores there what compression lost, and the next call adds that to
     * what it sends (error feedback: Seide et al. 2014, Karimireddy et al. 2019). Agreed: all ranks or none
     * pass an array.
     */
    float *residual;
    /*
     * If not null, the operation ends into this queue of the communicator's client, with this cookie:
     * commclient/queue.h. `request` must then be null, unless the operation is persistent. The handle of a
     * persistent operation cannot be waited for then. Each comm_start gives the queue one completion. When
     * comm_queue_next has returned that completion, the handle can be started again.
     */
    comm_queue_t *queue;
    void *cookie;
} comm_call_options_t;
#define COMM_CALL_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_call_options), 0, 1.0, NULL, NULL, 0, COMM_COMPRESSION_NONE, 0, NULL, NULL, NULL  \
    }
/* `options` may be null everywhere. */

/* receive[i] = reduction of send[i] over all ranks. In place: send == receive. Agreed: count, dtype, op. */
COMM_API COMM_CHECK comm_result_t comm_all_reduce(comm_t *comm, const void *send, void *receive, size_t count,
                                                  comm_dtype_t dtype, comm_op_t op,
                                                  const comm_call_options_t *options);

/* As comm_all_reduce, but only rank `root` gets the result; receive is ignored on other ranks. In place on
 * the root: send == receive. Agreed: count, dtype, op, root. */
COMM_API COMM_CHECK comm_result_t comm_reduce(comm_t *comm, const void *send, void *receive, size_t count,
                                              comm_dtype_t dtype, comm_op_t op, uint32_t root,
                                              const comm_call_options_t *options);

/* Copies buffer of rank `root` to buffer of every rank. Agreed: count, dtype, root. */
COMM_API COMM_CHECK comm_result_t comm_broadcast(comm_t *comm, void *buffer, size_t count, comm_dtype_t dtype,
                                                 uint32_t root, const comm_call_options_t *options);

/* receive, of comm_size() × count elements, gets every rank's block. In place: send is this rank's block in
 * receive. Agreed: count, dtype. */
COMM_API COMM_CHECK comm_result_t comm_all_gather(comm_t *comm, const void *send, void *receive, size_t count,
                                                  comm_dtype_t dtype, const comm_call_options_t *options);
/* Rank i sends counts[i] elements. Agreed: counts, dtype. */
COMM_API COMM_CHECK comm_result_t comm_all_gather_v(comm_t *comm, const void *send, void *receive,
                                                    const size_t *counts, const size_t *displacements,
                                                    comm_dtype_t dtype, const comm_call_options_t *options);

/*
 * Rank i gets block i of the reduction over all ranks. send has comm_size() × count elements, receive has
 * count elements. In place: receive is this rank's block in send; otherwise send is not changed. Agreed:
 * count, dtype, op.
 */
COMM_API COMM_CHECK comm_result_t comm_reduce_scatter(comm_t *comm, const void *send, void *receive,
                                                      size_t count, comm_dtype_t dtype, comm_op_t op,
                                                      const comm_call_options_t *options);
/* Rank i gets counts[i] elements. Agreed: counts, dtype, op. */
COMM_API COMM_CHECK comm_result_t comm_reduce_scatter_v(comm_t *comm, const void *send, void *receive,
                                                        const size_t *counts, comm_dtype_t dtype,
                                                        comm_op_t op, const comm_call_options_t *options);

/* receive of rank `root`, comm_size() × count elements, gets every rank's block. receive is ignored on other
 * ranks. In place on the root: send is its own block in receive. Agreed: count, dtype, root. */
COMM_API COMM_CHECK comm_result_t comm_gather(comm_t *comm, const void *send, void *receive, size_t count,
                                              comm_dtype_t dtype, uint32_t root,
                                              const comm_call_options_t *options);
/* Each rank sends send_count elements. counts and displacements are read on the root only, where counts[i]
 * must equal send_count of rank i. Agreed: dtype, root. */
COMM_API COMM_CHECK comm_result_t comm_gather_v(comm_t *comm, const void *send, size_t send_count,
                                                void *receive, const size_t *counts,
                                                const size_t *displacements, comm_dtype_t dtype,
                                                uint32_t root, const comm_call_options_t *options);

/* Rank i gets block i of send of rank `root`. send is ignored on other ranks. In place on the root: receive
 * is its own block in send. Agreed: count, dtype, root. */
COMM_API COMM_CHECK comm_result_t comm_scatter(comm_t *comm, const void *send, void *receive, size_t count,
                                               comm_dtype_t dtype, uint32_t root,
                                               const comm_call_options_t *options);
/* counts and displacements are read on the root only, where counts[i] must equal receive_count of rank i.
 * Agreed: dtype, root. */
COMM_API COMM_CHECK comm_result_t comm_scatter_v(comm_t *comm, const void *send, const size_t *counts,
                                                 const size_t *displacements, void *receive,
                                                 size_t receive_count, comm_dtype_t dtype, uint32_t root,
                                                 const comm_call_options_t *options);

/* Block j of rank i's send goes to block i of rank j's receive; both have comm_size() × count elements. In
 * place: send == receive. Agreed: count, dtype. */
COMM_API COMM_CHECK comm_result_t comm_all_to_all(comm_t *comm, const void *send, void *receive, size_t count,
                                                  comm_dtype_t dtype, const comm_call_options_t *options);
/* send_counts[j] of rank i must equal receive_counts[i] of rank j. Agreed: that, and dtype. */
COMM_API COMM_CHECK comm_result_t comm_all_to_all_v(comm_t *comm, const void *send, const size_t *send_counts,
                                                    const size_t *send_displacements, void *receive,
                                                    const size_t *receive_counts,
                                                    const size_t *receive_displacements, comm_dtype_t dtype,
                                                    const comm_call_options_t *options);

/* receive[i] of rank r = reduction of send[i] over ranks 0 to r, in rank order. COMM_AVG is not allowed. In
 * place: send == receive. Agreed: count, dtype, op. */
COMM_API COMM_CHECK comm_result_t comm_scan(comm_t *comm, const void *send, void *receive, size_t count,
                                            comm_dtype_t dtype, comm_op_t op,
                                            const comm_call_options_t *options);
/* As comm_scan, over ranks 0 to r - 1. receive of rank 0 is not changed. */
COMM_API COMM_CHECK comm_result_t comm_exclusive_scan(comm_t *comm, const void *send, void *receive,
                                                      size_t count, comm_dtype_t dtype, comm_op_t op,
                                                      const comm_call_options_t *options);

#include "commclient/messages.h"

/*
 * Between comm_group_begin and comm_group_end, the operations of the calling thread are collected, on any
 * communicators of any clients. comm_group_end submits them together, and returns the first failure. Groups
 * nest; the outermost comm_group_end submits. comm_start is collected like any other call.
 *
 * Operations of any kind may be in a group. Those of one communicator run in the order of the calls. Those of
 * different communicators may run at once, also in one stream: then none may write what another one uses. The
 * same holds for successive all_reduces of one communicator, dtype and op: they run as one, with one round of
 * messages. So do successive all_gathers of one dtype, and successive reduce_scatters, but not their _v and
 * _list forms. Messages may stand between them. All ranks must group these alike (agreed). Others run alone.
 *
 * Calls that wait are refused in a group. No thread can wait for a collected handle before the group ends.
 */
COMM_API COMM_CHECK comm_result_t comm_group_begin(void);
COMM_API COMM_CHECK comm_result_t comm_group_end(void);

/* Waits until every rank has called comm_barrier; implies comm_sync. With a request or a queue in the
 * options, it does not wait: the operation ends when every rank has called comm_barrier. */
COMM_API COMM_CHECK comm_result_t comm_barrier(comm_t *comm, const comm_call_options_t *options);

#include "commclient/elastic.h"
#include "commclient/event.h"
#include "commclient/lists.h"
#include "commclient/pool.h"
#include "commclient/queue.h"
#include "commclient/recovery.h"
#include "commclient/store.h"
#include "commclient/waiting.h"

#ifdef __cplusplus
}
#endif

#endif
