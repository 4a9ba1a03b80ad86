#include "daemon/exec/gpu_slices.h"
#include "daemon/exec/exec_device.h"
#include "daemon/exec/gpu_slices_internal.h"

#include <stdlib.h>
#include <string.h>

/*
 * Like gpu_nccl.c, all pieces of a step are one batch: kernels and copies, one group of NCCL's transfers,
 * copies. What NCCL reduces of an all_reduce goes to the output of the first rank on the GPU, which the
 * operation overwrites at its end anyway. Other reductions have no such output, so each slice takes a slot of
 * the group's scratch memory until its data are on the host.
 *
 * If a slice's vector lies on one GPU (coll_stage_op.vector_ranks), NCCL reduces to that GPU, and broadcasts
 * from there.
 */

#define SHARD_LEAST_BYTES 4096u /* of each GPU; one GPU alone carries shorter vectors */

/* In a slot, each piece begins at a multiple of this. GPU_SLICE_PIECES_MAX bounds what rounding takes. */
#define SLOT_ALIGN_BYTES 16u
_Static_assert(EXEC_SLICE_BYTES_DEFAULT + 2 * SLOT_ALIGN_BYTES * GPU_SLICE_PIECES_MAX <= GPU_GROUP_SLOT_BYTES,
               "a slot has room for a slice");

static bool needs_slot(const struct op_terms *terms)
{
    return terms->kind == OP_KIND_REDUCE || terms->kind == OP_KIND_REDUCE_SCATTER;
}

/* --- Creation --- */

enum status gpu_slice_new(const struct exec_op *op, struct gpu_slice **out, struct error *error)
{
    struct gpu_slice *slice = calloc(1, sizeof *slice);
    if (slice == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a slice");
    }
    slice->group = op->call.group;
    slice->slot = UINT32_MAX;
    slice->gpu_count = device_gpus(op, slice->gpus);
    enum status status =
        gpu_transfers_init(&slice->job.transfers, slice->gpu_count, slice->gpu_count + 1, error);
    if (status != STATUS_OK) {
        gpu_slice_free(slice);
        return status;
    }
    *out = slice;
    return STATUS_OK;
}

bool gpu_slice_take_room(struct gpu_slice *slice, const struct exec_op *op)
{
    slice->slot_bytes = 0;
    if (needs_slot(&op->call.terms) && slice->slot == UINT32_MAX) {
        slice->slot = gpu_group_take_slot(slice->group);
        return slice->slot != UINT32_MAX;
    }
    return true;
}

void gpu_slice_free(struct gpu_slice *slice)
{
    if (slice != NULL) {
        gpu_slice_give_slot(slice);
        gpu_transfers_release(&slice->job.transfers);
        free(slice->copies);
        free(slice);
    }
}

bool gpu_slice_fits(const struct gpu_slice *slice, const struct exec_op *op)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    uint32_t count = device_gpus(op, gpus);
    return slice != NULL && slice->group == op->call.group && slice->gpu_count == count &&
           memcmp(slice->gpus, gpus, count * sizeof gpus[0]) == 0;
}

/* --- Pieces --- */

/* A piece while it is being put. */
struct put {
    struct gpu_slice *slice;
    const struct exec_lane *lane;
    const struct exec_op *op;
    const struct coll_stage_piece *piece;
    uint64_t bytes; /* of the piece's vector */
    struct share {
        uint32_t count;
        const void *inputs[GPU_QUEUE_BUFFERS_MAX];
        double factors[GPU_QUEUE_BUFFERS_MAX];
        void *outputs[GPU_QUEUE_BUFFERS_MAX];
    } share; /* of the GPU that find_sources or find_targets was called for */
    struct error *error;
};

static uint32_t gpu_index(const struct put *put, uint32_t rank)
{
    uint32_t index = 0;
    while (put->slice->gpus[index] != put->op->ranks[rank].gpu) {
        index++;
    }
    return index;
}

static enum status queue_of(struct put *put, uint32_t index, struct gpu_queue **out)
{
    enum status status =
        device_queue(put->lane->comm, put->slice->gpus[index], &put->slice->queues[index], put->error);
    put->slice->used[index] |= status == STATUS_OK;
    *out = put->slice->queues[index];
    return status;
}

