#ifndef TESTS_UNIT_API_RING_CLIENT_H
#define TESTS_UNIT_API_RING_CLIENT_H

#include "tests/unit/api/api_node.h"

/* A client with rings, in the same thread as the node. It can write anything on its side of the rings. */
struct ring_client {
    struct client client; /* its socket */
    int memory_fd, daemon_bell_fd, bell_fd;
    unsigned char *memory;
    struct ring out, in;
};

static inline size_t memory_bytes(void)
{
    return 2 * ring_shared_bytes(CLIENT_RING_BYTES);
}

/* Does what the daemon's loop does in a turn, without going to sleep. */
static inline void turn(struct node *node)
{
    (void)api_poll(node->api, loop_now_ns());
    api_ring_bells(node->api);
    node_turn(node);
    (void)api_poll(node->api, loop_now_ns());
    api_ring_bells(node->api);
}

static inline void turns(struct node *node, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        turn(node);
    }
}

static inline uint64_t send_hello(struct client *client, const char *feature)
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

/* Receives the answer to Hello. Returns how many descriptors came with it. */
static inline unsigned receive_hello(struct client *client, int *fds, bool offers)
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

static inline struct ring_client ring_client_new(struct node *node)
{
    int fds[CLIENT_RING_FDS] = {-1, -1, -1};
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

static inline void ring_client_free(struct ring_client *client)
{
    munmap(client->memory, memory_bytes());
    close(client->memory_fd);
    close(client->daemon_bell_fd);
    close(client->bell_fd);
    client_free(&client->client);
}

static inline void ring_daemon(const struct ring_client *client)
{
    if (write(client->daemon_bell_fd, "x", 1) < 0) {
        assert_true(errno == EPIPE || errno == EAGAIN); /* the session has ended, or rings enough */
    }
}

/* Returns how often the daemon has rung. */
static inline size_t heard(const struct ring_client *client)
{
    char bytes[256];
    ssize_t count = read(client->bell_fd, bytes, sizeof bytes);
    return count > 0 ? (size_t)count : 0;
}

/* Puts a StatusQuery under the next id, without ringing. */
static inline enum ring_result put_status(struct ring_client *client)
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

/* Takes the next answer and returns its id; 0: there is none. error: the answer must be a failure whose text
 * contains this. */
static inline uint64_t take_reply(struct ring_client *client, const char *error)
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
    if (failed && error != NULL) {
        assert_contains(event->reply->error->text, error);
    }
    event_free(event);
    return id;
}

/* A daemon that listens to the bell less often needs time, not turns. */
static inline void expect_reply(struct ring_client *client, uint64_t id)
{
    uint64_t got = 0, until_ns = loop_now_ns() + 20 * TIME_S;
    while (got == 0 && loop_now_ns() < until_ns) {
        got = take_reply(client, NULL);
        if (got == 0) {
            turn(client->client.node);
        }
    }
    assert_int_equal(got, id);
}

/* Checks that the session lives. */
static inline void ring_client_check(struct ring_client *client)
{
    assert_int_equal(put_status(client), RING_OK);
    if (ring_wake_consumer(&client->out)) {
        ring_daemon(client);
    }
    expect_reply(client, client->client.last_id);
}

/* Lets the daemon go to sleep: from now on, it waits for its descriptors. */
static inline void fall_asleep(struct node *node)
{
    for (unsigned i = 0; i < 1000 && !api_sleep(node->api); i++) {
        turn(node);
    }
    assert_false(api_is_awake(node->api));
}

#endif
