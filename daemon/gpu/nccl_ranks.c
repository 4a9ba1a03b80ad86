#include "daemon/gpu/nccl_ranks.h"

#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/groups.h"
#include "daemon/gpu/nccl_types.h"
#include "daemon/gpu/registrations.h"

enum status nccl_ranks_status(const struct nccl_ranks *ranks, uint32_t rank, const char *call,
                              nccl_result result, struct error *error)
{
    if (result == NCCL_RESULT_OK || result == NCCL_RESULT_IN_PROGRESS) {
        return STATUS_OK;
    }
    const char *detail = ranks->nccl->last_error(NULL);
    return error_set(error, STATUS_DEVICE, "GPU %u, NCCL among %u GPUs: %s: %s%s%s", ranks->list[rank],
                     ranks->count, call, ranks->nccl->error_text(result),
                     detail != NULL && detail[0] != '\0' ? ": " : "", detail != NULL ? detail : "");
}

/* --- Forming --- */

static enum status allocate_scratch(struct nccl_ranks *ranks, uint32_t rank, struct error *error)
{
    enum status status = cuda_enter(ranks->gpus, ranks->list[rank], error);
    return status == STATUS_OK
               ? CUDA_CALL(ranks->gpus, ranks->list[rank], error, memory_alloc, &ranks->scratch[rank],
                           GPU_GROUP_SCRATCH_BYTES + GPU_GROUP_SLOTS * GPU_GROUP_SLOT_BYTES)
               : status;
}

static enum status init_rank(struct nccl_ranks *ranks, uint32_t rank, struct nccl_id id, struct error *error)
{
    struct nccl_config config = {.size = sizeof config,
                                 .magic = NCCL_CONFIG_MAGIC,
                                 .version = NCCL_CONFIG_VERSION,
                                 .blocking = 0,
                                 .cga_cluster_size = NCCL_CONFIG_UNDEFINED_INT,
                                 .min_ctas = NCCL_CONFIG_UNDEFINED_INT,
                                 .max_ctas = ranks->ctas > 0 ? (int)ranks->ctas : NCCL_CONFIG_UNDEFINED_INT,
                                 .split_share = NCCL_CONFIG_UNDEFINED_INT};
    enum status status = cuda_enter(ranks->gpus, ranks->list[rank], error);
    return status == STATUS_OK
               ? nccl_ranks_status(
                     ranks, rank, "ncclCommInitRankConfig",
                     ranks->nccl->comm_init(&ranks->comms[rank], (int)ranks->count, id, (int)rank, &config),
                     error)
               : status;
}

enum status nccl_ranks_form(struct nccl_ranks *ranks, struct error *error)
{
    struct nccl_id id;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < ranks->count && status == STATUS_OK; i++) {
        status = allocate_scratch(ranks, i, error);
    }
    if (status == STATUS_OK) {
        status = nccl_ranks_status(ranks, 0, "ncclGetUniqueId", ranks->nccl->unique_id(&id), error);
    }
    if (status == STATUS_OK) {
        status = nccl_ranks_status(ranks, 0, "ncclGroupStart", ranks->nccl->group_start(), error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < ranks->count && status == STATUS_OK; i++) {
        status = init_rank(ranks, i, id, error);
    }
    nccl_result ended = ranks->nccl->group_end();
    return status == STATUS_OK ? nccl_ranks_status(ranks, 0, "ncclGroupEnd", ended, error) : status;
}

