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
    enum gpu_engine otherwise = reach ? without : GPU_ENGINE_NCCL;
    double nccl_ns, without_ns;
    if (set == NULL || !gpu_tuning_predict(set, kind, bytes, &nccl_ns, &without_ns)) {
        *why = exec->tuner == NULL ? "gpu_tuning is off"
               : reach             ? "not measured yet; the GPUs reach each other's memory"
                                   : "not measured yet; the GPUs do not reach each other's memory";
        return otherwise;
    }
    *why = "measured";
    return nccl_ns < without_ns ? GPU_ENGINE_NCCL : without;
}
