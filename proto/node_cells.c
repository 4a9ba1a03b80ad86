#include "proto/node_cells.h"

#define OUTPUT_ALIGN_BYTES ((size_t)16)

/* An answer holds twice the number, and 1 if the ranks must submit the operation. */
#define ANSWER_WELL 0u
#define ANSWER_SUBMIT 1u
/* Before the answer: the outputs are there. A number that no answer has. */
#define OFFER_OF(seq) (UINT64_MAX - (seq))

/* --- Terms --- */

/* What each local rank's output may take of commd's cell. */
static size_t output_most_bytes(const struct node_cells *cells, const struct op_terms *terms)
{
    bool whole = terms->kind == OP_KIND_ALL_GATHER || terms->kind == OP_KIND_GATHER ||
                 terms->kind == OP_KIND_ALL_TO_ALL;
    return (whole ? cells->rank_count : 1) * (size_t)terms->count_elements * dtype_size_bytes(terms->dtype);
}

static size_t output_stride_bytes(const struct node_cells *cells, const struct op_terms *terms)
{
    size_t bytes = output_most_bytes(cells, terms);
    return (bytes + OUTPUT_ALIGN_BYTES - 1) / OUTPUT_ALIGN_BYTES * OUTPUT_ALIGN_BYTES;
}

bool node_cells_take(const struct node_cells *cells, const struct op_terms *terms)
{
    if (!cells_are_plain(terms) || terms->has_layouts != 0 ||
        terms->count_elements > NODE_CELLS_DATA_MAX_BYTES) {
        return false;
    }
    size_t blocks = op_kind_has_input_blocks(terms->kind) ? cells->rank_count : 1;
    size_t input_bytes = blocks * (size_t)terms->count_elements * dtype_size_bytes(terms->dtype);
    size_t stride_bytes = output_stride_bytes(cells, terms);
    return input_bytes <= NODE_CELLS_DATA_MAX_BYTES && stride_bytes <= NODE_CELLS_DATA_MAX_BYTES &&
           cells->local_count * stride_bytes <= CELLS_DATA_MAX_BYTES;
}

bool node_cells_are_short(const struct node_cells *cells, const struct op_terms *terms)
{
    size_t blocks = op_kind_has_input_blocks(terms->kind) ? cells->rank_count : 1;
    return blocks * terms->count_elements * dtype_size_bytes(terms->dtype) <= NODE_CELLS_MIDDLE_MAX_BYTES &&
           cells->local_count * output_stride_bytes(cells, terms) <= NODE_CELLS_MIDDLE_MAX_BYTES;
}

size_t node_cells_output_bytes(const struct node_cells *cells, const struct op_terms *terms, uint32_t rank)
{
    bool to_root = terms->kind == OP_KIND_REDUCE || terms->kind == OP_KIND_GATHER;
    bool gets_nothing = terms->kind == OP_KIND_BARRIER || (to_root && rank != terms->root_rank) ||
                        (terms->kind == OP_KIND_EXCLUSIVE_SCAN && rank == 0);
    return gets_nothing ? 0 : output_most_bytes(cells, terms);
}

/* Where data of that size lie, of a local rank or of commd. */
static unsigned char *place_of(const struct node_cells *cells, uint32_t index, uint64_t seq,
                               size_t size_bytes)
{
    uint32_t count = cells->local_count + 1;
    if (size_bytes <= CELLS_SHORT_MAX_BYTES || size_bytes > NODE_CELLS_MIDDLE_MAX_BYTES) {
        return cells_data(cells->shared, count, index, seq, size_bytes);
    }
    return (unsigned char *)cells->shared + cells_short_bytes(count) +
           (index * (size_t)NODE_CELLS_DEPTH + seq % NODE_CELLS_DEPTH) * NODE_CELLS_MIDDLE_MAX_BYTES;
}

unsigned char *node_cells_input(const struct node_cells *cells, const struct op_terms *terms, uint32_t rank,
                                uint32_t local_index, uint64_t seq)
{
    return place_of(cells, local_index, seq, cells_published_bytes(terms, cells->rank_count, rank));
}

unsigned char *node_cells_output(const struct node_cells *cells, const struct op_terms *terms,
                                 uint32_t local_index, uint64_t seq)
{
    size_t stride_bytes = output_stride_bytes(cells, terms);
    return place_of(cells, cells->local_count, seq, cells->local_count * stride_bytes) +
           local_index * stride_bytes;
}

/* --- A rank --- */

static struct cells_rank *commd_of(const struct node_cells *cells)
{
    return &cells->shared->ranks[cells->local_count];
}

static _Atomic uint64_t *answer_of(const struct node_cells *cells, uint64_t seq)
{
    return &cells_header(cells->shared, cells->local_count, seq)->seq;
}

bool node_cells_are_published(const struct node_cells *cells, uint64_t seq)
{
    for (uint32_t i = 0; i < cells->local_count; i++) {
        if (atomic_load_explicit(&cells_header(cells->shared, i, seq)->seq, memory_order_acquire) != seq) {
            return false;
        }
    }
    return true;
}

/* commd first says that it sleeps and then looks at the cells; a rank does the opposite. So one sees the
 * other. Of the ranks that think they are the last, one wakes commd. */
