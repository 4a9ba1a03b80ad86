#ifndef DAEMON_COMM_COMMS_INTERNAL_H
#define DAEMON_COMM_COMMS_INTERNAL_H

#include "daemon/base/fair.h"
#include "daemon/base/log.h"
#include "daemon/base/owned_name.h"
#include "daemon/base/random.h"
#include "daemon/base/ranges.h"
#include "daemon/base/table.h"
#include "daemon/base/time.h"
#include "daemon/base/timer_heap.h"
#include "daemon/base/trace.h"
#include "daemon/base/user_log.h"
#include "daemon/coll/overrides.h"
#include "daemon/coll/registry.h"
#include "daemon/comm/call.h"
#include "daemon/comm/cells.h"
#include "daemon/comm/comms.h"
#include "daemon/comm/text.h"

/* What the files of daemon/comm share. Private to daemon/comm. */

#define COMMS_VERDICTS_MAX                                                                                   \
    512 /* ranges of operations that ended by a verdict; then the oldest is forgotten */
#define COMMS_VERDICT_TEXTS_MAX 4     /* how many of the last verdicts keep their text */
#define COMMS_LIST_TEXT_MAX_BYTES 160 /* of lists of ranks or nodes in a message; cut beyond */
/*
 * If the net stage fails because a stream or a connection ended, the real cause arrives a moment later: the
 * other node's Abort, or the mesh's node_down. This is how long we wait for it.
 */
#define COMMS_BETTER_CAUSE_WAIT_NS (300 * TIME_MS)
/*
 * A rank that is refused although all nodes seem to agree already may be the one that should stay. In that
 * case the rank that conflicts with it is refused once the communicator is formed. If it is not formed after
 * this time, the refusal takes effect.
 */
#define COMMS_REFUSAL_WAIT_NS (300 * TIME_MS)
#define COMMS_WAITED_MAX_MS (UINT64_C(1) << 32) /* of an operation that went through cells first */
#define COMMS_SKIPPED_MAX (UINT64_C(1) << 48)   /* operations in a row that went through cells */
#define COMMS_NUMBER_MAX (UINT64_C(1) << 62)    /* which a rank may skip to: numbers never overflow */
#define COMMS_CROWD_WAIT_NS (10 * TIME_MS)      /* between checks whether other nodes have read */
/*
 * When an operation's deadline passes, a node whose ranks have all posted it waits, so that nodes that know a
 * late rank ask for a verdict first. All ranks then get the more precise cause. The wait grows with the
 * node's index, so that these nodes do not ask all at once.
 */
#define COMMS_DEADLINE_GRACE_NS (10 * TIME_MS)
#define COMMS_DEADLINE_STEP_NS (5 * TIME_MS)
#define COMMS_DEADLINE_STEPS_MAX 10

struct communicator;

/* What all ranks must agree on. */
struct communicator_terms {
    uint32_t size;
    uid_t owner_uid;
    uint64_t op_timeout_ms;
    uint64_t slice_bytes;
    bool slice_bytes_of_node; /* the node's own setting: the program set none */
    bool algorithms_of_node, minority_continues;
    char algorithms[COMMS_ALGORITHMS_MAX_BYTES + 1];
    struct coll_overrides overrides; /* algorithms, parsed */
};

/* Another node's part of a communicator, as it announced it. */
struct comms_claim {
    uint32_t node; /* the mesh's index */
    uint64_t nonce;
    uint64_t revision;
    uint64_t comm_id;                 /* the id that it promised; 0 for none */
    uint64_t latency_ns, bytes_per_s; /* estimate for its links */
    uint32_t rails;
    bool says_reach, agrees, tree;
    bool needed;      /* mesh_need was called for the connection */
    bool by_roster;   /* the node has not announced its ranks itself */
    bool in_roster;   /* of the last roster */
    uint32_t rosters; /* COMMS_ROSTERS_OF_STRANGER_MAX */
    /* The last of our revisions that it knew when it sent its messages. */
    uint64_t acknowledged_revision;
    struct comms_doubt *doubt; /* doubt.h; null: nothing is said of the node */
    uint32_t *ranks;
    uint32_t rank_count;
    UT_hash_handle hh;
};

