#include "daemon/mesh/members_internal.h"

#include <assert.h>

#include "daemon/base/hash.h"
#include "proto/little_endian.h"

/* What we know of each node, and what follows from it: suspicion, loss, refutation. */

/* --- The digest: which nodes are known in the same way by two neighbours --- */

/* What a record adds to its bucket; 0 if nothing was heard of the node. Whether it has votes counts, not
 * which: some nodes stop counting votes earlier than others. */
static uint32_t record_digest(uint64_t id, const struct member_record *record)
{
    if (record->incarnation == 0) {
        return 0;
    }
    uint8_t bytes[16];
    put_u64_le(bytes, record->incarnation);
    put_u32_le(bytes + 8, record->epoch);
    put_u32_le(bytes + 12, (record->votes != 0 ? 1u : 0) | (record->flags & MEMBER_LEFT));
    return (uint32_t)(hash_bytes(id, bytes, sizeof bytes) >> 32);
}

static void digest_add(struct members *members, uint32_t index, bool add)
{
    uint64_t id = member_rings_id(members->rings, index);
    uint32_t *bucket = &members->buckets[id % MEMBER_DIGEST_BUCKETS];
    uint32_t digest = record_digest(id, &members->records[index]);
    *bucket += add ? digest : 0 - digest;
}

/* --- States --- */

/* Tells the owner if the state is another one. */
static void table_note_state(struct members *members, uint32_t index, enum member_state before,
                             uint64_t now_ns)
{
    enum member_state state = member_record_state(&members->records[index]);
    if (state == before || index == members->self) {
        return;
    }
    members->statistics.states[before]--;
    members->statistics.states[state]++;
    members->rewire = true;
    members->options.handler.changed(members->options.handler.context, members_node(members, index), state,
                                     now_ns);
}

void members_set_linked(struct members *members, uint32_t index, bool linked, uint64_t now_ns)
{
    struct member_record *record = &members->records[index];
    enum member_state before = member_record_state(record);
    record->flags =
        (uint8_t)((record->flags & ~(MEMBER_LINKED | MEMBER_ANSWERED)) | (linked ? MEMBER_LINKED : 0));
    table_note_state(members, index, before, now_ns);
}

static uint32_t votes_enough(const struct members *members)
{
    uint32_t observers = member_rings_count(members->rings) - 1;
    uint32_t majority = observers / 2 + 1;
    return observers >= MEMBER_RINGS_SMALL || majority > MEMBERS_VOTES_ENOUGH ? MEMBERS_VOTES_ENOUGH
                                                                              : majority;
}

static void table_end_suspicion(struct members *members, struct member_record *record)
{
    if ((record->flags & MEMBER_SUSPECT) != 0) {
        record->flags &= (uint8_t)~MEMBER_SUSPECT;
        members->suspects--;
    }
}

static uint32_t since_start_ms(const struct members *members, uint64_t now_ns)
{
    return (uint32_t)((now_ns - members->start_ns) / TIME_MS);
}

/* What the votes mean now. */
static void table_judge(struct members *members, struct member_record *record, uint64_t now_ns)
{
    if (record->votes == 0 || (record->flags & MEMBER_LOST) != 0) {
        return;
    }
    if ((uint32_t)__builtin_popcount(record->votes) >= votes_enough(members)) {
        table_end_suspicion(members, record);
        record->flags |= MEMBER_LOST;
    } else if ((record->flags & MEMBER_SUSPECT) == 0) {
        record->flags |= MEMBER_SUSPECT;
        record->suspected_ms = since_start_ms(members, now_ns);
        members->suspects++;
        members->suspect_ns =
            time_min(members->suspect_ns, time_after(now_ns, members->options.suspicion_ns));
    }
}

