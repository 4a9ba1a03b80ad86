#ifndef TESTS_LIB_MEMBERS_LOOK_H
#define TESTS_LIB_MEMBERS_LOOK_H

#include "daemon/mesh/members_internal.h"

/* What tests read of the members of a cluster, as one node knows them. */

static inline const char *member_state_text(enum member_state state)
{
    switch (state) {
    case MEMBER_UNKNOWN:
        return "unknown";
    case MEMBER_UP:
        return "up";
    case MEMBER_DOWN:
        return "down";
    }
    return "?";
}

/* The highest incarnation that was heard of the node; 0 if none was. */
static inline uint64_t members_incarnation(const struct members *members, uint32_t node)
{
    uint32_t index = node + members->offset;
    bool is_there = index != members->self && member_rings_id(members->rings, index) != 0;
    return is_there ? members->records[index].incarnation : 0;
}

/* Whether the node is DOWN because it said goodbye. */
static inline bool members_has_left(const struct members *members, uint32_t node)
{
    const struct member_record *record = &members->records[node + members->offset];
    return (record->flags & MEMBER_LEFT) != 0 && member_record_state(record) == MEMBER_DOWN;
}

/* How often we refuted what was said of this incarnation. */
static inline uint32_t members_own_epoch(const struct members *members)
{
    return members->records[members->self].epoch;
}

/* How many neighbours the node wants. */
static inline uint32_t members_neighbour_count(const struct members *members)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < MEMBERS_NEIGHBOURS_MAX; i++) {
        count += members->links[i].index != MEMBER_RINGS_NONE;
    }
    return count;
}

#endif
