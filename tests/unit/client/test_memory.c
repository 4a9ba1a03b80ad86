#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/internal.h"
#include "tests/unit/client/client_pair.h"

#define PAGE 4096u

static uint64_t ms_since(uint64_t began_ns)
{
    return (clock_ns() - began_ns) / 1000000u;
}

static void sync_ok(comm_t *comm)
{
    if (comm_sync(comm, 0) != COMM_OK) {
        fail_msg("comm_sync: %s", comm_last_error());
    }
}

static void reduce_ok(comm_t *comm, const void *send, void *receive, size_t count)
{
    if (comm_all_reduce(comm, send, receive, count, COMM_U8, COMM_SUM, NULL) != COMM_OK) {
        fail_msg("comm_all_reduce: %s", comm_last_error());
    }
}

static int open_memfd(size_t size, unsigned flags)
{
    int fd = memfd_create("test", MFD_CLOEXEC | flags);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    return fd;
}

/* Memory of the allocator begins on a page, is zero, and commd works on it where it is. */
static void test_alloc_is_worked_on_in_place(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "alloc", 0, 1);
    static const size_t sizes[] = {1, PAGE - 1, PAGE, PAGE + 1, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *memory = NULL;
        assert_int_equal(comm_mem_alloc(pair.client, sizes[i], COMM_DEVICE_HOST, &memory), COMM_OK);
        unsigned char *bytes = memory;
        assert_int_equal((uintptr_t)bytes % PAGE, 0);
        for (size_t j = 0; j < sizes[i]; j++) {
            assert_int_equal(bytes[j], 0);
        }
        fill_bytes(bytes, sizes[i], (unsigned)i);
        uint64_t registered = fake_daemon_counts(pair.daemon).registered;
        reduce_ok(comm, bytes, bytes, sizes[i]);
        sync_ok(comm);
        assert_reduced(bytes, sizes[i], (unsigned)i);
        assert_int_equal(fake_daemon_counts(pair.daemon).registered, registered); /* nothing was staged */
        assert_int_equal(comm_mem_free(pair.client, memory), COMM_OK);
    }
    sync_ok(comm);
    comm_destroy(comm); /* answered: commd has read everything before it */
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 0);
    pair_stop(&pair);
}

