#ifndef DAEMON_GPU_TUNING_FILE_H
#define DAEMON_GPU_TUNING_FILE_H

#include <stdbool.h>

#include "daemon/base/error.h"
#include "daemon/gpu/tuning.h"

/*
 * The table of gpu_tuning as text: JSON with a fixed order of keys, which people and tools can read.
 *
 *   { "format": 1, "versions": "commd 0.1, CUDA 13.0, ...",
 *     "sets": [ { "gpus": [ "...", "..." ], "reach": "0110",
 *                 "rows": [ { "kind": "all_reduce", "bytes": 4096, "nccl_ns": 21000, "without_ns": 9000 } ] }
 * ] }
 *
 * "reach" has a row of 0 and 1 for each GPU: whose memory its kernels reach. Pure functions; any thread.
 */

#define GPU_TUNING_FILE_MAX_BYTES (UINT32_C(1) << 20)
#define GPU_TUNING_TEXT_MAX_BYTES 511 /* of "versions" and of each GPU */

/* What identifies the machine. Each text is printable, without quotes and backslashes. */
struct gpu_tuning_machine {
    char versions[GPU_TUNING_TEXT_MAX_BYTES + 1];
    uint32_t gpu_count;
    char gpus[GPU_DEVICES_MAX][GPU_TUNING_TEXT_MAX_BYTES + 1];
    bool reaches[GPU_DEVICES_MAX][GPU_DEVICES_MAX];
};

/* Returns the file's text, which the caller frees; null: no memory. */
char *gpu_tuning_file_text(const struct gpu_tuning_machine *machine, const struct gpu_tuning_set *sets,
                           uint32_t count);

/*
 * Reads a text of size_bytes, terminated, from anyone. Sets of other GPUs are left out; if "versions"
 * differs, all are. *foreign counts them. At most GPU_TUNING_SETS_MAX sets. INVALID_ARGUMENT with the line
 * and what was expected.
 */
enum status gpu_tuning_file_parse(const char *text, size_t size_bytes,
                                  const struct gpu_tuning_machine *machine, struct gpu_tuning_set *sets,
                                  uint32_t *count, uint32_t *foreign, struct error *error) COMM_MUST_USE;

#endif
