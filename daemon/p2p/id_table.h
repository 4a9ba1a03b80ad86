#ifndef DAEMON_P2P_ID_TABLE_H
#define DAEMON_P2P_ID_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/p2p/p2p.h"

/* Entries by number, in constant time, 8 bytes each beside their own struct p2p_id. All zero is empty. */
struct id_table {
    struct p2p_id **buckets;
    uint32_t capacity; /* a power of two */
    uint32_t count;
};

/* False: there is no memory. The number is not in it yet. */
bool id_table_add(struct id_table *table, struct p2p_id *entry) COMM_MUST_USE;
/* Null: not in it. */
struct p2p_id *id_table_find(const struct id_table *table, uint64_t id);
/* Does nothing when it is not in it. */
void id_table_remove(struct id_table *table, const struct p2p_id *entry);
void id_table_free(struct id_table *table);

#endif
