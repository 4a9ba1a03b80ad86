#include "tests/unit/api/api_node.h"

#include <stdatomic.h>

/* Captured operations: what commd does when graphs set words. The ranks are on the host; the test plays their
 * graphs. */

#define BYTES 65536u
#define MEMORY 7u /* of the first client; the second client's is the next number */
#define HANDLE 3u
#define OPS 3u
#define COUNT 5u

struct pair {
    struct node *node;
    struct client clients[2];
    int fds[2];
    unsigned char *bytes[2];
};

static _Atomic uint64_t *word(const struct pair *pair, uint32_t rank, uint32_t op, bool ended)
{
    return (_Atomic uint64_t *)(void *)(pair->bytes[rank] + BYTES / 2 + 64 * op + (ended ? 8 : 0));
}

static uint32_t *data(const struct pair *pair, uint32_t rank, uint32_t op)
{
    return (uint32_t *)(void *)(pair->bytes[rank] + 256 * op);
}

static struct submit_record captured(uint32_t rank, uint32_t op)
{
    struct submit_record submit;
    submit_record_begin(&submit, RECORD_CAPTURED, HANDLE);
    submit.ticket = 100 + op;
    submit.terms.kind = OP_KIND_ALL_REDUCE;
    submit.terms.dtype = DTYPE_U32;
    submit.terms.reduce = REDUCE_SUM;
    submit.terms.count_elements = COUNT;
    submit_record_add(&submit, RECORD_INPUT, MEMORY + rank, 256 * op, 0);
    submit_record_add(&submit, RECORD_OUTPUT, MEMORY + rank, 256 * op, 0);
    submit_record_add(&submit, RECORD_ENDED, MEMORY + rank, BYTES / 2 + 64 * op + 8, 1);
    submit_record_add(&submit, RECORD_WAIT, MEMORY + rank, BYTES / 2 + 64 * op, 1);
    return submit;
}

static uint64_t join(struct pair *pair, uint32_t rank, uint64_t op_timeout_ms)
{
    Commd__Client__CommInit body = COMMD__CLIENT__COMM_INIT__INIT;
    body.handle = HANDLE;
    body.name = (char *)"pair";
    body.rank = rank;
    body.size = 2;
    body.device = -1;
    body.op_timeout_ms = op_timeout_ms;
    body.algorithms = (char *)"";
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
    request.comm_init = &body;
    return client_send(&pair->clients[rank], &request, -1);
}

static struct pair pair_new(uint64_t op_timeout_ms)
{
    struct pair pair = {.node = node_new()};
    uint64_t ids[2];
    for (uint32_t rank = 0; rank < 2; rank++) {
        pair.clients[rank] = client_new(pair.node);
        pair.fds[rank] = client_memfd(BYTES);
        pair.bytes[rank] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pair.fds[rank], 0);
        assert_ptr_not_equal(pair.bytes[rank], MAP_FAILED);
        client_expect_done(&pair.clients[rank],
                           client_send_register(&pair.clients[rank], MEMORY + rank, BYTES, pair.fds[rank]));
        ids[rank] = join(&pair, rank, op_timeout_ms);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        event_free(client_expect_reply(&pair.clients[rank], ids[rank], COMMD__CLIENT__REPLY__BODY_COMM_INIT));
        for (uint32_t op = 0; op < OPS; op++) {
            struct submit_record submit = captured(rank, op);
            client_submit(&pair.clients[rank], &submit);
            client_expect_complete(&pair.clients[rank], HANDLE, submit.ticket, STATUS_OK, NULL);
        }
    }
    return pair;
}

static void pair_free(struct pair *pair)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        munmap(pair->bytes[rank], BYTES);
        close(pair->fds[rank]);
        if (pair->clients[rank].fd >= 0) {
            client_free(&pair->clients[rank]);
        }
    }
    node_turns(pair->node, 3);
    assert_null(pair->node->api->graphs.all);
    assert_int_equal(client_mappings(), 0);
    node_free(pair->node);
}

