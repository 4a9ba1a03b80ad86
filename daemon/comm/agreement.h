#ifndef DAEMON_COMM_AGREEMENT_H
#define DAEMON_COMM_AGREEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/base/time.h"
#include "daemon/comm/detail.h"

/*
 * One agreement among the nodes of a communicator, in two phases: Paxos, but every node that is not down
 * takes part, so there is no fixed majority (who may go on is decided by who concludes, see `conclude`).
 *
 * The lowest node that is not down leads. It prepares: every node promises to follow no lower ballot, and
 * states its part (which ranks are lost, how far it came). The leader combines the parts to one value, and
 * every node accepts it. Then it is decided, and only then anybody may be told. If the leader goes down, the
 * next lowest node leads with a higher ballot. It adopts a value that a node has accepted: another node may
 * have decided it. A node that is decided answers late questions.
 *
 * If two nodes that the leader reaches do not reach each other, the higher one is left out. The leader first
 * makes sure that both still answer (AGREEMENT_CONFIRM_NS).
 *
 * Pure: no clock, no network, no communicator. Links deliver in order, and exactly once, until they are down.
 * One thread.
 */
struct agreement;

/*
 * The longest that an agreement may take at each node, from agreement_begin on, or from the last loss of a
 * node. It is longer than the mesh needs to notice a silent node. After it, the node gives up alone.
 */
#define AGREEMENT_LIMIT_NS (10 * TIME_S)
/* How long nodes that do not reach each other have to be noticed as down by the leader. */
#define AGREEMENT_CONFIRM_NS (500 * TIME_MS)

/* A node's part, and also the combination of parts. Bitmaps have a bit for each rank or node. */
struct agreement_value {
    struct error cause;
    uint32_t cause_weight; /* of several causes the one with the smallest weight counts */
    bool has_detail;
    struct comms_detail detail;
    uint64_t last;       /* the last operation that has ended here; combined: the smallest */
    uint64_t keep;       /* operations up to this one need no lost rank any more; not combined */
    uint32_t generation; /* combined: the greatest */
    bool minority;       /* set by `conclude`: these nodes may not go on */
    uint8_t *lost;       /* ranks; combined: OR */
    uint8_t *down;       /* nodes; in a part: those that the node has lost; decided: those without a part */
};

enum agreement_step {
    AGREEMENT_REPORT, /* to the leader: begin */
    AGREEMENT_PREPARE,
    AGREEMENT_PROMISE,
    AGREEMENT_ACCEPT,
    AGREEMENT_ACCEPTED,
    AGREEMENT_DECIDED,
    AGREEMENT_REJECT, /* a higher ballot was promised */
    AGREEMENT_GONE    /* the sender has no part (any more) */
};
#define AGREEMENT_STEPS 8

/* Ballots of one agreement are ordered by attempt, then leader. Attempt 0: none. */
struct agreement_ballot {
    uint32_t attempt;
    uint32_t leader;
};

struct agreement_message {
    enum agreement_step step;
    struct agreement_ballot ballot;
    struct agreement_ballot accepted;    /* PROMISE: of the value; attempt 0: the value is a part */
    const struct agreement_value *value; /* null in ACCEPTED, REJECT; may be null in GONE */
    bool forgot; /* GONE: the sender may have had a part in a decision that it does not know any more */
};

/* Callbacks. None may free the agreement. */
struct agreement_options {
    uint32_t node_count;
    uint32_t rank_count;
    uint32_t own;
    void *context;
    void (*send)(void *context, uint32_t node, const struct agreement_message *message);
    /* Another node wants to agree, for this reason. The owner calls agreement_begin, at once or soon. */
    void (*wanted)(void *context, const struct agreement_value *value, uint64_t now_ns);
    /* On the leader: all parts are combined. value->down has the nodes without a part. */
    void (*conclude)(void *context, struct agreement_value *value);
    /* Called once. The value is the agreement's, and valid as long as it. */
    void (*decided)(void *context, const struct agreement_value *value, uint64_t now_ns);
    /* Called at most once, instead of decided: AGREEMENT_LIMIT_NS has passed. */
    void (*gave_up)(void *context, uint64_t now_ns);
};

/* Null without memory. */
struct agreement *agreement_new(const struct agreement_options *options);
void agreement_free(struct agreement *agreement);

/* This node takes part from now on; the part is copied. A second call does nothing. NO_MEMORY. */
enum status agreement_begin(struct agreement *agreement, const struct agreement_value *part,
                            uint64_t now_ns) COMM_MUST_USE;
/* The node is lost for this agreement, even if it comes back. */
void agreement_node_down(struct agreement *agreement, uint32_t node, uint64_t now_ns);
/* The value's bitmaps have the sizes of this agreement. */
void agreement_received(struct agreement *agreement, uint32_t from, const struct agreement_message *message,
                        uint64_t now_ns);
uint64_t agreement_deadline_ns(const struct agreement *agreement);
void agreement_tick(struct agreement *agreement, uint64_t now_ns);
/* Null before it is decided. */
const struct agreement_value *agreement_decision(const struct agreement *agreement);

/* Values. A value of all zeros is empty; agreement_value_init gives it bitmaps. Returns false without memory.
 */
bool agreement_value_init(struct agreement_value *value, uint32_t rank_count, uint32_t node_count);
void agreement_value_free(struct agreement_value *value);

/*
 * Whether the nodes that are not in `down` may go on, so that of all groups of nodes at most one does. Nodes
 * in `dead` are proven to have ended: they leave the count. Of the rest a majority goes on; of exactly half,
 * the half with the lowest node. Silence proves nothing.
 */
bool agreement_may_go_on(const uint8_t *down, const uint8_t *dead, uint32_t node_count);

static inline uint32_t agreement_bits_bytes(uint32_t count)
{
    return count / 8 + 1;
}

static inline bool agreement_bit(const uint8_t *bits, uint32_t index)
{
    return (bits[index / 8] >> (index % 8) & 1) != 0;
}

static inline void agreement_bit_set(uint8_t *bits, uint32_t index)
{
    bits[index / 8] |= (uint8_t)(1u << (index % 8));
}

#endif
