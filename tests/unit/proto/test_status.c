#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "proto/status.h"

/* The numbers are on the wire and in the library's ABI. They are written here a second time, so that the test
 * detects a change. */
static const struct {
    unsigned number;
    const char *name;
} expected[] = {
    {0, "OK"},           {1, "IN_PROGRESS"},  {2, "INVALID_ARGUMENT"}, {3, "UNSUPPORTED"},  {4, "MISMATCH"},
    {5, "PERMISSION"},   {6, "NOT_FOUND"},    {7, "ALREADY_EXISTS"},   {8, "LIMIT"},        {9, "NO_MEMORY"},
    {10, "TIMED_OUT"},   {11, "PROTOCOL"},    {12, "VERSION"},         {13, "DAEMON_LOST"}, {14, "NODE_LOST"},
    {15, "RANK_LOST"},   {16, "ABORTED"},     {17, "SHUTTING_DOWN"},   {18, "CONFIG"},      {19, "SYSTEM"},
    {20, "CERTIFICATE"}, {21, "UNREACHABLE"}, {22, "INTERNAL"},        {23, "DEVICE"},      {24, "BUSY"},
};
#define EXPECTED_COUNT (sizeof(expected) / sizeof(expected[0]))

static void test_numbers_and_names(void **state)
{
    (void)state;
    assert_int_equal(STATUS_COUNT, EXPECTED_COUNT);
    for (unsigned i = 0; i < EXPECTED_COUNT; i++) {
        assert_int_equal(expected[i].number, i);
        assert_string_equal(status_name((enum status)i), expected[i].name);
        assert_int_equal(status_from_wire(i), i);
    }
    assert_int_equal(STATUS_OK, 0);
    assert_int_equal(STATUS_PROTOCOL, 11);
    assert_int_equal(STATUS_INTERNAL, 22);
}

static void test_texts_differ(void **state)
{
    (void)state;
    for (unsigned i = 0; i < STATUS_COUNT; i++) {
        assert_true(strlen(status_text((enum status)i)) > 0);
        for (unsigned j = i + 1; j < STATUS_COUNT; j++) {
            assert_string_not_equal(status_text((enum status)i), status_text((enum status)j));
            assert_string_not_equal(status_name((enum status)i), status_name((enum status)j));
        }
    }
    assert_string_equal(status_text(STATUS_OK), "success");
    assert_string_equal(status_text(STATUS_TIMED_OUT), "deadline passed");
}

static void test_unlisted_numbers(void **state)
{
    (void)state;
    static const unsigned unlisted[] = {STATUS_COUNT, STATUS_COUNT + 1, 255,        256,
                                        0x7fffffffu,  0x80000000u,      0xffffffffu};
    for (size_t i = 0; i < sizeof(unlisted) / sizeof(unlisted[0]); i++) {
        assert_int_equal(status_from_wire(unlisted[i]), STATUS_PROTOCOL);
        assert_string_equal(status_text((enum status)unlisted[i]), "unknown status");
        assert_string_equal(status_name((enum status)unlisted[i]), "UNKNOWN");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_and_names),
        cmocka_unit_test(test_texts_differ),
        cmocka_unit_test(test_unlisted_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
