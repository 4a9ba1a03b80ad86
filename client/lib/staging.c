#include "client/lib/internal.h"

static size_t block_bytes(unsigned order)
{
    return STAGING_MIN_BYTES << order;
}

static void push(struct client_memory **list, struct client_memory *memory)
{
    memory->next_free = *list;
    *list = memory;
}

static struct client_memory *pop(struct client_memory **list)
{
    struct client_memory *memory = *list;
    if (memory != NULL) {
        *list = memory->next_free;
        memory->next_free = NULL;
    }
    return memory;
}

static unsigned order_of(size_t size_bytes)
{
    unsigned order = 0;
    while (order < STAGING_ORDERS && block_bytes(order) < size_bytes) {
        order++;
    }
    return order;
}

static struct client_memory *pop_free(struct staging_pool *pool, unsigned order)
{
    struct client_memory *memory = pop(&pool->free[order]);
    if (memory != NULL) {
        pool->free_bytes -= memory->size_bytes;
    }
    return memory;
}

/* The next block to let go of: a doomed one or, beyond the bound, the largest. */
static struct client_memory *pop_surplus(struct staging_pool *pool)
{
    struct client_memory *memory = pop(&pool->doomed);
    for (unsigned order = STAGING_ORDERS; memory == NULL && order > 0; order--) {
        if (pool->free_bytes <= STAGING_CACHED_MAX_BYTES) {
            break;
        }
        memory = pop_free(pool, order - 1);
    }
    return memory;
}

/* Not where blocks are given back: that is in the middle of reading the socket, and this may have to send. */
static void trim(struct comm_client *client)
{
    struct client_memory *memory;
    while ((memory = pop_surplus(&client->staging)) != NULL) {
        uint32_t id = memory->id;
        memory_free(memory);
        memory_withdraw(client, id);
    }
}

comm_result_t staging_take(struct comm_client *client, size_t size_bytes, struct client_memory **out)
{
    struct staging_pool *pool = &client->staging;
    unsigned order = order_of(size_bytes);
    if (order == STAGING_ORDERS) {
        return error_report(
            COMM_LIMIT,
            "%zu bytes are too many to copy, %zu are the most: use memory of comm_mem_alloc or "
            "comm_mem_register",
            size_bytes, block_bytes(STAGING_ORDERS - 1));
    }
    if (pool->free[order] == NULL) {
        client_take_events(client); /* completions that wait may give some back */
    }
    struct client_memory *memory = pop_free(pool, order);
    trim(client);
    if (memory == NULL) {
        return memory_make(client, block_bytes(order), true, out);
    }
    *out = memory;
    return COMM_OK;
}

void staging_give(struct comm_client *client, struct client_memory *memory, bool reuse)
{
    if (reuse) {
        push(&client->staging.free[order_of(memory->size_bytes)], memory);
        client->staging.free_bytes += memory->size_bytes;
    } else {
        push(&client->staging.doomed, memory);
    }
}

void staging_free_all(struct comm_client *client)
{
    struct client_memory *memory;
    while ((memory = pop(&client->staging.doomed)) != NULL) {
        memory_free(memory);
    }
    for (unsigned order = 0; order < STAGING_ORDERS; order++) {
        while ((memory = pop_free(&client->staging, order)) != NULL) {
            memory_free(memory);
        }
    }
}
