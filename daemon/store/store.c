#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/checked.h"
#include "daemon/base/hash.h"
#include "daemon/store/store_internal.h"

enum status store_new(const char *name, uint64_t seed, struct budget_account *account,
                      store_woken_function *woken, void *context, struct store **out, struct error *error)
{
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for store \"%s\"", name);
    }
    (void)snprintf(store->name, sizeof store->name, "%s", name);
    store->seed = seed;
    store->woken = woken;
    store->context = context;
    store->account = account != NULL ? budget_ref(account) : NULL;
    enum status status = store_charge(store, sizeof *store + STORE_ENTRY_BYTES, error);
    if (status != STATUS_OK) {
        budget_close(store->account);
        free(store);
        return status;
    }
    *out = store;
    return STATUS_OK;
}

static void key_free(struct store *store, struct store_key *key)
{
    HASH_DEL(store->keys, key);
    store_release(store, key->charged_bytes);
    free(key->value);
    free(key);
}

void store_free(struct store *store)
{
    if (store == NULL) {
        return;
    }
    while (store->keys != NULL) {
        key_free(store, store->keys);
    }
    store_release(store, store->held_bytes);
    timer_heap_free(&store->timers);
    budget_close(store->account);
    free(store);
}

enum status store_charge(struct store *store, size_t bytes, struct error *error)
{
    if (bytes > STORE_MAX_BYTES - store->held_bytes) {
        return error_set(error, STATUS_LIMIT,
                         "store \"%s\" holds %zu bytes; %zu more are beyond the limit of %u", store->name,
                         store->held_bytes, bytes, STORE_MAX_BYTES);
    }
    enum status status = budget_charge(store->account, BUDGET_STORES, bytes, error);
    if (status != STATUS_OK) {
        return status;
    }
    store->held_bytes += bytes;
    return STATUS_OK;
}

void store_release(struct store *store, size_t bytes)
{
    store->held_bytes -= bytes;
    budget_release(store->account, BUDGET_STORES, bytes);
}

/* --- Keys --- */

static unsigned key_hash(const struct store *store, struct store_bytes key)
{
    return (unsigned)hash_bytes(store->seed, key.data, key.size);
}

/* Returns null if nobody has set the key or waits for it. */
static struct store_key *store_find(const struct store *store, struct store_bytes key)
{
    struct store_key *found;
    unsigned hash = key_hash(store, key);
    HASH_FIND_BYHASHVALUE(hh, store->keys, key.data, key.size, hash, found);
    return found;
}

enum status store_need(struct store *store, struct store_bytes key, struct store_key **out,
                       struct error *error)
{
    struct store_key *found = store_find(store, key);
    if (found != NULL) {
        *out = found;
        return STATUS_OK;
    }
    if (HASH_COUNT(store->keys) >= STORE_KEYS_MAX) {
        return error_set(error, STATUS_LIMIT, "store \"%s\" has %u keys; more are not allowed", store->name,
                         STORE_KEYS_MAX);
    }
    size_t charged_bytes = sizeof *found + STORE_ENTRY_BYTES + key.size;
    enum status status = store_charge(store, charged_bytes, error);
    if (status != STATUS_OK) {
        return status;
    }
    found = calloc(1, sizeof *found + key.size);
    if (found != NULL) {
        unsigned hash = key_hash(store, key);
        found->size = key.size;
        found->charged_bytes = charged_bytes;
        memcpy(found->bytes, key.data, key.size);
        HASH_ADD_KEYPTR_BYHASHVALUE(hh, store->keys, found->bytes, found->size, hash, found);
    }
    if (found == NULL || !table_has(found, hh)) {
        free(found);
        store_release(store, charged_bytes);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a key of store \"%s\"", store->name);
    }
    *out = found;
    return STATUS_OK;
}

void store_tidy(struct store *store, struct store_key *key)
{
    if (!key->exists && key->waiters == NULL) {
        key_free(store, key);
    }
}

const char *store_key_text(struct store_bytes key, char out[STORE_KEY_TEXT_BYTES])
{
    size_t length = 0;
    out[length++] = '"';
    for (size_t i = 0; i < key.size && length < STORE_KEY_TEXT_BYTES - 5; i++) {
        out[length++] = (char)(key.data[i] >= ' ' && key.data[i] <= '~' ? key.data[i] : '?');
    }
    (void)snprintf(out + length, STORE_KEY_TEXT_BYTES - length, "%s\"",
                   key.size > STORE_KEY_TEXT_BYTES - 6 ? "..." : "");
    return out;
}

