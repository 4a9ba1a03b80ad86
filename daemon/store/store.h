#ifndef DAEMON_STORE_STORE_H
#define DAEMON_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/budget.h"
#include "daemon/base/time.h"
#include "daemon/base/timer_heap.h"
#include "proto/store.h"

/*
 * One store of keys and values: pure data in memory. Those who wait for keys are told by a call when the keys
 * exist, or when their time has passed. All that it holds is charged to one account (BUDGET_STORES).
 *
 * Every call takes time in proportion to its data, except that a key's first value wakes all that wait for
 * it. Each of them is woken once for each key that it has asked for.
 *
 * Single-threaded. Time is an argument.
 */
struct store;

#define STORE_MAX_BYTES (16u << 20) /* keys, values and what waits for them; more: LIMIT */
#define STORE_KEYS_MAX 65536u       /* with a value or waited for; more: LIMIT */
#define STORE_WAITERS_MAX 8192u     /* more: LIMIT */
#define STORE_ENTRY_BYTES 128u      /* charged for each key and each that waits, besides its bytes */

/* Keys are 1 to STORE_KEY_MAX_BYTES bytes, values up to STORE_VALUE_MAX_BYTES; callers check that. */
struct store_bytes {
    const uint8_t *data;
    size_t size;
};

/* What waits for keys, embedded in its owner's struct. Zero at first. */
struct store_waiter {
    struct store_waiter *prev, *next; /* of its key */
    struct store_key *key;            /* the missing key that it waits for; null: none */
    struct store_bytes *keys;         /* a copy; null: it is not in the store */
    size_t count, at;                 /* keys before `at` have existed since it began to wait */
    size_t charged_bytes;
    struct timer_node timer;
};

/* result: OK (all keys have existed), TIMED_OUT, or why it cannot wait for its next key (LIMIT, NO_MEMORY).
 * The waiter keeps its keys until store_wait_end, which may be called from within. */
typedef void store_woken_function(void *context, struct store_waiter *waiter, enum status result,
                                  uint64_t now_ns);

/*
 * name is for messages, at most COMM_NAME_MAX_BYTES long. seed: random and secret, so that users cannot
 * choose keys that collide. The account is referenced; null: nothing is charged. NO_MEMORY, LIMIT.
 */
enum status store_new(const char *name, uint64_t seed, struct budget_account *account,
                      store_woken_function *woken, void *context, struct store **out,
                      struct error *error) COMM_MUST_USE;
/* Nobody may wait. Null is accepted. */
void store_free(struct store *store);

/* LIMIT, NO_MEMORY: then the key keeps its value. */
enum status store_set(struct store *store, struct store_bytes key, struct store_bytes value, uint64_t now_ns,
                      struct error *error) COMM_MUST_USE;
/* *value belongs to the store, and is valid until the key changes. */
bool store_get(const struct store *store, struct store_bytes key, struct store_bytes *value);
/* Adds to a number in decimal text; a missing key counts as 0. INVALID_ARGUMENT (the value is no number, or
 * the sum is beyond 64 bits), LIMIT, NO_MEMORY. */
enum status store_add(struct store *store, struct store_bytes key, int64_t delta, int64_t *sum,
                      uint64_t now_ns, struct error *error) COMM_MUST_USE;
/*
 * Stores `desired` if the value equals `expected`, or if the key is missing and `expected` is empty. *value
 * gets the value afterwards, as store_get does; of a key that is still missing, `expected`. LIMIT, NO_MEMORY.
 */
enum status store_compare_set(struct store *store, struct store_bytes key, struct store_bytes expected,
                              struct store_bytes desired, struct store_bytes *value, uint64_t now_ns,
                              struct error *error) COMM_MUST_USE;
/* Returns whether the key existed. */
bool store_delete(struct store *store, struct store_bytes key);
/* The number of keys that have a value. */
size_t store_count(const struct store *store);

/*
 * Waits until all keys exist: OK if they do already (then nothing waits), IN_PROGRESS, LIMIT, NO_MEMORY. The
 * keys are copied. With deadline_ns now or earlier, it only looks: TIMED_OUT. A key that exists and is
 * deleted while the waiter waits for another one is not waited for again.
 */
enum status store_wait(struct store *store, struct store_waiter *waiter, const struct store_bytes *keys,
                       size_t count, uint64_t deadline_ns, uint64_t now_ns,
                       struct error *error) COMM_MUST_USE;
/* Takes the waiter out, if it is in the store. */
void store_wait_end(struct store *store, struct store_waiter *waiter);
/* The first key that the waiter misses, or the first of its keys. */
struct store_bytes store_wait_key(const struct store_waiter *waiter);

uint64_t store_next_deadline_ns(const struct store *store);
/* Wakes those whose time has passed. */
void store_tick(struct store *store, uint64_t now_ns);

/* A key as shown in messages: quoted, cut, and without unprintable bytes. */
#define STORE_KEY_TEXT_BYTES 72
const char *store_key_text(struct store_bytes key, char out[STORE_KEY_TEXT_BYTES]);

#endif
