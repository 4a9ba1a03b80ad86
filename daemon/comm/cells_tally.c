#include "daemon/comm/cells_tally.h"

#include <stdlib.h>

/* What commd has accepted of one kind and class. */
struct accepted {
    uint64_t ops, bytes;
    uint64_t seen_bytes; /* the word at the last look */
};

struct rank_tally {
    uint64_t ops, published;
    struct accepted counts[OP_KIND_COUNT][OP_BOUNDS_CLASSES];
};

/* Of one rank alone, which times for all. */
struct timed {
    uint64_t ops, seen_ns;
    uint64_t counts[OP_BOUNDS_LATENCIES + 1];
};

struct cells_tally {
    uint64_t since_ns, now_ns;
    uint64_t ops, bytes;
    struct timed timed[OP_KIND_COUNT][OP_BOUNDS_CLASSES];
    struct accepted all[OP_KIND_COUNT][OP_BOUNDS_CLASSES];
    uint32_t rank_count;
    struct rank_tally ranks[];
};

size_t cells_tally_size_bytes(uint32_t rank_count)
{
    return sizeof(struct cells_tally) + rank_count * sizeof(struct rank_tally);
}

struct cells_tally *cells_tally_new(uint32_t rank_count, uint64_t now_ns)
{
    struct cells_tally *tally = calloc(1, cells_tally_size_bytes(rank_count));
    if (tally != NULL) {
        tally->rank_count = rank_count;
        tally->since_ns = tally->now_ns = now_ns;
    }
    return tally;
}

static uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static uint64_t word(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

/* How many operations a rank can have ended by now. */
static uint64_t most_ops(const struct cells_tally *tally)
{
    return (tally->now_ns - tally->since_ns) / CELLS_TALLY_OP_LEAST_NS;
}

static void read_count(const struct cells_tally *tally, struct rank_tally *rank,
                       const struct cell_count *count, unsigned kind, unsigned class)
{
    struct accepted *accepted = &rank->counts[kind][class];
    uint64_t ops = word(&count->ops);
    if (ops <= accepted->ops || ops - accepted->ops > most_ops(tally) - rank->ops) {
        return;
    }
    uint64_t more = ops - accepted->ops, bytes = word(&count->bytes);
    if (bytes > accepted->seen_bytes) {
        uint64_t most_bytes;
        bool any = __builtin_mul_overflow(more, op_bounds_class_bytes[class], &most_bytes);
        accepted->bytes +=
            any ? bytes - accepted->seen_bytes : least(bytes - accepted->seen_bytes, most_bytes);
    }
    accepted->seen_bytes = bytes;
    accepted->ops = ops;
    rank->ops += more;
}

static void read_rank(struct cells_tally *tally, uint32_t rank, const struct cell_counts *counts)
{
    struct rank_tally *its = &tally->ranks[rank];
    for (unsigned kind = 0; kind < OP_KIND_COUNT; kind++) {
        for (unsigned class = 0; class < OP_BOUNDS_CLASSES; class ++) {
            read_count(tally, its, &counts->counts[kind][class], kind, class);
        }
    }
    uint64_t published = word(&counts->published);
    bool makes_sense = published >= its->ops && published - its->ops <= CELLS_WINDOW;
    its->published = makes_sense ? published : its->ops;
}

/* Adds the operations of this kind and class that all ranks have counted by now. */
static void add_new(struct cells_tally *tally, unsigned kind, unsigned class, struct op_counts *out)
{
    struct accepted *all = &tally->all[kind][class];
    bool is_message = op_kind_is_message((enum op_kind)kind); /* each is one rank's */
    uint64_t ops = is_message ? 0 : UINT64_MAX, bytes = ops;
    for (uint32_t rank = 0; rank < tally->rank_count; rank++) {
        const struct accepted *its = &tally->ranks[rank].counts[kind][class];
        ops = is_message ? ops + its->ops : least(ops, its->ops);
        bytes = is_message ? bytes + its->bytes : least(bytes, its->bytes);
    }
    uint64_t more_bytes = bytes - all->bytes;
    out->cells[kind][class].results[STATUS_OK] += ops - all->ops;
    out->cells[kind][class].bytes += more_bytes;
    tally->ops += ops - all->ops;
    tally->bytes += op_kind_has_blocks((enum op_kind)kind) ? more_bytes / tally->rank_count : more_bytes;
    all->ops = ops;
    all->bytes = bytes;
}

/* The first rank's durations count for those that it did not time. */
static void add_timed(struct cells_tally *tally, const struct cell_count *count, unsigned kind,
                      unsigned class, struct op_counts *out)
{
    struct timed *timed = &tally->timed[kind][class];
    struct histogram *to = &out->cells[kind][class].latency_ns;
    uint64_t most = (tally->all[kind][class].ops + CELL_COUNTS_TIMED_EVERY / 2) / CELL_COUNTS_TIMED_EVERY;
    uint64_t age_ns = tally->now_ns - tally->since_ns, sum_ns = word(&count->timed_ns), before = timed->ops;
    for (unsigned bound = 0; bound <= OP_BOUNDS_LATENCIES; bound++) {
        uint64_t number = word(&count->timed[bound]);
        if (number > timed->counts[bound] && number - timed->counts[bound] <= most - timed->ops) {
            uint64_t more = number - timed->counts[bound];
            to->counts[bound] += more * CELL_COUNTS_TIMED_EVERY;
            timed->ops += more;
            timed->counts[bound] = number;
        }
    }
    if (timed->ops > before) {
        uint64_t more_ns = sum_ns > timed->seen_ns ? sum_ns - timed->seen_ns : 0;
        to->sum +=
            least(more_ns / (timed->ops - before), age_ns) * (timed->ops - before) * CELL_COUNTS_TIMED_EVERY;
        timed->seen_ns = sum_ns;
    }
}

void cells_tally_read(struct cells_tally *tally, struct cells_shared *shared, uint64_t now_ns,
                      struct op_counts *out)
{
    tally->now_ns = now_ns > tally->now_ns ? now_ns : tally->now_ns;
    for (uint32_t rank = 0; rank < tally->rank_count; rank++) {
        read_rank(tally, rank, &shared->ranks[rank].counts);
    }
    for (unsigned kind = 0; kind < OP_KIND_COUNT; kind++) {
        for (unsigned class = 0; class < OP_BOUNDS_CLASSES; class ++) {
            add_new(tally, kind, class, out);
            add_timed(tally, &shared->ranks[0].counts.counts[kind][class], kind, class, out);
        }
    }
}

uint64_t cells_tally_ops(const struct cells_tally *tally)
{
    return tally->ops;
}

uint64_t cells_tally_bytes(const struct cells_tally *tally)
{
    return tally->bytes;
}

uint64_t cells_tally_submitted(const struct cells_tally *tally, uint32_t rank)
{
    return tally->ranks[rank].published;
}

uint64_t cells_tally_completed(const struct cells_tally *tally, uint32_t rank)
{
    return tally->ranks[rank].ops;
}
