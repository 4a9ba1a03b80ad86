#ifndef DAEMON_EXEC_MESSAGES_INTERNAL_H
#define DAEMON_EXEC_MESSAGES_INTERNAL_H

#include "daemon/base/table.h"
#include "daemon/exec/exec.h"
#include "daemon/exec/message_pipe.h"
#include "daemon/exec/stream_reader.h"
#include "proto/message_header.h"

/* Messages from rank to rank, as the files of daemon/exec that carry them share them. */

enum message_state {
    MESSAGE_HELD,      /* a send: waits for its stream, for those before it, or to be copied from its GPU */
    MESSAGE_QUEUED,    /* a send: not handed to the network yet */
    MESSAGE_OFFERED,   /* its envelope is out */
    MESSAGE_ACCEPTED,  /* it was accepted; the payload waits for a stream, and for memory of its pipe */
    MESSAGE_SENDING,   /* the network has the payload, or chunks of it */
    MESSAGE_ARRIVED,   /* a send within this node that no receive has taken */
    MESSAGE_POSTED,    /* a receive without a message */
    MESSAGE_MATCHED,   /* a receive that has taken one: waits for its stream, and for memory of its pipe */
    MESSAGE_AWAITED,   /* a receive whose message was accepted */
    MESSAGE_RECEIVING, /* its payload has begun to come */
    MESSAGE_COPYING,   /* a receive that takes from a send of this node, or the rest of it from its pipe */
    MESSAGE_TAKEN,     /* that send */
    MESSAGE_LEAVING,   /* given up, until GPUs and network have let go of it */
    MESSAGE_ENDED      /* to be told */
};

struct message_queue; /* message_match.c */
struct message_id {   /* of a send to, or one awaited from, another node */
    uint64_t id;
    uint32_t node;
    uint32_t sends;
};

struct exec_posted {
    struct exec_posted *prev, *next;
    bool active; /* among messages.active: there may be something to do for it */
    struct exec_posted *active_prev, *active_next;
    struct message_queue *queue; /* POSTED: of the receives that it stands among; null otherwise */
    struct exec_posted *match_prev, *match_next;
    uint64_t number; /* of receives, in the order posted */
    bool has_id;     /* among messages.by_id */
    struct message_id by_id;
    UT_hash_handle hh_id;
    struct exec_comm *comm;
    struct exec_message call;
    enum message_state state;
    uint32_t node;                /* the other side's */
    uint64_t id;                  /* sends to, and awaited from, other nodes */
    struct exec_posted *partner;  /* of this node, of either */
    struct exec_arrival *arrival; /* MATCHED: what it has taken, of another node */
    struct message_pipe *pipe;    /* null: the bytes are the host's, or it has not begun */
    uint64_t pipe_bytes;          /* of its pinned memory */
    struct net_stream *stream;    /* SENDING: of the payload, until it is acknowledged or given up */
    unsigned char *copy;          /* of a small send, from its GPU */
    uint64_t moved_bytes;
    uint32_t source_rank; /* of what a receive takes */
    uint64_t received_elements;
    const struct error *result; /* ENDED; the communicator's cause, or: */
    struct error *own_result;   /* null: none of its own */
};

/* A message that no receive has taken yet, in the order of arrival. */
struct exec_arrival {
    struct exec_arrival *prev, *next;
    struct exec_arrival *of_source_prev, *of_source_next; /* message_match.c */
    struct exec_arrival *of_any_prev, *of_any_next;
    struct exec_posted *local; /* its send, of this node; or: */
    uint32_t node;
    uint64_t id;
    bool eager;
    uint32_t source_rank;
    uint32_t to_rank;
    uint32_t tag;
    enum dtype dtype;
    uint64_t count_elements;
    uint64_t payload_bytes;
    unsigned char payload[];
};

/*
 * Pipes of sends and of receives have memory of their own. A receive has its pipe before it accepts, a send
 * takes one once it is accepted: so whatever has memory gets on by GPUs and network alone, and those that
 * wait for memory, on whatever nodes, wait for none that waits for them.
 */
enum message_way { MESSAGE_WAY_OUT, MESSAGE_WAY_IN };
#define MESSAGE_WAYS 2
/* One look at all messages of a communicator, in the order posted. */
struct message_pass {
    uint64_t now_ns;
    bool more;                  /* can be done at once */
    bool held;                  /* a send before has not come to its turn: none behind it does */
    bool copying;               /* a send before is being copied: none overtakes it */
    bool crowded[MESSAGE_WAYS]; /* a message before waits for memory: so does every one behind it */
    bool resumes;               /* pipes of receives have room again */
    struct error fault;         /* what ends the communicator; STATUS_OK: nothing */
};

struct exec_message_node {
    struct net_stream *envelopes, *replies;          /* outgoing; opened on first use */
    struct stream_reader *envelopes_in, *replies_in; /* the one stream of each that it may have to us */
    uint64_t last_id;
    uint32_t arrivals; /* kept here of that node */
    uint64_t arrival_bytes;
    uint32_t payloads; /* being sent to it */
};

