#include "daemon/mesh/members_internal.h"

#include <assert.h>

/*
 * Who our neighbours are, and our votes about them.
 *
 * The fixed neighbours are those before and after us on each ring. If one of them is gone, the next node on
 * that ring that is not gone is a neighbour in its place, so that the overlay stays connected, and every node
 * has observers, when many nodes are gone at once.
 */

struct neighbour_list {
    uint32_t count;
    uint32_t indices[MEMBERS_NEIGHBOURS_MAX];
    uint8_t slots[MEMBERS_NEIGHBOURS_MAX]; /* ours, among the node's observers */
};

uint32_t members_link_of(const struct members *members, uint32_t index)
{
    if ((members->records[index].flags & MEMBER_WANTED) == 0) {
        return MEMBERS_NO_LINK;
    }
    for (uint32_t i = 0; i < MEMBERS_NEIGHBOURS_MAX; i++) {
        if (members->links[i].index == index) {
            return i;
        }
    }
    assert(false);
    return MEMBERS_NO_LINK;
}

/* --- Who they are --- */

/* The first slot of a node counts. */
static void list_add(struct neighbour_list *list, uint32_t index, uint32_t slot)
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->indices[i] == index) {
            return;
        }
    }
    assert(list->count < MEMBERS_NEIGHBOURS_MAX);
    list->indices[list->count] = index;
    list->slots[list->count] = (uint8_t)slot;
    list->count++;
}

/* Everybody. Our slot at each is our place among the others, in the order of the first ring. */
static void list_everybody(const struct members *members, struct neighbour_list *list)
{
    uint32_t count = member_rings_count(members->rings);
    uint32_t own = member_rings_place(members->rings, 0, members->self);
    for (uint32_t place = 0; place < count; place++) {
        if (place != own) {
            list_add(list, member_rings_at(members->rings, 0, place), own - (own > place));
        }
    }
}

/* Whether a node does not count as a neighbour on a ring, so that another one takes its place. */
static bool is_gone(const struct members *members, uint32_t index, uint64_t now_ns)
{
    if ((members->records[index].flags & MEMBER_ANSWERED) != 0) {
        return false;
    }
    switch (member_record_state(&members->records[index])) {
    case MEMBER_UP:
        return false;
    case MEMBER_DOWN:
        return true;
    case MEMBER_UNKNOWN:
        return now_ns - members->start_ns >= MEMBERS_GIVE_UP_PATIENCES * members->options.patience_ns;
    }
    return false;
}

/* The neighbour in the place of `fixed`: the next one that is not gone, or one to try. Returns
 * MEMBER_RINGS_NONE if there is none. */
static uint32_t find_stand_in(struct members *members, uint32_t ring, uint32_t own, uint32_t step,
                              uint64_t now_ns)
{
    uint32_t count = member_rings_count(members->rings);
    uint32_t tried = members_explore_tried(members);
    for (uint32_t i = 1; i < count; i++) {
        uint32_t index = member_rings_at(members->rings, ring, (own + i * step) % count);
        if (!is_gone(members, index, now_ns) || (i > 1 && i - 1 == tried)) {
            return index;
        }
    }
    return MEMBER_RINGS_NONE;
}

static void list_rings(struct members *members, struct neighbour_list *list, uint64_t now_ns)
{
    uint32_t count = member_rings_count(members->rings);
    uint32_t own[MEMBER_RINGS_COUNT];
    for (uint32_t side = 0; side < 2 * MEMBER_RINGS_COUNT; side++) {
        uint32_t ring = side / 2;
        own[ring] = member_rings_place(members->rings, ring, members->self);
        /* We are in slot 2 × ring of the node after us, and in the next slot of the node before us. */
        uint32_t place = (own[ring] + (side % 2 == 0 ? 1 : count - 1)) % count;
        list_add(list, member_rings_at(members->rings, ring, place), side);
    }
    for (uint32_t side = 0; side < 2 * MEMBER_RINGS_COUNT; side++) {
        uint32_t step = side % 2 == 0 ? 1 : count - 1;
        uint32_t index = find_stand_in(members, side / 2, own[side / 2], step, now_ns);
        if (index != MEMBER_RINGS_NONE) {
            list_add(list, index, side);
        }
    }
}

/* Sets when we vote against a neighbour, and keeps the earliest of these times. */
static void set_vote_ns(struct members *members, struct member_link *link, uint64_t vote_ns)
{
    bool was_first = link->vote_ns == members->vote_ns;
    link->vote_ns = vote_ns;
    if (vote_ns <= members->vote_ns) {
        members->vote_ns = vote_ns;
    } else if (was_first) {
        members->vote_ns = TIME_NEVER;
        for (uint32_t i = 0; i < MEMBERS_NEIGHBOURS_MAX; i++) {
            members->vote_ns = time_min(members->vote_ns, members->links[i].vote_ns);
        }
    }
}

