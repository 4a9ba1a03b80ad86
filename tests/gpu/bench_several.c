#include <commclient.h>

#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/gpu/nccl_library.h"
#include "tests/gpu/figures.h"
#include "tests/gpu/gpu_device.h"

/*
 * Measures how long an all-reduce of f32 among several GPUs takes: by NCCL in this process, or by commd with
 * this process as all ranks. Each rank has a GPU of its own, from 0 on.
 *
 *   bench_several nccl|commd [--gpus N] [--bytes N,N...] [--effort PERCENT] [--label TEXT]
 *
 * Prints figures as figures.h says, with names like "several/nccl/8/16777216": the label, by default the
 * mode, then GPUs and bytes. Exit code 77: there are not so many GPUs.
 */
#define GPUS_MAX 16
#define SIZES_MAX 16u
#define TIMES_MAX 500u
#define TIMES_MIN 5u
#define WARM_UPS 5u
#define BYTES_OF_A_SIZE ((uint64_t)16 << 30) /* no more than this is reduced in all */

struct bench {
    bool by_commd;
    const char *label;
    uint32_t gpu_count;
    uint64_t sizes[SIZES_MAX];
    size_t size_count;
    uint64_t largest;
    unsigned effort_percent;
    const struct cuda_driver *driver;
    cuda_context contexts[GPUS_MAX];
    cuda_stream streams[GPUS_MAX];
    void *send[GPUS_MAX], *receive[GPUS_MAX];
    const struct nccl_library *nccl;
    nccl_comm nccl_comms[GPUS_MAX];
    comm_client_t *client;
    comm_t *comms[GPUS_MAX];
    double seconds[TIMES_MAX];
};

static void must(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, comm_result_text(result), comm_last_error());
        exit(1);
    }
}

static void must_cuda(const struct bench *bench, cuda_result result, const char *what)
{
    if (result != CUDA_RESULT_OK) {
        char text[256];
        cuda_driver_text(bench->driver, what, result, text, sizeof text);
        fprintf(stderr, "%s\n", text);
        exit(1);
    }
}

static void must_nccl(const struct bench *bench, nccl_result result, const char *what)
{
    if (result != NCCL_RESULT_OK) {
        fprintf(stderr, "%s: %s\n", what, bench->nccl->error_text(result));
        exit(1);
    }
}

/* --- Preparation --- */

static void open_gpus(struct bench *bench)
{
    char why[256];
    if (!cuda_driver_load(&bench->driver, why, sizeof why)) {
        printf("skipped: %s\n", why);
        exit(GPU_SKIPPED);
    }
    for (uint32_t i = 0; i < bench->gpu_count; i++) {
        cuda_device device;
        if (bench->driver->device_get(&device, (int)i) != CUDA_RESULT_OK) {
            printf("skipped: there is no GPU %u\n", i);
            exit(GPU_SKIPPED);
        }
        must_cuda(bench, bench->driver->context_retain(&bench->contexts[i], device),
                  "cuDevicePrimaryCtxRetain");
        must_cuda(bench, bench->driver->context_set(bench->contexts[i]), "cuCtxSetCurrent");
        must_cuda(bench, bench->driver->stream_create(&bench->streams[i], CUDA_STREAM_NON_BLOCKING, 0),
                  "cuStreamCreateWithPriority");
    }
}

static void open_nccl(struct bench *bench)
{
    char why[256];
    struct nccl_id id;
    if (!nccl_library_load(&bench->nccl, why, sizeof why)) {
        printf("left out: %s\n", why);
        exit(GPU_SKIPPED);
    }
    must_nccl(bench, bench->nccl->unique_id(&id), "ncclGetUniqueId");
    must_nccl(bench, bench->nccl->group_start(), "ncclGroupStart");
    for (uint32_t i = 0; i < bench->gpu_count; i++) {
        struct nccl_config config = {.size = sizeof config,
                                     .magic = NCCL_CONFIG_MAGIC,
                                     .version = NCCL_CONFIG_VERSION,
                                     .blocking = 1,
                                     .cga_cluster_size = NCCL_CONFIG_UNDEFINED_INT,
                                     .min_ctas = NCCL_CONFIG_UNDEFINED_INT,
                                     .max_ctas = NCCL_CONFIG_UNDEFINED_INT,
                                     .split_share = NCCL_CONFIG_UNDEFINED_INT};
        must_cuda(bench, bench->driver->context_set(bench->contexts[i]), "cuCtxSetCurrent");
        must_nccl(bench,
                  bench->nccl->comm_init(&bench->nccl_comms[i], (int)bench->gpu_count, id, (int)i, &config),
                  "ncclCommInitRankConfig");
    }
    must_nccl(bench, bench->nccl->group_end(), "ncclGroupEnd");
}

