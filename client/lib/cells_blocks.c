#include <string.h>

#include "client/lib/internal.h"
#include "daemon/host/reduce.h"

/* Operations with a count for each rank, in cells and slices. The tables are other processes': what lies
 * beyond a cell or a slice by their numbers is not read. */

/* This rank's own block for `to`, where it lies. */
static const unsigned char *own_block(const struct client_call *call, uint32_t to)
{
    const struct call_buffer *in = &call->input;
    size_t begin = in->counts != NULL ? call_block_begin(in, to) : 0;
    return (const unsigned char *)in->at + begin * dtype_size_bytes(call->terms.dtype);
}

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
    if (!cells_blocks_fit(call, rank_count)) { /* slices follow */
        for (uint32_t other = 0; other < rank_count; other++) {
            table[2 * rank_count + other] = (uint64_t)(uintptr_t)own_block(call, other);
        }
        return;
    }
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

/* Reduces this rank's block, or a part of it, of all ranks. */
static void reduce_inputs(struct cells_shared *shared, uint32_t rank_count, uint64_t seq,
                          const struct client_call *call, const void *const *inputs, uint64_t elements,
                          void *to)
{
    const struct op_terms *terms = &call->terms;
    double factors[CELLS_RANKS_MAX];
    bool has_factors = terms->reduce == REDUCE_PREMUL_SUM;
    for (uint32_t from = 0; from < rank_count; from++) {
        if (inputs[from] == NULL) {
            return;
        }
        factors[from] = has_factors ? cells_header(shared, from, seq)->said.factor : 1;
    }
    struct host_reduction reduction = {.dtype = terms->dtype,
                                       .reduce = terms->reduce,
                                       .count_elements = elements,
                                       .input_count = rank_count,
                                       .output_count = 1,
                                       .inputs = inputs,
                                       .outputs = &to,
                                       .factors = has_factors ? factors : NULL,
                                       .divisor = terms->reduce == REDUCE_AVG ? rank_count : 0};
    host_reduce(&reduction);
}

