#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/budget.h"
#include "daemon/base/time.h"
#include "daemon/exec/exec_internal.h"

_Static_assert(DATA_HEADER_BYTES == STREAM_HEADER_BYTES && MESSAGE_HEADER_BYTES == STREAM_HEADER_BYTES,
               "headers of either kind are read alike");

static struct stream_reader **list_of(const struct stream_reader *reader)
{
    uint32_t kind = reader->kind->index;
    struct exec *exec = reader->exec;
    if (reader->comm != NULL) {
        return &reader->comm->readers[kind];
    }
    return reader->expires_ns == TIME_NEVER ? &exec->expired[kind] : &exec->parked[kind];
}

/* --- What the network keeps of a stream --- */

static void set_charge(struct stream_reader *reader, uint64_t bytes)
{
    struct budget_account *account = reader->comm->options.account;
    struct error why, error;
    if (bytes < reader->charged_bytes) {
        budget_release(account, BUDGET_EARLY, reader->charged_bytes - bytes);
    } else if (budget_charge(account, BUDGET_EARLY, bytes - reader->charged_bytes, &why) != STATUS_OK) {
        const struct exec_comm_options *options = &reader->comm->options;
        error_set(&error, STATUS_LIMIT, "\"%s\": node %s posts too little of what node %s sends: %s",
                  options->name, options->node_names[options->node_index], options->node_names[reader->node],
                  why.text);
        exec_comm_fail(reader->comm, &error, reader->exec->now_ns);
        stream_reader_reset(reader);
        return;
    }
    reader->charged_bytes = bytes;
}

/* A stream that is parked is nobody's yet: the network's windows and EXEC_PARKED_STREAMS_MAX bound those. */
static void set_kept(struct stream_reader *reader, uint64_t bytes)
{
    reader->kept_bytes = bytes;
    if (reader->comm != NULL && reader->charged_bytes != bytes) {
        set_charge(reader, bytes);
    }
}

/* --- Parked streams --- */

/* False: that peer has EXEC_PARKED_STREAMS_MAX of them, or there is no memory to count it. */
static bool may_park(struct exec *exec, uint32_t peer)
{
    if (peer >= exec->parked_counts_capacity) {
        uint32_t capacity = peer + peer / 2 + 8; /* peers are fewer than NET_PEERS_MAX */
        uint32_t *counts = realloc(exec->parked_counts, capacity * sizeof *counts);
        if (counts == NULL) {
            return false;
        }
        memset(counts + exec->parked_counts_capacity, 0,
               (capacity - exec->parked_counts_capacity) * sizeof *counts);
        exec->parked_counts = counts;
        exec->parked_counts_capacity = capacity;
    }
    return exec->parked_counts[peer] < EXEC_PARKED_STREAMS_MAX;
}

/* All wait equally long, so each list is in the order of deadlines. */
static void park(struct stream_reader *reader, uint64_t expires_ns)
{
    reader->comm = NULL;
    reader->expires_ns = expires_ns;
    reader->exec->parked_counts[reader->peer]++;
    DL_APPEND(*list_of(reader), reader);
}

static void unpark(struct stream_reader *reader)
{
    reader->exec->parked_counts[reader->peer]--;
    DL_DELETE(*list_of(reader), reader);
}

/* --- One stream --- */

/* Null without memory, or when that peer has too many streams parked. */
static struct stream_reader *reader_new(struct exec *exec, const struct stream_reader_kind *kind,
                                        struct net_stream *stream, uint64_t now_ns)
{
    struct stream_reader *reader = may_park(exec, stream->peer) ? calloc(1, kind->reader_bytes) : NULL;
    if (reader == NULL) {
        return NULL;
    }
    reader->kind = kind;
    reader->exec = exec;
    reader->stream = stream;
    reader->peer = stream->peer;
    stream->user = reader;
    park(reader, time_after(now_ns, EXEC_PARKED_NS));
    return reader;
}

void stream_reader_free(struct stream_reader *reader)
{
    if (reader->comm != NULL) {
        set_kept(reader, 0);
        reader->kind->let_go(reader);
        DL_DELETE(*list_of(reader), reader);
    } else {
        unpark(reader);
    }
    free(reader);
}

