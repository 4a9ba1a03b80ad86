#include "tests/unit/api/ring_client.h"

#include <linux/sockios.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

/* The doorbells of a client's rings, which its processes share. */

/* --- Doorbells that ring for nothing --- */

/* Rings `count` times, with some turns after each. Returns how many of these the daemon took off the bell. */
static unsigned heard_of(struct ring_client *client, unsigned count)
{
    unsigned heard_count = 0;
    for (unsigned i = 0; i < count; i++) {
        int waiting = 0;
        ring_daemon(client);
        turns(client->client.node, 3);
        assert_int_equal(ioctl(client->daemon_bell_fd, SIOCOUTQ, &waiting), 0);
        heard_count += waiting == 0;
    }
    return heard_count;
}

/* If a doorbell rings without a packet, the daemon reacts some times, then seldom. As soon as there is a
 * packet, the daemon reacts again. */
static void test_bells_for_nothing(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct ring_client client = ring_client_new(node), other = ring_client_new(node);
    fall_asleep(node);
    assert_true(heard_of(&client, 16) == 16);
    assert_false(api_is_awake(node->api)); /* it does not keep the daemon awake */
    assert_true(heard_of(&client, 2000) < 1000);
    assert_contains(node->last_warning, "rings its doorbell without need");
    unsigned warnings = node->warnings;
    ring_client_check(&other);
    fall_asleep(node);
    assert_int_equal(put_status(&client), RING_OK);
    ring_daemon(&client);
    while (!api_is_awake(node->api)) { /* after its rest */
        must(loop_run_once(node->loop, 1000, error));
    }
    expect_reply(&client, client.client.last_id);
    fall_asleep(node);
    assert_true(heard_of(&client, 16) == 16);
    for (unsigned i = 0; i < 100; i++) { /* one ring for each packet is normal */
        ring_client_check(&other);
        fall_asleep(node);
    }
    assert_int_equal(node->warnings, warnings);
    ring_client_free(&client); /* while it rests */
    ring_client_free(&other);
    node_free(node);
}

/* --- Doorbells that are held --- */

/* Makes a page that is missing until the test provides it. System calls that touch it wait until then.
 * Returns -1 if this process may not do so. */
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

/* A page holds up the client's own call on the doorbell. The daemon's calls on the same doorbell do
 * not wait. */
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
            print_message("SKIP: userfaultfd is not allowed (vm.unprivileged_userfaultfd)\n");
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

/* The bell is shut for one direction or both. That ends the session, and makes no work for the daemon. */
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
        client = ring_client_new(node); /* the other bell harms the client only */
        assert_int_equal(shutdown(client.bell_fd, ways[i]), 0);
        ring_client_check(&client);
        ring_client_free(&client);
        turns(node, 10);
    }
    node_free(node);
}

static void client_pass(int socket_fd, int fd)
{
    (void)send_with_fds(socket_fd, "x", 1, &fd, 1, MSG_DONTWAIT);
}

/* If the kernel lets descriptors come through the bell, the daemon closes them. */
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
        cmocka_unit_test(test_bells_for_nothing),
        cmocka_unit_test(test_bells_that_are_held),
        cmocka_unit_test(test_bells_that_are_shut),
        cmocka_unit_test(test_bells_with_descriptors),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
