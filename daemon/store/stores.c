#include "daemon/store/stores.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/store/stores_internal.h"

static void control_node_up(void *context, uint32_t node, uint64_t now_ns)
{
    (void)node;
    (void)now_ns;
    ((struct stores *)context)->run_ns = 0; /* requests may have waited for it */
}

static void control_node_down(void *context, uint32_t node, const struct error *cause, uint64_t now_ns)
{
    stores_kept_node_down(context, node, now_ns);
    stores_handle_node_down(context, node, cause, now_ns);
}

enum status stores_new(const struct stores_options *options, struct stores **out, struct error *error)
{
    struct stores *stores = calloc(1, sizeof *stores);
    if (stores == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for stores");
    }
    stores->mesh = options->mesh;
    stores->seed = options->seed_secure;
    stores->linger_ns = options->linger_ns != 0 ? options->linger_ns : STORES_LINGER_NS;
    stores->clock = options->clock;
    stores->run_ns = TIME_NEVER;
    stores->node_limit = (struct log_limit){.burst = 5, .interval_ns = 10 * TIME_S};
    struct mesh_handler handler = {stores, control_node_up, control_node_down, stores_control_received, NULL};
    mesh_set_handler(stores->mesh, MESH_ROOM_STORE, &handler);
    *out = stores;
    return STATUS_OK;
}

void stores_free(struct stores *stores)
{
    if (stores == NULL) {
        return;
    }
    struct mesh_handler nobody = {0};
    mesh_set_handler(stores->mesh, MESH_ROOM_STORE, &nobody);
    while (stores->openers != NULL) {
        stores_opener_close(stores->openers, 0);
    }
    while (stores->kept != NULL) {
        stores_kept_free(stores->kept);
    }
    struct stores_link *link, *next;
    HASH_ITER (hh, stores->links, link, next) {
        HASH_DEL(stores->links, link);
        free(link);
    }
    timer_heap_free(&stores->kept_timers);
    timer_heap_free(&stores->sent_timers);
    free(stores);
}

void stores_set_budget(struct stores *stores, struct budget *budget)
{
    stores->budget = budget;
}

void stores_drain(struct stores *stores, const char *why)
{
    (void)snprintf(stores->draining, sizeof stores->draining, "%s", why != NULL ? why : "");
}

void stores_recheck_users(struct stores *stores, uint64_t now_ns)
{
    stores_handle_recheck(stores, now_ns);
    stores_kept_recheck(stores, now_ns);
}

/* --- Time --- */

uint64_t stores_next_deadline_ns(const struct stores *stores)
{
    const struct timer_node *kept = timer_heap_first(&stores->kept_timers);
    const struct timer_node *sent = timer_heap_first(&stores->sent_timers);
    uint64_t deadline_ns = stores->run_ns;
    deadline_ns = kept != NULL ? time_min(deadline_ns, kept->deadline_ns) : deadline_ns;
    return sent != NULL ? time_min(deadline_ns, sent->deadline_ns) : deadline_ns;
}

bool stores_run(struct stores *stores, uint64_t now_ns)
{
    if (stores->run_ns > now_ns) {
        return false;
    }
    stores->run_ns = TIME_NEVER;
    uint32_t count = stores_kept_run(stores, now_ns);
    count += stores_sent_run(stores, now_ns);
    if (stores->answering != NULL) {
        stores->run_ns = 0;
    } else if (stores->blocked != NULL || stores_sent_waits(stores)) {
        stores->run_ns = time_after(now_ns, STORES_RETRY_NS);
    }
    return count > 0;
}

void stores_tick(struct stores *stores, uint64_t now_ns)
{
    stores_kept_tick(stores, now_ns);
    stores_sent_tick(stores, now_ns);
    (void)stores_run(stores, now_ns);
}

/* --- Checks --- */

static enum status keys_check(const struct stores_ask *ask, struct error *error)
{
    size_t total = 0;
    for (size_t i = 0; i < ask->key_count; i++) {
        if (ask->keys[i].size == 0 || ask->keys[i].size > STORE_KEY_MAX_BYTES) {
            return error_set(error, STATUS_INVALID_ARGUMENT, "a key of %zu bytes: expected 1 to %d",
                             ask->keys[i].size, STORE_KEY_MAX_BYTES);
        }
        total += ask->keys[i].size;
    }
    return total <= STORE_ASK_KEYS_MAX_BYTES
               ? STATUS_OK
               : error_set(error, STATUS_INVALID_ARGUMENT,
                           "keys of %zu bytes in one request: at most %d are allowed", total,
                           STORE_ASK_KEYS_MAX_BYTES);
}

enum status stores_ask_check(const struct stores_ask *ask, struct error *error)
{
    size_t least = 1, most = 1;
    if (ask->kind < STORE_KIND_SET || ask->kind > STORE_KIND_COUNT) {
        return error_set(error, STATUS_PROTOCOL, "a request to a store of the unknown kind %u",
                         (unsigned)ask->kind);
    }
    if (ask->kind == STORE_KIND_COUNT) {
        least = most = 0;
    } else if (ask->kind == STORE_KIND_WAIT || ask->kind == STORE_KIND_CHECK) {
        most = STORE_ASK_KEYS_MAX;
    }
    if (ask->key_count < least || ask->key_count > most) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%zu keys in one request: expected %zu to %zu",
                         ask->key_count, least, most);
    }
    if (ask->value.size > STORE_VALUE_MAX_BYTES || ask->expected.size > STORE_VALUE_MAX_BYTES ||
        ask->value.size + ask->expected.size > STORE_VALUE_MAX_BYTES) {
        return error_set(error, STATUS_LIMIT, "values of %zu bytes: at most %d are allowed",
                         ask->value.size + ask->expected.size, STORE_VALUE_MAX_BYTES);
    }
    return keys_check(ask, error);
}
