#ifndef DAEMON_MESH_MEMBER_RINGS_H
#define DAEMON_MESH_MEMBER_RINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"

/*
 * The order of the configured nodes on K rings. Each ring orders all nodes by a hash of their name and the
 * ring's number, so every node computes the same rings. The nodes before and after a node on each ring
 * observe it. Together the rings form an expander, which stays connected when many nodes are lost (Suresh et
 * al., "Stable and Consistent Membership at Scale with Rapid", ATC 2018, section 4.1).
 *
 * A node has an index, given by the caller, and an id: a 64-bit hash of its name, by which messages name it.
 * Adding and removing is O(1). The next question after that sorts the rings once, in O(n log n).
 *
 * Single-threaded. A simulation shares one object among all its nodes, as they have one configuration.
 */
#define MEMBER_RINGS_COUNT 4
#define MEMBER_RINGS_NODES_MAX 16385 /* the mesh's most nodes, and this one */
#define MEMBER_RINGS_NONE UINT32_MAX
/* At most this many nodes all observe each other: eight observers for each. */
#define MEMBER_RINGS_SMALL 9

struct member_rings;

/* Returns null when out of memory. */
struct member_rings *member_rings_new(void);
/* Null is accepted. */
void member_rings_free(struct member_rings *rings);

/*
 * Adds the node with this index, which must not be in use. The name has 1 to 63 bytes and is not kept. LIMIT
 * for an index of MEMBER_RINGS_NODES_MAX or more, ALREADY_EXISTS for a name that is there, or whose hash is
 * that of another name. NO_MEMORY.
 */
enum status member_rings_add(struct member_rings *rings, uint32_t index, const char *name,
                             struct error *error) COMM_MUST_USE;
/* Does nothing if no node has the index. */
void member_rings_remove(struct member_rings *rings, uint32_t index);

/* Nodes in all. */
uint32_t member_rings_count(const struct member_rings *rings);
/* All indices are below this number. */
uint32_t member_rings_end(const struct member_rings *rings);
/* The node's id; 0 if no node has the index. An id is never 0. */
uint64_t member_rings_id(const struct member_rings *rings, uint32_t index);
/* The index of the node with this id, or MEMBER_RINGS_NONE. */
uint32_t member_rings_find(const struct member_rings *rings, uint64_t id);

/* The place of a node that is there on a ring: from 0 to member_rings_count() - 1. O(log n). */
uint32_t member_rings_place(struct member_rings *rings, uint32_t ring, uint32_t index);
/* The index of the node at a place. */
uint32_t member_rings_at(struct member_rings *rings, uint32_t ring, uint32_t place);

/* Bytes that each index costs here: the id, the places, and the look-up by id. */
#define MEMBER_RINGS_BYTES_PER_NODE (8 + 2 * MEMBER_RINGS_COUNT + 2 * 4)

#endif
