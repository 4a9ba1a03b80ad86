#include "tests/datagrams/virtual_time.h"
#include "tests/lib/case_count.h"
#include "tests/lib/chance.h"
#include "tests/unit/net/session_nodes.h"

/*
 * Links that are cut, and healed, on machines that have much to do: each step of a handshake takes them some
 * milliseconds, and they stand still now and then. Soon after the path has healed, what both sides send
 * arrives. Whatever happens, no session ends, and no side blames the other for a lie. COMMD_CASES=1000 draws
 * more cases.
 */

#define BEAT_NS (125 * TIME_MS)
#define PATIENCE_NS (20 * TIME_S)
#define CASES 60
#define CROWD_CASES 4
#define SPOKES 22u /* so many links has a node with two rails in a cluster of 12 */

static uint64_t next_beat_ns;

/* --- Two nodes --- */

static struct net_stream *to_b, *to_a;

static void beat_pair(void)
{
    if (to_b == NULL) {
        assert_int_equal(net_stream_open(a->net, 0, NET_STREAM_CONTROL, &to_b, NULL), STATUS_OK);
        assert_int_equal(net_stream_open(b->net, 0, NET_STREAM_CONTROL, &to_a, NULL), STATUS_OK);
    }
    assert_int_equal(net_stream_send(to_b, "beat", 4, NULL, 0, NULL, NULL), STATUS_OK);
    assert_int_equal(net_stream_send(to_a, "beat", 4, NULL, 0, NULL, NULL), STATUS_OK);
}

/* Lets time pass, in which `beat` sends something now and then. */
static void pass(void (*beat)(void), uint64_t span_ms)
{
    uint64_t end_ns = loop_now_ns() + span_ms * TIME_MS;
    while (loop_now_ns() < end_ns) {
        if (loop_now_ns() >= next_beat_ns) {
            beat();
            next_beat_ns = loop_now_ns() + BEAT_NS;
        }
        uint64_t left_ms = (end_ns - loop_now_ns()) / TIME_MS + 1;
        quic_run_for(loop, left_ms < 20 ? left_ms : 20);
    }
}

/* The same, and the nodes' processes stand still now and then, each time for at most so long; 0: never. */
static void pass_unsteadily(struct random *random, uint64_t span_ms, uint64_t most_ms)
{
    uint64_t end_ns = loop_now_ns() + span_ms * TIME_MS;
    while (loop_now_ns() < end_ns) {
        uint64_t left_ms = (end_ns - loop_now_ns()) / TIME_MS + 1;
        uint64_t length_ms = most_ms == 0 ? left_ms : 1 + random_below(random, most_ms);
        network_hold(network, "a", most_ms > 0 && random_chance(random, 0.3));
        network_hold(network, "b", most_ms > 0 && random_chance(random, 0.3));
        pass(beat_pair, length_ms < left_ms ? length_ms : left_ms);
    }
    network_hold(network, "a", false);
    network_hold(network, "b", false);
}

static void start_pair(uint64_t seed, const struct network_conditions *conditions, uint64_t patience_ns)
{
    make_nodes(seed, 0, patience_ns);
    connect_nodes();
    net_keep_alive(a->net, 0, true);
    net_keep_alive(b->net, 0, true);
    set_network(conditions);
    to_a = to_b = NULL;
    next_beat_ns = 0;
}

static void end_pair(void)
{
    net_stream_finish(to_a);
    net_stream_finish(to_b);
    free_network();
}

static void assert_session_goes_on(uint64_t seed)
{
    if (a->down_calls[0] + b->down_calls[0] > 0) {
        fail_msg("seed %llu: the session has ended: %s; %s", (unsigned long long)seed, a->down_cause.text,
                 b->down_cause.text);
    }
}

struct drawn {
    struct random random;
    struct network_conditions conditions;
    uint64_t cut_ms;
    bool forth, back; /* which ways are cut */
};

