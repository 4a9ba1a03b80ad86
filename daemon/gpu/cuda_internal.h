#ifndef DAEMON_GPU_CUDA_INTERNAL_H
#define DAEMON_GPU_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/gpu/calls.h"
#include "daemon/gpu/devices.h"
#include "daemon/gpu/groups.h"
#include "daemon/gpu/mark_words.h"
#include "daemon/gpu/nccl_registry.h"
#include "kernels/kernels.h"

/* What the source files of the CUDA backend share. */

#define CUDA_PINNED_CLASSES 45 /* by powers of two */

struct cuda_gpu {
    cuda_device device;
    cuda_context context;
    cuda_module kernels;
    struct gpu_device_info info;
    bool reaches[GPU_DEVICES_MAX]; /* whether its kernels reach the memory of that GPU */
    _Atomic bool failed;
    struct error failure;  /* written before `failed` */
    uint32_t waits;        /* the main thread's: words.h */
    uint64_t waits_end_ns; /* likewise: when the last wait ended */
    /* Null where the pair has no meaning. Index 1: for many buffers. */
    cuda_function reduces[REDUCE_COUNT][DTYPE_COUNT][2];
    cuda_function copy;
    cuda_function encodes[COMPRESSION_COUNT], decodes[COMPRESSION_COUNT]; /* null for COMPRESSION_NONE */
};

struct cuda_pinned_block;
struct memory;

struct gpu_devices {
    struct gpu_groups *groups;
    struct gpu_calls *calls; /* null: they are made in place */
    struct nccl_registry *registry;
    struct gpu_mark_words *mark_words;
    uint32_t ahead;             /* words.h */
    _Atomic uint64_t ran_ahead; /* operations that were put behind others in advance */
    _Atomic uint64_t messages_by_nccl, messages_by_copies;
    _Atomic uint64_t registered,
        registered_ever;                    /* memory, for a communicator of NCCL: now, since the start */
    _Atomic uint64_t windows, windows_ever; /* likewise, windows of NCCL */
    bool windows_wanted;                    /* windows.h. Set before there are groups */
    _Atomic bool windows_refused;
    _Atomic uint64_t operations[GPU_ENGINE_COUNT];
    const struct cuda_driver *driver;
    int driver_version;
    uint32_t count;
    struct cuda_gpu *gpus;
    pthread_mutex_t lock;                                  /* protects the fields below */
    struct cuda_pinned_block *pinned[CUDA_PINNED_CLASSES]; /* free blocks */
    uint64_t pinned_bytes, pinned_kept_bytes;
    struct cuda_pinned_block *blocks; /* blocks in use, by address */
    struct cuda_pinned_block *unpins; /* to be freed */
    bool unpin_runs;                  /* the thread that frees them */
    uint32_t pin_threads;             /* that pin or free */
    struct gpu_pinning *pinnings;     /* under way, also those that nobody waits for any more */
    pthread_cond_t pin_changed;       /* a thread has ended. With CLOCK_MONOTONIC */
};

/* Makes the GPU's context current in the calling thread. */
enum status cuda_enter(const struct gpu_devices *gpus, uint32_t gpu, struct error *error) COMM_MUST_USE;

/*
 * The status for a result of a driver call. If the result means a useless context, marks the GPU as failed.
 */
enum status cuda_result_status(const struct gpu_devices *gpus, uint32_t gpu, const char *symbol,
                               cuda_result result, struct error *error) COMM_MUST_USE;

/* The status for a result of cuStreamQuery. Any result other than success or "not ready" means that nothing
 * of the stream can be relied on. */
enum status cuda_stream_status(const struct gpu_devices *gpus, uint32_t gpu, cuda_result result,
                               struct error *error) COMM_MUST_USE;

/* Marks the GPU as failed, with that text behind its name. Any thread. */
void cuda_mark_failed(const struct gpu_devices *gpus, uint32_t gpu, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The names of the driver's functions in CUDA's documents. */
#define CUDA_SYMBOL(name, symbol, parameters)                                                                \
    static inline const char *cuda_symbol_of_##name(void)                                                    \
    {                                                                                                        \
        return #symbol;                                                                                      \
    }
CUDA_DRIVER_FUNCTIONS(CUDA_SYMBOL)
#undef CUDA_SYMBOL

/* Calls gpus->driver->name(arguments); its value is the status. */
#define CUDA_CALL(gpus, gpu, error, name, ...)                                                               \
    cuda_result_status(gpus, gpu, cuda_symbol_of_##name(), (gpus)->driver->name(__VA_ARGS__), error)

/* cuda_memory.c: LIMIT or INVALID_ARGUMENT if a client's memory cannot have so many bytes. */
enum status cuda_check_size(uint64_t size_bytes, struct error *error) COMM_MUST_USE;
/* cuda_memory.c: the GPU's thread will close the memory, when its last reference is gone. NO_MEMORY. */
enum status cuda_release_later(struct memory *memory, struct error *error) COMM_MUST_USE;
/* cuda_memory.c: INVALID_ARGUMENT in place of DEVICE, unless the GPU itself failed: the client gave something
 * wrong. */
enum status cuda_blame_client(const struct gpu_devices *gpus, uint32_t gpu, enum status status,
                              struct error *error) COMM_MUST_USE;

/* Waits until the memory is there, or gpu_pinned_poll fails. */
enum status cuda_pinned_await(struct gpu_devices *gpus, struct gpu_pinned *pinned,
                              struct error *error) COMM_MUST_USE;
/* Waits a few seconds for the threads of pinned memory. Returns false if some still use the GPUs. */
bool cuda_pinned_settle(struct gpu_devices *gpus);
/* After it. */
void cuda_pinned_close(struct gpu_devices *gpus);

#endif
