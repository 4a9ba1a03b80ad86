#include "tests/unit/cuda_double/case.h"

#include "kernels/kernels.h"

static cuda_module module;

static void begin(void)
{
    case_load();
    case_context(0);
    OK(cuda->module_load(&module, "any image will do"));
}

static cuda_function function(const char *name)
{
    cuda_function found;
    OK(cuda->module_function(&found, module, name));
    return found;
}

static cuda_result launch(cuda_function kernel, void *arguments, cuda_stream stream)
{
    void *parameters[] = {arguments};
    return cuda->launch(kernel, 4, 1, 1, KERNELS_BLOCK_THREADS, 1, 1, 0, stream, parameters, NULL);
}

static void names(int unused)
{
    (void)unused;
    cuda_function found;
    begin();
    static const char *const known[] = {"commd_reduce_f32_sum",       "commd_reduce_bf16_max_many",
                                        "commd_reduce_complex64_sum", "commd_reduce_bool_land",
                                        "commd_reduce_i64_bxor_many", "commd_copy"};
    static const char *const unknown[] = {"commd_reduce_f32_avg",  "commd_reduce_f32_premul_sum",
                                          "commd_reduce_f32_band", "commd_reduce_complex64_max",
                                          "commd_copy_many",       "commd_reduce_f32_sum_"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        OK(cuda->module_function(&found, module, known[i]));
    }
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        CHECK_RESULT(cuda->module_function(&found, module, unknown[i]), CUDA_RESULT_NOT_FOUND);
    }
    OK(cuda->module_unload(module));
    CHECK_RESULT(cuda->module_function(&found, module, known[0]), CUDA_RESULT_INVALID_HANDLE);
    CHECK_RESULT(cuda->module_unload(module), CUDA_RESULT_INVALID_HANDLE);
}
CASE(names)

static void limits(int unused)
{
    (void)unused;
    struct kernels_copy copies = {.count = 0};
    void *parameters[] = {&copies};
    begin();
    cuda_function copy = function(KERNELS_COPY);
    static const struct {
        unsigned grid[3];
        unsigned block[3];
        cuda_result result;
    } shapes[] = {
        {{1, 1, 1}, {1024, 1, 1}, CUDA_RESULT_OK},
        {{0x7fffffff, 65535, 65535}, {32, 8, 4}, CUDA_RESULT_OK},
        {{1, 1, 1}, {1025, 1, 1}, CUDA_RESULT_INVALID_VALUE},
        {{1, 1, 1}, {512, 3, 1}, CUDA_RESULT_INVALID_VALUE},
        {{1, 1, 1}, {1, 1, 65}, CUDA_RESULT_INVALID_VALUE},
        {{0, 1, 1}, {1, 1, 1}, CUDA_RESULT_INVALID_VALUE},
        {{1, 1, 1}, {1, 0, 1}, CUDA_RESULT_INVALID_VALUE},
        {{0x80000000u, 1, 1}, {1, 1, 1}, CUDA_RESULT_INVALID_VALUE},
        {{1, 65536, 1}, {1, 1, 1}, CUDA_RESULT_INVALID_VALUE},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        CHECK_RESULT(cuda->launch(copy, shapes[i].grid[0], shapes[i].grid[1], shapes[i].grid[2],
                                  shapes[i].block[0], shapes[i].block[1], shapes[i].block[2], 0, NULL,
                                  parameters, NULL),
                     shapes[i].result);
    }
    case_context(1); /* the function is another context's */
    CHECK_RESULT(launch(copy, &copies, NULL), CUDA_RESULT_INVALID_HANDLE);
}
CASE(limits)

