#include <string.h>

#include "client/lib/internal.h"

/* What a rank of a communicator of several nodes writes into its cell, and how it takes its result out of
 * commd's (proto/node_cells.h). */

void cells_nodes_write(const struct node_cells *cells, uint32_t rank, uint32_t local_rank, uint64_t seq,
                       uint64_t ticket, const struct client_call *call)
{
    struct cell_header *header = cells_header(cells->shared, local_rank, seq);
    size_t size_bytes = cells_published_bytes(&call->terms, cells->rank_count, rank);
    header->said = (struct cell_terms){.terms = call->terms, .factor = call->options.factor};
    cells->shared->ranks[local_rank].tickets[seq % CELLS_DEPTH] = ticket;
    if (size_bytes > 0) {
        memcpy(node_cells_input(cells, &call->terms, rank, local_rank, seq), call->input.at, size_bytes);
    }
}

void cells_nodes_read(const struct node_cells *cells, uint32_t rank, uint32_t local_rank, uint64_t seq,
                      const struct client_call *call)
{
    size_t size_bytes = node_cells_output_bytes(cells, &call->terms, rank);
    if (call->output.at != NULL && size_bytes > 0) {
        memcpy(call->output.at, node_cells_output(cells, &call->terms, local_rank, seq), size_bytes);
    }
}

void cells_nodes_take_own(const struct node_cells *cells, uint32_t rank, const struct client_call *call)
{
    size_t size_bytes = node_cells_output_bytes(cells, &call->terms, rank);
    size_t before_bytes = op_kind_has_input_blocks(call->terms.kind) ? rank * size_bytes : 0;
    if (call->output.at != NULL && size_bytes > 0) {
        memmove(call->output.at, (const unsigned char *)call->input.at + before_bytes, size_bytes);
    }
}
