#ifndef TESTS_SIM_CASES_H
#define TESTS_SIM_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Runs random cases. Each case is a list of numbers. If a case is wrong, the smallest case like it is
 * printed. COMMD_CASES says how many cases to draw, COMMD_SEED where to begin. COMMD_CASES_FIRST=N leaves out
 * the first N cases, which another run has seen. COMMD_CASE="..." runs a case that was printed. Cases run in
 * processes of their own, so a crash or an endless loop is a result, too.
 */
#define CASES_FIELDS_MAX 32

struct cases {
    uint32_t count; /* cases to draw if COMMD_CASES is not set */
    uint32_t which; /* passed to cluster_seed */
    uint32_t field_count, first_shrunk;
    const char *const *field_names;
    void (*draw)(uint64_t seed, uint64_t number, uint64_t *fields);
    bool (*is_valid)(const uint64_t *fields);
    void (*run)(const uint64_t *fields); /* runs a case; fails the test (cmocka) if it is wrong */
    void (*describe)(const uint64_t *fields, char *text, size_t size);
};

/* The main function of such a test. */
int cases_main(const struct cases *cases);

#endif
