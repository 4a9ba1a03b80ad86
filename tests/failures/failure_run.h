#ifndef TESTS_FAILURES_FAILURE_RUN_H
#define TESTS_FAILURES_FAILURE_RUN_H

#include <stdbool.h>
#include <sys/types.h>

#include "tests/failures/fail_calls.h"
#include "tests/failures/fail_plan.h"

/* One run of a scenario: daemons start, ranks run, daemons reload and end. Each daemon and rank is a
 * process of its own. */

enum armed { ARMED_DAEMON, ARMED_CLIENT };

struct scenario {
    const char *name;
    enum armed armed;
    bool two_nodes;
};

struct run {
    const struct scenario *scenario;
    struct fail_state *state; /* the armed process maps the same memory, by state_fd */
    int state_fd;
    const char *program;
    char rank_program[512];
    char commctl[512];
    struct test_pki *pki;
    char folder[64];
    char sockets[2][96];
    char config[96];
    pid_t daemons[2]; /* 0: not running */
    int exit_codes[2];
    char wrong[512]; /* the first rule that was broken; empty: none */
    bool grave;      /* the fault cannot come from a busy machine: a crash, a leak, wrong bytes */
};

/* Makes one run. `what` is copied to run->state and says which call fails, if any. `shows`: print all
 * logs. Returns whether all held. */
bool failure_run(struct run *run, const struct fail_state *what, bool shows);
/* Prints the run, the call that failed, and the command that shows its source lines. `site` is null if
 * unknown. */
void failure_run_say(const struct run *run, const struct fail_site *site, const char *text);

#endif
