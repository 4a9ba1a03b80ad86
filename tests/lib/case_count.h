#ifndef TESTS_LIB_CASE_COUNT_H
#define TESTS_LIB_CASE_COUNT_H

#include <stdint.h>
#include <stdlib.h>

/*
 * How many random cases a test runs: COMMD_CASES, or if that is not set, the test's own number, but at most
 * COMMD_CASES_MOST. Sanitized programs are slow, so they get such a limit.
 */
static inline uint64_t case_count(uint64_t usual)
{
    const char *wish = getenv("COMMD_CASES"), *most = getenv("COMMD_CASES_MOST");
    if (wish != NULL && wish[0] != '\0') {
        return strtoull(wish, NULL, 0);
    }
    uint64_t limit = most != NULL && most[0] != '\0' ? strtoull(most, NULL, 0) : usual;
    return limit < usual ? limit : usual;
}

#endif
