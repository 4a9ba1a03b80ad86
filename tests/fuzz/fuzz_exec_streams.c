#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "tests/lib/hostile_node.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/*
 * A node with the cluster's certificate sends anything on streams of data and of messages. Meanwhile ranks of
 * the node under test call operations and messages. The input is a list of actions. Each is a byte, followed
 * by its arguments; bytes missing at the end count as 0. Headers are like those that the node itself sent, or
 * would expect, with one field changed. Random bytes alone would never pass the first checks.
 *
 * commd must write only inside the buffers of an operation, and nothing to those of an operation that is
 * over.
 */
#define STREAMS 16
#define CALLS 12
#define COUNT_MAX 1500
#define SLICE_BYTES 256 /* small, so that small operations have slices for every lane */
#define ACTIONS_MAX 200

enum action {
    ACTION_OPEN,        /* arguments: kind */
    ACTION_DATA_HEADER, /* stream, which of the headers heard, field, change */
    ACTION_MESSAGE,     /* stream, kind, id, field, change, payload size (2) */
    ACTION_PAYLOAD,     /* stream, size (2): sends bytes that count up */
    ACTION_REST, /* stream, bytes to leave out: sends the rest of the payload that its last header promised */
    ACTION_RAW,  /* stream, size, bytes */
    ACTION_FINISH,    /* stream */
    ACTION_RESET,     /* stream */
    ACTION_SUBMIT,    /* kind, count (2), root, dtype and compression */
    ACTION_POST,      /* sends, count (2), tag */
    ACTION_CANCEL,    /* seq of the operation */
    ACTION_TIME,      /* turns */
    ACTION_LONG_TIME, /* seconds */
    ACTION_CONNECT,
    ACTION_LEAVE,
    ACTION_ANSWER, /* stream: sends the next header heard, with its whole payload */
    ACTION_COUNT
};

struct call {
    bool is_message;
    struct hostile_buffer in[HOSTILE_LOCAL_RANKS], out[HOSTILE_LOCAL_RANKS];
    struct hostile_outcome outcome;
    bool is_over; /* the call has ended; `kept` has what was in its buffers then */
    unsigned char *kept[HOSTILE_LOCAL_RANKS];
};

struct run {
    struct hostile hostile;
    const uint8_t *data;
    size_t size, at;
    struct net_stream *streams[STREAMS];
    uint64_t promised[STREAMS]; /* bytes of payload still to come after the last header */
    uint32_t answered;          /* how many of the headers heard were answered */
    struct call calls[CALLS];
    uint32_t call_count;
};

static void require(bool truth)
{
    if (!truth) {
        abort();
    }
}

static uint8_t next_byte(struct run *run)
{
    return run->at < run->size ? run->data[run->at++] : 0;
}

static uint32_t next_number(struct run *run)
{
    uint32_t low = next_byte(run);
    return low | (uint32_t)next_byte(run) << 8;
}

/* Changes a number a little, or to an end of its range. */
static uint64_t changed(uint64_t value, uint8_t how)
{
    static const uint64_t special[] = {0, 1, UINT64_MAX, UINT32_MAX, 1ull << 31, 1ull << 63, 1ull << 30, 255};
    return how < 64 ? value + how : how < 128 ? value - (how - 63) : special[how % 8];
}

/* --- What must hold --- */

static void check_call(struct call *call)
{
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        if (call->out[i].memory == NULL) {
            continue;
        }
        require(hostile_guards_hold(&call->out[i]));
        require(call->in[i].memory == NULL || hostile_guards_hold(&call->in[i]));
        if (call->outcome.calls > 0 && !call->is_over) {
            call->kept[i] = malloc(call->out[i].bytes + 1);
            require(call->kept[i] != NULL);
            memcpy(call->kept[i], hostile_at(&call->out[i]), call->out[i].bytes);
        } else if (call->is_over) {
            require(memcmp(call->kept[i], hostile_at(&call->out[i]), call->out[i].bytes) == 0);
        }
    }
    call->is_over = call->outcome.calls > 0;
}

static void check(struct run *run)
{
    for (uint32_t i = 0; i < run->call_count; i++) {
        check_call(&run->calls[i]);
    }
}

