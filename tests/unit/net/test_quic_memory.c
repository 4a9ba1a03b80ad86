#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/net/quic_memory.h"

/* The limit of what ngtcp2 holds for a connection. test_quic_datagrams.c deletes real connections. */

static struct quic_memory *memory;
static const ngtcp2_mem *functions;

static int setup(void **state)
{
    (void)state;
    memory = quic_memory_new();
    assert_non_null(memory);
    functions = &memory->functions;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    struct quic_memory_deletion *deletions = NULL;
    assert_int_equal(memory->bytes, 0);
    quic_memory_delete(memory, NULL, &deletions);
    assert_null(deletions);
    quic_memory_join(&deletions, true);
    return 0;
}

static void test_blocks_are_counted(void **state)
{
    (void)state;
    uint8_t *block = functions->malloc(1000, functions->user_data);
    uint8_t *zero = functions->calloc(10, 100, functions->user_data);
    assert_int_equal(memory->bytes, malloc_usable_size(block) + malloc_usable_size(zero));
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(zero[i], 0);
    }
    memset(block, 7, 1000);
    block = functions->realloc(block, 50000, functions->user_data);
    assert_int_equal(block[999], 7);
    assert_int_equal(memory->bytes, malloc_usable_size(block) + malloc_usable_size(zero));
    functions->free(zero, functions->user_data);
    functions->free(NULL, functions->user_data);
    block = functions->realloc(block, 10, functions->user_data);
    assert_int_equal(memory->bytes, malloc_usable_size(block));
    functions->free(block, functions->user_data);
    void *fresh = functions->realloc(NULL, 100, functions->user_data);
    assert_non_null(fresh);
    functions->free(fresh, functions->user_data);
    assert_false(memory->refused);
}

static void test_the_limit_holds(void **state)
{
    (void)state;
    void *most = functions->malloc(QUIC_MEMORY_MAX_BYTES - 65536, functions->user_data);
    assert_non_null(most);
    assert_false(memory->refused);
    void *last = functions->malloc(1000, functions->user_data);
    assert_non_null(last);
    assert_null(functions->malloc(65536, functions->user_data));
    assert_true(memory->refused);
    memory->refused = false;
    assert_null(functions->calloc(2, 32768, functions->user_data));
    assert_true(memory->refused);
    memory->refused = false;
    assert_null(functions->realloc(last, 65536, functions->user_data));
    assert_true(memory->refused);
    memory->refused = false;
    functions->free(most, functions->user_data);
    void *again = functions->malloc(65536, functions->user_data);
    assert_non_null(again);
    functions->free(again, functions->user_data);
    functions->free(last, functions->user_data);
    assert_false(memory->refused);
}

static void test_sizes_that_wrap_are_refused(void **state)
{
    (void)state;
    assert_null(functions->calloc(SIZE_MAX / 2, 4, functions->user_data));
    assert_null(functions->malloc(SIZE_MAX, functions->user_data));
    assert_null(functions->realloc(NULL, SIZE_MAX, functions->user_data));
    void *nothing = functions->calloc(5, 0, functions->user_data);
    functions->free(nothing, functions->user_data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_blocks_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_limit_holds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sizes_that_wrap_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests_name("quic_memory", tests, NULL, NULL);
}
