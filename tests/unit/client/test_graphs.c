#include "client/lib/internal.h"
#include "tests/unit/client/gpu_pair.h"

/* The library's part in operations of CUDA graphs. The fake daemon keeps these operations, but runs none. */

static const struct fake_script takes_graphs = {.graphs = true};

static comm_result_t reduce(comm_t *comm, void *buffer, cuda_stream stream)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = stream;
    return comm_all_reduce(comm, buffer, buffer, 100, COMM_U8, COMM_SUM, &options);
}

struct capture {
    struct pair pair;
    comm_t *comm;
    void *buffer;
    cuda_stream stream;
};

static struct capture capture_start(const struct fake_script *script, int mode)
{
    struct capture capture = {.pair = pair_start(script)};
    capture.comm = gpu_comm(&capture.pair, "graphs", 0);
    expect_ok(comm_mem_alloc(capture.pair.client, 100, 0, &capture.buffer));
    capture.stream = gpu_stream();
    GPU_OK(beyond.begin_capture(capture.stream, mode));
    return capture;
}

static cuda_graph_exec capture_end(const struct capture *capture)
{
    cuda_graph graph;
    cuda_graph_exec exec;
    GPU_OK(beyond.end_capture(capture->stream, &graph));
    GPU_OK(beyond.graph_instantiate(&exec, graph, 0));
    GPU_OK(beyond.graph_destroy(graph));
    return exec;
}

static uint32_t comms(const struct capture *capture)
{
    return fake_daemon_counts(capture->pair.daemon).comms;
}

static void await_comms(const struct capture *capture, uint32_t count)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (int i = 0; comms(capture) != count; i++) {
        assert_true(i < 5000);
        (void)nanosleep(&pause, NULL);
    }
}

/* A capture makes one part of the communicator, which ends with the last executable of the graph. */
static void test_a_graph_and_its_part(void **state)
{
    (void)state;
    struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_GLOBAL);
    for (int i = 0; i < 5; i++) {
        expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    }
    assert_int_equal(fake_daemon_counts(capture.pair.daemon).captured, 5);
    assert_int_equal(fake_daemon_counts(capture.pair.daemon).submits, 0);
    assert_int_equal(comms(&capture), 2);
    cuda_graph_exec first = capture_end(&capture);
    GPU_OK(beyond.begin_capture(capture.stream, CUDA_CAPTURE_MODE_RELAXED));
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    cuda_graph_exec second = capture_end(&capture);
    assert_int_equal(comms(&capture), 3);
    GPU_OK(beyond.graph_exec_destroy(first));
    await_comms(&capture, 2);
    GPU_OK(beyond.graph_exec_destroy(second));
    await_comms(&capture, 1);
    expect_ok(comm_sync(capture.comm, 0));
    pair_stop(&capture.pair);
}

/* Slots of destroyed graphs serve again: many graphs need no more memory for words than one. */
static void test_slots_serve_again(void **state)
{
    (void)state;
    struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_THREAD_LOCAL);
    uint64_t registered = 0;
    for (int i = 0; i < 150; i++) {
        for (int op = 0; op < 20; op++) {
            expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
        }
        GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
        await_comms(&capture, 1);
        registered = i == 0 ? fake_daemon_counts(capture.pair.daemon).registered : registered;
        GPU_OK(beyond.begin_capture(capture.stream, CUDA_CAPTURE_MODE_THREAD_LOCAL));
    }
    assert_int_equal(fake_daemon_counts(capture.pair.daemon).registered, registered);
    GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream)); /* and for operations of the program */
    expect_stream_ends(capture.stream);
    pair_stop(&capture.pair);
}

static void expect_replay(const struct capture *capture, cuda_graph_exec exec)
{
    for (int i = 0; i < 3; i++) {
        GPU_OK(beyond.graph_launch(exec, capture->stream));
        expect_stream_ends(capture->stream);
    }
}

