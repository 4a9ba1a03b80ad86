#ifndef DAEMON_COMM_COMMS_INTERNAL_H
#define DAEMON_COMM_COMMS_INTERNAL_H

#include "daemon/base/fair.h"
#include "daemon/base/log.h"
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
#include "daemon/comm/comms.h"

/* What the parts of comms share. Seen by daemon/comm alone. */

#define COMMS_ALGORITHMS_MAX_BYTES 255
#define COMMS_VERDICTS_MAX                                                                                   \
    512 /* ranges of operations that ended by a verdict; beyond, the oldest is forgotten */
#define COMMS_VERDICT_TEXTS_MAX 4     /* the last of these whose words are kept */
#define COMMS_NODE_OWN UINT32_MAX     /* this node, where others are the mesh's indices */
#define COMMS_LIST_TEXT_MAX_BYTES 160 /* of ranks or nodes in a message: cut beyond */
/*
 * When the net stage fails because a stream or a connection ended, the other node's Abort, or the mesh's own
 * verdict, says why, and comes a moment later: it is waited for, this long.
 */
#define COMMS_BETTER_CAUSE_WAIT_NS (300 * TIME_MS)
/*
 * A rank that is refused while all nodes seem to agree already may be the one that is meant to stay: whoever
 * refused it is then refused once the communicator is formed. When it is not formed after this long, the
 * refusal holds.
 */
#define COMMS_REFUSAL_WAIT_NS (300 * TIME_MS)
#define COMMS_CROWD_WAIT_NS (10 * TIME_MS) /* until a look whether other nodes have read */
/*
 * Nodes whose ranks all posted an operation in time let those that know more speak first when its deadline
 * passes: all ranks then hear the same cause. By index among the nodes, so that they do not speak at once
 * either.
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
    char algorithms[COMMS_ALGORITHMS_MAX_BYTES + 1];
    struct coll_overrides overrides; /* what that text says */
};

/* Another node's part of a communicator, as it announced it. */
struct comms_claim {
    uint32_t node; /* the mesh's index */
    uint64_t nonce;
    uint64_t revision;
    uint64_t comm_id;                 /* that it promised; 0 for none */
    uint64_t latency_ns, bytes_per_s; /* of its links */
    uint32_t rails;
    bool says_reach;
    uint64_t acknowledged_revision; /* of ours: it knew that when it sent what comes after */
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
    uint32_t local_index; /* once promised */
    uint64_t form_timeout_ms;
    uint64_t form_deadline_ns;
    uint64_t announced_revision; /* the first with this rank; 0 before */
    bool refused;                /* alone: no part of the communicator any more */
    bool refusal_waits;          /* see COMMS_REFUSAL_WAIT_NS */
    bool formed_told;
    bool aborted_told;
    uint64_t posted_seq;
    uint32_t bucket_left;    /* operations of its last one's bucket that are to follow, */
    enum dtype bucket_dtype; /* of this type, with this operator */
    enum reduce bucket_reduce;
    uint64_t completed_seq;          /* told to the owner */
    uint32_t owed_ops;               /* that the owner is still to be told of */
    uint32_t pending_messages;       /* likewise */
    struct comms_refusals *refusals; /* that the other ranks are still to be told of; null: none */
    struct comms_p2ps *points;       /* its messages; null before the first */
    struct comms_record *records;    /* oldest first */
    uint32_t record_count;
    struct error refusal;
};

#define COMMS_MESSAGE_COST_BYTES 256u /* of commd's memory for a message that is pending; fences aside */
#define COMMS_P2P_LATE_MAX 256        /* messages whose deadline has passed that end in one turn */
/* How long operations may take to end once their communicator has failed, or their deadline has passed. */
#define COMMS_OVERDUE_NS (2 * TIME_S)
#define COMMS_RECORD_POLL_NS (200 * TIME_US) /* between looks at words that records wait for */

