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

static struct cuda_memop memop(int operation, int index, uint64_t number)
{
    return (struct cuda_memop){.operation = operation, .address = slot(index), .value = number};
}

/* Waits and writes of one batch take place in their order, at each launch anew. */
static void batches(int unused)
{
    (void)unused;
    cuda_graph graph;
    cuda_graph_exec exec;
    cuda_stream stream = begin(CUDA_CAPTURE_MODE_GLOBAL);
    struct cuda_memop memops[] = {memop(CUDA_MEMOP_WRITE_64, 0, 0), memop(CUDA_MEMOP_WRITE_64, 1, 1),
                                  memop(CUDA_MEMOP_WAIT_64, 0, 1), memop(CUDA_MEMOP_WRITE_64, 2, 7)};
    OK(cuda->stream_memops(stream, 4, memops, 0));
    OK(beyond.end_capture(stream, &graph));
    OK(beyond.graph_instantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        unsigned long long calls = beyond.calls();
        OK(beyond.graph_launch(exec, stream));
        while (value(1) == 0) {
            case_sleep_ms(1);
        }
        CHECK(value(0) == 0 && value(2) == 0);
        CHECK(beyond.calls() == calls + 1);
        __atomic_store_n(&slots[1], 0, __ATOMIC_RELEASE);
        __atomic_store_n(&slots[0], 1, __ATOMIC_RELEASE);
        OK(cuda->stream_synchronize(stream));
        CHECK(value(2) == 7);
        __atomic_store_n(&slots[2], 0, __ATOMIC_RELEASE);
    }
}
CASE(batches)