struct comms_member {
    struct comms_member *prev, *next;
    struct communicator *comm;
    struct comms_client client;
    struct comms_member_handler handler;
    uint32_t rank;
    uint32_t local_index; /* set by the promise */
    uint32_t numa_node;   /* where its process ran when it joined: placement_rank_came */
    uint64_t form_timeout_ms;
    uint64_t form_deadline_ns;
    uint64_t announced_revision; /* our first revision with this rank; 0 before */
    bool refused;                /* this rank only: it has no part in the communicator any more */
    bool refusal_waits;          /* see COMMS_REFUSAL_WAIT_NS */
    bool formed_told;
    bool aborted_told;
    bool takes_cells;
    bool takes_node_cells;
    bool has_cells; /* it has the descriptor of their segment */
    uint64_t posted_seq;
    uint32_t bucket_left; /* operations that must still follow in its current bucket, */
    enum op_kind bucket_kind;
    enum dtype bucket_dtype; /* of this type, with this operator */
    enum reduce bucket_reduce;
    uint64_t completed_seq;          /* the owner was notified of operations up to this one */
    uint32_t owed_ops;               /* operations whose end was not reported yet */
    uint32_t pending_messages;       /* messages whose end was not reported yet */
    struct comms_refusals *refusals; /* not reported to the other ranks yet; null: none */
    struct comms_p2ps *points;       /* its messages; null before the first */
    struct comms_record *records;    /* oldest first */
    uint32_t record_count;
    struct error refusal;
};

#define COMMS_MESSAGE_COST_BYTES 256u /* of commd's memory for a pending message, without fences */
#define COMMS_P2P_LATE_MAX 256        /* messages that one turn may end for their deadline */
/* How long operations may take to end after their communicator has failed, or their deadline has passed. */
#define COMMS_OVERDUE_NS (2 * TIME_S)
#define COMMS_RECORD_POLL_NS (200 * TIME_US) /* between checks of words that records wait for */

/*
 * One local rank's entry in an operation. It is small, because an operation has one for each local rank even
 * before the rank posts it, or if it is refused.
 */
struct communicator_post {
    uint64_t ticket;
    struct comms_buffers *buffers; /* null before the post, after the end, and if refused */
    uint32_t rank;
    bool posted;
    bool owed;                     /* the owner was not notified of the end yet */
    bool in_cell;                  /* taken from a cell, and not submitted since: node_cells.h */
    struct comms_buffers *claimed; /* submitted since, while it runs: where the rank wants the result */
};

struct communicator_op {
    struct communicator_op *prev, *next; /* in the communicator's `pending` */
    struct communicator *comm;
    uint64_t seq;
    struct op_terms terms;
    uint32_t first_rank; /* the rank that posted it first */
    pid_t first_pid;
    uint64_t first_post_ns;
    uint64_t timeout_ms; /* the smallest */
    uint64_t started_ns; /* when all local ranks had posted it, and it was handed to exec; else 0 */
    uint64_t late_ns;    /* when its deadline had passed, and a verdict was asked for; else 0 */
    uint32_t posted_count;
    uint32_t owed_count;
    bool disputed; /* ranks disagree: it waits for a verdict */
    bool running;
    /* The communicator failed, and a GPU still uses buffers: owners are notified anyway. */
    bool overdue;
    bool in_cells;      /* a part of it was taken from a cell */
    bool must_submit;   /* the answer was: the ranks must submit it */
    bool answered_well; /* the answer was: the outputs are there */
    bool finished;
    bool succeeded;
    struct error *cause;            /* its own cause, if it failed; null: the communicator's */
    struct comms_detail *detail;    /* of its own cause; may be null */
    struct budget_account *account; /* of the rank that posted it first: charged until it is freed */
    uint64_t charged_bytes;
    struct communicator_post posts[]; /* by local index */
};

