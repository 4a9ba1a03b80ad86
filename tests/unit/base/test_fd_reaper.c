#include "tests/unit/base/loop_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "daemon/base/descriptor.h"
#include "daemon/base/fd_reaper.h"
#include "tests/lib/send_fds.h"

enum { BLOCKED = 1000, OTHER = 1001 };

/* close_after_gate() waits for a byte from here before it closes a descriptor. */
static int gate[2];

static void close_after_gate(int fd)
{
    char byte;
    (void)!syscall(SYS_read, gate[0], &byte, sizeof byte);
    (void)syscall(SYS_close, fd);
}

static void close_at_once(int fd)
{
    (void)syscall(SYS_close, fd);
}

static void open_gate(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(write(gate[1], "", 1), 1);
    }
}

static struct fd_reaper *fd_reaper_make(void **state, fd_reaper_close_function *close)
{
    struct fixture *fixture = *state;
    struct fd_reaper *fd_reaper;
    struct error error;
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    assert_int_equal(fd_reaper_new(fixture->loop, close, &fd_reaper, &error), STATUS_OK);
    return fd_reaper;
}

static void fd_reaper_end(struct fd_reaper *fd_reaper)
{
    fd_reaper_free(fd_reaper);
    close(gate[0]);
    close(gate[1]);
}

/* Returns a descriptor that is not closed at once. */
static int file(void)
{
    FILE *made = tmpfile();
    assert_non_null(made);
    int fd = fcntl(fileno(made), F_DUPFD_CLOEXEC, 0);
    fclose(made);
    /* A file on tmpfs is memory, which is closed at once. */
    if (descriptor_closes_at_once(fd)) {
        close(fd);
        fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    }
    assert_false(descriptor_closes_at_once(fd));
    return fd;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void await_count(void **state, const struct fd_reaper *fd_reaper, uint32_t count)
{
    struct fixture *fixture = *state;
    while (fd_reaper_count(fd_reaper) > count) {
        turn(fixture->loop, TURN_MS);
    }
    assert_int_equal(fd_reaper_count(fd_reaper), count);
}

static void test_kinds(void **state)
{
    (void)state;
    int memory = memfd_create("test", MFD_CLOEXEC);
    int pair[2], ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    int folder = open("/", O_RDONLY | O_CLOEXEC), path = open("/dev/null", O_PATH | O_CLOEXEC);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), maps = file();
    assert_true(descriptor_closes_at_once(memory) && descriptor_may_be_asked(memory));
    assert_true(!descriptor_closes_at_once(null) && descriptor_may_be_asked(null));
    const int others[] = {ends[0], ends[1], pair[0], pair[1], folder, path, maps, -1};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_false(descriptor_closes_at_once(others[i]) || descriptor_may_be_asked(others[i]));
    }
    const int all[] = {memory, null, ends[0], ends[1], pair[0], pair[1], folder, path, maps};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        close(all[i]);
    }
}

static void test_memory_is_closed_in_place(void **state)
{
    struct fd_reaper *fd_reaper = fd_reaper_make(state, close_after_gate);
    int fd = memfd_create("test", MFD_CLOEXEC);
    fd_reaper_put(fd_reaper, OTHER, fd);
    assert_false(is_open(fd));
    assert_int_equal(fd_reaper_count(fd_reaper), 0);
    fd_reaper_end(fd_reaper);
}

static void test_others_are_closed_elsewhere(void **state)
{
    struct fd_reaper *fd_reaper = fd_reaper_make(state, NULL);
    int fds[100];
    for (unsigned i = 0; i < 100; i++) {
        fds[i] = file();
    }
    for (unsigned i = 0; i < 100; i++) {
        fd_reaper_put(fd_reaper, BLOCKED + i % 3, fds[i]);
    }
    await_count(state, fd_reaper, 0);
    for (unsigned i = 0; i < 100; i++) {
        assert_false(is_open(fds[i]));
    }
    fd_reaper_end(fd_reaper);
}

static int blocked_fd;

static void close_other_users(int fd)
{
    (fd == blocked_fd ? close_after_gate : close_at_once)(fd);
}

static void test_one_user_waits_for_itself_alone(void **state)
{
    blocked_fd = 700; /* set before the reaper's process is made, which copies it */
    struct fd_reaper *fd_reaper = fd_reaper_make(state, close_other_users);
    int made = file();
    assert_int_equal(dup3(made, blocked_fd, O_CLOEXEC), blocked_fd);
    int second = file(), other = file();
    fd_reaper_put(fd_reaper, BLOCKED, blocked_fd);
    fd_reaper_put(fd_reaper, BLOCKED, second);
    fd_reaper_put(fd_reaper, OTHER, other);
    fd_reaper_put(fd_reaper, OTHER, made);
    await_count(state, fd_reaper, 2);
    assert_true(!is_open(other) && !is_open(made) && is_open(second));
    open_gate(1);
    await_count(state, fd_reaper, 0);
    assert_true(!is_open(second) && !is_open(blocked_fd));
    fd_reaper_end(fd_reaper);
}

