#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/base/random.h"
#include "proto/records.h"

/* --- Submissions --- */

/* Every byte of every field differs from the others, and from zero. */
static struct submit_record sample(void)
{
    struct submit_record record;
    uint64_t factor_bits = 0x6867666564636261u;
    submit_record_begin(&record, RECORD_OPERATION, 0x14131211u);
    record.ticket = 0x2827262524232221u;
    record.terms = (struct op_terms){.kind = OP_KIND_ALL_REDUCE,
                                     .dtype = DTYPE_I8,
                                     .reduce = REDUCE_BXOR,
                                     .compression = COMPRESSION_F8,
                                     .has_layouts = 1,
                                     .top_k_permille = 0x0131,
                                     .root_rank = 0x44434241u,
                                     .bucket_ops = 0x52,
                                     .bucket_index = 0x51,
                                     .count_elements = 0x5857565554535251u};
    memcpy(&record.factor, &factor_bits, sizeof factor_bits);
    record.timeout_ms = 0x7877767574737271u;
    record.peer_rank = 0x84838281u;
    record.tag = 0x94939291u;
    submit_record_add(&record, RECORD_INPUT, 0xa4a3a2a1u, 0xb8b7b6b5b4b3b2b1u, 0);
    submit_record_add(&record, RECORD_WAIT, 0xc4c3c2c1u, 0xd8d7d6d5d4d3d2d1u, 0xe8e7e6e5e4e3e2e1u);
    return record;
}

static const uint8_t sample_bytes[] = {
    0x07, 1,    1,    2,    0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27,
    0x28, 0,    9,    8,    2,    1,    0,    0x31, 0x01, 0x41, 0x42, 0x43, 0x44, 0x52, 0,
    0x51, 0,    0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0,    0,    0,    0,    0,
    0,    0,    0,    0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x71, 0x72, 0x73, 0x74,
    0x75, 0x76, 0x77, 0x78, 0x81, 0x82, 0x83, 0x84, 0x91, 0x92, 0x93, 0x94, /* the entries: */
    1,    0,    0,    0,    0xa1, 0xa2, 0xa3, 0xa4, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7,
    0xb8, 0,    0,    0,    0,    0,    0,    0,    0, /* the second: */
    7,    0,    0,    0,    0xc1, 0xc2, 0xc3, 0xc4, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7,
    0xd8, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8,
};

/* Reads a record from memory of exactly that size: sanitizers see a read beyond it. */
static size_t read_exactly(const void *bytes, size_t size_bytes, struct submit_record *out, const char **what)
{
    uint8_t *copy = malloc(size_bytes + (size_bytes == 0));
    assert_non_null(copy);
    memcpy(copy, bytes, size_bytes);
    size_t taken = submit_record_read(copy, size_bytes, out, what);
    free(copy);
    return taken;
}

static void expect_refused(const void *bytes, size_t size_bytes, const char *field)
{
    struct submit_record read;
    const char *what = NULL;
    assert_int_equal(read_exactly(bytes, size_bytes, &read, &what), 0);
    assert_non_null(what);
    assert_string_equal(what, field);
}

static void expect_same(const void *bytes, size_t size_bytes)
{
    struct submit_record read;
    const char *what;
    memset(&read, 0xa5, sizeof read);
    assert_int_equal(read_exactly(bytes, size_bytes, &read, &what), size_bytes);
    assert_memory_equal(&read, bytes, size_bytes);
}

static void test_layout(void **state)
{
    (void)state;
    struct submit_record record = sample();
    assert_int_equal(submit_record_bytes(&record), sizeof sample_bytes);
    assert_memory_equal(&record, sample_bytes, sizeof sample_bytes);
    expect_same(sample_bytes, sizeof sample_bytes);
    assert_true(packet_is_record(sample_bytes, sizeof sample_bytes));
    assert_false(packet_is_record(sample_bytes, 0));
    assert_false(packet_is_record(sample_bytes + 1, 1));
}

static void random_entries(struct random *source, struct submit_record *record)
{
    bool is_event = record->kind == RECORD_EVENT;
    for (unsigned what = is_event ? RECORD_ENDED : RECORD_INPUT; what <= RECORD_ENDED; what++) {
        if (random_below(source, 2) == 0) {
            submit_record_add(record, (enum record_what)what, (uint32_t)random_u64(source),
                              random_u64(source), what == RECORD_ENDED ? random_u64(source) : 0);
        }
    }
    for (uint64_t waits = random_below(source, CLIENT_FENCES_MAX + 1); waits > 0; waits--) {
        submit_record_add(record, RECORD_WAIT, (uint32_t)random_u64(source), random_u64(source),
                          random_u64(source));
    }
}

