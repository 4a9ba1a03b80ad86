#include <stdio.h>
#include <stdlib.h>

#include "daemon/exec/exec_device.h"
#include "daemon/exec/gpu_nccl.h"
#include "daemon/gpu/nccl.h"

/*
 * Operations of communicators on one node by NCCL. This walks the same plan as gpu_direct.c, piece by piece.
 * Of a reduction, a kernel on each GPU folds what its ranks contribute; NCCL reduces among the GPUs; a kernel
 * on each GPU copies the result to the other ranks there, and divides it if needed. A copy to other GPUs is a
 * broadcast or a send, of bytes. As much of the plan as fits is one batch: kernels, one group of NCCL's
 * transfers, kernels. The kernels of all pieces may run before all transfers, because no piece reads what
 * another one writes.
 */

#define SCRATCH_ALIGN_BYTES 256u

/* A kernel to put behind NCCL's transfers: from one place on a GPU to all places that need the result. */
struct nccl_after {
    struct nccl_after *next;
    uint32_t index; /* of the GPU in the group */
    bool divides;
    uint64_t count_elements;
    const void *value;
    uint32_t output_count;
    void *outputs[];
};

struct gpu_nccl {
    struct exec_comm *comm;
    struct exec_op *op;
    struct gpu_group *group; /* the communicator holds it */
    enum {
        NCCL_FORMS, /* waits for the group, or for its turn */
        NCCL_PUTS,
        NCCL_CALLS, /* NCCL's thread puts the transfers in the streams */
        NCCL_DONE
    } state;
    bool watches;
    struct device_copies copies; /* within GPUs; also the list of the group's GPUs */
    struct gpu_queue *queues[GPU_DEVICES_MAX];
    struct coll_stage_cursor cursor;
    bool planned;
    struct coll_stage_piece *rest; /* a reduction that waits for more scratch memory; null: none */
    uint64_t rest_done;            /* its elements that are done */
    uint64_t scratch_bytes;        /* used by this batch, on each GPU */
    bool used_scratch;
    struct nccl_after *afters;
    enum status status; /* of the walk */
    struct error *error;
};

bool gpu_nccl_serves(const struct exec_comm *comm, const struct exec_op *op)
{
    const struct op_terms *terms = &op->call.terms;
    uint32_t gpus[GPU_DEVICES_MAX];
    bool used[GPU_DEVICES_MAX] = {0};
    return device_engine(comm, op) != EXEC_GPU_KERNELS && comm->map->ranks.node_count == 1 &&
           op->call.rank_count <= GPU_QUEUE_BUFFERS_MAX && !coll_stage_is_scan(terms) &&
           device_gpus(op, gpus) > 1 &&
           (!op_kind_reduces(terms->kind) || gpu_nccl_reduces(terms->dtype, terms->reduce)) &&
           gpu_nccl_is_there() && device_buffers_serve(op, used);
}

/* --- Beginning and end --- */

/* The communicator keeps the group, so that it stays formed between operations. */
enum status gpu_nccl_hold(struct exec_comm *comm, const uint32_t *gpus, uint32_t count, uint64_t now_ns,
                          struct error *error)
{
    struct gpu_group *group = NULL;
    comm->exec->has_groups = true;
    enum status status = gpu_group_hold(comm->exec->gpus, gpus, count, now_ns, &group, error);
    gpu_group_release(comm->group, now_ns);
    comm->group = group;
    return status;
}

enum status gpu_nccl_new(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns, struct gpu_nccl **out,
                         struct error *error)
{
    struct gpu_nccl *nccl = calloc(1, sizeof *nccl);
    if (nccl == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for an operation", comm->map->name);
    }
    *nccl = (struct gpu_nccl){.comm = comm, .op = op};
    enum status status = device_copies_init(&nccl->copies, op, error);
    if (status == STATUS_OK) {
        status = gpu_nccl_hold(comm, nccl->copies.gpus, nccl->copies.gpu_count, now_ns, error);
    }
    nccl->group = comm->group;
    if (status != STATUS_OK) {
        gpu_nccl_free(nccl);
        return status;
    }
    *out = nccl;
    return STATUS_OK;
}

