#include "daemon/mesh/members_internal.h"

#include <assert.h>

/*
 * How records travel. A record that told us something goes once to each neighbour but the one that sent it.
 * Each neighbour gets at most one message in a batch, and what does not fit waits for the next batch. A
 * record that changes while it waits is sent once, as it is then. So the traffic of a link is bounded by
 * MEMBER_MESSAGE_MAX_BYTES in half the time of a batch, whatever happens.
 *
 * A new link begins with a digest from each side. The other side answers with its records in the buckets that
 * differ. The same is done from time to time with a random neighbour.
 */

static uint64_t next_batch_ns(struct members *members, uint64_t now_ns)
{
    uint64_t batch_ns = members->options.batch_ns;
    return time_after(now_ns, batch_ns / 2 + random_below(&members->random, batch_ns + 1));
}

static void spread_soon(struct members *members, uint64_t now_ns)
{
    if (members->flush_ns == TIME_NEVER) {
        members->flush_ns = next_batch_ns(members, now_ns);
    }
}

/* --- What is to be sent --- */

static void queue_push(struct members *members, struct member_queue *queue, uint32_t index, uint8_t flag)
{
    struct member_record *record = &members->records[index];
    if ((record->flags & flag) == 0) {
        assert(queue->count < members->capacity);
        record->flags |= flag;
        queue->indices[queue->count++] = (uint16_t)index;
    }
}

/* What others wait for goes before what is merely new to them. */
static bool is_urgent(const struct members *members, uint32_t index)
{
    const struct member_record *record = &members->records[index];
    return record->votes != 0 || record->epoch != 0 || (record->flags & MEMBER_LEFT) != 0 ||
           index == members->self;
}

void members_queue(struct members *members, uint32_t index, uint16_t links, uint64_t now_ns)
{
    struct member_record *record = &members->records[index];
    if (links == 0) {
        return;
    }
    record->pending |= links;
    if (is_urgent(members, index)) {
        queue_push(members, &members->urgent, index, MEMBER_URGENT);
    } else {
        queue_push(members, &members->bulk, index, MEMBER_BULK);
    }
    spread_soon(members, now_ns);
}

static void queue_clear_links(struct members *members, const struct member_queue *queue, uint16_t links)
{
    for (uint32_t i = 0; i < queue->count; i++) {
        members->records[queue->indices[i]].pending &= (uint16_t)~links;
    }
}

void members_unqueue(struct members *members, uint16_t links)
{
    queue_clear_links(members, &members->urgent, links);
    queue_clear_links(members, &members->bulk, links);
}

/* Drops what was sent to all. */
static void queue_compact(struct members *members, struct member_queue *queue, uint8_t flag)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < queue->count; i++) {
        struct member_record *record = &members->records[queue->indices[i]];
        if (record->pending != 0) {
            queue->indices[kept++] = queue->indices[i];
        } else {
            record->flags &= (uint8_t)~flag;
        }
    }
    queue->count = kept;
}

void members_digest_due(struct members *members, uint32_t link, bool wants_answer, uint64_t now_ns)
{
    members->links[link].digest_due = true;
    members->links[link].wants_answer = wants_answer;
    spread_soon(members, now_ns);
}

/* --- Sending --- */

/* Adds what goes to the link, the oldest first, until the message is full. */
static void message_fill(struct members *members, struct member_message *message,
                         const struct member_queue *queue, uint16_t bit)
{
    for (uint32_t i = 0; i < queue->count; i++) {
        uint32_t index = queue->indices[i];
        struct member_record *record = &members->records[index];
        if ((record->pending & bit) == 0) {
            continue;
        }
        struct member_record_wire wire = {.id = member_rings_id(members->rings, index),
                                          .incarnation = record->incarnation,
                                          .epoch = record->epoch,
                                          .votes = record->votes,
                                          .left = (record->flags & MEMBER_LEFT) != 0};
        if (!member_message_add(message, &wire)) {
            return;
        }
        record->pending &= (uint16_t)~bit;
    }
}

static void link_flush(struct members *members, uint32_t at, struct member_message *message, uint64_t now_ns)
{
    struct member_link *link = &members->links[at];
    const struct members_handler *handler = &members->options.handler;
    member_message_begin(message);
    if (link->digest_due) {
        member_message_add_digest(message, members->buckets, link->wants_answer);
        link->digest_due = false;
    }
    message_fill(members, message, &members->urgent, member_link_bit(at));
    message_fill(members, message, &members->bulk, member_link_bit(at));
    if (member_message_is_empty(message)) {
        return;
    }
    members->statistics.messages_sent++;
    members->statistics.bytes_sent += message->size;
    members->statistics.records_sent += message->count;
    handler->send(handler->context, members_node(members, link->index), message->bytes, message->size,
                  now_ns);
}