/* Replaces what the record says. */
static void table_set(struct members *members, uint32_t index, const struct member_record_wire *news,
                      uint64_t now_ns)
{
    struct member_record *record = &members->records[index];
    enum member_state before = member_record_state(record);
    digest_add(members, index, false);
    if (news->incarnation != record->incarnation || news->epoch != record->epoch) {
        table_end_suspicion(members, record);
        record->flags &= (uint8_t) ~(MEMBER_LOST | MEMBER_LEFT);
    }
    record->incarnation = news->incarnation;
    record->epoch = news->epoch;
    record->votes = news->votes;
    record->flags |= news->left ? MEMBER_LEFT : 0;
    if (index != members->self) {
        table_judge(members, record, now_ns);
    }
    digest_add(members, index, true);
    table_note_state(members, index, before, now_ns);
}

void members_forget(struct members *members, uint32_t index)
{
    struct member_record *record = &members->records[index];
    uint32_t link = members_link_of(members, index);
    if (link != MEMBERS_NO_LINK) {
        members_link_forget(members, link);
    }
    table_end_suspicion(members, record);
    digest_add(members, index, false);
    members->statistics.states[member_record_state(record)]--;
    members->statistics.states[MEMBER_UNKNOWN]++;
    *record = (struct member_record){.flags = record->flags & (MEMBER_URGENT | MEMBER_BULK)};
}

/*
 * Ends suspicions that stood long enough. After a stall of ours they stand for that time again, as a
 * refutation may wait to be read.
 */
void members_suspect_tick(struct members *members, uint64_t now_ns)
{
    if (members->suspect_ns > now_ns) {
        return;
    }
    members->suspect_ns = TIME_NEVER;
    uint32_t end = member_rings_end(members->rings);
    for (uint32_t i = 0; i < end && members->suspects > 0; i++) {
        struct member_record *record = &members->records[i];
        if ((record->flags & MEMBER_SUSPECT) == 0) {
            continue;
        }
        uint32_t age_ms = since_start_ms(members, now_ns) - record->suspected_ms;
        uint64_t since_ns = now_ns - (uint64_t)age_ms * TIME_MS;
        since_ns = since_ns > members->stalled_ns ? since_ns : members->stalled_ns;
        uint64_t ends_ns = time_after(since_ns, members->options.suspicion_ns);
        if (ends_ns > now_ns) {
            members->suspect_ns = time_min(members->suspect_ns, ends_ns);
            continue;
        }
        enum member_state before = member_record_state(record);
        table_end_suspicion(members, record);
        record->flags |= MEMBER_LOST;
        table_note_state(members, i, before, now_ns);
    }
}

/* --- Ourselves --- */

void members_say_own(struct members *members, uint64_t incarnation, uint32_t epoch, bool left,
                     uint64_t now_ns)
{
    struct member_record_wire own = {.incarnation = incarnation, .epoch = epoch, .left = left};
    table_set(members, members->self, &own, now_ns);
    members_queue(members, members->self, members->up_mask, now_ns);
}

static bool is_later(uint64_t incarnation, uint32_t epoch, uint64_t than_incarnation, uint32_t than_epoch)
{
    return incarnation != than_incarnation ? incarnation > than_incarnation : epoch > than_epoch;
}

void members_refute(struct members *members, uint64_t now_ns)
{
    const struct member_record *own = &members->records[members->self];
    uint64_t incarnation = own->incarnation;
    uint32_t epoch = own->epoch;
    members->refute_ns = TIME_NEVER;
    if (is_later(members->heard_incarnation, members->heard_epoch, incarnation, epoch)) {
        incarnation = members->heard_incarnation;
        epoch = members->heard_epoch;
    }
    /* Another life's epochs are not ours to go on with. */
    if (incarnation != own->incarnation || epoch == UINT32_MAX) {
        incarnation++;
        epoch = 0;
    } else {
        epoch++;
    }
    members->refuted_ns = now_ns;
    members->statistics.refutations++;
    members_say_own(members, incarnation, epoch, false, now_ns);
}