void stream_reader_reset(struct stream_reader *reader)
{
    if (!reader->resetting) {
        reader->resetting = true;
        if (reader->stream != NULL) {
            net_stream_reset(reader->stream);
        }
    }
}

void stream_reader_expect(struct stream_reader *reader, uint64_t payload_bytes)
{
    if (reader->stream != NULL && !reader->resetting && !reader->in_message) {
        net_stream_expect(reader->stream, STREAM_HEADER_BYTES - reader->header_have + payload_bytes);
    }
}

void stream_reader_violates(struct stream_reader *reader, const char *what)
{
    struct exec_comm *comm = reader->comm;
    struct error error;
    if (reader->resetting) {
        return;
    }
    if (comm != NULL) {
        error_set(&error, STATUS_PROTOCOL, "\"%s\": node %s sent %s", comm->options.name,
                  comm->options.node_names[reader->node], what);
        exec_comm_fail(comm, &error, reader->exec->now_ns);
    }
    stream_reader_reset(reader);
    exec_peer_violates(reader->exec, reader->peer, what);
}

void stream_reader_next_message(struct stream_reader *reader)
{
    reader->in_message = false;
    reader->expecting = false;
    reader->header_have = 0;
    reader->taken_bytes = 0;
}

/* The first header of the stream, whole, says whose it is. False: of none that is known here, or a violation.
 */
static bool find_comm(struct stream_reader *reader)
{
    struct exec_comm *comm;
    HASH_FIND(hh, reader->exec->comms, &reader->comm_id, sizeof reader->comm_id, comm);
    if (comm == NULL) {
        return false;
    }
    for (uint32_t node = 0; node < comm->options.node_count; node++) {
        if (node != comm->options.node_index && comm->peers[node] == reader->peer) {
            unpark(reader);
            reader->comm = comm;
            reader->node = node;
            DL_APPEND(*list_of(reader), reader);
            const char *wrong = reader->kind->claim(reader);
            if (wrong != NULL) {
                stream_reader_violates(reader, wrong);
            }
            return wrong == NULL;
        }
    }
    stream_reader_violates(reader, "something for a communicator that it has no part in");
    return false;
}

static void header_is_whole(struct stream_reader *reader)
{
    char text[96];
    const char *wrong = reader->kind->decode(reader);
    if (wrong != NULL) {
        (void)snprintf(text, sizeof text, "%s that is malformed: %s", reader->kind->header_text, wrong);
        wrong = text;
    } else if (reader->comm != NULL && reader->comm_id != reader->comm->comm_id) {
        wrong = "headers of two communicators on one stream";
    } else if (reader->comm != NULL) {
        wrong = reader->kind->check_next(reader);
    }
    if (wrong != NULL) {
        stream_reader_violates(reader, wrong);
        return;
    }
    reader->in_message = true;
    reader->taken_bytes = 0;
}

static size_t take_header(struct stream_reader *reader, const uint8_t *bytes, size_t size)
{
    size_t wanted = STREAM_HEADER_BYTES - reader->header_have;
    size_t used = size < wanted ? size : wanted;
    memcpy(reader->header_bytes + reader->header_have, bytes, used);
    reader->header_have += (uint32_t)used;
    if (reader->header_have == STREAM_HEADER_BYTES) {
        header_is_whole(reader);
    }
    return used;
}

static enum stream_ready begin(struct stream_reader *reader, uint64_t now_ns)
{
    bool known = reader->comm != NULL || find_comm(reader);
    return known ? reader->kind->begin(reader, now_ns) : STREAM_WAIT;
}

/* --- Bytes --- */

