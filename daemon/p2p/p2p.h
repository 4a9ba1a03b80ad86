#ifndef DAEMON_P2P_P2P_H
#define DAEMON_P2P_P2P_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/budget.h"
#include "daemon/base/error.h"
#include "daemon/base/fence.h"
#include "daemon/base/timer_heap.h"
#include "daemon/gpu/devices.h"
#include "daemon/host/memory.h"
#include "daemon/net/net.h"
#include "proto/types.h"

/*
 * Messages from rank to rank: comm_send and comm_recv, with the meaning that MPI gives them, the same within
 * a node and between nodes.
 *
 * Order. Messages of one sender, receiver and tag are taken in the order posted. A receive takes the oldest
 * message that fits it; of the receives that fit a message the oldest takes it.
 *
 * Eager and rendezvous. A message of at most MESSAGE_EAGER_MAX_BYTES is copied when it is sent, and its send
 * ends at once, as long as the pair of ranks has credit: P2P_CREDIT_MAX_BYTES (fewer in a large communicator:
 * P2P_CREDITS_MAX_BYTES for all who send to one rank) that no receive has taken. Otherwise only its envelope
 * goes; the payload follows from buffer to buffer when a receive has taken it, on a stream of its own.
 *
 * Nothing waits for another pair's receives. Between two nodes a communicator has one stream of envelopes,
 * with eager payloads, and one of replies. Both are always read: what no receive takes is stored, and charged
 * to the receiving rank's account. If that has no room, the sender's send ends with LIMIT; of an eager
 * message, whose send has ended, the receive that takes it does. (Envelopes wait while the other node leaves
 * P2P_REPLIES_MAX of our replies in the network; it reads them whatever else happens.)
 *
 * Ends. A message's deadline or failure ends that message: p2p_cancel. If the other side has a part in it,
 * it is told and ends, too. Bytes that come later go nowhere. A message whose send ended well is received
 * even when its sender has left since; see p2p_rank_left.
 *
 * What a node sends that no correct node sends costs it its connection.
 *
 * Single-threaded, on the loop's thread. Nothing here blocks: p2p_run works in bounded pieces.
 */
struct p2p;
struct p2p_comm;
struct p2p_message;

#define P2P_CREDIT_MAX_BYTES (64u << 10)
#define P2P_CREDITS_MAX_BYTES (16u << 20)
#define P2P_CREDIT_LEAST_BYTES 128u  /* that an eager message takes of the credit, however small it is */
#define P2P_ENVELOPE_COST_BYTES 256u /* charged for a message that is stored, beside its payload */
#define P2P_PAIR_COST_BYTES 160u     /* and for each pair of ranks that ever had one, until the end */
#define P2P_REPLIES_MAX 4096
#define P2P_PAYLOADS_MAX 16 /* streams of payloads to one node at once; beyond, they wait in order */
#define P2P_RUN_STEPS 16u
#define P2P_RUN_LOOKS 1024u /* at communicators that could do nothing */
#define P2P_TURN_MAX 1024   /* messages that end in one turn; the rest has its turn later */
/* Pinned memory that messages of one communicator go through from and to GPUs, each way: a GPU that does not
 * get to it holds no other communicator up. Beyond, they wait their turn. Charged as BUDGET_LANES. */
#define P2P_PIPES_MAX_BYTES (UINT64_C(32) << 20)

/* p2p_run is wanted soon. */
typedef void p2p_wake_function(void *context);

/* Registers itself as the handler of NET_STREAM_MESSAGE. net outlives it. NO_MEMORY. */
enum status p2p_new(struct net *net, p2p_wake_function *wake, void *wake_context, struct p2p **out,
                    struct error *error) COMM_MUST_USE;
/* GPUs that buffers may be on; null for none. They outlive it. Before any communicator. */
void p2p_set_gpus(struct p2p *p2p, struct gpu_devices *gpus);
/* As exec_set_clock. */
void p2p_set_clock(struct p2p *p2p, uint64_t (*clock)(void));
/* After every communicator was freed. Null is accepted. */
void p2p_free(struct p2p *p2p);
/* Does a bounded amount of work, of at most P2P_RUN_STEPS communicators that have any. Users take turns, one
 * communicator each. Returns whether more is waiting. */
bool p2p_run(struct p2p *p2p, uint64_t now_ns);
uint64_t p2p_next_deadline_ns(const struct p2p *p2p);
void p2p_tick(struct p2p *p2p, uint64_t now_ns);

