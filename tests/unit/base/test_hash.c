#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/hash.h"
#include "daemon/base/random.h"

static void test_tells_inputs_apart(void **state)
{
    (void)state;
    uint8_t data[40];
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i * 37 + 1);
    }
    static const uint8_t zeros[40] = {0};
    uint64_t seen[400];
    size_t count = 0;
    for (size_t size = 0; size <= sizeof(data); size++) {
        seen[count++] = hash_bytes(1, data, size);
        seen[count++] = hash_bytes(2, data, size);
        if (size > 0) {
            seen[count++] = hash_bytes(1, zeros, size);
        }
    }
    for (size_t bit = 0; bit < 8 * 27; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        seen[count++] = hash_bytes(1, data, 27);
        data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    for (size_t a = 0; a < count; a++) {
        for (size_t b = a + 1; b < count; b++) {
            assert_true(seen[a] != seen[b]);
        }
    }
    assert_true(hash_bytes(9, NULL, 0) == hash_bytes(9, data, 0));
}

static void test_bits_spread(void **state)
{
    (void)state;
    struct random random;
    random_seed(&random, 17);
    for (size_t size = 1; size <= 24; size++) {
        unsigned flipped = 0;
        for (int round = 0; round < 64; round++) {
            uint8_t data[24];
            for (size_t i = 0; i < sizeof(data); i++) {
                data[i] = (uint8_t)random_u64(&random);
            }
            uint64_t before = hash_bytes(3, data, size);
            data[random_below(&random, size)] ^= (uint8_t)(1u << random_below(&random, 8));
            flipped += (unsigned)__builtin_popcountll(before ^ hash_bytes(3, data, size));
        }
        assert_in_range(flipped, 64 * 32 - 192, 64 * 32 + 192); /* half of the bits, ± 6 sigma */
    }
}

/* Nodes of different builds must agree: these values are part of the mesh protocol. */
static void test_is_pinned(void **state)
{
    (void)state;
    assert_true(hash_bytes(0, "", 0) == 0xa706dd2f4d197e6fu);
    assert_true(hash_bytes(0, "a", 1) == 0xdf5e2c4e4d4817bdu);
    assert_true(hash_bytes(1, "communicator", 12) == 0x0b3946babf0beed4u);
    char unaligned[14] = "?communicator";
    assert_true(hash_bytes(1, unaligned + 1, 12) == 0x0b3946babf0beed4u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tells_inputs_apart),
        cmocka_unit_test(test_bits_spread),
        cmocka_unit_test(test_is_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