/*
 * One local rank's place in an operation. Small: an operation has one for each local rank before they post,
 * and one that is refused has no more.
 */
struct communicator_post {
    uint64_t ticket;
    struct comms_buffers *buffers; /* null before the post, after the end, and where it was refused */
    uint32_t rank;
    bool posted;
    bool owed; /* the owner is still to be told */
};

struct communicator_op {
    struct communicator_op *prev, *next; /* of the communicator's pending ones */
    struct communicator *comm;
    uint64_t seq;
    struct op_terms terms;
    uint32_t first_rank; /* who posted it first */
    pid_t first_pid;
    uint64_t first_post_ns;
    uint64_t timeout_ms; /* the smallest */
    uint64_t late_ns;    /* its deadline has passed, and a verdict was asked for; 0: not */
    uint32_t posted_count;
    uint32_t owed_count;
    bool disputed; /* ranks disagree: a verdict is waited for */
    bool running;
    bool overdue; /* the communicator failed, and a GPU does not let go of it: owners are told all the same */
    bool finished;
    bool succeeded;
    struct error *cause;            /* of its own, when it did not; null: the communicator's */
    struct budget_account *account; /* of who posted it first: charged until the operation is freed */
    uint64_t charged_bytes;
    struct communicator_post posts[]; /* by local index */
};

/* The words of a verdict, for ranks that post its operations later. */
struct comms_verdict {
    uint64_t seq;
    uint64_t ops;
    struct error cause;
};

/* Operations in a row that were refused to one member. */
struct comms_refusals {
    uint64_t seq;
    uint64_t ops;
    struct error why; /* the first */
};

/* Ranks that have not posted an operation, of all nodes. */
struct comms_missing {
    uint64_t seq;
    uint64_t known_ns;
    uint32_t count;
    char text[COMMS_LIST_TEXT_MAX_BYTES]; /* "rank 3 (pid 4711) of node c" */
};

/* A node of a communicator, in their order. */
struct communicator_node {
    uint32_t node; /* the mesh's index, or COMMS_NODE_OWN */
    uint64_t nonce;
    uint32_t lowest_rank;
    uint32_t rank_count;
    uint32_t left_count;
    bool answered;          /* in this round of missing.c */
    uint32_t reached_rails; /* that it has named, as bits; 0: it has not yet */
};

/* Of commd's memory, for each node that has spoken of the communicator, beside its ranks. */
#define COMMS_NODE_COST_BYTES                                                                                \
    (sizeof(struct comms_claim) + sizeof(struct communicator_node) + sizeof(const char *))

/* What a communicator is known by, on all nodes. Hashed up to the name's end. */
struct comms_key {
    uint32_t owner_uid;
    char name[COMM_NAME_MAX_BYTES + 1];
};

struct communicator {
    struct communicator *prev, *next; /* of comms, oldest first */
    struct fair_entry turn;           /* in comms->queue */
    struct comms *comms;
    struct comms_key key;
    const char *name; /* the key's */
    struct communicator_terms terms;
    enum communicator_state state;
    uint64_t since_ns;
    struct error cause; /* FAILED */
    uint32_t generation;
    bool named; /* in comms->by_key */
    struct timer_node timer;
    struct budget_account *account; /* of who joined first here: charged for what the communicator holds */
    uint64_t charged_bytes;

    struct comms_member *members; /* ascending by rank; refused ones too */
    uint32_t member_count;        /* with refused ones */
    uint32_t rank_count;          /* without */
    struct comms_member *cursor;  /* of the walk that tells owners: the next one */
    struct comms_member *told;    /* being told; null once it has left */

