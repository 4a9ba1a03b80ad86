#include <commclient.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/gpu/grid.h"
#include "kernels/kernels.h"
#include "tests/gpu/burn.h"
#include "tests/gpu/figures.h"
#include "tests/gpu/gpu_device.h"
#include "tests/gpu/nccl_alone.h"

/*
 * Measures how long an all-reduce of f32 takes in three ways: by commd, as a rank of a communicator; by the
 * kernel that commd launches for it, in this process alone; and by NCCL with one rank, in this process alone.
 * Also measures how long a message takes.
 *
 *   bench_operations kernel|nccl|blocking|stream|overlap|message [--name NAME] [--rank R] [--size N]
 *                    [--device D] [--busy] [--bytes N,N...] [--effort PERCENT]
 *
 *   - kernel: --size is the number of inputs and outputs.
 *   - blocking: comm_sync waits for the operation. stream: the program waits for the operation's stream.
 *   - overlap: a stream computes, and operations run: both at the same time, and each alone.
 *   - message: two ranks send a message there and back; the figure is half of that time.
 *   - --busy: meanwhile the process computes in another stream.
 *   - --device -1: on the host; only blocking and message.
 *
 * Prints the figures of rank 0 as figures.h says. Exit code 77: there is no GPU.
 */
#define RANKS_MAX KERNELS_FEW
#define SIZES_MAX 32u
#define SMALL_TIMES 2000u
#define BUSY_TIMES 300u
#define TIMES_MIN 5u
#define BYTES_OF_A_SIZE ((uint64_t)8 << 30) /* of larger sizes, no more than this is moved in all */
#define LARGE_BYTES (1u << 20)
#define WARM_UPS 10u
#define BURN_BYTES (64u << 20)
#define BATCH 32u
#define OVERLAP_OPERATIONS 4u

enum mode { MODE_KERNEL, MODE_NCCL, MODE_BLOCKING, MODE_STREAM, MODE_OVERLAP, MODE_MESSAGE, MODES };
static const char *const mode_names[MODES] = {"kernel", "nccl", "blocking", "stream", "overlap", "message"};

struct bench {
    enum mode mode;
    const char *name;
    uint32_t rank, size;
    int device;
    bool busy;
    uint64_t sizes[SIZES_MAX];
    size_t size_count;
    uint64_t largest;
    unsigned effort_percent;
    struct gpu gpu;
    cuda_function kernel;
    cuda_pointer inputs[RANKS_MAX], outputs[RANKS_MAX];
    void *send, *receive;
    struct nccl_alone nccl;
    comm_client_t *client;
    comm_t *comm;
    double seconds[SMALL_TIMES];
};

static void must(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, comm_result_text(result), comm_last_error());
        exit(1);
    }
}

static bool uses_commd(const struct bench *bench)
{
    return bench->mode >= MODE_BLOCKING;
}

static bool on_gpu(const struct bench *bench)
{
    return bench->device != COMM_DEVICE_HOST;
}

/* --- One --- */

static void submit(struct bench *bench, uint64_t bytes, void *stream)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = stream;
    must(comm_all_reduce(bench->comm, bench->send, bench->receive, bytes / 4, COMM_F32, COMM_SUM, &options),
         "all-reduce");
}

/* Launches the kernel as the daemon does. */
static void launch(struct bench *bench, uint64_t bytes)
{
    struct kernels_reduce_few arguments = {
        .count_elements = bytes / 4, .input_count = bench->size, .output_count = bench->size};
    uint64_t most = (uint64_t)bench->gpu.multiprocessors * GRID_BLOCKS_A_MULTIPROCESSOR;
    for (uint32_t k = 0; k < bench->size; k++) {
        arguments.inputs[k] = (const void *)(uintptr_t)bench->inputs[k];
        arguments.outputs[k] = (void *)(uintptr_t)bench->outputs[k];
    }
    gpu_launch(&bench->gpu, bench->kernel, &arguments, grid_blocks(bytes, most), KERNELS_BLOCK_THREADS);
}

/* Sends a message to the other rank, and when it is there, one back. */
static void exchange(struct bench *bench, uint64_t bytes)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = on_gpu(bench) ? COMM_STREAM_NONE : NULL;
    for (uint32_t sender = 0; sender < 2; sender++) {
        if (bench->rank == sender) {
            must(comm_send(bench->comm, bench->send, bytes / 4, COMM_F32, 1 - sender, 0, &options),
                 "comm_send");
        } else {
            must(comm_recv(bench->comm, bench->receive, bytes / 4, COMM_F32, sender, 0, &options),
                 "comm_recv");
        }
        must(comm_sync(bench->comm, 0), "comm_sync");
    }
}

