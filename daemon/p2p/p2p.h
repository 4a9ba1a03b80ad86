#ifndef DAEMON_P2P_P2P_H
#define DAEMON_P2P_P2P_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/budget.h"
#include "daemon/base/error.h"
#include "daemon/base/fence.h"
#include "daemon/base/timer_heap.h"
#include "daemon/coll/comm_map.h"
#include "daemon/gpu/devices.h"
#include "daemon/host/memory.h"
#include "daemon/net/net.h"
#include "proto/types.h"

/*
 * Point-to-point messages between ranks: comm_send and comm_recv, with MPI's semantics, the same within a
 * node and between nodes.
 *
 * Order. Messages with the same sender, receiver and tag are received in the order posted. A receive takes
 * the oldest message that matches it. If several receives match a message, the oldest takes it.
 *
 * Eager and rendezvous. A message of at most MESSAGE_EAGER_MAX_BYTES is copied when it is sent, and its send
 * ends at once, as long as the pair of ranks has credit. The credit is P2P_CREDIT_MAX_BYTES of eager data
 * that no receive has taken. It is less in a large communicator, where all senders to one rank share
 * P2P_CREDITS_MAX_BYTES. Without credit, and for larger messages, only the envelope is sent. Once a receive
 * has taken it, the payload goes from buffer to buffer on a stream of its own.
 *
 * No message waits for another pair's receives. Between two nodes a communicator has one stream of envelopes,
 * with eager payloads, and one of replies. Both are always read. An unexpected message is stored and charged
 * to the receiving rank's account. If that account has no room, the send ends with LIMIT. The send of an
 * eager message has ended already, so there the receive that takes it ends with LIMIT. (Envelopes wait while
 * P2P_REPLIES_MAX of our replies to the peer are queued here; the peer always reads replies.)
 *
 * Ends. A message's deadline or failure ends that message alone: p2p_cancel. If the message is matched on the
 * other side, that side is notified and its part ends, too. Bytes that arrive later are dropped. A message
 * whose send ended with STATUS_OK can be received even after its sender has left; see p2p_rank_left.
 *
 * A node that sends what no correct node sends is disconnected.
 *
 * Single-threaded, on the loop's thread. Nothing here blocks: p2p_run works in bounded pieces.
 */
struct p2p;
struct p2p_comm;
struct p2p_message;

#define P2P_CREDIT_MAX_BYTES (64u << 10)
#define P2P_CREDITS_MAX_BYTES (16u << 20)
#define P2P_CREDIT_LEAST_BYTES 128u  /* least credit that an eager message uses */
#define P2P_ENVELOPE_COST_BYTES 256u /* charged for a stored message, beside its payload */
#define P2P_PAIR_COST_BYTES 160u /* charged for each pair of ranks that ever had a message, until the end */
#define P2P_REPLIES_MAX 4096
#define P2P_PAYLOADS_MAX 16 /* payload streams to one node at once; further payloads wait in order */
#define P2P_RUN_STEPS 16u
#define P2P_RUN_LOOKS 1024u /* communicators that one call looks at, with or without work */
#define P2P_TURN_MAX 1024   /* messages that may end in one turn; the others end in later turns */
/*
 * Pinned memory for one communicator's messages from GPUs, and as much for those to GPUs. A separate limit,
 * so that a slow GPU does not delay other communicators. Further messages wait for their turn. Charged as
 * BUDGET_LANES.
 */
#define P2P_PIPES_MAX_BYTES (UINT64_C(32) << 20)

/* Registers itself as the handler of NET_STREAM_MESSAGE. net must outlive it. NO_MEMORY. */
enum status p2p_new(struct net *net, struct p2p **out, struct error *error) COMM_MUST_USE;
/*
 * GPUs on which buffers may be; null for none. They must outlive it. Call it before any communicator is made.
 */
void p2p_set_gpus(struct p2p *p2p, struct gpu_devices *gpus);
/*
 * Whether NCCL is to move a message of `bytes` between two GPUs of this node. Called when the message begins.
 * Null, the default: it never is. Call it before any communicator is made.
 */
typedef bool (*p2p_by_nccl)(void *context, uint32_t from_gpu, uint32_t to_gpu, uint64_t bytes,
                            uint64_t now_ns);
void p2p_set_by_nccl(struct p2p *p2p, p2p_by_nccl by_nccl, void *context);
/* As exec_set_clock. */
void p2p_set_clock(struct p2p *p2p, uint64_t (*clock)(void));
/* Call it after every communicator was freed. Null is accepted. */
void p2p_free(struct p2p *p2p);
/* Does a bounded amount of work, for at most P2P_RUN_STEPS communicators that have some. Users take turns,
 * one communicator each. Returns p2p_has_work. */
bool p2p_run(struct p2p *p2p, uint64_t now_ns);
/* As exec_has_work. */
bool p2p_has_work(const struct p2p *p2p);
uint64_t p2p_next_deadline_ns(const struct p2p *p2p);
void p2p_tick(struct p2p *p2p, uint64_t now_ns);

