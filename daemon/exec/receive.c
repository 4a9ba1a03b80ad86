#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/exec/receive_internal.h"
#include "daemon/host/reduce.h"

/* Receiving from other nodes. Headers are compared with this node's operation, and payloads are stored
 * directly in their place. */

_Static_assert(DATA_HEADER_BYTES <= STREAM_HEADER_MAX_BYTES, "a reader has room for it");

/* --- Payloads --- */

static void free_encoded(struct data_reader *incoming)
{
    if (incoming->encoded != NULL) {
        budget_release(incoming->encoded_account, BUDGET_LANES, incoming->encoded_bytes);
        budget_close(incoming->encoded_account);
        free(incoming->encoded);
        incoming->encoded = NULL;
    }
}

static void message_over(struct data_reader *incoming)
{
    stream_reader_next_message(&incoming->reader);
    incoming->lane = NULL;
    incoming->dropping = false;
    free_encoded(incoming);
}

static void data_done(struct stream_reader *reader, uint64_t now_ns)
{
    struct data_reader *incoming = data_of(reader);
    struct exec_lane *lane = incoming->lane;
    if (incoming->dropping) {
        message_over(incoming);
        return;
    }
    if (incoming->is_agreement) {
        message_over(incoming);
        exec_agreement_received(comm_of(reader), incoming->header.seq, now_ns);
        receive_resume(comm_of(reader));
        return;
    }
    const struct coll_transfer *receive = lane_next_receive(lane);
    struct exec_op *op = lane_op(lane);
    uint64_t elements = lane_message_elements(lane, receive);
    if (compressed_applies(op)) {
        struct error error;
        elements = receive->count_elements;
        if (compressed_take(lane, receive, incoming->encoded, incoming->header.payload_bytes, &error) !=
            STATUS_OK) {
            struct error fault = error; /* of a GPU, unless the payload is wrong */
            if (error.status == STATUS_PROTOCOL) {
                (void)data_set_fault(incoming, error.text, &fault);
            }
            message_over(incoming);
            exec_comm_fail(lane->comm, &fault, now_ns);
            return;
        }
    }
    message_over(incoming);
    lane_received(lane, elements);
    lane_advance(lane, now_ns);
    receive_resume(comm_of(&incoming->reader));
}

/* Reduces values that still lie elsewhere (exec_lent): reads them there, and writes the result to target. */
static void reduce_apart(const struct exec_op *op, enum coll_action action, unsigned char *target,
                         const unsigned char *value, const uint8_t *bytes, uint64_t count)
{
    bool before = action == COLL_REDUCE_BEFORE;
    const void *inputs[] = {before ? bytes : value, before ? value : bytes};
    void *output = target;
    host_reduce(&(struct host_reduction){.dtype = op->call.terms.dtype,
                                         .reduce = op->call.terms.reduce,
                                         .count_elements = count,
                                         .input_count = 2,
                                         .output_count = 1,
                                         .inputs = inputs,
                                         .outputs = &output});
}

/* Applies whole elements to one contiguous part of the receive's range. */
static void apply(const struct exec_lane *lane, const struct exec_op *op, enum coll_action action,
                  unsigned char *target, unsigned char *prefix, const uint8_t *bytes, uint64_t count)
{
    enum dtype dtype = op->call.terms.dtype;
    enum reduce reduce = op->call.terms.reduce;
    switch (action) {
    case COLL_STORE:
        memcpy(target, bytes, (size_t)(count * op->stage.element_bytes));
        return;
    case COLL_REDUCE:
        host_reduce_into(dtype, reduce, target, bytes, count);
        return;
    case COLL_REDUCE_BEFORE:
        host_reduce_into_before(dtype, reduce, target, bytes, count);
        return;
    case COLL_PREFIX:
        host_reduce_into_before(dtype, reduce, target, bytes, count);
        if (lane->prefix_begun) {
            host_reduce_into_before(dtype, reduce, prefix, bytes, count);
        } else {
            memcpy(prefix, bytes, (size_t)(count * op->stage.element_bytes));
        }
        return;
    }
}

