#ifndef PROTO_CUDA_DRIVER_H
#define PROTO_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The part of the CUDA driver's interface that commd, its library and its tests use. It is declared here and
 * looked up at run time, so the same programs are built without a toolkit and run without a GPU. The driver
 * keeps this ABI (CUDA Driver API). The library needs 12.0 or later. commd's kernels need 12.1, or the major
 * version of the toolkit that compiled them: kernels/kernels.h. tests/gpu/check_interfaces.cc compares it
 * with cuda.h if that is installed.
 *
 * COMMD_CUDA_LIBRARY names a library to load in place of libcuda.so.1: tests bring a double of it.
 */

typedef int cuda_result; /* CUresult */
#define CUDA_RESULT_OK 0
#define CUDA_RESULT_INVALID_VALUE 1
#define CUDA_RESULT_OUT_OF_MEMORY 2
#define CUDA_RESULT_DEINITIALIZED 4
#define CUDA_RESULT_NO_DEVICE 100
#define CUDA_RESULT_INVALID_DEVICE 101
#define CUDA_RESULT_INVALID_IMAGE 200
#define CUDA_RESULT_INVALID_CONTEXT 201
#define CUDA_RESULT_MAP_FAILED 205
#define CUDA_RESULT_ALREADY_MAPPED 208
#define CUDA_RESULT_NO_BINARY_FOR_GPU 209
#define CUDA_RESULT_ECC_UNCORRECTABLE 214
#define CUDA_RESULT_NVLINK_UNCORRECTABLE 220
#define CUDA_RESULT_CONTAINED 226
#define CUDA_RESULT_INVALID_HANDLE 400
#define CUDA_RESULT_NOT_FOUND 500
#define CUDA_RESULT_NOT_READY 600
#define CUDA_RESULT_ILLEGAL_ADDRESS 700
#define CUDA_RESULT_LAUNCH_TIMEOUT 702
#define CUDA_RESULT_PEER_ACCESS_ALREADY_ENABLED 704
#define CUDA_RESULT_CONTEXT_IS_DESTROYED 709
#define CUDA_RESULT_ASSERT 710
#define CUDA_RESULT_HOST_MEMORY_ALREADY_REGISTERED 712
#define CUDA_RESULT_HARDWARE_STACK_ERROR 714
#define CUDA_RESULT_ILLEGAL_INSTRUCTION 715
#define CUDA_RESULT_MISALIGNED_ADDRESS 716
#define CUDA_RESULT_INVALID_ADDRESS_SPACE 717
#define CUDA_RESULT_INVALID_PC 718
#define CUDA_RESULT_LAUNCH_FAILED 719
#define CUDA_RESULT_TENSOR_MEMORY_LEAK 721
#define CUDA_RESULT_NOT_PERMITTED 800
#define CUDA_RESULT_NOT_SUPPORTED 801
#define CUDA_RESULT_MPS_CLIENT_TERMINATED 810
#define CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED 900  /* the first error of captures */
#define CUDA_RESULT_STREAM_CAPTURE_WRONG_THREAD 908 /* the last error of captures */
#define CUDA_RESULT_EXTERNAL_DEVICE 911
#define CUDA_RESULT_UNKNOWN 999

typedef int cuda_device;                            /* CUdevice */
typedef unsigned long long cuda_pointer;            /* CUdeviceptr */
typedef unsigned long long cuda_allocation;         /* CUmemGenericAllocationHandle */
typedef struct cuda_context_handle *cuda_context;   /* CUcontext */
typedef struct cuda_stream_handle *cuda_stream;     /* CUstream: what applications pass, cudaStream_t too */
typedef struct cuda_event_handle *cuda_event;       /* CUevent */
typedef struct cuda_module_handle *cuda_module;     /* CUmodule */
typedef struct cuda_function_handle *cuda_function; /* CUfunction */
typedef struct cuda_graph_handle *cuda_graph;       /* CUgraph */
typedef struct cuda_graph_node_handle *cuda_node;   /* CUgraphNode */
typedef struct cuda_user_object_handle *cuda_user_object; /* CUuserObject */
typedef struct cuda_pool_handle *cuda_pool;               /* CUmemoryPool, cudaMemPool_t too */

