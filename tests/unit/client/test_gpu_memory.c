#include <pthread.h>

#include "client/lib/internal.h"
#include "tests/unit/client/gpu_segment.h"

/* WAITS = True */

/* Memory on GPUs: what the library registers, when, and as what; what it refuses, and under which name. */

static void test_init_tells_the_uuid(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    for (int device = GPU_DEVICES - 1; device >= 0; device--) {
        struct cuda_uuid uuid;
        comm_t *comm = gpu_comm(&pair, "uuid", device);
        struct fake_counts counts = fake_daemon_counts(pair.daemon);
        GPU_OK(cuda->device_uuid(&uuid, device));
        assert_int_equal(counts.device, device);
        assert_int_equal(counts.device_uuid_bytes, CUDA_UUID_BYTES);
        assert_memory_equal(counts.device_uuid, uuid.bytes, CUDA_UUID_BYTES);
        comm_destroy(comm);
    }
    comm_t *comm = pair_comm(&pair, "host", 0, 1);
    assert_int_equal(fake_daemon_counts(pair.daemon).device, COMM_DEVICE_HOST);
    assert_int_equal(fake_daemon_counts(pair.daemon).device_uuid_bytes, 0);
    comm_t *none = NULL;
    assert_int_equal(comm_init(pair.client, "x", 0, 1, GPU_DEVICES, NULL, &none), COMM_UNSUPPORTED);
    assert_error_says("this process sees 2 GPUs");
    assert_int_equal(comm_init(pair.client, "x", 0, 1, -2, NULL, &none), COMM_INVALID_ARGUMENT);
    assert_null(none);
    comm_destroy(comm);
    pair_stop(&pair);
}

/* The first use registers the whole allocation, once, whatever part is used. Offsets are relative to its
 * base. */
static void test_first_use_registers(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "first", 0);
    struct cuda_ipc_handle handle;
    struct cuda_uuid uuid;
    cuda_pointer base = gpu_alloc(6 * MIB);
    expect_ok(reduce_now(comm, gpu_address(base + 4096), gpu_address(base + 3 * MIB), 1000));
    expect_ok(comm_sync(comm, 0));
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    GPU_OK(cuda->ipc_get(&handle, base));
    GPU_OK(cuda->device_uuid(&uuid, 0));
    assert_int_equal(counts.handles, 1);
    assert_int_equal(counts.registered, 1);
    assert_int_equal(counts.memory_bytes, 6 * MIB);
    assert_memory_equal(counts.memory_handle, handle.bytes, CUDA_IPC_HANDLE_BYTES);
    assert_memory_equal(counts.memory_uuid, uuid.bytes, CUDA_UUID_BYTES);
    assert_int_equal(counts.input_offset_bytes, 4096);
    assert_int_equal(counts.output_offset_bytes, 3 * MIB);
    assert_int_equal(counts.input_memory, counts.output_memory);
    expect_ok(reduce_now(comm, gpu_address(base), gpu_address(base), 6 * MIB));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).registered, 1);
    /* A buffer may not reach beyond the allocation. */
    assert_int_equal(reduce_now(comm, gpu_address(base), gpu_address(base), 6 * MIB + 1),
                     COMM_INVALID_ARGUMENT);
    assert_error_says("exceed the allocation");
    assert_error_says("comm_all_reduce on \"first\"");
    /* Small allocations lie in one block. Each is registered by itself. */
    cuda_pointer small = gpu_alloc(512), other = gpu_alloc(700);
    expect_ok(reduce_now(comm, gpu_address(small), gpu_address(other), 512));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).handles, 3);
    assert_int_equal(fake_daemon_counts(pair.daemon).memory_bytes, 700);
    assert_int_equal(fake_daemon_counts(pair.daemon).refused, 0);
    GPU_OK(cuda->memory_free(small));
    GPU_OK(cuda->memory_free(other));
    GPU_OK(cuda->memory_free(base));
    pair_stop(&pair);
}

