#include "client/lib/internal.h"
#include "tests/unit/client/gpu_segment.h"

/* Virtual memory that an allocator maps, unmaps and maps anew, on a driver that numbers reservations alone.
 */

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

/* Other memory where some was: noticed wherever it is touched. */
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

/* The library's own, freed and made again at the same address. */
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

/* Each kind by its name, with a way out. */
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
    GPU_OK(beyond.free_pool(at, stream));
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
        cmocka_unit_test(test_without_a_descriptor),
    };
    return cmocka_run_group_tests(tests, setup, gpu_teardown);
}
