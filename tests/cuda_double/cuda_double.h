#ifndef TESTS_CUDA_DOUBLE_CUDA_DOUBLE_H
#define TESTS_CUDA_DOUBLE_CUDA_DOUBLE_H

#include <stddef.h>

#include "proto/cuda_driver.h"

/*
 * A double of the CUDA driver and of NCCL for machines without a GPU: libcuda_double.so, which
 * COMMD_CUDA_LIBRARY names, and libnccl_double.so, the same library, for COMMD_NCCL_LIBRARY. It exports the
 * real symbols and holds their users to the real rules; where CUDA leaves something undefined, it takes the
 * harsher way that a program can meet.
 *
 * Environment, read at cuInit:
 *   CUDA_DOUBLE_FOLDER        what the processes of one machine share (default /dev/shm/cuda_double-<uid>)
 *   CUDA_DOUBLE_DEVICES       0..8 (4); CUDA_VISIBLE_DEVICES, of indices or GPU-<uuid>, as in CUDA
 *   CUDA_DOUBLE_MEMORY_BYTES  of each device (1 GiB); each process holds itself to its own value
 *   CUDA_DOUBLE_MPS           1: the attribute says that MPS runs (0)
 *   CUDA_DOUBLE_PEER          0: no device can access another (1)
 *   CUDA_DOUBLE_IMPORTS_PEER  0: what an IPC handle opened, kernels of other devices cannot access (1)
 *   CUDA_DOUBLE_VIRTUAL_MEMORY  0: no device has it, as the attributes say; its calls are NOT_SUPPORTED (1)
 *   CUDA_DOUBLE_MAPPINGS_NUMBERED  0: BUFFER_ID of what cuMemMap mapped is the reservation's: the same for
 *                             whatever is mapped there next (1)
 *   CUDA_DOUBLE_DELAY_US      each piece of work of a stream begins 0 to so many microseconds late (0)
 *   CUDA_DOUBLE_SEED          of these delays (1)
 *   CUDA_DOUBLE_CONNECTIONS   1..32: a context's streams take turns in sharing so many queues, as those of a
 * GPU share its connections to the host: what is in one runs in the order in which it was given, whatever its
 * stream, so that a wait holds up other streams, too. 0: each stream has one. By default what
 * CUDA_DEVICE_MAX_CONNECTIONS says, or 0 CUDA_DOUBLE_BLOCKING_ALLOCATION  1: cuMemAlloc, cuMemHostAlloc and
 * cuModuleLoadData first wait for all work of the context, as the driver may (0) CUDA_DOUBLE_HANG_MS after
 * which what would hang in NCCL is an error (2000) CUDA_DOUBLE_FAIL "cuMemHostAlloc:3,cuLaunchKernel:1=700":
 * the third call of one and the first of the other fail, with OUT_OF_MEMORY (NCCL: a system error) or the
 * given number; "2+" is the second and all later ones; 700..799 break the context for good
 *
 * What it decides where CUDA's documents are silent or leave it open:
 *   - Device addresses cannot be read by the CPU; uninitialised memory holds bytes of 0xff (NaN).
 *   - cuMemAlloc of up to 1 MiB takes its place in a 2 MiB block of the context, at multiples of 512 bytes;
 *     more gets blocks of its own, of 2 MiB multiples. The lowest free address is given, so addresses come
 * back at once. cuMemGetAddressRange gives base and bytes as asked for; MAPPING_BASE and _BYTES the blocks. A
 *     device is charged for blocks.
 *   - An opened IPC handle maps the whole block: what lies beside the allocation in it can be reached there.
 *     cuMemGetAddressRange of it gives the exporter's allocation. One (context, block, offset) is opened once
 *     and then counted. While a process has a block open that its exporter has freed, what the exporter
 *     allocates where that was is ALREADY_MAPPED. A handle that is stale, or whose exporter has ended, is
 * INVALID_VALUE. A device that this process does not see is INVALID_DEVICE. What was opened cannot be
 * exported again.
 *   - cuMemCreate takes fabric handles as a type, as drivers do also where there is no fabric; nothing
 * exports or imports one.
 *   - cuMemGetAddressRange of virtual memory gives the mapping, not the reservation.
 *   - cuMemFree waits for all work of the allocation's context, cuMemFreeHost for all work of all contexts;
 *     cuIpcCloseMemHandle, cuMemUnmap and cuMemHostUnregister wait for nothing: later work that touches it
 *     fails.
 *   - Every touch of what is not mapped, or belongs to another device, is ILLEGAL_ADDRESS when its turn
 * comes, for copies, too, and stays the context's error. Copies reach other devices without peer access.
 *   - Kernels refuse (LAUNCH_FAILED) outputs that overlap another buffer without being it.
 *   - Registered host memory is of use to kernels and waits only with CUDA_HOST_DEVICE_MAP, in other contexts
 *     only with CUDA_HOST_PORTABLE.
 *   - A pending wait on device memory is woken by whatever changes it; on hardware that is not certain.
 *   - A context that has failed stays so for the life of the process, retained anew or not.
 *   - cuCtxSynchronize ends every capture of a stream of the context, whatever its mode and thread.
 *   - A capture is of one stream; waiting in another one for an event of it is not supported.
 *   - NCCL: all ranks of a communicator are in one process. The work of a communicator that is not blocking
 *     enters its stream when its state is polled and found OK, not before. Calls whose partners do not come,
 *     or differ, are SYSTEM_ERROR after CUDA_DOUBLE_HANG_MS, and with them the whole communicator; what is in
 *     the streams waits for the other streams without limit, and for nothing any more after an abort. Buffers
 *     that overlap otherwise than in place are INVALID_ARGUMENT; streams that capture are not supported.
 *
 * Symbols beyond proto/cuda_driver.h, with CUDA's own signatures: cuMemAllocManaged, cuMemAllocAsync,
 * cuMemFreeAsync, cuMemcpyHtoD_v2, cuMemcpyDtoH_v2, cuEventSynchronize, and the graphs below.
 */