bool node_cells_publish(const struct node_cells *cells, uint32_t local_index, uint64_t seq)
{
    struct cells_rank *commd = commd_of(cells);
    atomic_store_explicit(&cells_header(cells->shared, local_index, seq)->seq, seq, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&commd->sleepers, memory_order_relaxed) != 0 &&
           node_cells_are_published(cells, seq) &&
           atomic_exchange_explicit(&commd->sleepers, 0, memory_order_relaxed) != 0;
}

static enum cells_way answer_says(const struct node_cells *cells, uint64_t seq)
{
    uint64_t answer = atomic_load_explicit(answer_of(cells, seq), memory_order_acquire);
    return answer == 2 * seq + ANSWER_WELL     ? CELLS_DIRECT
           : answer == 2 * seq + ANSWER_SUBMIT ? CELLS_BY_COMMD
                                               : CELLS_WAIT;
}

enum cells_way node_cells_look(const struct node_cells *cells, uint64_t seq)
{
    const struct cells_shared *shared = cells->shared;
    enum cells_way way = answer_says(cells, seq);
    if (way != CELLS_WAIT) {
        return way;
    }
    bool submits = atomic_load_explicit(&commd_of(cells)->by_commd, memory_order_acquire) >= seq ||
                   (atomic_load_explicit(&shared->open_from, memory_order_acquire) == CELLS_FINAL &&
                    atomic_load_explicit(&shared->heads[0], memory_order_relaxed) < seq);
    if (!submits) {
        return CELLS_WAIT;
    }
    way = answer_says(cells, seq);
    return way != CELLS_WAIT ? way : CELLS_BY_COMMD;
}

uint32_t node_cells_rank_lies_down(const struct node_cells *cells, uint32_t local_index, uint64_t seq)
{
    atomic_store_explicit(&cells->shared->ranks[local_index].awaits, seq, memory_order_relaxed);
    return cells_lie_down(cells->shared, local_index);
}

/* If two threads of the rank sleep, any answer wakes them; and the one that is left, when the other one has
 * got up. */
void node_cells_rank_gets_up(const struct node_cells *cells, uint32_t local_index)
{
    struct cells_rank *rank = &cells->shared->ranks[local_index];
    cells_get_up(cells->shared, local_index);
    if (atomic_load_explicit(&rank->sleepers, memory_order_relaxed) != 0) {
        atomic_store_explicit(&rank->awaits, 0, memory_order_relaxed);
    }
}

bool node_cells_root_is_there(const struct node_cells *cells, uint64_t seq, const struct op_terms *terms)
{
    const struct cell_header *header = cells_header(cells->shared, cells->local_count, seq);
    uint64_t said = atomic_load_explicit(&header->seq, memory_order_acquire);
    return said == 2 * seq + ANSWER_WELL ||
           (said == OFFER_OF(seq) && op_terms_difference(&header->said.terms, terms) == NULL);
}

/* --- commd --- */

bool node_cells_may_offer(const struct node_cells *cells, uint64_t seq, const struct op_terms *terms)
{
    uint32_t window = node_cells_are_short(cells, terms) ? NODE_CELLS_WINDOW : CELLS_LONG_WINDOW;
    return seq <= window || node_cells_are_published(cells, seq - window);
}

void node_cells_offer(const struct node_cells *cells, uint64_t seq, const struct op_terms *terms)
{
    struct cell_header *header = cells_header(cells->shared, cells->local_count, seq);
    header->said = (struct cell_terms){.terms = *terms};
    atomic_store_explicit(&header->seq, OFFER_OF(seq), memory_order_release);
}

void node_cells_wake(const struct node_cells *cells, uint64_t seq)
{
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t i = 0; i < cells->local_count; i++) {
        const struct cells_rank *rank = &cells->shared->ranks[i];
        bool is_alone = atomic_load_explicit(&rank->sleepers, memory_order_relaxed) == 1;
        if (!is_alone || atomic_load_explicit(&rank->awaits, memory_order_relaxed) <= seq) {
            cells_wake(cells->shared, i);
        }
    }
}

void node_cells_answer(const struct node_cells *cells, uint64_t seq, bool ended_well)
{
    uint64_t answer = 2 * seq + (ended_well ? ANSWER_WELL : ANSWER_SUBMIT);
    atomic_store_explicit(answer_of(cells, seq), answer, memory_order_release);
}

void node_cells_pass(const struct node_cells *cells, uint64_t seq)
{
    _Atomic uint64_t *passed = &commd_of(cells)->by_commd;
    if (atomic_load_explicit(passed, memory_order_relaxed) < seq) {
        atomic_store_explicit(passed, seq, memory_order_release);
        node_cells_wake(cells, UINT64_MAX);
    }
}

void node_cells_close(const struct node_cells *cells, uint64_t last_seq)
{
    atomic_store_explicit(&cells->shared->heads[0], last_seq, memory_order_relaxed);
    atomic_store_explicit(&cells->shared->open_from, CELLS_FINAL, memory_order_release);
    node_cells_wake(cells, UINT64_MAX);
}

void node_cells_lie_down(const struct node_cells *cells)
{
    atomic_store_explicit(&commd_of(cells)->sleepers, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

void node_cells_get_up(const struct node_cells *cells)
{
    atomic_store_explicit(&commd_of(cells)->sleepers, 0, memory_order_relaxed);
}
