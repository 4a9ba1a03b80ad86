#include "tests/lib/chance.h"
#include "tests/unit/net/network_nodes.h"

/* net.h's promises, checked on both networks of tests/network. This file checks streams. How streams end is
 * in test_contract_ends.c, connections are in test_contract_connections.c. */

/* --- Transfers --- */

/* The messages of one stream, cut from one buffer. Their sizes are random. The network copies some of them,
 * and some have their first bytes as header. */
struct transfer {
    struct node *node;
    struct net_stream *stream;
    uint8_t *bytes;
    size_t size;
    size_t queued;
    struct sending *sendings;
    uint32_t count, capacity;
    uint64_t order;
};

static void transfer_start(struct transfer *transfer, struct node *node, uint32_t id, size_t size)
{
    *transfer = (struct transfer){.node = node, .stream = pair_open(node), .size = size, .capacity = 100000};
    transfer->bytes = malloc(size);
    transfer->sendings = calloc(transfer->capacity, sizeof *transfer->sendings);
    assert_non_null(transfer->bytes);
    assert_non_null(transfer->sendings);
    pattern_fill(id, 0, transfer->bytes, size);
}

static void transfer_queue(struct transfer *transfer, size_t message_max_bytes)
{
    struct random *random = &transfer->node->random;
    while (transfer->queued < transfer->size) {
        size_t left = transfer->size - transfer->queued;
        size_t size = 1 + (size_t)random_below(random, message_max_bytes);
        size = size < left ? size : left;
        size_t header_bytes = (size_t)random_below(random, NET_STREAM_HEADER_MAX_BYTES + 1);
        header_bytes = header_bytes < size ? header_bytes : size;
        bool copied = random_chance(random, 0.3);
        const uint8_t *at = transfer->bytes + transfer->queued;
        assert_true(transfer->count < transfer->capacity);
        struct sending *sending = copied ? NULL : &transfer->sendings[transfer->count];
        if (sending != NULL) {
            sending->order = &transfer->order;
            sending->number = transfer->count;
        }
        enum status status = node_send(transfer->node, transfer->stream, at, header_bytes, at + header_bytes,
                                       size - header_bytes, sending);
        if (status == STATUS_LIMIT) {
            return;
        }
        assert_int_equal(status, STATUS_OK);
        transfer->count += sending != NULL;
        transfer->queued += size;
    }
}

static void transfer_stop(struct transfer *transfer)
{
    assert_int_equal(transfer->queued, transfer->size);
    assert_int_equal(transfer->order, transfer->count);
    for (uint32_t i = 0; i < transfer->count; i++) {
        assert_int_equal(transfer->sendings[i].done, 1);
        assert_int_equal(transfer->sendings[i].status, STATUS_OK);
    }
    free(transfer->bytes);
    free(transfer->sendings);
}

#define TRANSFERS 6
static const size_t transfer_sizes[TRANSFERS] = {1, 4, 1199, 70001, 400003, 1000000};

/* Queues what there is room for. Returns whether anything is still to be done. */
static bool transfers_turn(struct pair *pair, struct transfer transfers[2][TRANSFERS])
{
    bool busy = false;
    for (uint32_t i = 0; i < 2 * TRANSFERS; i++) {
        struct transfer *transfer = &transfers[i % 2][i / 2];
        transfer_queue(transfer, i / 2 == 3 ? 100 : 20000);
        if (transfer->queued == transfer->size && transfer->stream != NULL) {
            node_call(transfer->node, net_stream_finish, transfer->stream);
            transfer->stream = NULL;
        }
        busy |= transfer->stream != NULL || transfer->order < transfer->count;
    }
    return busy || pair->a->incoming_count + pair->b->incoming_count < 2 * TRANSFERS ||
           pair->a->open_from[0] > 0 || pair->b->open_from[0] > 0;
}

static void check_received(const struct node *receiver, uint32_t side)
{
    assert_int_equal(receiver->incoming_count, TRANSFERS);
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        const struct incoming *incoming = &receiver->incoming[i];
        uint32_t which = (incoming->id & 0xff) - 1 - side * 16;
        assert_true(which < TRANSFERS);
        assert_int_equal(incoming->seen, transfer_sizes[which]);
        assert_true(incoming->end);
        assert_null(incoming->stream);
        assert_int_equal(incoming->status, STATUS_OK);
        if (transfer_sizes[which] > 100000) {
            assert_true(incoming->odd_pieces > incoming->pieces / 8);
        }
    }
}

