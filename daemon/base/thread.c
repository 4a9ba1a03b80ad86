#include "daemon/base/thread.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/loop.h"
#include "daemon/base/time.h"

#define WAKES 16u       /* measured */
#define WAKES_FEWEST 4u /* otherwise there is no result */
#define WAKES_MAX_NS (20 * TIME_MS)
#define WAKE_AFTER_NS (100 * TIME_US)

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

static int compare_times(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

uint64_t thread_measure_wake_ns(void)
{
    uint64_t late_ns[WAKES];
    size_t count = 0;
    int slack_ns = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    (void)prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* otherwise the kernel may wake the thread 50 us later */
    uint64_t began_ns = loop_now_ns(), now_ns = began_ns;
    while (count < WAKES && now_ns - began_ns < WAKES_MAX_NS) {
        uint64_t slept_ns = now_ns;
        int failed = nanosleep(&(struct timespec){.tv_nsec = WAKE_AFTER_NS}, NULL);
        now_ns = loop_now_ns();
        if (failed == 0 && now_ns - slept_ns >= WAKE_AFTER_NS) {
            late_ns[count++] = now_ns - slept_ns - WAKE_AFTER_NS;
        }
    }
    (void)prctl(PR_SET_TIMERSLACK, slack_ns > 0 ? (unsigned long)slack_ns : 0, 0, 0, 0);
    if (count < WAKES_FEWEST) {
        return THREAD_WAKE_DEFAULT_NS;
    }
    qsort(late_ns, count, sizeof late_ns[0], compare_times);
    return late_ns[count / 4];
}