/* Takes what it can of these bytes, and returns how many. */
static size_t read_bytes(struct stream_reader *reader, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    const struct stream_reader_kind *kind = reader->kind;
    size_t used = 0;
    reader->stalled = false;
    while (!reader->resetting) {
        if (!reader->in_message) {
            if (used == size) {
                return used;
            }
            used += take_header(reader, bytes + used, size - used);
            continue;
        }
        if (begin(reader, now_ns) == STREAM_WAIT) {
            reader->stalled = true;
            return reader->resetting ? size : used;
        }
        uint64_t left = reader->payload_bytes - reader->taken_bytes;
        if (left > size - used && !reader->expecting) {
            reader->expecting = true;
            net_stream_expect(reader->stream, used + left);
        }
        if (left > 0) {
            if (used == size) {
                return used;
            }
            size_t taken = kind->take(reader, bytes + used, size - used < left ? size - used : (size_t)left);
            used += taken;
            reader->taken_bytes += taken;
            if (taken == 0) {
                reader->stalled = true;
                return reader->resetting ? size : used;
            }
        }
        if (reader->taken_bytes == reader->payload_bytes) {
            kind->done(reader, now_ns);
        }
    }
    return size;
}

static size_t receive_bytes(const struct stream_reader_kind *kind, struct exec *exec,
                            struct net_stream *stream, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    struct stream_reader *reader = stream->user;
    exec->now_ns = now_ns;
    reader = reader != NULL ? reader : reader_new(exec, kind, stream, now_ns);
    if (reader == NULL) {
        net_stream_reset(stream);
        return size;
    }
    size_t used = read_bytes(reader, bytes, size, now_ns);
    set_kept(reader, size - used);
    return used;
}

static void stream_kept(void *context, struct net_stream *stream, size_t size, uint64_t now_ns)
{
    struct exec *exec = context;
    struct stream_reader *reader = stream->user;
    exec->now_ns = now_ns;
    if (reader != NULL && !reader->resetting) {
        set_kept(reader, reader->kept_bytes + size);
    }
}

/*
 * The message will never be whole. A node that gives a communicator up says why in its Abort, on another
 * stream: it has a while to come, so that all ranks get that cause.
 */
static void set_cut(struct exec_comm *comm, uint32_t node, uint64_t now_ns)
{
    if (comm->cut_ns == 0 && !comm->failed) {
        comm->cut_ns = time_after(now_ns, EXEC_CUT_NS);
        comm->cut_node = node;
        DL_APPEND2(comm->exec->cut, comm, cut_prev, cut_next);
    }
}

void stream_readers_forget_cut(struct exec_comm *comm)
{
    if (comm->cut_ns != 0) {
        comm->cut_ns = 0;
        DL_DELETE2(comm->exec->cut, comm, cut_prev, cut_next);
    }
}

static void fail_cut(struct exec *exec, uint64_t now_ns)
{
    struct exec_comm *comm;
    while ((comm = exec->cut) != NULL && comm->cut_ns <= now_ns) {
        struct error error;
        error_set(&error, STATUS_PROTOCOL,
                  "\"%s\": node %s reset a stream within a message, and gives no reason", comm->options.name,
                  comm->options.node_names[comm->cut_node]);
        stream_readers_forget_cut(comm);
        exec_comm_fail(comm, &error, now_ns);
    }
}

/*
 * A stream that is lost is not reported from here: the mesh learns of a lost node.
 */
static void stream_closed(void *context, struct net_stream *stream, const struct error *cause,
                          uint64_t now_ns)
{
    struct stream_reader *reader = stream->user;
    (void)context;
    if (reader == NULL) {
        return;
    }
    stream->user = NULL;
    reader->stream = NULL;
    if (cause == NULL && reader->in_message && reader->payload_bytes == 0 && !reader->resetting) {
        return; /* all of it is here, and its time has not come */
    }
    if (cause == NULL && reader->header_have > 0) {
        reader->exec->now_ns = now_ns;
        stream_reader_violates(reader, "half a message, and the end of its stream");
    }
    bool within = reader->header_have > 0 && !reader->resetting;
    if (cause != NULL && cause->status == STATUS_ABORTED && within && reader->comm != NULL) {
        set_cut(reader->comm, reader->node, now_ns);
    }
    stream_reader_free(reader);
}

static size_t receive_data(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                           bool end, uint64_t now_ns)
{
    (void)end;
    return receive_bytes(&data_reader_kind, context, stream, bytes, size, now_ns);
}

