/*
 * Compares our declarations with the headers of a toolkit; it compiles only if they agree.
 * proto/cuda_driver.h, daemon/gpu/nccl_library.h and the double of the driver must say what cuda.h and nccl.h
 * say: what functions take and return, the layout of structs, the values of constants.
 */
#define __CUDA_API_VERSION_INTERNAL /* declares every version of a function under its own name */
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "proto/cuda_driver.h"
namespace the_double /* the double's declarations beside the driver's own */
{
#include "tests/cuda_double/cuda_double.h"
}
#if __has_include(<nccl.h>)
#include <nccl.h>

#include "daemon/gpu/nccl_library.h"
#endif

namespace
{
/* Types agree if they are: numbers of one size, where an enumeration may stand for an int; structs of one
 * size; pointers to such types; pointers to types that both sides leave undefined. */
template <typename Ours, typename Theirs> constexpr bool is_same_value();

template <typename Type> constexpr bool is_number = std::is_integral_v<Type> || std::is_enum_v<Type>;
template <typename Type, typename = void> constexpr bool is_opaque = true;
template <typename Type> constexpr bool is_opaque<Type, std::void_t<decltype(sizeof(Type))>> = false;

template <typename Ours, typename Theirs> constexpr bool is_same_target()
{
    if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
        return std::is_void_v<Ours> && std::is_void_v<Theirs>;
    } else if constexpr (is_opaque<Ours> || is_opaque<Theirs>) {
        return is_opaque<Ours> && is_opaque<Theirs>;
    } else {
        return is_same_value<Ours, Theirs>();
    }
}

template <typename Ours, typename Theirs> constexpr bool is_same_value()
{
    if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
        return is_same_target<std::remove_cv_t<std::remove_pointer_t<Ours>>,
                              std::remove_cv_t<std::remove_pointer_t<Theirs>>>();
    } else if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
    } else if constexpr (is_number<Ours> && is_number<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs);
    } else if constexpr (std::is_class_v<Ours> && (std::is_class_v<Theirs> || std::is_union_v<Theirs>)) {
        return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) >= alignof(Theirs);
    } else {
        return std::is_same_v<Ours, Theirs>;
    }
}

template <typename Ours, typename Theirs> struct is_same_function : std::false_type {
};
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
struct is_same_function<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> {
    static constexpr bool compare()
    {
        if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
            return false;
        } else {
            return is_same_value<OurResult, TheirResult>() && (is_same_value<Ours, Theirs>() && ...);
        }
    }
    static constexpr bool value = compare();
};

