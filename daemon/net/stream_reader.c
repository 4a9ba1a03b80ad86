#include "daemon/net/stream_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/budget.h"
#include "daemon/base/time.h"

static struct stream_reader **list_of(const struct stream_reader *reader)
{
    return reader->expires_ns == TIME_NEVER ? &reader->readers->expired : &reader->readers->parked;
}

/* --- Streams that wait, by communicator --- */

static void set_stalled(struct stream_reader *reader, bool stalled)
{
    if (reader->group != NULL && reader->stalled != stalled) {
        stalled ? reader->group->stalled_count++ : reader->group->stalled_count--;
    }
    reader->stalled = stalled;
}

static void join_group(struct stream_reader *reader, struct stream_group *group)
{
    reader->group = group;
    group->stalled_count += reader->stalled;
    DL_APPEND(group->readers, reader);
}

static void leave_group(struct stream_reader *reader)
{
    reader->group->stalled_count -= reader->stalled;
    DL_DELETE(reader->group->readers, reader);
}

/* --- What the network keeps of a stream --- */

static void set_charge(struct stream_reader *reader, uint64_t bytes)
{
    struct budget_account *account = reader->group->account;
    struct error why;
    if (bytes < reader->charged_bytes) {
        budget_release(account, BUDGET_EARLY, reader->charged_bytes - bytes);
    } else if (budget_charge(account, BUDGET_EARLY, bytes - reader->charged_bytes, &why) != STATUS_OK) {
        reader->readers->kind->crowded(reader, &why);
        stream_reader_reset(reader);
        return;
    }
    reader->charged_bytes = bytes;
}

/* --- Parked streams --- */

static struct stream_parking *parking_of(struct stream_readers *readers)
{
    struct stream_parking *shared = readers->net != NULL ? readers->net->parking : NULL;
    return shared != NULL ? shared : &readers->own_parking;
}

/* Charges the cost of a parked stream to its peer: no account is known yet. Returns false if the peer may not
 * park that much. */
static bool count_parked(struct stream_reader *reader, uint64_t bytes)
{
    if (!stream_parking_count(parking_of(reader->readers), reader->peer, reader->parked_bytes, bytes)) {
        return false;
    }
    reader->parked_bytes = bytes;
    return true;
}

/* All parked streams wait equally long, so each list is in the order of deadlines. */
static void park(struct stream_reader *reader, uint64_t expires_ns)
{
    reader->group = NULL;
    reader->expires_ns = expires_ns;
    DL_APPEND(*list_of(reader), reader);
}

static void unpark(struct stream_reader *reader)
{
    (void)count_parked(reader, 0);
    reader->kept_bytes = 0;
    DL_DELETE(*list_of(reader), reader);
}

static void set_kept(struct stream_reader *reader, uint64_t bytes)
{
    if (reader->group == NULL) {
        if (!count_parked(reader, STREAM_PARKED_COST_BYTES + bytes)) {
            stream_reader_reset(reader);
            return;
        }
        reader->kept_bytes = bytes;
        return;
    }
    reader->kept_bytes = bytes;
    if (reader->charged_bytes != bytes) {
        set_charge(reader, bytes);
    }
}

static void set_begun(struct stream_reader *reader, bool has_begun)
{
    if (reader->has_begun == has_begun) {
        return;
    }
    reader->has_begun = has_begun;
    if (!stream_parking_begun(parking_of(reader->readers), reader->peer, has_begun) && has_begun) {
        stream_reader_violates(reader, "the beginnings of too many headers without the rest");
    }
}

/* --- One stream --- */

/* Returns null when out of memory, or when the peer has too much parked. */
static struct stream_reader *reader_new(struct stream_readers *readers, struct net_stream *stream,
                                        uint64_t now_ns)
{
    struct stream_reader *reader = calloc(1, readers->kind->reader_bytes);
    if (reader == NULL) {
        return NULL;
    }
    reader->readers = readers;
    reader->stream = stream;
    reader->peer = stream->peer;
    if (!count_parked(reader, STREAM_PARKED_COST_BYTES)) {
        free(reader);
        return NULL;
    }
    stream->user = reader;
    park(reader, time_after(now_ns, STREAM_PARKED_NS));
    return reader;
}

/* Removes the reader from its list; its stream is gone. */
static void stream_reader_free(struct stream_reader *reader)
{
    set_begun(reader, false);
    if (reader->group != NULL) {
        set_kept(reader, 0);
        reader->readers->kind->let_go(reader);
        leave_group(reader);
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
        net_stream_expect(reader->stream,
                          reader->readers->kind->header_bytes - reader->header_have + payload_bytes);
    }
}

void stream_reader_violates(struct stream_reader *reader, const char *what)
{
    struct error cause;
    if (reader->resetting) {
        return;
    }
    if (reader->group != NULL) {
        reader->readers->kind->violated(reader, what);
    }
    stream_reader_reset(reader);
    error_set(&cause, STATUS_PROTOCOL, "it sent %s", what);
    net_disconnect(reader->readers->net, reader->peer, &cause);
}

