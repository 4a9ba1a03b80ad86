#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "client/nccl/comm_config.h"
#include "client/nccl/nccl_version.h"

#define NCCL_CONFIG_BYTES 120
#define BLOCKING 16
#define CLUSTER 20
#define LEAST_CTAS 24
#define MOST_CTAS 28
#define SPLIT_SHARE 40

static unsigned char bytes[NCCL_CONFIG_BYTES];
static char why[128];

static void put(size_t offset, int value)
{
    memcpy(bytes + offset, &value, sizeof value);
}

/* As NCCL_CONFIG_INITIALIZER of that version sets it; bytes beyond the struct are garbage. */
static void make(size_t size, unsigned version)
{
    unsigned magic = CONFIG_MAGIC;
    memset(bytes, 0x5a, sizeof bytes);
    for (size_t offset = BLOCKING; offset + sizeof(int) <= size; offset += sizeof(int)) {
        put(offset, CONFIG_UNDEFINED);
    }
    memcpy(bytes, &size, sizeof size);
    memcpy(bytes + 8, &magic, sizeof magic);
    memcpy(bytes + 12, &version, sizeof version);
}

static void test_all_sizes(void **state)
{
    static const struct {
        size_t size;
        unsigned version;
    } known[] = {{24, 21405}, {40, 21701}, {48, 21801}, {48, 22602}, {72, 22703},
                 {80, 22809}, {88, 22902}, {96, 23007}, {120, 23203}};
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        for (int blocking = 0; blocking < 2; blocking++) {
            struct nccl_config config = {.blocking = blocking == 0};
            make(known[i].size, known[i].version);
            assert_true(config_read(bytes, &config, why, sizeof why));
            assert_int_equal(config.blocking, blocking == 0); /* undefined: it stays */
            put(BLOCKING, blocking);
            assert_true(config_read(bytes, &config, why, sizeof why));
            assert_int_equal(config.blocking, blocking);
        }
    }
}

static void test_padding_is_ignored(void **state)
{
    struct nccl_config config = {.blocking = true};
    (void)state;
    make(24, 21405);
    put(CLUSTER, 4711);
    assert_true(config_read(bytes, &config, why, sizeof why));
    make(40, 21701);
    put(SPLIT_SHARE, 4711);
    assert_true(config_read(bytes, &config, why, sizeof why));
}

static void refused(const char *text)
{
    struct nccl_config config = {.blocking = true};
    assert_false(config_read(bytes, &config, why, sizeof why));
    assert_string_equal(why, text);
    assert_true(config.blocking);
}

static void test_refusals(void **state)
{
    (void)state;
    make(80, 22809);
    bytes[8] ^= 1;
    refused("the ncclConfig_t was not set by NCCL_CONFIG_INITIALIZER");
    make(23, 22809);
    refused("the ncclConfig_t was not set by NCCL_CONFIG_INITIALIZER");
    make(80, 22809);
    put(BLOCKING, 2);
    refused("blocking of the ncclConfig_t is 2");
    make(80, 22809);
    put(CLUSTER, 9);
    refused("cgaClusterSize of the ncclConfig_t is 9");
    make(80, 22809);
    put(LEAST_CTAS, 0);
    refused("minCTAs of the ncclConfig_t is 0");
    make(80, 22809);
    put(LEAST_CTAS, 9);
    put(MOST_CTAS, 8);
    refused("minCTAs of the ncclConfig_t is 9, more than maxCTAs, 8");
}

static void test_versions(void **state)
{
    (void)state;
    assert_int_equal(nccl_version_parse(NULL), 22809);
    assert_int_equal(nccl_version_parse(""), 22809);
    assert_int_equal(nccl_version_parse("22907"), 22907);
    assert_int_equal(nccl_version_parse("22907x"), 22809);
    assert_int_equal(nccl_version_parse("-22907"), 22809);
    assert_int_equal(nccl_version_parse("99999999999999999999"), 22809);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_sizes),
                                       cmocka_unit_test(test_padding_is_ignored),
                                       cmocka_unit_test(test_refusals), cmocka_unit_test(test_versions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
