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
 * A node under test, "a", with a real exec and p2p, and one communicator of four ranks, and node "b", which
 * has a certificate and sends whatever bytes it is told to. Ranks 0 and 2 are node a's, 1 and 3 node b's. For
 * unit tests and fuzz targets; what must hold and does not ends the program.
 */
#define HOSTILE_COMM_ID 99
#define HOSTILE_RANKS 4
#define HOSTILE_LOCAL_RANKS 2
#define HOSTILE_HEARD_MAX 64
#define HOSTILE_GUARD_BYTES 1024
#define HOSTILE_POISON 0x5A
#define HOSTILE_TURNS 8 /* in which what was sent arrives, and is answered */

/* Memory of node a's user, with guards around it. */
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
/* Whether nothing was written to it either. */
bool hostile_is_untouched(const struct hostile_buffer *buffer);
void hostile_buffer_free(struct hostile_buffer *buffer);

/* What one call of node a came to. */
struct hostile_outcome {
    uint32_t calls; /* of done: never more than one */
    struct error result;
};

struct hostile {
    struct network *network;
    struct net *net, *liar;
    struct exec *exec;
    struct exec_comm *comm; /* null after hostile_leave */
    struct p2p *p2p;
    struct p2p_comm *p2p_comm;      /* of the same communicator */
    struct budget_account *account; /* the communicator's; null: nobody's */
    uint64_t now_ns;
    uint64_t seq;     /* of the last operation submitted */
    uint32_t pending; /* operations and messages that have not ended */
    uint32_t ups, downs;
    struct error down; /* why node a's connection ended last */
    bool operations_failed, messages_failed;
    uint32_t failures;
    struct error failure; /* of the communicator */
    uint32_t disputes;
    /* What node a sent, by stream kind; beyond HOSTILE_HEARD_MAX it is not kept. */
    struct data_header data[HOSTILE_HEARD_MAX];
    uint32_t data_count;
    struct message_header messages[HOSTILE_HEARD_MAX];
    uint32_t message_count;
};

/* slice_bytes: of the communicator's operations. Both nodes are connected afterwards. */
void hostile_start(struct hostile *hostile, uint64_t slice_bytes);
/* The same with a communicator whose early data are charged to that account. */
void hostile_start_charged(struct hostile *hostile, uint64_t slice_bytes, struct budget_account *account);
/* Aborts what is pending, lets it end, and frees everything. */
void hostile_stop(struct hostile *hostile);
void hostile_turns(struct hostile *hostile, uint32_t count);
/* Dials again after the connection was lost. */
void hostile_connect(struct hostile *hostile);
/* Node a has ended the connection for what node b did, with these words; else prints what happened. */
bool hostile_was_dropped(struct hostile *hostile, const char *what);
/* Node a gives its communicator up, and forgets it. */
void hostile_leave(struct hostile *hostile);

/* Null when the connection allows none. */
struct net_stream *hostile_open(struct hostile *hostile, enum net_stream_kind kind);
/* Sends, and lets time pass. False: the stream takes no more. */
bool hostile_say(struct hostile *hostile, struct net_stream *stream, const void *bytes, size_t size);
bool hostile_say_data(struct hostile *hostile, struct net_stream *stream, const struct data_header *header);
bool hostile_say_message(struct hostile *hostile, struct net_stream *stream,
                         const struct message_header *header);

/* What node a's two ranks call: a sum, where it reduces. */
struct hostile_call {
    enum op_kind kind;
    enum dtype dtype;
    uint64_t count_elements;
    uint32_t root_rank;
    enum compression compression;
    bool has_layouts; /* all_to_all: each block has a size of its own, count_elements on average */
};
/* What the buffers of one rank are to have. */
uint64_t hostile_input_bytes(const struct hostile_call *call);
uint64_t hostile_output_bytes(const struct hostile_call *call);
/* The buffers are those of both ranks. Returns the operation's number; 0: refused. */
uint64_t hostile_submit(struct hostile *hostile, const struct hostile_call *call,
                        const struct hostile_buffer in[HOSTILE_LOCAL_RANKS],
                        const struct hostile_buffer out[HOSTILE_LOCAL_RANKS],
                        struct hostile_outcome *outcome);
/* Rank 0 of node a, with rank 1 of node b. False: refused. */
bool hostile_post(struct hostile *hostile, bool sends, uint32_t tag, const struct hostile_buffer *buffer,
                  struct hostile_outcome *outcome);

#endif