/* Reduces three inputs, of which one is an output as well. */
static void reduces(int unused)
{
    (void)unused;
    float numbers[3][100];
    float back[100];
    begin();
    cuda_stream stream = case_stream();
    cuda_pointer memory[4];
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 100; i++) {
            numbers[k][i] = (float)(i + k * 1000);
        }
        memory[k] = case_alloc(sizeof numbers[k]);
        OK(cuda->copy_from_host(memory[k], numbers[k], sizeof numbers[k], stream));
    }
    memory[3] = case_alloc(sizeof back);
    struct kernels_reduce_few few = {
        .count_elements = 100, .input_count = 3, .output_count = 2, .divisor = 3};
    struct kernels_reduce_many many = {
        .count_elements = 100, .input_count = 3, .output_count = 1, .has_factors = 1};
    for (int k = 0; k < 3; k++) {
        few.inputs[k] = many.inputs[k] = (const void *)(uintptr_t)memory[k];
        many.factors[k] = k;
    }
    few.outputs[0] = (void *)(uintptr_t)memory[0];
    few.outputs[1] = (void *)(uintptr_t)memory[3];
    OK(launch(function("commd_reduce_f32_sum"), &few, stream));
    memset(&few, 0, sizeof few); /* was copied */
    OK(cuda->copy_to_host(back, memory[3], sizeof back, stream));
    for (int i = 0; i < 100; i++) {
        CHECK(back[i] == (numbers[0][i] + numbers[1][i] + numbers[2][i]) / 3);
    }
    OK(cuda->copy_to_host(back, memory[0], sizeof back, stream));
    CHECK(back[99] == 1099);
    many.outputs[0] = (void *)(uintptr_t)memory[3];
    OK(launch(function("commd_reduce_f32_sum_many"), &many, stream));
    OK(cuda->copy_to_host(back, memory[3], sizeof back, stream));
    for (int i = 0; i < 100; i++) {
        CHECK(back[i] == numbers[1][i] + 2 * numbers[2][i]);
    }
}
CASE(reduces)

static void copies_many(int unused)
{
    (void)unused;
    struct kernels_copy copies = {.count = 3};
    begin();
    cuda_pointer from = case_alloc(100);
    cuda_pointer to = case_alloc(100);
    OK(cuda->set_bytes(from, 1, 50, NULL));
    OK(cuda->set_bytes(from + 50, 2, 50, NULL));
    for (int i = 0; i < 2; i++) {
        copies.copies[i].source = (const void *)(uintptr_t)(from + 50 * (cuda_pointer)i);
        copies.copies[i].target = (void *)(uintptr_t)(to + 50 - 50 * (cuda_pointer)i);
        copies.copies[i].bytes = 50;
    }
    copies.copies[2].source = copies.copies[2].target = (void *)(uintptr_t)from;
    copies.copies[2].bytes = 100;
    OK(launch(function(KERNELS_COPY), &copies, NULL));
    CHECK(case_byte(to) == 2 && case_byte(to + 49) == 2 && case_byte(to + 50) == 1);
}
CASE(copies_many)

/* What each of these faults does to its context. Each runs in a process of its own, because a broken context
 * stays broken. */
static void fault(cuda_pointer in, cuda_pointer out, uint32_t inputs, cuda_result expected)
{
    struct kernels_reduce_few few = {.count_elements = 16, .input_count = inputs, .output_count = 1};
    few.inputs[0] = (const void *)(uintptr_t)in;
    few.outputs[0] = (void *)(uintptr_t)out;
    OK(launch(function("commd_reduce_f32_sum"), &few, NULL));
    CHECK_RESULT(cuda->stream_synchronize(NULL), expected);
    CHECK_RESULT(cuda->stream_query(NULL), expected);
}

static void misaligned(int unused)
{
    (void)unused;
    begin();
    fault(case_alloc(256) + 2, case_alloc(64), 1, CUDA_RESULT_MISALIGNED_ADDRESS);
}
CASE(misaligned)

