#include "tests/unit/cuda_double/case.h"

#include <pthread.h>

static uint64_t slots[512] __attribute__((aligned(4096)));

static cuda_pointer slot(int index)
{
    return (cuda_pointer)(uintptr_t)&slots[index];
}

static uint64_t value(int index)
{
    return __atomic_load_n(&slots[index], __ATOMIC_ACQUIRE);
}

static cuda_stream begin(int mode)
{
    case_load();
    case_context(0);
    OK(cuda->host_register(slots, sizeof slots, CUDA_HOST_DEVICE_MAP));
    cuda_stream stream = case_stream();
    OK(beyond.begin_capture(stream, mode));
    return stream;
}

static int status_of(cuda_stream stream)
{
    int status = -1;
    OK(cuda->stream_is_capturing(stream, &status));
    return status;
}

/* At every launch, the values are those of the capture. */
static void replays(int unused)
{
    (void)unused;
    cuda_graph graph;
    cuda_graph_exec exec;
    cuda_event event;
    cuda_stream stream = begin(CUDA_CAPTURE_MODE_GLOBAL);
    CHECK(status_of(stream) == CUDA_CAPTURE_ACTIVE);
    OK(cuda->event_create(&event, 0));
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    OK(cuda->event_record(event, stream));
    CHECK_RESULT(cuda->event_query(event), CUDA_RESULT_CAPTURED_EVENT);
    OK(cuda->stream_write_value(stream, slot(0), 0, 0));
    OK(cuda->stream_write_value(stream, slot(1), 5, 0));
    OK(beyond.end_capture(stream, &graph));
    CHECK(status_of(stream) == CUDA_CAPTURE_NONE);
    OK(cuda->stream_synchronize(stream));
    CHECK(value(1) == 0); /* nothing ran */
    OK(beyond.graph_instantiate(&exec, graph, 0));
    OK(beyond.graph_destroy(graph));
    for (int i = 0; i < 3; i++) {
        __atomic_store_n(&slots[1], 0, __ATOMIC_RELEASE);
        OK(beyond.graph_launch(exec, stream));
        CHECK_RESULT(cuda->stream_query(stream), CUDA_RESULT_NOT_READY);
        __atomic_store_n(&slots[0], 1, __ATOMIC_RELEASE);
        OK(cuda->stream_synchronize(stream));
        CHECK(value(0) == 0 && value(1) == 5);
    }
    OK(beyond.graph_exec_destroy(exec));
    CHECK_RESULT(beyond.graph_launch(exec, stream), CUDA_RESULT_INVALID_VALUE);
}
CASE(replays)

/* Two launches of one graph do not overlap, whatever their streams are. */
static void one_after_the_other(int unused)
{
    (void)unused;
    cuda_graph graph;
    cuda_graph_exec exec;
    cuda_stream stream = begin(CUDA_CAPTURE_MODE_GLOBAL);
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    OK(cuda->stream_write_value(stream, slot(1), 1, 0));
    OK(beyond.end_capture(stream, &graph));
    OK(beyond.graph_instantiate(&exec, graph, 0));
    cuda_stream other = case_stream();
    OK(beyond.graph_launch(exec, stream));
    OK(beyond.graph_launch(exec, other));
    OK(cuda->stream_write_value(other, slot(2), 1, 0));
    case_sleep_ms(20);
    CHECK(value(2) == 0);
    __atomic_store_n(&slots[0], 1, __ATOMIC_RELEASE);
    OK(cuda->stream_synchronize(other));
    CHECK(value(1) == 1 && value(2) == 1);
}
CASE(one_after_the_other)

static void refused(cuda_stream stream, cuda_result found)
{
    cuda_graph graph;
    CHECK_RESULT(found, CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(status_of(stream) == CUDA_CAPTURE_INVALIDATED);
    CHECK_RESULT(cuda->stream_write_value(stream, slot(0), 1, 0), CUDA_RESULT_STREAM_CAPTURE_INVALIDATED);
    CHECK_RESULT(beyond.end_capture(stream, &graph), CUDA_RESULT_STREAM_CAPTURE_INVALIDATED);
    OK(beyond.begin_capture(stream, CUDA_CAPTURE_MODE_GLOBAL));
}

static void forbidden(int unused)
{
    (void)unused;
    cuda_pointer pointer;
    cuda_graph graph;
    void *host;
    cuda_event event;
    cuda_stream stream = begin(CUDA_CAPTURE_MODE_GLOBAL);
    CHECK_RESULT(beyond.begin_capture(stream, CUDA_CAPTURE_MODE_GLOBAL), CUDA_RESULT_ILLEGAL_STATE);
    refused(stream, cuda->stream_synchronize(stream));
    refused(stream, cuda->stream_query(stream));
    refused(stream, cuda->memory_alloc(&pointer, 16));
    refused(stream, cuda->host_alloc(&host, 16, 0));
    refused(stream, cuda->context_synchronize());
    refused(stream, cuda->stream_destroy(stream));
    cuda_stream other = case_stream();
    OK(cuda->event_create(&event, 0));
    OK(cuda->event_record(event, other));
    refused(stream, cuda->stream_wait_event(stream, event, 0));
    OK(beyond.end_capture(stream, &graph));
    CHECK_RESULT(beyond.end_capture(stream, &graph), CUDA_RESULT_ILLEGAL_STATE);
    CHECK_RESULT(beyond.begin_capture(NULL, CUDA_CAPTURE_MODE_GLOBAL),
                 CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED);
    OK(beyond.begin_capture(stream, CUDA_CAPTURE_MODE_RELAXED));
    OK(cuda->memory_alloc(&pointer, 16));
    OK(beyond.end_capture(stream, &graph));
    OK(beyond.begin_capture(stream, CUDA_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(cuda->context_synchronize(), CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_RESULT(beyond.end_capture(stream, &graph), CUDA_RESULT_STREAM_CAPTURE_INVALIDATED);
    cuda_stream blocking;
    OK(cuda->stream_create(&blocking, 0, 0));
    OK(beyond.begin_capture(blocking, CUDA_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(cuda->set_bytes(pointer, 0, 16, NULL), CUDA_RESULT_STREAM_CAPTURE_IMPLICIT);
    CHECK(status_of(blocking) == CUDA_CAPTURE_INVALIDATED);
}
CASE(forbidden)

static void *end_elsewhere(void *argument)
{
    cuda_graph graph;
    cuda_context context;
    cuda_pointer pointer;
    OK(cuda->context_retain(&context, 0));
    OK(cuda->context_set(context));
    CHECK_RESULT(beyond.end_capture(argument, &graph), CUDA_RESULT_STREAM_CAPTURE_WRONG_THREAD);
    OK(cuda->memory_alloc(&pointer, 16)); /* the capture binds its own thread alone */
    return NULL;
}

static void other_thread(int unused)
{
    (void)unused;
    pthread_t thread;
    cuda_graph graph;
    cuda_stream stream = begin(CUDA_CAPTURE_MODE_THREAD_LOCAL);
    CHECK(pthread_create(&thread, NULL, end_elsewhere, stream) == 0);
    pthread_join(thread, NULL);
    OK(beyond.end_capture(stream, &graph));
}
CASE(other_thread)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replays),
        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_forbidden),
        cmocka_unit_test(test_other_thread),
    };
    return cmocka_run_group_tests_name("cuda_double_capture", tests, NULL, NULL);
}
