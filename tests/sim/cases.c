#include "tests/sim/cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/case_count.h"
#include "tests/sim/cluster.h"

#define CASES_A_PROCESS 100
/* processor time, not real time: other work on the machine must not make a case fail */
#define BATCH_CPU_S 180
#define SHRINK_TRIES_MAX 400
#define CASE_TEXT_MAX_BYTES 128

static const struct cases *cases;

/* --- Cases in processes of their own --- */

static uint64_t batch_fields[CASES_A_PROCESS][CASES_FIELDS_MAX];
static uint32_t batch_count;
static volatile uint32_t *batch_at; /* in shared memory: the index of the case under way */

static void run_batch(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < batch_count; i++) {
        *batch_at = i;
        cases->run(batch_fields[i]);
    }
}

/* Returns whether all cases of the batch are right. quiet: prints nothing. */
static bool batch_passes(bool quiet)
{
    (void)fflush(stdout);
    (void)fflush(stderr);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (quiet &&
            (freopen("/dev/null", "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL)) {
            _exit(2);
        }
        (void)setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {.tv_sec = BATCH_CPU_S}}, NULL);
        const struct CMUnitTest test[] = {cmocka_unit_test(run_batch)};
        int failed = cmocka_run_group_tests_name("cases", test, NULL, NULL);
        (void)fflush(stdout);
        _exit(failed == 0 ? 0 : 1);
    }
    int status = 0;
    assert_true(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool one_passes(const uint64_t *fields, bool quiet)
{
    memcpy(batch_fields[0], fields, sizeof batch_fields[0]);
    batch_count = 1;
    return batch_passes(quiet);
}

/* Shrinks a wrong case: makes one number after the other smaller, as long as the case stays wrong. */
static void case_shrink(uint64_t *fields)
{
    bool smaller = true;
    for (uint32_t tries = 0; smaller && tries < SHRINK_TRIES_MAX;) {
        smaller = false;
        for (uint32_t field = cases->first_shrunk; field < cases->field_count; field++) {
            uint64_t was = fields[field];
            const uint64_t candidates[] = {0, 1, was / 2, was == 0 ? 0 : was - 1};
            for (uint32_t i = 0; i < 4 && fields[field] == was && tries < SHRINK_TRIES_MAX; i++) {
                if (candidates[i] >= was) {
                    continue;
                }
                fields[field] = candidates[i];
                tries++;
                if (!cases->is_valid(fields) || one_passes(fields, true)) {
                    fields[field] = was;
                }
            }
            smaller = smaller || fields[field] != was;
        }
    }
}

static void case_print(const uint64_t *fields)
{
    char text[CASE_TEXT_MAX_BYTES];
    cases->describe(fields, text, sizeof text);
    (void)fprintf(stderr, "# the smallest case like it: %s\n# COMMD_CASE=\"", text);
    for (uint32_t i = 0; i < cases->field_count; i++) {
        (void)fprintf(stderr, "%s%llu", i == 0 ? "" : " ", (unsigned long long)fields[i]);
    }
    (void)fprintf(stderr, "\"  (");
    for (uint32_t i = 0; i < cases->field_count; i++) {
        (void)fprintf(stderr, "%s%s", i == 0 ? "" : " ", cases->field_names[i]);
    }
    (void)fprintf(stderr, ")\n");
}

static void test_drawn_cases(void **state)
{
    (void)state;
    uint64_t count = case_count(cases->count);
    uint64_t seed = cluster_seed(cases->which);
    const char *first = getenv("COMMD_CASES_FIRST");
    uint64_t first_case = first == NULL ? 0 : strtoull(first, NULL, 0);
    for (uint64_t begin = first_case; begin < count; begin += CASES_A_PROCESS) {
        uint64_t left = count - begin;
        batch_count = left < CASES_A_PROCESS ? (uint32_t)left : CASES_A_PROCESS;
        for (uint32_t i = 0; i < batch_count; i++) {
            cases->draw(seed, begin + i, batch_fields[i]);
        }
        if (batch_passes(true)) {
            continue;
        }
        uint64_t fields[CASES_FIELDS_MAX];
        memcpy(fields, batch_fields[*batch_at], sizeof fields);
        case_print(fields);
        case_shrink(fields);
        case_print(fields);
        (void)one_passes(fields, false);
        fail_msg("case %llu of %llu is wrong", (unsigned long long)begin + *batch_at,
                 (unsigned long long)count);
    }
}

static void test_the_case_given(void **state)
{
    const char *text = getenv("COMMD_CASE");
    uint64_t fields[CASES_FIELDS_MAX];
    char *end = NULL;
    (void)state;
    for (uint32_t i = 0; i < cases->field_count; i++) {
        fields[i] = strtoull(text, &end, 10);
        text = end;
    }
    assert_true(cases->is_valid(fields));
    cases->run(fields);
}

int cases_main(const struct cases *of)
{
    cases = of;
    batch_at = mmap(NULL, sizeof *batch_at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (batch_at == MAP_FAILED) {
        return 1;
    }
    const struct CMUnitTest drawn[] = {cmocka_unit_test(test_drawn_cases)};
    const struct CMUnitTest given[] = {cmocka_unit_test(test_the_case_given)};
    return cluster_report(getenv("COMMD_CASE") == NULL ? cmocka_run_group_tests(drawn, NULL, NULL)
                                                       : cmocka_run_group_tests(given, NULL, NULL));
}