    /* Formation. */
    struct comms_claim *claims;
    uint64_t nonce;
    uint64_t revision;
    uint64_t latency_ns, bytes_per_s; /* of our links, as they were when the nonce was made; 0 for unknown */
    bool announced;
    bool announce_wanted;      /* ranks changed: to everybody */
    bool update_wanted;        /* comm_id changed: to those with ranks */
    uint64_t last_promised_id; /* 0 before; among comms->by_promise, memory permitting */
    uint64_t announce_ns;      /* when to try again, while other nodes have too much to read; TIME_NEVER */
    uint64_t refusal_ns;       /* when refusals that wait hold; TIME_NEVER without any */
    char last_loss[COMMS_LIST_TEXT_MAX_BYTES * 2]; /* why a node's ranks went away again */

    /* From the promise on. */
    uint64_t comm_id; /* 0 before */
    bool has_id;      /* in comms->by_id */
    struct communicator_node *nodes;
    const char **node_names;
    uint32_t node_count;
    uint32_t own_index;
    uint32_t *node_of_rank;
    bool *has_left;          /* by rank */
    uint64_t *left_messages; /* of other nodes' ranks that have left: what their nodes had sent to this one */
    uint32_t left_rank;
    char left_why[COMMS_LIST_TEXT_MAX_BYTES * 2]; /* empty: in good order */
    uint64_t left_seq; /* the last operation in which left_rank took part, the smallest of all; UINT64_MAX
                          when none has left */
    struct comms_member **locals; /* by local index; null once left */
    uint32_t local_count;

    /* Formed. */
    struct exec_comm *exec;
    struct p2p_comm *p2p;
    struct communicator_op **ops;    /* ring of COMMS_PENDING_OPS_MAX, by seq */
    struct communicator_op *pending; /* not finished yet, by seq */
    struct communicator_op *start;   /* of these, the next to begin: none before one that is in doubt */
    uint64_t highest_seq;            /* posted by anybody here, or refused */
    uint64_t last_message_id;
    uint64_t record_poll_ns; /* when to look at what a record waits for; TIME_NEVER when none does */
    uint64_t overdue_ns; /* of a failed one: when its owners are told at the latest; TIME_NEVER otherwise */
    struct comms_p2ps *points; /* messages from rank to rank, by member */
    struct timer_heap point_deadlines;
    uint32_t point_count;
    struct ranges verdicts; /* operations that ended by one, with its status; at most COMMS_VERDICTS_MAX */
    struct comms_verdict *verdict_texts[COMMS_VERDICT_TEXTS_MAX]; /* a ring */
    uint32_t verdict_text_count;                                  /* ever */
    bool verdicts_charged;
    uint32_t refusing_count; /* members with refusals that are to be told; nothing begins meanwhile */
    uint64_t refusals_ns;    /* when to try that again, while other nodes have too much to read; TIME_NEVER */
    bool agrees_rails;       /* reach.c */
    uint64_t reach_ns;       /* when to look at its rails again; TIME_NEVER once it has said them */
    uint64_t reach_until_ns;
    uint64_t op_deadline_ns; /* no operation's passes before, and nothing is to be asked */
    struct comms_missing missing;
    uint64_t missing_round_ns;    /* of the first node: when it asked all */
    uint64_t asked_seq, asked_ns; /* when this node asked last, and of which operation */
    uint64_t completed_count;
    uint64_t bytes_reduced;
    bool exec_failed;
    struct error exec_cause;
    uint64_t exec_cause_ns; /* when to give up waiting for a better one */

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
    bool draining;
    bool (*user_may)(void *context, uint32_t uid, const char *node);
    void *user_may_context;
    struct log_limit node_limit;    /* of what nodes say that does not count */
    struct log_limit refusal_limit; /* of ranks of other nodes that are refused */
    struct log_limit verdict_limit; /* of operations that ranks call differently */
    struct user_log formed_log;     /* of communicators, which users form as often as they like */
    struct user_log failed_log;     /* apart: neither hides the other */
    uint64_t now_ns;                /* of the call under way: the limits go by it */
    struct communicator *comms;
    uint32_t comm_count;
    struct communicator *by_key;
    struct communicator *by_id;
    struct communicator *by_promise; /* by the last id that was promised, taken back or not */
    struct fair queue;               /* work for the next tick */
    uint32_t tells_left;             /* of this tick, or of the operation that has ended */
    struct comms_names *names;       /* by uid; names.c */
    uint32_t name_count;
    struct timer_heap timers;
};