/* The same address, and perhaps the same handle, but other memory. */
static void test_memory_that_was_freed_and_made_again(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "again", 0);
    for (unsigned i = 0; i < 20; i++) {
        cuda_pointer base = gpu_alloc(4 * MIB);
        expect_ok(reduce_now(comm, gpu_address(base), gpu_address(base), 100));
        expect_ok(comm_sync(comm, 0));
        struct fake_counts counts = fake_daemon_counts(pair.daemon);
        assert_int_equal(counts.handles, i + 1);
        assert_int_equal(counts.memories, 1); /* the one before is withdrawn */
        GPU_OK(cuda->memory_free(base));
    }
    /* Allocations of other sizes that overlap it in part, from below and from above. */
    cuda_pointer low = gpu_alloc(2 * MIB), high = gpu_alloc(2 * MIB);
    expect_ok(reduce_now(comm, gpu_address(low), gpu_address(high), 100));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 2);
    GPU_OK(cuda->memory_free(low));
    GPU_OK(cuda->memory_free(high));
    cuda_pointer both = gpu_alloc(4 * MIB);
    expect_ok(reduce_now(comm, gpu_address(both), gpu_address(both), 4 * MIB));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 1);
    GPU_OK(cuda->memory_free(both));
    low = gpu_alloc(2 * MIB);
    high = gpu_alloc(2 * MIB);
    expect_ok(reduce_now(comm, gpu_address(high), gpu_address(low), 100));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 2);
    assert_int_equal(fake_daemon_counts(pair.daemon).refused, 0);
    GPU_OK(cuda->memory_free(low));
    GPU_OK(cuda->memory_free(high));
    pair_stop(&pair);
}

/* Memory is freed while operations use it. The library withdraws it at once, and frees nothing of its own. */
static void test_stale_memory_in_use(void **state)
{
    (void)state;
    struct fake_script script = {.holds_ops = true}; /* a call that waited would never return */
    struct pair pair = pair_start(&script);
    comm_t *comm = gpu_comm(&pair, "in-use", 0);
    cuda_pointer base = gpu_alloc(2 * MIB);
    expect_ok(reduce_now(comm, gpu_address(base), gpu_address(base), 100));
    GPU_OK(cuda->memory_free(base));
    base = gpu_alloc(2 * MIB);
    expect_ok(reduce_now(comm, gpu_address(base), gpu_address(base), 200));
    fake_daemon_set(pair.daemon, &(struct fake_script){0});
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).handles, 2);
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 1);
    GPU_OK(cuda->memory_free(base));
    pair_stop(&pair);
}

/* commd cannot open the memory while it uses what was there before. The library asks again, but not
 * for ever. */
static void test_a_place_in_use(void **state)
{
    (void)state;
    struct fake_script script = {.busy_answers = 5};
    struct pair pair = pair_start(&script);
    comm_t *comm = gpu_comm(&pair, "busy", 0);
    cuda_pointer base = gpu_alloc(2 * MIB);
    expect_ok(reduce_now(comm, gpu_address(base), gpu_address(base), 100));
    expect_ok(comm_sync(comm, 0));
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.busy, 5);
    assert_int_equal(counts.handles, 1);
    assert_int_equal(counts.memory_address, base);
    cuda_pointer other = gpu_alloc(2 * MIB);
    script.busy_answers = UINT32_MAX;
    fake_daemon_set(pair.daemon, &script);
    uint64_t began_ns = clock_ns();
    assert_int_equal(reduce_now(comm, gpu_address(other), gpu_address(other), 100), COMM_BUSY);
    uint64_t took_ns = clock_ns() - began_ns;
    assert_error_says("comm_all_reduce on \"busy\"");
    assert_error_says("still in use by \"other\"");
    assert_true(took_ns >= BUSY_TIMEOUT_MS * 1000000ull);
    assert_true(fake_daemon_counts(pair.daemon).busy < 1000); /* it asks more and more rarely */
    fake_daemon_set(pair.daemon, &(struct fake_script){0});
    expect_ok(reduce_now(comm, gpu_address(other), gpu_address(other), 100));
    expect_ok(comm_sync(comm, 0));
    GPU_OK(cuda->memory_free(base));
    GPU_OK(cuda->memory_free(other));
    pair_stop(&pair);
}

