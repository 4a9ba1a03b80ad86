#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/base/random.h"
#include "daemon/base/time.h"
#include "daemon/net/net.h"
#include "daemon/net/quic.h"
#include "tests/lib/quic_node.h"
#include "tests/lib/test_pki.h"

/*
 * Three nodes on which every function is called at random, from within every handler and from outside, while
 * the promises of net.h are checked: sent once a send, closed once a stream and before peer_down, peer_up and
 * peer_down in turn, the right bytes in order.
 */

#define NODES 3
#define STREAMS_MAX 30 /* outgoing, of a node */
#define PERIOD 251u    /* of the bytes of every stream */
#define PAYLOAD_MAX_BYTES 300000u
#define SEEDS 8
#define RUN_MS 800

struct node;

struct outgoing {
    struct outgoing *prev, *next;
    struct net_stream *stream;
    uint64_t bytes; /* queued */
};

struct incoming {
    struct incoming *prev, *next;
    struct net_stream *stream;
    uint64_t bytes; /* consumed */
};

struct sending {
    struct node *node;
    bool ended;
    struct sending *next;
};

struct node {
    struct net *net;
    unsigned index;
    uint32_t peers[NODES];
    bool up[NODES];
    struct outgoing *outgoing;
    struct incoming *incoming;
    struct sending *sendings;
    unsigned outgoing_count;
    unsigned depth;
    unsigned incoming_of[NODES];
};

static struct test_pki *pki;
static struct loop *loop;
static struct node nodes[NODES];
static struct random dice;
static uint8_t payload[PAYLOAD_MAX_BYTES + PERIOD];
static unsigned total_sendings;
static unsigned total_bytes_mib;
static uint64_t total_bytes;
static bool over; /* no more actions: everything is being freed */

static void act(struct node *node);

static bool maybe(double probability)
{
    return random_chance(&dice, probability);
}

/* --- Handlers --- */

static void on_sent(void *context, enum status result, uint64_t now_ns)
{
    (void)result;
    (void)now_ns;
    struct sending *sending = context;
    assert_false(sending->ended);
    sending->ended = true;
    act(sending->node);
}

static unsigned other_of(const struct node *node, uint32_t peer)
{
    for (unsigned i = 0; i < NODES; i++) {
        if (i != node->index && node->peers[i] == peer) {
            return i;
        }
    }
    fail_msg("peer %u is nobody", peer);
    return 0;
}

static size_t on_receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                         bool end, uint64_t now_ns)
{
    (void)now_ns;
    struct node *node = context;
    struct incoming *incoming = stream->user;
    assert_true(node->up[other_of(node, stream->peer)]);
    assert_true(size > 0 || end);
    if (incoming == NULL) {
        incoming = calloc(1, sizeof *incoming);
        assert_non_null(incoming);
        incoming->stream = stream;
        stream->user = incoming;
        DL_APPEND(node->incoming, incoming);
        node->incoming_of[other_of(node, stream->peer)]++;
    }
    size_t used = maybe(0.7) ? size : random_below(&dice, size + 1);
    for (size_t i = 0; i < used; i++) {
        assert_int_equal(bytes[i], (incoming->bytes + i) % PERIOD);
    }
    incoming->bytes += used;
    total_bytes += used;
    if (used < size && maybe(0.5)) {
        net_stream_resume(stream);
    }
    act(node);
    if (maybe(0.01)) {
        net_stream_reset(stream);
    }
    return used;
}

static void on_closed(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    struct node *node = context;
    struct incoming *incoming = stream->user;
    assert_non_null(incoming);
    assert_true(cause == NULL || cause->status != STATUS_OK);
    assert_true(node->up[other_of(node, stream->peer)]);
    node->incoming_of[other_of(node, stream->peer)]--;
    DL_DELETE(node->incoming, incoming);
    free(incoming);
    if (maybe(0.3)) {
        net_stream_reset(stream); /* in vain: it is over */
    }
    act(node);
}

