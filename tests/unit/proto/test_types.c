#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "proto/types.h"

/*
 * All numbers that are on the wire and in the ABI, written a second time, so that the test detects a change.
 * `defined` has one character for each operator, in the order of their numbers: sum prod min max avg
 * premul_sum band bor bxor land lor.
 */
static const struct {
    enum dtype dtype;
    unsigned number;
    const char *text;
    size_t size_bytes;
    const char *defined;
} dtypes[] = {
    /* clang-format off */
    {DTYPE_F64,     0,  "f64",        8,  "yyyyyy-----"},
    {DTYPE_F32,     1,  "f32",        4,  "yyyyyy-----"},
    {DTYPE_F16,     2,  "f16",        2,  "yyyyyy-----"},
    {DTYPE_BF16,    3,  "bf16",       2,  "yyyyyy-----"},
    {DTYPE_F8E4M3,  4,  "f8e4m3",     1,  "yyyyyy-----"},
    {DTYPE_F8E5M2,  5,  "f8e5m2",     1,  "yyyyyy-----"},
    {DTYPE_I64,     6,  "i64",        8,  "yyyyyyyyyyy"},
    {DTYPE_I32,     7,  "i32",        4,  "yyyyyyyyyyy"},
    {DTYPE_I16,     8,  "i16",        2,  "yyyyyyyyyyy"},
    {DTYPE_I8,      9,  "i8",         1,  "yyyyyyyyyyy"},
    {DTYPE_U64,     10, "u64",        8,  "yyyyyyyyyyy"},
    {DTYPE_U32,     11, "u32",        4,  "yyyyyyyyyyy"},
    {DTYPE_U16,     12, "u16",        2,  "yyyyyyyyyyy"},
    {DTYPE_U8,      13, "u8",         1,  "yyyyyyyyyyy"},
    {DTYPE_BOOL,    14, "bool",       1,  "yyyy--yyyyy"},
    {DTYPE_C64,     15, "complex64",  8,  "yy--yy-----"},
    {DTYPE_C128,    16, "complex128", 16, "yy--yy-----"},
    /* clang-format on */
};

static const struct {
    enum reduce reduce;
    const char *text;
} reduces[] = {
    {REDUCE_SUM, "sum"},   {REDUCE_PROD, "prod"}, {REDUCE_MIN, "min"},
    {REDUCE_MAX, "max"},   {REDUCE_AVG, "avg"},   {REDUCE_PREMUL_SUM, "premul_sum"},
    {REDUCE_BAND, "band"}, {REDUCE_BOR, "bor"},   {REDUCE_BXOR, "bxor"},
    {REDUCE_LAND, "land"}, {REDUCE_LOR, "lor"},
};

static const struct {
    enum op_kind kind;
    const char *text;
} op_kinds[] = {
    {OP_KIND_ALL_REDUCE, "all_reduce"},
    {OP_KIND_BROADCAST, "broadcast"},
    {OP_KIND_BARRIER, "barrier"},
    {OP_KIND_REDUCE, "reduce"},
    {OP_KIND_ALL_GATHER, "all_gather"},
    {OP_KIND_REDUCE_SCATTER, "reduce_scatter"},
    {OP_KIND_GATHER, "gather"},
    {OP_KIND_SCATTER, "scatter"},
    {OP_KIND_ALL_TO_ALL, "all_to_all"},
    {OP_KIND_SCAN, "scan"},
    {OP_KIND_EXCLUSIVE_SCAN, "exclusive_scan"},
    {OP_KIND_SEND, "send"},
    {OP_KIND_RECEIVE, "recv"},
};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static const unsigned far_numbers[] = {255, 256, 0x7fffffffu, 0x80000000u, 0xffffffffu};

