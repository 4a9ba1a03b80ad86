#include <pthread.h>

#include "client/lib/internal.h"
#include "tests/unit/client/gpu_pair.h"

/* WAITS = True */

/* Events between streams, communicators and the calling thread, in all combinations. */

struct set {
    struct pair pair;
    comm_t *comm;
    void *buffer;
    cuda_stream stream;
    cuda_stream other;
    comm_event_t *event;
};

static struct set set_make(const struct fake_script *script)
{
    struct set set = {.pair = pair_start(script), .stream = gpu_stream(), .other = gpu_stream()};
    set.comm = gpu_comm(&set.pair, "events", 0);
    expect_ok(comm_mem_alloc(set.pair.client, 1, 0, &set.buffer));
    expect_ok(comm_event_create(set.pair.client, &set.event));
    return set;
}

static void set_free(struct set *set)
{
    comm_event_destroy(set->event);
    pair_stop(&set->pair);
    GPU_OK(cuda->stream_destroy(set->stream));
    GPU_OK(cuda->stream_destroy(set->other));
}

static comm_result_t start(struct set *set, comm_request_t **request)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = COMM_STREAM_NONE;
    options.request = request;
    return comm_all_reduce(set->comm, set->buffer, set->buffer, 10, COMM_U8, COMM_SUM, &options);
}

static void test_never_recorded_is_reached(void **state)
{
    (void)state;
    struct set set = set_make(NULL);
    comm_request_t *request;
    expect_ok(comm_event_wait(set.event, set.stream));
    expect_ok(comm_event_wait(set.event, COMM_STREAM_NONE));
    expect_ok(comm_event_wait_comm(set.event, set.comm));
    expect_stream_ends(set.stream);
    expect_ok(start(&set, &request));
    expect_ok(comm_wait(&request, NULL));
    set_free(&set);
}

static void test_stream_waits_for_stream(void **state)
{
    (void)state;
    struct set set = set_make(NULL);
    struct gate gate = gate_on(set.stream);
    expect_ok(comm_event_record(set.event, set.stream));
    expect_ok(comm_event_wait(set.event, set.other));
    assert_false(stream_ends(set.other, 20));
    gate_open(&gate);
    expect_stream_ends(set.other);
    set_free(&set);
}

static void test_comm_waits_for_stream(void **state)
{
    (void)state;
    struct set set = set_make(NULL);
    comm_request_t *first, *second;
    struct gate gate = gate_on(set.stream);
    expect_ok(comm_event_record(set.event, set.stream));
    expect_ok(comm_event_wait_comm(set.event, set.comm));
    comm_event_destroy(set.event); /* a wait that has begun goes on */
    expect_ok(start(&set, &first));
    expect_ok(start(&set, &second)); /* all later operations wait, not only the next */
    assert_false(request_ends(&second, 20));
    assert_int_equal(fake_daemon_counts(set.pair.daemon).fences, 1);
    gate_open(&gate);
    expect_ok(comm_wait(&first, NULL));
    expect_ok(comm_wait(&second, NULL));
    expect_ok(start(&set, &first));
    expect_ok(comm_wait(&first, NULL));
    assert_int_equal(fake_daemon_counts(set.pair.daemon).fences, 0);
    set.event = NULL;
    set_free(&set);
}

static void test_stream_waits_for_comm(void **state)
{
    (void)state;
    struct fake_script script = {.holds_ops = true};
    struct set set = set_make(&script);
    comm_request_t *request;
    expect_ok(start(&set, &request));
    expect_ok(comm_event_record_comm(set.event, set.comm));
    expect_ok(comm_event_wait(set.event, set.stream));
    assert_false(stream_ends(set.stream, 5));
    fake_daemon_set(set.pair.daemon, &(struct fake_script){0});
    expect_stream_ends(set.stream);
    assert_int_equal(fake_daemon_counts(set.pair.daemon).records, 1);
    expect_ok(comm_wait(&request, NULL));
    set_free(&set);
}

static void test_comm_waits_for_comm(void **state)
{
    (void)state;
    struct fake_script script = {.holds_ops = true};
    struct set set = set_make(&script);
    comm_t *first = set.comm, *second = gpu_comm(&set.pair, "second", 0);
    comm_request_t *requests[2];
    expect_ok(start(&set, &requests[0]));
    expect_ok(comm_event_record_comm(set.event, first));
    expect_ok(comm_event_wait_comm(set.event, second));
    set.comm = second;
    expect_ok(start(&set, &requests[1]));
    assert_int_equal(request_ends(&requests[1], 5), 0);
    fake_daemon_set(set.pair.daemon, &(struct fake_script){0});
    expect_ok(comm_wait_all(requests, 2, NULL));
    set_free(&set);
}

