#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/stage_model.h"

#define CASES 12000
#define CONTRADICTIONS 3000
#define FAULTS 4000

static void fail_case(uint64_t number, const struct stage_case *drawn, const char *why)
{
    char text[STAGE_TEXT_BYTES];
    stage_case_describe(drawn, text);
    fail_msg("case %llu: %s: %s", (unsigned long long)number, text, why);
}

/* Random operations, placements, layouts, slices and orders of events give the result that MPI defines. */
static void test_plans_are_right(void **state)
{
    (void)state;
    uint64_t pieces = 0;
    for (uint64_t number = 0; number < CASES; number++) {
        struct random random;
        struct stage_case drawn;
        struct stage_fault fault = {.at = UINT64_MAX};
        char why[STAGE_TEXT_BYTES];
        random_seed(&random, number);
        stage_case_draw(&drawn, &random);
        if (!stage_case_run(&drawn, &random, false, &fault, why)) {
            fail_case(number, &drawn, why);
        }
        pieces += fault.pieces;
    }
    assert_true(pieces > 10 * CASES);
}

/* Tables that contradict each other let no piece reach beyond the buffers that its rank gave. */
static void test_contradictions_stay_within_buffers(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < CONTRADICTIONS; number++) {
        struct random random;
        struct stage_case drawn;
        struct stage_fault fault = {.at = UINT64_MAX};
        char why[STAGE_TEXT_BYTES];
        random_seed(&random, number);
        do {
            stage_case_draw(&drawn, &random);
        } while (!drawn.has_layouts);
        stage_case_contradict(&drawn, &random);
        if (!stage_case_run(&drawn, &random, true, &fault, why)) {
            fail_case(number, &drawn, why);
        }
    }
}

/* Nobody reads what the last node contributes to a scan's running value, nor what a single rank
 * broadcasts. */
static bool may_pass(const struct stage_case *drawn, const struct stage_fault *fault)
{
    bool scans = drawn->kind == OP_KIND_SCAN || drawn->kind == OP_KIND_EXCLUSIVE_SCAN;
    return fault->is_harmless || drawn->size == 1 ||
           (scans && fault->step != COLL_STAGE_LOCAL && fault->step != COLL_STAGE_OUT);
}

/* The model finds a piece that is missing, off by one element, or in another order. */
static void test_the_model_finds_faults(void **state)
{
    (void)state;
    uint64_t found = 0;
    for (uint64_t number = 0; number < FAULTS; number++) {
        struct random random;
        struct stage_case drawn;
        struct stage_fault fault = {.at = UINT64_MAX};
        char why[STAGE_TEXT_BYTES];
        random_seed(&random, number);
        stage_case_draw(&drawn, &random);
        assert_true(stage_case_run(&drawn, &random, false, &fault, why));
        fault.kind = (enum stage_fault_kind)(STAGE_FAULT_DROP + random_below(&random, 3));
        fault.at = random_below(&random, fault.pieces + 1);
        bool right = stage_case_run(&drawn, &random, false, &fault, why);
        if (right && !may_pass(&drawn, &fault)) {
            fail_case(number, &drawn, "a fault was not found");
        }
        found += !right;
    }
    assert_true(found > FAULTS / 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans_are_right),
        cmocka_unit_test(test_contradictions_stay_within_buffers),
        cmocka_unit_test(test_the_model_finds_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