static void test_dtypes(void **state)
{
    (void)state;
    assert_int_equal(COUNT_OF(dtypes), DTYPE_COUNT);
    size_t size_max_bytes = 0;
    for (unsigned i = 0; i < COUNT_OF(dtypes); i++) {
        enum dtype dtype = (enum dtype)((i + 1) % DTYPE_COUNT);
        assert_int_equal(dtypes[i].number, i);
        assert_int_equal(dtypes[i].dtype, i);
        assert_string_equal(dtype_text(dtypes[i].dtype), dtypes[i].text);
        assert_int_equal(dtype_size_bytes(dtypes[i].dtype), dtypes[i].size_bytes);
        assert_true(dtype_from_wire(i, &dtype));
        assert_int_equal(dtype, i);
        size_max_bytes = dtypes[i].size_bytes > size_max_bytes ? dtypes[i].size_bytes : size_max_bytes;
    }
    assert_int_equal(size_max_bytes, DTYPE_SIZE_MAX_BYTES);
    enum dtype untouched = DTYPE_I16;
    assert_false(dtype_from_wire(DTYPE_COUNT, &untouched));
    assert_string_equal(dtype_text((enum dtype)DTYPE_COUNT), "unknown");
    for (size_t i = 0; i < COUNT_OF(far_numbers); i++) {
        assert_false(dtype_from_wire(far_numbers[i], &untouched));
        assert_string_equal(dtype_text((enum dtype)(far_numbers[i] | 0x80)), "unknown");
    }
    assert_int_equal(untouched, DTYPE_I16);
}

static void test_reduces(void **state)
{
    (void)state;
    assert_int_equal(COUNT_OF(reduces), REDUCE_COUNT);
    for (unsigned i = 0; i < COUNT_OF(reduces); i++) {
        enum reduce reduce = (enum reduce)((i + 1) % REDUCE_COUNT);
        assert_int_equal(reduces[i].reduce, i);
        assert_string_equal(reduce_text(reduces[i].reduce), reduces[i].text);
        assert_true(reduce_from_wire(i, &reduce));
        assert_int_equal(reduce, i);
    }
    enum reduce untouched = REDUCE_BXOR;
    assert_false(reduce_from_wire(REDUCE_COUNT, &untouched));
    assert_string_equal(reduce_text((enum reduce)REDUCE_COUNT), "unknown");
    for (size_t i = 0; i < COUNT_OF(far_numbers); i++) {
        assert_false(reduce_from_wire(far_numbers[i], &untouched));
        assert_string_equal(reduce_text((enum reduce)(far_numbers[i] | 0x80)), "unknown");
    }
    assert_int_equal(untouched, REDUCE_BXOR);
}

static void test_op_kinds(void **state)
{
    (void)state;
    assert_int_equal(COUNT_OF(op_kinds), OP_KIND_COUNT);
    for (unsigned i = 0; i < COUNT_OF(op_kinds); i++) {
        enum op_kind kind = (enum op_kind)((i + 1) % OP_KIND_COUNT);
        assert_int_equal(op_kinds[i].kind, i);
        assert_string_equal(op_kind_text(op_kinds[i].kind), op_kinds[i].text);
        assert_true(op_kind_from_wire(i, &kind));
        assert_int_equal(kind, i);
    }
    enum op_kind untouched = OP_KIND_BROADCAST;
    assert_false(op_kind_from_wire(OP_KIND_COUNT, &untouched));
    assert_string_equal(op_kind_text((enum op_kind)OP_KIND_COUNT), "unknown");
    for (size_t i = 0; i < COUNT_OF(far_numbers); i++) {
        assert_false(op_kind_from_wire(far_numbers[i], &untouched));
        assert_string_equal(op_kind_text((enum op_kind)(far_numbers[i] | 0x80)), "unknown");
    }
    assert_int_equal(untouched, OP_KIND_BROADCAST);
}

