#ifndef DAEMON_COLL_REGISTRY_H
#define DAEMON_COLL_REGISTRY_H

#include "daemon/coll/schedule.h"

/* All algorithms, in a fixed order; *count gets how many. Static storage. Thread-safe. */
const struct coll_algorithm *const *coll_registry(uint32_t *count);

/* By wire id, or by name and kind; null when there is none. */
const struct coll_algorithm *coll_registry_by_id(uint32_t id);
const struct coll_algorithm *coll_registry_by_name(enum op_kind kind, const char *name);

/*
 * The algorithm for an operation of `size_bytes` (the whole operation, not a slice) among node_count nodes:
 * a pure function of agreed values, so that every node picks the same. Small all-reduces go direct, larger
 * ones around the ring; a larger operation, or one among more nodes, never goes back to direct. Null for a
 * kind that is not in the list.
 */
const struct coll_algorithm *coll_select(enum op_kind kind, uint32_t node_count, uint64_t size_bytes);

#endif
