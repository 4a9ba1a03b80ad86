#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "proto/op_terms.h"

static const struct op_terms sum = {.kind = OP_KIND_ALL_REDUCE,
                                    .dtype = DTYPE_F32,
                                    .reduce = REDUCE_SUM,
                                    .count_elements = 5,
                                    .bucket_ops = 1};

/* Every byte of the sample differs from the others. */
static void test_wire(void **state)
{
    (void)state;
    const struct op_terms terms = {.kind = 0x01,
                                   .dtype = 0x02,
                                   .reduce = 0x03,
                                   .compression = 0x04,
                                   .has_layouts = 0x05,
                                   .has_residual = 0x06,
                                   .top_k_permille = 0x0807,
                                   .root_rank = 0x0c0b0a09,
                                   .bucket_ops = 0x0e0d,
                                   .bucket_index = 0x100f,
                                   .count_elements = 0x1817161514131211u,
                                   .hash = 0x201f1e1d1c1b1a19u};
    uint8_t bytes[OP_TERMS_BYTES];
    struct op_terms read;
    op_terms_encode(&terms, bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_int_equal(bytes[i], i + 1);
    }
    op_terms_decode(bytes, &read);
    assert_memory_equal(&read, &terms, sizeof read);
}

/* A difference in any byte is seen, from both sides, and has a name. */
static void test_any_difference_is_named(void **state)
{
    (void)state;
    assert_null(op_terms_difference(&sum, &sum));
    for (size_t i = 0; i < OP_TERMS_BYTES; i++) {
        struct op_terms other = sum;
        ((uint8_t *)&other)[i] ^= 1;
        const char *field = op_terms_difference(&sum, &other);
        assert_non_null(field);
        assert_string_equal(op_terms_difference(&other, &sum), field);
    }
    struct op_terms other = sum;
    other.count_elements = 6;
    assert_string_equal(op_terms_difference(&sum, &other), "count");
    other.dtype = DTYPE_F64; /* the first of several */
    assert_string_equal(op_terms_difference(&sum, &other), "dtype");
}

static void check_text(const struct op_terms *terms, const char *text)
{
    char out[OP_TERMS_TEXT_MAX_BYTES];
    op_terms_describe(terms, out, sizeof out);
    assert_string_equal(out, text);
}

static void test_describe(void **state)
{
    (void)state;
    check_text(&sum, "all_reduce of 5 f32, sum");
    check_text(&(struct op_terms){.kind = OP_KIND_BARRIER, .bucket_ops = 1}, "barrier");
    check_text(
        &(struct op_terms){.kind = OP_KIND_BROADCAST, .dtype = DTYPE_I8, .count_elements = 7, .root_rank = 3},
        "broadcast of 7 i8 from rank 3");
    check_text(
        &(struct op_terms){.kind = OP_KIND_GATHER, .dtype = DTYPE_I8, .has_layouts = 1, .root_rank = 2},
        "gather_v of i8 to rank 2");
    check_text(
        &(struct op_terms){.kind = OP_KIND_ALL_GATHER, .dtype = DTYPE_F64, .has_layouts = 1, .hash = 0x1abc},
        "all_gather_v of f64, counts 00001abc");
    struct op_terms terms = sum;
    terms.compression = COMPRESSION_TOP_K;
    terms.has_residual = 1;
    terms.top_k_permille = 20;
    check_text(&terms, "all_reduce of 5 f32, sum, top_k on the wire with error feedback (20 of 1000)");
    terms = sum;
    terms.bucket_ops = 4;
    terms.bucket_index = 1;
    check_text(&terms, "all_reduce of 5 f32, sum, 2 of 4 in a group");
}

/* The text is cut; nothing is written beyond its end. */
static void test_describe_cuts(void **state)
{
    (void)state;
    char whole[OP_TERMS_TEXT_MAX_BYTES];
    op_terms_describe(&sum, whole, sizeof whole);
    for (size_t size = 1; size <= strlen(whole); size++) {
        char out[OP_TERMS_TEXT_MAX_BYTES];
        memset(out, 'x', sizeof out);
        op_terms_describe(&sum, out, size);
        assert_int_equal(strlen(out), size - 1);
        assert_memory_equal(out, whole, size - 1);
        assert_int_equal(out[size], 'x');
    }
}

static void check_invalid(struct op_terms terms, const char *field)
{
    const char *what = NULL;
    assert_false(op_terms_are_valid(&terms, &what));
    assert_string_equal(what, field);
}

#define WITH(...) ((struct op_terms){.bucket_ops = 1, __VA_ARGS__})

static void test_ranges(void **state)
{
    (void)state;
    const char *what = NULL;
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        assert_true(op_terms_are_valid(&WITH(.kind = kind), &what));
    }
    for (int number = OP_KIND_COUNT; number < 256; number++) {
        check_invalid(WITH(.kind = number), "kind");
    }
    check_invalid(WITH(.dtype = DTYPE_COUNT), "dtype");
    check_invalid(WITH(.dtype = 255), "dtype");
    check_invalid(WITH(.reduce = REDUCE_COUNT), "reduce");
    check_invalid(WITH(.compression = COMPRESSION_COUNT), "compression");
    check_invalid(WITH(.has_layouts = 2), "has_layouts");
    check_invalid(WITH(.has_residual = 2), "has_residual");
    check_invalid(WITH(.top_k_permille = OP_TOP_K_MAX_PERMILLE + 1), "top_k_permille");
    check_invalid(WITH(.bucket_index = 1), "bucket_index");
    check_invalid((struct op_terms){.bucket_ops = 0}, "bucket_index");
    check_invalid((struct op_terms){.bucket_ops = OP_BUCKET_OPS_MAX + 1}, "bucket_ops");
    check_invalid((struct op_terms){.kind = OP_KIND_BARRIER, .bucket_ops = 2}, "bucket_ops");
    check_invalid((struct op_terms){.kind = OP_KIND_ALL_TO_ALL, .bucket_ops = 2}, "bucket_ops");
    check_invalid((struct op_terms){.kind = OP_KIND_ALL_GATHER, .has_layouts = 1, .bucket_ops = 2},
                  "has_layouts");
    assert_true(op_terms_are_valid(&(struct op_terms){.kind = OP_KIND_ALL_GATHER, .bucket_ops = 2}, &what));
    assert_true(
        op_terms_are_valid(&(struct op_terms){.kind = OP_KIND_REDUCE_SCATTER, .bucket_ops = 2}, &what));
    assert_true(op_terms_are_valid(
        &(struct op_terms){.bucket_ops = OP_BUCKET_OPS_MAX, .bucket_index = OP_BUCKET_OPS_MAX - 1}, &what));
    assert_null(what);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire),     cmocka_unit_test(test_any_difference_is_named),
        cmocka_unit_test(test_describe), cmocka_unit_test(test_describe_cuts),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
