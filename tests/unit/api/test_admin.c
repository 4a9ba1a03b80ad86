#include "daemon/base/control_group.h"
#include "tests/unit/api/api_node.h"

/* The administrators' socket, and what a user is shown on the clients' socket. All clients of a test are this
 * process. as_user makes a client another user's, as if the kernel had said so. */
#define OTHER_UID 4242

static struct api_session *newest_session(const struct node *node)
{
    struct api_session *newest = NULL;
    for (struct api_session *each = node->api->sessions; each != NULL; each = each->hh.next) {
        newest = each;
    }
    return newest;
}

static struct client client_new_as(struct node *node, uid_t uid)
{
    struct client client = client_connect(node);
    newest_session(node)->client.uid = uid;
    uint64_t id = client_send_hello(&client, CLIENT_PROTOCOL_VERSION, "test");
    event_free(client_expect_reply(&client, id, COMMD__CLIENT__REPLY__BODY_HELLO));
    return client;
}

/* Asks for a list's first page; the caller frees it. */
static Commd__Client__Event *ask(struct client *client, Commd__Client__Request__BodyCase question,
                                 Commd__Client__Reply__BodyCase answer)
{
    Commd__Client__NodesQuery list = COMMD__CLIENT__NODES_QUERY__INIT;
    Commd__Client__CommsQuery comms = COMMD__CLIENT__COMMS_QUERY__INIT;
    Commd__Client__ClientsQuery clients = COMMD__CLIENT__CLIENTS_QUERY__INIT;
    Commd__Client__OpsQuery ops = COMMD__CLIENT__OPS_QUERY__INIT;
    Commd__Client__UsersQuery users = COMMD__CLIENT__USERS_QUERY__INIT;
    Commd__Client__ConfigQuery config = COMMD__CLIENT__CONFIG_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = question;
    if (question == COMMD__CLIENT__REQUEST__BODY_COMMS) {
        request.comms = &comms;
    } else if (question == COMMD__CLIENT__REQUEST__BODY_CLIENTS) {
        request.clients = &clients;
    } else if (question == COMMD__CLIENT__REQUEST__BODY_OPS) {
        request.ops = &ops;
    } else if (question == COMMD__CLIENT__REQUEST__BODY_CONFIG) {
        request.config = &config;
    } else if (question == COMMD__CLIENT__REQUEST__BODY_USERS) {
        request.users = &users;
    } else {
        request.nodes = &list;
    }
    return client_expect_reply(client, client_send(client, &request, -1), answer);
}

static void expect_clients(struct client *client, size_t rows, uint64_t others)
{
    Commd__Client__Event *event =
        ask(client, COMMD__CLIENT__REQUEST__BODY_CLIENTS, COMMD__CLIENT__REPLY__BODY_CLIENTS);
    assert_int_equal(event->reply->clients->n_clients, rows);
    assert_int_equal(event->reply->clients->others, others);
    event_free(event);
}

static void expect_comms(struct client *client, size_t rows, uint64_t others, uid_t first_owner)
{
    Commd__Client__Event *event =
        ask(client, COMMD__CLIENT__REQUEST__BODY_COMMS, COMMD__CLIENT__REPLY__BODY_COMMS);
    assert_int_equal(event->reply->comms->n_comms, rows);
    assert_int_equal(event->reply->comms->others, others);
    if (rows > 0) {
        assert_int_equal(event->reply->comms->comms[0]->owner_uid, first_owner);
    }
    event_free(event);
}

static void expect_ops(struct client *client, size_t rows, uint64_t others)
{
    Commd__Client__Event *event =
        ask(client, COMMD__CLIENT__REQUEST__BODY_OPS, COMMD__CLIENT__REPLY__BODY_OPS);
    assert_int_equal(event->reply->ops->n_ops, rows);
    assert_int_equal(event->reply->ops->others, others);
    event_free(event);
}