#define CUDA_UUID_BYTES 16
struct cuda_uuid {
    unsigned char bytes[CUDA_UUID_BYTES];
};

#define CUDA_IPC_HANDLE_BYTES 64
struct cuda_ipc_handle { /* CUipcMemHandle */
    unsigned char bytes[CUDA_IPC_HANDLE_BYTES];
};
#define CUDA_IPC_LAZY_PEER_ACCESS 1u

#define CUDA_POOL_POINTER_BYTES 64
struct cuda_pool_pointer { /* CUmemPoolPtrExportData: memory of a pool, for who has imported the pool */
    unsigned char bytes[CUDA_POOL_POINTER_BYTES];
};

struct cuda_location { /* CUmemLocation */
    int type;
    int id;
};
#define CUDA_LOCATION_DEVICE 1

struct cuda_allocation_properties { /* CUmemAllocationProp */
    int type;
    int handle_types;
    struct cuda_location location;
    void *windows;
    struct {
        unsigned char compression;
        unsigned char rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
#define CUDA_ALLOCATION_PINNED 1
#define CUDA_HANDLE_POSIX_FD 1
#define CUDA_HANDLE_FABRIC 8 /* between nodes */
#define CUDA_GRANULARITY_MINIMUM 0

struct cuda_access { /* CUmemAccessDesc */
    struct cuda_location location;
    int flags;
};
#define CUDA_ACCESS_READ_WRITE 3

/* A wait for a word, or a write to it, among several that are carried out in their order. */
struct cuda_memop { /* CUstreamBatchMemOpParams: the longest of its members */
    int operation;  /* CUDA_MEMOP_* */
    cuda_pointer address;
    uint64_t value;
    unsigned flags; /* of a wait: CUDA_WAIT_VALUE_* */
    cuda_pointer for_the_driver;
    uint64_t unused;
};
#define CUDA_MEMOP_WAIT_64 4
#define CUDA_MEMOP_WRITE_64 5
#define CUDA_MEMOPS_MAX 255 /* of one call */

/* CUdevice_attribute */
#define CUDA_DEVICE_MULTIPROCESSORS 16
#define CUDA_DEVICE_INTEGRATED 18
#define CUDA_DEVICE_COMPUTE_MODE 20
#define CUDA_DEVICE_CAPABILITY_MAJOR 75
#define CUDA_DEVICE_CAPABILITY_MINOR 76
#define CUDA_DEVICE_VIRTUAL_MEMORY 102 /* reserved addresses, and memory that is mapped to them */
#define CUDA_DEVICE_POSIX_FD 103       /* such memory can be exported as a descriptor */
#define CUDA_DEVICE_RDMA_VIRTUAL_MEMORY 110
#define CUDA_DEVICE_MPS_ENABLED 133
#define CUDA_DEVICE_NUMA_ID 134 /* NUMA node of the host that is near the GPU: HOST_NUMA_ID */

/* CUpointer_attribute */
#define CUDA_POINTER_MEMORY_TYPE 2    /* unsigned: CUDA_MEMORY_* */
#define CUDA_POINTER_BUFFER_ID 7      /* unsigned long long, of this process, never given twice */
#define CUDA_POINTER_IS_MANAGED 8     /* int */
#define CUDA_POINTER_DEVICE 9         /* int */
#define CUDA_POINTER_LEGACY_IPC 10    /* int: whether ipc_get works on it */
#define CUDA_POINTER_RANGE_START 11   /* cuda_pointer: of the allocation, or of the reserved addresses */
#define CUDA_POINTER_RANGE_BYTES 12   /* size_t */
#define CUDA_POINTER_MAPPED 13        /* int */
#define CUDA_POINTER_HANDLE_TYPES 14  /* unsigned long long: mask of CUDA_HANDLE_* */
#define CUDA_POINTER_ACCESS 16        /* unsigned long long: CUDA_ACCESS_*, of the current context */
#define CUDA_POINTER_POOL 17          /* cuda_pool: null if the memory is of no pool */
#define CUDA_POINTER_MAPPING_BYTES 18 /* size_t */
#define CUDA_POINTER_MAPPING_BASE 19  /* cuda_pointer */
#define CUDA_POINTER_BLOCK_ID 20      /* unsigned long long: of the physical allocation */

#define CUDA_MEMORY_HOST 1u
#define CUDA_MEMORY_DEVICE 2u

#define CUDA_HOST_PORTABLE 1u   /* for all contexts; also a flag of registration */
#define CUDA_HOST_DEVICE_MAP 2u /* with an address that kernels and streams can use */

/* A handle for a stream of the current context, as 0 is. */
#define CUDA_STREAM_PER_THREAD 2u
#define CUDA_STREAM_NON_BLOCKING 1u /* does not wait for the legacy default stream */
#define CUDA_EVENT_DISABLE_TIMING 2u
#define CUDA_WAIT_VALUE_GEQ 0u
#define CUDA_CAPTURE_NONE 0 /* CUstreamCaptureStatus */
#define CUDA_CAPTURE_ACTIVE 1
#define CUDA_CAPTURE_INVALIDATED 2
#define CUDA_CAPTURE_MODE_GLOBAL 0 /* CUstreamCaptureMode */
#define CUDA_CAPTURE_MODE_THREAD_LOCAL 1
#define CUDA_CAPTURE_MODE_RELAXED 2
#define CUDA_USER_OBJECT_NO_SYNC 1u    /* CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: required */
#define CUDA_GRAPH_USER_OBJECT_MOVE 1u /* the graph takes over the caller's reference */

/*
 * X(name in struct cuda_driver, symbol, parameters). All return cuda_result.
 */
#define CUDA_DRIVER_FUNCTIONS(X)                                                                             \
    X(init, cuInit, (unsigned flags))                                                                        \
    X(driver_version, cuDriverGetVersion, (int *version))                                                    \
    X(error_name, cuGetErrorName, (cuda_result result, const char **name))                                   \
    X(error_text, cuGetErrorString, (cuda_result result, const char **text))                                 \
    X(device_count, cuDeviceGetCount, (int *count))                                                          \
    X(device_get, cuDeviceGet, (cuda_device * device, int ordinal))                                          \
    X(device_name, cuDeviceGetName, (char *name, int size, cuda_device device))                              \
    X(device_uuid, cuDeviceGetUuid_v2, (struct cuda_uuid * uuid, cuda_device device))                        \
    X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, cuda_device device))                              \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, cuda_device device))               \
    X(device_pci_bus, cuDeviceGetPCIBusId, (char *text, int size, cuda_device device))                       \
    X(device_can_access, cuDeviceCanAccessPeer, (int *can, cuda_device device, cuda_device peer))            \
    X(context_retain, cuDevicePrimaryCtxRetain, (cuda_context * context, cuda_device device))                \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (cuda_device device))                                   \
    X(context_set, cuCtxSetCurrent, (cuda_context context))                                                  \
    X(context_get, cuCtxGetCurrent, (cuda_context * context))                                                \
    X(context_device, cuCtxGetDevice, (cuda_device * device))                                                \
    X(context_synchronize, cuCtxSynchronize, (void))                                                         \
    X(context_enable_peer, cuCtxEnablePeerAccess, (cuda_context peer, unsigned flags))                       \
    X(memory_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                             \
    X(memory_alloc, cuMemAlloc_v2, (cuda_pointer * pointer, size_t bytes))                                   \
    X(memory_free, cuMemFree_v2, (cuda_pointer pointer))                                                     \
    X(memory_range, cuMemGetAddressRange_v2, (cuda_pointer * base, size_t * bytes, cuda_pointer pointer))    \
    X(pointer_attribute, cuPointerGetAttribute, (void *value, int attribute, cuda_pointer pointer))          \
    X(host_alloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                             \
    X(host_free, cuMemFreeHost, (void *memory))                                                              \
    X(host_register, cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags))                     \
    X(host_unregister, cuMemHostUnregister, (void *memory))                                                  \
    X(host_device_pointer, cuMemHostGetDevicePointer_v2,                                                     \
      (cuda_pointer * pointer, void *memory, unsigned flags))                                                \
    X(ipc_get, cuIpcGetMemHandle, (struct cuda_ipc_handle * handle, cuda_pointer base))                      \
    X(ipc_open, cuIpcOpenMemHandle_v2, (cuda_pointer * base, struct cuda_ipc_handle handle, unsigned flags)) \
    X(ipc_close, cuIpcCloseMemHandle, (cuda_pointer base))                                                   \
    X(allocation_granularity, cuMemGetAllocationGranularity,                                                 \
      (size_t * bytes, const struct cuda_allocation_properties *properties, int option))                     \
    X(allocation_create, cuMemCreate,                                                                        \
      (cuda_allocation * allocation, size_t bytes, const struct cuda_allocation_properties *properties,      \
       unsigned long long flags))                                                                            \
    X(allocation_release, cuMemRelease, (cuda_allocation allocation))                                        \
    X(allocation_retain, cuMemRetainAllocationHandle, (cuda_allocation * allocation, void *address))         \
    X(allocation_export, cuMemExportToShareableHandle,                                                       \
      (void *fd, cuda_allocation allocation, int handle_type, unsigned long long flags))                     \
    X(allocation_import, cuMemImportFromShareableHandle,                                                     \
      (cuda_allocation * allocation, void *fd_as_pointer, int handle_type))                                  \
    X(address_reserve, cuMemAddressReserve,                                                                  \
      (cuda_pointer * pointer, size_t bytes, size_t alignment, cuda_pointer wish, unsigned long long flags)) \
    X(address_free, cuMemAddressFree, (cuda_pointer pointer, size_t bytes))                                  \
    X(address_map, cuMemMap,                                                                                 \
      (cuda_pointer pointer, size_t bytes, size_t offset, cuda_allocation allocation,                        \
       unsigned long long flags))                                                                            \
    X(address_unmap, cuMemUnmap, (cuda_pointer pointer, size_t bytes))                                       \
    X(address_set_access, cuMemSetAccess,                                                                    \
      (cuda_pointer pointer, size_t bytes, const struct cuda_access *access, size_t count))                  \
    X(memory_free_async, cuMemFreeAsync, (cuda_pointer pointer, cuda_stream stream))                         \
    X(pool_destroy, cuMemPoolDestroy, (cuda_pool pool))                                                      \
    X(pool_set_access, cuMemPoolSetAccess, (cuda_pool pool, const struct cuda_access *access, size_t count)) \
    X(pool_export, cuMemPoolExportToShareableHandle,                                                         \
      (void *fd, cuda_pool pool, int handle_type, unsigned long long flags))                                 \
    X(pool_import, cuMemPoolImportFromShareableHandle,                                                       \
      (cuda_pool * pool, void *fd_as_pointer, int handle_type, unsigned long long flags))                    \
    X(pool_export_pointer, cuMemPoolExportPointer, (struct cuda_pool_pointer * out, cuda_pointer pointer))   \
    X(pool_import_pointer, cuMemPoolImportPointer,                                                           \
      (cuda_pointer * pointer, cuda_pool pool, struct cuda_pool_pointer * data))                             \
    X(stream_create, cuStreamCreateWithPriority, (cuda_stream * stream, unsigned flags, int priority))       \
    X(stream_destroy, cuStreamDestroy_v2, (cuda_stream stream))                                              \
    X(stream_query, cuStreamQuery, (cuda_stream stream))                                                     \
    X(stream_synchronize, cuStreamSynchronize, (cuda_stream stream))                                         \
    X(stream_context, cuStreamGetCtx, (cuda_stream stream, cuda_context * context))                          \
    X(stream_is_capturing, cuStreamIsCapturing, (cuda_stream stream, int *status))                           \
    X(stream_capture_info, cuStreamGetCaptureInfo_v2,                                                        \
      (cuda_stream stream, int *status, uint64_t *id, cuda_graph *graph, const cuda_node **dependencies,     \
       size_t *dependency_count))                                                                            \
    X(thread_exchange_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                                  \
    X(user_object_create, cuUserObjectCreate,                                                                \
      (cuda_user_object * object, void *pointer, void (*destroy)(void *pointer), unsigned references,        \
       unsigned flags))                                                                                      \
    X(user_object_release, cuUserObjectRelease, (cuda_user_object object, unsigned count))                   \
    X(graph_retain_object, cuGraphRetainUserObject,                                                          \
      (cuda_graph graph, cuda_user_object object, unsigned count, unsigned flags))                           \
    X(stream_memops, cuStreamBatchMemOp_v2,                                                                  \
      (cuda_stream stream, unsigned count, struct cuda_memop *memops, unsigned flags))                       \
    X(stream_wait_event, cuStreamWaitEvent, (cuda_stream stream, cuda_event event, unsigned flags))          \
    X(stream_wait_value, cuStreamWaitValue64_v2,                                                             \
      (cuda_stream stream, cuda_pointer address, uint64_t value, unsigned flags))                            \
    X(stream_write_value, cuStreamWriteValue64_v2,                                                           \
      (cuda_stream stream, cuda_pointer address, uint64_t value, unsigned flags))                            \
    X(event_create, cuEventCreate, (cuda_event * event, unsigned flags))                                     \
    X(event_destroy, cuEventDestroy_v2, (cuda_event event))                                                  \
    X(event_record, cuEventRecord, (cuda_event event, cuda_stream stream))                                   \
    X(event_query, cuEventQuery, (cuda_event event))                                                         \
    X(event_elapsed, cuEventElapsedTime, (float *milliseconds, cuda_event begin, cuda_event end))            \
    X(copy, cuMemcpyAsync, (cuda_pointer target, cuda_pointer source, size_t bytes, cuda_stream stream))     \
    X(copy_to_host, cuMemcpyDtoHAsync_v2,                                                                    \
      (void *target, cuda_pointer source, size_t bytes, cuda_stream stream))                                 \
    X(copy_from_host, cuMemcpyHtoDAsync_v2,                                                                  \
      (cuda_pointer target, const void *source, size_t bytes, cuda_stream stream))                           \
    X(set_bytes, cuMemsetD8Async,                                                                            \
      (cuda_pointer target, unsigned char value, size_t bytes, cuda_stream stream))                          \
    X(module_load, cuModuleLoadData, (cuda_module * module, const void *image))                              \
    X(module_unload, cuModuleUnload, (cuda_module module))                                                   \
    X(module_function, cuModuleGetFunction,                                                                  \
      (cuda_function * function, cuda_module module, const char *name))                                      \
    X(launch, cuLaunchKernel,                                                                                \
      (cuda_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,          \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, cuda_stream stream, void **parameters,     \
       void **extra))

struct cuda_driver {
#define CUDA_DRIVER_MEMBER(name, symbol, parameters) cuda_result(*name) parameters;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
};

/*
 * Loads the driver and calls its init, once in a process; later calls return the same. Returns false, with a
 * readable text in why, if there is no driver or no GPU, or one is too old. Thread-safe; the driver is never
 * unloaded. The caller may read the table for the life of the process.
 */
bool cuda_driver_load(const struct cuda_driver **out, char *why, size_t why_size);

/* "cuMemAlloc_v2: out of memory (CUDA_ERROR_OUT_OF_MEMORY)", say. */
void cuda_driver_text(const struct cuda_driver *driver, const char *symbol, cuda_result result, char *text,
                      size_t size);

#endif
