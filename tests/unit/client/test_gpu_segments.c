#include <pthread.h>

#include "client/lib/internal.h"
#include "tests/unit/client/gpu_segment.h"

/* Virtual memory that an allocator maps, unmaps and maps anew. The driver numbers reservations, not
 * mappings. */

static unsigned long long number_of(int attribute, cuda_pointer at)
{
    unsigned long long number = 0;
    GPU_OK(cuda->pointer_attribute(&number, attribute, at));
    return number;
}

static void expect_reduced(comm_t *comm, unsigned char *at, size_t count)
{
    expect_ok(reduce_now(comm, at, at, count));
    expect_ok(comm_sync(comm, 0));
}

/* Other memory takes the place of some. The library notices that wherever the segment is touched. */
static void test_mapped_anew(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "anew", 0);
    struct segment segment = segment_make(2 * MIB, 4);
    unsigned char *base = gpu_address(segment.base);
    expect_reduced(comm, base, 8 * MIB);
    assert_int_equal(fake_daemon_counts(pair.daemon).maps, 4);
    for (unsigned i = 0; i < 4; i++) {
        cuda_pointer at = segment.base + i * 2 * MIB;
        unsigned long long number = number_of(CUDA_POINTER_BUFFER_ID, at);
        unsigned long long block = number_of(CUDA_POINTER_BLOCK_ID, at);
        segment_unmap(&segment, i);
        segment_map(&segment, i);
        assert_int_equal(number_of(CUDA_POINTER_BUFFER_ID, at), number);
        assert_int_not_equal(number_of(CUDA_POINTER_BLOCK_ID, at), block);
        expect_reduced(comm, base + (i == 0 ? 2 : 0) * MIB, 2 * MIB); /* beside it */
        assert_int_equal(fake_daemon_counts(pair.daemon).maps, 4 + 4 * i);
        expect_reduced(comm, base + i * 2 * MIB + 100, 100);
        assert_int_equal(fake_daemon_counts(pair.daemon).maps, 8 + 4 * i);
        assert_int_equal(fake_daemon_counts(pair.daemon).memories, 1);
    }
    segment_free(&segment);
    pair_stop(&pair);
}

/* The library's own memory, freed and made again at the same address. */
static void test_made_anew(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "made", 0);
    for (unsigned i = 0; i < 10; i++) {
        void *memory;
        expect_ok(comm_mem_alloc(pair.client, 1, 0, &memory));
        expect_reduced(comm, memory, 2 * MIB);
        assert_int_equal(fake_daemon_counts(pair.daemon).virtuals, i + 1);
        expect_ok(comm_mem_free(pair.client, memory));
    }
    pair_stop(&pair);
}

static uint64_t steps_of(unsigned chunks)
{
    return chunks / 2 * (chunks + 1);
}

/* The segment grows by a chunk at a time. It is registered anew only as often as its size doubles. */
static void test_grows(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "grows", 0);
    struct segment segment = segment_make(2 * MIB, 0);
    unsigned char *base = gpu_address(segment.base);
    for (unsigned i = 0; i < 48; i++) {
        segment_grow(&segment);
        expect_reduced(comm, base + (i == 0 ? 0 : (2 * i - 1) * MIB), (i == 0 ? 1 : 3) * MIB);
        assert_int_equal(fake_daemon_counts(pair.daemon).memories, 1);
    }
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    print_message("48 chunks: %llu passed in %llu registrations; one by one anew: %llu in 48\n",
                  (unsigned long long)counts.maps, (unsigned long long)counts.virtuals,
                  (unsigned long long)steps_of(48));
    assert_true(counts.virtuals <= 7);
    assert_true(counts.maps < 3 * 48);
    assert_int_equal(counts.refused, 0);
    assert_int_equal(counts.unmapped, 0);
    /* Several chunks are added at once, and the last is used first. commd gets no more room than the owner
     * has. */
    for (unsigned i = 48; i < SEGMENT_CHUNKS_MAX; i++) {
        segment_grow(&segment);
    }
    expect_reduced(comm, base + 127 * MIB, MIB);
    expect_reduced(comm, base, 128 * MIB);
    assert_true(fake_daemon_counts(pair.daemon).memory_bytes <= SEGMENT_CHUNKS_MAX * 2 * MIB);
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 1);
    segment_free(&segment);
    pair_stop(&pair);
}

