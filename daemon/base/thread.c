#include "daemon/base/thread.h"

#include <signal.h>

int thread_start(pthread_t *out, const pthread_attr_t *attributes, void *(*function)(void *), void *context)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* a new thread inherits the mask of its creator */
    int failed = pthread_create(out, attributes, function, context);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}
