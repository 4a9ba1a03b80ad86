#ifndef DAEMON_COLL_SCHEDULE_H
#define DAEMON_COLL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/types.h"

/*
 * The net stage as data. A schedule is a pure function of an agreed call: nothing is stored, and every node
 * computes the rounds that it needs, when it needs them, without allocation, clock or I/O.
 *
 * One schedule serves one slice (one lane). Rounds of a lane run strictly in order:
 *   - the sends of round r may leave once every receive of the rounds before r is done;
 *   - the receives of round r are consumed once every receive of the rounds before r is done, and, within the
 *     round, in the order listed, so that a reduction always has one fixed order;
 *   - messages from one node to another within a lane arrive in the order sent, and the k-th message that A
 *     sends to B is the k-th that B receives from A, with the same count.
 * Offsets and counts are elements relative to the slice's start. A transfer of zero elements is a message
 * without payload (barrier); schedules of data leave empty transfers out, on both sides.
 */

#define COLL_NODES_MAX 16384

enum coll_action {
    COLL_STORE,         /* received elements replace what is there */
    COLL_REDUCE,        /* what is there (op) received replaces what is there */
    COLL_REDUCE_BEFORE, /* received (op) what is there: so that two nodes that exchange fold in one order */
    COLL_PREFIX /* scans: received (op) running replaces the running value, and received (op) prefix the
                   prefix; where the prefix holds nothing yet, received replaces it */
};

/* Where a transfer's elements lie on its node: offsets count within the space. */
enum coll_space {
    COLL_WORK,   /* the slice's vector, see coll_call */
    COLL_INPUT,  /* all_to_all: what this node sends, by destination node; never written */
    COLL_SCRATCH /* coll_algorithm.scratch_elements of it, undefined at first */
};

/* `node` is the other side; `action` is what the receiver does, sends carry it too, for the check. `space` is
 * that of the node whose transfer it is: a send reads there, a receive writes there. */
struct coll_transfer {
    uint32_t node;
    enum coll_action action;
    enum coll_space space;
    uint64_t offset_elements;
    uint64_t count_elements;
};

/*
 * What all nodes agree on, and which of them asks. The slice's vector (COLL_WORK), before and after:
 *   all_reduce      count elements, contributed         -> reduced over all nodes, on every node
 *   reduce          count elements, contributed         -> reduced, on root_node (elsewhere: anything)
 *   broadcast       count elements, on root_node, which writes none of them -> the same on every node
 *   barrier         no elements
 *   all_gather      own block                           -> all blocks, on every node
 *   gather          own block, never written            -> all blocks, on root_node (elsewhere: anything)
 *   scatter         all blocks, on root_node, which writes none of them -> own block
 *   reduce_scatter  all blocks, contributed             -> own block, reduced (the others: anything)
 *   all_to_all      COLL_INPUT has a block for each node -> COLL_WORK has a block of each node; the own
 *                   one is not the schedule's: the executor copies it
 *   scan            elements 0..count-1 the running value: contributed; elements count..2*count-1 the prefix:
 *                   undefined                           -> the prefix: reduced over the nodes below this one,
 * in order (node 0: undefined); the running value: anything. Exclusive scans are the same. Blocks lie in the
 * order of the nodes, without gaps, of any size, also zero: block i is elements block_offsets[i] ..
 * block_offsets[i + 1] - 1 of the vector.
 */
struct coll_call {
    enum op_kind kind;
    uint32_t node_count;     /* 1..COLL_NODES_MAX; one node needs no rounds */
    uint32_t node_index;     /* of the asking node, < node_count */
    uint32_t root_node;      /* broadcast, reduce, gather, scatter; otherwise 0 */
    uint64_t count_elements; /* of this slice's vector (scans: of each of the two) */
    const uint64_t
        *block_offsets; /* node_count + 1, the last is count_elements; null for kinds without blocks */
    const uint64_t *send_offsets; /* all_to_all: node_count + 1, of COLL_INPUT; otherwise null */
    bool blocks_are_equal;        /* all_to_all: every node has equal blocks for and of all; agreed */
    bool keeps_empty; /* direct gather and scatter, all_to_all: empty transfers are messages too, where only
                         the two sides know a block's size, so that they learn of a contradiction; agreed */
};

/* The transfers of one round; the arrays belong to the caller and hold coll_transfers_max entries each. */
struct coll_round {
    struct coll_transfer *sends;
    uint32_t send_count;
    struct coll_transfer *receives;
    uint32_t receive_count;
};

/*
 * What one slice costs, without running it: closed formulas, for blocks of equal size. coll_check counts the
 * same from the rounds. Elements are those of payloads; a scan's and an all_to_all's count is call's.
 */
struct coll_estimate {
    uint64_t rounds;
    uint64_t messages;       /* of the node that has most, sent or received */
    uint64_t senders;        /* the most nodes that send to one node in one round */
    double path_elements;    /* the sum over the rounds of the most that a node sends or receives in it */
    double busy_elements;    /* the most that a node sends in all rounds, or receives */
    double scratch_elements; /* the most that a node needs */
};

/* One algorithm: its name, what it serves, and its rounds as functions of the call. */
struct coll_algorithm {
    uint32_t id; /* goes over the wire: never renumbered */
    const char *name;
    const char *description; /* one line for people: when it is best, and its cost in rounds and bytes */
    enum op_kind kind;
    /*
     * The executor copies every payload when it sends it: the schedule may write at once to what it sent. For
     * algorithms of small messages alone.
     */
    bool copies_sends;
    bool (*serves)(const struct coll_call *call); /* null: every call of its kind */
    uint32_t (*round_count)(const struct coll_call *call);
    uint32_t (*transfers_max)(const struct coll_call *call);    /* per direction and round */
    uint64_t (*scratch_elements)(const struct coll_call *call); /* null: none */
    void (*round)(const struct coll_call *call, uint32_t round, struct coll_round *out);
    void (*estimate)(const struct coll_call *call, struct coll_estimate *out);
};

#endif
