#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/unmapper.h"

#define PAGE 4096u
#define LARGE_BYTES (3 * UNMAPPER_PIECE_BYTES + 5 * PAGE)
#define MANY 50

static unsigned done_count;
static const void *done_order[MANY];
static pthread_t done_thread;

static bool is_mapped(const void *base)
{
    unsigned char vector[1];
    return mincore((void *)(uintptr_t)base, PAGE, vector) == 0;
}

static void note_done(void *context)
{
    const struct unmapping *unmapping = context;
    done_order[done_count++ % MANY] = unmapping->base;
    done_thread = pthread_self();
}

static struct unmapping map(uint64_t size_bytes)
{
    void *base =
        mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(base, MAP_FAILED);
    return (struct unmapping){.base = base, .size_bytes = size_bytes, .done = note_done};
}

static void put(struct unmapper *unmapper, struct unmapping *unmapping)
{
    unmapping->context = unmapping;
    unmapper_put(unmapper, unmapping);
}

static void run_until(struct loop *loop, unsigned count)
{
    struct error error;
    for (unsigned i = 0; i < 10000 && done_count < count; i++) {
        assert_int_equal(loop_run_once(loop, 100, &error), STATUS_OK);
    }
    assert_int_equal(done_count, count);
}

static struct loop *make(struct unmapper **unmapper)
{
    struct loop *loop;
    struct error error;
    done_count = 0;
    assert_int_equal(loop_new(&loop, &error), STATUS_OK);
    assert_int_equal(unmapper_new(loop, unmapper, &error), STATUS_OK);
    return loop;
}

static void test_large_memory_is_unmapped_elsewhere(void **state)
{
    (void)state;
    struct unmapper *unmapper;
    struct loop *loop = make(&unmapper);
    struct unmapping unmapping = map(LARGE_BYTES);
    memset(unmapping.base, 1, 16 * PAGE);
    put(unmapper, &unmapping);
    assert_int_equal(done_count, 0); /* done is not called from within the call */
    run_until(loop, 1);
    assert_true(pthread_equal(done_thread, pthread_self()));
    for (uint64_t at = 0; at < LARGE_BYTES; at += UNMAPPER_PIECE_BYTES) {
        assert_false(is_mapped((unsigned char *)unmapping.base + at));
    }
    unmapper_free(unmapper);
    loop_free(loop);
}

static void test_small_memory_is_unmapped_in_place(void **state)
{
    (void)state;
    struct unmapper *unmapper;
    struct loop *loop = make(&unmapper);
    struct unmapping small = map(UNMAPPER_IN_PLACE_MAX_BYTES), large = map(LARGE_BYTES);
    put(unmapper, &small);
    assert_int_equal(done_count, 1);
    assert_false(is_mapped(small.base));
    put(NULL, &large); /* without an unmapper, all memory is unmapped in place */
    assert_int_equal(done_count, 2);
    assert_false(is_mapped(large.base));
    unmapper_free(unmapper);
    unmapper_free(NULL);
    loop_free(loop);
}

static void test_many_in_order(void **state)
{
    (void)state;
    static struct unmapping unmappings[MANY];
    struct unmapper *unmapper;
    struct loop *loop = make(&unmapper);
    for (int i = 0; i < MANY; i++) {
        unmappings[i] = map(UNMAPPER_IN_PLACE_MAX_BYTES + PAGE);
        put(unmapper, &unmappings[i]);
    }
    run_until(loop, MANY);
    for (int i = 0; i < MANY; i++) {
        assert_ptr_equal(done_order[i], unmappings[i].base);
    }
    unmapper_free(unmapper);
    loop_free(loop);
}

/* Each owner is told once, whether its memory was unmapped or not. */
static void test_freed_at_once(void **state)
{
    (void)state;
    static struct unmapping unmappings[MANY];
    struct unmapper *unmapper;
    struct loop *loop = make(&unmapper);
    for (int i = 0; i < MANY; i++) {
        unmappings[i] = map(LARGE_BYTES);
        put(unmapper, &unmappings[i]);
    }
    unmapper_free(unmapper);
    assert_int_equal(done_count, MANY);
    for (int i = 0; i < MANY; i++) {
        (void)munmap(unmappings[i].base, LARGE_BYTES);
    }
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_memory_is_unmapped_elsewhere),
        cmocka_unit_test(test_small_memory_is_unmapped_in_place),
        cmocka_unit_test(test_many_in_order),
        cmocka_unit_test(test_freed_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