static void begin(struct bench *bench, uint64_t bytes)
{
    switch (bench->mode) {
    case MODE_KERNEL:
        launch(bench, bytes);
        break;
    case MODE_NCCL:
        nccl_alone_reduce(&bench->nccl, &bench->gpu, bench->inputs[0], bench->outputs[0], bytes);
        break;
    case MODE_STREAM:
        submit(bench, bytes, bench->gpu.stream);
        break;
    case MODE_MESSAGE:
        exchange(bench, bytes);
        break;
    case MODE_BLOCKING:
    case MODE_OVERLAP:
    case MODES:
        submit(bench, bytes, on_gpu(bench) ? COMM_STREAM_NONE : NULL);
        break;
    }
}

static void finish(struct bench *bench)
{
    if (bench->mode == MODE_BLOCKING || bench->mode == MODE_OVERLAP) {
        must(comm_sync(bench->comm, 0), "comm_sync");
    } else if (bench->mode != MODE_MESSAGE) {
        gpu_synchronize(&bench->gpu);
    }
}

/* --- Data --- */

static void copy(struct bench *bench, void *host, void *device, size_t bytes, bool in)
{
    cuda_pointer pointer = (cuda_pointer)(uintptr_t)device;
    if (!on_gpu(bench)) {
        memcpy(in ? device : host, in ? host : device, bytes);
    } else if (in) {
        GPU_MUST(&bench->gpu, copy_from_host, pointer, host, bytes, bench->gpu.stream);
        gpu_synchronize(&bench->gpu);
    } else {
        GPU_MUST(&bench->gpu, copy_to_host, host, pointer, bytes, bench->gpu.stream);
        gpu_synchronize(&bench->gpu);
    }
}

static void fill(struct bench *bench, void *buffer, float value)
{
    float *values = malloc(bench->largest);
    if (values == NULL) {
        abort();
    }
    for (size_t i = 0; i < bench->largest / sizeof *values; i++) {
        values[i] = value;
    }
    copy(bench, values, buffer, bench->largest, true);
    free(values);
}

/* Checks the last element of an operation's result. */
static void check(struct bench *bench, uint64_t bytes)
{
    bool same = bench->mode == MODE_NCCL || bench->mode == MODE_MESSAGE;
    float value = 0, expected = same ? 1 : (float)bench->size;
    if (!uses_commd(bench)) {
        bench->receive = (void *)(uintptr_t)bench->outputs[0];
    }
    copy(bench, &value, (unsigned char *)bench->receive + bytes - sizeof value, sizeof value, false);
    if (!(value == expected)) {
        fprintf(stderr, "%s of %llu bytes: the result is %g, not %g\n", mode_names[bench->mode],
                (unsigned long long)bytes, (double)value, (double)expected);
        exit(1);
    }
}

static void prepare(struct bench *bench)
{
    char why[256];
    if (on_gpu(bench)) {
        gpu_device_open(&bench->gpu);
    }
    if (uses_commd(bench)) {
        must(comm_client_open(NULL, &bench->client), "connection");
        must(comm_init(bench->client, bench->name, bench->rank, bench->size, bench->device, NULL,
                       &bench->comm),
             "comm_init");
        must(comm_mem_alloc(bench->client, bench->largest, bench->device, &bench->send), "memory");
        must(comm_mem_alloc(bench->client, bench->largest, bench->device, &bench->receive), "memory");
        fill(bench, bench->send, 1);
        fill(bench, bench->receive, 0);
        return;
    }
    if (!gpu_function(&bench->gpu, "commd_reduce_f32_sum", &bench->kernel)) {
        exit(1);
    }
    for (uint32_t k = 0; k < bench->size; k++) {
        bench->inputs[k] = gpu_alloc(&bench->gpu, bench->largest);
        bench->outputs[k] = gpu_alloc(&bench->gpu, bench->largest);
        fill(bench, (void *)(uintptr_t)bench->inputs[k], 1);
        fill(bench, (void *)(uintptr_t)bench->outputs[k], 0);
    }
    if (bench->mode == MODE_NCCL && !nccl_alone_open(&bench->nccl, why, sizeof why)) {
        printf("left out: %s\n", why);
        exit(GPU_SKIPPED);
    }
}

/* --- Measuring --- */

/* Returns how often to measure; the same on all ranks. */
static size_t times_of(const struct bench *bench, uint64_t bytes)
{
    uint64_t times = bench->busy ? BUSY_TIMES : SMALL_TIMES;
    if (bytes >= LARGE_BYTES && times > BYTES_OF_A_SIZE / bytes) {
        times = BYTES_OF_A_SIZE / bytes;
    }
    times = times * bench->effort_percent / 100;
    return (size_t)(times < TIMES_MIN ? TIMES_MIN : times);
}

