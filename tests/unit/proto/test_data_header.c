#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "proto/data_header.h"

/* Every byte of every field differs from the others, and from zero. */
static const struct data_header sample = {
    .comm_id = 0x1817161514131211u,
    .seq = 0x2827262524232221u,
    .generation = 0x34333231u,
    .slice = 0x44434241u,
    .round = 0x54535251u,
    .algorithm = 0x64636261u,
    .payload_bytes = 0x12838281u,
    .terms = {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I8, .reduce = REDUCE_BXOR, .bucket_ops = 1},
};

static const uint8_t sample_bytes[DATA_HEADER_BYTES] = {
    'C',  'M',  'D',  'D',  2,    0,    0,    0,    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
    0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44,
    0x51, 0x52, 0x53, 0x54, 0x61, 0x62, 0x63, 0x64, 0x81, 0x82, 0x83, 0x12, 0,    0,    0,    0,
    0,    9,    8,    0,    0,    0,    0,    0,    0,    0,    0,    0,    1,    0,    0,    0,
};

static void assert_same(const struct data_header *a, const struct data_header *b)
{
    assert_null(op_terms_difference(&a->terms, &b->terms));
    assert_int_equal(a->generation, b->generation);
    assert_true(a->comm_id == b->comm_id);
    assert_true(a->seq == b->seq);
    assert_int_equal(a->slice, b->slice);
    assert_int_equal(a->round, b->round);
    assert_int_equal(a->algorithm, b->algorithm);
    assert_true(a->payload_bytes == b->payload_bytes);
}

static void test_layout(void **state)
{
    (void)state;
    uint8_t guarded[DATA_HEADER_BYTES + 2];
    memset(guarded, 0xa5, sizeof(guarded));
    data_header_encode(&sample, guarded + 1);
    assert_memory_equal(guarded + 1, sample_bytes, DATA_HEADER_BYTES);
    assert_int_equal(guarded[0], 0xa5);
    assert_int_equal(guarded[DATA_HEADER_BYTES + 1], 0xa5);

    struct data_header read;
    const char *what = NULL;
    memset(&read, 0xa5, sizeof(read));
    assert_int_equal(data_header_decode(guarded + 1, &read, &what), STATUS_OK);
    assert_same(&read, &sample);
    assert_null(what);
}

static void check_round_trip(const struct data_header *header)
{
    uint8_t bytes[DATA_HEADER_BYTES];
    struct data_header read;
    const char *what = NULL;
    memset(bytes, 0xa5, sizeof(bytes));
    memset(&read, 0xa5, sizeof(read));
    data_header_encode(header, bytes);
    assert_int_equal(data_header_decode(bytes, &read, &what), STATUS_OK);
    assert_same(&read, header);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct data_header header = {.terms.bucket_ops = 1};
    check_round_trip(&header);
    header = (struct data_header){.generation = UINT32_MAX,
                                  .comm_id = UINT64_MAX,
                                  .seq = UINT64_MAX,
                                  .slice = UINT32_MAX,
                                  .round = UINT32_MAX,
                                  .algorithm = UINT32_MAX,
                                  .payload_bytes = DATA_PAYLOAD_MAX_BYTES,
                                  .terms = sample.terms};
    check_round_trip(&header);
}

static void check_refused(const uint8_t bytes[DATA_HEADER_BYTES], enum status status, const char *field)
{
    struct data_header read;
    struct data_header poison;
    const char *what = NULL;
    memset(&poison, 0xa5, sizeof(poison));
    memset(&read, 0xa5, sizeof(read));
    assert_int_equal(data_header_decode(bytes, &read, &what), status);
    assert_non_null(what);
    assert_string_equal(what, field);
    assert_memory_equal(&read, &poison, sizeof(read));
}

/* What decode says of each byte when any of its bits is flipped. Null: the flip makes another valid header.
 */
struct field {
    size_t first;
    size_t size;
    const char *name;
    enum status status;
};

static const struct field fields[] = {
    {0, 4, "magic", STATUS_PROTOCOL},
    {4, 1, "version", STATUS_VERSION},
    {5, 3, "reserved", STATUS_PROTOCOL},
    {8, 32, NULL, STATUS_OK}, /* any number is valid: whether it fits the operation is checked later */
    {40, 8, "payload_bytes", STATUS_PROTOCOL},
};
#define FIELDS_END 48 /* the terms follow: test_op_terms.c */

static bool flip_is_valid(const struct field *field, const uint8_t *bytes)
{
    if (field->first == 40) { /* at most 2^30 */
        return bytes[44] == 0 && bytes[45] == 0 && bytes[46] == 0 && bytes[47] == 0 && bytes[43] < 0x40;
    }
    return field->name == NULL;
}

static void test_each_bit_flipped(void **state)
{
    (void)state;
    size_t covered = 0;
    for (size_t f = 0; f < sizeof(fields) / sizeof(fields[0]); f++) {
        assert_int_equal(fields[f].first, covered);
        covered += fields[f].size;
        for (size_t bit = 8 * fields[f].first; bit < 8 * covered; bit++) {
            uint8_t bytes[DATA_HEADER_BYTES];
            memcpy(bytes, sample_bytes, sizeof(bytes));
            bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
            if (flip_is_valid(&fields[f], bytes)) {
                struct data_header read;
                uint8_t again[DATA_HEADER_BYTES];
                const char *what = NULL;
                assert_int_equal(data_header_decode(bytes, &read, &what), STATUS_OK);
                data_header_encode(&read, again);
                assert_memory_equal(again, bytes, sizeof(bytes)); /* the flipped bit arrived, and no other */
            } else {
                check_refused(bytes, fields[f].status, fields[f].name);
            }
        }
    }
    assert_int_equal(covered, FIELDS_END);
}

static void test_terms_that_are_not_valid(void **state)
{
    (void)state;
    uint8_t bytes[DATA_HEADER_BYTES];
    memcpy(bytes, sample_bytes, sizeof(bytes));
    bytes[FIELDS_END] = OP_KIND_COUNT;
    check_refused(bytes, STATUS_PROTOCOL, "kind");
}

static void test_payload_maximum(void **state)
{
    (void)state;
    uint8_t bytes[DATA_HEADER_BYTES];
    memcpy(bytes, sample_bytes, sizeof(bytes));
    struct data_header read;
    const char *what = NULL;
    memcpy(bytes + 40, "\x00\x00\x00\x40\x00\x00\x00\x00", 8);
    assert_int_equal(data_header_decode(bytes, &read, &what), STATUS_OK);
    assert_true(read.payload_bytes == DATA_PAYLOAD_MAX_BYTES);
    memcpy(bytes + 40, "\x01\x00\x00\x40\x00\x00\x00\x00", 8);
    check_refused(bytes, STATUS_PROTOCOL, "payload_bytes");
    memset(bytes + 40, 0xff, 8);
    check_refused(bytes, STATUS_PROTOCOL, "payload_bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),           cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_each_bit_flipped), cmocka_unit_test(test_terms_that_are_not_valid),
        cmocka_unit_test(test_payload_maximum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
