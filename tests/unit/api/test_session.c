#include "daemon/base/user_log.h"
#include "tests/unit/api/api_node.h"

#include "daemon/base/random.h"

static void test_hello(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_connect(node);
    uint64_t id = client_send_hello(&client, CLIENT_PROTOCOL_VERSION, "prog\n\x1b[31m");
    Commd__Client__Event *event = client_expect_reply(&client, id, COMMD__CLIENT__REPLY__BODY_HELLO);
    const Commd__Client__HelloReply *hello = event->reply->hello;
    assert_int_equal(hello->protocol_version, CLIENT_PROTOCOL_VERSION);
    assert_string_equal(hello->version_text, COMMD_VERSION_TEXT);
    assert_string_equal(hello->node_name, "a");
    assert_int_equal(hello->pending_ops_max, COMMS_PENDING_OPS_MAX);
    assert_int_equal(hello->packet_max_bytes, CLIENT_PACKET_MAX_BYTES);
    event_free(event);
    /* The name that a client gives itself cannot control a terminal. Who the client is comes from
     * the kernel. */
    Commd__Client__ClientsQuery query = COMMD__CLIENT__CLIENTS_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_CLIENTS;
    request.clients = &query;
    id = client_send(&client, &request, -1);
    event = client_expect_reply(&client, id, COMMD__CLIENT__REPLY__BODY_CLIENTS);
    assert_int_equal(event->reply->clients->n_clients, 1);
    assert_string_equal(event->reply->clients->clients[0]->program, "prog??[31m");
    assert_int_equal(event->reply->clients->clients[0]->pid, getpid());
    assert_int_equal(event->reply->clients->clients[0]->uid, getuid());
    event_free(event);
    id = client_send_hello(&client, CLIENT_PROTOCOL_VERSION, "again");
    client_expect_error(&client, id, STATUS_PROTOCOL, "a second Hello");
    client_expect_closed(&client);
    assert_int_equal(sessions(node), 0);
    client_free(&client);
    node_free(node);
}

/* A library that speaks newer versions and this one is answered in this one. A library that does not speak it
 * any more is told which versions both sides speak. */
static void test_versions_meet(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_connect(node);
    uint64_t id =
        client_send_hello_range(&client, CLIENT_PROTOCOL_VERSION, CLIENT_PROTOCOL_VERSION + 7, "newer");
    Commd__Client__Event *event = client_expect_reply(&client, id, COMMD__CLIENT__REPLY__BODY_HELLO);
    assert_int_equal(event->reply->hello->protocol_version, CLIENT_PROTOCOL_VERSION);
    event_free(event);
    client_check(&client);
    client_free(&client);

    client = client_connect(node);
    char text[160];
    snprintf(text, sizeof text, "of the client protocol, the library versions %u to %u",
             CLIENT_PROTOCOL_VERSION + 1, CLIENT_PROTOCOL_VERSION + 7);
    id = client_send_hello_range(&client, CLIENT_PROTOCOL_VERSION + 1, CLIENT_PROTOCOL_VERSION + 7, "newest");
    client_expect_error(&client, id, STATUS_VERSION, text);
    client_expect_closed(&client);
    client_free(&client);
    node_free(node);
}

static void test_wrong_version(void **state)
{
    (void)state;
    static const uint32_t versions[] = {0, CLIENT_PROTOCOL_VERSION - 1, CLIENT_PROTOCOL_VERSION + 1,
                                        UINT32_MAX};
    struct node *node = node_new();
    for (size_t i = 0; i < 3; i++) {
        struct client client = client_connect(node);
        char text[160];
        snprintf(text, sizeof text,
                 "this commd (%s) speaks version %u of the client protocol, the library version %u",
                 COMMD_VERSION_TEXT, CLIENT_PROTOCOL_VERSION, versions[i]);
        uint64_t id = client_send_hello(&client, versions[i], "old");
        client_expect_error(&client, id, STATUS_VERSION, text);
        client_expect_closed(&client);
        assert_contains(node->last_warning, text);
        assert_int_equal(sessions(node), 0);
        client_free(&client);
    }
    node_free(node);
}

