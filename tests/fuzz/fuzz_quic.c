#define OPENSSL_SUPPRESS_DEPRECATED /* this file replaces OpenSSL's random generator */

#include <openssl/rand.h>

#include "tests/fuzz/quic_world.h"

/*
 * Datagrams to a real endpoint, b: from a peer with a certificate, a, and from strangers without one. Their
 * handshakes and packets are real. The input says which datagrams are delivered, dropped, doubled, changed or
 * kept for later, what strangers send, and how time passes. Afterwards b must hold no slot of a handshake,
 * and a third node, c, must be able to connect to it.
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STEPS_MAX 400u
#define SETTLE_NS (120 * TIME_S)
#define CONNECT_STEPS_MAX 200u

/* --- Delivery --- */

static void arrive(const struct flight *flight)
{
    for (unsigned i = 0; i < NODE_COUNT; i++) {
        const struct node *node = &world.nodes[i];
        if (quic_address_port(&flight->to) == quic_address_port(&node->address)) {
            world.arriving = flight;
            virtual_fd_ready((int)i, LOOP_READ);
        }
    }
    advance(0);
}

/* Takes the first datagram that is under way. Returns null if there is none. The result is valid until the
 * next call. */
static struct flight *take_flight(void)
{
    static struct flight taken;
    if (world.flight_count == 0) {
        return NULL;
    }
    taken = *flight_at(0);
    world.flight_first = (world.flight_first + 1) % FLIGHT_MAX;
    world.flight_count--;
    world.kept[world.kept_count++ % KEPT_MAX] = taken;
    return &taken;
}

static void deliver_all(unsigned most)
{
    for (unsigned i = 0; i < most; i++) {
        const struct flight *flight = take_flight();
        if (flight == NULL) {
            return;
        }
        arrive(flight);
    }
}

/* Returns an address of a stranger. There are few networks, so that the shares of networks fill up. */
static struct quic_address stranger_address(uint8_t which)
{
    char text[32];
    struct quic_address address;
    struct error error;
    if (which == 255) { /* the address of the peer, forged */
        return world.nodes[NODE_A].address;
    }
    snprintf(text, sizeof text, "192.0.2.%u:%u", which % 8u, 1000u + which);
    fuzz_require(quic_address_resolve(text, AF_UNSPEC, &address, &error) == STATUS_OK);
    return address;
}

static void send_garbage(struct fuzz_input *input)
{
    struct flight flight = {.from = stranger_address(fuzz_u8(input)), .to = world.nodes[NODE_B].address};
    const uint8_t *bytes = fuzz_bytes(input, 4u * fuzz_u8(input), &flight.size);
    memcpy(flight.bytes, bytes, flight.size);
    arrive(&flight);
}

/* Sends an Initial packet that b can decrypt, with frames from the input. Bit 0 of its flags: use the
 * token of the last Retry. Bit 1: put the bytes into one CRYPTO frame. */
static void send_initial(struct fuzz_input *input)
{
    struct flight flight = {.from = stranger_address(fuzz_u8(input)), .to = world.nodes[NODE_B].address};
    struct quic_initial initial = {.destination_bytes = 8, .source_bytes = 8, .key_id_bytes = 8};
    uint8_t payload[QUIC_INITIAL_PAYLOAD_MAX_BYTES];
    size_t used = 0, taken;
    uint8_t flags = fuzz_u8(input);
    if ((flags & 1u) != 0 && world.has_retry) {
        initial = world.retry;
        initial.source_bytes = 8;
    } else {
        memset(initial.destination, fuzz_u8(input), 8);
        memcpy(initial.key_id, initial.destination, 8);
    }
    memset(initial.source, 7, 8);
    initial.number = flags >> 4;
    const uint8_t *bytes = fuzz_bytes(input, 4u * fuzz_u8(input), &taken);
    if ((flags & 2u) != 0) {
        const uint8_t frame[] = {0x06, 0, (uint8_t)(0x40u | taken >> 8), (uint8_t)taken};
        memcpy(payload, frame, sizeof frame);
        used = sizeof frame;
    }
    memcpy(payload + used, bytes, taken);
    flight.size = quic_initial_make(&initial, payload, used + taken, flight.bytes);
    arrive(&flight);
}

