#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/loop.h"
#include "daemon/host/copy.h"
#include "daemon/host/reduce.h"

/*
 * Measures the kernels of the local stage alone, on one thread: bench_reduce [--quick] [repeats].
 *
 * Prints one JSON object a line: the kernel, the bytes of one buffer, the nanoseconds for it, and GB/s of
 * touched bytes. Touched are each input read and each output written. The last figure is this rate divided by
 * a copy's rate. The program measures the copy in turn with the kernel, slice by slice. The copy is
 * host_copy_streaming if the operation is larger than the caches, else memcpy of as many bytes. All figures
 * are medians. The ratio is the median of each pair's ratio.
 */

#define BUFFERS_EACH 8
#define BUFFER_BYTES ((size_t)64 << 20)
#define SLICE_BYTES ((size_t)1 << 20)
#define SLICES (BUFFER_BYTES / SLICE_BYTES)
#define SAMPLE_NS 500000
#define REPEATS_MAX 99

enum work { WORK_REDUCE, WORK_REDUCE_INTO, WORK_COPY, WORK_COPY_STREAMING, WORK_COPY_TO_ALL };

struct measured {
    enum work work;
    enum dtype dtype;
    uint32_t input_count, output_count;
    /* of each buffer; a buffer larger than a slice is done in slices, as the daemon does it */
    size_t size_bytes;
    bool streams;
    bool in_place; /* the outputs are the inputs, as in an all_reduce of ranks of one node */
};

struct result {
    double buffer_ns, rate_gbs, of_copy;
};

static unsigned char *inputs[BUFFERS_EACH], *outputs[BUFFERS_EACH];
static unsigned repeats = 7;

/* The memory is like that of comm_mem_alloc: shared, with small pages. The pattern is a moderate number in
 * every type. */
static void *map_filled(void)
{
    void *memory = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("bench_reduce: mmap");
        exit(1);
    }
    memset(memory, 0x3a, BUFFER_BYTES);
    return memory;
}

static size_t call_bytes(const struct measured *measured)
{
    return measured->size_bytes < SLICE_BYTES ? measured->size_bytes : SLICE_BYTES;
}

static uint64_t touched_bytes(const struct measured *measured)
{
    return (uint64_t)call_bytes(measured) * (measured->input_count + measured->output_count);
}

static void work_once(const struct measured *measured, const void *const *from, void *const *to)
{
    uint64_t count = call_bytes(measured) / dtype_size_bytes(measured->dtype);
    switch (measured->work) {
    case WORK_REDUCE:
        host_reduce(&(struct host_reduction){.dtype = measured->dtype,
                                             .reduce = REDUCE_SUM,
                                             .count_elements = count,
                                             .input_count = measured->input_count,
                                             .output_count = measured->output_count,
                                             .inputs = from,
                                             .outputs = to,
                                             .streams = measured->streams});
        return;
    case WORK_REDUCE_INTO:
        host_reduce_into(measured->dtype, REDUCE_SUM, to[0], from[0], count);
        return;
    case WORK_COPY:
        memcpy(to[0], from[0], call_bytes(measured));
        return;
    case WORK_COPY_STREAMING:
        host_copy_streaming(to[0], from[0], call_bytes(measured));
        host_copy_fence();
        return;
    case WORK_COPY_TO_ALL:
        host_copy_to_all(to, measured->output_count, from[0], call_bytes(measured), measured->streams);
        return;
    }
}

/* Returns the time of `calls` calls on the same slice. Slices of large buffers come one after the other,
 * for the kernel and the copy alike. So what one call leaves in the caches does not help the next. */
static double ns_of_calls(const struct measured *measured, uint64_t calls)
{
    static size_t offset;
    const void *from[BUFFERS_EACH];
    void *to[BUFFERS_EACH];
    offset = measured->size_bytes > SLICE_BYTES ? (offset + SLICE_BYTES) % BUFFER_BYTES : 0;
    for (size_t k = 0; k < BUFFERS_EACH; k++) {
        from[k] = inputs[k] + offset;
        to[k] = (measured->in_place ? inputs[k] : outputs[k]) + offset;
    }
    uint64_t began_ns = loop_now_ns();
    for (uint64_t i = 0; i < calls; i++) {
        work_once(measured, from, to);
        /* keeps the compiler from leaving out a copy because the next one does the same */
        __asm__ volatile("" ::: "memory");
    }
    return (double)(loop_now_ns() - began_ns);
}

static uint64_t calls_of_sample(const struct measured *measured)
{
    if (measured->size_bytes > SLICE_BYTES) {
        return 1;
    }
    (void)ns_of_calls(measured, 10);
    return 1 + (uint64_t)(SAMPLE_NS / (ns_of_calls(measured, 10) / 10 + 1));
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof values[0], compare);
    return values[count / 2];
}

