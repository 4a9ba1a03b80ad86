#ifndef TESTS_CUDA_DOUBLE_CUDA_DOUBLE_H
#define TESTS_CUDA_DOUBLE_CUDA_DOUBLE_H

#include <stddef.h>

#include "proto/cuda_driver.h"

/*
 * A double of the CUDA driver and of NCCL, for machines without a GPU. libcuda_double.so is the library that
 * COMMD_CUDA_LIBRARY names. libnccl_double.so is the same library, for COMMD_NCCL_LIBRARY. The double exports
 * the real symbols and enforces the real rules on its users. Where CUDA leaves something undefined, the
 * double takes the harshest way that a program may meet.
 *
 * Environment, read at cuInit, with the default in brackets:
 *
 *   CUDA_DOUBLE_FOLDER
 *       what the processes of one machine share (/dev/shm/cuda_double-<uid>)
 *   CUDA_DOUBLE_DEVICES
 *       number of devices, 0..8 (4). CUDA_VISIBLE_DEVICES works as in CUDA, with indices or GPU-<uuid>.
 *   CUDA_DOUBLE_MEMORY_BYTES
 *       memory of each device (1 GiB). Each process obeys its own value.
 *   CUDA_DOUBLE_MPS
 *       1: the attribute says that MPS runs (0)
 *   CUDA_DOUBLE_PEER
 *       0: no device can access another (1)
 *   CUDA_DOUBLE_IMPORTS_PEER
 *       0: kernels of other devices cannot access memory that an IPC handle opened (1)
 *   CUDA_DOUBLE_VIRTUAL_MEMORY
 *       0: no device has virtual memory, as the attributes say. Its calls return NOT_SUPPORTED (1).
 *   CUDA_DOUBLE_MAPPINGS_NUMBERED
 *       0: BUFFER_ID of memory that cuMemMap mapped is the number of the reservation. So whatever is mapped
 *       there next has the same BUFFER_ID (1).
 *   CUDA_DOUBLE_DELAY_US
 *       each piece of work of a stream begins late, by 0 to this many microseconds (0)
 *   CUDA_DOUBLE_KERNEL_US, CUDA_DOUBLE_KERNEL_US_PER_MIB, CUDA_DOUBLE_NCCL_US
 *       each kernel takes this many microseconds longer, and as many for each MiB of an output; each piece of
 *       NCCL's work in a stream takes as many longer (0)
 *   CUDA_DOUBLE_SLOW
 *       calls that take long (none), such as "cuIpcOpenMemHandle:200,cuMemUnmap:3600000": milliseconds, or as
 *       long as the file CUDA_DOUBLE_SLOW_WHILE is there. Without that file, no call takes long. With
 *       CUDA_DOUBLE_SLOW_DEVICE, only calls with a context of that device do.
 *   CUDA_DOUBLE_SEED
 *       seed of these delays (1)
 *   CUDA_DOUBLE_CONNECTIONS
 *       1..32: the streams of a context share this many queues, as streams of a GPU share its connections to
 *       the host. New streams get the queues in turn. Work in one queue runs in the order in which it was
 *       submitted, whatever its stream. So a wait holds up other streams, too. 0: each stream has a queue of
 *       its own (CUDA_DEVICE_MAX_CONNECTIONS, or 0).
 *   CUDA_DOUBLE_BLOCKING_ALLOCATION
 *       1: cuMemAlloc, cuMemHostAlloc, cuMemHostRegister and cuModuleLoadData first wait for all work of the
 *       context, as the driver may (0)
 *   CUDA_DOUBLE_HANG_MS
 *       a call with which NCCL would hang is an error after this time (2000)
 *   CUDA_DOUBLE_NCCL_VERSION
 *       what ncclGetVersion says (22809). Functions that NCCL has only in later versions are not found:
 *       windows come with 22703, registrations with 21900. FP8 comes with 22400.
 *   CUDA_DOUBLE_NCCL_WINDOWS
 *       0: NCCL has no windows among the devices. ncclCommWindowRegister succeeds with a null handle (1).
 *   CUDA_DOUBLE_CAPABILITY
 *       ten times the compute capability (90). Below 90, NCCL does not reduce FP8.
 *   CUDA_DOUBLE_NCCL_OFF_MAIN
 *       1: a call of NCCL on the process's main thread ends the process. Such calls can block (0).
 *   CUDA_DOUBLE_TRAFFIC
 *       a file with two 64-bit counts for each device: bytes of pinned memory that copies and kernels of this
 *       process have written from the device, and read to it
 *   CUDA_DOUBLE_FAIL
 *       calls that fail (none). With "cuMemHostAlloc:3,cuLaunchKernel:1=700", the third call of the first and
 *       the first call of the second fail. "2+" means the second call and all later ones. The result is
 *       OUT_OF_MEMORY (NCCL: a system error), or the number after "=". Results 700..799 break the context
 *       for good. With result -1, a call of NCCL does not return. "ncclKernel:n" names the nth piece of
 *       NCCL's work in a stream: it hangs until it is aborted. The file "nccl-hangs" in CUDA_DOUBLE_FOLDER
 * says that it has begun to.
 *
 * What the double decides where CUDA's documents are silent or leave a choice:
 *   - The CPU cannot read device addresses. Uninitialised memory holds bytes of 0xff (NaN).
 *   - cuMemAlloc of up to 1 MiB takes a place in a 2 MiB block of the context, at a multiple of 512 bytes. A
 *     larger allocation gets a block of its own, of a multiple of 2 MiB. The lowest free address is given, so
 *     a freed address comes back at once. cuMemGetAddressRange gives base and bytes as the program asked for
 *     them. MAPPING_BASE and MAPPING_BYTES give the block. A device is charged for blocks.
 *   - An opened IPC handle maps the whole block. So what lies beside the allocation in the block can be
 *     reached there. cuMemGetAddressRange gives the exporter's allocation. The same (context, block, offset)
 *     is opened once; further opens are counted.
 *   - A process may still have a block open that its exporter has freed. Then opening what the exporter
 *     allocates at the same addresses is ALREADY_MAPPED.
 *   - An IPC handle that is stale, or whose exporter has ended, is INVALID_VALUE. A device that this process
 *     does not see is INVALID_DEVICE. Opened memory cannot be exported again.
 *   - Memory of a pool is there when its stream has come to the allocation. Before, whatever touches it, in
 *     any process, is an ILLEGAL_ADDRESS. Once cuMemFreeAsync has returned, nothing can be asked about it.
 *   - Devices touch memory of a pool only if the pool lets them, also with copies. Peer access of contexts
 *     does not matter. An imported pool lets only its own device, whatever the exporter has set.
 *   - A pool without handle types, the default pool and an imported pool cannot be exported: INVALID_VALUE.
 *     Nor can pointers of a pool that was never exported. The handle of a pool comes back when the pool is
 *     destroyed and its last allocation is freed.
 *   - Memory that a captured stream allocates is the graph's: of no pool, without handle types, and exported
 *     by no call. cuMemFreeAsync does not know it.
 *   - cuMemPoolImportPointer is INVALID_VALUE if the pointer is of another pool, or freed. It is
 *     ALREADY_MAPPED if this process still has open what the exporter had at these addresses before.
 *   - Memory of a pool that is freed while another process has it open is poisoned. stderr tells it.
 *   - cuMemCreate accepts the handle type fabric, as drivers do even where there is no fabric. Nothing
 *     exports or imports such a handle.
 *   - cuMemGetAddressRange of virtual memory gives the mapping, not the reservation.
 *   - cuMemFree waits for all work of the allocation's context; cuMemFreeHost waits for all work of all
 *     contexts. cuIpcCloseMemHandle, cuMemUnmap and cuMemHostUnregister do not wait: later work that touches
 *     the memory fails.
 *   - Memory that is not mapped, or belongs to another device, gives ILLEGAL_ADDRESS when the work that
 *     touches it runs. This holds for copies, too. It stays the context's error. Copies reach other devices
 *     without peer access.
 *   - Kernels fail with LAUNCH_FAILED if an output overlaps another buffer partly.
 *   - Kernels and waits can use registered host memory only with CUDA_HOST_DEVICE_MAP. In other contexts they
 *     also need CUDA_HOST_PORTABLE.
 *   - Whatever changes device memory wakes a pending wait on it. On hardware that is not certain.
 *   - A context that has failed stays so for the life of the process, even if it is retained anew.
 *   - cuCtxSynchronize ends every capture of a stream of the context, whatever its mode and thread.
 *   - The work of a graph runs in the order of its capture, one piece after the other, though its branches
 *     could run side by side. cuGraphRetainUserObject's destructor runs in a thread of the double.
 *   - NCCL: all ranks of a communicator are in one process. The work of a non-blocking communicator enters
 *     its stream only when its state is polled and found OK.
 *   - NCCL: if partners do not call, or call something else, the call is SYSTEM_ERROR after
 *     CUDA_DOUBLE_HANG_MS. The whole communicator then fails. Work that is in the streams waits for the other
 *     streams without limit; after an abort it waits for nothing.
 *   - NCCL: ncclCommAbort ends the communicator's work in the streams at once, whatever other streams do. The
 *     abort of the last rank waits until this work has left the streams. Then it frees memory. That waits for
 *     all work of these devices, as cuMemFree does. In a group, these waits come at its end. So two
 *     communicators that hang on one device hang if they are aborted in turn, but not in one group.
 *   - NCCL: only virtual memory on the rank's device can be registered, of one mapping, once. nccl_register.c
 *     says what is stricter than NCCL, and nccl_window.c for windows.
 *   - NCCL: before 2.26, or without NCCL_LAUNCH_ORDER_IMPLICIT=1, a device carries out the work of one
 *     communicator at a time. So two communicators that reach two devices in different orders hang.
 *   - NCCL: buffers that overlap otherwise than in place are INVALID_ARGUMENT. Streams that capture are not
 *     supported.
 *
 * Symbols that proto/cuda_driver.h lacks, with CUDA's own signatures: cuMemAllocManaged, cuMemAllocAsync,
 * cuMemAllocFromPoolAsync, cuMemPoolCreate, cuDeviceGetDefaultMemPool, cuMemcpyHtoD_v2, cuMemcpyDtoH_v2,
 * cuEventSynchronize, and the graphs below.
 */