/* comm.c: what a communicator is, how it fails and ends, what its owners are told. */
struct communicator *communicator_find(const struct comms *comms, uid_t owner_uid, const char *name);
struct communicator *communicator_find_id(const struct comms *comms, uint64_t comm_id);
/* account: see struct communicator. */
enum status communicator_new(struct comms *comms, struct budget_account *account, const char *name,
                             const struct communicator_terms *terms, uint64_t now_ns,
                             struct communicator **out, struct error *error) COMM_MUST_USE;
/* So many bytes more, until it is freed. LIMIT. */
enum status communicator_charge(struct communicator *comm, uint64_t bytes, struct error *error) COMM_MUST_USE;
void communicator_free(struct communicator *comm);
/* Nothing uses buffers of its ranks. */
bool communicator_is_idle(const struct communicator *comm);
/* Something is to be done in the next tick. */
void communicator_queue(struct communicator *comm);
void communicator_work(struct communicator *comm, uint64_t now_ns);
void communicator_arm(struct communicator *comm);
/* The name is free for another one. */
void communicator_unname(struct communicator *comm);
void communicator_set_state(struct communicator *comm, enum communicator_state state, uint64_t now_ns);
enum comms_tell { COMMS_TELL_NODES, COMMS_TELL_NOBODY };
/*
 * The one path on which a communicator fails, forming or formed, whatever the reason. Everything pending ends
 * with `cause`; the other nodes are told, unless it is one of them that said so. Owners are told in the next
 * tick. Does nothing when it failed before.
 */
void communicator_fail(struct communicator *comm, const struct error *cause, enum comms_tell tell,
                       uint64_t now_ns);
#define COMMS_LEFT_OUT_BYTES 64
/* Whether a line about the communicator may be logged; left_out: its end, how many of its user were not. */
bool communicator_may_log(const struct communicator *comm, struct user_log *logs, uint64_t now_ns,
                          char left_out[COMMS_LEFT_OUT_BYTES]);
/* A rank takes part in no operation after last_seq. why: for who needs it later; empty: it left in good
 * order. */
void communicator_rank_left(struct communicator *comm, uint32_t rank, uint64_t last_seq, const char *why);
/* What a rank holds, from its join until it is removed. LIMIT. */
enum status communicator_charge_rank(struct budget_account *account, struct error *error) COMM_MUST_USE;
void communicator_uncharge_rank(struct budget_account *account);
void communicator_remove_member(struct comms_member *member);
const char *communicator_own_name(const struct communicator *comm);
const char *communicator_node_name(const struct communicator *comm, uint32_t node);
/* Index among the communicator's nodes, or node_count. */
uint32_t communicator_node_index(const struct communicator *comm, uint32_t node);
void communicator_send(struct communicator *comm, uint32_t node, const Commd__Mesh__Message *message);

/* names.c: how often each user used each name. */
#define COMMS_NAMES_OF_USER_MAX 1024 /* beyond: the one that was used longest ago is forgotten */
#define COMMS_NAMES_MAX 16384        /* of all users; beyond: likewise, of the user with the most */
/* Counts up for each name of a user; 1 for a name that is not remembered. For people: ids tell incarnations
 * apart. */
uint32_t comms_names_next_generation(struct comms *comms, uid_t owner_uid, const char *name);
void comms_names_free(struct comms *comms);
/* The key's first bytes, up to the end of its name. */
size_t comms_key_make(struct comms_key *key, uid_t owner_uid, const char *name);

