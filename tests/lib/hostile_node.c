#include "tests/lib/hostile_node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS_MAX 100000

static void require(bool truth)
{
    if (!truth) {
        abort();
    }
}

/* --- Memory --- */

struct hostile_buffer hostile_buffer_new(size_t bytes)
{
    struct hostile_buffer buffer = {.bytes = bytes};
    buffer.memory = malloc(bytes + (size_t)2 * HOSTILE_GUARD_BYTES);
    require(buffer.memory != NULL);
    memset(buffer.memory, HOSTILE_POISON, bytes + (size_t)2 * HOSTILE_GUARD_BYTES);
    return buffer;
}

static bool is_poison(const unsigned char *bytes, size_t size)
{
    unsigned char poison[HOSTILE_GUARD_BYTES];
    memset(poison, HOSTILE_POISON, sizeof poison);
    for (size_t at = 0; at < size; at += sizeof poison) {
        if (memcmp(bytes + at, poison, size - at < sizeof poison ? size - at : sizeof poison) != 0) {
            return false;
        }
    }
    return true;
}

bool hostile_guards_hold(const struct hostile_buffer *buffer)
{
    return is_poison(buffer->memory, HOSTILE_GUARD_BYTES) &&
           is_poison(hostile_at(buffer) + buffer->bytes, HOSTILE_GUARD_BYTES);
}

bool hostile_is_untouched(const struct hostile_buffer *buffer)
{
    return hostile_guards_hold(buffer) && is_poison(hostile_at(buffer), buffer->bytes);
}

void hostile_buffer_free(struct hostile_buffer *buffer)
{
    free(buffer->memory);
    buffer->memory = NULL;
}

/* --- Node a --- */

static void node_up(void *context, uint32_t peer, uint64_t now_ns)
{
    struct hostile *hostile = context;
    (void)peer;
    (void)now_ns;
    hostile->ups++;
}

static void node_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    struct hostile *hostile = context;
    (void)peer;
    (void)now_ns;
    require(cause->status != STATUS_OK && cause->text[0] != '\0');
    hostile->downs++;
    hostile->down = *cause;
}

/* Notes a failure. Operations and messages of the communicator fail once each; only the first failure
 * counts. */
static void failed(struct hostile *hostile, bool *before, const struct error *cause)
{
    require(!*before);
    *before = true;
    if (hostile->failures == 0) {
        hostile->failures++;
        hostile->failure = *cause;
    }
}

static void comm_failed(void *context, const struct error *cause, uint64_t now_ns)
{
    struct hostile *hostile = context;
    (void)now_ns;
    failed(hostile, &hostile->operations_failed, cause);
}

static void messages_failed(void *context, const struct error *cause, uint64_t now_ns)
{
    struct hostile *hostile = context;
    (void)now_ns;
    failed(hostile, &hostile->messages_failed, cause);
}

static void comm_disagreed(void *context, uint64_t seq, uint32_t node, const char *how, uint64_t now_ns)
{
    struct hostile *hostile = context;
    (void)how;
    (void)now_ns;
    require(node == 1 && seq <= hostile->seq);
    hostile->disputes++;
}

/* A call that has not ended. */
struct pending {
    struct p2p_message message; /* comes first, so that a pointer to it is one to this struct */
    struct hostile *hostile;
    struct hostile_outcome *outcome;
    uint64_t counts[HOSTILE_LOCAL_RANKS][HOSTILE_RANKS]; /* layouts, which must stay valid until the end */
    uint64_t displacements[HOSTILE_LOCAL_RANKS][HOSTILE_RANKS];
};

static void op_done(void *context, const struct error *result, uint64_t now_ns)
{
    struct pending *pending = context;
    (void)now_ns;
    require(pending->outcome->calls == 0 && pending->hostile->pending > 0);
    pending->outcome->calls++;
    pending->outcome->result = *result;
    pending->hostile->pending--;
    free(pending);
}

static void message_done(void *context, struct p2p_message *message, const struct error *result,
                         uint64_t now_ns)
{
    (void)context;
    op_done(message, result, now_ns);
}

/* --- Node b --- */

static void liar_up(void *context, uint32_t peer, uint64_t now_ns)
{
    (void)context;
    (void)peer;
    (void)now_ns;
}

static void liar_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)peer;
    (void)cause;
    (void)now_ns;
}

/* How far a stream of node a is read. */
struct heard_stream {
    uint8_t header[DATA_HEADER_BYTES];
    uint32_t have;
    uint64_t payload_left;
};
_Static_assert(DATA_HEADER_BYTES >= MESSAGE_HEADER_BYTES, "there is room for both");

