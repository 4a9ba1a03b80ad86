#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "client/lib/internal.h"

static void test_every_result_has_a_text(void **state)
{
    (void)state;
    for (int i = 0; i < STATUS_COUNT; i++) {
        const char *text = comm_result_text((comm_result_t)i);
        assert_non_null(text);
        assert_string_not_equal(text, "");
        assert_string_not_equal(text, "unknown status");
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(text, comm_result_text((comm_result_t)j));
        }
    }
    assert_string_equal(comm_result_text((comm_result_t)STATUS_COUNT), "unknown status");
    assert_string_equal(comm_result_text((comm_result_t)-1), "unknown status");
    assert_string_equal(comm_result_text((comm_result_t)1000000), "unknown status");
}

static void test_dtype_sizes(void **state)
{
    (void)state;
    static const size_t sizes[DTYPE_COUNT] = {8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1, 8, 16};
    for (int i = 0; i < DTYPE_COUNT; i++) {
        assert_int_equal(comm_dtype_size((comm_dtype_t)i), sizes[i]);
    }
    assert_int_equal(comm_dtype_size((comm_dtype_t)DTYPE_COUNT), 0);
    assert_int_equal(comm_dtype_size((comm_dtype_t)-1), 0);
}

static void test_version(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", COMM_VERSION_MAJOR, COMM_VERSION_MINOR, COMM_VERSION_PATCH);
    assert_string_equal(comm_version(), text);
}

static void test_failures_off_the_wire(void **state)
{
    (void)state;
    /* An Error that claims success, or an unfinished operation, is no valid Error. */
    assert_int_equal(failure_from_wire(STATUS_OK), COMM_PROTOCOL);
    assert_int_equal(failure_from_wire(STATUS_IN_PROGRESS), COMM_PROTOCOL);
    assert_int_equal(failure_from_wire(STATUS_COUNT), COMM_PROTOCOL);
    assert_int_equal(failure_from_wire(UINT32_MAX), COMM_PROTOCOL);
    for (uint32_t i = STATUS_INVALID_ARGUMENT; i < STATUS_COUNT; i++) {
        assert_int_equal(failure_from_wire(i), i);
    }
}

static void *report_elsewhere(void *argument)
{
    char *seen = argument;
    snprintf(seen, 64, "[%s]", comm_last_error());
    error_report(COMM_SYSTEM, "of the other thread");
    return NULL;
}

static void test_last_error_is_the_threads_own(void **state)
{
    (void)state;
    char seen[64] = "";
    pthread_t thread;
    assert_int_equal(error_report(COMM_LIMIT, "rank %u of \"%s\"", 3u, "x"), COMM_LIMIT);
    assert_string_equal(comm_last_error(), "rank 3 of \"x\"");
    assert_int_equal(pthread_create(&thread, NULL, report_elsewhere, seen), 0);
    pthread_join(thread, NULL);
    assert_string_equal(seen, "[]");
    assert_string_equal(comm_last_error(), "rank 3 of \"x\"");
}

static void test_errors_are_cut_not_overrun(void **state)
{
    (void)state;
    char text[2 * ERROR_TEXT_BYTES];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    error_report(COMM_INTERNAL, "%s", text);
    assert_int_equal(strlen(comm_last_error()), ERROR_TEXT_BYTES - 1);
    error_repeat(COMM_INTERNAL, text);
    assert_int_equal(strlen(comm_last_error()), ERROR_TEXT_BYTES - 1);
    error_repeat(COMM_NODE_LOST, ""); /* never nothing at all */
    assert_string_equal(comm_last_error(), comm_result_text(COMM_NODE_LOST));
}

/* A struct as a later version may have it. */
struct later_options {
    comm_call_options_t known;
    uint64_t added;
};

static comm_result_t copy(comm_call_options_t *target, const void *source)
{
    *target = (comm_call_options_t)COMM_CALL_OPTIONS_INIT;
    return options_copy(target, sizeof *target, source, "comm_test", "COMM_CALL_OPTIONS_INIT");
}

static void test_options_of_other_versions(void **state)
{
    (void)state;
    comm_call_options_t target;
    struct later_options given = {.known = {.timeout_ms = 7, .factor = 2.5}};
    assert_int_equal(copy(&target, NULL), COMM_OK);
    assert_int_equal(target.timeout_ms, 0);
    assert_true(target.factor == 1.0);

    given.known.struct_size = sizeof given.known;
    assert_int_equal(copy(&target, &given), COMM_OK);
    assert_int_equal(target.timeout_ms, 7);
    assert_true(target.factor == 2.5);

    /* The struct of an older version ends before the factor, which then keeps its default. */
    given.known.struct_size = offsetof(comm_call_options_t, factor);
    assert_int_equal(copy(&target, &given), COMM_OK);
    assert_int_equal(target.timeout_ms, 7);
    assert_true(target.factor == 1.0);
    assert_int_equal(target.struct_size, sizeof target);

    /* The struct of a later version is understood as long as it asks for nothing new. */
    given.known.struct_size = sizeof given;
    assert_int_equal(copy(&target, &given), COMM_OK);
    assert_true(target.factor == 2.5);
    given.added = UINT64_C(1) << 63;
    assert_int_equal(copy(&target, &given), COMM_INVALID_ARGUMENT);
    assert_non_null(strstr(comm_last_error(), "comm_test"));
    assert_non_null(strstr(comm_last_error(), "does not know"));
}

static void test_options_without_a_size(void **state)
{
    (void)state;
    comm_call_options_t target;
    comm_call_options_t given = {.struct_size = 0};
    assert_int_equal(copy(&target, &given), COMM_INVALID_ARGUMENT);
    assert_non_null(strstr(comm_last_error(), "COMM_CALL_OPTIONS_INIT"));
    given.struct_size = sizeof(size_t) - 1;
    assert_int_equal(copy(&target, &given), COMM_INVALID_ARGUMENT);
    /* Garbage: the library does not even look at what is beyond. */
    given.struct_size = SIZE_MAX;
    assert_int_equal(copy(&target, &given), COMM_INVALID_ARGUMENT);
    given.struct_size = OPTIONS_MAX_BYTES + 1;
    assert_int_equal(copy(&target, &given), COMM_INVALID_ARGUMENT);
    assert_true(target.factor == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_result_has_a_text),
        cmocka_unit_test(test_dtype_sizes),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_failures_off_the_wire),
        cmocka_unit_test(test_last_error_is_the_threads_own),
        cmocka_unit_test(test_errors_are_cut_not_overrun),
        cmocka_unit_test(test_options_of_other_versions),
        cmocka_unit_test(test_options_without_a_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
