#include <pthread.h>
#include <sys/wait.h>

#include "client/lib/internal.h"
#include "tests/unit/client/gpu_pair.h"

/* WAITS = True */

/* Operations in the order of CUDA streams. */

static uint64_t submits(const struct pair *pair)
{
    return fake_daemon_counts(pair->daemon).submits;
}

static comm_result_t reduce_with(comm_t *comm, void *buffer, void *stream, comm_request_t **request)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = stream;
    options.request = request;
    return comm_all_reduce(comm, buffer, buffer, 1000, COMM_U8, COMM_SUM, &options);
}

/* The operation begins after the earlier work on the stream. Later work on the stream waits for the
 * operation. */
static void test_an_operation_in_a_stream(void **state)
{
    (void)state;
    struct fake_script script = {.op_delay_ms = 50};
    struct pair pair = pair_start(&script);
    comm_t *comm = gpu_comm(&pair, "order", 0);
    void *buffer;
    comm_request_t *request;
    cuda_stream stream = gpu_stream();
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
    struct gate gate = gate_on(stream);
    expect_ok(reduce_with(comm, buffer, stream, &request)); /* waits for nothing: the gate is closed */
    struct gate after = gate_on(stream);
    gate_open(&after);
    assert_false(request_ends(&request, 80));
    assert_int_equal(fake_daemon_counts(pair.daemon).fences, 1);
    assert_true(fake_daemon_counts(pair.daemon).ended_present);
    assert_false(stream_ends(stream, 0));
    gate_open(&gate);
    expect_request_ends(&request);
    expect_stream_ends(stream);
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

/* The stream goes on when commd says so, even if nobody takes the completion. */
static void test_a_stream_needs_no_thread(void **state)
{
    (void)state;
    struct fake_script script = {.holds_ops = true};
    struct pair pair = pair_start(&script);
    comm_t *comm = gpu_comm(&pair, "no-thread", 0);
    void *buffer;
    cuda_stream stream = gpu_stream();
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
    for (int i = 0; i < 3; i++) {
        expect_ok(reduce_on(comm, buffer, 1000, stream));
    }
    assert_false(stream_ends(stream, 10));
    fake_daemon_set(pair.daemon, &(struct fake_script){0});
    expect_stream_ends(stream);
    expect_ok(comm_sync(comm, 0));
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

/* Null is the legacy default stream of the communicator's GPU. Blocking streams wait for it, too. */
static void test_the_default_stream(void **state)
{
    (void)state;
    struct fake_script script = {.holds_ops = true};
    struct pair pair = pair_start(&script);
    comm_t *comm = gpu_comm(&pair, "default", 0);
    void *buffer;
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
    expect_ok(comm_all_reduce(comm, buffer, buffer, 1000, COMM_U8, COMM_SUM, NULL));
    assert_false(stream_ends(NULL, 5));
    fake_daemon_set(pair.daemon, &(struct fake_script){0});
    expect_stream_ends(NULL);
    /* COMM_STREAM_NONE: the operation is ordered against nothing. */
    struct gate gate = gate_on(NULL);
    expect_ok(reduce_on(comm, buffer, 1000, COMM_STREAM_NONE));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).fences, 0);
    assert_false(fake_daemon_counts(pair.daemon).ended_present);
    gate_open(&gate);
    comm_t *host = pair_comm(&pair, "host", 0, 1);
    static unsigned char plain[1000];
    expect_ok(reduce_on(host, plain, 1000, COMM_STREAM_NONE));
    assert_int_equal(reduce_on(host, plain, 1000, &plain), COMM_UNSUPPORTED);
    expect_ok(comm_sync(host, 0));
    expect_ok(comm_barrier(comm, NULL));
    pair_stop(&pair);
}

