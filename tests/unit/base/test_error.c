#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "daemon/base/error.h"

static void poison(struct error *error)
{
    memset(error, 0xa5, sizeof(*error));
}

static void test_set_fills_and_returns(void **state)
{
    (void)state;
    struct error error;
    poison(&error);
    assert_int_equal(error_set(&error, STATUS_MISMATCH, "rank %d says %s", 3, "f32"), STATUS_MISMATCH);
    assert_int_equal(error.status, STATUS_MISMATCH);
    assert_string_equal(error.text, "rank 3 says f32");
}

static void test_errno_text_follows(void **state)
{
    (void)state;
    struct error error;
    poison(&error);
    assert_int_equal(error_set_errno(&error, ENOENT, "opening %s", "/nowhere"), STATUS_SYSTEM);
    assert_int_equal(error.status, STATUS_SYSTEM);
    assert_string_equal(error.text, "opening /nowhere: No such file or directory");
    assert_int_equal(error_set_errno(&error, 99999, "x"), STATUS_SYSTEM);
    assert_string_equal(error.text, "x: error number 99999");
}

static void test_prefix_keeps_status(void **state)
{
    (void)state;
    struct error error;
    poison(&error);
    assert_int_equal(error_set(&error, STATUS_LIMIT, "too many"), STATUS_LIMIT);
    assert_int_equal(error_prefix(&error, "comm '%s'", "a"), STATUS_LIMIT);
    assert_int_equal(error_prefix(&error, "client %d", 7), STATUS_LIMIT);
    assert_int_equal(error.status, STATUS_LIMIT);
    assert_string_equal(error.text, "client 7: comm 'a': too many");
}

static void test_null_is_accepted(void **state)
{
    (void)state;
    assert_int_equal(error_set(NULL, STATUS_TIMED_OUT, "x%d", 1), STATUS_TIMED_OUT);
    assert_int_equal(error_set_errno(NULL, EIO, "x"), STATUS_SYSTEM);
    assert_int_equal(error_prefix(NULL, "x"), STATUS_INTERNAL);
}

static void test_arguments_may_alias(void **state)
{
    (void)state;
    struct error error;
    assert_int_equal(error_set(&error, STATUS_CONFIG, "inner"), STATUS_CONFIG);
    assert_int_equal(error_set(&error, STATUS_INTERNAL, "<%s|%s>", error.text, error.text), STATUS_INTERNAL);
    assert_string_equal(error.text, "<inner|inner>");
    assert_int_equal(error_prefix(&error, "%s", error.text), STATUS_INTERNAL);
    assert_string_equal(error.text, "<inner|inner>: <inner|inner>");
}

static void test_cut_at_maximum(void **state)
{
    (void)state;
    char text[2 * ERROR_TEXT_MAX_BYTES];
    for (size_t length = ERROR_TEXT_MAX_BYTES - 3; length <= ERROR_TEXT_MAX_BYTES + 3; length++) {
        for (size_t i = 0; i < length; i++) {
            text[i] = (char)('a' + i % 26);
        }
        text[length] = '\0';
        struct error error;
        poison(&error);
        error_set(&error, STATUS_LIMIT, "%s", text);
        size_t expected = length < ERROR_TEXT_MAX_BYTES ? length : ERROR_TEXT_MAX_BYTES - 1;
        assert_int_equal(strlen(error.text), expected);
        assert_memory_equal(error.text, text, expected);
    }
}

/* Puts each sequence at each place around the cut: the text has all of it, or nothing. */
static void test_cut_never_splits_utf8(void **state)
{
    (void)state;
    static const char *const sequences[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8c\x8d"};
    for (size_t s = 0; s < 3; s++) {
        size_t sequence_bytes = strlen(sequences[s]);
        for (size_t before = ERROR_TEXT_MAX_BYTES - 6; before < ERROR_TEXT_MAX_BYTES; before++) {
            char text[ERROR_TEXT_MAX_BYTES + 16];
            memset(text, 'x', before);
            memcpy(text + before, sequences[s], sequence_bytes);
            strcpy(text + before + sequence_bytes, "tail!");
            struct error error;
            poison(&error);
            error_set(&error, STATUS_LIMIT, "%s", text);
            bool whole = before + sequence_bytes <= ERROR_TEXT_MAX_BYTES - 1;
            size_t expected = whole ? ERROR_TEXT_MAX_BYTES - 1 : before;
            assert_int_equal(strlen(error.text), expected);
            assert_memory_equal(error.text, text, expected);
        }
    }
}

static void test_prefix_of_a_full_text_cuts(void **state)
{
    (void)state;
    char text[ERROR_TEXT_MAX_BYTES];
    memset(text, 'y', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    struct error error;
    error_set(&error, STATUS_PROTOCOL, "%s", text);
    assert_int_equal(error_prefix(&error, "node b"), STATUS_PROTOCOL);
    assert_int_equal(strlen(error.text), ERROR_TEXT_MAX_BYTES - 1);
    assert_memory_equal(error.text, "node b: yyy", 11);
    error_set(&error, STATUS_PROTOCOL, "%s", text);
    assert_int_equal(error_prefix(&error, "%s%s", text, text), STATUS_PROTOCOL);
    assert_string_equal(error.text, text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_fills_and_returns), cmocka_unit_test(test_errno_text_follows),
        cmocka_unit_test(test_prefix_keeps_status),   cmocka_unit_test(test_null_is_accepted),
        cmocka_unit_test(test_arguments_may_alias),   cmocka_unit_test(test_cut_at_maximum),
        cmocka_unit_test(test_cut_never_splits_utf8), cmocka_unit_test(test_prefix_of_a_full_text_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
