#include "proto/cells.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/process_barrier.h"

#define NS_PER_S 1000000000u

/* --- Terms --- */

bool cells_are_plain(const struct op_terms *terms)
{
    return !op_kind_is_message(terms->kind) && terms->compression == COMPRESSION_NONE &&
           terms->bucket_ops == 1;
}

/* Each element of a block in all blocks that a rank publishes. */
static uint64_t published_element_bytes(const struct op_terms *terms, uint32_t rank_count)
{
    return (op_kind_has_input_blocks(terms->kind) ? rank_count : 1) *
           (uint64_t)dtype_size_bytes(terms->dtype);
}

uint64_t cells_most_published_bytes(const struct op_terms *terms, uint32_t rank_count)
{
    uint64_t bytes;
    return __builtin_mul_overflow(terms->count_elements, published_element_bytes(terms, rank_count), &bytes)
               ? UINT64_MAX
               : bytes;
}

/* Whether its slices would take two steps. */
static bool takes_two_steps(const struct op_terms *terms, uint32_t rank_count)
{
    return terms->kind == OP_KIND_ALL_REDUCE && rank_count >= CELLS_TWO_STEPS_RANKS;
}

/* The most that a rank may publish of such an operation in one cell. */
static uint64_t cell_max_bytes(const struct op_terms *terms, uint32_t rank_count)
{
    return takes_two_steps(terms, rank_count) ? CELLS_SUMMED_MAX_BYTES : CELLS_DATA_MAX_BYTES;
}

bool cells_take(const struct op_terms *terms, uint32_t rank_count)
{
    return cells_are_plain(terms) &&
           (terms->has_layouts != 0 ||
            cells_most_published_bytes(terms, rank_count) <= cell_max_bytes(terms, rank_count));
}

bool cells_take_slices(const struct op_terms *terms, uint32_t rank_count)
{
    return cells_are_plain(terms) && terms->has_layouts == 0 && !op_kind_is_scan(terms->kind) &&
           cells_most_published_bytes(terms, rank_count) > cell_max_bytes(terms, rank_count);
}

struct cells_cut cells_cut_into(const struct op_terms *terms, uint32_t rank_count, uint64_t slice_bytes)
{
    uint32_t blocks = op_kind_has_blocks(terms->kind) ? rank_count : 1;
    uint64_t elements = slice_bytes / blocks / dtype_size_bytes(terms->dtype);
    return (struct cells_cut){.slice_elements = elements,
                              .slice_count =
                                  terms->count_elements / elements + (terms->count_elements % elements != 0),
                              .steps = takes_two_steps(terms, rank_count) ? 2 : 1};
}

struct cells_cut cells_cut(const struct op_terms *terms, uint32_t rank_count)
{
    return cells_cut_into(terms, rank_count,
                          rank_count <= 2 ? CELLS_SLICE_MAX_BYTES : CELLS_SLICE_OF_MANY_BYTES);
}

uint32_t cells_window(const struct op_terms *terms, uint32_t rank_count)
{
    bool is_long =
        terms->has_layouts != 0 || cells_most_published_bytes(terms, rank_count) > CELLS_MIDDLE_MAX_BYTES;
    return is_long ? CELLS_LONG_WINDOW : CELLS_WINDOW;
}

size_t cells_published_bytes(const struct op_terms *terms, uint32_t rank_count, uint32_t rank)
{
    return op_kind_is_from_root(terms->kind) && rank != terms->root_rank
               ? 0
               : (size_t)(terms->count_elements * published_element_bytes(terms, rank_count));
}

/* --- Bells --- */

