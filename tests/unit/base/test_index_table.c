#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/index_table.h"
#include "daemon/base/random.h"

#define ENTRIES 500u

/* Keys of an array, with hashes that collide: `spread` different ones. */
struct keys {
    uint64_t keys[ENTRIES];
    uint64_t spread;
};

static uint64_t hash_of(const void *context, uint32_t index)
{
    const struct keys *keys = context;
    return keys->keys[index] % keys->spread;
}

static bool has_key(const void *context, uint32_t index, const void *key)
{
    return ((const struct keys *)context)->keys[index] == *(const uint64_t *)key;
}

static uint32_t find(const struct index_table *table, const struct index_table_entries *entries, uint64_t key)
{
    const struct keys *keys = entries->context;
    return index_table_find(table, entries, key % keys->spread, &key);
}

static void check_all(const struct index_table *table, const struct index_table_entries *entries,
                      const bool *present)
{
    const struct keys *keys = entries->context;
    uint32_t count = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        assert_int_equal(find(table, entries, keys->keys[i]), present[i] ? i : INDEX_TABLE_NONE);
        count += present[i];
    }
    assert_int_equal(table->count, count);
}

/* Adds and removes at random, and compares with a plain array after each step. */
static void run(uint64_t spread, uint64_t seed)
{
    struct keys keys = {.spread = spread};
    struct index_table table = {0};
    const struct index_table_entries entries = {hash_of, has_key, &keys};
    bool present[ENTRIES] = {false};
    struct random random;
    random_seed(&random, seed);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        keys.keys[i] = i * 7919u + 3;
    }
    check_all(&table, &entries, present);
    for (unsigned step = 0; step < 2000; step++) {
        uint32_t index = (uint32_t)random_below(&random, ENTRIES);
        if (present[index] || random_below(&random, 4) == 0) {
            index_table_remove(&table, &entries, index); /* also one that is not there */
            present[index] = false;
        } else {
            assert_true(index_table_reserve(&table, &entries));
            index_table_add(&table, &entries, index);
            present[index] = true;
        }
        if (step % 50 == 0) {
            check_all(&table, &entries, present);
        }
    }
    check_all(&table, &entries, present);
    index_table_free(&table);
    memset(present, 0, sizeof present);
    check_all(&table, &entries, present);
}

static void test_hashes_that_differ(void **state)
{
    (void)state;
    run(UINT64_MAX, 1);
}

static void test_hashes_that_collide(void **state)
{
    (void)state;
    run(11, 2);
    run(1, 3);
}

static void test_memory_for_each_entry(void **state)
{
    (void)state;
    struct keys keys = {.spread = UINT64_MAX};
    struct index_table table = {0};
    const struct index_table_entries entries = {hash_of, has_key, &keys};
    for (uint32_t i = 0; i < ENTRIES; i++) {
        keys.keys[i] = i;
        assert_true(index_table_reserve(&table, &entries));
        index_table_add(&table, &entries, i);
    }
    assert_in_range(table.slot_count * sizeof *table.slots, 5 * ENTRIES, 11 * ENTRIES);
    index_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hashes_that_differ),
        cmocka_unit_test(test_hashes_that_collide),
        cmocka_unit_test(test_memory_for_each_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
