#ifndef DAEMON_COLL_SCHEDULE_H
#define DAEMON_COLL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/types.h"

/*
 * The net stage as data. A schedule is a pure function of an agreed call. Nothing is stored: every node
 * computes the rounds it needs, when it needs them, without allocation, clock or I/O.
 *
 * One schedule serves one slice (one lane). Rounds of a lane run strictly in order:
 *   - a node may send the sends of round r once every receive of earlier rounds is done;
 *   - a node consumes the receives of round r once every receive of earlier rounds is done. Within the round
 * it consumes them in the listed order, so a reduction always has one fixed order;
 *   - messages from one node to another within a lane arrive in the order sent. The k-th message that A sends
 * to B is the k-th that B receives from A, with the same count. Offsets and counts are elements relative to
 * the slice's start. A transfer of zero elements is a message without payload (barrier). Schedules that move
 * data leave out empty transfers on both sides.
 */

#define COLL_NODES_MAX 16384

enum coll_action {
    COLL_STORE,         /* the received elements replace the present ones */
    COLL_REDUCE,        /* present (op) received replaces the present elements */
    COLL_REDUCE_BEFORE, /* received (op) present: two nodes that exchange data reduce in one order */
    COLL_PREFIX /* scans: received (op) running replaces the running value, and received (op) prefix replaces
                   the prefix. While the prefix holds nothing, received replaces it */
};

/* Where a transfer's elements lie on its node: offsets count within the space. */
enum coll_space {
    COLL_WORK,   /* the slice's vector, see coll_call */
    COLL_INPUT,  /* all_to_all: what this node sends, ordered by destination node; never written */
    COLL_SCRATCH /* coll_algorithm.scratch_elements elements, undefined at first */
};

/* `node` is the peer. `action` is what the receiver does; a send carries it too, for checks. `space` belongs
 * to the node that executes the transfer: a send reads there, a receive writes there. */
struct coll_transfer {
    uint32_t node;
    enum coll_action action;
    enum coll_space space;
    uint64_t offset_elements;
    uint64_t count_elements;
};

/*
 * What all nodes agree on, plus the index of the node that asks. The slice's vector (COLL_WORK), before and
 * after:
 *   all_reduce      count elements, contributed         -> reduced over all nodes, on every node
 *   reduce          count elements, contributed         -> reduced, on root_node (elsewhere: undefined)
 *   broadcast       count elements, on root_node, which writes none of them -> the same on every node
 *   barrier         no elements
 *   all_gather      own block                           -> all blocks, on every node
 *   gather          own block, never written            -> all blocks, on root_node (elsewhere: undefined)
 *   scatter         all blocks, on root_node, which writes none of them -> own block
 *   reduce_scatter  all blocks, contributed             -> own block, reduced (other blocks: undefined)
 *   all_to_all      COLL_INPUT: a block for each node   -> COLL_WORK: a block from each node (the executor,
 *                                                          not the schedule, copies the own block)
 *   scan            elements 0..count-1, the running value: contributed -> undefined
 *                   elements count..2*count-1, the prefix: undefined -> reduced over the nodes below this
 *                                                          one, in order (node 0: undefined)
 *
 * An exclusive scan is the same as a scan. Blocks lie in the order of the nodes, without gaps. They may have
 * any size, also zero. Block i is elements block_offsets[i] .. block_offsets[i + 1] - 1 of the vector.
 */
struct coll_call {
    enum op_kind kind;
    uint32_t node_count;     /* 1..COLL_NODES_MAX; a single node needs no rounds */
    uint32_t node_index;     /* of the node that asks, < node_count */
    uint32_t root_node;      /* broadcast, reduce, gather, scatter; otherwise 0 */
    uint64_t count_elements; /* of this slice's vector (scans: of the running value, and of the prefix) */
    const uint64_t *block_offsets; /* node_count + 1, the last is count_elements; null: no blocks */
    const uint64_t *send_offsets;  /* all_to_all: node_count + 1 entries, for COLL_INPUT; otherwise null */
    bool blocks_are_equal;         /* all_to_all: all nodes send and receive blocks of one size; agreed */
    bool keeps_empty; /* direct gather and scatter, all_to_all: empty transfers are messages too. There only
                         the two sides know a block's size; the messages let them notice a contradiction */
};

/* The transfers of one round. The caller owns the arrays, which hold transfers_max() entries each. */
struct coll_round {
    struct coll_transfer *sends;
    uint32_t send_count;
    struct coll_transfer *receives;
    uint32_t receive_count;
};

/*
 * What one slice costs, computed by closed formulas for blocks of equal size. coll_check counts the same from
 * the rounds. Elements are payload elements. For a scan or an all_to_all, the count is that of the call.
 */
struct coll_estimate {
    uint64_t rounds;
    uint64_t messages;       /* sent or received by the node that has most */
    uint64_t senders;        /* the most nodes that send to one node in one round */
    double path_elements;    /* sum over the rounds: the most that a node sends or receives in it */
    double busy_elements;    /* the most that one node sends, or receives, in all rounds together */
    double scratch_elements; /* the most that one node needs */
};

/* One algorithm: its name, what it serves, and its rounds as functions of the call. */
struct coll_algorithm {
    uint32_t id; /* goes over the wire: never changes */
    const char *name;
    const char *description; /* one line for people: when it is best, and its cost in rounds and bytes */
    enum op_kind kind;
    /*
     * The executor copies every payload when it sends it, so the schedule may overwrite at once what it sent.
     * Only for algorithms of small messages.
     */
    bool copies_sends;
    /* Several nodes reduce the same elements. Processors keep different bits of a NaN, so the executor gives
     * all NaN the same bits: all ranks get identical results. */
    bool reduces_twice;
    bool (*serves)(const struct coll_call *call); /* null: every call of its kind */
    uint32_t (*round_count)(const struct coll_call *call);
    uint32_t (*transfers_max)(const struct coll_call *call);    /* per direction and round */
    uint64_t (*scratch_elements)(const struct coll_call *call); /* null: none */
    void (*round)(const struct coll_call *call, uint32_t round, struct coll_round *out);
    void (*estimate)(const struct coll_call *call, struct coll_estimate *out);
};

#endif