/* --- Values --- */

/* Charges the difference first: after a failure nothing has changed. */
static enum status value_replace(struct store *store, struct store_key *key, struct store_bytes value,
                                 struct error *error)
{
    uint8_t *copy = NULL;
    if (value.size > key->value_bytes) {
        enum status status = store_charge(store, value.size - key->value_bytes, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    if (value.size > 0) {
        copy = malloc(value.size);
        if (copy == NULL) {
            store_release(store, value.size > key->value_bytes ? value.size - key->value_bytes : 0);
            return error_set(error, STATUS_NO_MEMORY, "no memory for a value of store \"%s\"", store->name);
        }
        memcpy(copy, value.data, value.size);
    }
    if (value.size < key->value_bytes) {
        store_release(store, key->value_bytes - value.size);
    }
    key->charged_bytes = key->charged_bytes - key->value_bytes + value.size;
    free(key->value);
    key->value = copy;
    key->value_bytes = value.size;
    return STATUS_OK;
}

enum status store_set(struct store *store, struct store_bytes key, struct store_bytes value, uint64_t now_ns,
                      struct error *error)
{
    struct store_key *found;
    enum status status = store_need(store, key, &found, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = value_replace(store, found, value, error);
    if (status != STATUS_OK) {
        store_tidy(store, found);
        return status;
    }
    if (!found->exists) {
        found->exists = true;
        store->value_count++;
        store_wake(store, found, now_ns);
    }
    return STATUS_OK;
}

static struct store_bytes value_of(const struct store_key *key)
{
    return (struct store_bytes){.data = key->value, .size = key->value_bytes};
}

bool store_get(const struct store *store, struct store_bytes key, struct store_bytes *value)
{
    const struct store_key *found = store_find(store, key);
    if (found == NULL || !found->exists) {
        return false;
    }
    *value = value_of(found);
    return true;
}

#define NUMBER_MAX_BYTES 20 /* "-9223372036854775808" */

/* Whether the value is a decimal number of 64 bits with sign. */
static bool number_read(struct store_bytes value, int64_t *out)
{
    bool negative = value.size > 0 && value.data[0] == '-';
    int64_t number = 0;
    if (value.size <= negative || value.size > NUMBER_MAX_BYTES) {
        return false;
    }
    for (size_t i = negative; i < value.size; i++) {
        int digit = value.data[i] - '0';
        if (digit < 0 || digit > 9 || __builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, negative ? -digit : digit, &number)) {
            return false;
        }
    }
    *out = number;
    return true;
}

enum status store_add(struct store *store, struct store_bytes key, int64_t delta, int64_t *sum,
                      uint64_t now_ns, struct error *error)
{
    char text[STORE_KEY_TEXT_BYTES];
    char digits[NUMBER_MAX_BYTES + 1];
    struct store_bytes value;
    int64_t number = 0;
    if (store_get(store, key, &value) && !number_read(value, &number)) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "store \"%s\": key %s holds %zu bytes that are no decimal number", store->name,
                         store_key_text(key, text), value.size);
    }
    if (__builtin_add_overflow(number, delta, sum)) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "store \"%s\": key %s: %" PRId64 " plus %" PRId64 " does not fit into 64 bits",
                         store->name, store_key_text(key, text), number, delta);
    }
    int length = snprintf(digits, sizeof digits, "%" PRId64, *sum);
    return store_set(store, key,
                     (struct store_bytes){.data = (const uint8_t *)digits, .size = (size_t)length}, now_ns,
                     error);
}

static bool bytes_equal(struct store_bytes a, struct store_bytes b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

enum status store_compare_set(struct store *store, struct store_bytes key, struct store_bytes expected,
                              struct store_bytes desired, struct store_bytes *value, uint64_t now_ns,
                              struct error *error)
{
    struct store_bytes held;
    bool exists = store_get(store, key, &held);
    bool matches = exists ? bytes_equal(held, expected) : expected.size == 0;
    if (!matches) {
        *value = exists ? held : expected;
        return STATUS_OK;
    }
    *value = desired;
    return store_set(store, key, desired, now_ns, error);
}

bool store_delete(struct store *store, struct store_bytes key)
{
    struct store_key *found = store_find(store, key);
    if (found == NULL || !found->exists) {
        return false;
    }
    found->exists = false;
    store->value_count--;
    store_tidy(store, found);
    return true;
}

size_t store_count(const struct store *store)
{
    return store->value_count;
}
