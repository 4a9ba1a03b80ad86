#ifndef TESTS_SYSTEM_NCCL_HEADER_H
#define TESTS_SYSTEM_NCCL_HEADER_H

/*
 * If a toolkit has NCCL's own header, the tests use it, as programs written for NCCL do. Otherwise the same
 * names stand for the project's declarations. tests/gpu/check_nccl_api.cc compares these with NCCL's header.
 */
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>) && !defined(COMMD_NCCL_HEADER)
#include <nccl.h>
#else
#include <limits.h>

#include "client/nccl/nccl_api.h"

enum {
    ncclSuccess = NCCL_SUCCESS,
    ncclSystemError = NCCL_SYSTEM_ERROR,
    ncclInternalError = NCCL_INTERNAL_ERROR,
    ncclInvalidArgument = NCCL_INVALID_ARGUMENT,
    ncclInvalidUsage = NCCL_INVALID_USAGE,
    ncclRemoteError = NCCL_REMOTE_ERROR,
    ncclInProgress = NCCL_IN_PROGRESS
};
enum { ncclSum = NCCL_SUM, ncclProd = NCCL_PROD, ncclMax = NCCL_MAX, ncclMin = NCCL_MIN, ncclAvg = NCCL_AVG };
enum {
    ncclInt8 = NCCL_INT8,
    ncclUint8 = NCCL_UINT8,
    ncclInt32 = NCCL_INT32,
    ncclUint32 = NCCL_UINT32,
    ncclInt64 = NCCL_INT64,
    ncclUint64 = NCCL_UINT64,
    ncclFloat16 = NCCL_FLOAT16,
    ncclFloat32 = NCCL_FLOAT32,
    ncclFloat64 = NCCL_FLOAT64,
    ncclBfloat16 = NCCL_BFLOAT16,
    ncclFloat8e4m3 = NCCL_FLOAT8E4M3,
    ncclFloat8e5m2 = NCCL_FLOAT8E5M2,
    ncclNumTypes = NCCL_TYPE_COUNT
};
enum { ncclScalarDevice = NCCL_SCALAR_DEVICE, ncclScalarHostImmediate = NCCL_SCALAR_HOST };
#define NCCL_SPLIT_NOCOLOR NCCL_SPLIT_NO_COLOR

/* As of NCCL 2.28. */
struct nccl_config_bytes {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName;
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs;
};
#define NCCL_CONFIG_INITIALIZER                                                                              \
    {                                                                                                        \
        sizeof(ncclConfig_t), 0xcafebeefu, 22809, INT_MIN, INT_MIN, INT_MIN, INT_MIN, NULL, INT_MIN,         \
            INT_MIN, NULL, INT_MIN, INT_MIN, INT_MIN, INT_MIN                                                \
    }
#endif

#endif