static void test_alloc_on_a_gpu(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "alloc", 1);
    void *memory = NULL;
    expect_ok(comm_mem_alloc(pair.client, 5, 1, &memory));
    assert_int_equal((uintptr_t)memory % (2 * MIB), 0);
    assert_int_equal(fake_daemon_counts(pair.daemon).virtuals, 1); /* at once */
    assert_int_equal(fake_daemon_counts(pair.daemon).memory_bytes, 2 * MIB);
    expect_ok(reduce_now(comm, memory, memory, 2 * MIB));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).registered, 1);
    assert_int_equal(comm_mem_deregister(pair.client, memory), COMM_NOT_FOUND);
    assert_int_equal(comm_mem_free(pair.client, (char *)memory + 1), COMM_NOT_FOUND);
    expect_ok(comm_mem_free(pair.client, memory));
    assert_int_equal(comm_mem_free(pair.client, memory), COMM_NOT_FOUND);
    unsigned long long id;
    assert_int_not_equal(
        cuda->pointer_attribute(&id, CUDA_POINTER_BUFFER_ID, (cuda_pointer)(uintptr_t)memory),
        CUDA_RESULT_OK);
    assert_int_equal(comm_mem_alloc(pair.client, (size_t)1 << 45, 0, &memory), COMM_NO_MEMORY);
    assert_error_says("comm_mem_alloc: cuMemCreate");
    assert_null(memory);
    assert_int_equal(comm_mem_alloc(pair.client, 1, 7, &memory), COMM_UNSUPPORTED);
    assert_int_equal(comm_mem_alloc(pair.client, 1, -3, &memory), COMM_INVALID_ARGUMENT);
    /* Refused by commd: freed again. */
    size_t free_before, free_after, total;
    struct fake_script script = {.refuses_gpu_memory = true};
    fake_daemon_set(pair.daemon, &script);
    GPU_OK(cuda->memory_info(&free_before, &total));
    assert_int_equal(comm_mem_alloc(pair.client, 1, 0, &memory), COMM_DEVICE);
    assert_error_says("fake: the GPU does not open it");
    GPU_OK(cuda->memory_info(&free_after, &total));
    assert_int_equal(free_after, free_before);
    fake_daemon_set(pair.daemon, &(struct fake_script){0});
    expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory)); /* freed with the client */
    pair_stop(&pair);
    GPU_OK(cuda->memory_info(&free_after, &total));
    assert_int_equal(free_after, free_before);
}

static void test_expandable_segments(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "segments", 0);
    struct segment segment = segment_make(2 * MIB, 4);
    unsigned char *base = gpu_address(segment.base);
    /* A buffer across a border of parts: all parts are passed, with one descriptor each. */
    expect_ok(reduce_now(comm, base + 3 * MIB, base + 5 * MIB, 2 * MIB));
    expect_ok(comm_sync(comm, 0));
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.virtuals, 1);
    assert_int_equal(counts.maps, 4);
    assert_int_equal(counts.memory_bytes, 16 * MIB); /* with room to grow */
    assert_int_equal(counts.input_offset_bytes, 3 * MIB);
    assert_int_equal(counts.output_offset_bytes, 5 * MIB);
    expect_ok(reduce_now(comm, base, base, 8 * MIB));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).virtuals, 1);
    /* There is no memory. */
    assert_int_equal(reduce_now(comm, base, base, 8 * MIB + 1), COMM_INVALID_ARGUMENT);
    assert_error_says("not memory of GPU 0");
    /* The segment grows: a part that is used next is passed in addition. */
    segment_grow(&segment);
    expect_ok(reduce_now(comm, base + 7 * MIB, base + 7 * MIB, 2 * MIB));
    expect_ok(comm_sync(comm, 0));
    counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.virtuals, 1);
    assert_int_equal(counts.maps, 5);
    assert_int_equal(counts.memories, 1);
    assert_int_equal(counts.input_offset_bytes, 7 * MIB);
    /* A part is replaced: only an operation that touches it passes it again. */
    segment_shrink(&segment);
    segment_grow(&segment);
    expect_ok(reduce_now(comm, base, base, 8 * MIB));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).virtuals, 1);
    expect_ok(reduce_now(comm, base, base, 8 * MIB + 1));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).virtuals, 2);
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 1);
    assert_int_equal(fake_daemon_counts(pair.daemon).unmapped, 0);
    segment_free(&segment);
    pair_stop(&pair);
}

