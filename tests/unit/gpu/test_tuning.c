#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/gpu/tuning_file.h"

/* The table of what was measured among GPUs: its text, what becomes of a text that is wrong, and what the
 * table predicts. */

static void make_machine(struct gpu_tuning_machine *machine)
{
    memset(machine, 0, sizeof *machine);
    machine->gpu_count = 3;
    snprintf(machine->versions, sizeof machine->versions, "commd 0.1, CUDA 13.0");
    for (uint32_t gpu = 0; gpu < 3; gpu++) {
        snprintf(machine->gpus[gpu], sizeof machine->gpus[gpu], "GPU %u", gpu);
        for (uint32_t other = 0; other < 3; other++) {
            machine->reaches[gpu][other] = gpu == other || gpu + other == 1;
        }
    }
}

static const struct gpu_tuning_set some[] = {
    {.gpu_count = 2,
     .gpus = {0, 1},
     .row_count = 3,
     .rows = {{OP_KIND_ALL_REDUCE, 4096, 20, 10},
              {OP_KIND_ALL_REDUCE, 8192, 30, 40},
              {OP_KIND_GATHER, 1, 7, 9}}},
    {.gpu_count = 3, .gpus = {0, 1, 2}, .row_count = 1, .rows = {{OP_KIND_SCATTER, 1u << 20, 1, 1}}},
};

static enum status parse(const char *text, const struct gpu_tuning_machine *machine,
                         struct gpu_tuning_set *sets, uint32_t *count, uint32_t *foreign, struct error *error)
{
    size_t size = strlen(text);
    char *copy = malloc(size + 1); /* AddressSanitizer sees what is read behind it */
    assert_non_null(copy);
    memcpy(copy, text, size + 1);
    enum status status = gpu_tuning_file_parse(copy, size, machine, sets, count, foreign, error);
    free(copy);
    return status;
}

static void test_written_and_read(void **state)
{
    (void)state;
    struct gpu_tuning_machine machine;
    static struct gpu_tuning_set sets[GPU_TUNING_SETS_MAX];
    uint32_t count, foreign;
    make_machine(&machine);
    char *text = gpu_tuning_file_text(&machine, some, 2);
    assert_non_null(text);
    assert_int_equal(parse(text, &machine, sets, &count, &foreign, NULL), STATUS_OK);
    assert_int_equal(count, 2);
    assert_int_equal(foreign, 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(sets[i].gpu_count, some[i].gpu_count);
        assert_memory_equal(sets[i].gpus, some[i].gpus, some[i].gpu_count * sizeof sets[i].gpus[0]);
        assert_int_equal(sets[i].row_count, some[i].row_count);
        for (uint32_t row = 0; row < some[i].row_count; row++) {
            assert_int_equal(sets[i].rows[row].kind, some[i].rows[row].kind);
            assert_int_equal(sets[i].rows[row].bytes, some[i].rows[row].bytes);
            assert_int_equal(sets[i].rows[row].nccl_ns, some[i].rows[row].nccl_ns);
            assert_int_equal(sets[i].rows[row].without_ns, some[i].rows[row].without_ns);
        }
    }
    free(text);
}

/* A table of another machine is no error, and is not used. */
static void test_another_machine(void **state)
{
    (void)state;
    struct gpu_tuning_machine machine, other;
    static struct gpu_tuning_set sets[GPU_TUNING_SETS_MAX];
    uint32_t count, foreign;
    make_machine(&machine);
    char *text = gpu_tuning_file_text(&machine, some, 2);
    assert_non_null(text);
    other = machine;
    other.versions[0] = 'C';
    assert_int_equal(parse(text, &other, sets, &count, &foreign, NULL), STATUS_OK);
    assert_int_equal(count, 0);
    assert_int_equal(foreign, 2);
    other = machine;
    other.gpus[2][0] = 'g'; /* the first set does not contain it */
    assert_int_equal(parse(text, &other, sets, &count, &foreign, NULL), STATUS_OK);
    assert_int_equal(count, 1);
    assert_int_equal(foreign, 1);
    other = machine;
    other.reaches[0][1] = false;
    assert_int_equal(parse(text, &other, sets, &count, &foreign, NULL), STATUS_OK);
    assert_int_equal(count, 0);
    free(text);
}

/* Every beginning of the text, and every text with one byte changed: refused with a line, or read. */
static void test_broken(void **state)
{
    (void)state;
    struct gpu_tuning_machine machine;
    static struct gpu_tuning_set sets[GPU_TUNING_SETS_MAX];
    static const char bytes[] = {'\0', ' ', '"', '\\', '[', ']', '{', '}', ',', ':', '9', '-', (char)0xff};
    uint32_t count, foreign, refused = 0;
    make_machine(&machine);
    char *text = gpu_tuning_file_text(&machine, some, 2);
    assert_non_null(text);
    size_t size = strlen(text);
    for (size_t end = 0; end + 2 < size; end++) {
        struct error error;
        char *copy = strndup(text, end);
        assert_int_equal(parse(copy, &machine, sets, &count, &foreign, &error), STATUS_INVALID_ARGUMENT);
        assert_int_equal(count, 0);
        assert_non_null(strstr(error.text, "line "));
        assert_non_null(strstr(error.text, "expected "));
        free(copy);
    }
    for (size_t at = 0; at < size; at++) {
        for (size_t i = 0; i < sizeof bytes; i++) {
            char before = text[at];
            text[at] = bytes[i];
            enum status status = gpu_tuning_file_parse(text, size, &machine, sets, &count, &foreign, NULL);
            assert_true(status == STATUS_OK || status == STATUS_INVALID_ARGUMENT);
            assert_true(count <= 2);
            refused += status != STATUS_OK;
            text[at] = before;
        }
    }
    assert_true(refused > size);
    free(text);
}

