#ifndef DAEMON_P2P_ID_TABLE_H
#define DAEMON_P2P_ID_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/p2p/p2p.h"

/* Finds entries by number in constant time. Each costs 8 bytes beside its struct p2p_id. All zero: empty. */
struct id_table {
    struct p2p_id **buckets;
    uint32_t capacity; /* a power of two */
    uint32_t count;
};

/* False without memory. The number must not be in it yet. */
bool id_table_add(struct id_table *table, struct p2p_id *entry) COMM_MUST_USE;
/* Null if not in it. */
struct p2p_id *id_table_find(const struct id_table *table, uint64_t id);
/* Does nothing if not in it. */
void id_table_remove(struct id_table *table, const struct p2p_id *entry);
void id_table_free(struct id_table *table);

#endif
