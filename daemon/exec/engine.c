#include "daemon/exec/exec_internal.h"
#include "daemon/gpu/nccl.h"

/* Which engine an operation among GPUs of one node would have, for people. device.c makes the same choice. */

static bool all_reach(const struct exec *exec, const uint32_t *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < count; k++) {
            if (!gpu_devices_reaches(exec->gpus, list[i], list[k])) {
                return false;
            }
        }
    }
    return true;
}

/* By the table, among GPUs that reach each other. */
static enum gpu_engine by_table(const struct exec *exec, const struct gpu_tuning_set *set, enum op_kind kind,
                                uint64_t bytes, const char **why)
{
    if (exec->tuner == NULL) {
        *why = "gpu_tuning is off";
        return GPU_ENGINE_KERNELS;
    }
    enum gpu_engine engine = set != NULL ? gpu_tuning_prefers(set, kind, bytes) : GPU_ENGINE_COUNT;
    *why = engine != GPU_ENGINE_COUNT ? "measured" : "not measured yet";
    return engine == GPU_ENGINE_NCCL ? GPU_ENGINE_NCCL : GPU_ENGINE_KERNELS;
}

enum gpu_engine exec_engine(const struct exec *exec, const struct gpu_tuning_set *set, const uint32_t *list,
                            uint32_t count, enum op_kind kind, uint64_t bytes, const char **why)
{
    bool reach = all_reach(exec, list, count);
    enum gpu_engine without = reach ? GPU_ENGINE_KERNELS : GPU_ENGINE_HOST;
    if (exec->gpu_engine == EXEC_GPU_KERNELS) {
        *why = "gpu_engine in the configuration";
        return without;
    }
    if (kind == OP_KIND_SCAN || kind == OP_KIND_EXCLUSIVE_SCAN) {
        *why = "NCCL has no scans";
        return without;
    }
    if (!gpu_nccl_is_there()) {
        *why = "no NCCL";
        return without;
    }
    if (exec->gpu_engine == EXEC_GPU_NCCL) {
        *why = "gpu_engine in the configuration";
        return GPU_ENGINE_NCCL;
    }
    if (!reach) {
        *why = "the GPUs do not reach each other's memory";
        return GPU_ENGINE_NCCL;
    }
    return by_table(exec, set, kind, bytes, why);
}
