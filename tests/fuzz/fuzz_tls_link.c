#include "daemon/net/quic_greeting.h"
#include "daemon/net/tls_internal.h"
#include "tests/fuzz/input.h"

/*
 * The frames of a bulk link, from a node that has shown its certificate. The link has only its tunnel, which
 * is not a real one. Streams are opened, written, ended and given up meanwhile, and epochs begin. Whatever
 * comes, each send ends once, handlers get at most what was granted, and nothing is left at the end.
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STREAMS_MAX 8
#define PAYLOAD_BYTES 3000
#define FRAME_BODY_MAX_BYTES 40000

struct world {
    struct net net;
    struct net_stream tunnel;
    struct tls_endpoint *endpoint;
    struct tls_peer *peer;
    struct fuzz_input input;
    struct net_stream *streams[STREAMS_MAX];
    struct net_stream *incoming[STREAMS_MAX];
    unsigned sends, sent;
    unsigned begun, closed;
    bool disconnected;
    /* Messages on the tunnel, until they are acknowledged. */
    struct {
        net_sent_function *sent;
        void *context;
    } chunks[64];
    unsigned chunk_count;
};

static struct world *world;
static uint8_t payload[PAYLOAD_BYTES], body[FRAME_BODY_MAX_BYTES];

/* --- The net --- */

static enum status open_stream(struct net *net, uint32_t peer, enum net_stream_kind kind,
                               struct net_stream **out, struct error *error)
{
    (void)error;
    world->tunnel = (struct net_stream){.net = net, .peer = peer, .kind = kind};
    *out = &world->tunnel;
    return STATUS_OK;
}

static enum status send_chunk(struct net_stream *stream, const void *header, size_t header_bytes,
                              const void *bytes, size_t size, net_sent_function *sent, void *context)
{
    (void)stream;
    (void)header;
    (void)bytes;
    fuzz_require(header_bytes == 0 && size > 0 && sent != NULL);
    if (world->chunk_count == sizeof world->chunks / sizeof world->chunks[0]) {
        return STATUS_LIMIT;
    }
    world->chunks[world->chunk_count].sent = sent;
    world->chunks[world->chunk_count++].context = context;
    return STATUS_OK;
}

static void acknowledge(enum status status)
{
    for (unsigned i = 0; i < world->chunk_count; i++) {
        world->chunks[i].sent(world->chunks[i].context, status, world->endpoint->now_ns);
    }
    world->chunk_count = 0;
}

static void reset_stream(struct net_stream *stream)
{
    fuzz_require(stream == &world->tunnel);
}

static void disconnect(struct net *net, uint32_t peer, const struct error *cause)
{
    (void)net;
    fuzz_require(peer == 0 && cause->status != STATUS_OK && cause->text[0] != '\0');
    world->disconnected = true;
}

static const struct net_operations operations = {.stream_open = open_stream,
                                                 .disconnect = disconnect,
                                                 .streams = {.send = send_chunk, .reset = reset_stream}};

/* --- Handlers --- */

static size_t receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size, bool end,
                      uint64_t now_ns)
{
    (void)context;
    (void)end;
    (void)now_ns;
    static volatile uint8_t sum;
    for (size_t i = 0; i < size; i++) {
        sum = (uint8_t)(sum + bytes[i]);
    }
    if (stream->user == NULL) {
        stream->user = world;
        world->begun++;
        for (unsigned i = 0; i < STREAMS_MAX; i++) {
            if (world->incoming[i] == NULL) {
                world->incoming[i] = stream;
                break;
            }
        }
    }
    switch (fuzz_below(&world->input, 4)) {
    case 0:
        return 0;
    case 1:
        return size / 2;
    case 2:
        tls_stream_expect(stream, fuzz_number(&world->input) % NET_STREAM_WINDOW_BYTES);
        return size;
    default:
        return size;
    }
}

static void closed(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)cause;
    (void)now_ns;
    fuzz_require(stream->user == world);
    world->closed++;
    for (unsigned i = 0; i < STREAMS_MAX; i++) {
        world->incoming[i] = world->incoming[i] == stream ? NULL : world->incoming[i];
    }
}

