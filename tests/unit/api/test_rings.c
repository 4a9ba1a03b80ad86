#include "tests/unit/api/ring_client.h"

#include <signal.h>

#include "daemon/base/random.h"

/* commd's side of a client's rings. */

static void test_who_gets_them(void **state)
{
    (void)state;
    unsigned fds_before = count_fds();
    struct node *node = node_new();
    unsigned fds = count_fds();
    int got[CLIENT_RING_FDS];
    struct client other = client_connect(node);
    (void)send_hello(&other, "wings");
    assert_int_equal(receive_hello(&other, got, false), 0);
    assert_int_equal(count_fds(), fds + 3); /* its socket, twice, and a pidfd */
    client_check(&other);
    struct ring_client client = ring_client_new(node);
    ring_client_check(&client);
    /* Nobody can take the memory away or change its size. */
    assert_int_equal(ftruncate(client.memory_fd, 4096), -1);
    assert_int_equal(ftruncate(client.memory_fd, 1 << 20), -1);
    int seals = fcntl(client.memory_fd, F_GET_SEALS);
    assert_int_equal(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    /* A packet with a descriptor comes on the socket. Its answer is in the ring. */
    int fd = client_memfd(4096);
    uint64_t id = client_send_register(&client.client, 1, 4096, fd);
    expect_reply(&client, id);
    assert_int_equal(client_mappings(), 1);
    close(fd);
    ring_client_free(&client);
    assert_int_equal(client_mappings(), 0);
    assert_int_equal(count_fds(), fds + 3);
    client_free(&other);
    node_free(node);
    assert_int_equal(count_fds(), fds_before);
}

/* If this process was paused for a millisecond, the daemon is asleep again after a request. */
static void wake_daemon(struct ring_client *client)
{
    do {
        ring_client_check(client);
    } while (!api_is_awake(client->client.node->api));
}

static void test_bells_ring_for_who_sleeps(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct ring_client client = ring_client_new(node);
    fall_asleep(node);
    /* The daemon sleeps, and the client must ring once. Until then, the daemon does not look at the ring. */
    assert_int_equal(put_status(&client), RING_OK);
    assert_true(ring_wake_consumer(&client.out));
    assert_int_equal(put_status(&client), RING_OK);
    assert_false(ring_wake_consumer(&client.out));
    turns(node, 10);
    assert_int_equal(take_reply(&client, NULL), 0);
    ring_daemon(&client);
    turns(node, 10);
    assert_int_equal(take_reply(&client, NULL), client.client.last_id - 1);
    assert_int_equal(take_reply(&client, NULL), client.client.last_id);
    assert_int_equal(heard(&client), 0); /* the client was awake */
    /* An awake daemon needs no bell. It does not fall asleep while there are packets. */
    wake_daemon(&client);
    assert_int_equal(put_status(&client), RING_OK);
    assert_false(api_sleep(node->api));
    assert_false(ring_wake_consumer(&client.out));
    expect_reply(&client, client.client.last_id);
    /* The client sleeps: the daemon rings once for everything that came. */
    wake_daemon(&client);
    assert_true(ring_consumer_sleep(&client.in));
    assert_int_equal(put_status(&client), RING_OK);
    assert_int_equal(put_status(&client), RING_OK);
    turns(node, 10);
    assert_int_equal(heard(&client), 1);
    expect_reply(&client, client.client.last_id - 1);
    expect_reply(&client, client.client.last_id);
    /* A bell without a reason has no effect. */
    for (unsigned i = 0; i < 100; i++) {
        ring_daemon(&client);
        turn(node);
    }
    ring_client_check(&client);
    ring_client_free(&client);
    assert_false(api_is_awake(node->api));
    node_free(node);
}

/* Both rings wrap many times, with entries that begin at any place. */
static void test_packets_wrap(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct ring_client client = ring_client_new(node);
    uint64_t answered = client.client.last_id;
    while (client.client.last_id < 20000) {
        for (unsigned i = 0; i < 1 + client.client.last_id % 50; i++) {
            assert_int_equal(put_status(&client), RING_OK);
        }
        if (ring_wake_consumer(&client.out)) {
            ring_daemon(&client);
        }
        while (answered < client.client.last_id) {
            expect_reply(&client, ++answered);
        }
    }
    assert_true(client.out.own > 4 * CLIENT_RING_BYTES && client.in.own > 4 * CLIENT_RING_BYTES);
    ring_client_free(&client);
    node_free(node);
}

static const struct api_session *session_with_rings(const struct node *node)
{
    const struct api_session *session = node->api->sessions;
    while (session != NULL && session->rings == NULL) {
        session = session->hh.next;
    }
    assert_non_null(session);
    return session;
}

/* A client that takes no answers fills its ring, then the queue. Then commd stops reading from it, and serves
 * others. Nothing is lost. */
static void test_answers_that_wait(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client other = client_new(node);
    struct ring_client client = ring_client_new(node);
    const struct api_session *session = session_with_rings(node);
    uint64_t answered = client.client.last_id;
    for (unsigned idle = 0; idle < 50; idle++) {
        for (; put_status(&client) == RING_OK; idle = 0) {
        }
        if (ring_wake_consumer(&client.out)) {
            ring_daemon(&client);
        }
        turn(node);
        assert_true(session->out_count <= API_SESSION_PAUSE_PACKETS);
    }
    assert_int_equal(session->out_count, API_SESSION_PAUSE_PACKETS);
    assert_true(ring_producer_sleep(&client.out, 32)); /* the client's ring is full as well */
    fall_asleep(node);                                 /* the daemon does not spin for it */
    client_check(&other);
    fall_asleep(node);
    while (answered < client.client.last_id) {
        expect_reply(&client, ++answered); /* the client rings if the daemon waits for that */
    }
    assert_int_equal(heard(&client), 1); /* the client's ring has room again: the daemon rang once */
    ring_client_check(&client);
    ring_client_free(&client);
    client_free(&other);
    node_free(node);
}

/* A client may have any number of messages under way, and they may all end while it reads nothing. Those that
 * do not fit into its ring wait, and are not queued. Each is answered once, in the order in which they ended.
 */
static void test_messages_that_end_unread(void **state)
{
    (void)state;
    enum { MESSAGES = 3000 };
    struct node *node = node_new();
    struct client other = client_new(node);
    struct ring_client client = ring_client_new(node);
    const struct api_session *session = session_with_rings(node);
    uint64_t other_id = client_send_init(&other, 1, "pair", 1, 2);
    uint64_t id = client_send_init(&client.client, 1, "pair", 0, 2);
    event_free(client_expect_reply(&other, other_id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
    expect_reply(&client, id);
    for (uint64_t ticket = 1; ticket <= MESSAGES; ticket++) {
        struct submit_record receive = submit_of(1, ticket, OP_KIND_RECEIVE);
        receive.peer_rank = 1;
        client_submit(&client.client, &receive);
    }
    turns(node, 10);
    for (uint64_t ticket = 1; ticket <= MESSAGES; ticket++) {
        struct submit_record send = submit_of(1, ticket, OP_KIND_SEND);
        send.peer_rank = 0;
        client_submit(&other, &send);
        client_expect_complete(&other, 1, ticket, STATUS_OK, NULL);
        assert_true(session->out_count <= API_SESSION_PAUSE_PACKETS / 2);
    }
    for (uint64_t ticket = 1; ticket <= MESSAGES; ticket++) {
        struct completion_record completion;
        uint8_t bytes[sizeof completion];
        const char *what;
        size_t size = 0;
        for (unsigned i = 0; ring_take(&client.in, bytes, sizeof bytes, &size) == RING_NOTHING; i++) {
            assert_true(i < 100);
            turn(node);
        }
        if (ring_wake_producer(&client.in)) {
            ring_daemon(&client);
        }
        assert_true(completion_record_read(bytes, size, &completion, &what));
        assert_int_equal(completion.ticket, ticket);
        assert_int_equal(completion.status, STATUS_OK);
    }
    ring_client_check(&client);
    ring_client_free(&client);
    client_free(&other);
    node_free(node);
}

/* --- What a hostile client can write --- */

static void expect_ended(struct ring_client *client, const char *error)
{
    struct node *node = client->client.node;
    unsigned before = sessions(node);
    ring_daemon(client);
    turns(node, 10);
    assert_int_equal(sessions(node), before - 1);
    if (error != NULL) {
        assert_int_equal(take_reply(client, error), 0);
        assert_contains(node->last_warning, error);
    }
    client_expect_closed(&client->client);
}

static void test_hostile_heads_and_packets(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client other = client_new(node);
    static const uint32_t heads[] = {8, 1, CLIENT_RING_BYTES, UINT32_MAX, 0x80000000u};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct ring_client client = ring_client_new(node);
        atomic_store(&client.in.shared->head, heads[i]);
        assert_int_equal(put_status(&client), RING_OK);
        expect_ended(&client, NULL); /* the daemon cannot tell the client */
        assert_contains(node->last_warning, "dropped, its ring holds invalid data");
        ring_client_free(&client);
    }
    struct ring_client client = ring_client_new(node);
    assert_int_equal(ring_put(&client.out, "\xff\xff garbage", 10), RING_OK);
    expect_ended(&client, "a packet of 10 bytes that is no request");
    ring_client_free(&client);
    client_check(&other);
    client_free(&other);
    node_free(node);
}

static void test_hostile_clients(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client other = client_new(node);
    struct ring_client neighbour = ring_client_new(node);
    unsigned fds = count_fds();
    static const uint32_t tails[] = {4, 12, CLIENT_RING_BYTES + 8, UINT32_MAX, 0x80000000u};
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        struct ring_client client = ring_client_new(node);
        atomic_store(&client.out.shared->tail, tails[i]);
        expect_ended(&client, "its ring holds invalid data");
        ring_client_free(&client);
    }
    static const uint32_t lengths[] = {
        0, 21, 65, CLIENT_RING_BYTES / 2, CLIENT_RING_BYTES, UINT32_MAX - 3, UINT32_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct ring_client client = ring_client_new(node);
        ring_client_check(&client); /* not even at the beginning */
        memcpy(client.out.data + client.out.own, &lengths[i], sizeof lengths[i]);
        atomic_store(&client.out.shared->tail, client.out.own + 24);
        expect_ended(&client, "its ring holds invalid data");
        ring_client_free(&client);
    }
    assert_int_equal(count_fds(), fds);
    client_check(&other);
    ring_client_check(&neighbour);
    ring_client_free(&neighbour);
    client_free(&other);
    node_free(node);
}

/* The client writes anything anywhere, while requests are under way. Its session ends or goes on, and others
 * do not notice. */
static void test_scribbling(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client other = client_new(node);
    struct random source;
    random_seed(&source, 20240718);
    unsigned fds = count_fds(), ended = 0;
    for (unsigned round = 0; round < 1000; round++) {
        struct ring_client client = ring_client_new(node);
        for (unsigned i = 0; i < 5; i++) {
            (void)put_status(&client);
            size_t from = random_below(&source, 4) * ring_shared_bytes(CLIENT_RING_BYTES) / 2;
            size_t room = memory_bytes() - from < 320 ? memory_bytes() - from : 320;
            for (unsigned k = 0; room > 0 && k < 1 + round % 16; k++) {
                client.memory[from + random_below(&source, room)] = (uint8_t)random_below(&source, 256);
            }
            ring_daemon(&client);
            turns(node, 2);
        }
        ended += sessions(node) == 1;
        ring_client_free(&client);
        turns(node, 3);
        assert_int_equal(sessions(node), 1);
    }
    assert_in_range(ended, 100, 999);
    assert_int_equal(count_fds(), fds);
    client_check(&other);
    client_free(&other);
    node_free(node);
}

/* The client goes at any moment: while it is polled, paused or asleep, while answers wait, or together with
 * commd. */
static void test_gone(void **state)
{
    (void)state;
    unsigned fds = count_fds();
    struct node *node = node_new();
    for (unsigned when = 0; when < 4; when++) {
        struct ring_client client = ring_client_new(node);
        if (when == 1) {
            fall_asleep(node);
        } else if (when == 2) {
            assert_int_equal(put_status(&client), RING_OK);
            ring_daemon(&client);
        } else if (when == 3) {
            for (unsigned i = 0; i < 100; i++) {
                while (put_status(&client) == RING_OK) {
                }
                ring_daemon(&client);
                turn(node);
            }
        }
        ring_client_free(&client);
        turns(node, 10);
        assert_int_equal(sessions(node), 0);
        assert_false(api_is_awake(node->api));
    }
    struct ring_client client = ring_client_new(node);
    ring_client_check(&client);
    node_free(node); /* an awake client is still among those that are polled */
    client.client.node = NULL;
    munmap(client.memory, memory_bytes());
    close(client.memory_fd);
    close(client.daemon_bell_fd);
    close(client.bell_fd);
    close(client.client.fd);
    assert_int_equal(count_fds(), fds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_gets_them),
        cmocka_unit_test(test_bells_ring_for_who_sleeps),
        cmocka_unit_test(test_packets_wrap),
        cmocka_unit_test(test_answers_that_wait),
        cmocka_unit_test(test_messages_that_end_unread),
        cmocka_unit_test(test_hostile_heads_and_packets),
        cmocka_unit_test(test_hostile_clients),
        cmocka_unit_test(test_scribbling),
        cmocka_unit_test(test_gone),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