/* One communicator, as this node takes part in it. */
struct p2p_comm_options {
    uint64_t comm_id;   /* the same on all nodes, and never that of another communicator */
    uint32_t owner_uid; /* users take turns */
    uint32_t size;
    const uint32_t *node_of_rank; /* size; copied */
    uint32_t node_count;
    uint32_t node_index;           /* ours */
    const uint32_t *peers;         /* node_count: net's peer index of each; ours is ignored. Copied */
    const char *const *node_names; /* node_count, for messages; outlive the p2p_comm */
    const char *name;              /* for messages; outlives the p2p_comm */
    /* Of this node's ranks, ascending: whose account is charged for what is stored for each. Null, or null
     * for one: nothing is charged. Read during the call. */
    struct budget_account *const *accounts;
    /* Of its owner: the communicator, pinned memory, and what the network keeps of payloads are charged to
     * it. Null: nothing is. Referred to. */
    struct budget_account *account;
    /*
     * A message is over, well or not: exactly once for each that was posted, from p2p_run, never from within
     * another call. Its storage is the caller's again, and p2p_message_source and p2p_message_count of a
     * receive say what it took. MISMATCH: another dtype, or too long. INVALID_ARGUMENT: its memory broke.
     */
    void (*done)(void *context, struct p2p_message *message, const struct error *result, uint64_t now_ns);
    /* A node sent what no correct node sends, or there is no memory to tell it of an end. Once. The caller is
     * expected to call p2p_comm_abort, now or later. */
    void (*failed)(void *context, const struct error *cause, uint64_t now_ns);
    void *context;
};
/* LIMIT, NO_MEMORY. */
enum status p2p_comm_new(struct p2p *p2p, const struct p2p_comm_options *options, struct p2p_comm **out,
                         struct error *error) COMM_MUST_USE;
/* Every message ends with `cause`, those that GPUs or the network are at once these have let go. */
void p2p_comm_abort(struct p2p_comm *comm, const struct error *cause);
bool p2p_comm_idle(const struct p2p_comm *comm);
/* It must be idle. What was sent is still delivered. Null is accepted. */
void p2p_comm_free(struct p2p_comm *comm);

/* One rank's part of a message, as it asks for it. */
struct p2p_call {
    bool sends;
    uint32_t rank;      /* of this node: who sends, or receives */
    uint32_t peer_rank; /* the other; COMM_ANY_SOURCE_RANK for a receive that takes any */
    uint32_t tag;
    enum dtype dtype;
    uint64_t count_elements; /* to send; or room for */
    void *buffer;            /* valid until the end; a send only reads */
    bool on_gpu;             /* where the buffer is, and which */
    uint32_t gpu;
    const struct fence *waits;   /* the buffer is touched when all are reached */
    uint32_t wait_count;         /* at most 255 */
    const struct memory *memory; /* what the buffer lies in, or null */
};

struct p2p_id {
    uint64_t id;
    struct p2p_id *next;
};

/* Storage of one that is posted. All of it is p2p's until `done`. */
struct p2p_message {
    struct p2p_message *prev, *next;
    struct p2p_message *wait_prev, *wait_next;     /* of the list of those that wait for the same */
    struct p2p_message *active_prev, *active_next; /* of those that p2p_run looks at */
    struct p2p_comm *comm;
    struct p2p_pair *pair;
    union {
        struct p2p_id by_id; /* of a send between nodes, from its envelope on */
        struct {
            uint64_t number; /* of receives, in the order posted */
            struct message_queue *queue;
        } receive;
        uint64_t moved_bytes; /* of a receive that takes from a send of this node */
    };
    struct p2p_arrival *arrival;   /* that a receive has taken; of a send within the node */
    struct p2p_transfer *transfer; /* what carries its bytes; null: nothing yet */
    void *buffer;
    uint64_t count_elements;
    const struct fence *waits;
    const struct memory *memory;
    uint64_t received_elements;
    const struct error *result; /* null until it is known */
    uint32_t rank, peer_rank, tag, source_rank, gpu;
    uint8_t state, list, dtype, wait_count;
    bool sends, on_gpu, own_result;
    bool is_next; /* of those that wait for pinned memory: it is its turn */
};

/*
 * Posts a message. Its number is bounded by nothing here: the caller charges sizeof(struct p2p_message) for
 * it. The cause after the communicator failed; RANK_LOST when the other rank has left; LIMIT, NO_MEMORY.
 * Then nothing is kept.
 */
enum status p2p_post(struct p2p_comm *comm, const struct p2p_call *call, struct p2p_message *message,
                     struct error *error) COMM_MUST_USE;
/* Ends a message that was posted and is not over, alone; `done` follows with `why`, once GPUs and network
 * have let go of its buffer. Does nothing to one that has ended. */
void p2p_cancel(struct p2p_message *message, const struct error *why, uint64_t now_ns);
uint32_t p2p_message_source(const struct p2p_message *message);
uint64_t p2p_message_count(const struct p2p_message *message);
/* For people: "recv from rank 3 (node b), tag 7: nothing has come". */
void p2p_describe(const struct p2p_message *message, char *text, size_t size);

/*
 * A rank of another node has left in good order, after its node had sent so many messages to this one
 * (p2p_sent_count there). Once these have come, and no receive has taken one of that rank's, its peers'
 * receives from it end with RANK_LOST; sends to it end at once. Receives from any source end when all other
 * ranks have left.
 */
void p2p_rank_left(struct p2p_comm *comm, uint32_t rank, uint64_t sent_count, uint64_t now_ns);
/* A node whose ranks have all left is lost: what they sent and has not come never will. */
void p2p_node_lost(struct p2p_comm *comm, uint32_t node, uint64_t now_ns);
/* A rank of this node leaves. What it still has pending is cancelled; what came for it goes. */
void p2p_rank_leaves(struct p2p_comm *comm, uint32_t rank, uint64_t now_ns);
/* Messages that this node ever sent to that node. */
uint64_t p2p_sent_count(const struct p2p_comm *comm, uint32_t node);

#endif
