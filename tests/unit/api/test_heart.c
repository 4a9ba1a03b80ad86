#include "tests/unit/api/api_node.h"

#include "daemon/base/long_call.h"

/* WAITS = True */

/* The heartbeat, as a client of the socket sees it. */

/* Returns how many descriptors come with Hello's reply. */
static unsigned greet(struct client *client, bool asks, int fds[8])
{
    char *features[] = {(char *)(uintptr_t)CLIENT_FEATURE_HEARTBEAT};
    Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
    hello.protocol_version = CLIENT_PROTOCOL_VERSION;
    hello.features = features;
    hello.n_features = asks;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
    request.hello = &hello;
    (void)client_send(client, &request, -1);
    uint8_t bytes[4096];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t size = -1;
    for (unsigned i = 0; i < TURNS_MAX && size < 0; i++) {
        node_turn(client->node);
        size = recvmsg(client->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    }
    assert_true(size > 0);
    Commd__Client__Event *event = commd__client__event__unpack(NULL, (size_t)size, bytes);
    assert_non_null(event);
    assert_int_equal(event->reply->hello->n_features, asks);
    event_free(event);
    const struct cmsghdr *item = CMSG_FIRSTHDR(&message);
    size_t fds_bytes = item != NULL ? item->cmsg_len - CMSG_LEN(0) : 0;
    memcpy(fds, item != NULL ? CMSG_DATA(item) : (const unsigned char *)fds, fds_bytes);
    return (unsigned)(fds_bytes / sizeof fds[0]);
}

static void time_is_over(void *context, uint64_t now_ns)
{
    (void)now_ns;
    *(bool *)context = true;
}

static uint64_t beats_within(struct node *node, const struct client_heartbeat *page, uint64_t time_ns)
{
    uint64_t before = page->beats;
    struct loop_timer *timer;
    struct error error;
    bool over = false;
    assert_int_equal(loop_timer_new(node->loop, time_is_over, &over, &timer, &error), STATUS_OK);
    loop_timer_set(timer, loop_now_ns() + time_ns);
    while (!over) { /* each turn waits for a beat, or for the end */
        assert_int_equal(loop_run_once(node->loop, UINT64_MAX, &error), STATUS_OK);
        node_turns(node, 10);
    }
    loop_timer_free(timer);
    return page->beats - before;
}

static void test_it_beats_for_those_who_listen(void **state)
{
    (void)state;
    struct node *node = node_new();
    int fds[8];
    struct client deaf = client_connect(node);
    assert_int_equal(greet(&deaf, false, fds), 0);
    struct client client = client_connect(node);
    assert_int_equal(greet(&client, true, fds), CLIENT_HEARTBEAT_FDS);
    const struct client_heartbeat *page = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, fds[0], 0);
    assert_true(page != MAP_FAILED);
    long_call_begin(); /* calls that take long are shown, too */
    long_call_begin();
    assert_int_equal(page->long_calls, 2);
    long_call_end();
    long_call_end();
    assert_int_equal(page->long_calls, 0);
    uint64_t beats = beats_within(node, page, 6 * CLIENT_HEARTBEAT_MS * TIME_MS);
    assert_in_range(beats, 1, 7); /* no more than its interval says; less on a busy machine */
    client_free(&client);
    (void)beats_within(node, page, 2 * CLIENT_HEARTBEAT_MS * TIME_MS);
    assert_int_equal(beats_within(node, page, 4 * CLIENT_HEARTBEAT_MS * TIME_MS), 0); /* nobody listens */
    struct client again = client_connect(node);
    int more[8];
    assert_int_equal(greet(&again, true, more), CLIENT_HEARTBEAT_FDS);
    assert_in_range(beats_within(node, page, 6 * CLIENT_HEARTBEAT_MS * TIME_MS), 1, 7);
    for (unsigned i = 0; i < CLIENT_HEARTBEAT_FDS; i++) {
        close(fds[i]);
        close(more[i]);
    }
    assert_int_equal(munmap((void *)(uintptr_t)page, sizeof *page), 0);
    client_free(&again);
    client_free(&deaf);
    node_free(node);
}

static void test_nobody_else_writes_it(void **state)
{
    (void)state;
    struct node *node = node_new();
    int fds[8];
    struct client client = client_connect(node);
    assert_int_equal(greet(&client, true, fds), CLIENT_HEARTBEAT_FDS);
    uint64_t lie = 1000;
    assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0) == MAP_FAILED);
    assert_int_equal(pwrite(fds[0], &lie, sizeof lie, 0), -1);
    assert_int_equal(ftruncate(fds[0], 0), -1);
    assert_int_equal(fcntl(fds[0], F_ADD_SEALS, F_SEAL_WRITE), -1);
    void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fds[0], 0);
    assert_true(page != MAP_FAILED);
    assert_int_equal(mprotect(page, 4096, PROT_READ | PROT_WRITE), -1);
    assert_int_equal(munmap(page, 4096), 0);
    close(fds[0]);
    close(fds[1]);
    client_free(&client);
    node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_beats_for_those_who_listen),
        cmocka_unit_test(test_nobody_else_writes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