/* formation.c: claims, announcements; formation_end.c: ranks that go, deadlines. */
void comms_formation_work(struct communicator *comm, uint64_t now_ns);
void comms_formation_deadline(struct communicator *comm, uint64_t now_ns);
void comms_formation_announce_to(struct communicator *comm, uint32_t node);
/* In return for an announcement of that node's. */
void comms_formation_answer(struct communicator *comm, const Commd__Mesh__Announce *announced, uint32_t node);
void comms_formation_withdraw(struct communicator *comm, const struct error *cause);
/* One local rank leaves the communicator that is being formed, of its own accord or refused. */
void comms_formation_drop_member(struct comms_member *member, const struct error *cause, uint64_t now_ns);
/* Refusals that waited for the communicator to form hold now. */
void comms_formation_hold_refusals(struct communicator *comm, uint64_t now_ns);
/* Forgets a node's ranks. */
void comms_formation_drop_claim(struct communicator *comm, struct comms_claim *claim, const char *why);
struct comms_claim *comms_formation_claim(const struct communicator *comm, uint32_t node);
/* LIMIT, NO_MEMORY. */
enum status comms_formation_claim_make(struct communicator *comm, uint32_t node, struct comms_claim **out,
                                       struct error *error) COMM_MUST_USE;
/* A node that claims the rank, or null. */
const struct comms_claim *comms_formation_claimant(const struct communicator *comm, uint32_t rank);
void comms_formation_free(struct communicator *comm);
/* Bits by rank of those that are known; null without memory. *known gets how many. To be freed. */
uint8_t *comms_formation_known(const struct communicator *comm, uint32_t *known);
/* promise.c: the id that a node promises to all nodes of a communicator. */
/* All ranks are known, once each: orders the nodes and makes the id. Nothing is kept without memory. */
enum status comms_promise_make(struct communicator *comm, struct error *error) COMM_MUST_USE;
/* All nodes have promised the id that this node did. */
bool comms_promise_is_mutual(const struct communicator *comm);
/* Does nothing where there is none. */
void comms_promise_take_back(struct communicator *comm);
void comms_promise_free(struct communicator *comm);
/* The terms on the wire: what they say is the communicator's, valid as long as that. */
void comms_terms_to_wire(const struct communicator *comm, Commd__Mesh__CommTerms *out);
bool comms_terms_are_sound(const Commd__Mesh__CommTerms *terms);
void comms_terms_from_wire(const Commd__Mesh__CommTerms *from, struct communicator_terms *out);
/* Which term differs: "asks for size 4", "has size 3". False when all are equal. */
bool comms_terms_differ(const struct communicator_terms *asked, const struct communicator_terms *held,
                        char *asks, char *has, size_t size);

/* announce.c and message.c: what other nodes say. */
/* The communicator has formed without that node: its ranks that are ours are refused. */
void comms_refuse_late_ranks(struct communicator *comm, const struct comms_claim *claim);
void comms_control_announce(struct comms *comms, uint32_t node, const Commd__Mesh__Announce *announce,
                            uint64_t now_ns);
void comms_control_node_up(void *context, uint32_t node, uint64_t now_ns);
void comms_control_node_down(void *context, uint32_t node, const struct error *cause, uint64_t now_ns);
void comms_control_received(void *context, uint32_t node, const Commd__Mesh__Message *message,
                            uint64_t now_ns);

/* users.c: on which nodes a user may have ranks. */
/* node: the mesh's index, or COMMS_NODE_OWN. */
bool comms_user_may(const struct comms *comms, uid_t uid, uint32_t node);
/* Of what that node says for the user: false, with a line in the log, when it may not have its ranks. */
bool comms_user_may_say(struct comms *comms, uid_t uid, uint32_t node, const char *name, uint64_t now_ns);
/* To every node that is up and may have ranks of that user. */
void comms_users_broadcast(const struct communicator *comm, const Commd__Mesh__Message *message);

