#include "tests/unit/api/api_node.h"

static void allow_fds(rlim_t count)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < count && limit.rlim_max >= count) {
        limit.rlim_cur = count;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    } else if (limit.rlim_cur < count) {
        print_message("SKIP: %s needs %lu file descriptors\n", __func__, (unsigned long)count);
        skip();
    }
}

static void expect_refused(struct node *node, const struct api_options *options, enum status status,
                           const char *text)
{
    struct api *api = NULL;
    struct error error;
    assert_int_equal(api_new(node->loop, options, loop_now_ns(), &api, &error), status);
    assert_null(api);
    assert_contains(error.text, text);
}

/* A user may have many sessions, but not all. A client beyond the limit is told which limit it is. */
static void test_sessions_max(void **state)
{
    (void)state;
    allow_fds(3 * BUDGET_SESSIONS_MAX + 256);
    struct node *node = node_new();
    static struct client clients[BUDGET_SESSIONS_MAX];
    unsigned most = 0;
    for (; most < BUDGET_SESSIONS_MAX && node->warnings == 0; most++) {
        clients[most] = client_connect(node);
        if (node->warnings == 0) {
            uint64_t id = client_send_hello(&clients[most], CLIENT_PROTOCOL_VERSION, "test");
            event_free(client_expect_reply(&clients[most], id, COMMD__CLIENT__REPLY__BODY_HELLO));
        }
    }
    most--; /* that one was refused */
    close(clients[most].fd);
    assert_in_range(most, BUDGET_SESSIONS_MAX * 85 / 100, BUDGET_SESSIONS_MAX * 95 / 100);
    assert_int_equal(sessions(node), most);
    unsigned fds = count_fds();
    /* One client more is told why, whether it has said Hello by then or not. */
    for (unsigned talks = 0; talks < 2; talks++) {
        struct client over = {.node = node, .fd = node_connect(node)};
        if (talks == 1) {
            client_send_hello(&over, CLIENT_PROTOCOL_VERSION, "over");
        }
        client_expect_error(&over, 0, STATUS_LIMIT, "1 more sessions: user");
        client_expect_closed(&over);
        close(over.fd);
        assert_int_equal(sessions(node), most);
        assert_int_equal(count_fds(), fds);
        assert_contains(node->last_warning, "more sessions: user");
    }
    client_check(&clients[0]);
    client_check(&clients[most - 1]);
    /* Administrators have reserved sessions. */
    struct client admin = admin_new(node);
    client_check(&admin);
    client_free(&admin);
    /* A client that goes makes room. */
    client_free(&clients[1234]);
    clients[1234] = client_new(node);
    for (unsigned i = 0; i < most; i++) {
        close(clients[i].fd);
    }
    for (unsigned i = 0; i < TURNS_MAX && sessions(node) > 0; i++) {
        node_turn(node);
    }
    assert_int_equal(sessions(node), 0);
    assert_int_equal(count_fds(), fds - 3 * most);
    node_free(node);
}

/* A client that says nothing is dropped after a while. One that has said Hello stays. */
static void test_silent_connections(void **state)
{
    (void)state;
    enum { SILENT = 5 };
    struct node *node = node_new();
    struct client silent[SILENT], client = client_new(node);
    struct budget_info info;
    for (unsigned i = 0; i < SILENT; i++) {
        silent[i] = client_connect(node);
    }
    assert_int_equal(sessions(node), SILENT + 1);
    budget_account_info(node->api->sessions->account, &info);
    assert_int_equal(info.used[BUDGET_GREETINGS], SILENT);
    assert_int_equal(info.used[BUDGET_SESSIONS], SILENT + 1);
    api_greetings_due(node->api, loop_now_ns());
    node_turns(node, 3);
    assert_int_equal(sessions(node), SILENT + 1);
    api_greetings_due(node->api, loop_now_ns() + API_HELLO_WAIT_NS);
    node_turns(node, 3 * SILENT);
    assert_int_equal(sessions(node), 1);
    for (unsigned i = 0; i < SILENT; i++) {
        client_expect_error(&silent[i], 0, STATUS_TIMED_OUT, "no Hello within 5 s");
        close(silent[i].fd);
    }
    budget_account_info(node->api->sessions->account, &info);
    assert_int_equal(info.used[BUDGET_GREETINGS], 0);
    assert_int_equal(info.used[BUDGET_SESSIONS], 1);
    client_check(&client);
    client_free(&client);
    node_free(node);
}

