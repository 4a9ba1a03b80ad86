#include "tests/unit/p2p/staging_nodes.h"

/* Messages from and to GPUs, which are doubles, between two nodes and within one. */

/* Ranks 0 and 2 are on one node, rank 1 is on the other. */
static void one_message(size_t bytes, int from, int to, uint32_t receiver, bool receive_first, size_t room)
{
    struct buffer source = buffer_new(from, bytes), sink = buffer_new(to, bytes + room);
    struct posted send, receive;
    buffer_fill(&source, bytes);
    if (receive_first) {
        message_receive(&receive, receiver, COMM_ANY_SOURCE_RANK, 7, &sink);
        nodes_turns(3);
        message_send(&send, 0, receiver, 7, &source);
    } else {
        message_send(&send, 0, receiver, 7, &source);
        nodes_turns(300); /* its envelope has come */
        message_receive(&receive, receiver, 0, 7, &sink);
    }
    nodes_wait(0);
    CHECK_RESULT(send.result.status, STATUS_OK);
    CHECK_RESULT(receive.result.status, STATUS_OK);
    CHECK(receive.source == 0 && receive.count == bytes);
    buffer_check(&sink, bytes, bytes);
    buffer_free(&source);
    buffer_free(&sink);
}

static void all_places(const size_t *sizes, size_t size_count)
{
    static const int places[][2] = {{0, 1}, {1, 1}, {0, ON_HOST}, {ON_HOST, 1}};
    for (size_t s = 0; s < size_count; s++) {
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            for (uint32_t receiver = 1; receiver <= 2; receiver++) {
                bool first = (s + p + receiver) % 2 == 0;
                one_message(sizes[s], places[p][0], places[p][1], receiver, first, p % 2 * 100);
            }
        }
    }
}

static void boundaries(int unused)
{
    static const size_t sizes[] = {0,
                                   1,
                                   MESSAGE_EAGER_MAX_BYTES,
                                   MESSAGE_EAGER_MAX_BYTES + 1,
                                   65536,
                                   CHUNK - 1,
                                   CHUNK,
                                   CHUNK + 1,
                                   RING,
                                   RING + 1,
                                   3 * RING + 4711};
    (void)unused;
    nodes_start(NULL);
    all_places(sizes, sizeof sizes / sizeof sizes[0]);
    /* With one message at a time, each node has a ring for each direction, and words of queues. */
    CHECK(gpu_pinned_bytes(nodes.gpus) <= 4 * RING + (1u << 20));
    nodes_stop();
}

static void test_boundaries(void **state)
{
    (void)state;
    case_run(boundaries);
}

/* Within a node, between GPUs that reach each other, nothing goes through the host. */
static void direct(int unused)
{
    (void)unused;
    nodes_start(NULL);
    for (int to = 0; to < 2; to++) {
        one_message(100, 0, to, 2, true, 0);
        one_message(3 * RING, 0, to, 2, false, 10);
    }
    CHECK(gpu_pinned_bytes(nodes.gpus) <= 65536); /* words of queues */
    nodes_stop();
}

static void test_direct(void **state)
{
    (void)state;
    case_run(direct);
}

static void late_gpus(int unused)
{
    static const size_t sizes[] = {0, 1000, CHUNK + 1, 2 * RING + 1};
    (void)unused;
    nodes_start(NULL);
    all_places(sizes, sizeof sizes / sizeof sizes[0]);
    nodes_stop();
}

static void test_late_gpus(void **state)
{
    (void)state;
    setenv("CUDA_DOUBLE_DELAY_US", "500", 1);
    case_run(late_gpus);
    setenv("CUDA_DOUBLE_PEER", "0", 1);
    case_run(late_gpus);
    unsetenv("CUDA_DOUBLE_PEER");
    unsetenv("CUDA_DOUBLE_DELAY_US");
}

/* --- The pipeline --- */

static uint64_t stream_bytes(void)
{
    struct network_counters counters;
    network_counters(nodes.network, &counters);
    return counters.stream_bytes;
}

