#ifndef DAEMON_COMM_COMMS_H
#define DAEMON_COMM_COMMS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/budget.h"
#include "daemon/base/error.h"
#include "daemon/exec/exec.h"
#include "daemon/host/memory.h"
#include "daemon/mesh/mesh.h"
#include "daemon/p2p/p2p.h"
#include "proto/op_terms.h"

/*
 * Communicators: formation across the mesh, matching of what the local ranks post, the life of an operation,
 * deadlines, failure.
 *
 * Formation. A communicator is known by its owner's uid and its name; other users' communicators of that name
 * have nothing to do with it. A member (one local rank) is added with the terms that all ranks must agree on.
 * The node announces its ranks to every node that their user may be on; a node that has ranks of that
 * communicator answers with its own. Who is not acceptable (other terms, a rank number taken) is refused by
 * whoever knows better, with a text that names both sides; those who were there before go on. Once all `size`
 * ranks are known, once each, the communicator is formed; its id is made of the name and all nodes' nonces,
 * so every incarnation has an id of its own. Nodes of a communicator are ordered by their lowest rank.
 *
 * Operations. The n-th submit of each local rank is operation seq n. When every local rank has posted seq n
 * and they agree (kind, count, dtype, operator, root, layout, ...), it goes to exec, which compares it with
 * the other nodes'. A contradiction ends the operation, on the ranks of all nodes, with STATUS_MISMATCH
 * naming two ranks and both calls; the communicator goes on with the next one. So that all hear the same,
 * whoever finds one tells the node that it disagrees with, that one puts both calls together for the
 * communicator's first node, and the first node tells all. Likewise an operation that one rank is refused,
 * for its user's budget or for COMMS_PENDING_OPS_MAX: the rank hears STATUS_LIMIT at once, all others instead
 * of its result, and it uses up its number on all.
 *
 * Deadlines. An operation whose deadline passes ends in the same way, with STATUS_TIMED_OUT, and alone. What
 * ended well on some ranks before stays so. If a GPU or a link does not let go of its buffers within
 * COMMS_OVERDUE_NS, the communicator fails.
 *
 * Failure. One path aborts a communicator, whatever the reason: a rank's process died, a node was lost, exec
 * failed, another node's Abort. Every posted operation of every local
 * member is completed with the same cause, the other nodes are told, and later submits are refused with it.
 * Members then only leave (comms_member_leave).
 *
 * Single-threaded. Callbacks to the owner are never made from within a call of the owner's on the same
 * member.
 */
struct comms;
struct comms_member; /* one local rank of one communicator */

#define COMMS_COMMS_MAX 16384      /* communicators on this node; each rank is charged to its user before */
#define COMMS_LOCAL_RANKS_MAX 1024 /* ranks of one communicator on one node */
#define COMMS_PENDING_OPS_MAX                                                                                \
    1024 /* operations that one member has posted and not completed; beyond: STATUS_LIMIT on all ranks */
#define COMMS_TIMEOUT_DEFAULT_MS 60000ull

struct comms_options {
    struct mesh *mesh;
    struct exec *exec;
    struct p2p *p2p;
    uint32_t rail_count;    /* that the exec has between nodes; 0 and 1: its own alone */
    uint64_t seed_secure;   /* nonces: random per start */
    uint64_t slice_bytes;   /* default for communicators that do not say */
    const char *algorithms; /* likewise; "" or null for none. Copied */
    /* Whether a user may have ranks on a node; null: every user on every node. */
    bool (*user_may)(void *context, uint32_t uid, const char *node);
    void *user_may_context;
};
enum status comms_new(const struct comms_options *options, struct comms **out,
                      struct error *error) COMM_MUST_USE;
/* After all members have left. Registers itself as the mesh's handler in comms_new. */
void comms_free(struct comms *comms);

/* What user_may says has changed: communicators with ranks where they may not be any more fail. */
void comms_recheck_users(struct comms *comms, uint64_t now_ns);

/* The overrides of communicators that do not say: comms_options' text. */
const char *comms_algorithms(const struct comms *comms);
uint64_t comms_slice_bytes(const struct comms *comms);

/* Whether members should leave later: other nodes have too much to read (mesh_is_crowded). */
bool comms_is_crowded(const struct comms *comms);

uint64_t comms_next_deadline_ns(const struct comms *comms);
/* Works for at most COMMS_TICK_TELLS communicators and callbacks; the rest is due at once then. */
#define COMMS_TICK_TELLS 512
void comms_tick(struct comms *comms, uint64_t now_ns);

