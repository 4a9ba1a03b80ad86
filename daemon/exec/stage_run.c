#include <string.h>

#include "daemon/exec/exec_device.h"
#include "daemon/exec/exec_internal.h"
#include "daemon/host/copy.h"
#include "daemon/host/reduce.h"

/* Execution of the local stage: pieces of a slice's plan, done by the host, or put in GPUs' queues. */

_Static_assert(COLL_STAGE_PLACES_MAX == HOST_REDUCE_BUFFERS_MAX, "a piece is one reduction");
_Static_assert(COLL_STAGE_HOST == EXEC_CLIQUE_HOST, "the host's buffers are one domain");

unsigned char *stage_at(const struct exec_lane *lane, const struct exec_op *op,
                        const struct coll_stage_place *place)
{
    const unsigned char *base = NULL;
    switch (place->buffer) {
    case COLL_STAGE_INPUT:
        base = op->ranks[place->rank].input;
        break;
    case COLL_STAGE_OUTPUT:
        base = op->ranks[place->rank].output;
        break;
    case COLL_STAGE_MEMORY:
        base = lane_memory(lane);
        break;
    }
    return (unsigned char *)(uintptr_t)base + place->offset_elements * op->stage.element_bytes;
}

struct host_reduction stage_reduction(const struct exec_lane *lane, const struct exec_op *op,
                                      const struct coll_stage_piece *piece, struct stage_buffers *buffers)
{
    bool scales = op->call.terms.reduce == REDUCE_PREMUL_SUM;
    for (uint32_t i = 0; i < piece->source_count; i++) {
        const struct coll_stage_place *source = &piece->sources[i];
        buffers->inputs[i] = stage_at(lane, op, source);
        if (scales) {
            buffers->factors[i] = source->scaled ? op->ranks[source->rank].factor : 1.0;
        }
    }
    for (uint32_t i = 0; i < piece->target_count; i++) {
        buffers->outputs[i] = stage_at(lane, op, &piece->targets[i]);
    }
    return (struct host_reduction){.dtype = op->call.terms.dtype,
                                   .reduce = op->call.terms.reduce,
                                   .count_elements = piece->count_elements,
                                   .input_count = piece->source_count,
                                   .output_count = piece->target_count,
                                   .inputs = buffers->inputs,
                                   .outputs = buffers->outputs,
                                   .factors = scales ? buffers->factors : NULL,
                                   .divisor = piece->action == COLL_STAGE_DIVIDE ? op->divisor : 0,
                                   .streams = op->streams};
}

static void copy_each(const struct exec_lane *lane, const struct exec_op *op,
                      const struct coll_stage_piece *piece)
{
    size_t bytes = (size_t)(piece->count_elements * op->stage.element_bytes);
    for (uint32_t i = 0; i < piece->source_count; i++) {
        memcpy(stage_at(lane, op, &piece->targets[i]), stage_at(lane, op, &piece->sources[i]), bytes);
    }
}

/* Inlined for each of the usual sizes, so that the compiler makes one load and one store of a block. */
static inline __attribute__((always_inline)) void scatter_blocks(const struct exec_rank *ranks,
                                                                 uint32_t rank_count, size_t at_bytes,
                                                                 const unsigned char *blocks,
                                                                 size_t block_bytes)
{
    for (uint32_t i = 0; i < rank_count; i++) {
        memcpy((unsigned char *)ranks[i].output + at_bytes, blocks + i * block_bytes, block_bytes);
    }
}

static void scatter(const struct exec_lane *lane, const struct exec_op *op,
                    const struct coll_stage_piece *piece)
{
    const struct coll_stage_place *target = &piece->targets[0];
    const struct exec_rank *ranks = &op->ranks[target->rank];
    const unsigned char *blocks = stage_at(lane, op, &piece->sources[0]);
    size_t at_bytes = (size_t)(target->offset_elements * op->stage.element_bytes);
    size_t block_bytes = (size_t)(piece->count_elements * op->stage.element_bytes);
    switch (block_bytes) {
    case 1:
        scatter_blocks(ranks, piece->rank_count, at_bytes, blocks, 1);
        break;
    case 4:
        scatter_blocks(ranks, piece->rank_count, at_bytes, blocks, 4);
        break;
    case 8:
        scatter_blocks(ranks, piece->rank_count, at_bytes, blocks, 8);
        break;
    default:
        scatter_blocks(ranks, piece->rank_count, at_bytes, blocks, block_bytes);
        break;
    }
}

static void run_on_host(const struct exec_lane *lane, const struct exec_op *op,
                        const struct coll_stage_piece *piece)
{
    struct stage_buffers buffers;
    struct host_reduction reduction;
    switch (piece->action) {
    case COLL_STAGE_COPY:
        for (uint32_t i = 0; i < piece->target_count; i++) {
            buffers.outputs[i] = stage_at(lane, op, &piece->targets[i]);
        }
        host_copy_to_all(buffers.outputs, piece->target_count, stage_at(lane, op, &piece->sources[0]),
                         (size_t)(piece->count_elements * op->stage.element_bytes), op->streams);
        break;
    case COLL_STAGE_COPY_EACH:
        copy_each(lane, op, piece);
        break;
    case COLL_STAGE_SCATTER:
        scatter(lane, op, piece);
        break;
    case COLL_STAGE_REDUCE:
    case COLL_STAGE_DIVIDE:
        reduction = stage_reduction(lane, op, piece, &buffers);
        host_reduce(&reduction);
        break;
    }
}

struct run {
    const struct exec_lane *lane;
    const struct exec_op *op;
    uint64_t *left_bytes;
};

static bool run_piece(void *context, const struct coll_stage_piece *piece)
{
    const struct run *run = context;
    bool scatters = piece->action == COLL_STAGE_SCATTER;
    uint64_t places = scatters ? 2 * piece->rank_count : piece->source_count + piece->target_count;
    uint64_t cost = (scatters ? EXEC_SCATTER_BYTES : EXEC_PLACE_BYTES) * places;
    if (piece->domain == COLL_STAGE_HOST) {
        cost += places * piece->count_elements * run->op->stage.element_bytes;
        run_on_host(run->lane, run->op, piece);
    } else {
        lane_device_put(run->lane, run->op, piece);
    }
    *run->left_bytes -= cost < *run->left_bytes ? cost : *run->left_bytes;
    return *run->left_bytes > 0;
}

bool stage_run(struct exec_lane *lane, const struct exec_op *op, enum coll_stage_step step, uint64_t slice,
               struct coll_stage_cursor *cursor, uint64_t *left_bytes)
{
    struct run run = {.lane = lane, .op = op, .left_bytes = left_bytes};
    *left_bytes -= *left_bytes < EXEC_PLACE_BYTES ? *left_bytes : EXEC_PLACE_BYTES;
    return coll_stage_plan(&op->stage, step, slice, cursor, run_piece, &run);
}
