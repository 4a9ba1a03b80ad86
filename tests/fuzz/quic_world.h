#ifndef TESTS_FUZZ_QUIC_WORLD_H
#define TESTS_FUZZ_QUIC_WORLD_H

#include "daemon/base/log.h"
#include "daemon/base/random.h"
#include "daemon/net/quic_internal.h"
#include "tests/datagrams/virtual_time.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/quic_initial.h"
#include "tests/lib/test_pki.h"

/*
 * The parts of fuzz_quic.c, which alone includes this file: nodes with real QUIC endpoints in virtual time
 * (tests/datagrams/virtual_time.h). The sockets here replace daemon/net/quic_socket.c. Datagrams wait in
 * world.flights until they are delivered.
 */

#define FLIGHT_MAX 256u /* datagrams under way; further ones are lost */
#define KEPT_MAX 32u    /* datagrams that can be sent again */
#define STREAMS_MAX 8u

enum { NODE_A, NODE_B, NODE_C, NODE_COUNT };

struct flight {
    struct quic_address from, to;
    size_t size;
    uint8_t bytes[2048];
};

struct node {
    struct net *net;
    struct quic_address address;
    bool up[NODE_COUNT];
    bool blocked; /* its socket accepts no datagrams to send */
    size_t consume_max;
    struct net_stream *streams[STREAMS_MAX]; /* outgoing */
    struct net_stream *held;                 /* an incoming stream of which bytes were left */
};

static struct world {
    struct fuzz_input input;
    struct random random;
    struct node nodes[NODE_COUNT];
    struct flight flights[FLIGHT_MAX];
    size_t flight_first, flight_count;
    struct flight kept[KEPT_MAX];
    size_t kept_count;
    const struct flight *arriving;
    const struct quic_address *unreachable;
    struct quic_initial retry; /* destination and token of the last Retry to a stranger */
    bool has_retry;
} world;

static struct test_pki *pki;
static const char *certificate_paths[NODE_COUNT], *key_paths[NODE_COUNT], *authority_path;
static const char *const names[NODE_COUNT] = {"a", "b", "c"};

static void advance(uint64_t span_ns)
{
    virtual_advance(loop_now_ns() + span_ns);
}

/* --- Sockets: `fd` is the index of the node --- */

enum status quic_socket_open(const char *bind_address, uint32_t buffer_bytes, struct quic_socket *out,
                             struct error *error)
{
    *out = (struct quic_socket){.granted_receive_bytes = buffer_bytes, .granted_send_bytes = buffer_bytes};
    enum status status = quic_address_resolve(bind_address, AF_UNSPEC, &out->local, error);
    out->fd = (int)quic_address_port(&out->local) - 1;
    return status;
}

void quic_socket_close(struct quic_socket *closed)
{
    closed->fd = -1;
}

static struct flight *flight_at(size_t index)
{
    return &world.flights[(world.flight_first + index) % FLIGHT_MAX];
}

static void notice_retry(const struct flight *flight)
{
    ngtcp2_version_cid ids;
    size_t header;
    if ((flight->bytes[0] & 0xf0u) != 0xf0 ||
        ngtcp2_pkt_decode_version_cid(&ids, flight->bytes, flight->size, QUIC_CID_BYTES) != 0 ||
        ids.version != NGTCP2_PROTO_VER_V1 || ids.scidlen > QUIC_INITIAL_ID_BYTES) {
        return;
    }
    header = 7 + ids.dcidlen + ids.scidlen;
    if (flight->size < header + 16 || flight->size - header - 16 > QUIC_INITIAL_TOKEN_MAX_BYTES) {
        return;
    }
    world.retry.destination_bytes = world.retry.key_id_bytes = (uint8_t)ids.scidlen;
    memcpy(world.retry.destination, ids.scid, ids.scidlen);
    memcpy(world.retry.key_id, ids.scid, ids.scidlen);
    world.retry.token_bytes = flight->size - header - 16;
    memcpy(world.retry.token, flight->bytes + header, world.retry.token_bytes);
    world.has_retry = true;
}

static void launch(const struct quic_address *from, const struct quic_address *to, const uint8_t *bytes,
                   size_t size)
{
    if (world.flight_count < FLIGHT_MAX && size <= sizeof world.flights[0].bytes) {
        struct flight *flight = flight_at(world.flight_count++);
        flight->from = *from;
        flight->to = *to;
        flight->size = size;
        memcpy(flight->bytes, bytes, size);
        notice_retry(flight);
    }
}

