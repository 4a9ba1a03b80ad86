#include <pthread.h>

#include "client/lib/internal.h"
#include "tests/unit/client/gpu_pair.h"

/* WAITS = True */

/* comm_mem_alloc on a GPU gives virtual memory or memory of cuMemAlloc. Both are gone once they are freed. */

static size_t gpu_free_bytes(void)
{
    size_t free_bytes, total_bytes;
    GPU_OK(cuda->memory_info(&free_bytes, &total_bytes));
    return free_bytes;
}

static bool so_many_memories(const struct fake_counts *counts, uint64_t value)
{
    return counts->memories == value;
}

/* commd answers no withdrawal, so the test waits for it. */
static void expect_registered(const struct pair *pair, uint32_t memories)
{
    fake_daemon_wait(pair->daemon, so_many_memories, memories);
}

static void test_by_descriptor(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "descriptor", 0);
    size_t free_before = gpu_free_bytes();
    void *memory, *again;
    int legacy = -1;
    expect_ok(comm_mem_alloc(pair.client, 3 * MIB, 0, &memory));
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.handles, 0);
    assert_int_equal(counts.virtuals, 1);
    assert_int_equal(counts.maps, 1);
    assert_int_equal(counts.memory_bytes, 4 * MIB);
    assert_int_equal((uintptr_t)memory % (2 * MIB), 0);
    assert_int_equal(free_before - gpu_free_bytes(), 4 * MIB);
    GPU_OK(cuda->pointer_attribute(&legacy, CUDA_POINTER_LEGACY_IPC, (uintptr_t)memory));
    assert_int_equal(legacy, 0);
    expect_ok(reduce_on(comm, memory, 4 * MIB, NULL));
    expect_ok(comm_sync(comm, 0));
    expect_ok(comm_mem_free(pair.client, memory));
    assert_int_equal(gpu_free_bytes(), free_before);
    /* New memory at the same address, again and again: no address and no memory is lost. */
    for (unsigned i = 0; i < 100; i++) {
        expect_ok(comm_mem_alloc(pair.client, 3 * MIB, 0, &again));
        assert_ptr_equal(again, memory);
        expect_ok(reduce_now(comm, again, again, 4 * MIB));
        expect_ok(comm_sync(comm, 0));
        expect_ok(comm_mem_free(pair.client, again));
    }
    counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.virtuals, 101);
    expect_registered(&pair, 1); /* the words by which streams are ordered */
    assert_int_equal(counts.unmapped, 0);
    assert_int_equal(gpu_free_bytes(), free_before);
    pair_stop(&pair);
}

/* The library frees memory after commd has closed it, if commd lives and does so in time. */
static void test_freed_after_commd_has_closed_it(void **state)
{
    (void)state;
    static const char *const kinds[] = {"cuMemCreate:1=801", NULL};
    for (unsigned i = 0; i < 2; i++) {
        struct fake_script script = {.busy_answers = 6};
        struct pair pair = pair_start(NULL);
        comm_t *comm = gpu_comm(&pair, "closed", 0);
        size_t free_before = gpu_free_bytes();
        void *memory;
        cuda_pointer plain = gpu_alloc(2 * MIB);
        beyond.inject(kinds[i]);
        expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory));
        beyond.inject(NULL);
        expect_ok(reduce_now(comm, memory, gpu_address(plain), 100));
        expect_ok(comm_sync(comm, 0));
        uint32_t others = fake_daemon_counts(pair.daemon).memories - 2;
        fake_daemon_set(pair.daemon, &script);
        expect_ok(comm_mem_free(pair.client, memory));
        assert_int_equal(fake_daemon_counts(pair.daemon).busy, 6);
        expect_registered(&pair, others + 1);
        script.busy_answers = 9;
        fake_daemon_set(pair.daemon, &script);
        expect_ok(comm_mem_deregister(pair.client, gpu_address(plain)));
        assert_int_equal(fake_daemon_counts(pair.daemon).busy, 9);
        expect_registered(&pair, others);
        GPU_OK(cuda->memory_free(plain));
        assert_int_equal(gpu_free_bytes(), free_before);
        expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory)); /* the client closes it */
        script.busy_answers = 12;
        fake_daemon_set(pair.daemon, &script);
        comm_client_close(pair.client);
        assert_int_equal(fake_daemon_counts(pair.daemon).busy, 12);
        assert_int_equal(gpu_free_bytes(), free_before);
        fake_daemon_stop(pair.daemon);
    }
}