static void on_up(void *context, uint32_t peer, uint64_t now_ns)
{
    (void)now_ns;
    struct node *node = context;
    unsigned other = other_of(node, peer);
    assert_false(node->up[other]);
    assert_int_equal(node->incoming_of[other], 0);
    node->up[other] = true;
    act(node);
}

static void on_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    struct node *node = context;
    unsigned other = other_of(node, peer);
    assert_true(node->up[other]);
    assert_int_equal(node->incoming_of[other], 0);
    assert_true(cause->status != STATUS_OK && cause->text[0] != '\0');
    node->up[other] = false;
    act(node);
}

static void on_failed(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    struct node *node = context;
    assert_false(node->up[other_of(node, peer)]);
    assert_true(cause->status != STATUS_OK && cause->text[0] != '\0');
    act(node);
}

/* --- Actions --- */

static void open_stream(struct node *node, unsigned other)
{
    struct error error;
    struct outgoing *outgoing = calloc(1, sizeof *outgoing);
    assert_non_null(outgoing);
    enum net_stream_kind kind = maybe(0.2) ? NET_STREAM_CONTROL : NET_STREAM_DATA;
    enum status status = net_stream_open(node->net, node->peers[other], kind, &outgoing->stream, &error);
    if (status != STATUS_OK) {
        assert_int_equal(status, STATUS_UNREACHABLE);
        free(outgoing);
        return;
    }
    DL_APPEND(node->outgoing, outgoing);
    node->outgoing_count++;
}

static void send_bytes(struct node *node, struct outgoing *outgoing)
{
    size_t header_bytes = maybe(0.5) ? random_below(&dice, NET_STREAM_HEADER_MAX_BYTES + 1) : 0;
    size_t payload_bytes = maybe(0.1) ? 0 : random_below(&dice, maybe(0.1) ? PAYLOAD_MAX_BYTES : 5000);
    const uint8_t *header = payload + outgoing->bytes % PERIOD;
    const uint8_t *bytes = payload + (outgoing->bytes + header_bytes) % PERIOD;
    bool tracked = maybe(0.8);
    struct sending *sending = NULL;
    if (tracked) {
        sending = calloc(1, sizeof *sending);
        assert_non_null(sending);
        sending->node = node;
    }
    enum status status = net_stream_send(outgoing->stream, header, header_bytes, bytes, payload_bytes,
                                         tracked ? on_sent : NULL, sending);
    if (status != STATUS_OK) {
        assert_true(status == STATUS_UNREACHABLE || status == STATUS_LIMIT);
        free(sending);
        return;
    }
    outgoing->bytes += header_bytes + payload_bytes;
    if (tracked) {
        LL_PREPEND(node->sendings, sending);
        total_sendings++;
    }
}

static void end_stream(struct node *node, struct outgoing *outgoing)
{
    DL_DELETE(node->outgoing, outgoing);
    node->outgoing_count--;
    if (maybe(0.7)) {
        net_stream_finish(outgoing->stream);
    } else {
        net_stream_reset(outgoing->stream);
    }
    free(outgoing);
}

static void disturb_incoming(struct node *node)
{
    struct incoming *incoming = node->incoming;
    for (uint64_t skip = random_below(&dice, 5); incoming != NULL && skip > 0; skip--) {
        incoming = incoming->next;
    }
    if (incoming != NULL && maybe(0.9)) {
        net_stream_resume(incoming->stream);
    } else if (incoming != NULL) {
        net_stream_reset(incoming->stream);
    }
}