struct joining {
    struct bench *bench;
    uint32_t rank;
    pthread_t thread;
};

/* comm_init waits for the other ranks, so each has a thread. */
static void *join(void *context)
{
    const struct joining *joining = context;
    struct bench *bench = joining->bench;
    char name[64];
    (void)snprintf(name, sizeof name, "several-%s", bench->label);
    must(comm_init(bench->client, name, joining->rank, bench->gpu_count, (int)joining->rank, NULL,
                   &bench->comms[joining->rank]),
         "comm_init");
    return NULL;
}

static void open_commd(struct bench *bench)
{
    struct joining joinings[GPUS_MAX];
    must(comm_client_open(NULL, &bench->client), "connection");
    for (uint32_t i = 0; i < bench->gpu_count; i++) {
        joinings[i] = (struct joining){.bench = bench, .rank = i};
        if (pthread_create(&joinings[i].thread, NULL, join, &joinings[i]) != 0) {
            abort();
        }
    }
    for (uint32_t i = 0; i < bench->gpu_count; i++) {
        (void)pthread_join(joinings[i].thread, NULL);
    }
}

static void allocate(struct bench *bench)
{
    float *ones = malloc(bench->largest);
    if (ones == NULL) {
        abort();
    }
    for (size_t i = 0; i < bench->largest / sizeof *ones; i++) {
        ones[i] = 1;
    }
    for (uint32_t i = 0; i < bench->gpu_count; i++) {
        cuda_pointer pointers[2];
        must_cuda(bench, bench->driver->context_set(bench->contexts[i]), "cuCtxSetCurrent");
        for (int k = 0; k < 2; k++) {
            must_cuda(bench, bench->driver->memory_alloc(&pointers[k], bench->largest), "cuMemAlloc");
            must_cuda(bench,
                      bench->driver->copy_from_host(pointers[k], ones, bench->largest, bench->streams[i]),
                      "cuMemcpyHtoDAsync");
        }
        must_cuda(bench, bench->driver->stream_synchronize(bench->streams[i]), "cuStreamSynchronize");
        bench->send[i] = (void *)(uintptr_t)pointers[0];
        bench->receive[i] = (void *)(uintptr_t)pointers[1];
    }
    free(ones);
}

/* --- Measuring --- */

static void reduce_by_nccl(const struct bench *bench, uint64_t bytes)
{
    must_nccl(bench, bench->nccl->group_start(), "ncclGroupStart");
    for (uint32_t i = 0; i < bench->gpu_count; i++) {
        must_cuda(bench, bench->driver->context_set(bench->contexts[i]), "cuCtxSetCurrent");
        must_nccl(bench,
                  bench->nccl->all_reduce(bench->send[i], bench->receive[i], bytes / 4, NCCL_TYPE_F32,
                                          NCCL_REDUCE_SUM, bench->nccl_comms[i], bench->streams[i]),
                  "ncclAllReduce");
    }
    must_nccl(bench, bench->nccl->group_end(), "ncclGroupEnd");
    for (uint32_t i = 0; i < bench->gpu_count; i++) {
        must_cuda(bench, bench->driver->context_set(bench->contexts[i]), "cuCtxSetCurrent");
        must_cuda(bench, bench->driver->stream_synchronize(bench->streams[i]), "cuStreamSynchronize");
    }
}

static void reduce_by_commd(const struct bench *bench, uint64_t bytes)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = COMM_STREAM_NONE;
    for (uint32_t i = 0; i < bench->gpu_count; i++) {
        must(comm_all_reduce(bench->comms[i], bench->send[i], bench->receive[i], bytes / 4, COMM_F32,
                             COMM_SUM, &options),
             "all-reduce");
    }
    for (uint32_t i = 0; i < bench->gpu_count; i++) {
        must(comm_sync(bench->comms[i], 0), "comm_sync");
    }
}

