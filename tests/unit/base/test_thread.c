#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <signal.h>

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
                                       cmocka_unit_test(test_a_thread_that_cannot_be_made)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