/* Even if commd or the client is gone, no replay waits for ever. */
static void test_replays_without_commd(void **state)
{
    (void)state;
    struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_GLOBAL);
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    cuda_graph_exec exec = capture_end(&capture);
    GPU_OK(beyond.graph_launch(exec, capture.stream));
    assert_false(stream_ends(capture.stream, 20));
    comm_destroy(capture.comm);
    expect_stream_ends(capture.stream);
    expect_replay(&capture, exec);
    comm_client_close(capture.pair.client);
    expect_replay(&capture, exec);
    fake_daemon_stop(capture.pair.daemon);
    expect_replay(&capture, exec);
    GPU_OK(beyond.graph_exec_destroy(exec));

    capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_GLOBAL);
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    exec = capture_end(&capture);
    GPU_OK(beyond.graph_launch(exec, capture.stream));
    assert_false(stream_ends(capture.stream, 20));
    fake_daemon_stop(capture.pair.daemon);
    expect_stream_ends(capture.stream);
    expect_replay(&capture, exec);
    assert_int_equal(comm_sync(capture.comm, 0), COMM_DAEMON_LOST);
    GPU_OK(beyond.graph_exec_destroy(exec));
    comm_client_close(capture.pair.client);
}

/* A refused call leaves the capture as it was. */
static void test_refused(void **state)
{
    (void)state;
    struct fake_script script = {0};
    struct capture capture = capture_start(&script, CUDA_CAPTURE_MODE_GLOBAL);
    assert_int_equal(reduce(capture.comm, capture.buffer, capture.stream), COMM_UNSUPPORTED);
    assert_error_says("this commd is too old");
    GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
    pair_stop(&capture.pair);

    script = (struct fake_script){.graphs = true, .refuses_captures = true};
    capture = capture_start(&script, CUDA_CAPTURE_MODE_GLOBAL);
    assert_int_equal(reduce(capture.comm, capture.buffer, capture.stream), COMM_LIMIT);
    assert_error_says("4096 are the most");
    fake_daemon_set(capture.pair.daemon, &takes_graphs);
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    cuda_pointer managed;
    GPU_OK(beyond.end_capture(capture.stream, &(cuda_graph){NULL}));
    GPU_OK(beyond.alloc_managed(&managed, 4096, CUDA_ATTACH_GLOBAL));
    GPU_OK(beyond.begin_capture(capture.stream, CUDA_CAPTURE_MODE_GLOBAL));
    assert_int_equal(reduce(capture.comm, gpu_address(managed), capture.stream), COMM_UNSUPPORTED);
    GPU_OK(beyond.end_capture(capture.stream, &(cuda_graph){NULL}));
    GPU_OK(cuda->memory_free(managed));
    pair_stop(&capture.pair);
}

/* Nobody can export what a captured stream allocates, as cudaMallocAsync does. The capture goes on. */
static void test_memory_of_a_graph(void **state)
{
    (void)state;
    struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_GLOBAL);
    cuda_pointer memory;
    GPU_OK(beyond.alloc_pool(&memory, 4096, capture.stream));
    assert_int_equal(reduce(capture.comm, gpu_address(memory), capture.stream), COMM_UNSUPPORTED);
    assert_error_says("allocated by a CUDA graph");
    assert_error_says("use memory of comm_mem_alloc or cudaMalloc");
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    assert_int_equal(fake_daemon_counts(capture.pair.daemon).captured, 1);
    GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
    pair_stop(&capture.pair);
}

/* Memory that commd does not know yet is registered during the capture, whatever the capture's mode. */
static void test_memory_during_a_capture(void **state)
{
    (void)state;
    for (int mode = CUDA_CAPTURE_MODE_GLOBAL; mode <= CUDA_CAPTURE_MODE_RELAXED; mode++) {
        cuda_pointer memory = gpu_alloc(4 * MIB);
        struct capture capture = capture_start(&takes_graphs, mode);
        expect_ok(reduce(capture.comm, gpu_address(memory), capture.stream));
        void *made;
        expect_ok(comm_mem_alloc(capture.pair.client, 4096, 0, &made));
        expect_ok(reduce(capture.comm, made, capture.stream));
        GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
        int left = CUDA_CAPTURE_MODE_GLOBAL;
        GPU_OK(cuda->thread_exchange_mode(&left));
        assert_int_equal(left, CUDA_CAPTURE_MODE_GLOBAL); /* the thread's mode is as it was */
        pair_stop(&capture.pair);
        GPU_OK(cuda->memory_free(memory));
    }
}