static void free_afters(struct gpu_nccl *nccl)
{
    while (nccl->afters != NULL) {
        struct nccl_after *after = nccl->afters;
        nccl->afters = after->next;
        free(after);
    }
}

void gpu_nccl_free(struct gpu_nccl *nccl)
{
    if (nccl == NULL) {
        return;
    }
    if (nccl->group != NULL) {
        gpu_group_leave(nccl->group, nccl->op);
    }
    if (nccl->watches) {
        gpu_group_works(nccl->group, false);
        gpu_group_watch(nccl->group, false);
    }
    free_afters(nccl);
    device_copies_release(&nccl->copies);
    free(nccl->rest);
    free(nccl);
}

/* --- Pieces --- */

static uint32_t gpu_index(const struct gpu_nccl *nccl, uint32_t rank)
{
    uint32_t index = 0;
    while (nccl->copies.gpus[index] != nccl->op->ranks[rank].gpu) {
        index++;
    }
    return index;
}

/* The places of a piece on one GPU. */
struct share {
    const void *inputs[GPU_QUEUE_BUFFERS_MAX];
    double factors[GPU_QUEUE_BUFFERS_MAX];
    void *outputs[GPU_QUEUE_BUFFERS_MAX];
    uint32_t input_count, output_count;
};

static void find_share(const struct gpu_nccl *nccl, const struct coll_stage_piece *piece, uint32_t index,
                       uint64_t begin_bytes, struct share *share)
{
    const struct exec_op *op = nccl->op;
    share->input_count = share->output_count = 0;
    for (uint32_t i = 0; i < piece->source_count; i++) {
        const struct coll_stage_place *source = &piece->sources[i];
        if (gpu_index(nccl, source->rank) == index) {
            share->factors[share->input_count] = source->scaled ? op->ranks[source->rank].factor : 1.0;
            share->inputs[share->input_count++] = stage_at(NULL, op, source) + begin_bytes;
        }
    }
    for (uint32_t i = 0; i < piece->target_count; i++) {
        if (gpu_index(nccl, piece->targets[i].rank) == index) {
            share->outputs[share->output_count++] = stage_at(NULL, op, &piece->targets[i]) + begin_bytes;
        }
    }
}

static void walk_failed(struct gpu_nccl *nccl, enum status status)
{
    nccl->status = nccl->status == STATUS_OK ? status : nccl->status;
}

static struct gpu_transfer *add_transfer(struct gpu_nccl *nccl, enum gpu_transfer_kind kind, uint32_t root,
                                         uint64_t count)
{
    struct gpu_transfer *transfer = gpu_transfers_add(gpu_group_transfers(nccl->group), kind, root, count);
    if (transfer == NULL) { /* put_piece stops before */
        walk_failed(nccl, error_set(nccl->error, STATUS_LIMIT, "more than %u transfers in a batch",
                                    GPU_GROUP_TRANSFERS_MAX));
    }
    return transfer;
}

/* Puts a kernel that takes `value` to all outputs behind the transfers. */
static void add_after(struct gpu_nccl *nccl, uint32_t index, const void *value, const struct share *share,
                      uint32_t first_output, uint64_t count_elements, bool divides)
{
    uint32_t count = share->output_count - first_output;
    struct nccl_after *after = calloc(1, sizeof *after + count * sizeof after->outputs[0]);
    if (after == NULL) {
        walk_failed(nccl, error_set(nccl->error, STATUS_NO_MEMORY, "no memory for an operation"));
        return;
    }
    *after = (struct nccl_after){.next = nccl->afters,
                                 .index = index,
                                 .divides = divides,
                                 .count_elements = count_elements,
                                 .value = value,
                                 .output_count = count};
    for (uint32_t i = 0; i < count; i++) {
        after->outputs[i] = share->outputs[first_output + i];
    }
    nccl->afters = after;
}

/* --- Reductions --- */

/* How a piece's reduction goes among the GPUs. */
struct shape {
    enum gpu_transfer_kind kind;
    uint32_t root;
    bool scales;
    uint32_t sources[GPU_DEVICES_MAX], targets[GPU_DEVICES_MAX]; /* how many places on each GPU */
};

