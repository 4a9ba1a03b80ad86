#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/random.h"
#include "daemon/exec/vector.h"

/* Where the elements of a vector lie, and which places do not belong to it. */
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

/* Random writes to a vector whose values were lent. What is read is what was written last, or what
 * was lent. */
static void test_lent_values(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct random random;
        struct exec_vector vector = {0};
        struct exec_lent lent = {0};
        uint32_t from[120], to[120], wanted[120], got[120];
        uint64_t halves = 1 + seed % 100;
        random_seed(&random, seed);
        for (uint32_t i = 0; i < 120; i++) {
            from[i] = wanted[i] = i;
            to[i] = UINT32_MAX;
        }
        assert_true(vector_begin(&vector, sizeof to[0], 1));
        assert_true(vector_begin(&lent.from, sizeof to[0], 2));
        vector_add(&vector, to, 120);
        vector_add(&lent.from, from, halves);
        vector_add(&lent.from, from + halves, 120 - halves);
        vector_lend(&lent);
        for (uint32_t step = 0; step < 60; step++) {
            uint64_t offset = random_below(&random, 119);
            uint64_t count = 1 + random_below(&random, 120 - offset > 4 ? 4 : 120 - offset);
            vector_take_back(&vector, &lent, offset, count);
            assert_true(lent.count <= VECTOR_LENT_MAX);
            for (uint64_t i = offset; i < offset + count; i++) {
                to[i] = wanted[i] = 1000 * step + (uint32_t)i;
            }
            vector_value_gather(&vector, &lent, 0, 120, (unsigned char *)got);
            assert_memory_equal(got, wanted, sizeof got);
            assert_in_range(vector_value_pieces(&vector, &lent, 0, 120, 200), 1, 2 * VECTOR_LENT_MAX + 1);
        }
        vector_free(&vector);
        vector_free(&lent.from);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_lent_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