static enum status put_copy(struct put *put, uint32_t index, void *target, const void *source, uint64_t bytes)
{
    struct gpu_queue *queue;
    if (bytes == 0 || target == source) {
        return STATUS_OK;
    }
    enum status status = queue_of(put, index, &queue);
    return status == STATUS_OK ? gpu_queue_copy(queue, target, source, bytes, put->error) : status;
}

/* A copy behind the transfers. */
static enum status put_copy_after(struct put *put, uint32_t index, void *target, const void *source,
                                  uint64_t bytes)
{
    struct gpu_slice *slice = put->slice;
    struct gpu_queue *queue;
    if (slice->copy_count == slice->copy_capacity) {
        uint32_t capacity = 2 * slice->copy_capacity + 16;
        struct slice_copy *larger = realloc(slice->copies, capacity * sizeof *larger);
        if (larger == NULL) {
            return error_set(put->error, STATUS_NO_MEMORY, "no memory for a slice");
        }
        slice->copies = larger;
        slice->copy_capacity = capacity;
    }
    if (bytes > 0 && target != source) {
        slice->copies[slice->copy_count++] = (struct slice_copy){
            .index = index, .range = {.source = source, .target = target, .bytes = bytes}};
    }
    return queue_of(put, index, &queue);
}

/* The range of the vector that a GPU carries over its own link. All have as much; the first one also has the
 * few elements that are left, or all of a short vector. */
struct shard {
    uint64_t begin, count; /* elements */
    uint64_t rest_begin, rest_count;
};

static struct shard shard_of(const struct put *put, uint32_t number, uint32_t owners)
{
    uint64_t each = put->piece->count_elements / owners;
    each = each * put->op->stage.element_bytes < SHARD_LEAST_BYTES ? 0 : each;
    struct shard shard = {.begin = number * each, .count = each};
    if (number == 0) {
        shard.rest_begin = owners * each;
        shard.rest_count = put->piece->count_elements - shard.rest_begin;
    }
    return shard;
}

/* --- In: reductions --- */

/* Lists the sources on the GPU. Returns the first one's rank. */
static uint32_t find_sources(struct put *put, uint32_t index)
{
    uint32_t first = UINT32_MAX;
    put->share.count = 0;
    for (uint32_t i = 0; i < put->piece->source_count; i++) {
        const struct coll_stage_place *source = &put->piece->sources[i];
        if (gpu_index(put, source->rank) == index) {
            first = first == UINT32_MAX ? i : first;
            put->share.factors[put->share.count] = source->scaled ? put->op->ranks[source->rank].factor : 1.0;
            put->share.inputs[put->share.count++] = stage_at(put->lane, put->op, source);
        }
    }
    return first;
}

/* Folds what the GPU's ranks contribute into `place`, if there is something to fold. Returns where it is. */
static enum status put_fold(struct put *put, uint32_t index, void *place, const void **input)
{
    const struct op_terms *terms = &put->op->call.terms;
    bool scales = terms->reduce == REDUCE_PREMUL_SUM;
    void *outputs[] = {place};
    struct gpu_queue *queue;
    *input = put->share.inputs[0];
    if (put->share.count == 1 && !scales) {
        return STATUS_OK;
    }
    *input = place;
    struct host_reduction reduction = {.dtype = terms->dtype,
                                       .reduce = terms->reduce,
                                       .count_elements = put->piece->count_elements,
                                       .input_count = put->share.count,
                                       .output_count = 1,
                                       .inputs = put->share.inputs,
                                       .outputs = outputs,
                                       .factors = scales ? put->share.factors : NULL};
    enum status status = queue_of(put, index, &queue);
    return status == STATUS_OK ? gpu_queue_reduce(queue, &reduction, GPU_QUEUE_GPUS, put->error) : status;
}

