#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/gpu/grid.h"
#include "kernels/kernels.h"
#include "tests/gpu/figures.h"
#include "tests/gpu/gpu_device.h"

/*
 * Measures how fast the kernels are on the first GPU, with k inputs and k outputs, in bytes read and written
 * a second. Compares them with the device's own copy, which shows what the memory allows. Also measures how
 * long small kernels take.
 *
 *   bench_kernels [MEBIBYTES [short]]
 *
 * MEBIBYTES is the size of each buffer, by default 256. short: measures only kernels that have a bar.
 *
 * Prints medians. Exit code 77: there is no GPU.
 */
#define BUFFERS 8u
#define LEAST_MEBIBYTES 4u /* large enough for the largest of the small ones */
#define RUNS 21
#define SMALL_RUNS 400
#define ROUNDS_AT_ONCE 100 /* this many small kernels run between two events */

struct bench {
    struct gpu gpu;
    cuda_event begin;
    cuda_event end;
    size_t bytes;
    cuda_pointer inputs[BUFFERS];
    cuda_pointer outputs[BUFFERS];
    double copy_rate; /* bytes a second */
};

static double elapsed_s(struct bench *bench)
{
    float milliseconds;
    GPU_MUST(&bench->gpu, event_record, bench->end, bench->gpu.stream);
    gpu_synchronize(&bench->gpu);
    GPU_MUST(&bench->gpu, event_elapsed, &milliseconds, bench->begin, bench->end);
    return (double)milliseconds / 1e3;
}

static void begin(struct bench *bench)
{
    GPU_MUST(&bench->gpu, event_record, bench->begin, bench->gpu.stream);
}

static double time_launches(struct bench *bench, cuda_function function, void *arguments, uint32_t blocks)
{
    double seconds[RUNS];
    for (int i = -3; i < RUNS; i++) {
        begin(bench);
        gpu_launch(&bench->gpu, function, arguments, blocks, KERNELS_BLOCK_THREADS);
        double took = elapsed_s(bench);
        if (i >= 0) {
            seconds[i] = took;
        }
    }
    return figures_median(seconds, RUNS);
}

static void bench_copy(struct bench *bench)
{
    const struct gpu *gpu = &bench->gpu;
    double seconds[RUNS];
    cuda_function function;
    for (int i = -3; i < RUNS; i++) {
        begin(bench);
        GPU_MUST(gpu, copy, bench->outputs[0], bench->inputs[0], bench->bytes, gpu->stream);
        double took = elapsed_s(bench);
        if (i >= 0) {
            seconds[i] = took;
        }
    }
    bench->copy_rate = 2 * (double)bench->bytes / figures_median(seconds, RUNS);
    printf("%-34s %8.0f GB/s\n", "the device's own copy", bench->copy_rate / 1e9);
    figures_print(bench->copy_rate / 1e9, "GB/s", "copy rate");
    struct kernels_copy arguments = {.count = 1};
    arguments.copies[0].source = (const void *)(uintptr_t)bench->inputs[0];
    arguments.copies[0].target = (void *)(uintptr_t)bench->outputs[0];
    arguments.copies[0].bytes = bench->bytes;
    for (uint32_t shift = 0; shift <= 4 && gpu_function(gpu, KERNELS_COPY, &function); shift += 4) {
        for (uint32_t each = 1; each <= 8; each *= 2) {
            double rate = 2 * (double)bench->bytes /
                          time_launches(bench, function, &arguments, gpu->multiprocessors * each);
            printf("commd_copy, %u bytes apart, %u blocks %9.0f GB/s %4.0f %%\n", shift, each, rate / 1e9,
                   100 * rate / bench->copy_rate);
        }
        arguments.copies[0].source = (const void *)(uintptr_t)(bench->inputs[0] + 4);
        arguments.copies[0].bytes = bench->bytes - 64;
    }
}

struct shape {
    const char *dtype;
    const char *reduce;
    uint32_t element_bytes;
    uint32_t buffers;
    /* shifts the last input from its place; the kernel then works element by element */
    uint32_t shift_elements;
    bool in_place;
    bool many;
    uint64_t divisor;
};

