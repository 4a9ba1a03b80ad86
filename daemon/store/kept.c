#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/hash.h"
#include "daemon/store/stores_internal.h"

/* The stores that this node keeps, and the processes that have them open. */

void stores_kept_arm(struct stores_kept *kept)
{
    uint64_t deadline_ns = time_min(kept->ends_ns, store_next_deadline_ns(kept->store));
    if (deadline_ns == TIME_NEVER) {
        timer_heap_remove(&kept->stores->kept_timers, &kept->timer);
    } else {
        timer_heap_set(&kept->stores->kept_timers, &kept->timer, deadline_ns);
    }
}

void stores_kept_free(struct stores_kept *kept)
{
    struct stores *stores = kept->stores;
    log_debug("store \"%s\" of uid %u ends", kept->key.name, (unsigned)kept->key.owner_uid);
    HASH_DEL(stores->kept, kept);
    timer_heap_remove(&stores->kept_timers, &kept->timer);
    store_free(kept->store);
    budget_close(kept->account);
    free(kept);
}

/* Users choose the names: the seed keeps them from choosing names that collide. */
static unsigned name_hash(const struct stores *stores, const struct owned_name *key, size_t key_bytes)
{
    return (unsigned)hash_bytes(stores->seed, key, key_bytes);
}

static enum status kept_check(const struct stores *stores, const struct owned_name *key, struct error *error)
{
    if (stores->draining[0] != '\0') {
        return error_set(error, STATUS_SHUTTING_DOWN, "store \"%s\" would be kept by this node, but %s",
                         key->name, stores->draining);
    }
    if (HASH_COUNT(stores->kept) >= STORES_KEPT_MAX) {
        return error_set(error, STATUS_LIMIT, "node %s keeps %u stores; more are not allowed",
                         mesh_own_name(stores->mesh), STORES_KEPT_MAX);
    }
    return STATUS_OK;
}

/* Makes what the store needs. After a failure the caller frees it. */
static enum status kept_make(struct stores *stores, struct stores_kept *kept, struct error *error)
{
    if (!timer_heap_reserve(&stores->kept_timers, (size_t)HASH_COUNT(stores->kept) + 1)) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for store \"%s\"", kept->key.name);
    }
    enum status status = STATUS_OK;
    if (stores->budget != NULL) {
        status = budget_open(stores->budget, kept->key.owner_uid, NULL, &kept->account, error);
    }
    if (status == STATUS_OK) {
        status = store_new(kept->key.name, stores->seed, kept->account, stores_kept_woken, kept, &kept->store,
                           error);
    }
    return status;
}

static enum status kept_new(struct stores *stores, const struct owned_name *key, struct stores_kept **out,
                            struct error *error)
{
    enum status status = kept_check(stores, key, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct stores_kept *kept = calloc(1, sizeof *kept);
    if (kept == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for store \"%s\"", key->name);
    }
    kept->stores = stores;
    kept->ends_ns = TIME_NEVER;
    kept->timer.index = TIMER_NODE_DISARMED;
    size_t key_bytes = owned_name_make(&kept->key, key->owner_uid, key->name);
    status = kept_make(stores, kept, error);
    if (status == STATUS_OK) {
        unsigned hash = name_hash(stores, &kept->key, key_bytes);
        HASH_ADD_KEYPTR_BYHASHVALUE(hh, stores->kept, &kept->key, key_bytes, hash, kept);
        status = table_has(kept, hh)
                     ? STATUS_OK
                     : error_set(error, STATUS_NO_MEMORY, "no memory for store \"%s\"", key->name);
    }
    if (status != STATUS_OK) {
        store_free(kept->store);
        budget_close(kept->account);
        free(kept);
        return status;
    }
    log_debug("store \"%s\" of uid %u begins", kept->key.name, (unsigned)kept->key.owner_uid);
    *out = kept;
    return STATUS_OK;
}

/* --- Openers --- */

struct stores_opener *stores_opener_find(const struct stores *stores, uint32_t node, uint64_t number)
{
    struct stores_opener probe = {.key = {.node = node, .number = number}};
    struct stores_opener *opener;
    HASH_FIND(hh, stores->openers, &probe.key, sizeof probe.key, opener);
    return opener;
}

/* A store that nobody has open lasts for a while: its processes may open it one after the other. */
static void kept_left(struct stores_kept *kept, uint64_t now_ns)
{
    if (kept->opener_count == 0) {
        kept->ends_ns = time_after(now_ns, kept->stores->linger_ns);
    }
    stores_kept_arm(kept);
}

