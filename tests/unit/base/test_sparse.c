#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/sparse.h"

static void test_an_empty_table(void **state)
{
    (void)state;
    struct sparse sparse = {0};
    uint32_t at = 0;
    assert_null(sparse_at(&sparse, 0));
    assert_null(sparse_at(&sparse, UINT32_MAX));
    assert_null(sparse_next(&sparse, &at));
    assert_true(sparse_set(&sparse, 4711, NULL)); /* which takes no memory */
    assert_null(sparse.pages);
    sparse_free(&sparse);
}

static void test_what_is_set_is_found(void **state)
{
    (void)state;
    static const uint32_t indices[] = {0, SPARSE_PAGE - 1, SPARSE_PAGE, SPARSE_PAGE + 1, 4711, 16383};
    enum { COUNT = sizeof indices / sizeof indices[0] };
    static int values[COUNT];
    struct sparse sparse = {0};
    for (unsigned i = COUNT; i-- > 0;) {
        assert_true(sparse_set(&sparse, indices[i], &values[i]));
    }
    uint32_t at = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        assert_ptr_equal(sparse_at(&sparse, indices[i]), &values[i]);
        assert_ptr_equal(sparse_next(&sparse, &at), &values[i]);
        assert_int_equal(at, indices[i] + 1);
    }
    assert_null(sparse_next(&sparse, &at));
    assert_null(sparse_at(&sparse, 1));
    assert_null(sparse_at(&sparse, 16384));
    assert_true(sparse_set(&sparse, SPARSE_PAGE, NULL));
    assert_null(sparse_at(&sparse, SPARSE_PAGE));
    at = SPARSE_PAGE;
    assert_ptr_equal(sparse_next(&sparse, &at), &values[3]);
    sparse_free(&sparse);
    assert_null(sparse_at(&sparse, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_table),
        cmocka_unit_test(test_what_is_set_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