void members_link_forget(struct members *members, uint32_t link)
{
    struct member_link *gone = &members->links[link];
    set_vote_ns(members, gone, TIME_NEVER);
    members_unqueue(members, member_link_bit(link));
    members->records[gone->index].flags &= (uint8_t)~MEMBER_WANTED;
    members->up_mask &= (uint16_t)~member_link_bit(link);
    *gone = (struct member_link){.index = MEMBER_RINGS_NONE, .vote_ns = TIME_NEVER};
}

static void members_tell_neighbour(struct members *members, uint32_t index, bool is_neighbour,
                                   uint64_t now_ns)
{
    const struct members_handler *handler = &members->options.handler;
    if (handler->neighbour != NULL) {
        handler->neighbour(handler->context, members_node(members, index), is_neighbour, now_ns);
    }
}

/* The link is up: the neighbour hears of us, of what is said of it, and in which buckets we differ. */
static void link_begin(struct members *members, uint32_t link, uint64_t now_ns)
{
    uint16_t bit = member_link_bit(link);
    const struct member_record *record = &members->records[members->links[link].index];
    members->links[link].up = true;
    members->links[link].up_ns = now_ns;
    set_vote_ns(members, &members->links[link], TIME_NEVER);
    members->links[link].digest_ns = 0;
    members->up_mask |= bit;
    members_queue(members, members->self, bit, now_ns);
    if (record->votes != 0 || (record->flags & MEMBER_LEFT) != 0 ||
        record->incarnation > members->links[link].incarnation) {
        members_queue(members, members->links[link].index, bit, now_ns);
    }
    members_digest_due(members, link, true, now_ns); /* the other side may not have seen a loss */
}

static uint64_t first_vote_ns(const struct members *members, uint64_t now_ns)
{
    return time_after(now_ns, MEMBERS_FIRST_PATIENCES * members->options.patience_ns);
}

static void link_new(struct members *members, uint32_t index, uint8_t slot, uint64_t now_ns)
{
    struct member_record *record = &members->records[index];
    uint32_t link = 0;
    while (members->links[link].index != MEMBER_RINGS_NONE) {
        link++;
        assert(link < MEMBERS_NEIGHBOURS_MAX);
    }
    members->links[link] = (struct member_link){
        .index = index, .slot = slot, .vote_ns = TIME_NEVER, .incarnation = record->incarnation};
    record->flags |= MEMBER_WANTED;
    if ((record->flags & MEMBER_LINKED) != 0) {
        link_begin(members, link, now_ns);
    } else if (record->incarnation != 0) {
        set_vote_ns(members, &members->links[link], first_vote_ns(members, now_ns));
    }
    members_tell_neighbour(members, index, true, now_ns);
}

void members_find_neighbours(struct members *members, uint64_t now_ns)
{
    struct neighbour_list list = {0};
    members->rewire = false;
    if (member_rings_count(members->rings) <= MEMBER_RINGS_SMALL) {
        list_everybody(members, &list);
    } else {
        list_rings(members, &list, now_ns);
    }
    for (uint32_t i = 0; i < MEMBERS_NEIGHBOURS_MAX; i++) {
        uint32_t index = members->links[i].index;
        uint32_t at = 0;
        while (at < list.count && list.indices[at] != index) {
            at++;
        }
        if (index == MEMBER_RINGS_NONE) {
            continue;
        }
        if (at < list.count) {
            members->links[i].slot = list.slots[at];
        } else {
            members_link_forget(members, i);
            members_tell_neighbour(members, index, false, now_ns);
        }
    }
    for (uint32_t i = 0; i < list.count; i++) {
        if ((members->records[list.indices[i]].flags & MEMBER_WANTED) == 0) {
            link_new(members, list.indices[i], list.slots[i], now_ns);
        }
    }
}

bool members_is_neighbour(struct members *members, uint32_t node)
{
    uint32_t index = node + members->offset;
    if (members->rewire) {
        members_find_neighbours(members, members->now_ns);
    }
    return node < MEMBERS_NODES_MAX && member_rings_id(members->rings, index) != 0 &&
           (members->records[index].flags & MEMBER_WANTED) != 0;
}

/* --- What we see of them --- */