static void test_alloc_refuses(void **state)
{
    (void)state;
    struct fake_script script = {.memories_max = 2};
    struct pair pair = pair_start(&script);
    void *memory = &pair;
    assert_int_equal(comm_mem_alloc(pair.client, 0, COMM_DEVICE_HOST, &memory), COMM_INVALID_ARGUMENT);
    assert_null(memory);
    assert_int_equal(comm_mem_alloc(pair.client, SIZE_MAX, COMM_DEVICE_HOST, &memory), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_mem_alloc(pair.client, 1, COMM_DEVICE_HOST, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_mem_alloc(NULL, 1, COMM_DEVICE_HOST, &memory), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_mem_alloc(pair.client, 1, 3, &memory), COMM_UNSUPPORTED);
    assert_error_says("device 3");
    assert_int_equal(comm_mem_alloc(pair.client, (size_t)1 << 60, COMM_DEVICE_HOST, &memory), COMM_NO_MEMORY);
    assert_null(memory);
    /* Limits of the daemon. */
    void *first, *second;
    assert_int_equal(comm_mem_alloc(pair.client, 1, COMM_DEVICE_HOST, &first), COMM_OK);
    assert_int_equal(comm_mem_alloc(pair.client, 1, COMM_DEVICE_HOST, &second), COMM_OK);
    assert_int_equal(comm_mem_alloc(pair.client, 1, COMM_DEVICE_HOST, &memory), COMM_LIMIT);
    assert_error_says("too many memories");
    assert_int_equal(comm_mem_free(pair.client, first), COMM_OK);
    assert_int_equal(comm_mem_alloc(pair.client, 1, COMM_DEVICE_HOST, &memory), COMM_OK);
    pair_stop(&pair);
}

static void test_free_refuses_what_is_not_its_own(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    void *memory;
    int fd = open_memfd(PAGE, MFD_ALLOW_SEALING);
    void *mapped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_int_equal(comm_mem_alloc(pair.client, 3 * PAGE, COMM_DEVICE_HOST, &memory), COMM_OK);
    assert_int_equal(comm_mem_register(pair.client, mapped, PAGE, fd, 0), COMM_OK);
    assert_int_equal(comm_mem_free(pair.client, NULL), COMM_OK);
    assert_int_equal(comm_mem_deregister(pair.client, NULL), COMM_OK);
    assert_int_equal(comm_mem_free(pair.client, (char *)memory + PAGE), COMM_NOT_FOUND);
    assert_int_equal(comm_mem_free(pair.client, &pair), COMM_NOT_FOUND);
    assert_int_equal(comm_mem_free(pair.client, mapped), COMM_NOT_FOUND);
    assert_int_equal(comm_mem_deregister(pair.client, memory), COMM_NOT_FOUND);
    assert_error_says("comm_mem_register");
    assert_int_equal(comm_mem_free(pair.client, memory), COMM_OK);
    assert_int_equal(comm_mem_free(pair.client, memory), COMM_NOT_FOUND);
    assert_int_equal(comm_mem_deregister(pair.client, mapped), COMM_OK);
    assert_int_equal(comm_mem_deregister(pair.client, mapped), COMM_NOT_FOUND);
    munmap(mapped, PAGE);
    close(fd);
    pair_stop(&pair);
}

static void test_register_refuses(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    int fd = open_memfd(4 * PAGE, MFD_ALLOW_SEALING);
    int unsealable = open_memfd(4 * PAGE, 0);
    char path[64];
    unsigned char *mapped = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(mapped != MAP_FAILED);
    assert_int_equal(comm_mem_register(pair.client, NULL, PAGE, fd, 0), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_mem_register(pair.client, mapped + 1, PAGE, fd, 0), COMM_INVALID_ARGUMENT);
    assert_error_says("page size");
    assert_int_equal(comm_mem_register(pair.client, mapped, PAGE, fd, 7), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_mem_register(pair.client, mapped, 0, fd, 0), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_mem_register(pair.client, mapped, SIZE_MAX - PAGE, fd, 0), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_mem_register(pair.client, mapped, 4 * PAGE + 1, fd, 0), COMM_INVALID_ARGUMENT);
    assert_error_says("16384 bytes");
    assert_int_equal(comm_mem_register(pair.client, mapped, PAGE, fd, 4 * PAGE), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_mem_register(pair.client, mapped, PAGE, fd, UINT64_MAX - PAGE + 1),
                     COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_mem_register(pair.client, mapped, PAGE, -1, 0), COMM_INVALID_ARGUMENT);
    assert_error_says("fd -1");
    void *not_sealed = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, unsealable, 0);
    assert_int_equal(comm_mem_register(pair.client, not_sealed, PAGE, unsealable, 0), COMM_INVALID_ARGUMENT);
    assert_error_says("MFD_ALLOW_SEALING");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(comm_mem_register(pair.client, mapped, PAGE, null, 0), COMM_INVALID_ARGUMENT);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int read_only = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(read_only >= 0);
    assert_int_equal(comm_mem_register(pair.client, mapped, PAGE, read_only, 0), COMM_INVALID_ARGUMENT);
    assert_error_says("reading and writing");
    assert_int_equal(fake_daemon_counts(pair.daemon).registered, 0);
    /* Ranges that overlap what is registered, from either side. */
    assert_int_equal(comm_mem_register(pair.client, mapped + PAGE, 2 * PAGE, fd, PAGE), COMM_OK);
    assert_int_equal(comm_mem_register(pair.client, mapped, 2 * PAGE, fd, 0), COMM_ALREADY_EXISTS);
    assert_int_equal(comm_mem_register(pair.client, mapped + 2 * PAGE, PAGE, fd, 2 * PAGE),
                     COMM_ALREADY_EXISTS);
    assert_int_equal(comm_mem_register(pair.client, mapped + PAGE, PAGE, fd, PAGE), COMM_ALREADY_EXISTS);
    assert_int_equal(comm_mem_register(pair.client, mapped, PAGE, fd, 0), COMM_OK);
    assert_int_equal(comm_mem_register(pair.client, mapped + 3 * PAGE, PAGE, fd, 3 * PAGE), COMM_OK);
    munmap(mapped, 4 * PAGE);
    munmap(not_sealed, PAGE);
    close(fd);
    close(unsealable);
    close(null);
    close(read_only);
    pair_stop(&pair);
}

