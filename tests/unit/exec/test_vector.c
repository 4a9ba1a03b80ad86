#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/exec/vector.h"

/* Where elements of a vector lie, and what is not of it. */
static void test_places(void **state)
{
    (void)state;
    struct exec_vector vector = {0};
    uint32_t memory[16], *first = memory, *second = memory + 6; /* with a gap between them */
    uint64_t together;
    assert_true(vector_begin(&vector, sizeof memory[0], 2));
    assert_null(vector_at(&vector, 0, &together)); /* empty */
    assert_int_equal(together, 0);
    vector_add(&vector, first, 4);
    vector_add(&vector, second, 8);
    assert_ptr_equal(vector_at(&vector, 3, &together), &first[3]);
    assert_int_equal(together, 1);
    assert_ptr_equal(vector_at(&vector, 4, &together), &second[0]);
    assert_int_equal(together, 8);
    assert_ptr_equal(vector_at(&vector, 12, &together), &second[8]); /* the end has a place, and no element */
    assert_int_equal(together, 0);
    assert_null(vector_at(&vector, 13, &together));
    assert_int_equal(together, 0);
    assert_null(vector_at(&vector, UINT64_MAX, &together));
    vector_free(&vector);
}

static void test_ranges(void **state)
{
    (void)state;
    struct exec_vector vector = {0};
    unsigned char bytes[16];
    assert_true(vector_holds(&vector, 0, 0));
    assert_false(vector_holds(&vector, 0, 1));
    assert_true(vector_begin(&vector, 1, 1));
    vector_add(&vector, bytes, sizeof bytes);
    assert_true(vector_holds(&vector, 0, 16));
    assert_true(vector_holds(&vector, 16, 0));
    assert_true(vector_holds(&vector, 15, 1));
    assert_false(vector_holds(&vector, 15, 2));
    assert_false(vector_holds(&vector, 17, 0));
    assert_false(vector_holds(&vector, 1, UINT64_MAX)); /* the sum does not fit 64 bits */
    assert_false(vector_holds(&vector, UINT64_MAX, 1));
    vector_free(&vector);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
