#ifndef TESTS_LIB_STAGE_MODEL_INTERNAL_H
#define TESTS_LIB_STAGE_MODEL_INTERNAL_H

#include "tests/lib/stage_model.h"

/* What the files of the model share. */

/* --- Values --- */

enum value_kind {
    VALUE_JUNK,  /* nothing that an operation may read */
    VALUE_RAW,   /* an element of an input, unchanged */
    VALUE_SUM,   /* a sum of ranks' elements, each scaled */
    VALUE_RESULT /* a sum that was also divided */
};

struct value {
    enum value_kind kind;
    bool ordered;    /* every fold had the lower ranks on its left */
    uint32_t block;  /* the number of the operation's block, or part, */
    uint64_t offset; /* and of the element in it */
    uint64_t ranks;  /* the ranks that contributed, one bit each */
    uint64_t hash;   /* a hash of the expression: equal expressions have equal bits */
};

struct cell {
    struct value value;
    bool read_only;
    uint32_t writes;
    bool sent; /* the network may still read it at any time */
};

/* --- The world --- */

#define SPACES 3

struct slice_state {
    uint64_t memory; /* place in the heap */
    uint64_t memory_elements;
    struct coll_call call;
    uint64_t offsets[2 * (STAGE_CASE_NODES_MAX + 1)];
    uint64_t *maps[SPACES]; /* by element: its place in the heap */
    uint64_t counts[SPACES];
    uint64_t *origin; /* keeps_input: the same for the first values of COLL_WORK */
    bool *fresh;      /* which elements of COLL_WORK still have that value */
};

struct node {
    struct coll_map map;
    struct op_terms terms;
    struct coll_stage_op op;
    struct coll_stage_rank ranks[STAGE_CASE_RANKS_MAX * STAGE_CASE_PARTS_MAX];
    uint64_t input[STAGE_CASE_RANKS_MAX * STAGE_CASE_PARTS_MAX];
    uint64_t input_elements[STAGE_CASE_RANKS_MAX * STAGE_CASE_PARTS_MAX];
    uint64_t output[STAGE_CASE_RANKS_MAX * STAGE_CASE_PARTS_MAX];
    uint64_t output_elements[STAGE_CASE_RANKS_MAX * STAGE_CASE_PARTS_MAX];
    struct cell *heap;
    uint64_t heap_elements;
    struct slice_state *slices;
};

#define DEFERRED_MAX 4096

struct world {
    const struct stage_case *drawn;
    struct random *random;
    bool only_bounds;
    struct stage_fault *fault;
    struct node nodes[STAGE_CASE_NODES_MAX];
    /* About the step under way: */
    struct node *node;
    uint64_t slice;
    enum coll_stage_step step;
    struct coll_stage_piece *deferred[DEFERRED_MAX]; /* pieces of other domains than the host's, in order */
    uint32_t deferred_count;
    bool failed;
    char *why;
};

/* Notes what is wrong. Only the first call counts. */
void stage_wrong(struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Returns zeroed memory. The program ends if there is none. */
void *stage_need(size_t count, size_t size);

/* A block in a rank's input or output: its first element, and how many there are. part: the operation of
 * several that run as one. */
struct stage_block {
    uint64_t begin, count;
};
struct stage_block stage_input_block(const struct stage_case *drawn, uint32_t rank, uint32_t part,
                                     uint32_t other);
struct stage_block stage_output_block(const struct stage_case *drawn, uint32_t rank, uint32_t part,
                                      uint32_t other);

uint64_t stage_heap_add(struct node *node, uint64_t elements);
/* Makes a node, its ranks, and their buffers. */
void stage_node_init(struct world *world, uint32_t index);
void stage_node_free(struct node *node);

/* left (op) right. A null operand means that there is nothing yet. */
struct value stage_fold(struct world *world, const struct value *left, const struct value *right);
uint64_t stage_mix(uint64_t a, uint64_t b);
uint64_t stage_heap_place(const struct world *world, const struct coll_stage_place *place);
bool stage_place_is_wrong(struct world *world, const struct coll_stage_place *place, uint64_t count);
/* stage_model_pieces.c */
void stage_run_step(struct world *world, uint32_t node, uint64_t slice, enum coll_stage_step step);
/* stage_model_net.c: runs the net stage of a slice; checks that outputs hold what they must. */
void stage_net(struct world *world, uint64_t slice);
void stage_check_end(struct world *world);

#endif
