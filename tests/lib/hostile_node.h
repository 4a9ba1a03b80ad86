#ifndef TESTS_LIB_HOSTILE_NODE_H
#define TESTS_LIB_HOSTILE_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/time.h"
#include "daemon/exec/exec.h"
#include "daemon/p2p/p2p.h"
#include "proto/data_header.h"
#include "proto/message_header.h"
#include "tests/network/network.h"

/*
 * For unit tests and fuzz targets. Node "a" is under test; it has a real exec and p2p, and one communicator
 * of four ranks. Node "b" has a certificate and sends any bytes that the test wants. Ranks 0 and 2 are on
 * node a, 1 and 3 on node b. If something that must hold does not, the program ends.
 */
#define HOSTILE_COMM_ID 99
#define HOSTILE_RANKS 4
#define HOSTILE_LOCAL_RANKS 2
#define HOSTILE_HEARD_MAX 64
#define HOSTILE_GUARD_BYTES 1024
#define HOSTILE_POISON 0x5A
#define HOSTILE_TURNS 8 /* enough turns for sent bytes to arrive and be answered */

/* Memory of a user on node a, with guards around it. */
struct hostile_buffer {
    unsigned char *memory;
    size_t bytes;
};
struct hostile_buffer hostile_buffer_new(size_t bytes);
static inline unsigned char *hostile_at(const struct hostile_buffer *buffer)
{
    return buffer->memory + HOSTILE_GUARD_BYTES;
}
/* Whether nothing was written beside the buffer. */
bool hostile_guards_hold(const struct hostile_buffer *buffer);
/* Whether nothing was written to the buffer either. */
bool hostile_is_untouched(const struct hostile_buffer *buffer);
void hostile_buffer_free(struct hostile_buffer *buffer);

/* How one call of node a ended. */
struct hostile_outcome {
    uint32_t calls; /* how often `done` was called: never more than once */
    struct error result;
};

struct hostile {
    struct network *network;
    struct net *net, *liar;
    struct exec *exec;
    struct exec_comm *comm; /* null after hostile_leave */
    struct p2p *p2p;
    struct p2p_comm *p2p_comm;      /* of the same communicator */
    struct budget_account *account; /* charged for the communicator; null: no account */
    uint64_t now_ns;
    uint64_t seq;     /* of the last operation submitted */
    uint32_t pending; /* operations and messages that have not ended */
    uint32_t ups, downs;
    struct error down; /* why the last connection of node a ended */
    bool operations_failed, messages_failed;
    uint32_t failures;
    struct error failure; /* of the communicator */
    uint32_t disputes;
    /* The headers that node a sent, by kind of stream. At most HOSTILE_HEARD_MAX of each kind are kept. */
    struct data_header data[HOSTILE_HEARD_MAX];
    uint32_t data_count;
    struct message_header messages[HOSTILE_HEARD_MAX];
    uint32_t message_count;
};

/* Starts and connects both nodes. slice_bytes: of the communicator's operations. */
void hostile_start(struct hostile *hostile, uint64_t slice_bytes);
/* The same, with an account that is charged for early data of the communicator. */
void hostile_start_charged(struct hostile *hostile, uint64_t slice_bytes, struct budget_account *account);
/* Aborts what is pending, lets it end, and frees everything. */
void hostile_stop(struct hostile *hostile);
void hostile_turns(struct hostile *hostile, uint32_t count);
/* Connects again after the connection was lost. */
void hostile_connect(struct hostile *hostile);
/* Returns whether node a ended the connection because of node b, with a text that contains `what`. If not,
 * prints what happened. */
bool hostile_was_dropped(struct hostile *hostile, const char *what);
/* Lets node a give up its communicator and forget it. */
void hostile_leave(struct hostile *hostile);

/* Opens a stream from node b. Returns null if the connection allows none. */
struct net_stream *hostile_open(struct hostile *hostile, enum net_stream_kind kind);
/* Sends bytes, and lets time pass. Returns false if the stream takes no more. */
bool hostile_say(struct hostile *hostile, struct net_stream *stream, const void *bytes, size_t size);
bool hostile_say_data(struct hostile *hostile, struct net_stream *stream, const struct data_header *header);
bool hostile_say_message(struct hostile *hostile, struct net_stream *stream,
                         const struct message_header *header);

/* An operation that the two ranks of node a call. If it reduces, it is a sum. */
struct hostile_call {
    enum op_kind kind;
    enum dtype dtype;
    uint64_t count_elements;
    uint32_t root_rank;
    enum compression compression;
    bool has_layouts; /* all_to_all: each block has a size of its own, count_elements on average */
};
/* The bytes that one rank's buffers must have. */
uint64_t hostile_input_bytes(const struct hostile_call *call);
uint64_t hostile_output_bytes(const struct hostile_call *call);
/* Submits an operation with the buffers of both ranks. Returns the operation's number, or 0 if it was
 * refused. */
uint64_t hostile_submit(struct hostile *hostile, const struct hostile_call *call,
                        const struct hostile_buffer in[HOSTILE_LOCAL_RANKS],
                        const struct hostile_buffer out[HOSTILE_LOCAL_RANKS],
                        struct hostile_outcome *outcome);
/* Posts a message between rank 0 on node a and rank 1 on node b. Returns false if it was refused. */
bool hostile_post(struct hostile *hostile, bool sends, uint32_t tag, const struct hostile_buffer *buffer,
                  struct hostile_outcome *outcome);

#endif