/* The thread waits with COMM_STREAM_NONE. What it records with COMM_STREAM_NONE is reached at once. */
static void test_the_thread_waits(void **state)
{
    (void)state;
    struct fake_script script = {.op_delay_ms = 30};
    struct set set = set_make(&script);
    comm_request_t *request;
    uint64_t began_ns = clock_ns();
    expect_ok(start(&set, &request));
    expect_ok(comm_event_record_comm(set.event, set.comm));
    expect_ok(comm_event_wait(set.event, COMM_STREAM_NONE));
    assert_true(clock_ns() - began_ns >= 30u * 1000000u);
    expect_ok(comm_wait(&request, NULL));
    expect_ok(comm_event_record(set.event, COMM_STREAM_NONE));
    expect_ok(comm_event_wait(set.event, set.stream));
    expect_stream_ends(set.stream);
    set_free(&set);
}

/* sync_stream waits for events that the communicator waits for, too. */
static void test_sync_stream(void **state)
{
    (void)state;
    struct fake_script script = {.op_delay_ms = 20};
    struct set set = set_make(&script);
    uint64_t began_ns = clock_ns();
    expect_ok(reduce_now(set.comm, set.buffer, set.buffer, 10));
    expect_ok(comm_sync_stream(set.comm, 0));
    assert_true(clock_ns() - began_ns >= 20u * 1000000u);
    struct gate gate = gate_on(set.stream);
    expect_ok(comm_event_record(set.event, set.stream));
    expect_ok(comm_event_wait_comm(set.event, set.comm));
    assert_int_equal(comm_sync_stream(set.comm, 30), COMM_TIMED_OUT);
    gate_open(&gate);
    expect_ok(comm_sync_stream(set.comm, 0));
    set_free(&set);
}

/* As in CUDA: a record replaces the one before. Whoever waited for that one goes on waiting for it. */
static void test_recorded_again(void **state)
{
    (void)state;
    struct set set = set_make(NULL);
    cuda_stream third = gpu_stream();
    struct gate slow = gate_on(set.stream);
    expect_ok(comm_event_record(set.event, set.stream));
    expect_ok(comm_event_wait(set.event, third));
    expect_ok(comm_event_record(set.event, set.other)); /* before the first is reached */
    expect_ok(comm_event_wait(set.event, COMM_STREAM_NONE));
    assert_false(stream_ends(third, 20));
    gate_open(&slow);
    expect_stream_ends(third);
    expect_stream_ends(set.stream);
    expect_ok(comm_event_wait(set.event, third)); /* still reached */
    expect_stream_ends(third);
    for (int i = 0; i < 500; i++) {
        expect_ok(comm_event_record(set.event, i % 2 == 0 ? set.stream : set.other));
        expect_ok(comm_event_wait(set.event, i % 2 == 0 ? set.other : set.stream));
    }
    expect_stream_ends(set.stream);
    expect_stream_ends(set.other);
    GPU_OK(cuda->stream_destroy(third));
    set_free(&set);
}

/* Events beyond those that an operation can name are combined into one. */
static void test_many_waits(void **state)
{
    (void)state;
    enum { EVENTS = 40 };
    struct set set = set_make(NULL);
    comm_event_t *events[EVENTS];
    cuda_stream streams[EVENTS];
    struct gate gates[EVENTS];
    comm_request_t *request;
    for (int i = 0; i < EVENTS; i++) {
        streams[i] = gpu_stream();
        gates[i] = gate_on(streams[i]);
        expect_ok(comm_event_create(set.pair.client, &events[i]));
        expect_ok(comm_event_record(events[i], streams[i]));
        expect_ok(comm_event_wait_comm(events[i], set.comm));
        expect_ok(comm_event_wait_comm(events[i], set.comm)); /* twice is once */
        comm_event_destroy(events[i]);
    }
    expect_ok(start(&set, &request));
    assert_true(fake_daemon_counts(set.pair.daemon).fences <= CLIENT_FENCES_MAX);
    for (int i = 0; i < EVENTS; i++) {
        assert_false(request_ends(&request, 0));
        gate_open(&gates[i]);
    }
    expect_ok(comm_wait(&request, NULL));
    for (int i = 0; i < EVENTS; i++) {
        GPU_OK(cuda->stream_destroy(streams[i]));
    }
    set_free(&set);
}

/* commd keeps a limited number of records of a rank. Further records wait for the first of them. */
static void test_many_records(void **state)
{
    (void)state;
    struct set set = set_make(NULL);
    comm_event_t *event;
    for (unsigned i = 0; i < 3 * RECORDS_MAX; i++) {
        expect_ok(comm_event_create(set.pair.client, &event));
        expect_ok(comm_event_record_comm(event, set.comm));
        comm_event_destroy(event);
    }
    expect_ok(comm_event_record_comm(set.event, set.comm));
    expect_ok(comm_event_wait(set.event, COMM_STREAM_NONE));
    assert_int_equal(fake_daemon_counts(set.pair.daemon).records, 3 * RECORDS_MAX + 1);
    set_free(&set);
}

