#include "tests/lib/chance.h"
#include "tests/unit/net/network_nodes.h"

/* Anything may happen at any time, on both networks of tests/network. */

#define CHAOS_NODES 5
#define CHAOS_STREAMS 64

/* Handlers and the loop make random calls that net.h allows. The nodes check that net.h's promises still
 * hold. */
struct chaos {
    struct network *network;
    struct node *nodes[CHAOS_NODES];
    struct net_stream *streams[CHAOS_NODES][CHAOS_STREAMS];
    struct random random;
    uint8_t *bytes;
    struct sending *sendings;
    uint32_t sending_count;
    unsigned depth;
    uint64_t received; /* bytes */
};

static struct chaos chaos;
#define CHAOS_BYTES 200000
#define CHAOS_SENDINGS 200000

static void chaos_act(struct node *node);

static void chaos_sent(struct sending *sending)
{
    chaos_act(sending->node);
}

static void chaos_stream(uint32_t who, uint32_t slot)
{
    struct node *node = chaos.nodes[who];
    struct net_stream **stream = &chaos.streams[who][slot];
    if (*stream == NULL) {
        uint32_t peer = (uint32_t)random_below(&chaos.random, CHAOS_NODES - 1);
        enum status status = net_stream_open(node->net, peer, NET_STREAM_DATA, stream, NULL);
        assert_true(status == STATUS_OK || status == STATUS_UNREACHABLE);
        if (status == STATUS_OK) {
            (*stream)->user = calloc(1, sizeof(uint64_t)); /* bytes queued so far */
            assert_non_null((*stream)->user);
        }
        return;
    }
    uint64_t *queued = (*stream)->user;
    uint64_t dice = random_below(&chaos.random, 10);
    if (dice >= 2) {
        size_t size = 1 + (size_t)random_below(&chaos.random, dice == 9 ? 30000 : 300);
        if (*queued + size <= CHAOS_BYTES && chaos.sending_count < CHAOS_SENDINGS) {
            struct sending *sending = &chaos.sendings[chaos.sending_count++];
            sending->on_sent = chaos_sent;
            sending->done = 0;
            if (node_send(node, *stream, NULL, 0, chaos.bytes + *queued, size, dice == 8 ? NULL : sending) ==
                STATUS_OK) {
                *queued += size;
            }
            return;
        }
    }
    struct net_stream *over = *stream;
    *stream = NULL;
    free(over->user);
    over->user = NULL;
    node_call(node, dice == 0 ? net_stream_reset : net_stream_finish, over);
}

static void chaos_act(struct node *node)
{
    uint32_t who = (uint32_t)(node->name[0] - 'a');
    if (node->net == NULL || chaos.depth > 3) {
        return;
    }
    chaos.depth++;
    struct random *random = &chaos.random;
    uint32_t peer = (uint32_t)random_below(random, CHAOS_NODES - 1);
    struct error cause;
    error_set(&cause, STATUS_ABORTED, "at random");
    bool outermost = !node->calling;
    uint64_t dice = random_below(random, 200);
    if (dice < 160) {
        chaos_stream(who, (uint32_t)random_below(random, CHAOS_STREAMS));
    } else if (dice < 180 && node->incoming_count > 0) {
        struct incoming *incoming = &node->incoming[random_below(random, node->incoming_count)];
        if (incoming->stream != NULL) {
            incoming->held = false;
            node_call(node, dice < 163 ? net_stream_reset : net_stream_resume, incoming->stream);
        }
    } else if (dice < 199) {
        node->calling = true;
        assert_int_equal(net_connect(node->net, peer, NULL), STATUS_OK);
        node->calling = !outermost;
    } else if (random_below(random, 4) == 0) {
        node->calling = true;
        net_disconnect(node->net, peer, &cause);
        node->calling = !outermost;
    }
    chaos.depth--;
}

static void chaos_closed(struct node *node, struct incoming *incoming)
{
    chaos.received += incoming->seen;
    chaos_act(node);
}

static void chaos_received(struct node *node, struct incoming *incoming)
{
    (void)incoming;
    chaos_act(node);
}

static void chaos_down(struct node *node, uint32_t peer)
{
    node_connect(node, peer);
    chaos_act(node);
}