/* Nothing of a group is submitted before its end. Then all of it is submitted, before a stream waits. */
static void test_groups_in_streams(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "group", 0);
    void *buffer;
    cuda_stream streams[] = {gpu_stream(), gpu_stream()};
    comm_request_t *requests[40];
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
    expect_ok(comm_group_begin());
    for (int i = 0; i < 40; i++) {
        expect_ok(reduce_with(comm, buffer, streams[i % 2], &requests[i]));
    }
    /* The group does not wait for work that comes on the stream after the call and before the group's end. */
    struct gate gate = gate_on(streams[0]);
    assert_int_equal(submits(&pair), 0);
    expect_ok(comm_group_end());
    expect_ok(comm_wait_all(requests, 40, NULL));
    assert_int_equal(submits(&pair), 40);
    expect_stream_ends(streams[1]);
    gate_open(&gate);
    expect_stream_ends(streams[0]);
    /* More operations than one message can hold. */
    expect_ok(comm_group_begin());
    for (int i = 0; i < 500; i++) {
        expect_ok(reduce_on(comm, buffer, 10, streams[0]));
    }
    expect_ok(comm_group_end());
    /* It ends although the fake daemon stands still: the program does not take so many completions. */
    expect_stream_ends(streams[0]);
    expect_ok(comm_sync(comm, 0));
    GPU_OK(cuda->stream_destroy(streams[0]));
    GPU_OK(cuda->stream_destroy(streams[1]));
    pair_stop(&pair);
}

static void test_persistent_operations_in_streams(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "persistent", 0);
    void *buffer;
    comm_request_t *request;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    cuda_stream stream = gpu_stream();
    options.stream = stream;
    options.request = &request;
    options.persistent = 1;
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
    expect_ok(comm_all_reduce(comm, buffer, buffer, 10, COMM_U8, COMM_SUM, &options));
    for (int i = 0; i < 3; i++) {
        struct gate gate = gate_on(stream);
        expect_ok(comm_start(request));
        assert_int_equal(comm_start(request), COMM_IN_PROGRESS);
        assert_false(request_ends(&request, 5));
        gate_open(&gate);
        expect_ok(comm_wait(&request, NULL));
        expect_stream_ends(stream);
    }
    comm_request_free(request);
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

/* Whatever the result, the stream goes on. */
static void test_failures_let_go_of_streams(void **state)
{
    (void)state;
    struct fake_script script = {.action = FAKE_FAIL,
                                 .action_at_op = 1,
                                 .op_status = STATUS_MISMATCH,
                                 .op_text = "rank 1 wants something else"};
    struct pair pair = pair_start(&script);
    comm_t *comm = gpu_comm(&pair, "failures", 0);
    void *buffer;
    cuda_stream stream = gpu_stream();
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
    expect_ok(reduce_on(comm, buffer, 10, stream));
    expect_stream_ends(stream);
    assert_int_equal(comm_sync(comm, 0), COMM_MISMATCH);
    /* The library refuses the operation: nothing waits. */
    cuda_pointer managed;
    GPU_OK(beyond.alloc_managed(&managed, 4096, CUDA_ATTACH_GLOBAL));
    assert_int_equal(reduce_on(comm, gpu_address(managed), 10, stream), COMM_UNSUPPORTED);
    expect_stream_ends(stream);
    /* commd never ends the operation, and the communicator is left. */
    script = (struct fake_script){.action = FAKE_NO_WORD, .action_at_op = 1};
    fake_daemon_set(pair.daemon, &script);
    expect_ok(reduce_on(comm, buffer, 10, stream));
    assert_false(stream_ends(stream, 20));
    comm_destroy(comm);
    expect_stream_ends(stream);
    /* The driver fails at one of the calls of a submission. */
    comm = gpu_comm(&pair, "driver", 0);
    beyond.inject("cuStreamWriteValue64_v2:1=999");
    assert_int_equal(reduce_on(comm, buffer, 10, stream), COMM_DEVICE);
    assert_error_says("cuStreamWriteValue64_v2");
    beyond.inject("cuStreamWaitValue64_v2:1=999");
    fake_daemon_set(pair.daemon, &(struct fake_script){.op_delay_ms = 20});
    assert_int_equal(reduce_on(comm, buffer, 10, stream), COMM_DEVICE);
    assert_error_says("was submitted");
    beyond.inject(NULL);
    expect_stream_ends(stream);
    expect_ok(comm_sync(comm, 0));
    expect_ok(reduce_on(comm, buffer, 10, stream));
    expect_stream_ends(stream);
    GPU_OK(cuda->memory_free(managed));
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

/* commd dies while a stream waits for it: the stream goes on, and the next call says why. */
static void test_the_daemon_dies(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct fake_script script = {.op_delay_ms = 60000};
        struct pair pair = pair_start(&script);
        comm_t *comm = gpu_comm(&pair, "dies", 0);
        comm_event_t *event;
        void *buffer;
        cuda_stream stream = gpu_stream(), second = gpu_stream();
        expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
        expect_ok(comm_event_create(pair.client, &event));
        for (int i = 0; i < 5; i++) {
            expect_ok(reduce_on(comm, buffer, 10, stream));
        }
        expect_ok(comm_event_record_comm(event, comm));
        expect_ok(comm_event_wait(event, second));
        assert_false(stream_ends(stream, 20));
        assert_false(stream_ends(second, 20));
        fake_daemon_stop(pair.daemon);
        expect_stream_ends(stream);
        expect_stream_ends(second);
        comm_result_t result = kind == 0   ? reduce_on(comm, buffer, 10, stream)
                               : kind == 1 ? comm_sync(comm, 0)
                                           : comm_event_wait_comm(event, comm);
        if (kind < 2) {
            assert_int_equal(result, COMM_DAEMON_LOST);
            assert_error_says("commd closed the connection");
        }
        assert_int_equal(comm_event_create(pair.client, &event), COMM_DAEMON_LOST);
        expect_stream_ends(stream);
        comm_client_close(pair.client);
        GPU_OK(cuda->stream_destroy(stream));
        GPU_OK(cuda->stream_destroy(second));
    }
}

