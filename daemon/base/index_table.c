#include "daemon/base/index_table.h"

#include <stdlib.h>

#define SLOTS_MIN 16u
#define SLOTS_MAX (1u << 30)

/* The slot that holds the index, or the empty one where it would go. */
static uint32_t slot_of(const struct index_table *table, uint64_t hash, uint32_t index)
{
    uint32_t mask = table->slot_count - 1;
    uint32_t at = (uint32_t)hash & mask;
    while (table->slots[at] != 0 && table->slots[at] != index + 1) {
        at = (at + 1) & mask;
    }
    return at;
}

bool index_table_reserve(struct index_table *table, const struct index_table_entries *entries)
{
    if (4 * (uint64_t)(table->count + 1) <= 3 * (uint64_t)table->slot_count) {
        return true;
    }
    uint32_t slot_count = table->slot_count == 0 ? SLOTS_MIN : 2 * table->slot_count;
    uint32_t *slots = slot_count <= SLOTS_MAX ? calloc(slot_count, sizeof *slots) : NULL;
    if (slots == NULL) {
        return false;
    }
    struct index_table larger = {.slots = slots, .slot_count = slot_count, .count = 0};
    for (uint32_t i = 0; i < table->slot_count; i++) {
        if (table->slots[i] != 0) {
            index_table_add(&larger, entries, table->slots[i] - 1);
        }
    }
    free(table->slots);
    *table = larger;
    return true;
}

void index_table_add(struct index_table *table, const struct index_table_entries *entries, uint32_t index)
{
    table->slots[slot_of(table, entries->hash(entries->context, index), index)] = index + 1;
    table->count++;
}

uint32_t index_table_find(const struct index_table *table, const struct index_table_entries *entries,
                          uint64_t hash, const void *key)
{
    uint32_t mask = table->slot_count - 1; /* of no slots: not used */
    for (uint32_t at = (uint32_t)hash & mask; table->slot_count > 0 && table->slots[at] != 0;
         at = (at + 1) & mask) {
        if (entries->has_key(entries->context, table->slots[at] - 1, key)) {
            return table->slots[at] - 1;
        }
    }
    return INDEX_TABLE_NONE;
}

void index_table_remove(struct index_table *table, const struct index_table_entries *entries, uint32_t index)
{
    if (table->slot_count == 0) {
        return;
    }
    uint32_t mask = table->slot_count - 1;
    uint32_t at = slot_of(table, entries->hash(entries->context, index), index);
    if (table->slots[at] == 0) {
        return;
    }
    table->count--;
    /* Closes the gap: moves back each later entry of the run that may stand there. */
    for (uint32_t next = (at + 1) & mask; table->slots[next] != 0; next = (next + 1) & mask) {
        uint32_t home = (uint32_t)entries->hash(entries->context, table->slots[next] - 1) & mask;
        if (((next - home) & mask) >= ((next - at) & mask)) {
            table->slots[at] = table->slots[next];
            at = next;
        }
    }
    table->slots[at] = 0;
}

void index_table_free(struct index_table *table)
{
    free(table->slots);
    *table = (struct index_table){0};
}