/* Returns how many bytes of a message have arrived, as far as that node knows. */
static uint64_t bytes_there(const struct posted *posted)
{
    char text[192];
    unsigned long long bytes = 0;
    p2p_describe(&posted->message, text, sizeof text);
    const char *at = strstr(text, "on its way, ");
    CHECK(at == NULL || sscanf(at, "on its way, %llu of", &bytes) == 1);
    return bytes;
}

/* The first bytes are on the receiver's GPU long before the last ones have left the sender. */
static void stages_overlap(int unused)
{
    enum { RINGS = 6 };
    struct network_conditions slow = {
        .delay_ns = 50 * TIME_US, .packet_bytes = 65536, .bandwidth_bytes_s = 1000000000};
    (void)unused;
    nodes_start(&slow);
    struct buffer source = buffer_new(0, RINGS * RING), sink = buffer_new(1, RINGS * RING);
    struct posted send, receive;
    buffer_fill(&source, 1);
    uint64_t before = stream_bytes(), arrived_early = 0, freed_early = 0;
    message_send(&send, 0, 1, 7, &source);
    message_receive(&receive, 1, 0, 7, &sink);
    while (stream_bytes() - before <= source.bytes - CHUNK) {
        nodes_turn();
        CHECK(send.calls + receive.calls == 0);
        if (stream_bytes() - before <= source.bytes - CHUNK) {
            uint64_t sent = stream_bytes() - before, there = bytes_there(&receive);
            CHECK(there <= sent && (there == 0 || there + 2 * RING >= sent - CHUNK));
            arrived_early = there;
            freed_early = bytes_there(&send);
        }
    }
    nodes_wait(0);
    buffer_check(&sink, 1, sink.bytes);
    /* All but what two rings hold was on the receiver's GPU before the last chunk had left. */
    CHECK(arrived_early >= (RINGS - 2) * RING && freed_early >= (RINGS - 2) * RING);
    CHECK(gpu_pinned_bytes(nodes.gpus) <= 2 * RING + (1u << 20));
    buffer_free(&source);
    buffer_free(&sink);
    nodes_stop();
}

static void test_stages_overlap(void **state)
{
    (void)state;
    case_run(stages_overlap);
}

/* --- Many at once --- */

#define MANY 24u

/* More messages than there is memory for, in both directions between two nodes and within both. They are
 * received in another order than sent. Those that are received last hold up no others. */
static void many(int unused)
{
    static struct posted sends[4][MANY], receives[4][MANY];
    static struct buffer sources[4][MANY], sinks[4][MANY];
    static const uint32_t ways[4][2] = {{0, 1}, {1, 0}, {0, 2}, {3, 1}};
    static const size_t sizes[] = {RING + 1, 5000, 3 * CHUNK, 0, 20000, RING};
    (void)unused;
    nodes_start(NULL);
    for (uint32_t w = 0; w < 4; w++) {
        for (uint32_t i = 0; i < MANY; i++) {
            size_t bytes = sizes[i % 6];
            sources[w][i] = buffer_new(i % 5 == 4 ? ON_HOST : (int)(i % 2), bytes);
            sinks[w][i] = buffer_new(i % 7 == 6 ? ON_HOST : (int)((i + w) % 2), bytes + 3);
            buffer_fill(&sources[w][i], w * 100 + i);
            message_send(&sends[w][i], ways[w][0], ways[w][1], i, &sources[w][i]);
        }
        nodes_turns(50);
    }
    for (uint32_t i = MANY; i-- > 0;) {
        for (uint32_t w = 0; w < 4; w++) {
            message_receive(&receives[w][i], ways[w][1], i % 3 == 0 ? COMM_ANY_SOURCE_RANK : ways[w][0], i,
                            &sinks[w][i]);
        }
        nodes_turns(i % 5);
        if (i == 3) {
            nodes_wait(40);
        }
    }
    nodes_wait(0);
    /* For an any-source receive, the receiver's rank does not tell the sender: both senders to rank 1 use all
     * tags. */
    for (uint32_t w = 0; w < 4; w++) {
        for (uint32_t i = 0; i < MANY; i++) {
            CHECK_RESULT(sends[w][i].result.status, STATUS_OK);
            CHECK_RESULT(receives[w][i].result.status, STATUS_OK);
            uint32_t of = receives[w][i].source == ways[w][0] ? w : 3 - w;
            CHECK(receives[w][i].source == ways[of][0] && receives[w][i].count == sources[of][i].bytes);
            buffer_check(&sinks[w][i], of * 100 + i, sources[of][i].bytes);
            buffer_free(&sources[w][i]);
        }
    }
    for (uint32_t w = 0; w < 4; w++) {
        for (uint32_t i = 0; i < MANY; i++) {
            buffer_free(&sinks[w][i]);
        }
    }
    /* The limit is for what is in use. Kept memory of one size does not serve another size. */
    CHECK(gpu_pinned_bytes(nodes.gpus) <= 6 * P2P_PIPES_MAX_BYTES);
    nodes_stop();
}

