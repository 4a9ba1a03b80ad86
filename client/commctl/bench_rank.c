#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/commctl/bench.h"
#include "client/commctl/bench_times.h"

#define WARM_UPS 3

/* One size of one operation, in place or not. */
struct figures {
    double time_us, time_min_us, time_max_us;
    uint32_t iterations;
    double wrong;
};

struct bench_run {
    const struct bench_options *options;
    comm_client_t *client;
    comm_t *comm;
    uint32_t rank;
    void *buffers[2];
    struct bench_times times;
    json_t *results; /* of rank 0, for JSON */
    double busbw_sum;
    uint32_t busbw_count;
    double wrong;
    enum exit_code code;
};

static bool failed(struct bench_run *run, comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        run->code = result == COMM_TIMED_OUT     ? EXIT_CODE_TIMED_OUT
                    : result == COMM_DAEMON_LOST ? EXIT_CODE_NOT_RUNNING
                                                 : EXIT_CODE_FAILURE;
        fprintf(stderr, "commctl: bench: rank %u: %s: %s\n", run->rank, what, comm_last_error());
    }
    return result != COMM_OK;
}

/* Reduces the values, so that all ranks have the same. Returns false if that failed. */
static bool agree(struct bench_run *run, double *values, size_t count, comm_op_t op)
{
    comm_result_t result = comm_all_reduce(run->comm, values, values, count, COMM_F64, op, NULL);
    result = result == COMM_OK ? comm_sync(run->comm, 0) : result;
    return !failed(run, result, "agreeing on figures");
}

/* --- One operation --- */

static size_t count_wrong(const struct bench_call *call, const struct bench_operation *operation)
{
    return call->options->check ? bench_call_wrong(call, operation) : 0;
}

static bool once(struct bench_run *run, const struct bench_call *call,
                 const struct bench_operation *operation, double *time_s)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    double began_s = now_s();
    comm_result_t result = operation->submit(call, &options);
    result = result == COMM_OK ? comm_wait(&request, NULL) : result;
    *time_s = now_s() - began_s;
    return !failed(run, result, operation->name);
}

/* Makes iterations until the time is over for the slowest rank, so that all ranks make the same number. */
static bool repeat(struct bench_run *run, const struct bench_call *call,
                   const struct bench_operation *operation)
{
    const struct bench_options *options = run->options;
    uint32_t batch = options->iterations;
    double elapsed_s = 0, began_s = now_s(), time_s = 0;
    bench_times_clear(&run->times);
    if (batch == 0) {
        batch = bench_times_next_batch(0, 0, options->seconds_per_size);
    }
    while (batch != 0) {
        for (uint32_t i = 0; i < batch; i++) {
            if (!once(run, call, operation, &time_s)) {
                return false;
            }
            bench_times_add(&run->times, time_s);
        }
        if (options->iterations != 0) {
            return true;
        }
        elapsed_s = now_s() - began_s;
        if (!agree(run, &elapsed_s, 1, COMM_MAX)) {
            return false;
        }
        batch = bench_times_next_batch(run->times.count, elapsed_s, options->seconds_per_size);
    }
    return true;
}

static bool measure(struct bench_run *run, const struct bench_call *call,
                    const struct bench_operation *operation, struct figures *out)
{
    double once_s = 0, wrong = 0;
    bench_call_fill(call, operation);
    for (int i = 0; i < WARM_UPS; i++) {
        if (!once(run, call, operation, &once_s)) {
            return false;
        }
        wrong += i == 0 ? (double)count_wrong(call, operation) : 0;
    }
    if (!repeat(run, call, operation)) {
        return false;
    }
    out->iterations = run->times.count;
    /* In place it went on from its own results, and else a buffer that nobody wrote to would look the same:
     * so once more. */
    bench_call_fill(call, operation);
    if (!once(run, call, operation, &once_s)) {
        return false;
    }
    wrong += (double)count_wrong(call, operation);
    double longest[] = {bench_times_median_s(&run->times), run->times.longest_s};
    double shortest = run->times.shortest_s;
    if (!agree(run, longest, 2, COMM_MAX) || !agree(run, &shortest, 1, COMM_MIN) ||
        !agree(run, &wrong, 1, COMM_SUM)) {
        return false;
    }
    out->time_us = longest[0] * 1e6;
    out->time_max_us = longest[1] * 1e6;
    out->time_min_us = shortest * 1e6;
    out->wrong = wrong;
    run->wrong += wrong;
    return true;
}

