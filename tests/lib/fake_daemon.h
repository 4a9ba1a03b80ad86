#ifndef TESTS_LIB_FAKE_DAEMON_H
#define TESTS_LIB_FAKE_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/lib/fake_rings.h"

/*
 * The client's side of commd, in a thread of the test. It behaves as its script says. There are no other
 * ranks: an operation is done when it arrives. all_reduce sets every output byte to fake_daemon_byte() of its
 * input byte. broadcast fills the output of all but the root with fake_daemon_fill(). It refuses all other
 * kinds, and whatever commd would refuse. It waits for words and sets words as commd does, for one operation
 * or record after the other. It records what a client says of GPU memory, but does not touch that memory.
 */
struct fake_daemon;

#define FAKE_DAEMON_NODE_NAME_BYTES 32

enum fake_hello {
    FAKE_HELLO_ANSWER,
    FAKE_HELLO_SILENT,
    FAKE_HELLO_CLOSE,         /* closes the connection instead of answering */
    FAKE_HELLO_OTHER_VERSION, /* answers with another protocol version */
    FAKE_HELLO_REFUSE,        /* sends an Error with VERSION, then closes */
    FAKE_HELLO_FULL           /* sends an Error with LIMIT that answers no request, then closes */
};

enum fake_form {
    FAKE_FORM_ANSWER,
    FAKE_FORM_REFUSE, /* sends an Error: MISMATCH, "form_text" */
    FAKE_FORM_SILENT,
    FAKE_FORM_NO_NODES,      /* sends an answer with impossible numbers */
    FAKE_FORM_OTHER_QUESTION /* sends Done, which does not answer this request */
};

enum fake_table {
    FAKE_TABLE_ANSWER,
    FAKE_TABLE_EMPTY,
    FAKE_TABLE_WRONG_NODE, /* names a node that does not exist */
    FAKE_TABLE_TOO_MANY
};

/* What happens instead of an operation's completion. */
enum fake_action {
    FAKE_COMPLETE,
    FAKE_FAIL,    /* Complete with op_status and op_text */
    FAKE_ABORT,   /* the same, then an Aborted with "aborted after it" */
    FAKE_NO_WORD, /* no completion, for this operation alone */
    FAKE_CLOSE,
    FAKE_GARBAGE,       /* bytes that are no event */
    FAKE_EMPTY_EVENT,   /* an event without a body */
    FAKE_OTHER_RECORD,  /* a completion of another version */
    FAKE_OVERSIZE,      /* a packet beyond the limit */
    FAKE_OTHER_TICKET,  /* Complete of a ticket that is not in flight */
    FAKE_OTHER_HANDLE,  /* Complete of an unknown communicator */
    FAKE_OTHER_REQUEST, /* a Reply to a request that nobody made */
    FAKE_SESSION_ERROR, /* an Error that answers no request, then closed */
    FAKE_STOP_READING,  /* reads and answers nothing until fake_daemon_go_on */
    FAKE_ABUSE_RINGS    /* abuses the rings: `abuse` says how */
};

struct fake_script {
    enum fake_hello hello;
    enum fake_form form;
    enum fake_table table;
    enum fake_action action;
    uint64_t action_at_op;    /* the operation at which `action` happens, from 1; 0: at none */
    uint32_t pending_ops_max; /* 0 means 1,024 */
    uint32_t node_count;      /* 0 means 1 */
    uint32_t page_ranks;      /* ranks in one CommTableReply; 0: as many as allowed */
    uint32_t page_nodes;
    uint32_t form_delay_ms;
    uint32_t op_delay_ms;
    bool holds_ops; /* ends no operation until a later script says otherwise */
    uint32_t op_status;
    const char *op_text;
    const char *form_text;
    uint32_t memories_max;   /* further registrations get LIMIT; 0: no bound */
    bool refuses_gpu_memory; /* answers with DEVICE */
    bool room_refused;       /* every other registration of virtual memory gets LIMIT */
    /* this many requests to register a handle or a pointer of a pool, or to withdraw unused memory, get BUSY
     */
    uint32_t busy_answers;
    bool memory_pools;     /* takes memory of CUDA memory pools */
    bool graphs;           /* takes operations of CUDA graphs */
    bool refuses_captures; /* answers each with LIMIT */
    bool rings;            /* offers rings to clients that ask for them */
    bool rings_not_sealed; /* the memory of the rings has no seal against truncation */
    enum fake_abuse abuse;
};