static void test_captures_are_refused(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "capture", 0);
    void *buffer;
    comm_event_t *event;
    cuda_graph graph;
    cuda_stream stream = gpu_stream();
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
    expect_ok(comm_event_create(pair.client, &event));
    GPU_OK(beyond.begin_capture(stream, CUDA_CAPTURE_MODE_THREAD_LOCAL));
    assert_int_equal(reduce_on(comm, buffer, 10, stream), COMM_UNSUPPORTED);
    assert_error_says("the stream is being captured");
    assert_int_equal(comm_event_record(event, stream), COMM_UNSUPPORTED);
    assert_int_equal(submits(&pair), 0);
    GPU_OK(beyond.end_capture(stream, &graph)); /* not invalidated */
    GPU_OK(beyond.graph_destroy(graph));
    beyond.inject("cuStreamGetCaptureInfo_v2:1=908");
    assert_int_equal(reduce_on(comm, buffer, 10, stream), COMM_UNSUPPORTED);
    assert_error_says("a stream is being captured");
    beyond.inject("cuStreamGetCaptureInfo_v2:1=909"); /* CUDA_ERROR_TIMEOUT */
    assert_int_equal(reduce_on(comm, buffer, 10, stream), COMM_DEVICE);
    beyond.inject("cuStreamGetCtx:1=999");
    assert_int_equal(reduce_on(comm, buffer, 10, stream), COMM_DEVICE);
    assert_error_says("cuStreamGetCtx");
    beyond.inject(NULL);
    expect_ok(reduce_on(comm, buffer, 10, stream));
    expect_stream_ends(stream);
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

/* Slots of words are used again. They also serve the next client of the process, while streams still hold
 * work of the one before. */
static void test_words_serve_again(void **state)
{
    (void)state;
    cuda_stream stream = gpu_stream();
    cuda_pointer memory = gpu_alloc(2 * MIB);
    for (int round = 0; round < 3; round++) {
        struct pair pair = pair_start(NULL);
        comm_t *comm = gpu_comm(&pair, "words", 0);
        void *buffer = gpu_address(memory);
        for (int i = 0; i < 1200; i++) {
            expect_ok(reduce_on(comm, buffer, 10, stream));
            if (i % 100 == 99) {
                expect_ok(comm_sync(comm, 0));
            }
        }
        expect_stream_ends(stream);
        assert_int_equal(fake_daemon_counts(pair.daemon).registered, 2); /* the buffer, and the words */
        struct gate gate = gate_on(stream);
        fake_daemon_set(pair.daemon, &(struct fake_script){.op_delay_ms = 2000});
        expect_ok(reduce_on(comm, buffer, 10, stream));
        comm_client_close(pair.client);
        fake_daemon_stop(pair.daemon);
        gate_open(&gate);
        expect_stream_ends(stream);
    }
    GPU_OK(cuda->memory_free(memory));
    GPU_OK(cuda->stream_destroy(stream));
}