static void ring(struct cells_rank *rank)
{
    atomic_fetch_add_explicit(&rank->bell, 1, memory_order_relaxed);
    (void)syscall(SYS_futex, &rank->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void cells_wake(struct cells_shared *shared, uint32_t rank)
{
    if (atomic_load_explicit(&shared->ranks[rank].sleepers, memory_order_relaxed) != 0) {
        ring(&shared->ranks[rank]);
    }
}

void cells_wake_receiver(struct cells_shared *shared, uint32_t rank)
{
    atomic_thread_fence(memory_order_seq_cst); /* a sleeper looks at the ring after it has said so */
    cells_wake(shared, rank);
}

/* A sleeper first says so and then looks at the cells; a rank that publishes does the opposite. So one sees
 * the other. */
static void ring_sleepers(struct cells_shared *shared, uint32_t rank_count, uint32_t rank)
{
    for (uint32_t other = 0; other < rank_count; other++) {
        if (other != rank) {
            cells_wake(shared, other);
        }
    }
}

static bool any_sleeps(struct cells_shared *shared, uint32_t rank_count, uint32_t rank)
{
    for (uint32_t other = 0; other < rank_count; other++) {
        if (other != rank &&
            atomic_load_explicit(&shared->ranks[other].sleepers, memory_order_acquire) != 0) {
            return true;
        }
    }
    return false;
}

static bool others_have_published(struct cells_shared *shared, uint32_t rank_count, uint32_t rank,
                                  uint64_t seq)
{
    for (uint32_t other = 0; other < rank_count; other++) {
        if (other != rank &&
            atomic_load_explicit(&cells_header(shared, other, seq)->seq, memory_order_acquire) != seq) {
            return false;
        }
    }
    return true;
}

/* Whether the other ranks need this rank's cell and no other. */
static bool is_read_alone(const struct op_terms *terms, uint32_t rank)
{
    return op_kind_is_from_root(terms->kind) && terms->root_rank == rank;
}

uint32_t cells_lie_down(struct cells_shared *shared, uint32_t rank)
{
    struct cells_rank *own = &shared->ranks[rank];
    atomic_fetch_add_explicit(&own->sleepers, 1, memory_order_seq_cst);
    uint32_t bell = atomic_load_explicit(&own->bell, memory_order_relaxed);
    if (atomic_load_explicit(&shared->has_barriers, memory_order_relaxed) != 0) {
        process_barrier();
    } else {
        atomic_thread_fence(memory_order_seq_cst);
    }
    return bell;
}

void cells_sleep(struct cells_shared *shared, uint32_t rank, uint32_t bell, uint64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
                               .tv_nsec = (long)(timeout_ns % NS_PER_S)};
    (void)syscall(SYS_futex, &shared->ranks[rank].bell, FUTEX_WAIT, bell, &timeout, NULL, 0);
}

void cells_get_up(struct cells_shared *shared, uint32_t rank)
{
    atomic_fetch_sub_explicit(&shared->ranks[rank].sleepers, 1, memory_order_relaxed);
}

/* --- Taking part --- */

bool cells_need_fences(struct cells_shared *shared)
{
    return atomic_load_explicit(&shared->has_barriers, memory_order_relaxed) != 1 || !process_barrier_join();
}

/*
 * Without a fence, the processor goes on while it waits for the line of the cell. The fence of whoever reads
 * in the opposite order does for both: cells_lie_down between the sleeper's word and its look, and
 * cells_decide between open_from and the copy.
 */
void cells_publish(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                   bool needs_fence)
{
    atomic_store_explicit(&cells_header(shared, rank, seq)->seq, seq, memory_order_release);
    if (needs_fence) {
        atomic_thread_fence(memory_order_seq_cst);
    } else {
        atomic_signal_fence(memory_order_seq_cst);
    }
    /* Nobody can go on before the last rank has published; readers wait for their root alone. A rank that
     * hands the operation over rings for itself. */
    if (any_sleeps(shared, rank_count, rank)) {
        /* Two ranks may publish at once. One of them at least sees the other's cell, and rings for a third.
         */
        atomic_thread_fence(memory_order_seq_cst);
        if (is_read_alone(&cells_header(shared, rank, seq)->said.terms, rank) ||
            others_have_published(shared, rank_count, rank, seq)) {
            ring_sleepers(shared, rank_count, rank);
        }
    }
}

void cells_hand_over(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq)
{
    atomic_store_explicit(&shared->ranks[rank].by_commd, seq, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    ring_sleepers(shared, rank_count, rank);
}

/* How one other rank takes part. */
static enum cells_way look_at(struct cells_shared *shared, uint32_t other, uint64_t seq,
                              const struct op_terms *own)
{
    struct cell_header *header = cells_header(shared, other, seq);
    struct op_terms said;
    if (atomic_load_explicit(&header->seq, memory_order_acquire) != seq) {
        bool passed = atomic_load_explicit(&shared->ranks[other].by_commd, memory_order_acquire) >= seq;
        /* It may have published this operation, and handed over a later one since the first look. */
        if (atomic_load_explicit(&header->seq, memory_order_acquire) != seq) {
            return passed ? CELLS_BY_COMMD : CELLS_WAIT;
        }
    }
    memcpy(&said, &header->said.terms, sizeof said);
    return memcmp(&said, own, sizeof said) == 0 ? CELLS_DIRECT : CELLS_BY_COMMD;
}

bool cells_have_news(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq)
{
    for (uint32_t other = 0; other < rank_count; other++) {
        if (other == rank ||
            atomic_load_explicit(&cells_header(shared, other, seq)->seq, memory_order_acquire) == seq) {
            continue;
        }
        uint64_t open_from = atomic_load_explicit(&shared->open_from, memory_order_relaxed);
        return (open_from > seq && open_from != CELLS_DECIDING) ||
               atomic_load_explicit(&shared->ranks[other].by_commd, memory_order_relaxed) >= seq;
    }
    return atomic_load_explicit(&shared->open_from, memory_order_relaxed) != CELLS_DECIDING;
}

bool cells_root_is_there(struct cells_shared *shared, uint64_t seq, const struct op_terms *terms)
{
    return look_at(shared, terms->root_rank, seq, terms) == CELLS_DIRECT;
}

/* Every rank compares all tables, so all find the same. */
static enum cells_way compare_tables(struct cells_shared *shared, uint32_t rank_count, uint64_t seq)
{
    uint64_t tables[CELLS_RANKS_MAX][2 * CELLS_RANKS_MAX];
    bool agree = true;
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        memcpy(tables[rank], cells_table(shared, rank_count, rank, seq),
               (size_t)rank_count * 2 * sizeof tables[rank][0]);
    }
    for (uint32_t from = 0; from < rank_count; from++) {
        for (uint32_t to = 0; to < rank_count; to++) {
            agree = agree && tables[from][to] == tables[to][rank_count + from];
        }
    }
    return agree ? CELLS_DIRECT : CELLS_BY_COMMD;
}

uint64_t cells_elements(struct cells_shared *shared, uint32_t rank_count, uint64_t seq,
                        const struct op_terms *terms)
{
    uint32_t of = op_kind_has_root(terms->kind) ? terms->root_rank : 0;
    const uint64_t *table = cells_table(shared, rank_count, of, seq);
    uint64_t elements = 0;
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        elements += table[op_kind_has_input_blocks(terms->kind) ? rank : rank_count + rank];
    }
    return elements;
}

