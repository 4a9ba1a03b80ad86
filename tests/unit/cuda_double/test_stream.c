#include "tests/unit/cuda_double/case.h"

#include <pthread.h>
#include <sys/mman.h>

static uint64_t slots[512] __attribute__((aligned(4096)));

static cuda_pointer slot(int index)
{
    return (cuda_pointer)(uintptr_t)&slots[index];
}

static uint64_t value(int index)
{
    return __atomic_load_n(&slots[index], __ATOMIC_ACQUIRE);
}

static void set(int index, uint64_t to)
{
    __atomic_store_n(&slots[index], to, __ATOMIC_RELEASE);
}

static cuda_stream begin(void)
{
    case_load();
    case_context(0);
    OK(cuda->host_register(slots, sizeof slots, CUDA_HOST_DEVICE_MAP | CUDA_HOST_PORTABLE));
    return case_stream();
}

static void values(int unused)
{
    (void)unused;
    cuda_stream stream = begin();
    OK(cuda->stream_wait_value(stream, slot(0), 2, CUDA_WAIT_VALUE_GEQ));
    OK(cuda->stream_write_value(stream, slot(1), 7, 0));
    set(0, 1);
    case_sleep_ms(20);
    CHECK_RESULT(cuda->stream_query(stream), CUDA_RESULT_NOT_READY);
    CHECK(value(1) == 0);
    set(0, 3);
    OK(cuda->stream_synchronize(stream));
    CHECK(value(1) == 7);
    OK(cuda->stream_query(stream));
    /* The comparison looks at the difference: numbers may wrap. */
    set(0, UINT64_MAX);
    OK(cuda->stream_wait_value(stream, slot(0), 1, CUDA_WAIT_VALUE_GEQ));
    case_sleep_ms(20);
    CHECK_RESULT(cuda->stream_query(stream), CUDA_RESULT_NOT_READY);
    set(0, 1);
    OK(cuda->stream_synchronize(stream));
    OK(cuda->stream_wait_value(stream, slot(0), UINT64_MAX, CUDA_WAIT_VALUE_GEQ));
    OK(cuda->stream_synchronize(stream));
}
CASE(values)

