#include "tests/unit/api/api_node.h"

/* Users take turns: what one of them sends in a packet, or leaves behind, holds nobody else up. */

enum { MANY = 30000 };

/* A packet of that many submits with nothing in them, of a communicator that is not there. */
static size_t list_of_empty_submits(uint8_t *bytes, size_t count)
{
    size_t size = 0, length = 2 * count;
    bytes[size++] = 0x82; /* field 16, bytes */
    bytes[size++] = 0x01;
    for (; length >= 0x80; length >>= 7) {
        bytes[size++] = (uint8_t)(length | 0x80);
    }
    bytes[size++] = (uint8_t)length;
    for (size_t i = 0; i < count; i++) {
        bytes[size++] = 0x0a;
        bytes[size++] = 0;
    }
    return size;
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

/* Of a list each submit is answered, in its turn; another client is served after a few of them. */
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
    client_check(&other); /* while most of it waits for the client to read */
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

/* A list that is broken somewhere ends the session there; one beside other fields is none. */
static void test_broken_lists(void **state)
{
    (void)state;
    static const struct {
        uint8_t bytes[12];
        size_t size;
    } lists[] = {
        {{0x82, 0x01, 0x04, 0x0a, 0x00, 0x12, 0x00}, 7},             /* another field in it */
        {{0x82, 0x01, 0x04, 0x0a, 0x00, 0x0a, 0x05}, 7},             /* a submit that reaches beyond it */
        {{0x82, 0x01, 0x03, 0x0a, 0x01, 0xff}, 6},                   /* no submit */
        {{0x4a, 0x00, 0x82, 0x01, 0x02, 0x0a, 0x00}, 7},             /* a query before it */
        {{0x82, 0x01, 0x7f, 0x0a, 0x00}, 5},                         /* cut off */
        {{0x08, 0x82, 0x01, 0x02}, 4},                               /* an id alone */
        {{0x82, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 9}, /* as long as can be said */
    };
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct node *node = node_new();
        struct client client = client_new(node);
        assert_true(client_try_send(&client, lists[i].bytes, lists[i].size, NULL, 0));
        node_turns(node, 10);
        assert_int_equal(sessions(node), 0);
        client_free(&client);
        node_free(node);
    }
}

/* What a client that is gone held goes bit by bit. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_list),
        cmocka_unit_test(test_broken_lists),
        cmocka_unit_test(test_release_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