/* Every record that can be written is read back unchanged, however many a packet holds. */
static void test_round_trip(void **state)
{
    (void)state;
    enum { ROUNDS = 3000, RECORDS = 5 };
    struct random source;
    random_seed(&source, 7);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint8_t packet[RECORDS * sizeof(struct submit_record)];
        struct submit_record records[RECORDS], read;
        size_t size = 0, at = 0;
        const char *what;
        for (unsigned i = 0; i < RECORDS; i++) {
            struct submit_record *record = &records[i];
            bool is_event = random_below(&source, 4) == 0;
            bool is_captured = random_below(&source, 4) == 0;
            submit_record_begin(record,
                                is_event      ? RECORD_EVENT
                                : is_captured ? RECORD_CAPTURED
                                              : RECORD_OPERATION,
                                (uint32_t)random_u64(&source));
            record->ticket = random_u64(&source);
            if (!is_event) {
                uint8_t *terms = (uint8_t *)&record->terms; /* any terms: their validity is checked later */
                for (size_t k = 0; k < offsetof(struct op_terms, hash); k++) {
                    terms[k] =
                        k == offsetof(struct op_terms, has_residual) ? 0 : (uint8_t)random_u64(&source);
                }
                record->timeout_ms = random_u64(&source);
                record->peer_rank = (uint32_t)random_u64(&source);
            }
            random_entries(&source, record);
            memcpy(packet + size, record, submit_record_bytes(record));
            size += submit_record_bytes(record);
        }
        for (unsigned i = 0; i < RECORDS; i++) {
            size_t taken = submit_record_read(packet + at, size - at, &read, &what);
            assert_int_equal(taken, submit_record_bytes(&records[i]));
            assert_memory_equal(&read, &records[i], taken);
            at += taken;
        }
        assert_int_equal(at, size);
    }
}

static void test_truncated(void **state)
{
    (void)state;
    struct submit_record record = sample();
    for (size_t size = 0; size < sizeof sample_bytes; size++) {
        expect_refused(sample_bytes, size, "size");
    }
    for (unsigned waits = 1; waits < CLIENT_FENCES_MAX; waits++) {
        submit_record_add(&record, RECORD_WAIT, waits, 8, 1);
    }
    for (size_t size = 0; size < submit_record_bytes(&record); size++) {
        expect_refused(&record, size, "size");
    }
    expect_same(&record, submit_record_bytes(&record));
}

/* What the reader says of each byte when any of its bits is flipped. Null: the flip makes another valid
 * record. */