static void test_refusals_name_the_memory(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "refusals", 0);
    comm_t *other = gpu_comm(&pair, "other", 1);
    comm_t *host = pair_comm(&pair, "host", 0, 1);
    cuda_pointer managed, pool, plain = gpu_alloc(2 * MIB), late = gpu_alloc(2 * MIB);
    cuda_stream stream = gpu_stream();
    GPU_OK(beyond.alloc_managed(&managed, 4096, CUDA_ATTACH_GLOBAL));
    GPU_OK(beyond.alloc_pool(&pool, 4096, stream));
    assert_int_equal(reduce_now(comm, gpu_address(managed), gpu_address(managed), 10), COMM_UNSUPPORTED);
    assert_error_says("managed (cudaMallocManaged)");
    assert_error_says("comm_mem_alloc");
    assert_int_equal(reduce_now(comm, gpu_address(pool), gpu_address(pool), 10), COMM_UNSUPPORTED);
    assert_error_says("CUDA memory pool (cudaMallocAsync)");
    assert_error_says("comm_mem_alloc");
    assert_int_equal(reduce_now(other, gpu_address(plain), gpu_address(plain), 10), COMM_UNSUPPORTED);
    assert_error_says("is of GPU 0, and the communicator's rank is on GPU 1");
    expect_ok(reduce_now(comm, gpu_address(plain), gpu_address(plain), 10));
    assert_int_equal(reduce_now(other, gpu_address(plain), gpu_address(plain), 10), COMM_UNSUPPORTED);
    assert_int_equal(reduce_now(host, gpu_address(plain), gpu_address(plain), 10), COMM_INVALID_ARGUMENT);
    assert_error_says("the communicator's rank is on the host");
    assert_int_equal(reduce_now(host, gpu_address(late), gpu_address(late), 10), COMM_INVALID_ARGUMENT);
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).registered, 1);
    GPU_OK(cuda->memory_free_async(pool, stream));
    GPU_OK(cuda->stream_synchronize(stream));
    GPU_OK(cuda->memory_free(managed));
    GPU_OK(cuda->memory_free(plain));
    GPU_OK(cuda->memory_free(late));
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

/* Host memory is staged, or commd works on it where it is, as for a communicator on the host. */
static void test_host_memory_with_a_gpu(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "host-memory", 0);
    static unsigned char plain[5000];
    void *shared, *pinned;
    expect_ok(comm_mem_alloc(pair.client, 5000, COMM_DEVICE_HOST, &shared));
    GPU_OK(cuda->host_alloc(&pinned, 5000, CUDA_HOST_PORTABLE));
    unsigned char *buffers[] = {plain, shared, pinned};
    for (unsigned i = 0; i < 3; i++) {
        fill_bytes(buffers[i], 5000, i);
        expect_ok(reduce_now(comm, buffers[i], buffers[i], 5000));
        expect_ok(comm_sync(comm, 0));
        assert_reduced(buffers[i], 5000, i);
    }
    assert_int_equal(fake_daemon_counts(pair.daemon).registered, 2); /* the shared one, and one to stage in */
    GPU_OK(cuda->host_free(pinned));
    pair_stop(&pair);
}

