#ifndef DAEMON_P2P_P2P_INTERNAL_H
#define DAEMON_P2P_P2P_INTERNAL_H

#include "daemon/base/fair.h"
#include "daemon/base/pacer.h"
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

#define P2P_STEP_BYTES                                                                                       \
    (UINT64_C(4) << 20)        /* copied between ranks of a node before others have their turn               \
                                */
#define P2P_IN_FLIGHT_MAX 2048 /* sends of one stream that are not acknowledged, of NET_STREAM_QUEUE_MAX */
#define P2P_IN_FLIGHT_MAX_BYTES (UINT64_C(4) << 20) /* and of the eager payloads among them */
#define P2P_RETRY_NS (5 * TIME_MS)                  /* when the network has no memory, or no further stream */

enum message_state {
    MESSAGE_HELD,     /* a send: waits for its stream, for its pair's before it, or to be copied from a GPU */
    MESSAGE_QUEUED,   /* a send: not handed to the network yet */
    MESSAGE_OFFERED,  /* its envelope is out */
    MESSAGE_ACCEPTED, /* it was accepted; the payload waits for its turn among those to that node */
    MESSAGE_SENDING, /* its turn: the network has the payload, or chunks of it; from a GPU, once it has a pipe
                      */
    MESSAGE_ARRIVED, /* a send within this node that no receive has taken; any message that is being posted */
    MESSAGE_POSTED,  /* a receive without a message */
    MESSAGE_MATCHED, /* a receive that has taken one: waits for its stream, and for memory of its pipe */
    MESSAGE_AWAITED, /* a receive whose message was accepted */
    MESSAGE_RECEIVING, /* its payload has begun to come */
    MESSAGE_COPYING,   /* a receive that takes from a send of this node, or the rest of it from its pipe */
    MESSAGE_TAKEN,     /* that send */
    MESSAGE_LEAVING,   /* its result is known: until GPUs and network have let go of it */
    MESSAGE_ENDED      /* to be told */
};

/*
 * Pipes of sends and of receives have memory of their own. A receive has its pipe before it accepts, a send
 * takes one once it is accepted: so whatever has memory gets on by GPUs and network alone, and those that
 * wait for memory, on whatever nodes, wait for none that waits for them.
 */
enum message_way { MESSAGE_WAY_OUT, MESSAGE_WAY_IN };
#define MESSAGE_WAYS 2

/* The list that a message's active_prev and active_next are of. */
enum message_list { LIST_NONE, LIST_ACTIVE, LIST_CROWDED_OUT, LIST_CROWDED_IN };

/* What carries the bytes of one message. */
struct p2p_transfer {
    struct message_pipe *pipe; /* null: the bytes are the host's, or it has not begun */
    uint64_t pipe_bytes;       /* of its pinned memory */
    struct net_stream *stream; /* of a payload that is sent, until it is acknowledged or given up */
    bool has_slot;             /* of the payloads to that node */
    bool in_network;           /* the network has the payload by reference: its end follows */
    unsigned char *copy;       /* of a small send, from its GPU */
};

/* What a local rank and another rank, or any source, have with each other. */
struct p2p_pair {
    struct p2p_pair_key {
        uint32_t rank, peer; /* of this node; COMM_ANY_SOURCE_RANK */
    } key;
    struct p2p_pair *prev, *next;         /* of comm->busy_pairs, while it has messages */
    struct p2p_pair *end_prev, *end_next; /* of comm->ending, while `ending` */
    struct p2p_message *messages;         /* that have neither ended nor are leaving, in the order posted */
    struct p2p_message *held;             /* of these: sends that are MESSAGE_HELD; the first one is active */
    uint32_t sent_bytes;                  /* eager, to the peer: of the credit, until taken and reported */
    uint32_t kept_bytes;                  /* eager, of the peer, on another node: not reported as taken */
    uint32_t taken_bytes;                 /* of these: taken */
    bool charged;
    bool ending;
    UT_hash_handle hh;
};
_Static_assert(sizeof(struct p2p_pair) <= P2P_PAIR_COST_BYTES, "a pair costs no more than is charged for it");