static void header_heard(struct hostile *hostile, enum net_stream_kind kind, struct heard_stream *heard)
{
    const char *what = NULL;
    heard->have = 0;
    if (kind == NET_STREAM_DATA) {
        struct data_header header;
        require(data_header_decode(heard->header, &header, &what) == STATUS_OK);
        heard->payload_left = header.payload_bytes;
        if (hostile->data_count < HOSTILE_HEARD_MAX) {
            hostile->data[hostile->data_count++] = header;
        }
        return;
    }
    struct message_header header;
    require(message_header_decode(heard->header, &header, &what) == STATUS_OK);
    heard->payload_left = header.payload_bytes;
    if (hostile->message_count < HOSTILE_HEARD_MAX) {
        hostile->messages[hostile->message_count++] = header;
    }
}

/* Checks that whatever node a sends is well-formed. */
static size_t liar_receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                           bool end, uint64_t now_ns)
{
    struct hostile *hostile = context;
    struct heard_stream *heard = stream->user;
    (void)end;
    (void)now_ns;
    if (heard == NULL) {
        heard = calloc(1, sizeof *heard);
        require(heard != NULL);
        stream->user = heard;
    }
    uint32_t header_bytes = stream->kind == NET_STREAM_DATA ? DATA_HEADER_BYTES : MESSAGE_HEADER_BYTES;
    for (size_t at = 0; at < size;) {
        uint64_t left = heard->payload_left > 0 ? heard->payload_left : header_bytes - heard->have;
        size_t part = size - at < left ? size - at : (size_t)left;
        if (heard->payload_left > 0) {
            heard->payload_left -= part;
        } else {
            memcpy(heard->header + heard->have, bytes + at, part);
            heard->have += (uint32_t)part;
        }
        at += part;
        if (heard->have == header_bytes) {
            header_heard(hostile, stream->kind, heard);
        }
    }
    return size;
}

static void liar_closed(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)cause;
    (void)now_ns;
    free(stream->user);
    stream->user = NULL;
}

/* --- Both --- */

static void hostile_comm(struct hostile *hostile, uint64_t slice_bytes)
{
    static const char *const names[] = {"a", "b"};
    static const uint32_t node_of_rank[HOSTILE_RANKS] = {0, 1, 0, 1};
    static const uint32_t peers[] = {0, 0};
    const struct exec_comm_handler handler = {
        .context = hostile, .failed = comm_failed, .disagreed = comm_disagreed};
    const struct p2p_comm_handler messages = {
        .context = hostile, .done = message_done, .failed = messages_failed};
    struct comm_map facts = {.comm_id = HOSTILE_COMM_ID,
                             .ranks = {.size = HOSTILE_RANKS, .node_count = 2},
                             .node_of_rank = node_of_rank,
                             .peers = peers,
                             .node_names = names,
                             .slice_bytes = slice_bytes,
                             .name = "test",
                             .network = coll_network_default,
                             .account = hostile->account};
    struct comm_map *map;
    require(comm_map_new(&facts, &map, NULL) == STATUS_OK);
    require(exec_comm_new(hostile->exec, map, &handler, &hostile->comm, NULL) == STATUS_OK);
    require(p2p_comm_new(hostile->p2p, map, NULL, &messages, &hostile->p2p_comm, NULL) == STATUS_OK);
    comm_map_release(map);
}

void hostile_start(struct hostile *hostile, uint64_t slice_bytes)
{
    hostile_start_charged(hostile, slice_bytes, NULL);
}

void hostile_start_charged(struct hostile *hostile, uint64_t slice_bytes, struct budget_account *account)
{
    struct network_conditions conditions = {.delay_ns = 10 * TIME_US};
    uint32_t peer;
    memset(hostile, 0, sizeof *hostile);
    hostile->account = account;
    hostile->now_ns = TIME_S;
    hostile->network = network_new_pipes(1, &conditions);
    hostile->net = network_add(hostile->network, "a");
    hostile->liar = network_add(hostile->network, "b");
    struct net_peer_handler node = {
        .context = hostile, .peer_up = node_up, .peer_down = node_down, .connect_failed = node_down};
    struct net_peer_handler liar = {
        .context = hostile, .peer_up = liar_up, .peer_down = liar_down, .connect_failed = liar_down};
    struct net_stream_handler streams = {hostile, liar_receive, liar_closed, NULL};
    net_set_peer_handler(hostile->net, &node);
    net_set_peer_handler(hostile->liar, &liar);
    net_set_stream_handler(hostile->liar, NET_STREAM_DATA, &streams);
    net_set_stream_handler(hostile->liar, NET_STREAM_MESSAGE, &streams);
    require(exec_new(hostile->net, &hostile->exec, NULL) == STATUS_OK);
    require(p2p_new(hostile->net, &hostile->p2p, NULL) == STATUS_OK);
    require(net_add_peer(hostile->net, "b", "", &peer, NULL) == STATUS_OK);
    require(net_add_peer(hostile->liar, "a", "", &peer, NULL) == STATUS_OK);
    hostile_comm(hostile, slice_bytes);
    hostile_connect(hostile);
}