static void test_socket_file(void **state)
{
    (void)state;
    struct node *node = node_new_bare();
    struct api_options options = node_api_options(node);
    options.socket_mode = 0640;
    mode_t mask = umask(0);
    must(api_new(node->loop, &options, loop_now_ns(), &node->api, error));
    assert_int_equal(umask(mask), 0); /* as it was */
    struct stat file;
    assert_int_equal(stat(node->path, &file), 0);
    assert_true(S_ISSOCK(file.st_mode));
    assert_int_equal(file.st_mode & 07777, 0640);
    /* A second commd does not take over the file, and does not touch it. */
    unsigned fds = count_fds();
    expect_refused(node, &options, STATUS_ALREADY_EXISTS, "another commd is running");
    assert_int_equal(count_fds(), fds);
    node_turns(node, 3);
    struct client client = client_new(node);
    client_free(&client);
    api_free(node->api);
    assert_int_equal(access(node->path, F_OK), -1);
    /* The file that a killed commd left behind is replaced. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, node->path);
    int dead = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(dead, (struct sockaddr *)&address, sizeof address), 0);
    close(dead);
    must(api_new(node->loop, &options, loop_now_ns(), &node->api, error));
    client = client_new(node);
    client_free(&client);
    node_free(node);
}

static void test_paths_refused(void **state)
{
    (void)state;
    struct node *node = node_new_bare();
    struct api_options options = node_api_options(node);
    unsigned fds = count_fds();
    /* Only a socket is replaced. */
    int file = open(node->path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    close(file);
    expect_refused(node, &options, STATUS_CONFIG, "exists and is no socket");
    assert_int_equal(unlink(node->path), 0);
    assert_int_equal(mkdir(node->path, 0700), 0);
    expect_refused(node, &options, STATUS_CONFIG, "remove it, or give another path (socket_path, --socket)");
    assert_int_equal(rmdir(node->path), 0);
    char longest[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 1];
    memset(longest, 'x', sizeof longest - 1);
    longest[0] = '/';
    longest[sizeof longest - 1] = '\0';
    options.socket_path = longest;
    expect_refused(node, &options, STATUS_CONFIG, "a socket's path has at most 107 bytes");
    char missing[160];
    snprintf(missing, sizeof missing, "%s/no/such.sock", node->folder);
    options.socket_path = missing;
    expect_refused(node, &options, STATUS_SYSTEM, "bind: No such file or directory: make the folder ");
    expect_refused(node, &options, STATUS_SYSTEM, "/no, or give another path (socket_path, --socket)");
    options.socket_path = "/proc/self/status/commd.sock"; /* a file is where a folder should be */
    expect_refused(node, &options, STATUS_SYSTEM, "bind: Not a directory: give another path (socket_path");
    options.socket_path = node->path;
    options.socket_group = "no-such-group-here";
    expect_refused(node, &options, STATUS_CONFIG, "there is no group \"no-such-group-here\"");
    options.socket_group = "";
    options.admin_group = "no-such-group-here";
    expect_refused(node, &options, STATUS_CONFIG, "admin_group: there is no group \"no-such-group-here\"");
    options.admin_group = "";
    options.admin_socket_path = longest;
    expect_refused(node, &options, STATUS_CONFIG, "107 bytes: give a shorter one (admin_socket_path)");
    assert_int_equal(access(node->path, F_OK), -1); /* nothing is left of it */
    assert_int_equal(count_fds(), fds);
    api_free(NULL);
    node_free(node);
}

/* Socket activation: somebody else bound the socket, and its file stays theirs. */
static void test_passed_socket(void **state)
{
    (void)state;
    struct node *node = node_new_bare();
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, node->path);
    struct api_options options = node_api_options(node);
    options.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(options.listen_fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(options.listen_fd, 16), 0);
    unsigned fds = count_fds();
    must(api_new(node->loop, &options, loop_now_ns(), &node->api, error));
    struct client client = client_new(node);
    client_check(&client);
    client_free(&client);
    api_free(node->api);
    node->api = NULL;
    assert_int_equal(count_fds(), fds - 1);
    assert_int_equal(access(node->path, F_OK), 0);
    assert_int_equal(unlink(node->path), 0);
    node_free(node);
}