/* Otherwise, the library frees the memory all the same. */
static void test_freed_without_commd(void **state)
{
    (void)state;
    struct fake_script script = {.busy_answers = UINT32_MAX};
    struct pair pair = pair_start(&script);
    size_t free_before = gpu_free_bytes();
    void *memory, *late;
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory));
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &late));
    uint64_t began_ns = clock_ns();
    expect_ok(comm_mem_free(pair.client, memory));
    uint64_t took_ns = clock_ns() - began_ns;
    assert_true(took_ns >= BUSY_TIMEOUT_MS * 1000000ull);
    assert_int_equal(free_before - gpu_free_bytes(), 2 * MIB);
    fake_daemon_stop(pair.daemon); /* the connection breaks */
    began_ns = clock_ns();
    expect_ok(comm_mem_free(pair.client, late));
    assert_true(clock_ns() - began_ns < BUSY_TIMEOUT_MS / 2 * 1000000ull);
    assert_int_equal(free_before, gpu_free_bytes());
    comm_client_close(pair.client);
}

/* commd reads nothing any more. */
static void test_freed_beside_a_frozen_commd(void **state)
{
    (void)state;
    struct fake_script script = {.action = FAKE_STOP_READING, .action_at_op = 1};
    struct pair pair = pair_start(&script);
    comm_t *comm = gpu_comm(&pair, "frozen", 0);
    size_t free_before = gpu_free_bytes();
    void *memory;
    cuda_pointer plain = gpu_alloc(2 * MIB);
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory));
    expect_ok(reduce_now(comm, gpu_address(plain), gpu_address(plain), 100));
    uint64_t began_ns = clock_ns();
    expect_ok(comm_mem_free(pair.client, memory));
    uint64_t took_ns = clock_ns() - began_ns;
    assert_true(took_ns < (BUSY_TIMEOUT_MS + 5000u) * 1000000ull);
    fake_daemon_go_on(pair.daemon);
    expect_ok(comm_sync(comm, 0));
    GPU_OK(cuda->memory_free(plain));
    assert_int_equal(gpu_free_bytes(), free_before);
    pair_stop(&pair);
}

/* The memory is registered alone, whatever lies beside it. */
static void test_beside_other_virtual_memory(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "beside", 0);
    struct cuda_allocation_properties properties = {.type = CUDA_ALLOCATION_PINNED,
                                                    .handle_types = CUDA_HANDLE_POSIX_FD,
                                                    .location = {.type = CUDA_LOCATION_DEVICE}};
    struct cuda_access access = {.location = properties.location, .flags = CUDA_ACCESS_READ_WRITE};
    cuda_pointer own[3];
    cuda_allocation chunk;
    void *made[3];
    for (unsigned i = 0; i < 3; i++) {
        GPU_OK(cuda->allocation_create(&chunk, 2 * MIB, &properties, 0));
        GPU_OK(cuda->address_reserve(&own[i], 2 * MIB, 0, 0, 0));
        GPU_OK(cuda->address_map(own[i], 2 * MIB, 0, chunk, 0));
        GPU_OK(cuda->address_set_access(own[i], 2 * MIB, &access, 1));
        GPU_OK(cuda->allocation_release(chunk));
        expect_ok(comm_mem_alloc(pair.client, 2 * MIB, 0, &made[i]));
    }
    for (unsigned turn = 0; turn < 3; turn++) {
        for (unsigned i = 0; i < 3; i++) {
            expect_ok(reduce_now(comm, gpu_address(own[i]), made[2 - i], 2 * MIB));
            expect_ok(comm_sync(comm, 0));
        }
    }
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.virtuals, 6);
    assert_int_equal(counts.maps, 6);
    assert_int_equal(counts.memories, 6);
    assert_int_equal(counts.memory_bytes, 2 * MIB);
    for (unsigned i = 0; i < 3; i++) {
        expect_ok(comm_mem_free(pair.client, made[i]));
        GPU_OK(cuda->address_unmap(own[i], 2 * MIB));
        GPU_OK(cuda->address_free(own[i], 2 * MIB));
    }
    pair_stop(&pair);
}