/* A verdict with its text, for ranks that post its operations later. */
struct comms_verdict {
    uint64_t seq;
    uint64_t ops;
    struct error cause;
    bool has_detail;
    struct comms_detail detail;
};

/* Consecutive operations that were refused to one member. */
struct comms_refusals {
    uint64_t seq;
    uint64_t ops;
    struct error why; /* of the first refusal */
};

/* Ranks of all nodes that have not posted an operation. */
struct comms_missing {
    uint64_t seq;
    uint64_t known_ns;
    uint32_t count;
    char text[COMMS_LIST_TEXT_MAX_BYTES]; /* "rank 3 (pid 4711) of node c" */
    uint32_t listed;                      /* of the ranks, as numbers */
    uint32_t ranks[CLIENT_FAILURE_RANKS_MAX];
    int32_t pids[CLIENT_FAILURE_RANKS_MAX];
};

/* A node of a communicator, in the communicator's order. */
struct communicator_node {
    uint32_t node; /* the mesh's index, or MESH_NODE_OWN */
    uint64_t nonce;
    uint32_t lowest_rank;
    uint32_t rank_count;
    uint32_t left_count;
    bool answered;          /* in this round of missing.c */
    bool needed;            /* the communicator needs the connection: comms_link_need */
    bool called;            /* the need is MESH_NEED_CALL */
    uint8_t asks;           /* by silence.c, without an answer since */
    uint64_t hints_ns;      /* since when silence.c believes its hints; 0: it has given none */
    uint64_t need_ns;       /* since then */
    uint32_t reached_rails; /* bits of the rails that it has named; 0: none yet */
};

/* commd's memory for each node that has sent an announcement of the communicator, without its ranks. */
#define COMMS_NODE_COST_BYTES                                                                                \
    (sizeof(struct comms_claim) + sizeof(struct communicator_node) + sizeof(const char *))

struct communicator {
    struct communicator *prev, *next; /* in comms, oldest first */
    struct fair_entry turn;           /* in comms->queue */
    struct comms *comms;
    struct owned_name key;
    const char *name; /* key.name */
    struct communicator_terms terms;
    enum communicator_state state;
    uint64_t since_ns;
    struct error cause;          /* if FAILED */
    struct comms_detail *detail; /* of the cause; may be null */
    uint32_t generation;
    bool named; /* in comms->by_key */
    struct timer_node timer;
    struct budget_account *account; /* of the first local member: charged for what it holds */
    uint64_t charged_bytes;

    struct comms_member *members; /* ascending by rank; refused ones too */
    uint32_t member_count;        /* including refused ones */
    uint32_t rank_count;          /* without refused ones */
    struct comms_member *cursor;  /* next member of the walk that tells owners */
    struct comms_member *told;    /* the member being notified; null once it has left */

    /* Formation. */
    struct comms_claim *claims; /* of nodes that announced ranks, or may do so */
    struct comms_guest *guest;  /* meeting.h; null in a complete cluster */
    uint64_t nonce;
    uint64_t revision;
    uint64_t latency_ns, bytes_per_s; /* estimate for our links, made with the nonce; 0: unknown */
    bool announced;
    bool announce_wanted;      /* ranks changed: announce to all nodes */
    bool update_wanted;        /* comm_id changed: announce to nodes with ranks */
    uint64_t last_promised_id; /* 0 before; in comms->by_promise, unless memory was short */
    uint64_t announce_ns;      /* when to retry, if other nodes have too much to read; or TIME_NEVER */
    bool by_tree;              /* it may form by a tree, and reports to places: roster.h */
    bool roster_begun;         /* a roster without all ranks is coming in parts, from this node: */
    uint32_t roster_from;      /* the mesh's index, or MESH_NODE_OWN */
    bool roster_is_whole;      /* all ranks are known, and every node gets the same list */
    struct comms_roster_draft *roster_drafts; /* roster_draft.h */
    bool sparse;          /* its nodes form a tree, and connect to others only when needed: comms_tree.h */
    bool is_broken;       /* sparse: the promise cannot be kept */
    uint64_t ask_ns;      /* when silence.c looks again */
    uint64_t ask_last_ns; /* when it last asked; 0: never */
    uint64_t hinted_ns;   /* until then, silence.c believes what other nodes have hinted */
    uint64_t link_ns;     /* when to look for missing connections again; TIME_NEVER: none is missing */
    uint64_t doubt_ns;    /* when doubt.c looks again; TIME_NEVER: nothing is in doubt */
    uint64_t refusal_ns;  /* when waiting refusals take effect; TIME_NEVER without any */
    char last_loss[COMMS_LIST_TEXT_MAX_BYTES * 2]; /* why a node's ranks were dropped */