static void test_drain(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_new(node);
    struct api_drain drain = {.draining = true, .stops = true, .deadline_ns = TIME_NEVER};
    strcpy(drain.reason, "new kernel");
    api_set_drain(node->api, &drain, loop_now_ns());
    struct client late = {.node = node, .fd = node_connect(node)};
    node_turns(node, 20);
    assert_int_equal(sessions(node), 1);
    uint64_t id = client_send_status(&client, -1);
    Commd__Client__Event *event = client_expect_reply(&client, id, COMMD__CLIENT__REPLY__BODY_STATUS);
    assert_true(event->reply->status->draining);
    assert_string_equal(event->reply->status->drain_reason, "new kernel");
    assert_int_equal(event->reply->status->drain_left_ms, 0);
    assert_string_equal(event->reply->status->node_name, "a");
    assert_string_equal(event->reply->status->cluster_name, "blue");
    assert_int_equal(event->reply->status->clients, 1);
    event_free(event);
    close(late.fd);
    client_free(&client);
    node_free(node);
}

/* After `commctl drain`, commd accepts new clients, but refuses their communicators. Its last message to
 * clients says why it ends. */
static void test_drain_without_stop(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client client = client_new(node);
    struct api_drain drain = {.draining = true, .deadline_ns = loop_now_ns() + 5 * TIME_S};
    api_set_drain(node->api, &drain, loop_now_ns());
    struct client late = client_new(node);
    uint64_t id = client_send_status(&late, -1);
    Commd__Client__Event *event = client_expect_reply(&late, id, COMMD__CLIENT__REPLY__BODY_STATUS);
    assert_true(event->reply->status->draining);
    assert_in_range(event->reply->status->drain_left_ms, 3000, 5000);
    event_free(event);
    api_say_goodbye(node->api, "node a: commd is restarting");
    event = client_expect_reply(&client, 0, COMMD__CLIENT__REPLY__BODY_ERROR);
    assert_int_equal(event->reply->error->status, STATUS_DAEMON_LOST);
    assert_string_equal(event->reply->error->text, "node a: commd is restarting");
    event_free(event);
    client_free(&late);
    client_free(&client);
    node_free(node);
}

/* The daemon stops with open sessions, which have memory and ranks. */
static void test_freed_with_sessions(void **state)
{
    (void)state;
    unsigned fds = count_fds();
    struct node *node = node_new();
    struct client clients[3];
    int fd = client_memfd(4096);
    for (uint32_t i = 0; i < 3; i++) {
        clients[i] = client_new(node);
        client_expect_done(&clients[i], client_send_register(&clients[i], i, 4096, fd));
        client_send_init(&clients[i], 1, "comm", i, 4); /* one rank short */
    }
    client_send_raw(&clients[1], "\xff", 1, NULL, 0);
    node_turns(node, 1);
    close(fd);
    node_free(node);
    for (uint32_t i = 0; i < 3; i++) {
        close(clients[i].fd);
    }
    assert_int_equal(count_fds(), fds);
    assert_int_equal(client_mappings(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sessions_max),       cmocka_unit_test(test_silent_connections),
        cmocka_unit_test(test_socket_file),        cmocka_unit_test(test_paths_refused),
        cmocka_unit_test(test_passed_socket),      cmocka_unit_test(test_drain),
        cmocka_unit_test(test_drain_without_stop), cmocka_unit_test(test_freed_with_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
