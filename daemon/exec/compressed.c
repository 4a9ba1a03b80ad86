#include <stdlib.h>
#include <string.h>

#include "daemon/exec/exec_internal.h"
#include "daemon/exec/gpu_coding.h"
#include "daemon/host/compress.h"

/*
 * Compressed all-reduces use the algorithm "direct", with two rounds. In the first, each node sends to each
 * other node that node's share of the vector, encoded. The receiver decodes it and adds it, in f32. In the
 * second, each node encodes its part of the sum once and sends it to all. It also replaces its own part by
 * the decoded values, so that all nodes have the same bits. What both encodings lose is added to the residual
 * of the first local rank, which the next call uses. If all buffers are on GPUs, these encode and decode
 * (gpu_coding.h).
 */

bool compressed_applies(const struct exec_op *op)
{
    return op->call.terms.compression != COMPRESSION_NONE;
}

bool compressed_copies_residual(const struct exec_comm *comm, const struct exec_op *op)
{
    const struct exec_rank *first = &op->ranks[0]; /* the residuals of others are not used */
    return comm->map->ranks.node_count > 1 && op->is_staged && op->stage.vector_ranks == 0 &&
           op->call.terms.compression != COMPRESSION_NONE && first->on_gpu && first->residual != NULL &&
           !first->residual_on_host;
}

static float *residual_at(const struct exec_lane *lane, const struct exec_op *op, uint64_t offset)
{
    float *residual = op->ranks[0].residual;
    if (lane->residual != NULL) {
        return lane->residual + offset;
    }
    return residual == NULL ? NULL : residual + lane->offset_elements + offset;
}

static float *values_at(const struct exec_lane *lane, const struct coll_transfer *transfer)
{
    uint64_t together;
    /* It is one all-reduce of one buffer, so each slice lies in one piece. */
    return (float *)(void *)vector_at(&lane->vectors[COLL_WORK], transfer->offset_elements, &together);
}

uint64_t compressed_max_bytes(const struct exec_lane *lane, const struct coll_transfer *transfer)
{
    const struct exec_op *op = lane_op(lane);
    return host_compress_max_bytes(op->call.terms.compression, op->call.terms.top_k_permille,
                                   transfer->count_elements);
}

/* Before the second round: encodes this node's part of the sum, and replaces that part by what other nodes
 * decode. */
enum status compressed_begin_round(struct exec_lane *lane, struct error *error)
{
    const struct exec_op *op = lane_op(lane);
    if (gpu_coding_applies(lane)) {
        return gpu_coding_begin_round(lane, error);
    }
    if (lane->round + 1 != lane->round_count || lane->transfers.send_count == 0) {
        return STATUS_OK;
    }
    const struct coll_transfer *own = &lane->transfers.sends[0];
    uint64_t room = compressed_max_bytes(lane, own);
    enum status status = lane_reserve_encoded(lane, room, error);
    if (status != STATUS_OK) {
        return status;
    }
    lane->encoded_bytes =
        host_compress(op->call.terms.compression, op->call.terms.top_k_permille, values_at(lane, own),
                      residual_at(lane, op, own->offset_elements), own->count_elements, lane->encoded);
    return host_decompress(op->call.terms.compression, lane->encoded, lane->encoded_bytes,
                           own->count_elements, values_at(lane, own), false, error);
}

enum status compressed_send(struct exec_lane *lane, const struct coll_transfer *transfer, struct error *error)
{
    const struct exec_op *op = lane_op(lane);
    bool summed = lane->round + 1 == lane->round_count;
    bool by_gpu = gpu_coding_applies(lane);
    uint64_t bytes = summed && !by_gpu ? lane->encoded_bytes : compressed_max_bytes(lane, transfer);
    struct lane_copy *copy = NULL;
    enum status status = lane_copy_new(lane, bytes, &copy, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (by_gpu) {
        bytes = gpu_coding_payload(lane, lane_copy_bytes(copy));
    } else if (summed) {
        memcpy(lane_copy_bytes(copy), lane->encoded, (size_t)bytes);
    } else {
        bytes = host_compress(op->call.terms.compression, op->call.terms.top_k_permille,
                              values_at(lane, transfer), residual_at(lane, op, transfer->offset_elements),
                              transfer->count_elements, lane_copy_bytes(copy));
    }
    return lane_send_copy(lane, transfer->node, copy, bytes, error);
}

enum status compressed_take(struct exec_lane *lane, const struct coll_transfer *receive,
                            const unsigned char *payload, uint64_t payload_bytes, struct error *error)
{
    const struct exec_op *op = lane_op(lane);
    if (gpu_coding_applies(lane)) {
        return gpu_coding_take(lane, receive, payload, payload_bytes, error);
    }
    return host_decompress(op->call.terms.compression, payload, payload_bytes, receive->count_elements,
                           values_at(lane, receive), receive->action != COLL_STORE, error);
}