/* A message that came, or was sent within this node, until it is over. */
struct p2p_arrival {
    struct p2p_arrival *prev, *next; /* of its receiver, while no receive has taken it; or of p2p->cut */
    struct p2p_arrival *of_source_prev, *of_source_next; /* matching.c, while no receive has taken it */
    struct p2p_arrival *of_any_prev, *of_any_next;
    struct p2p_id by_id; /* of rendezvous between nodes: in the link's table */
    struct p2p_comm *comm;
    struct p2p_link *link;        /* of another node; null: of this one */
    struct p2p_message *send;     /* within this node: its send, unless eager */
    struct p2p_message *receive;  /* that has taken it */
    struct stream_reader *reader; /* that its payload comes on */
    uint64_t count_elements;
    uint64_t charged_bytes;
    uint64_t cut_ns; /* the stream of its payload was reset: when its receive ends for that; 0: it was not */
    unsigned char *payload; /* EAGER, unless lost */
    uint32_t source_rank, to_rank, tag, payload_bytes;
    uint8_t dtype;
    bool eager, queued;
    bool lost; /* there was no room for the payload */
};
_Static_assert(sizeof(struct p2p_arrival) + 32 <= P2P_ENVELOPE_COST_BYTES,
               "what is stored costs no more than is charged for it");

/* What is to be said to a node, and not handed to the network yet. */
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

/* A rank of another node that left: gone once the link's messages so far have come. */
struct p2p_departure {
    struct p2p_departure *prev, *next;
    uint32_t rank;
    uint64_t sent_count;
};

/* What a communicator has with another node. It outlives the communicator while the network has sends. */
struct p2p_link {
    struct p2p_comm *comm; /* null: it is gone */
    uint32_t node;
    bool flushing; /* among comm->flushing */
    bool is_lost;  /* the connection: the communicator's end follows */
    struct p2p_link *prev, *next;
    struct p2p_out envelopes, replies;
    struct stream_reader *envelopes_in, *replies_in; /* the one stream of each that it may have to us */
    uint64_t sent_count, came_count;                 /* messages: ids of the last */
    struct p2p_message *queued;                      /* sends that are MESSAGE_QUEUED */
    struct p2p_message *accepted; /* sends that are MESSAGE_ACCEPTED and wait for one of the streams */
    uint32_t payloads;            /* streams of them */
    struct id_table sends;        /* OFFERED, ACCEPTED, SENDING */
    struct id_table arrivals;     /* of rendezvous, until they are over */
    struct p2p_departure *departures;
};

/* One look at the messages of a communicator. */
struct message_pass {
    uint64_t now_ns;
    bool more;               /* can be done at once */
    bool resumes;            /* pipes of receives have room again */
    uint64_t left_bytes;     /* that may still be copied within this node */
    struct p2p_message *cut; /* the receive that took the last of them, and is not whole */
};

struct p2p_local {
    uint32_t rank;
    bool has_left;
    struct budget_account *account;
    struct p2p_arrival *arrivals; /* for it, that no receive has taken */
};

/* A text that messages which end one after the other share: when a rank leaves, thousands may. */
struct p2p_result {
    struct error error; /* the first: a message has its address */
    uint32_t uses;
};