static void test_before_hello(void **state)
{
    (void)state;
    struct node *node = node_new();
    unsigned fds = count_fds();
    for (unsigned kind = 0; kind < 5; kind++) {
        struct client client = client_connect(node);
        int fd = client_memfd(4096);
        struct submit_record submit = submit_of(0, 0, OP_KIND_BARRIER);
        switch (kind) {
        case 0:
            client_send_status(&client, -1);
            break;
        case 1:
            client_send_init(&client, 1, "comm", 0, 1);
            break;
        case 2:
            client_send_register(&client, 1, 4096, fd);
            break;
        case 3:
            client_submit(&client, &submit);
            break;
        default:
            client_send(&client, &(Commd__Client__Request)COMMD__CLIENT__REQUEST__INIT, -1);
            break;
        }
        close(fd);
        client_expect_error(&client, kind != 3, STATUS_PROTOCOL, "the first request must be Hello");
        client_expect_closed(&client);
        client_free(&client);
        assert_int_equal(count_fds(), fds);
        assert_int_equal(client_mappings(), 0);
    }
    node_free(node);
}

static void test_unknown_request(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_new(node);
    /* Fields from number 15 on belong to a later version: id 9, then field 200. */
    static const uint8_t bytes[] = {0x08, 9, 0xc2, 0x0c, 0};
    client_send_raw(&client, bytes, sizeof bytes, NULL, 0);
    client_expect_error(&client, 9, STATUS_PROTOCOL, "a request of a kind that this commd");
    client_expect_closed(&client);
    client_free(&client);
    node_free(node);
}

static void test_malformed(void **state)
{
    (void)state;
    static const struct {
        uint8_t bytes[12];
        size_t size;
    } packets[] = {
        {{0xff}, 1},                           /* a tag that does not end */
        {{0x08}, 1},                           /* no value */
        {{0x12, 0x7f, 0x08, 0x01}, 4},         /* a body longer than the packet */
        {{0x08, 1, 0x12, 2, 0x08, 0x80}, 6},   /* a number in the body that does not end */
        {{0x0b, 0x0c}, 2},                     /* a wire type that does not exist */
        {{0x08, 1, 0x12, 3, 0x12, 9, 'x'}, 7}, /* a text longer than its body */
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 12},
    };
    struct node *node = node_new();
    struct client other = client_new(node);
    for (size_t i = 0; i < sizeof packets / sizeof packets[0]; i++) {
        for (unsigned greeted = 0; greeted < 2; greeted++) {
            struct client client = greeted ? client_new(node) : client_connect(node);
            char text[64];
            snprintf(text, sizeof text, "a packet of %zu bytes that is no request", packets[i].size);
            client_send_raw(&client, packets[i].bytes, packets[i].size, NULL, 0);
            /* commd ignores packets after the wrong one. They do not destroy the answer. */
            client_send_status(&client, -1);
            client_send_status(&client, -1);
            client_expect_error(&client, 0, STATUS_PROTOCOL, text);
            client_expect_closed(&client);
            client_free(&client);
            client_check(&other);
        }
    }
    assert_int_equal(sessions(node), 1);
    client_free(&other);
    assert_int_equal(sessions(node), 0);
    node_free(node);
}

/* Good requests with bytes changed at random. Each is answered or ends its own session, and no
 * other session. */
static void test_mutated(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client other = client_new(node);
    struct random source;
    random_seed(&source, 20240717);
    unsigned ended = 0;
    unsigned fds = count_fds();
    for (unsigned round = 0; round < 3000; round++) {
        struct client client = client_new(node);
        Commd__Client__CommInit init = COMMD__CLIENT__COMM_INIT__INIT;
        Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
        request.id = 300;
        uint8_t bytes[256];
        size_t size;
        if (round % 2 == 0) {
            struct submit_record submit = submit_of(5, 1000, OP_KIND_ALL_REDUCE);
            submit.terms.dtype = DTYPE_I16;
            submit.terms.count_elements = 70000;
            submit.factor = 2.5;
            submit_record_add(&submit, RECORD_INPUT, 0, 0, 0);
            submit_record_add(&submit, RECORD_OUTPUT, 0, 0, 0);
            size = submit_record_bytes(&submit);
            memcpy(bytes, &submit, size);
        } else {
            init.handle = 5;
            init.name = (char *)"training/7";
            init.size = 2;
            init.device = -1;
            init.algorithms = (char *)"all_reduce=ring";
            request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
            request.comm_init = &init;
            size = commd__client__request__pack(&request, bytes);
        }
        for (unsigned i = 0; i <= round % 4; i++) {
            bytes[random_below(&source, size)] = (uint8_t)random_below(&source, 256);
        }
        if (round % 8 >= 6) {
            size = 1 + random_below(&source, size); /* cut */
        }
        client_send_raw(&client, bytes, size, NULL, 0);
        node_turns(node, 3);
        ended += sessions(node) == 1;
        client_free(&client);
        assert_int_equal(sessions(node), 1);
    }
    assert_in_range(ended, 100, 2900);
    assert_int_equal(count_fds(), fds);
    client_check(&other);
    client_free(&other);
    node_free(node);
}