static void draw(struct drawn *drawn, uint64_t seed, uint64_t handshake_ms)
{
    static const double losses[] = {0, 0, 0.01, 0.05};
    struct random *random = &drawn->random;
    random_seed(random, seed * 7919);
    drawn->conditions = (struct network_conditions){.delay_ns = (20 + random_below(random, 1000)) * TIME_US,
                                                    .jitter_ns = random_below(random, 500) * TIME_US,
                                                    .loss = losses[random_below(random, 4)]};
    drawn->conditions.handshake_ns = random_below(random, handshake_ms * TIME_MS + 1);
    drawn->cut_ms = 500 + random_below(random, 3000);
    uint64_t ways = random_below(random, 4);
    drawn->forth = ways != 1;
    drawn->back = ways != 2;
}

/* Returns after how long bytes arrive again on both sides, in ms. */
static uint64_t heal_pair(uint64_t seed, uint64_t handshake_ms, uint64_t still_ms)
{
    struct drawn drawn;
    draw(&drawn, seed, handshake_ms);
    start_pair(seed, &drawn.conditions, PATIENCE_NS);
    pass(beat_pair, 1 + random_below(&drawn.random, 700));
    network_cut(network, "a", "b", drawn.forth);
    network_cut(network, "b", "a", drawn.back);
    pass_unsteadily(&drawn.random, drawn.cut_ms, still_ms);
    cut_network(false);
    unsigned a_bytes = a->control_bytes, b_bytes = b->control_bytes;
    uint64_t begin_ns = loop_now_ns();
    while ((a->control_bytes == a_bytes || b->control_bytes == b_bytes) &&
           loop_now_ns() - begin_ns < PATIENCE_NS / 2) {
        pass(beat_pair, 10);
    }
    uint64_t took_ms = (loop_now_ns() - begin_ns) / TIME_MS;
    assert_session_goes_on(seed);
    end_pair();
    return took_ms;
}

static void heal_pairs(uint64_t handshake_ms, uint64_t still_ms, uint64_t most_ms)
{
    uint64_t worst_ms = 0;
    for (uint64_t seed = 1; seed <= case_count(CASES); seed++) {
        uint64_t took_ms = heal_pair(seed, handshake_ms, still_ms);
        if (took_ms > most_ms) {
            fail_msg("seed %llu: nothing arrives for %llu ms after the path has healed",
                     (unsigned long long)seed, (unsigned long long)took_ms);
        }
        worst_ms = took_ms > worst_ms ? took_ms : worst_ms;
    }
    print_message("# bytes arrive after at most %llu ms\n", (unsigned long long)worst_ms);
}

static void a_path_heals(void **state)
{
    (void)state;
    heal_pairs(50, 0, 1000);
}

static void a_path_heals_between_processes_that_stood_still(void **state)
{
    (void)state;
    heal_pairs(20, 300, 1000);
}

/* A handshake alone takes a second then. */
static void a_path_heals_between_very_slow_machines(void **state)
{
    (void)state;
    heal_pairs(200, 0, 2000);
}

/*
 * The path is there for some milliseconds only, again and again: some connections are lost while one side
 * uses them already, and the other one does not. All that was sent arrives once.
 */
static void a_path_that_heals_for_a_moment_ends_nothing(void **state)
{
    (void)state;
    static const struct network_conditions lossy = {
        .delay_ns = 300 * TIME_US, .jitter_ns = 300 * TIME_US, .loss = 0.2};
    for (uint64_t seed = 1; seed <= case_count(CASES / 4); seed++) {
        struct random random;
        random_seed(&random, seed);
        make_nodes(seed, 0, PATIENCE_NS);
        connect_nodes();
        net_keep_alive(a->net, 0, true);
        net_keep_alive(b->net, 0, true);
        set_network(&lossy);
        struct exchange exchange = begin_exchange(3u << 20);
        for (unsigned i = 0; i < 12; i++) {
            cut_network(true);
            quic_run_for(loop, 700 + random_below(&random, 300));
            cut_network(false);
            quic_run_for(loop, 1 + random_below(&random, 600));
        }
        set_network(&fine);
        assert_session_goes_on(seed);
        end_exchange(&exchange, 30000);
        free_network();
    }
}

/* The patience of one side ends while the other one goes on with the session. Both are told that, and no side
 * says that the other one broke the protocol. */