/* What ranks send to each other: messages.c, message_streams.c, device_messages.c. */
struct exec_messages {
    struct exec_posted *posted;    /* all that have not ended */
    struct exec_posted *active;    /* of these: each step looks at them, in the order in which they came */
    struct exec_posted *cursor;    /* the next one of a step under way */
    struct exec_posted *giving_up; /* of posted, after the abort: the next one that is to be given up */
    struct exec_posted *by_id;
    struct message_queue *queues_by_key;
    uint64_t last_number;
    struct exec_posted *ended;
    uint32_t count;
    uint32_t held;                     /* sends that are MESSAGE_HELD */
    uint64_t pipe_bytes[MESSAGE_WAYS]; /* pinned memory of their pipes */
    struct gpu_queue **queues;         /* of GPU and way; null: none yet */
    struct exec_arrival *arrivals;
    struct exec_message_node *nodes;
};

/* messages.c */
bool messages_new(struct exec_comm *comm) __attribute__((warn_unused_result));
void messages_release(struct exec_comm *comm);
/* Returns whether more can be done at once. */
bool messages_step(struct exec_comm *comm, uint64_t now_ns);
bool messages_idle(const struct exec_comm *comm);
void messages_abort(struct exec_comm *comm);
void message_end(struct exec_comm *comm, struct exec_posted *posted, const struct error *result);
/* Its state changed: there is something to do for it. */
void message_activate(struct exec_posted *posted);

/* message_match.c: which receive takes which message. False: there is no memory. */
bool message_match_add_receive(struct exec_comm *comm, struct exec_posted *receive) COMM_MUST_USE;
void message_match_remove_receive(struct exec_comm *comm, struct exec_posted *receive);
/* The receive that takes it; null: none yet. */
struct exec_posted *message_match_receive(const struct exec_comm *comm, const struct exec_arrival *arrival);
bool message_match_add_arrival(struct exec_comm *comm, struct exec_arrival *arrival) COMM_MUST_USE;
/* The message that the receive takes, in no list any more; null: none yet. */
struct exec_arrival *message_match_take_arrival(struct exec_comm *comm, const struct exec_posted *receive);
void message_match_release(struct exec_comm *comm);

/* A message of another node leaves what is kept of it, and is its user's no more. */
void message_arrival_uncount(struct exec_comm *comm, const struct exec_arrival *arrival);
/* The message is there, its payload whole: the first receive that fits takes it, else it waits. */
void messages_arrive(struct exec_comm *comm, struct exec_arrival *arrival);
struct exec_posted *messages_find(const struct exec_comm *comm, enum message_state state, uint32_t node,
                                  uint64_t id);
void messages_refused(struct exec_comm *comm, struct exec_posted *send, enum dtype dtype, uint64_t room);

/* message_streams.c */
/* What was held back may have room now. */
void message_streams_resume(struct exec_comm *comm);
/* False when it has to be tried again later. */
bool message_send_envelope(struct exec_comm *comm, struct exec_posted *send);
bool message_send_payload(struct exec_comm *comm, struct exec_posted *send);
/* The payload's stream, with its header and so much of it; sent's context is the send. Null: not now. */
struct net_stream *message_open_payload(struct exec_comm *comm, struct exec_posted *send, const void *payload,
                                        uint64_t payload_bytes, net_sent_function *sent);
/* Of a send that has a stream: all of it was acknowledged; or what is queued is given up. */
void message_close_payload(struct exec_posted *send, bool delivered);
void message_send_reply(struct exec_comm *comm, bool accepted, uint32_t node, uint64_t id,
                        const struct exec_message *receive, uint32_t source_rank);
void message_streams_reset(struct exec_comm *comm, bool give_up);

/* device_messages.c: messages whose buffers are on GPUs. Functions without a result say in *pass what failed.
 */
void device_messages_release(struct exec_comm *comm);
/* Whether a send's payload is to be on the host before its envelope goes. */
bool device_message_is_small(const struct exec_posted *send);
/* Copies it there; true once it is. */
bool device_message_copy_small(struct exec_posted *send, struct message_pass *pass);
/* Whether a receive that has taken a message needs a pipe; makes it: false: not now. */
bool device_message_needs_pipe(const struct exec_posted *receive);
bool device_message_receives(struct exec_posted *receive, struct message_pass *pass);
/* A receive's pipe goes on; true when all is where it belongs. */
bool device_message_receive_step(struct exec_posted *receive, struct message_pass *pass);
/* An accepted send goes on, chunk by chunk. */
void device_message_send_step(struct exec_posted *send, struct message_pass *pass);
/* Of a send: it has nothing more for the network. */
void device_message_give_up(struct exec_posted *posted);
/* Given up: whether GPUs and network have let go of it. */
bool device_message_is_idle(struct exec_posted *posted, uint64_t now_ns);
void device_message_free_pipe(struct exec_posted *posted);

#endif