    /* Set by the promise. */
    uint64_t comm_id; /* 0 before */
    bool has_id;      /* in comms->by_id */
    struct communicator_node *nodes;
    const char **node_names;
    uint32_t node_count;
    uint32_t own_index;
    uint32_t *node_of_rank;
    bool *has_left;          /* by rank */
    uint64_t *left_messages; /* by rank of other nodes: p2p_rank_left's sent_count */
    int32_t *left_pids;      /* by rank that has left; 0: not known */
    uint32_t left_rank;
    int32_t left_pid;                             /* 0: not known */
    char left_why[COMMS_LIST_TEXT_MAX_BYTES * 2]; /* empty: it left regularly */
    bool left_is_needed; /* a message fails because that process is lost: the communicator fails at once */
    /* The last operation in which left_rank took part. left_rank is the rank with the smallest such number.
     * UINT64_MAX if no rank has left. */
    uint64_t left_seq;
    struct comms_member **locals; /* by local index; null once left */
    uint32_t local_count;

    /* Formed. */
    struct exec_comm *exec;
    struct p2p_comm *p2p;
    struct comms_cells *cells;       /* null: it has none; cells.c */
    struct fair_entry cells_turn;    /* in comms->cells_awake */
    struct communicator_op **ops;    /* ring of COMMS_PENDING_OPS_MAX, by seq */
    struct communicator_op *pending; /* not finished, by seq */
    struct communicator_op *start;   /* the next of these to begin; operations begin in order */
    uint64_t highest_seq;            /* posted, or refused, by any local rank */
    uint64_t last_message_id;
    uint64_t record_poll_ns;   /* when to check words that records wait for; TIME_NEVER if none */
    uint64_t overdue_ns;       /* of a failed one: when owners are notified at the latest; else TIME_NEVER */
    struct comms_p2ps *points; /* point-to-point messages, by member */
    struct timer_heap point_deadlines;
    uint32_t point_count;
    struct ranges verdicts; /* operations with a verdict, and its status; at most COMMS_VERDICTS_MAX */
    struct comms_verdict *verdict_texts[COMMS_VERDICT_TEXTS_MAX]; /* a ring */
    uint32_t verdict_text_count;                                  /* of all texts so far */
    bool verdicts_charged;
    uint32_t refusing_count; /* members with refusals not reported yet; nothing begins meanwhile */
    uint64_t refusals_ns;    /* when to retry that, if other nodes have too much to read; or TIME_NEVER */
    bool agrees_rails;       /* reach.c */
    uint64_t reach_ns;       /* when to check its rails again; TIME_NEVER once they are sent */
    uint64_t reach_until_ns;
    struct comms_loss *loss; /* loss.h; null before the promise */
    uint64_t op_deadline_ns; /* before this time no deadline passes, and nothing must be asked */
    struct comms_missing missing;
    uint64_t missing_round_ns;    /* on the first node: when it asked all nodes */
    uint64_t asked_seq, asked_ns; /* this node's last question: operation, time */
    uint64_t completed_count;
    uint64_t bytes_reduced;
    bool exec_failed;
    struct error exec_cause;
    uint64_t exec_cause_ns; /* when to stop waiting for a better cause */

    UT_hash_handle hh_key;
    UT_hash_handle hh_id;
    UT_hash_handle hh_promise;
};

