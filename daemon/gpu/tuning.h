#ifndef DAEMON_GPU_TUNING_H
#define DAEMON_GPU_TUNING_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/gpu/devices.h"
#include "daemon/gpu/groups.h"
#include "proto/types.h"

/*
 * What was measured on this machine: how long an operation takes with NCCL, and without it, among
 * a set of GPUs, for some kinds and sizes. daemon/exec/tuner.h measures. The table outlives commd in a file
 * (tuning_file.h), which holds for one version of commd, of the driver and of NCCL, and for these GPUs with
 * this access to each other. Only the main thread may call these functions. None of them blocks, except
 * gpu_tuning_new, which reads the file, and gpu_tuning_free, which waits until it is written.
 */
struct gpu_tuning;

#define GPU_TUNING_SETS_MAX 32
#define GPU_TUNING_ROWS_MAX 64
#define GPU_TUNING_BYTES_MAX (UINT64_C(1) << 40)
#define GPU_TUNING_NS_MAX UINT64_C(1000000000000)

/* One kind at one size. bytes: of the larger one of a GPU's two buffers. */
struct gpu_tuning_row {
    enum op_kind kind;
    uint64_t bytes; /* 1..GPU_TUNING_BYTES_MAX */
    /* 1..GPU_TUNING_NS_MAX. without: by kernels, or through the host if the GPUs do not reach each other. */
    uint64_t nccl_ns, without_ns;
};

/* The rows of one kind are in a row, and their bytes ascend. */
struct gpu_tuning_set {
    uint32_t gpu_count;
    uint32_t gpus[GPU_DEVICES_MAX]; /* ascending */
    uint32_t row_count;
    struct gpu_tuning_row rows[GPU_TUNING_ROWS_MAX];
};

/*
 * Reads the file `path` if it is there. If it is broken, or of another machine, a line in the log says so,
 * and the table is empty. path: copied; "": the table is not kept. NO_MEMORY.
 */
enum status gpu_tuning_new(const struct gpu_devices *gpus, const char *path, struct gpu_tuning **out,
                           struct error *error) COMM_MUST_USE;
/* Accepts null. */
void gpu_tuning_free(struct gpu_tuning *tuning);
const char *gpu_tuning_path(const struct gpu_tuning *tuning);

/* Null if these GPUs, ascending, were not measured. Valid until the next gpu_tuning_put. */
const struct gpu_tuning_set *gpu_tuning_find(const struct gpu_tuning *tuning, const uint32_t *list,
                                             uint32_t count);
uint32_t gpu_tuning_count(const struct gpu_tuning *tuning);
const struct gpu_tuning_set *gpu_tuning_at(const struct gpu_tuning *tuning, uint32_t index);

/* Adds a set, or replaces that of the same GPUs, and begins to write the file. If the table is full, the
 * oldest set goes. */
void gpu_tuning_put(struct gpu_tuning *tuning, const struct gpu_tuning_set *set);

/*
 * How long an operation takes by the table: between two sizes, and beyond the largest one, times are on a
 * line. Returns false if the kind was not measured.
 */
bool gpu_tuning_predict(const struct gpu_tuning_set *set, enum op_kind kind, uint64_t bytes, double *nccl_ns,
                        double *without_ns);
/* Whether NCCL is faster. `otherwise` if the kind was not measured. */
bool gpu_tuning_prefers_nccl(const struct gpu_tuning_set *set, enum op_kind kind, uint64_t bytes,
                             bool otherwise);

#endif