static void test_many_at_once(void **state)
{
    (void)state;
    setenv("CUDA_DOUBLE_MEMORY_BYTES", "4294967296", 1);
    case_run(many);
    unsetenv("CUDA_DOUBLE_MEMORY_BYTES");
}

/* Each of the two nodes accepts as much as it has memory for. Sends have their own memory. */
static void both_ways(int unused)
{
    enum { COUNT = 12 };
    static struct posted sends[2][COUNT], receives[2][COUNT];
    struct buffer source, sinks[2][COUNT];
    (void)unused;
    nodes_start(NULL);
    source = buffer_new(0, RING + 1);
    buffer_fill(&source, 5);
    for (uint32_t way = 0; way < 2; way++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            sinks[way][i] = buffer_new(1, RING + 1);
            message_send(&sends[way][i], way, 1 - way, i, &source);
            message_receive(&receives[way][i], 1 - way, way, i, &sinks[way][i]);
        }
    }
    nodes_wait(0);
    for (uint32_t i = 0; i < 2 * COUNT; i++) {
        CHECK_RESULT(receives[i % 2][i / 2].result.status, STATUS_OK);
        buffer_check(&sinks[i % 2][i / 2], 5, RING + 1);
        buffer_free(&sinks[i % 2][i / 2]);
    }
    /* All of it was used, and no more. */
    CHECK(gpu_pinned_bytes(nodes.gpus) >= 2 * P2P_PIPES_MAX_BYTES);
    CHECK(gpu_pinned_bytes(nodes.gpus) <= 4 * P2P_PIPES_MAX_BYTES + (1u << 20));
    buffer_free(&source);
    nodes_stop();
}

static void test_both_ways_at_once(void **state)
{
    (void)state;
    case_run(both_ways);
}

/* Messages of one sender, receiver and tag: small ones behind large ones, and large ones behind
 * small ones. */
static void in_order(int unused)
{
    enum { COUNT = 12 };
    static const size_t sizes[] = {100, RING + 7, 16000, 0, CHUNK, 30000};
    struct buffer sources[COUNT], sinks[COUNT];
    struct posted sends[COUNT], receives[COUNT];
    (void)unused;
    nodes_start(NULL);
    for (uint32_t receiver = 1; receiver <= 2; receiver++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            sources[i] = buffer_new(i % 4 == 3 ? ON_HOST : (int)(i % 2), sizes[i % 6]);
            sinks[i] = buffer_new((int)(i % 2), RING + 7);
            buffer_fill(&sources[i], i);
            message_send(&sends[i], 0, receiver, 1, &sources[i]);
        }
        for (uint32_t i = 0; i < COUNT; i++) {
            message_receive(&receives[i], receiver, 0, 1, &sinks[i]);
        }
        nodes_wait(0);
        for (uint32_t i = 0; i < COUNT; i++) {
            CHECK(receives[i].count == sizes[i % 6]);
            buffer_check(&sinks[i], i, sizes[i % 6]);
            buffer_free(&sources[i]);
            buffer_free(&sinks[i]);
        }
    }
    nodes_stop();
}