static void sent(void *context, enum status result, uint64_t now_ns)
{
    (void)context;
    (void)result;
    (void)now_ns;
    world->sent++;
}

/* --- What happens --- */

static void open_one(struct net_stream **stream)
{
    static struct tls_connection connection = {.state = TLS_STATE_OPEN};
    struct tls_peer *peer = world->peer;
    if (*stream == NULL && peer->connection == NULL) {
        peer->connection = &connection; /* streams are only opened on a connection */
        if (net_bulk_open(world->endpoint->base.net, 0, NET_STREAM_DATA, stream, NULL) != STATUS_OK) {
            *stream = NULL;
        }
        peer->connection = NULL;
    }
}

static void send_on(struct net_stream *stream)
{
    size_t bytes = fuzz_number(&world->input) % (PAYLOAD_BYTES + 1);
    bool copied = fuzz_below(&world->input, 2) == 0;
    if (stream != NULL && tls_stream_send(stream, "head", fuzz_below(&world->input, 5), payload, bytes,
                                          copied ? NULL : sent, NULL) == STATUS_OK) {
        world->sends += !copied;
    }
}

static void take(const uint8_t *bytes, size_t size)
{
    if (!tls_reader_take(&world->peer->tunnel_reader, bytes, size)) {
        world->disconnected = true; /* as the tunnel's handler resets the stream */
    }
}

static void frame_comes(void)
{
    struct fuzz_input *input = &world->input;
    uint8_t header[TLS_FRAME_HEADER_BYTES];
    struct tls_frame frame = {.type = (enum tls_frame_type)(1 + fuzz_below(input, 8)),
                              .number = fuzz_number(input),
                              .offset = fuzz_number(input),
                              .end = fuzz_below(input, 3) == 0};
    frame.kind = frame.type == TLS_FRAME_DATA ? NET_STREAM_DATA : 0;
    frame.body_bytes = frame.type == TLS_FRAME_DATA ? (uint32_t)(fuzz_number(input) % sizeof body) : 0;
    tls_frame_encode(&frame, header);
    take(header, sizeof header);
    if (!world->disconnected && frame.body_bytes > 0) {
        take(body, frame.body_bytes);
    }
}

/* A greeting that names streams. Most are of the right session. */
static void greeting_comes(void)
{
    struct fuzz_input *input = &world->input;
    struct quic_greeting_stream incoming[4];
    uint64_t outgoing[4];
    struct quic_greeting greeting = {.own_id = 2, .peer_id = fuzz_below(input, 8) == 0 ? 5 : 1};
    greeting.seen.end = fuzz_below(input, 10);
    for (uint64_t number = 0; number < greeting.seen.end && greeting.incoming_count < 4; number++) {
        if (fuzz_below(input, 2) == 0) {
            uint64_t received = fuzz_number(input);
            incoming[greeting.incoming_count++] = (struct quic_greeting_stream){number, received};
        }
    }
    for (uint64_t number = 0; number < 8 && greeting.outgoing_count < 4; number++) {
        if (fuzz_below(input, 2) == 0) {
            outgoing[greeting.outgoing_count++] = number;
        }
    }
    greeting.incoming = incoming;
    greeting.outgoing = outgoing;
    size_t size = quic_greeting_size(&greeting);
    uint8_t *bytes = malloc(TLS_FRAME_HEADER_BYTES + size);
    struct tls_frame frame = {.type = TLS_FRAME_GREETING,
                              .number = world->peer->epoch + fuzz_below(input, 3),
                              .body_bytes = (uint32_t)size};
    fuzz_require(bytes != NULL);
    tls_frame_encode(&frame, bytes);
    quic_greeting_encode(&greeting, bytes + TLS_FRAME_HEADER_BYTES);
    take(bytes, TLS_FRAME_HEADER_BYTES + size);
    free(bytes);
}

