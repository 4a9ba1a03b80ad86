#ifndef DAEMON_COLL_STAGE_INTERNAL_H
#define DAEMON_COLL_STAGE_INTERNAL_H

#include "daemon/coll/slice.h"
#include "daemon/coll/stage.h"

/* What the source files of stage plans share. Private to daemon/coll. */

#define STAGE_STRIP_MULTIPLE 64u /* elements: a multiple of the processors' vector widths */

/* One slice of an operation. */
struct stage_slice {
    const struct coll_stage_op *op;
    uint64_t index;
    uint64_t offset_elements; /* kinds without blocks: where the slice begins in the operation's vector */
    uint64_t count_elements;  /* kinds without blocks: elements of the slice */
    uint64_t strip_begin; /* scans: the part of the slice that is being planned, and its number of elements */
    uint64_t strip_elements;
};

/* A plan under construction: the current piece, and the function that takes it. */
struct stage_plan {
    struct stage_slice slice;
    coll_stage_emit *emit;
    void *context;
    struct coll_stage_cursor *at;
    uint32_t looks;                /* parts, blocks or pairs that this call may still look at */
    bool stopped;                  /* emit asked to stop */
    uint64_t slot_elements;        /* STAGED sums: distance between the parts of two domains */
    struct coll_stage_piece piece; /* the last member: its places are written only as needed */
};

/* --- Places --- */

static inline struct coll_stage_place stage_input(uint32_t rank, uint64_t offset_elements)
{
    return (struct coll_stage_place){
        .buffer = COLL_STAGE_INPUT, .rank = rank, .offset_elements = offset_elements};
}

static inline struct coll_stage_place stage_output(uint32_t rank, uint64_t offset_elements)
{
    return (struct coll_stage_place){
        .buffer = COLL_STAGE_OUTPUT, .rank = rank, .offset_elements = offset_elements};
}

static inline struct coll_stage_place stage_memory(uint64_t offset_elements)
{
    return (struct coll_stage_place){.buffer = COLL_STAGE_MEMORY, .offset_elements = offset_elements};
}

static inline struct coll_stage_place stage_scaled(struct coll_stage_place place, uint32_t rank)
{
    place.scaled = true;
    place.rank = rank;
    return place;
}

/* --- Pieces --- */

static inline void stage_piece(struct stage_plan *plan, enum coll_stage_action action,
                               uint64_t count_elements)
{
    plan->piece.action = action;
    plan->piece.domain = COLL_STAGE_HOST;
    plan->piece.near = COLL_STAGE_ALL;
    plan->piece.count_elements = count_elements;
    plan->piece.source_count = 0;
    plan->piece.target_count = 0;
}

static inline void stage_source(struct stage_plan *plan, struct coll_stage_place place)
{
    plan->piece.sources[plan->piece.source_count++] = place;
}

static inline void stage_target(struct stage_plan *plan, struct coll_stage_place place)
{
    plan->piece.targets[plan->piece.target_count++] = place;
}

/*
 * Elements of the next piece, given `left` equal elements and `places` places for each. Several pieces are as
 * good as one here, so a long piece is cut. GPUs get whole pieces, and slices within a node are short anyway.
 */
static inline uint64_t stage_strip(const struct coll_stage_op *op, uint64_t left, uint64_t places)
{
    uint64_t strip = op->strip_bytes / op->element_bytes / places;
    strip -= strip > STAGE_STRIP_MULTIPLE ? strip % STAGE_STRIP_MULTIPLE : 0;
    strip += strip == 0 ? 1 : 0;
    return op->mode != COLL_STAGE_UNSTAGED || left < strip ? left : strip;
}

/* Call before the next part, block or pair: returns whether this call continues. */
static inline bool stage_goes_on(struct stage_plan *plan)
{
    return !plan->stopped && plan->looks-- > 0;
}

/* Emits the piece, unless it is empty. Staged: emits one piece for each domain that has a part in it. */
void stage_put(struct stage_plan *plan);

/* One source to one target. */
static inline void stage_put_copy(struct stage_plan *plan, struct coll_stage_place source,
                                  struct coll_stage_place target, uint64_t count_elements)
{
    stage_piece(plan, COLL_STAGE_COPY, count_elements);
    stage_source(plan, source);
    stage_target(plan, target);
    stage_put(plan);
}

/* Like stage_put_copy, but collects copies of equal length into one piece. Call stage_put_gathered
 * afterwards, in the same call. */
void stage_put_each(struct stage_plan *plan, struct coll_stage_place source, struct coll_stage_place target,
                    uint64_t count_elements);
void stage_put_gathered(struct stage_plan *plan);

/* Puts a COLL_STAGE_SCATTER, after what stage_put_each has collected. */
void stage_put_scatter(struct stage_plan *plan, struct coll_stage_place source,
                       struct coll_stage_place target, uint32_t rank_count, uint64_t count_elements);

/* How results reach the outputs. */
static inline enum coll_stage_action stage_result_action(const struct coll_stage_op *op)
{
    return op->divides ? COLL_STAGE_DIVIDE : COLL_STAGE_COPY;
}