static void chaos_start_node(uint32_t who, uint64_t seed)
{
    char name[2] = {(char)('a' + who), '\0'};
    struct node *node = chaos.nodes[who];
    node_start(node, chaos.network, name, seed);
    node->hold_chance = 0.2;
    node->on_receive = chaos_received;
    node->on_closed = chaos_closed;
    node->recycle = true;
    node->on_peer_down = chaos_down;
    for (uint32_t i = 0; i < CHAOS_NODES; i++) {
        char peer[2] = {(char)('a' + i), '\0'};
        if (i != who) {
            (void)node_knows(node, peer);
        }
    }
}

static void chaos_stop_node(uint32_t who)
{
    struct node *node = chaos.nodes[who];
    for (uint32_t i = 0; i < CHAOS_STREAMS; i++) {
        if (chaos.streams[who][i] != NULL) {
            free(chaos.streams[who][i]->user);
            chaos.streams[who][i] = NULL;
        }
    }
    chaos.depth = 100; /* the nodes' handlers do nothing while the net is freed */
    node_stop(node);
    chaos.depth = 0;
}

static void chaos_turn(uint64_t turn)
{
    struct random *random = &chaos.random;
    for (uint32_t who = 0; who < CHAOS_NODES; who++) {
        chaos_act(chaos.nodes[who]);
    }
    if (turn % 100 == 99) {
        char from[2] = {(char)('a' + random_below(random, CHAOS_NODES)), '\0'};
        char to[2] = {(char)('a' + random_below(random, CHAOS_NODES)), '\0'};
        network_cut(chaos.network, from, to, random_chance(random, 0.3));
    }
    if (turn % 1000 == 999) {
        uint32_t who = (uint32_t)random_below(random, CHAOS_NODES);
        if (random_chance(random, 0.5)) {
            network_kill(chaos.network, chaos.nodes[who]->name);
        }
        chaos_stop_node(who);
        chaos_start_node(who, turn);
    }
}

static uint64_t run_chaos(uint64_t seed)
{
    memset(&chaos, 0, sizeof chaos);
    random_seed(&chaos.random, seed);
    log_set_level(LOG_LEVEL_ERROR);
    chaos.network = on_datagrams ? network_new_datagrams(seed, &bad, 4700) : network_new_pipes(seed, &bad);
    chaos.bytes = malloc(CHAOS_BYTES);
    chaos.sendings = calloc(CHAOS_SENDINGS, sizeof *chaos.sendings);
    assert_non_null(chaos.bytes);
    assert_non_null(chaos.sendings);
    pattern_fill(0xabcdef, 0, chaos.bytes, CHAOS_BYTES);
    for (uint32_t who = 0; who < CHAOS_NODES; who++) {
        chaos.nodes[who] = malloc(sizeof *chaos.nodes[who]);
        assert_non_null(chaos.nodes[who]);
        chaos_start_node(who, seed + who);
    }
    uint64_t now_ns = 0;
    for (uint64_t turn = 0; turn < (on_datagrams ? 2000u : 5000u); turn++) {
        chaos_turn(turn);
        run_for(chaos.network, &now_ns,
                random_below(&chaos.random, turn % 500 == 0 ? 40 * TIME_S : 2 * TIME_MS));
    }
    unsigned connected = 0;
    for (uint32_t who = 0; who < CHAOS_NODES; who++) {
        for (uint32_t i = 0; i < CHAOS_NODES - 1; i++) {
            connected += chaos.nodes[who]->up[i];
        }
        chaos_stop_node(who);
        free(chaos.nodes[who]);
    }
    assert_true(connected > 20);
    assert_true(chaos.received > 1000000);
    assert_true(chaos.sending_count > 1000 && chaos.sending_count < CHAOS_SENDINGS);
    struct network_counters counters;
    network_counters(chaos.network, &counters);
    free(chaos.sendings);
    free(chaos.bytes);
    network_free(chaos.network);
    return counters.trace_hash;
}

static void test_chaos(void **state)
{
    (void)state;
    uint64_t first = run_chaos(1);
    for (uint64_t seed = 2; seed < (on_datagrams ? 3u : 6u); seed++) {
        assert_true(run_chaos(seed) != first);
    }
    assert_true(run_chaos(1) == first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chaos),
    };
    int failed = cmocka_run_group_tests_name("pipes", tests, NULL, NULL);
    on_datagrams = true;
    return failed | cmocka_run_group_tests_name("datagrams", tests, NULL, NULL);
}