/* Whether the receive expects `count` elements of the payload from `first` on, and the vector has a place for
 * them. */
static bool elements_fit(const struct exec_lane *lane, const struct coll_transfer *receive, uint64_t first,
                         uint64_t count)
{
    const struct exec_vector *vector = &lane->vectors[receive->space];
    uint64_t expected = lane_message_elements(lane, receive);
    uint64_t offset = receive->offset_elements + lane->received_elements + first;
    uint64_t behind = receive->action == COLL_PREFIX ? lane->call.count_elements : 0;
    return first <= expected && count <= expected - first && vector_holds(vector, offset, count) &&
           vector_holds(vector, offset + behind, count);
}

/* Applies the next whole elements of the payload, which must fit. */
static void apply_elements(const struct data_reader *incoming, const struct coll_transfer *receive,
                           uint64_t first, const uint8_t *bytes, uint64_t count)
{
    struct exec_lane *lane = incoming->lane;
    const struct exec_op *op = lane_op(lane);
    const struct exec_vector *vector = &lane->vectors[receive->space];
    uint64_t offset = receive->offset_elements + lane->received_elements + first;
    bool lent = receive->space == COLL_WORK && lane->lent.count > 0;
    bool reduces = receive->action == COLL_REDUCE || receive->action == COLL_REDUCE_BEFORE;
    if (receive->action == COLL_STORE && !lent) {
        vector_store(vector, offset, count, bytes);
        return;
    }
    while (count > 0) {
        uint64_t together, behind, there = UINT64_MAX;
        unsigned char *target = vector_at(vector, offset, &together);
        unsigned char *prefix = receive->action == COLL_PREFIX
                                    ? vector_at(vector, offset + lane->call.count_elements, &behind)
                                    : NULL;
        together = together < count ? together : count;
        together = prefix != NULL && behind < together ? behind : together;
        const unsigned char *value = lent ? vector_value_at(vector, &lane->lent, offset, &there) : target;
        together = there < together ? there : together;
        if (value != target && reduces) {
            reduce_apart(op, receive->action, target, value, bytes, together);
        } else {
            apply(lane, op, receive->action, target, prefix, bytes, together);
        }
        if (reduces && lane->algorithm->reduces_twice) {
            host_settle_nan(op->call.terms.dtype, target, together);
        }
        if (lent) {
            vector_take_back(vector, &lane->lent, offset, together);
        }
        bytes += together * op->stage.element_bytes;
        offset += together;
        count -= together;
    }
}

/*
 * Takes elements from a piece of the payload. An element that is cut by the end of a piece is first put
 * together in `partial`. Returns the bytes used; 0 if the elements do not fit what the lane expects now.
 */
static size_t take_elements(struct data_reader *incoming, const struct coll_transfer *receive,
                            const uint8_t *bytes, size_t size)
{
    size_t element = (size_t)lane_op(incoming->lane)->stage.element_bytes;
    uint64_t first = incoming->reader.taken_bytes / element;
    size_t used = 0;
    uint64_t whole = size / element > 0 ? size / element : 1;
    if (!elements_fit(incoming->lane, receive, first, whole)) {
        return 0;
    }
    if (incoming->partial_have > 0 || size < element) {
        size_t wanted = element - incoming->partial_have;
        used = size < wanted ? size : wanted;
        memcpy(incoming->partial + incoming->partial_have, bytes, used);
        incoming->partial_have += (uint32_t)used;
        if (incoming->partial_have == element) {
            apply_elements(incoming, receive, first, incoming->partial, 1);
            incoming->partial_have = 0;
        }
        return used;
    }
    apply_elements(incoming, receive, first, bytes, whole);
    return (size_t)whole * element;
}

/*
 * Checks again that the lane expects this payload now. That should always hold for the stream that owns the
 * lane. But the check is cheap, and it alone keeps a bug there from corrupting other memory.
 */