/* Who asks: for ownership and for messages. */
struct comms_client {
    pid_t pid;
    uid_t uid;
    struct budget_account *account; /* what it makes comms hold is charged to it; null: nothing is */
};

struct comms_terms {
    const char *name; /* 1..COMM_NAME_MAX_BYTES bytes, printable ASCII without space; unique within a uid */
    uint32_t rank;
    uint32_t size;            /* 1..COMM_SIZE_MAX */
    uint64_t form_timeout_ms; /* 0: the default */
    uint64_t op_timeout_ms;   /* 0: the default; agreed */
    uint64_t slice_bytes;     /* 0: the default; agreed */
    const char *algorithms;   /* "" or overrides "all_reduce=ring"; agreed */
};

struct comms_completion;

/* What a member's owner (a session, a simulated client) is told. */
struct comms_member_handler {
    void *context;
    /* Once: STATUS_OK, or why the communicator did not form (the member then is only to be left). */
    void (*formed)(void *context, struct comms_member *member, const struct error *result, uint64_t now_ns);
    /* Once for each accepted submit; messages apart, in the order submitted. */
    void (*completed)(void *context, struct comms_member *member, const struct comms_completion *completion,
                      uint64_t now_ns);
    /* The communicator failed, also if nothing was pending; after the completions. At most once. */
    void (*aborted)(void *context, struct comms_member *member, const struct error *cause, uint64_t now_ns);
};

/*
 * Adds a local rank and starts or joins the formation. Errors at once, nothing kept: INVALID_ARGUMENT, LIMIT,
 * PERMISSION (the user may have no ranks on this node), MISMATCH (terms differ from those of the ranks here;
 * names both), ALREADY_EXISTS (rank taken; says by which process).
 */
enum status comms_member_join(struct comms *comms, const struct comms_client *client,
                              const struct comms_terms *terms, const struct comms_member_handler *handler,
                              uint64_t now_ns, struct comms_member **out, struct error *error) COMM_MUST_USE;

enum comms_leave {
    COMMS_LEAVE_ORDERLY, /* comm_destroy: the others go on until they need this rank */
    COMMS_LEAVE_LOST /* the process is gone: aborts the communicator (RANK_LOST naming rank, pid, node), after
                      operations in which the rank has done its part */
};
/*
 * The member is gone for its owner at once: no callback any more. What the network or exec still uses of its
 * memory is kept by reference until they let go. An orderly leave with operations pending aborts them
 * (ABORTED) for the others as well; messages that are pending end for the other side alone (RANK_LOST).
 */
void comms_member_leave(struct comms_member *member, enum comms_leave how, uint64_t now_ns);
/* As COMMS_LEAVE_LOST, of a process that is not gone. why: "was disconnected by uid 0". */
void comms_member_expel(struct comms_member *member, const char *why, uint64_t now_ns);

struct comms_op_range {
    struct memory *memory; /* null where the operation has no such thing; references are taken by comms */
    uint64_t offset_bytes;
};

/* A word of 64 bits in registered memory of the host, which a client's streams write or wait for. Reached: it
 * is the value or, as a signed difference, above. */
struct comms_fence {
    struct comms_op_range word; /* memory null: none */
    uint64_t value;
};
#define COMMS_FENCES_MAX 16    /* that one operation waits for */
#define COMMS_RECORDS_MAX 1024 /* of one member; beyond: STATUS_LIMIT */

/* One rank's part of an operation, as it asks for it: nothing is checked yet but that the terms are valid. */
struct comms_op {
    uint64_t ticket;       /* the owner's, returned with the completion */
    struct op_terms terms; /* as the rank says them; its hash is not looked at */
    double factor;         /* premul_sum */
    uint64_t timeout_ms;   /* 0: the communicator's */
    struct comms_op_range input;
    struct comms_op_range output;
    struct comms_op_range input_layout; /* 2 × size numbers of 64 bits: counts, displacements, in elements */
    struct comms_op_range output_layout;
    uint32_t peer_rank; /* send, recv */
    uint32_t tag;
    struct comms_op_range residual;
    const struct comms_fence *waits; /* it begins when all are reached; read during the call */
    uint32_t wait_count;
    struct comms_fence ended; /* set when the operation has ended, well or not; also when it is refused */
};

/* An operation ended, for one rank. */
struct comms_completion {
    uint64_t ticket;
    const struct error *result;
    uint32_t source_rank;    /* recv */
    uint64_t count_elements; /* recv: that came */
};