static void test_packet_sizes(void **state)
{
    (void)state;
    struct node *node = node_new();
    /* A Hello of exactly the most that a packet may hold, and one byte more. */
    for (size_t beyond = 0; beyond < 2; beyond++) {
        size_t size = CLIENT_PACKET_MAX_BYTES + beyond;
        static char text[CLIENT_PACKET_MAX_BYTES + 2];
        memset(text, 'v', sizeof text);
        Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
        hello.protocol_version = CLIENT_PROTOCOL_VERSION;
        hello.program = (char *)"large";
        hello.version_text = text;
        Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
        request.id = 1;
        request.body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
        request.hello = &hello;
        size_t length = size;
        do {
            text[length] = '\0';
        } while (commd__client__request__get_packed_size(&request) > size && length-- > 0);
        assert_int_equal(commd__client__request__get_packed_size(&request), size);
        struct client client = client_connect(node);
        client_send(&client, &request, -1);
        if (beyond == 0) {
            event_free(client_expect_reply(&client, 1, COMMD__CLIENT__REPLY__BODY_HELLO));
            client_check(&client);
        } else {
            client_expect_error(&client, 0, STATUS_PROTOCOL, "a packet larger than 65536 bytes");
            client_expect_closed(&client);
        }
        client_free(&client);
    }
    node_free(node);
}

static void test_file_descriptors(void **state)
{
    (void)state;
    struct node *node = node_new();
    int fd = client_memfd(4096);
    struct client other = client_new(node);
    unsigned fds = count_fds();
    /* A descriptor with a request that takes none is closed. */
    uint64_t id = client_send_status(&other, fd);
    event_free(client_expect_reply(&other, id, COMMD__CLIENT__REPLY__BODY_STATUS));
    assert_int_equal(count_fds(), fds);
    /* A descriptor with a request that takes one is closed as well, once it is mapped or refused. */
    client_expect_done(&other, client_send_register(&other, 1, 4096, fd));
    assert_int_equal(count_fds(), fds);
    client_expect_error(&other, client_send_register(&other, 1, 4096, fd), STATUS_PROTOCOL,
                        "memory 1 is registered already");
    client_expect_error(&other, client_send_register(&other, 2, 4097, fd), STATUS_INVALID_ARGUMENT,
                        "4097 bytes, but the memfd has 4096");
    assert_int_equal(count_fds(), fds);
    /* More than one descriptor ends the session. So do more than there is room for. */
    static const unsigned counts[] = {2, 3, 16, 17, 40};
    int many[64];
    for (size_t i = 0; i < 64; i++) {
        many[i] = fd;
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct client client = client_new(node);
        static const uint8_t status_query[] = {0x08, 7, 0x4a, 0};
        client_send_raw(&client, status_query, sizeof status_query, many, counts[i]);
        client_expect_error(&client, 0, STATUS_PROTOCOL, "more than 1 file descriptor with a packet");
        client_expect_closed(&client);
        client_free(&client);
        assert_int_equal(count_fds(), fds);
    }
    /* A descriptor with a packet that is no request. */
    struct client client = client_new(node);
    client_send_raw(&client, "\xff", 1, &fd, 1);
    client_expect_error(&client, 0, STATUS_PROTOCOL, "a packet of 1 bytes that is no request");
    client_expect_closed(&client);
    client_free(&client);
    /* A descriptor with a packet that nobody reads any more. */
    client = client_new(node);
    client_send_raw(&client, "\xff", 1, NULL, 0);
    client_send_register(&client, 3, 4096, fd);
    client_expect_error(&client, 0, STATUS_PROTOCOL, "no request");
    client_expect_closed(&client);
    client_free(&client);
    assert_int_equal(count_fds(), fds);
    assert_int_equal(client_mappings(), 1);
    client_check(&other);
    client_free(&other);
    close(fd);
    assert_int_equal(client_mappings(), 0);
    node_free(node);
}

/* A user who is refused again and again, with a new session each time, does not fill the log. */
static void test_refusals_are_not_all_logged(void **state)
{
    (void)state;
    struct node *node = node_new();
    for (unsigned i = 0; i < 100; i++) {
        struct client client = client_new(node);
        client_send_raw(&client, "\xff", 1, NULL, 0);
        client_expect_error(&client, 0, STATUS_PROTOCOL, "that is no request");
        client_expect_closed(&client);
        client_free(&client);
    }
    assert_int_equal(sessions(node), 0);
    assert_int_equal(node->warnings, USER_LOG_BURST); /* the node's clock stands */
    node_free(node);
}