static void step(void)
{
    struct fuzz_input *input = &world->input;
    struct net_stream **stream = &world->streams[fuzz_below(input, STREAMS_MAX)];
    struct net_stream *incoming = world->incoming[fuzz_below(input, STREAMS_MAX)];
    size_t taken;
    const uint8_t *bytes;
    switch (fuzz_below(input, 12)) {
    case 0:
        open_one(stream);
        break;
    case 1:
        send_on(*stream);
        break;
    case 2:
        if (*stream != NULL) {
            tls_stream_finish(*stream);
            *stream = NULL;
        }
        break;
    case 3:
        if (*stream != NULL) {
            tls_sender_reset((struct tls_sender *)*stream);
            *stream = NULL;
        }
        break;
    case 4:
        bytes = fuzz_bytes(input, 1 + fuzz_below(input, 200), &taken);
        take(bytes, taken);
        break;
    case 5:
        greeting_comes();
        break;
    case 6:
        tls_peer_switch(world->peer, NULL, world->peer->epoch + 1);
        break;
    case 7:
        acknowledge(STATUS_OK);
        break;
    case 8:
        if (incoming != NULL) {
            tls_stream_resume(incoming);
        }
        break;
    case 9:
        if (incoming != NULL) {
            tls_receiver_stop((struct tls_receiver *)incoming);
        }
        break;
    default:
        frame_comes();
        break;
    }
    tls_settle(world->endpoint, world->endpoint->now_ns + 1);
}

/* --- The world --- */

static void build(struct loop *loop)
{
    struct tls_endpoint *endpoint = calloc(1, sizeof *endpoint);
    struct tls_peer *peer = calloc(1, sizeof *peer);
    struct net_stream_handler handler = {.receive = receive, .closed = closed};
    fuzz_require(endpoint != NULL && peer != NULL);
    world->net.operations = &operations;
    net_set_stream_handler(&world->net, NET_STREAM_DATA, &handler);
    endpoint->base.net = &world->net;
    world->net.bulk = &endpoint->base;
    endpoint->loop = loop;
    endpoint->done = (struct stream_done){.wake = tls_wake, .context = endpoint};
    endpoint->node_name = "b";
    endpoint->listener = -1;
    endpoint->tick_ns = endpoint->redial_ns = TIME_NEVER;
    fuzz_require(sparse_set(&endpoint->peers, 0, peer));
    fuzz_require(loop_timer_new(loop, tls_woken, endpoint, &endpoint->wake, NULL) == STATUS_OK &&
                 loop_timer_new(loop, tls_ticked, endpoint, &endpoint->tick, NULL) == STATUS_OK);
    peer->endpoint = endpoint;
    peer->epochs = (struct log_limit){.burst = TLS_EPOCHS_MAX, .interval_ns = TLS_EPOCH_NS};
    peer->is_up = true;
    peer->session.own_id = 1;
    peer->tunnel_reader.peer = peer;
    (void)snprintf(peer->name, sizeof peer->name, "a");
    world->endpoint = endpoint;
    world->peer = peer;
}

static void tear_down(void)
{
    struct tls_endpoint *endpoint = world->endpoint;
    struct error cause;
    error_set(&cause, STATUS_NODE_LOST, "the end");
    tls_peer_down(world->peer, &cause, false, endpoint->now_ns);
    fuzz_require(world->sent == world->sends && world->closed == world->begun);
    fuzz_require(world->peer->under_way_bytes == 0 && endpoint->watched == 0);
    for (unsigned i = 0; i < STREAMS_MAX; i++) {
        if (world->streams[i] != NULL) {
            tls_sender_reset((struct tls_sender *)world->streams[i]);
        }
    }
    acknowledge(STATUS_ABORTED);
    fuzz_require(endpoint->lost_senders == NULL && endpoint->chunks == NULL && endpoint->done.first == NULL);
    loop_timer_free(endpoint->wake);
    loop_timer_free(endpoint->tick);
    sparse_free(&endpoint->peers);
    free(world->peer);
    free(endpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct loop *loop;
    log_set_level(LOG_LEVEL_ERROR);
    if (loop == NULL) {
        fuzz_require(loop_new(&loop, NULL) == STATUS_OK);
    }
    world = calloc(1, sizeof *world);
    fuzz_require(world != NULL);
    world->input = (struct fuzz_input){.bytes = data, .size = size};
    build(loop);
    tls_peer_begin(world->peer);
    while (!fuzz_ended(&world->input) && !world->disconnected && !world->peer->failed) {
        step();
    }
    tear_down();
    free(world);
    return 0;
}
