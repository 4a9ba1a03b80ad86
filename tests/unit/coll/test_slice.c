#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/coll/slice.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * 1024)

/* Slice `index` lies where the slices before it end, and its parts lie end to end within it. */
static uint64_t assert_slice(uint64_t count, uint64_t element_bytes, uint64_t slice_bytes, uint64_t index,
                             uint64_t expected_offset, uint32_t parts)
{
    uint64_t offset = UINT64_MAX;
    uint64_t elements = UINT64_MAX;
    coll_slice_range(count, element_bytes, slice_bytes, index, &offset, &elements);
    assert_true(offset == expected_offset);
    assert_true(elements <= count - offset);
    uint64_t part_end = 0;
    uint64_t largest = 0;
    uint64_t before = UINT64_MAX;
    for (uint32_t part = 0; part < parts; part++) {
        uint64_t part_offset = UINT64_MAX;
        uint64_t part_elements = UINT64_MAX;
        coll_part_range(elements, parts, part, &part_offset, &part_elements);
        assert_true(part_offset == part_end);
        assert_true(part_elements <= before); /* larger ones first */
        before = part_elements;
        largest = part == 0 ? part_elements : largest;
        assert_true(largest - part_elements <= 1);
        part_end += part_elements;
    }
    assert_true(part_end == elements);
    return elements;
}

/* All slices lie end to end and cover the operation. All but the last have one size. */
static uint64_t assert_slices(uint64_t count, uint64_t element_bytes, uint64_t slice_bytes, uint32_t parts)
{
    uint64_t slices = coll_slice_count(count, element_bytes, slice_bytes);
    assert_true(slices >= 1);
    uint64_t first = 0;
    uint64_t end = 0;
    for (uint64_t index = 0; index < slices; index++) {
        uint64_t elements = assert_slice(count, element_bytes, slice_bytes, index, end, parts);
        first = index == 0 ? elements : first;
        if (index + 1 < slices) {
            assert_true(elements == first);
            assert_true(elements * element_bytes <= slice_bytes || elements == 1);
            assert_true((elements + 1) * element_bytes > slice_bytes); /* as full as whole elements allow */
        } else {
            assert_true(elements <= first);
            assert_true(elements > 0 || count == 0);
        }
        end += elements;
    }
    assert_true(end == count);
    return slices;
}

static void test_counts_around_every_boundary(void **state)
{
    (void)state;
    static const uint64_t element_bytes[] = {1, 2, 4, 8, 16};
    static const uint64_t slice_bytes[] = {1, 3, 7, 16, 17, 48, 100, 128, 1000};
    for (size_t e = 0; e < 5; e++) {
        for (size_t s = 0; s < 9; s++) {
            uint64_t each = slice_bytes[s] / element_bytes[e];
            each = each > 0 ? each : 1;
            for (uint64_t multiple = 0; multiple <= 4; multiple++) {
                for (uint64_t more = 0; more <= 2; more++) {
                    uint64_t count = multiple * each + more;
                    if (count < 1) {
                        continue;
                    }
                    count -= 1; /* multiple × each, −1, 0, +1 */
                    uint64_t slices = assert_slices(count, element_bytes[e], slice_bytes[s], 3);
                    assert_true(slices == (count == 0 ? 1 : (count + each - 1) / each));
                }
            }
        }
    }
}

static void test_nothing_is_one_empty_slice(void **state)
{
    (void)state;
    uint64_t offset = 5;
    uint64_t elements = 5;
    assert_true(coll_slice_count(0, 4, MIB) == 1);
    coll_slice_range(0, 4, MIB, 0, &offset, &elements);
    assert_true(offset == 0 && elements == 0);
    offset = elements = 5;
    assert_true(coll_slice_count(0, 0, 0) == 1); /* a barrier has no elements at all */
    coll_slice_range(0, 0, 0, 0, &offset, &elements);
    assert_true(offset == 0 && elements == 0);
}

static void test_slice_smaller_than_an_element(void **state)
{
    (void)state;
    for (uint64_t slice_bytes = 0; slice_bytes < 16; slice_bytes++) {
        assert_true(assert_slices(7, 16, slice_bytes, 4) == 7);
    }
    assert_true(assert_slices(7, 16, 31, 4) == 7);
    assert_true(assert_slices(7, 16, 32, 4) == 4);
}

/* When slices and parts were cut by bytes instead of elements, the last few elements of these counts were
 * left out. */
static void test_25_mib_of_f32(void **state)
{
    (void)state;
    for (uint32_t nodes = 2; nodes <= 4; nodes++) {
        for (uint64_t less = 0; less <= 2; less++) {
            uint64_t count = 25 * MIB / 4 + 1 - less;
            assert_true(assert_slices(count, 4, MIB, nodes) == (less == 0 ? 26 : 25));
            assert_true(assert_slices(count, 4, 2 * MIB, nodes) == 13);
            assert_slices(count, 4, 100000, nodes);
            assert_slices(count, 4, 99999, nodes); /* no multiple of the element */
        }
    }
}

/* Three nodes once disagreed about the number of slices of this count: one element more than twelve slices of
 * 2 MiB. */
