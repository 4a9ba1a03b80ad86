#ifndef TESTS_SIM_SIM_TEXT_H
#define TESTS_SIM_SIM_TEXT_H

#include <string.h>

#include "tests/sim/sim_comm.h"

/* Checks of what ranks are told. Include cmocka.h before this file. */

static inline void assert_text(const struct error *error, enum status status, const char *a, const char *b)
{
    if (error->status != status || strstr(error->text, a) == NULL || strstr(error->text, b) == NULL) {
        fail_msg("%s \"%s\" instead of %s with \"%s\" and \"%s\"", status_name(error->status), error->text,
                 status_name(status), a, b);
    }
}

/* Returns what a rank was told about forming, at once or later. */
static inline const struct error *verdict_of(const struct sim_comm *comm, uint32_t rank)
{
    const struct sim_rank *who = &comm->ranks[rank];
    return who->refused.status != STATUS_OK ? &who->refused : &who->formed_result;
}

#endif
