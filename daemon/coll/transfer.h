#ifndef DAEMON_COLL_TRANSFER_H
#define DAEMON_COLL_TRANSFER_H

#include "daemon/coll/schedule.h"
#include "daemon/coll/slice.h"

/* What the families share. Private to daemon/coll. */

/* ceil(log2 node_count): rounds in which each node that has something tells one more. */
static inline uint32_t coll_doubling_rounds(uint32_t node_count)
{
    uint32_t rounds = 0;
    while ((UINT32_C(1) << rounds) < node_count) {
        rounds++;
    }
    return rounds;
}

/* Appends the transfer of part `part` of node_count parts of the slice, unless that part is empty. */
static inline void coll_add_part(const struct coll_call *call, uint32_t node, uint32_t part,
                                 enum coll_action action, struct coll_transfer *transfers, uint32_t *count)
{
    struct coll_transfer transfer = {.node = node, .action = action};
    coll_part_range(call->count_elements, call->node_count, part, &transfer.offset_elements,
                    &transfer.count_elements);
    if (transfer.count_elements > 0) {
        transfers[(*count)++] = transfer;
    }
}

#endif