static void value_addresses(int unused)
{
    (void)unused;
    static uint64_t elsewhere;
    cuda_stream stream = begin();
    cuda_stream other = case_stream();
    cuda_pointer memory = case_alloc(64);
    CHECK_RESULT(cuda->stream_write_value(stream, (cuda_pointer)(uintptr_t)&elsewhere, 1, 0),
                 CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->stream_wait_value(stream, slot(0) + 4, 1, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->stream_wait_value(stream, memory + 64, 1, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->stream_wait_value(stream, slot(0), 1, 1u << 30), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->set_bytes(memory, 0, 64, stream));
    OK(cuda->stream_synchronize(stream));
    OK(cuda->stream_wait_value(stream, memory + 8, 5, CUDA_WAIT_VALUE_GEQ)); /* another stream writes it */
    OK(cuda->stream_write_value(other, memory + 8, 5, 0));
    OK(cuda->stream_synchronize(stream));
    /* Without the flag, streams cannot use registered memory. */
    OK(cuda->host_unregister(slots));
    OK(cuda->host_register(slots, sizeof slots, 0));
    CHECK_RESULT(cuda->stream_write_value(stream, slot(0), 1, 0), CUDA_RESULT_INVALID_VALUE);
}
CASE(value_addresses)

static void between_processes(int unused)
{
    (void)unused;
    uint64_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    pid_t pid = fork();
    case_load();
    case_context(0);
    cuda_stream stream = case_stream();
    cuda_pointer address;
    OK(cuda->host_register(shared, 4096, CUDA_HOST_DEVICE_MAP));
    OK(cuda->host_device_pointer(&address, shared, 0));
    if (pid == 0) {
        OK(cuda->stream_wait_value(stream, address, 1, CUDA_WAIT_VALUE_GEQ));
        OK(cuda->stream_write_value(stream, address + 8, 1, 0));
        OK(cuda->stream_synchronize(stream));
        _exit(0);
    }
    OK(cuda->stream_write_value(stream, address, 1, 0));
    OK(cuda->stream_wait_value(stream, address + 8, 1, CUDA_WAIT_VALUE_GEQ));
    OK(cuda->stream_synchronize(stream));
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}
CASE(between_processes)

static double now_ms(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void events(int unused)
{
    (void)unused;
    cuda_event first;
    cuda_event timed[2];
    float milliseconds = 0;
    cuda_stream stream = begin();
    cuda_stream other = case_stream();
    OK(cuda->event_create(&first, CUDA_EVENT_DISABLE_TIMING));
    OK(cuda->event_query(first));                 /* never recorded: nothing to wait for */
    OK(cuda->stream_wait_event(other, first, 0)); /* likewise */
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    OK(cuda->event_record(first, stream));
    OK(cuda->stream_wait_event(other, first, 0));
    OK(cuda->stream_write_value(other, slot(1), 1, 0));
    case_sleep_ms(20);
    CHECK_RESULT(cuda->event_query(first), CUDA_RESULT_NOT_READY);
    CHECK(value(1) == 0);
    OK(cuda->event_destroy(first)); /* the wait stays */
    CHECK_RESULT(cuda->event_query(first), CUDA_RESULT_INVALID_HANDLE);
    set(0, 1);
    OK(cuda->stream_synchronize(other));
    CHECK(value(1) == 1);
    OK(cuda->event_create(&timed[0], 0));
    OK(cuda->event_create(&timed[1], 0));
    CHECK_RESULT(cuda->event_elapsed(&milliseconds, timed[0], timed[1]), CUDA_RESULT_INVALID_HANDLE);
    double began_ms = now_ms();
    OK(cuda->event_record(timed[0], stream));
    OK(cuda->stream_wait_value(stream, slot(0), 2, 0));
    OK(cuda->event_record(timed[1], stream));
    CHECK_RESULT(cuda->event_elapsed(&milliseconds, timed[0], timed[1]), CUDA_RESULT_NOT_READY);
    OK(beyond.event_synchronize(timed[0]));
    double reached_ms = now_ms();
    case_sleep_ms(20);
    double released_ms = now_ms();
    set(0, 2);
    OK(beyond.event_synchronize(timed[1]));
    OK(cuda->event_elapsed(&milliseconds, timed[0], timed[1]));
    /* However long the threads were held up, the events lie between these times. A float has 24 bits. */
    CHECK(milliseconds >= (released_ms - reached_ms) * 0.999);
    CHECK(milliseconds <= (now_ms() - began_ms) * 1.001);
}
CASE(events)

static void other_context(int unused)
{
    (void)unused;
    cuda_event event;
    cuda_context context;
    unsigned char byte = 1;
    cuda_stream stream = begin();
    cuda_context first = NULL;
    OK(cuda->context_get(&first));
    cuda_pointer memory = case_alloc(64);
    OK(cuda->event_create(&event, 0));
    case_context(1);
    cuda_stream here = case_stream();
    OK(cuda->stream_context(stream, &context));
    CHECK(context == first);
    CHECK_RESULT(cuda->event_record(event, here), CUDA_RESULT_INVALID_HANDLE);
    CHECK_RESULT(cuda->set_bytes(memory, 1, 64, stream), CUDA_RESULT_INVALID_HANDLE);
    CHECK_RESULT(cuda->stream_write_value(stream, slot(0), 1, 0), CUDA_RESULT_INVALID_HANDLE);
    OK(cuda->copy_from_host(memory, &byte, 1, stream)); /* copies may */
    OK(cuda->event_record(event, stream));
    OK(cuda->stream_wait_event(here, event, 0));
    OK(cuda->stream_synchronize(here));
    CHECK(case_byte(memory) == 1);
    /* Kernels of one device do not reach the memory of another until that is enabled; copies do. */
    OK(cuda->copy(case_alloc(64), memory, 64, here));
    OK(cuda->stream_synchronize(here));
    OK(cuda->context_enable_peer(first, 0));
    CHECK_RESULT(cuda->context_enable_peer(first, 0), CUDA_RESULT_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuda->set_bytes(memory, 1, 64, here));
    OK(cuda->stream_synchronize(here));
    OK(cuda->context_set(first));
    OK(cuda->stream_destroy(stream));
    CHECK_RESULT(cuda->stream_query(stream), CUDA_RESULT_INVALID_HANDLE);
    CHECK_RESULT(cuda->stream_destroy(stream), CUDA_RESULT_INVALID_HANDLE);
}
CASE(other_context)

static void no_peer(int unused)
{
    (void)unused;
    int can = 1;
    setenv("CUDA_DOUBLE_PEER", "0", 1);
    cuda_stream stream = begin();
    cuda_context first;
    OK(cuda->context_get(&first));
    cuda_pointer memory = case_alloc(64);
    OK(cuda->device_can_access(&can, 0, 1));
    CHECK(can == 0);
    case_context(1);
    CHECK_RESULT(cuda->context_enable_peer(first, 0), CUDA_RESULT_PEER_ACCESS_UNSUPPORTED);
    OK(cuda->set_bytes(memory, 1, 64, NULL));
    CHECK_RESULT(cuda->stream_synchronize(NULL), CUDA_RESULT_ILLEGAL_ADDRESS);
    OK(cuda->context_set(first));
    OK(cuda->stream_synchronize(stream)); /* the other context's error is not this one's */
}
CASE(no_peer)

static void staging(int unused)
{
    (void)unused;
    unsigned char pageable[64];
    unsigned char *pinned;
    cuda_stream stream = begin();
    cuda_pointer memory = case_alloc(128);
    OK(cuda->host_alloc((void **)&pinned, 64, 0));
    memset(pageable, 1, sizeof pageable);
    memset(pinned, 1, 64);
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    OK(cuda->copy_from_host(memory, pageable, 64, stream));
    OK(cuda->copy_from_host(memory + 64, pinned, 64, stream));
    memset(pageable, 2, sizeof pageable); /* was read already */
    memset(pinned, 2, 64);                /* was not */
    set(0, 1);
    unsigned char back[128];
    /* When a copy to pageable memory returns, the copy has ended. */
    OK(cuda->copy_to_host(back, memory, 128, stream));
    CHECK(back[0] == 1 && back[63] == 1 && back[64] == 2 && back[127] == 2);
    CHECK_RESULT(cuda->copy_to_host(back, (cuda_pointer)(uintptr_t)pageable, 1, stream),
                 CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->copy_to_host((void *)(uintptr_t)memory, memory, 1, stream), CUDA_RESULT_INVALID_VALUE);
}
CASE(staging)

static void legacy_stream(int unused)
{
    (void)unused;
    cuda_stream free_of_it = begin();
    cuda_stream blocking;
    OK(cuda->stream_create(&blocking, 0, 0));
    OK(cuda->stream_wait_value(NULL, slot(0), 1, 0));
    OK(cuda->stream_write_value(blocking, slot(1), 1, 0));
    OK(cuda->stream_write_value((cuda_stream)(uintptr_t)2, slot(2), 1, 0)); /* the thread's own blocks, too */
    OK(cuda->stream_write_value(free_of_it, slot(3), 1, 0));
    OK(cuda->stream_synchronize(free_of_it));
    case_sleep_ms(20);
    CHECK(value(1) == 0 && value(2) == 0 && value(3) == 1);
    set(0, 1);
    OK(cuda->stream_synchronize(blocking));
    OK(cuda->stream_synchronize((cuda_stream)(uintptr_t)2));
    CHECK(value(1) == 1 && value(2) == 1);
    /* And the other way round. */
    OK(cuda->stream_wait_value(blocking, slot(0), 2, 0));
    OK(cuda->stream_write_value((cuda_stream)(uintptr_t)1, slot(4), 1, 0));
    case_sleep_ms(20);
    CHECK(value(4) == 0);
    set(0, 2);
    OK(cuda->stream_synchronize(NULL));
    CHECK(value(4) == 1);
}
CASE(legacy_stream)

static void out_of_bounds(int unused)
{
    (void)unused;
    cuda_stream stream = begin();
    cuda_pointer none;
    cuda_pointer memory = case_alloc(100);
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    OK(cuda->copy(memory, memory + 50, 51, stream));
    OK(cuda->stream_write_value(stream, slot(1), 1, 0));
    set(0, 1);
    CHECK_RESULT(cuda->stream_synchronize(stream), CUDA_RESULT_ILLEGAL_ADDRESS);
    CHECK(value(1) == 0); /* nothing runs after it */
    CHECK_RESULT(cuda->memory_alloc(&none, 16), CUDA_RESULT_ILLEGAL_ADDRESS);
    CHECK_RESULT(cuda->stream_query(stream), CUDA_RESULT_ILLEGAL_ADDRESS);
    CHECK_RESULT(cuda->memory_free(memory), CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(out_of_bounds)

static void use_after_free(int unused)
{
    (void)unused;
    cuda_stream stream = begin();
    cuda_pointer memory = case_alloc(4 * MIB);
    OK(cuda->memory_free(memory));
    OK(cuda->set_bytes(memory, 0, 1, stream));
    CHECK_RESULT(cuda->stream_synchronize(stream), CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(use_after_free)

static void *release_later(void *unused)
{
    (void)unused;
    case_sleep_ms(50);
    set(0, 1);
    return NULL;
}

static void freeing_waits(int unused)
{
    (void)unused;
    pthread_t thread;
    void *host;
    cuda_stream stream = begin();
    cuda_pointer memory = case_alloc(64);
    OK(cuda->host_alloc(&host, 64, 0));
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    OK(cuda->copy_to_host(host, memory, 64, stream));
    OK(cuda->stream_destroy(stream)); /* the stream's work is done all the same */
    CHECK(pthread_create(&thread, NULL, release_later, NULL) == 0);
    OK(cuda->memory_free(memory));
    CHECK(value(0) == 1);
    OK(cuda->host_free(host));
    pthread_join(thread, NULL);
    OK(cuda->context_synchronize());
}
CASE(freeing_waits)

/* A free in a stream waits for its turn, and its caller does not wait. */
static void free_in_order(int unused)
{
    (void)unused;
    cuda_pointer pool;
    cuda_stream stream = begin();
    OK(beyond.alloc_pool(&pool, 64, stream));
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    OK(cuda->set_bytes(pool, 1, 64, stream));
    OK(cuda->memory_free_async(pool, stream));
    set(0, 1);
    OK(cuda->stream_synchronize(stream));
    CHECK_RESULT(cuda->memory_free_async(pool, stream), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->set_bytes(pool, 1, 64, stream));
    CHECK_RESULT(cuda->stream_synchronize(stream), CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(free_in_order)

static void allocating_waits(int unused)
{
    (void)unused;
    pthread_t thread;
    setenv("CUDA_DOUBLE_BLOCKING_ALLOCATION", "1", 1);
    cuda_stream stream = begin();
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    CHECK(pthread_create(&thread, NULL, release_later, NULL) == 0);
    (void)case_alloc(64);
    CHECK(value(0) == 1);
    pthread_join(thread, NULL);
}
CASE(allocating_waits)

static void registering_waits(int unused)
{
    static _Alignas(4096) unsigned char page[4096];
    (void)unused;
    pthread_t thread;
    setenv("CUDA_DOUBLE_BLOCKING_ALLOCATION", "1", 1);
    cuda_stream stream = begin();
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    CHECK(pthread_create(&thread, NULL, release_later, NULL) == 0);
    OK(cuda->host_register(page, sizeof page, 0));
    CHECK(value(0) == 1);
    OK(cuda->host_unregister(page));
    pthread_join(thread, NULL);
}
CASE(registering_waits)

/* A context that ends does not wait for an event that never comes. */
static void context_ends(int unused)
{
    (void)unused;
    cuda_stream stream = begin();
    OK(cuda->stream_wait_value(stream, slot(0), 1, 0));
    OK(cuda->context_release(0));
    CHECK_RESULT(cuda->stream_query(stream), CUDA_RESULT_INVALID_CONTEXT);
}
CASE(context_ends)

#define DELAYED 200

/* If streams share a connection, each waits for the others' waits, too. */
static void shared_connections(int unused)
{
    (void)unused;
    CHECK(setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1) == 0);
    CHECK(setenv("CUDA_DOUBLE_CONNECTIONS", "2", 1) == 0);
    cuda_stream streams[4] = {begin(), case_stream(), case_stream(), case_stream()};
    OK(cuda->stream_wait_value(streams[0], slot(0), 1, 0));
    for (int i = 1; i < 4; i++) {
        OK(cuda->stream_write_value(streams[i], slot(i), 1, 0));
    }
    OK(cuda->stream_synchronize(streams[1]));
    OK(cuda->stream_synchronize(streams[3]));
    CHECK(value(1) == 1 && value(3) == 1);
    case_sleep_ms(20);
    CHECK(value(2) == 0);
    CHECK_RESULT(cuda->stream_query(streams[2]), CUDA_RESULT_NOT_READY);
    set(0, 1);
    OK(cuda->stream_synchronize(streams[2]));
    CHECK(value(2) == 1);
    OK(cuda->stream_destroy(streams[0]));
    OK(cuda->stream_write_value(streams[2], slot(2), 2, 0));
    OK(cuda->stream_synchronize(streams[2]));
}
CASE(shared_connections)

static void order_with_delays(int unused)
{
    (void)unused;
    setenv("CUDA_DOUBLE_DELAY_US", "300", 1);
    cuda_stream stream = begin();
    cuda_pointer memory = case_alloc(DELAYED);
    for (unsigned i = 0; i < DELAYED; i++) {
        OK(cuda->set_bytes(memory + i, (unsigned char)i, DELAYED - i, stream));
    }
    unsigned char back[DELAYED];
    OK(cuda->copy_to_host(back, memory, DELAYED, stream));
    for (unsigned i = 0; i < DELAYED; i++) {
        CHECK(back[i] == i);
    }
}
CASE(order_with_delays)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_value_addresses),
        cmocka_unit_test(test_between_processes),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_other_context),
        cmocka_unit_test(test_no_peer),
        cmocka_unit_test(test_staging),
        cmocka_unit_test(test_legacy_stream),
        cmocka_unit_test(test_out_of_bounds),
        cmocka_unit_test(test_use_after_free),
        cmocka_unit_test(test_freeing_waits),
        cmocka_unit_test(test_free_in_order),
        cmocka_unit_test(test_allocating_waits),
        cmocka_unit_test(test_registering_waits),
        cmocka_unit_test(test_context_ends),
        cmocka_unit_test(test_shared_connections),
        cmocka_unit_test(test_order_with_delays),
    };
    return cmocka_run_group_tests_name("cuda_double_stream", tests, NULL, NULL);
}