static void run_transfers(uint64_t seed, const struct network_conditions *conditions, double hold_chance,
                          struct network_counters *counters)
{
    struct pair pair;
    pair_start(&pair, seed, conditions, true);
    pair.a->hold_chance = hold_chance;
    pair.b->hold_chance = hold_chance;
    struct transfer transfers[2][TRANSFERS];
    for (uint32_t side = 0; side < 2; side++) {
        for (uint32_t i = 0; i < TRANSFERS; i++) {
            transfer_start(&transfers[side][i], side == 0 ? pair.a : pair.b,
                           0x01010101u * (side * 16 + i + 1), transfer_sizes[i]);
        }
    }
    for (unsigned turn = 0; turn < 100000 && transfers_turn(&pair, transfers); turn++) {
        pair_run(&pair, 200 * TIME_US);
        node_resume_all(pair.a);
        node_resume_all(pair.b);
    }
    for (uint32_t side = 0; side < 2; side++) {
        check_received(side == 0 ? pair.b : pair.a, side);
        for (uint32_t i = 0; i < TRANSFERS; i++) {
            transfer_stop(&transfers[side][i]);
        }
    }
    network_counters(pair.network, counters);
    assert_int_equal(pair.a->down[0] + pair.b->down[0], 0);
    pair_stop(&pair);
}

static void test_transfers(void **state)
{
    (void)state;
    struct network_counters counters;
    for (uint64_t seed = 1; seed < 3; seed++) {
        run_transfers(seed, &good, seed == 1 ? 0 : 0.3, &counters);
        assert_int_equal(counters.packets_lost, 0);
        run_transfers(seed, &bad, seed == 1 ? 0 : 0.3, &counters);
        assert_int_equal(counters.packets_lost > 0, on_datagrams);
    }
}

static void test_a_seed_reproduces_a_run(void **state)
{
    (void)state;
    struct network_counters first, again, other;
    run_transfers(20, &bad, 0.2, &first);
    run_transfers(20, &bad, 0.2, &again);
    run_transfers(21, &bad, 0.2, &other);
    assert_true(first.trace_hash != 0);
    assert_int_equal(first.packets, again.packets);
    assert_true(first.trace_hash == again.trace_hash);
    assert_true(first.trace_hash != other.trace_hash);
}

static void test_bandwidth(void **state)
{
    (void)state;
    struct network_conditions conditions = {
        .delay_ns = 100 * TIME_US, .bandwidth_bytes_s = 100000000, .packet_bytes = 9000};
    struct pair pair;
    pair_start(&pair, 30, &conditions, true);
    size_t size = 10000000;
    uint8_t *bytes = malloc(size);
    assert_non_null(bytes);
    pattern_fill(7, 0, bytes, size);
    struct net_stream *stream = pair_open(pair.a);
    struct sending sending = {0};
    uint64_t begin_ns = pair.now_ns;
    assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, size, &sending), STATUS_OK);
    node_call(pair.a, net_stream_finish, stream);
    pair_run(&pair, TIME_S);
    assert_int_equal(sending.done, 1);
    uint64_t took_ns = sending.done_ns - begin_ns;
    assert_true(took_ns > 100 * TIME_MS && took_ns < 160 * TIME_MS);
    assert_int_equal(pair.b->incoming[0].seen, size);
    struct net_peer_statistics statistics;
    net_peer_statistics(pair.a->net, 0, &statistics);
    assert_true(statistics.sent_bytes > size && statistics.sent_bytes < size + size / 5);
    assert_true(statistics.round_trip_ns >= 200 * TIME_US);
    net_peer_statistics(pair.b->net, 0, &statistics);
    assert_true(statistics.received_bytes > size);
    free(bytes);
    pair_stop(&pair);
}

/* --- Flow control --- */

