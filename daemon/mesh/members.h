#ifndef DAEMON_MESH_MEMBERS_H
#define DAEMON_MESH_MEMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/base/time.h"
#include "daemon/mesh/member_rings.h"

/*
 * Which configured nodes are members of the cluster now: a state machine without a network or a clock.
 *
 * Each node keeps standing links to at most MEMBERS_NEIGHBOURS_MAX neighbours and judges only these. What it
 * sees spreads over these links as records (member_records.h). It follows SWIM's suspicion, refutation and
 * incarnations (Das et al., "SWIM", DSN 2002) and Lifeguard's doubt of oneself after a stall (Dadgar et al.,
 * arXiv 1707.00788). Fixed observers take the place of random probes (Suresh et al., "Rapid", ATC 2018).
 *
 * - A node says UP about itself, with the incarnation of its life. A higher (incarnation, epoch) replaces a
 *   lower one, with all votes.
 * - A neighbour whose standing link was lost casts its vote against the node, in one of eight slots.
 * - A node is DOWN after votes of three observers (of a majority of them, if there are few). It is also DOWN
 *   if one vote stands for the suspicion time. It is DOWN at once when it says goodbye.
 * - A node that hears of a vote against itself, or of a life of its own that is not this one, refutes it with
 *   a higher epoch or incarnation. So a vote is withdrawn as soon as its node hears of it. An observer whose
 *   link stays lost votes again, but each time after twice the wait.
 * - A node is UP for us, whatever is said, while any link of ours to it is up.
 *
 * Records are not signed. A certified node that lies can make a node DOWN for those without a link to it.
 * That lasts until the refutation arrives: about the refutation interval and twice the time of the flood. It
 * can repeat this, within its budget. It cannot make a node DOWN for one that has a link to it, so no
 * communicator ends by it. A forged incarnation is refused if it lies more than a day ahead of our clock.
 *
 * Single-threaded. Time is an argument, in nanoseconds of one monotonic clock. Nodes are the mesh's indices,
 * below MEMBERS_NODES_MAX. After each call, members_next_deadline_ns may be earlier.
 */
#define MEMBERS_NODES_MAX (MEMBER_RINGS_NODES_MAX - 1)
#define MEMBERS_NEIGHBOURS_MAX 16 /* 8 fixed ones, and one in the place of each that is gone */

struct members;

enum member_state {
    MEMBER_UNKNOWN, /* nothing was heard of it */
    MEMBER_UP,
    MEMBER_DOWN,
};

/* Calls to the owner. A call back into members may only ask, not change anything. */
struct members_handler {
    void *context;
    /* Sends a message on the standing link to a neighbour. The bytes are valid during the call. */
    void (*send)(void *context, uint32_t node, const uint8_t *bytes, size_t size, uint64_t now_ns);
    /* The node's state is another one now. */
    void (*changed)(void *context, uint32_t node, enum member_state state, uint64_t now_ns);
    /* The node is a neighbour from now on, or no more. Dial it, or let its link go. May be null. */
    void (*neighbour)(void *context, uint32_t node, bool is_neighbour, uint64_t now_ns);
    /* Asks whether the node is there, at little cost; members_answered may follow. Returns false if it cannot
     * be asked. May be null: then nodes are dialled instead. */
    bool (*probe)(void *context, uint32_t node, uint64_t now_ns);
};

struct members_options {
    const char *own_name;     /* copied as its hash */
    uint64_t own_incarnation; /* microseconds of the wall clock at our start; 1 to MEMBER_INCARNATION_MAX */
    uint64_t seed;            /* for jitter */
    /* How long the net waits before it reports a link as lost: default 4 s. The link may then be a fault of
     * its own. */
    uint64_t patience_ns;
    uint64_t batch_ns;     /* how long news waits for more news, on average: default 100 ms */
    uint64_t suspicion_ns; /* how long less than enough votes stand before they count: default 4 s */
    uint64_t sync_ns;      /* between comparisons with one random neighbour: default 60 s */
    struct members_handler handler;
    /* For simulations, whose nodes share a configuration: rings that hold all nodes, and our index there.
     * Nodes are then the rings' indices, and members_add and members_remove are not called. Else null. */
    struct member_rings *rings;
    uint32_t own_index;
};
void members_options_default(struct members_options *options);

/* INVALID_ARGUMENT for an impossible name or incarnation, NO_MEMORY. */
enum status members_new(const struct members_options *options, uint64_t now_ns, struct members **out,
                        struct error *error) COMM_MUST_USE;
/* Null is accepted. */
void members_free(struct members *members);

/* Adds a node of the configuration. LIMIT; ALREADY_EXISTS for our name, a name or index that is there, or a
 * name whose hash is that of another; INVALID_ARGUMENT for an impossible name; NO_MEMORY. O(1). */
enum status members_add(struct members *members, uint32_t node, const char *name,
                        struct error *error) COMM_MUST_USE;
/* Forgets a node. Does nothing if it is not there. The handler is not called. */
void members_remove(struct members *members, uint32_t node);

/* --- Links --- */

/*
 * A link to the node is up, a neighbour or not. Its Hello gave this incarnation, at least 1. Call it again
 * when a link is replaced by one to another life of the node.
 */
void members_linked(struct members *members, uint32_t node, uint64_t incarnation, uint64_t now_ns);
/* No link to the node is up any more. The net has waited for its patience, or knows that the node is gone. */
void members_unlinked(struct members *members, uint32_t node, uint64_t now_ns);

/* Somebody answered a probe of the node. That is no proof, but the node is dialled if it would be a
 * neighbour.
 */
void members_answered(struct members *members, uint32_t node, uint64_t now_ns);

/*
 * The node sent us this message. Returns false, with a reason in *why, if no correct node sends that: the
 * message is malformed, or a neighbour sends far more than its rate. Then drop the link as a violation.
 * Nodes that are unknown are ignored and counted. `why` may be null.
 */
bool members_receive(struct members *members, uint32_t node, const uint8_t *bytes, size_t size,
                     uint64_t now_ns, const char **why) COMM_MUST_USE;

/* An orderly end: tells the neighbours at once that we leave. Let the links send this before they close. */
void members_leave(struct members *members, uint64_t now_ns);

/* Whether a node's Hello may give this incarnation: it lies at most a day ahead of our clock. If it does not,
 * the node's clock or ours is wrong. Such a node is UP while it is linked, and UNKNOWN again after that. */
bool members_accepts(const struct members *members, uint64_t incarnation, uint64_t now_ns);

/* Whether to keep a standing link to the node. With at most MEMBER_RINGS_SMALL nodes in all, to each. */
bool members_is_neighbour(struct members *members, uint32_t node);

/* --- Time --- */

/* When members_tick must be called next. At most a second after the last one: if it comes more than 500 ms
 * late, we have stalled, and links that are lost at that time may be our fault. */
uint64_t members_next_deadline_ns(const struct members *members);
void members_tick(struct members *members, uint64_t now_ns);

/* --- Questions --- */

enum member_state members_state(const struct members *members, uint32_t node);
/* The number by which all nodes know a node. */
uint64_t members_id(const struct members *members, uint32_t node);
/* Finds a node by it. Returns false if there is none, or it is this node. */
bool members_find(const struct members *members, uint64_t id, uint32_t *node);
/* Our incarnation, for our Hello. It rises when a node proves to know a later life of ours. */
uint64_t members_own_incarnation(const struct members *members);

#endif