/* What the fake daemon has seen. */
struct fake_counts {
    uint32_t sessions; /* at present */
    uint32_t comms;    /* at present */
    uint32_t memories; /* at present */
    uint64_t registered;
    uint64_t destroyed; /* communicators that were destroyed by request */
    uint64_t tables;    /* pages of tables that were asked for */
    uint64_t submits;
    uint64_t captured;    /* operations of CUDA graphs, also if they were refused */
    uint64_t pending_max; /* the most operations of one session at a time */
    uint64_t refused;     /* operations that were refused, as commd would */
    /* About the last submit: */
    bool input_present;
    bool output_present;
    uint32_t input_memory;
    uint32_t output_memory;
    uint64_t input_offset_bytes;
    uint64_t output_offset_bytes;
    uint64_t timeout_ms;
    double factor;
    uint32_t fences; /* words for which it waits */
    bool ended_present;
    char program[64];
    uint64_t records;      /* event records that were carried out */
    uint64_t record_waits; /* words for which the last one waited */
    /* About the last CommInit: */
    int device;
    size_t device_uuid_bytes;
    unsigned char device_uuid[16];
    /* About memory on GPUs: */
    uint64_t handles;       /* registered by legacy IPC handle */
    uint64_t virtuals;      /* registrations of virtual memory */
    uint64_t pool_pointers; /* registered as memory of a CUDA memory pool */
    uint64_t pools;         /* of these, with the pool's descriptor */
    uint64_t maps;          /* MemMaps, with a descriptor each */
    uint64_t unmapped;      /* submits whose ranges begin in virtual memory that no MemMap has filled */
    uint64_t withdrawn;     /* memories of any kind that were withdrawn */
    uint64_t memory_bytes;  /* of the last one */
    uint64_t memory_address;
    uint64_t abuses; /* abuses of rings that were carried out */
    uint64_t rooms;  /* registrations of virtual memory, if room_refused */
    uint64_t busy;   /* answers with BUSY */
    unsigned char memory_uuid[16];
    unsigned char memory_handle[64]; /* or the pointer of a pool */
    bool wants_rings;                /* about the last client that greeted */
    bool waits;                      /* a client says that it waits for room in its ring */
};

/* Copies the script, but not its texts. null: a script of zeros. A failure ends the process. */
struct fake_daemon *fake_daemon_start(const struct fake_script *script);
/* Changes the script. Operations are counted anew from here. */
void fake_daemon_set(struct fake_daemon *daemon, const struct fake_script *script);
const char *fake_daemon_path(const struct fake_daemon *daemon);
struct fake_counts fake_daemon_counts(struct fake_daemon *daemon);
/* Waits until `reached` is true for the counts. */
void fake_daemon_wait(struct fake_daemon *daemon,
                      bool (*reached)(const struct fake_counts *counts, uint64_t value), uint64_t value);
/* After FAKE_STOP_READING: reads and answers what has come meanwhile. */
void fake_daemon_go_on(struct fake_daemon *daemon);
/* Closes every session, ends the thread, and removes the socket. */
void fake_daemon_stop(struct fake_daemon *daemon);

static inline unsigned char fake_daemon_byte(unsigned char input)
{
    return (unsigned char)(input * 3u + 1u);
}

static inline unsigned char fake_daemon_fill(size_t index)
{
    return (unsigned char)(index * 7u + index / 251u + 5u);
}

#endif
