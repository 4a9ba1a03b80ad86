#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <commclient.h>

/*
 * Times all-reduces of 8 bytes, one after the other, by each way to wait for them.
 *
 *   queues NAME RANK SIZE COUNT
 *
 * The ways take turns in ROUNDS rounds, so that other work on the machine affects all of them alike. Rank 0
 * prints the best round of each way, in microseconds for one operation.
 */
enum { ROUNDS = 15, WAYS = 4 };
enum way { BY_WAIT, BY_NEXT, BY_DESCRIPTOR, BY_SYNC };
static const char *const way_names[WAYS] = {"comm_wait", "comm_queue_next", "poll", "comm_sync"};

struct bench {
    comm_client_t *client;
    comm_t *comm;
    comm_queue_t *queue, *polled; /* arming a queue's descriptor costs something later */
    int64_t *value;               /* of comm_mem_alloc */
};

static void check(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "queues: %s: %s: %s\n", what, comm_result_text(result), comm_last_error());
        exit(1);
    }
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void take(comm_queue_t *queue, bool polls)
{
    comm_completion_t completion;
    size_t count = 0;
    struct pollfd ready = {.fd = comm_queue_fd(queue), .events = POLLIN};
    while (count == 0) {
        comm_result_t result = comm_queue_next(queue, &completion, 1, &count, polls ? 0 : COMM_NO_TIMEOUT);
        if (polls && result == COMM_TIMED_OUT) {
            (void)poll(&ready, 1, -1);
        } else {
            check(result, "comm_queue_next");
        }
    }
    check(completion.result, "an operation");
}

static void reduce(const struct bench *bench, enum way way)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    if (way == BY_WAIT) {
        options.request = &request;
    } else if (way != BY_SYNC) {
        options.queue = way == BY_DESCRIPTOR ? bench->polled : bench->queue;
    }
    *bench->value = 3;
    check(comm_all_reduce(bench->comm, bench->value, bench->value, 1, COMM_I64, COMM_SUM, &options),
          "comm_all_reduce");
    if (way == BY_WAIT) {
        check(comm_wait(&request, NULL), "comm_wait");
    } else if (way == BY_SYNC) {
        check(comm_sync(bench->comm, 0), "comm_sync");
    } else {
        take(options.queue, way == BY_DESCRIPTOR);
    }
    if (*bench->value != 3 * (int64_t)comm_size(bench->comm)) {
        fprintf(stderr, "queues: a wrong sum: %lld\n", (long long)*bench->value);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct bench bench;
    double best_s[WAYS] = {0};
    if (argc != 5) {
        fprintf(stderr, "usage: queues NAME RANK SIZE COUNT\n");
        return 2;
    }
    unsigned rank = (unsigned)strtoul(argv[2], NULL, 10), size = (unsigned)strtoul(argv[3], NULL, 10);
    unsigned count = (unsigned)strtoul(argv[4], NULL, 10);
    void *memory;
    check(comm_client_open(NULL, &bench.client), "comm_client_open");
    check(comm_init(bench.client, argv[1], rank, size, COMM_DEVICE_HOST, NULL, &bench.comm), "comm_init");
    check(comm_queue_create(bench.client, &bench.queue), "comm_queue_create");
    check(comm_mem_alloc(bench.client, 4096, COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
    bench.value = memory;
    for (unsigned round = 0; round < ROUNDS * WAYS; round++) {
        unsigned way = round % WAYS;
        if (way == BY_DESCRIPTOR) {
            check(comm_queue_create(bench.client, &bench.polled), "comm_queue_create");
        }
        check(comm_barrier(bench.comm, NULL), "comm_barrier");
        double began_s = now_s();
        for (unsigned i = 0; i < count; i++) {
            reduce(&bench, (enum way)way);
        }
        double took_s = (now_s() - began_s) / count;
        if (way == BY_DESCRIPTOR) {
            comm_queue_destroy(bench.polled);
        }
        best_s[way] = round < WAYS || took_s < best_s[way] ? took_s : best_s[way];
    }
    for (unsigned way = 0; rank == 0 && way < WAYS; way++) {
        printf("%s: %.2f us\n", way_names[way], 1e6 * best_s[way]);
    }
    comm_destroy(bench.comm);
    comm_client_close(bench.client);
    return 0;
}