static struct shape shape_of(const struct gpu_nccl *nccl, const struct coll_stage_piece *piece)
{
    struct shape shape = {.kind = GPU_TRANSFER_REDUCE,
                          .scales = nccl->op->call.terms.reduce == REDUCE_PREMUL_SUM,
                          .root = gpu_index(nccl, piece->targets[0].rank)};
    for (uint32_t i = 0; i < piece->source_count; i++) {
        shape.sources[gpu_index(nccl, piece->sources[i].rank)]++;
    }
    for (uint32_t i = 0; i < piece->target_count; i++) {
        uint32_t index = gpu_index(nccl, piece->targets[i].rank);
        shape.targets[index]++;
        shape.kind = index != shape.root ? GPU_TRANSFER_ALL_REDUCE : shape.kind;
    }
    return shape;
}

/* Whether a GPU has no place of its own for its contribution, or for the result that all get. */
static bool needs_scratch(const struct shape *shape, uint32_t index)
{
    bool folds = shape->sources[index] > 1 || shape->scales;
    return shape->targets[index] == 0 && (folds || shape->kind == GPU_TRANSFER_ALL_REDUCE);
}

/* How many of the elements the scratch memory has room for. */
static uint64_t elements_that_fit(const struct gpu_nccl *nccl, const struct shape *shape, uint64_t count)
{
    uint64_t room = (GPU_GROUP_SCRATCH_BYTES - nccl->scratch_bytes) / nccl->op->stage.element_bytes;
    for (uint32_t g = 0; g < nccl->copies.gpu_count; g++) {
        if (needs_scratch(shape, g)) {
            return count < room ? count : room;
        }
    }
    return count;
}

/* Puts the kernel that folds what the GPU's ranks contribute into `output`. */
static void put_fold(struct gpu_nccl *nccl, uint32_t index, const struct share *share, void *output,
                     uint64_t count_elements)
{
    const struct op_terms *terms = &nccl->op->call.terms;
    void *outputs[] = {output};
    struct host_reduction reduction = {
        .dtype = terms->dtype,
        .reduce = terms->reduce,
        .count_elements = count_elements,
        .input_count = share->input_count,
        .output_count = 1,
        .inputs = (const void **)(uintptr_t)share->inputs,
        .outputs = outputs,
        .factors = terms->reduce == REDUCE_PREMUL_SUM ? (double *)(uintptr_t)share->factors : NULL};
    if (nccl->status == STATUS_OK) {
        walk_failed(nccl, gpu_queue_reduce(nccl->queues[index], &reduction, GPU_QUEUE_GPUS, nccl->error));
    }
}

/* One GPU's part of `count` elements of a reduction, from `begin` on. */
static void put_share(struct gpu_nccl *nccl, const struct coll_stage_piece *piece, const struct shape *shape,
                      uint32_t index, uint64_t begin, struct gpu_transfer *transfer)
{
    struct share share;
    find_share(nccl, piece, index, begin * nccl->op->stage.element_bytes, &share);
    unsigned char *scratch = gpu_group_scratch(nccl->group, index);
    bool divides = piece->action == COLL_STAGE_DIVIDE;
    bool folds = share.input_count > 1 || shape->scales;
    void *place = share.output_count > 0 ? share.outputs[0] : scratch + nccl->scratch_bytes;
    if (folds) {
        put_fold(nccl, index, &share, place, transfer->count);
    }
    transfer->inputs[index] = folds ? place : share.inputs[0];
    if (shape->kind == GPU_TRANSFER_ALL_REDUCE || index == shape->root) {
        transfer->outputs[index] = place;
    }
    if (share.output_count > 1 || (share.output_count > 0 && divides)) {
        add_after(nccl, index, place, &share, divides ? 0 : 1, transfer->count, divides);
    }
}

/* Puts the rest of a reduction, as far as the scratch memory lasts. Returns whether that is all. */
static bool put_reduction(struct gpu_nccl *nccl, const struct coll_stage_piece *piece, uint64_t *done)
{
    struct shape shape = shape_of(nccl, piece);
    uint64_t count = elements_that_fit(nccl, &shape, piece->count_elements - *done);
    if (count == 0) {
        return false;
    }
    struct gpu_transfer *transfer = add_transfer(nccl, shape.kind, shape.root, count);
    bool scratch = false;
    for (uint32_t g = 0; g < nccl->copies.gpu_count && transfer != NULL; g++) {
        put_share(nccl, piece, &shape, g, *done, transfer);
        scratch |= needs_scratch(&shape, g);
    }
    if (scratch) {
        uint64_t bytes = count * nccl->op->stage.element_bytes;
        bytes += (SCRATCH_ALIGN_BYTES - bytes % SCRATCH_ALIGN_BYTES) % SCRATCH_ALIGN_BYTES;
        uint64_t left = GPU_GROUP_SCRATCH_BYTES - nccl->scratch_bytes;
        nccl->scratch_bytes += bytes < left ? bytes : left;
        nccl->used_scratch = true;
    }
    *done += count;
    return *done == piece->count_elements;
}