static enum status opener_new(struct stores_kept *kept, uint32_t node, uint64_t number,
                              struct stores_opener **out, struct error *error)
{
    struct stores *stores = kept->stores;
    enum status status = budget_charge(kept->account, BUDGET_STORES, sizeof **out, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct stores_opener *opener = calloc(1, sizeof *opener);
    if (opener != NULL) {
        opener->key.node = node;
        opener->key.number = number;
        opener->kept = kept;
        HASH_ADD(hh, stores->openers, key, sizeof opener->key, opener);
    }
    if (opener == NULL || !table_has(opener, hh)) {
        free(opener);
        budget_release(kept->account, BUDGET_STORES, sizeof **out);
        return error_set(error, STATUS_NO_MEMORY, "no memory for store \"%s\"", kept->key.name);
    }
    kept->opener_count++;
    kept->ends_ns = TIME_NEVER;
    *out = opener;
    return STATUS_OK;
}

enum status stores_kept_open(struct stores *stores, uint32_t node, uint64_t number,
                             const struct owned_name *key, struct stores_handle *handle, uint64_t now_ns,
                             struct stores_opener **out, struct error *error)
{
    struct owned_name wanted;
    struct stores_kept *kept;
    size_t key_bytes = owned_name_make(&wanted, key->owner_uid, key->name);
    unsigned hash = name_hash(stores, &wanted, key_bytes);
    HASH_FIND_BYHASHVALUE(hh, stores->kept, &wanted, key_bytes, hash, kept);
    if (kept == NULL) {
        enum status status = kept_new(stores, &wanted, &kept, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    enum status status = opener_new(kept, node, number, out, error);
    if (status == STATUS_OK) {
        (*out)->handle = handle;
    }
    kept_left(kept, now_ns);
    return status;
}

void stores_opener_close(struct stores_opener *opener, uint64_t now_ns)
{
    struct stores_kept *kept = opener->kept;
    struct stores *stores = kept->stores;
    if (opener->woken != NULL) {
        stores_opener_unlist(opener);
    }
    while (opener->waits != NULL) {
        stores_wait_free(opener->waits);
    }
    while (opener->woken != NULL) {
        stores_wait_free(opener->woken);
    }
    HASH_DEL(stores->openers, opener);
    budget_release(kept->account, BUDGET_STORES, sizeof *opener);
    free(opener);
    kept->opener_count--;
    kept_left(kept, now_ns);
}

void stores_opener_end(struct stores_opener *opener, const struct error *cause, uint64_t now_ns)
{
    struct stores_wait *wait;
    struct stores_answer answer = {.result = cause};
    DL_FOREACH(opener->waits, wait)
    {
        stores_answer(opener, wait->request, wait->kind, &answer);
    }
    DL_FOREACH(opener->woken, wait)
    {
        stores_answer(opener, wait->request, wait->kind, &answer);
    }
    stores_opener_close(opener, now_ns);
}

void stores_kept_node_down(struct stores *stores, uint32_t node, uint64_t now_ns)
{
    struct stores_opener *opener, *next;
    HASH_ITER (hh, stores->openers, opener, next) {
        if (opener->key.node == node) {
            stores_opener_close(opener, now_ns);
        }
    }
}

/* Handles of this node notice by themselves: see stores_recheck_users. */
void stores_kept_recheck(struct stores *stores, uint64_t now_ns)
{
    struct stores_opener *opener, *next;
    HASH_ITER (hh, stores->openers, opener, next) {
        uint32_t uid = opener->kept->key.owner_uid;
        bool may = mesh_user_may(stores->mesh, uid, MESH_NODE_OWN) &&
                   mesh_user_may(stores->mesh, uid, opener->key.node);
        if (!may && opener->handle == NULL) {
            struct error cause;
            error_set(&cause, STATUS_PERMISSION,
                      "store \"%s\": uid %u may not be on node %s or %s any more (users in commd.conf)",
                      opener->kept->key.name, (unsigned)uid, mesh_own_name(stores->mesh),
                      mesh_node_name(stores->mesh, opener->key.node));
            stores_opener_end(opener, &cause, now_ns);
        }
    }
}

void stores_kept_tick(struct stores *stores, uint64_t now_ns)
{
    const struct timer_node *first;
    while ((first = timer_heap_first(&stores->kept_timers)) != NULL && first->deadline_ns <= now_ns) {
        struct stores_kept *kept =
            (struct stores_kept *)((char *)(uintptr_t)first - offsetof(struct stores_kept, timer));
        if (kept->ends_ns <= now_ns) {
            stores_kept_free(kept);
        } else {
            store_tick(kept->store, now_ns);
            stores_kept_arm(kept);
        }
    }
}