static void patience_that_ends_on_one_side_first(void **state)
{
    (void)state;
    unsigned ended = 0;
    for (uint64_t seed = 1; seed <= case_count(CASES); seed++) {
        struct random random;
        random_seed(&random, seed);
        struct network_conditions conditions = {.delay_ns = 300 * TIME_US, .handshake_ns = 60 * TIME_MS};
        start_pair(seed, &conditions, 4 * TIME_S);
        pass(beat_pair, 1 + random_below(&random, 700));
        network_cut(network, "a", "b", seed % 3 != 1);
        network_cut(network, "b", "a", seed % 3 != 2);
        quic_run_for(loop, 3600 + random_below(&random, 500));
        cut_network(false);
        quic_run_for(loop, 3000);
        ended += a->down_calls[0] > 0 || b->down_calls[0] > 0;
        if (a->down_cause.status == STATUS_PROTOCOL || b->down_cause.status == STATUS_PROTOCOL) {
            fail_msg("seed %llu: %s; %s", (unsigned long long)seed, a->down_cause.text, b->down_cause.text);
        }
        end_pair();
    }
    assert_true(ended > 0);
}

/* Both nodes' machines stand still, as one that is moved to another host. They have lost nobody. */
static void machines_that_stand_still_lose_nobody(void **state)
{
    (void)state;
    static const uint64_t spans_ms[] = {500, 3000, 5000, 29000, 31000, 100000};
    for (uint64_t i = 0; i < 2 * sizeof spans_ms / sizeof spans_ms[0]; i++) {
        start_pair(1 + i, &fine, 0);
        pass(beat_pair, 1000 + 61 * i);
        if (i % 2 == 1) { /* while the path is cut, and a connection is lost */
            cut_network(true);
            pass(beat_pair, 1000);
        }
        virtual_stand_still(spans_ms[i / 2] * TIME_MS);
        cut_network(false);
        unsigned a_bytes = a->control_bytes, b_bytes = b->control_bytes;
        pass(beat_pair, 1000);
        assert_session_goes_on(i);
        assert_true(a->control_bytes > a_bytes && b->control_bytes > b_bytes);
        end_pair();
    }
}

/* --- A node that all others dial at once --- */

static struct quic_node *hub, *spokes[SPOKES];
static struct net_stream *outward[SPOKES], *inward[SPOKES];

/* Half of the names are below the hub's. */
static const char *spoke_name(unsigned i)
{
    static char names[SPOKES][8];
    (void)snprintf(names[i], sizeof names[i], "%c%u", i % 2 == 0 ? 'a' : 'z', i);
    return names[i];
}

static void beat_crowd(void)
{
    for (unsigned i = 0; i < SPOKES; i++) {
        if (outward[i] == NULL) {
            assert_int_equal(net_stream_open(hub->net, i, NET_STREAM_CONTROL, &outward[i], NULL), STATUS_OK);
            assert_int_equal(net_stream_open(spokes[i]->net, 0, NET_STREAM_CONTROL, &inward[i], NULL),
                             STATUS_OK);
        }
        assert_int_equal(net_stream_send(outward[i], "beat", 4, NULL, 0, NULL, NULL), STATUS_OK);
        assert_int_equal(net_stream_send(inward[i], "beat", 4, NULL, 0, NULL, NULL), STATUS_OK);
    }
}

static bool crowd_is_up(const void *context)
{
    (void)context;
    bool up = true;
    for (unsigned i = 0; i < SPOKES; i++) {
        up = up && hub->up[i] && spokes[i]->up[0];
    }
    return up;
}

static void set_crowd(const struct network_conditions *conditions, bool cut)
{
    for (unsigned i = 0; i < SPOKES; i++) {
        network_set_link(network, "m", spoke_name(i), conditions);
        network_set_link(network, spoke_name(i), "m", conditions);
        network_cut(network, "m", spoke_name(i), cut);
        network_cut(network, spoke_name(i), "m", cut);
    }
}