struct p2p_comm {
    struct p2p *p2p;
    struct p2p_result *last_result; /* of a message; null: none */
    struct p2p_comm_options options;
    struct fair_entry turn; /* among p2p->busy */
    uint32_t round;         /* the last one in which it was stepped */
    uint64_t comm_id;
    uint64_t charged_bytes; /* of its account, without its messages */
    uint32_t *peers;
    uint32_t *node_of_rank;
    uint32_t *local_of_rank; /* size; UINT32_MAX for other nodes' */
    struct p2p_local *locals;
    uint32_t local_count;
    uint32_t credit_bytes;   /* of each pair */
    struct p2p_link **links; /* by node; null: ours */
    struct stream_group streams;
    struct p2p_pair *pairs;
    struct p2p_pair *busy_pairs;
    struct p2p_pair *ending;                   /* whose messages end since a rank is gone */
    struct message_queue *queues;              /* matching.c */
    struct p2p_message *active, *cursor;       /* each step looks at them; the next one of a step under way */
    struct p2p_message *crowded[MESSAGE_WAYS]; /* that wait for pinned memory, oldest first */
    struct p2p_message *leaving; /* that have their result; of these, those with pipes are active */
    struct p2p_message *ended;
    struct p2p_link *flushing; /* that have something for the network */
    uint32_t count;            /* of messages that are not told */
    uint64_t last_number;
    uint64_t pipe_bytes[MESSAGE_WAYS]; /* pinned memory of their pipes */
    struct gpu_queue **gpu_queues;     /* of GPU and way; null: none yet */
    bool *gone;                        /* by rank: has left, and nothing more comes of it */
    uint32_t gone_count;
    bool failed;
    bool aborted;
    struct error cause;
    UT_hash_handle hh;
};