/* Adds a reduction of `count` elements from `begin` on to the GPU `root`. */
static void add_reduce(struct put *put, uint32_t root, uint64_t begin, uint64_t count,
                       const void *const *inputs, unsigned char *const *places)
{
    uint64_t at = begin * put->op->stage.element_bytes;
    if (count == 0) {
        return;
    }
    struct gpu_transfer *transfer =
        gpu_transfers_add(&put->slice->job.transfers, GPU_TRANSFER_REDUCE, root, count);
    for (uint32_t g = 0; g < put->slice->gpu_count; g++) {
        transfer->inputs[g] = (const unsigned char *)inputs[g] + at;
    }
    transfer->outputs[root] = places[root] + at;
}

/* Where the GPU's part of the reduction goes: as much as the piece. */
static unsigned char *place_of(const struct put *put, uint32_t index, const struct coll_stage_place *first)
{
    if (!needs_slot(&put->op->call.terms)) {
        return (unsigned char *)put->op->ranks[first->rank].output +
               first->offset_elements * put->op->stage.element_bytes;
    }
    return gpu_group_slot(put->slice->group, put->slice->slot, index) + put->slice->slot_bytes;
}

static enum status slot_has_room(const struct put *put)
{
    return !needs_slot(&put->op->call.terms) || put->slice->slot_bytes + put->bytes <= GPU_GROUP_SLOT_BYTES
               ? STATUS_OK
               : error_set(put->error, STATUS_LIMIT, "a slice is larger than its memory on GPUs");
}

/* Folds on each GPU. inputs: what each contributes; places: where its part of the reduction may go. */
static enum status put_folds(struct put *put, const void **inputs, unsigned char **places)
{
    enum status status = STATUS_OK;
    for (uint32_t g = 0; g < put->slice->gpu_count && status == STATUS_OK; g++) {
        uint32_t first = find_sources(put, g);
        if (put->share.count == 0) {
            return error_set(put->error, STATUS_INTERNAL, "a GPU of the slice has no rank's data");
        }
        places[g] = place_of(put, g, &put->piece->sources[first]);
        status = put_fold(put, g, places[g], &inputs[g]);
    }
    return status;
}

/* Reduces over the GPUs, and scatters; each GPU then copies its shard to the host. */
static enum status put_reduction(struct put *put)
{
    const void *inputs[GPU_DEVICES_MAX];
    unsigned char *places[GPU_DEVICES_MAX];
    unsigned char *host = stage_at(put->lane, put->op, &put->piece->targets[0]);
    uint32_t owners = put->slice->gpu_count;
    uint64_t element = put->op->stage.element_bytes;
    enum status status = slot_has_room(put);
    status = status == STATUS_OK ? put_folds(put, inputs, places) : status;
    if (put->op->stage.vector_ranks > 0 && status == STATUS_OK) { /* to the place on a GPU */
        uint32_t owner = gpu_index(put, put->piece->targets[0].rank);
        places[owner] = host;
        add_reduce(put, owner, 0, put->piece->count_elements, inputs, places);
        return STATUS_OK;
    }
    for (uint32_t g = 0; g < owners && status == STATUS_OK; g++) {
        struct shard shard = shard_of(put, g, owners);
        add_reduce(put, g, shard.begin, shard.count, inputs, places);
        status = put_copy_after(put, g, host + shard.begin * element, places[g] + shard.begin * element,
                                shard.count * element);
    }
    if (status == STATUS_OK) { /* behind all equal shards, so that these can become one reduce-scatter */
        struct shard shard = shard_of(put, 0, owners);
        add_reduce(put, 0, shard.rest_begin, shard.rest_count, inputs, places);
        status = put_copy_after(put, 0, host + shard.rest_begin * element,
                                places[0] + shard.rest_begin * element, shard.rest_count * element);
    }
    put->slice->slot_bytes +=
        put->bytes + (SLOT_ALIGN_BYTES - put->bytes % SLOT_ALIGN_BYTES) % SLOT_ALIGN_BYTES;
    return status;
}

/* --- Out: copies to all --- */

/* Lists the targets on the GPU. */
static void find_targets(struct put *put, uint32_t index)
{
    put->share.count = 0;
    for (uint32_t i = 0; i < put->piece->target_count; i++) {
        if (gpu_index(put, put->piece->targets[i].rank) == index) {
            put->share.outputs[put->share.count++] = stage_at(put->lane, put->op, &put->piece->targets[i]);
        }
    }
}