static void start_crowd(uint64_t seed)
{
    network = network_new_datagrams(seed, &fine, 4700);
    hub = make_node("m", "m", 0, PATIENCE_NS);
    next_beat_ns = 0;
    for (unsigned i = 0; i < SPOKES; i++) {
        spokes[i] = make_node(spoke_name(i), spoke_name(i), 0, PATIENCE_NS);
        (void)add_peer(hub, spoke_name(i));
        (void)add_peer(spokes[i], "m");
        quic_node_connect(hub, i);
        outward[i] = inward[i] = NULL;
    }
    assert_true(quic_run_until(loop, crowd_is_up, NULL, 20000));
    for (unsigned i = 0; i < SPOKES; i++) {
        net_keep_alive(hub->net, i, true);
        net_keep_alive(spokes[i]->net, 0, true);
    }
}

static void end_crowd(void)
{
    for (unsigned i = 0; i < SPOKES; i++) {
        assert_int_equal(spokes[i]->down_calls[0] + hub->down_calls[i], 0);
        net_stream_finish(inward[i]);
        net_stream_finish(outward[i]);
        quic_node_free(spokes[i]);
    }
    quic_node_free(hub);
    network_free(network);
    network = NULL;
}

/* Returns after how long bytes arrive on all links, in ms. */
static uint64_t heal_crowd(uint64_t seed, uint64_t handshake_ms)
{
    struct random random;
    random_seed(&random, seed * 7919);
    start_crowd(seed);
    pass(beat_crowd, 1 + random_below(&random, 700));
    struct network_conditions busy = fine;
    busy.handshake_ns = handshake_ms * TIME_MS;
    set_crowd(&busy, true);
    pass(beat_crowd, 700 + random_below(&random, 2500));
    set_crowd(&busy, false);
    unsigned before[SPOKES], left = SPOKES;
    for (unsigned i = 0; i < SPOKES; i++) {
        before[i] = spokes[i]->control_bytes;
    }
    uint64_t begin_ns = loop_now_ns();
    while (left > 0 && loop_now_ns() - begin_ns < PATIENCE_NS / 2) {
        pass(beat_crowd, 10);
        left = 0;
        for (unsigned i = 0; i < SPOKES; i++) {
            left += spokes[i]->control_bytes == before[i];
        }
    }
    uint64_t took_ms = (loop_now_ns() - begin_ns) / TIME_MS;
    end_crowd();
    return took_ms;
}

static void crowds_heal(uint64_t handshake_ms, uint64_t most_ms)
{
    uint64_t worst_ms = 0;
    for (uint64_t seed = 1; seed <= case_count(CROWD_CASES); seed++) {
        uint64_t took_ms = heal_crowd(seed, handshake_ms);
        worst_ms = took_ms > worst_ms ? took_ms : worst_ms;
        if (took_ms > most_ms) {
            fail_msg("seed %llu: some link carries nothing for %llu ms after the path has healed",
                     (unsigned long long)seed, (unsigned long long)took_ms);
        }
    }
    print_message("# all %u links carry bytes after at most %llu ms\n", SPOKES, (unsigned long long)worst_ms);
}

static void a_crowd_heals(void **state)
{
    (void)state;
    crowds_heal(10, 1500);
}

/* The handshakes of the node in the middle alone take half a second. */
static void a_crowd_heals_around_a_slow_machine(void **state)
{
    (void)state;
    crowds_heal(20, 3000);
}

static int setup_crowd(void **state)
{
    if (setup_files(state) != 0) {
        return -1;
    }
    test_pki_issue(pki, "m", &(struct test_certificate){.name = "m"});
    for (unsigned i = 0; i < SPOKES; i++) {
        test_pki_issue(pki, spoke_name(i), &(struct test_certificate){.name = spoke_name(i)});
    }
    return 0;
}

#define HEALING_TEST(test) cmocka_unit_test_setup_teardown(test, setup_loop, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        HEALING_TEST(a_path_heals),
        HEALING_TEST(a_path_heals_between_processes_that_stood_still),
        HEALING_TEST(a_path_heals_between_very_slow_machines),
        HEALING_TEST(a_path_that_heals_for_a_moment_ends_nothing),
        HEALING_TEST(patience_that_ends_on_one_side_first),
        HEALING_TEST(machines_that_stand_still_lose_nobody),
        HEALING_TEST(a_crowd_heals),
        HEALING_TEST(a_crowd_heals_around_a_slow_machine),
    };
    return cmocka_run_group_tests(tests, setup_crowd, teardown_files);
}