struct comms {
    struct mesh *mesh;
    struct exec *exec;
    struct p2p *p2p;
    uint32_t rail_count;
    struct random random;
    uint64_t slice_bytes;
    char algorithms[COMMS_ALGORITHMS_MAX_BYTES + 1];
    struct comms_drain *drain; /* null: it does not drain; drain.c */
    struct placement *placement;
    struct log_limit node_limit;    /* for statements of nodes that are ignored */
    struct log_limit refusal_limit; /* for refused ranks of other nodes */
    struct log_limit verdict_limit; /* for verdicts */
    struct user_log formed_log;     /* limited per user: users form communicators at will */
    struct user_log failed_log;     /* separate, so that neither suppresses the other */
    uint64_t now_ns;                /* time of the current call, for the log limits */
    struct fair cells_awake;        /* communicators whose cells are looked at, in turns of their owners */
    struct comms_cells *bells;      /* between nodes, with answers: their ranks are woken soon */
    struct communicator *comms;
    uint32_t comm_count;
    struct communicator *by_key;
    struct communicator *by_id;
    struct communicator *by_promise; /* by last_promised_id, even if taken back */
    struct fair queue;               /* work for the next tick */
    uint32_t tells_left;             /* callbacks left in this tick, or for the ended operation */
    struct comms_names *names;       /* by uid; names.c */
    uint32_t name_count;
    struct comms_meetings *meetings;  /* of which this node is the place; null before the first */
    struct comms_relays *relays;      /* of which this node is a relay; null before the first */
    struct comms_ends *ends;          /* doubt.h; null before the first */
    struct comms_witness *witness;    /* witness.h; null before the first question */
    struct comms_farewell *farewells; /* of guests of this node: meeting.h */
    uint32_t farewell_count;
    struct comms_post *posts; /* messages that wait for connections: comms_tree.h */
    size_t posts_bytes;
    struct communicator *relaying; /* the one whose message along the tree is being handled; null: none */
    struct comms_past *past; /* loss.c: decisions of communicators that are gone; null before the first */
    bool forgot_decisions;   /* some such decisions are not there any more */
    struct timer_heap timers;
    uint64_t (*clock)(void); /* may be null */
    struct comms_totals totals;
};

/* communicator.c: a communicator's life: how it fails and ends, and callbacks to its owners. */
struct communicator *communicator_find(const struct comms *comms, uid_t owner_uid, const char *name);
struct communicator *communicator_find_id(const struct comms *comms, uint64_t comm_id);
/* For account see struct communicator. Without is_named nobody finds it by its name. */
enum status communicator_new(struct comms *comms, struct budget_account *account, const char *name,
                             const struct communicator_terms *terms, bool is_named, uint64_t now_ns,
                             struct communicator **out, struct error *error) COMM_MUST_USE;
/* Charges more bytes to the communicator's account, until it is freed. LIMIT. */
enum status communicator_charge(struct communicator *comm, uint64_t bytes, struct error *error) COMM_MUST_USE;
void communicator_free(struct communicator *comm);
/* Whether nothing uses buffers of its ranks. */
bool communicator_is_idle(const struct communicator *comm);
/* Queues the communicator for work in the next tick. */
void communicator_queue(struct communicator *comm);
void communicator_work(struct communicator *comm, uint64_t now_ns);
void communicator_arm(struct communicator *comm);
/* Frees the name for another communicator. */
void communicator_unname(struct communicator *comm);
void communicator_set_state(struct communicator *comm, enum communicator_state state, uint64_t now_ns);
enum comms_tell { COMMS_TELL_NODES, COMMS_TELL_NOBODY };
/*
 * The only path on which a communicator fails, forming or formed, whatever the reason. Everything pending
 * ends with `cause`. The other nodes are notified (COMMS_TELL_NODES), unless one of them reported the
 * failure. Owners are notified in the next tick. Does nothing if it has failed before.
 */
void communicator_fail(struct communicator *comm, const struct error *cause, enum comms_tell tell,
                       uint64_t now_ns);
/* As communicator_fail, with what else is known of the cause; null: nothing. */
void communicator_fail_with(struct communicator *comm, const struct error *cause,
                            const struct comms_detail *detail, enum comms_tell tell, uint64_t now_ns);