/* Takes `count` elements from `begin` on from the host to a GPU's place, over its own link. */
static enum status put_in(struct put *put, uint32_t index, const unsigned char *host, unsigned char *place,
                          uint64_t begin, uint64_t count)
{
    uint64_t at = begin * put->op->stage.element_bytes;
    const void *inputs[] = {host + at};
    void *outputs[] = {place + at};
    struct gpu_queue *queue;
    if (count == 0 || put->piece->action == COLL_STAGE_COPY) {
        return put_copy(put, index, place + at, host + at, count * put->op->stage.element_bytes);
    }
    struct host_reduction reduction = {.dtype = put->op->call.terms.dtype,
                                       .reduce = put->op->call.terms.reduce,
                                       .count_elements = count,
                                       .input_count = 1,
                                       .output_count = 1,
                                       .inputs = inputs,
                                       .outputs = outputs,
                                       .divisor =
                                           put->piece->action == COLL_STAGE_DIVIDE ? put->op->divisor : 0};
    enum status status = queue_of(put, index, &queue);
    return status == STATUS_OK ? gpu_queue_reduce(queue, &reduction, GPU_QUEUE_LINK, put->error) : status;
}

static void add_send(struct put *put, uint32_t from, uint32_t to, unsigned char *source,
                     unsigned char *target, uint64_t bytes)
{
    struct gpu_transfer *send = gpu_transfers_add(&put->slice->job.transfers, GPU_TRANSFER_SEND, from, bytes);
    send->to = to;
    send->inputs[from] = source;
    send->outputs[to] = target;
}

/* Adds the transfers of one owner's elements to all other owners. */
static void add_spread(struct put *put, const uint32_t *owners, uint32_t owner_count, uint32_t owner,
                       uint64_t begin, uint64_t count, unsigned char *const *places)
{
    struct gpu_transfers *transfers = &put->slice->job.transfers;
    uint64_t at = begin * put->op->stage.element_bytes, bytes = count * put->op->stage.element_bytes;
    if (count == 0 || owner_count < 2) {
        return;
    }
    if (owner_count == put->slice->gpu_count) {
        struct gpu_transfer *all = gpu_transfers_add(transfers, GPU_TRANSFER_BROADCAST, owners[owner], bytes);
        for (uint32_t g = 0; g < owner_count; g++) {
            all->inputs[g] = all->outputs[g] = places[g] + at;
        }
        return;
    }
    for (uint32_t i = 0; i < owner_count; i++) {
        if (i != owner) {
            add_send(put, owners[owner], owners[i], places[owners[owner]] + at, places[owners[i]] + at,
                     bytes);
        }
    }
}

/* Each GPU that has targets copies its shard from the host; all shards then go to all of these GPUs. */
static enum status put_out(struct put *put)
{
    const unsigned char *host = stage_at(put->lane, put->op, &put->piece->sources[0]);
    unsigned char *places[GPU_DEVICES_MAX] = {NULL};
    uint32_t owners[GPU_DEVICES_MAX], owner_count = 0;
    enum status status = STATUS_OK;
    for (uint32_t g = 0; g < put->slice->gpu_count; g++) {
        find_targets(put, g);
        if (put->share.count > 0) {
            owners[owner_count++] = g;
            places[g] = put->share.outputs[0];
        }
    }
    for (uint32_t i = 0; i < owner_count && status == STATUS_OK; i++) {
        struct shard shard = shard_of(put, i, owner_count);
        status = put_in(put, owners[i], host, places[owners[i]], shard.begin, shard.count);
        if (status == STATUS_OK) {
            status = put_in(put, owners[i], host, places[owners[i]], shard.rest_begin, shard.rest_count);
        }
        add_spread(put, owners, owner_count, i, shard.begin, shard.count, places);
    }
    if (owner_count > 0) {
        struct shard shard = shard_of(put, 0, owner_count);
        add_spread(put, owners, owner_count, 0, shard.rest_begin, shard.rest_count, places);
    }
    for (uint32_t i = 0; i < owner_count && status == STATUS_OK; i++) {
        find_targets(put, owners[i]);
        for (uint32_t k = 1; k < put->share.count && status == STATUS_OK; k++) {
            status = put_copy_after(put, owners[i], put->share.outputs[k], put->share.outputs[0], put->bytes);
        }
    }
    return status;
}

