#include "tests/unit/api/api_node.h"

#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "daemon/base/random.h"

/*
 * commd's side of a client's rings: the client is this thread, too, and does with its side what it likes.
 */
struct ring_client {
    struct client client; /* its socket */
    int memory_fd, daemon_bell_fd, bell_fd;
    unsigned char *memory;
    struct ring out, in;
};

static size_t memory_bytes(void)
{
    return 2 * ring_shared_bytes(CLIENT_RING_BYTES);
}

/* What the daemon's loop does in a turn, without going to sleep. */
static void turn(struct node *node)
{
    (void)api_poll(node->api, loop_now_ns());
    api_ring_bells(node->api);
    node_turn(node);
    (void)api_poll(node->api, loop_now_ns());
    api_ring_bells(node->api);
}

static void turns(struct node *node, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        turn(node);
    }
}

static uint64_t send_hello(struct client *client, const char *feature)
{
    char *features[] = {(char *)(uintptr_t)feature};
    Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
    hello.protocol_version = CLIENT_PROTOCOL_VERSION;
    hello.program = (char *)"rings";
    hello.features = features;
    hello.n_features = 1;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
    request.hello = &hello;
    return client_send(client, &request, -1);
}

/* The answer to Hello, and how many descriptors came with it. */
static unsigned receive_hello(struct client *client, int *fds, bool offers)
{
    uint8_t bytes[4096];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(16 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t size = -1;
    for (unsigned i = 0; i < 100 && size < 0; i++) {
        turn(client->node);
        size = recvmsg(client->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    }
    assert_true(size > 0);
    Commd__Client__Event *event = commd__client__event__unpack(NULL, (size_t)size, bytes);
    assert_non_null(event);
    assert_int_equal(event->reply->body_case, COMMD__CLIENT__REPLY__BODY_HELLO);
    assert_int_equal(event->reply->hello->n_features, offers);
    event_free(event);
    const struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    if (first == NULL) {
        return 0;
    }
    size_t count = (first->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    assert_int_equal(count, CLIENT_RING_FDS);
    memcpy(fds, CMSG_DATA(first), CLIENT_RING_FDS * sizeof(int));
    return CLIENT_RING_FDS;
}

static struct ring_client ring_client_new(struct node *node)
{
    int fds[CLIENT_RING_FDS];
    struct ring_client client = {.client = client_connect(node)};
    (void)send_hello(&client.client, CLIENT_FEATURE_RINGS);
    assert_int_equal(receive_hello(&client.client, fds, true), CLIENT_RING_FDS);
    client.memory_fd = fds[0];
    client.daemon_bell_fd = fds[1];
    client.bell_fd = fds[2];
    void *memory = mmap(NULL, memory_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    assert_true(memory != MAP_FAILED);
    client.memory = memory;
    ring_attach(&client.out, memory, CLIENT_RING_BYTES);
    ring_attach(&client.in, client.memory + ring_shared_bytes(CLIENT_RING_BYTES), CLIENT_RING_BYTES);
    return client;
}

static void ring_client_free(struct ring_client *client)
{
    munmap(client->memory, memory_bytes());
    close(client->memory_fd);
    close(client->daemon_bell_fd);
    close(client->bell_fd);
    client_free(&client->client);
}

static void ring_daemon(const struct ring_client *client)
{
    if (write(client->daemon_bell_fd, "x", 1) < 0) {
        assert_int_equal(errno, EPIPE); /* the session has ended, and nobody hears */
    }
}

/* How often the daemon has rung. */
static size_t heard(const struct ring_client *client)
{
    char bytes[256];
    ssize_t count = read(client->bell_fd, bytes, sizeof bytes);
    return count > 0 ? (size_t)count : 0;
}

/* A StatusQuery under the next id, without ringing. */
static enum ring_result put_status(struct ring_client *client)
{
    Commd__Client__StatusQuery query = COMMD__CLIENT__STATUS_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    uint8_t bytes[32];
    request.id = client->client.last_id + 1;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_STATUS;
    request.status = &query;
    enum ring_result result = ring_put(&client->out, bytes, commd__client__request__pack(&request, bytes));
    client->client.last_id += result == RING_OK;
    return result;
}

/* The id of the next answer; 0: there is none. `error`: of a failure, its text is to have that in it. */
static uint64_t take_reply(struct ring_client *client, const char *error)
{
    static uint8_t bytes[CLIENT_RING_BYTES];
    size_t size_bytes;
    enum ring_result result = ring_take(&client->in, bytes, sizeof bytes, &size_bytes);
    if (result == RING_NOTHING) {
        return 0;
    }
    assert_int_equal(result, RING_OK);
    if (ring_wake_producer(&client->in)) {
        ring_daemon(client);
    }
    Commd__Client__Event *event = commd__client__event__unpack(NULL, size_bytes, bytes);
    assert_non_null(event);
    assert_int_equal(event->body_case, COMMD__CLIENT__EVENT__BODY_REPLY);
    uint64_t id = event->reply->id;
    bool failed = event->reply->body_case == COMMD__CLIENT__REPLY__BODY_ERROR;
    assert_int_equal(failed, error != NULL);
    if (failed) {
        assert_contains(event->reply->error->text, error);
    }
    event_free(event);
    return id;
}

static void expect_reply(struct ring_client *client, uint64_t id)
{
    uint64_t got = 0;
    for (unsigned i = 0; i < 1000 && got == 0; i++) {
        got = take_reply(client, NULL);
        if (got == 0) {
            turn(client->client.node);
        }
    }
    assert_int_equal(got, id);
}

/* That the session lives. */
static void ring_client_check(struct ring_client *client)
{
    assert_int_equal(put_status(client), RING_OK);
    if (ring_wake_consumer(&client->out)) {
        ring_daemon(client);
    }
    expect_reply(client, client->client.last_id);
}

/* The daemon waits at its descriptors from now on. */
static void fall_asleep(struct node *node)
{
    for (unsigned i = 0; i < 1000 && !api_sleep(node->api); i++) {
        turn(node);
    }
    assert_false(api_is_awake(node->api));
}

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
    /* Nobody can take the memory away, or make it other than it is. */
    assert_int_equal(ftruncate(client.memory_fd, 4096), -1);
    assert_int_equal(ftruncate(client.memory_fd, 1 << 20), -1);
    int seals = fcntl(client.memory_fd, F_GET_SEALS);
    assert_int_equal(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    /* What has a descriptor comes on the socket, and is answered in the ring. */
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

static void test_bells_ring_for_who_sleeps(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct ring_client client = ring_client_new(node);
    fall_asleep(node);
    /* The daemon sleeps: it is to be rung, once; without that it looks at nothing. */
    assert_int_equal(put_status(&client), RING_OK);
    assert_true(ring_wake_consumer(&client.out));
    assert_int_equal(put_status(&client), RING_OK);
    assert_false(ring_wake_consumer(&client.out));
    turns(node, 10);
    assert_int_equal(take_reply(&client, NULL), 0);
    ring_daemon(&client);
    turns(node, 10);
    assert_true(api_is_awake(node->api));
    assert_int_equal(take_reply(&client, NULL), client.client.last_id - 1);
    assert_int_equal(take_reply(&client, NULL), client.client.last_id);
    assert_int_equal(heard(&client), 0); /* we were awake */
    /* Awake, it needs no bell. It does not sleep over what is there. */
    ring_client_check(&client);
    assert_int_equal(put_status(&client), RING_OK);
    assert_false(api_sleep(node->api));
    assert_false(ring_wake_consumer(&client.out));
    expect_reply(&client, client.client.last_id);
    /* We sleep: rung once for all that came. */
    assert_true(ring_consumer_sleep(&client.in));
    assert_int_equal(put_status(&client), RING_OK);
    assert_int_equal(put_status(&client), RING_OK);
    turns(node, 10);
    assert_int_equal(heard(&client), 1);
    expect_reply(&client, client.client.last_id - 1);
    expect_reply(&client, client.client.last_id);
    /* A bell without a reason is nothing to it. */
    for (unsigned i = 0; i < 100; i++) {
        ring_daemon(&client);
        turn(node);
    }
    ring_client_check(&client);
    ring_client_free(&client);
    assert_false(api_is_awake(node->api));
    node_free(node);
}

/* Both rings go round many times, at whatever place an entry begins. */
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

/* Who takes no answers fills its ring, then the queue; then it is not read, and others are. Nothing is lost.
 */
static void test_answers_that_wait(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct client other = client_new(node);
    struct ring_client client = ring_client_new(node);
    const struct api_session *session = NULL;
    for (const struct api_session *each = node->api->sessions; each != NULL; each = each->hh.next) {
        session = each->rings != NULL ? each : session;
    }
    assert_non_null(session);
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
    assert_true(ring_producer_sleep(&client.out, 32)); /* our ring is full as well */
    fall_asleep(node);                                 /* it does not turn round and round for it */
    client_check(&other);
    fall_asleep(node);
    while (answered < client.client.last_id) {
        expect_reply(&client, ++answered); /* which rings, where the daemon waits for that */
    }
    assert_int_equal(heard(&client), 1); /* there is room in ours: it told us once */
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
        expect_ended(&client, NULL); /* there is no way to tell it */
        assert_contains(node->last_warning, "dropped, its ring holds what cannot be");
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
        expect_ended(&client, "its ring holds what cannot be");
        ring_client_free(&client);
    }
    static const uint32_t lengths[] = {
        0, 21, 65, CLIENT_RING_BYTES / 2, CLIENT_RING_BYTES, UINT32_MAX - 3, UINT32_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct ring_client client = ring_client_new(node);
        ring_client_check(&client); /* also not at the beginning */
        memcpy(client.out.data + client.out.own, &lengths[i], sizeof lengths[i]);
        atomic_store(&client.out.shared->tail, client.out.own + 24);
        expect_ended(&client, "its ring holds what cannot be");
        ring_client_free(&client);
    }
    assert_int_equal(count_fds(), fds);
    client_check(&other);
    ring_client_check(&neighbour);
    ring_client_free(&neighbour);
    client_free(&other);
    node_free(node);
}

/* Anything anywhere, while requests are under way: it ends, or goes on, and the others do not notice. */
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

/* Gone at any moment: polled, paused, asleep, with answers that wait, or with commd itself. */
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
    node_free(node); /* awake, it still is among those that are polled */
    client.client.node = NULL;
    munmap(client.memory, memory_bytes());
    close(client.memory_fd);
    close(client.daemon_bell_fd);
    close(client.bell_fd);
    close(client.client.fd);
    assert_int_equal(count_fds(), fds);
}

/* --- A client that holds its doorbells --- */

/* A page that does not come before somebody sees to it: calls of the kernel wait for it. -1: not for us. */
static int page_that_waits(void **page)
{
    struct uffdio_api api = {.api = UFFD_API};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0) {
        return -1;
    }
    *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(*page != MAP_FAILED);
    struct uffdio_register range = {.range = {.start = (uintptr_t)*page, .len = 4096},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    assert_int_equal(ioctl(fd, UFFDIO_REGISTER, &range), 0);
    return fd;
}

struct holder {
    int bell; /* the client's end */
    bool writes;
    int faults;
    void *page;
    int daemon_done; /* an eventfd */
    _Atomic bool was_late;
};

static void *hold(void *context)
{
    struct holder *holder = context;
    (void)!(holder->writes ? write(holder->bell, holder->page, 1) : read(holder->bell, holder->page, 1));
    return NULL;
}

static void *release(void *context)
{
    struct holder *holder = context;
    struct pollfd done = {.fd = holder->daemon_done, .events = POLLIN};
    holder->was_late = poll(&done, 1, 10000) != 1;
    struct uffdio_zeropage zero = {.range = {.start = (uintptr_t)holder->page, .len = 4096}};
    (void)ioctl(holder->faults, UFFDIO_ZEROPAGE, &zero);
    return NULL;
}

/* The client's own call waits for a page; the daemon's calls to the same doorbell do not wait for that. */
static void test_bells_that_are_held(void **state)
{
    (void)state;
    for (int writes = 0; writes < 2; writes++) {
        struct node *node = node_new();
        struct ring_client client = ring_client_new(node);
        struct holder holder = {.bell = writes ? client.daemon_bell_fd : client.bell_fd,
                                .writes = writes != 0};
        holder.faults = page_that_waits(&holder.page);
        if (holder.faults < 0) { /* vm.unprivileged_userfaultfd */
            ring_client_free(&client);
            node_free(node);
            skip();
        }
        fall_asleep(node);
        assert_true(ring_consumer_sleep(&client.in));
        assert_int_equal(put_status(&client), RING_OK);
        assert_true(ring_wake_consumer(&client.out));
        ring_daemon(&client);
        if (!writes) { /* so that there is something to read */
            turns(node, 10);
            (void)ring_consumer_sleep(&client.in);
        }
        holder.daemon_done = eventfd(0, EFD_CLOEXEC);
        assert_true(holder.daemon_done >= 0);
        pthread_t threads[2];
        struct pollfd fault = {.fd = holder.faults, .events = POLLIN};
        assert_int_equal(pthread_create(&threads[0], NULL, hold, &holder), 0);
        assert_int_equal(poll(&fault, 1, 10000), 1); /* it is held now */
        assert_int_equal(pthread_create(&threads[1], NULL, release, &holder), 0);
        uint64_t id = client.client.last_id;
        expect_reply(&client, id);
        assert_true(ring_consumer_sleep(&client.in));
        ring_client_check(&client);
        assert_int_equal(eventfd_write(holder.daemon_done, 1), 0);
        for (unsigned i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
        }
        assert_false(holder.was_late);
        munmap(holder.page, 4096);
        close(holder.faults);
        close(holder.daemon_done);
        ring_client_free(&client);
        node_free(node);
    }
}

/* Closed for one direction or both: that is the end of the session, and no work for the daemon. */
static void test_bells_that_are_shut(void **state)
{
    (void)state;
    static const int ways[] = {SHUT_WR, SHUT_RDWR};
    struct node *node = node_new();
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct ring_client client = ring_client_new(node);
        assert_int_equal(shutdown(client.daemon_bell_fd, ways[i]), 0);
        turns(node, 20);
        assert_contains(node->last_warning, "shut down its doorbell");
        assert_int_equal(sessions(node), 0);
        ring_client_free(&client);
        client = ring_client_new(node); /* the other bell is the client's loss */
        assert_int_equal(shutdown(client.bell_fd, ways[i]), 0);
        ring_client_check(&client);
        ring_client_free(&client);
        turns(node, 10);
    }
    node_free(node);
}

static void client_pass(int socket_fd, int fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof fd)];
    } control = {
        .header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)}};
    struct iovec part = {.iov_base = (char *)"x", .iov_len = 1};
    const struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    (void)sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Where the kernel lets them come, they are let go of. */
static void test_bells_with_descriptors(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct ring_client client = ring_client_new(node);
    unsigned before = count_fds();
    for (unsigned i = 0; i < 10; i++) {
        int fd = client_memfd(4096);
        client_pass(client.daemon_bell_fd, fd);
        client_pass(client.bell_fd, fd);
        close(fd);
        turns(node, 5);
    }
    assert_int_equal(count_fds(), before);
    ring_client_check(&client);
    ring_client_free(&client);
    node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_gets_them),
        cmocka_unit_test(test_bells_ring_for_who_sleeps),
        cmocka_unit_test(test_packets_wrap),
        cmocka_unit_test(test_answers_that_wait),
        cmocka_unit_test(test_hostile_heads_and_packets),
        cmocka_unit_test(test_hostile_clients),
        cmocka_unit_test(test_scribbling),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_bells_that_are_held),
        cmocka_unit_test(test_bells_that_are_shut),
        cmocka_unit_test(test_bells_with_descriptors),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
