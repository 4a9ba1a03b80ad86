#ifndef CLIENT_NCCL_NCCL_API_H
#define CLIENT_NCCL_NCCL_API_H

#include <stddef.h>

/*
 * NCCL's binary interface, as far as this library offers it (NCCL 2.28). It is declared here, so no toolkit
 * is needed.
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
#define NCCL_TYPE_COUNT 12

typedef int ncclScalarResidence_t;
enum { NCCL_SCALAR_DEVICE = 0, NCCL_SCALAR_HOST = 1 };

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef struct ncclComm *ncclComm_t;
typedef void *ncclWindow_t;
typedef void *cudaStream_t;
typedef void ncclConfig_t; /* its size depends on the version: config.h */

#define NCCL_SPLIT_NO_COLOR (-1)

/* Defines pncclX and exports ncclX as a weak alias of it, as NCCL does. */
#define NCCL_EXPORT(type, name, ...)                                                                         \
    __attribute__((visibility("default"))) type p##name(__VA_ARGS__);                                        \
    __attribute__((visibility("default"), weak, alias("p" #name))) type name(__VA_ARGS__);                   \
    type p##name(__VA_ARGS__)

#endif
