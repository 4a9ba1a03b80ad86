#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/api/metrics_text.h"

/* The two text formats, byte for byte. */

static const struct metrics_family counter = {"commd_sent_bytes", "bytes", "Bytes sent.", METRICS_COUNTER};
static const struct metrics_family gauge = {"commd_lag_seconds", "seconds", "Lag.", METRICS_GAUGE};
static const struct metrics_family info = {"commd_build", "", "The version.", METRICS_INFO};
static const struct metrics_family histogram = {"commd_time_seconds", "seconds", "Times.", METRICS_HISTOGRAM};

static void expect(struct metrics_text *text, const char *expected)
{
    assert_false(text->failed);
    assert_int_equal(text->used_bytes, strlen(expected));
    assert_memory_equal(text->bytes, expected, text->used_bytes);
    metrics_text_free(text);
}

static void write_all(struct metrics_text *text, enum metrics_format format)
{
    const struct metrics_label peer[] = {{"peer", "b"}, {"rail", "1"}};
    const uint64_t bounds[] = {1000, 1000000000};
    struct histogram times = {.sum = 0};
    histogram_add(&times, bounds, 2, 1000);
    histogram_add(&times, bounds, 2, 1001);
    histogram_add(&times, bounds, 2, 2500000000);
    metrics_text_begin(text, format, 1 << 20);
    metrics_begin(text, &counter);
    metrics_put(text, peer, 2, 18446744073709551615u);
    metrics_put(text, peer, 1, 0);
    metrics_begin(text, &gauge);
    metrics_put_ns(text, NULL, 0, 1500000);
    metrics_begin(text, &info);
    metrics_put(text, peer, 1, 1);
    metrics_begin(text, &histogram);
    metrics_put_histogram(text, peer, 1, &times, bounds, 2, METRICS_SCALE_NS_TO_SECONDS);
    metrics_text_end(text);
}

static void test_open_metrics(void **state)
{
    (void)state;
    struct metrics_text text;
    write_all(&text, METRICS_OPENMETRICS);
    expect(&text, "# HELP commd_sent_bytes Bytes sent.\n"
                  "# TYPE commd_sent_bytes counter\n"
                  "# UNIT commd_sent_bytes bytes\n"
                  "commd_sent_bytes_total{peer=\"b\",rail=\"1\"} 18446744073709551615\n"
                  "commd_sent_bytes_total{peer=\"b\"} 0\n"
                  "# HELP commd_lag_seconds Lag.\n"
                  "# TYPE commd_lag_seconds gauge\n"
                  "# UNIT commd_lag_seconds seconds\n"
                  "commd_lag_seconds 0.0015\n"
                  "# HELP commd_build The version.\n"
                  "# TYPE commd_build info\n"
                  "commd_build_info{peer=\"b\"} 1\n"
                  "# HELP commd_time_seconds Times.\n"
                  "# TYPE commd_time_seconds histogram\n"
                  "# UNIT commd_time_seconds seconds\n"
                  "commd_time_seconds_bucket{peer=\"b\",le=\"0.000001\"} 1\n"
                  "commd_time_seconds_bucket{peer=\"b\",le=\"1\"} 2\n"
                  "commd_time_seconds_bucket{peer=\"b\",le=\"+Inf\"} 3\n"
                  "commd_time_seconds_sum{peer=\"b\"} 2.500002001\n"
                  "commd_time_seconds_count{peer=\"b\"} 3\n"
                  "# EOF\n");
}

/* The older format names samples in its heads, knows neither units nor infos, and has no end. */
static void test_prometheus(void **state)
{
    (void)state;
    struct metrics_text text;
    write_all(&text, METRICS_PROMETHEUS);
    expect(&text, "# HELP commd_sent_bytes_total Bytes sent.\n"
                  "# TYPE commd_sent_bytes_total counter\n"
                  "commd_sent_bytes_total{peer=\"b\",rail=\"1\"} 18446744073709551615\n"
                  "commd_sent_bytes_total{peer=\"b\"} 0\n"
                  "# HELP commd_lag_seconds Lag.\n"
                  "# TYPE commd_lag_seconds gauge\n"
                  "commd_lag_seconds 0.0015\n"
                  "# HELP commd_build_info The version.\n"
                  "# TYPE commd_build_info gauge\n"
                  "commd_build_info{peer=\"b\"} 1\n"
                  "# HELP commd_time_seconds Times.\n"
                  "# TYPE commd_time_seconds histogram\n"
                  "commd_time_seconds_bucket{peer=\"b\",le=\"0.000001\"} 1\n"
                  "commd_time_seconds_bucket{peer=\"b\",le=\"1\"} 2\n"
                  "commd_time_seconds_bucket{peer=\"b\",le=\"+Inf\"} 3\n"
                  "commd_time_seconds_sum{peer=\"b\"} 2.500002001\n"
                  "commd_time_seconds_count{peer=\"b\"} 3\n");
}