typedef struct cuda_graph_exec_handle *cuda_graph_exec; /* CUgraphExec */

#define CUDA_ATTACH_GLOBAL 1u

struct cuda_pool_properties { /* CUmemPoolProps */
    int type;
    int handle_types;
    struct cuda_location location;
    void *windows;
    size_t max_bytes; /* ignored here */
    unsigned short usage;
    unsigned char reserved[54];
};

#define CUDA_RESULT_NOT_INITIALIZED 3
#define CUDA_RESULT_PEER_ACCESS_UNSUPPORTED 217
#define CUDA_RESULT_ILLEGAL_STATE 401
#define CUDA_RESULT_HOST_MEMORY_NOT_REGISTERED 713
#define CUDA_RESULT_STREAM_CAPTURE_INVALIDATED 901
#define CUDA_RESULT_STREAM_CAPTURE_UNMATCHED 903
#define CUDA_RESULT_STREAM_CAPTURE_UNJOINED 904
#define CUDA_RESULT_STREAM_CAPTURE_IMPLICIT 906
#define CUDA_RESULT_CAPTURED_EVENT 907

/* X(name in a table of a test, symbol, parameters) */
#define CUDA_DOUBLE_FUNCTIONS(X)                                                                             \
    X(alloc_managed, cuMemAllocManaged, (cuda_pointer * pointer, size_t bytes, unsigned flags))              \
    X(alloc_pool, cuMemAllocAsync, (cuda_pointer * pointer, size_t bytes, cuda_stream stream))               \
    X(alloc_from_pool, cuMemAllocFromPoolAsync,                                                              \
      (cuda_pointer * pointer, size_t bytes, cuda_pool pool, cuda_stream stream))                            \
    X(pool_create, cuMemPoolCreate, (cuda_pool * pool, const struct cuda_pool_properties *properties))       \
    X(pool_default, cuDeviceGetDefaultMemPool, (cuda_pool * pool, cuda_device device))                       \
    X(copy_from_host_now, cuMemcpyHtoD_v2, (cuda_pointer target, const void *source, size_t bytes))          \
    X(copy_to_host_now, cuMemcpyDtoH_v2, (void *target, cuda_pointer source, size_t bytes))                  \
    X(event_synchronize, cuEventSynchronize, (cuda_event event))                                             \
    X(begin_capture, cuStreamBeginCapture_v2, (cuda_stream stream, int mode))                                \
    X(end_capture, cuStreamEndCapture, (cuda_stream stream, cuda_graph * graph))                             \
    X(graph_instantiate, cuGraphInstantiateWithFlags,                                                        \
      (cuda_graph_exec * exec, cuda_graph graph, unsigned long long flags))                                  \
    X(graph_launch, cuGraphLaunch, (cuda_graph_exec exec, cuda_stream stream))                               \
    X(graph_exec_destroy, cuGraphExecDestroy, (cuda_graph_exec exec))                                        \
    X(graph_destroy, cuGraphDestroy, (cuda_graph graph))

#define CUDA_DOUBLE_EXPORT __attribute__((visibility("default")))
#define CUDA_DOUBLE_DECLARE(name, symbol, parameters) CUDA_DOUBLE_EXPORT cuda_result symbol parameters;
CUDA_DRIVER_FUNCTIONS(CUDA_DOUBLE_DECLARE)
CUDA_DOUBLE_FUNCTIONS(CUDA_DOUBLE_DECLARE)

/* Replaces the rules of CUDA_DOUBLE_FAIL, and counts calls from here on. null: no call fails. */
CUDA_DOUBLE_EXPORT void cuda_double_fail(const char *rules);

/* Returns how many calls of exported functions this process has made. Work in streams makes none. */
CUDA_DOUBLE_EXPORT unsigned long long cuda_double_calls(void);
/* Says whether what the stream captures from here on is the body of a conditional node. */
CUDA_DOUBLE_EXPORT void cuda_double_conditional(cuda_stream stream, int is_conditional);

#endif