static void test_wrong_values(void **state)
{
    (void)state;
    static const struct {
        const char *rows, *expected;
    } cases[] = {
        {"{\"kind\": \"all_reduce\", \"bytes\": 0, \"nccl_ns\": 1, \"without_ns\": 1}", "at least 1"},
        {"{\"kind\": \"all_reduce\", \"bytes\": -1, \"nccl_ns\": 1, \"without_ns\": 1}", "at least 1"},
        {"{\"kind\": \"all_reduce\", \"bytes\": 1, \"nccl_ns\": 1000000000001, \"without_ns\": 1}",
         "smaller"},
        {"{\"kind\": \"all_reduce\", \"bytes\": 99999999999999999999, \"nccl_ns\": 1, \"without_ns\": 1}",
         "smaller"},
        {"{\"kind\": \"sort\", \"bytes\": 1, \"nccl_ns\": 1, \"without_ns\": 1}", "the name of an operation"},
        {"{\"kind\": \"gather\", \"bytes\": 2, \"nccl_ns\": 1, \"without_ns\": 1}, {\"kind\": \"gather\", "
         "\"bytes\": 2, \"nccl_ns\": 1, \"without_ns\": 1}",
         "ascending sizes"},
        {"{\"bytes\": 1}", "\"kind\""},
        {"{\"kind\": \"gather\", \"bytes\": 2, \"nccl_ns\": 1, \"without_ns\": 1},", "\"{\""},
    };
    struct gpu_tuning_machine machine;
    static struct gpu_tuning_set sets[GPU_TUNING_SETS_MAX];
    uint32_t count, foreign;
    make_machine(&machine);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        struct error error;
        snprintf(
            text, sizeof text,
            "{\"format\": 1, \"versions\": \"v\",\n\"sets\": [{\"gpus\": [\"a\", \"b\"], \"reach\": \"\", "
            "\"rows\": [%s]}]}",
            cases[i].rows);
        assert_int_equal(parse(text, &machine, sets, &count, &foreign, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "line 2: "));
        assert_non_null(strstr(error.text, cases[i].expected));
    }
}

static void test_more_sets_than_there_is_room_for(void **state)
{
    (void)state;
    struct gpu_tuning_machine machine;
    static struct gpu_tuning_set many[GPU_TUNING_SETS_MAX + 1], sets[GPU_TUNING_SETS_MAX];
    uint32_t count, foreign;
    struct error error;
    make_machine(&machine);
    machine.gpu_count = GPU_DEVICES_MAX;
    for (uint32_t i = 0; i <= GPU_TUNING_SETS_MAX; i++) {
        snprintf(machine.gpus[i], sizeof machine.gpus[i], "GPU %u", i);
        many[i] = (struct gpu_tuning_set){
            .gpu_count = 2, .gpus = {0, i + 1}, .row_count = 1, .rows = {{OP_KIND_GATHER, 1, 1, 1}}};
    }
    snprintf(machine.gpus[GPU_TUNING_SETS_MAX + 1], sizeof machine.gpus[0], "the last");
    char *text = gpu_tuning_file_text(&machine, many, GPU_TUNING_SETS_MAX);
    assert_int_equal(parse(text, &machine, sets, &count, &foreign, &error), STATUS_OK);
    assert_int_equal(count, GPU_TUNING_SETS_MAX);
    free(text);
    text = gpu_tuning_file_text(&machine, many, GPU_TUNING_SETS_MAX + 1);
    assert_int_equal(parse(text, &machine, sets, &count, &foreign, &error), STATUS_INVALID_ARGUMENT);
    free(text);
}

static void test_predictions(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        double nccl_ns, without_ns;
    } cases[] = {{1, 20, 10}, {4096, 20, 10}, {6144, 25, 25}, {8192, 30, 40}, {16384, 50, 100}};
    double nccl_ns, without_ns;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_true(gpu_tuning_predict(&some[0], OP_KIND_ALL_REDUCE, cases[i].bytes, &nccl_ns, &without_ns));
        assert_true(nccl_ns == cases[i].nccl_ns && without_ns == cases[i].without_ns);
    }
    assert_true(gpu_tuning_predict(&some[0], OP_KIND_GATHER, 1u << 30, &nccl_ns, &without_ns));
    assert_true(nccl_ns == 7 && without_ns == 9);
    assert_false(gpu_tuning_predict(&some[0], OP_KIND_SCATTER, 1, &nccl_ns, &without_ns));
    assert_false(gpu_tuning_prefers_nccl(&some[0], OP_KIND_ALL_REDUCE, 4096, true));
    assert_true(gpu_tuning_prefers_nccl(&some[0], OP_KIND_ALL_REDUCE, 8192, false));
    assert_true(gpu_tuning_prefers_nccl(&some[0], OP_KIND_BROADCAST, 1, true));
    assert_false(gpu_tuning_prefers_nccl(&some[0], OP_KIND_BROADCAST, 1, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_and_read),
        cmocka_unit_test(test_another_machine),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_more_sets_than_there_is_room_for),
        cmocka_unit_test(test_predictions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
