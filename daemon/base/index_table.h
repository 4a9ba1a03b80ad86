#ifndef DAEMON_BASE_INDEX_TABLE_H
#define DAEMON_BASE_INDEX_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Finds entries of an array by a key that they hold. The table keeps only their indices, by open addressing
 * with linear probing: 5 to 11 bytes for each entry. uthash (table.h) takes 56, which counts where there is
 * one entry for each node of a large cluster.
 *
 * All zero is an empty table. It does not resist an attacker who chooses keys. One thread at a time.
 */
#define INDEX_TABLE_NONE UINT32_MAX

struct index_table {
    uint32_t *slots; /* index + 1; 0: empty */
    uint32_t slot_count;
    uint32_t count;
};

/* What the table asks about the entries. */
struct index_table_entries {
    /* The hash of the entry's key. It never changes while the entry is in the table. */
    uint64_t (*hash)(const void *context, uint32_t index);
    /* Whether the entry has that key. */
    bool (*has_key)(const void *context, uint32_t index, const void *key);
    const void *context;
};

/* Makes room for one more entry. Returns false when out of memory. */
bool index_table_reserve(struct index_table *table, const struct index_table_entries *entries)
    __attribute__((warn_unused_result));
/* Adds an entry, for which there is room. No entry of the table has its key. */
void index_table_add(struct index_table *table, const struct index_table_entries *entries, uint32_t index);
/* The entry with that key, whose hash the caller gives; or INDEX_TABLE_NONE. */
uint32_t index_table_find(const struct index_table *table, const struct index_table_entries *entries,
                          uint64_t hash, const void *key);
/* Takes an entry out. Does nothing if it is not in the table. */
void index_table_remove(struct index_table *table, const struct index_table_entries *entries, uint32_t index);
/* Frees the table's own memory. The table is empty afterwards. */
void index_table_free(struct index_table *table);

#endif