/* Kernels of another GPU that reaches the memory may work on it, as on memory of cudaMalloc. */
static void test_other_gpus_reach_it(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    cuda_context context, before;
    unsigned char byte = 0;
    void *memory;
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory));
    GPU_OK(cuda->context_get(&before));
    GPU_OK(cuda->context_retain(&context, 1));
    GPU_OK(cuda->context_set(context));
    GPU_OK(cuda->set_bytes((uintptr_t)memory, 7, 100, NULL));
    GPU_OK(cuda->context_synchronize());
    GPU_OK(beyond.copy_to_host_now(&byte, (uintptr_t)memory, 1));
    assert_int_equal(byte, 7);
    GPU_OK(cuda->context_set(before));
    GPU_OK(cuda->context_release(1));
    pair_stop(&pair);
}

static void test_without_virtual_memory(void **state)
{
    (void)state;
    static const char *const missing[] = {"cuDeviceGetAttribute:1+=1",
                                          "cuMemGetAllocationGranularity:1=801",
                                          "cuMemCreate:1=801",
                                          "cuMemCreate:1=800",
                                          "cuMemAddressReserve:1=801",
                                          "cuMemExportToShareableHandle:1=800",
                                          "cuMemMap:1=801",
                                          "cuMemSetAccess:1=800"};
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "without", 0);
    size_t free_before = gpu_free_bytes();
    for (unsigned i = 0; i < sizeof missing / sizeof *missing; i++) {
        void *memory, *other;
        beyond.inject(missing[i]);
        expect_ok(comm_mem_alloc(pair.client, 3 * MIB, 0, &memory));
        beyond.inject(NULL);
        struct fake_counts counts = fake_daemon_counts(pair.daemon);
        assert_int_equal(counts.handles, i + 1);
        assert_int_equal(counts.memory_bytes, 4 * MIB);
        assert_int_equal(free_before - gpu_free_bytes(), 4 * MIB); /* the failed attempt left nothing */
        expect_ok(comm_mem_alloc(pair.client, 1, 0, &other));      /* beside memory without it */
        assert_int_equal(fake_daemon_counts(pair.daemon).virtuals, i + 1);
        expect_ok(reduce_on(comm, memory, 100, NULL));
        expect_ok(reduce_on(comm, other, 100, NULL));
        expect_ok(comm_sync(comm, 0));
        expect_ok(comm_mem_free(pair.client, memory));
        expect_ok(comm_mem_free(pair.client, other));
        assert_int_equal(gpu_free_bytes(), free_before);
    }
    pair_stop(&pair);
}

/* The error names each call that fails on the way. What was made before is gone. */
static void test_failures(void **state)
{
    (void)state;
    static const struct {
        const char *rule, *symbol;
        comm_result_t result;
    } failures[] = {
        {"cuMemGetAllocationGranularity:1=999", "cuMemGetAllocationGranularity", COMM_DEVICE},
        {"cuMemCreate:1", "cuMemCreate", COMM_NO_MEMORY},
        {"cuMemExportToShareableHandle:1", "cuMemExportToShareableHandle", COMM_NO_MEMORY},
        {"cuMemAddressReserve:1", "cuMemAddressReserve", COMM_NO_MEMORY},
        {"cuMemMap:1", "cuMemMap", COMM_NO_MEMORY},
        {"cuMemSetAccess:1=999", "cuMemSetAccess", COMM_DEVICE},
        {"cuMemExportToShareableHandle:2=999", "cuMemExportToShareableHandle", COMM_DEVICE},
        {"cuMemCreate:1=801,cuMemAlloc:1", "cuMemAlloc_v2", COMM_NO_MEMORY},
    };
    struct pair pair = pair_start(NULL);
    void *first, *memory;
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &first));
    expect_ok(comm_mem_free(pair.client, first));
    size_t free_before = gpu_free_bytes();
    for (unsigned i = 0; i < sizeof failures / sizeof *failures; i++) {
        beyond.inject(failures[i].rule);
        assert_int_equal(comm_mem_alloc(pair.client, 1, 0, &memory), failures[i].result);
        beyond.inject(NULL);
        assert_error_says("comm_mem_alloc: ");
        assert_error_says(failures[i].symbol);
        assert_null(memory);
        assert_int_equal(gpu_free_bytes(), free_before);
        expect_registered(&pair, 0);
        expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory));
        assert_ptr_equal(memory, first); /* no addresses are lost */
        expect_ok(comm_mem_free(pair.client, memory));
    }
    /* It is no failure if no peer gets access. */
    beyond.inject("cuMemSetAccess:2");
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory));
    beyond.inject(NULL);
    pair_stop(&pair);
}