/* Operations in flight, and the memory's name, stay as they were. */
static void test_grows_while_it_is_used(void **state)
{
    (void)state;
    struct fake_script script = {.holds_ops = true}; /* a call that waited would never return */
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "used", 0);
    struct segment segment = segment_make(2 * MIB, 2);
    unsigned char *base = gpu_address(segment.base);
    expect_reduced(comm, base, 4 * MIB);
    uint32_t memory = fake_daemon_counts(pair.daemon).input_memory;
    fake_daemon_set(pair.daemon, &script);
    expect_ok(reduce_now(comm, base, base, 4 * MIB));
    segment_grow(&segment);
    expect_ok(reduce_now(comm, base + 3 * MIB, base + 3 * MIB, 2 * MIB));
    fake_daemon_set(pair.daemon, &(struct fake_script){0});
    expect_ok(comm_sync(comm, 0));
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.input_memory, memory);
    assert_int_equal(counts.virtuals, 1);
    assert_int_equal(counts.maps, 3);
    assert_int_equal(counts.withdrawn, 0);
    /* Chunks behind a hole are a memory of their own, until the hole is filled. */
    segment_map(&segment, 5);
    expect_reduced(comm, base + 10 * MIB, 2 * MIB);
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 2);
    segment_map(&segment, 3);
    segment_map(&segment, 4);
    segment.count = 6;
    expect_reduced(comm, base + 4 * MIB, 8 * MIB);
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 1);
    assert_int_equal(fake_daemon_counts(pair.daemon).unmapped, 0);
    segment_free(&segment);
    pair_stop(&pair);
}

/* Without the room to grow that it asks for, the library registers the segment all the same. If a chunk
 * cannot be passed, it registers the whole segment anew. */
static void test_no_room_to_grow(void **state)
{
    (void)state;
    struct fake_script script = {.room_refused = true};
    struct pair pair = pair_start(&script);
    comm_t *comm = gpu_comm(&pair, "no-room", 0);
    struct segment segment = segment_make(2 * MIB, 2);
    unsigned char *base = gpu_address(segment.base);
    expect_reduced(comm, base, 4 * MIB);
    assert_int_equal(fake_daemon_counts(pair.daemon).memory_bytes, 4 * MIB);
    segment_grow(&segment);
    expect_reduced(comm, base, 6 * MIB);
    assert_int_equal(fake_daemon_counts(pair.daemon).virtuals, 2);
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 1);
    fake_daemon_set(pair.daemon, &(struct fake_script){0});
    segment_grow(&segment);
    expect_reduced(comm, base, 8 * MIB); /* with room from here on */
    assert_int_equal(fake_daemon_counts(pair.daemon).virtuals, 3);
    segment_grow(&segment);
    beyond.inject("cuMemExportToShareableHandle:1=999");
    expect_reduced(comm, base, 10 * MIB);
    beyond.inject(NULL);
    assert_int_equal(fake_daemon_counts(pair.daemon).virtuals, 4);
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 1);
    segment_free(&segment);
    pair_stop(&pair);
}

struct grower {
    pthread_t thread;
    comm_t *comm;
    unsigned char *base;
    unsigned seed;
};

static void *use(void *argument)
{
    struct grower *grower = argument;
    for (unsigned i = 0; i < 60; i++) {
        unsigned chunk = (i * 7 + grower->seed * 11) % 32;
        unsigned char *at = grower->base + chunk * 2 * MIB;
        if (reduce_now(grower->comm, at, at, 2 * MIB) != COMM_OK) {
            return (void *)(uintptr_t) "failed";
        }
    }
    return NULL;
}