/* --- Streams --- */

/* Returns the stream of the next argument, and opens it if it is not open. Returns null if there is no
 * connection. */
static struct net_stream **next_stream(struct run *run, enum net_stream_kind kind, uint32_t *slot)
{
    *slot = next_byte(run) % STREAMS;
    if (run->streams[*slot] == NULL) {
        run->streams[*slot] = hostile_open(&run->hostile, kind);
        run->promised[*slot] = 0;
    }
    return run->streams[*slot] != NULL ? &run->streams[*slot] : NULL;
}

static void say_payload(struct run *run, uint32_t slot, uint64_t size)
{
    static unsigned char bytes[1 << 16];
    for (size_t i = 0; bytes[1] == 0 && i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)i;
    }
    size = size < sizeof bytes ? size : sizeof bytes;
    (void)hostile_say(&run->hostile, run->streams[slot], bytes, (size_t)size);
    run->promised[slot] -= size < run->promised[slot] ? size : run->promised[slot];
}

/* Returns a header that the node sent. If it sent none, returns what its first operation's first header
 * would be. */
static struct data_header heard(const struct run *run, uint32_t which)
{
    if (run->hostile.data_count > 0) {
        return run->hostile.data[which % run->hostile.data_count];
    }
    return (struct data_header){.terms = {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_U8, .bucket_ops = 1},
                                .generation = 1,
                                .comm_id = HOSTILE_COMM_ID,
                                .seq = 1};
}

static void change_data_header(struct data_header *header, uint8_t field, uint8_t how)
{
    switch (field % 16) {
    case 1:
        header->seq = changed(header->seq, how);
        break;
    case 2:
        header->slice = (uint32_t)changed(header->slice, how);
        break;
    case 3:
        header->round = (uint32_t)changed(header->round, how);
        break;
    case 4:
        header->payload_bytes = changed(header->payload_bytes, how) % (DATA_PAYLOAD_MAX_BYTES + 1);
        break;
    case 5:
        header->terms.count_elements = changed(header->terms.count_elements, how);
        break;
    case 6:
        header->comm_id = changed(header->comm_id, how);
        break;
    case 7:
        header->generation = (uint32_t)changed(header->generation, how);
        break;
    case 8:
        header->terms.root_rank = (uint32_t)changed(header->terms.root_rank, how);
        break;
    case 9:
        header->algorithm = (uint32_t)changed(header->algorithm, how);
        break;
    case 10:
        header->terms.hash = changed(header->terms.hash, how);
        break;
    case 11:
        header->slice = UINT32_MAX;
        header->payload_bytes = 0;
        break;
    case 12:
        header->slice += 8u * (how % 4u); /* another slice of the same lane */
        break;
    default:
        break; /* no change */
    }
}

static void do_data_header(struct run *run, bool whole)
{
    uint32_t slot;
    uint32_t which = whole ? run->answered : 0;
    struct net_stream **stream = next_stream(run, NET_STREAM_DATA, &slot);
    struct data_header header = heard(run, whole ? which : next_byte(run));
    if (!whole) {
        uint8_t field = next_byte(run);
        change_data_header(&header, field, next_byte(run));
    } else if (which < run->hostile.data_count) {
        run->answered++;
    }
    if (stream != NULL) {
        (void)hostile_say_data(&run->hostile, *stream, &header);
        run->promised[slot] = header.payload_bytes;
        if (whole) {
            say_payload(run, slot, header.payload_bytes);
        }
    }
}

static void change_message(struct message_header *header, uint8_t field, uint8_t how)
{
    switch (field % 12) {
    case 1:
        header->id = changed(header->id, how);
        break;
    case 2:
        header->source_rank = (uint32_t)changed(header->source_rank, how);
        break;
    case 3:
        header->to_rank = (uint32_t)changed(header->to_rank, how);
        break;
    case 4:
        header->tag = (uint32_t)changed(header->tag, how);
        break;
    case 5:
        header->count_elements = changed(header->count_elements, how);
        break;
    case 6:
        header->payload_bytes = changed(header->payload_bytes, how);
        break;
    case 7:
        header->comm_id = changed(header->comm_id, how);
        break;
    case 8:
        header->dtype = DTYPE_F64;
        break;
    default:
        break;
    }
}

