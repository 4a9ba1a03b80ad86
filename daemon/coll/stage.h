#ifndef DAEMON_COLL_STAGE_H
#define DAEMON_COLL_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/coll/map.h"
#include "daemon/coll/schedule.h"
#include "proto/op_terms.h"

/*
 * The local stage as data: what one node's ranks copy, reduce and divide among themselves for one slice, and
 * where the slice's vectors lie. A pure function of the operation, like the schedule of the net stage: no
 * allocation, clock or I/O. Thread-safe.
 *
 * A plan has up to four steps, each a list of pieces in an order that is to be kept:
 *   LOCAL    what needs neither another node nor the slice's vectors;
 *   IN       from the ranks' inputs to the vectors, before the schedule's first round;
 *   COMBINE  staged: what the host does once everything of IN has arrived;
 *   OUT      from the vectors to the ranks' outputs, after the last round.
 * An operation that runs ALONE has nothing but LOCAL; the others have LOCAL for the part of an all_to_all
 * that stays on the node, in slices of its own (coll_stage_local_slices).
 *
 * What a runner may rely on, and tests prove:
 *   - a piece reads and writes only ranges that its rank gave (its own counts and displacements), also where
 *     the tables of two ranks contradict each other: the smaller count holds;
 *   - inputs are never written, but where the caller gave one buffer as both;
 *   - the sources of a reduction are in rank order, or in the order of the domains' first ranks;
 *   - slices of one operation touch no element of each other's, so they may run at the same time;
 *   - staged: a piece of another domain than the host's may run at any time until the step's end, in the
 *     order of its domain.
 */

/* Ranks of one communicator on one node: sources, and targets, of one piece. */
#define COLL_STAGE_PLACES_MAX 1024
/* Sets of buffers that one engine reaches: the host's, and those of GPUs. */
#define COLL_STAGE_DOMAINS_MAX 64
#define COLL_STAGE_HOST 0

/* coll_stage_piece.near of a piece that all of a domain's GPUs share. */
#define COLL_STAGE_ALL UINT32_MAX

/* Pairs of an all_to_all within a node that one local slice goes through: elements of each, at least. */
#define COLL_STAGE_PAIR_BYTES 64
/* Between nodes, what a piece on the host touches, of kinds without blocks: about 50 us of work. */
#define COLL_STAGE_STRIP_BYTES (UINT64_C(512) << 10)
/* An all_to_all of more blocks than this goes other ways. With layouts, and so many pairs on the node, a
 * local slice is what one rank sends. Unstaged, with so many blocks between this node's ranks and all others,
 * small blocks are packed into the slice's memory: a table of where each lies would cost more. Small blocks
 * have COLL_STAGE_PACKED_BLOCK_BYTES at most, in the mean. */
#define COLL_STAGE_MANY_BLOCKS 4096u
#define COLL_STAGE_PACKED_BLOCK_BYTES 256u
#define COLL_STAGE_EACH_BYTES 65536u /* of all that one COPY_EACH copies; a larger block goes by itself */

enum coll_stage_mode {
    COLL_STAGE_ALONE,    /* one node, all buffers within one domain: from inputs straight to outputs */
    COLL_STAGE_UNSTAGED, /* the vectors lie in the ranks' buffers where these have all of it */
    COLL_STAGE_STAGED    /* the vectors lie in the slice's memory; buffers are in several domains */
};

enum coll_stage_step { COLL_STAGE_LOCAL, COLL_STAGE_IN, COLL_STAGE_COMBINE, COLL_STAGE_OUT };

/* Counts and displacements of one rank's buffer, by rank, in elements. Both null: blocks are equal and follow
 * each other. */
struct coll_layout {
    const uint64_t *counts;
    const uint64_t *displacements;
};

/* One buffer pair of a rank of this node. */
struct coll_stage_rank {
    struct coll_layout input_layout;
    struct coll_layout output_layout;
    uint64_t count_elements; /* gather, scatter: of this rank's own block, when there are layouts */
    bool has_output;         /* broadcast: this rank's output is to be written */
    uint32_t input_domain, output_domain; /* STAGED; below COLL_STAGE_DOMAINS_MAX */
};