static void outside(int unused)
{
    (void)unused;
    begin();
    fault(case_alloc(64), case_alloc(63), 1, CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(outside)

static void pageable(int unused)
{
    (void)unused;
    static float host[16];
    begin();
    fault((cuda_pointer)(uintptr_t)host, case_alloc(64), 1, CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(pageable)

static void overlapping(int unused)
{
    (void)unused;
    begin();
    cuda_pointer memory = case_alloc(256);
    fault(memory, memory + 4, 1, CUDA_RESULT_LAUNCH_FAILED);
}
CASE(overlapping)

static void too_many(int unused)
{
    (void)unused;
    begin();
    fault(case_alloc(64), case_alloc(64), KERNELS_FEW + 1, CUDA_RESULT_LAUNCH_FAILED);
}
CASE(too_many)

static void another_device(int unused)
{
    (void)unused;
    begin();
    cuda_pointer here = case_alloc(64);
    case_context(1);
    cuda_pointer there = case_alloc(64);
    case_context(0);
    fault(here, there, 1, CUDA_RESULT_ILLEGAL_ADDRESS);
    case_context(1); /* is sound */
    CHECK(case_byte(there) == 0xff);
}
CASE(another_device)

/* Encodes 16 elements, of which the GPU keeps what others decode, and adds them to others. */
static void codes(int unused)
{
    (void)unused;
    float numbers[16], back[16];
    begin();
    cuda_pointer values = case_alloc(64), sums = case_alloc(64), encoded = case_alloc(64);
    for (int i = 0; i < 16; i++) {
        numbers[i] = 1.0f + (float)i * 0x1p-9f; /* bf16 has 7 bits behind the point */
    }
    OK(cuda->copy_from_host(values, numbers, sizeof numbers, NULL));
    OK(cuda->copy_from_host(sums, numbers, sizeof numbers, NULL));
    struct kernels_code code = {.part_count = 1, .replaces = 1, .adds = 1};
    code.parts[0].values = (float *)(uintptr_t)values;
    code.parts[0].encoded = (unsigned char *)(uintptr_t)encoded;
    code.parts[0].count_elements = 16;
    OK(launch(function("commd_encode_bf16"), &code, NULL));
    code.parts[0].values = (float *)(uintptr_t)sums;
    OK(launch(function("commd_decode_bf16"), &code, NULL));
    OK(cuda->copy_to_host(back, values, sizeof back, NULL));
    CHECK(back[1] == 1 && back[4] == 1 + 0x1p-7f && back[15] == 1 + 4 * 0x1p-7f);
    OK(cuda->copy_to_host(back, sums, sizeof back, NULL));
    CHECK(back[1] == numbers[1] + 1 && back[15] == numbers[15] + 1 + 4 * 0x1p-7f);
    CHECK(case_byte(encoded + 32) == 0xff);
}
CASE(codes)

static void code_fault(const char *name, cuda_pointer values, cuda_pointer residual, cuda_pointer encoded,
                       cuda_result expected)
{
    struct kernels_code code = {.part_count = 1};
    code.parts[0].values = (float *)(uintptr_t)values;
    code.parts[0].residual = (float *)(uintptr_t)residual;
    code.parts[0].encoded = (unsigned char *)(uintptr_t)encoded;
    code.parts[0].count_elements = 16;
    OK(launch(function(name), &code, NULL));
    CHECK_RESULT(cuda->stream_synchronize(NULL), expected);
}

static void code_outside(int unused)
{
    (void)unused;
    begin();
    code_fault("commd_encode_bf16", case_alloc(64), 0, case_alloc(31), CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(code_outside)

static void code_misaligned(int unused)
{
    (void)unused;
    begin();
    code_fault("commd_encode_f8", case_alloc(64), 0, case_alloc(64) + 8, CUDA_RESULT_MISALIGNED_ADDRESS);
}
CASE(code_misaligned)

static void code_residual_is_values(int unused)
{
    (void)unused;
    begin();
    cuda_pointer values = case_alloc(64);
    code_fault("commd_encode_bf16", values, values, case_alloc(64), CUDA_RESULT_LAUNCH_FAILED);
}
CASE(code_residual_is_values)

/* The scale of a block of f8 is a power of two; the double's memory is poisoned. */
static void code_malformed(int unused)
{
    (void)unused;
    begin();
    code_fault("commd_decode_f8", case_alloc(64), 0, case_alloc(64), CUDA_RESULT_LAUNCH_FAILED);
}
CASE(code_malformed)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),           cmocka_unit_test(test_limits),
        cmocka_unit_test(test_reduces),         cmocka_unit_test(test_copies_many),
        cmocka_unit_test(test_misaligned),      cmocka_unit_test(test_outside),
        cmocka_unit_test(test_pageable),        cmocka_unit_test(test_overlapping),
        cmocka_unit_test(test_too_many),        cmocka_unit_test(test_another_device),
        cmocka_unit_test(test_codes),           cmocka_unit_test(test_code_outside),
        cmocka_unit_test(test_code_misaligned), cmocka_unit_test(test_code_residual_is_values),
        cmocka_unit_test(test_code_malformed),
    };
    return cmocka_run_group_tests_name("cuda_double_launch", tests, NULL, NULL);
}