static void test_each_bit(void **state)
{
    static const struct {
        size_t begin, end;
        const char *field;
    } fields[] = {
        {0, 1, "mark"},
        {1, 2, "version"},
        {4, 21, NULL},
        {21, 22, "has_residual"},
        {22, 40, NULL},
        {40, 48, "hash"},
        {48, 72, NULL},
        {73, 76, "reserved field"},
        {76, 88, NULL},
        {88, 96, "reserved field"},
        {97, 100, "reserved field"},
        {100, 120, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        for (size_t bit = 8 * fields[i].begin; bit < 8 * fields[i].end; bit++) {
            uint8_t bytes[sizeof sample_bytes];
            memcpy(bytes, sample_bytes, sizeof bytes);
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (fields[i].field != NULL) {
                expect_refused(bytes, sizeof bytes, fields[i].field);
            } else {
                expect_same(bytes, sizeof bytes);
            }
        }
    }
}

static void test_kinds(void **state)
{
    (void)state;
    struct submit_record record = sample();
    for (unsigned kind = 0; kind <= UINT8_MAX; kind++) {
        record.kind = (uint8_t)kind;
        if (kind == RECORD_EVENT) {
            expect_refused(&record, submit_record_bytes(&record), "reserved field"); /* it has terms */
        } else if (kind == RECORD_CAPTURED) {
            expect_same(&record, submit_record_bytes(&record));
        } else if (kind != RECORD_OPERATION) {
            expect_refused(&record, submit_record_bytes(&record), "kind");
        }
    }
    submit_record_begin(&record, RECORD_EVENT, 3);
    expect_same(&record, submit_record_bytes(&record));
    for (size_t at = offsetof(struct submit_record, terms); at < SUBMIT_RECORD_MIN_BYTES; at++) {
        struct submit_record spoilt = record;
        ((uint8_t *)&spoilt)[at] = 1;
        expect_refused(&spoilt, submit_record_bytes(&spoilt), "reserved field");
    }
    for (unsigned what = RECORD_INPUT; what < RECORD_ENDED; what++) {
        struct submit_record spoilt = record;
        submit_record_add(&spoilt, (enum record_what)what, 1, 0, 0);
        expect_refused(&spoilt, submit_record_bytes(&spoilt), "entry");
    }
}

/* A number is in no memory. */
static uint32_t memory_of(unsigned what)
{
    return what == RECORD_NUMBER ? 0 : 1;
}

/* 8 belonged to windows, which are gone. */
static bool is_entry(unsigned what)
{
    return (what >= RECORD_INPUT && what <= RECORD_WAIT) || what == RECORD_NUMBER;
}

static void test_entries(void **state)
{
    (void)state;
    struct submit_record record;
    for (unsigned first = 0; first <= UINT8_MAX; first++) {
        for (unsigned second = 0; second <= RECORD_NUMBER + 1; second++) {
            submit_record_begin(&record, RECORD_OPERATION, 1);
            submit_record_add(&record, (enum record_what)first, memory_of(first), 0, 0);
            submit_record_add(&record, (enum record_what)second, memory_of(second), 0, 0);
            bool there_are = is_entry(first) && is_entry(second);
            if (there_are && (first < second || (first == second && first == RECORD_WAIT))) {
                expect_same(&record, submit_record_bytes(&record));
            } else {
                expect_refused(&record, submit_record_bytes(&record),
                               there_are ? "order of entries" : "entry");
            }
        }
    }
    for (unsigned what = RECORD_INPUT; what <= RECORD_NUMBER; what++) {
        if (!is_entry(what)) {
            continue;
        }
        submit_record_begin(&record, RECORD_OPERATION, 1);
        submit_record_add(&record, (enum record_what)what, memory_of(what), 0, 5);
        if (what == RECORD_ENDED || what == RECORD_WAIT || what == RECORD_NUMBER) {
            expect_same(&record, submit_record_bytes(&record));
        } else {
            /* This entry has no value. */
            expect_refused(&record, submit_record_bytes(&record), "reserved field");
        }
    }
    submit_record_begin(&record, RECORD_OPERATION, 1);
    submit_record_add(&record, RECORD_NUMBER, 1, 0, 5);
    expect_refused(&record, submit_record_bytes(&record), "reserved field");
}

static void test_maxima(void **state)
{
    (void)state;
    struct {
        struct submit_record record;
        struct record_entry one_more;
    } full;
    struct submit_record *record = &full.record;
    submit_record_begin(record, RECORD_OPERATION, 1);
    for (unsigned i = 0; i < CLIENT_FENCES_MAX; i++) {
        submit_record_add(record, RECORD_WAIT, 1, 8 * i, 1);
    }
    expect_same(record, submit_record_bytes(record));
    submit_record_add(record, RECORD_WAIT, 1, 0, 1);
    expect_refused(record, submit_record_bytes(record), "number of waits");
    submit_record_begin(record, RECORD_OPERATION, 1);
    for (unsigned what = RECORD_INPUT; what < RECORD_WAIT; what++) {
        submit_record_add(record, (enum record_what)what, what, 0, 0);
    }
    for (unsigned i = 0; i < CLIENT_FENCES_MAX; i++) {
        submit_record_add(record, RECORD_WAIT, 1, 8 * i, 1);
    }
    submit_record_add(record, RECORD_NUMBER, 0, 7, 9);
    assert_int_equal(record->entry_count, RECORD_ENTRIES_MAX);
    expect_same(record, submit_record_bytes(record));
    for (unsigned count = RECORD_ENTRIES_MAX + 1; count <= UINT8_MAX; count++) {
        record->entry_count = (uint8_t)count;
        expect_refused(record, SUBMIT_RECORD_MIN_BYTES, "entry_count"); /* refused before any entry is read */
    }
}

static void test_find(void **state)
{
    (void)state;
    struct submit_record record = sample();
    assert_ptr_equal(submit_record_find(&record, RECORD_INPUT), &record.entries[0]);
    assert_ptr_equal(submit_record_find(&record, RECORD_WAIT), &record.entries[1]);
    for (unsigned what = RECORD_OUTPUT; what <= RECORD_ENDED; what++) {
        assert_null(submit_record_find(&record, (enum record_what)what));
    }
}

/* --- Completions --- */

static const uint8_t completion_bytes[] = {
    0x07, 1,    3,    0,    0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24,
    0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
    0x41, 0x42, 0x43, 0x44, 9,    0,    3,    0,    'w',  'h',  'y',
};

static bool completion_read_exactly(const void *bytes, size_t size_bytes, struct completion_record *out,
                                    const char **what)
{
    uint8_t *copy = malloc(size_bytes + (size_bytes == 0));
    assert_non_null(copy);
    memcpy(copy, bytes, size_bytes);
    bool is_one = completion_record_read(copy, size_bytes, out, what);
    free(copy);
    return is_one;
}

static void expect_no_completion(const void *bytes, size_t size_bytes, const char *field)
{
    struct completion_record read;
    const char *what = NULL;
    assert_false(completion_read_exactly(bytes, size_bytes, &read, &what));
    assert_string_equal(what, field);
}

static void test_completion_layout(void **state)
{
    (void)state;
    struct completion_record record, read;
    const char *what;
    completion_record_begin(&record, 0x14131211u, 0x2827262524232221u);
    record.count_elements = 0x3837363534333231u;
    record.source_rank = 0x44434241u;
    completion_record_fail(&record, STATUS_NO_MEMORY, "why");
    assert_int_equal(completion_record_bytes(&record), sizeof completion_bytes);
    assert_memory_equal(&record, completion_bytes, sizeof completion_bytes);
    memset(&read, 0xa5, sizeof read);
    assert_true(completion_read_exactly(completion_bytes, sizeof completion_bytes, &read, &what));
    assert_memory_equal(&read, completion_bytes, sizeof completion_bytes);
    assert_string_equal(read.text, "why");
}

static void test_completion_wrong(void **state)
{
    static const struct {
        size_t at;
        const char *field;
    } fields[] = {{0, "mark"},           {1, "version"}, {2, "kind"},
                  {3, "reserved field"}, {30, "size"},   {31, "size"}};
    (void)state;
    for (size_t size = 0; size < sizeof completion_bytes; size++) {
        expect_no_completion(completion_bytes, size, "size");
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            uint8_t bytes[sizeof completion_bytes];
            memcpy(bytes, completion_bytes, sizeof bytes);
            bytes[fields[i].at] ^= (uint8_t)(1u << bit);
            expect_no_completion(bytes, sizeof bytes, fields[i].field);
        }
    }
    uint8_t longer[sizeof completion_bytes + 1] = {0};
    memcpy(longer, completion_bytes, sizeof completion_bytes);
    expect_no_completion(longer, sizeof longer, "size");
    longer[28] = STATUS_OK;
    expect_no_completion(longer, sizeof completion_bytes, "text");
}