static struct result measure(const struct measured *measured)
{
    static double ns[REPEATS_MAX * SLICES], of_copy[REPEATS_MAX * SLICES];
    struct measured copy = *measured;
    copy.work = measured->streams ? WORK_COPY_STREAMING : WORK_COPY;
    copy.input_count = copy.output_count = 1;
    copy.in_place = false;
    double touched = (double)touched_bytes(measured);
    uint64_t calls = calls_of_sample(measured);
    uint64_t copy_calls = calls_of_sample(&copy);
    size_t slices = measured->size_bytes > SLICE_BYTES ? measured->size_bytes / SLICE_BYTES : 1;
    size_t samples = repeats * slices;
    for (size_t i = 0; i < samples; i++) {
        double copy_ns = ns_of_calls(&copy, copy_calls) / (double)copy_calls;
        ns[i] = ns_of_calls(measured, calls) / (double)calls;
        of_copy[i] = touched / ns[i] / ((double)touched_bytes(&copy) / copy_ns);
    }
    double call_ns = median(ns, samples);
    return (struct result){.buffer_ns = call_ns * (double)slices,
                           .rate_gbs = touched / call_ns,
                           .of_copy = median(of_copy, samples)};
}

static void report(const struct measured *measured)
{
    static const char *const names[] = {[WORK_REDUCE] = "host_reduce",
                                        [WORK_REDUCE_INTO] = "host_reduce_into",
                                        [WORK_COPY] = "memcpy",
                                        [WORK_COPY_STREAMING] = "host_copy_streaming",
                                        [WORK_COPY_TO_ALL] = "host_copy_to_all"};
    bool reduces = measured->work == WORK_REDUCE || measured->work == WORK_REDUCE_INTO;
    struct result result = measure(measured);
    printf("{\"kernel\": \"%s\", \"type\": \"%s\", \"inputs\": %u, \"outputs\": %u, \"bytes\": %zu, "
           "\"streams\": %s, \"in_place\": %s, \"ns\": %.4g, \"gbs\": %.4g, \"of_copy\": %.3f}\n",
           names[measured->work], reduces ? dtype_text(measured->dtype) : "", measured->input_count,
           measured->output_count, measured->size_bytes, measured->streams ? "true" : "false",
           measured->in_place ? "true" : "false", result.buffer_ns, result.rate_gbs, result.of_copy);
    fflush(stdout);
}

/* `streams` follows the daemon's rule: operations that touch more than the caches hold bypass the caches. */
static void report_work(enum work work, enum dtype dtype, uint32_t input_count, uint32_t output_count,
                        size_t size_bytes)
{
    struct measured measured = {.work = work,
                                .dtype = dtype,
                                .input_count = input_count,
                                .output_count = output_count,
                                .size_bytes = size_bytes,
                                .streams =
                                    host_copy_streams((uint64_t)size_bytes * (input_count + output_count))};
    report(&measured);
    measured.in_place = work == WORK_REDUCE && input_count == output_count;
    if (measured.in_place) {
        report(&measured);
    }
}

static void report_copies(size_t size_bytes, bool quick)
{
    report_work(WORK_COPY, DTYPE_U8, 1, 1, size_bytes);
    report_work(WORK_COPY_STREAMING, DTYPE_U8, 1, 1, size_bytes);
    for (uint32_t k = 1; k <= BUFFERS_EACH; k *= 2) {
        if (!quick || k == 1 || k == 4) {
            report_work(WORK_COPY_TO_ALL, DTYPE_U8, 1, k, size_bytes);
        }
    }
}

static void report_reductions(enum dtype dtype, size_t size_bytes, bool quick)
{
    static const uint32_t input_counts[] = {2, 3, 4, 8};
    for (size_t k = 0; k < sizeof input_counts / sizeof input_counts[0]; k++) {
        if (!quick || k % 2 == 0) {
            report_work(WORK_REDUCE, dtype, input_counts[k], 1, size_bytes);
            report_work(WORK_REDUCE, dtype, input_counts[k], input_counts[k], size_bytes);
        }
    }
    report(&(struct measured){.work = WORK_REDUCE_INTO,
                              .dtype = dtype,
                              .input_count = 2, /* the target is read as well */
                              .output_count = 1,
                              .size_bytes = size_bytes});
}

int main(int argc, char **argv)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_F8E4M3};
    static const size_t sizes[] = {64, 4 << 10, 64 << 10, 1 << 20, BUFFER_BYTES};
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    if (argc > 1 + quick) {
        unsigned long wanted = strtoul(argv[1 + quick], NULL, 10);
        repeats = wanted < 1 ? 1 : wanted > REPEATS_MAX ? REPEATS_MAX : (unsigned)wanted;
    }
    for (size_t k = 0; k < BUFFERS_EACH; k++) {
        inputs[k] = map_filled();
        outputs[k] = map_filled();
    }
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        bool small_or_large = sizes[s] == 64 || sizes[s] == BUFFER_BYTES;
        if (quick && !small_or_large) {
            continue;
        }
        report_copies(sizes[s], quick);
        for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
            report_reductions(dtypes[d], sizes[s], quick);
        }
    }
    return 0;
}