/* --- What the input says --- */

static void use_stream(struct fuzz_input *input)
{
    static const uint8_t content[65536];
    struct node *node = &world.nodes[fuzz_below(input, 2)];
    struct net_stream **stream = &node->streams[fuzz_below(input, STREAMS_MAX)];
    struct error error;
    uint8_t what = fuzz_u8(input);
    if (*stream == NULL) {
        /* The kinds include one that does not exist, as a newer peer may send. */
        if (net_stream_open(node->net, 0, (enum net_stream_kind)(what % (NET_STREAM_KIND_COUNT + 1)), stream,
                            &error) != STATUS_OK) {
            *stream = NULL;
        }
    } else if (what < 4) {
        (what & 1u) != 0 ? net_stream_finish(*stream) : net_stream_reset(*stream);
        *stream = NULL;
    } else {
        enum status status = net_stream_send(*stream, content, what % 65u, content, 256u * what, NULL, NULL);
        (void)status; /* it may fail: the stream may be full, or the connection lost */
    }
    advance(0);
}

static void change_flight(struct fuzz_input *input)
{
    struct flight *flight = take_flight();
    uint32_t at = fuzz_u8(input);
    at |= (uint32_t)fuzz_u8(input) << 8;
    uint8_t change = fuzz_u8(input);
    if (flight == NULL || flight->size == 0) {
        return;
    }
    if ((at & 0x8000u) != 0) {
        flight->size = (at & 0x7fffu) % flight->size;
    } else {
        flight->bytes[at % flight->size] ^= change;
    }
    arrive(flight);
}

static void end_connection(struct fuzz_input *input)
{
    struct node *node = &world.nodes[fuzz_below(input, 2)];
    struct error cause;
    error_set(&cause, STATUS_ABORTED, "by the test");
    net_disconnect(node->net, 0, &cause);
    advance(0);
}

static void unblock(struct node *node)
{
    node->blocked = false;
    virtual_fd_ready((int)(node - world.nodes), LOOP_WRITE);
    advance(0);
}

static void resume(struct fuzz_input *input)
{
    struct node *node = &world.nodes[fuzz_below(input, 2)];
    uint8_t most = fuzz_u8(input);
    node->consume_max = most == 255 ? SIZE_MAX : most;
    if (node->held != NULL) {
        struct net_stream *held = node->held;
        node->held = NULL;
        net_stream_resume(held);
    }
    advance(0);
}

static void send_again(struct fuzz_input *input)
{
    size_t count = world.kept_count < KEPT_MAX ? world.kept_count : KEPT_MAX;
    uint8_t which = fuzz_u8(input);
    uint8_t from = fuzz_u8(input);
    if (count > 0) {
        struct flight flight = world.kept[which % count];
        flight.from = from == 0 ? flight.from : stranger_address(from);
        arrive(&flight);
    }
}

static void deliver_twice(void)
{
    const struct flight *flight = take_flight();
    if (flight != NULL) {
        struct flight copy = *flight;
        arrive(&copy);
        arrive(&copy);
    }
}

/* Puts the first datagram behind the last one. */
static void reorder(void)
{
    const struct flight *flight = take_flight();
    if (flight != NULL) {
        struct flight copy = *flight;
        launch(&copy.from, &copy.to, copy.bytes, copy.size);
    }
}

static void step(struct fuzz_input *input)
{
    switch (fuzz_below(input, 16)) {
    case 0:
        deliver_all(1);
        break;
    case 1:
        deliver_all(1u + fuzz_u8(input));
        break;
    case 2:
        (void)take_flight(); /* drops it */
        break;
    case 3:
        deliver_twice();
        break;
    case 4:
    case 5:
        change_flight(input);
        break;
    case 6:
        reorder();
        break;
    case 7:
        advance(UINT64_C(1000) << fuzz_below(input, 26)); /* from 1 µs to 33 s */
        break;
    case 8:
        send_garbage(input);
        break;
    case 9:
        send_initial(input);
        break;
    case 10:
    case 11:
        use_stream(input);
        break;
    case 12:
        end_connection(input);
        break;
    case 13:
        node_connect(fuzz_below(input, 2));
        break;
    case 14:
        send_again(input);
        break;
    case 15:
        if ((fuzz_u8(input) & 1u) != 0) {
            world.nodes[fuzz_below(input, 2)].blocked = true;
        } else {
            resume(input);
        }
        break;
    }
}