static size_t data_take(struct stream_reader *reader, const uint8_t *bytes, size_t size)
{
    struct data_reader *incoming = data_of(reader);
    const struct exec_lane *lane = incoming->lane;
    if (incoming->dropping) {
        return size;
    }
    size_t used = 0;
    if (!lane_takes(lane, reader->node, &incoming->header)) {
        used = 0;
    } else if (compressed_applies(lane_op(lane))) {
        memcpy(incoming->encoded + reader->taken_bytes, bytes, size);
        used = size;
    } else {
        used = take_elements(incoming, lane_next_receive(lane), bytes, size);
    }
    if (used == 0) {
        stream_reader_violates(reader, "a payload that contradicts its header");
    }
    return used;
}

/* A compressed payload is decoded once it is complete, so it needs a buffer. */
static enum status payload_make_room(struct data_reader *incoming, struct error *error)
{
    if (incoming->dropping || incoming->encoded != NULL || incoming->header.payload_bytes == 0 ||
        !compressed_applies(lane_op(incoming->lane))) {
        return STATUS_OK;
    }
    struct budget_account *account = incoming->lane->comm->map->account;
    uint64_t bytes = incoming->header.payload_bytes;
    const char *name = incoming->lane->comm->map->name;
    struct error why;
    enum status status = budget_charge(account, BUDGET_LANES, bytes, &why);
    if (status != STATUS_OK) {
        return error_set(error, status, "\"%s\": %s", name, why.text);
    }
    incoming->encoded = malloc((size_t)bytes);
    if (incoming->encoded == NULL) {
        budget_release(account, BUDGET_LANES, bytes);
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a slice", name);
    }
    incoming->encoded_account = account != NULL ? budget_ref(account) : NULL;
    incoming->encoded_bytes = bytes;
    return STATUS_OK;
}

static enum stream_ready data_begin(struct stream_reader *reader, uint64_t now_ns)
{
    struct data_reader *incoming = data_of(reader);
    struct error error;
    enum match ready = data_match(incoming, now_ns, &error);
    if (ready == MATCH_READY && payload_make_room(incoming, &error) != STATUS_OK) {
        ready = MATCH_FAULT;
    }
    if (ready == MATCH_FAULT) {
        exec_comm_fail(comm_of(reader), &error, now_ns);
    }
    return ready == MATCH_READY ? STREAM_READY : STREAM_WAIT;
}

/* --- Streams --- */

static const char *data_decode(struct stream_reader *reader)
{
    struct data_reader *incoming = data_of(reader);
    const char *what = NULL;
    if (data_header_decode(reader->header, &incoming->header, &what) != STATUS_OK) {
        return what;
    }
    reader->comm_id = incoming->header.comm_id;
    reader->payload_bytes = incoming->header.payload_bytes;
    incoming->partial_have = 0;
    incoming->dropping = false;
    return NULL;
}

static const char *claim_agreement(struct data_reader *incoming)
{
    struct stream_reader **source = &comm_of(&incoming->reader)->agreement_sources[incoming->source];
    if (*source != NULL) {
        return "a second stream of data for agreements";
    }
    *source = &incoming->reader;
    incoming->is_agreement = true;
    return NULL;
}

/* From now on the stream belongs to that lane, and the lane takes data from no other stream of that node. */
static const char *data_claim(struct stream_reader *reader)
{
    struct data_reader *incoming = data_of(reader);
    struct exec_lane *lane = lane_of_header(comm_of(reader), &incoming->header);
    if (incoming->header.generation != EXEC_GENERATION) {
        return "a data header of another generation";
    }
    bool on_bulk = reader->stream != NULL && reader->stream->on_bulk;
    incoming->source = reader->node + (on_bulk ? comm_of(reader)->map->ranks.node_count : 0);
    if (lane == NULL) {
        return claim_agreement(incoming);
    }
    if (lane->sources[incoming->source] != NULL) {
        return "a second stream of data for one lane of slices";
    }
    lane->sources[incoming->source] = reader;
    incoming->feeds = lane;
    return NULL;
}

