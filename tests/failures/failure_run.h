#ifndef TESTS_FAILURES_FAILURE_RUN_H
#define TESTS_FAILURES_FAILURE_RUN_H

#include <stdbool.h>
#include <sys/types.h>

#include "tests/failures/fail_calls.h"
#include "tests/failures/fail_plan.h"

/* One run of a scenario, in processes of their own: daemons start, ranks run, daemons reload and end. */

enum armed { ARMED_DAEMON, ARMED_CLIENT };

struct scenario {
    const char *name;
    enum armed armed;
    bool two_nodes;
};

struct run {
    const struct scenario *scenario;
    struct fail_state *state; /* shared with the armed process, by this */
    int state_fd;
    const char *program;
    char rank_program[512];
    char commctl[512];
    struct test_pki *pki;
    char folder[64];
    char sockets[2][96];
    char config[96];
    pid_t daemons[2]; /* 0: ended */
    int exit_codes[2];
    char wrong[512]; /* what does not hold; empty */
    bool grave;      /* not what a busy machine may cause as well: a crash, a leak, wrong bytes */
};

/* run->state: of what fails, if anything. shows: all logs. Returns whether all held. */
bool failure_run(struct run *run, const struct fail_state *what, bool shows);
/* The run and the call, and the command that says which lines of the program it was. Site: null, unknown. */
void failure_run_say(const struct run *run, const struct fail_site *site, const char *text);

#endif