/* Checks the last element on each GPU. */
static void check(const struct bench *bench, uint64_t bytes)
{
    for (uint32_t i = 0; i < bench->gpu_count; i++) {
        float value = 0;
        cuda_pointer at = (cuda_pointer)(uintptr_t)bench->receive[i] + bytes - sizeof value;
        must_cuda(bench, bench->driver->context_set(bench->contexts[i]), "cuCtxSetCurrent");
        must_cuda(bench, bench->driver->copy_to_host(&value, at, sizeof value, bench->streams[i]),
                  "cuMemcpyDtoHAsync");
        must_cuda(bench, bench->driver->stream_synchronize(bench->streams[i]), "cuStreamSynchronize");
        if (!(value == (float)bench->gpu_count)) {
            fprintf(stderr, "GPU %u, %llu bytes: the result is %g, not %u\n", i, (unsigned long long)bytes,
                    (double)value, bench->gpu_count);
            exit(1);
        }
    }
}

static void measure(struct bench *bench, uint64_t bytes)
{
    uint64_t most = BYTES_OF_A_SIZE / bytes < TIMES_MAX ? BYTES_OF_A_SIZE / bytes : TIMES_MAX;
    size_t times = (size_t)(most * bench->effort_percent / 100);
    times = times < TIMES_MIN ? TIMES_MIN : times;
    for (size_t i = 0; i < WARM_UPS + times; i++) {
        double began_s = figures_now_s();
        if (bench->by_commd) {
            reduce_by_commd(bench, bytes);
        } else {
            reduce_by_nccl(bench, bytes);
        }
        if (i >= WARM_UPS) {
            bench->seconds[i - WARM_UPS] = figures_now_s() - began_s;
        }
    }
    check(bench, bytes);
    figures_print_times(bench->seconds, times, "several/%s/%u/%llu", bench->label, bench->gpu_count,
                        (unsigned long long)bytes);
}

/* --- Arguments --- */

static bool read_sizes(struct bench *bench, char *text)
{
    for (char *one = strtok(text, ","); one != NULL; one = strtok(NULL, ",")) {
        uint64_t bytes = strtoull(one, NULL, 10) / 4 * 4;
        if (bytes == 0 || bench->size_count == SIZES_MAX) {
            return false;
        }
        bench->largest = bytes > bench->largest ? bytes : bench->largest;
        bench->sizes[bench->size_count++] = bytes;
    }
    return bench->size_count > 0;
}

static bool read_arguments(struct bench *bench, int argc, char **argv)
{
    static const struct option options[] = {{"gpus", required_argument, NULL, 'g'},
                                            {"bytes", required_argument, NULL, 'b'},
                                            {"effort", required_argument, NULL, 'e'},
                                            {"label", required_argument, NULL, 'l'},
                                            {NULL, 0, NULL, 0}};
    bool right = true;
    for (int option; right && (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        unsigned long number = optarg != NULL ? strtoul(optarg, NULL, 10) : 0;
        bench->gpu_count = option == 'g' ? (uint32_t)number : bench->gpu_count;
        bench->effort_percent = option == 'e' ? (unsigned)number : bench->effort_percent;
        bench->label = option == 'l' ? optarg : bench->label;
        right = option != '?' && (option != 'b' || read_sizes(bench, optarg));
    }
    const char *mode = optind + 1 == argc ? argv[optind] : "";
    bench->by_commd = strcmp(mode, "commd") == 0;
    bench->label = bench->label != NULL ? bench->label : mode;
    return right && (bench->by_commd || strcmp(mode, "nccl") == 0) && bench->size_count > 0 &&
           bench->gpu_count >= 2 && bench->gpu_count <= GPUS_MAX;
}

int main(int argc, char **argv)
{
    static struct bench bench = {.gpu_count = 2, .effort_percent = 100};
    if (!read_arguments(&bench, argc, argv)) {
        fprintf(stderr, "usage: bench_several nccl|commd --bytes N,N... [--gpus N] [--effort PERCENT] "
                        "[--label TEXT]\n");
        return 2;
    }
    open_gpus(&bench);
    allocate(&bench);
    if (bench.by_commd) {
        open_commd(&bench);
    } else {
        open_nccl(&bench);
    }
    for (size_t i = 0; i < bench.size_count; i++) {
        measure(&bench, bench.sizes[i]);
    }
    return 0;
}