/* --- Copies --- */

static void put_copy_here(struct gpu_nccl *nccl, uint32_t index, const void *source, void *target,
                          uint64_t bytes)
{
    struct host_copy_range range = {.source = source, .target = target, .bytes = bytes};
    walk_failed(nccl,
                device_copies_add(nccl->comm, &nccl->copies, nccl->copies.gpus[index], &range, nccl->error));
}

static void put_send(struct gpu_nccl *nccl, uint32_t from, uint32_t to, const void *source, void *target,
                     uint64_t bytes)
{
    struct gpu_transfer *transfer = add_transfer(nccl, GPU_TRANSFER_SEND, from, bytes);
    if (transfer != NULL) {
        transfer->to = to;
        transfer->inputs[from] = source;
        transfer->outputs[to] = target;
    }
}

/* A copy to every GPU is a broadcast, in place if the source's GPU has no target; otherwise sends. */
static void put_copies(struct gpu_nccl *nccl, const struct coll_stage_piece *piece)
{
    struct share share;
    uint64_t bytes = piece->count_elements * nccl->op->stage.element_bytes;
    uint32_t from = gpu_index(nccl, piece->sources[0].rank), others = 0;
    bool has[GPU_DEVICES_MAX] = {0};
    void *source = stage_at(NULL, nccl->op, &piece->sources[0]);
    struct gpu_transfer *all = NULL;
    for (uint32_t i = 0; i < piece->target_count; i++) {
        uint32_t index = gpu_index(nccl, piece->targets[i].rank);
        others += index != from && !has[index];
        has[index] = true;
    }
    if (others == nccl->copies.gpu_count - 1 && (others > 1 || has[from])) {
        all = add_transfer(nccl, GPU_TRANSFER_BROADCAST, from, bytes);
    }
    for (uint32_t g = 0; g < nccl->copies.gpu_count && nccl->status == STATUS_OK; g++) {
        find_share(nccl, piece, g, 0, &share);
        void *first = share.output_count > 0 ? share.outputs[0] : source;
        if (all != NULL) {
            all->inputs[g] = g == from ? source : first;
            all->outputs[g] = first;
        } else if (has[g] && g != from) {
            put_send(nccl, from, g, source, first, bytes);
        } else if (has[g]) {
            put_copy_here(nccl, g, source, first, bytes);
        }
        for (uint32_t i = 1; i < share.output_count && g == from; i++) {
            put_copy_here(nccl, g, source, share.outputs[i], bytes);
        }
        if (share.output_count > 1 && g != from) {
            add_after(nccl, g, first, &share, 1, piece->count_elements, false);
        }
    }
}

/* --- Batches --- */

static void keep_rest(struct gpu_nccl *nccl, const struct coll_stage_piece *piece, uint64_t done)
{
    if (nccl->rest == NULL) {
        nccl->rest = malloc(sizeof *nccl->rest);
        if (nccl->rest == NULL) {
            walk_failed(nccl, error_set(nccl->error, STATUS_NO_MEMORY, "no memory for an operation"));
            return;
        }
        *nccl->rest = *piece;
    }
    nccl->rest_done = done;
}

/* Whether a piece more might not fit the batch. A piece makes a transfer for each GPU at most. */
static bool is_full(struct gpu_nccl *nccl)
{
    const struct gpu_transfers *transfers = gpu_group_transfers(nccl->group);
    return transfers->capacity - transfers->count < nccl->copies.gpu_count;
}