/*
 * Posts the next operation of this member, or a message. Refused at once: INVALID_ARGUMENT (root out of
 * range, a range missing), UNSUPPORTED (dtype × operator), LIMIT (an operation uses up its number all the
 * same, and ends on the other ranks; the result is a verdict's, where one came before), IN_PROGRESS (not
 * formed yet), the cause after a failure.
 */
enum status comms_submit(struct comms_member *member, const struct comms_op *op, uint64_t now_ns,
                         struct error *error) COMM_MUST_USE;

/*
 * When what this member submitted before has ended and the waits are reached, or the communicator failed, the
 * word is set; also on failure of the call. Messages with tickets above that one do not count.
 * INVALID_ARGUMENT, LIMIT, IN_PROGRESS, NO_MEMORY.
 */
enum status comms_record(struct comms_member *member, uint64_t ticket, const struct comms_fence *waits,
                         uint32_t wait_count, const struct comms_fence *word,
                         struct error *error) COMM_MUST_USE;
/* Sets the word at once, if it is one. */
void comms_fence_set(const struct comms_fence *fence);

/* What a formed communicator looks like to a member. Arrays are comms's, valid while the member is joined and
 * formed. */
struct communicator_view {
    uint64_t comm_id;
    uint32_t generation;
    uint32_t size;
    uint32_t rank;
    uint32_t local_rank; /* among this node's ranks, ascending */
    uint32_t local_size;
    uint32_t node_count;
    const uint32_t *node_of_rank;  /* size: index into node_names */
    const char *const *node_names; /* node_count */
};
void comms_member_view(const struct comms_member *member, struct communicator_view *out);

/* Aborts a communicator by hand (commctl), or every one (shutdown): the one abort path. NOT_FOUND when that
 * user has none of that name. */
enum status comms_abort(struct comms *comms, uid_t owner_uid, const char *name, const struct error *cause,
                        uint64_t now_ns) COMM_MUST_USE;
void comms_abort_all(struct comms *comms, const struct error *cause, uint64_t now_ns);

/* No communicator has an operation under way (for a drain). */
bool comms_idle(const struct comms *comms);
/* New members are refused with SHUTTING_DOWN from now on. */
void comms_drain(struct comms *comms);

/* For commctl: copies of what is, in a stable order. Return false to stop. Texts are valid during the call.
 */
enum communicator_state { COMMS_COMM_FORMING, COMMS_COMM_FORMED, COMMS_COMM_FAILED };
const char *communicator_state_text(enum communicator_state state);

struct communicator_info {
    const char *name;
    uint64_t comm_id;
    uint32_t generation;
    uid_t owner_uid;
    enum communicator_state state;
    uint32_t size;
    uint32_t local_size;
    uint32_t known_ranks;      /* while forming: how many of `size` */
    const char *missing_ranks; /* while forming: "3, 5-7", cut with "…" */
    uint32_t node_count;
    const char *const *node_names; /* of the nodes known so far */
    uint64_t since_ns;             /* of the state */
    uint64_t ops_posted;           /* highest seq that any local rank posted */
    uint64_t ops_completed;
    uint64_t bytes_reduced; /* payload bytes of completed operations (count × element size) */
    const char *error;      /* FAILED: the cause */
};
typedef bool communicator_visit(void *context, const struct communicator_info *info);
void comms_visit_comms(const struct comms *comms, communicator_visit *visit, void *context);

struct comms_op_info {
    const char *comm_name;
    uid_t owner_uid;
    uint64_t seq; /* of a message: its number among those of this node */
    struct op_terms terms;
    uint64_t age_ns; /* since the first local rank posted it */
    uint64_t deadline_in_ns;
    bool running;              /* in exec, or waiting for local ranks */
    const char *arrived_ranks; /* local ranks that posted it: "0, 2 (pid 4711)" */
    const char *missing_ranks; /* local ranks that have not; of the oldest operation, those of all nodes */
    const char *waiting_for;   /* running: exec's words, with the node's name; of a message: p2p's */
};
/* What operations and messages still use of clients' memory: once for each buffer. */
typedef bool comms_use_visit(void *context, const struct memory *memory, const char *comm_name);
void comms_visit_uses(const struct comms *comms, comms_use_visit *visit, void *context);

#define COMMS_VISIT_MESSAGES_MAX 32 /* of each rank: the oldest */
/* Operations and messages that have not ended. */
typedef bool comms_op_visit(void *context, const struct comms_op_info *info);
void comms_visit_ops(const struct comms *comms, uint64_t now_ns, comms_op_visit *visit, void *context);

#endif