static void test_back_pressure(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 40, &bad, true);
    pair.b->hold_all = true;
    size_t piece = NET_STREAM_FIRST_WINDOW_BYTES / 16;
    uint32_t count = 32;
    uint8_t *bytes = malloc(piece * count);
    struct sending *sendings = calloc(count, sizeof *sendings);
    assert_non_null(bytes);
    assert_non_null(sendings);
    pattern_fill(9, 0, bytes, piece * count);
    struct net_stream *stream = pair_open(pair.a);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes + i * piece, piece, &sendings[i]),
                         STATUS_OK);
    }
    net_stream_finish(stream);
    pair_run(&pair, 10 * TIME_S);
    /* The network has taken exactly the first window. On datagrams, the stream's kind needs one byte of it,
     * so one piece less may be done. The receiver was called once, and consumed nothing. */
    for (uint32_t i = 0; i < count - 1; i++) {
        assert_true(sendings[i].done == (i < count / 2) || (on_datagrams && i == count / 2 - 1));
    }
    assert_int_equal(pair.b->incoming[0].pieces, 1);
    /* net_stream_resume does not call the receiver from within the call. The receiver then gets all bytes
     * again. */
    pair.b->hold_all = false;
    node_resume_all(pair.b);
    assert_int_equal(pair.b->incoming[0].pieces, 1);
    network_advance(pair.network, pair.now_ns);
    assert_int_equal(pair.b->incoming[0].pieces, 2);
    assert_true(pair.b->incoming[0].seen <= NET_STREAM_FIRST_WINDOW_BYTES &&
                pair.b->incoming[0].seen > NET_STREAM_FIRST_WINDOW_BYTES - piece);
    pair_run(&pair, 10 * TIME_S);
    assert_int_equal(pair.b->incoming[0].seen, piece * count);
    assert_int_equal(pair.b->open_from[0], 0);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(sendings[i].done, 1);
    }
    free(sendings);
    free(bytes);
    pair_stop(&pair);
}

static void resume_at_once(struct node *node, struct incoming *incoming)
{
    if (incoming->held) {
        incoming->held = false;
        node_call(node, net_stream_resume, incoming->stream);
    }
}

static void test_resume_from_within_receive(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 41, &bad, true);
    pair.b->hold_chance = 0.7;
    pair.b->on_receive = resume_at_once;
    static uint8_t bytes[100000];
    pattern_fill(3, 0, bytes, sizeof bytes);
    struct net_stream *stream = pair_open(pair.a);
    struct sending sending = {0};
    assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, sizeof bytes, &sending), STATUS_OK);
    net_stream_finish(stream);
    pair_run(&pair, 5 * TIME_S);
    assert_int_equal(pair.b->incoming[0].seen, sizeof bytes);
    assert_int_equal(pair.b->incoming[0].status, STATUS_OK);
    assert_null(pair.b->incoming[0].stream);
    assert_int_equal(sending.status, STATUS_OK);
    pair_stop(&pair);
}

static void test_one_held_stream_does_not_stop_another(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 42, &good, true);
    size_t size = 2 * NET_STREAM_WINDOW_BYTES;
    uint8_t *bytes = malloc(size);
    assert_non_null(bytes);
    pattern_fill(5, 0, bytes, size);
    struct sending sendings[2] = {{0}, {0}};
    struct net_stream *held = pair_open(pair.a);
    pair.b->hold_all = true;
    assert_int_equal(node_send(pair.a, held, NULL, 0, bytes, size, &sendings[0]), STATUS_OK);
    pair_run(&pair, TIME_S);
    pair.b->hold_all = false;
    struct net_stream *stream = pair_open(pair.a);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, size, &sendings[1]), STATUS_OK);
    pair_run(&pair, TIME_S);
    assert_int_equal(sendings[0].done, 0);
    assert_int_equal(sendings[1].done, 1);
    assert_int_equal(pair.b->incoming[1].seen, size);
    net_stream_reset(held);
    net_stream_finish(stream);
    pair_run(&pair, TIME_S);
    assert_int_equal(sendings[0].status, STATUS_ABORTED);
    free(bytes);
    pair_stop(&pair);
}

/* --- Buffers --- */

static uint8_t seen_bytes[16];
static size_t seen_count;

static size_t collect(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size, bool end,
                      uint64_t now_ns)
{
    (void)context, (void)stream, (void)end, (void)now_ns;
    assert_true(seen_count + size <= sizeof seen_bytes);
    memcpy(seen_bytes + seen_count, bytes, size);
    seen_count += size;
    return size;
}