/* --- What is printed --- */

static void add_result(struct bench_run *run, const struct bench_operation *operation, size_t size_bytes,
                       size_t count, bool in_place, const struct figures *figures)
{
    double algbw = bench_algbw_gbs(size_bytes, figures->time_us);
    double busbw = algbw * operation->bus_factor(run->options->size);
    run->busbw_sum += operation->has_data ? busbw : 0;
    run->busbw_count += operation->has_data ? 1 : 0;
    if (run->options->json) {
        json_array_append_new(
            run->results,
            json_pack("{ss sI sI ss sb sf sf sf sf sf sI sI}", "operation", operation->name, "size_bytes",
                      (json_int_t)size_bytes, "count_elements", (json_int_t)count, "dtype",
                      dtype_text(run->options->dtype), "in_place", in_place, "time_us", figures->time_us,
                      "time_min_us", figures->time_min_us, "time_max_us", figures->time_max_us, "algbw_gbs",
                      algbw, "busbw_gbs", busbw, "wrong", (json_int_t)figures->wrong, "iterations",
                      (json_int_t)figures->iterations));
        return;
    }
    printf("  %10.1f %8.2f %8.2f %7.0f", figures->time_us, algbw, busbw, figures->wrong);
}

static void print_none(const struct bench_run *run)
{
    if (run->rank == 0 && !run->options->json) {
        printf("  %10s %8s %8s %7s", "-", "-", "-", "-");
    }
}

static void print_head(const struct bench_run *run)
{
    const struct bench_options *options = run->options;
    if (run->rank != 0 || options->json) {
        return;
    }
    printf("# communicator \"%s\": %u ranks; %s memory; sizes and bandwidths as nccl-tests count them\n",
           options->communicator, options->size, options->registered ? "registered" : "unregistered");
    printf("#%39s %21s%37s\n", "", "out of place", "in place");
    printf("#%11s %12s %10s %5s %10s %8s %8s %7s  %10s %8s %8s %7s\n", "size (B)", "count", "type", "redop",
           "time (us)", "algbw", "busbw", "#wrong", "time (us)", "algbw", "busbw", "#wrong");
}

static bool run_size(struct bench_run *run, const struct bench_operation *operation, uint64_t size_bytes)
{
    const struct bench_options *options = run->options;
    size_t element = dtype_size_bytes(options->dtype);
    struct bench_call call = {.options = options,
                              .comm = run->comm,
                              .rank = run->rank,
                              .count = bench_count(operation, size_bytes, element, options->size)};
    size_t real_bytes = bench_bytes(operation, call.count, element, options->size);
    bool prints = run->rank == 0 && !options->json;
    if (prints) {
        printf(" %11zu %12zu %10s %5s", real_bytes, call.count, dtype_text(options->dtype),
               operation->expected == NULL ? "-" : reduce_text(options->reduce));
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        struct figures figures;
        bool wanted = in_place ? options->in_place && operation->in_place
                               : options->out_of_place && operation->out_of_place;
        call.send = run->buffers[0];
        call.receive = run->buffers[1];
        if (!wanted) {
            print_none(run);
            continue;
        }
        if (in_place) {
            operation->set_in_place(&call);
        }
        if (!measure(run, &call, operation, &figures)) {
            return false;
        }
        if (run->rank == 0) {
            add_result(run, operation, real_bytes, call.count, in_place, &figures);
        }
    }
    if (prints) {
        putchar('\n');
        return fflush(stdout) == 0; /* nobody would see the rest */
    }
    return true;
}