#define CHECK_FUNCTION(name, symbol, parameters)                                                             \
    static_assert(is_same_function<decltype(cuda_driver::name), decltype(&symbol)>::value, #symbol);
CUDA_DRIVER_FUNCTIONS(CHECK_FUNCTION)

#define CHECK_DOUBLE(name, symbol, parameters)                                                               \
    static_assert(is_same_function<decltype(&the_double::symbol), decltype(&symbol)>::value, #symbol);
CUDA_DOUBLE_FUNCTIONS(CHECK_DOUBLE)

#define SAME(ours, theirs)                                                                                   \
    static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #ours)
SAME(CUDA_MEMOP_WAIT_64, CU_STREAM_MEM_OP_WAIT_VALUE_64);
SAME(CUDA_MEMOP_WRITE_64, CU_STREAM_MEM_OP_WRITE_VALUE_64);
SAME(CUDA_USER_OBJECT_NO_SYNC, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
SAME(CUDA_GRAPH_USER_OBJECT_MOVE, CU_GRAPH_USER_OBJECT_MOVE);
static_assert(offsetof(cuda_memop, address) == offsetof(CUstreamBatchMemOpParams, waitValue.address), "memop");
static_assert(offsetof(cuda_memop, value) == offsetof(CUstreamBatchMemOpParams, waitValue.value64), "memop");
static_assert(offsetof(cuda_memop, flags) == offsetof(CUstreamBatchMemOpParams, waitValue.flags), "memop");
SAME(CUDA_RESULT_OK, CUDA_SUCCESS);
SAME(CUDA_RESULT_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CUDA_RESULT_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CUDA_RESULT_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(CUDA_RESULT_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CUDA_RESULT_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(CUDA_RESULT_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
SAME(CUDA_RESULT_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(CUDA_RESULT_MAP_FAILED, CUDA_ERROR_MAP_FAILED);
SAME(CUDA_RESULT_ALREADY_MAPPED, CUDA_ERROR_ALREADY_MAPPED);
SAME(CUDA_RESULT_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(CUDA_RESULT_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME(CUDA_RESULT_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(CUDA_RESULT_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(CUDA_RESULT_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CUDA_RESULT_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(CUDA_RESULT_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT);
SAME(CUDA_RESULT_PEER_ACCESS_ALREADY_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(CUDA_RESULT_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(CUDA_RESULT_ASSERT, CUDA_ERROR_ASSERT);
SAME(CUDA_RESULT_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(CUDA_RESULT_HARDWARE_STACK_ERROR, CUDA_ERROR_HARDWARE_STACK_ERROR);
SAME(CUDA_RESULT_ILLEGAL_INSTRUCTION, CUDA_ERROR_ILLEGAL_INSTRUCTION);
SAME(CUDA_RESULT_MISALIGNED_ADDRESS, CUDA_ERROR_MISALIGNED_ADDRESS);
SAME(CUDA_RESULT_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_ADDRESS_SPACE);
SAME(CUDA_RESULT_INVALID_PC, CUDA_ERROR_INVALID_PC);
SAME(CUDA_RESULT_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME(CUDA_RESULT_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME(CUDA_RESULT_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(CUDA_RESULT_STREAM_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME(CUDA_RESULT_ALREADY_MAPPED, CUDA_ERROR_ALREADY_MAPPED);
SAME(CUDA_RESULT_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE);
SAME(CUDA_RESULT_CONTAINED, CUDA_ERROR_CONTAINED);
SAME(CUDA_RESULT_TENSOR_MEMORY_LEAK, CUDA_ERROR_TENSOR_MEMORY_LEAK);
SAME(CUDA_RESULT_MPS_CLIENT_TERMINATED, CUDA_ERROR_MPS_CLIENT_TERMINATED);
SAME(CUDA_RESULT_EXTERNAL_DEVICE, CUDA_ERROR_EXTERNAL_DEVICE);
SAME(CUDA_RESULT_UNKNOWN, CUDA_ERROR_UNKNOWN);
SAME(CUDA_RESULT_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(CUDA_RESULT_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(CUDA_RESULT_ILLEGAL_STATE, CUDA_ERROR_ILLEGAL_STATE);
SAME(CUDA_RESULT_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(CUDA_RESULT_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(CUDA_RESULT_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(CUDA_RESULT_CAPTURED_EVENT, CUDA_ERROR_CAPTURED_EVENT);
SAME(CUDA_IPC_LAZY_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(CUDA_IPC_HANDLE_BYTES, CU_IPC_HANDLE_SIZE);
SAME(CUDA_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(CUDA_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(CUDA_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
#if CUDA_VERSION >= 12030
SAME(CUDA_HANDLE_FABRIC, CU_MEM_HANDLE_TYPE_FABRIC);
#endif
SAME(CUDA_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(CUDA_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(CUDA_DEVICE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CUDA_DEVICE_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED);
SAME(CUDA_DEVICE_COMPUTE_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(CUDA_DEVICE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CUDA_DEVICE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CUDA_DEVICE_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(CUDA_DEVICE_POSIX_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(CUDA_DEVICE_RDMA_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(CUDA_DEVICE_MPS_ENABLED, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
SAME(CUDA_DEVICE_NUMA_ID, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
SAME(CUDA_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CUDA_POINTER_BUFFER_ID, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME(CUDA_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(CUDA_POINTER_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(CUDA_POINTER_LEGACY_IPC, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(CUDA_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(CUDA_POINTER_RANGE_BYTES, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(CUDA_POINTER_MAPPED, CU_POINTER_ATTRIBUTE_MAPPED);
SAME(CUDA_POINTER_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
SAME(CUDA_POINTER_ACCESS, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS);
SAME(CUDA_POINTER_MAPPING_BYTES, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
SAME(CUDA_POINTER_MAPPING_BASE, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
SAME(CUDA_POINTER_BLOCK_ID, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID);
SAME(CUDA_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(CUDA_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME(CUDA_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(CUDA_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CUDA_HOST_DEVICE_MAP, CU_MEMHOSTALLOC_DEVICEMAP);
SAME(CUDA_HOST_DEVICE_MAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CUDA_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CUDA_WAIT_VALUE_GEQ, CU_STREAM_WAIT_VALUE_GEQ);
SAME(CUDA_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(CUDA_CAPTURE_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(CUDA_CAPTURE_INVALIDATED, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(CUDA_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(CUDA_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(CUDA_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CUDA_ATTACH_GLOBAL, CU_MEM_ATTACH_GLOBAL);

#define SAME_MEMBER(ours, our_member, theirs, their_member)                                                  \
    static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) &&                            \
                      sizeof(ours::our_member) == sizeof(theirs::their_member),                              \
                  #ours "." #our_member)
static_assert(sizeof(cuda_uuid) == sizeof(CUuuid), "cuda_uuid");
static_assert(sizeof(cuda_ipc_handle) == sizeof(CUipcMemHandle), "cuda_ipc_handle");
static_assert(sizeof(cuda_location) == sizeof(CUmemLocation), "cuda_location");
SAME_MEMBER(cuda_location, type, CUmemLocation, type);
SAME_MEMBER(cuda_location, id, CUmemLocation, id);
static_assert(sizeof(cuda_access) == sizeof(CUmemAccessDesc), "cuda_access");
SAME_MEMBER(cuda_access, location, CUmemAccessDesc, location);
SAME_MEMBER(cuda_access, flags, CUmemAccessDesc, flags);
static_assert(sizeof(cuda_allocation_properties) == sizeof(CUmemAllocationProp), "allocation_properties");
SAME_MEMBER(cuda_allocation_properties, type, CUmemAllocationProp, type);
SAME_MEMBER(cuda_allocation_properties, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_MEMBER(cuda_allocation_properties, location, CUmemAllocationProp, location);
SAME_MEMBER(cuda_allocation_properties, windows, CUmemAllocationProp, win32HandleMetaData);
SAME_MEMBER(cuda_allocation_properties, flags, CUmemAllocationProp, allocFlags);
SAME_MEMBER(cuda_allocation_properties, flags.compression, CUmemAllocationProp, allocFlags.compressionType);
SAME_MEMBER(cuda_allocation_properties, flags.rdma_capable, CUmemAllocationProp,
            allocFlags.gpuDirectRDMACapable);
SAME_MEMBER(cuda_allocation_properties, flags.usage, CUmemAllocationProp, allocFlags.usage);

#if defined(DAEMON_GPU_NCCL_LIBRARY_H)
#undef CHECK_FUNCTION
#define CHECK_FUNCTION(name, symbol, result, parameters)                                                     \
    static_assert(is_same_function<decltype(nccl_library::name), decltype(&symbol)>::value, #symbol);

/* Later versions of NCCL add members behind those that we pass. Our size and version tell NCCL which
 * members there are. */
template <> constexpr bool is_same_value<nccl_config, ncclConfig_t>()
{
    return sizeof(nccl_config) <= sizeof(ncclConfig_t);
}
NCCL_LIBRARY_FUNCTIONS(CHECK_FUNCTION)

SAME(NCCL_RESULT_OK, ncclSuccess);
SAME(NCCL_RESULT_UNHANDLED_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_RESULT_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_RESULT_INTERNAL_ERROR, ncclInternalError);
SAME(NCCL_RESULT_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_RESULT_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_RESULT_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_RESULT_IN_PROGRESS, ncclInProgress);
SAME(NCCL_ID_BYTES, NCCL_UNIQUE_ID_BYTES);
SAME(NCCL_CONFIG_UNDEFINED_INT, NCCL_CONFIG_UNDEF_INT);
SAME(NCCL_TYPE_I8, ncclInt8);
SAME(NCCL_TYPE_U8, ncclUint8);
SAME(NCCL_TYPE_I32, ncclInt32);
SAME(NCCL_TYPE_U32, ncclUint32);
SAME(NCCL_TYPE_I64, ncclInt64);
SAME(NCCL_TYPE_U64, ncclUint64);
SAME(NCCL_TYPE_F16, ncclFloat16);
SAME(NCCL_TYPE_F32, ncclFloat32);
SAME(NCCL_TYPE_F64, ncclFloat64);
SAME(NCCL_TYPE_BF16, ncclBfloat16);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
SAME(NCCL_TYPE_F8E4M3, ncclFloat8e4m3);
SAME(NCCL_TYPE_F8E5M2, ncclFloat8e5m2);
#endif
SAME(NCCL_REDUCE_SUM, ncclSum);
SAME(NCCL_REDUCE_PROD, ncclProd);
SAME(NCCL_REDUCE_MAX, ncclMax);
SAME(NCCL_REDUCE_MIN, ncclMin);
SAME(NCCL_CONFIG_VERSION, NCCL_VERSION(2, 18, 0));

SAME_MEMBER(nccl_config, size, ncclConfig_t, size);
SAME_MEMBER(nccl_config, magic, ncclConfig_t, magic);
SAME_MEMBER(nccl_config, version, ncclConfig_t, version);
SAME_MEMBER(nccl_config, blocking, ncclConfig_t, blocking);
SAME_MEMBER(nccl_config, cga_cluster_size, ncclConfig_t, cgaClusterSize);
SAME_MEMBER(nccl_config, min_ctas, ncclConfig_t, minCTAs);
SAME_MEMBER(nccl_config, max_ctas, ncclConfig_t, maxCTAs);
SAME_MEMBER(nccl_config, net_name, ncclConfig_t, netName);
SAME_MEMBER(nccl_config, split_share, ncclConfig_t, splitShare);

/* nccl.h has the number only in this initializer. */
constexpr ncclConfig_t their_config = NCCL_CONFIG_INITIALIZER;
SAME(NCCL_CONFIG_MAGIC, their_config.magic);
#endif
} // namespace