struct freeing {
    comm_client_t *client;
    void *memory;
    comm_result_t result;
    _Atomic int done;
};

static void *free_it(void *argument)
{
    struct freeing *freeing = argument;
    freeing->result = comm_mem_free(freeing->client, freeing->memory);
    freeing->done = 1;
    return NULL;
}

/* Freeing waits for the streams of the GPU. Meanwhile other threads go on. */
static void check_free_waits(const char *rule)
{
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "waits", 0);
    struct freeing freeing = {.client = pair.client};
    cuda_stream stream = gpu_stream();
    pthread_t thread;
    void *other;
    beyond.inject(rule);
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &freeing.memory));
    beyond.inject(NULL);
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &other));
    struct gate gate = gate_on(stream);
    GPU_OK(cuda->set_bytes((uintptr_t)freeing.memory, 1, 2 * MIB, stream));
    assert_int_equal(pthread_create(&thread, NULL, free_it, &freeing), 0);
    sleep_ms(100);
    assert_int_equal(freeing.done, 0);
    expect_ok(reduce_now(comm, other, other, 100));
    expect_ok(comm_sync(comm, 0));
    gate_open(&gate);
    assert_int_equal(pthread_join(thread, NULL), 0);
    expect_ok(freeing.result);
    GPU_OK(cuda->stream_synchronize(stream)); /* the stream's work used the memory while it was there */
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

static void test_free_waits_for_streams(void **state)
{
    (void)state;
    check_free_waits(NULL);
    check_free_waits("cuMemCreate:1=801");
}

/* Closing waits for the streams that use any memory of the client. None of them faults. */
static void test_close_waits_for_streams(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    cuda_stream stream = gpu_stream();
    size_t free_before = gpu_free_bytes();
    void *memory;
    for (unsigned i = 0; i < 5; i++) {
        expect_ok(comm_mem_alloc(pair.client, 4 * MIB, 0, &memory));
        for (unsigned turn = 0; turn < 20; turn++) {
            GPU_OK(cuda->set_bytes((uintptr_t)memory, 1, 4 * MIB, stream));
        }
    }
    pair_stop(&pair);
    GPU_OK(cuda->stream_synchronize(stream));
    GPU_OK(cuda->stream_destroy(stream));
    assert_int_equal(gpu_free_bytes(), free_before);
}

static void test_not_while_a_stream_is_captured(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "captured", 0);
    cuda_stream stream = gpu_stream();
    cuda_graph graph;
    void *memory;
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory));
    GPU_OK(beyond.begin_capture(stream, CUDA_CAPTURE_MODE_RELAXED));
    assert_int_equal(comm_mem_free(pair.client, memory), COMM_UNSUPPORTED);
    assert_error_says("comm_mem_free: a stream is being captured");
    (void)beyond.end_capture(stream, &graph);
    /* The memory is there as before. */
    expect_ok(reduce_now(comm, memory, memory, 100));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).virtuals, 1);
    expect_ok(comm_mem_free(pair.client, memory));
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory));
    GPU_OK(beyond.begin_capture(stream, CUDA_CAPTURE_MODE_RELAXED));
    pair_stop(&pair);
    unsigned type = 0;
    GPU_OK(cuda->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (uintptr_t)memory)); /* it stayed */
    (void)beyond.end_capture(stream, &graph);
    GPU_OK(cuda->stream_destroy(stream));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_descriptor),
        cmocka_unit_test(test_freed_after_commd_has_closed_it),
        cmocka_unit_test(test_freed_without_commd),
        cmocka_unit_test(test_freed_beside_a_frozen_commd),
        cmocka_unit_test(test_beside_other_virtual_memory),
        cmocka_unit_test(test_other_gpus_reach_it),
        cmocka_unit_test(test_without_virtual_memory),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_free_waits_for_streams),
        cmocka_unit_test(test_close_waits_for_streams),
        cmocka_unit_test(test_not_while_a_stream_is_captured),
    };
    return cmocka_run_group_tests(tests, gpu_setup, gpu_teardown);
}