/* What is the same for all slices of an operation. */
struct coll_stage_op {
    const struct coll_map *map;
    struct op_terms terms; /* not a message's; as exec_call has them */
    enum coll_stage_mode mode;
    bool has_memory;  /* ALONE: coll_stage_memory_elements of it; otherwise always */
    bool divides;     /* the result is divided: avg */
    bool keeps_input; /* UNSTAGED, one local rank, whose contribution is its input as it is: that is not
                         copied, but named as where the vector's first values lie (coll_stage_lends_input) */
    const uint64_t *part_counts;         /* bucket_ops: elements of each */
    const struct coll_stage_rank *ranks; /* bucket_ops × local_count: of each part, ascending */
    uint64_t total_elements;             /* coll_stage_total */
    uint64_t element_bytes;
    uint64_t slice_bytes; /* of kinds without blocks, which are cut by it */
    uint64_t slice_count;
    uint64_t local_slice_elements;             /* coll_stage_local_slice_elements */
    uint64_t many_blocks;                      /* COLL_STAGE_MANY_BLOCKS; tests have others */
    uint64_t strip_bytes;                      /* COLL_STAGE_STRIP_BYTES; likewise */
    uint64_t sent_elements, received_elements; /* all_to_all with layouts: once coll_stage_measure is over */
};

enum coll_stage_buffer {
    COLL_STAGE_INPUT,  /* of a rank */
    COLL_STAGE_OUTPUT, /* of a rank */
    COLL_STAGE_MEMORY  /* of the slice: what lies in no rank's buffer */
};

struct coll_stage_place {
    enum coll_stage_buffer buffer;
    uint32_t rank; /* index into coll_stage_op.ranks: whose buffer; or, of MEMORY, whose value when scaled */
    uint64_t offset_elements;
    bool scaled; /* a source: premul_sum multiplies it by that rank's factor first */
};

enum coll_stage_action {
    COLL_STAGE_COPY,      /* the one source to every target */
    COLL_STAGE_COPY_EACH, /* each source to the target of the same number: of many blocks, on the host */
    COLL_STAGE_REDUCE,    /* the sources, folded from the first to the last, to every target */
    COLL_STAGE_DIVIDE     /* the same, divided by the operation's divisor */
};

/* One source may be one target, element by element; no other places of a piece overlap. */
struct coll_stage_piece {
    enum coll_stage_action action;
    uint32_t domain;         /* STAGED: who carries it out */
    uint32_t near;           /* index into ranks: whose GPU is to do it; or COLL_STAGE_ALL */
    uint64_t count_elements; /* > 0 */
    uint32_t source_count;   /* 1..COLL_STAGE_PLACES_MAX */
    uint32_t target_count;   /* likewise */
    struct coll_stage_place sources[COLL_STAGE_PLACES_MAX];
    struct coll_stage_place targets[COLL_STAGE_PLACES_MAX];
};

/* Takes one piece, which is the plan's again when it returns. False: no more for now, but what was begun: the
 * other domains' parts of a piece, or the last block of many. */
typedef bool coll_stage_emit(void *context, const struct coll_stage_piece *piece);

/* How far a step has come; zero before its first piece. */
struct coll_stage_cursor {
    uint32_t phase;
    uint32_t node, local;
    uint64_t item;   /* the next part, block or pair */
    uint64_t begin;  /* elements before it */
    uint64_t base;   /* where what this phase goes through begins in the slice's memory */
    uint64_t within; /* elements of the part, or of the slice, that are done: of kinds without blocks */
};
/* Takes the next elements of a vector. */
typedef void coll_stage_extent(void *context, const struct coll_stage_place *place, uint64_t count_elements);

/* The whole vector's elements, as far as this node knows them: what slices are cut of. False: they do not fit
 * 64 bits. */
bool coll_stage_total(const struct coll_stage_op *op, uint64_t *out) __attribute__((warn_unused_result));

/* Only the two sides of a transfer know its size: it is no pure function of what all nodes agree on. */
bool coll_stage_sizes_are_private(const struct coll_stage_op *op);

/* The kind of the operation's schedule: its own; a scan of ranks that are not contiguous gathers. */
enum op_kind coll_stage_schedule_kind(enum op_kind kind, const struct coll_map *map);

/* Whether a node may come to the end of the data without word of every other node. */
bool coll_stage_needs_agreement(const struct coll_stage_op *op);

/* ALONE: elements of all buffers that the operation reads and writes; 0 where it reads again at once what it
 * has written, so that it had better stay in the caches. */