/* commd would work on other memory than the caller's, and results would be wrong without any error. */
static void test_register_refuses_what_is_not_mapped_from_the_file(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    int access = PROT_READ | PROT_WRITE;
    int fd = open_memfd(4 * PAGE, MFD_ALLOW_SEALING);
    int other = open_memfd(4 * PAGE, MFD_ALLOW_SEALING);
    unsigned char *mapped = mmap(NULL, 4 * PAGE, access, MAP_SHARED, fd, 0);
    unsigned char *own_pages = mmap(NULL, 4 * PAGE, access, MAP_PRIVATE, fd, 0);
    unsigned char *no_file = mmap(NULL, 4 * PAGE, access, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(mapped != MAP_FAILED && own_pages != MAP_FAILED && no_file != MAP_FAILED);
    assert_int_equal(comm_mem_register(pair.client, own_pages, 4 * PAGE, fd, 0), COMM_INVALID_ARGUMENT);
    assert_error_says("MAP_PRIVATE");
    assert_int_equal(comm_mem_register(pair.client, no_file, 4 * PAGE, fd, 0), COMM_INVALID_ARGUMENT);
    assert_error_says("this place of the file");
    assert_int_equal(comm_mem_register(pair.client, mapped, PAGE, fd, PAGE), COMM_INVALID_ARGUMENT);
    assert_error_says("this place of the file");
    assert_int_equal(comm_mem_register(pair.client, mapped, 4 * PAGE, other, 0), COMM_INVALID_ARGUMENT);
    assert_int_equal(fcntl(other, F_GET_SEALS) & F_SEAL_SHRINK, 0); /* what is refused is not sealed */
    munmap(mapped + 2 * PAGE, PAGE);
    assert_int_equal(comm_mem_register(pair.client, mapped, 4 * PAGE, fd, 0), COMM_INVALID_ARGUMENT);
    assert_error_says("is not mapped");
    /* One range may be in several mappings. */
    assert_ptr_equal(mmap(mapped + 2 * PAGE, PAGE, access, MAP_SHARED | MAP_FIXED, fd, (off_t)(2 * PAGE)),
                     mapped + 2 * PAGE);
    assert_int_equal(mprotect(mapped + PAGE, PAGE, PROT_READ), 0);
    assert_int_equal(comm_mem_register(pair.client, mapped, 4 * PAGE, fd, 0), COMM_OK);
    munmap(mapped, 4 * PAGE);
    munmap(own_pages, 4 * PAGE);
    munmap(no_file, 4 * PAGE);
    close(fd);
    close(other);
    pair_stop(&pair);
}

/* The library seals the file and tells commd the offsets in it. The descriptor is not needed any more. */
static void test_register_at_an_offset(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "offset", 0, 1);
    int fd = open_memfd(8 * PAGE, MFD_ALLOW_SEALING);
    unsigned char *mapped = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 2 * PAGE);
    assert_true(mapped != MAP_FAILED);
    assert_int_equal(comm_mem_register(pair.client, mapped, 4 * PAGE, fd, 2 * PAGE), COMM_OK);
    assert_true((fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0);
    close(fd);
    fill_bytes(mapped + 5, PAGE, 3);
    memset(mapped + 2 * PAGE, 0xee, 2 * PAGE);
    reduce_ok(comm, mapped + 5, mapped + 3 * PAGE, PAGE);
    sync_ok(comm);
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.input_offset_bytes, 2 * PAGE + 5);
    assert_int_equal(counts.output_offset_bytes, 5 * PAGE);
    assert_int_equal(counts.registered, 1);
    assert_reduced(mapped + 3 * PAGE, PAGE, 3);
    assert_int_equal(mapped[3 * PAGE - 1], 0xee);
    assert_int_equal(comm_mem_deregister(pair.client, mapped), COMM_OK);
    /* From now on it is memory like any other. */
    fill_bytes(mapped, PAGE, 4);
    reduce_ok(comm, mapped, mapped, PAGE);
    sync_ok(comm);
    assert_int_equal(fake_daemon_counts(pair.daemon).registered, 2);
    assert_reduced(mapped, PAGE, 4);
    munmap(mapped, 4 * PAGE);
    pair_stop(&pair);
}

