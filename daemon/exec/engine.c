#include "daemon/exec/exec_device.h"
#include "daemon/exec/gpu_nccl.h"
#include "daemon/exec/gpu_slices.h"
#include "daemon/exec/tuner.h"
#include "daemon/gpu/nccl.h"

/* Which engine operations among GPUs have. */

/* --- Operations of one node --- */

bool engine_is_nccl(const struct exec_comm *comm, const struct exec_op *op, uint64_t now_ns)
{
    struct tuner *tuner = comm->exec->tuner;
    if (!gpu_nccl_serves(comm, op)) {
        return false;
    }
    if (device_engine(comm, op) == EXEC_GPU_NCCL) {
        return true;
    }
    bool otherwise = !gpu_direct_serves(comm, op);
    return tuner != NULL ? tuner_prefers_nccl(tuner, op, otherwise, now_ns) : otherwise;
}

/* --- Slices of operations between nodes --- */

/* gpu_engine = "auto": below, GPUs that do not reach each other copy faster than NCCL is called twice. */
#define NCCL_LEAST_BYTES (UINT64_C(128) << 10)
#define NCCL_BLOCKS_MAX 256u /* gather, scatter, all_to_all: of a slice */

/* NCCL's way copies each block by a call of its own; kernels copy many at once. */
static bool moves_few_blocks(const struct exec_comm *comm, const struct op_terms *terms)
{
    uint64_t local = comm->map->ranks.local_count;
    return (terms->kind == OP_KIND_ALL_TO_ALL ? local : 1) * comm->map->ranks.size <= NCCL_BLOCKS_MAX;
}

/* NCCL has no scans. Of a sum that not all ranks get, a slot holds a slice's shard. */
static bool sum_serves(const struct exec_comm *comm, const struct op_terms *terms)
{
    bool all_get_it = !op_kind_has_root(terms->kind) && !op_kind_has_blocks(terms->kind);
    return gpu_nccl_reduces(terms->dtype, terms->reduce) && !op_kind_is_scan(terms->kind) &&
           (all_get_it || (!terms->has_layouts && comm->map->slice_bytes <= EXEC_SLICE_BYTES_DEFAULT &&
                           comm->map->ranks.size + terms->bucket_ops <= GPU_SLICE_PIECES_MAX));
}

static bool kind_serves(const struct exec_comm *comm, const struct op_terms *terms)
{
    if (op_kind_reduces(terms->kind)) {
        return sum_serves(comm, terms);
    }
    return op_kind_has_private_counts(terms->kind) ? moves_few_blocks(comm, terms)
                                                   : op_kind_reads(terms->kind, true);
}

/* Whether all buffers are on GPUs, and every rank has those that the kind needs. */
static bool buffers_serve(const struct exec_op *op)
{
    bool used[GPU_DEVICES_MAX] = {0};
    if (!device_buffers_serve(op, used)) {
        return false;
    }
    for (uint32_t i = 0; i < op->call.terms.bucket_ops * op->call.rank_count; i++) {
        const struct exec_rank *rank = &op->ranks[i];
        bool reads = op_kind_reduces(op->call.terms.kind);
        bool writes = op->call.terms.kind == OP_KIND_ALL_REDUCE;
        if ((reads && rank->input == NULL) || (writes && rank->output == NULL)) {
            return false;
        }
    }
    return true;
}

bool engine_of_slices_is_nccl(const struct exec_comm *comm, const struct exec_op *op, uint64_t now_ns)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    enum exec_gpu_engine engine = device_engine(comm, op);
    struct tuner *tuner = comm->exec->tuner;
    if (engine == EXEC_GPU_KERNELS || comm->map->ranks.node_count < 2 || comm->share_index > 0 ||
        !lane_device_serves(comm, op) || !kind_serves(comm, &op->call.terms) || device_gpus(op, gpus) < 2 ||
        !gpu_nccl_is_there() || !gpu_nccl_orders_launches() || !buffers_serve(op)) {
        return false;
    }
    if (engine == EXEC_GPU_NCCL) {
        return true;
    }
    if (!device_reach_each_other(comm, op)) {
        return device_bytes(op) >= NCCL_LEAST_BYTES;
    }
    bool moves = op_kind_has_private_counts(op->call.terms.kind); /* these are not measured */
    return !moves && tuner != NULL &&
           tuner_prefers_nccl_for_slices(tuner, op, comm->map->slice_bytes, now_ns);
}

/* --- Messages within the node --- */

bool exec_message_by_nccl(void *context, uint32_t from_gpu, uint32_t to_gpu, uint64_t bytes, uint64_t now_ns)
{
    struct exec *exec = context;
    if (exec->gpu_engine == EXEC_GPU_KERNELS || !gpu_nccl_is_there() || !gpu_nccl_orders_launches()) {
        return false;
    }
    bool otherwise = !gpu_devices_reaches(exec->gpus, from_gpu, to_gpu);
    bool by_nccl = exec->gpu_engine == EXEC_GPU_NCCL ||
                   (exec->tuner != NULL ? tuner_prefers_nccl_for_message(exec->tuner, from_gpu, to_gpu, bytes,
                                                                         otherwise, now_ns)
                                        : otherwise);
    exec->has_groups |= by_nccl; /* their deadlines are the exec's */
    return by_nccl;
}

/* --- For people --- */

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
    if (op_kind_is_scan(kind)) {
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