uint64_t coll_stage_touched_elements(const struct coll_stage_op *op);

/*
 * In place: the first element of a rank's input, or of its output, is that one of its other buffer. False:
 * the kind has no such form.
 */
bool coll_stage_in_place(const struct coll_stage_op *op, uint32_t rank, struct coll_stage_place *first,
                         struct coll_stage_place *same);

/* Kinds without blocks: the slice's first element in the operation's vector. */
uint64_t coll_stage_slice_offset(const struct coll_stage_op *op, uint64_t slice);

/* Elements of the block of the rank at `position`, as far as this node knows. */
uint64_t coll_stage_block_count(const struct coll_stage_op *op, uint32_t position);

/*
 * ALONE: about how many bytes of the vector a slice is to have, so that what all ranks bring to it is at most
 * most_bytes, and the slice at most slice_bytes. Only kinds without blocks: with many ranks, a block's part
 * of a small slice is too short.
 */
uint64_t coll_stage_alone_slice_bytes(const struct coll_stage_op *op, uint64_t slice_bytes,
                                      uint64_t most_bytes);

/*
 * The all_to_all within a node: elements of each of its slices, for about slice_bytes; at least
 * COLL_STAGE_PAIR_BYTES for each pair of ranks. And how many slices that makes: 0 where nothing is to be done
 * (another kind, or staged); of an operation that runs ALONE it is its slice_count. Takes no longer with more
 * pairs: see COLL_STAGE_MANY_BLOCKS.
 */
uint64_t coll_stage_local_slice_elements(const struct coll_stage_op *op, uint64_t slice_bytes);
uint64_t coll_stage_local_slices(const struct coll_stage_op *op);

/*
 * Counts how much of the slice goes to each node, and how much comes from it, into offsets, which has
 * 2 × (node_count + 1) entries. It begins at the cursor, and returns whether it is over: if not, it is called
 * again later, as coll_stage_plan is. The functions below need a slice that is measured.
 */
bool coll_stage_measure(struct coll_stage_op *op, uint64_t slice, struct coll_stage_cursor *cursor,
                        uint64_t *offsets) __attribute__((warn_unused_result));

/* What the schedule needs to know of the slice: the call of the asking node, which refers to the offsets;
 * root_node and blocks_are_equal are the caller's. */
struct coll_call coll_stage_call(const struct coll_stage_op *op, uint64_t slice, const uint64_t *offsets);

/* Elements of the slice's memory, the schedule's scratch aside. */
uint64_t coll_stage_memory_elements(const struct coll_stage_op *op, uint64_t slice);

/* Where the slice's vector lies (COLL_WORK), or what an all_to_all sends (COLL_INPUT): its extents, in order,
 * from the cursor on; at most coll_stage_extents_max of them. Returns whether it is over, as above. */
bool coll_stage_lay_out(const struct coll_stage_op *op, uint64_t slice, enum coll_space space,
                        struct coll_stage_cursor *cursor, coll_stage_extent *extent, void *context)
    __attribute__((warn_unused_result));
uint32_t coll_stage_extents_max(const struct coll_stage_op *op, enum coll_space space);

/*
 * keeps_input: where the first values of COLL_WORK lie, element by element, until the schedule writes them;
 * IN has no pieces. False: the vector holds its first values after IN.
 */
bool coll_stage_lends_input(const struct coll_stage_op *op);
void coll_stage_lay_out_input(const struct coll_stage_op *op, uint64_t slice, coll_stage_extent *extent,
                              void *context);

/* Whether OUT writes where the schedule's sends may still be read from. */
bool coll_stage_out_writes_vector(const struct coll_stage_op *op);

/*
 * The pieces of one step of a slice, from the cursor on; LOCAL of UNSTAGED: of one of
 * coll_stage_local_slices. Returns whether the step is over: when emit wants no more, it is called again
 * later. What one part, block or pair has comes in one call, a scan as a whole; and a call looks at no more
 * than COLL_STAGE_LOOKS of them, so it takes a bounded time, whatever counts ranks give.
 */
#define COLL_STAGE_LOOKS 4096u
bool coll_stage_plan(const struct coll_stage_op *op, enum coll_stage_step step, uint64_t slice,
                     struct coll_stage_cursor *cursor, coll_stage_emit *emit, void *context)
    __attribute__((warn_unused_result));

#endif