static void test_limits(void **state)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < CLOSER_TOTAL_MAX + 100) {
        print_message("SKIP: too few file descriptors are allowed\n");
        skip();
    }
    struct fd_reaper *fd_reaper = fd_reaper_make(state, close_after_gate);
    for (unsigned i = 0; i < CLOSER_USER_MAX; i++) {
        assert_true(fd_reaper_takes_more(fd_reaper, BLOCKED));
        fd_reaper_put(fd_reaper, BLOCKED, file());
    }
    assert_false(fd_reaper_takes_more(fd_reaper, BLOCKED));
    assert_true(fd_reaper_takes_more(fd_reaper, OTHER));
    open_gate(1);
    await_count(state, fd_reaper, CLOSER_USER_MAX - 1);
    assert_true(fd_reaper_takes_more(fd_reaper, BLOCKED));
    unsigned user = OTHER;
    unsigned put = CLOSER_USER_MAX - 1;
    for (; fd_reaper_takes_more(fd_reaper, user);
         put++, user += put % 32 == 0) { /* more users than are busy at once */
        fd_reaper_put(fd_reaper, user, file());
    }
    assert_int_equal(put, CLOSER_TOTAL_MAX - CLOSER_PACKET_FDS_MAX + 1);
    assert_true(fd_reaper_takes_sockets(fd_reaper));
    open_gate(put);
    await_count(state, fd_reaper, 0);
    assert_true(fd_reaper_takes_more(fd_reaper, BLOCKED));
    fd_reaper_end(fd_reaper);
}

static void send_packet(int socket_fd, size_t size, int fd)
{
    char byte = 0;
    assert_int_equal(send_with_fds(socket_fd, &byte, size, &fd, fd >= 0 ? 1 : 0, 0), size);
}

/* What is left unread in the socket: nothing; a packet; an empty packet; an empty packet, and then an empty
 * one with a descriptor. */
static void test_sockets(void **state)
{
    struct fd_reaper *fd_reaper = fd_reaper_make(state, close_after_gate);
    for (unsigned left = 0; left < 4; left++) {
        int pair[2];
        char byte;
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        send_packet(pair[0], 1, -1); /* the client still receives it */
        if (left > 0) {
            send_packet(pair[1], left == 1, -1);
        }
        if (left == 3) {
            send_packet(pair[1], 0, STDERR_FILENO);
        }
        fd_reaper_put_socket(fd_reaper, BLOCKED, pair[0]);
        assert_int_equal(fd_reaper_count(fd_reaper), left > 0);
        assert_int_equal(recv(pair[1], &byte, 1, MSG_DONTWAIT), 1);
        assert_int_equal(recv(pair[1], &byte, 1, MSG_DONTWAIT), 0);
        assert_int_equal(send(pair[1], &byte, 1, MSG_NOSIGNAL), -1);
        open_gate(left > 0);
        await_count(state, fd_reaper, 0);
        assert_false(is_open(pair[0]));
        close(pair[1]);
    }
    fd_reaper_end(fd_reaper);
}

/* What is left unread in the stream: nothing; a byte; a byte with a descriptor. */
static void test_streams(void **state)
{
    struct fd_reaper *fd_reaper = fd_reaper_make(state, close_after_gate);
    for (unsigned left = 0; left < 3; left++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        if (left > 0) {
            send_packet(pair[1], 1, left == 2 ? STDERR_FILENO : -1);
        }
        fd_reaper_put_socket(fd_reaper, BLOCKED, pair[0]);
        assert_int_equal(fd_reaper_count(fd_reaper), left > 0);
        open_gate(left > 0);
        await_count(state, fd_reaper, 0);
        assert_false(is_open(pair[0]));
        close(pair[1]);
    }
    fd_reaper_end(fd_reaper);
}

static void test_freed_while_one_waits(void **state)
{
    struct fd_reaper *fd_reaper = fd_reaper_make(state, close_after_gate);
    int ends[2], second = file();
    assert_int_equal(pipe(ends), 0);
    fd_reaper_put(fd_reaper, BLOCKED, ends[1]);
    fd_reaper_put(fd_reaper, BLOCKED, second);
    fd_reaper_free(fd_reaper);
    assert_true(is_open(ends[1]) && is_open(second));
    close(gate[1]); /* the process goes on */
    struct pollfd closed = {.fd = ends[0]};
    assert_int_equal(poll(&closed, 1, -1), 1);
    assert_false(is_open(ends[1]));
    close(ends[0]);
    close(gate[0]);
    close(second);
}

static void test_without_a_closer(void **state)
{
    (void)state;
    int fd = file();
    assert_true(fd_reaper_takes_more(NULL, OTHER) && fd_reaper_takes_sockets(NULL));
    fd_reaper_put(NULL, OTHER, fd);
    assert_false(is_open(fd));
    assert_int_equal(fd_reaper_count(NULL), 0);
    fd_reaper_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test_setup_teardown(test_memory_is_closed_in_place, fixture_make, fixture_free),
        cmocka_unit_test_setup_teardown(test_others_are_closed_elsewhere, fixture_make, fixture_free),
        cmocka_unit_test_setup_teardown(test_one_user_waits_for_itself_alone, fixture_make, fixture_free),
        cmocka_unit_test_setup_teardown(test_limits, fixture_make, fixture_free),
        cmocka_unit_test_setup_teardown(test_sockets, fixture_make, fixture_free),
        cmocka_unit_test_setup_teardown(test_streams, fixture_make, fixture_free),
        cmocka_unit_test_setup_teardown(test_freed_while_one_waits, fixture_make, fixture_free),
        cmocka_unit_test(test_without_a_closer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
