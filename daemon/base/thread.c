#include "daemon/base/thread.h"

#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* struct sched_attr of linux/sched/types.h, which cannot be included beside sched.h. */
struct scheduling {
    uint32_t size_bytes;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t turn_ns, deadline_ns, period_ns;
    uint32_t least_use, most_use;
};

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

void thread_take_short_turns(void)
{
    struct scheduling scheduling = {0};
    if (syscall(SYS_sched_getattr, 0, &scheduling, sizeof scheduling, 0) == 0 &&
        scheduling.policy == SCHED_OTHER) {
        scheduling.turn_ns = THREAD_TURN_NS;
        (void)syscall(SYS_sched_setattr, 0, &scheduling, 0);
    }
}
