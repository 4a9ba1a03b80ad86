#ifndef DAEMON_COMM_COMMS_H
#define DAEMON_COMM_COMMS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/budget.h"
#include "daemon/base/error.h"
#include "daemon/comm/detail.h"
#include "daemon/comm/op_counts.h"
#include "daemon/exec/exec.h"
#include "daemon/host/memory.h"
#include "daemon/mesh/mesh.h"
#include "daemon/p2p/p2p.h"
#include "proto/op_terms.h"

/*
 * Communicators: formation across the mesh, matching of the local ranks' calls, the life of an operation,
 * deadlines, failure.
 *
 * Formation. A communicator is identified by its owner's uid and its name, so names of different users are
 * independent. A member (one local rank) is added with the terms that all ranks must agree on. The node
 * announces its ranks to every node on which their user may have ranks; a node that has ranks of that
 * communicator answers with its own. A rank that is not acceptable (other terms, or its number is taken) is
 * refused by a node that knows the reason. The text names both sides. The ranks that were there before are
 * not affected. Once all `size` ranks are known, once each, the communicator is formed. Its id is made of the
 * name and all nodes' nonces, so every incarnation has an id of its own. Nodes of a communicator are ordered
 * by their lowest rank.
 *
 * Operations. The n-th submit of each local rank is operation seq n. When every local rank has posted seq n
 * and they agree (kind, count, dtype, operator, root, layout, ...), it goes to exec. Exec compares it with
 * the other nodes' calls. A contradiction ends the operation with STATUS_MISMATCH on the ranks of all nodes,
 * naming two ranks and both calls. The communicator continues with the next operation. So that all ranks get
 * the same result, a node that finds a contradiction tells the node that it disagrees with. That node sends
 * both calls to the communicator's first node, which sends the verdict to all. A refusal of an operation to
 * one rank, for its user's budget or for COMMS_PENDING_OPS_MAX, works the same way. The rank gets
 * STATUS_LIMIT at once, all other ranks get it as the operation's result, and the operation uses up its
 * number on all ranks.
 *
 * Deadlines. An operation whose deadline passes ends in the same way, with STATUS_TIMED_OUT, without
 * affecting others. Ranks on which it has succeeded already keep that result. If a GPU or a link does not
 * release its buffers within COMMS_OVERDUE_NS, the communicator fails.
 *
 * Failure. One path aborts a communicator, whatever the reason: a rank's process died, a node was lost, exec
 * failed, or another node sent an Abort. Every posted operation of every local member is completed with the
 * same cause, and the other nodes are notified. Later submits are refused with that cause. Members can then
 * only leave (comms_member_leave).
 *
 * Single-threaded. A callback is never made from within the owner's own call for the same member.
 */
struct comms;
struct comms_member; /* one local rank of one communicator */

#define COMMS_COMMS_MAX 16384      /* communicators on this node; each rank is also charged to its user */
#define COMMS_LOCAL_RANKS_MAX 1024 /* ranks of one communicator on one node */
#define COMMS_PENDING_OPS_MAX                                                                                \
    1024 /* posted and not completed, per member; beyond: STATUS_LIMIT on all ranks */
#define COMMS_TIMEOUT_DEFAULT_MS 60000ull

#define COMMS_ALGORITHMS_MAX_BYTES 255

struct comms_options {
    struct mesh *mesh;
    struct exec *exec;
    struct p2p *p2p;
    uint32_t rail_count;         /* rails of the exec between nodes; 0 or 1: rail 0 alone */
    uint64_t seed_secure;        /* seed of nonces: random at each start */
    uint64_t slice_bytes;        /* default if a communicator's terms have 0 */
    const char *algorithms;      /* default if they have ""; "" or null for none. Copied */
    uint64_t (*clock)(void);     /* measures operations; null: the time of the call that ends one */
    struct placement *placement; /* learns where ranks run; null: nobody asks. It outlives comms */
};
enum status comms_new(const struct comms_options *options, struct comms **out,
                      struct error *error) COMM_MUST_USE;
