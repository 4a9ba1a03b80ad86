#ifndef DAEMON_COLL_STAGE_H
#define DAEMON_COLL_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/coll/map.h"
#include "daemon/coll/schedule.h"
#include "proto/op_terms.h"

/*
 * The local stage as data: what the ranks of one node copy, reduce and divide among themselves for one slice,
 * and where the slice's vectors lie. It is a pure function of the operation, like the schedule of the net
 * stage: no allocation, clock or I/O. Thread-safe.
 *
 * A plan has up to four steps. Each is a list of pieces whose order must be kept:
 *   LOCAL    what needs neither another node nor the slice's vectors;
 *   IN       from the ranks' inputs to the vectors, before the schedule's first round;
 *   COMBINE  staged: what the host does once all data of IN have arrived;
 *   OUT      from the vectors to the ranks' outputs, after the last round.
 * An operation that runs ALONE has only LOCAL. Other operations have LOCAL for the part of an all_to_all that
 * stays on the node, in slices of its own (coll_stage_local_slices).
 *
 * What a runner may rely on, and tests prove:
 *   - a piece reads and writes only ranges that its rank gave (its own counts and displacements). If the
 *     tables of two ranks contradict each other, the smaller count is used;
 *   - inputs are never written, unless the caller gave one buffer as input and output;
 *   - the sources of a reduction are in rank order, or in the order of the domains' first ranks;
 *   - slices of one operation touch none of each other's elements, so they may run at the same time;
 *   - staged: a piece of a domain other than the host's may run at any time until the end of the step, in the
 *     order of its domain.
 */

/* Ranks of one communicator on one node: the most sources, and the most targets, of one piece. */
#define COLL_STAGE_PLACES_MAX 1024
/* Domains: sets of buffers that one engine reaches. One is the host's; the others are those of GPUs. */
#define COLL_STAGE_DOMAINS_MAX 64
#define COLL_STAGE_HOST 0

/* Value of coll_stage_piece.near: all GPUs of the domain share the piece. */
#define COLL_STAGE_ALL UINT32_MAX

/* all_to_all within a node: the least bytes of each pair of ranks that one local slice covers. */
#define COLL_STAGE_PAIR_BYTES 64
/* Kinds without blocks, between nodes: the most bytes that one piece on the host touches, about 50 us of
 * work. */
#define COLL_STAGE_STRIP_BYTES (UINT64_C(512) << 10)
/*
 * An all_to_all of more blocks than this is planned differently. With layouts, if the node has so many pairs,
 * a local slice is what one rank sends. Unstaged, if so many blocks go between this node's ranks and all
 * others, small blocks are packed into the slice's memory: a table of their places would cost more. Blocks
 * are small if their mean size is at most COLL_STAGE_PACKED_BLOCK_BYTES.
 */
#define COLL_STAGE_MANY_BLOCKS 4096u
#define COLL_STAGE_PACKED_BLOCK_BYTES 256u
#define COLL_STAGE_EACH_BYTES                                                                                \
    65536u /* of all that one COPY_EACH or SCATTER copies; larger blocks go alone                            \
            */

enum coll_stage_mode {
    COLL_STAGE_ALONE,    /* one node, all buffers within one domain: from inputs straight to outputs */
    COLL_STAGE_UNSTAGED, /* the vectors lie in the ranks' buffers, where these hold the whole vector */
    COLL_STAGE_STAGED    /* the vectors lie in the slice's memory, or see vector_ranks; buffers are in several
                            domains */
};

enum coll_stage_step { COLL_STAGE_LOCAL, COLL_STAGE_IN, COLL_STAGE_COMBINE, COLL_STAGE_OUT };

/* Counts and displacements of one rank's buffer, by rank, in elements. Both null: blocks are equal and lie
 * one after the other. */
struct coll_layout {
    const uint64_t *counts;
    const uint64_t *displacements;
};

/* One buffer pair of a rank of this node. */
struct coll_stage_rank {
    struct coll_layout input_layout;
    struct coll_layout output_layout;
    uint64_t count_elements; /* gather, scatter: of this rank's own block, when there are layouts */
    bool has_output;         /* broadcast: whether this rank's output must be written */
    uint32_t input_domain, output_domain; /* STAGED; below COLL_STAGE_DOMAINS_MAX */
};