typedef struct cuda_graph_handle *cuda_graph;           /* CUgraph */
typedef struct cuda_graph_exec_handle *cuda_graph_exec; /* CUgraphExec */

#define CUDA_CAPTURE_ACTIVE 1
#define CUDA_CAPTURE_INVALIDATED 2
#define CUDA_CAPTURE_MODE_GLOBAL 0
#define CUDA_CAPTURE_MODE_THREAD_LOCAL 1
#define CUDA_CAPTURE_MODE_RELAXED 2
#define CUDA_ATTACH_GLOBAL 1u

#define CUDA_RESULT_NOT_INITIALIZED 3
#define CUDA_RESULT_PEER_ACCESS_UNSUPPORTED 217
#define CUDA_RESULT_ILLEGAL_STATE 401
#define CUDA_RESULT_HOST_MEMORY_NOT_REGISTERED 713
#define CUDA_RESULT_STREAM_CAPTURE_INVALIDATED 901
#define CUDA_RESULT_STREAM_CAPTURE_IMPLICIT 906
#define CUDA_RESULT_CAPTURED_EVENT 907

/* X(name in a table of a test, symbol, parameters) */
#define CUDA_DOUBLE_FUNCTIONS(X)                                                                             \
    X(alloc_managed, cuMemAllocManaged, (cuda_pointer * pointer, size_t bytes, unsigned flags))              \
    X(alloc_pool, cuMemAllocAsync, (cuda_pointer * pointer, size_t bytes, cuda_stream stream))               \
    X(free_pool, cuMemFreeAsync, (cuda_pointer pointer, cuda_stream stream))                                 \
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

/* Replaces what CUDA_DOUBLE_FAIL says and counts from here on; null: nothing fails. */
CUDA_DOUBLE_EXPORT void cuda_double_fail(const char *rules);

#endif
