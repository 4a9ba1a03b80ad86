#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/trace.h"

/* The process has one ring. So each test reads only what is recorded after the records that are there
 * already. */

static void begin(unsigned areas)
{
    struct error error;
    assert_int_equal(trace_begin(areas, &error), STATUS_OK);
}

static void test_areas(void **state)
{
    static const struct {
        const char *text;
        bool fine;
        unsigned areas;
    } cases[] = {
        {NULL, true, 0},
        {"", true, 0},
        {"comm", true, TRACE_AREA_COMM},
        {"op", true, TRACE_AREA_OP},
        {"comm,op", true, TRACE_AREAS_ALL},
        {"op,comm,op", true, TRACE_AREAS_ALL},
        {"all", false, 0},
        {"op,", true, TRACE_AREA_OP},
        {",op", false, 0},
        {"operation", false, 0},
        {"comm op", false, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned areas;
        assert_int_equal(trace_areas_parse(cases[i].text, &areas), cases[i].fine);
        if (cases[i].fine) {
            assert_int_equal(areas, cases[i].areas);
        }
    }
}

static void test_only_areas_that_are_on(void **state)
{
    struct trace_record records[4];
    (void)state;
    begin(0);
    uint64_t next = trace_end();
    trace_op_taken(1, 2, 3, 4, 5, 6);
    trace_comm_formed(1, 0, 0, 0, 0, 2);
    assert_int_equal(trace_end(), next);
    begin(TRACE_AREA_COMM);
    trace_op_taken(1, 2, 3, 4, 5, 6);
    trace_comm_formed(1, 0, 0, 0, 0, 2);
    begin(TRACE_AREA_OP);
    trace_op_taken(10, 20, 30, 40, 50, 60);
    trace_comm_formed(1, 0, 0, 0, 0, 2);
    begin(0);
    trace_op_taken(1, 2, 3, 4, 5, 6);
    assert_int_equal(trace_read(&next, UINT64_MAX, records, 4), 2); /* recorded events stay readable */
    assert_int_equal(next, trace_end());
    assert_int_equal(records[0].event, TRACE_COMM_FORMED);
    assert_int_equal(records[0].value, 2);
    const struct trace_record *taken = &records[1];
    assert_true(taken->time_ns >= records[0].time_ns && records[0].time_ns > 0);
    assert_int_equal(taken->event, TRACE_OP_TAKEN);
    assert_int_equal(taken->comm_id, 10);
    assert_int_equal(taken->seq, 20);
    assert_int_equal(taken->kind, 30);
    assert_int_equal(taken->row, 40);
    assert_int_equal(taken->slice, 50);
    assert_int_equal(taken->value, 60);
}

static void test_pages(void **state)
{
    struct trace_record records[3];
    (void)state;
    begin(TRACE_AREA_OP);
    uint64_t next = trace_end(), end = next + 5;
    for (uint64_t seq = 0; seq < 7; seq++) {
        trace_op_done(1, seq, 0, 0, 0, 0);
    }
    assert_int_equal(trace_read(&next, end, records, 3), 3);
    assert_int_equal(records[0].seq, 0);
    assert_int_equal(trace_read(&next, end, records, 3), 2);
    assert_int_equal(records[1].seq, 4);
    assert_int_equal(trace_read(&next, end, records, 3), 0);
    assert_int_equal(next, end);
}

static void test_the_oldest_goes(void **state)
{
    struct trace_record *records = calloc(TRACE_RECORDS_MAX, sizeof *records);
    (void)state;
    assert_non_null(records);
    begin(TRACE_AREA_OP);
    uint64_t next = trace_end();
    for (uint64_t seq = 0; seq < TRACE_RECORDS_MAX + 10; seq++) {
        trace_op_done(2, seq, 0, 0, 0, 0);
    }
    assert_int_equal(trace_read(&next, UINT64_MAX, records, TRACE_RECORDS_MAX), TRACE_RECORDS_MAX);
    for (uint64_t i = 0; i < TRACE_RECORDS_MAX; i++) {
        assert_int_equal(records[i].seq, i + 10);
    }
    free(records);
}

enum { WRITERS = 3, WRITES = 400000 };

static void *write_records(void *context)
{
    uint32_t writer = *(const uint32_t *)context;
    for (uint64_t i = 0; i < WRITES; i++) {
        trace_slice_done(i, ~i, writer, (uint32_t)i, (uint32_t)~i, i + writer);
    }
    return NULL;
}

/* The writers overwrite the ring many times while the reader reads. Each record that it gets is complete, and
 * the records of each writer are in order. */
static void test_threads(void **state)
{
    pthread_t threads[WRITERS];
    uint32_t names[WRITERS];
    uint64_t last[WRITERS] = {0}, seen = 0;
    struct trace_record records[64];
    (void)state;
    begin(TRACE_AREA_OP);
    uint64_t next = trace_end(), end = next + (uint64_t)WRITERS * WRITES;
    for (uint32_t i = 0; i < WRITERS; i++) {
        names[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, write_records, &names[i]), 0);
    }
    while (next < end) {
        size_t count = trace_read(&next, end, records, 64);
        for (size_t i = 0; i < count; i++) {
            const struct trace_record *record = &records[i];
            assert_in_range(record->kind, 0, WRITERS - 1);
            assert_int_equal(record->seq, ~record->comm_id);
            assert_int_equal(record->row, (uint32_t)record->comm_id);
            assert_int_equal(record->slice, (uint32_t)~record->comm_id);
            assert_int_equal(record->value, record->comm_id + record->kind);
            assert_true(last[record->kind] <= record->comm_id);
            last[record->kind] = record->comm_id + 1;
            seen++;
        }
    }
    for (uint32_t i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_true(seen > 0);
}

static void test_names(void **state)
{
    (void)state;
    assert_null(trace_comm_find(1));
    for (uint64_t id = 1; id <= TRACE_COMMS_MAX + 1; id++) {
        char name[32];
        (void)snprintf(name, sizeof name, "comm %llu", (unsigned long long)id);
        trace_comm(id, (uid_t)(1000 + id), name);
    }
    assert_null(trace_comm_find(1)); /* the oldest has gone */
    const struct trace_comm_name *found = trace_comm_find(2);
    assert_non_null(found);
    assert_string_equal(found->name, "comm 2");
    assert_int_equal(found->owner_uid, 1002);
    trace_comm(2, 7, "again");
    assert_string_equal(trace_comm_find(2)->name, "again");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_areas), cmocka_unit_test(test_only_areas_that_are_on),
        cmocka_unit_test(test_pages), cmocka_unit_test(test_the_oldest_goes),
        cmocka_unit_test(test_names), cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
