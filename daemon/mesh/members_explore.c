#include "daemon/mesh/members_internal.h"

/*
 * How nodes find each other when few of the configured ones are there, so that most neighbours are not. We
 * ask all nodes in turn, in the order of a ring from our own place on. Of two nodes that begin at the same
 * time, one asks the other before it has asked half of all. Who answers counts as there, and so may become a
 * neighbour. Once all were asked, we know all that are there, and the rings connect them.
 */

#define PROBES_AT_ONCE 16u              /* 64 probes a second, of 1,200 bytes */
#define PROBE_NS (250 * TIME_MS)        /* of the first round; then twice as long after each */
#define PROBE_SLOWER_MAX 6u             /* rounds that double it: to 1 probe a second */
#define PROBE_WAITS_NS MEMBERS_WATCH_NS /* before we look again whether to ask */

/* Not before the fixed neighbours have had their time: when all nodes start at once, they have enough to do.
 */
void members_explore_begin(struct members *members, uint64_t now_ns)
{
    members->explore_ns = time_after(now_ns, MEMBERS_GIVE_UP_PATIENCES * members->options.patience_ns);
    members->probe_ns = members->options.handler.probe != NULL ? members->explore_ns : TIME_NEVER;
}

static bool has_few_links(const struct members *members)
{
    return (uint32_t)__builtin_popcount(members->up_mask) < MEMBERS_LINKS_FEW;
}

/* Whether there may be nodes of which nothing will be heard. After a whole round, there are none, unless we
 * lost almost all links later. */
static bool has_to_ask(const struct members *members)
{
    uint32_t count = member_rings_count(members->rings);
    if (members->left || count <= MEMBER_RINGS_SMALL) {
        return false;
    }
    bool most_are_up = 2 * (members->statistics.states[MEMBER_UP] + 1) > count;
    return has_few_links(members) || (members->probe_rounds == 0 && !most_are_up);
}

/* Who answered in earlier rounds and has no link has to answer again. */
static void forget_answers(struct members *members)
{
    uint32_t end = member_rings_end(members->rings);
    for (uint32_t i = 0; i < end; i++) {
        members->records[i].flags &= (uint8_t)~MEMBER_ANSWERED;
    }
}

static void ask(struct members *members, uint32_t index, uint64_t now_ns)
{
    const struct members_handler *handler = &members->options.handler;
    if (index == members->self || member_record_state(&members->records[index]) == MEMBER_UP) {
        return;
    }
    if (handler->probe(handler->context, members_node(members, index), now_ns)) {
        members->statistics.probes++;
    } else {
        members->explore_dials = true;
    }
}

static void ask_some(struct members *members, uint64_t now_ns)
{
    uint32_t count = member_rings_count(members->rings);
    uint32_t ring = members->probe_rounds % MEMBER_RINGS_COUNT;
    uint32_t own = member_rings_place(members->rings, ring, members->self);
    if (members->probe_at == 0) {
        forget_answers(members);
        members->explore_dials = false;
    }
    for (uint32_t i = 0; i < PROBES_AT_ONCE && ++members->probe_at < count; i++) {
        ask(members, member_rings_at(members->rings, ring, (own + members->probe_at) % count), now_ns);
    }
    if (members->probe_at >= count) {
        members->probe_at = 0;
        members->probe_rounds++;
    }
}

static void members_probe_tick(struct members *members, uint64_t now_ns)
{
    if (members->probe_ns > now_ns) {
        return;
    }
    if (!has_to_ask(members)) {
        members->probe_ns = time_after(now_ns, PROBE_WAITS_NS);
        return;
    }
    ask_some(members, now_ns);
    uint32_t slower = members->probe_rounds < PROBE_SLOWER_MAX ? members->probe_rounds : PROBE_SLOWER_MAX;
    members->probe_ns = time_after(now_ns, PROBE_NS << slower);
}

/* If we have few links, we also dial nodes that cannot be asked, one after the other. */
void members_explore_tick(struct members *members, uint64_t now_ns)
{
    members_probe_tick(members, now_ns);
    if (members->explore_ns > now_ns) {
        return;
    }
    uint32_t patiences = 1 + members->explored / 8;
    patiences = patiences < MEMBERS_EXPLORE_MAX ? patiences : MEMBERS_EXPLORE_MAX;
    members->explore_ns = time_after(now_ns, patiences * members->options.patience_ns);
    if (has_few_links(members)) {
        members->explored++;
    } else {
        members->explored = 0;
    }
    members_find_neighbours(members, now_ns);
}

uint32_t members_explore_tried(const struct members *members)
{
    bool dials = members->options.handler.probe == NULL || members->explore_dials;
    uint32_t others = member_rings_count(members->rings) - 1;
    return dials && has_few_links(members) && members->explored > 0 ? 1 + (members->explored - 1) % others
                                                                    : 0;
}

void members_answered(struct members *members, uint32_t node, uint64_t now_ns)
{
    uint32_t index = node + members->offset;
    members_begin(members, now_ns);
    if (node >= MEMBERS_NODES_MAX || index == members->self || member_rings_id(members->rings, index) == 0) {
        return;
    }
    struct member_record *record = &members->records[index];
    if ((record->flags & (MEMBER_LINKED | MEMBER_ANSWERED)) == 0) {
        record->flags |= MEMBER_ANSWERED;
        members_find_neighbours(members, now_ns);
    }
}
