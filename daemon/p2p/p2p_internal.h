#ifndef DAEMON_P2P_P2P_INTERNAL_H
#define DAEMON_P2P_P2P_INTERNAL_H

#include "daemon/base/pacer.h"
#include "daemon/base/rounds.h"
#include "daemon/base/spending.h"
#include "daemon/base/table.h"
#include "daemon/base/trace.h"
#include "daemon/gpu/queue.h"
#include "daemon/net/stream_reader.h"
#include "daemon/p2p/id_table.h"
#include "daemon/p2p/message_pipe.h"
#include "daemon/p2p/p2p.h"
#include "proto/message_header.h"

/* What the files of daemon/p2p share. */

#define P2P_STEP_BYTES (UINT64_C(4) << 20) /* copied between local ranks in a communicator's turn */
#define P2P_IN_FLIGHT_MAX 2048 /* unacknowledged sends of one stream, out of NET_STREAM_QUEUE_MAX */
#define P2P_IN_FLIGHT_MAX_BYTES (UINT64_C(4) << 20) /* of eager payloads in these sends */
#define P2P_RETRY_NS (5 * TIME_MS) /* pause if the network has no memory, or no further stream */

enum message_state {
    MESSAGE_HELD,     /* a send: waits for its stream, an earlier send of its pair, or a copy from its GPU */
    MESSAGE_QUEUED,   /* a send: not handed to the network yet */
    MESSAGE_OFFERED,  /* a send: its envelope was sent */
    MESSAGE_ACCEPTED, /* a send: it was accepted; its payload waits for its turn among those to that node */
    /* A send: the network has the payload. From a GPU: it waits for a pipe, then the network has chunks. */
    MESSAGE_SENDING,
    MESSAGE_ARRIVED,   /* a send within this node that no receive has taken, or a message in p2p_post */
    MESSAGE_POSTED,    /* a receive that has no message yet */
    MESSAGE_MATCHED,   /* a receive that has a message: waits for its stream, and for memory for its pipe */
    MESSAGE_AWAITED,   /* a receive that has accepted its message */
    MESSAGE_RECEIVING, /* a receive whose payload is arriving */
    MESSAGE_COPYING,   /* a receive from a send of this node, or one that empties its pipe */
    MESSAGE_TAKEN,     /* that local send */
    MESSAGE_LEAVING,   /* its result is known; waits until GPUs and network release its buffer */
    MESSAGE_ENDED      /* `done` is to be called */
};

/*
 * The pipes of sends and those of receives have separate memory. A receive gets its pipe before it accepts,
 * and a send gets one after it was accepted. So a message that has memory needs only GPUs and network to
 * advance, and no cycle of messages, on any nodes, can wait for each other's memory.
 */
enum message_way { MESSAGE_WAY_OUT, MESSAGE_WAY_IN };
#define MESSAGE_WAYS 2

/* The list that a message's active_prev and active_next belong to. */
enum message_list { LIST_NONE, LIST_ACTIVE, LIST_CROWDED_OUT, LIST_CROWDED_IN };

/* The means to move one message's bytes. */
struct p2p_transfer {
    struct message_pipe *pipe; /* null: the bytes are on the host, or it has not begun */
    uint64_t pipe_bytes;       /* of its pinned memory */
    struct net_stream *stream; /* of a payload being sent, until it is acknowledged or given up */
    bool has_slot;             /* counted in the link's `payloads` */
    bool in_network;           /* the network refers to the payload, and will report its end */
    unsigned char *copy;       /* of a small send: its payload, copied from its GPU */
};

/* The messages between a local rank and another rank, or any source. */
struct p2p_pair {
    struct p2p_pair_key {
        uint32_t rank, peer; /* local rank; other rank or COMM_ANY_SOURCE_RANK */
    } key;
    struct p2p_pair *prev, *next;         /* in comm->busy_pairs, while it has messages */
    struct p2p_pair *end_prev, *end_next; /* in comm->ending, while `ending` */
    struct p2p_message *messages;         /* neither ENDED nor LEAVING, in the order posted */
    struct p2p_message *held;             /* of these: MESSAGE_HELD sends; the first one is active */
    uint32_t sent_bytes;  /* credit used by eager sends to the peer, not yet reported as taken */
    uint32_t kept_bytes;  /* credit used by a remote peer's eager sends, not yet reported as taken */
    uint32_t taken_bytes; /* of kept_bytes: taken by receives */
    bool charged;
    bool ending;
    UT_hash_handle hh;
};
_Static_assert(sizeof(struct p2p_pair) <= P2P_PAIR_COST_BYTES, "a pair costs no more than is charged for it");