/* Call it after all members have left. (comms_new registers itself as the mesh's handler.) */
void comms_free(struct comms *comms);

/* Call it when answers of mesh_user_may have changed: communicators with ranks on nodes that are no longer
 * allowed fail. */
void comms_recheck_users(struct comms *comms, uint64_t now_ns);

/* The defaults from comms_options: algorithm overrides, and slice size. */
const char *comms_algorithms(const struct comms *comms);
uint64_t comms_slice_bytes(const struct comms *comms);
/* Whether a communicator of so many ranks would form by a tree, and connect its nodes when operations need
 * it.
 */
bool comms_makes_few_links(const struct comms *comms, uint32_t ranks);

/* Whether members should leave later, because other nodes have too much to read (mesh_is_crowded). */
bool comms_is_crowded(const struct comms *comms);

uint64_t comms_next_deadline_ns(const struct comms *comms);
/* Serves at most COMMS_TICK_TELLS communicators and callbacks. If some are left, the next tick is due at
 * once. */
#define COMMS_TICK_TELLS 512
void comms_tick(struct comms *comms, uint64_t now_ns);

/* The client that asks: for ownership, and for texts. */
struct comms_client {
    pid_t pid;
    uid_t uid;
    struct budget_account *account; /* charged for all that comms holds for it; null: nothing is charged */
};

struct comms_terms {
    const char *name; /* 1..COMM_NAME_MAX_BYTES bytes, printable ASCII without space; unique within a uid */
    uint32_t rank;
    uint32_t size;            /* 1..COMM_SIZE_MAX */
    uint64_t form_timeout_ms; /* 0: the default */
    uint64_t op_timeout_ms;   /* 0: the default; agreed */
    uint64_t slice_bytes;     /* 0: the default; agreed */
    const char *algorithms;   /* "" or overrides "all_reduce=ring"; agreed */
    bool minority_continues;  /* shrink also without a majority; agreed */
    bool takes_cells;         /* the rank can carry out small operations in cells (proto/cells.h) */
    bool takes_node_cells;    /* the same between nodes (proto/node_cells.h) */
};

struct comms_completion;

/* Callbacks to a member's owner (a session, a simulated client). */
struct comms_member_handler {
    void *context;
    /*
     * Called once: STATUS_OK, or why the communicator did not form. In that case the member can only leave.
     */
    void (*formed)(void *context, struct comms_member *member, const struct error *result, uint64_t now_ns);
    /*
     * Called once for each accepted submit: for operations in the order submitted, for messages in any order.
     */
    void (*completed)(void *context, struct comms_member *member, const struct comms_completion *completion,
                      uint64_t now_ns);
    /*
     * Null, or whether the owner takes completions of messages now. If it does not, those that have ended
     * wait, and stay charged as messages. Once the owner takes them again, it calls
     * comms_member_tell_messages.
     */
    bool (*takes_messages)(void *context);
    /* The communicator failed, even if nothing was pending. Called at most once, after the completions. */
    void (*aborted)(void *context, struct comms_member *member, const struct error *cause, uint64_t now_ns);
};

/*
 * Adds a local rank and starts or joins the formation. Immediate errors, after which nothing is kept:
 * INVALID_ARGUMENT, LIMIT, PERMISSION (the user may have no ranks on this node), MISMATCH (terms differ from
 * those of the ranks here; the text names both), ALREADY_EXISTS (the rank is taken; the text names the
 * process).
 */
enum status comms_member_join(struct comms *comms, const struct comms_client *client,
                              const struct comms_terms *terms, const struct comms_member_handler *handler,
                              uint64_t now_ns, struct comms_member **out, struct error *error) COMM_MUST_USE;

/*
 * Joins the generation that follows the member's failed communicator (see next.c): the survivors with
 * contiguous ranks in the same order. handler.formed follows, as after comms_member_join. The member itself
 * stays in the failed communicator until it leaves. If ranks or nodes are lost while ranks wait, those that
 * wait pass on to the generation after that. Immediate errors: IN_PROGRESS (its end is not agreed on yet),
 * ABORTED (these nodes are a minority), RANK_LOST (the verdict counts this rank as lost), UNSUPPORTED (a
 * node's commd is older), ALREADY_EXISTS (it has joined that generation), LIMIT, NO_MEMORY, SHUTTING_DOWN.
 */