static void test_in_order(void **state)
{
    (void)state;
    case_run(in_order);
    setenv("CUDA_DOUBLE_DELAY_US", "1000", 1);
    case_run(in_order);
    unsetenv("CUDA_DOUBLE_DELAY_US");
}

/* --- Streams of the clients --- */

static bool is_described(const struct posted *posted, const char *as)
{
    char text[192];
    p2p_describe(&posted->message, text, sizeof text);
    return strstr(text, as) != NULL;
}

/* A send that waits for its stream holds back the sends behind it. A receive that waits for its stream writes
 * nothing. */
static void words(int unused)
{
    static _Atomic uint64_t sends_word, receives_word;
    static const size_t sizes[] = {5, 100000, CHUNK + 1};
    static const int places[] = {0, ON_HOST};
    struct fence of_sends = {.word = &sends_word, .value = 1},
                 of_receives = {.word = &receives_word, .value = 1};
    (void)unused;
    nodes_start(NULL);
    for (size_t s = 0; s < 3; s++) {
        for (uint32_t p = 0; p < 4; p++) {
            uint32_t receiver = 1 + p / 2;
            struct buffer sources[2], sinks[2];
            struct posted sends[2], receives[2];
            sends_word = receives_word = 0;
            for (uint32_t i = 0; i < 2; i++) {
                sources[i] = buffer_new(places[p % 2], sizes[s]);
                sinks[i] = buffer_new(places[p % 2], sizes[s]);
                buffer_fill(&sources[i], 77); /* changed again before the stream is there */
                CHECK_RESULT(message_post(&sends[i], true, 0, receiver, 1, &sources[i],
                                          i == 0 ? &of_sends : NULL, NULL),
                             STATUS_OK);
                CHECK_RESULT(message_post(&receives[i], false, receiver, 0, 1, &sinks[i],
                                          i == 0 ? &of_receives : NULL, NULL),
                             STATUS_OK);
            }
            nodes_turns(2000);
            CHECK(nodes.under_way == 4);
            CHECK(is_described(&sends[0], "send to") && is_described(&sends[0], "waiting for its stream"));
            CHECK(is_described(&receives[0], ": nothing has come"));
            for (uint32_t i = 0; i < 2; i++) {
                buffer_fill(&sources[i], i);
            }
            sends_word = 1;
            nodes_wait(sizes[s] <= MESSAGE_EAGER_MAX_BYTES ? 1 : 2);
            nodes_turns(2000);
            CHECK(receives[0].calls == 0 && receives[1].calls == 1);
            CHECK(is_described(&receives[0], "waiting for its stream"));
            buffer_check(&sinks[0], 0, 0);
            receives_word = 2;
            nodes_wait(0);
            for (uint32_t i = 0; i < 2; i++) {
                buffer_check(&sinks[i], i, sizes[s]);
                buffer_free(&sources[i]);
                buffer_free(&sinks[i]);
            }
        }
    }
    nodes_stop();
}

static void test_streams_are_waited_for(void **state)
{
    (void)state;
    case_run(words);
}

/* --- Contradictions --- */

static void too_long(int unused)
{
    static const size_t sizes[] = {10, RING};
    (void)unused;
    nodes_start(NULL);
    for (size_t s = 0; s < 2; s++) {
        for (uint32_t receiver = 1; receiver <= 2; receiver++) {
            struct buffer source = buffer_new(0, sizes[s]), sink = buffer_new(1, sizes[s] - 1);
            struct posted send, receive;
            char expected[128];
            message_send(&send, 0, receiver, 3, &source);
            nodes_turns(receiver == 1 ? 100 : 0);
            message_receive(&receive, receiver, 0, 3, &sink);
            nodes_wait(0);
            (void)snprintf(expected, sizeof expected,
                           "\"test\": rank 0 sent %zu u8 to rank %u, tag 3; its recv has room for %zu u8",
                           sizes[s], receiver, sizes[s] - 1);
            CHECK_RESULT(receive.result.status, STATUS_MISMATCH);
            CHECK(strcmp(receive.result.text, expected) == 0);
            bool eager = sizes[s] <= MESSAGE_EAGER_MAX_BYTES;
            CHECK_RESULT(send.result.status, eager ? STATUS_OK : STATUS_MISMATCH);
            CHECK(eager || strcmp(send.result.text, expected) == 0);
            buffer_check(&sink, 0, 0);
            buffer_free(&source);
            buffer_free(&sink);
        }
    }
    nodes_stop();
}