static double reduce_rate(struct bench *bench, const struct shape *shape, uint32_t blocks)
{
    static struct kernels_reduce_many many;
    struct kernels_reduce_few few = {0};
    char name[96];
    cuda_function function;
    snprintf(name, sizeof name, KERNELS_REDUCE_FORMAT, shape->dtype, shape->reduce,
             shape->many ? KERNELS_MANY : "");
    if (!gpu_function(&bench->gpu, name, &function)) {
        exit(1);
    }
    few.count_elements = bench->bytes / shape->element_bytes - shape->shift_elements;
    few.divisor = shape->divisor;
    few.input_count = few.output_count = shape->buffers;
    for (uint32_t k = 0; k < shape->buffers; k++) {
        uint64_t shift = k + 1 == shape->buffers ? shape->shift_elements * shape->element_bytes : 0;
        few.inputs[k] = (const void *)(uintptr_t)(bench->inputs[k] + shift);
        few.outputs[k] = (void *)(uintptr_t)(shape->in_place ? bench->inputs[k] + shift : bench->outputs[k]);
    }
    many.count_elements = few.count_elements;
    many.divisor = few.divisor;
    many.input_count = few.input_count;
    many.output_count = few.output_count;
    memcpy(many.inputs, few.inputs, sizeof few.inputs);
    memcpy(many.outputs, few.outputs, sizeof few.outputs);
    double seconds = time_launches(bench, function, shape->many ? (void *)&many : (void *)&few, blocks);
    return 2.0 * shape->buffers * (double)few.count_elements * shape->element_bytes / seconds;
}

static void bench_shape(struct bench *bench, const struct shape *shape)
{
    double best = 0, as_commd = 0;
    printf("%-10s %-5s k = %u%s%s%s%s:", shape->dtype, shape->reduce, shape->buffers,
           shape->divisor > 1 ? ", divided" : "", shape->in_place ? ", in place" : "",
           shape->many ? ", many" : "", shape->shift_elements != 0 ? ", unaligned" : "");
    _Static_assert(GRID_BLOCKS_A_MULTIPROCESSOR == 2, "one of those that are measured");
    for (uint32_t each = 1; each <= 8; each *= 2) {
        double rate = reduce_rate(bench, shape, bench->gpu.multiprocessors * each);
        printf(" %6.0f", rate / 1e9);
        best = rate > best ? rate : best;
        as_commd = each == GRID_BLOCKS_A_MULTIPROCESSOR ? rate : as_commd;
    }
    printf(" GB/s  %4.0f %% of the copy, %4.0f %% as commd launches it\n", 100 * best / bench->copy_rate,
           100 * as_commd / bench->copy_rate);
    if (!shape->in_place && !shape->many && shape->shift_elements == 0 && shape->divisor == 0) {
        figures_print(as_commd / 1e9, "GB/s", "kernel rate/%s/%s/%u", shape->dtype, shape->reduce,
                      shape->buffers);
    }
}

static void bench_rates(struct bench *bench)
{
    static const struct {
        const char *text;
        uint32_t bytes;
    } types[] = {{"f32", 4},    {"f16", 2},    {"bf16", 2}, {"f64", 8},
                 {"f8e4m3", 1}, {"f8e5m2", 1}, {"i32", 4},  {"u8", 1}};
    static const uint32_t counts[] = {2, 3, 4, 5, 8};
    static const struct shape others[] = {
        {"f32", "sum", 4, 8, 0, true, false, 0},          {"bf16", "sum", 2, 8, 0, true, false, 0},
        {"f32", "sum", 4, 8, 0, false, true, 0},          {"bf16", "sum", 2, 8, 0, false, true, 0},
        {"f32", "sum", 4, 4, 0, false, false, 4},         {"bf16", "sum", 2, 4, 0, false, false, 4},
        {"f32", "sum", 4, 4, 1, false, false, 0},         {"bf16", "sum", 2, 4, 1, false, false, 0},
        {"u8", "sum", 1, 4, 1, false, false, 0},          {"f32", "max", 4, 4, 0, false, false, 0},
        {"bf16", "max", 2, 4, 0, false, false, 0},        {"f8e4m3", "max", 1, 4, 0, false, false, 0},
        {"i32", "sum", 4, 4, 0, false, false, 4},         {"u8", "sum", 1, 4, 0, false, false, 4},
        {"bool", "lor", 1, 4, 0, false, false, 0},        {"complex64", "prod", 8, 4, 0, false, false, 0},
        {"complex128", "prod", 16, 4, 0, false, false, 0}};
    printf(
        "\nk inputs to k outputs of %zu MiB; with 1, 2, 4 and 8 blocks a multiprocessor; the best of them\n",
        bench->bytes >> 20);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            struct shape shape = {.dtype = types[t].text,
                                  .reduce = "sum",
                                  .element_bytes = types[t].bytes,
                                  .buffers = counts[c]};
            bench_shape(bench, &shape);
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        bench_shape(bench, &others[i]);
    }
}

