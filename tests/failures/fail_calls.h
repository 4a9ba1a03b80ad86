#ifndef TESTS_FAILURES_FAIL_CALLS_H
#define TESTS_FAILURES_FAIL_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* how many callers a call site records: the caller, its caller, and the caller of that */
#define FAIL_FRAMES 3
#define FAIL_SITES_MAX 8192 /* a power of two */
#define FAIL_NAME_BYTES 24  /* of a call's name, with its terminator */
#define FAIL_ERRNOS_MAX 3   /* the most errnos that one call may have */

/*
 * The place in the program where a call is made. Addresses are relative to the program's first address, so
 * they are the same in each run. A frame of 0 means: there is no further frame of this program.
 */
struct fail_site {
    _Atomic uint64_t id;    /* a hash of the call and the frames; 0: a free place in the table */
    _Atomic uint64_t count; /* calls so far, in all armed processes */
    _Atomic bool complete;  /* the fields below are written */
    char call[FAIL_NAME_BYTES];
    uint64_t frames[FAIL_FRAMES];
    uint32_t errnos; /* how many errnos the call may fail with */
};

/*
 * Lets allocations and system calls fail once. The linker sends each call of FAIL_CALLS (tests/rules.mk) to
 * fail_calls.c first. In an armed process, the wrapper counts the call at its call site. The chosen call
 * fails with one of the errnos that it may have. Calls that shared libraries make themselves do not pass
 * here. The calls of this project's code into shared libraries do.
 */
struct fail_state {
    struct fail_site sites[FAIL_SITES_MAX]; /* a hash table */
    _Atomic uint64_t sites_left_out;        /* calls at sites for which the table had no place */
    uint64_t fail_site;                     /* id of the site whose call fails; 0: no call fails */
    uint64_t fail_occurrence;               /* which of the calls at that site fails, counted from 1 */
    uint32_t fail_errno;                    /* which of the call's errnos, modulo how many it has */
    _Atomic bool paused;                    /* calls are not counted, and none fails */
    _Atomic bool failed;
    char call[FAIL_NAME_BYTES]; /* the name of the call that failed */
    int errnum;
};

/* Arms this process, and those that it forks later. `state` is shared memory; null disarms. */
void fail_calls_arm(struct fail_state *state);

#endif
