#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/host/compress.h"

/* What the codec does for GPUs: blocks with gaps between them, and where blocks begin. */

#define COUNT_MAX 5000
#define BYTES_MAX (COUNT_MAX * 7)
#define POISON 0xA5
#define TOP_K_BLOCK HOST_COMPRESS_TOP_K_BLOCK

static const size_t counts[] = {0, 1, 7, 1000, 1023, 1024, 1025, 2047, 2049, COUNT_MAX};
static const uint32_t permilles[] = {1, 10, 333, 1000};
static float values[COUNT_MAX];

/* Different magnitudes; every third block of counts has zeros alone, which are left out. */
static void fill(size_t seed, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t mixed = (uint32_t)((i + 1) * 2654435761u + seed * 40503u);
        values[i] = seed % 3 == 0 ? 0.0f : (float)(int32_t)mixed * 0x1p-20f;
    }
}

/* Blocks with gaps between them, as GPUs write them, become the host's payload; its check finds them there.
 */
static void test_packing(void **state)
{
    static unsigned char apart[BYTES_MAX + HOST_COMPRESS_TOP_K_BLOCK * 7], packed[BYTES_MAX],
        expected[BYTES_MAX];
    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (size_t p = 0; p < sizeof permilles / sizeof permilles[0]; p++) {
            uint32_t offsets[COUNT_MAX / TOP_K_BLOCK + 1] = {0};
            size_t count = counts[c], stride = codec_top_k_stride(permilles[p]);
            fill(c, count);
            uint64_t bytes = host_compress(COMPRESSION_TOP_K, permilles[p], values, NULL, count, expected);
            memset(apart, POISON, sizeof apart);
            for (size_t done = 0; done < count; done += TOP_K_BLOCK) {
                size_t some = count - done < TOP_K_BLOCK ? count - done : TOP_K_BLOCK;
                (void)host_compress(COMPRESSION_TOP_K, permilles[p], values + done, NULL, some,
                                    apart + done / TOP_K_BLOCK * stride);
            }
            assert_int_equal(host_compress_pack(COMPRESSION_TOP_K, permilles[p], apart, count, packed),
                             bytes);
            assert_memory_equal(packed, expected, bytes);
            assert_int_equal(host_compress_check(COMPRESSION_TOP_K, packed, bytes, count, offsets, NULL),
                             STATUS_OK);
            for (size_t b = 0; b * TOP_K_BLOCK < count; b++) {
                size_t kept = (size_t)apart[b * stride] | (size_t)apart[b * stride + 1] << 8;
                assert_memory_equal(packed + offsets[b], apart + b * stride, 2 + 6 * kept);
            }
        }
    }
    assert_int_equal(host_compress_pack(COMPRESSION_BF16, 0, apart, 100, packed), 200);
    assert_memory_equal(packed, apart, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_packing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