struct comms_shrink {
    uint64_t form_timeout_ms; /* 0: the default */
    bool takes_cells;
    bool takes_node_cells;
};
enum status comms_member_shrink(struct comms_member *member, const struct comms_shrink *options,
                                const struct comms_member_handler *handler, uint64_t now_ns,
                                struct comms_member **out, struct error *error) COMM_MUST_USE;

/* What the nodes have agreed on about the end of the member's communicator. */
struct comms_verdict_view {
    uint64_t last_seq;   /* every operation up to this one has ended on all survivors */
    uint32_t generation; /* of the next one */
    bool minority;
    uint32_t size;       /* ranks */
    const uint8_t *lost; /* a bit for each rank; valid while the member is joined */
};
/* Returns false if there is no verdict. */
bool comms_member_verdict(const struct comms_member *member, struct comms_verdict_view *out);

enum comms_leave {
    COMMS_LEAVE_ORDERLY, /* comm_destroy: the other ranks continue until they need this rank */
    COMMS_LEAVE_LOST     /* the process is gone: aborts the communicator (RANK_LOST naming rank, pid, node).
                            Operations in which the rank's part is done end first, also on other nodes */
};
/*
 * The member is gone for its owner at once: there are no more callbacks. Memory that the network or exec
 * still uses is kept by reference until they release it. An orderly leave while operations are pending aborts
 * them (ABORTED) for the other ranks as well. Pending messages end with RANK_LOST for their other side only.
 */
void comms_member_leave(struct comms_member *member, enum comms_leave how, uint64_t now_ns);
/* See comms_member_handler. The completions come in a later tick. */
void comms_member_tell_messages(struct comms_member *member);
/* As COMMS_LEAVE_LOST, for a process that is still there. why: "was disconnected by uid 0". */
void comms_member_expel(struct comms_member *member, const char *why, uint64_t now_ns);

struct comms_op_range {
    struct memory *memory; /* null if the operation has no such range; comms takes references */
    uint64_t offset_bytes;
};

/* A semaphore: a 64-bit word in registered host memory that a client's streams write or wait for. It is
 * reached when word - value, as a signed number, is not negative. */
struct comms_fence {
    struct comms_op_range word; /* memory null: none */
    uint64_t value;
};
#define COMMS_FENCES_MAX 16    /* semaphores that one operation can wait for */
#define COMMS_RECORDS_MAX 1024 /* pending records of one member; one more fails with STATUS_LIMIT */

/* One rank's request for an operation. Only the values of the terms have been checked so far. */
struct comms_op {
    uint64_t ticket;       /* chosen by the owner, returned in the completion */
    uint64_t number;       /* those left out went through cells; 0: the next one */
    uint64_t waited_ms;    /* since the call, in cells */
    bool in_cell;          /* it was taken from the rank's cell. Set by comms */
    struct op_terms terms; /* as the rank states them; the hash is ignored */
    double factor;         /* premul_sum */
    uint64_t timeout_ms;   /* 0: the communicator's */
    struct comms_op_range input;
    struct comms_op_range output;
    struct comms_op_range input_layout; /* 2 × size 64-bit numbers: counts, displacements, in elements */
    struct comms_op_range output_layout;
    uint32_t peer_rank; /* send, recv */
    uint32_t tag;
    struct comms_op_range residual;
    const struct comms_fence *waits; /* it begins when all are reached; only read during the call */
    uint32_t wait_count;
    struct comms_fence ended; /* set when the operation has ended, failed, or was refused */
};

/* The end of an operation, for one rank. */
struct comms_completion {
    uint64_t ticket;
    const struct error *result;
    const struct comms_detail *detail; /* of a failure; null: nothing more is known */
    bool in_cells;                     /* the rank knows it already */
    uint32_t source_rank;              /* recv */
    uint64_t count_elements;           /* recv: number of elements received */
};

