#include "tests/unit/api/api_node.h"

/* Users take turns. Whatever one user sends in a packet, or leaves behind, does not delay other users. */

enum { MANY = CLIENT_PACKET_MAX_BYTES / SUBMIT_RECORD_MIN_BYTES };

/* Writes a packet of empty submissions for a communicator that does not exist. */
static size_t list_of_empty_submits(uint8_t *bytes, size_t count)
{
    struct submit_record submit = submit_of(5, 0, OP_KIND_BARRIER);
    for (size_t i = 0; i < count; i++) {
        submit.ticket = i;
        memcpy(bytes + i * SUBMIT_RECORD_MIN_BYTES, &submit, SUBMIT_RECORD_MIN_BYTES);
    }
    return count * SUBMIT_RECORD_MIN_BYTES;
}

static unsigned take_completions(struct client *client)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES];
    unsigned taken = 0;
    while (recv(client->fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
        taken++;
    }
    return taken;
}

/* Each submission of a list is answered, in its turn. Another client is served after a few of them. */
static void test_long_list(void **state)
{
    (void)state;
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES];
    struct node *node = node_new();
    struct client client = client_new(node), other = client_new(node);
    size_t size = list_of_empty_submits(bytes, MANY);
    assert_true(size <= sizeof bytes);
    assert_true(client_try_send(&client, bytes, size, NULL, 0));
    node_turns(node, 2);
    client_check(&other); /* most of the list waits meanwhile for the client to read */
    unsigned taken = take_completions(&client);
    assert_in_range(taken, 1, MANY / 2);
    for (unsigned turn = 0; turn < 100000 && taken < MANY; turn++) {
        node_turn(node);
        taken += take_completions(&client);
    }
    assert_int_equal(taken, MANY);
    client_check(&client);
    client_free(&client);
    client_free(&other);
    node_free(node);
}

/* What a session held is given back in turns, which end after some time: on a slow machine there are more. */
static void expect_no_sessions(struct node *node)
{
    for (unsigned turns = 0; sessions(node) > 0; turns++) {
        assert_true(turns < TURNS_MAX);
        node_turn(node);
    }
}

/* A broken record ends the session at that place. The records before it are answered. */
static void test_broken_lists(void **state)
{
    (void)state;
    enum { SUBMITS = 20 };
    static const struct {
        /* at: a byte that is inverted, unless it is beyond the list; size: how much of the list is sent */
        size_t at, size;
        const char *text;
    } lists[] = {
        {SIZE_MAX, SUBMITS * SUBMIT_RECORD_MIN_BYTES - 1, "size"},
        {SIZE_MAX, 19 * SUBMIT_RECORD_MIN_BYTES + 1, "size"},
        {19 * SUBMIT_RECORD_MIN_BYTES, SUBMITS * SUBMIT_RECORD_MIN_BYTES, "mark"},
        {19 * SUBMIT_RECORD_MIN_BYTES + 1, SUBMITS * SUBMIT_RECORD_MIN_BYTES, "version"},
        {19 * SUBMIT_RECORD_MIN_BYTES + 2, SUBMITS * SUBMIT_RECORD_MIN_BYTES, "kind"},
        {19 * SUBMIT_RECORD_MIN_BYTES + 3, SUBMITS * SUBMIT_RECORD_MIN_BYTES, "entry_count"},
    };
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++) {
        uint8_t bytes[SUBMITS * SUBMIT_RECORD_MIN_BYTES];
        char text[64];
        struct node *node = node_new();
        struct client client = client_new(node);
        (void)list_of_empty_submits(bytes, SUBMITS);
        if (lists[i].at < sizeof bytes) {
            bytes[lists[i].at] ^= 0xff;
        }
        assert_true(client_try_send(&client, bytes, lists[i].size, NULL, 0));
        for (uint64_t ticket = 0; ticket < SUBMITS - 1; ticket++) {
            client_expect_complete(&client, 5, ticket, STATUS_NOT_FOUND, "no communicator has handle 5");
        }
        snprintf(text, sizeof text, "a submission with a wrong %s", lists[i].text);
        client_expect_error(&client, 0, STATUS_PROTOCOL, text);
        client_expect_closed(&client);
        expect_no_sessions(node);
        client_free(&client);
        node_free(node);
    }
}

/* When a client is gone, what it held is given back in pieces. */
static void test_release_in_pieces(void **state)
{
    (void)state;
    enum { COMMS = 64 };
    struct node *node = node_new();
    struct client client = client_new(node), other = client_new(node);
    for (uint32_t i = 0; i < COMMS; i++) {
        char name[32];
        snprintf(name, sizeof name, "comm-%u", i);
        uint64_t id = client_send_init(&client, i, name, 0, 1);
        event_free(client_expect_reply(&client, id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
    }
    struct api_session *session = node->api->sessions;
    api_session_break(session);
    unsigned pieces = 0, most = HASH_COUNT(session->comms);
    while (api_session_turn(session, loop_now_ns()) == TURN_MORE) {
        assert_true(most - HASH_COUNT(session->comms) <= 1);
        most = HASH_COUNT(session->comms);
        pieces++;
        assert_true(turns_wait(&node->api->turns));
        if (most == 0) {
            break;
        }
    }
    assert_in_range(pieces, COMMS, COMMS + 8);
    client_check(&other);
    client_free(&client);
    client_free(&other);
    node_free(node);
}

/* An operation ends for many ranks of one client at once. The client hears of them in pieces, in order. */
static void test_answers_in_pieces(void **state)
{
    (void)state;
    enum { RANKS = 3 * API_SENDS_MAX + 7 };
    struct node *node = node_new();
    struct client client = client_new(node);
    struct api_session *session = node->api->sessions;
    assert_int_equal(HASH_COUNT(session), 1);
    for (uint64_t ticket = 0; ticket < RANKS; ticket++) {
        struct completion_record record;
        completion_record_begin(&record, 0, ticket);
        api_session_send_record(session, &record, completion_record_bytes(&record));
    }
    struct completion_record taken;
    uint64_t at_once = 0, ticket = 0;
    while (recv(client.fd, &taken, sizeof taken, MSG_DONTWAIT) > 0) {
        at_once++;
        assert_int_equal(taken.ticket, ticket++);
    }
    assert_in_range(at_once, 1, API_SENDS_MAX);
    for (unsigned turn = 0; turn < 1000 && ticket < RANKS; turn++) {
        node_turn(node);
        while (recv(client.fd, &taken, sizeof taken, MSG_DONTWAIT) > 0) {
            assert_int_equal(taken.ticket, ticket++);
        }
    }
    assert_int_equal(ticket, RANKS);
    client_check(&client);
    client_free(&client);
    node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_list),
        cmocka_unit_test(test_broken_lists),
        cmocka_unit_test(test_release_in_pieces),
        cmocka_unit_test(test_answers_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