static void bench_short(struct bench *bench)
{
    for (uint32_t k = 2; k <= BUFFERS; k *= 2) {
        bench_shape(bench,
                    &(struct shape){.dtype = "f32", .reduce = "sum", .element_bytes = 4, .buffers = k});
        bench_shape(bench,
                    &(struct shape){.dtype = "bf16", .reduce = "sum", .element_bytes = 2, .buffers = k});
    }
}

/* Measures a small kernel in two ways. Many in a row give the kernel's own time. A single one gives the time
 * from its launch until the host knows that it has ended. */
static void bench_small_one(struct bench *bench, const char *name, void *arguments, uint64_t bytes)
{
    cuda_function function;
    double kernel_s[SMALL_RUNS / 20], whole_s[SMALL_RUNS];
    uint32_t blocks = grid_blocks(bytes, (uint64_t)bench->gpu.multiprocessors * GRID_BLOCKS_A_MULTIPROCESSOR);
    if (!gpu_function(&bench->gpu, name, &function)) {
        exit(1);
    }
    for (int i = 0; i < SMALL_RUNS / 20; i++) {
        begin(bench);
        for (int j = 0; j < ROUNDS_AT_ONCE; j++) {
            gpu_launch(&bench->gpu, function, arguments, blocks, KERNELS_BLOCK_THREADS);
        }
        kernel_s[i] = elapsed_s(bench) / ROUNDS_AT_ONCE;
    }
    for (int i = 0; i < SMALL_RUNS; i++) {
        double started = figures_now_s();
        gpu_launch(&bench->gpu, function, arguments, blocks, KERNELS_BLOCK_THREADS);
        gpu_synchronize(&bench->gpu);
        whole_s[i] = figures_now_s() - started;
    }
    printf("%-28s %9llu bytes, %3u blocks: %6.2f us each in a row, %6.2f us alone with its launch\n", name,
           (unsigned long long)bytes, blocks, 1e6 * figures_median(kernel_s, SMALL_RUNS / 20),
           1e6 * figures_median(whole_s, SMALL_RUNS));
}

static void bench_small(struct bench *bench)
{
    static const uint64_t sizes[] = {8, 4096, 65536, 1u << 20, 4u << 20};
    static struct kernels_reduce_many many;
    printf("\nSmall ones, two inputs to two outputs\n");
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct kernels_reduce_few few = {.count_elements = sizes[s] / 4, .input_count = 2, .output_count = 2};
        struct kernels_copy copies = {.count = 2};
        for (uint32_t k = 0; k < 2; k++) {
            few.inputs[k] = many.inputs[k] = (const void *)(uintptr_t)bench->inputs[k];
            few.outputs[k] = many.outputs[k] = (void *)(uintptr_t)bench->outputs[k];
            copies.copies[k].source = few.inputs[k];
            copies.copies[k].target = few.outputs[k];
            copies.copies[k].bytes = sizes[s];
        }
        many.count_elements = few.count_elements;
        many.input_count = many.output_count = 2;
        bench_small_one(bench, "commd_reduce_f32_sum", &few, sizes[s]);
        bench_small_one(bench, "commd_reduce_f32_sum_many", &many, sizes[s]);
        bench_small_one(bench, KERNELS_COPY, &copies, sizes[s]);
    }
}

int main(int argc, char **argv)
{
    static struct bench bench;
    setvbuf(stdout, NULL, _IOLBF, 0);
    unsigned long mebibytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 256;
    bool is_short = argc == 3 && strcmp(argv[2], "short") == 0;
    if ((argc > 2 && !is_short) || mebibytes < LEAST_MEBIBYTES || mebibytes > 65536) {
        fprintf(stderr, "usage: bench_kernels [MEBIBYTES [short]], of 4 to 65536\n");
        return 2;
    }
    gpu_device_open(&bench.gpu);
    bench.bytes = (size_t)mebibytes << 20;
    GPU_MUST(&bench.gpu, event_create, &bench.begin, 0);
    GPU_MUST(&bench.gpu, event_create, &bench.end, 0);
    for (uint32_t k = 0; k < BUFFERS; k++) {
        bench.inputs[k] = gpu_alloc(&bench.gpu, bench.bytes);
        bench.outputs[k] = gpu_alloc(&bench.gpu, bench.bytes);
        gpu_fill(&bench.gpu, bench.inputs[k], bench.bytes, k + 1);
        gpu_fill(&bench.gpu, bench.outputs[k], bench.bytes, k + 100);
    }
    bench_copy(&bench);
    if (is_short) {
        bench_short(&bench);
    } else {
        bench_rates(&bench);
        bench_small(&bench);
    }
    return 0;
}