enum quic_send_result quic_socket_send(struct quic_socket *from, const struct quic_batch *batch,
                                       size_t *sent_bytes)
{
    const struct node *node = &world.nodes[from->fd];
    if (node->blocked) {
        return QUIC_SEND_BLOCKED;
    }
    for (size_t at = *sent_bytes; at < batch->size; at += batch->datagram_bytes) {
        size_t left = batch->size - at;
        launch(&node->address, &batch->remote, batch->bytes + at,
               left < batch->datagram_bytes ? left : batch->datagram_bytes);
    }
    return QUIC_SEND_DONE;
}

size_t quic_socket_receive(struct quic_socket *at, quic_datagram_function *function, void *context,
                           bool *more)
{
    const struct flight *flight = world.arriving;
    *more = false;
    if (flight == NULL) {
        return 0;
    }
    world.arriving = NULL;
    /* an exact block, so that sanitizers notice every read beyond it */
    uint8_t *exact = malloc(flight->size + (flight->size == 0));
    fuzz_require(exact != NULL);
    memcpy(exact, flight->bytes, flight->size);
    struct quic_datagram datagram = {exact, flight->size, &at->local, &flight->from, 0};
    function(context, &datagram);
    free(exact);
    return 1;
}

void quic_socket_read_errors(struct quic_socket *at, quic_unreachable_function *function, void *context)
{
    (void)at;
    if (world.unreachable != NULL) {
        function(context, world.unreachable, QUIC_UNREACHABLE_PORT);
        world.unreachable = NULL;
    }
}

bool quic_socket_local_address(const struct quic_socket *at, const struct quic_address *remote,
                               struct quic_address *out)
{
    (void)remote;
    *out = at->local;
    return true;
}

/* --- Nodes --- */

static void on_up(void *context, uint32_t peer, uint64_t now_ns)
{
    struct node *node = context;
    fuzz_require(!node->up[peer] && now_ns == loop_now_ns());
    node->up[peer] = true;
}

static void on_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    struct node *node = context;
    fuzz_require(node->up[peer] && cause->status != STATUS_OK && cause->text[0] != '\0');
    fuzz_require(now_ns == loop_now_ns());
    node->up[peer] = false;
}

static void on_failed(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)peer;
    fuzz_require(cause->status != STATUS_OK && cause->text[0] != '\0' && now_ns == loop_now_ns());
}

static size_t on_bytes(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size, bool end,
                       uint64_t now_ns)
{
    struct node *node = context;
    volatile uint8_t sum = 0;
    fuzz_require(node->up[stream->peer] && (size > 0 || end) && now_ns == loop_now_ns());
    size_t used = size < node->consume_max ? size : node->consume_max;
    for (size_t i = 0; i < size; i++) {
        sum = (uint8_t)(sum + bytes[i]);
    }
    if (used < size) {
        node->held = stream;
    }
    return used;
}

static void on_closed(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns)
{
    struct node *node = context;
    (void)cause;
    (void)now_ns;
    node->held = node->held == stream ? NULL : node->held;
}

static void node_start(unsigned index)
{
    struct node *node = &world.nodes[index];
    char address[32];
    struct error error;
    snprintf(address, sizeof address, "10.0.0.%u:%u", index + 1, index + 1);
    struct quic_options options = {.node_name = names[index],
                                   .bind_address = address,
                                   .certificate_path = certificate_paths[index],
                                   .key_path = key_paths[index],
                                   .authority_path = authority_path,
                                   .datagram_max_bytes = 1452,
                                   .handshake_timeout_ns = 5 * TIME_S,
                                   .idle_timeout_ns = 30 * TIME_S};
    *node = (struct node){.consume_max = SIZE_MAX};
    fuzz_require(quic_address_resolve(address, AF_UNSPEC, &node->address, &error) == STATUS_OK);
    fuzz_require(net_quic_new(NULL, &options, &node->net, &error) == STATUS_OK);
    net_set_peer_handler(node->net,
                         &(struct net_peer_handler){node, on_up, on_down, on_failed, NULL, NULL, NULL});
    struct net_stream_handler handler = {node, on_bytes, on_closed, NULL};
    net_set_stream_handler(node->net, NET_STREAM_CONTROL, &handler);
    net_set_stream_handler(node->net, NET_STREAM_DATA, &handler);
    net_set_stream_handler(node->net, NET_STREAM_MESSAGE, &handler);
}

static void node_knows(unsigned node, const char *name, const char *address)
{
    uint32_t index;
    struct error error;
    fuzz_require(net_add_peer(world.nodes[node].net, name, address, &index, &error) == STATUS_OK);
}

static void node_connect(unsigned node)
{
    struct error error;
    fuzz_require(net_connect(world.nodes[node].net, 0, &error) == STATUS_OK);
    advance(0);
}

#endif
