#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/comm/text.h"

/* Texts that grow part by part, in a place of fixed size. */

#define GUARD "guard"

struct place {
    char text[32];
    char guard[sizeof GUARD];
};

static void assert_place(const struct place *place, const char *text)
{
    assert_string_equal(place->text, text);
    assert_string_equal(place->guard, GUARD);
}

static void test_a_text_that_fits(void **state)
{
    (void)state;
    struct place place = {.guard = GUARD};
    struct comms_text text;
    comms_text_begin(&text, place.text, sizeof place.text);
    comms_text_add(&text, "rank %d", 1);
    comms_text_continue(&text, place.text, sizeof place.text);
    comms_text_add(&text, ", rank %d", 2);
    assert_false(text.cut);
    assert_place(&place, "rank 1, rank 2");
}

/* Whatever the length at which it was cut, a text that goes on stays as it is, and in its place. */
static void test_a_text_that_was_cut_goes_on(void **state)
{
    (void)state;
    for (int length = 0; length < 40; length++) {
        struct place place = {.guard = GUARD};
        struct comms_text text;
        char before[sizeof place.text];
        comms_text_begin(&text, place.text, sizeof place.text);
        comms_text_add(&text, "%.*s", length, "0123456789012345678901234567890123456789");
        for (int part = 0; part < 40; part++) {
            comms_text_continue(&text, place.text, sizeof place.text);
            bool cut = text.cut;
            strcpy(before, place.text);
            comms_text_add(&text, ", rank %d of node n%03d", part, part);
            assert_string_equal(place.guard, GUARD);
            assert_true(memchr(place.text, 0, sizeof place.text) != NULL);
            if (cut) {
                assert_string_equal(place.text, before);
            }
        }
        assert_non_null(strstr(place.text, "\xe2\x80\xa6"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_text_that_fits),
        cmocka_unit_test(test_a_text_that_was_cut_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