/* Spreads the slice's vector, which lies on one GPU. A divided result is divided there. */
static enum status put_out_from_one(struct put *put)
{
    const struct coll_stage_place *source = &put->piece->sources[0];
    unsigned char *vector = stage_at(put->lane, put->op, source);
    unsigned char *places[GPU_DEVICES_MAX] = {NULL};
    uint32_t owners[GPU_DEVICES_MAX] = {0}, owner_count = 0, owner = gpu_index(put, source->rank), number = 0;
    enum status status = put_in(put, owner, vector, vector, 0,
                                put->piece->action == COLL_STAGE_COPY ? 0 : put->piece->count_elements);
    for (uint32_t g = 0; g < put->slice->gpu_count; g++) {
        find_targets(put, g);
        if (put->share.count > 0 || g == owner) {
            places[g] = g == owner ? vector : put->share.outputs[0];
            number = g == owner ? owner_count : number;
            owners[owner_count++] = g;
        }
    }
    add_spread(put, owners, owner_count, number, 0, put->piece->count_elements, places);
    for (uint32_t i = 0; i < owner_count && status == STATUS_OK; i++) {
        find_targets(put, owners[i]);
        for (uint32_t k = 0; k < put->share.count && status == STATUS_OK; k++) {
            status = put_copy_after(put, owners[i], put->share.outputs[k], places[owners[i]], put->bytes);
        }
    }
    return status;
}

/* Copies a rank's data to the host over its GPU's own link, or to ranks of this node. */
static enum status put_to_ranks(struct put *put)
{
    const struct coll_stage_place *source = &put->piece->sources[0];
    unsigned char *from = stage_at(put->lane, put->op, source);
    uint32_t gpu = gpu_index(put, source->rank);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < put->piece->target_count && status == STATUS_OK; i++) {
        const struct coll_stage_place *target = &put->piece->targets[i];
        unsigned char *to = stage_at(put->lane, put->op, target);
        if (target->buffer == COLL_STAGE_MEMORY || gpu_index(put, target->rank) == gpu) {
            status = put_copy(put, gpu, to, from, put->bytes);
        } else {
            add_send(put, gpu, gpu_index(put, target->rank), from, to, put->bytes);
        }
    }
    return status;
}

enum status gpu_slice_put(struct gpu_slice *slice, const struct exec_lane *lane, const struct exec_op *op,
                          const struct coll_stage_piece *piece, struct error *error)
{
    struct put put;
    put.slice = slice;
    put.lane = lane;
    put.op = op;
    put.piece = piece;
    put.bytes = piece->count_elements * op->stage.element_bytes;
    put.error = error;
    slice->job.transfers.dtype = op->call.terms.dtype;
    slice->job.transfers.reduce = op->call.terms.reduce;
    enum status status = gpu_transfers_reserve(
        &slice->job.transfers, slice->gpu_count * slice->gpu_count + 1 + piece->target_count, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (op->stage.vector_ranks > 0) {
        return piece->sources[0].buffer == COLL_STAGE_OUTPUT ? put_out_from_one(&put) : put_reduction(&put);
    }
    if (piece->sources[0].buffer == COLL_STAGE_MEMORY) {
        return put_out(&put);
    }
    if (piece->action != COLL_STAGE_COPY) {
        return put_reduction(&put);
    }
    return put_to_ranks(&put);
}

enum status gpu_slice_copy(struct gpu_slice *slice, const struct exec_lane *lane, uint32_t gpu, void *target,
                           const void *source, uint64_t bytes, struct error *error)
{
    uint32_t index = 0;
    while (slice->gpus[index] != gpu) {
        index++;
    }
    enum status status = device_queue(lane->comm, gpu, &slice->queues[index], error);
    slice->used[index] |= status == STATUS_OK;
    return status == STATUS_OK ? gpu_queue_copy(slice->queues[index], target, source, bytes, error) : status;
}