static void test_what_kinds_have(void **state)
{
    (void)state;
    for (unsigned i = 0; i < OP_KIND_COUNT; i++) {
        enum op_kind kind = (enum op_kind)i;
        const char *text = op_kind_text(kind);
        assert_int_equal(op_kind_reduces(kind),
                         strstr(text, "reduce") != NULL || strstr(text, "scan") != NULL);
        assert_int_equal(op_kind_has_root(kind),
                         strcmp(text, "broadcast") == 0 || strcmp(text, "reduce") == 0 ||
                             strcmp(text, "gather") == 0 || strcmp(text, "scatter") == 0);
        assert_int_equal(op_kind_has_blocks(kind), strstr(text, "gather") != NULL ||
                                                       strstr(text, "scatter") != NULL ||
                                                       strcmp(text, "all_to_all") == 0);
        assert_int_equal(op_kind_is_message(kind), kind == OP_KIND_SEND || kind == OP_KIND_RECEIVE);
    }
    enum compression compression = COMPRESSION_NONE;
    assert_true(compression_from_wire(COMPRESSION_TOP_K, &compression));
    assert_string_equal(compression_text(compression), "top_k");
    assert_false(compression_from_wire(COMPRESSION_COUNT, &compression));
    assert_int_equal(compression, COMPRESSION_TOP_K);
}

/* Who reads and who writes, and what: R the root alone, o the others alone, a all ranks. Then whether a
 * rank's input and output have a block for each rank, and whether ranks have counts of their own. */
static void test_who_reads_and_writes(void **state)
{
    static const char *const expected[] = {
        [OP_KIND_ALL_REDUCE] = "aa...",     [OP_KIND_BROADCAST] = "Ro...",
        [OP_KIND_BARRIER] = ".....",        [OP_KIND_REDUCE] = "aR...",
        [OP_KIND_ALL_GATHER] = "aa.b.",     [OP_KIND_REDUCE_SCATTER] = "aab..",
        [OP_KIND_GATHER] = "aR.bp",         [OP_KIND_SCATTER] = "Rab.p",
        [OP_KIND_ALL_TO_ALL] = "aabbp",     [OP_KIND_SCAN] = "aa...",
        [OP_KIND_EXCLUSIVE_SCAN] = "aa...", [OP_KIND_SEND] = "a....",
        [OP_KIND_RECEIVE] = ".a...",
    };
    (void)state;
    assert_int_equal(COUNT_OF(expected), OP_KIND_COUNT);
    for (unsigned i = 0; i < OP_KIND_COUNT; i++) {
        enum op_kind kind = (enum op_kind)i;
        static const char who[2][2] = {{'.', 'R'}, {'o', 'a'}};
        char found[] = {who[op_kind_reads(kind, false)][op_kind_reads(kind, true)],
                        who[op_kind_writes(kind, false)][op_kind_writes(kind, true)],
                        op_kind_has_input_blocks(kind) ? 'b' : '.',
                        op_kind_has_output_blocks(kind) ? 'b' : '.',
                        op_kind_has_private_counts(kind) ? 'p' : '.',
                        '\0'};
        assert_string_equal(found, expected[i]);
        assert_int_equal(op_kind_is_scan(kind), strstr(op_kind_text(kind), "scan") != NULL);
    }
}

static void test_which_reductions_are_defined(void **state)
{
    (void)state;
    for (unsigned d = 0; d < DTYPE_COUNT; d++) {
        assert_int_equal(strlen(dtypes[d].defined), REDUCE_COUNT);
        for (unsigned r = 0; r < REDUCE_COUNT; r++) {
            bool expected = dtypes[d].defined[r] == 'y';
            if (reduce_is_defined((enum dtype)d, (enum reduce)r) != expected) {
                fail_msg("%s of %s: expected %s", reduces[r].text, dtypes[d].text,
                         expected ? "a meaning" : "none");
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_reduces),
        cmocka_unit_test(test_op_kinds),
        cmocka_unit_test(test_what_kinds_have),
        cmocka_unit_test(test_who_reads_and_writes),
        cmocka_unit_test(test_which_reductions_are_defined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