static void test_completion_texts(void **state)
{
    (void)state;
    char text[CLIENT_ERROR_TEXT_MAX_BYTES + 10];
    struct completion_record record, read;
    const char *what;
    memset(text, 't', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    completion_record_begin(&record, 1, 2);
    assert_true(completion_read_exactly(&record, completion_record_bytes(&record), &read, &what));
    assert_int_equal(read.status, STATUS_OK);
    assert_string_equal(read.text, "");
    completion_record_fail(&record, STATUS_LIMIT, NULL);
    assert_true(completion_read_exactly(&record, completion_record_bytes(&record), &read, &what));
    assert_string_equal(read.text, "");
    completion_record_fail(&record, STATUS_LIMIT, text); /* cut */
    assert_int_equal(completion_record_bytes(&record),
                     COMPLETION_RECORD_MIN_BYTES + CLIENT_ERROR_TEXT_MAX_BYTES);
    assert_true(completion_read_exactly(&record, completion_record_bytes(&record), &read, &what));
    assert_int_equal(strlen(read.text), CLIENT_ERROR_TEXT_MAX_BYTES);
    uint8_t beyond[COMPLETION_RECORD_MIN_BYTES + CLIENT_ERROR_TEXT_MAX_BYTES + 1] = {0};
    memcpy(beyond, &record, sizeof beyond - 1);
    beyond[30]++;
    expect_no_completion(beyond, sizeof beyond, "size");
}

/* Any bytes are refused with a reason, or the record read equals them. */
static void test_any_bytes(void **state)
{
    (void)state;
    struct random source;
    random_seed(&source, 11);
    for (unsigned round = 0; round < 20000; round++) {
        uint8_t bytes[sizeof(struct submit_record)];
        size_t size = random_below(&source, sizeof bytes + 1);
        struct submit_record read;
        struct completion_record completion;
        const char *what = NULL;
        for (size_t i = 0; i < size; i++) {
            bytes[i] = (uint8_t)random_u64(&source);
        }
        const uint8_t head[4] = {RECORD_MARK, RECORD_VERSION, (uint8_t)(1 + round % 3), (uint8_t)(round % 5)};
        memcpy(bytes, head, size < sizeof head ? size : sizeof head);
        size_t taken = read_exactly(bytes, size, &read, &what);
        assert_true(taken == 0 ? what != NULL : memcmp(&read, bytes, taken) == 0);
        what = NULL;
        bool is_one = completion_read_exactly(bytes, size, &completion, &what);
        assert_true(is_one || what != NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_each_bit),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_maxima),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_completion_layout),
        cmocka_unit_test(test_completion_wrong),
        cmocka_unit_test(test_completion_texts),
        cmocka_unit_test(test_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