/* The values that all slices of an operation share. */
struct coll_stage_op {
    const struct coll_map *map;
    const struct op_terms *terms; /* as in exec_call; never those of a message */
    enum coll_stage_mode mode;
    bool has_memory;  /* ALONE: whether slices have memory; otherwise true */
    bool divides;     /* the result is divided: avg */
    bool keeps_input; /* UNSTAGED, one local rank whose input is its contribution: the input is not copied,
                         but lent as the vector's first values (coll_stage_lends_input) */
    uint32_t
        vector_ranks; /* STAGED, all_reduce, all buffers in one domain, not the host's: the vector of slice
                         s lies in the output of local rank s modulo this; 0: in the slice's memory */
    const uint64_t *part_counts;         /* bucket_ops: elements of each part */
    const struct coll_stage_rank *ranks; /* bucket_ops × local_count: ascending in each part */
    uint64_t total_elements;             /* coll_stage_total */
    uint64_t element_bytes;
    uint64_t slice_bytes; /* slice size of kinds without blocks */
    uint64_t slice_count;
    uint64_t local_slice_elements;             /* coll_stage_local_slice_elements */
    uint64_t many_blocks;                      /* COLL_STAGE_MANY_BLOCKS; tests set other values */
    uint64_t strip_bytes;                      /* COLL_STAGE_STRIP_BYTES; likewise */
    uint64_t sent_elements, received_elements; /* all_to_all with layouts: set by coll_stage_measure */
};

enum coll_stage_buffer {
    COLL_STAGE_INPUT,  /* of a rank */
    COLL_STAGE_OUTPUT, /* of a rank */
    COLL_STAGE_MEMORY  /* of the slice: for data that lie in no rank's buffer */
};

struct coll_stage_place {
    enum coll_stage_buffer buffer;
    uint32_t rank; /* index into coll_stage_op.ranks: owner of the buffer; for a scaled place in MEMORY, of
                      the value */
    uint64_t offset_elements;
    bool scaled; /* a source: premul_sum multiplies it by that rank's factor first */
};

enum coll_stage_action {
    COLL_STAGE_COPY,      /* copies the one source to every target */
    COLL_STAGE_COPY_EACH, /* many blocks, on the host: copies each source to the target with the same index */
    COLL_STAGE_SCATTER,   /* many blocks, on the host: the source is the first of rank_count blocks in a row.
                             Copies block i to the target's place in the buffer of the target's rank + i */
    COLL_STAGE_REDUCE,    /* folds the sources, from the first to the last, into every target */
    COLL_STAGE_DIVIDE     /* like COLL_STAGE_REDUCE, then divides by the operation's divisor */
};

/* A source may also be a target, element by element. No other places of a piece overlap. */
struct coll_stage_piece {
    enum coll_stage_action action;
    uint32_t domain;         /* STAGED: the domain that carries it out */
    uint32_t near;           /* index into ranks: the rank whose GPU does it; or COLL_STAGE_ALL */
    uint64_t count_elements; /* of each place; > 0 */
    uint32_t rank_count;     /* SCATTER */
    uint32_t source_count;   /* 1..COLL_STAGE_PLACES_MAX */
    uint32_t target_count;   /* likewise */
    struct coll_stage_place sources[COLL_STAGE_PLACES_MAX];
    struct coll_stage_place targets[COLL_STAGE_PLACES_MAX];
};

/* Takes one piece; the plan owns the piece again on return. Returns false to stop for now. The plan still
 * emits what it has begun: the parts of the piece in other domains, or the last block of many. */
typedef bool coll_stage_emit(void *context, const struct coll_stage_piece *piece);

/* The progress of a step; all zero before its first piece. */
struct coll_stage_cursor {
    uint32_t phase;
    uint32_t node, local;
    uint64_t item;   /* the next part, block or pair */
    uint64_t begin;  /* elements before it */
    uint64_t base;   /* where the part of the slice's memory that this phase covers begins */
    uint64_t within; /* kinds without blocks: elements of the part, or of the slice, that are done */
};
/* Takes the next elements of a vector. */
typedef void coll_stage_extent(void *context, const struct coll_stage_place *place, uint64_t count_elements);

/* Counts the elements of the whole vector, as far as this node knows them: slices are cut from these. Returns
 * false if they do not fit 64 bits. */
bool coll_stage_total(const struct coll_stage_op *op, uint64_t *out) __attribute__((warn_unused_result));

/* Whether only the two sides of a transfer know its size, so it is no pure function of agreed values. */
bool coll_stage_sizes_are_private(const struct coll_stage_op *op);

/* The kind of the operation's schedule: the operation's own kind, except that a scan gathers if its ranks are
 * not contiguous. */
enum op_kind coll_stage_schedule_kind(enum op_kind kind, const struct coll_map *map);

/* Whether a rank's result depends on the ranks before it alone: scans. */
bool coll_stage_is_scan(const struct op_terms *terms);

/* Whether a node might finish the data without having heard from every other node. */
bool coll_stage_needs_agreement(const struct coll_stage_op *op);

