#include "daemon/coll/forecast.h"

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