/*
 * Posts the next operation of this member, or a message. Immediate errors: INVALID_ARGUMENT (root out of
 * range, a range missing), UNSUPPORTED (dtype × operator), LIMIT, IN_PROGRESS (not formed yet), the cause
 * after a failure. An operation that gets LIMIT still uses up its number, and ends on the other ranks too. If
 * a verdict on it came before, the error is that verdict's.
 */
enum status comms_submit(struct comms_member *member, const struct comms_op *op, uint64_t now_ns,
                         struct error *error) COMM_MUST_USE;

/*
 * Sets the word once all earlier submits of this member have ended and the waits are reached, or the
 * communicator has failed. If the call itself fails, the word is set at once. Messages with tickets above
 * `ticket` are not waited for. INVALID_ARGUMENT, LIMIT, IN_PROGRESS, NO_MEMORY.
 */
enum status comms_record(struct comms_member *member, uint64_t ticket, const struct comms_fence *waits,
                         uint32_t wait_count, const struct comms_fence *word,
                         struct error *error) COMM_MUST_USE;
/* Sets the word at once, if the range is a valid word. */
void comms_fence_set(const struct comms_fence *fence);

/* A member's view of a formed communicator. Arrays belong to comms, and are valid while the member is joined
 * and the communicator formed. */
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
    uint64_t last_seq;             /* the member's last collective */
};
void comms_member_view(const struct comms_member *member, struct communicator_view *out);

/* Whether the formed communicator has cells. */
bool comms_member_has_cells(const struct comms_member *member);
/* A descriptor of their segment, once for each rank; the caller closes it. NOT_FOUND, SYSTEM. */
enum status comms_member_open_cells(struct comms_member *member, int *out, struct error *error) COMM_MUST_USE;
/* Between nodes: how many ranks of this node the segment has (proto/node_cells.h). On one node: 0. */
uint32_t comms_member_cell_ranks(const struct comms_member *member);
/* The member has rung: its communicator's cells are looked at from now on. Returns whether an operation waits
 * there. */
bool comms_member_wake_cells(struct comms_member *member, uint64_t now_ns);
/* Takes operations out of cells. Returns whether there were any. Call it in every turn. */
bool comms_cells_poll(struct comms *comms, uint64_t now_ns);
/* Wakes ranks whose operations in cells have ended since the last call. Call it in every turn, after
 * exec_run. One call wakes a rank once for all its operations. Otherwise the rank would run, and sleep again,
 * between two of them. */
void comms_cells_ring(struct comms *comms);
/* Whether comms_cells_poll looks at any cells. */
bool comms_cells_are_awake(const struct comms *comms);
/* The caller is about to sleep, so ranks ring from now on. Also does what comms_cells_ring does. Returns
 * false if an operation waits. */
bool comms_cells_sleep(struct comms *comms);
/* From now on all operations of the communicator go through comms_submit. late: a deadline has passed; once
 * every rank has submitted an operation, later ones may go through cells again. */
void comms_member_retire_cells(struct comms_member *member, bool late);
/* Operations that the member has submitted, and ended, through cells. */
void comms_member_in_cells(const struct comms_member *member, uint64_t now_ns, uint64_t *submitted,
                           uint64_t *completed);
/* What is known of the failure of the member's communicator; null: nothing more than its cause. */
const struct comms_detail *comms_member_detail(const struct comms_member *member);
/* The same of an operation that was refused with `error`: of the communicator's failure, if that is why; of a
 * message also of the rank that has left. Fills *out, and returns it; null if nothing is known. */
const struct comms_detail *comms_refusal_detail(const struct comms_member *member, enum op_kind kind,
                                                uint32_t peer_rank, const struct error *error,
                                                struct comms_detail *out);
/* Ends the member's communicator on all nodes, because of this member, unless it has failed already. */
void comms_member_abort(struct comms_member *member, const struct error *cause, uint64_t now_ns);
/* Aborts a communicator by hand (commctl), or every one (shutdown), as any other failure does. NOT_FOUND if
 * that user has none of that name. */