#define COMMS_LEFT_OUT_BYTES 64
/* Whether a line about the communicator may be logged. left_out gets the line's end: how many lines of its
 * user were suppressed. */
bool communicator_may_log(const struct communicator *comm, struct user_log *logs, uint64_t now_ns,
                          char left_out[COMMS_LEFT_OUT_BYTES]);
/* Records that a rank takes part in no operation after last_seq. why: cause for operations that need it
 * later; empty if it left regularly. */
void communicator_rank_left(struct communicator *comm, uint32_t rank, int32_t pid, uint64_t last_seq,
                            const char *why);
/* Charges what a rank holds from its join until it is removed. LIMIT. */
enum status communicator_charge_rank(struct budget_account *account, struct error *error) COMM_MUST_USE;
void communicator_uncharge_rank(struct budget_account *account);
void communicator_remove_member(struct comms_member *member);
const char *communicator_own_name(const struct communicator *comm);
const char *communicator_node_name(const struct communicator *comm, uint32_t node);
/* The node's index in the communicator, or node_count. */
uint32_t communicator_node_index(const struct communicator *comm, uint32_t node);
/* Of a node of the communicator without a connection for each pair, the message takes its way through the
 * tree. */
void communicator_send(struct communicator *comm, uint32_t node, const Commd__Mesh__Message *message);
/* To all other nodes of the communicator. */
void communicator_broadcast(struct communicator *comm, const Commd__Mesh__Message *message);

/* names.c: how often each user has used each name. */
#define COMMS_NAMES_OF_USER_MAX 1024 /* then the least recently used name is forgotten */
#define COMMS_NAMES_MAX 16384        /* of all users; then likewise, of the user with the most names */
/* The generation of a user's name: one more with each use, 1 for a name that is not remembered. For people
 * only, as incarnations differ by their ids. */
uint32_t comms_names_next_generation(struct comms *comms, uid_t owner_uid, const char *name);
void comms_names_free(struct comms *comms);

/* announce.c and node_messages.c: messages from other nodes. */
/* The communicator has formed without that node: refuses those ranks of its claim that are local ranks. */
void comms_refuse_late_ranks(struct communicator *comm, const struct comms_claim *claim);
void comms_control_announce(struct comms *comms, uint32_t node, const Commd__Mesh__Announce *announce,
                            uint64_t now_ns);
/* The node sent what no correct node sends. If another node passed it on, only that communicator fails. */
void comms_violation(struct comms *comms, uint32_t node, const char *what, uint64_t now_ns);
void comms_control_node_up(void *context, uint32_t node, uint64_t now_ns);
void comms_control_node_down(void *context, uint32_t node, const struct error *cause, uint64_t now_ns);
void comms_control_received(void *context, uint32_t node, const Commd__Mesh__Message *message,
                            uint64_t now_ns);

/* drain.c: a node that takes no new communicators. */
void comms_drain_node_up(const struct comms *comms, uint32_t node);
/* Returns SHUTTING_DOWN if a rank may not join because of a drain, and tells other nodes' ranks. */
enum status comms_drain_check(struct comms *comms, uid_t owner_uid, const char *name, uint64_t now_ns,
                              struct error *error) COMM_MUST_USE;
/* An announcement of a communicator without ranks here: if a rank of it was refused, tells the node. */
void comms_drain_answer(struct comms *comms, uint32_t node, const Commd__Mesh__Announce *announce,
                        uint64_t now_ns);
/* Whether another node's refusal says that it drains. Then the forming communicator, which may be null, ends.
 */
bool comms_drain_refused(struct communicator *comm, uint32_t node, const Commd__Mesh__Refuse *refuse,
                         const struct error *cause, uint64_t now_ns);

/* trust.c: the nodes on which a user may have ranks. */
/* Whether that node may speak for the user. If the user may have no ranks there, returns false and logs a
 * line. */
bool comms_user_may_say(struct comms *comms, uid_t uid, uint32_t node, const char *name, uint64_t now_ns);