/* From here on, this process, which is also the daemon, cannot open any descriptor. Returns the former limit.
 */
static struct rlimit forbid_descriptors(void)
{
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int lowest = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    assert_true(lowest >= 0);
    close(lowest);
    none = before;
    none.rlim_cur = (rlim_t)lowest;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    return before;
}

/* If no descriptor is free, commd refuses the request that brings one. The session and all others go on. */
static void test_no_descriptor_is_left(void **state)
{
    (void)state;
    struct node *node = node_new();
    int fd = client_memfd(4096);
    struct client client = client_new(node);
    unsigned fds = count_fds();
    struct rlimit before = forbid_descriptors();
    for (unsigned i = 0; i < 3; i++) {
        uint64_t id = client_send_register(&client, 1, 4096, fd);
        client_expect_error(&client, id, STATUS_LIMIT, "commd did not take the descriptor of this request");
        client_check(&client);
    }
    assert_contains(node->last_warning, "file descriptors open that it may have");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(count_fds(), fds);
    client_expect_done(&client, client_send_register(&client, 1, 4096, fd));
    client_free(&client);
    close(fd);
    node_free(node);
}

/* A client that comes meanwhile is told why. If there is no descriptor even for that, the client waits, and
 * the daemon accepts nobody. */
static void test_no_descriptor_for_a_client(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client other = client_new(node);
    struct client late[2];
    for (unsigned i = 0; i < 2; i++) {
        late[i] = (struct client){.node = node,
                                  .fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
        assert_true(late[i].fd >= 0);
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, node->path);
    struct rlimit before = forbid_descriptors();
    assert_int_equal(connect(late[0].fd, (struct sockaddr *)&address, sizeof address), 0);
    client_expect_error(&late[0], 0, STATUS_LIMIT, "it takes no more clients");
    client_expect_closed(&late[0]);
    client_check(&other);
    node_turns(node, 10);
    assert_false(node->api->listeners[API_ROLE_CLIENT].pauses); /* nobody else has to wait */
    struct rlimit nothing = {.rlim_cur = 0, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &nothing), 0);
    assert_int_equal(connect(late[1].fd, (struct sockaddr *)&address, sizeof address), 0);
    node_turns(node, 10);
    assert_true(node->api->listeners[API_ROLE_CLIENT].pauses);
    client_check(&other);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    uint64_t id = client_send_hello(&late[1], CLIENT_PROTOCOL_VERSION, "late");
    event_free(client_expect_reply(&late[1], id, COMMD__CLIENT__REPLY__BODY_HELLO));
    assert_false(node->api->listeners[API_ROLE_CLIENT].pauses);
    close(late[0].fd);
    client_free(&late[1]);
    client_free(&other);
    node_free(node);
}

/* commd stops reading from a client that reads nothing. Nothing is lost, and others are served meanwhile. */
static void test_slow_reader_pauses(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client slow = client_new(node);
    struct client other = client_new(node);
    uint64_t first = slow.last_id + 1;
    unsigned idle = 0;
    unsigned most = 0;
    struct api_session *session = node->api->sessions; /* by age: the slow one */
    while (idle < 20) {
        uint8_t bytes[16] = {0x08};
        uint64_t id = slow.last_id + 1;
        size_t size = 1;
        for (; id >= 0x80; id >>= 7) {
            bytes[size++] = (uint8_t)(id | 0x80);
        }
        bytes[size++] = (uint8_t)id;
        bytes[size++] = 0x4a; /* StatusQuery */
        bytes[size++] = 0;
        if (client_try_send(&slow, bytes, size, NULL, 0)) {
            slow.last_id++;
            idle = 0;
        } else {
            idle++;
        }
        node_turn(node);
        most = session->out_count > most ? session->out_count : most;
        assert_true(slow.last_id < 100000);
    }
    assert_int_equal(most, API_SESSION_PAUSE_PACKETS);
    client_check(&other);
    assert_int_equal(sessions(node), 2);
    for (uint64_t id = first; id <= slow.last_id; id++) {
        event_free(client_expect_reply(&slow, id, COMMD__CLIENT__REPLY__BODY_STATUS));
    }
    client_check(&slow);
    assert_int_equal(session->out_count, 0);
    client_free(&slow);
    client_free(&other);
    node_free(node);
}

/* Events that come without a request are queued up to the user's budget. Then commd drops the client, and its
 * ranks with it. */
