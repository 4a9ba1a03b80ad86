#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/control_group.h"

/* The paths of processes' control groups. The path of each group is read once, if the kernel gives groups a
 * number. */

static pid_t child_new(void)
{
    pid_t child = fork();
    if (child == 0) {
        (void)pause();
        _exit(0);
    }
    assert_true(child > 0);
    return child;
}

static void child_end(pid_t child)
{
    (void)kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static int pidfd_of(pid_t process)
{
    int pidfd = (int)syscall(SYS_pidfd_open, process, 0);
    assert_true(pidfd >= 0);
    return pidfd;
}

static void test_one_read_for_a_group(void **state)
{
    (void)state;
    static struct control_groups groups;
    char expected[CONTROL_GROUP_PATH_MAX_BYTES + 1];
    pid_t child = child_new();
    int own_fd = pidfd_of(getpid()), child_fd = pidfd_of(child);
    control_group_of(getpid(), expected, sizeof expected);
    assert_string_equal(control_group_find(&groups, getpid(), own_fd), expected);
    assert_int_equal(groups.reads, 1);
    bool kernel_tells = groups.entries[0].id != 0;
    for (int i = 0; i < 3; i++) {
        assert_string_equal(control_group_find(&groups, child, child_fd), expected);
        assert_string_equal(control_group_find(&groups, getpid(), own_fd), expected);
    }
    assert_int_equal(groups.reads, kernel_tells ? 1 : 7);
    (void)close(own_fd);
    (void)close(child_fd);
    child_end(child);
}

static void test_without_a_pidfd_each_is_read(void **state)
{
    (void)state;
    static struct control_groups groups;
    char expected[CONTROL_GROUP_PATH_MAX_BYTES + 1];
    control_group_of(getpid(), expected, sizeof expected);
    for (unsigned i = 0; i < 3; i++) {
        assert_string_equal(control_group_find(&groups, getpid(), -1), expected);
        assert_int_equal(groups.reads, i + 1);
    }
    assert_int_equal(groups.entries[0].id, 0);
}

/* Nothing is remembered that may be of another process with the same pid. */
static void test_a_process_that_ended(void **state)
{
    (void)state;
    static struct control_groups groups;
    pid_t child = child_new();
    int pidfd = pidfd_of(child);
    child_end(child);
    assert_string_equal(control_group_find(&groups, child, pidfd), "");
    assert_int_equal(groups.entries[0].id, 0);
    (void)close(pidfd);
}

/* All places are taken: a new group replaces the oldest. */
static void test_the_oldest_goes(void **state)
{
    (void)state;
    static struct control_groups groups;
    int pidfd = pidfd_of(getpid());
    (void)control_group_find(&groups, getpid(), pidfd);
    if (groups.entries[0].id == 0) {
        print_message("SKIP: Linux before 6.13 does not name the control group of a process\n");
        skip();
    }
    for (size_t i = 1; i < CONTROL_GROUPS_MAX; i++) {
        groups.entries[i].id = UINT64_MAX - i;
    }
    groups.oldest = 0;
    uint64_t own_id = groups.entries[0].id;
    groups.entries[0].id = UINT64_MAX;
    (void)control_group_find(&groups, getpid(), pidfd);
    assert_int_equal(groups.reads, 2);
    assert_int_equal(groups.entries[0].id, own_id);
    assert_int_equal(groups.oldest, 1);
    (void)close(pidfd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_read_for_a_group),
        cmocka_unit_test(test_without_a_pidfd_each_is_read),
        cmocka_unit_test(test_a_process_that_ended),
        cmocka_unit_test(test_the_oldest_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