/* A message that arrived from another node, or was sent within this node, until it is over. */
struct p2p_arrival {
    struct p2p_arrival *prev, *next; /* in its receiver's list until taken; later, if cut, in p2p->cut */
    struct p2p_arrival *of_source_prev, *of_source_next; /* matching.c, while no receive has taken it */
    struct p2p_arrival *of_any_prev, *of_any_next;
    struct p2p_id by_id; /* of a rendezvous between nodes: in the link's table */
    struct p2p_comm *comm;
    struct p2p_link *link;        /* of a message from another node; null: from this node */
    struct p2p_message *send;     /* within this node: its send, unless it was eager */
    struct p2p_message *receive;  /* the receive that has taken it */
    struct stream_reader *reader; /* on which its payload arrives */
    uint64_t count_elements;
    uint64_t charged_bytes;
    uint64_t cut_ns;        /* if its payload's stream was reset: when its receive ends for that; else 0 */
    unsigned char *payload; /* EAGER, unless lost */
    uint32_t source_rank, to_rank, tag, payload_bytes;
    uint8_t dtype;
    bool eager, queued;
    bool lost; /* the account had no room for the payload */
};
_Static_assert(sizeof(struct p2p_arrival) + 32 <= P2P_ENVELOPE_COST_BYTES,
               "what is stored costs no more than is charged for it");

/* A header without payload for a node, which the network did not get yet. */
struct p2p_note {
    struct p2p_note *prev, *next;
    struct message_header header;
};

/* One of the two streams to a node. */
struct p2p_out {
    struct p2p_link *link;
    struct net_stream *stream;
    struct p2p_note *notes;
    uint32_t note_count;
    uint32_t in_flight;
    uint64_t in_flight_bytes;
};

/* A rank of another node that left. It counts as gone once sent_count messages of the link have arrived. */
struct p2p_departure {
    struct p2p_departure *prev, *next;
    uint32_t rank;
    uint64_t sent_count;
};

/* A communicator's state towards another node. It outlives the communicator while the network has sends. */
struct p2p_link {
    struct p2p_comm *comm; /* null: it was freed */
    uint32_t node;
    bool flushing; /* it is in comm->flushing */
    bool is_lost;  /* the connection is lost: the communicator will be aborted */
    struct p2p_link *prev, *next;
    struct p2p_out envelopes, replies;
    struct stream_reader *envelopes_in, *replies_in; /* the peer's only stream of each */
    uint64_t sent_count, came_count;                 /* of messages: also ids of the last ones */
    struct p2p_message *queued;                      /* MESSAGE_QUEUED sends */
    struct p2p_message *accepted;                    /* MESSAGE_ACCEPTED sends, which wait for a stream */
    uint32_t payloads;                               /* payload streams in use */
    struct id_table sends;                           /* OFFERED, ACCEPTED, SENDING */
    struct id_table arrivals;                        /* rendezvous that are not over */
    struct p2p_departure *departures;
};

/* State of one turn of a communicator's messages. */
struct message_pass {
    uint64_t now_ns;
    bool more;               /* more can be done at once */
    bool resumes;            /* a receive's pipe has room again */
    uint64_t left_bytes;     /* what may still be copied within this node */
    struct p2p_message *cut; /* the receive whose copy used up left_bytes */
};

struct p2p_local {
    uint32_t rank;
    bool has_left;
    struct budget_account *account;
    struct p2p_arrival *arrivals; /* stored for it, until a receive takes them */
};

/* A result that consecutive ended messages share: if a rank leaves, thousands of messages may end. */
struct p2p_result {
    struct error error; /* the first member: messages refer to its address */
    uint32_t uses;
};

struct p2p_comm {
    struct p2p *p2p;
    struct p2p_result *last_result; /* of the last message; may be null */
    struct comm_map *map;
    struct p2p_comm_handler handler;
    struct rounds_entry turn;
    struct p2p_local *locals; /* by local rank */
    uint32_t credit_bytes;    /* of each pair */
    struct p2p_link **links;  /* by node; null for this node */
    struct stream_group streams;
    struct p2p_pair *pairs;
    struct p2p_pair *busy_pairs;
    struct p2p_pair *ending;                   /* pairs whose messages end because a rank is gone */
    struct message_queue *queues;              /* matching.c */
    struct p2p_message *active, *cursor;       /* stepped in each turn; the next one of the current turn */
    struct p2p_message *crowded[MESSAGE_WAYS]; /* wait for pinned memory, oldest first */
    struct p2p_message *leaving;               /* MESSAGE_LEAVING; those with pipes are also active */
    struct p2p_message *ended;
    struct p2p_link *flushing; /* with something for the network */
    uint32_t count;            /* of messages whose `done` was not called yet */
    uint64_t last_number;
    uint64_t pipe_bytes[MESSAGE_WAYS]; /* pinned memory of their pipes */
    struct gpu_queue **gpu_queues;     /* by GPU and way; null until first use */
    struct gpu_group *group;           /* of NCCL, for messages between GPUs; held, or null */
    bool *gone;                        /* by rank: it has left, and nothing more arrives from it */
    int32_t *pids;                     /* by rank: the process of one that has left; 0: not known */
    uint32_t gone_count;
    bool failed;
    bool aborted;
    struct error cause;
    UT_hash_handle hh;
};