static bool put_piece(void *context, const struct coll_stage_piece *piece)
{
    struct gpu_nccl *nccl = context;
    uint64_t done = 0;
    if (nccl->status != STATUS_OK) {
        return false;
    }
    if (piece->action == COLL_STAGE_COPY) {
        put_copies(nccl, piece);
    } else if (!put_reduction(nccl, piece, &done)) {
        keep_rest(nccl, piece, done);
    }
    return nccl->status == STATUS_OK && nccl->rest == NULL && !is_full(nccl);
}

/* Fills the next batch: puts the kernels before the transfers in the queues, and lists the transfers. */
static enum status fill(struct gpu_nccl *nccl, struct error *error)
{
    struct gpu_transfers *transfers = gpu_group_transfers(nccl->group);
    nccl->error = error;
    nccl->scratch_bytes = 0;
    gpu_transfers_clear(transfers);
    transfers->dtype = nccl->op->call.terms.dtype;
    transfers->reduce = nccl->op->call.terms.reduce;
    if (nccl->rest != NULL && put_reduction(nccl, nccl->rest, &nccl->rest_done)) {
        free(nccl->rest);
        nccl->rest = NULL;
    }
    while (nccl->status == STATUS_OK && nccl->rest == NULL && !nccl->planned && !is_full(nccl)) {
        nccl->planned =
            coll_stage_plan(&nccl->op->stage, COLL_STAGE_LOCAL, 0, &nccl->cursor, put_piece, nccl);
    }
    return nccl->status == STATUS_OK ? device_copies_flush(nccl->comm, &nccl->copies, error) : nccl->status;
}

/* Puts the kernels behind the transfers in the queues. */
static enum status finish(struct gpu_nccl *nccl, struct error *error)
{
    const struct exec_op *op = nccl->op;
    enum status status = STATUS_OK;
    for (struct nccl_after *after = nccl->afters; after != NULL && status == STATUS_OK; after = after->next) {
        struct gpu_queue *queue = nccl->queues[after->index];
        if (!after->divides) {
            struct host_copy_range ranges[GPU_QUEUE_BUFFERS_MAX];
            for (uint32_t i = 0; i < after->output_count; i++) {
                ranges[i] =
                    (struct host_copy_range){.source = after->value,
                                             .target = after->outputs[i],
                                             .bytes = after->count_elements * op->stage.element_bytes};
            }
            status = gpu_queue_copy_ranges(queue, ranges, after->output_count, GPU_QUEUE_GPUS, error);
            continue;
        }
        struct host_reduction reduction = {.dtype = op->call.terms.dtype,
                                           .reduce = op->call.terms.reduce,
                                           .count_elements = after->count_elements,
                                           .input_count = 1,
                                           .output_count = after->output_count,
                                           .inputs = &after->value,
                                           .outputs = after->outputs,
                                           .divisor = op->divisor};
        status = gpu_queue_reduce(queue, &reduction, GPU_QUEUE_GPUS, error);
    }
    free_afters(nccl);
    return status;
}

/* --- Steps --- */

static enum status prepare(struct gpu_nccl *nccl, struct error *error)
{
    enum status status = device_measure_alone(nccl->comm, nccl->op, error);
    for (uint32_t g = 0; g < nccl->copies.gpu_count && status == STATUS_OK; g++) {
        status = device_queue(nccl->comm, nccl->copies.gpus[g], &nccl->queues[g], error);
    }
    if (status == STATUS_OK) {
        gpu_group_watch(nccl->group, true);
        gpu_group_works(nccl->group, true);
        nccl->watches = true;
    }
    return status;
}

/* Waits for the group. */
static enum gpu_nccl_step step_forms(struct gpu_nccl *nccl, uint64_t now_ns, struct error *error)
{
    switch (gpu_group_poll(nccl->group, now_ns, error)) {
    case GPU_GROUP_FAILED: /* before this operation began; the next one gets a new group */
        gpu_group_give_up(nccl->group, error, now_ns);
        return GPU_NCCL_REFUSED;
    case GPU_GROUP_REFUSED:
        return GPU_NCCL_REFUSED;
    case GPU_GROUP_FORMS:
        return gpu_group_forming_ns(nccl->group, now_ns) > NCCL_PATIENCE_NS ? GPU_NCCL_REFUSED
                                                                            : GPU_NCCL_WAITS;
    case GPU_GROUP_CALLS:
        return GPU_NCCL_WAITS;
    case GPU_GROUP_READY:
        break;
    }
    if (!gpu_group_take(nccl->group, nccl->op)) {
        return GPU_NCCL_WAITS;
    }
    nccl->state = NCCL_PUTS;
    return prepare(nccl, error) == STATUS_OK ? GPU_NCCL_WAITS : GPU_NCCL_FAILED;
}