/* dispute.c: operations that ranks called differently. */
/* Two ranks of this node: the text has both calls. */
void comms_dispute_local(struct communicator_op *op, const struct error *cause, uint64_t now_ns);
/*
 * A local rank has posted an operation: disputes it if its counts contradict another's that has. Takes time
 * for each of these. What is copied between two ranks is as long as either says, so nothing else keeps it
 * within both buffers.
 */
void comms_dispute_layouts(struct communicator_op *op, uint32_t local_index, uint64_t now_ns);
/* Another node's call differs (exec_comm_options.disagreed). */
void comms_dispute_found(void *context, uint64_t seq, uint32_t node, const char *how, uint64_t now_ns);
/* Their numbers are possible, and the node may say so. */
void comms_dispute_received(struct communicator *comm, const Commd__Mesh__Dispute *dispute, uint64_t now_ns);

/* verdict.c: operations that end on all ranks with the same words. */
/* Asks the communicator's first node for a verdict on operations from seq on: the first one that it hears of
 * each operation counts. At most OP_BUCKET_OPS_MAX. */
void comms_verdict_ask(struct communicator *comm, uint64_t seq, uint32_t ops, const struct error *cause,
                       uint64_t now_ns);
/* Their numbers are possible, and the node may say so. */
void comms_verdict_received(struct communicator *comm, const Commd__Mesh__Verdict *verdict, uint64_t now_ns);
/* Whether there is a verdict on an operation; *cause gets it, where not null. One whose words are not kept
 * any more is told with its status. */
bool comms_verdict_find(const struct communicator *comm, uint64_t seq, struct error *cause);
/*
 * Operations were refused to one member: the others are told in the next tick, many in a row at once, and not
 * while other nodes have too much to read.
 */
void comms_verdict_refuse(struct comms_member *member, uint64_t seq, uint64_t ops, const struct error *why,
                          uint64_t now_ns);
/* The words for them. */
void comms_verdict_refusal_text(const struct comms_member *member, uint64_t seq, uint64_t ops,
                                const struct error *why, struct error *out);
/* Tells them, unless other nodes have too much to read: then a later call does. */
void comms_verdict_tell_refusals(struct communicator *comm, uint64_t now_ns);
/* Before the member leaves: tells its own at once. */
void comms_verdict_tell_own(struct comms_member *member, uint64_t now_ns);
/* Nobody is told any more. */
void comms_verdict_forget_own(struct comms_member *member);
/* The communicator has formed: verdicts that nodes asked for which formed before hold. */
void comms_verdicts_begin(struct communicator *comm, uint64_t now_ns);
void comms_verdicts_free(struct communicator *comm);

/* message_life.c: messages from rank to rank. */
enum status comms_p2p_submit(struct comms_member *member, const struct comms_op *op, uint64_t now_ns,
                             struct error *error) COMM_MUST_USE;
/* Tells the owner of one that ended. The member may be gone afterwards. Returns whether there was one. */
bool comms_p2p_tell(struct comms_member *member, uint64_t now_ns);
/* Whether a message of the member, up to that one and that ticket, has not ended. */
bool comms_p2p_is_pending(const struct comms_member *member, uint64_t last_message_id, uint64_t last_ticket);
/* The member leaves: nobody is told any more. */
void comms_p2p_leave(struct comms_member *member);
bool comms_p2p_pending(const struct comms_member *member);
/* p2p has ended one (p2p_comm_options.done). */
void comms_p2p_done(void *context, struct p2p_message *message, const struct error *result, uint64_t now_ns);
/* Those whose deadline has passed end, each alone. Returns when the next deadline is. */
uint64_t comms_p2p_deadlines(struct communicator *comm, uint64_t now_ns);
void comms_p2p_free_all(struct communicator *comm);
/* Of each rank the oldest that have not ended. Returns false when one of the calls does. */
bool comms_p2p_visit(const struct communicator *comm, uint64_t now_ns, comms_op_visit *visit, void *context);
/* Of those that have not ended. Returns false when one of the calls does. */
bool comms_p2p_visit_uses(const struct communicator *comm, comms_use_visit *visit, void *context);