struct p2p {
    struct net *net;
    struct gpu_devices *gpus;
    p2p_by_nccl by_nccl; /* null: never */
    void *by_nccl_context;
    struct p2p_comm *comms;
    struct spending spending;
    struct rounds rounds; /* of communicators with messages, or something to send */
    struct stream_readers readers;
    struct pacer pacer;
    uint64_t now_ns; /* time of the current call */
    uint64_t retry_ns;
    struct p2p_arrival *cut; /* arrivals with a cut_ns, ordered by it */
};

static inline uint64_t message_bytes(const struct p2p_message *message, uint64_t count_elements)
{
    return count_elements * dtype_size_bytes((enum dtype)message->dtype);
}
static inline bool message_is_eager(const struct p2p_message *send)
{
    return message_bytes(send, send->count_elements) <= MESSAGE_EAGER_MAX_BYTES;
}
static inline uint32_t credit_of(uint64_t payload_bytes)
{
    return payload_bytes > P2P_CREDIT_LEAST_BYTES ? (uint32_t)payload_bytes : P2P_CREDIT_LEAST_BYTES;
}
static inline bool message_may_touch(const struct p2p_message *message)
{
    return fences_are_reached(message->waits, message->wait_count);
}

extern const struct error p2p_fine, p2p_no_memory;

/* p2p.c */
void p2p_wake(struct p2p *p2p);
void p2p_comm_fail(struct p2p_comm *comm, const struct error *cause);
void p2p_comm_set_busy(struct p2p_comm *comm);
const char *p2p_node_name(const struct p2p_comm *comm, uint32_t rank);
/* The pair, made on first use. Returns null without memory, or without room in the rank's account (*error
 * says which). If force, room in the account is not needed. */
struct p2p_pair *pair_make(struct p2p_comm *comm, uint32_t rank, uint32_t peer, bool force,
                           struct error *error);
struct p2p_pair *pair_find(const struct p2p_comm *comm, uint32_t rank, uint32_t peer);

/* ending.c: how messages end. */
/* The message is stepped in the next turn. */
void message_activate(struct p2p_message *message);
/* The message waits for pinned memory: behind the others, or before them if it was its turn. */
void message_crowd(struct p2p_message *message, enum message_way way);
void message_rest(struct p2p_message *message);
/* The first result of a message is its last. */
void message_set_result(struct p2p_message *message, const struct error *result);
/* Ends the message, unless it has ended: `done` is called in a later turn. */
void message_end(struct p2p_message *message, const struct error *result);
/* Ends the message early. If `tells`, the other side of a matched message is notified. */
void message_give_up(struct p2p_message *message, const struct error *result, bool tells);
/* Of a LEAVING message: ends it once GPUs and network have released its buffer. */
void message_leaving_step(struct p2p_message *message, uint64_t now_ns);
/* Drops one use of a shared result. */
void p2p_result_drop(struct p2p_result *result);
/* "The send of rank 3 (node b), tag 7, ended first: deadline passed". */
void message_set_peer_ended(const struct p2p_comm *comm, struct error *error, enum status status, bool sends,
                            uint32_t rank, uint32_t tag);
void message_set_left(const struct p2p_comm *comm, struct error *error, uint32_t peer_rank);
void message_set_mismatch(const struct p2p_comm *comm, struct error *error, const struct p2p_arrival *sent,
                          enum dtype dtype, uint64_t count_elements);
struct p2p_transfer *message_transfer(struct p2p_message *message);

/* Takes a held send off its list, and activates the next held send of its pair. */
void message_unhold(struct p2p_message *send);

/* posting.c */
/* A message has arrived, with its whole payload if it is eager. The oldest receive that matches takes it;
 * otherwise it is stored. */
void message_arrive(struct p2p_comm *comm, struct p2p_arrival *arrival);
/* Posts a held send, whose turn has come. */
void message_post_held(struct p2p_message *send);
/* Ends a held send, whose turn has come. A receive that waits for it ends, too. */
void message_post_failed(struct p2p_message *send, const struct error *why);
/* Moves the message that the receive has taken to its buffer, which may be accessed now. */
void message_start_receive(struct p2p_message *receive);
/* Frees an arrival that is over, and gives its charge and its credit back. */
void arrival_free(struct p2p_arrival *arrival);

