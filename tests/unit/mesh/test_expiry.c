#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/log.h"
#include "daemon/mesh/expiry.h"

/* Warnings of certificates that end soon. */

#define DAY_S 86400u
#define NOW_S 1800000000u /* 2027-01-15T08:00:00Z */

static char lines[8192];
static unsigned line_count;

static void keep_line(void *context, enum log_level level, const char *line)
{
    (void)context;
    assert_int_equal(level, LOG_LEVEL_WARNING);
    size_t used = strlen(lines);
    snprintf(lines + used, sizeof lines - used, "%s\n", line);
    line_count++;
}

static int setup(void **state)
{
    (void)state;
    lines[0] = '\0';
    line_count = 0;
    log_set_sink(keep_line, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    log_set_sink(NULL, NULL);
    return 0;
}

static void assert_says(const char *text)
{
    if (strstr(lines, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", lines, text);
    }
}

/* expiry_check warns from 30 days before the end on, and once a day, however often it is called. */
static void this_nodes_is_warned_of_once_a_day(void **state)
{
    (void)state;
    struct expiry expiry = {0};
    struct expiry_certificate own = {"a", NOW_S + 40 * DAY_S};
    for (unsigned hour = 0; hour < 10 * 24; hour++) {
        expiry_check(&expiry, &own, NULL, 0, NOW_S + hour * 3600u);
    }
    assert_int_equal(line_count, 0);
    expiry_check(&expiry, &own, NULL, 0, NOW_S + 10 * DAY_S + 1);
    assert_int_equal(line_count, 1);
    assert_says("the certificate of node a ends in 29 days, on 2027-02-24: renew it");
    for (unsigned hour = 0; hour < 24; hour++) {
        expiry_check(&expiry, &own, NULL, 0, NOW_S + 10 * DAY_S + 1 + hour * 3600u);
    }
    assert_int_equal(line_count, 1);
    for (unsigned hour = 24; hour < 24 * 31; hour++) {
        expiry_check(&expiry, &own, NULL, 0, NOW_S + 10 * DAY_S + 1 + hour * 3600u);
    }
    assert_int_equal(line_count, 31);
    assert_says("the certificate of node a ended on 2027-02-24: no new connection can be made");
    own.ends_s += 825 * DAY_S; /* renewed */
    expiry_check(&expiry, &own, NULL, 0, NOW_S + 42 * DAY_S);
    assert_int_equal(line_count, 31);
}

static void others_share_one_line(void **state)
{
    (void)state;
    struct expiry expiry = {0};
    struct expiry_certificate own = {"a", 0};
    struct expiry_certificate others[] = {{"late", NOW_S + 400 * DAY_S},
                                          {"c", NOW_S + 20 * DAY_S},
                                          {"unknown", 0},
                                          {"b", NOW_S + 3 * DAY_S},
                                          {"gone", NOW_S - 1}};
    expiry_check(&expiry, &own, others, 5, NOW_S);
    expiry_check(&expiry, &own, others, 5, NOW_S + 3600);
    assert_int_equal(line_count, 1);
    assert_says("the certificates of 3 other nodes");
    assert_says("end within 30 days: gone (ended), b (3 days), c (20 days)\n");
    expiry_check(&expiry, &own, others, 5, NOW_S + DAY_S);
    assert_int_equal(line_count, 2);
    expiry_check(&expiry, &own, others, 5, NOW_S - 5 * DAY_S); /* the clock was set back */
    assert_int_equal(line_count, 3);
}

/* The line stays short, even if every name is as long as a name may be. */
static void many_others_are_counted(void **state)
{
    (void)state;
    enum { MANY = 200 };
    struct expiry expiry = {0};
    struct expiry_certificate own = {"a", 0};
    struct expiry_certificate others[MANY];
    static const char name[] = "a-name-of-63-bytes-----------------------------------------------";
    for (unsigned i = 0; i < MANY; i++) {
        others[i] = (struct expiry_certificate){name, NOW_S + 1};
    }
    expiry_check(&expiry, &own, others, MANY, NOW_S);
    assert_int_equal(line_count, 1);
    assert_says("the certificates of 200 other nodes");
    assert_says("(0 days), ...\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(this_nodes_is_warned_of_once_a_day, setup, teardown),
        cmocka_unit_test_setup_teardown(others_share_one_line, setup, teardown),
        cmocka_unit_test_setup_teardown(many_others_are_counted, setup, teardown),
    };
    return cmocka_run_group_tests_name("expiry", tests, NULL, NULL);
}