/* The elements of all blocks that a rank publishes, by its table; saturated. with_own: with its own, too. */
static uint64_t published_elements(struct cells_shared *shared, uint32_t rank_count, uint64_t seq,
                                   enum op_kind kind, uint32_t rank, bool with_own)
{
    const volatile uint64_t *table = cells_table(shared, rank_count, rank, seq);
    uint64_t sum = 0;
    for (uint32_t to = 0; to < rank_count; to++) {
        uint64_t count = table[to];
        if (!op_kind_has_input_blocks(kind)) {
            sum = count > sum ? count : sum; /* one block for all */
        } else if ((with_own || to != rank) && __builtin_add_overflow(sum, count, &sum)) {
            return UINT64_MAX;
        }
    }
    return sum;
}

bool cells_blocks_of_fit(struct cells_shared *shared, uint32_t rank_count, uint64_t seq,
                         const struct op_terms *terms, uint32_t rank)
{
    uint64_t most = (CELLS_DATA_MAX_BYTES - cells_table_bytes(rank_count)) / dtype_size_bytes(terms->dtype);
    return published_elements(shared, rank_count, seq, terms->kind, rank, true) <= most;
}

uint64_t cells_slices_of_blocks(struct cells_shared *shared, uint32_t rank_count, uint64_t seq,
                                const struct op_terms *terms, uint64_t slice_bytes)
{
    /* Each part of a block is rounded up to an element. */
    uint64_t each = (slice_bytes - CELLS_OFFSETS_BYTES) / dtype_size_bytes(terms->dtype) - rank_count,
             most = 0;
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        if (!cells_blocks_of_fit(shared, rank_count, seq, terms, rank)) {
            uint64_t elements = published_elements(shared, rank_count, seq, terms->kind, rank, false);
            uint64_t slices = elements / each + (elements % each != 0 || elements == 0);
            most = slices > most ? slices : most;
        }
    }
    return most;
}