/* steps.c. Returns whether more can be done at once. */
bool messages_step(struct p2p_comm *comm, uint64_t now_ns);

/* matching.c: which receive takes which message. Functions that return bool return false without memory. */
bool match_add_receive(struct p2p_comm *comm, struct p2p_message *receive) COMM_MUST_USE;
void match_remove_receive(struct p2p_comm *comm, struct p2p_message *receive);
/* The receive that takes the arrival; null if none matches yet. */
struct p2p_message *match_receive(const struct p2p_comm *comm, const struct p2p_arrival *arrival);
bool match_add_arrival(struct p2p_comm *comm, struct p2p_arrival *arrival) COMM_MUST_USE;
void match_remove_arrival(struct p2p_comm *comm, struct p2p_arrival *arrival);
/* The message that the receive takes, removed from all lists; null if none matches yet. */
struct p2p_arrival *match_take_arrival(struct p2p_comm *comm, const struct p2p_message *receive);
void match_release(struct p2p_comm *comm);

/* p2p_link.c: sending to another node. */
struct p2p_link *link_new(struct p2p_comm *comm, uint32_t node);
void link_release(struct p2p_link *link);
/* give_up: data that is queued is not sent. */
void link_reset(struct p2p_link *link, bool give_up);
/* Hands to the network as much as it has room for. */
void link_flush(struct p2p_link *link);
void links_flush(struct p2p_comm *comm);
/* Queues a send. */
void link_queue_send(struct p2p_link *link, struct p2p_message *send);
/* Sends the reply, in order. Without memory the communicator fails. */
void link_reply(struct p2p_link *link, const struct message_header *header);
void link_withdraw(struct p2p_link *link, const struct p2p_message *send, enum status status);
void link_answer(const struct p2p_arrival *arrival, enum message_kind kind, enum status status,
                 enum dtype dtype, uint64_t count_elements);
/* An offered send was accepted: its payload is sent when it is its turn. */
void link_accepted(struct p2p_message *send);
/* Opens the stream of the send's payload, and sends the header and the first payload_bytes. The context of
 * `sent` is the send. */
enum status link_open_payload(struct p2p_message *send, const void *payload, uint64_t payload_bytes,
                              net_sent_function *sent) COMM_MUST_USE;
/* Ends the stream of a SENDING send: all of it was acknowledged, or the rest is given up. */
void link_payload_over(struct p2p_message *send, bool delivered);
/* p2p.c: ends what waits for ranks that have left and whose messages have all come: came_count of them. */
void link_departures(struct p2p_link *link, uint64_t came_count);
/* Makes sure that there is another turn within P2P_RETRY_NS. */
void p2p_retry(struct p2p *p2p);

/* incoming.c: streams from other nodes. */
extern const struct stream_reader_kind message_reader_kind;
void incoming_resume(struct p2p_comm *comm);
/* Ends receives whose payloads were cut, if the sender did not send the cause in time. */
void incoming_end_cut(struct p2p *p2p, uint64_t now_ns);
/* Drops the rest of the payload on that stream. */
void incoming_drop(struct stream_reader *reader);

/* message_staging.c: messages whose buffers are on GPUs. A failure ends the message. */
void staging_release(struct p2p_comm *comm);
/* Whether a send's payload must be on the host before its envelope is sent. */
bool staging_is_small(const struct p2p_message *send);
/* Copies it there; returns true once it is done. */
bool staging_copy_small(struct p2p_message *send, struct message_pass *pass);
/* staging_needs_pipe: whether a receive that has taken a message needs a pipe. staging_receives makes it; it
 * returns false if there is no memory now, or the receive has ended. */
bool staging_needs_pipe(const struct p2p_message *receive);
bool staging_receives(struct p2p_message *receive, struct message_pass *pass);
/* Advances a receive's pipe; returns true once all bytes are in their buffer. */
bool staging_receive_step(struct p2p_message *receive, struct message_pass *pass);
/* Advances an accepted send, chunk by chunk. */
void staging_send_step(struct p2p_message *send, struct message_pass *pass);
/* For a message that is given up: whether GPUs have released it. */
bool staging_is_idle(struct p2p_message *message, uint64_t now_ns);
void staging_free_pipe(struct p2p_message *message);
/* There may be pinned memory for the next message that waits: activates it. */
void staging_wake_next(struct p2p_comm *comm, enum message_way way);

#endif
