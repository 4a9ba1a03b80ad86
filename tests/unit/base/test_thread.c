#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/thread.h"

/* Threads that get no signals. */

static void *mask_of_this_thread(void *context)
{
    (void)pthread_sigmask(SIG_SETMASK, NULL, context);
    return context;
}

static void test_signals_are_the_makers(void **state)
{
    (void)state;
    pthread_t thread;
    void *result;
    sigset_t before, after, in_thread;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR1);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    assert_int_equal(thread_start(&thread, NULL, mask_of_this_thread, &in_thread), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &in_thread);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &after), 0);
    for (int number = 1; number < SIGSYS; number++) {
        bool its_own = number == SIGBUS || number == SIGSEGV;
        bool of_none = number == SIGKILL || number == SIGSTOP;
        assert_int_equal(sigismember(&after, number), number == SIGUSR1);
        assert_int_equal(sigismember(&in_thread, number), !its_own && !of_none);
    }
}

/* The start of struct sched_attr: sched_setattr(2). */
struct scheduling {
    uint32_t size_bytes, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t turn_ns;
    uint64_t others[3];
};

static void *scheduling_of_this_thread(void *context)
{
    assert_int_equal(syscall(SYS_sched_getattr, 0, context, sizeof(struct scheduling), 0), 0);
    return context;
}

/* Linux before 6.12 keeps no length of turns. */
static void test_short_turns_are_inherited(void **state)
{
    (void)state;
    pthread_t thread;
    struct scheduling before = {0}, after = {0}, inherited = {0};
    (void)scheduling_of_this_thread(&before);
    thread_take_short_turns();
    (void)scheduling_of_this_thread(&after);
    assert_int_equal(thread_start(&thread, NULL, scheduling_of_this_thread, &inherited), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(after.turn_ns == THREAD_TURN_NS || after.turn_ns == before.turn_ns);
    assert_int_equal(inherited.turn_ns, after.turn_ns);
    assert_int_equal(after.policy, before.policy);
    assert_int_equal(after.nice, before.nice);
}

static void test_measuring_wakes_keeps_the_slack(void **state)
{
    (void)state;
    int before = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    assert_true(thread_measure_wake_ns() > 0);
    assert_int_equal(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), before);
}

static void test_a_thread_that_cannot_be_made(void **state)
{
    (void)state;
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t before, after;
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &before), 0);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, (size_t)1 << 46),
                     0); /* no address space has it */
    assert_int_not_equal(thread_start(&thread, &attributes, mask_of_this_thread, &after), 0);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &after), 0);
    for (int number = 1; number < SIGSYS; number++) {
        assert_int_equal(sigismember(&after, number), sigismember(&before, number));
    }
    (void)pthread_attr_destroy(&attributes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_signals_are_the_makers),
                                       cmocka_unit_test(test_short_turns_are_inherited),
                                       cmocka_unit_test(test_measuring_wakes_keeps_the_slack),
                                       cmocka_unit_test(test_a_thread_that_cannot_be_made)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
