#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/net/stream_parking.h"

/* How much a node keeps, on all its threads, for streams whose communicator it does not know yet. */

#define HALF (STREAM_PARKED_MAX_BYTES / 2)

static void test_one_bound_for_all(void **state)
{
    (void)state;
    struct stream_parking parking = {0};
    stream_parking_init(&parking);
    assert_true(stream_parking_count(&parking, 7, 0, HALF)); /* half of the whole is a peer's limit */
    assert_false(stream_parking_count(&parking, 7, 0, 1));
    assert_true(stream_parking_count(&parking, 300, 0, HALF / 2)); /* a new peer finds room */
    assert_false(stream_parking_count(&parking, 300, 0, 1));
    assert_true(stream_parking_count(&parking, 0, 0, HALF / 4));
    assert_false(stream_parking_count(&parking, 7, HALF, HALF + 1));
    assert_true(stream_parking_count(&parking, 7, HALF, HALF)); /* as before: no change is always accepted */
    assert_int_equal(parking.bytes, HALF + HALF / 2 + HALF / 4);

    assert_true(stream_parking_count(&parking, 7, HALF, HALF - 10));
    assert_true(stream_parking_count(&parking, 7, HALF - 10, 0));
    assert_true(stream_parking_count(&parking, 300, HALF / 2, 0));
    assert_true(stream_parking_count(&parking, 0, HALF / 4, 0));
    assert_int_equal(parking.bytes, 0);
    assert_true(stream_parking_count(&parking, 300, 0, HALF));
    stream_parking_free(&parking);
}

static void test_beginnings_of_headers(void **state)
{
    (void)state;
    struct stream_parking parking = {0};
    stream_parking_init(&parking);
    assert_true(stream_parking_count(&parking, 3, 0, STREAM_PARKED_COST_BYTES));
    assert_true(stream_parking_count(&parking, 4, 0, STREAM_PARKED_COST_BYTES));
    for (unsigned i = 0; i < STREAM_BEGUN_MAX; i++) {
        assert_true(stream_parking_begun(&parking, 3, true));
    }
    assert_false(stream_parking_begun(&parking, 3, true));
    assert_true(stream_parking_begun(&parking, 4, true)); /* each peer has its own */
    assert_true(stream_parking_begun(&parking, 3, false));
    assert_true(stream_parking_begun(&parking, 3, false));
    assert_true(stream_parking_begun(&parking, 3, true));
    stream_parking_free(&parking);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_bound_for_all),
                                       cmocka_unit_test(test_beginnings_of_headers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
