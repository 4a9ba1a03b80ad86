#include "daemon/exec/gpu_coding.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/exec/exec_device.h"
#include "daemon/host/compress.h"

/*
 * The lane's pinned memory has, for one round at a time, first what it sends, then what it receives. A round
 * may overwrite the previous one's: its data were copied to be sent before the round ended, and the encoding
 * of the next round waits in the same queue behind the decoding of what was received.
 */

#define SLICE_BYTES_MAX (UINT64_C(1) << 30) /* so that offsets in payloads fit 32 bits */

struct gpu_coding_lane {
    struct gpu_code_part *parts; /* what the round sends */
    uint32_t part_count, capacity;
    unsigned char *receive_at; /* place for the next payload */
};

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + GPU_CODE_ALIGN_BYTES - 1) / GPU_CODE_ALIGN_BYTES * GPU_CODE_ALIGN_BYTES;
}

/* --- Which operations --- */

static bool is_aligned(const void *at)
{
    return (uintptr_t)at % sizeof(float) == 0;
}

static bool overlaps_residual(const struct exec_rank *first, const struct exec_rank *rank)
{
    struct exec_rank residual = {.output = first->residual, .output_bytes = first->residual_bytes};
    struct exec_rank output = {.input = rank->output, .input_bytes = rank->output_bytes};
    return device_overlaps(rank, &residual) || device_overlaps(&output, &residual);
}

/* Whether the rank's buffers can be worked on by the GPUs of the first rank's domain. */
static bool rank_serves(const struct exec_op *op, uint32_t local)
{
    const struct exec_rank *rank = &op->ranks[local], *first = &op->ranks[0];
    const struct coll_stage_rank *stage = &op->stage_ranks[local];
    return rank->on_gpu && rank->input != NULL && rank->output != NULL && is_aligned(rank->input) &&
           is_aligned(rank->output) && stage->input_domain != COLL_STAGE_HOST &&
           stage->input_domain == op->stage_ranks[0].input_domain &&
           stage->output_domain == stage->input_domain &&
           (first->residual == NULL || !overlaps_residual(first, rank));
}

/* Whether the GPUs of all ranks reach the first rank's memory. */
static bool all_reach_first(const struct exec_comm *comm, const struct exec_op *op)
{
    for (uint32_t local = 0; local < op->call.rank_count; local++) {
        if (!gpu_devices_reaches(comm->exec->gpus, op->ranks[local].gpu, op->ranks[0].gpu)) {
            return false;
        }
    }
    return true;
}

uint32_t gpu_coding_vector_ranks(const struct exec_comm *comm, const struct exec_op *op)
{
    const struct exec_rank *first = &op->ranks[0];
    if (op->call.terms.compression == COMPRESSION_NONE || comm->map->ranks.node_count < 2 ||
        comm->map->slice_bytes > SLICE_BYTES_MAX ||
        (first->residual != NULL && (first->residual_on_host || !is_aligned(first->residual)))) {
        return 0;
    }
    for (uint32_t local = 0; local < op->call.rank_count; local++) {
        if (!rank_serves(op, local)) {
            return 0;
        }
    }
    /* Without peer access, NCCL brings all vectors to the GPU that has the residual. */
    return first->residual == NULL || all_reach_first(comm, op) ? op->call.rank_count : 1;
}

bool gpu_coding_follows(const struct exec_lane *lane)
{
    return gpu_coding_applies(lane) && !lane_device_is_by_nccl(lane);
}

/* --- Rounds --- */

static bool is_last_round(const struct exec_lane *lane, uint32_t round)
{
    return round + 1 == lane->round_count;
}

static uint64_t room_of(const struct exec_op *op, uint64_t count_elements)
{
    return aligned(
        gpu_code_room_bytes(op->call.terms.compression, op->call.terms.top_k_permille, count_elements));
}

static uint64_t offsets_bytes(const struct exec_op *op, uint64_t count_elements)
{
    uint64_t blocks = (count_elements + HOST_COMPRESS_TOP_K_BLOCK - 1) / HOST_COMPRESS_TOP_K_BLOCK;
    return op->call.terms.compression == COMPRESSION_TOP_K ? aligned(blocks * sizeof(uint32_t)) : 0;
}

/* In the last round, all nodes get the same bytes. */
static uint32_t parts_of(const struct exec_lane *lane, uint32_t round)
{
    uint32_t sends = lane->transfers.send_count;
    return is_last_round(lane, round) && sends > 1 ? 1 : sends;
}

/* Pinned memory for the round that lane->transfers has. */
static uint64_t round_bytes(const struct exec_lane *lane, uint32_t round)
{
    const struct exec_op *op = lane_op(lane);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < parts_of(lane, round); i++) {
        bytes += room_of(op, lane->transfers.sends[i].count_elements);
    }
    for (uint32_t i = 0; i < lane->transfers.receive_count; i++) {
        uint64_t count = lane->transfers.receives[i].count_elements;
        bytes += offsets_bytes(op, count) + room_of(op, count);
    }
    return bytes;
}

