#include "tests/lib/quic_node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/random.h"
#include "daemon/base/time.h"
#include "daemon/net/quic_address.h"

static void require(bool condition, const char *what, const struct error *error)
{
    if (!condition) {
        fprintf(stderr, "quic_node: %s: %s\n", what, error == NULL ? "failed" : error->text);
        abort();
    }
}

/*
 * The pattern of a stream: random bytes that repeat after a prime number of bytes. So a test notices what is
 * cut, moved or doubled by any usual size. The start depends on the seed.
 */
#define PATTERN_PERIOD 65521u

static uint8_t pattern[2 * PATTERN_PERIOD];

static void pattern_init(void)
{
    struct random random;
    random_seed(&random, 1);
    for (size_t i = 0; i < PATTERN_PERIOD; i++) {
        pattern[i] = pattern[PATTERN_PERIOD + i] = (uint8_t)random_u64(&random);
    }
}

/* Returns the pattern's bytes from an offset on. At least PATTERN_PERIOD of them are contiguous. */
static const uint8_t *pattern_at(uint64_t seed, uint64_t offset)
{
    return pattern + (offset + seed % PATTERN_PERIOD * 7919u) % PATTERN_PERIOD;
}

static size_t smaller(size_t x, size_t y)
{
    return x < y ? x : y;
}

/* --- Sinks --- */

static uint64_t header_word(const struct quic_sink *sink, size_t index)
{
    uint64_t word;
    memcpy(&word, sink->header + index * sizeof word, sizeof word);
    return word;
}

uint64_t quic_sink_size(const struct quic_sink *sink)
{
    return header_word(sink, 1);
}

bool quic_sink_complete(const struct quic_sink *sink)
{
    return sink->closed && sink->closed_status == STATUS_OK && sink->ended && !sink->wrong &&
           sink->received == QUIC_NODE_HEADER_BYTES + quic_sink_size(sink);
}

static void sink_take(struct quic_sink *sink, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        size_t part;
        if (sink->received < QUIC_NODE_HEADER_BYTES) {
            part = smaller(size, QUIC_NODE_HEADER_BYTES - (size_t)sink->received);
            memcpy(sink->header + sink->received, bytes, part);
        } else {
            part = smaller(size, PATTERN_PERIOD);
            const uint8_t *expected =
                pattern_at(header_word(sink, 0), sink->received - QUIC_NODE_HEADER_BYTES);
            sink->wrong = sink->wrong || memcmp(bytes, expected, part) != 0;
        }
        sink->received += part;
        bytes += part;
        size -= part;
    }
}

static struct quic_sink *sink_new(struct quic_node *node, struct net_stream *stream)
{
    struct quic_sink *sink = calloc(1, sizeof *sink);
    require(sink != NULL, "calloc", NULL);
    sink->node = node;
    sink->stream = stream;
    sink->peer = stream->peer;
    sink->hold = node->hold;
    sink->next = node->sinks;
    node->sinks = sink;
    node->sink_count++;
    stream->user = sink;
    return sink;
}

static size_t sink_receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                           bool end, uint64_t now_ns)
{
    (void)now_ns;
    struct quic_node *node = context;
    struct quic_sink *sink = stream->user == NULL ? sink_new(node, stream) : stream->user;
    node->wrong_order = node->wrong_order || !node->up[stream->peer] || sink->closed || (size == 0 && !end);
    if (sink->hold) {
        return 0;
    }
    if (!node->no_more) {
        net_stream_expect(stream, NET_STREAM_WINDOW_BYTES);
    }
    size_t used = size;
    if (node->consume_max > 0 && size > 0) {
        node->random = node->random * 1103515245u + 12345u;
        used = 1 + (node->random >> 8) % node->consume_max;
        used = smaller(used, size);
    }
    sink_take(sink, bytes, used);
    sink->ended = sink->ended || (end && used == size);
    if (used < size) {
        net_stream_resume(stream);
    }
    return used;
}

static void sink_closed(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    struct quic_node *node = context;
    struct quic_sink *sink = stream->user;
    node->wrong_order = node->wrong_order || sink == NULL || sink->closed || !node->up[stream->peer];
    if (sink != NULL) {
        sink->closed = true;
        sink->stream = NULL;
        sink->closed_status = cause == NULL ? STATUS_OK : cause->status;
    }
}

void quic_sink_release(struct quic_sink *sink)
{
    sink->hold = false;
    if (sink->stream != NULL) {
        net_stream_resume(sink->stream);
    }
}