/* A buffer is staged if even one byte of it is outside of registered memory. */
static void test_buffers_beyond_registered_memory_are_staged(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "beyond", 0, 1);
    int fd = open_memfd(4 * PAGE, MFD_ALLOW_SEALING);
    unsigned char *mapped = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(mapped != MAP_FAILED);
    assert_int_equal(comm_mem_register(pair.client, mapped + PAGE, 2 * PAGE, fd, PAGE), COMM_OK);
    struct {
        size_t begin, size;
        bool staged;
    } cases[] = {
        {PAGE, 2 * PAGE, false},  {PAGE, 2 * PAGE + 1, true}, {PAGE - 1, PAGE, true},
        {3 * PAGE - 1, 1, false}, {3 * PAGE - 1, 2, true},    {3 * PAGE, PAGE, true},
        {0, 4 * PAGE, true},      {PAGE - 1, 1, true},        {PAGE, 1, false},
        {0, PAGE, true},          {2 * PAGE, PAGE, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(mapped, 0xa5, 4 * PAGE);
        fill_bytes(mapped + cases[i].begin, cases[i].size, (unsigned)i);
        reduce_ok(comm, mapped + cases[i].begin, mapped + cases[i].begin, cases[i].size);
        sync_ok(comm);
        assert_reduced(mapped + cases[i].begin, cases[i].size, (unsigned)i);
        struct fake_counts counts = fake_daemon_counts(pair.daemon);
        assert_int_equal(counts.input_memory == 1, !cases[i].staged);
        assert_int_equal(counts.output_memory, counts.input_memory);
        for (size_t j = 0; j < 4 * PAGE; j++) {
            if (j < cases[i].begin || j >= cases[i].begin + cases[i].size) {
                assert_int_equal(mapped[j], 0xa5);
            }
        }
    }
    munmap(mapped, 4 * PAGE);
    close(fd);
    pair_stop(&pair);
}

/* Every mixture of places of the two buffers. An input that is no output stays as it was. */
static void test_mixtures_of_buffers(void **state)
{
    (void)state;
    enum { SIZE = 70001 };
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "mixtures", 0, 1);
    void *shared_in, *shared_out;
    unsigned char *plain_in = malloc(SIZE), *plain_out = malloc(SIZE), *expected = malloc(SIZE);
    assert_int_equal(comm_mem_alloc(pair.client, SIZE, COMM_DEVICE_HOST, &shared_in), COMM_OK);
    assert_int_equal(comm_mem_alloc(pair.client, SIZE, COMM_DEVICE_HOST, &shared_out), COMM_OK);
    unsigned char *ins[] = {plain_in, shared_in}, *outs[] = {plain_out, shared_out};
    for (unsigned i = 0; i < 4; i++) {
        unsigned char *in = ins[i & 1], *out = outs[i >> 1];
        fill_bytes(in, SIZE, i);
        fill_bytes(expected, SIZE, i);
        memset(out, 0x5a, SIZE);
        reduce_ok(comm, in, out, SIZE);
        sync_ok(comm);
        assert_reduced(out, SIZE, i);
        assert_memory_equal(in, expected, SIZE);
    }
    free(plain_in);
    free(plain_out);
    free(expected);
    pair_stop(&pair);
}

