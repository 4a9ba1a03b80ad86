#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/commctl/bench.h"

#define ARGUMENTS_MAX 16

/* What was written to standard error during the call. */
static char said[1024];

/* Splits the line at spaces, and takes it as options. */
static enum exit_code parse(const char *line, struct bench_options *options)
{
    static char words[512];
    char *arguments[ARGUMENTS_MAX + 2] = {(char *)"bench"};
    int count = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) {
        assert_true(count <= ARGUMENTS_MAX);
        arguments[count++] = word;
    }
    bench_options_default(options);
    int own = dup(STDERR_FILENO);
    int kept = memfd_create("said", MFD_CLOEXEC);
    assert_true(own >= 0 && kept >= 0);
    fflush(stderr);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    enum exit_code code = bench_options_parse(count, arguments, options);
    fflush(stderr);
    assert_true(dup2(own, STDERR_FILENO) >= 0);
    ssize_t size = pread(kept, said, sizeof said - 1, 0);
    assert_true(size >= 0);
    said[size] = '\0';
    close(own);
    close(kept);
    return code;
}

static void assert_parses(const char *line, struct bench_options *options)
{
    if (parse(line, options) != EXIT_CODE_OK || said[0] != '\0') {
        fail_msg("%s: %s", line, said);
    }
}

static void test_a_size(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {
        {"0", 0},
        {"1", 1},
        {"8", 8},
        {"4k", 4096},
        {"4K", 4096},
        {"1.5m", 1572864},
        {"256m", 268435456},
        {"256M", 268435456},
        {"2g", UINT64_C(2) << 30},
        {"1G", 1u << 30},
        {"0.5k", 512},
        {"1.9", 1},
        {"1048576k", 1u << 30},
        {"1073741824g", UINT64_C(1) << 60},
    };
    static const char *const wrong[] = {
        "",    "k",   "m8",  "8b",   "4kb",  "4kk",    "4 k",         "1t", "8,16", "8:256m", "-1",
        "-4k", "nan", "inf", "infg", "1e30", "1e300g", "1073741825g", "x",  ".",    "--",
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t bytes = 77;
        if (!size_parse(sizes[i].text, &bytes) || bytes != sizes[i].bytes) {
            fail_msg("%s: %llu", sizes[i].text, (unsigned long long)bytes);
        }
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint64_t bytes = 77;
        if (size_parse(wrong[i], &bytes) || bytes != 77) {
            fail_msg("\"%s\" was taken for %llu", wrong[i], (unsigned long long)bytes);
        }
    }
}

/* The sizes of a range, one after the other, as text. */
static void assert_sizes(const char *line, const char *expected)
{
    struct bench_options options;
    char text[1024];
    size_t length = 0;
    assert_parses(line, &options);
    text[0] = '\0';
    for (uint64_t bytes = options.min_bytes; bytes != 0; bytes = bench_next_size(&options, bytes)) {
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%llu", length > 0 ? " " : "",
                                   (unsigned long long)bytes);
        assert_true(length < sizeof text);
    }
    assert_string_equal(text, expected);
}

static void test_a_range_of_sizes(void **state)
{
    (void)state;
    assert_sizes("--min-bytes 8 --max-bytes 64", "8 16 32 64");
    assert_sizes("--min-bytes 8 --max-bytes 63", "8 16 32");
    assert_sizes("--min-bytes 3 --max-bytes 700k --step-factor 61", "3 183 11163 680943");
    assert_sizes("--min-bytes 1k --max-bytes 1k", "1024");
    assert_sizes("--min-bytes 1 --max-bytes 1g --step-factor 1024", "1 1024 1048576 1073741824");
    /* No size is beyond the end, even if the next one would be beyond 64 bits. */
    assert_sizes("--min-bytes 536870912g --max-bytes 1073741824g --step-factor 1024", "576460752303423488");
    assert_sizes("--max-bytes 256m --step-factor 32", "8 256 8192 262144 8388608 268435456");
    struct bench_options options = {.min_bytes = 1, .max_bytes = UINT64_MAX, .step_factor = 1024};
    assert_true(bench_next_size(&options, UINT64_C(1) << 50) == UINT64_C(1) << 60);
    assert_true(bench_next_size(&options, UINT64_C(1) << 54) == 0);
}

static void test_without_options(void **state)
{
    (void)state;
    struct bench_options options;
    assert_parses("", &options);
    assert_int_equal(options.ranks, 2);
    assert_int_equal(options.size, 2);
    assert_int_equal(options.first_rank, 0);
    assert_string_equal(options.operations, "all_reduce");
    assert_int_equal(options.dtype, DTYPE_F32);
    assert_int_equal(options.reduce, REDUCE_SUM);
    assert_true(options.min_bytes == 8 && options.max_bytes == 256u << 20 && options.step_factor == 2);
    assert_true(options.in_place && options.out_of_place && options.registered && options.check);
    assert_int_equal(options.iterations, 0);
}

