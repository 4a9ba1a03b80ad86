#include <string.h>

#include "client/lib/internal.h"
#include "daemon/host/reduce.h"

/* What a rank writes into its cell, and how it takes its result out of all cells. The results have the same
 * bits as those that commd makes: the sums are made by the same code, in the order of the ranks. */

/* One operation, for one rank. */
struct taking {
    struct cells_shared *shared;
    uint32_t rank_count;
    uint32_t rank;
    uint64_t seq;
    const struct client_call *call;
    size_t block_bytes; /* of the call's count */
};

static const unsigned char *data_of(const struct taking *taking, uint32_t rank)
{
    size_t size_bytes = cells_published_bytes(&taking->call->terms, taking->rank_count, rank);
    return cells_data(taking->shared, taking->rank_count, rank, taking->seq, size_bytes);
}

void cells_write(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                 const struct client_call *call)
{
    if (call->terms.has_layouts != 0) {
        cells_blocks_write(shared, rank_count, rank, seq, call);
        return;
    }
    struct cell_header *header = cells_header(shared, rank, seq);
    size_t size_bytes = cells_published_bytes(&call->terms, rank_count, rank);
    header->said = (struct cell_terms){.terms = call->terms, .factor = call->options.factor};
    if (size_bytes > 0) {
        memcpy(cells_data(shared, rank_count, rank, seq, size_bytes), call->input.at, size_bytes);
    }
}

/* --- Sums --- */

static double factor_of(const struct taking *taking, uint32_t rank)
{
    return cells_header(taking->shared, rank, taking->seq)->said.factor;
}

/* Reduces the ranks' data from offset_bytes on into `to`. */
static void reduce_all(const struct taking *taking, size_t offset_bytes, void *to)
{
    const struct op_terms *terms = &taking->call->terms;
    const void *inputs[CELLS_RANKS_MAX];
    double factors[CELLS_RANKS_MAX];
    for (uint32_t rank = 0; rank < taking->rank_count; rank++) {
        inputs[rank] = data_of(taking, rank) + offset_bytes;
        factors[rank] = factor_of(taking, rank);
    }
    struct host_reduction reduction = {.dtype = terms->dtype,
                                       .reduce = terms->reduce,
                                       .count_elements = terms->count_elements,
                                       .input_count = taking->rank_count,
                                       .output_count = 1,
                                       .inputs = inputs,
                                       .outputs = &to,
                                       .factors = terms->reduce == REDUCE_PREMUL_SUM ? factors : NULL,
                                       .divisor = terms->reduce == REDUCE_AVG ? taking->rank_count : 0};
    host_reduce(&reduction);
}

/* Each rank's value is the value before it (op) its own data, rounded each time. */
static void scan(const struct taking *taking, uint32_t ranks, void *to)
{
    const struct op_terms *terms = &taking->call->terms;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const void *inputs[2] = {to, data_of(taking, rank)};
        double factors[2] = {1, factor_of(taking, rank)};
        uint32_t first = rank == 0 ? 1 : 0;
        struct host_reduction reduction = {.dtype = terms->dtype,
                                           .reduce = terms->reduce,
                                           .count_elements = terms->count_elements,
                                           .input_count = 2 - first,
                                           .output_count = 1,
                                           .inputs = inputs + first,
                                           .outputs = &to,
                                           .factors =
                                               terms->reduce == REDUCE_PREMUL_SUM ? factors + first : NULL};
        host_reduce(&reduction);
    }
}

/* --- Blocks --- */

static void copy(void *to, const void *from, size_t size_bytes)
{
    if (to != from) {
        memcpy(to, from, size_bytes);
    }
}

/* Block `block` of each rank's data, one after the other. */
static void gather(const struct taking *taking, uint32_t block)
{
    unsigned char *to = taking->call->output.at;
    for (uint32_t rank = 0; rank < taking->rank_count; rank++) {
        copy(to + rank * taking->block_bytes, data_of(taking, rank) + block * taking->block_bytes,
             taking->block_bytes);
    }
}

void cells_read(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                const struct client_call *call)
{
    const struct op_terms *terms = &call->terms;
    if (terms->has_layouts != 0) {
        cells_blocks_read(shared, rank_count, rank, seq, call);
        return;
    }
    struct taking taking = {.shared = shared,
                            .rank_count = rank_count,
                            .rank = rank,
                            .seq = seq,
                            .call = call,
                            .block_bytes = (size_t)terms->count_elements * dtype_size_bytes(terms->dtype)};
    if (call->output.at == NULL || taking.block_bytes == 0) {
        return;
    }
    switch (terms->kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
        reduce_all(&taking, 0, call->output.at);
        break;
    case OP_KIND_REDUCE_SCATTER:
        reduce_all(&taking, rank * taking.block_bytes, call->output.at);
        break;
    case OP_KIND_BROADCAST:
        copy(call->output.at, data_of(&taking, terms->root_rank), taking.block_bytes);
        break;
    case OP_KIND_SCATTER:
        copy(call->output.at, data_of(&taking, terms->root_rank) + rank * taking.block_bytes,
             taking.block_bytes);
        break;
    case OP_KIND_ALL_GATHER:
    case OP_KIND_GATHER:
        gather(&taking, 0);
        break;
    case OP_KIND_ALL_TO_ALL:
        gather(&taking, rank);
        break;
    case OP_KIND_SCAN:
        scan(&taking, rank + 1, call->output.at);
        break;
    case OP_KIND_EXCLUSIVE_SCAN:
        scan(&taking, rank, call->output.at);
        break;
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
}