/* What others say of us is wrong if it has votes, a goodbye, or a later life than ours. */
static void table_hear_of_self(struct members *members, const struct member_record_wire *news,
                               uint64_t now_ns)
{
    const struct member_record *own = &members->records[members->self];
    bool later = is_later(news->incarnation, news->epoch, own->incarnation, own->epoch);
    bool same = news->incarnation == own->incarnation && news->epoch == own->epoch;
    if (members->left || !(later || (same && (news->votes != 0 || news->left))) ||
        members_is_ahead(members, news->incarnation, MEMBERS_OWN_AHEAD_US, now_ns)) {
        return;
    }
    if (is_later(news->incarnation, news->epoch, members->heard_incarnation, members->heard_epoch)) {
        members->heard_incarnation = news->incarnation;
        members->heard_epoch = news->epoch;
    }
    uint64_t earliest_ns =
        members->refuted_ns == 0 ? now_ns : time_after(members->refuted_ns, MEMBERS_REFUTE_NS);
    if (earliest_ns <= now_ns) {
        members_refute(members, now_ns);
    } else {
        members->refute_ns = time_min(members->refute_ns, earliest_ns);
    }
}

/* --- Others --- */

bool members_is_ahead(const struct members *members, uint64_t incarnation, uint64_t slack_us, uint64_t now_ns)
{
    uint64_t clock_us = members->options.own_incarnation + (now_ns - members->start_ns) / TIME_US;
    return incarnation > clock_us && incarnation - clock_us > MEMBERS_AHEAD_US + slack_us;
}

/* What the neighbour says is part of what we know. */
static void table_known(struct members *members, uint32_t index, const struct member_record_wire *news,
                        uint32_t link)
{
    struct member_record *record = &members->records[index];
    if (news->incarnation == record->incarnation && news->epoch == record->epoch &&
        news->votes == record->votes && news->left == ((record->flags & MEMBER_LEFT) != 0)) {
        record->pending &= (uint16_t)~member_link_bit(link); /* it need not hear it from us */
    }
}

/* Unites what is said with what we know, at the same incarnation and epoch. Returns whether that is new. */
static bool table_unite(const struct members *members, const struct member_record *record,
                        struct member_record_wire *news)
{
    bool left = (record->flags & MEMBER_LEFT) != 0;
    bool enough = (uint32_t)__builtin_popcount(record->votes) >= votes_enough(members);
    news->votes |= record->votes;
    news->left |= left;
    return news->left != left || (news->votes != record->votes && !enough);
}

void members_apply(struct members *members, uint32_t index, const struct member_record_wire *news,
                   uint32_t link, uint64_t now_ns)
{
    if (index == members->self) {
        table_hear_of_self(members, news, now_ns);
        return;
    }
    struct member_record *record = &members->records[index];
    bool later = is_later(news->incarnation, news->epoch, record->incarnation, record->epoch);
    if (later && members_is_ahead(members, news->incarnation, 0, now_ns)) {
        members->statistics.records_ahead++;
        return;
    }
    if (link != MEMBERS_NO_LINK && members->links[link].index == index) {
        members->links[link].incarnation = news->incarnation; /* the node itself says so */
    }
    struct member_record_wire all = *news;
    bool same = news->incarnation == record->incarnation && news->epoch == record->epoch;
    if (!later && !(same && table_unite(members, record, &all))) {
        table_known(members, index, news, link);
        return;
    }
    bool other_life = news->incarnation != record->incarnation;
    uint32_t neighbour = members_link_of(members, index);
    bool had_vote = neighbour != MEMBERS_NO_LINK && !other_life &&
                    (record->votes >> members->links[neighbour].slot & 1) != 0;
    table_set(members, index, &all, now_ns);
    bool sender_has_all = all.votes == news->votes && all.left == news->left;
    uint16_t sender = sender_has_all ? member_link_bit(link) : 0;
    record->pending &= (uint16_t)~sender;
    members_queue(members, index, members->up_mask & (uint16_t)~sender, now_ns);
    if (neighbour != MEMBERS_NO_LINK && later) {
        members_neighbour_news(members, neighbour, other_life, had_vote, now_ns);
    }
}