void stream_reader_next_message(struct stream_reader *reader)
{
    reader->in_message = false;
    reader->expecting = false;
    reader->header_have = 0;
    reader->taken_bytes = 0;
}

/* Finds the communicator by the first complete header of the stream. Returns false if it is not known here,
 * or after a violation. */
static bool find_comm(struct stream_reader *reader)
{
    const struct stream_reader_kind *kind = reader->readers->kind;
    struct stream_group *group = kind->find(reader->readers->owner, reader->comm_id);
    if (group == NULL) {
        return false;
    }
    for (uint32_t node = 0; node < group->node_count; node++) {
        if (node != group->node_index && group->peers[node] == reader->peer) {
            uint64_t kept_bytes = reader->kept_bytes;
            unpark(reader);
            reader->node = node;
            join_group(reader, group);
            if (reader->stream != NULL) {
                net_stream_charge(reader->stream, group->account);
            }
            const char *wrong = kind->claim(reader);
            if (wrong != NULL) {
                stream_reader_violates(reader, wrong);
            } else {
                set_kept(reader, kept_bytes);
            }
            return wrong == NULL && !reader->resetting;
        }
    }
    stream_reader_violates(reader, "data for a communicator that it does not belong to");
    return false;
}

static void header_is_whole(struct stream_reader *reader)
{
    char text[96];
    const struct stream_reader_kind *kind = reader->readers->kind;
    const char *wrong = kind->decode(reader);
    if (wrong != NULL) {
        (void)snprintf(text, sizeof text, "%s that is malformed: %s", kind->header_text, wrong);
        wrong = text;
    } else if (reader->group != NULL && reader->comm_id != reader->group->comm_id) {
        wrong = "headers of two communicators on one stream";
    } else if (reader->group != NULL) {
        wrong = kind->check_next(reader);
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
    size_t wanted = reader->readers->kind->header_bytes - reader->header_have;
    size_t used = size < wanted ? size : wanted;
    memcpy(reader->header + reader->header_have, bytes, used);
    reader->header_have += (uint32_t)used;
    if (reader->header_have == reader->readers->kind->header_bytes) {
        header_is_whole(reader);
    }
    return used;
}

static enum stream_ready begin(struct stream_reader *reader, uint64_t now_ns)
{
    bool known = reader->group != NULL || find_comm(reader);
    return known ? reader->readers->kind->begin(reader, now_ns) : STREAM_WAIT;
}

/* --- Bytes --- */

/* A message of payload_bytes is over, `used` bytes behind the first unconsumed one. Another half more is
 * asked for, because the network tells its sender of a step of a quarter at once, and of less later. */
static void expect_next(struct stream_reader *reader, size_t used, uint64_t payload_bytes)
{
    uint64_t most_bytes = reader->readers->kind->ahead_max_bytes;
    bool may = most_bytes > 0 && reader->group != NULL && reader->group->node_count <= STREAM_AHEAD_NODES;
    if (may && !reader->resetting && payload_bytes > NET_STREAM_FIRST_WINDOW_BYTES / 4) {
        uint64_t next_bytes = payload_bytes < most_bytes ? payload_bytes : most_bytes;
        net_stream_expect(reader->stream, used + reader->readers->kind->header_bytes + next_bytes * 3 / 2);
    }
}

/* Takes as many of these bytes as it can, and returns how many. */
static size_t read_bytes(struct stream_reader *reader, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    const struct stream_reader_kind *kind = reader->readers->kind;
    size_t used = 0;
    set_stalled(reader, false);
    while (!reader->resetting) {
        if (!reader->in_message) {
            if (used == size) {
                return used;
            }
            used += take_header(reader, bytes + used, size - used);
            continue;
        }
        if (begin(reader, now_ns) == STREAM_WAIT) {
            set_stalled(reader, true);
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
                set_stalled(reader, true);
                return reader->resetting ? size : used;
            }
        }
        if (reader->taken_bytes == reader->payload_bytes) {
            uint64_t payload_bytes = reader->payload_bytes;
            kind->done(reader, now_ns);
            expect_next(reader, used, payload_bytes);
        }
    }
    return size;
}

/* These are all bytes that the network keeps. */
static void look_at_kept(struct stream_reader *reader, const uint8_t *bytes, size_t size)
{
    const struct stream_reader_kind *kind = reader->readers->kind;
    set_kept(reader, size);
    if (reader->stalled && size > 0 && reader->group != NULL && !reader->resetting && kind->waits != NULL) {
        kind->waits(reader, bytes, size);
    }
}