static void do_message(struct run *run)
{
    uint32_t slot;
    struct net_stream **stream = next_stream(run, NET_STREAM_MESSAGE, &slot);
    struct message_header header = {.kind = 1 + next_byte(run) % MESSAGE_DATA,
                                    .dtype = DTYPE_U8,
                                    .comm_id = HOSTILE_COMM_ID,
                                    .source_rank = 1,
                                    .to_rank = 0};
    header.id = next_byte(run) % 8;
    uint8_t field = next_byte(run);
    uint8_t how = next_byte(run);
    header.count_elements = next_number(run);
    header.tag = (uint32_t)(header.id % 2);
    if (header.kind == MESSAGE_ACCEPT || header.kind == MESSAGE_REFUSE) {
        header.source_rank = 0;
        header.to_rank = 1;
    } else if (header.kind != MESSAGE_ENVELOPE) {
        header.payload_bytes = header.count_elements;
    }
    change_message(&header, field, how);
    if (stream != NULL) {
        (void)hostile_say_message(&run->hostile, *stream, &header);
        run->promised[slot] = header.payload_bytes;
    }
}

static void do_bytes(struct run *run, enum action action)
{
    uint32_t slot;
    uint8_t raw[255];
    struct net_stream **stream = next_stream(run, NET_STREAM_DATA, &slot);
    uint64_t bytes = action == ACTION_PAYLOAD ? next_number(run) : next_byte(run);
    for (uint64_t i = 0; i < bytes && action == ACTION_RAW; i++) {
        raw[i] = next_byte(run);
    }
    if (stream == NULL) {
        return;
    }
    if (action == ACTION_RAW) {
        (void)hostile_say(&run->hostile, *stream, raw, (size_t)bytes);
    } else if (action == ACTION_PAYLOAD) {
        say_payload(run, slot, bytes);
    } else {
        say_payload(run, slot, run->promised[slot] > bytes ? run->promised[slot] - bytes : 0);
    }
}

static void close_stream(struct run *run, uint32_t slot, bool finish)
{
    if (run->streams[slot] != NULL && finish) {
        net_stream_finish(run->streams[slot]);
    } else if (run->streams[slot] != NULL) {
        net_stream_reset(run->streams[slot]);
    }
    run->streams[slot] = NULL;
    hostile_turns(&run->hostile, HOSTILE_TURNS);
}

/* --- Node a's users --- */

static struct call *next_call(struct run *run)
{
    return run->call_count < CALLS && run->hostile.comm != NULL ? &run->calls[run->call_count] : NULL;
}

static void do_submit(struct run *run)
{
    static const enum op_kind kinds[] = {OP_KIND_ALL_REDUCE, OP_KIND_BROADCAST,      OP_KIND_BARRIER,
                                         OP_KIND_ALL_GATHER, OP_KIND_REDUCE_SCATTER, OP_KIND_ALL_TO_ALL,
                                         OP_KIND_REDUCE,     OP_KIND_GATHER,         OP_KIND_SCATTER,
                                         OP_KIND_SCAN,       OP_KIND_EXCLUSIVE_SCAN};
    struct call *call = next_call(run);
    uint8_t kind = next_byte(run);
    struct hostile_call asked = {.kind = kinds[kind % (sizeof kinds / sizeof kinds[0])]};
    asked.count_elements = next_number(run) % COUNT_MAX;
    uint8_t root = next_byte(run);
    uint8_t type = next_byte(run);
    asked.root_rank = op_kind_has_root(asked.kind) ? root % HOSTILE_RANKS : 0;
    asked.dtype = type % 4 == 0   ? DTYPE_U8
                  : type % 4 == 1 ? DTYPE_F32
                  : type % 4 == 2 ? DTYPE_F16
                                  : DTYPE_C128;
    if (asked.kind == OP_KIND_ALL_REDUCE && asked.dtype == DTYPE_F32) {
        asked.compression = (enum compression)(type / 4 % (COMPRESSION_TOP_K + 1));
    }
    asked.has_layouts = asked.kind == OP_KIND_ALL_TO_ALL && type / 4 % 2 == 1;
    asked.count_elements = asked.kind == OP_KIND_BARRIER ? 0 : asked.count_elements;
    if (call == NULL) {
        return;
    }
    run->call_count++;
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        call->in[i] = hostile_buffer_new((size_t)hostile_input_bytes(&asked));
        call->out[i] = hostile_buffer_new((size_t)hostile_output_bytes(&asked));
    }
    (void)hostile_submit(&run->hostile, &asked, call->in, call->out, &call->outcome);
    hostile_turns(&run->hostile, HOSTILE_TURNS);
}