/* What a communicator tells its owner. */
struct p2p_comm_handler {
    void *context;
    /*
     * A message has ended, with success or an error. Called exactly once for each posted message, from
     * p2p_run, never from within another call. Its storage is the caller's again. p2p_message_source and
     * p2p_message_count tell what a receive got. MISMATCH: another dtype, or too long. INVALID_ARGUMENT: its
     * memory broke.
     */
    void (*done)(void *context, struct p2p_message *message, const struct error *result, uint64_t now_ns);
    /* A node sent what no correct node sends, or there is no memory to go on, for example to notify a node.
     * Called once. The caller is expected to call p2p_comm_abort, now or later. */
    void (*failed)(void *context, const struct error *cause, uint64_t now_ns);
    /* As exec_comm_handler.need; called again for each message that waits. */
    bool (*need)(void *context, uint32_t node, bool mutual, uint64_t now_ns);
};
/*
 * Makes this node's part of one communicator. It keeps a reference to the map, which is charged for it. The
 * map's account is also charged for pinned memory, and for payloads that the network keeps. `accounts` has
 * one account per local rank, ascending by rank, charged for messages that are stored for that rank. Null, or
 * a null entry: nothing is charged. It is only read here. LIMIT, NO_MEMORY.
 */
enum status p2p_comm_new(struct p2p *p2p, struct comm_map *map, struct budget_account *const *accounts,
                         const struct p2p_comm_handler *handler, struct p2p_comm **out,
                         struct error *error) COMM_MUST_USE;
/* Ends every message with `cause`. A message whose buffer GPUs or the network use ends once they have
 * released it. */
void p2p_comm_abort(struct p2p_comm *comm, const struct error *cause);
bool p2p_comm_idle(const struct p2p_comm *comm);
/* Frees a communicator, which must be idle. What was sent is still delivered. Null is accepted. */
void p2p_comm_free(struct p2p_comm *comm);

/* One rank's request to send or receive a message. */
struct p2p_call {
    bool sends;
    uint32_t rank;      /* the local rank that sends or receives */
    uint32_t peer_rank; /* the other rank; COMM_ANY_SOURCE_RANK for a receive from any rank */
    uint32_t tag;
    enum dtype dtype;
    uint64_t count_elements; /* to send; of a receive, the most that fit */
    void *buffer;            /* valid until the end; a send only reads */
    bool on_gpu;             /* the buffer is on GPU `gpu` */
    uint32_t gpu;
    const struct fence *waits;   /* the buffer is accessed only after all of them are reached */
    uint32_t wait_count;         /* at most 255 */
    const struct memory *memory; /* the client memory in which the buffer lies, or null */
};

struct p2p_id {
    uint64_t id;
    struct p2p_id *next;
};

/* Storage of one posted message. All of it is p2p's until `done`. */
struct p2p_message {
    struct p2p_message *prev, *next;
    struct p2p_message *wait_prev, *wait_next;     /* in the list of messages that wait for the same thing */
    struct p2p_message *active_prev, *active_next; /* in the list of those that p2p_run steps */
    struct p2p_comm *comm;
    struct p2p_pair *pair;
    union {
        struct p2p_id by_id; /* of a send between nodes, once its envelope is sent */
        struct {
            uint64_t number; /* of receives, in the order posted */
            struct message_queue *queue;
        } receive;
        uint64_t moved_bytes; /* of a receive from a send of this node */
    };
    struct p2p_arrival *arrival;   /* which a receive has taken; of a send within the node: its own */
    struct p2p_transfer *transfer; /* moves its bytes; null until it is needed */
    void *buffer;
    uint64_t count_elements;
    const struct fence *waits;
    const struct memory *memory;
    uint64_t received_elements;
    const struct error *result; /* null until known */
    uint32_t rank, peer_rank, tag, source_rank, gpu;
    uint8_t state, list, dtype, wait_count;
    bool sends, on_gpu, own_result;
    bool is_next; /* it is next in the queue for pinned memory */
};

/*
 * Posts a message. The number of messages is not limited here: the caller charges sizeof(struct p2p_message)
 * for each. Fails with the cause if the communicator has failed, RANK_LOST if the other rank has left, LIMIT,
 * NO_MEMORY. If it fails, p2p keeps nothing of the message.
 */
enum status p2p_post(struct p2p_comm *comm, const struct p2p_call *call, struct p2p_message *message,
                     struct error *error) COMM_MUST_USE;
/* Ends one posted message. `done` follows with `why`, once GPUs and the network have released its buffer.
 * Does nothing if the message has ended. */
void p2p_cancel(struct p2p_message *message, const struct error *why, uint64_t now_ns);
uint32_t p2p_message_source(const struct p2p_message *message);
uint64_t p2p_message_count(const struct p2p_message *message);
/* Describes the message for people: "recv from rank 3 (node b), tag 7: nothing has come". */
void p2p_describe(const struct p2p_message *message, char *text, size_t size);

/*
 * A rank of another node has left regularly, after its node had sent sent_count messages to this node
 * (p2p_sent_count there). Once these have arrived, receives from that rank that match none of them end with
 * RANK_LOST, and so do sends to it. Receives from any source end when all other ranks have left. pid is for
 * the texts; 0: not known.
 */
void p2p_rank_left(struct p2p_comm *comm, uint32_t rank, int32_t pid, uint64_t sent_count, uint64_t now_ns);
/* A node whose ranks have all left is lost: messages from them that have not arrived never will. */
void p2p_node_lost(struct p2p_comm *comm, uint32_t node, uint64_t now_ns);
/* A local rank leaves. Its pending messages are cancelled; messages stored for it are dropped. */
void p2p_rank_leaves(struct p2p_comm *comm, uint32_t rank, int32_t pid, uint64_t now_ns);
/* How many messages this node ever sent to that node. */
uint64_t p2p_sent_count(const struct p2p_comm *comm, uint32_t node);

#endif