static void cast_vote(struct members *members, struct member_link *link, uint64_t now_ns)
{
    const struct member_record *record = &members->records[link->index];
    set_vote_ns(members, link, TIME_NEVER);
    if (record->incarnation == 0 || (record->flags & (MEMBER_LEFT | MEMBER_LOST)) != 0) {
        return;
    }
    struct member_record_wire vote = {
        .incarnation = record->incarnation, .epoch = record->epoch, .votes = (uint8_t)(1u << link->slot)};
    members->statistics.votes_cast++;
    members_apply(members, link->index, &vote, MEMBERS_NO_LINK, now_ns);
}

void members_vote_tick(struct members *members, uint64_t now_ns)
{
    for (uint32_t i = 0; members->vote_ns <= now_ns && i < MEMBERS_NEIGHBOURS_MAX; i++) {
        if (members->links[i].vote_ns <= now_ns) {
            cast_vote(members, &members->links[i], now_ns);
        }
    }
}

void members_postpone_votes(struct members *members, uint64_t now_ns)
{
    uint64_t earliest_ns = time_after(now_ns, members->options.patience_ns);
    for (uint32_t i = 0; i < MEMBERS_NEIGHBOURS_MAX; i++) {
        if (members->links[i].vote_ns < earliest_ns) {
            set_vote_ns(members, &members->links[i], earliest_ns);
        }
    }
}

static uint64_t refuted_wait_ns(const struct members *members, const struct member_link *link)
{
    return members->options.patience_ns << link->refuted;
}

void members_neighbour_news(struct members *members, uint32_t at, bool other_life, bool had_vote,
                            uint64_t now_ns)
{
    struct member_link *link = &members->links[at];
    if (had_vote && link->refuted < MEMBERS_REFUTED_MAX) {
        link->refuted++;
    }
    if (link->up) {
        return;
    }
    if (other_life) {
        link->refuted = 0;
        set_vote_ns(members, link, first_vote_ns(members, now_ns));
    } else if (had_vote || link->vote_ns == TIME_NEVER) {
        set_vote_ns(members, link, time_after(now_ns, refuted_wait_ns(members, link)));
    }
}

void members_linked(struct members *members, uint32_t node, uint64_t incarnation, uint64_t now_ns)
{
    uint32_t index = node + members->offset;
    members_begin(members, now_ns);
    assert(index != members->self && member_rings_id(members->rings, index) != 0);
    uint32_t link = members_link_of(members, index);
    members_set_linked(members, index, true, now_ns);
    if (incarnation > 0 && incarnation <= MEMBER_INCARNATION_MAX) {
        struct member_record_wire hello = {.incarnation = incarnation};
        members_apply(members, index, &hello, MEMBERS_NO_LINK, now_ns);
    }
    if (link != MEMBERS_NO_LINK) {
        members->links[link].incarnation = incarnation;
        link_begin(members, link, now_ns);
    }
    if (members->rewire) {
        members_find_neighbours(members, now_ns);
    }
}

/* When we vote against a neighbour whose link was just lost. */
static uint64_t lost_vote_ns(const struct members *members, const struct member_link *link, uint64_t now_ns)
{
    const struct member_record *record = &members->records[link->index];
    bool stalled = members->stalled_ns != 0 && now_ns - members->stalled_ns <= MEMBERS_STALL_GRACE_NS;
    bool other_life = record->incarnation > link->incarnation;
    if (link->refuted > 0) {
        return time_after(now_ns, refuted_wait_ns(members, link));
    }
    return stalled || other_life ? time_after(now_ns, members->options.patience_ns) : now_ns;
}

void members_unlinked(struct members *members, uint32_t node, uint64_t now_ns)
{
    uint32_t index = node + members->offset;
    members_begin(members, now_ns);
    assert(index != members->self && member_rings_id(members->rings, index) != 0);
    uint32_t at = members_link_of(members, index);
    if (at != MEMBERS_NO_LINK && members->links[at].up) {
        struct member_link *link = &members->links[at];
        link->up = false;
        link->digest_due = false;
        members->up_mask &= (uint16_t)~member_link_bit(at);
        members_unqueue(members, member_link_bit(at));
        if (now_ns - link->up_ns >= members->options.patience_ns << MEMBERS_REFUTED_MAX) {
            link->refuted = 0;
        }
        set_vote_ns(members, link, lost_vote_ns(members, link, now_ns));
        if (link->vote_ns <= now_ns) {
            cast_vote(members, link, now_ns);
        }
    }
    members_set_linked(members, index, false, now_ns);
    if (members->rewire) {
        members_find_neighbours(members, now_ns);
    }
}