static void bad_batches(int unused)
{
    (void)unused;
    static struct cuda_memop many[CUDA_MEMOPS_MAX + 1];
    cuda_graph graph;
    cuda_pointer managed;
    cuda_stream stream = begin(CUDA_CAPTURE_MODE_RELAXED);
    for (size_t i = 0; i < CUDA_MEMOPS_MAX + 1; i++) {
        many[i] = memop(CUDA_MEMOP_WRITE_64, (int)i % 8, 1);
    }
    OK(cuda->stream_memops(stream, CUDA_MEMOPS_MAX, many, 0));
    CHECK_RESULT(cuda->stream_memops(stream, CUDA_MEMOPS_MAX + 1, many, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->stream_memops(stream, 0, many, 0), CUDA_RESULT_INVALID_VALUE);
    many[0].operation = 17;
    CHECK_RESULT(cuda->stream_memops(stream, 1, many, 0), CUDA_RESULT_INVALID_VALUE);
    OK(beyond.alloc_managed(&managed, 4096, CUDA_ATTACH_GLOBAL));
    many[0] = (struct cuda_memop){.operation = CUDA_MEMOP_WRITE_64, .address = managed};
    CHECK_RESULT(cuda->stream_memops(stream, 1, many, 0), CUDA_RESULT_NOT_SUPPORTED);
    many[0] = memop(CUDA_MEMOP_WRITE_64, 0, 1);
    beyond.conditional(stream, 1);
    CHECK_RESULT(cuda->stream_memops(stream, 1, many, 0), CUDA_RESULT_NOT_SUPPORTED);
    CHECK_RESULT(cuda->stream_write_value(stream, slot(0), 1, 0), CUDA_RESULT_NOT_SUPPORTED);
    beyond.conditional(stream, 0);
    CHECK(status_of(stream) == CUDA_CAPTURE_ACTIVE);
    OK(beyond.end_capture(stream, &graph));
}
CASE(bad_batches)

/* A thread that exchanges its mode may make calls that the capture forbids. */
static void exchanged_mode(int unused)
{
    (void)unused;
    cuda_graph graph;
    cuda_pointer pointer;
    int mode = CUDA_CAPTURE_MODE_RELAXED;
    cuda_stream stream = begin(CUDA_CAPTURE_MODE_GLOBAL);
    OK(cuda->thread_exchange_mode(&mode));
    CHECK(mode == CUDA_CAPTURE_MODE_GLOBAL);
    OK(cuda->memory_alloc(&pointer, 16));
    OK(cuda->thread_exchange_mode(&mode));
    CHECK(mode == CUDA_CAPTURE_MODE_RELAXED);
    CHECK(status_of(stream) == CUDA_CAPTURE_ACTIVE);
    mode = 7;
    CHECK_RESULT(cuda->thread_exchange_mode(&mode), CUDA_RESULT_INVALID_VALUE);
    /* No mode allows a wait for what is captured. */
    mode = CUDA_CAPTURE_MODE_RELAXED;
    OK(cuda->thread_exchange_mode(&mode));
    CHECK_RESULT(cuda->context_synchronize(), CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_RESULT(beyond.end_capture(stream, &graph), CUDA_RESULT_STREAM_CAPTURE_INVALIDATED);
}
CASE(exchanged_mode)

/* The question whether the legacy stream captures cannot be answered, but does no harm. */
static void asking_the_legacy_stream(int unused)
{
    (void)unused;
    int status;
    uint64_t id;
    cuda_graph graph;
    cuda_stream blocking;
    cuda_stream stream = begin(CUDA_CAPTURE_MODE_RELAXED);
    CHECK(status_of(NULL) == CUDA_CAPTURE_NONE);
    OK(cuda->stream_create(&blocking, 0, 0));
    OK(beyond.begin_capture(blocking, CUDA_CAPTURE_MODE_RELAXED));
    CHECK_RESULT(cuda->stream_is_capturing(NULL, &status), CUDA_RESULT_STREAM_CAPTURE_IMPLICIT);
    CHECK_RESULT(cuda->stream_capture_info(NULL, &status, &id, &graph, NULL, NULL),
                 CUDA_RESULT_STREAM_CAPTURE_IMPLICIT);
    CHECK(status_of(blocking) == CUDA_CAPTURE_ACTIVE);
    uint64_t other;
    OK(cuda->stream_capture_info(blocking, &status, &id, &graph, NULL, NULL));
    OK(cuda->stream_capture_info(stream, &status, &other, &graph, NULL, NULL));
    CHECK(id != other && id != 0 && other != 0);
    OK(beyond.end_capture(blocking, &graph));
    OK(beyond.end_capture(stream, &graph));
}
CASE(asking_the_legacy_stream)

/* A stream joins a capture by an event, and must be joined before the end. */
static void branches(int unused)
{
    (void)unused;
    cuda_graph graph;
    cuda_graph_exec exec;
    cuda_event forked, joined;
    cuda_stream stream = begin(CUDA_CAPTURE_MODE_GLOBAL), branch = case_stream();
    OK(cuda->event_create(&forked, 0));
    OK(cuda->event_create(&joined, 0));
    for (int joins = 0; joins < 2; joins++) {
        OK(cuda->event_record(forked, stream));
        OK(cuda->stream_wait_event(branch, forked, 0));
        CHECK(status_of(branch) == CUDA_CAPTURE_ACTIVE);
        OK(cuda->stream_write_value(branch, slot(3), 3, 0));
        CHECK_RESULT(beyond.end_capture(branch, &graph), CUDA_RESULT_STREAM_CAPTURE_UNMATCHED);
        OK(cuda->event_record(joined, branch));
        if (joins == 0) {
            CHECK_RESULT(beyond.end_capture(stream, &graph), CUDA_RESULT_STREAM_CAPTURE_UNJOINED);
            CHECK(status_of(branch) == CUDA_CAPTURE_NONE);
            OK(beyond.begin_capture(stream, CUDA_CAPTURE_MODE_GLOBAL));
        }
    }
    OK(cuda->stream_wait_event(stream, joined, 0));
    OK(beyond.end_capture(stream, &graph));
    OK(beyond.graph_instantiate(&exec, graph, 0));
    OK(beyond.graph_launch(exec, stream));
    OK(cuda->stream_synchronize(stream));
    CHECK(value(3) == 3);
    CHECK_RESULT(cuda->stream_wait_event(branch, joined, 0), CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED);
}
CASE(branches)

static int destroyed;
static cuda_result called_back_with;

static void on_destroyed(void *pointer)
{
    int status;
    called_back_with = cuda->stream_is_capturing(NULL, &status);
    __atomic_store_n((int *)pointer, 1, __ATOMIC_RELEASE);
}

static bool is_destroyed(void)
{
    case_sleep_ms(20);
    return __atomic_load_n(&destroyed, __ATOMIC_ACQUIRE) != 0;
}

/* The objects of a graph are freed with its last executable, after that has run. Their destructors may not
 * call CUDA. */
static void user_objects(int unused)
{
    (void)unused;
    int status;
    uint64_t id;
    cuda_graph graph;
    cuda_graph_exec exec;
    cuda_user_object object;
    cuda_stream stream = begin(CUDA_CAPTURE_MODE_GLOBAL);
    CHECK_RESULT(cuda->user_object_create(&object, &destroyed, on_destroyed, 1, 0),
                 CUDA_RESULT_INVALID_VALUE);
    OK(cuda->user_object_create(&object, &destroyed, on_destroyed, 1, CUDA_USER_OBJECT_NO_SYNC));
    OK(cuda->stream_capture_info(stream, &status, &id, &graph, NULL, NULL));
    CHECK_RESULT(beyond.graph_destroy(graph), CUDA_RESULT_INVALID_VALUE); /* it is being captured */
    OK(cuda->graph_retain_object(graph, object, 1, CUDA_GRAPH_USER_OBJECT_MOVE));
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    OK(beyond.end_capture(stream, &graph));
    OK(beyond.graph_instantiate(&exec, graph, 0));
    OK(beyond.graph_destroy(graph));
    OK(beyond.graph_launch(exec, stream));
    OK(beyond.graph_exec_destroy(exec));
    CHECK(!is_destroyed());
    __atomic_store_n(&slots[0], 1, __ATOMIC_RELEASE);
    for (int i = 0; !is_destroyed(); i++) {
        CHECK(i < 500);
    }
    CHECK(called_back_with == CUDA_RESULT_NOT_PERMITTED);
}
CASE(user_objects)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replays),        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_forbidden),      cmocka_unit_test(test_other_thread),
        cmocka_unit_test(test_batches),        cmocka_unit_test(test_bad_batches),
        cmocka_unit_test(test_exchanged_mode), cmocka_unit_test(test_asking_the_legacy_stream),
        cmocka_unit_test(test_branches),       cmocka_unit_test(test_user_objects),
    };
    return cmocka_run_group_tests_name("cuda_double_capture", tests, NULL, NULL);
}