enum status comms_abort(struct comms *comms, uid_t owner_uid, const char *name, const struct error *cause,
                        uint64_t now_ns) COMM_MUST_USE;
/* The same, but only if it has not formed yet. */
void comms_abort_forming(struct comms *comms, uid_t owner_uid, const char *name, const struct error *cause,
                         uint64_t now_ns);
void comms_abort_all(struct comms *comms, const struct error *cause, uint64_t now_ns);

/* Returns whether no communicator has an operation pending (for a drain). */
bool comms_idle(const struct comms *comms);
/*
 * From now on new members are refused with SHUTTING_DOWN and `why`, such as "node a is draining: new kernel".
 * Communicators that are forming end with it, on all nodes. For COMMS_REFUSED_NS after a refusal, other
 * nodes' ranks of that communicator are told the same, so that they need not wait.
 */
void comms_drain(struct comms *comms, const char *why, uint64_t now_ns);
/* From now on members are taken again. */
void comms_undrain(struct comms *comms);
/* Ends all communicators with SHUTTING_DOWN and `why`, on all nodes. */
void comms_drain_end(struct comms *comms, const char *why, uint64_t now_ns);
#define COMMS_DRAIN_TEXT_MAX_BYTES 320
#define COMMS_REFUSED_NS (10 * TIME_S)
#define COMMS_REFUSED_MAX 256 /* names; a further one replaces the oldest */

/* For commctl: visits snapshots in a stable order. A callback returns false to stop. Texts are valid during
 * the callback. */
enum communicator_state { COMMS_COMM_FORMING, COMMS_COMM_FORMED, COMMS_COMM_FAILED };
#define COMMS_COMM_STATES 3
const char *communicator_state_text(enum communicator_state state);

/* Counts since the start, and of what there is now. Valid as long as the comms. */
struct comms_totals {
    struct op_counts ops;
    uint64_t communicators[COMMS_COMM_STATES]; /* by state */
    uint64_t ops_pending;
    uint64_t messages_pending;
    uint64_t formed;
    uint64_t failed;        /* formed or forming */
    uint64_t ops_in_cells;  /* they are in `ops`, too; as comms_read_cells last saw it */
    uint64_t ends_in_cells; /* the same for each local rank */
};
const struct comms_totals *comms_totals(const struct comms *comms);
/* Reads what ranks have carried out through cells, for the totals and comms_visit_comms. */
void comms_read_cells(struct comms *comms, uint64_t now_ns);

struct communicator_info {
    const char *name;
    uint64_t comm_id;
    uint32_t generation;
    uid_t owner_uid;
    enum communicator_state state;
    uint32_t size;
    uint32_t local_size;
    uint32_t known_ranks;      /* while forming: how many of `size` are known */
    const char *missing_ranks; /* while forming: "3, 5-7", cut with "…" */
    uint32_t node_count;
    const char *const *node_names; /* of the nodes known so far */
    uint64_t since_ns;             /* time of the last change of state */
    uint64_t ops_posted;           /* highest seq that a local rank has posted */
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
    bool running;              /* true: in exec; false: waiting for local ranks */
    const char *arrived_ranks; /* local ranks that posted it: "0, 2 (pid 4711)" */
    const char *missing_ranks; /* local ranks that have not; for the oldest operation, ranks of all nodes */
    const char *waiting_for;   /* running: exec's text, with the node's name; of a message: p2p's text */
};
/* Visits the client memory that operations and messages still use, once per buffer. */
typedef bool comms_use_visit(void *context, const struct memory *memory, const char *comm_name);
void comms_visit_uses(const struct comms *comms, comms_use_visit *visit, void *context);

#define COMMS_VISIT_MESSAGES_MAX 32 /* of each rank, the oldest ones */
/* Visits operations and messages that have not ended. */
typedef bool comms_op_visit(void *context, const struct comms_op_info *info);
void comms_visit_ops(const struct comms *comms, uint64_t now_ns, comms_op_visit *visit, void *context);

#endif