static void measure(struct bench *bench, uint64_t bytes)
{
    size_t times = times_of(bench, bytes);
    size_t warm_ups = times < WARM_UPS ? 2 : WARM_UPS;
    double ways = bench->mode == MODE_MESSAGE ? 2 : 1;
    for (size_t i = 0; i < warm_ups + times; i++) {
        double began_s = figures_now_s();
        begin(bench, bytes);
        finish(bench);
        if (i >= warm_ups) {
            bench->seconds[i - warm_ups] = (figures_now_s() - began_s) / ways;
        }
    }
    check(bench, bytes);
    if (bench->rank == 0) {
        figures_print_times(bench->seconds, times, "%s/%u/%s/%llu", mode_names[bench->mode], bench->size,
                            bench->busy ? "busy" : "idle", (unsigned long long)bytes);
    }
}

/* Measures operations that follow each other. Waits only for the last one. The figure is the time for one
 * operation. */
static void measure_batch(struct bench *bench, uint64_t bytes)
{
    size_t times = times_of(bench, bytes) / BATCH + 3;
    for (size_t i = 0; i < times; i++) {
        double began_s = figures_now_s();
        for (unsigned j = 0; j < BATCH; j++) {
            begin(bench, bytes);
        }
        finish(bench);
        bench->seconds[i] = (figures_now_s() - began_s) / BATCH;
    }
    if (bench->rank == 0) {
        figures_print(1e6 * figures_median(bench->seconds, times), "us", "%s/%u/%s/%llu/in a row",
                      mode_names[bench->mode], bench->size, bench->busy ? "busy" : "idle",
                      (unsigned long long)bytes);
    }
}

static void measure_all(struct bench *bench)
{
    struct burn_thread *thread = bench->busy ? burn_thread_start(&bench->gpu, BURN_BYTES) : NULL;
    for (size_t i = 0; i < bench->size_count; i++) {
        measure(bench, bench->sizes[i]);
        if (bench->sizes[i] <= LARGE_BYTES && !bench->busy && bench->mode != MODE_MESSAGE) {
            measure_batch(bench, bench->sizes[i]);
        }
    }
    burn_thread_stop(thread);
}

/* --- Overlap --- */

static double operations(struct bench *bench, uint64_t bytes)
{
    double began_s = figures_now_s();
    for (unsigned i = 0; i < OVERLAP_OPERATIONS; i++) {
        submit(bench, bytes, COMM_STREAM_NONE);
    }
    must(comm_sync(bench->comm, 0), "comm_sync");
    return figures_now_s() - began_s;
}

static double together(struct bench *bench, struct burn *burn, uint64_t bytes, uint32_t kernels)
{
    double began_s = figures_now_s();
    for (unsigned i = 0; i < OVERLAP_OPERATIONS; i++) {
        submit(bench, bytes, COMM_STREAM_NONE);
    }
    (void)burn_for(burn, kernels);
    must(comm_sync(bench->comm, 0), "comm_sync");
    return figures_now_s() - began_s;
}

/* All ranks compute at the same time, for as long as their operations take alone. */
static void measure_overlap(struct bench *bench, uint64_t bytes)
{
    enum { TURNS = 7 };
    double alone[TURNS], computing[TURNS], both[TURNS];
    struct burn burn;
    size_t burn_bytes = BURN_BYTES * bench->effort_percent / 100 + LARGE_BYTES;
    burn_open(&burn, &bench->gpu, burn_bytes);
    (void)operations(bench, bytes);
    must(comm_barrier(bench->comm, NULL), "barrier");
    double kernel_s = burn_for(&burn, 8) / 8;
    double kernels = operations(bench, bytes) / kernel_s;
    must(comm_all_reduce(bench->comm, &kernels, &kernels, 1, COMM_F64, COMM_MAX, NULL), "all-reduce");
    must(comm_sync(bench->comm, 0), "comm_sync");
    uint32_t count = kernels < 1 ? 1 : kernels > 20000 ? 20000 : (uint32_t)kernels;
    for (int i = 0; i < TURNS; i++) {
        must(comm_barrier(bench->comm, NULL), "barrier");
        alone[i] = operations(bench, bytes);
        must(comm_barrier(bench->comm, NULL), "barrier");
        computing[i] = burn_for(&burn, count);
        must(comm_barrier(bench->comm, NULL), "barrier");
        both[i] = together(bench, &burn, bytes, count);
    }
    burn_close(&burn);
    double communicate_s = figures_median(alone, TURNS), compute_s = figures_median(computing, TURNS);
    double both_s = figures_median(both, TURNS);
    double shorter_s = communicate_s < compute_s ? communicate_s : compute_s;
    if (bench->rank == 0) {
        figures_print(1e3 * communicate_s, "ms", "overlap/%u/%llu/operations alone", bench->size,
                      (unsigned long long)bytes);
        figures_print(1e3 * compute_s, "ms", "overlap/%u/%llu/computing alone", bench->size,
                      (unsigned long long)bytes);
        figures_print(1e3 * both_s, "ms", "overlap/%u/%llu/both", bench->size, (unsigned long long)bytes);
        figures_print(100 * (communicate_s + compute_s - both_s) / shorter_s, "%", "overlap/%u/%llu/hidden",
                      bench->size, (unsigned long long)bytes);
    }
}

