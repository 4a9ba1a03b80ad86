#ifndef TESTS_LIB_STAGE_MODEL_H
#define TESTS_LIB_STAGE_MODEL_H

#include "daemon/base/random.h"
#include "daemon/coll/registry.h"
#include "daemon/coll/stage.h"

/*
 * Proves stage plans. Runs an operation of a few nodes on symbolic values, by its stage plans and its
 * schedule. Whatever may happen in any order happens in a random one. Then compares the outputs with the
 * meaning of the collective (MPI 4.1, chapter 6). A value knows which ranks contributed, in what order,
 * whether each was scaled, and whether it was divided.
 */

#define STAGE_CASE_RANKS_MAX 12
#define STAGE_CASE_NODES_MAX 5
#define STAGE_CASE_PARTS_MAX 3

/* One operation, as all nodes call it. The tables belong to one rank; they are indexed by the other rank. */
struct stage_case {
    enum op_kind kind;
    uint32_t size, node_count, root_rank;
    uint32_t node_of_rank[STAGE_CASE_RANKS_MAX];
    uint64_t count_elements;
    uint32_t part_count;
    uint64_t part_counts[STAGE_CASE_PARTS_MAX];
    bool has_layouts, divides, keeps_input;
    uint64_t slice_bytes, local_slice_elements; /* elements have one byte */
    const struct coll_algorithm *algorithm;     /* null: the first algorithm that serves */
    enum coll_stage_mode modes[STAGE_CASE_NODES_MAX];
    /* all_to_all: the limit of many_blocks is 0, so any number of blocks is many */
    bool has_many_blocks[STAGE_CASE_NODES_MAX];
    bool vectors_in_outputs; /* all_reduce: staged nodes set vector_ranks */
    uint64_t strip_bytes[STAGE_CASE_NODES_MAX];
    bool has_memory; /* only for COLL_STAGE_ALONE */
    struct {
        uint64_t input_counts[STAGE_CASE_RANKS_MAX], input_displacements[STAGE_CASE_RANKS_MAX];
        uint64_t output_counts[STAGE_CASE_RANKS_MAX], output_displacements[STAGE_CASE_RANKS_MAX];
        uint64_t count_elements;
        bool in_place, has_output;
        uint32_t input_domain, output_domain;
    } ranks[STAGE_CASE_RANKS_MAX];
};

/* Draws an operation on which all ranks agree. */
void stage_case_draw(struct stage_case *drawn, struct random *random);
/* Makes the tables of some ranks contradict those of others. */
void stage_case_contradict(struct stage_case *drawn, struct random *random);

/* A change that the model makes to one piece. */
enum stage_fault_kind { STAGE_FAULT_NONE, STAGE_FAULT_DROP, STAGE_FAULT_SHIFT, STAGE_FAULT_SWAP };
struct stage_fault {
    enum stage_fault_kind kind;
    uint64_t at;               /* number of the piece, counted over all nodes and steps */
    uint64_t pieces;           /* out: how many pieces there were */
    bool is_harmless;          /* out: there was no such piece, or the change makes no difference */
    enum coll_stage_step step; /* out: the step of the piece */
};

#define STAGE_TEXT_BYTES 256
/*
 * Runs an operation. If anything is wrong, returns false, with the reason in `why`. only_bounds: the tables
 * contradict each other, so only the ranges are checked.
 */
bool stage_case_run(const struct stage_case *drawn, struct random *random, bool only_bounds,
                    struct stage_fault *fault, char why[STAGE_TEXT_BYTES]);

/* Describes the operation in words. */
void stage_case_describe(const struct stage_case *drawn, char text[STAGE_TEXT_BYTES]);

#endif