/* The driver fails in the middle: the call says so, and commd keeps nothing. */
static void test_the_driver_fails(void **state)
{
    static const char *const rules[] = {"cuUserObjectCreate:1=2", "cuGraphRetainUserObject:1=2",
                                        "cuStreamBatchMemOp_v2:1=801", "cuStreamGetCaptureInfo_v2:1=999"};
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_GLOBAL);
        beyond.inject(rules[i]);
        assert_int_not_equal(reduce(capture.comm, capture.buffer, capture.stream), COMM_OK);
        beyond.inject(NULL);
        GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
        await_comms(&capture, 1);
        expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
        expect_stream_ends(capture.stream);
        pair_stop(&capture.pair);
    }
    struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_GLOBAL);
    beyond.conditional(capture.stream, 1);
    assert_int_equal(reduce(capture.comm, capture.buffer, capture.stream), COMM_UNSUPPORTED);
    assert_error_says("the body of a conditional node");
    GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
    pair_stop(&capture.pair);
}

/* The program makes the capture invalid after operations were captured. Their part of the communicator ends
 * with it. */
static void test_a_spoilt_capture(void **state)
{
    (void)state;
    cuda_graph graph;
    struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_GLOBAL);
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    assert_int_equal(cuda->stream_synchronize(capture.stream), CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(reduce(capture.comm, capture.buffer, capture.stream), COMM_UNSUPPORTED);
    assert_error_says("invalid");
    assert_int_equal(comms(&capture), 2);
    assert_int_equal(beyond.end_capture(capture.stream, &graph), CUDA_RESULT_STREAM_CAPTURE_INVALIDATED);
    await_comms(&capture, 1);
    pair_stop(&capture.pair);
}

/* --- Groups --- */

/* A group adds its operations at its end, and the streams wait after all of them are ready. */
static void test_a_group(void **state)
{
    (void)state;
    struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_GLOBAL);
    expect_ok(comm_group_begin());
    for (int i = 0; i < 5; i++) {
        expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    }
    assert_int_equal(fake_daemon_counts(capture.pair.daemon).captured, 0);
    assert_int_equal(comms(&capture), 1);
    expect_ok(comm_group_end());
    assert_int_equal(fake_daemon_counts(capture.pair.daemon).captured, 5);
    assert_int_equal(comms(&capture), 2);
    GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
    await_comms(&capture, 1);
    pair_stop(&capture.pair);
}

/* What a group cannot add leaves nothing in the graph, and the stream waits for nothing. */
static void test_groups_that_fail(void **state)
{
    static const char *const rules[] = {"cuUserObjectCreate:1=2", "cuGraphRetainUserObject:1=2",
                                        "cuStreamBatchMemOp_v2:1=801", "cuStreamBatchMemOp_v2:2=801",
                                        "cuStreamBatchMemOp_v2:3=801"};
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_GLOBAL);
        expect_ok(comm_group_begin());
        expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
        expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
        beyond.inject(rules[i]);
        assert_int_not_equal(comm_group_end(), COMM_OK);
        beyond.inject(NULL);
        GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
        await_comms(&capture, 1);
        expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
        expect_stream_ends(capture.stream);
        pair_stop(&capture.pair);
    }
    struct fake_script script = {.graphs = true, .refuses_captures = true};
    struct capture capture = capture_start(&script, CUDA_CAPTURE_MODE_GLOBAL);
    expect_ok(comm_group_begin());
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    assert_int_equal(comm_group_end(), COMM_LIMIT);
    assert_error_says("4096 are the most");
    cuda_graph_exec exec = capture_end(&capture);
    expect_replay(&capture, exec);
    GPU_OK(beyond.graph_exec_destroy(exec));
    pair_stop(&capture.pair);
}

