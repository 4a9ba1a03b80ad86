#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/host/copy.h"

enum { BYTES = 70000, GUARD = 64 };

static unsigned char source[BYTES + 2 * GUARD], target[BYTES + 2 * GUARD], expected[BYTES + 2 * GUARD];

static void test_every_alignment_and_length(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 191, 1000, 4096, 65537};
    for (size_t i = 0; i < sizeof source; i++) {
        source[i] = (unsigned char)(i * 31 + i / 256 + 7);
    }
    for (size_t to = 0; to < 64; to += to < 20 ? 1 : 11) {
        for (size_t from = 0; from < 64; from += 7) {
            for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
                memset(target, 0xee, sizeof target);
                memset(expected, 0xee, sizeof expected);
                memcpy(expected + to, source + from, lengths[l]);
                host_copy_streaming(target + to, source + from, lengths[l]);
                host_copy_fence();
                assert_memory_equal(target, expected, sizeof target);
            }
        }
    }
}

/* Copies one source to several targets. in_place: one target is the source. apart: each target has another
 * offset, else all have the same. */
static void check_to_all(uint32_t target_count, size_t length, size_t misalignment, bool apart, bool streams,
                         bool in_place)
{
    enum { TARGETS = 9 };
    static unsigned char places[TARGETS][BYTES + 2 * GUARD], wanted[BYTES + 2 * GUARD];
    const unsigned char *from = source + 3;
    void *targets[TARGETS];
    for (uint32_t k = 0; k < target_count; k++) {
        memset(places[k], 0xee, length + 2 * GUARD);
        targets[k] = places[k] + misalignment + (apart ? k : 0);
    }
    if (in_place) {
        memcpy(targets[target_count / 2], from, length);
        from = targets[target_count / 2];
    }
    host_copy_to_all(targets, target_count, from, length, streams);
    for (uint32_t k = 0; k < target_count; k++) {
        memset(wanted, 0xee, length + 2 * GUARD);
        memcpy(wanted + ((unsigned char *)targets[k] - places[k]), source + 3, length);
        assert_memory_equal(places[k], wanted, length + 2 * GUARD);
    }
}

static void test_one_source_to_all(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 1, 63, 64, 65, 511, 512, 513, 1000, 4097, 65535, 65536, 65601};
    for (uint32_t targets = 0; targets <= 9; targets += targets < 4 ? 1 : 5) {
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            for (size_t misalignment = 0; misalignment<56; misalignment += lengths[l]> 1000 ? 27 : 5) {
                for (unsigned how = 0; how < 8; how++) {
                    check_to_all(targets, lengths[l], misalignment, (how & 1) != 0, (how & 2) != 0,
                                 (how & 4) != 0 && targets > 0);
                }
            }
        }
    }
}

static void test_what_streams(void **state)
{
    (void)state;
    assert_false(host_copy_streams(0));
    assert_false(host_copy_streams(256 << 10));
    assert_true(host_copy_streams(UINT64_C(1) << 40));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_alignment_and_length),
        cmocka_unit_test(test_one_source_to_all),
        cmocka_unit_test(test_what_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
