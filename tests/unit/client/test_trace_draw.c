#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "client/commctl/trace.h"
#include "proto/status.h"
#include "proto/types.h"

/* The bars of commctl trace, from records as a ring may give them: cut at the beginning, and of work that has
 * not ended. */
#define COMM 7
#define ROW TRACE_LANE_ROW(1, 3)

static struct trace_name names[] = {{COMM, (char *)"tr\"ain"}};

/* Returns the events drawn, as Perfetto would read them. The caller releases them. */
static json_t *draw(struct trace_record *records, size_t count, uint64_t end_ns)
{
    struct trace_fetched fetched = {.node_name = (char *)"alpha",
                                    .records = records,
                                    .count = count,
                                    .names = names,
                                    .name_count = 1,
                                    .end_ns = end_ns};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    fputs("[{\"ph\":\"M\"}", out);
    assert_true(trace_draw(&fetched, out));
    fputs("]", out);
    fclose(out);
    json_error_t error;
    json_t *events = json_loads(text, 0, &error);
    if (events == NULL) {
        fail_msg("%s in line %d: %s", error.text, error.line, text);
    }
    free(text);
    return events;
}

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text != NULL ? text : "";
}

static const char *row_of(const json_t *events, const json_t *bar)
{
    size_t index;
    const json_t *event;
    json_array_foreach(events, index, event)
    {
        if (strcmp(text_of(event, "name"), "thread_name") == 0 &&
            json_equal(json_object_get(event, "tid"), json_object_get(bar, "tid"))) {
            return text_of(json_object_get(event, "args"), "name");
        }
    }
    fail_msg("a bar without a row");
    return NULL;
}

/* Returns the bar of that name that begins at that time, in microseconds. */
static const json_t *bar_at(const json_t *events, const char *name, double begin_us)
{
    size_t index;
    const json_t *event;
    json_array_foreach(events, index, event)
    {
        if (strcmp(text_of(event, "name"), name) == 0 &&
            json_number_value(json_object_get(event, "ts")) == begin_us) {
            return event;
        }
    }
    fail_msg("no bar \"%s\" at %g us", name, begin_us);
    return NULL;
}

static void expect_bar(const json_t *events, const char *name, double begin_us, double length_us,
                       const char *row)
{
    const json_t *bar = bar_at(events, name, begin_us);
    assert_string_equal(text_of(bar, "ph"), "X");
    assert_true(json_number_value(json_object_get(bar, "dur")) == length_us);
    assert_string_equal(row_of(events, bar), row);
    assert_string_equal(text_of(json_object_get(bar, "args"), "communicator"), "tr\"ain");
    assert_string_equal(text_of(json_object_get(bar, "args"), "kind"), "all_reduce");
}

static bool is_unfinished(const json_t *bar)
{
    return json_is_true(json_object_get(json_object_get(bar, "args"), "unfinished"));
}

static struct trace_record record(uint64_t time_us, enum trace_event event, uint64_t seq, uint32_t row,
                                  uint32_t slice, uint64_t value)
{
    return (struct trace_record){.time_ns = time_us * 1000,
                                 .comm_id = COMM,
                                 .seq = seq,
                                 .value = value,
                                 .row = row,
                                 .slice = slice,
                                 .event = event,
                                 .kind = OP_KIND_ALL_REDUCE};
}

static size_t count_bars(const json_t *events)
{
    size_t index, count = 0;
    const json_t *event;
    json_array_foreach(events, index, event)
    {
        count += strcmp(text_of(event, "ph"), "X") == 0;
    }
    return count;
}

static void test_a_lane(void **state)
{
    struct trace_record records[] = {
        record(1, TRACE_ROUND_RECEIVED, 4, ROW, 0, 1), /* its slice's start was overwritten */
        record(2, TRACE_SLICE_DONE, 4, ROW, 0, 0),        record(10, TRACE_SLICE_STARTED, 5, ROW, 7, 4096),
        record(12, TRACE_STAGE_IN_DONE, 5, ROW, 7, 0),    record(13, TRACE_ROUND_SENT, 5, ROW, 7, 0),
        record(20, TRACE_ROUND_RECEIVED, 5, ROW, 7, 0),   record(25, TRACE_SLICE_DONE, 5, ROW, 7, 0),
        record(30, TRACE_SLICE_STARTED, 5, ROW, 9, 4096), /* given up: another one starts */
        record(40, TRACE_SLICE_STARTED, 6, ROW, 1, 4096), /* under way */
        record(41, TRACE_STAGE_IN_DONE, 6, ROW, 1, 0),
    };
    (void)state;
    json_t *events = draw(records, sizeof records / sizeof *records, 50000);
    const char *row = "tr\"ain lane 3 (rail 1)";
    expect_bar(events, "slice 7", 10, 15, row);
    expect_bar(events, "stage in", 10, 2, row);
    expect_bar(events, "round 0", 12, 8, row);
    expect_bar(events, "send", 12, 1, row);
    expect_bar(events, "stage out", 20, 5, row);
    expect_bar(events, "slice 9", 30, 10, row);
    expect_bar(events, "slice 1", 40, 10, row);
    expect_bar(events, "stage in", 40, 1, row);
    assert_int_equal(count_bars(events), 8);
    assert_false(is_unfinished(bar_at(events, "slice 7", 10)));
    assert_true(is_unfinished(bar_at(events, "slice 9", 30)));
    assert_true(is_unfinished(bar_at(events, "slice 1", 40)));
    json_decref(events);
}

