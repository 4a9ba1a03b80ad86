#include "tests/unit/p2p/staging_nodes.h"

/* Messages from and to GPUs, which are doubles, whose communicator ends in the middle of them. */

#define MESSAGES 8u

struct traffic {
    struct buffer sources[MESSAGES], sinks[MESSAGES];
    struct posted sends[MESSAGES], receives[MESSAGES];
};
static struct traffic traffic;

/* Messages of all kinds, between the nodes in both directions and within one. Each is in one of its stages
 * when the end comes. */
static const struct {
    uint32_t from, to;
    int source, sink;
    size_t bytes;
} kinds[MESSAGES] = {
    {0, 1, 0, 1, 3 * RING},   {1, 0, 1, 0, 2 * RING + 1}, {0, 2, 0, 1, 3 * RING},
    {0, 2, ON_HOST, 1, RING}, {1, 3, 0, ON_HOST, RING},   {0, 1, ON_HOST, 1, 2 * RING},
    {1, 0, 0, ON_HOST, RING}, {0, 1, 0, 1, 9000},
};

static void traffic_post(void)
{
    for (uint32_t i = 0; i < MESSAGES; i++) {
        traffic.sources[i] = buffer_new(kinds[i].source, kinds[i].bytes);
        traffic.sinks[i] = buffer_new(kinds[i].sink, kinds[i].bytes);
        buffer_fill(&traffic.sources[i], i);
    }
    for (uint32_t i = 0; i < MESSAGES; i++) {
        message_send(&traffic.sends[i], kinds[i].from, kinds[i].to, i, &traffic.sources[i]);
        message_receive(&traffic.receives[i], kinds[i].to, kinds[i].from, i, &traffic.sinks[i]);
    }
}

/* The buffers of an ended message are the caller's again: they do not change. Then they are freed. */
static void traffic_free(void)
{
    for (uint32_t i = 0; i < MESSAGES; i++) {
        buffer_fill(&traffic.sinks[i], 100 + i);
    }
    for (int i = 0; i < 20; i++) {
        nodes_turns(20);
        case_sleep_ms(1);
    }
    for (uint32_t i = 0; i < MESSAGES; i++) {
        buffer_check(&traffic.sinks[i], 100 + i, kinds[i].bytes);
        buffer_free(&traffic.sources[i]);
        buffer_free(&traffic.sinks[i]);
    }
}

static void check_results(enum status status, const char *text)
{
    for (uint32_t i = 0; i < MESSAGES; i++) {
        const struct posted *both[2] = {&traffic.sends[i], &traffic.receives[i]};
        for (int k = 0; k < 2; k++) {
            CHECK(both[k]->calls == 1);
            if (both[k]->result.status != STATUS_OK) {
                CHECK(both[k]->result.status == status);
                CHECK(strstr(both[k]->result.text, text) != NULL);
            }
        }
        if (traffic.receives[i].result.status == STATUS_OK) {
            buffer_check(&traffic.sinks[i], i, kinds[i].bytes);
        }
    }
}

static void refused_now(uint32_t rank)
{
    struct buffer buffer = buffer_new(0, 10);
    struct posted posted;
    struct error error;
    CHECK_RESULT(message_post(&posted, true, rank, 1 - rank, 0, &buffer, NULL, &error), STATUS_RANK_LOST);
    CHECK(strcmp(error.text, "rank 3 is gone") == 0);
    buffer_free(&buffer);
}

/* Node 0's communicator is aborted first. Node 1 hears of it only after some turns. */
static void aborted(int turns)
{
    nodes_start(NULL);
    traffic_post();
    nodes_turns((uint32_t)turns);
    nodes_abort(0, "rank 3 is gone");
    nodes_turns((uint32_t)turns);
    refused_now(0);
    nodes_abort(1, "rank 3 is gone");
    nodes_wait(0);
    check_results(STATUS_RANK_LOST, "rank 3 is gone");
    traffic_free();
    nodes_stop();
}

/* Runs the test with each number of turns, on GPUs with and without a delay, that reach each other or not. */
static void run_after_each(void (*run)(int turns), const int *turns, size_t count, const char *delay_us)
{
    for (size_t t = 0; t < count; t++) {
        setenv("CUDA_DOUBLE_DELAY_US", t % 2 == 0 ? "0" : delay_us, 1);
        setenv("CUDA_DOUBLE_PEER", t % 3 == 0 ? "0" : "1", 1);
        case_run_with(run, turns[t]);
    }
    unsetenv("CUDA_DOUBLE_DELAY_US");
    unsetenv("CUDA_DOUBLE_PEER");
}

static void test_aborted_at_any_time(void **state)
{
    static const int turns[] = {0, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1280};
    (void)state;
    run_after_each(aborted, turns, sizeof turns / sizeof turns[0], "2000");
}

