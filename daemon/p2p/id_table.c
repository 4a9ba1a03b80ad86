#include "daemon/p2p/id_table.h"

#include <stdlib.h>

#define CAPACITY_MIN 16u

static struct p2p_id **bucket_of(const struct id_table *table, uint64_t id)
{
    return &table->buckets[id & (table->capacity - 1)]; /* numbers are consecutive */
}

/*
 * Without memory for more buckets the chains only grow longer. Returns false if there are no buckets at all.
 */
static bool grow(struct id_table *table)
{
    uint32_t capacity = table->capacity == 0 ? CAPACITY_MIN : 2 * table->capacity;
    struct p2p_id **buckets = calloc(capacity, sizeof(struct p2p_id *));
    if (buckets == NULL) {
        return table->capacity > 0;
    }
    struct id_table grown = {.buckets = buckets, .capacity = capacity, .count = table->count};
    for (uint32_t i = 0; i < table->capacity; i++) {
        for (struct p2p_id *entry = table->buckets[i], *next; entry != NULL; entry = next) {
            struct p2p_id **bucket = bucket_of(&grown, entry->id);
            next = entry->next;
            entry->next = *bucket;
            *bucket = entry;
        }
    }
    free(table->buckets);
    *table = grown;
    return true;
}

bool id_table_add(struct id_table *table, struct p2p_id *entry)
{
    if (table->count == table->capacity && table->capacity < UINT32_MAX / 2 && !grow(table)) {
        return false;
    }
    struct p2p_id **bucket = bucket_of(table, entry->id);
    entry->next = *bucket;
    *bucket = entry;
    table->count++;
    return true;
}

struct p2p_id *id_table_find(const struct id_table *table, uint64_t id)
{
    struct p2p_id *entry = table->capacity == 0 ? NULL : *bucket_of(table, id);
    while (entry != NULL && entry->id != id) {
        entry = entry->next;
    }
    return entry;
}

void id_table_remove(struct id_table *table, const struct p2p_id *entry)
{
    if (table->capacity == 0) {
        return;
    }
    for (struct p2p_id **at = bucket_of(table, entry->id); *at != NULL; at = &(*at)->next) {
        if (*at == entry) {
            *at = entry->next;
            table->count--;
            return;
        }
    }
}

void id_table_free(struct id_table *table)
{
    free(table->buckets);
    *table = (struct id_table){0};
}
