#ifndef DAEMON_COMM_CELLS_INTERNAL_H
#define DAEMON_COMM_CELLS_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/node_cells.h"

/* Shared by cells.c, which makes the cells of all communicators, and node_cells.c. */

struct cells_tally;

struct comms_cells {
    struct cells_shared *shared; /* on one node without the longer data */
    size_t mapped_bytes;
    struct cells_tally *tally; /* null between nodes: commd carries out the operations itself */
    uint32_t rank_count;       /* local ranks */
    int fd;                    /* -1 once every rank has it */
    uint32_t given;
    bool retired;
    bool over;           /* it stays retired */
    uint64_t resume_seq; /* retired: once each rank has given commd this operation, or a later one, it ends */
    uint64_t read_ns;    /* when the counts were last read */
    uint64_t seen_seq, seen_ns; /* the operation for which ranks waited at the last look, and since when */

    bool between_nodes;
    struct node_cells node;
    bool awake;                                /* commd looks at it in every turn */
    uint64_t used_ns;                          /* when it last took an operation */
    uint64_t taken_seq;                        /* the last one */
    struct comms_cells *bell_prev, *bell_next; /* in comms->bells: it has answers, and has not rung yet */
    uint64_t bell_seq; /* the highest number of these answers; UINT64_MAX: ranks must submit an operation */
};

#endif