static void reduce_blocks(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                          const struct client_call *call)
{
    const void *inputs[CELLS_RANKS_MAX];
    for (uint32_t from = 0; from < rank_count; from++) {
        inputs[from] = block_of(shared, rank_count, rank, seq, call, from, call->output.elements);
    }
    reduce_inputs(shared, rank_count, seq, call, inputs, call->output.elements, call->output.at);
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

/* --- Slices --- */

#define SLICE_MOST_BYTES (CELLS_SLICE_MAX_BYTES - CELLS_OFFSETS_BYTES) /* of a rank's parts */

/* A part of a block: elements from `begin` on. */
struct part {
    uint64_t begin, elements;
};

static struct part part_of(uint64_t elements, const struct cells_blocks_slice *slice)
{
    uint64_t begin = cells_part_begin(elements, slice->index, slice->count);
    return (struct part){.begin = begin,
                         .elements = cells_part_begin(elements, slice->index + 1, slice->count) - begin};
}

/* What this rank publishes for `to`. A rank reads its own block where it lies, so it does not publish it. */
static uint64_t published_elements(const struct call_buffer *in, uint32_t rank, uint32_t to)
{
    if (in->counts == NULL) {
        return to == 0 ? in->elements : 0; /* one block for all */
    }
    return to != rank ? in->counts[to] : 0;
}

void cells_blocks_write_slice(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint32_t place,
                              const struct client_call *call, const struct cells_blocks_slice *slice)
{
    const struct call_buffer *in = &call->input;
    size_t element_bytes = dtype_size_bytes(call->terms.dtype), at = 0;
    unsigned char *whole = cells_place(shared, rank_count, rank, place);
    uint32_t *offsets = (uint32_t *)(void *)whole;
    for (uint32_t to = 0; to < rank_count; to++) {
        struct part part = part_of(published_elements(in, rank, to), slice);
        offsets[to] = in->counts != NULL ? (uint32_t)at : 0;
        if (part.elements > (SLICE_MOST_BYTES - at) / element_bytes) {
            return; /* the number of slices is wrong: another rank has changed this one's table */
        }
        if (part.elements > 0) {
            cells_copy(whole + CELLS_OFFSETS_BYTES + at, own_block(call, to) + part.begin * element_bytes,
                       (size_t)part.elements * element_bytes);
            at += (size_t)part.elements * element_bytes;
        }
    }
}

/* The part of the block that `from` has for this rank. Null if it would lie beyond the slice. */
static const unsigned char *find_part(struct cells_shared *shared, uint32_t rank_count, uint32_t rank,
                                      uint64_t seq, const struct client_call *call, uint32_t from,
                                      const struct part *part)
{
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    if (from == rank) {
        /* The ranks' tables agree that it is as long. But another rank may have changed this one's. */
        uint64_t own = call->input.counts != NULL ? call->input.counts[rank] : call->input.elements;
        return part->begin + part->elements <= own ? own_block(call, rank) + part->begin * element_bytes
                                                   : NULL;
    }
    const unsigned char *whole = cells_slice_at(shared, rank_count, from, seq);
    uint32_t offset = ((const volatile uint32_t *)(const void *)whole)[rank];
    bool fits = offset <= SLICE_MOST_BYTES && part->elements <= (SLICE_MOST_BYTES - offset) / element_bytes;
    return fits ? whole + CELLS_OFFSETS_BYTES + offset : NULL;
}

static bool is_remote(const struct cells_blocks_slice *slice, uint32_t rank)
{
    return slice->remote != NULL && slice->remote->pids[rank] != 0;
}

static void reduce_slice(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                         const struct client_call *call, const struct cells_blocks_slice *slice)
{
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    struct part part = part_of(call->output.elements, slice);
    struct cells_remote *remote = slice->remote;
    uint64_t most = remote != NULL ? remote->piece_bytes / element_bytes : part.elements;
    for (uint64_t at = 0; at < part.elements && (remote == NULL || !remote->failed); at += most) {
        uint64_t elements = part.elements - at < most ? part.elements - at : most;
        const void *inputs[CELLS_RANKS_MAX];
        for (uint32_t from = 0; from < rank_count; from++) {
            const unsigned char *found;
            if (is_remote(slice, from)) {
                found = remote->pieces + from * remote->piece_bytes;
                cells_remote_read(remote, from, (size_t)(part.begin + at) * element_bytes,
                                  remote->pieces + from * remote->piece_bytes, elements * element_bytes);
            } else {
                found = find_part(shared, rank_count, rank, seq, call, from, &part);
                found = found != NULL ? found + at * element_bytes : NULL;
            }
            inputs[from] = found;
        }
        if (remote == NULL || !remote->failed) {
            reduce_inputs(shared, rank_count, seq, call, inputs, elements,
                          (unsigned char *)call->output.at + (part.begin + at) * element_bytes);
        }
    }
}

void cells_blocks_read_slice(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                             const struct client_call *call, const struct cells_blocks_slice *slice)
{
    const struct call_buffer *out = &call->output;
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    uint64_t table[2 * CELLS_RANKS_MAX];
    if (out->at == NULL) {
        return;
    }
    if (op_kind_reduces(call->terms.kind)) {
        reduce_slice(shared, rank_count, rank, seq, call, slice);
        return;
    }
    make_table(call, rank_count, table);
    for (uint32_t from = 0; from < rank_count; from++) {
        struct part part = part_of(table[rank_count + from], slice);
        if (part.elements == 0) {
            continue;
        }
        size_t begin = out->counts != NULL ? call_block_begin(out, from) : 0;
        unsigned char *to = (unsigned char *)out->at + (begin + part.begin) * element_bytes;
        if (is_remote(slice, from)) {
            cells_remote_read(slice->remote, from, (size_t)part.begin * element_bytes, to,
                              (size_t)part.elements * element_bytes);
            continue;
        }
        const unsigned char *at = find_part(shared, rank_count, rank, seq, call, from, &part);
        if (at != NULL) {
            cells_copy(to, at, (size_t)part.elements * element_bytes);
        }
    }
}