static size_t control_receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                              bool end, uint64_t now_ns)
{
    (void)stream;
    (void)bytes;
    (void)end;
    (void)now_ns;
    struct quic_node *node = context;
    node->control_bytes += (unsigned)size;
    return size;
}

/* --- Peers --- */

static void peer_up(void *context, uint32_t peer, uint64_t now_ns)
{
    (void)now_ns;
    struct quic_node *node = context;
    node->wrong_order = node->wrong_order || node->up[peer];
    node->up[peer] = true;
    node->up_calls[peer]++;
}

static void peer_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    struct quic_node *node = context;
    node->wrong_order = node->wrong_order || !node->up[peer];
    for (struct quic_sink *sink = node->sinks; sink != NULL; sink = sink->next) {
        node->wrong_order = node->wrong_order || (sink->peer == peer && !sink->closed);
    }
    node->up[peer] = false;
    node->down_calls[peer]++;
    node->down_cause = *cause;
}

static void connect_failed(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    struct quic_node *node = context;
    node->failed_calls[peer]++;
    node->failed_cause = *cause;
}

static void peer_suspect(void *context, uint32_t peer, uint64_t now_ns)
{
    (void)now_ns;
    struct quic_node *node = context;
    node->suspect_calls[peer]++;
}

static void peer_answers(void *context, uint32_t peer, uint64_t now_ns)
{
    struct quic_node *node = context;
    (void)now_ns;
    node->answer_calls[peer]++;
}

static void peer_refuses(void *context, uint32_t peer, uint64_t now_ns)
{
    struct quic_node *node = context;
    (void)now_ns;
    node->refuse_calls[peer]++;
}

void quic_node_options(struct test_pki *pki, const char *name, struct quic_options *out)
{
    char file[80];
    *out = (struct quic_options){
        .node_name = name,
        .bind_address = "127.0.0.1:0",
        .authority_path = test_pki_path(pki, "ca.pem"),
        .handshake_timeout_ns = 5 * TIME_S,
        .idle_timeout_ns = 10 * TIME_S,
    };
    snprintf(file, sizeof file, "%s.pem", name);
    out->certificate_path = test_pki_path(pki, file);
    snprintf(file, sizeof file, "%s.key", name);
    out->key_path = test_pki_path(pki, file);
}

struct quic_node *quic_node_new(struct loop *loop, struct test_pki *pki, const char *name,
                                const struct quic_options *options)
{
    struct quic_options usual;
    struct error error;
    struct quic_node *node = calloc(1, sizeof *node);
    require(node != NULL, "calloc", NULL);
    pattern_init();
    if (options == NULL) {
        quic_node_options(pki, name, &usual);
        options = &usual;
    }
    require(net_quic_new(loop, options, &node->net, &error) == STATUS_OK, "net_quic_new", &error);
    node->loop = loop;
    struct quic_address bound;
    net_quic_local(node->net, &bound);
    node->port = quic_address_port(&bound);
    node->random = node->port;
    snprintf(node->name, sizeof node->name, "%s", name);
    net_set_peer_handler(node->net, &(struct net_peer_handler){node, peer_up, peer_down, connect_failed,
                                                               peer_suspect, peer_answers, peer_refuses});
    net_set_stream_handler(node->net, NET_STREAM_DATA,
                           &(struct net_stream_handler){node, sink_receive, sink_closed, NULL});
    net_set_stream_handler(node->net, NET_STREAM_CONTROL,
                           &(struct net_stream_handler){node, control_receive, NULL, NULL});
    return node;
}

void quic_node_free(struct quic_node *node)
{
    if (node == NULL) {
        return;
    }
    net_free(node->net);
    while (node->sinks != NULL) {
        struct quic_sink *sink = node->sinks;
        node->sinks = sink->next;
        free(sink);
    }
    free(node);
}

uint32_t quic_node_add_peer(struct quic_node *node, const char *name, uint16_t port)
{
    char address[32];
    struct error error;
    uint32_t peer = 0;
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    require(net_add_peer(node->net, name, address, &peer, &error) == STATUS_OK, "net_add_peer", &error);
    require(peer < QUIC_NODE_PEERS_MAX, "number of peers", NULL);
    return peer;
}

void quic_node_connect(struct quic_node *node, uint32_t peer)
{
    struct error error;
    require(net_connect(node->net, peer, &error) == STATUS_OK, "net_connect", &error);
}

