/*
 * One rank whose operations are in flight at once, some small and some large, so that commd runs some by
 * kernels and some by NCCL. Each round has other data. The program checks every element of the results.
 *
 *   engines NAME RANK SIZE ROUNDS COUNTS DEVICE
 *
 * COUNTS are numbers of elements of 4 bytes, with commas between them. Each has a stream of its own, and in
 * each round, two operations behind each other there: an all-reduce, and one of its result. Between them is
 * an all-reduce without a stream. So there are three all-reduces for each count and round.
 *
 * If something is wrong, it prints that and exits with 1.
 */
#include <string.h>

#include "tests/system/gpu_rank.h"

#define COUNTS_MAX 16
#define POISON 0xdeadbeefu

static struct work {
    size_t count;
    cuda_stream stream;
    uint32_t *in, *out, *again; /* on the GPU: `again` has the sum of what `out` has on all ranks */
    uint32_t *alone, *sum;      /* of the operation without a stream */
    uint32_t *host;             /* pinned */
    comm_request_t *request;
} works[COUNTS_MAX];

static comm_client_t *client;
static comm_t *comm;
static int work_count;

static uint32_t value(uint32_t of, uint32_t round, size_t count, size_t i)
{
    uint64_t mixed = (uint64_t)i * 2654435761u + of * 7919u + round * 104729u + (uint64_t)count * 31u;
    return (uint32_t)(mixed ^ mixed >> 15);
}

static void copy(uint32_t *to, const uint32_t *from, size_t count, cuda_stream stream)
{
    check(
        driver->copy((cuda_pointer)(uintptr_t)to, (cuda_pointer)(uintptr_t)from, count * sizeof *to, stream),
        "copy");
    check(driver->stream_synchronize(stream), "stream_synchronize");
}

static uint32_t *memory_of(size_t count, int device)
{
    void *memory;
    expect_ok(comm_mem_alloc(client, count * sizeof(uint32_t), device, &memory), "comm_mem_alloc");
    return memory;
}

static void work_make(struct work *work, size_t count, int device)
{
    void *host;
    work->count = count;
    check(driver->stream_create(&work->stream, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
    check(driver->host_alloc(&host, count * sizeof(uint32_t), 0), "host_alloc");
    work->host = host;
    work->in = memory_of(count, device);
    work->out = memory_of(count, device);
    work->again = memory_of(count, device);
    work->alone = memory_of(count, device);
    work->sum = memory_of(count, device);
}

static void work_fill(const struct work *work, uint32_t round)
{
    for (size_t i = 0; i < work->count; i++) {
        work->host[i] = POISON;
    }
    copy(work->out, work->host, work->count, work->stream);
    copy(work->again, work->host, work->count, work->stream);
    copy(work->sum, work->host, work->count, work->stream);
    for (size_t i = 0; i < work->count; i++) {
        work->host[i] = value(rank, round, work->count, i);
    }
    copy(work->in, work->host, work->count, work->stream);
    copy(work->alone, work->host, work->count, work->stream);
}

static void reduce(const struct work *work, const uint32_t *from, uint32_t *to, void *stream,
                   comm_request_t **request)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = stream;
    options.request = request;
    expect_ok(comm_all_reduce(comm, from, to, work->count, COMM_U32, COMM_SUM, &options), "comm_all_reduce");
    operations++;
}

static void check_sums(const struct work *work, const uint32_t *from, uint32_t round, uint32_t factor,
                       const char *what)
{
    copy(work->host, from, work->count, work->stream);
    for (size_t i = 0; i < work->count; i++) {
        uint32_t wanted = 0;
        for (uint32_t of = 0; of < size; of++) {
            wanted += value(of, round, work->count, i) * factor;
        }
        if (work->host[i] != wanted) {
            fprintf(stderr, "rank %u, round %u: %s of %zu: element %zu is %#x, not %#x\n", rank, round, what,
                    work->count, i, work->host[i], wanted);
            exit(EXIT_FAILURE);
        }
    }
}

static void run_round(uint32_t round)
{
    for (int i = 0; i < work_count; i++) {
        work_fill(&works[i], round);
    }
    for (int i = 0; i < work_count; i++) {
        reduce(&works[i], works[i].in, works[i].out, works[i].stream, NULL);
        reduce(&works[i], works[i].alone, works[i].sum, COMM_STREAM_NONE, &works[i].request);
        reduce(&works[i], works[i].out, works[i].again, works[i].stream, NULL);
    }
    for (int i = 0; i < work_count; i++) {
        check(driver->stream_synchronize(works[i].stream), "stream_synchronize");
        expect_ok(comm_wait(&works[i].request, NULL), "comm_wait");
        check_sums(&works[i], works[i].out, round, 1, "an all-reduce");
        check_sums(&works[i], works[i].again, round, size, "one of its result");
        check_sums(&works[i], works[i].sum, round, 1, "one without a stream");
    }
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: engines NAME RANK SIZE ROUNDS COUNTS DEVICE\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    uint32_t rounds = (uint32_t)strtoul(argv[4], NULL, 10);
    int device = atoi(argv[6]);
    (void)open_gpu(device);
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    expect_ok(comm_init(client, argv[1], rank, size, device, NULL, &comm), "comm_init");
    for (const char *at = argv[5]; work_count < COUNTS_MAX && *at != '\0'; work_count++) {
        char *end;
        work_make(&works[work_count], strtoull(at, &end, 10), device);
        at = *end == ',' ? end + 1 : end;
    }
    for (uint32_t round = 0; round < rounds; round++) {
        run_round(round);
    }
    expect_ok(comm_sync(comm, 0), "comm_sync");
    comm_destroy(comm);
    comm_client_close(client);
    printf("%lu operations checked\n", operations);
    return EXIT_SUCCESS;
}