/* The seven steps: computing and communicating overlap, and no step waits. */
static void test_seven_steps(void **state)
{
    (void)state;
    struct fake_script script = {.op_delay_ms = 50};
    struct set set = set_make(&script);
    comm_event_t *event;
    struct gate gate = gate_on(set.stream);                /* the computation */
    expect_ok(comm_event_create(set.pair.client, &event)); /* no call waits: the gate is closed */
    expect_ok(comm_event_record(event, set.stream));
    expect_ok(comm_event_wait_comm(event, set.comm));
    expect_ok(reduce_now(set.comm, set.buffer, set.buffer, 1000));
    expect_ok(comm_event_record_comm(event, set.comm));
    expect_ok(comm_event_wait(event, set.stream));
    comm_event_destroy(event);
    assert_false(stream_ends(set.stream, 70));
    gate_open(&gate);
    expect_stream_ends(set.stream);
    expect_ok(comm_sync_stream(set.comm, 0));
    set_free(&set);
}

/* A stream belongs to the GPU on which it was made, whichever GPU is current. The driver refuses it on
 * others. */
static void test_streams_of_other_gpus(void **state)
{
    (void)state;
    struct set set = set_make(NULL);
    comm_t *beyond_it = gpu_comm(&set.pair, "beyond", 1);
    comm_request_t *request;
    cuda_context contexts[GPU_DEVICES], now = NULL;
    GPU_OK(cuda->context_get(&contexts[0]));
    GPU_OK(cuda->context_retain(&contexts[1], 1));
    GPU_OK(cuda->context_set(contexts[1]));
    cuda_stream there = gpu_stream(), there_too = gpu_stream();
    struct gate gate = gate_on(there);
    for (int current = 0; current < GPU_DEVICES + 1; current++) {
        GPU_OK(cuda->context_set(current < GPU_DEVICES ? contexts[current] : NULL));
        expect_ok(comm_event_record(set.event, there));
        expect_ok(comm_event_wait(set.event, set.stream)); /* of GPU 0 */
        expect_ok(comm_event_wait(set.event, there_too));
        expect_ok(comm_event_record(set.event, set.stream));
        expect_ok(comm_event_wait(set.event, set.other));
        /* The communicator's own GPU is the buffers' GPU. */
        expect_ok(reduce_on(set.comm, set.buffer, 10, there));
        expect_ok(reduce_on(beyond_it, NULL, 0, set.other));
        GPU_OK(cuda->context_get(&now));
        assert_ptr_equal(now, current < GPU_DEVICES ? contexts[current] : NULL);
    }
    expect_ok(start(&set, &request));
    GPU_OK(cuda->context_set(contexts[1]));
    assert_false(stream_ends(there_too, 20));
    GPU_OK(cuda->context_set(contexts[0]));
    assert_false(stream_ends(set.other, 0));
    gate_open(&gate);
    expect_stream_ends(set.other);
    expect_stream_ends(set.stream);
    expect_ok(comm_wait(&request, NULL));
    GPU_OK(cuda->context_set(contexts[1]));
    expect_stream_ends(there);
    expect_stream_ends(there_too);
    GPU_OK(cuda->stream_destroy(there));
    GPU_OK(cuda->stream_destroy(there_too));
    GPU_OK(cuda->context_release(1));
    GPU_OK(cuda->context_set(contexts[0]));
    set_free(&set);
}