/* Staging blocks are used again. There are as many as operations in flight, not as many as operations. */
static void test_staging_is_used_again(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "again", 0, 1);
    static unsigned char buffers[3][100000];
    for (unsigned round = 0; round < 50; round++) {
        for (unsigned i = 0; i < 3; i++) {
            fill_bytes(buffers[i], 60000 + round * 100, round + i);
            reduce_ok(comm, buffers[i], buffers[i], 60000 + round * 100);
        }
        sync_ok(comm);
        for (unsigned i = 0; i < 3; i++) {
            assert_reduced(buffers[i], 60000 + round * 100, round + i);
        }
    }
    assert_true(fake_daemon_counts(pair.daemon).registered <= 6); /* two sizes of block, three at once */
    pair_stop(&pair);
}

/* Unused blocks are kept up to a bound. The library gives back blocks beyond it to the system. */
static void test_staging_kept_is_bounded(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "bounded", 0, 1);
    /* Blocks are files with holes: pages that are not touched take no memory, but count in full. */
    size_t size = STAGING_CACHED_MAX_BYTES / 8;
    unsigned char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(bytes != MAP_FAILED);
    for (unsigned i = 0; i < 7; i++) {
        reduce_ok(comm, bytes, bytes, 1000u << (2 * i));
        sync_ok(comm);
    }
    struct comm_client *client = pair.client;
    assert_true(client->staging.free_bytes > 0);
    assert_true(client->staging.free_bytes <= STAGING_CACHED_MAX_BYTES);
    /* The bound itself, with blocks that nobody copies into. */
    struct client_memory *blocks[12], *small;
    pthread_mutex_lock(&client->lock);
    assert_int_equal(staging_take(client, 1, &small), COMM_OK);
    for (unsigned i = 0; i < 12; i++) {
        assert_int_equal(staging_take(client, size, &blocks[i]), COMM_OK);
        assert_int_equal(blocks[i]->size_bytes, STAGING_CACHED_MAX_BYTES / 8);
    }
    for (unsigned i = 0; i < 12; i++) {
        staging_give(client, blocks[i], true);
    }
    /* There is a small block, so this keeps the lock. The keeper, which looks at the time, waits for it. */
    staging_give(client, small, true);
    assert_int_equal(staging_take(client, 1, &small), COMM_OK);
    assert_true(client->staging.free_bytes <= STAGING_CACHED_MAX_BYTES);
    assert_true(client->staging.free_bytes > STAGING_CACHED_MAX_BYTES / 2);
    staging_give(client, small, true);
    pthread_mutex_unlock(&client->lock);
    comm_destroy(comm);
    assert_true(fake_daemon_counts(pair.daemon).memories <= 16);
    munmap(bytes, size);
    pair_stop(&pair);
}

static bool no_memories(const struct fake_counts *counts, uint64_t value)
{
    (void)value;
    return counts->memories == 0;
}

/* Blocks that no operation uses for a second are given back without any call, down to STAGING_KEPT_BYTES. */
static void test_staging_that_is_not_used(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    struct comm_client *client = pair.client;
    struct client_memory *blocks[4];
    pthread_mutex_lock(&client->lock);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(staging_take(client, 2 * STAGING_KEPT_BYTES, &blocks[i]), COMM_OK);
    }
    for (unsigned i = 0; i < 4; i++) {
        staging_give(client, blocks[i], true);
    }
    assert_int_equal(client->staging.free_bytes, 8 * STAGING_KEPT_BYTES);
    pthread_mutex_unlock(&client->lock);
    fake_daemon_wait(pair.daemon, no_memories, 0);
    pthread_mutex_lock(&client->lock);
    assert_int_equal(client->staging.free_bytes, 0);
    pthread_mutex_unlock(&client->lock);
    pair_stop(&pair);
}