static void do_post(struct run *run)
{
    struct call *call = next_call(run);
    bool sends = next_byte(run) % 2 == 1;
    uint32_t count = next_number(run);
    uint32_t tag = next_byte(run) % 2;
    if (call == NULL) {
        return;
    }
    run->call_count++;
    call->is_message = true;
    call->out[0] = hostile_buffer_new(count);
    (void)hostile_post(&run->hostile, sends, tag, &call->out[0], &call->outcome);
    hostile_turns(&run->hostile, HOSTILE_TURNS);
}

static void do_cancel(struct run *run)
{
    struct error cause;
    uint64_t seq = next_byte(run) % (CALLS + 2);
    if (run->hostile.comm != NULL) {
        error_set(&cause, STATUS_MISMATCH, "cancelled");
        exec_cancel(run->hostile.comm, seq, 1, &cause, run->hostile.now_ns);
        hostile_turns(&run->hostile, HOSTILE_TURNS);
    }
}

/* --- All of it --- */

static void act(struct run *run)
{
    uint32_t slot;
    enum action action = (enum action)(next_byte(run) % ACTION_COUNT);
    switch (action) {
    case ACTION_OPEN:
        (void)next_stream(run, next_byte(run) % 2 == 0 ? NET_STREAM_DATA : NET_STREAM_MESSAGE, &slot);
        break;
    case ACTION_DATA_HEADER:
        do_data_header(run, false);
        break;
    case ACTION_ANSWER:
        do_data_header(run, true);
        break;
    case ACTION_MESSAGE:
        do_message(run);
        break;
    case ACTION_PAYLOAD:
    case ACTION_REST:
    case ACTION_RAW:
        do_bytes(run, action);
        break;
    case ACTION_FINISH:
    case ACTION_RESET:
        close_stream(run, next_byte(run) % STREAMS, action == ACTION_FINISH);
        break;
    case ACTION_SUBMIT:
        do_submit(run);
        break;
    case ACTION_POST:
        do_post(run);
        break;
    case ACTION_CANCEL:
        do_cancel(run);
        break;
    case ACTION_TIME:
        hostile_turns(&run->hostile, next_byte(run));
        break;
    case ACTION_LONG_TIME:
        run->hostile.now_ns += next_byte(run) * TIME_S;
        hostile_turns(&run->hostile, HOSTILE_TURNS);
        break;
    case ACTION_CONNECT:
        if (run->hostile.downs == run->hostile.ups) {
            hostile_connect(&run->hostile);
        }
        break;
    case ACTION_LEAVE:
        hostile_leave(&run->hostile);
        break;
    case ACTION_COUNT:
        break;
    }
}

static void finish(struct run *run)
{
    for (uint32_t slot = 0; slot < STREAMS; slot++) {
        if (run->streams[slot] != NULL) {
            net_stream_reset(run->streams[slot]);
        }
    }
    hostile_stop(&run->hostile);
    check(run);
    for (uint32_t i = 0; i < run->call_count; i++) {
        for (uint32_t j = 0; j < HOSTILE_LOCAL_RANKS; j++) {
            hostile_buffer_free(&run->calls[i].in[j]);
            hostile_buffer_free(&run->calls[i].out[j]);
            free(run->calls[i].kept[j]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run run;
    log_set_level(LOG_LEVEL_ERROR);
    memset(&run, 0, sizeof run);
    run.data = data;
    run.size = size;
    hostile_start(&run.hostile, SLICE_BYTES);
    for (uint32_t i = 0; i < ACTIONS_MAX && run.at < run.size; i++) {
        act(&run);
        check(&run);
    }
    finish(&run);
    return 0;
}