static void test_what_is_lent_is_read_until_it_is_sent(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 50, &good, true);
    struct net_stream_handler handler = {.receive = collect};
    net_set_stream_handler(pair.b->net, NET_STREAM_CONTROL, &handler);
    struct net_stream *stream = NULL;
    assert_int_equal(net_stream_open(pair.a->net, 0, NET_STREAM_CONTROL, &stream, NULL), STATUS_OK);
    char header[] = "head";
    char payload[] = "lent";
    char copied[] = "copy";
    struct sending sending = {0};
    seen_count = 0;
    network_cut(pair.network, "a", "b", true);
    assert_int_equal(node_send(pair.a, stream, header, 4, payload, 4, &sending), STATUS_OK);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, copied, 4, NULL), STATUS_OK);
    memcpy(header, "HEAD", 4);
    memcpy(payload, "LENT", 4);
    memcpy(copied, "COPY", 4);
    network_cut(pair.network, "a", "b", false);
    pair_run(&pair, TIME_S);
    assert_int_equal(sending.done, 1);
    /* The network reads a lent payload until it is sent, so the change of it shows. The network has copied
     * the header and the other message, so their changes do not show. */
    assert_int_equal(seen_count, 12);
    assert_memory_equal(seen_bytes, "headLENTcopy", 12);
    net_stream_finish(stream);
    pair_stop(&pair);
}

static uint64_t seen_of(const struct node *node, uint32_t id)
{
    for (uint32_t i = 0; i < node->incoming_count; i++) {
        if (node->incoming[i].id == id) {
            return node->incoming[i].seen;
        }
    }
    return 0;
}

static void test_limits_of_a_stream(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 51, &good, true);
    network_cut(pair.network, "a", "b", true);
    static struct sending sendings[NET_STREAM_QUEUE_MAX];
    memset(sendings, 0, sizeof sendings);
    static uint8_t bytes[NET_STREAM_QUEUE_MAX];
    pattern_fill(1, 0, bytes, sizeof bytes);
    struct net_stream *stream = pair_open(pair.a);
    uint32_t most = NET_STREAM_QUEUE_MAX - on_datagrams; /* over QUIC, the stream's beginning is the first */
    for (uint32_t i = 0; i < most; i++) {
        assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes + i, 1, &sendings[i]), STATUS_OK);
    }
    assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, 1, NULL), STATUS_LIMIT);
    size_t room = NET_STREAM_COPY_MAX_BYTES - (on_datagrams ? 9 : 0); /* likewise, its kind and number */
    struct net_stream *copies = pair_open(pair.a);
    uint8_t *large = calloc(1, NET_STREAM_COPY_MAX_BYTES + 1);
    assert_non_null(large);
    pattern_fill(2, 0, large, NET_STREAM_COPY_MAX_BYTES + 1);
    assert_int_equal(node_send(pair.a, copies, NULL, 0, large, NET_STREAM_COPY_MAX_BYTES + 1, NULL),
                     STATUS_LIMIT);
    assert_int_equal(node_send(pair.a, copies, NULL, 0, large, room - 1, NULL), STATUS_OK);
    assert_int_equal(node_send(pair.a, copies, NULL, 0, large, 2, NULL), STATUS_LIMIT);
    assert_int_equal(node_send(pair.a, copies, NULL, 0, large + room - 1, 1, NULL), STATUS_OK);
    /* The stream contains nothing of the refused messages. A message that leaves the queue makes room. */
    network_cut(pair.network, "a", "b", false);
    pair_run(&pair, 10 * TIME_S);
    assert_int_equal(sendings[most - 1].done, 1);
    assert_int_equal(seen_of(pair.b, 1), most);
    assert_int_equal(seen_of(pair.b, 2), room);
    assert_int_equal(node_send(pair.a, copies, NULL, 0, large + room, 1, NULL), STATUS_OK);
    pair_run(&pair, TIME_S);
    assert_int_equal(seen_of(pair.b, 2), room + 1);
    net_stream_finish(stream);
    net_stream_finish(copies);
    pair_run(&pair, TIME_S);
    assert_int_equal(pair.b->open_from[0], 0);
    free(large);
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_a_seed_reproduces_a_run),
        cmocka_unit_test(test_bandwidth),
        cmocka_unit_test(test_back_pressure),
        cmocka_unit_test(test_resume_from_within_receive),
        cmocka_unit_test(test_one_held_stream_does_not_stop_another),
        cmocka_unit_test(test_what_is_lent_is_read_until_it_is_sent),
        cmocka_unit_test(test_limits_of_a_stream),
    };
    return cmocka_run_group_tests_name("pipes", tests, use_pipes, NULL) |
           cmocka_run_group_tests_name("datagrams", tests, use_datagrams, NULL);
}
