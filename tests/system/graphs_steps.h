#ifndef TESTS_SYSTEM_GRAPHS_STEPS_H
#define TESTS_SYSTEM_GRAPHS_STEPS_H

#include <commclient.h>

#include "tests/system/gpu_rank.h"

/* The operations in the CUDA graphs of graphs.c, of every kind. Their data differ for each rank, replay, kind
 * and element. */

enum step_kind {
    STEP_ALL_REDUCE,
    STEP_ALL_REDUCE_IN_PLACE,
    STEP_ALL_REDUCE_FLOAT,
    STEP_ALL_REDUCE_HOST, /* in memory of comm_mem_alloc on the host */
    STEP_REDUCE,
    STEP_BROADCAST,
    STEP_ALL_GATHER,
    STEP_ALL_GATHER_IN_PLACE,
    STEP_ALL_GATHER_V,
    STEP_ALL_GATHER_LIST,
    STEP_REDUCE_SCATTER,
    STEP_GATHER,
    STEP_SCATTER,
    STEP_ALL_TO_ALL,
    STEP_ALL_TO_ALL_IN_PLACE,
    STEP_SCAN,
    STEP_EXCLUSIVE_SCAN,
    STEP_RING,  /* a send and a receive, in a group */
    STEP_GROUP, /* two all-reduces, in a group */
    STEP_KINDS
};

#define STEP_POISON 0xdeadbeefu

/* Where a step's data are. In place, both are the same. */
struct step {
    enum step_kind kind;
    size_t count;                 /* elements of a block */
    uint32_t *send, *receive;     /* for the operation */
    size_t sends, receives;       /* elements of these buffers */
    uint32_t *host_in, *host_out; /* pinned memory of as many elements */
};

/* To be called first: who this rank is. Makes the GPU's context current. */
void steps_begin(uint32_t own_rank, uint32_t ranks, int device);
/* Allocates the step's buffers. */
void step_make(struct step *step, enum step_kind kind, comm_client_t *client, int device);
/* Puts the operation on the stream. */
comm_result_t step_run(const struct step *step, comm_t *comm, cuda_stream stream);
/* Puts the data of a replay on the stream, and poison where results come. */
void step_fill(const struct step *step, uint32_t replay, cuda_stream stream);
/* Puts on the stream the copy of the results to the host. */
void step_fetch(const struct step *step, cuda_stream stream);
/* Checks every element of the results. The stream must have finished this step. A wrong element ends the
 * process. */
void step_check(const struct step *step, uint32_t replay);
/* Adds the bits of results that are the same on all ranks. */
uint64_t step_digest(const struct step *step, uint64_t digest);
const char *step_name(enum step_kind kind);

#endif