struct both {
    const struct quic_node *a;
    const struct quic_node *b;
};

static bool both_up(const void *context)
{
    const struct both *both = context;
    return both->a->up[0] && both->b->up[0];
}

void quic_nodes_connect(struct quic_node *a, struct quic_node *b)
{
    struct both both = {a, b};
    require(quic_node_add_peer(a, b->name, b->port) == 0, "first peer", NULL);
    require(quic_node_add_peer(b, a->name, a->port) == 0, "first peer", NULL);
    quic_node_connect(a, 0);
    require(quic_run_until(a->loop, both_up, &both, 5000), "connecting", &a->failed_cause);
}

/* --- Sources --- */

struct piece {
    struct quic_source *source;
    uint8_t *data;
    size_t size;
};

static void piece_sent(void *context, enum status result, uint64_t now_ns)
{
    (void)now_ns;
    struct piece *piece = context;
    struct quic_source *source = piece->source;
    source->done++;
    if (result != STATUS_OK) {
        source->failed++;
        source->result = result;
    }
    memset(piece->data, 0xee, piece->size); /* if anybody still reads the piece, wrong bytes are sent */
    free(piece);
}

struct quic_source *quic_source_new(struct quic_node *node, uint32_t peer, uint64_t seed, size_t size,
                                    size_t piece_bytes, bool finish)
{
    struct error error;
    uint64_t header[2] = {seed, size};
    struct quic_source *source = calloc(1, sizeof *source);
    require(source != NULL, "calloc", NULL);
    source->data = malloc(size + 1);
    require(source->data != NULL, "malloc", NULL);
    source->size = size;
    source->piece_bytes = piece_bytes;
    for (size_t i = 0; i < size; i += PATTERN_PERIOD) {
        memcpy(source->data + i, pattern_at(seed, i), smaller(size - i, PATTERN_PERIOD));
    }
    enum status opened =
        node->bulk ? net_stream_open_bulk(node->net, peer, NET_STREAM_DATA, 0, NULL, &source->stream, &error)
                   : net_stream_open(node->net, peer, NET_STREAM_DATA, &source->stream, &error);
    require(opened == STATUS_OK, "opening a stream", &error);
    size_t offset = 0;
    do {
        size_t part = size - offset < piece_bytes ? size - offset : piece_bytes;
        struct piece *piece = malloc(sizeof *piece);
        require(piece != NULL, "malloc", NULL);
        *piece = (struct piece){source, source->data + offset, part};
        enum status status = net_stream_send(source->stream, header, offset == 0 ? sizeof header : 0,
                                             source->data + offset, part, piece_sent, piece);
        require(status == STATUS_OK, "net_stream_send", NULL);
        source->sends++;
        offset += part;
    } while (offset < size);
    if (finish) {
        net_stream_finish(source->stream);
        source->stream = NULL;
    }
    return source;
}

bool quic_source_done(const struct quic_source *source)
{
    return source->done == source->sends;
}

void quic_source_free(struct quic_source *source)
{
    require(quic_source_done(source), "quic_source_free before it is done", NULL);
    free(source->data);
    free(source);
}

/* --- Time --- */

bool quic_run_until(struct loop *loop, quic_condition *condition, const void *context, uint64_t timeout_ms)
{
    uint64_t deadline_ns = loop_now_ns() + timeout_ms * TIME_MS;
    while (!condition(context)) {
        struct error error;
        if (loop_now_ns() >= deadline_ns) {
            return false;
        }
        require(loop_run_once(loop, 10, &error) == STATUS_OK, "loop_run_once", &error);
    }
    return true;
}

struct count {
    const unsigned *value;
    unsigned least;
};

static bool count_reached(const void *context)
{
    const struct count *count = context;
    return *count->value >= count->least;
}

bool quic_run_until_count(struct loop *loop, const unsigned *value, unsigned least, uint64_t timeout_ms)
{
    struct count count = {value, least};
    return quic_run_until(loop, count_reached, &count, timeout_ms);
}

void quic_run_for(struct loop *loop, uint64_t duration_ms)
{
    uint64_t deadline_ns = loop_now_ns() + duration_ms * TIME_MS;
    while (loop_now_ns() < deadline_ns) {
        struct error error;
        uint64_t left_ms = (deadline_ns - loop_now_ns()) / TIME_MS + 1;
        require(loop_run_once(loop, left_ms < 10 ? left_ms : 10, &error) == STATUS_OK, "loop_run_once",
                &error);
    }
}