struct p2p {
    struct net *net;
    struct gpu_devices *gpus;
    p2p_wake_function *wake;
    void *wake_context;
    struct p2p_comm *comms;
    struct spending spending;
    struct fair busy;   /* of these: with messages, or something to say */
    uint32_t round;     /* in which all of these are stepped, some more than once */
    uint32_t unstepped; /* of these, in this round */
    bool more;          /* another round is wanted */
    struct stream_readers readers;
    struct pacer pacer;
    uint64_t now_ns; /* of the call under way */
    uint64_t retry_ns;
    struct p2p_arrival *cut; /* those with a cut_ns, in its order */
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
/* The pair, made on first use; null without memory, or room in the rank's account (*error says which). force:
 * whatever the account has. */
struct p2p_pair *pair_make(struct p2p_comm *comm, uint32_t rank, uint32_t peer, bool force,
                           struct error *error);
struct p2p_pair *pair_find(const struct p2p_comm *comm, uint32_t rank, uint32_t peer);

/* ending.c: how messages end. */
/* It is looked at in the next turn. */
void message_activate(struct p2p_message *message);
/* It waits for pinned memory, behind the others or, if it was its turn, before them. */
void message_crowd(struct p2p_message *message, enum message_way way);
void message_rest(struct p2p_message *message);
/* To be told, unless it is already. */
void message_end(struct p2p_message *message, const struct error *result);
/* It ends early. tells: the other side, if it has a part in it, hears of it. */
void message_give_up(struct p2p_message *message, const struct error *result, bool tells);
/* LEAVING: ends when GPUs and network have let go. */
void message_leaving_step(struct p2p_message *message, uint64_t now_ns);
/* That use of it is over. */
void p2p_result_drop(struct p2p_result *result);
/* "The send of rank 3 (node b), tag 7, ended first: deadline passed". */
void message_set_peer_ended(const struct p2p_comm *comm, struct error *error, enum status status, bool sends,
                            uint32_t rank, uint32_t tag);
void message_set_left(const struct p2p_comm *comm, struct error *error, uint32_t peer_rank);
void message_set_mismatch(const struct p2p_comm *comm, struct error *error, const struct p2p_arrival *sent,
                          enum dtype dtype, uint64_t count_elements);
struct p2p_transfer *message_transfer(struct p2p_message *message);

/* A held send is in no list any more: the next one of its pair is looked at. */
void message_unhold(struct p2p_message *send);

/* posting.c */
/* The message is there, its payload whole: the first receive that fits takes it, else it is stored. */
void message_arrive(struct p2p_comm *comm, struct p2p_arrival *arrival);
/* A held send's turn has come. */
void message_post_held(struct p2p_message *send);
/* What the receive has taken is brought to its buffer, which may be touched. */
void message_start_receive(struct p2p_message *receive);
/* It is over: its store and its credit are given back. */
void arrival_free(struct p2p_arrival *arrival);

/* steps.c. Returns whether more can be done at once. */
bool messages_step(struct p2p_comm *comm, uint64_t now_ns);

/* matching.c: which receive takes which message. False: there is no memory. */
bool match_add_receive(struct p2p_comm *comm, struct p2p_message *receive) COMM_MUST_USE;
void match_remove_receive(struct p2p_comm *comm, struct p2p_message *receive);
/* The receive that takes it; null: none yet. */
struct p2p_message *match_receive(const struct p2p_comm *comm, const struct p2p_arrival *arrival);
bool match_add_arrival(struct p2p_comm *comm, struct p2p_arrival *arrival) COMM_MUST_USE;
void match_remove_arrival(struct p2p_comm *comm, struct p2p_arrival *arrival);
/* The message that the receive takes, in no list any more; null: none yet. */
struct p2p_arrival *match_take_arrival(struct p2p_comm *comm, const struct p2p_message *receive);
void match_release(struct p2p_comm *comm);

/* link.c: what goes to another node. */
struct p2p_link *link_new(struct p2p_comm *comm, uint32_t node);
void link_release(struct p2p_link *link);
/* give_up: what is queued is not sent. */
void link_reset(struct p2p_link *link, bool give_up);
/* Hands to the network what it has room for. */
void link_flush(struct p2p_link *link);
void links_flush(struct p2p_comm *comm);
/* Queues a send. */
void link_queue_send(struct p2p_link *link, struct p2p_message *send);
/* Says so, in order. Without memory the communicator fails. */
void link_reply(struct p2p_link *link, const struct message_header *header);
void link_withdraw(struct p2p_link *link, const struct p2p_message *send, enum status status);
void link_answer(const struct p2p_arrival *arrival, enum message_kind kind, enum status status,
                 enum dtype dtype, uint64_t count_elements);
/* An offered send is accepted: its payload goes when it is its turn. */
void link_accepted(struct p2p_message *send);
/* Opens the stream of its payload, with its header and so much of it. sent's context is the send. */
enum status link_open_payload(struct p2p_message *send, const void *payload, uint64_t payload_bytes,
                              net_sent_function *sent) COMM_MUST_USE;
/* Of a SENDING one: all of it was acknowledged; or what is queued is given up. */
void link_payload_over(struct p2p_message *send, bool delivered);
/* In P2P_RETRY_NS at the latest there is another turn. */
void p2p_retry(struct p2p *p2p);

/* incoming.c: streams from other nodes. */
extern const struct stream_reader_kind message_reader_kind;
void incoming_resume(struct p2p_comm *comm);
void incoming_departures(struct p2p_link *link);
/* Receives whose payloads were cut, and nobody said why in time, end. */
void incoming_end_cut(struct p2p *p2p, uint64_t now_ns);
/* The payload on that stream goes nowhere any more. */
void incoming_drop(struct stream_reader *reader);

/* staging.c: messages whose buffers are on GPUs. A failure ends the message. */
void staging_release(struct p2p_comm *comm);
/* Whether a send's payload is to be on the host before its envelope goes. */
bool staging_is_small(const struct p2p_message *send);
/* Copies it there; true once it is. */
bool staging_copy_small(struct p2p_message *send, struct message_pass *pass);
/* Whether a receive that has taken a message needs a pipe; makes it: false: not now, or it has ended. */
bool staging_needs_pipe(const struct p2p_message *receive);
bool staging_receives(struct p2p_message *receive, struct message_pass *pass);
/* A receive's pipe goes on; true when all is where it belongs. */
bool staging_receive_step(struct p2p_message *receive, struct message_pass *pass);
/* An accepted send goes on, chunk by chunk. */
void staging_send_step(struct p2p_message *send, struct message_pass *pass);
/* Given up: whether GPUs have let go of it. */
bool staging_is_idle(struct p2p_message *message, uint64_t now_ns);
void staging_free_pipe(struct p2p_message *message);
/* There may be pinned memory for the next one that waits. */
void staging_wake_next(struct p2p_comm *comm, enum message_way way);

#endif
