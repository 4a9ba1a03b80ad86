#ifndef DAEMON_GPU_NCCL_LIBRARY_H
#define DAEMON_GPU_NCCL_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/cuda_driver.h"

/*
 * The part of NCCL's interface that commd uses. It is declared here and looked up at run time, like the CUDA
 * driver's (proto/cuda_driver.h). NCCL 2.19 and later keep this ABI. COMMD_NCCL_LIBRARY names a library to
 * load in place of libnccl.so.2.
 */

typedef int nccl_result; /* ncclResult_t */
#define NCCL_RESULT_OK 0
#define NCCL_RESULT_UNHANDLED_CUDA_ERROR 1
#define NCCL_RESULT_SYSTEM_ERROR 2
#define NCCL_RESULT_INTERNAL_ERROR 3
#define NCCL_RESULT_INVALID_ARGUMENT 4
#define NCCL_RESULT_INVALID_USAGE 5
#define NCCL_RESULT_REMOTE_ERROR 6
#define NCCL_RESULT_IN_PROGRESS 7

typedef struct nccl_comm_handle *nccl_comm;             /* ncclComm_t */
typedef struct nccl_window_of_nccl *nccl_window_handle; /* ncclWindow_t */

#define NCCL_ID_BYTES 128
struct nccl_id { /* ncclUniqueId */
    char bytes[NCCL_ID_BYTES];
};

/* ncclConfig_t as of 2.18, and of 2.19. Later versions accept it because of its version field. */
struct nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
};
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 21800u
#define NCCL_CONFIG_UNDEFINED_INT (-2147483647 - 1)

/* ncclDataType_t; nccl_type_of maps a dtype to it. */
enum nccl_type {
    NCCL_TYPE_I8 = 0,
    NCCL_TYPE_U8 = 1,
    NCCL_TYPE_I32 = 2,
    NCCL_TYPE_U32 = 3,
    NCCL_TYPE_I64 = 4,
    NCCL_TYPE_U64 = 5,
    NCCL_TYPE_F16 = 6,
    NCCL_TYPE_F32 = 7,
    NCCL_TYPE_F64 = 8,
    NCCL_TYPE_BF16 = 9,
    NCCL_TYPE_F8E4M3 = 10, /* from 2.24 on, sm_90 and later */
    NCCL_TYPE_F8E5M2 = 11
};

enum nccl_reduce { NCCL_REDUCE_SUM = 0, NCCL_REDUCE_PROD = 1, NCCL_REDUCE_MAX = 2, NCCL_REDUCE_MIN = 3 };

/* X(name in struct nccl_library, symbol, result, parameters) */
#define NCCL_LIBRARY_FUNCTIONS(X)                                                                            \
    X(version, ncclGetVersion, nccl_result, (int *version))                                                  \
    X(error_text, ncclGetErrorString, const char *, (nccl_result result))                                    \
    X(last_error, ncclGetLastError, const char *, (nccl_comm comm))                                          \
    X(unique_id, ncclGetUniqueId, nccl_result, (struct nccl_id * id))                                        \
    X(comm_init, ncclCommInitRankConfig, nccl_result,                                                        \
      (nccl_comm * comm, int rank_count, struct nccl_id id, int rank, struct nccl_config *config))           \
    X(comm_state, ncclCommGetAsyncError, nccl_result, (nccl_comm comm, nccl_result * state))                 \
    X(comm_finalize, ncclCommFinalize, nccl_result, (nccl_comm comm))                                        \
    X(comm_destroy, ncclCommDestroy, nccl_result, (nccl_comm comm))                                          \
    X(comm_abort, ncclCommAbort, nccl_result, (nccl_comm comm))                                              \
    X(group_start, ncclGroupStart, nccl_result, (void))                                                      \
    X(group_end, ncclGroupEnd, nccl_result, (void))                                                          \
    X(all_reduce, ncclAllReduce, nccl_result,                                                                \
      (const void *send, void *receive, size_t count, int type, int reduce, nccl_comm comm,                  \
       cuda_stream stream))                                                                                  \
    X(reduce_scatter, ncclReduceScatter, nccl_result,                                                        \
      (const void *send, void *receive, size_t count, int type, int reduce, nccl_comm comm,                  \
       cuda_stream stream))                                                                                  \
    X(all_gather, ncclAllGather, nccl_result,                                                                \
      (const void *send, void *receive, size_t count, int type, nccl_comm comm, cuda_stream stream))         \
    X(broadcast, ncclBroadcast, nccl_result,                                                                 \
      (const void *send, void *receive, size_t count, int type, int root, nccl_comm comm,                    \
       cuda_stream stream))                                                                                  \
    X(reduce, ncclReduce, nccl_result,                                                                       \
      (const void *send, void *receive, size_t count, int type, int reduce, int root, nccl_comm comm,        \
       cuda_stream stream))                                                                                  \
    X(send, ncclSend, nccl_result,                                                                           \
      (const void *send, size_t count, int type, int peer, nccl_comm comm, cuda_stream stream))              \
    X(receive, ncclRecv, nccl_result,                                                                        \
      (void *receive, size_t count, int type, int peer, nccl_comm comm, cuda_stream stream))                 \
    X(register_memory, ncclCommRegister, nccl_result,                                                        \
      (nccl_comm comm, void *memory, size_t bytes, void **handle))                                           \
    X(deregister_memory, ncclCommDeregister, nccl_result, (nccl_comm comm, void *handle))

/* The same for functions that later versions have; null if this one does not. Windows: from 2.27.3 on. */
#define NCCL_LIBRARY_LATER_FUNCTIONS(X)                                                                      \
    X(register_window, ncclCommWindowRegister, nccl_result,                                                  \
      (nccl_comm comm, void *memory, size_t bytes, nccl_window_handle *window, int flags))                   \
    X(deregister_window, ncclCommWindowDeregister, nccl_result, (nccl_comm comm, nccl_window_handle window))

struct nccl_library {
#define NCCL_LIBRARY_MEMBER(name, symbol, result, parameters) result(*name) parameters;
    NCCL_LIBRARY_FUNCTIONS(NCCL_LIBRARY_MEMBER)
    NCCL_LIBRARY_LATER_FUNCTIONS(NCCL_LIBRARY_MEMBER)
#undef NCCL_LIBRARY_MEMBER
    int number; /* 22809 for 2.28.9 */
};

/* NCCL_LAUNCH_ORDER_IMPLICIT works from here on: communicators that share GPUs may be at work at once. */
#define NCCL_VERSION_ORDERS 22600

#define NCCL_WINDOW_SYMMETRIC 1 /* NCCL_WIN_COLL_SYMMETRIC */

/* Loads NCCL, once in a process. Returns false with a readable text in why. Thread-safe; NCCL is never
 * unloaded. */
bool nccl_library_load(const struct nccl_library **out, char *why, size_t why_size);
/* Before the first load: NCCL is never loaded, because the configuration chooses the kernels. */
void nccl_library_forbid(void);

#endif