static uint32_t value(uint32_t rank, uint32_t op, uint32_t replay, uint32_t i)
{
    return rank * 1000003u + op * 7919u + replay * 31u + i;
}

/* What a graph does: `ended` first, then `ready`. */
static void set(const struct pair *pair, uint32_t rank, uint32_t op, uint32_t replay)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        data(pair, rank, op)[i] = value(rank, op, replay, i);
    }
    atomic_store(word(pair, rank, op, true), 0);
    atomic_store(word(pair, rank, op, false), 1);
}

static bool has_ended(const struct pair *pair, uint32_t rank, uint32_t op)
{
    return atomic_load(word(pair, rank, op, true)) == 1;
}

static void await(const struct pair *pair, uint32_t rank, uint32_t op)
{
    for (unsigned turns = 0; !has_ended(pair, rank, op); turns++) {
        assert_true(turns < TURNS_MAX);
        if (turns > TURNS_AT_ONCE) {
            (void)poll(NULL, 0, 1);
        }
        node_turn(pair->node);
    }
}

/* Until commd has seen that the operation is ready. */
static void await_begin(const struct pair *pair, uint32_t rank, uint32_t op)
{
    for (unsigned turns = 0; atomic_load(word(pair, rank, op, false)) != 0; turns++) {
        assert_true(turns < TURNS_MAX);
        if (turns > TURNS_AT_ONCE) {
            (void)poll(NULL, 0, 1);
        }
        node_turn(pair->node);
    }
}

static void expect_sum(const struct pair *pair, uint32_t op, uint32_t replay)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        await(pair, rank, op);
        for (uint32_t i = 0; i < COUNT; i++) {
            assert_int_equal(data(pair, rank, op)[i], value(0, op, replay, i) + value(1, op, replay, i));
        }
    }
}

/* No message comes for a replay: no packet is left to read. */
static void expect_silence(struct pair *pair)
{
    char byte;
    node_turns(pair->node, 20);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(recv(pair->clients[rank].fd, &byte, 1, MSG_DONTWAIT), -1);
    }
}

static void test_replays(void **state)
{
    (void)state;
    struct pair pair = pair_new(0);
    for (uint32_t replay = 0; replay < 50; replay++) {
        for (uint32_t op = 0; op < OPS; op++) {
            set(&pair, replay % 2, op, replay);
            set(&pair, 1 - replay % 2, op, replay);
            expect_sum(&pair, op, replay);
        }
    }
    uint32_t ops;
    uint64_t replays;
    const struct communicator_info info = {.name = "pair", .owner_uid = getuid()};
    api_graphs_counts(pair.node->api, &info, &ops, &replays);
    assert_int_equal(ops, OPS);
    assert_int_equal(replays, 50);
    expect_silence(&pair);
    pair_free(&pair);
}

/* Branches of a graph set their words in any order; the operations run in the order of their capture. */
static void test_branches(void **state)
{
    (void)state;
    struct pair pair = pair_new(0);
    for (uint32_t replay = 0; replay < 6; replay++) {
        for (uint32_t op = 0; op < OPS; op++) {
            set(&pair, 0, OPS - 1 - op, replay);
            set(&pair, 1, (op + replay) % OPS, replay);
            node_turns(pair.node, 50);
            assert_true(op == OPS - 1 || !has_ended(&pair, 0, OPS - 1));
        }
        for (uint32_t op = 0; op < OPS; op++) {
            expect_sum(&pair, op, replay);
        }
    }
    pair_free(&pair);
}

static void expect_aborted(struct client *client, enum status status, const char *text)
{
    Commd__Client__Event *event = client_receive(client);
    assert_non_null(event);
    assert_int_equal(event->body_case, COMMD__CLIENT__EVENT__BODY_ABORTED);
    assert_int_equal(event->aborted->status, status);
    assert_contains(event->aborted->text, text);
    event_free(event);
}

