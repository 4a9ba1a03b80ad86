#include "daemon/gpu/transfers.h"

#include <stdlib.h>
#include <string.h>

enum status gpu_transfers_init(struct gpu_transfers *transfers, uint32_t gpu_count, uint32_t capacity,
                               struct error *error)
{
    *transfers = (struct gpu_transfers){.gpu_count = gpu_count, .capacity = capacity};
    transfers->list = calloc(capacity, sizeof *transfers->list);
    transfers->addresses = calloc((size_t)capacity * gpu_count * 2, sizeof *transfers->addresses);
    if (transfers->list == NULL || transfers->addresses == NULL) {
        gpu_transfers_release(transfers);
        return error_set(error, STATUS_NO_MEMORY, "no memory for the transfers of a group of GPUs");
    }
    return STATUS_OK;
}

void gpu_transfers_release(struct gpu_transfers *transfers)
{
    free(transfers->list);
    free(transfers->addresses);
    *transfers = (struct gpu_transfers){0};
}

void gpu_transfers_clear(struct gpu_transfers *transfers)
{
    transfers->count = 0;
}

enum status gpu_transfers_reserve(struct gpu_transfers *transfers, uint32_t more, struct error *error)
{
    struct gpu_transfers larger;
    uint32_t wanted = transfers->count + more;
    if (wanted <= transfers->capacity) {
        return STATUS_OK;
    }
    enum status status = gpu_transfers_init(&larger, transfers->gpu_count, 2 * wanted, error);
    if (status != STATUS_OK) {
        return status;
    }
    larger.dtype = transfers->dtype;
    larger.reduce = transfers->reduce;
    for (uint32_t i = 0; i < transfers->count; i++) {
        const struct gpu_transfer *from = &transfers->list[i];
        struct gpu_transfer *to = gpu_transfers_add(&larger, from->kind, from->root, from->count);
        to->to = from->to;
        memcpy(to->inputs, from->inputs, sizeof *to->inputs * transfers->gpu_count);
        memcpy(to->outputs, from->outputs, sizeof *to->outputs * transfers->gpu_count);
    }
    gpu_transfers_release(transfers);
    *transfers = larger;
    return STATUS_OK;
}

struct gpu_transfer *gpu_transfers_add(struct gpu_transfers *transfers, enum gpu_transfer_kind kind,
                                       uint32_t root, uint64_t count)
{
    if (transfers->count == transfers->capacity) {
        return NULL;
    }
    void **addresses = &transfers->addresses[(size_t)transfers->count * transfers->gpu_count * 2];
    struct gpu_transfer *transfer = &transfers->list[transfers->count++];
    memset(addresses, 0, sizeof *addresses * transfers->gpu_count * 2);
    *transfer = (struct gpu_transfer){.kind = kind,
                                      .root = root,
                                      .count = count,
                                      .inputs = (const void **)addresses,
                                      .outputs = addresses + transfers->gpu_count};
    return transfer;
}

/* --- Joining --- */

static bool follows(const void *first, const void *at, uint64_t bytes)
{
    return first != NULL && at == (const unsigned char *)first + bytes;
}

/* Whether transfer `run[i]` continues a run that begins with run[0]. */
static bool continues(const struct gpu_transfers *transfers, const struct gpu_transfer *run, uint32_t i)
{
    const struct gpu_transfer *first = &run[0], *at = &run[i];
    bool reduces = first->kind == GPU_TRANSFER_REDUCE;
    uint64_t bytes = first->count * i * (reduces ? dtype_size_bytes(transfers->dtype) : 1);
    if (at->kind != first->kind || at->root != i || at->count != first->count) {
        return false;
    }
    for (uint32_t gpu = 0; gpu < transfers->gpu_count; gpu++) {
        if (reduces ? !follows(first->inputs[gpu], at->inputs[gpu], bytes)
                    : !follows(first->outputs[gpu], at->outputs[gpu], bytes)) {
            return false;
        }
    }
    return true;
}

/* Whether a run of one transfer for each GPU begins here. */
static bool is_run(const struct gpu_transfers *transfers, uint32_t begin)
{
    const struct gpu_transfer *run = &transfers->list[begin];
    if (transfers->count - begin < transfers->gpu_count || transfers->gpu_count < 2 ||
        (run->kind != GPU_TRANSFER_REDUCE && run->kind != GPU_TRANSFER_BROADCAST)) {
        return false;
    }
    for (uint32_t i = 0; i < transfers->gpu_count; i++) {
        if (!continues(transfers, run, i)) {
            return false;
        }
    }
    return true;
}

/* Makes the first transfer of the run the joint one. */
static void join_run(const struct gpu_transfers *transfers, struct gpu_transfer *run)
{
    bool reduces = run->kind == GPU_TRANSFER_REDUCE;
    for (uint32_t gpu = 0; gpu < transfers->gpu_count; gpu++) {
        if (reduces) {
            run->outputs[gpu] = run[gpu].outputs[gpu];
        } else {
            run->inputs[gpu] = run[gpu].inputs[gpu];
        }
    }
    run->kind = reduces ? GPU_TRANSFER_REDUCE_SCATTER : GPU_TRANSFER_ALL_GATHER;
}

void gpu_transfers_join(struct gpu_transfers *transfers)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < transfers->count; kept++) {
        uint32_t taken = 1;
        if (is_run(transfers, i)) {
            join_run(transfers, &transfers->list[i]);
            taken = transfers->gpu_count;
        }
        transfers->list[kept] = transfers->list[i]; /* its addresses stay where they are */
        i += taken;
    }
    transfers->count = kept;
}
