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
    COLL_STORE, /* received elements replace what is there */
    COLL_REDUCE /* received elements are reduced into what is there */
};

struct coll_transfer {
    uint32_t node;           /* the other side: index into the communicator's nodes, 0-based */
    enum coll_action action; /* what the receiver does; sends carry it too, for the check */
    uint64_t offset_elements;
    uint64_t count_elements;
};

/* What all nodes agree on, and which of them asks. */
struct coll_call {
    enum op_kind kind;
    uint32_t node_count;     /* 1..COLL_NODES_MAX; one node needs no rounds */
    uint32_t node_index;     /* of the asking node, < node_count */
    uint32_t root_node;      /* broadcast: the node that holds the root rank; otherwise 0 */
    uint64_t count_elements; /* of this slice */
};

/* The transfers of one round; the arrays belong to the caller and hold coll_transfers_max entries each. */
struct coll_round {
    struct coll_transfer *sends;
    uint32_t send_count;
    struct coll_transfer *receives;
    uint32_t receive_count;
};

/* One algorithm: its name, what it serves, and its rounds as functions of the call. */
struct coll_algorithm {
    uint32_t id; /* goes over the wire: never renumbered */
    const char *name;
    const char *description; /* one line for people: when it is best, and its cost in rounds and bytes */
    enum op_kind kind;
    uint32_t (*round_count)(const struct coll_call *call);
    uint32_t (*transfers_max)(const struct coll_call *call); /* per direction and round */
    void (*round)(const struct coll_call *call, uint32_t round, struct coll_round *out);
};

/* ring.c: all-reduce; 2(n-1) rounds, 2(n-1)/n of the bytes each way. Thakur, Rabenseifner, Gropp 2005. */
extern const struct coll_algorithm coll_ring_all_reduce;
/* direct.c: all-reduce; 2 rounds, the same bytes as the ring, n-1 messages a round: lowest latency. */
extern const struct coll_algorithm coll_direct_all_reduce;
/* tree.c: broadcast along a binomial tree; ceil(log2 n) rounds. */
extern const struct coll_algorithm coll_tree_broadcast;
/* dissemination.c: barrier; ceil(log2 n) rounds of empty messages. Hensgen, Finkel, Manber 1988. */
extern const struct coll_algorithm coll_dissemination_barrier;

#endif