static const char *data_check_next(const struct stream_reader *reader)
{
    const struct data_reader *incoming = (const struct data_reader *)reader;
    if (incoming->header.generation != EXEC_GENERATION) {
        return "a data header of another generation";
    }
    bool same = lane_of_header(comm_of(reader), &incoming->header) == incoming->feeds;
    return same ? NULL : "data of two lanes of slices on one stream";
}

/* If a payload was taken in part, no other stream can complete it, so the lane is cut. */
static void data_let_go(struct stream_reader *reader)
{
    struct data_reader *incoming = data_of(reader);
    if (incoming->feeds != NULL) {
        incoming->feeds->is_cut |= incoming->lane != NULL;
        incoming->feeds->sources[incoming->source] = NULL;
    }
    if (incoming->is_agreement) {
        comm_of(reader)->agreement_sources[incoming->source] = NULL;
    }
    incoming->feeds = NULL;
    message_over(incoming);
}

static struct stream_group *data_find(void *owner, uint64_t comm_id)
{
    const struct exec *exec = owner;
    struct exec_comm *comm;
    HASH_FIND(hh, exec->comms, &comm_id, sizeof comm_id, comm);
    return comm != NULL ? &comm->streams : NULL;
}

static void data_violated(struct stream_reader *reader, const char *what)
{
    struct exec_comm *comm = comm_of(reader);
    struct error error;
    error_set(&error, STATUS_PROTOCOL, "\"%s\": node %s sent %s", comm->map->name,
              comm->map->node_names[reader->node], what);
    exec_comm_fail(comm, &error, comm->exec->now_ns);
}

static void data_cut(struct stream_reader *reader, uint64_t now_ns)
{
    exec_set_cut(comm_of(reader), reader->node, now_ns);
}

static void data_crowded(struct stream_reader *reader, const struct error *why)
{
    struct exec_comm *comm = comm_of(reader);
    const struct comm_map *map = comm->map;
    struct error error;
    error_set(&error, STATUS_LIMIT,
              "\"%s\": ranks of node %s have not posted calls for the data that node %s sends: %s", map->name,
              map->node_names[map->ranks.node_index], map->node_names[reader->node], why->text);
    exec_comm_fail(comm, &error, comm->exec->now_ns);
}

const struct stream_reader_kind data_reader_kind = {
    .stream_kind = NET_STREAM_DATA,
    .find = data_find,
    .violated = data_violated,
    .cut = data_cut,
    .crowded = data_crowded,
    .reader_bytes = sizeof(struct data_reader),
    .header_bytes = DATA_HEADER_BYTES,
    .header_text = "a data header",
    .ahead_max_bytes = EXEC_AHEAD_MAX_BYTES,
    .decode = data_decode,
    .claim = data_claim,
    .check_next = data_check_next,
    .begin = data_begin,
    .take = data_take,
    .waits = data_waits,
    .done = data_done,
    .let_go = data_let_go,
};

/* A message that is done may unblock others, so the list is walked until nothing moves. */
void receive_resume(struct exec_comm *comm)
{
    if (comm->streams.stalled_count == 0) {
        return;
    }
    if (comm->resuming) {
        comm->resume_again = true;
        return;
    }
    comm->resuming = true;
    do {
        struct stream_reader *reader, *next;
        comm->resume_again = false;
        DL_FOREACH_SAFE(comm->streams.readers, reader, next)
        {
            if (comm->failed) {
                break;
            }
            stream_reader_resume(reader, comm->exec->now_ns);
        }
    } while (comm->resume_again && !comm->failed);
    comm->resuming = false;
}

void receive_drop(struct exec_comm *comm, uint64_t seq, uint64_t count)
{
    struct stream_reader *reader;
    DL_FOREACH(comm->streams.readers, reader)
    {
        struct data_reader *incoming = data_of(reader);
        if (reader->in_message && incoming->header.seq >= seq && incoming->header.seq - seq < count) {
            incoming->lane = NULL; /* the rest of the payload is dropped */
            incoming->dropping = true;
        }
    }
    receive_resume(comm);
}