static void act(struct node *node)
{
    struct error error;
    if (over || node->depth > 0 || maybe(0.5)) {
        return;
    }
    node->depth++;
    unsigned other = (node->index + 1 + (unsigned)random_below(&dice, NODES - 1)) % NODES;
    struct outgoing *outgoing = node->outgoing;
    for (uint64_t skip = random_below(&dice, STREAMS_MAX);
         outgoing != NULL && outgoing->next != NULL && skip > 0; skip--) {
        outgoing = outgoing->next;
    }
    uint64_t die = random_below(&dice, 100);
    if (die < 15 && node->outgoing_count < STREAMS_MAX) {
        open_stream(node, other);
    } else if (die < 65 && outgoing != NULL) {
        send_bytes(node, outgoing);
    } else if (die < 75 && outgoing != NULL) {
        end_stream(node, outgoing);
    } else if (die < 90) {
        disturb_incoming(node);
    } else if (die < 99) {
        assert_int_equal(net_connect(node->net, node->peers[other], &error), STATUS_OK);
    } else if (maybe(0.1)) {
        error_set(&error, STATUS_ABORTED, "by chance");
        net_disconnect(node->net, node->peers[other], &error);
    }
    node->depth--;
}

/* --- Runs --- */

static const char *const names[NODES] = {"a", "b", "c"};

static void begin(uint64_t seed)
{
    struct error error;
    random_seed(&dice, seed);
    over = false;
    memset(nodes, 0, sizeof nodes);
    assert_int_equal(loop_new(&loop, &error), STATUS_OK);
    for (unsigned i = 0; i < NODES; i++) {
        struct quic_options options;
        struct node *node = &nodes[i];
        quic_node_options(pki, names[i], &options);
        node->index = i;
        options.datagram_max_bytes = seed % 2 == 0 ? 1452 : 0;
        assert_int_equal(net_quic_new(loop, &options, &node->net, &error), STATUS_OK);
        net_set_peer_handler(node->net, &(struct net_peer_handler){node, on_up, on_down, on_failed, NULL});
        for (unsigned kind = 1; kind < NET_STREAM_KIND_COUNT; kind++) {
            net_set_stream_handler(node->net, (enum net_stream_kind)kind,
                                   &(struct net_stream_handler){node, on_receive, on_closed, NULL});
        }
    }
    for (unsigned i = 0; i < NODES * NODES; i++) {
        char address[32];
        unsigned other = i % NODES;
        if (other != i / NODES) {
            snprintf(address, sizeof address, "127.0.0.1:%u", net_quic_port(nodes[other].net));
            assert_int_equal(net_add_peer(nodes[i / NODES].net, names[other], address,
                                          &nodes[i / NODES].peers[other], &error),
                             STATUS_OK);
        }
    }
}

static void end(void)
{
    over = true;
    for (unsigned i = 0; i < NODES; i++) {
        struct node *node = &nodes[i];
        net_free(node->net);
        while (node->sendings != NULL) {
            struct sending *sending = node->sendings;
            assert_true(sending->ended);
            node->sendings = sending->next;
            free(sending);
        }
        while (node->outgoing != NULL) {
            struct outgoing *outgoing = node->outgoing;
            DL_DELETE(node->outgoing, outgoing);
            free(outgoing);
        }
        while (node->incoming != NULL) {
            struct incoming *incoming = node->incoming;
            DL_DELETE(node->incoming, incoming);
            free(incoming);
        }
    }
    loop_free(loop);
}

static void anything_in_any_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof payload; i++) {
        payload[i] = (uint8_t)(i % PERIOD);
    }
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        begin(seed);
        uint64_t end_ns = loop_now_ns() + RUN_MS * TIME_MS;
        while (loop_now_ns() < end_ns) {
            struct error error;
            for (unsigned i = 0; i < NODES; i++) {
                act(&nodes[i]);
            }
            assert_int_equal(loop_run_once(loop, 1, &error), STATUS_OK);
        }
        end();
    }
    total_bytes_mib = (unsigned)(total_bytes >> 20);
    print_message("%u sends, %u MiB received\n", total_sendings, total_bytes_mib);
    assert_true(total_sendings > 1000);
    assert_true(total_bytes_mib > 10);
}

static int setup(void **state)
{
    (void)state;
    pki = test_pki_new();
    for (unsigned i = 0; i < NODES; i++) {
        test_pki_issue(pki, names[i], &(struct test_certificate){.name = names[i]});
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    test_pki_free(pki);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anything_in_any_order),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_random", tests, setup, teardown);
}
