#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/lib/codec_check.h"
#include "tests/lib/kernel_check.h"
#include "tests/unit/kernels/host_kernels.h"

/*
 * What can be checked of the kernels without a GPU. Their source, compiled for the host, gives the same bits
 * as host_reduce, and writes only its outputs. tests/gpu checks the rest: the device's own conversions of
 * short floats, and the code that the device's compiler makes.
 */
struct host {
    unsigned char *arena;
    uint64_t runs;
};

static bool host_upload(void *context, const void *bytes, size_t size)
{
    struct host *host = context;
    memcpy(host->arena, bytes, size);
    return true;
}

static bool host_download(void *context, void *bytes, size_t size)
{
    struct host *host = context;
    memcpy(bytes, host->arena, size);
    return true;
}

#if defined(HAVE_HOST_KERNELS)
/* Runs a kernel with a copy of its arguments. The copy has exactly their size, so that sanitizers see reads
 * beyond it. */
static bool host_run(void *context, const char *name, void *arguments, size_t arguments_bytes,
                     uint32_t blocks, uint32_t threads)
{
    struct host *host = context;
    void *copy = malloc(arguments_bytes);
    assert_non_null(copy);
    memcpy(copy, arguments, arguments_bytes);
    host->runs++;
    bool found = host_kernel_run(name, copy, blocks, threads, host->runs % 2 == 0);
    free(copy);
    return found;
}
#else
static bool host_run(void *context, const char *name, void *arguments, size_t arguments_bytes,
                     uint32_t blocks, uint32_t threads)
{
    (void)context, (void)name, (void)arguments, (void)arguments_bytes, (void)blocks, (void)threads;
    printf("SKIP: there is no C++ compiler to compile the kernels for the host with\n");
    skip();
    return false;
}
#endif

static struct host host;
/* Threads run one after the other here, also those for which a large grid has no element. */
static struct kernel_runner runner = {.context = &host,
                                      .grid_threads_most = 4096,
                                      .upload = host_upload,
                                      .download = host_download,
                                      .run = host_run};
static struct kernel_check check;

static int set_up(void **state)
{
    (void)state;
    host.arena = aligned_alloc(256, KERNEL_ARENA_BYTES);
    assert_non_null(host.arena);
    runner.arena = (uint64_t)(uintptr_t)host.arena;
    kernel_check_open(&check, &runner);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kernel_check_close(&check);
    free(host.arena);
    return 0;
}

static void each_pair(bool (*function)(struct kernel_check *check, enum dtype dtype, enum reduce reduce))
{
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (unsigned reduce = 0; reduce < REDUCE_COUNT; reduce++) {
            if (reduce_is_defined((enum dtype)dtype, (enum reduce)reduce)) {
                assert_true(function(&check, (enum dtype)dtype, (enum reduce)reduce));
            }
        }
    }
}

static void test_shapes(void **state)
{
    (void)state;
    each_pair(kernel_check_shapes);
}

static void test_values(void **state)
{
    (void)state;
    each_pair(kernel_check_values);
}

static void test_copies(void **state)
{
    (void)state;
    assert_true(kernel_check_copies(&check));
}

static void test_codec(void **state)
{
    (void)state;
    assert_true(codec_check(&check));
}

/* A fat binary begins with its magic number. Without a toolkit, there is no fat binary. */
static void test_image(void **state)
{
    static const unsigned char magic[] = {0x50, 0xed, 0x55, 0xba};
    (void)state;
    if (kernels_image_bytes != 0) {
        assert_true(kernels_image_bytes > 1000);
        assert_memory_equal(kernels_image, magic, sizeof magic);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies), cmocka_unit_test(test_codec), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_values), cmocka_unit_test(test_image),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