/* Several threads notice that the segment has grown. */
static void test_many_threads_grow_it(void **state)
{
    (void)state;
    enum { THREADS = 6 };
    struct pair pair = pair_start(NULL);
    struct grower growers[THREADS];
    struct segment segment = segment_make(2 * MIB, 20);
    unsigned char *base = gpu_address(segment.base);
    comm_t *comm = gpu_comm(&pair, "threads", 0);
    expect_reduced(comm, base, 2 * MIB);
    while (segment.count < 32) {
        segment_grow(&segment);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        growers[i] = (struct grower){.comm = comm, .base = base, .seed = i};
        assert_int_equal(pthread_create(&growers[i].thread, NULL, use, &growers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        void *problem;
        assert_int_equal(pthread_join(growers[i].thread, &problem), 0);
        assert_null(problem);
    }
    expect_ok(comm_sync(comm, 0));
    struct fake_counts counts = fake_daemon_counts(pair.daemon);
    assert_int_equal(counts.virtuals, 1);
    assert_int_equal(counts.maps, 32);
    assert_int_equal(counts.unmapped, 0);
    assert_int_equal(counts.refused, 0);
    segment_free(&segment);
    pair_stop(&pair);
}

/* Each kind is refused by its name, and the text names a way out. */
static void test_without_a_descriptor(void **state)
{
    (void)state;
    static const struct {
        int handle_types;
        const char *texts[3];
    } kinds[] = {
        {CUDA_HANDLE_FABRIC,
         {"exportable by fabric handle alone", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
          "comm_mem_alloc"}},
        {0, {"made without a handle type", "comm_mem_alloc", "cudaMalloc"}},
    };
    struct pair pair = pair_start(NULL);
    comm_t *comm = gpu_comm(&pair, "types", 0);
    cuda_pointer at;
    cuda_stream stream = gpu_stream();
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct segment segment = {.chunk_bytes = 2 * MIB, .handle_types = kinds[i].handle_types};
        GPU_OK(cuda->address_reserve(&segment.base, SEGMENT_CHUNKS_MAX * segment.chunk_bytes, 0, 0, 0));
        segment_grow(&segment);
        unsigned char *base = gpu_address(segment.base);
        assert_int_equal(reduce_now(comm, base, base, 10), COMM_UNSUPPORTED);
        for (unsigned text = 0; text < 3; text++) {
            assert_error_says(kinds[i].texts[text]);
        }
        segment_free(&segment);
    }
    struct segment both = {.chunk_bytes = 2 * MIB, .handle_types = CUDA_HANDLE_FABRIC | CUDA_HANDLE_POSIX_FD};
    GPU_OK(cuda->address_reserve(&both.base, SEGMENT_CHUNKS_MAX * both.chunk_bytes, 0, 0, 0));
    segment_grow(&both);
    expect_reduced(comm, gpu_address(both.base), 2 * MIB);
    segment_free(&both);
    GPU_OK(beyond.alloc_pool(&at, 4096, stream));
    assert_int_equal(reduce_now(comm, gpu_address(at), gpu_address(at), 10), COMM_UNSUPPORTED);
    assert_error_says("CUDA memory pool (cudaMallocAsync)");
    GPU_OK(cuda->memory_free_async(at, stream));
    GPU_OK(cuda->stream_synchronize(stream));
    GPU_OK(cuda->stream_destroy(stream));
    pair_stop(&pair);
}

static int setup(void **state)
{
    assert_int_equal(setenv("CUDA_DOUBLE_MAPPINGS_NUMBERED", "0", 1), 0);
    return gpu_setup(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mapped_anew),
        cmocka_unit_test(test_made_anew),
        cmocka_unit_test(test_grows),
        cmocka_unit_test(test_grows_while_it_is_used),
        cmocka_unit_test(test_no_room_to_grow),
        cmocka_unit_test(test_many_threads_grow_it),
        cmocka_unit_test(test_without_a_descriptor),
    };
    return cmocka_run_group_tests(tests, setup, gpu_teardown);
}