static bool is_last(const struct gpu_nccl *nccl)
{
    return nccl->planned && nccl->rest == NULL;
}

static enum gpu_nccl_step step_done(struct gpu_nccl *nccl)
{
    nccl->state = NCCL_DONE;
    if (!nccl->used_scratch && gpu_nccl_orders_launches()) {
        gpu_group_leave(nccl->group, nccl->op);
    }
    return GPU_NCCL_DONE;
}

static enum gpu_nccl_step step_puts(struct gpu_nccl *nccl, struct error *error)
{
    if (fill(nccl, error) != STATUS_OK) {
        return GPU_NCCL_FAILED;
    }
    if (gpu_group_transfers(nccl->group)->count > 0) {
        nccl->state = NCCL_CALLS;
        gpu_group_call(nccl->group, nccl->queues);
        return GPU_NCCL_WAITS;
    }
    return finish(nccl, error) != STATUS_OK ? GPU_NCCL_FAILED
           : is_last(nccl)                  ? step_done(nccl)
                                            : GPU_NCCL_WAITS;
}

static enum gpu_nccl_step step_calls(struct gpu_nccl *nccl, uint64_t now_ns, struct error *error)
{
    enum gpu_group_state state = gpu_group_poll(nccl->group, now_ns, error);
    if (state == GPU_GROUP_CALLS) {
        return GPU_NCCL_WAITS;
    }
    if (state != GPU_GROUP_READY) {
        gpu_group_give_up(nccl->group, error, now_ns);
        return GPU_NCCL_FAILED;
    }
    nccl->state = NCCL_PUTS;
    if (finish(nccl, error) != STATUS_OK) {
        return GPU_NCCL_FAILED;
    }
    return is_last(nccl) ? step_done(nccl) : GPU_NCCL_WAITS;
}

enum gpu_nccl_step gpu_nccl_step(struct gpu_nccl *nccl, uint64_t now_ns, struct error *error)
{
    enum gpu_nccl_step step = GPU_NCCL_WAITS;
    if (nccl->state == NCCL_FORMS) {
        step = step_forms(nccl, now_ns, error);
    } else if (nccl->state == NCCL_CALLS) {
        step = step_calls(nccl, now_ns, error);
    }
    return nccl->state == NCCL_PUTS && step == GPU_NCCL_WAITS ? step_puts(nccl, error) : step;
}

bool gpu_nccl_has_begun(const struct gpu_nccl *nccl)
{
    return nccl != NULL && nccl->state != NCCL_FORMS;
}

enum status gpu_nccl_check(struct gpu_nccl *nccl, uint64_t now_ns, struct error *error)
{
    enum gpu_group_state state = gpu_group_poll(nccl->group, now_ns, error);
    if (state != GPU_GROUP_FAILED) {
        return STATUS_OK;
    }
    gpu_group_give_up(nccl->group, error, now_ns);
    return error->status;
}

bool gpu_nccl_let_go(const struct gpu_nccl *nccl)
{
    return nccl == NULL || !gpu_nccl_has_begun(nccl) || gpu_group_is_off(nccl->group);
}

void gpu_nccl_give_up(struct gpu_nccl *nccl, const char *why, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, STATUS_DEVICE, "GPU %u, NCCL among %u GPUs: %s %s", nccl->copies.gpus[0],
              nccl->copies.gpu_count, op_kind_text(nccl->op->call.terms.kind), why);
    gpu_group_give_up(nccl->group, &cause, now_ns);
}

void gpu_nccl_describe(const struct gpu_nccl *nccl, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "%s NCCL among GPUs ",
                                 nccl->state == NCCL_DONE ? "running by" : "waiting for");
    for (uint32_t g = 0; g < nccl->copies.gpu_count && at < size; g++) {
        at += (size_t)snprintf(text + at, size - at, "%s%u", g > 0 ? ", " : "", nccl->copies.gpus[g]);
    }
}