static void test_too_long(void **state)
{
    (void)state;
    case_run(too_long);
}

/* --- Charged --- */

static uint64_t used(enum budget_kind kind)
{
    struct budget_info info;
    budget_account_info(nodes_account, &info);
    return info.used[kind];
}

/* The memory through which messages go is charged to their user. Messages of one communicator wait for each
 * other's memory. A message that has nothing to wait for ends with LIMIT, and so does its other side. */
static void charged(int unused)
{
    enum { COUNT = 6 };
    static struct posted sends[COUNT], receives[COUNT];
    struct buffer sources[COUNT], sinks[COUNT];
    struct budget *budget;
    (void)unused;
    CHECK_RESULT(budget_new(NULL, &budget, NULL), STATUS_OK);
    CHECK_RESULT(budget_open(budget, 1000, NULL, &nodes_account, NULL), STATUS_OK);
    nodes_start(NULL);
    for (uint32_t i = 0; i < COUNT; i++) {
        sources[i] = buffer_new(0, RING);
        sinks[i] = buffer_new(1, RING);
        buffer_fill(&sources[i], i);
    }
    static const uint64_t ceilings[] = {0, 2 * RING, RING};
    uint64_t communicators = used(BUDGET_COMMUNICATOR_BYTES);
    for (uint32_t c = 0; c < 3; c++) {
        uint64_t most = 0;
        budget_set_ceiling(budget, BUDGET_LANES, ceilings[c]);
        for (uint32_t i = 0; i < COUNT; i++) {
            message_send(&sends[i], 0, 1, i, &sources[i]);
            message_receive(&receives[i], 1, 0, i, &sinks[i]);
        }
        while (nodes.under_way > 0) {
            nodes_turn();
            most = used(BUDGET_LANES) > most ? used(BUDGET_LANES) : most;
        }
        CHECK(used(BUDGET_LANES) == 0);
        CHECK(most >= RING && (ceilings[c] == 0 || most <= ceilings[c]));
        for (uint32_t i = 0; i < COUNT; i++) {
            CHECK_RESULT(sends[i].result.status, c < 2 ? STATUS_OK : STATUS_LIMIT);
            CHECK_RESULT(receives[i].result.status, c < 2 ? STATUS_OK : STATUS_LIMIT);
            CHECK(c < 2 || strstr(sends[i].result.text, "user_limit_lane_bytes") != NULL);
        }
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        buffer_check(&sinks[i], i, RING);
        buffer_free(&sources[i]);
        buffer_free(&sinks[i]);
    }
    CHECK(used(BUDGET_COMMUNICATOR_BYTES) == communicators + NODES * GPU_QUEUE_COST_BYTES);
    nodes_stop();
    CHECK(used(BUDGET_COMMUNICATOR_BYTES) == 0);
    budget_close(nodes_account);
    budget_free(budget);
}

static void test_charged(void **state)
{
    (void)state;
    case_run(charged);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boundaries),   cmocka_unit_test(test_direct),
        cmocka_unit_test(test_late_gpus),    cmocka_unit_test(test_stages_overlap),
        cmocka_unit_test(test_many_at_once), cmocka_unit_test(test_both_ways_at_once),
        cmocka_unit_test(test_in_order),     cmocka_unit_test(test_streams_are_waited_for),
        cmocka_unit_test(test_too_long),     cmocka_unit_test(test_charged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
