#ifndef TESTS_FAILURES_FAIL_CALLS_H
#define TESTS_FAILURES_FAIL_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FAIL_FRAMES 3       /* of a call site: the caller, its caller, and theirs */
#define FAIL_SITES_MAX 8192 /* a power of two */
#define FAIL_NAME_BYTES 24  /* of a call, with its terminator */
#define FAIL_ERRNOS_MAX 3   /* the most that one call has */

/*
 * Where in the program a call is made. Addresses are relative to where the program begins in memory, so they
 * are the same in each run; 0: there is no further frame of this program.
 */
struct fail_site {
    _Atomic uint64_t id;    /* a hash of all below; 0: a free place */
    _Atomic uint64_t count; /* calls so far, of all processes that are armed */
    _Atomic bool complete;  /* what follows is written */
    char call[FAIL_NAME_BYTES];
    uint64_t frames[FAIL_FRAMES];
    uint32_t errnos; /* how many the call has to fail with */
};

/*
 * Allocations and system calls that fail once. The linker sends each call of FAIL_CALLS (tests/rules.mk) here
 * first: in a process that is armed it is counted at its call site, and the one that is chosen fails with an
 * errno that it may fail with. What shared libraries call themselves is not seen; what this project's code
 * asks of them is.
 */
struct fail_state {
    struct fail_site sites[FAIL_SITES_MAX]; /* a hash table */
    _Atomic uint64_t sites_left_out;        /* calls at sites that the table had no place for */
    uint64_t fail_site;                     /* id; 0: none fails */
    uint64_t fail_occurrence;               /* of the calls at that site; from 1 */
    uint32_t fail_errno;                    /* which of the call's errnos, modulo how many it has */
    _Atomic bool paused;                    /* calls are not counted, and none fails */
    _Atomic bool failed;
    char call[FAIL_NAME_BYTES]; /* which it was */
    int errnum;
};

/* `state` is shared memory, or null to disarm. This process, and those that it forks. */
void fail_calls_arm(struct fail_state *state);

#endif