static void test_all_options(void **state)
{
    (void)state;
    struct bench_options options;
    assert_parses("--size 9 --first-rank 3 --ranks 4 --operation all_gather,barrier --dtype i16 --reduce max "
                  "--root 8",
                  &options);
    assert_int_equal(options.size, 9);
    assert_int_equal(options.first_rank, 3);
    assert_int_equal(options.ranks, 4);
    assert_string_equal(options.operations, "all_gather,barrier");
    assert_int_equal(options.dtype, DTYPE_I16);
    assert_int_equal(options.reduce, REDUCE_MAX);
    assert_int_equal(options.root, 8);
    assert_parses(
        "--communicator mine --seconds-per-size 0.5 --iterations 1000000000 --in-place --unregistered "
        "--no-check -f json",
        &options);
    assert_string_equal(options.communicator, "mine");
    assert_true(options.seconds_per_size == 0.5);
    assert_int_equal(options.iterations, 1000000000);
    assert_true(options.in_place && !options.out_of_place);
    assert_true(!options.registered && !options.check && options.json);
    assert_parses("--out-of-place --format text", &options);
    assert_true(!options.in_place && options.out_of_place && !options.json);
}

static void test_every_type(void **state)
{
    (void)state;
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        struct bench_options options;
        char line[64];
        snprintf(line, sizeof line, "--size 5000 --dtype %s", dtype_text((enum dtype)dtype));
        assert_parses(line, &options);
        assert_int_equal(options.dtype, dtype);
    }
}

static void test_ranks_and_size(void **state)
{
    (void)state;
    struct bench_options options;
    assert_parses("--size 6", &options); /* all of them here */
    assert_int_equal(options.ranks, 6);
    assert_parses("--size 1000", &options); /* as many as may be */
    assert_int_equal(options.ranks, BENCH_RANKS_MAX);
    assert_int_equal(options.size, 1000);
    assert_parses("--ranks 5", &options);
    assert_int_equal(options.size, 5);
    assert_parses("--first-rank 4 --ranks 3", &options);
    assert_int_equal(options.size, 7);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        const char *says;
    } wrong[] = {
        {"--min-bytes 0", "min-bytes 0: expected a size"},
        {"--max-bytes 0", "max-bytes 0: expected a size"},
        {"--min-bytes eight", "min-bytes eight: expected a size"},
        {"--max-bytes 2t", "max-bytes 2t: expected a size"},
        {"--max-bytes 1e30", "max-bytes 1e30: expected a size"},
        {"--min-bytes -8", "min-bytes -8: expected a size"},
        {"--min-bytes 2k --max-bytes 1k", "expected at most --max-bytes"},
        {"--min-bytes 1g", "expected at most --max-bytes"},
        {"--step-factor 1", "step-factor 1: expected 2 to 1024"},
        {"--step-factor 1025", "expected 2 to 1024"},
        {"--step-factor 18446744073709551618", "expected 2 to 1024"},
        {"--step-factor 2x", "expected 2 to 1024"},
        {"--ranks 0", "1 to 256"},
        {"--ranks 257", "1 to 256"},
        {"--ranks +2", "1 to 256"},
        {"--size 0", "1 to 65536"},
        {"--size 65537", "1 to 65536"},
        {"--size 4294967298", "1 to 65536"},
        {"--size 3 --first-rank 2 --ranks 2", "expected ranks below --size"},
        {"--first-rank -1", "expected a rank"},
        {"--root 2", "expected a rank below --size"},
        {"--operation dance", "expected all, or some of"},
        {"--operation all_reduce,dance", "expected all, or some of"},
        {"--operation all_reduce,,barrier", "expected all, or some of"},
        {"--operation all,barrier", "expected all, or some of"},
        {"--dtype f8", "dtype f8: expected f64, f32"},
        {"--dtype F32", "dtype F32: expected f64, f32"},
        {"--dtype complex64 --reduce max", "reduce: expected sum"},
        {"--dtype complex128 --reduce min", "reduce: expected sum"},
        {"--reduce avg", "expected sum, min or max"},
        {"--reduce Sum", "expected sum, min or max"},
        {"--iterations 0", "1 to 1000000000"},
        {"--iterations 1000000001", "1 to 1000000000"},
        {"--seconds-per-size nan", "seconds, 0 to 3600"},
        {"--seconds-per-size -1", "seconds, 0 to 3600"},
        {"--seconds-per-size 1s", "seconds, 0 to 3600"},
        {"--in-place --out-of-place", "one of them, or none for both"},
        {"-f xml", "text or json"},
        {"nonsense", "no argument without an option"},
        {"--nonsense", "nonsense"},
        {"--min-bytes", "min-bytes"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct bench_options options;
        enum exit_code code = parse(wrong[i].line, &options);
        if (code != EXIT_CODE_USAGE || strstr(said, wrong[i].says) == NULL) {
            fail_msg("%s: %d: %s", wrong[i].line, (int)code, said);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_size),          cmocka_unit_test(test_a_range_of_sizes),
        cmocka_unit_test(test_without_options), cmocka_unit_test(test_all_options),
        cmocka_unit_test(test_every_type),      cmocka_unit_test(test_ranks_and_size),
        cmocka_unit_test(test_what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