/* Many small blocks are cut from few mappings, and none overlaps another. */
static void test_staging_of_small_blocks(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    struct pair pair = pair_start(NULL);
    struct comm_client *client = pair.client;
    static struct client_memory *blocks[COUNT];
    pthread_mutex_lock(&client->lock);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(staging_take(client, 900, &blocks[i]), COMM_OK);
        memset(blocks[i]->base, (int)(i % 251), 900);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(blocks[i]->base[0], i % 251);
        assert_int_equal(blocks[i]->base[899], i % 251);
    }
    /* A block that commd may still write to keeps its neighbours from being used again. */
    for (unsigned i = 0; i < COUNT; i++) {
        staging_give(client, blocks[i], i != 0);
    }
    unsigned char *doomed = blocks[0]->base;
    struct client_memory *again;
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(staging_take(client, 900, &again), COMM_OK);
        assert_true(again->base + 900 <= doomed || again->base >= doomed + 1024);
        staging_give(client, again, true);
    }
    pthread_mutex_unlock(&client->lock);
    assert_true(fake_daemon_counts(pair.daemon).registered < 16);
    pair_stop(&pair);
}

static void *do_nothing(void *argument)
{
    return argument;
}

/* The library needs little of a thread's stack: a thread may have the smallest one there is. */
static void test_threads_of_small_stacks(void **state)
{
    (void)state;
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, (size_t)sysconf(_SC_THREAD_STACK_MIN)), 0);
    assert_int_equal(pthread_create(&thread, &attributes, do_nothing, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
}

static void test_staging_too_large(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    struct comm_client *client = pair.client;
    struct client_memory *block;
    pthread_mutex_lock(&client->lock);
    assert_int_equal(staging_take(client, STAGING_MAX_BYTES + 1, &block), COMM_LIMIT);
    pthread_mutex_unlock(&client->lock);
    assert_error_says("comm_mem_alloc");
    pair_stop(&pair);
}

struct freeing {
    comm_client_t *client;
    void *memory;
    comm_result_t result;
};

static void *free_memory(void *argument)
{
    struct freeing *freeing = argument;
    freeing->result = comm_mem_free(freeing->client, freeing->memory);
    return NULL;
}

/* Operations use the memory that is freed. The call waits for them, whether or not another thread syncs. */
static void test_free_waits_for_operations(void **state)
{
    (void)state;
    struct fake_script script = {.op_delay_ms = 150};
    struct pair pair = pair_start(&script);
    comm_t *comm = pair_comm(&pair, "waits", 0, 1);
    for (unsigned with_sync = 0; with_sync < 2; with_sync++) {
        struct freeing freeing = {.client = pair.client, .result = COMM_INTERNAL};
        pthread_t thread;
        assert_int_equal(comm_mem_alloc(pair.client, 5000, COMM_DEVICE_HOST, &freeing.memory), COMM_OK);
        uint64_t began_ns = clock_ns();
        reduce_ok(comm, freeing.memory, freeing.memory, 5000);
        assert_int_equal(pthread_create(&thread, NULL, free_memory, &freeing), 0);
        if (with_sync != 0) {
            sync_ok(comm);
        }
        pthread_join(thread, NULL);
        assert_int_equal(freeing.result, COMM_OK);
        assert_true(ms_since(began_ns) >= 149);
        sync_ok(comm);
    }
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc_is_worked_on_in_place),
        cmocka_unit_test(test_alloc_refuses),
        cmocka_unit_test(test_free_refuses_what_is_not_its_own),
        cmocka_unit_test(test_register_refuses),
        cmocka_unit_test(test_register_refuses_what_is_not_mapped_from_the_file),
        cmocka_unit_test(test_register_at_an_offset),
        cmocka_unit_test(test_buffers_beyond_registered_memory_are_staged),
        cmocka_unit_test(test_mixtures_of_buffers),
        cmocka_unit_test(test_staging_is_used_again),
        cmocka_unit_test(test_staging_kept_is_bounded),
        cmocka_unit_test(test_staging_that_is_not_used),
        cmocka_unit_test(test_staging_of_small_blocks),
        cmocka_unit_test(test_threads_of_small_stacks),
        cmocka_unit_test(test_staging_too_large),
        cmocka_unit_test(test_free_waits_for_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