static void test_6291457_f32(void **state)
{
    (void)state;
    assert_true(assert_slices(6291457, 4, 2 * MIB, 3) == 13);
    assert_true(assert_slices(6291456, 4, 2 * MIB, 3) == 12);
    uint64_t offset = 0;
    uint64_t elements = 0;
    coll_slice_range(6291457, 4, 2 * MIB, 12, &offset, &elements);
    assert_true(offset == 6291456 && elements == 1);
    for (uint32_t part = 0; part < 3; part++) {
        coll_part_range(1, 3, part, &offset, &elements);
        assert_true(offset == (part == 0 ? 0 : 1));
        assert_true(elements == (part == 0 ? 1 : 0));
    }
    assert_true(assert_slices(6291457, 4, 3 * KIB + 1, 3) == 6291457 / 768 + 1);
}

/* Checks the first, the last and a middle slice, because there are too many to check all. */
static void assert_huge(uint64_t count, uint64_t element_bytes, uint64_t slice_bytes)
{
    uint64_t slices = coll_slice_count(count, element_bytes, slice_bytes);
    uint64_t each = slice_bytes / element_bytes;
    each = each > 0 ? each : 1;
    assert_true(slices >= 1);
    assert_true(assert_slice(count, element_bytes, slice_bytes, 0, 0, 64) == (each < count ? each : count));
    assert_slice(count, element_bytes, slice_bytes, slices / 2, slices / 2 * each, 5);
    uint64_t last = assert_slice(count, element_bytes, slice_bytes, slices - 1, (slices - 1) * each, 64);
    assert_true(last >= 1 && last <= each);
    assert_true((slices - 1) * each + last == count);
}

static void test_huge_counts(void **state)
{
    (void)state;
    static const uint64_t counts[] = {UINT64_C(1) << 40, INT64_MAX - 1,  INT64_MAX,
                                      UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX};
    static const uint64_t slice_bytes[] = {0, 1, 4 * KIB, MIB, MIB + 1, UINT64_C(1) << 62, UINT64_MAX};
    for (size_t c = 0; c < 6; c++) {
        for (size_t s = 0; s < 7; s++) {
            for (uint64_t element_bytes = 1; element_bytes <= 16; element_bytes *= 2) {
                assert_huge(counts[c], element_bytes, slice_bytes[s]);
            }
        }
        assert_huge(counts[c], UINT64_MAX, MIB);
    }
}

static void test_parts_of_huge_ranges(void **state)
{
    (void)state;
    static const uint32_t parts[] = {1, 2, 3, 7, 64, 16384, UINT32_MAX};
    for (size_t p = 0; p < 7; p++) {
        uint64_t offset = 0;
        uint64_t elements = 0;
        coll_part_range(UINT64_MAX, parts[p], 0, &offset, &elements);
        assert_true(offset == 0);
        assert_true(elements == UINT64_MAX / parts[p] + (UINT64_MAX % parts[p] != 0));
        coll_part_range(UINT64_MAX, parts[p], parts[p] - 1, &offset, &elements);
        assert_true(elements == UINT64_MAX / parts[p]);
        assert_true(offset == UINT64_MAX - elements);
    }
}

static void test_parts_of_fewer_elements(void **state)
{
    (void)state;
    for (uint32_t parts = 1; parts <= 64; parts++) {
        for (uint64_t count = 0; count <= 2 * (uint64_t)parts + 1; count++) {
            uint64_t end = 0;
            uint32_t nonempty = 0;
            for (uint32_t part = 0; part < parts; part++) {
                uint64_t offset = 0;
                uint64_t elements = 0;
                coll_part_range(count, parts, part, &offset, &elements);
                assert_true(offset == end);
                end += elements;
                nonempty += elements > 0;
            }
            assert_true(end == count);
            assert_true(nonempty == (count < parts ? count : parts));
        }
    }
}

/* Worked out by hand: what a node has of a slice, and what it sends to another node in it. */
static void test_slices_of_exchanges(void **state)
{
    (void)state;
    const uint64_t mib = 1 << 20, kib = 1 << 10;
    assert_int_equal(coll_exchange_slice_bytes(mib, 2, 2), 4 * mib);
    assert_int_equal(coll_exchange_slice_bytes(mib, 4, 2), 2 * mib);
    assert_int_equal(coll_exchange_slice_bytes(mib, 1, 1), 4 * mib);
    /* 64 nodes of one rank: 64 KiB to each of them. */
    assert_int_equal(coll_exchange_slice_bytes(mib, 64, 64), 64 * 64 * kib);
    /* A thousand nodes of 8: 1 KiB from each rank to each, 64 KiB from node to node. */
    assert_int_equal(coll_exchange_slice_bytes(mib, 8000, 1000), 8000 * kib);
    /* 9 ranks on 4 nodes: as if 3 on each. */
    assert_int_equal(coll_exchange_slice_bytes(mib, 9, 4), (mib / 27 * 4) * 9);
    /* Slices that are smaller than such a message. */
    assert_int_equal(coll_exchange_slice_bytes(4096, 8, 8), 4096 * 8);
    assert_true(coll_exchange_slice_bytes(1, 3, 2) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_around_every_boundary),
        cmocka_unit_test(test_nothing_is_one_empty_slice),
        cmocka_unit_test(test_slice_smaller_than_an_element),
        cmocka_unit_test(test_25_mib_of_f32),
        cmocka_unit_test(test_6291457_f32),
        cmocka_unit_test(test_huge_counts),
        cmocka_unit_test(test_parts_of_huge_ranges),
        cmocka_unit_test(test_parts_of_fewer_elements),
        cmocka_unit_test(test_slices_of_exchanges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