static void test_without_samples(void **state)
{
    (void)state;
    struct metrics_text text;
    const struct histogram empty = {.sum = 0};
    const uint64_t bounds[] = {1};
    metrics_text_begin(&text, METRICS_OPENMETRICS, 1 << 20);
    metrics_begin(&text, &counter);
    metrics_begin(&text, &histogram);
    metrics_put_histogram(&text, NULL, 0, &empty, bounds, 1, METRICS_SCALE_ONE);
    metrics_text_end(&text);
    expect(&text, "# EOF\n");
}

/* No name can end a label, a line, or the text. */
static void test_hostile_labels(void **state)
{
    (void)state;
    struct metrics_text text;
    const struct metrics_label label = {"name", "a\"} 1\n# EOF\n\\\xff"};
    metrics_text_begin(&text, METRICS_PROMETHEUS, 1 << 20);
    metrics_begin(&text, &gauge);
    metrics_put(&text, &label, 1, 1);
    metrics_text_end(&text);
    expect(&text, "# HELP commd_lag_seconds Lag.\n"
                  "# TYPE commd_lag_seconds gauge\n"
                  "commd_lag_seconds{name=\"a\\\"} 1?# EOF?\\\\?\"} 1\n");
}

static void test_seconds(void **state)
{
    (void)state;
    const uint64_t values_ns[] = {0, 1, 10, 999999999, 1000000000, 1000000001, 12345678900000};
    struct metrics_text text;
    metrics_text_begin(&text, METRICS_PROMETHEUS, 1 << 20);
    metrics_begin(&text, &gauge);
    for (size_t i = 0; i < sizeof values_ns / sizeof values_ns[0]; i++) {
        metrics_put_ns(&text, NULL, 0, values_ns[i]);
    }
    metrics_text_end(&text);
    expect(&text, "# HELP commd_lag_seconds Lag.\n"
                  "# TYPE commd_lag_seconds gauge\n"
                  "commd_lag_seconds 0\n"
                  "commd_lag_seconds 0.000000001\n"
                  "commd_lag_seconds 0.00000001\n"
                  "commd_lag_seconds 0.999999999\n"
                  "commd_lag_seconds 1\n"
                  "commd_lag_seconds 1.000000001\n"
                  "commd_lag_seconds 12345.6789\n");
}

static void test_too_long(void **state)
{
    (void)state;
    struct metrics_text text;
    metrics_text_begin(&text, METRICS_PROMETHEUS, 1000);
    metrics_begin(&text, &gauge);
    for (unsigned i = 0; i < 100; i++) {
        metrics_put(&text, NULL, 0, i);
    }
    metrics_text_end(&text);
    assert_true(text.failed);
    assert_true(text.used_bytes <= 1000);
    metrics_text_free(&text);
}

/* The text is longer than the first piece of memory. */
static void test_long(void **state)
{
    (void)state;
    struct metrics_text text;
    metrics_text_begin(&text, METRICS_PROMETHEUS, 1 << 20);
    metrics_begin(&text, &gauge);
    for (unsigned i = 0; i < 20000; i++) {
        metrics_put(&text, NULL, 0, i);
    }
    metrics_text_end(&text);
    assert_false(text.failed);
    assert_true(text.used_bytes > 400000);
    assert_memory_equal(text.bytes + text.used_bytes - 6, "19999\n", 6);
    metrics_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_metrics),
        cmocka_unit_test(test_prometheus),
        cmocka_unit_test(test_without_samples),
        cmocka_unit_test(test_hostile_labels),
        cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
