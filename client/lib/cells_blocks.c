#include <string.h>

#include "client/lib/internal.h"
#include "daemon/host/reduce.h"

/* Small operations with a count for each rank, in cells. The table in a cell is another process's: what lies
 * beyond the cell by its numbers is not read. */

/* How many elements this rank sends to each rank, and then how many it expects of each. */
static void make_table(const struct client_call *call, uint32_t rank_count, uint64_t *table)
{
    const struct call_buffer *in = &call->input, *out = &call->output;
    bool has_root = op_kind_has_root(call->terms.kind);
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        bool takes_part = !has_root || rank == call->terms.root_rank;
        table[rank] = in->counts != NULL ? in->counts[rank] : takes_part ? in->elements : 0;
        table[rank_count + rank] = out->counts != NULL ? out->counts[rank] : takes_part ? out->elements : 0;
    }
}

bool cells_blocks_fit(const struct client_call *call, uint32_t rank_count)
{
    const struct call_buffer *in = &call->input;
    size_t left =
        (CELLS_DATA_MAX_BYTES - cells_table_bytes(rank_count)) / dtype_size_bytes(call->terms.dtype);
    if (in->counts == NULL) {
        return in->elements <= left;
    }
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        if (in->counts[rank] > left) {
            return false;
        }
        left -= in->counts[rank];
    }
    return true;
}

void cells_blocks_write(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                        const struct client_call *call)
{
    const struct call_buffer *in = &call->input;
    struct cell_header *header = cells_header(shared, rank, seq);
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    uint64_t *table = cells_table(shared, rank_count, rank, seq);
    unsigned char *to = (unsigned char *)table + cells_table_bytes(rank_count);
    header->said = (struct cell_terms){.terms = call->terms, .factor = call->options.factor};
    header->said.terms.count_elements = 0;
    make_table(call, rank_count, table);
    if (in->counts == NULL && in->elements > 0) {
        memcpy(to, in->at, in->elements * element_bytes);
    }
    for (uint32_t other = 0; in->counts != NULL && other < rank_count; other++) {
        size_t size_bytes = in->counts[other] * element_bytes;
        if (size_bytes > 0) {
            memcpy(to, (const unsigned char *)in->at + call_block_begin(in, other) * element_bytes,
                   size_bytes);
            to += size_bytes;
        }
    }
}

/* The block of so many elements that `from` has published for this rank. */
static const unsigned char *block_of(struct cells_shared *shared, uint32_t rank_count, uint32_t rank,
                                     uint64_t seq, const struct client_call *call, uint32_t from,
                                     uint64_t elements)
{
    uint64_t most =
        (CELLS_DATA_MAX_BYTES - cells_table_bytes(rank_count)) / dtype_size_bytes(call->terms.dtype);
    const uint64_t *table = cells_table(shared, rank_count, from, seq);
    uint64_t before = 0;
    for (uint32_t other = 0; op_kind_has_input_blocks(call->terms.kind) && other < rank; other++) {
        uint64_t count = *(const volatile uint64_t *)&table[other];
        before = count <= most ? before + count : most;
    }
    if (elements > most || before > most - elements) {
        return NULL;
    }
    return (const unsigned char *)table + cells_table_bytes(rank_count) +
           before * dtype_size_bytes(call->terms.dtype);
}

static void reduce_blocks(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                          const struct client_call *call)
{
    const struct op_terms *terms = &call->terms;
    const void *inputs[CELLS_RANKS_MAX];
    double factors[CELLS_RANKS_MAX];
    void *to = call->output.at;
    for (uint32_t from = 0; from < rank_count; from++) {
        inputs[from] = block_of(shared, rank_count, rank, seq, call, from, call->output.elements);
        factors[from] = cells_header(shared, from, seq)->said.factor;
        if (inputs[from] == NULL) {
            return;
        }
    }
    struct host_reduction reduction = {.dtype = terms->dtype,
                                       .reduce = terms->reduce,
                                       .count_elements = call->output.elements,
                                       .input_count = rank_count,
                                       .output_count = 1,
                                       .inputs = inputs,
                                       .outputs = &to,
                                       .factors = terms->reduce == REDUCE_PREMUL_SUM ? factors : NULL,
                                       .divisor = terms->reduce == REDUCE_AVG ? rank_count : 0};
    host_reduce(&reduction);
}

void cells_blocks_read(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                       const struct client_call *call)
{
    const struct call_buffer *out = &call->output;
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    uint64_t table[2 * CELLS_RANKS_MAX];
    if (out->at == NULL) {
        return;
    }
    if (op_kind_reduces(call->terms.kind)) {
        reduce_blocks(shared, rank_count, rank, seq, call);
        return;
    }
    make_table(call, rank_count, table);
    for (uint32_t from = 0; from < rank_count; from++) {
        uint64_t elements = table[rank_count + from];
        const unsigned char *block = block_of(shared, rank_count, rank, seq, call, from, elements);
        size_t begin = out->counts != NULL ? call_block_begin(out, from) : 0;
        if (block != NULL && elements > 0) {
            memcpy((unsigned char *)out->at + begin * element_bytes, block, elements * element_bytes);
        }
    }
}