enum status nccl_ranks_poll(const struct nccl_ranks *ranks, bool *busy, struct error *error)
{
    *busy = false;
    for (uint32_t i = 0; i < ranks->count; i++) {
        nccl_result result = NCCL_RESULT_OK;
        nccl_result asked = ranks->nccl->comm_state(ranks->comms[i], &result);
        result = asked == NCCL_RESULT_OK ? result : asked;
        *busy |= result == NCCL_RESULT_IN_PROGRESS;
        enum status status = nccl_ranks_status(ranks, i, "ncclCommGetAsyncError", result, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

void nccl_ranks_abort(struct nccl_ranks *ranks)
{
    /* In one group: one after the other, the first could wait for the last. */
    bool grouped = ranks->nccl->group_start() == NCCL_RESULT_OK;
    for (uint32_t i = 0; i < ranks->count; i++) {
        if (ranks->comms[i] != NULL) { /* also on a GPU that has failed: the others wait for this rank */
            (void)ranks->gpus->driver->context_set(ranks->gpus->gpus[ranks->list[i]].context);
            (void)ranks->nccl->comm_abort(ranks->comms[i]);
        }
        ranks->comms[i] = NULL;
    }
    if (grouped) {
        (void)ranks->nccl->group_end();
    }
    nccl_registrations_end(ranks);
    for (uint32_t i = 0; i < ranks->count; i++) {
        if (ranks->scratch[i] != 0 && cuda_enter(ranks->gpus, ranks->list[i], NULL) == STATUS_OK) {
            (void)ranks->gpus->driver->memory_free(ranks->scratch[i]);
        }
        ranks->scratch[i] = 0;
    }
}

/* --- Transfers --- */

/* One rank's part of a transfer. Sets the name of NCCL's function. */
static nccl_result call_of_rank(const struct nccl_ranks *ranks, const struct gpu_transfers *transfers,
                                const struct gpu_transfer *transfer, uint32_t rank, cuda_stream stream,
                                const char **name)
{
    const struct nccl_library *nccl = ranks->nccl;
    nccl_comm comm = ranks->comms[rank];
    const void *input = transfer->inputs[rank];
    void *output = transfer->outputs[rank];
    struct nccl_reduction as = nccl_reduction_of(transfers->dtype, transfers->reduce);
    size_t bytes = (size_t)transfer->count, elements = (size_t)(transfer->count * as.elements);
    int root = (int)transfer->root;
    switch (transfer->kind) {
    case GPU_TRANSFER_ALL_REDUCE:
        *name = "ncclAllReduce";
        return nccl->all_reduce(input, output, elements, as.type, as.reduce, comm, stream);
    case GPU_TRANSFER_REDUCE:
        *name = "ncclReduce";
        return nccl->reduce(input, output, elements, as.type, as.reduce, root, comm, stream);
    case GPU_TRANSFER_REDUCE_SCATTER:
        *name = "ncclReduceScatter";
        return nccl->reduce_scatter(input, output, elements, as.type, as.reduce, comm, stream);
    case GPU_TRANSFER_BROADCAST:
        *name = "ncclBroadcast";
        return nccl->broadcast(input, output, bytes, NCCL_TYPE_U8, root, comm, stream);
    case GPU_TRANSFER_ALL_GATHER:
        *name = "ncclAllGather";
        return nccl->all_gather(input, output, bytes, NCCL_TYPE_U8, comm, stream);
    case GPU_TRANSFER_SEND:
        if (rank == transfer->root) {
            *name = "ncclSend";
            return nccl->send(input, bytes, NCCL_TYPE_U8, (int)transfer->to, comm, stream);
        }
        if (rank == transfer->to) {
            *name = "ncclRecv";
            return nccl->receive(output, bytes, NCCL_TYPE_U8, root, comm, stream);
        }
        break;
    }
    return NCCL_RESULT_OK;
}

/* All transfers of one rank, in the order of the list, as on all other ranks. */
static enum status calls_of_rank(const struct nccl_ranks *ranks, const struct gpu_transfers *transfers,
                                 uint32_t rank, cuda_stream stream, struct error *error)
{
    enum status status = cuda_enter(ranks->gpus, ranks->list[rank], error);
    for (uint32_t i = 0; i < transfers->count && status == STATUS_OK; i++) {
        const char *name = "";
        nccl_result result = call_of_rank(ranks, transfers, &transfers->list[i], rank, stream, &name);
        status = nccl_ranks_status(ranks, rank, name, result, error);
    }
    return status;
}

enum status nccl_ranks_call(const struct nccl_ranks *ranks, const struct gpu_transfers *transfers,
                            const cuda_stream *streams, struct error *error)
{
    enum status status = nccl_ranks_status(ranks, 0, "ncclGroupStart", ranks->nccl->group_start(), error);
    if (status != STATUS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < ranks->count && status == STATUS_OK; i++) {
        status = calls_of_rank(ranks, transfers, i, streams[i], error);
    }
    nccl_result ended = ranks->nccl->group_end();
    return status == STATUS_OK ? nccl_ranks_status(ranks, 0, "ncclGroupEnd", ended, error) : status;
}