/* A host dies in the middle of the messages. */
static void lost(int unused)
{
    (void)unused;
    nodes_start(NULL);
    traffic_post();
    nodes_turns(40);
    network_kill(nodes.network, "n1");
    uint64_t killed_ns = nodes.now_ns;
    while (nodes.now_ns < killed_ns + 2 * NETWORK_IDLE_TIMEOUT_NS) {
        nodes.now_ns += TIME_S;
        network_advance(nodes.network, nodes.now_ns);
        nodes_turns(3);
    }
    case_sleep_ms(50);
    nodes_turns(50);
    nodes_abort(0, "rank 3 is gone");
    nodes_abort(1, "rank 3 is gone");
    nodes_wait(0);
    check_results(STATUS_RANK_LOST, "rank 3 is gone");
    traffic_free();
    nodes_stop();
}

static void test_a_lost_node(void **state)
{
    (void)state;
    case_run(lost);
}

/* --- GPUs that fail --- */

static const struct fault {
    const char *rule, *symbol;
    enum status status;
} faults[] = {
    {"cuMemcpyAsync:1=1", "cuMemcpyAsync", STATUS_DEVICE},
    {"cuMemcpyAsync:20=1", "cuMemcpyAsync", STATUS_DEVICE},
    {"cuMemcpyAsync:40=1", "cuMemcpyAsync", STATUS_DEVICE},
    {"cuMemcpyAsync:25=700", "cuMemcpyAsync", STATUS_DEVICE},
    {"cuStreamWriteValue64:1=1", "cuStreamWriteValue64", STATUS_DEVICE},
    {"cuStreamWriteValue64:33=1", "cuStreamWriteValue64", STATUS_DEVICE},
    {"cuStreamCreateWithPriority:2", "cuStreamCreateWithPriority", STATUS_NO_MEMORY},
    {"cuMemHostAlloc:1", "cuMemHostAlloc", STATUS_NO_MEMORY},
    {"cuMemHostAlloc:6", "cuMemHostAlloc", STATUS_NO_MEMORY},
};

/* The message to which the fault happens ends, and so does its other side. The communicator goes on. */
static void fails(int which)
{
    const struct fault *fault = &faults[which];
    uint32_t named = 0;
    nodes_start(NULL);
    traffic_post();
    beyond.inject(fault->rule);
    nodes_wait(0);
    CHECK(nodes.at[0].failures + nodes.at[1].failures == 0);
    for (uint32_t i = 0; i < MESSAGES; i++) {
        const struct posted *both[2] = {&traffic.sends[i], &traffic.receives[i]};
        for (int k = 0; k < 2; k++) {
            const struct error *result = &both[k]->result;
            CHECK(both[k]->calls == 1);
            CHECK(result->status == STATUS_OK || result->status == fault->status);
            named += strstr(result->text, fault->symbol) != NULL ? 1 : 0;
            CHECK(result->status == STATUS_OK || strstr(result->text, "\"test\": ") != NULL);
        }
        /* An eager send may have left before. */
        CHECK(traffic.sends[i].result.status == traffic.receives[i].result.status ||
              kinds[i].bytes <= MESSAGE_EAGER_MAX_BYTES);
    }
    CHECK(named > 0);
    nodes_stop();
}

static void test_gpus_that_fail(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        case_run_with(fails, (int)i);
    }
}

/* A small send fails before its envelope has left. The receive that waits for it ends, and the next one gets
 * the next message. A receive that comes later never hears of it. */
static void small_fails(int unused)
{
    struct buffer source = {.gpu = ON_HOST}, sink = {.gpu = ON_HOST};
    (void)unused;
    nodes_start(NULL);
    for (uint32_t receiver = 1; receiver <= 2; receiver++) {
        for (uint32_t late = 0; late < 2; late++) {
            struct posted send, receive, next_send, next_receive;
            source = buffer_new(0, 9000);
            sink = buffer_new(1, 9000);
            buffer_fill(&source, 3);
            message_send(&send, 0, receiver, 7, &source);
            message_send(&next_send, 0, receiver, 7, &source);
            beyond.inject("cuMemcpyAsync:1=1");
            if (late == 0) {
                message_receive(&receive, receiver, 0, 7, &sink);
            } else {
                while (send.calls == 0) {
                    nodes_turn();
                }
                nodes_turns(200); /* until the receiver's node knows */
            }
            message_receive(&next_receive, receiver, 0, 7, &sink);
            nodes_wait(0);
            CHECK_RESULT(send.result.status, STATUS_DEVICE);
            CHECK(late == 1 || receive.result.status == STATUS_DEVICE);
            CHECK(late == 1 || strstr(receive.result.text, "the send of rank 0") != NULL);
            CHECK_RESULT(next_send.result.status, STATUS_OK);
            CHECK_RESULT(next_receive.result.status, STATUS_OK);
            buffer_check(&sink, 3, 9000);
            buffer_free(&source);
            buffer_free(&sink);
        }
    }
    CHECK(nodes.at[0].failures + nodes.at[1].failures == 0);
    nodes_stop();
}

