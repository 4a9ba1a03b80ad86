#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/checked.h"
#include "daemon/store/store_internal.h"

/* Those who wait: each stands in the list of one missing key, and goes on to its next missing key. */

/* Copies the keys into one block: first the array, then the bytes. */
static enum status keys_copy(struct store *store, struct store_waiter *waiter, const struct store_bytes *keys,
                             size_t count, struct error *error)
{
    size_t size = count * sizeof *keys;
    for (size_t i = 0; i < count; i++) {
        if (!checked_add_size(size, keys[i].size, &size)) {
            return error_set(error, STATUS_LIMIT, "store \"%s\": keys are too large", store->name);
        }
    }
    enum status status = store_charge(store, size + STORE_ENTRY_BYTES, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct store_bytes *copies = malloc(size);
    if (copies == NULL) {
        store_release(store, size + STORE_ENTRY_BYTES);
        return error_set(error, STATUS_NO_MEMORY, "store \"%s\": no memory to wait for keys", store->name);
    }
    uint8_t *at = (uint8_t *)(copies + count);
    for (size_t i = 0; i < count; i++) {
        memcpy(at, keys[i].data, keys[i].size);
        copies[i] = (struct store_bytes){.data = at, .size = keys[i].size};
        at += keys[i].size;
    }
    *waiter = (struct store_waiter){.keys = copies,
                                    .count = count,
                                    .charged_bytes = size + STORE_ENTRY_BYTES,
                                    .timer.index = TIMER_NODE_DISARMED};
    return STATUS_OK;
}

/* Returns the index of the first key from `at` on that has no value, or `count`. */
static size_t first_missing(const struct store *store, const struct store_bytes *keys, size_t count,
                            size_t at)
{
    struct store_bytes value;
    while (at < count && store_get(store, keys[at], &value)) {
        at++;
    }
    return at;
}

/* Puts the waiter into the list of its next missing key. OK: there is none. */
static enum status waiter_park(struct store *store, struct store_waiter *waiter, struct error *error)
{
    struct store_key *key;
    waiter->at = first_missing(store, waiter->keys, waiter->count, waiter->at);
    if (waiter->at == waiter->count) {
        return STATUS_OK;
    }
    enum status status = store_need(store, waiter->keys[waiter->at], &key, error);
    if (status != STATUS_OK) {
        return status;
    }
    waiter->key = key;
    DL_APPEND(key->waiters, waiter);
    return STATUS_IN_PROGRESS;
}

enum status store_wait(struct store *store, struct store_waiter *waiter, const struct store_bytes *keys,
                       size_t count, uint64_t deadline_ns, uint64_t now_ns, struct error *error)
{
    char text[STORE_KEY_TEXT_BYTES];
    size_t missing = first_missing(store, keys, count, 0);
    if (missing == count) {
        return STATUS_OK;
    }
    if (deadline_ns <= now_ns) {
        return error_set(error, STATUS_TIMED_OUT, "store \"%s\": key %s does not exist", store->name,
                         store_key_text(keys[missing], text));
    }
    if (store->waiter_count >= STORE_WAITERS_MAX) {
        return error_set(error, STATUS_LIMIT, "store \"%s\": %u calls wait for keys; more are not allowed",
                         store->name, STORE_WAITERS_MAX);
    }
    if (!timer_heap_reserve(&store->timers, (size_t)store->waiter_count + 1)) {
        return error_set(error, STATUS_NO_MEMORY, "store \"%s\": no memory to wait for keys", store->name);
    }
    enum status status = keys_copy(store, waiter, keys, count, error);
    if (status != STATUS_OK) {
        return status;
    }
    store->waiter_count++;
    waiter->at = missing;
    status = waiter_park(store, waiter, error);
    if (status != STATUS_IN_PROGRESS) {
        store_wait_end(store, waiter);
        return status;
    }
    if (deadline_ns != TIME_NEVER) {
        timer_heap_set(&store->timers, &waiter->timer, deadline_ns);
    }
    return STATUS_IN_PROGRESS;
}

/* The waiter waits no more; its keys stay. */
static void waiter_leave_key(struct store_waiter *waiter)
{
    if (waiter->key != NULL) {
        DL_DELETE(waiter->key->waiters, waiter);
        waiter->key = NULL;
    }
}

void store_wait_end(struct store *store, struct store_waiter *waiter)
{
    if (waiter->keys == NULL) {
        return;
    }
    struct store_key *key = waiter->key;
    waiter_leave_key(waiter);
    if (key != NULL) {
        store_tidy(store, key);
    }
    timer_heap_remove(&store->timers, &waiter->timer);
    store_release(store, waiter->charged_bytes);
    store->waiter_count--;
    free(waiter->keys);
    *waiter = (struct store_waiter){.timer.index = TIMER_NODE_DISARMED};
}

struct store_bytes store_wait_key(const struct store_waiter *waiter)
{
    return waiter->keys[waiter->at < waiter->count ? waiter->at : 0];
}

static void waiter_wake(struct store *store, struct store_waiter *waiter, enum status result, uint64_t now_ns)
{
    timer_heap_remove(&store->timers, &waiter->timer);
    store->woken(store->context, waiter, result, now_ns);
}

void store_wake(struct store *store, struct store_key *key, uint64_t now_ns)
{
    struct store_waiter *waiter;
    while ((waiter = key->waiters) != NULL) {
        struct error error;
        waiter_leave_key(waiter);
        enum status status = waiter_park(store, waiter, &error);
        if (status != STATUS_IN_PROGRESS) {
            waiter_wake(store, waiter, status, now_ns);
        }
    }
}

uint64_t store_next_deadline_ns(const struct store *store)
{
    const struct timer_node *first = timer_heap_first(&store->timers);
    return first != NULL ? first->deadline_ns : TIME_NEVER;
}

void store_tick(struct store *store, uint64_t now_ns)
{
    const struct timer_node *first;
    while ((first = timer_heap_first(&store->timers)) != NULL && first->deadline_ns <= now_ns) {
        struct store_waiter *waiter =
            (struct store_waiter *)((char *)(uintptr_t)first - offsetof(struct store_waiter, timer));
        struct store_key *key = waiter->key;
        waiter_leave_key(waiter);
        if (key != NULL) {
            store_tidy(store, key);
        }
        waiter_wake(store, waiter, STATUS_TIMED_OUT, now_ns);
    }
}