static enum cells_way look_at_all(struct cells_shared *shared, uint32_t rank_count, uint32_t rank,
                                  uint64_t seq, const struct op_terms *own)
{
    enum cells_way all = CELLS_DIRECT;
    for (uint32_t other = 0; other < rank_count; other++) {
        enum cells_way way = other != rank ? look_at(shared, other, seq, own) : CELLS_DIRECT;
        if (way == CELLS_BY_COMMD) {
            return CELLS_BY_COMMD;
        }
        all = way == CELLS_WAIT ? CELLS_WAIT : all;
    }
    bool has_tables = own->has_layouts != 0 && own->count_elements == 0; /* otherwise it is a slice */
    return all == CELLS_DIRECT && has_tables ? compare_tables(shared, rank_count, seq) : all;
}

enum cells_way cells_look(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                          const struct op_terms *own)
{
    enum cells_way way = look_at_all(shared, rank_count, rank, seq, own);
#if !defined(__x86_64__)
    atomic_thread_fence(memory_order_seq_cst);
#endif
    /* The cells come first: if the segment is open after them, commd's copy will have them. */
    uint64_t open_from = atomic_load_explicit(&shared->open_from, memory_order_acquire);
    if (open_from <= seq || way == CELLS_BY_COMMD) {
        return way;
    }
    if (open_from == CELLS_DECIDING) {
        return CELLS_WAIT;
    }
    if (open_from != CELLS_FINAL || seq < atomic_load_explicit(&shared->opened_from, memory_order_relaxed)) {
        return CELLS_BY_COMMD; /* opened again, for later ones */
    }
    for (uint32_t each = 0; each < rank_count; each++) {
        if (atomic_load_explicit(&shared->heads[each], memory_order_relaxed) < seq) {
            return CELLS_BY_COMMD;
        }
    }
    way = look_at_all(shared, rank_count, rank, seq, own); /* all are there now */
    return way == CELLS_DIRECT ? CELLS_DIRECT : CELLS_BY_COMMD;
}

/* --- Lent memory --- */

void cells_withdraw_offer(struct cells_shared *shared, uint32_t rank, uint32_t index)
{
    atomic_store_explicit(&shared->ranks[rank].offers[index].stamp, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

uint64_t cells_read_offer(struct cells_shared *shared, uint32_t rank, uint32_t index, struct cells_offer *out)
{
    struct cells_offer *offer = &shared->ranks[rank].offers[index];
    uint64_t stamp = atomic_load_explicit(&offer->stamp, memory_order_acquire);
    memcpy(out, offer, sizeof *out);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&offer->stamp, memory_order_relaxed) == stamp ? stamp : 0;
}

bool cells_offer_holds(struct cells_shared *shared, uint32_t rank, uint32_t index, uint64_t stamp)
{
    atomic_thread_fence(memory_order_seq_cst); /* all was read before */
    return atomic_load_explicit(&shared->ranks[rank].offers[index].stamp, memory_order_relaxed) == stamp;
}

/* --- commd --- */

void cells_begin(struct cells_shared *shared, bool with_barriers)
{
    atomic_store_explicit(&shared->has_barriers, with_barriers && process_barrier_works(),
                          memory_order_relaxed);
}

uint64_t cells_head(struct cells_shared *shared, uint32_t rank)
{
    struct cells_rank *its = &shared->ranks[rank];
    uint64_t head = atomic_load_explicit(&its->by_commd, memory_order_acquire);
    for (uint32_t i = 0; i < CELLS_DEPTH; i++) {
        uint64_t seq = atomic_load_explicit(&its->headers[i].seq, memory_order_acquire);
        head = seq > head ? seq : head;
    }
    return head;
}

void cells_decide(struct cells_shared *shared)
{
    atomic_store_explicit(&shared->open_from, CELLS_DECIDING, memory_order_seq_cst);
    process_barrier();
}

void cells_copy_head(struct cells_shared *shared, uint32_t rank)
{
    atomic_store_explicit(&shared->heads[rank], cells_head(shared, rank), memory_order_relaxed);
}

void cells_end(struct cells_shared *shared, uint32_t rank_count)
{
    atomic_store_explicit(&shared->open_from, CELLS_FINAL, memory_order_seq_cst);
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        ring(&shared->ranks[rank]);
    }
}

void cells_retire(struct cells_shared *shared, uint32_t rank_count)
{
    cells_decide(shared);
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        cells_copy_head(shared, rank);
    }
    cells_end(shared, rank_count);
}

void cells_reopen(struct cells_shared *shared, uint64_t from)
{
    atomic_store_explicit(&shared->opened_from, from, memory_order_relaxed);
    atomic_store_explicit(&shared->open_from, from, memory_order_seq_cst);
}