static enum status make_parts(struct exec_lane *lane, uint32_t wanted, struct error *error)
{
    struct gpu_coding_lane *coding = lane->coding;
    if (coding == NULL) {
        coding = lane->coding = calloc(1, sizeof *coding);
    }
    if (coding != NULL && wanted > coding->capacity) {
        struct gpu_code_part *parts = realloc(coding->parts, wanted * sizeof *parts);
        coding->capacity = parts != NULL ? wanted : coding->capacity;
        coding->parts = parts != NULL ? parts : coding->parts;
    }
    return coding != NULL && wanted <= coding->capacity
               ? STATUS_OK
               : error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a round", lane->comm->map->name);
}

enum status gpu_coding_begin(struct exec_lane *lane, struct error *error)
{
    uint64_t most_bytes = 0;
    uint32_t most_parts = 1;
    for (uint32_t round = 0; round < lane->round_count; round++) {
        lane->transfers.send_count = lane->transfers.receive_count = 0;
        lane->algorithm->round(&lane->call, round, &lane->transfers);
        uint64_t bytes = round_bytes(lane, round);
        most_bytes = bytes > most_bytes ? bytes : most_bytes;
        most_parts = parts_of(lane, round) > most_parts ? parts_of(lane, round) : most_parts;
    }
    lane->transfers.send_count = lane->transfers.receive_count = 0;
    enum status status = make_parts(lane, most_parts, error);
    return status == STATUS_OK ? lane_device_reserve(lane, most_bytes, error) : status;
}

static struct gpu_coding coding_of(const struct exec_lane *lane, bool in_place,
                                   const struct gpu_code_part *parts, uint32_t part_count)
{
    const struct op_terms *terms = &lane_op(lane)->call.terms;
    return (struct gpu_coding){.compression = terms->compression,
                               .top_k_permille = terms->top_k_permille,
                               .in_place = in_place,
                               .part_count = part_count,
                               .parts = parts};
}

/* An address on the GPU. */
static float *values_at(const struct exec_lane *lane, const struct coll_transfer *transfer)
{
    uint64_t together;
    return (float *)(void *)vector_at(&lane->vectors[COLL_WORK], transfer->offset_elements, &together);
}

enum status gpu_coding_begin_round(struct exec_lane *lane, struct error *error)
{
    const struct exec_op *op = lane_op(lane);
    struct gpu_coding_lane *state = lane->coding;
    float *residual = op->ranks[0].residual;
    unsigned char *at = lane_device_memory(lane);
    state->part_count = parts_of(lane, lane->round);
    for (uint32_t i = 0; i < state->part_count; i++) {
        const struct coll_transfer *send = &lane->transfers.sends[i];
        uint64_t offset = lane->offset_elements + send->offset_elements;
        state->parts[i] = (struct gpu_code_part){.values = values_at(lane, send),
                                                 .residual = residual == NULL ? NULL : residual + offset,
                                                 .encoded = at,
                                                 .count_elements = send->count_elements};
        at += room_of(op, send->count_elements);
    }
    state->receive_at = at;
    const struct gpu_coding coding =
        coding_of(lane, is_last_round(lane, lane->round), state->parts, state->part_count);
    lane->state = LANE_DEVICE_CODE;
    exec_wake(lane->comm->exec); /* the receive that ended the last round may have been no turn of exec */
    return lane_device_code(lane, &coding, true, error);
}

uint64_t gpu_coding_payload(const struct exec_lane *lane, unsigned char *out)
{
    const struct op_terms *terms = &lane_op(lane)->call.terms;
    const struct gpu_coding_lane *state = lane->coding;
    const struct gpu_code_part *part =
        &state->parts[lane->sends_done < state->part_count ? lane->sends_done : state->part_count - 1];
    return host_compress_pack(terms->compression, terms->top_k_permille, part->encoded, part->count_elements,
                              out);
}

enum status gpu_coding_take(struct exec_lane *lane, const struct coll_transfer *receive,
                            const unsigned char *payload, uint64_t payload_bytes, struct error *error)
{
    const struct exec_op *op = lane_op(lane);
    uint64_t count = receive->count_elements, table_bytes = offsets_bytes(op, count);
    uint32_t *offsets = table_bytes == 0 ? NULL : (uint32_t *)(void *)lane->coding->receive_at;
    enum status status =
        host_compress_check(op->call.terms.compression, payload, payload_bytes, count, offsets, error);
    if (status != STATUS_OK || count == 0) {
        return status;
    }
    struct gpu_code_part part = {.values = values_at(lane, receive),
                                 .encoded = lane->coding->receive_at + table_bytes,
                                 .offsets = offsets,
                                 .count_elements = count};
    memcpy(part.encoded, payload, (size_t)payload_bytes);
    lane->coding->receive_at += table_bytes + room_of(op, count);
    const struct gpu_coding coding = coding_of(lane, receive->action != COLL_STORE, &part, 1);
    return lane_device_code(lane, &coding, false, error);
}

void gpu_coding_release(struct exec_lane *lane)
{
    if (lane->coding != NULL) {
        free(lane->coding->parts);
        free(lane->coding);
        lane->coding = NULL;
    }
}
