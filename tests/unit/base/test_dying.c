#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/dying.h"
#include "daemon/base/time.h"

#define SYS_PROCESS_MRELEASE 448
#define LOOKS_NS (10 * DYING_LOOK_NS) /* so long a living process is watched */
#define WAIT_NS (20 * TIME_S)

struct process {
    pid_t pid;
    int pidfd;
    struct dying_process *watched;
    unsigned seen;
    bool forgets;
};

static bool kernel_tells(void)
{
    int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    bool tells = syscall(SYS_PROCESS_MRELEASE, own, 0) != 0 && errno == EINVAL;
    close(own);
    return tells;
}

static void *sleep_on(void *context)
{
    for (;;) {
        pause();
    }
    return context;
}

/* A process that sleeps. headless: its first thread has ended, another one sleeps. */
static struct process start(bool headless)
{
    struct process process = {.pid = fork()};
    assert_true(process.pid >= 0);
    if (process.pid == 0) {
        pthread_t thread;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)alarm(120);
        if (headless && pthread_create(&thread, NULL, sleep_on, NULL) == 0) {
            pthread_exit(NULL);
        }
        (void)sleep_on(NULL);
    }
    process.pidfd = (int)syscall(SYS_pidfd_open, process.pid, 0);
    assert_true(process.pidfd >= 0);
    return process;
}

static bool has_ended(const struct process *process)
{
    struct pollfd ended = {.fd = process->pidfd, .events = POLLIN};
    return poll(&ended, 1, 0) != 0;
}

static void end(struct process *process)
{
    dying_forget(process->watched);
    (void)kill(process->pid, SIGKILL);
    (void)ptrace(PTRACE_CONT, process->pid, NULL, NULL); /* if it is traced */
    while (waitpid(process->pid, NULL, __WALL) == process->pid && !has_ended(process)) {
    }
    close(process->pidfd);
}

/* Kills the process, and holds it while it is dying, before its memory is unmapped. */
static void kill_and_hold(const struct process *process)
{
    int state;
    assert_int_equal(ptrace(PTRACE_SEIZE, process->pid, NULL, PTRACE_O_TRACEEXIT), 0);
    assert_int_equal(kill(process->pid, SIGKILL), 0);
    assert_int_equal(waitpid(process->pid, &state, __WALL), process->pid);
    assert_true(WIFSTOPPED(state));
}

static void note(void *context, uint64_t now_ns)
{
    struct process *process = context;
    (void)now_ns;
    process->seen++;
    if (process->forgets) {
        dying_forget(process->watched);
        process->watched = NULL;
    }
}

/* Skips the test if the kernel does not tell. */
static struct loop *make(struct dying **dying)
{
    if (!kernel_tells()) {
        print_message("SKIP: the kernel has no process_mrelease, or forbids it\n");
        skip();
    }
    struct loop *loop;
    struct error error;
    assert_int_equal(loop_new(&loop, &error), STATUS_OK);
    assert_int_equal(dying_new(loop, dying, &error), STATUS_OK);
    return loop;
}

static void watch(struct dying *dying, struct process *process)
{
    process->watched = dying_watch(dying, process->pidfd, note, process);
    assert_non_null(process->watched);
}

/* Runs the loop until the process was seen, or for so long. */
static void run(struct loop *loop, const struct process *process, uint64_t most_ns)
{
    struct error error;
    uint64_t end_ns = loop_now_ns() + most_ns;
    while (process->seen == 0 && loop_now_ns() < end_ns) {
        assert_int_equal(loop_run_once(loop, 5, &error), STATUS_OK);
    }
}

static void test_before_its_memory_is_unmapped(void **state)
{
    (void)state;
    struct dying *dying;
    struct loop *loop = make(&dying);
    for (int forgets = 0; forgets < 2; forgets++) {
        struct process mortal = start(false), other = start(false);
        mortal.forgets = forgets == 1;
        watch(dying, &mortal);
        watch(dying, &other);
        kill_and_hold(&mortal);
        run(loop, &mortal, WAIT_NS);
        assert_int_equal(mortal.seen, 1);
        assert_false(has_ended(&mortal));
        struct process never = {0};
        run(loop, &never, LOOKS_NS); /* once only, and not the other */
        assert_int_equal(mortal.seen, 1);
        assert_int_equal(other.seen, 0);
        end(&mortal);
        end(&other);
    }
    dying_free(dying);
    loop_free(loop);
}

static void test_an_ended_process(void **state)
{
    (void)state;
    struct dying *dying;
    struct loop *loop = make(&dying);
    struct process mortal = start(false);
    int pidfd = mortal.pidfd = dup(mortal.pidfd);
    assert_int_equal(kill(mortal.pid, SIGKILL), 0);
    assert_int_equal(waitpid(mortal.pid, NULL, 0), mortal.pid);
    watch(dying, &mortal);
    run(loop, &mortal, WAIT_NS);
    assert_int_equal(mortal.seen, 1);
    dying_forget(mortal.watched);
    close(pidfd);
    dying_free(dying);
    loop_free(loop);
}

static void test_the_living(void **state)
{
    (void)state;
    struct dying *dying;
    struct loop *loop = make(&dying);
    struct process headless = start(true), stopped = start(false);
    assert_int_equal(kill(stopped.pid, SIGSTOP), 0);
    watch(dying, &headless);
    watch(dying, &stopped);
    run(loop, &headless, LOOKS_NS);
    assert_int_equal(headless.seen + stopped.seen, 0);
    assert_int_equal(kill(headless.pid, SIGKILL), 0);
    run(loop, &headless, WAIT_NS);
    assert_int_equal(headless.seen, 1);
    end(&headless);
    end(&stopped);
    dying_free(dying);
    loop_free(loop);
}

/* Forgets processes, while the thread looks at them and while their deaths wait to be told. */
static void test_forgotten(void **state)
{
    (void)state;
    struct dying *dying;
    struct loop *loop = make(&dying);
    for (unsigned i = 0; i < 40; i++) {
        struct process mortal = start(false);
        watch(dying, &mortal);
        kill_and_hold(&mortal);
        (void)usleep(1000 * (i % 4) * 10);
        dying_forget(mortal.watched);
        mortal.watched = NULL;
        struct error error;
        assert_int_equal(loop_run_once(loop, 0, &error), STATUS_OK);
        assert_int_equal(mortal.seen, 0);
        end(&mortal);
    }
    dying_free(dying);
    loop_free(loop);
}

static void test_without_a_thread(void **state)
{
    (void)state;
    assert_null(dying_watch(NULL, 0, note, NULL));
    dying_forget(NULL);
    dying_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_its_memory_is_unmapped),
        cmocka_unit_test(test_an_ended_process),
        cmocka_unit_test(test_the_living),
        cmocka_unit_test(test_forgotten),
        cmocka_unit_test(test_without_a_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