/* After a failure, every later replay is answered at once, in any order. */
static void expect_answers(const struct pair *pair, uint32_t rank)
{
    for (uint32_t replay = 0; replay < 5; replay++) {
        for (uint32_t op = OPS; op-- > 0;) {
            set(pair, rank, op, replay);
            await(pair, rank, op);
        }
    }
}

static void test_a_lost_rank(void **state)
{
    (void)state;
    struct pair pair = pair_new(0);
    set(&pair, 0, 0, 1);
    await_begin(&pair, 0, 0);
    assert_false(has_ended(&pair, 0, 0));
    client_free(&pair.clients[1]);
    pair.clients[1].fd = -1;
    await(&pair, 0, 0);
    client_expect_complete(&pair.clients[0], HANDLE, 100, STATUS_RANK_LOST, "rank 1");
    expect_aborted(&pair.clients[0], STATUS_RANK_LOST, "rank 1");
    expect_answers(&pair, 0);
    pair_free(&pair);
}

static void test_twice(void **state)
{
    (void)state;
    struct pair pair = pair_new(0);
    set(&pair, 0, 0, 1);
    await_begin(&pair, 0, 0);
    set(&pair, 0, 0, 1); /* the replay has not ended: this is another one */
    set(&pair, 1, 0, 1);
    await(&pair, 1, 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        expect_aborted(&pair.clients[rank], STATUS_INVALID_ARGUMENT, "while another replay of it ran");
        expect_answers(&pair, rank);
    }
    pair_free(&pair);
}

/* A replay that leaves out an operation, which no graph of one capture does. */
static void test_left_out(void **state)
{
    (void)state;
    struct pair pair = pair_new(100);
    set(&pair, 0, 1, 1);
    node_turns(pair.node, 50);
    assert_false(has_ended(&pair, 0, 1));
    expect_aborted(&pair.clients[0], STATUS_TIMED_OUT, "has not reached its operation 1 of 3");
    await(&pair, 0, 1);
    expect_answers(&pair, 1);
    pair_free(&pair);
}

/* Ranks that captured different operations learn that at the first replay; the others go on. */
static void test_a_mismatch(void **state)
{
    (void)state;
    struct pair pair = pair_new(0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct submit_record submit = captured(rank, OPS);
        submit.terms.count_elements = COUNT - rank;
        client_submit(&pair.clients[rank], &submit);
        client_expect_complete(&pair.clients[rank], HANDLE, submit.ticket, STATUS_OK, NULL);
    }
    for (uint32_t op = 0; op <= OPS; op++) {
        set(&pair, 0, op, 4);
        set(&pair, 1, op, 4);
        await(&pair, 0, op);
        await(&pair, 1, op);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        client_expect_complete(&pair.clients[rank], HANDLE, 100 + OPS, STATUS_MISMATCH, "count");
    }
    set(&pair, 0, 0, 5);
    set(&pair, 1, 0, 5);
    expect_sum(&pair, 0, 5);
    pair_free(&pair);
}

static void expect_refused(struct pair *pair, const struct submit_record *submit, enum status status,
                           const char *text)
{
    client_submit(&pair->clients[0], submit);
    client_expect_complete(&pair->clients[0], submit->handle, submit->ticket, status, text);
}