/* ALONE: elements of all buffers that the operation reads and writes. Returns 0 if the operation soon reads
 * again what it has written, which then should stay in the caches. */
uint64_t coll_stage_touched_elements(const struct coll_stage_op *op);

/*
 * In place: the first element of a rank's input, or of its output, and the element of its other buffer that
 * is the same. Returns false if the kind has no such form.
 */
bool coll_stage_in_place(const struct coll_stage_op *op, uint32_t rank, struct coll_stage_place *first,
                         struct coll_stage_place *same);

/* Kinds without blocks: the slice's first element in the operation's vector. */
uint64_t coll_stage_slice_offset(const struct coll_stage_op *op, uint64_t slice);

/* Elements of the blocks of the rank at `position`, of all operations that run as one, as far as this node
 * knows them. Returns false if the number exceeds 64 bits. */
bool coll_stage_block_count(const struct coll_stage_op *op, uint32_t position, uint64_t *out);

/*
 * ALONE: how many bytes of the vector a slice should have, approximately. The inputs of all ranks to it are
 * then at most most_bytes, and the slice is at most slice_bytes. Only for kinds without blocks: with many
 * ranks, a block's part of a small slice is too short.
 */
uint64_t coll_stage_alone_slice_bytes(const struct coll_stage_op *op, uint64_t slice_bytes,
                                      uint64_t most_bytes);

/*
 * The all_to_all within a node: how many elements each of its slices has, for about slice_bytes, at least
 * COLL_STAGE_PAIR_BYTES for each pair of ranks; and how many slices that makes. The number of slices is 0
 * where nothing must be done (another kind, or staged). For an operation that runs ALONE it is slice_count.
 * More pairs do not take more time: see COLL_STAGE_MANY_BLOCKS.
 */
uint64_t coll_stage_local_slice_elements(const struct coll_stage_op *op, uint64_t slice_bytes);
uint64_t coll_stage_local_slices(const struct coll_stage_op *op);

/*
 * Counts how much of the slice goes to each node, and how much comes from it, into offsets, which has 2 ×
 * (node_count + 1) entries. Begins at the cursor. Returns whether it is done; if not, call it again later,
 * like coll_stage_plan. The functions below need a measured slice.
 */
bool coll_stage_measure(struct coll_stage_op *op, uint64_t slice, struct coll_stage_cursor *cursor,
                        uint64_t *offsets) __attribute__((warn_unused_result));

/* The call that the schedule needs for the slice: the asking node's. It refers to `offsets`. The caller sets
 * root_node and blocks_are_equal. */
struct coll_call coll_stage_call(const struct coll_stage_op *op, uint64_t slice, const uint64_t *offsets);

/* Elements of the slice's memory, without the schedule's scratch. */
uint64_t coll_stage_memory_elements(const struct coll_stage_op *op, uint64_t slice);

/*
 * Emits the extents, in order, of the slice's vector (COLL_WORK) or of what an all_to_all sends (COLL_INPUT),
 * from the cursor on. There are at most coll_stage_extents_max of them. Returns whether it is done, as above.
 */
bool coll_stage_lay_out(const struct coll_stage_op *op, uint64_t slice, enum coll_space space,
                        struct coll_stage_cursor *cursor, coll_stage_extent *extent, void *context)
    __attribute__((warn_unused_result));
uint32_t coll_stage_extents_max(const struct coll_stage_op *op, enum coll_space space);

/*
 * With keeps_input: returns whether the input holds the first values of COLL_WORK, element by element, until
 * the schedule writes them. IN then has no pieces. If false, the vector holds its first values after IN.
 */
bool coll_stage_lends_input(const struct coll_stage_op *op);
void coll_stage_lay_out_input(const struct coll_stage_op *op, uint64_t slice, coll_stage_extent *extent,
                              void *context);

/* Whether OUT writes memory from which the schedule's sends may still read. */
bool coll_stage_out_writes_vector(const struct coll_stage_op *op);

/*
 * Emits the pieces of one step of a slice, from the cursor on. LOCAL of UNSTAGED: of one of
 * coll_stage_local_slices. Returns whether the step is done. If emit stopped it, call it again later. One
 * call emits all pieces of a part, block or pair, and a whole scan. A call looks at no more than
 * COLL_STAGE_LOOKS parts, blocks or pairs, so its time is bounded, whatever counts ranks give.
 */
#define COLL_STAGE_LOOKS 4096u
bool coll_stage_plan(const struct coll_stage_op *op, enum coll_stage_step step, uint64_t slice,
                     struct coll_stage_cursor *cursor, coll_stage_emit *emit, void *context)
    __attribute__((warn_unused_result));

#endif
