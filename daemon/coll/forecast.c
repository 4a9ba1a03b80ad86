#include "daemon/coll/forecast.h"

#include <stdlib.h>

#include "daemon/coll/slice.h"
#include "proto/data_header.h"

/* How many times the lane's memory holds the slice's vector, for this kind of operation, on a node that has
 * no buffer for the whole vector: see coll_stage_memory_elements. */
static double lane_vectors(enum op_kind kind)
{
    switch (kind) {
    case OP_KIND_REDUCE:
    case OP_KIND_REDUCE_SCATTER:
    case OP_KIND_GATHER:
    case OP_KIND_SCATTER:
        return 1;
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        return 4; /* running value, prefix, and room for two more */
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_BROADCAST:
    case OP_KIND_BARRIER:
    case OP_KIND_ALL_GATHER:
    case OP_KIND_ALL_TO_ALL:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return 0;
    }
    return 0;
}

void coll_forecast(const struct coll_algorithm *algorithm, const struct coll_choice *choice,
                   const struct coll_network *network, struct coll_forecast *out)
{
    uint64_t element_bytes = choice->element_bytes > 0 ? choice->element_bytes : 1;
    uint64_t elements = choice->size_bytes / element_bytes;
    bool sliced = choice->slice_bytes > 0;
    uint64_t slices = sliced ? coll_slice_count(elements, element_bytes, choice->slice_bytes) : 1;
    uint64_t offset, slice_elements = elements;
    if (sliced) {
        coll_slice_range(elements, element_bytes, choice->slice_bytes, 0, &offset, &slice_elements);
    }
    struct coll_call call = {.kind = choice->kind,
                             .node_count = choice->node_count,
                             .root_node = choice->root_node,
                             .count_elements = slice_elements,
                             .blocks_are_equal = choice->blocks_are_equal};
    struct coll_estimate slice;
    algorithm->estimate(&call, &slice);
    double lanes = slices < COLL_LANES ? (double)slices : COLL_LANES;
    double share =
        slice_elements > 0 ? (double)elements / (double)slice_elements : 1; /* the last slice is smaller */
    *out = (struct coll_forecast){
        .seconds = coll_predict(algorithm, choice, network),
        .slices = slices,
        .rounds = slice.rounds,
        .messages = (double)slice.messages * (double)slices,
        .sent_bytes = slice.busy_elements * (double)element_bytes * share +
                      (double)slice.messages * (double)slices * DATA_HEADER_BYTES,
        .memory_bytes = lanes * (double)element_bytes *
                        (slice.scratch_elements + lane_vectors(choice->kind) * (double)slice_elements)};
}

/* --- Connections --- */

struct peers {
    struct coll_call call;
    struct coll_transfer *sends, *receives;
    uint64_t *offsets; /* of equal blocks */
    uint8_t *known;    /* by node */
};

static void peers_free(struct peers *peers)
{
    free(peers->sends);
    free(peers->receives);
    free(peers->offsets);
    free(peers->known);
}

static bool peers_allocate(const struct coll_algorithm *algorithm, const struct coll_choice *choice,
                           struct peers *out)
{
    uint32_t nodes = choice->node_count;
    uint64_t element_bytes = choice->element_bytes > 0 ? choice->element_bytes : 1;
    uint64_t elements = choice->size_bytes / element_bytes;
    uint64_t block = elements / nodes > 0 ? elements / nodes : 1;
    *out = (struct peers){.call = {.kind = choice->kind,
                                   .node_count = nodes,
                                   .root_node = choice->root_node,
                                   .count_elements = elements,
                                   .blocks_are_equal = choice->blocks_are_equal}};
    out->offsets = calloc((size_t)nodes + 1, sizeof *out->offsets);
    out->known = calloc(nodes, sizeof *out->known);
    for (uint32_t i = 0; out->offsets != NULL && i <= nodes; i++) {
        out->offsets[i] = i * block;
    }
    if (op_kind_has_blocks(choice->kind)) {
        out->call.block_offsets = out->offsets;
        out->call.count_elements = block * nodes;
    }
    if (choice->kind == OP_KIND_ALL_TO_ALL) {
        out->call.send_offsets = out->offsets;
    }
    size_t transfers = (size_t)algorithm->transfers_max(&out->call) + 1;
    out->sends = calloc(transfers, sizeof *out->sends);
    out->receives = calloc(transfers, sizeof *out->receives);
    return out->offsets != NULL && out->known != NULL && out->sends != NULL && out->receives != NULL;
}

static uint32_t mark(struct peers *peers, const struct coll_transfer *transfers, uint32_t count)
{
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < count; i++) {
        fresh += peers->known[transfers[i].node] == 0;
        peers->known[transfers[i].node] = 1;
    }
    return fresh;
}

static uint32_t peers_of(const struct coll_algorithm *algorithm, struct peers *peers, uint32_t node)
{
    uint32_t count = 0;
    peers->call.node_index = node;
    for (uint32_t i = 0; i < peers->call.node_count; i++) {
        peers->known[i] = 0;
    }
    uint32_t rounds = algorithm->round_count(&peers->call);
    for (uint32_t round = 0; round < rounds; round++) {
        struct coll_round transfers = {.sends = peers->sends, .receives = peers->receives};
        algorithm->round(&peers->call, round, &transfers);
        count += mark(peers, transfers.sends, transfers.send_count);
        count += mark(peers, transfers.receives, transfers.receive_count);
    }
    return count;
}

uint32_t coll_links(const struct coll_algorithm *algorithm, const struct coll_choice *choice)
{
    uint32_t nodes = choice->node_count, most = 0;
    const uint32_t looked_at[] = {choice->root_node, 0, 1 % nodes, nodes / 2, nodes - 1};
    struct peers peers;
    if (nodes > 1 && peers_allocate(algorithm, choice, &peers)) {
        for (size_t i = 0; i < sizeof looked_at / sizeof *looked_at; i++) {
            uint32_t count = peers_of(algorithm, &peers, looked_at[i]);
            most = count > most ? count : most;
        }
    }
    if (nodes > 1) {
        peers_free(&peers);
    }
    return most;
}