void members_flush(struct members *members, uint64_t now_ns)
{
    struct member_message message;
    for (uint32_t i = 0; i < MEMBERS_NEIGHBOURS_MAX; i++) {
        if (members->links[i].up) {
            link_flush(members, i, &message, now_ns);
        }
    }
    queue_compact(members, &members->urgent, MEMBER_URGENT);
    queue_compact(members, &members->bulk, MEMBER_BULK);
    bool more = members->urgent.count + members->bulk.count > 0;
    members->flush_ns = more ? next_batch_ns(members, now_ns) : TIME_NEVER;
}

/* Compares what we know with a random neighbour: heals what got lost, or came before we knew the node. */
void members_sync_tick(struct members *members, uint64_t now_ns)
{
    if (members->sync_ns > now_ns) {
        return;
    }
    uint64_t sync_ns = members->options.sync_ns;
    members->sync_ns = time_after(now_ns, sync_ns / 2 + random_below(&members->random, sync_ns + 1));
    uint32_t up = (uint32_t)__builtin_popcount(members->up_mask);
    if (up == 0) {
        return;
    }
    uint64_t chosen = random_below(&members->random, up);
    for (uint32_t i = 0; i < MEMBERS_NEIGHBOURS_MAX; i++) {
        if (members->links[i].up && chosen-- == 0) {
            members_digest_due(members, i, true, now_ns);
            return;
        }
    }
}

/* --- Receiving --- */

/* Pays for a message out of a budget. Returns false if that is used up. */
static bool pay(uint64_t *free_ns, uint32_t records, uint64_t now_ns)
{
    uint64_t from_ns = *free_ns > now_ns ? *free_ns : now_ns;
    uint64_t to_ns = time_after(from_ns, (records + MEMBERS_MESSAGE_TOKENS) * MEMBERS_TOKEN_NS);
    if (to_ns - now_ns > MEMBERS_TOKENS_SAVED_NS) {
        return false;
    }
    *free_ns = to_ns;
    return true;
}

/* Sends our records in the buckets that differ. A neighbour may ask this once a second. */
static void take_digest(struct members *members, const struct member_reader *reader, uint32_t at,
                        uint64_t now_ns)
{
    struct member_link *link = &members->links[at];
    bool differs[MEMBER_DIGEST_BUCKETS];
    bool any = false;
    if (!link->up || (link->digest_ns != 0 && now_ns - link->digest_ns < MEMBERS_DIGEST_NS)) {
        return;
    }
    link->digest_ns = now_ns;
    for (uint32_t i = 0; i < MEMBER_DIGEST_BUCKETS; i++) {
        differs[i] = member_reader_bucket(reader, i) != members->buckets[i];
        any |= differs[i];
    }
    if (!any) {
        return;
    }
    uint32_t end = member_rings_end(members->rings);
    for (uint32_t i = 0; i < end; i++) {
        uint64_t id = member_rings_id(members->rings, i);
        if (id != 0 && members->records[i].incarnation != 0 && differs[id % MEMBER_DIGEST_BUCKETS]) {
            members_queue(members, i, member_link_bit(at), now_ns);
        }
    }
    if (reader->wants_digest) {
        members_digest_due(members, at, false, now_ns);
    }
}

static void take_records(struct members *members, const struct member_reader *reader, uint32_t link,
                         uint64_t now_ns)
{
    for (uint32_t i = 0; i < reader->count; i++) {
        struct member_record_wire news = member_reader_record(reader, i);
        uint32_t index = member_rings_find(members->rings, news.id);
        if (index == MEMBER_RINGS_NONE) {
            members->statistics.records_unknown_node++;
        } else {
            members_apply(members, index, &news, link, now_ns);
        }
    }
}

bool members_receive(struct members *members, uint32_t node, const uint8_t *bytes, size_t size,
                     uint64_t now_ns, const char **why)
{
    struct member_reader reader;
    uint32_t index = node + members->offset;
    members_begin(members, now_ns);
    assert(member_rings_id(members->rings, index) != 0);
    if (!member_reader_begin(&reader, bytes, size, why)) {
        return false;
    }
    uint32_t link = members_link_of(members, index);
    uint64_t *budget =
        link == MEMBERS_NO_LINK ? &members->stranger_tokens_free_ns : &members->links[link].tokens_free_ns;
    if (!pay(budget, reader.count, now_ns)) {
        if (why != NULL) {
            *why = "more member news than its rate allows";
        }
        members->statistics.messages_dropped += link == MEMBERS_NO_LINK;
        return link == MEMBERS_NO_LINK; /* for all of these there is one budget */
    }
    take_records(members, &reader, link, now_ns);
    if (reader.digest != NULL && link != MEMBERS_NO_LINK) {
        take_digest(members, &reader, link, now_ns);
    }
    if (members->rewire) {
        members_find_neighbours(members, now_ns);
    }
    return true;
}