/* Work that runs on GPUs alone has rows of its own: one for the GPUs' queues, one for NCCL. */
static void test_gpus(void **state)
{
    uint32_t queues = TRACE_LANE_ROW(0, TRACE_LANE_GPUS), nccl = TRACE_LANE_ROW(0, TRACE_LANE_NCCL);
    struct trace_record records[] = {
        record(10, TRACE_SLICE_STARTED, 5, queues, 0, 4096), record(25, TRACE_SLICE_DONE, 5, queues, 0, 0),
        record(30, TRACE_SLICE_STARTED, 6, nccl, 0, 4096),   record(42, TRACE_SLICE_DONE, 6, nccl, 0, 0),
        record(45, TRACE_SLICE_STARTED, 7, nccl, 0, 4096), /* under way */
    };
    (void)state;
    json_t *events = draw(records, sizeof records / sizeof *records, 50000);
    expect_bar(events, "on GPUs", 10, 15, "tr\"ain GPUs");
    expect_bar(events, "on GPUs", 30, 12, "tr\"ain GPUs by NCCL");
    expect_bar(events, "on GPUs", 45, 5, "tr\"ain GPUs by NCCL");
    assert_int_equal(count_bars(events), 3);
    assert_false(is_unfinished(bar_at(events, "on GPUs", 30)));
    assert_true(is_unfinished(bar_at(events, "on GPUs", 45)));
    json_decref(events);
}

static void test_ranks(void **state)
{
    struct trace_record records[] = {
        record(1, TRACE_OP_TOLD, 1, 0, 0, STATUS_OK), /* taken before the records begin */
        record(10, TRACE_OP_TAKEN, 2, 0, 0, 77),       record(11, TRACE_OP_POSTED, 2, 0, 0, 64),
        record(15, TRACE_OP_TAKEN, 3, 0, 0, 78),       record(16, TRACE_OP_POSTED, 3, 0, 0, 64),
        record(20, TRACE_OP_TAKEN, 2, 1, 0, 77),       record(21, TRACE_OP_POSTED, 2, 1, 0, 64),
        record(22, TRACE_OP_MATCHED, 2, 0, 0, 8),      record(23, TRACE_OP_STARTED, 2, 0, 0, 1),
        record(30, TRACE_OP_DONE, 2, 0, 0, 1),         record(31, TRACE_OP_TOLD, 2, 0, 0, STATUS_OK),
        record(33, TRACE_OP_TOLD, 2, 1, 0, STATUS_OK),
    };
    (void)state;
    json_t *events = draw(records, sizeof records / sizeof *records, 50000);
    expect_bar(events, "all_reduce", 10, 21, "tr\"ain rank 0");
    expect_bar(events, "waiting for local ranks", 10, 12, "tr\"ain rank 0");
    expect_bar(events, "waiting for local ranks", 20, 2, "tr\"ain rank 1");
    expect_bar(events, "queued", 22, 1, "tr\"ain rank 0");
    expect_bar(events, "running", 23, 7, "tr\"ain rank 0");
    expect_bar(events, "all_reduce", 20, 13, "tr\"ain rank 1");
    expect_bar(events, "all_reduce", 15, 35, "tr\"ain rank 0 +1"); /* it overlaps the other */
    assert_true(is_unfinished(bar_at(events, "all_reduce", 15)));
    const json_t *arguments = json_object_get(bar_at(events, "all_reduce", 10), "args");
    assert_int_equal(json_integer_value(json_object_get(arguments, "bytes")), 64);
    assert_int_equal(json_integer_value(json_object_get(arguments, "ticket")), 77);
    assert_string_equal(text_of(arguments, "status"), "OK");
    json_decref(events);
}

/* Records of the same time keep their order. Otherwise a slice would end before it starts. */
static void test_one_instant(void **state)
{
    struct trace_record records[400];
    (void)state;
    for (uint32_t i = 0; i < 400; i += 2) {
        records[i] = record(5, TRACE_SLICE_STARTED, 1, ROW, i, 64);
        records[i + 1] = record(5, TRACE_SLICE_DONE, 1, ROW, i, 0);
    }
    json_t *events = draw(records, 400, 5000);
    size_t index;
    const json_t *event;
    json_array_foreach(events, index, event)
    {
        assert_false(is_unfinished(event));
    }
    assert_int_equal(count_bars(events), 200);
    json_decref(events);
}

/* Records of any kind, in any order, are drawn somehow. */
static void test_anything(void **state)
{
    enum { CASES = 300, RECORDS = 60 };
    (void)state;
    srandom(1);
    for (int i = 0; i < CASES; i++) {
        struct trace_record records[RECORDS];
        for (int k = 0; k < RECORDS; k++) {
            records[k] =
                record((uint64_t)random() % 20, (enum trace_event)(random() % (TRACE_EVENT_COUNT + 2)),
                       (uint64_t)random() % 3, random() % 5 == 0 ? UINT32_MAX : (uint32_t)random() % 3,
                       (uint32_t)random() % 3, random() % 5 == 0 ? UINT64_MAX : (uint64_t)random() % 3);
            records[k].comm_id = COMM + (uint64_t)random() % 2;
            records[k].kind = (uint32_t)random() % 40;
        }
        json_decref(draw(records, (size_t)random() % RECORDS, 10000));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_lane),      cmocka_unit_test(test_gpus),     cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_one_instant), cmocka_unit_test(test_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
