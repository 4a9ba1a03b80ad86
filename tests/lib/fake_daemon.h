#ifndef TESTS_LIB_FAKE_DAEMON_H
#define TESTS_LIB_FAKE_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/lib/fake_rings.h"

/*
 * The client's side of commd, in a thread of the test, behaving as its script says. There are no other ranks:
 * an operation is done when it arrives. all_reduce makes every output byte fake_daemon_byte() of its input
 * byte; broadcast fills the output of all but the root with fake_daemon_fill(). Everything else that commd
 * would refuse is refused. Words are waited for and set as commd does it, one operation or record after the
 * other. Memory on a GPU is noted and not touched.
 */
struct fake_daemon;

#define FAKE_DAEMON_NODE_NAME_BYTES 32

enum fake_hello {
    FAKE_HELLO_ANSWER,
    FAKE_HELLO_SILENT,
    FAKE_HELLO_CLOSE,         /* instead of an answer */
    FAKE_HELLO_OTHER_VERSION, /* an answer of another version */
    FAKE_HELLO_REFUSE,        /* an Error that says VERSION, then closed */
    FAKE_HELLO_FULL           /* an Error that answers no request, then closed: LIMIT */
};

enum fake_form {
    FAKE_FORM_ANSWER,
    FAKE_FORM_REFUSE, /* an Error: MISMATCH, "form_text" */
    FAKE_FORM_SILENT,
    FAKE_FORM_NO_NODES,      /* an answer that cannot be */
    FAKE_FORM_OTHER_QUESTION /* Done, which is no answer to this */
};

enum fake_table {
    FAKE_TABLE_ANSWER,
    FAKE_TABLE_EMPTY,
    FAKE_TABLE_WRONG_NODE, /* of a number beyond the nodes' */
    FAKE_TABLE_TOO_MANY
};

/* What happens in place of an operation's completion. */
enum fake_action {
    FAKE_COMPLETE,
    FAKE_FAIL,    /* Complete with op_status and op_text */
    FAKE_ABORT,   /* the same, then Aborted with "aborted after it" */
    FAKE_NO_WORD, /* neither, for this one alone */
    FAKE_CLOSE,
    FAKE_GARBAGE,       /* bytes that are no event */
    FAKE_EMPTY_EVENT,   /* an event without a body */
    FAKE_OTHER_RECORD,  /* a completion of another version */
    FAKE_OVERSIZE,      /* a packet beyond the limit */
    FAKE_OTHER_TICKET,  /* Complete of a ticket that is not in flight */
    FAKE_OTHER_HANDLE,  /* Complete of a communicator that never was */
    FAKE_OTHER_REQUEST, /* a Reply to a request that was not made */
    FAKE_SESSION_ERROR, /* an Error that answers no request, then closed */
    FAKE_STOP_READING,  /* nothing is read, or answered, until fake_daemon_go_on */
    FAKE_ABUSE_RINGS    /* abuse */
};

struct fake_script {
    enum fake_hello hello;
    enum fake_form form;
    enum fake_table table;
    enum fake_action action;
    uint64_t action_at_op;    /* the first one is 1; 0: at none */
    uint32_t pending_ops_max; /* 0: 1,024 */
    uint32_t node_count;      /* 0: 1 */
    uint32_t page_ranks;      /* of a CommTableReply; 0: as many as there may be */
    uint32_t page_nodes;
    uint32_t form_delay_ms;
    uint32_t op_delay_ms;
    uint32_t op_status;
    const char *op_text;
    const char *form_text;
    uint32_t memories_max;   /* beyond: LIMIT; 0: no bound */
    bool refuses_gpu_memory; /* DEVICE, "gpu_text" */
    bool room_refused;       /* LIMIT: every other registration of virtual memory */
    uint32_t busy_answers;   /* to so many requests for a handle, or to withdraw what is unused: BUSY */
    bool rings;              /* for clients that ask for them */
    bool rings_not_sealed;   /* their memory could be cut */
    enum fake_abuse abuse;
};

/* What it has seen. */
struct fake_counts {
    uint32_t sessions; /* now */
    uint32_t comms;    /* now */
    uint32_t memories; /* now */
    uint64_t registered;
    uint64_t destroyed; /* communicators, by request */
    uint64_t tables;    /* pages asked for */
    uint64_t submits;
    uint64_t pending_max; /* operations of a session at once */
    uint64_t refused;     /* of which commd would have refused too */
    /* Of the last Submit: */
    bool input_present;
    bool output_present;
    uint32_t input_memory;
    uint32_t output_memory;
    uint64_t input_offset_bytes;
    uint64_t output_offset_bytes;
    uint64_t timeout_ms;
    double factor;
    uint32_t fences; /* words not reached when it came, or not yet */
    bool ended_present;
    char program[64];
    uint64_t records;      /* carried out */
    uint64_t record_waits; /* of the last one */
    /* Of the last CommInit: */
    int device;
    size_t device_uuid_bytes;
    unsigned char device_uuid[16];
    /* Of memory on GPUs: */
    uint64_t handles;      /* registered by legacy IPC handle */
    uint64_t virtuals;     /* registered as virtual memory */
    uint64_t maps;         /* MemMaps, with a descriptor each */
    uint64_t unmapped;     /* Submits of ranges that begin where no MemMap has filled virtual memory */
    uint64_t withdrawn;    /* memories, of any kind */
    uint64_t memory_bytes; /* the last one's */
    uint64_t memory_address;
    uint64_t abuses; /* of rings, carried out */
    uint64_t rooms;  /* that were asked for, where the script refuses some */
    uint64_t busy;   /* answers, of the script's busy_answers */
    unsigned char memory_uuid[16];
    unsigned char memory_handle[64];
    bool wants_rings; /* the last client that greeted */
    bool waits;       /* a client says that it waits for room in its ring */
};

/* script is copied, its texts are not; null: all zero. Fails the process when it cannot be set up. */
struct fake_daemon *fake_daemon_start(const struct fake_script *script);
/* Changes how it goes on; operations are counted from here. */
void fake_daemon_set(struct fake_daemon *daemon, const struct fake_script *script);
const char *fake_daemon_path(const struct fake_daemon *daemon);
struct fake_counts fake_daemon_counts(struct fake_daemon *daemon);
/* Until its counts are so. */
void fake_daemon_wait(struct fake_daemon *daemon,
                      bool (*reached)(const struct fake_counts *counts, uint64_t value), uint64_t value);
/* After FAKE_STOP_READING: what has come meanwhile is read, and answered. */
void fake_daemon_go_on(struct fake_daemon *daemon);
/* Closes every session, ends the thread, removes the socket. */
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
