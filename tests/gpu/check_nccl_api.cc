/*
 * Compares client/nccl, the library for programs written for NCCL, with NCCL's own header. It compiles only
 * if they agree in the parameters and results of functions, the values of constants, and the places of the
 * config's members.
 */
#if __has_include(<nccl.h>)
#include <nccl.h>

#include <stdbool.h>
#include <stddef.h>

#include "tests/gpu/same_types.h"

namespace ours
{
#include "client/nccl/comm_config.h"
#include "client/nccl/nccl_api.h"
} // namespace ours

namespace
{
/* The library reads these structs by their size and version alone. */
template <> constexpr bool is_same_target<ours::ncclConfig_t, ncclConfig_t>()
{
    return sizeof(ncclConfig_t) >= ours::CONFIG_SPLIT_SHARE_OFFSET + sizeof(int) &&
           sizeof(ncclConfig_t) <= CONFIG_MOST_BYTES;
}
template <> constexpr bool is_same_target<ours::ncclSimInfo_t, ncclSimInfo_t>()
{
    return true;
}

#define CHECK_FUNCTION(result, name, parameters)                                                             \
    static_assert(is_same_function<decltype(&ours::name), decltype(&name)>::value, #name);                   \
    static_assert(is_same_function<decltype(&ours::p##name), decltype(&p##name)>::value, "p" #name);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3) /* the first that has them all */
NCCL_FUNCTIONS(CHECK_FUNCTION)
#endif

SAME(ours::NCCL_SUCCESS, ncclSuccess);
SAME(ours::NCCL_UNHANDLED_CUDA_ERROR, ncclUnhandledCudaError);
SAME(ours::NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(ours::NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(ours::NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(ours::NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(ours::NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(ours::NCCL_IN_PROGRESS, ncclInProgress);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 32, 0)
SAME(ours::NCCL_TIMEOUT, ncclTimeout);
SAME(ours::NCCL_RESULT_COUNT, ncclNumResults);
#endif
SAME(ours::NCCL_SUM, ncclSum);
SAME(ours::NCCL_PROD, ncclProd);
SAME(ours::NCCL_MAX, ncclMax);
SAME(ours::NCCL_MIN, ncclMin);
SAME(ours::NCCL_AVG, ncclAvg);
SAME(ours::NCCL_FIRST_OWN_OP, ncclNumOps);
SAME(ours::NCCL_INT8, ncclInt8);
SAME(ours::NCCL_UINT8, ncclUint8);
SAME(ours::NCCL_INT32, ncclInt32);
SAME(ours::NCCL_UINT32, ncclUint32);
SAME(ours::NCCL_INT64, ncclInt64);
SAME(ours::NCCL_UINT64, ncclUint64);
SAME(ours::NCCL_FLOAT16, ncclFloat16);
SAME(ours::NCCL_FLOAT32, ncclFloat32);
SAME(ours::NCCL_FLOAT64, ncclFloat64);
SAME(ours::NCCL_BFLOAT16, ncclBfloat16);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
SAME(ours::NCCL_FLOAT8E4M3, ncclFloat8e4m3);
SAME(ours::NCCL_FLOAT8E5M2, ncclFloat8e5m2);
SAME(ours::NCCL_TYPE_COUNT, ncclNumTypes);
#endif
SAME(ours::NCCL_SCALAR_DEVICE, ncclScalarDevice);
SAME(ours::NCCL_SCALAR_HOST, ncclScalarHostImmediate);
SAME(NCCL_SPLIT_NO_COLOR, NCCL_SPLIT_NOCOLOR);
static_assert(sizeof(ours::ncclUniqueId) == sizeof(ncclUniqueId) &&
                  alignof(ours::ncclUniqueId) == alignof(ncclUniqueId),
              "ncclUniqueId");

SAME(CONFIG_MAGIC, ncclConfig_t(NCCL_CONFIG_INITIALIZER).magic);
SAME(CONFIG_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(0, offsetof(ncclConfig_t, size));
SAME(8, offsetof(ncclConfig_t, magic));
SAME(12, offsetof(ncclConfig_t, version));
SAME(ours::CONFIG_BLOCKING_OFFSET, offsetof(ncclConfig_t, blocking));
SAME(ours::CONFIG_CLUSTER_OFFSET, offsetof(ncclConfig_t, cgaClusterSize));
SAME(ours::CONFIG_LEAST_CTAS_OFFSET, offsetof(ncclConfig_t, minCTAs));
SAME(ours::CONFIG_MOST_CTAS_OFFSET, offsetof(ncclConfig_t, maxCTAs));
SAME(ours::CONFIG_SPLIT_SHARE_OFFSET, offsetof(ncclConfig_t, splitShare));
} // namespace
#endif
