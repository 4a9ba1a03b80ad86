#ifndef TESTS_FAILURES_FAIL_CALLS_H
#define TESTS_FAILURES_FAIL_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Allocations and system calls that fail once. The linker sends each call of FAIL_CALLS (tests/rules.mk) here
 * first: in a process that is armed it is counted, and the one with the chosen number fails with an errno
 * that it may fail with. What shared libraries call themselves is not seen; what this project's code asks of
 * them is.
 */
struct fail_state {
    _Atomic uint64_t count; /* calls so far, of all processes that are armed */
    uint64_t fail_at;       /* 0: none */
    _Atomic bool paused;    /* calls are not counted */
    _Atomic bool failed;
    char call[32]; /* which it was, and where */
    int errnum;
    void *caller;
};

/* `state` is shared memory, or null to disarm. This process, and those that it forks. */
void fail_calls_arm(struct fail_state *state);

#endif
