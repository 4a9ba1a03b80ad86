#include "tests/unit/client/gpu_pair.h"

/* Memory of CUDA memory pools: what the library passes to commd, and when it refuses. */

static const struct fake_script takes_pools = {.memory_pools = true};

static cuda_pool pool_make(int handle_types)
{
    cuda_pool pool;
    struct cuda_pool_properties properties = {.type = CUDA_ALLOCATION_PINNED,
                                              .handle_types = handle_types,
                                              .location = {.type = CUDA_LOCATION_DEVICE, .id = 0}};
    GPU_OK(beyond.pool_create(&pool, &properties));
    return pool;
}

static unsigned char *pool_alloc(cuda_pool pool, size_t bytes)
{
    cuda_pointer pointer;
    GPU_OK(beyond.alloc_from_pool(&pointer, bytes, pool, NULL));
    GPU_OK(cuda->stream_synchronize(NULL));
    return gpu_address(pointer);
}

static void pool_free(const unsigned char *memory)
{
    GPU_OK(cuda->memory_free_async((uintptr_t)memory, NULL));
    GPU_OK(cuda->stream_synchronize(NULL));
}

static comm_result_t enroll(const struct pair *pair, unsigned char *memory, size_t bytes)
{
    return comm_mem_register(pair->client, memory, bytes, -1, 0);
}

static void expect_reduced(comm_t *comm, unsigned char *from, unsigned char *to, size_t count)
{
    expect_ok(reduce_now(comm, from, to, count));
    expect_ok(comm_sync(comm, 0));
}

/* The pool's descriptor is passed with the first memory of it that is registered, and then with none until
 * all of it was deregistered. */
static void test_a_pool_is_passed_once(void **state)
{
    (void)state;
    struct cuda_pool_pointer data;
    struct cuda_uuid uuid;
    struct pair pair = pair_start(&takes_pools);
    comm_t *comm = gpu_comm(&pair, "once", 0);
    cuda_pool pool = pool_make(CUDA_HANDLE_POSIX_FD), other = pool_make(CUDA_HANDLE_POSIX_FD);
    unsigned char *memory[3] = {pool_alloc(pool, 5000), pool_alloc(pool, 3 * MIB), pool_alloc(other, 5000)};
    expect_ok(enroll(&pair, memory[0] + 100, 10)); /* any part stands for the whole allocation */
    expect_ok(enroll(&pair, memory[0], 5000));
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    GPU_OK(cuda->pool_export_pointer(&data, (uintptr_t)memory[0]));
    GPU_OK(cuda->device_uuid(&uuid, 0));
    assert_int_equal(counts.registered, 1);
    assert_int_equal(counts.memory_bytes, 5000);
    assert_memory_equal(counts.memory_handle, data.bytes, CUDA_POOL_POINTER_BYTES);
    assert_memory_equal(counts.memory_uuid, uuid.bytes, CUDA_UUID_BYTES);
    expect_ok(enroll(&pair, memory[1], 3 * MIB));
    assert_int_equal(fake_daemon_counts(pair.daemon).pools, 1);
    expect_ok(enroll(&pair, memory[2], 5000));
    assert_int_equal(fake_daemon_counts(pair.daemon).pools, 2);
    expect_reduced(comm, memory[0] + 100, memory[1] + 2 * MIB, 1000);
    counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.input_offset_bytes, 100);
    assert_int_equal(counts.output_offset_bytes, 2 * MIB);
    assert_int_not_equal(counts.input_memory, counts.output_memory);
    assert_int_equal(counts.registered, 3);
    expect_ok(comm_mem_deregister(pair.client, memory[0]));
    expect_ok(enroll(&pair, memory[0], 5000));
    assert_int_equal(fake_daemon_counts(pair.daemon).pools, 2);
    expect_ok(comm_mem_deregister(pair.client, memory[0]));
    expect_ok(comm_mem_deregister(pair.client, memory[1]));
    expect_ok(enroll(&pair, memory[0], 5000));
    assert_int_equal(fake_daemon_counts(pair.daemon).pools, 3);
    expect_ok(comm_mem_deregister(pair.client, memory[0]));
    expect_ok(comm_mem_deregister(pair.client, memory[2]));
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 0);
    for (int i = 0; i < 3; i++) {
        pool_free(memory[i]);
    }
    GPU_OK(cuda->pool_destroy(pool));
    GPU_OK(cuda->pool_destroy(other));
    pair_stop(&pair);
}

