#ifndef TESTS_FAILURES_FAIL_PLAN_H
#define TESTS_FAILURES_FAIL_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/failures/fail_calls.h"

/* A plan of runs. In each run one call fails. */

#define FAIL_RUNS_A_SITE FAIL_ERRNOS_MAX /* the first call, the last, and calls evenly between them */

struct fail_plan_run {
    size_t site; /* index */
    uint64_t occurrence;
    uint32_t errnum; /* index */
};

struct fail_plan {
    struct fail_site *sites; /* each with its count: the smallest of all counting runs that came there */
    size_t sites_used;
    struct fail_plan_run *runs;
    size_t runs_used;
};

/* Adds the call sites that a run without a failure came to. Ends the program when there is no memory. */
void fail_plan_add(struct fail_plan *plan, const struct fail_state *counted);

/*
 * Makes the list of runs; the same sites always give the same list. If `every`: a run for each call at each
 * site. Otherwise FAIL_RUNS_A_SITE runs for each site, with different errnos, and fewer where two runs would
 * be the same.
 */
void fail_plan_make(struct fail_plan *plan, bool every);

void fail_plan_free(struct fail_plan *plan);

#endif