/* One operation that waits for another rank. */
static void post_barrier(struct client *client, const char *name)
{
    struct submit_record submit = submit_of(1, 1, OP_KIND_BARRIER);
    client_send_init(client, 1, name, 0, 2);
    uint64_t id = client_send_init(client, 2, name, 1, 2);
    event_free(client_expect_reply(client, id - 1, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
    event_free(client_expect_reply(client, id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
    client_submit(client, &submit);
    client_check(client);
}

/* A user sees his own rows, and the number of others' rows. On the clients' socket, root is a user like any
 * other. */
static void test_rows_of_other_users(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client own = client_new_as(node, 1000), other = client_new_as(node, OTHER_UID);
    struct client root = client_new_as(node, 0), admin = admin_new(node);
    post_barrier(&own, "train");
    post_barrier(&other, "train");
    expect_clients(&own, 1, 3);
    expect_clients(&other, 1, 3);
    expect_clients(&admin, 4, 0);
    expect_comms(&own, 1, 1, 1000);
    expect_comms(&other, 1, 1, OTHER_UID);
    expect_comms(&root, 0, 2, 0);
    expect_comms(&admin, 2, 0, 1000);
    expect_ops(&own, 1, 1);
    expect_ops(&root, 0, 2);
    expect_ops(&admin, 2, 0);
    client_free(&root);
    client_free(&own);
    client_free(&other);
    client_free(&admin);
    node_free(node);
}

/* There are more rows than fit on a page. Another user's rows between them use no place on the page. */
static void test_pages_without_other_users_rows(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client clients[2 * CLIENT_LIST_PAGE_MAX + 10];
    size_t count = sizeof clients / sizeof *clients;
    for (size_t i = 0; i < count; i++) {
        clients[i] = client_new_as(node, i % 2 == 0 ? 1000 : OTHER_UID);
        char name[16];
        snprintf(name, sizeof name, "c%zu", i);
        client_init(&clients[i], 1, name);
    }
    uint64_t after = 0;
    size_t rows = 0;
    unsigned pages = 0;
    do {
        Commd__Client__CommsQuery query = COMMD__CLIENT__COMMS_QUERY__INIT;
        Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
        query.after = after;
        request.body_case = COMMD__CLIENT__REQUEST__BODY_COMMS;
        request.comms = &query;
        Commd__Client__Event *event = client_expect_reply(&clients[0], client_send(&clients[0], &request, -1),
                                                          COMMD__CLIENT__REPLY__BODY_COMMS);
        for (size_t i = 0; i < event->reply->comms->n_comms; i++) {
            char name[16];
            snprintf(name, sizeof name, "c%zu", 2 * rows++);
            assert_string_equal(event->reply->comms->comms[i]->name, name);
        }
        after = event->reply->comms->cursor;
        if (after == 0) {
            assert_int_equal(event->reply->comms->others, count / 2);
        }
        event_free(event);
        pages++;
    } while (after != 0);
    assert_int_equal(pages, 2);
    assert_int_equal(rows, count / 2);
    for (size_t i = 0; i < count; i++) {
        client_free(&clients[i]);
    }
    node_free(node);
}

static void test_paths_of_keys(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client root = client_new_as(node, 0), admin = admin_new(node);
    Commd__Client__Event *event =
        ask(&root, COMMD__CLIENT__REQUEST__BODY_CONFIG, COMMD__CLIENT__REPLY__BODY_CONFIG);
    assert_int_equal(event->reply->config->n_settings, 1);
    assert_string_equal(event->reply->config->settings[0]->key, "slice_bytes");
    assert_string_equal(event->reply->config->settings[0]->value, "4096"); /* in force */
    assert_string_equal(event->reply->config->settings[0]->waiting_value, "65536");
    assert_string_equal(event->reply->config->settings[0]->waiting_source, "commd.conf:3");
    assert_int_equal(event->reply->config->hidden, 1);
    event_free(event);
    event = ask(&admin, COMMD__CLIENT__REQUEST__BODY_CONFIG, COMMD__CLIENT__REPLY__BODY_CONFIG);
    assert_int_equal(event->reply->config->n_settings, 2);
    assert_string_equal(event->reply->config->settings[1]->value, "/secret/node.key");
    assert_int_equal(event->reply->config->hidden, 0);
    event_free(event);
    client_free(&root);
    client_free(&admin);
    node_free(node);
}

/* Reads all pages, and returns how many there are. */
static unsigned read_settings(struct client *client, unsigned count, size_t bytes)
{
    uint64_t after = 0;
    unsigned row = 0, pages = 0;
    do {
        Commd__Client__ConfigQuery query = COMMD__CLIENT__CONFIG_QUERY__INIT;
        Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
        query.after = after;
        request.body_case = COMMD__CLIENT__REQUEST__BODY_CONFIG;
        request.config = &query;
        Commd__Client__Event *event =
            client_expect_reply(client, client_send(client, &request, -1), COMMD__CLIENT__REPLY__BODY_CONFIG);
        const Commd__Client__ConfigReply *page = event->reply->config;
        assert_true(page->n_settings > 0);
        assert_int_equal(page->hidden, 1);
        for (size_t i = 0; i < page->n_settings; i++, row++) {
            if (row > 0) { /* the first is slice_bytes */
                char key[32];
                snprintf(key, sizeof key, "nodes[%u]", row - 1);
                assert_string_equal(page->settings[i]->key, key);
                assert_int_equal(strlen(page->settings[i]->value), bytes);
                assert_int_equal(strtoul(page->settings[i]->value, NULL, 10), row - 1);
            }
        }
        assert_int_equal(page->left_out, count + 1 - row);
        after = page->cursor;
        assert_int_equal(after, page->left_out > 0 ? row : 0);
        event_free(event);
        pages++;
    } while (after != 0);
    assert_int_equal(row, count + 1);
    return pages;
}

/* A page has 256 rows, or as many as fit into a packet. */
static void test_settings_of_many_nodes(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client root = client_new_as(node, 0);
    static const struct {
        unsigned count;
        size_t bytes;
        unsigned pages;
    } cases[] = {{0, 1, 1},       {254, 10, 1},  {255, 10, 1},    {256, 10, 2},  {511, 10, 2}, {512, 10, 3},
                 {16384, 10, 65}, {30, 4000, 2}, {100, 8000, 15}, {14, 4300, 1}, {15, 4300, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        node->more_settings = cases[i].count;
        node->setting_bytes = cases[i].bytes;
        assert_int_equal(read_settings(&root, cases[i].count, cases[i].bytes), cases[i].pages);
    }
    client_free(&root);
    node_free(node);
}

static void send_change(struct client *client, bool reload, const char *level,
                        Commd__Client__Reply__BodyCase answer, const char *text)
{
    Commd__Client__Reload body = COMMD__CLIENT__RELOAD__INIT;
    Commd__Client__LogLevel log_level = COMMD__CLIENT__LOG_LEVEL__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    log_level.level = (char *)(uintptr_t)level;
    request.body_case = reload ? COMMD__CLIENT__REQUEST__BODY_RELOAD : COMMD__CLIENT__REQUEST__BODY_LOG_LEVEL;
    if (reload) {
        request.reload = &body;
    } else {
        request.log_level = &log_level;
    }
    Commd__Client__Event *event = client_expect_reply(client, client_send(client, &request, -1), answer);
    if (answer == COMMD__CLIENT__REPLY__BODY_ERROR) {
        assert_non_null(strstr(event->reply->error->text, text));
    } else if (answer == COMMD__CLIENT__REPLY__BODY_RELOAD) {
        assert_int_equal(event->reply->reload->n_applied, 1);
        assert_string_equal(event->reply->reload->applied[0], "log_level = debug");
        assert_int_equal(event->reply->reload->n_waiting, 1);
        assert_string_equal(event->reply->reload->waiting[0], text);
    }
    event_free(event);
}

/* Only administrators change what is in force, and they get the result. */
static void test_reload_and_log_level(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client root = client_new_as(node, 0), admin = admin_new(node);
    send_change(&root, true, NULL, COMMD__CLIENT__REPLY__BODY_ERROR, "only administrators reload");
    send_change(&root, false, "debug", COMMD__CLIENT__REPLY__BODY_ERROR,
                "only administrators set the log level");
    assert_int_equal(node->reloads + node->log_levels, 0);
    send_change(&admin, true, NULL, COMMD__CLIENT__REPLY__BODY_RELOAD, "slice_bytes = 65536");
    send_change(&admin, true, NULL, COMMD__CLIENT__REPLY__BODY_ERROR, "commd.conf:3: x: unknown key");
    send_change(&admin, false, "debug", COMMD__CLIENT__REPLY__BODY_DONE, NULL);
    send_change(&admin, false, "loud", COMMD__CLIENT__REPLY__BODY_ERROR, "expected debug");
    client_free(&root);
    client_free(&admin);
    node_free(node);
}

static const Commd__Client__UserInfo *find_user(const Commd__Client__UsersReply *reply, uid_t uid,
                                                const char *group)
{
    for (size_t i = 0; i < reply->n_users; i++) {
        if (reply->users[i]->uid == uid && strcmp(reply->users[i]->group, group) == 0) {
            return reply->users[i];
        }
    }
    fail_msg("no row of user %u in \"%s\"", (unsigned)uid, group);
    return NULL;
}

static const Commd__Client__UserUse *find_use(const Commd__Client__UserInfo *user, enum budget_kind kind)
{
    for (size_t i = 0; i < user->n_uses; i++) {
        if (strcmp(user->uses[i]->kind, budget_kind_key(kind)) == 0) {
            return user->uses[i];
        }
    }
    fail_msg("no %s", budget_kind_key(kind));
    return NULL;
}

/* Two control groups of one user, and this process's own user: what they hold, and who sees it. */
static void test_what_users_hold(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct budget *budget = node->api->budget;
    struct budget_account *jobs[2];
    struct error refused;
    char group[BUDGET_GROUP_MAX_BYTES + 1];
    control_group_of(getpid(), group, sizeof group);
    must(budget_open(budget, OTHER_UID, "/job\x1b[2J", &jobs[0], error));
    must(budget_open(budget, OTHER_UID, "/other", &jobs[1], error));
    must(budget_charge(jobs[0], BUDGET_MEMORIES, 7, error));
    assert_int_equal(budget_charge(jobs[0], BUDGET_MEMORIES, UINT64_C(1) << 40, &refused), STATUS_LIMIT);
    api_set_user_limit(node->api, BUDGET_SESSIONS, 30);
    struct client own = client_new(node), other = client_new_as(node, OTHER_UID), admin = admin_new(node);
    client_init(&own, 1, "train");

    Commd__Client__Event *event =
        ask(&admin, COMMD__CLIENT__REQUEST__BODY_USERS, COMMD__CLIENT__REPLY__BODY_USERS);
    const Commd__Client__UsersReply *reply = event->reply->users;
    assert_int_equal(reply->n_users, 4); /* with administration's own */
    assert_int_equal(reply->others, 0);
    const Commd__Client__UserInfo *job = find_user(reply, OTHER_UID, "/job?[2J");
    assert_true(job->shares_uid);
    assert_int_equal(job->n_uses, BUDGET_KINDS);
    assert_int_equal(find_use(job, BUDGET_MEMORIES)->used, 7);
    assert_int_equal(job->refused, 1);
    assert_int_equal(find_use(find_user(reply, OTHER_UID, "/other"), BUDGET_MEMORIES)->used, 0);
    assert_int_equal(find_user(reply, OTHER_UID, "/other")->refused, 0);
    assert_int_equal(find_use(job, BUDGET_SESSIONS)->ceiling, 30);
    /* Both clients belong to this process. */
    const Commd__Client__UserInfo *self = find_user(reply, getuid(), group);
    assert_int_equal(find_use(self, BUDGET_SESSIONS)->used, 2);
    assert_int_equal(find_use(self, BUDGET_COMMUNICATORS)->used, 1);
    event_free(event);

    event = ask(&other, COMMD__CLIENT__REQUEST__BODY_USERS, COMMD__CLIENT__REPLY__BODY_USERS);
    assert_int_equal(event->reply->users->n_users, 2);
    assert_int_equal(event->reply->users->others, 2);
    assert_int_equal(event->reply->users->users[0]->uid, OTHER_UID);
    assert_int_equal(event->reply->users->users[1]->uid, OTHER_UID);
    event_free(event);

    client_free(&own);
    client_free(&other);
    client_free(&admin);
    budget_release(jobs[0], BUDGET_MEMORIES, 7);
    budget_close(jobs[0]);
    budget_close(jobs[1]);
    node_free(node);
}

/* More accounts than a page has, with the longest names. */
static void test_pages_of_accounts(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct budget_account *jobs[2 * CLIENT_LIST_PAGE_MAX];
    size_t count = sizeof jobs / sizeof *jobs;
    for (size_t i = 0; i < count; i++) {
        char group[BUDGET_GROUP_MAX_BYTES + 1];
        snprintf(group, sizeof group, "/%0254zu", i);
        must(budget_open(node->api->budget, i % 2 == 0 ? 1000 : OTHER_UID, group, &jobs[i], error));
        must(budget_charge(jobs[i], BUDGET_ADDRESSES, UINT64_C(1) << 38, error));
    }
    struct client client = client_new_as(node, 1000), admin = admin_new(node);
    for (unsigned asker = 0; asker < 2; asker++) {
        struct client *asks = asker == 0 ? &client : &admin;
        Commd__Client__UsersQuery query = COMMD__CLIENT__USERS_QUERY__INIT;
        size_t rows = 0, others = 0;
        do {
            Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
            request.body_case = COMMD__CLIENT__REQUEST__BODY_USERS;
            request.users = &query;
            Commd__Client__Event *event =
                client_expect_reply(asks, client_send(asks, &request, -1), COMMD__CLIENT__REPLY__BODY_USERS);
            for (size_t i = 0; i < event->reply->users->n_users; i++) {
                assert_true(event->reply->users->users[i]->id > query.after);
                rows++;
            }
            others = event->reply->users->others;
            query.after = event->reply->users->cursor;
            event_free(event);
        } while (query.after != 0);
        /* The rows also have this process's account and the administration's. */
        assert_int_equal(rows, asker == 0 ? count / 2 : count + 2);
        assert_int_equal(others, asker == 0 ? count / 2 + 2 : 0);
    }
    client_free(&client);
    client_free(&admin);
    for (size_t i = 0; i < count; i++) {
        budget_release(jobs[i], BUDGET_ADDRESSES, UINT64_C(1) << 38);
        budget_close(jobs[i]);
    }
    node_free(node);
}

/* Administrators see everything, and cannot own any object. */
static void test_an_administrator_holds_nothing(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client admin = admin_new(node);
    uint64_t id = client_send_init(&admin, 1, "mine", 0, 1);
    client_expect_error(&admin, id, STATUS_PERMISSION, "the administrators' socket");
    client_expect_closed(&admin);
    close(admin.fd);
    admin = admin_new(node);
    int fd = client_memfd(4096);
    id = client_send_register(&admin, 1, 4096, fd);
    client_expect_error(&admin, id, STATUS_PERMISSION, "the administrators' socket");
    client_expect_closed(&admin);
    close(admin.fd);
    close(fd);
    node_turns(node, 10);
    assert_int_equal(sessions(node), 0);
    node_free(node);
}

static void test_administrators_max(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client admins[API_ADMIN_SESSIONS_MAX];
    for (unsigned i = 0; i < API_ADMIN_SESSIONS_MAX; i++) {
        admins[i] = admin_new(node);
    }
    struct client over = {.node = node, .fd = node_connect_to(node->admin_path)};
    client_expect_error(&over, 0, STATUS_LIMIT, "64 administrators are connected, which is the limit");
    client_expect_closed(&over);
    close(over.fd);
    struct client client = client_new(node); /* nor do administrators take clients' places */
    client_check(&client);
    client_free(&client);
    for (unsigned i = 0; i < API_ADMIN_SESSIONS_MAX; i++) {
        client_free(&admins[i]);
    }
    struct client again = admin_new(node);
    client_free(&again);
    node_free(node);
}

static void test_admin_socket_file(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct stat file;
    assert_int_equal(stat(node->admin_path, &file), 0);
    assert_true(S_ISSOCK(file.st_mode));
    assert_int_equal(file.st_mode & 07777, 0600);
    node_free(node);
}

/* While commd drains, administrators may still look. */
static void test_administration_of_a_drain(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct api_drain drain = {.draining = true, .stops = true, .deadline_ns = TIME_NEVER};
    api_set_drain(node->api, &drain, loop_now_ns());
    struct client admin = admin_new(node);
    client_check(&admin);
    client_free(&admin);
    node_free(node);
}

/* Clients may have used up all descriptors. Administrators, one after the other, can still find out why. */
static void test_administration_without_descriptors(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, node->admin_path);
    struct client admins[3];
    for (unsigned i = 0; i < 3; i++) {
        admins[i] = (struct client){.node = node,
                                    .fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
        assert_true(admins[i].fd >= 0);
    }
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int lowest = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    close(lowest);
    none = before;
    none.rlim_cur = (rlim_t)lowest;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(connect(admins[i].fd, (struct sockaddr *)&address, sizeof address), 0);
        uint64_t id = client_send_hello(&admins[i], CLIENT_PROTOCOL_VERSION, "test");
        event_free(client_expect_reply(&admins[i], id, COMMD__CLIENT__REPLY__BODY_HELLO));
        client_check(&admins[i]);
        assert_int_equal(shutdown(admins[i].fd, SHUT_RDWR), 0);
        node_turns(node, 10);
        assert_int_equal(sessions(node), 0);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (unsigned i = 0; i < 3; i++) {
        close(admins[i].fd);
    }
    node_free(node);
}

static uint64_t send_reload(struct client *client)
{
    Commd__Client__Reload body = COMMD__CLIENT__RELOAD__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_RELOAD;
    request.reload = &body;
    return client_send(client, &request, -1);
}

/* The answer comes when all threads use what was loaded. Meanwhile others, and the same session, are served.
 * A session may end before. */
static void test_a_reload_that_other_threads_do_not_use_yet(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client admin = admin_new(node), gone = admin_new(node);
    node->reload_waits = true;
    uint64_t id = send_reload(&admin);
    node_turns(node, 100);
    assert_int_equal(node->reloads, 1);
    client_expect_error(&admin, send_reload(&admin), STATUS_LIMIT, "only one reload at a time");
    assert_int_equal(node->reloads, 1);
    event_free(ask(&admin, COMMD__CLIENT__REQUEST__BODY_CONFIG, COMMD__CLIENT__REPLY__BODY_CONFIG));
    node->reloads = 0;
    (void)send_reload(&gone);
    node_turns(node, 100);
    assert_int_equal(node->reloads, 1);
    client_free(&gone);
    node_turns(node, 100);
    assert_int_equal(node->api->reloads_under_way, 1);
    node->reload_waits = false;
    Commd__Client__Event *event = client_expect_reply(&admin, id, COMMD__CLIENT__REPLY__BODY_RELOAD);
    assert_string_equal(event->reply->reload->applied[0], "log_level = debug");
    assert_string_equal(event->reply->reload->waiting[0], "slice_bytes = 65536");
    event_free(event);
    assert_int_equal(node->api->reloads_under_way, 0);
    client_free(&admin);
    node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_other_users),
        cmocka_unit_test(test_pages_without_other_users_rows),
        cmocka_unit_test(test_what_users_hold),
        cmocka_unit_test(test_pages_of_accounts),
        cmocka_unit_test(test_paths_of_keys),
        cmocka_unit_test(test_settings_of_many_nodes),
        cmocka_unit_test(test_a_reload_that_other_threads_do_not_use_yet),
        cmocka_unit_test(test_reload_and_log_level),
        cmocka_unit_test(test_an_administrator_holds_nothing),
        cmocka_unit_test(test_administrators_max),
        cmocka_unit_test(test_admin_socket_file),
        cmocka_unit_test(test_administration_of_a_drain),
        cmocka_unit_test(test_administration_without_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