/* --- Command line --- */

static bool parse_sizes(struct bench *bench, char *list)
{
    bench->size_count = 0;
    for (char *rest = list, *one; (one = strsep(&rest, ",")) != NULL;) {
        uint64_t bytes = strtoull(one, NULL, 10);
        if (bytes < 4 || bytes % 4 != 0 || bench->size_count == SIZES_MAX) {
            return false;
        }
        bench->sizes[bench->size_count++] = bytes;
    }
    return true;
}

static bool take_option(struct bench *bench, int option)
{
    switch (option) {
    case 'n':
        bench->name = optarg;
        return true;
    case 'r':
        bench->rank = (uint32_t)strtoul(optarg, NULL, 10);
        return true;
    case 's':
        bench->size = (uint32_t)strtoul(optarg, NULL, 10);
        return true;
    case 'd':
        bench->device = atoi(optarg);
        return true;
    case 'b':
        bench->busy = true;
        return true;
    case 'B':
        return parse_sizes(bench, optarg);
    case 'e':
        bench->effort_percent = (unsigned)strtoul(optarg, NULL, 10);
        return bench->effort_percent > 0 && bench->effort_percent <= 100;
    default:
        return false;
    }
}

static bool parse(struct bench *bench, int argc, char **argv)
{
    static const struct option options[] = {
        {"name", required_argument, NULL, 'n'},   {"rank", required_argument, NULL, 'r'},
        {"size", required_argument, NULL, 's'},   {"device", required_argument, NULL, 'd'},
        {"busy", no_argument, NULL, 'b'},         {"bytes", required_argument, NULL, 'B'},
        {"effort", required_argument, NULL, 'e'}, {NULL, 0, NULL, 0}};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (!take_option(bench, option)) {
            return false;
        }
    }
    bench->mode = MODES;
    for (int mode = 0; optind + 1 == argc && mode < MODES; mode++) {
        bench->mode = strcmp(argv[optind], mode_names[mode]) == 0 ? (enum mode)mode : bench->mode;
    }
    for (size_t i = 0; i < bench->size_count; i++) {
        bench->largest = bench->sizes[i] > bench->largest ? bench->sizes[i] : bench->largest;
    }
    bool fits = bench->mode == MODE_KERNEL    ? bench->size <= RANKS_MAX
                : bench->mode == MODE_MESSAGE ? bench->rank < 2 && bench->size == 2
                                              : bench->rank < bench->size;
    bool needs_gpu = bench->busy || (bench->mode != MODE_BLOCKING && bench->mode != MODE_MESSAGE);
    return bench->mode != MODES && bench->size > 0 && fits && (on_gpu(bench) || !needs_gpu);
}

int main(int argc, char **argv)
{
    static struct bench bench = {.name = "bench",
                                 .size = 1,
                                 .sizes = {8, 64, 512, 4096, 16384, 65536},
                                 .size_count = 6,
                                 .effort_percent = 100};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!parse(&bench, argc, argv)) {
        fprintf(stderr, "usage: bench_operations kernel|nccl|blocking|stream|overlap|message [--name NAME] "
                        "[--rank R] [--size N]\n"
                        "       [--device D] [--busy] [--bytes N,N...] [--effort PERCENT]\n");
        return 2;
    }
    prepare(&bench);
    if (bench.mode == MODE_OVERLAP) {
        measure_overlap(&bench, bench.largest);
    } else {
        measure_all(&bench);
    }
    if (uses_commd(&bench)) {
        must(comm_barrier(bench.comm, NULL), "barrier");
        comm_destroy(bench.comm);
        comm_client_close(bench.client);
    }
    return 0;
}
