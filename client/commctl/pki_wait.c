#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <time.h>

#include "client/commctl/pki_join.h"

static volatile sig_atomic_t signal_that_came;
static sigset_t usual_mask;
static bool caught;

static void note_signal(int number)
{
    signal_that_came = number;
}

void pki_signals_catch(void)
{
    sigset_t blocked;
    const struct sigaction action = {.sa_handler = note_signal};
    if (caught) {
        return;
    }
    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGINT);
    (void)sigaddset(&blocked, SIGTERM);
    (void)sigaddset(&blocked, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &blocked, &usual_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
    caught = true;
}

int pki_signal(void)
{
    return signal_that_came;
}

enum pki_waited pki_wait(struct pollfd *descriptors, nfds_t count, int64_t deadline_ms)
{
    while (signal_that_came == 0) { /* blocked here: it can come in ppoll() alone */
        int64_t left_ms = deadline_ms - now_ms();
        left_ms = left_ms < 0 ? 0 : left_ms;
        const struct timespec left = {.tv_sec = left_ms / 1000, .tv_nsec = left_ms % 1000 * 1000000};
        int ready = ppoll(descriptors, count, &left, caught ? &usual_mask : NULL);
        if (ready > 0 && signal_that_came == 0) {
            return PKI_WAITED_READY;
        }
        if (ready == 0 || (ready < 0 && errno != EINTR)) { /* not EINTR: the kernel has no memory */
            return PKI_WAITED_TIMED_OUT;
        }
    }
    return PKI_WAITED_INTERRUPTED;
}