static void test_a_small_send_that_fails(void **state)
{
    (void)state;
    case_run(small_fails);
}

/* A copy that fails only when its turn comes is found by asking the GPU. */
static void fails_later(int unused)
{
    (void)unused;
    nodes_start(NULL);
    struct buffer source = buffer_new(0, 2 * RING), sink = buffer_new(1, 2 * RING);
    struct posted send, receive;
    message_send(&send, 0, 1, 7, &source);
    message_receive(&receive, 1, 0, 7, &sink);
    buffer_free(&source); /* as if its owner had unmapped it */
    nodes_wait(0);
    CHECK_RESULT(send.result.status, STATUS_DEVICE);
    CHECK_RESULT(receive.result.status, STATUS_DEVICE);
    CHECK(strstr(receive.result.text, "the send of rank 0 (node n0), tag 7, ended first") != NULL);
    CHECK(nodes.at[0].failures + nodes.at[1].failures == 0);
    nodes_stop();
}

static void test_a_gpu_that_fails_later(void **state)
{
    (void)state;
    setenv("CUDA_DOUBLE_DELAY_US", "3000", 1);
    case_run(fails_later);
    unsetenv("CUDA_DOUBLE_DELAY_US");
}

/* The deadline of one side passes. Both sides end, no GPU touches their buffers any more, and the next
 * messages work. */
static void cancelled(int turns)
{
    nodes_start(NULL);
    for (uint32_t receiver = 1; receiver <= 2; receiver++) {
        for (uint32_t sends = 0; sends < 2; sends++) {
            struct buffer source = buffer_new(0, 2 * RING + 5), sink = buffer_new(1, 2 * RING + 5);
            struct posted send, receive;
            struct error late;
            buffer_fill(&source, 1);
            message_send(&send, 0, receiver, 7, &source);
            message_receive(&receive, receiver, 0, 7, &sink);
            nodes_turns((uint32_t)turns);
            error_set(&late, STATUS_TIMED_OUT, "too late");
            p2p_cancel(sends == 1 ? &send.message : &receive.message, &late, nodes.now_ns);
            nodes_wait(1);
            nodes_turns(500);
            if (nodes.under_way > 0) { /* they had not met yet */
                p2p_cancel(sends == 1 ? &receive.message : &send.message, &late, nodes.now_ns);
            }
            nodes_wait(0);
            CHECK(send.result.status == STATUS_OK || send.result.status == STATUS_TIMED_OUT);
            CHECK(receive.result.status == STATUS_OK || receive.result.status == STATUS_TIMED_OUT);
            buffer_fill(&sink, 9);
            nodes_turns(300);
            case_sleep_ms(2);
            buffer_check(&sink, 9, sink.bytes);
            message_send(&send, 0, receiver, 8, &source);
            message_receive(&receive, receiver, 0, 8, &sink);
            nodes_wait(0);
            CHECK_RESULT(receive.result.status, STATUS_OK);
            buffer_check(&sink, 1, sink.bytes);
            buffer_free(&source);
            buffer_free(&sink);
        }
    }
    CHECK(nodes.at[0].failures + nodes.at[1].failures == 0);
    nodes_stop();
}

static void test_cancelled_at_any_time(void **state)
{
    static const int turns[] = {0, 2, 4, 8, 16, 40, 80};
    (void)state;
    run_after_each(cancelled, turns, sizeof turns / sizeof turns[0], "1000");
}

/* Any number of messages may wait when the communicator ends. One turn ends a bounded number of them. */
static void many_leave(int unused)
{
    enum { MANY = 4 * P2P_TURN_MAX };
    static struct posted receives[MANY];
    (void)unused;
    nodes_start(NULL);
    struct buffer sink = buffer_new(ON_HOST, 16);
    for (uint32_t i = 0; i < MANY; i++) {
        message_receive(&receives[i], 0, 1, i, &sink);
    }
    nodes_turns(10);
    nodes_abort(0, "gone");
    nodes_abort(1, "gone");
    uint32_t left = MANY;
    while (left > 0) {
        uint32_t before = left;
        nodes_turn();
        left = nodes.at[0].comm->count;
        CHECK(left < before && before - left <= P2P_TURN_MAX);
    }
    nodes_wait(0);
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK(receives[i].calls == 1 && receives[i].result.status == STATUS_RANK_LOST);
    }
    buffer_free(&sink);
    nodes_stop();
}

static void test_many_that_leave(void **state)
{
    (void)state;
    case_run(many_leave);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aborted_at_any_time),     cmocka_unit_test(test_a_lost_node),
        cmocka_unit_test(test_gpus_that_fail),          cmocka_unit_test(test_a_gpu_that_fails_later),
        cmocka_unit_test(test_a_small_send_that_fails), cmocka_unit_test(test_many_that_leave),
        cmocka_unit_test(test_cancelled_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