/* --- One run --- */

static int random_bytes(unsigned char *out, int size)
{
    for (int i = 0; i < size; i++) {
        out[i] = (unsigned char)random_u64(&world.random);
    }
    return 1;
}

static int random_ready(void)
{
    return 1;
}

static void free_pki(void)
{
    test_pki_free(pki);
}

static void start(void)
{
    static const RAND_METHOD method = {NULL, random_bytes, NULL, NULL, random_bytes, random_ready};
    if (pki == NULL) {
        log_set_level(LOG_LEVEL_ERROR);
        random_seed(&world.random, 1);
        fuzz_require(RAND_set_rand_method(&method) == 1);
        pki = test_pki_new();
        authority_path = test_pki_path(pki, "ca.pem");
        for (unsigned i = 0; i < NODE_COUNT; i++) {
            char path[16];
            test_pki_issue(pki, names[i], &(struct test_certificate){.name = names[i]});
            snprintf(path, sizeof path, "%s.pem", names[i]);
            certificate_paths[i] = test_pki_path(pki, path);
            snprintf(path, sizeof path, "%s.key", names[i]);
            key_paths[i] = test_pki_path(pki, path);
        }
        (void)atexit(free_pki);
    }
    memset(&world, 0, offsetof(struct world, flights));
    world.flight_first = world.flight_count = world.kept_count = 0;
    world.arriving = NULL;
    world.unreachable = NULL;
    world.retry = (struct quic_initial){0};
    world.has_retry = false;
    virtual_time_start();
    virtual_advance(TIME_S);
    random_seed(&world.random, 1);
    node_start(NODE_A);
    node_start(NODE_B);
    node_knows(NODE_A, "b", "10.0.0.2:2");
    node_knows(NODE_B, "a", "10.0.0.1:1");
}

/* Checks that everything that strangers began is over, and that c, which b did not know before, can
 * connect. */
static void check_others_get_in(void)
{
    unblock(&world.nodes[NODE_A]);
    unblock(&world.nodes[NODE_B]);
    world.flight_count = 0;
    advance(SETTLE_NS);
    world.flight_count = 0;
    fuzz_require(quic_endpoint_of(world.nodes[NODE_B].net)->admission.half_open == 0);
    node_start(NODE_C);
    node_knows(NODE_C, "b", "10.0.0.2:2");
    node_knows(NODE_B, "c", "10.0.0.3:3");
    node_connect(NODE_C);
    for (unsigned i = 0; i < CONNECT_STEPS_MAX && !(world.nodes[NODE_C].up[0] && world.nodes[NODE_B].up[1]);
         i++) {
        deliver_all(FLIGHT_MAX);
        advance(TIME_MS);
    }
    fuzz_require(world.nodes[NODE_C].up[0] && world.nodes[NODE_B].up[1]);
}

static void stop(void)
{
    for (unsigned i = 0; i < NODE_COUNT; i++) {
        struct node *node = &world.nodes[i];
        for (unsigned each = 0; node->net != NULL && each < STREAMS_MAX; each++) {
            if (node->streams[each] != NULL) {
                net_stream_reset(node->streams[each]);
            }
        }
        net_free(node->net);
    }
    fuzz_require(virtual_next_ns() == TIME_NEVER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    start();
    world.input = (struct fuzz_input){data, size, 0};
    uint8_t mode = fuzz_u8(&world.input);
    if ((mode & 1u) != 0) {
        node_connect((mode >> 1) & 1u);
    }
    if ((mode & 4u) != 0) { /* the steps below then meet a connection that is up */
        deliver_all(FLIGHT_MAX);
    }
    for (unsigned i = 0; i < STEPS_MAX && !fuzz_ended(&world.input); i++) {
        step(&world.input);
    }
    if ((mode & 8u) == 0) {
        check_others_get_in();
    }
    stop();
    return 0;
}