static void turn(struct hostile *hostile)
{
    uint64_t next_ns = network_next_ns(hostile->network);
    bool waits = next_ns == TIME_NEVER || next_ns <= hostile->now_ns || next_ns > hostile->now_ns + TIME_MS;
    hostile->now_ns = waits ? hostile->now_ns + TIME_US : next_ns;
    network_advance(hostile->network, hostile->now_ns);
    if (exec_next_deadline_ns(hostile->exec) <= hostile->now_ns) {
        exec_tick(hostile->exec, hostile->now_ns);
    }
    if (p2p_next_deadline_ns(hostile->p2p) <= hostile->now_ns) {
        p2p_tick(hostile->p2p, hostile->now_ns);
    }
    (void)exec_run(hostile->exec, hostile->now_ns);
    (void)p2p_run(hostile->p2p, hostile->now_ns);
}

void hostile_turns(struct hostile *hostile, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        turn(hostile);
    }
}

bool hostile_was_dropped(struct hostile *hostile, const char *what)
{
    hostile_turns(hostile, 50);
    bool dropped = hostile->downs == 1 && hostile->down.status == STATUS_PROTOCOL;
    if (!dropped || strstr(hostile->down.text, what) == NULL) {
        fprintf(stderr, "%u ends of the connection, the last: \"%s\", not \"%s\"\n", hostile->downs,
                hostile->down.text, what);
        return false;
    }
    return true;
}

void hostile_connect(struct hostile *hostile)
{
    uint32_t ups = hostile->ups;
    require(net_connect(hostile->liar, 0, NULL) == STATUS_OK);
    for (uint32_t i = 0; hostile->ups == ups; i++) {
        require(i < TURNS_MAX);
        turn(hostile);
    }
    hostile_turns(hostile, HOSTILE_TURNS);
}

void hostile_leave(struct hostile *hostile)
{
    struct error cause;
    if (hostile->comm == NULL) {
        return;
    }
    error_set(&cause, STATUS_ABORTED, "left");
    exec_comm_abort(hostile->comm, &cause);
    p2p_comm_abort(hostile->p2p_comm, &cause);
    for (uint32_t i = 0;
         !exec_comm_idle(hostile->comm) || !p2p_comm_idle(hostile->p2p_comm) || hostile->pending > 0; i++) {
        require(i < TURNS_MAX);
        turn(hostile);
    }
    exec_comm_free(hostile->comm);
    p2p_comm_free(hostile->p2p_comm);
    hostile->comm = NULL;
    hostile->p2p_comm = NULL;
}

void hostile_stop(struct hostile *hostile)
{
    hostile_leave(hostile);
    hostile_turns(hostile, 10);
    exec_free(hostile->exec);
    p2p_free(hostile->p2p);
    net_free(hostile->net);
    network_advance(hostile->network, hostile->now_ns + TIME_S); /* node b notices that node a is gone */
    net_free(hostile->liar);
    network_free(hostile->network);
}

/* --- What node b says --- */

struct net_stream *hostile_open(struct hostile *hostile, enum net_stream_kind kind)
{
    struct net_stream *stream = NULL;
    return net_stream_open(hostile->liar, 0, kind, &stream, NULL) == STATUS_OK ? stream : NULL;
}

bool hostile_say(struct hostile *hostile, struct net_stream *stream, const void *bytes, size_t size)
{
    bool taken = size == 0 || net_stream_send(stream, NULL, 0, bytes, size, NULL, NULL) == STATUS_OK;
    hostile_turns(hostile, HOSTILE_TURNS);
    return taken;
}

bool hostile_say_data(struct hostile *hostile, struct net_stream *stream, const struct data_header *header)
{
    uint8_t bytes[DATA_HEADER_BYTES];
    data_header_encode(header, bytes);
    return hostile_say(hostile, stream, bytes, sizeof bytes);
}

bool hostile_say_message(struct hostile *hostile, struct net_stream *stream,
                         const struct message_header *header)
{
    uint8_t bytes[MESSAGE_HEADER_BYTES];
    message_header_encode(header, bytes);
    return hostile_say(hostile, stream, bytes, sizeof bytes);
}

