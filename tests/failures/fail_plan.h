#ifndef TESTS_FAILURES_FAIL_PLAN_H
#define TESTS_FAILURES_FAIL_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/failures/fail_calls.h"

/* Which calls fail, each in a run of its own. */

#define FAIL_RUNS_A_SITE FAIL_ERRNOS_MAX /* the first, the last, and those evenly between them */

struct fail_plan_run {
    size_t site; /* index */
    uint64_t occurrence;
    uint32_t errnum; /* index */
};

struct fail_plan {
    struct fail_site *sites; /* their counts: the least of those runs that came there */
    size_t sites_used;
    struct fail_plan_run *runs;
    size_t runs_used;
};

/* Adds the call sites that a run without a failure came to. Ends the program when there is no memory. */
void fail_plan_add(struct fail_plan *plan, const struct fail_state *counted);

/*
 * Makes the list of runs, the same one from the same sites. every: each occurrence at each site; otherwise
 * FAIL_RUNS_A_SITE, with different errnos, and fewer where two would be the same.
 */
void fail_plan_make(struct fail_plan *plan, bool every);

void fail_plan_free(struct fail_plan *plan);

#endif
