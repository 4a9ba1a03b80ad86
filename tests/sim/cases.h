#ifndef TESTS_SIM_CASES_H
#define TESTS_SIM_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Cases drawn at random, each a list of numbers: all are right, or the smallest case like the one that is
 * wrong is printed. COMMD_CASES says how many, COMMD_SEED where to begin; COMMD_CASE="..." runs the one that
 * was printed. Cases run in processes of their own, so that a crash or a loop is a result, too.
 */
#define CASES_FIELDS_MAX 32

struct cases {
    uint32_t count; /* drawn, where COMMD_CASES says nothing */
    uint32_t which; /* as of cluster_seed */
    uint32_t field_count, first_shrunk;
    const char *const *field_names;
    void (*draw)(uint64_t seed, uint64_t number, uint64_t *fields);
    bool (*is_valid)(const uint64_t *fields);
    void (*run)(const uint64_t *fields); /* fails the test (cmocka) when it is wrong */
    void (*describe)(const uint64_t *fields, char *text, size_t size);
};

/* A test's main. */
int cases_main(const struct cases *cases);

#endif
