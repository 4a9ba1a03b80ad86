#ifndef CLIENT_NCCL_NCCL_API_H
#define CLIENT_NCCL_NCCL_API_H

#include <stddef.h>

/*
 * NCCL's binary interface, as far as this library offers it (NCCL 2.28). It is declared here, so no toolkit
 * is needed. tests/gpu/check_nccl_api.cc compares it with NCCL's own header.
 */

typedef int ncclResult_t;
enum {
    NCCL_SUCCESS = 0,
    NCCL_UNHANDLED_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
    NCCL_TIMEOUT = 8, /* from 2.32 on */
    NCCL_RESULT_COUNT = 9
};

typedef int ncclRedOp_t;
enum { NCCL_SUM = 0, NCCL_PROD = 1, NCCL_MAX = 2, NCCL_MIN = 3, NCCL_AVG = 4, NCCL_FIRST_OWN_OP = 5 };

typedef int ncclDataType_t;
enum {
    NCCL_INT8 = 0,
    NCCL_UINT8 = 1,
    NCCL_INT32 = 2,
    NCCL_UINT32 = 3,
    NCCL_INT64 = 4,
    NCCL_UINT64 = 5,
    NCCL_FLOAT16 = 6,
    NCCL_FLOAT32 = 7,
    NCCL_FLOAT64 = 8,
    NCCL_BFLOAT16 = 9,
    NCCL_FLOAT8E4M3 = 10,
    NCCL_FLOAT8E5M2 = 11,
    NCCL_TYPE_COUNT = 12
};

typedef int ncclScalarResidence_t;
enum { NCCL_SCALAR_DEVICE = 0, NCCL_SCALAR_HOST = 1 };

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct nccl_config_bytes ncclConfig_t; /* its size depends on the version: config.h */
typedef struct nccl_sim_info_bytes ncclSimInfo_t;

#define NCCL_SPLIT_NO_COLOR (-1)

#define NCCL_BUFFERS const void *send, void *receive, size_t count, ncclDataType_t type
#define NCCL_PLACE ncclComm_t comm, cudaStream_t stream

/* The functions that this library offers: X(result, name, (parameters)). refused.c has the others. */
#define NCCL_FUNCTIONS(X)                                                                                    \
    X(ncclResult_t, ncclMemAlloc, (void **memory, size_t size))                                              \
    X(ncclResult_t, ncclMemFree, (void *memory))                                                             \
    X(ncclResult_t, ncclGetVersion, (int *version))                                                          \
    X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id))                                                    \
    X(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int size, ncclUniqueId id, int rank))              \
    X(ncclResult_t, ncclCommInitRankConfig,                                                                  \
      (ncclComm_t * comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config))                        \
    X(ncclResult_t, ncclCommInitRankScalable,                                                                \
      (ncclComm_t * comm, int size, int rank, int id_count, ncclUniqueId *ids, ncclConfig_t *config))        \
    X(ncclResult_t, ncclCommInitAll, (ncclComm_t * comms, int count, const int *devices))                    \
    X(ncclResult_t, ncclCommSplit,                                                                           \
      (ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config))                          \
    X(ncclResult_t, ncclCommFinalize, (ncclComm_t comm))                                                     \
    X(ncclResult_t, ncclCommDestroy, (ncclComm_t comm))                                                      \
    X(ncclResult_t, ncclCommAbort, (ncclComm_t comm))                                                        \
    X(const char *, ncclGetErrorString, (ncclResult_t result))                                               \
    X(const char *, ncclGetLastError, (ncclComm_t comm))                                                     \
    X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * error))                          \
    X(ncclResult_t, ncclCommCount, (ncclComm_t comm, int *count))                                            \
    X(ncclResult_t, ncclCommCuDevice, (ncclComm_t comm, int *device))                                        \
    X(ncclResult_t, ncclCommUserRank, (ncclComm_t comm, int *rank))                                          \
    X(ncclResult_t, ncclCommRegister, (ncclComm_t comm, void *buffer, size_t size, void **handle))           \
    X(ncclResult_t, ncclCommDeregister, (ncclComm_t comm, void *handle))                                     \
    X(ncclResult_t, ncclCommWindowRegister,                                                                  \
      (ncclComm_t comm, void *buffer, size_t size, ncclWindow_t *window, int flags))                         \
    X(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))                        \
    X(ncclResult_t, ncclRedOpCreatePreMulSum,                                                                \
      (ncclRedOp_t * op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence,                 \
       ncclComm_t comm))                                                                                     \
    X(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))                                     \
    X(ncclResult_t, ncclReduce, (NCCL_BUFFERS, ncclRedOp_t op, int root, NCCL_PLACE))                        \
    X(ncclResult_t, ncclBcast, (void *buffer, size_t count, ncclDataType_t type, int root, NCCL_PLACE))      \
    X(ncclResult_t, ncclBroadcast, (NCCL_BUFFERS, int root, NCCL_PLACE))                                     \
    X(ncclResult_t, ncclAllReduce, (NCCL_BUFFERS, ncclRedOp_t op, NCCL_PLACE))                               \
    X(ncclResult_t, ncclReduceScatter, (NCCL_BUFFERS, ncclRedOp_t op, NCCL_PLACE))                           \
    X(ncclResult_t, ncclAllGather, (NCCL_BUFFERS, NCCL_PLACE))                                               \
    X(ncclResult_t, ncclAlltoAll, (NCCL_BUFFERS, NCCL_PLACE))                                                \
    X(ncclResult_t, ncclGather, (NCCL_BUFFERS, int root, NCCL_PLACE))                                        \
    X(ncclResult_t, ncclScatter, (NCCL_BUFFERS, int root, NCCL_PLACE))                                       \
    X(ncclResult_t, ncclSend, (const void *send, size_t count, ncclDataType_t type, int peer, NCCL_PLACE))   \
    X(ncclResult_t, ncclRecv, (void *receive, size_t count, ncclDataType_t type, int peer, NCCL_PLACE))      \
    X(ncclResult_t, ncclGroupStart, (void))                                                                  \
    X(ncclResult_t, ncclGroupEnd, (void))                                                                    \
    X(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * info))

#define NCCL_DECLARE(result, name, parameters)                                                               \
    __attribute__((visibility("default"))) result name parameters;                                           \
    __attribute__((visibility("default"))) result p##name parameters;
NCCL_FUNCTIONS(NCCL_DECLARE)

/* Defines pncclX and exports ncclX as a weak alias of it, as NCCL does. */
#define NCCL_EXPORT(type, name, ...)                                                                         \
    __attribute__((visibility("default"))) type p##name(__VA_ARGS__);                                        \
    __attribute__((visibility("default"), weak, alias("p" #name))) type name(__VA_ARGS__);                   \
    type p##name(__VA_ARGS__)

#endif