static size_t receive_bytes(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                            bool end, uint64_t now_ns)
{
    struct stream_readers *readers = context;
    struct stream_reader *reader = stream->user;
    (void)end;
    *readers->now_ns = now_ns;
    reader = reader != NULL ? reader : reader_new(readers, stream, now_ns);
    if (reader == NULL) {
        net_stream_reset(stream);
        return size;
    }
    size_t used = read_bytes(reader, bytes, size, now_ns);
    look_at_kept(reader, bytes + used, size - used);
    set_begun(reader, reader->group == NULL && !reader->in_message && !reader->resetting);
    return used;
}

static void stream_kept(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                        uint64_t now_ns)
{
    const struct stream_readers *readers = context;
    struct stream_reader *reader = stream->user;
    *readers->now_ns = now_ns;
    if (reader != NULL && !reader->resetting) {
        look_at_kept(reader, bytes, size);
    }
}

/* A lost stream is not reported here: the mesh learns that the node is lost. */
static void stream_closed(void *context, struct net_stream *stream, const struct error *cause,
                          uint64_t now_ns)
{
    struct stream_reader *reader = stream->user;
    (void)context;
    if (reader == NULL) {
        return;
    }
    const struct stream_reader_kind *kind = reader->readers->kind;
    stream->user = NULL;
    reader->stream = NULL;
    if (cause == NULL && reader->in_message && reader->payload_bytes == 0 && !reader->resetting) {
        return; /* the message is complete, but still has to wait */
    }
    *reader->readers->now_ns = now_ns;
    if (cause == NULL && reader->header_have > 0) {
        stream_reader_violates(reader, "half a message, then the end of its stream");
    }
    bool within = reader->header_have > 0 && !reader->resetting;
    if (cause != NULL && cause->status == STATUS_ABORTED && within && reader->group != NULL) {
        kind->cut(reader, now_ns);
    }
    stream_reader_free(reader);
}

void stream_readers_register(struct stream_readers *readers, const struct stream_reader_kind *kind,
                             struct net *net, void *owner, uint64_t *now_ns)
{
    *readers = (struct stream_readers){.kind = kind, .net = net, .owner = owner, .now_ns = now_ns};
    stream_parking_init(&readers->own_parking);
    struct net_stream_handler handler = {readers, receive_bytes, stream_closed, stream_kept};
    net_set_stream_handler(net, kind->stream_kind, &handler);
}

void stream_readers_free(struct stream_readers *readers)
{
    static const struct net_stream_handler nobody;
    if (readers->kind == NULL) {
        return;
    }
    net_set_stream_handler(readers->net, readers->kind->stream_kind, &nobody);
    while (readers->parked != NULL) {
        stream_reader_free(readers->parked);
    }
    while (readers->expired != NULL) {
        stream_reader_free(readers->expired);
    }
    stream_parking_free(&readers->own_parking);
}

/* --- Waiting streams --- */

/* If a message has no payload left, the network has nothing of it to deliver again. So this function
 * completes it. */
bool stream_reader_resume(struct stream_reader *reader, uint64_t now_ns)
{
    if (!reader->stalled || reader->resetting ||
        (reader->in_message && begin(reader, now_ns) == STREAM_WAIT)) {
        return false;
    }
    bool whole = reader->in_message && reader->taken_bytes == reader->payload_bytes;
    set_stalled(reader, false);
    if (whole) {
        reader->readers->kind->done(reader, now_ns);
    }
    if (reader->stream == NULL) {
        stream_reader_free(reader);
    } else if (!reader->resetting) {
        net_stream_resume(reader->stream);
    }
    return whole;
}

void stream_readers_claim(struct stream_readers *readers, const struct stream_group *group)
{
    struct stream_reader *reader, *next;
    DL_FOREACH_SAFE(readers->parked, reader, next)
    {
        if (reader->in_message && !reader->resetting && reader->comm_id == group->comm_id) {
            (void)find_comm(reader); /* it stays stalled until stream_reader_resume */
        }
    }
}

void stream_readers_detach(struct stream_readers *readers, struct stream_group *group)
{
    while (group->readers != NULL) {
        struct stream_reader *reader = group->readers;
        if (reader->stream == NULL) {
            stream_reader_free(reader);
            continue;
        }
        set_kept(reader, 0);
        readers->kind->let_go(reader);
        leave_group(reader);
        (void)count_parked(reader, STREAM_PARKED_COST_BYTES);
        park(reader, TIME_NEVER); /* until the network reports that it is closed */
        stream_reader_reset(reader);
    }
}

void stream_readers_expire(struct stream_readers *readers, uint64_t now_ns)
{
    while (readers->parked != NULL && readers->parked->expires_ns <= now_ns) {
        struct stream_reader *reader = readers->parked;
        if (reader->stream == NULL) {
            stream_reader_free(reader);
            continue;
        }
        DL_DELETE(readers->parked, reader);
        park(reader, TIME_NEVER);
        stream_reader_reset(reader);
    }
}

uint64_t stream_readers_deadline_ns(const struct stream_readers *readers)
{
    return readers->parked != NULL ? readers->parked->expires_ns : TIME_NEVER;
}