static void test_refused(void **state)
{
    (void)state;
    struct pair pair = pair_new(0);
    struct submit_record submit = captured(0, 9);
    submit.handle = 44;
    expect_refused(&pair, &submit, STATUS_NOT_FOUND, "no communicator has handle 44");
    submit = captured(0, 9);
    submit.entries[3].offset_bytes = BYTES - 4;
    expect_refused(&pair, &submit, STATUS_INVALID_ARGUMENT, "two words of 64 bits");
    submit = captured(0, 9);
    submit.entries[2].offset_bytes += 4;
    expect_refused(&pair, &submit, STATUS_INVALID_ARGUMENT, "two words of 64 bits");
    submit = captured(0, 9);
    submit.entries[3].memory = 99;
    expect_refused(&pair, &submit, STATUS_INVALID_ARGUMENT, "two words of 64 bits");
    submit = captured(0, 9);
    submit.entries[0].memory = 99;
    expect_refused(&pair, &submit, STATUS_NOT_FOUND, "input: memory 99");
    submit = captured(0, 9);
    submit.entry_count--;
    expect_refused(&pair, &submit, STATUS_INVALID_ARGUMENT, "waits for 0 words");
    submit = captured(0, 9);
    submit.terms.dtype = (enum dtype)99;
    expect_refused(&pair, &submit, STATUS_INVALID_ARGUMENT, "dtype");
    uint32_t ops;
    uint64_t replays;
    const struct communicator_info info = {.name = "pair", .owner_uid = getuid()};
    api_graphs_counts(pair.node->api, &info, &ops, &replays);
    assert_int_equal(ops, OPS);
    pair_free(&pair);
}

static void test_as_many_as_allowed(void **state)
{
    (void)state;
    struct pair pair = pair_new(0);
    struct submit_record submit = captured(0, 9);
    for (uint32_t op = OPS; op < API_GRAPH_OPS_MAX; op++) {
        submit.ticket = 1000 + op;
        client_submit(&pair.clients[0], &submit);
        client_expect_complete(&pair.clients[0], HANDLE, submit.ticket, STATUS_OK, NULL);
    }
    submit.ticket = 9999;
    expect_refused(&pair, &submit, STATUS_LIMIT, "at most");
    pair_free(&pair);
}

/* The memory that a graph uses stays, and words are set when its communicator is left. */
static void test_left(void **state)
{
    (void)state;
    struct pair pair = pair_new(0);
    client_expect_done(&pair.clients[0], client_send_deregister(&pair.clients[0], MEMORY));
    set(&pair, 0, 0, 3);
    set(&pair, 1, 0, 3);
    expect_sum(&pair, 0, 3);
    set(&pair, 0, 1, 3);
    client_expect_done(&pair.clients[0], client_send_destroy(&pair.clients[0], HANDLE));
    await(&pair, 0, 1);
    pair_free(&pair);
}

/* With graphs that rest, the loop sleeps between its looks. */
static void test_polling(void **state)
{
    (void)state;
    struct pair pair = pair_new(0);
    uint64_t now_ns = loop_now_ns();
    assert_false(api_graphs_poll(pair.node->api, now_ns));
    assert_false(pair.node->api->graphs.polls);
    set(&pair, 0, 0, 1);
    set(&pair, 1, 0, 1);
    expect_sum(&pair, 0, 1);
    assert_non_null(pair.node->api->graphs.active);
    assert_true(pair.node->api->graphs.polls);
    now_ns = loop_now_ns() + API_GRAPH_ACTIVE_NS + 2;
    assert_false(api_graphs_poll(pair.node->api, now_ns));
    assert_null(pair.node->api->graphs.active);
    assert_false(pair.node->api->graphs.polls);
    set(&pair, 0, 1, 1);
    await_begin(&pair, 0, 1);
    assert_true(pair.node->api->graphs.polls);
    for (uint32_t rank = 0; rank < 2; rank++) {
        client_free(&pair.clients[rank]);
        pair.clients[rank].fd = -1;
    }
    assert_false(pair.node->api->graphs.polls); /* without graphs nothing is polled */
    pair_free(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replays),     cmocka_unit_test(test_branches),
        cmocka_unit_test(test_a_lost_rank), cmocka_unit_test(test_twice),
        cmocka_unit_test(test_left_out),    cmocka_unit_test(test_a_mismatch),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_as_many_as_allowed),
        cmocka_unit_test(test_left),        cmocka_unit_test(test_polling),
    };
    return cmocka_run_group_tests_name("api_graphs", tests, NULL, NULL);
}