/* dispute.c: operations on which ranks disagree. */
/* Two local ranks disagree; the text of cause names both calls. */
void comms_dispute_local(struct communicator_op *op, const struct error *cause,
                         const struct comms_detail *detail, uint64_t now_ns);
/*
 * Call it when a local rank has posted an operation: disputes it if its counts contradict those of a local
 * rank that has posted it before. Takes time in proportion to their number. A copy between two ranks is as
 * long as either rank states, so only this check keeps it within both buffers.
 */
void comms_dispute_layouts(struct communicator_op *op, uint32_t local_index, uint64_t now_ns);
/* Another node's call differs from ours (exec_comm_handler.disagreed). */
void comms_dispute_found(void *context, uint64_t seq, uint32_t node, const char *how, uint64_t now_ns);
/* The caller has checked the numbers, and that the node may send this. */
void comms_dispute_received(struct communicator *comm, const Commd__Mesh__Dispute *dispute, uint64_t now_ns);

/* verdict.c: operations that end on all ranks with the same result and text. */
/* Asks the communicator's first node for a verdict on `ops` operations from seq on, at most
 * OP_BUCKET_OPS_MAX. For each operation the first request that arrives there counts. */
void comms_verdict_ask(struct communicator *comm, uint64_t seq, uint32_t ops, const struct error *cause,
                       const struct comms_detail *detail, uint64_t now_ns);
/* The caller has checked the numbers, and that the node may send this. */
void comms_verdict_received(struct communicator *comm, const Commd__Mesh__Verdict *verdict, uint64_t now_ns);
/* Whether there is a verdict on an operation; *cause gets it, unless cause is null. If the text is not kept
 * any more, *cause has the verdict's status and a general text. */
bool comms_verdict_find(const struct communicator *comm, uint64_t seq, struct error *cause);
/* What else is known of an operation's verdict; null: nothing. Valid until the next verdict. */
const struct comms_detail *comms_verdict_detail(const struct communicator *comm, uint64_t seq);
/*
 * Operations were refused to one member: the other ranks are notified in the next tick, once for consecutive
 * operations. While other nodes have too much to read, that waits.
 */
void comms_verdict_refuse(struct comms_member *member, uint64_t seq, uint64_t ops, const struct error *why,
                          uint64_t now_ns);
/* The text for refusals. */
void comms_verdict_refusal_text(const struct comms_member *member, uint64_t seq, uint64_t ops,
                                const struct error *why, struct error *out);
/* Tells the other ranks of refusals. If other nodes have too much to read, a later call does so. */
void comms_verdict_tell_refusals(struct communicator *comm, uint64_t now_ns);
/* Tells the others of this member's refusals at once, before it leaves. */
void comms_verdict_tell_own(struct comms_member *member, uint64_t now_ns);
/* Drops the member's refusals: the others are not notified any more. */
void comms_verdict_forget_own(struct comms_member *member);
/* Call it when the communicator has formed: applies verdicts from nodes that had formed it earlier. */
void comms_verdicts_begin(struct communicator *comm, uint64_t now_ns);
void comms_verdicts_free(struct communicator *comm);

/* message_life.c: point-to-point messages. */
enum status comms_p2p_submit(struct comms_member *member, const struct comms_op *op, uint64_t now_ns,
                             struct error *error) COMM_MUST_USE;
/* Tells the owner of one ended message. Returns whether there was one. The member may be gone afterwards. */
bool comms_p2p_tell(struct comms_member *member, uint64_t now_ns);
/* Whether a message of the member has not ended, among those up to that id and that ticket. */
bool comms_p2p_is_pending(const struct comms_member *member, uint64_t last_message_id, uint64_t last_ticket);
/* The member leaves: no more callbacks for its messages. */
void comms_p2p_leave(struct comms_member *member);
bool comms_p2p_pending(const struct comms_member *member);
/* p2p has ended a message (p2p_comm_handler.done). */
void comms_p2p_done(void *context, struct p2p_message *message, const struct error *result, uint64_t now_ns);
/* Ends messages whose deadline has passed, each by itself. Returns the next deadline. */
uint64_t comms_p2p_deadlines(struct communicator *comm, uint64_t now_ns);
void comms_p2p_free_all(struct communicator *comm);
/* Visits each rank's oldest messages that have not ended. Returns false if a callback does. */
bool comms_p2p_visit(const struct communicator *comm, uint64_t now_ns, comms_op_visit *visit, void *context);
/* Visits the memory of messages that have not ended. Returns false if a callback does. */
bool comms_p2p_visit_uses(const struct communicator *comm, comms_use_visit *visit, void *context);