static void test_registered_by_hand(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "by-hand", 0);
    cuda_pointer base = gpu_alloc(2 * MIB);
    expect_ok(comm_mem_register(pair.client, gpu_address(base), 2 * MIB, -1, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).handles, 1);
    expect_ok(comm_mem_register(pair.client, gpu_address(base + 5), 100, -1, 0));
    expect_ok(reduce_now(comm, gpu_address(base), gpu_address(base), 10));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).handles, 1);
    expect_ok(comm_mem_deregister(pair.client, gpu_address(base + 77)));
    assert_int_equal(comm_mem_deregister(pair.client, gpu_address(base)), COMM_NOT_FOUND);
    expect_ok(reduce_now(comm, gpu_address(base), gpu_address(base), 10));
    expect_ok(comm_sync(comm, 0));
    assert_int_equal(fake_daemon_counts(pair.daemon).handles, 2);
    int here;
    assert_int_equal(comm_mem_register(pair.client, &here, sizeof here, -1, 0), COMM_INVALID_ARGUMENT);
    assert_error_says("is no memory on a GPU");
    GPU_OK(cuda->memory_free(base));
    pair_stop(&pair);
}

struct worker {
    pthread_t thread;
    comm_t *comm;
    unsigned char *shared;
    unsigned char *own;
};

/* The thread has no context, and has none afterwards either. */
static void *work(void *argument)
{
    struct worker *worker = argument;
    cuda_context context = NULL;
    for (int i = 0; i < 100; i++) {
        if (reduce_now(worker->comm, worker->shared, worker->own, 1000) != COMM_OK ||
            reduce_on(worker->comm, worker->own, 1000, NULL) != COMM_OK) {
            return "failed";
        }
    }
    if (cuda->context_get(&context) != CUDA_RESULT_OK || context != NULL) {
        return "a context was left";
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    (void)state;
    enum { THREADS = 8 };
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "threads", 0);
    struct worker workers[THREADS];
    cuda_pointer shared = gpu_alloc(2 * MIB);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){
            .comm = comm, .shared = gpu_address(shared), .own = gpu_address(gpu_alloc(2 * MIB))};
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *problem;
        assert_int_equal(pthread_join(workers[i].thread, &problem), 0);
        if (problem != NULL) {
            fail_msg("%s", (const char *)problem);
        }
    }
    expect_ok(comm_sync(comm, 0));
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.handles, THREADS + 1); /* each once */
    assert_int_equal(counts.refused, 0);
    assert_int_equal(counts.submits, THREADS * 200);
    for (int i = 0; i < THREADS; i++) {
        GPU_OK(cuda->memory_free((cuda_pointer)(uintptr_t)workers[i].own));
    }
    GPU_OK(cuda->memory_free(shared));
    pair_stop(&pair);
}

/* The thread's context stays what it was. */
static void test_the_context_is_left(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "context", 1);
    cuda_context before, after;
    void *memory;
    GPU_OK(cuda->context_get(&before));
    expect_ok(comm_mem_alloc(pair.client, 1, 1, &memory));
    expect_ok(reduce_on(comm, memory, 1000, NULL));
    expect_ok(comm_sync(comm, 0));
    GPU_OK(cuda->context_get(&after));
    assert_ptr_equal(before, after);
    pair_stop(&pair);
    GPU_OK(cuda->context_get(&after));
    assert_ptr_equal(before, after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_tells_the_uuid),
        cmocka_unit_test(test_first_use_registers),
        cmocka_unit_test(test_memory_that_was_freed_and_made_again),
        cmocka_unit_test(test_stale_memory_in_use),
        cmocka_unit_test(test_a_place_in_use),
        cmocka_unit_test(test_alloc_on_a_gpu),
        cmocka_unit_test(test_expandable_segments),
        cmocka_unit_test(test_refusals_name_the_memory),
        cmocka_unit_test(test_host_memory_with_a_gpu),
        cmocka_unit_test(test_registered_by_hand),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_the_context_is_left),
    };
    return cmocka_run_group_tests(tests, gpu_setup, gpu_teardown);
}