static void test_refusals(void **state)
{
    (void)state;
    cuda_pool usual;
    struct pair pair = pair_start(&takes_pools), old = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "refusals", 0), *old_comm = gpu_comm(&old, "refusals", 0);
    GPU_OK(beyond.pool_default(&usual, 0));
    const cuda_pool closed[] = {usual, pool_make(0), pool_make(CUDA_HANDLE_POSIX_FD)};
    unsigned char *memory = pool_alloc(closed[2], 5000);
    assert_int_equal(reduce_now(comm, memory, memory, 10), COMM_UNSUPPORTED);
    assert_error_says("is not registered: call comm_mem_register (ncclCommRegister) before it is used");
    assert_int_equal(reduce_now(old_comm, memory, memory, 10), COMM_UNSUPPORTED);
    assert_error_says("this commd is too old");
    assert_int_equal(enroll(&old, memory, 5000), COMM_UNSUPPORTED);
    assert_error_says("this commd is too old");
    assert_int_equal(enroll(&pair, memory, 5001), COMM_INVALID_ARGUMENT);
    beyond.inject("cuMemPoolExportPointer:1");
    assert_int_equal(enroll(&pair, memory, 5000), COMM_NO_MEMORY);
    assert_error_says("cuMemPoolExportPointer");
    beyond.inject(NULL);
    GPU_OK(cuda->pool_destroy(closed[2])); /* it cannot be passed any more, though its memory is there */
    unsigned char *others[] = {pool_alloc(closed[0], 5000), pool_alloc(closed[1], 5000), memory};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(reduce_now(comm, others[i], others[i], 10), COMM_UNSUPPORTED);
        assert_error_says("cannot be passed to commd: it is the default pool");
        assert_int_equal(enroll(&pair, others[i], 5000), COMM_UNSUPPORTED);
        assert_error_says("cudaMemPoolCreate");
        pool_free(others[i]);
    }
    GPU_OK(cuda->pool_destroy(closed[1]));
    assert_int_equal(fake_daemon_counts(pair.daemon).registered, 0);
    pair_stop(&pair);
    pair_stop(&old);
}

/* The caller forgot to deregister. The memory that then has the addresses is not taken for the earlier. */
static void test_freed_while_registered(void **state)
{
    (void)state;
    struct pair pair = pair_start(&takes_pools);
    comm_t *comm = gpu_comm(&pair, "freed", 0);
    cuda_pool pool = pool_make(CUDA_HANDLE_POSIX_FD);
    unsigned char *memory = pool_alloc(pool, 5000);
    expect_ok(enroll(&pair, memory, 5000));
    pool_free(memory);
    GPU_OK(cuda->pool_destroy(pool));
    cuda_pool again = pool_make(CUDA_HANDLE_POSIX_FD);
    assert_ptr_equal(again, pool);
    assert_ptr_equal(pool_alloc(again, 5000), memory);
    assert_int_equal(reduce_now(comm, memory, memory, 10), COMM_UNSUPPORTED);
    assert_error_says("is not registered");
    expect_ok(enroll(&pair, memory, 5000)); /* its answer comes after the withdrawal of the earlier memory */
    assert_int_equal(fake_daemon_counts(pair.daemon).withdrawn, 1);
    assert_int_equal(fake_daemon_counts(pair.daemon).pools, 2); /* the handle is the same, the pool is not */
    expect_reduced(comm, memory, memory, 10);
    expect_ok(comm_mem_deregister(pair.client, memory));
    pool_free(memory);
    GPU_OK(cuda->pool_destroy(again));
    pair_stop(&pair);
}

/* commd may still have the earlier memory open. */
static void test_a_place_in_use(void **state)
{
    (void)state;
    struct fake_script busy = takes_pools;
    busy.busy_answers = 3;
    struct pair pair = pair_start(&busy);
    (void)gpu_comm(&pair, "busy", 0);
    cuda_pool pool = pool_make(CUDA_HANDLE_POSIX_FD);
    unsigned char *memory = pool_alloc(pool, 5000);
    expect_ok(enroll(&pair, memory, 5000));
    assert_int_equal(fake_daemon_counts(pair.daemon).busy, 3);
    assert_int_equal(fake_daemon_counts(pair.daemon).pools, 1);
    expect_ok(comm_mem_deregister(pair.client, memory));
    pool_free(memory);
    GPU_OK(cuda->pool_destroy(pool));
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pool_is_passed_once),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_freed_while_registered),
        cmocka_unit_test(test_a_place_in_use),
    };
    return cmocka_run_group_tests(tests, gpu_setup, gpu_teardown);
}
