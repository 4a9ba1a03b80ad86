#ifndef DAEMON_STORE_STORE_INTERNAL_H
#define DAEMON_STORE_STORE_INTERNAL_H

#include "daemon/base/table.h"
#include "daemon/store/store.h"
#include "proto/types.h"

/* Shared by store.c and store_wait.c. */

/* A key that has a value, or that somebody waits for. */
struct store_key {
    uint8_t *value; /* null: none, or an empty one */
    size_t value_bytes;
    bool exists; /* it has a value */
    struct store_waiter *waiters;
    size_t charged_bytes;
    UT_hash_handle hh;
    size_t size;
    uint8_t bytes[];
};

struct store {
    char name[COMM_NAME_MAX_BYTES + 1];
    uint64_t seed;
    struct budget_account *account;
    store_woken_function *woken;
    void *context;
    struct store_key *keys;
    size_t value_count; /* keys that have a value */
    size_t held_bytes;
    uint32_t waiter_count;
    struct timer_heap timers;
};

/* Charges bytes to the store and its account. LIMIT. */
enum status store_charge(struct store *store, size_t bytes, struct error *error) COMM_MUST_USE;
void store_release(struct store *store, size_t bytes);
/* Finds the key, or adds it without a value. LIMIT, NO_MEMORY. */
enum status store_need(struct store *store, struct store_bytes key, struct store_key **out,
                       struct error *error) COMM_MUST_USE;
/* Frees the key if it has no value and nobody waits for it. */
void store_tidy(struct store *store, struct store_key *key);

/* store_wait.c: the key has its first value. */
void store_wake(struct store *store, struct store_key *key, uint64_t now_ns);

#endif