/* Between the calls and the group's end, the program ends the capture, or leaves the communicator. */
static void test_groups_that_end_early(void **state)
{
    (void)state;
    struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_RELAXED);
    expect_ok(comm_group_begin());
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    cuda_graph_exec exec = capture_end(&capture);
    assert_int_equal(comm_group_end(), COMM_INVALID_ARGUMENT);
    assert_error_says("the stream's capture ended before the group");
    expect_stream_ends(capture.stream);
    expect_replay(&capture, exec);
    GPU_OK(beyond.graph_exec_destroy(exec));
    assert_int_equal(comms(&capture), 1);

    GPU_OK(beyond.begin_capture(capture.stream, CUDA_CAPTURE_MODE_RELAXED));
    expect_ok(comm_group_begin());
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    comm_destroy(capture.comm);
    expect_ok(comm_group_end());
    exec = capture_end(&capture);
    expect_replay(&capture, exec);
    GPU_OK(beyond.graph_exec_destroy(exec));
    assert_int_equal(fake_daemon_counts(capture.pair.daemon).captured, 0);
    pair_stop(&capture.pair);
}

static void *leave_elsewhere(void *comm)
{
    comm_destroy(comm);
    return NULL;
}

/* The calls of a group are dropped, with what they hold, and the group's thread is told. The capture stays
 * valid. */
static void test_another_thread_leaves_the_communicator(void **state)
{
    (void)state;
    pthread_t thread;
    struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_GLOBAL);
    expect_ok(comm_group_begin());
    for (int i = 0; i < 3; i++) {
        expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    }
    assert_int_equal(pthread_create(&thread, NULL, leave_elsewhere, capture.comm), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(comm_group_end(), COMM_ABORTED);
    assert_error_says("this rank left the communicator before the group ended");
    GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
    assert_int_equal(fake_daemon_counts(capture.pair.daemon).captured, 0);
    assert_int_equal(comms(&capture), 0);
    pair_stop(&capture.pair);
}

/* In a group, the streams of a communicator's rank have one capture, or none. Other communicators may have
 * other ones. */
static void test_captures_of_a_group(void **state)
{
    (void)state;
    struct capture capture = capture_start(&takes_graphs, CUDA_CAPTURE_MODE_RELAXED);
    comm_t *other = gpu_comm(&capture.pair, "other", 0), *third = gpu_comm(&capture.pair, "third", 0);
    cuda_stream stream = gpu_stream(), plain = gpu_stream();
    cuda_graph graph;
    GPU_OK(beyond.begin_capture(stream, CUDA_CAPTURE_MODE_RELAXED));
    expect_ok(comm_group_begin());
    expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    expect_ok(reduce(other, capture.buffer, stream));
    expect_ok(reduce(third, capture.buffer, plain));
    for (int turn = 0; turn < 2; turn++) { /* the calls before do not matter to the check */
        assert_int_equal(reduce(capture.comm, capture.buffer, stream), COMM_INVALID_ARGUMENT);
        assert_error_says("one CUDA graph captures all streams of a rank");
        assert_int_equal(reduce(other, capture.buffer, plain), COMM_INVALID_ARGUMENT);
        assert_int_equal(reduce(third, capture.buffer, stream), COMM_INVALID_ARGUMENT);
        expect_ok(reduce(capture.comm, capture.buffer, capture.stream));
    }
    expect_ok(comm_group_end());
    assert_int_equal(fake_daemon_counts(capture.pair.daemon).captured, 4);
    assert_int_equal(fake_daemon_counts(capture.pair.daemon).submits, 1);
    assert_int_equal(comms(&capture), 5);
    expect_stream_ends(plain);
    GPU_OK(beyond.end_capture(stream, &graph));
    GPU_OK(beyond.graph_destroy(graph));
    GPU_OK(beyond.graph_exec_destroy(capture_end(&capture)));
    await_comms(&capture, 3);
    pair_stop(&capture.pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_graph_and_its_part),
        cmocka_unit_test(test_slots_serve_again),
        cmocka_unit_test(test_replays_without_commd),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_memory_of_a_graph),
        cmocka_unit_test(test_memory_during_a_capture),
        cmocka_unit_test(test_the_driver_fails),
        cmocka_unit_test(test_a_spoilt_capture),
        cmocka_unit_test(test_a_group),
        cmocka_unit_test(test_groups_that_fail),
        cmocka_unit_test(test_groups_that_end_early),
        cmocka_unit_test(test_captures_of_a_group),
        cmocka_unit_test(test_another_thread_leaves_the_communicator),
    };
    return cmocka_run_group_tests_name("graphs", tests, gpu_setup, gpu_teardown);
}