static void test_slow_reader_is_dropped(void **state)
{
    (void)state;
    enum { COMMS = 30, QUEUED_BYTES = 1 << 20 };
    struct node *node = node_new();
    budget_set_ceiling(node->api->budget, BUDGET_QUEUED, QUEUED_BYTES);
    struct client slow = client_new(node);
    struct client other = client_new(node);
    struct client watcher = client_new(node);
    for (uint32_t i = 0; i < COMMS; i++) {
        char name[32];
        snprintf(name, sizeof name, "comm-%u", i);
        uint64_t slow_id = client_send_init(&slow, i, name, 0, 2);
        uint64_t other_id = client_send_init(&other, i, name, 1, 2);
        event_free(client_expect_reply(&slow, slow_id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
        event_free(client_expect_reply(&other, other_id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
        for (uint32_t k = 0; k < COMMS_PENDING_OPS_MAX; k++) {
            struct submit_record submit = submit_of(i, k, OP_KIND_BARRIER);
            client_submit(&slow, &submit);
        }
    }
    client_check(&slow); /* all of them are in */
    unsigned warnings = node->warnings;
    node->awaited_warning = "dropped, it reads none of its ";
    client_free(&other);
    for (unsigned i = 0; i < 100000 && sessions(node) > 1; i++) {
        node_turn(node);
    }
    assert_int_equal(sessions(node), 1);
    assert_true(node->warnings > warnings);
    assert_true(node->warned);
    client_check(&watcher);
    client_free(&slow);
    client_free(&watcher);
    node_free(node);
}

/* A session has ended, and its client reads nothing. The session delays no other, and is freed when the
 * client goes. */
static void test_ended_session_of_a_slow_reader(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client slow = client_new(node);
    static const uint8_t status_query[] = {0x08, 7, 0x4a, 0};
    for (unsigned i = 0; i < API_SESSION_PAUSE_PACKETS * 4; i++) {
        if (!client_try_send(&slow, status_query, sizeof status_query, NULL, 0)) {
            break;
        }
        node_turn(node);
    }
    client_try_send(&slow, "\xff", 1, NULL, 0);
    node_turns(node, 10);
    client_free(&slow);
    node_turns(node, 3);
    assert_int_equal(sessions(node), 0);
    node_free(node);
}

/* A client that asks for all features gets all that this node has: stores are not among them. */
static void test_all_features(void **state)
{
    (void)state;
    static char *asked[] = {(char *)CLIENT_FEATURE_RINGS,
                            (char *)CLIENT_FEATURE_HEARTBEAT,
                            (char *)CLIENT_FEATURE_GRAPHS,
                            (char *)CLIENT_FEATURE_RECORDS_BY_TICKET,
                            (char *)CLIENT_FEATURE_ABORT,
                            (char *)CLIENT_FEATURE_CELLS,
                            (char *)CLIENT_FEATURE_FAILURES,
                            (char *)CLIENT_FEATURE_STORE,
                            (char *)"else"};
    struct node *node = node_new();
    struct client client = client_connect(node);
    Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    hello.protocol_version = CLIENT_PROTOCOL_VERSION;
    hello.program = (char *)"test";
    hello.features = asked;
    hello.n_features = sizeof asked / sizeof asked[0];
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
    request.hello = &hello;
    uint64_t id = client_send(&client, &request, -1);
    Commd__Client__Event *event = client_expect_reply(&client, id, COMMD__CLIENT__REPLY__BODY_HELLO);
    const Commd__Client__HelloReply *reply = event->reply->hello;
    assert_int_equal(reply->n_features, hello.n_features - 2);
    for (size_t i = 0; i < reply->n_features; i++) {
        bool was_asked = false;
        for (size_t j = 0; j < hello.n_features; j++) {
            was_asked = was_asked || strcmp(reply->features[i], asked[j]) == 0;
        }
        assert_true(was_asked);
    }
    event_free(event);
    client_free(&client);
    node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_all_features),
        cmocka_unit_test(test_versions_meet),
        cmocka_unit_test(test_wrong_version),
        cmocka_unit_test(test_before_hello),
        cmocka_unit_test(test_unknown_request),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_mutated),
        cmocka_unit_test(test_packet_sizes),
        cmocka_unit_test(test_file_descriptors),
        cmocka_unit_test(test_refusals_are_not_all_logged),
        cmocka_unit_test(test_no_descriptor_is_left),
        cmocka_unit_test(test_no_descriptor_for_a_client),
        cmocka_unit_test(test_slow_reader_pauses),
        cmocka_unit_test(test_slow_reader_is_dropped),
        cmocka_unit_test(test_ended_session_of_a_slow_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