static size_t receive_messages(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                               bool end, uint64_t now_ns)
{
    (void)end;
    return receive_bytes(&message_reader_kind, context, stream, bytes, size, now_ns);
}

void stream_readers_register(struct exec *exec)
{
    struct net_stream_handler data = {exec, receive_data, stream_closed, stream_kept};
    struct net_stream_handler messages = {exec, receive_messages, stream_closed, stream_kept};
    net_set_stream_handler(exec->net, NET_STREAM_DATA, &data);
    net_set_stream_handler(exec->net, NET_STREAM_MESSAGE, &messages);
}

void stream_readers_free(struct exec *exec)
{
    static const struct net_stream_handler nobody;
    net_set_stream_handler(exec->net, NET_STREAM_DATA, &nobody);
    net_set_stream_handler(exec->net, NET_STREAM_MESSAGE, &nobody);
    for (uint32_t kind = 0; kind < STREAM_READER_KINDS; kind++) {
        while (exec->parked[kind] != NULL) {
            stream_reader_free(exec->parked[kind]);
        }
        while (exec->expired[kind] != NULL) {
            stream_reader_free(exec->expired[kind]);
        }
    }
    free(exec->parked_counts);
}

/* --- Those that wait --- */

/* A message that has all it needs in the header has nothing left with the network to be delivered again, so
 * it is done from here. */
bool stream_reader_resume(struct stream_reader *reader, uint64_t now_ns)
{
    if (!reader->stalled || reader->resetting ||
        (reader->in_message && begin(reader, now_ns) == STREAM_WAIT)) {
        return false;
    }
    bool whole = reader->in_message && reader->taken_bytes == reader->payload_bytes;
    reader->stalled = false;
    if (whole) {
        reader->kind->done(reader, now_ns);
    }
    if (reader->stream == NULL) {
        stream_reader_free(reader);
    } else if (!reader->resetting) {
        net_stream_resume(reader->stream);
    }
    return whole;
}

void stream_readers_claim(struct exec_comm *comm)
{
    struct stream_reader *reader, *next;
    for (uint32_t kind = 0; kind < STREAM_READER_KINDS; kind++) {
        DL_FOREACH_SAFE(comm->exec->parked[kind], reader, next)
        {
            if (reader->in_message && !reader->resetting && reader->comm_id == comm->comm_id) {
                (void)find_comm(reader); /* stays stalled until it is resumed */
            }
        }
    }
}

void stream_readers_detach(struct exec_comm *comm, const struct stream_reader_kind *kind)
{
    while (comm->readers[kind->index] != NULL) {
        struct stream_reader *reader = comm->readers[kind->index];
        if (reader->stream == NULL) {
            stream_reader_free(reader);
            continue;
        }
        set_kept(reader, 0);
        kind->let_go(reader);
        DL_DELETE(*list_of(reader), reader);
        park(reader, TIME_NEVER); /* until the network says that it is closed */
        stream_reader_reset(reader);
    }
}

void stream_readers_expire(struct exec *exec, uint64_t now_ns)
{
    fail_cut(exec, now_ns);
    for (uint32_t kind = 0; kind < STREAM_READER_KINDS; kind++) {
        while (exec->parked[kind] != NULL && exec->parked[kind]->expires_ns <= now_ns) {
            struct stream_reader *reader = exec->parked[kind];
            if (reader->stream == NULL) {
                stream_reader_free(reader);
                continue;
            }
            unpark(reader);
            park(reader, TIME_NEVER);
            stream_reader_reset(reader);
        }
    }
}

uint64_t stream_readers_deadline_ns(const struct exec *exec)
{
    uint64_t earliest_ns = exec->cut != NULL ? exec->cut->cut_ns : TIME_NEVER;
    for (uint32_t kind = 0; kind < STREAM_READER_KINDS; kind++) {
        const struct stream_reader *first = exec->parked[kind];
        earliest_ns = first != NULL ? time_min(earliest_ns, first->expires_ns) : earliest_ns;
    }
    return earliest_ns;
}