/* --- Who and where --- */

static inline bool stage_is_root_node(const struct coll_stage_op *op)
{
    return op->map->local_of_rank[op->terms->root_rank] != UINT32_MAX;
}

static inline uint32_t stage_root_local(const struct coll_stage_op *op)
{
    return op->map->local_of_rank[op->terms->root_rank];
}

/* Where the block of `rank` begins in a buffer with that layout, and how many elements it has there. */
static inline uint64_t stage_block_begin(const struct coll_stage_op *op, const struct coll_layout *layout,
                                         uint32_t rank)
{
    return layout->displacements != NULL ? layout->displacements[rank] : rank * op->terms->count_elements;
}

/* The same in the buffers `entry`, an index into ranks, which belong to one of several operations. */
static inline uint64_t stage_own_block_begin(const struct coll_stage_op *op, uint32_t entry,
                                             const struct coll_layout *layout, uint32_t rank)
{
    return layout->displacements != NULL ? layout->displacements[rank]
                                         : rank * op->part_counts[entry / op->map->local_count];
}

static inline uint64_t stage_layout_count(const struct coll_stage_op *op, const struct coll_layout *layout,
                                          uint32_t rank)
{
    return layout->counts != NULL ? layout->counts[rank] : op->terms->count_elements;
}

/* The slice's part of a block of count elements. */
static inline void stage_block_part(const struct stage_slice *slice, uint64_t count_elements,
                                    uint64_t *offset_elements, uint64_t *part_elements)
{
    if (slice->op->slice_count == 1) {
        *offset_elements = 0;
        *part_elements = count_elements;
    } else {
        coll_part_range(count_elements, (uint32_t)slice->op->slice_count, (uint32_t)slice->index,
                        offset_elements, part_elements);
    }
}

/* How many of the `part` elements from `offset` on lie within a block of `limit` elements. */
static inline uint64_t stage_within(uint64_t offset, uint64_t part, uint64_t limit)
{
    uint64_t left = limit > offset ? limit - offset : 0;
    return part < left ? part : left;
}

/* --- The families: step functions return whether the step is done --- */

/* Kinds without blocks, which are cut along their one vector: all_reduce, reduce, broadcast. */
bool stage_vector_step(struct stage_plan *plan, enum coll_stage_step step);
/* in_input: the only local rank's input instead of the vector. */
void stage_vector_lay_out(const struct stage_slice *slice, bool in_input, coll_stage_extent *extent,
                          void *context);

/* Kinds with a block for each rank: all_gather, reduce_scatter, gather, scatter. */
bool stage_blocks_step(struct stage_plan *plan, enum coll_stage_step step);
uint64_t stage_blocks_measure(const struct stage_slice *slice, uint64_t *offsets);
void stage_blocks_lay_out(const struct stage_slice *slice, coll_stage_extent *extent, void *context);
void stage_blocks_lay_out_input(const struct stage_slice *slice, coll_stage_extent *extent, void *context);

/* all_to_all: a block for each pair of ranks. */
bool stage_pairs_step(struct stage_plan *plan, enum coll_stage_step step);
/* Elements of all pairs of ranks of this node, approximately: if there are many pairs, only some are counted.
 * Returns UINT64_MAX if the number exceeds 64 bits. */
uint64_t stage_pairs_total(const struct coll_stage_op *op);
/* Finds where each node's blocks begin in what this node sends, and in what it receives. Returns false if
 * another call must do the rest. */
bool stage_pairs_measure(const struct stage_slice *slice, struct coll_stage_cursor *at, uint64_t *sent,
                         uint64_t *received);
/* Whether the vectors lie in the slice's memory, and how much of it they need. */
bool stage_pairs_in_memory(const struct coll_stage_op *op);
uint64_t stage_pairs_memory(const struct stage_slice *slice);
bool stage_pairs_lay_out(const struct stage_slice *slice, enum coll_space space, struct coll_stage_cursor *at,
                         coll_stage_extent *extent, void *context);

/* scan, exclusive_scan. */
bool stage_scan_step(struct stage_plan *plan, enum coll_stage_step step);
uint64_t stage_scan_memory(const struct stage_slice *slice);
void stage_scan_lay_out(const struct stage_slice *slice, coll_stage_extent *extent, void *context);
bool stage_scan_gathers(const struct coll_stage_op *op);

/* Whether sums begin within each domain, and the host then combines the domains' sums. */
static inline bool stage_has_slots(const struct coll_stage_op *op)
{
    return op->mode == COLL_STAGE_STAGED &&
           (op->terms->kind == OP_KIND_ALL_REDUCE || op->terms->kind == OP_KIND_REDUCE ||
            op->terms->kind == OP_KIND_REDUCE_SCATTER);
}
/* The number of domains that hold the inputs of one part. */
uint32_t stage_slots(const struct coll_stage_op *op, uint32_t part);

/* The family that plans a kind. A barrier has no buffers, and messages have no plans: STAGE_NONE. */
enum stage_family { STAGE_NONE, STAGE_VECTOR, STAGE_BLOCKS, STAGE_PAIRS, STAGE_SCAN };

#endif