/* A send and a receive of one call do not wait for each other in their stream. */
static void test_send_recv_is_one(void **state)
{
    (void)state;
    struct fake_script script = {0};
    struct pair pair = pair_start(&script);
    comm_t *comm = gpu_comm(&pair, "send-recv", 0);
    void *buffer;
    cuda_stream stream = gpu_stream();
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = stream;
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
    expect_ok(comm_send_recv(comm, buffer, 10, 0, (char *)buffer + 100, 10, 0, COMM_U8, 1, &options));
    assert_int_equal(submits(&pair), 2);
    expect_stream_ends(stream);
    assert_int_equal(comm_send_recv(comm, buffer, 10, 7, (char *)buffer + 100, 10, 0, COMM_U8, 1, &options),
                     COMM_INVALID_ARGUMENT);
    assert_int_equal(submits(&pair), 2); /* the receive was not submitted either */
    expect_stream_ends(stream);
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

struct worker {
    pthread_t thread;
    comm_t *comm;
    unsigned char *buffer;
    const char *problem;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    cuda_context context;
    cuda_stream stream;
    if (cuda->context_retain(&context, 0) != CUDA_RESULT_OK || cuda->context_set(context) != CUDA_RESULT_OK ||
        cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING, 0) != CUDA_RESULT_OK) {
        worker->problem = "no stream";
        return NULL;
    }
    for (int i = 0; i < 300; i++) {
        if (reduce_on(worker->comm, worker->buffer, 1000, stream) != COMM_OK) {
            worker->problem = "not submitted";
        }
    }
    if (cuda->stream_synchronize(stream) != CUDA_RESULT_OK) {
        worker->problem = "stream";
    }
    (void)cuda->stream_destroy(stream);
    (void)cuda->context_release(0);
    return NULL;
}

static void test_streams_of_many_threads(void **state)
{
    (void)state;
    enum { THREADS = 6 };
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "threads", 0);
    struct worker workers[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        void *buffer;
        expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
        workers[i] = (struct worker){.comm = comm, .buffer = buffer};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_null(workers[i].problem);
    }
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(submits(&pair), THREADS * 300);
    pair_stop(&pair);
}

/* A child process has no watchdog and must not touch its parent's client. Closing it in the child does no
 * harm. */
static void test_after_fork(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "fork", 0);
    void *buffer;
    comm_event_t *event;
    cuda_stream stream = gpu_stream();
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &buffer));
    expect_ok(comm_event_create(pair.client, &event));
    expect_ok(reduce_on(comm, buffer, 10, stream));
    pid_t pid = fork();
    if (pid == 0) {
        bool fine = comm_event_record(event, NULL) == COMM_INVALID_ARGUMENT &&
                    comm_sync(comm, 0) == COMM_INVALID_ARGUMENT;
        comm_event_destroy(event);
        comm_client_close(pair.client);
        _exit(fine ? 0 : 1);
    }
    int status = 1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    expect_ok(reduce_on(comm, buffer, 10, stream));
    expect_stream_ends(stream);
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_operation_in_a_stream),
        cmocka_unit_test(test_a_stream_needs_no_thread),
        cmocka_unit_test(test_the_default_stream),
        cmocka_unit_test(test_groups_in_streams),
        cmocka_unit_test(test_persistent_operations_in_streams),
        cmocka_unit_test(test_failures_let_go_of_streams),
        cmocka_unit_test(test_the_daemon_dies),
        cmocka_unit_test(test_captures_are_refused),
        cmocka_unit_test(test_words_serve_again),
        cmocka_unit_test(test_send_recv_is_one),
        cmocka_unit_test(test_streams_of_many_threads),
        cmocka_unit_test(test_after_fork),
    };
    return cmocka_run_group_tests(tests, gpu_setup, gpu_teardown);
}