/* --- What node a's users call --- */

static struct pending *pending_new(struct hostile *hostile, struct hostile_outcome *outcome)
{
    struct pending *pending = malloc(sizeof *pending);
    require(pending != NULL);
    *pending = (struct pending){.hostile = hostile, .outcome = outcome};
    *outcome = (struct hostile_outcome){.calls = 0};
    return pending;
}

static bool has_blocks_in(enum op_kind kind)
{
    return kind == OP_KIND_REDUCE_SCATTER || kind == OP_KIND_ALL_TO_ALL || kind == OP_KIND_SCATTER;
}

static bool has_blocks_out(enum op_kind kind)
{
    return kind == OP_KIND_ALL_GATHER || kind == OP_KIND_ALL_TO_ALL || kind == OP_KIND_GATHER;
}

uint64_t hostile_input_bytes(const struct hostile_call *call)
{
    uint64_t blocks = has_blocks_in(call->kind) ? HOSTILE_RANKS : 1;
    return blocks * call->count_elements * dtype_size_bytes(call->dtype);
}

uint64_t hostile_output_bytes(const struct hostile_call *call)
{
    uint64_t blocks = has_blocks_out(call->kind) ? HOSTILE_RANKS : 1;
    return blocks * call->count_elements * dtype_size_bytes(call->dtype);
}

/* The size of a block depends only on how far the two ranks are apart, so both ranks compute the same
 * size. The sum of a rank's blocks is that of equal blocks. */
static void hostile_layout(uint32_t rank, uint64_t count, uint64_t counts[HOSTILE_RANKS],
                           uint64_t displacements[HOSTILE_RANKS])
{
    uint64_t at = 0;
    for (uint32_t other = 0; other < HOSTILE_RANKS; other++) {
        uint64_t part = count / 2;
        uint32_t apart = rank ^ other;
        counts[other] = apart == 0 ? count : apart == 1 ? count + part : apart == 2 ? count - part : count;
        displacements[other] = at;
        at += counts[other];
    }
}

uint64_t hostile_submit(struct hostile *hostile, const struct hostile_call *asked,
                        const struct hostile_buffer in[HOSTILE_LOCAL_RANKS],
                        const struct hostile_buffer out[HOSTILE_LOCAL_RANKS], struct hostile_outcome *outcome)
{
    struct exec_rank ranks[HOSTILE_LOCAL_RANKS];
    struct pending *pending = pending_new(hostile, outcome);
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        ranks[i] = (struct exec_rank){.input = hostile_at(&in[i]),
                                      .output = hostile_at(&out[i]),
                                      .factor = 1,
                                      .count_elements = asked->count_elements};
        if (asked->has_layouts) {
            hostile_layout(2 * i, asked->count_elements, pending->counts[i], pending->displacements[i]);
            ranks[i].input_layout = ranks[i].output_layout =
                (struct coll_layout){pending->counts[i], pending->displacements[i]};
        }
    }
    struct exec_call call = {.terms.kind = asked->kind,
                             .terms.dtype = asked->dtype,
                             .terms.reduce = REDUCE_SUM,
                             .seq = hostile->seq + 1,
                             .terms.count_elements = asked->has_layouts ? 0 : asked->count_elements,
                             .terms.root_rank = asked->root_rank,
                             .terms.has_layouts = asked->has_layouts,
                             .terms.compression = asked->compression,
                             .terms.top_k_permille = asked->compression == COMPRESSION_TOP_K ? 100 : 0,
                             .terms.bucket_ops = 1,
                             .rank_count = HOSTILE_LOCAL_RANKS,
                             .ranks = ranks,
                             .done = op_done,
                             .context = pending};
    if (exec_submit(hostile->comm, &call, NULL) != STATUS_OK) {
        free(pending);
        return 0;
    }
    hostile->pending++;
    return ++hostile->seq;
}

bool hostile_post(struct hostile *hostile, bool sends, uint32_t tag, const struct hostile_buffer *buffer,
                  struct hostile_outcome *outcome)
{
    struct pending *pending = pending_new(hostile, outcome);
    struct p2p_call call = {.sends = sends,
                            .rank = 0,
                            .peer_rank = 1,
                            .tag = tag,
                            .dtype = DTYPE_U8,
                            .count_elements = buffer->bytes,
                            .buffer = hostile_at(buffer)};
    if (p2p_post(hostile->p2p_comm, &call, &pending->message, NULL) != STATUS_OK) {
        free(pending);
        return false;
    }
    hostile->pending++;
    return true;
}