/* missing.c: finds ranks of all nodes that have not posted an operation. */
/* Asks about the oldest operation, if it is time to. Returns when to call it next. */
uint64_t comms_missing_step(struct communicator *comm, uint64_t now_ns);
/* Recent information on the operation; null if there is none, or no rank is missing. */
const struct comms_missing *comms_missing_of(const struct communicator *comm, uint64_t seq, uint64_t now_ns);
/* Returns false if the node may not send this. */
bool comms_missing_received(struct communicator *comm, uint32_t node, const Commd__Mesh__Missing *said,
                            uint64_t now_ns);

/* reach.c: which rails the communicator uses. */
/* Whether its nodes will agree on them: each has announced that it supports this, and has several rails. */
bool comms_reach_is_agreed(const struct communicator *comm);
/* Call it when the communicator is formed. */
void comms_reach_begin(struct communicator *comm, uint64_t now_ns);
/* Call it when reach_ns has passed. */
void comms_reach_step(struct communicator *comm, uint64_t now_ns);
/* Returns false if the node may not send this. */
bool comms_reach_received(struct communicator *comm, uint32_t node, const Commd__Mesh__Reach *said);

/* op_life.c */
/* Ends every operation that was not handed to exec. */
void comms_op_fail_waiting(struct communicator *comm, uint64_t now_ns);
/* Reports operations (comms_p2p_overdue: messages) that have not ended to their owners anyway: those whose
 * deadline was handled by then, or with TIME_NEVER all. References to their buffers are kept until they end.
 */
void comms_op_overdue(struct communicator *comm, uint64_t late_before_ns);
void comms_p2p_overdue(struct communicator *comm);
/* The communicator has just failed: drops the deadlines of all its messages. */
void comms_p2p_fail(struct communicator *comm);
/* Ends operations and messages whose deadline has passed, each by itself. */
void comms_op_deadlines(struct communicator *comm, uint64_t now_ns);
/* Null if the operation has ended, was not posted here yet, or the communicator is not formed. */
static inline struct communicator_op *comms_op_at(const struct communicator *comm, uint64_t seq)
{
    struct communicator_op *op = comm->ops != NULL ? comm->ops[seq % COMMS_PENDING_OPS_MAX] : NULL;
    return op != NULL && op->seq == seq ? op : NULL; /* no ops: it is not formed yet */
}
/* Submits to exec, in order, the operations that every local rank has posted. */
void comms_op_start_ready(struct communicator *comm, uint64_t now_ns);
/* Ends the operation with a cause of its own, as soon as nothing uses its buffers. */
void comms_op_end(struct communicator_op *op, const struct error *cause, const struct comms_detail *detail,
                  uint64_t now_ns);
/* The member's post is settled: its owner was notified of the end, or the member is gone. */
void comms_op_settle(struct communicator_op *op, struct comms_member *member);
/* Settles all posts of a member. Takes time in proportion to those that are owed, and at most to all pending
 * operations. */
void comms_op_settle_all(struct comms_member *member);
/* Fails the communicator if a pending operation needs a rank that has left, or if no operation is pending and
 * a rank's process is gone. */
void comms_op_check_left(struct communicator *comm, uint64_t now_ns);
uint64_t comms_op_deadline_ns(const struct communicator_op *op);
void comms_op_free_all(struct communicator *comm);
bool comms_op_any_pending(const struct communicator *comm);

#endif