static bool run_operation(struct bench_run *run, const struct bench_operation *operation)
{
    const struct bench_options *options = run->options;
    if (run->rank == 0 && !options->json) {
        printf("# %s\n", operation->name);
    }
    if (!operation->has_data) {
        return run_size(run, operation, 0);
    }
    for (uint64_t bytes = options->min_bytes; bytes != 0; bytes = bench_next_size(options, bytes)) {
        if (!run_size(run, operation, bytes)) {
            return false;
        }
    }
    return true;
}

static bool run_all(struct bench_run *run)
{
    const char *list = run->options->operations;
    bool all = strcmp(list, "all") == 0;
    const struct bench_operation *operation;
    print_head(run);
    for (size_t i = 0; all && (operation = bench_operation_at(i)) != NULL; i++) {
        if (!run_operation(run, operation)) {
            return false;
        }
    }
    while (!all && *list != '\0') {
        char name[64];
        size_t length = strcspn(list, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, list);
        list += length + (list[length] == ',' ? 1 : 0);
        operation = bench_operation_find(name);
        if (operation != NULL && !run_operation(run, operation)) {
            return false;
        }
    }
    return true;
}

/* --- The process --- */

static bool prepare(struct bench_run *run)
{
    const struct bench_options *options = run->options;
    comm_open_options_t open_options = COMM_OPEN_OPTIONS_INIT;
    comm_init_options_t init_options = COMM_INIT_OPTIONS_INIT;
    open_options.socket_path = options->socket_path;
    open_options.timeout_ms = options->connect_timeout_ms;
    init_options.timeout_ms = options->timeout_ms;
    init_options.op_timeout_ms = options->timeout_ms;
    size_t bytes = (size_t)options->max_bytes + (size_t)options->size * DTYPE_SIZE_MAX_BYTES;
    if (failed(run, comm_client_open(&open_options, &run->client), "connecting")) {
        run->code = run->code == EXIT_CODE_TIMED_OUT ? run->code : EXIT_CODE_NOT_RUNNING;
        return false;
    }
    if (failed(run,
               comm_init(run->client, options->communicator, run->rank, options->size, COMM_DEVICE_HOST,
                         &init_options, &run->comm),
               "joining")) {
        return false;
    }
    for (int i = 0; i < 2; i++) {
        if (options->registered &&
            failed(run, comm_mem_alloc(run->client, bytes, COMM_DEVICE_HOST, &run->buffers[i]), "memory")) {
            return false;
        }
        run->buffers[i] = options->registered ? run->buffers[i] : malloc(bytes);
        if (run->buffers[i] == NULL) {
            fprintf(stderr, "commctl: bench: rank %u: no memory for %zu bytes\n", run->rank, bytes);
            return false;
        }
        memset(run->buffers[i], 0, bytes); /* makes the pages before the measurements */
    }
    return true;
}

enum exit_code bench_rank(const struct bench_options *options, uint32_t rank)
{
    static struct bench_run run; /* one per process */
    run.options = options;
    run.rank = rank;
    run.results = json_array();
    bool fine = prepare(&run) && run_all(&run);
    if (fine && rank == 0 && options->json) {
        json_t *object =
            json_pack("{sO si}", "results", run.results, "schema_version", COMMCTL_SCHEMA_VERSION);
        json_dumpf(object, stdout, JSON_INDENT(2) | JSON_SORT_KEYS);
        putchar('\n');
        json_decref(object);
    } else if (fine && rank == 0) {
        printf("# %.0f wrong; average busbw %.2f GB/s\n", run.wrong,
               run.busbw_count > 0 ? run.busbw_sum / run.busbw_count : 0.0);
    }
    enum exit_code code = run.code != EXIT_CODE_OK ? run.code
                          : !fine || run.wrong > 0 ? EXIT_CODE_FAILURE
                                                   : EXIT_CODE_OK;
    code = output_finish(code);
    json_decref(run.results);
    (void)comm_destroy(run.comm);
    comm_client_close(run.client);
    return code;
}