/* missing.c: who is missing, on all nodes. */
/* Asks for the oldest operation, when it is time; returns when it is the next time. */
uint64_t comms_missing_step(struct communicator *comm, uint64_t now_ns);
/* What was said of the operation a moment ago; null: nothing, or nobody is missing. */
const struct comms_missing *comms_missing_of(const struct communicator *comm, uint64_t seq, uint64_t now_ns);
/* False: the node may not say so. */
bool comms_missing_received(struct communicator *comm, uint32_t node, const Commd__Mesh__Missing *said,
                            uint64_t now_ns);

/* reach.c: which rails the communicator uses. */
/* Whether its nodes agree on them. Each has said what rails it has. */
bool comms_reach_is_agreed(const struct communicator *comm);
/* It is formed. */
void comms_reach_begin(struct communicator *comm, uint64_t now_ns);
/* When reach_ns has come. */
void comms_reach_step(struct communicator *comm, uint64_t now_ns);
/* False: the node may not say so. */
bool comms_reach_received(struct communicator *comm, uint32_t node, const Commd__Mesh__Reach *said);

/* op.c */
void comms_op_done(void *context, const struct error *result, uint64_t now_ns);
/* Every operation that exec does not have ends. */
void comms_op_fail_waiting(struct communicator *comm);
/* Their owners are told what has not ended; buffers stay referred to until it does. */
void comms_op_overdue(struct communicator *comm);
void comms_p2p_overdue(struct communicator *comm);
/* The communicator has just failed: its messages' deadlines count no more, and all of them go at once. */
void comms_p2p_fail(struct communicator *comm);
/* Operations and messages whose deadline has passed end, each alone. */
void comms_op_deadlines(struct communicator *comm, uint64_t now_ns);
/* Null when it has ended, was not posted here yet, or the communicator is not formed. */
static inline struct communicator_op *comms_op_at(const struct communicator *comm, uint64_t seq)
{
    struct communicator_op *op = comm->ops != NULL ? comm->ops[seq % COMMS_PENDING_OPS_MAX] : NULL;
    return op != NULL && op->seq == seq ? op : NULL; /* no ops: it is not formed yet */
}
/* Hands on what every local rank has posted, in order. */
void comms_op_start_ready(struct communicator *comm, uint64_t now_ns);
/* Ends it with a cause of its own, as soon as nothing uses its buffers. */
void comms_op_end(struct communicator_op *op, const struct error *cause, uint64_t now_ns);
/* The member's post is over for it: it was told, or is gone. */
void comms_op_settle(struct communicator_op *op, struct comms_member *member);
/* Of a member's posts none is owed any more. Takes time for each that is, and no more than for all pending.
 */
void comms_op_settle_all(struct comms_member *member);
/* Fails the communicator when an operation that is pending needs a rank that left, or when none is pending
 * any more and a rank's process is gone. */
void comms_op_check_left(struct communicator *comm, uint64_t now_ns);
uint64_t comms_op_deadline_ns(const struct communicator_op *op);
void comms_op_free_all(struct communicator *comm);
bool comms_op_any_pending(const struct communicator *comm);

/* text.c */
/* The text after its beginning "communicator \"name\":", where it begins so. */
const char *comms_text_without_name(const char *name, const char *text);
bool comms_text_is_name(const char *text, size_t max_bytes);
/* A text of another node: printable, cut. */
void comms_text_from_wire(const char *text, char *out, size_t size);
struct comms_text {
    char *out;
    size_t size;
    size_t length;
    bool cut;
};
/* Appends; once something did not fit, the text ends with "…" and takes no more. size is at least 8. */
void comms_text_begin(struct comms_text *text, char *out, size_t size);
void comms_text_add(struct comms_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The numbers below size whose bit is set, or not: "3, 5-7". */
void comms_text_add_ranks(struct comms_text *text, const uint8_t *bits, uint32_t size, bool set);

#endif