/* The same without a GPU. */
static void test_on_the_host(void **state)
{
    (void)state;
    struct fake_script script = {.op_delay_ms = 30};
    struct pair pair = pair_start(&script);
    comm_t *comm = pair_comm(&pair, "host", 0, 1);
    static unsigned char data[1000];
    comm_event_t *event;
    uint64_t began_ns = clock_ns();
    fill_bytes(data, sizeof data, 3);
    expect_ok(comm_event_create(pair.client, &event));
    expect_ok(comm_event_wait(event, NULL));
    expect_ok(comm_event_record(event, NULL));
    expect_ok(comm_event_wait_comm(event, comm));
    expect_ok(comm_all_reduce(comm, data, data, sizeof data, COMM_U8, COMM_SUM, NULL));
    expect_ok(comm_event_record_comm(event, comm));
    expect_ok(comm_event_wait(event, NULL));
    assert_true(clock_ns() - began_ns >= 30u * 1000000u);
    expect_ok(comm_sync_stream(comm, 0));
    assert_reduced(data, sizeof data, 3);
    assert_int_equal(comm_event_record(event, data), COMM_UNSUPPORTED);
    assert_error_says("no communicator on a GPU");
    assert_int_equal(comm_event_wait(event, data), COMM_UNSUPPORTED);
    /* A GPU that comes later knows the words of events, too. */
    comm_t *gpu = gpu_comm(&pair, "gpu", 0);
    cuda_stream stream = gpu_stream();
    struct gate gate = gate_on(stream);
    expect_ok(comm_event_record(event, stream));
    gate_open(&gate);
    expect_ok(comm_event_wait(event, COMM_STREAM_NONE));
    comm_destroy(gpu);
    comm_event_destroy(event);
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

/* commd is silent: the wait ends at its deadline. */
static void test_a_silent_daemon(void **state)
{
    (void)state;
    struct fake_script script = {.action = FAKE_STOP_READING, .action_at_op = 1};
    struct pair pair = pair_start(&script);
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    comm_t *comm;
    comm_event_t *event;
    unsigned char byte = 1;
    options.op_timeout_ms = 1;
    expect_ok(comm_init(pair.client, "silent", 0, 1, COMM_DEVICE_HOST, &options, &comm));
    expect_ok(comm_event_create(pair.client, &event));
    expect_ok(comm_all_reduce(comm, &byte, &byte, 1, COMM_U8, COMM_SUM, NULL));
    expect_ok(comm_event_record_comm(event, comm));
    assert_int_equal(comm_event_wait(event, NULL), COMM_TIMED_OUT);
    assert_error_says("comm_event_wait");
    pair_stop(&pair);
}

static void test_arguments(void **state)
{
    (void)state;
    struct set set = set_make(NULL);
    struct pair other = pair_start(NULL);
    comm_event_t *event = set.event;
    assert_int_equal(comm_event_create(NULL, &event), COMM_INVALID_ARGUMENT);
    assert_null(event);
    assert_int_equal(comm_event_create(set.pair.client, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_event_record(NULL, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_event_wait(NULL, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_event_record_comm(NULL, set.comm), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_event_wait_comm(set.event, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_sync_stream(NULL, 0), COMM_INVALID_ARGUMENT);
    expect_ok(comm_event_create(other.client, &event));
    assert_int_equal(comm_event_record_comm(event, set.comm), COMM_INVALID_ARGUMENT);
    assert_error_says("belong to different clients");
    assert_int_equal(comm_event_wait_comm(event, set.comm), COMM_INVALID_ARGUMENT);
    expect_ok(comm_group_begin());
    assert_int_equal(comm_event_record_comm(set.event, set.comm), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_sync_stream(set.comm, 0), COMM_INVALID_ARGUMENT);
    expect_ok(comm_group_end());
    comm_event_destroy(NULL);
    pair_stop(&other); /* frees its event */
    set_free(&set);
}

static char failure[ERROR_TEXT_BYTES];

static void *record_and_wait(void *argument)
{
    struct set *set = argument;
    for (int i = 0; i < 300; i++) {
        if (comm_event_record_comm(set->event, set->comm) != COMM_OK ||
            comm_event_wait(set->event, set->stream) != COMM_OK ||
            comm_event_record(set->event, set->other) != COMM_OK ||
            comm_event_wait_comm(set->event, set->comm) != COMM_OK ||
            reduce_now(set->comm, set->buffer, set->buffer, 10) != COMM_OK) {
            (void)snprintf(failure, sizeof failure, "%s", comm_last_error());
            return failure;
        }
    }
    return NULL;
}

static void test_one_event_of_many_threads(void **state)
{
    (void)state;
    struct set set = set_make(NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, record_and_wait, &set), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *problem;
        assert_int_equal(pthread_join(threads[i], &problem), 0);
        if (problem != NULL) {
            fail_msg("%s", (const char *)problem);
        }
    }
    expect_ok(comm_sync_stream(set.comm, 0));
    expect_stream_ends(set.stream);
    expect_stream_ends(set.other);
    set_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_recorded_is_reached),
        cmocka_unit_test(test_stream_waits_for_stream),
        cmocka_unit_test(test_comm_waits_for_stream),
        cmocka_unit_test(test_stream_waits_for_comm),
        cmocka_unit_test(test_comm_waits_for_comm),
        cmocka_unit_test(test_the_thread_waits),
        cmocka_unit_test(test_sync_stream),
        cmocka_unit_test(test_recorded_again),
        cmocka_unit_test(test_many_waits),
        cmocka_unit_test(test_many_records),
        cmocka_unit_test(test_seven_steps),
        cmocka_unit_test(test_streams_of_other_gpus),
        cmocka_unit_test(test_on_the_host),
        cmocka_unit_test(test_a_silent_daemon),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_one_event_of_many_threads),
    };
    return cmocka_run_group_tests(tests, gpu_setup, gpu_teardown);
}
