#include "daemon/mesh/members_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/types.h"

void members_options_default(struct members_options *options)
{
    *options = (struct members_options){.patience_ns = 4 * TIME_S,
                                        .batch_ns = 100 * TIME_MS,
                                        .suspicion_ns = 4 * TIME_S,
                                        .sync_ns = 60 * TIME_S};
}

/* --- Nodes --- */

static bool members_reserve(struct members *members, uint32_t count)
{
    if (count <= members->capacity) {
        return true;
    }
    uint32_t room = members->capacity == 0 ? count : count + count / 8 + 8;
    struct member_record *records = realloc(members->records, room * sizeof *records);
    if (records == NULL) {
        return false;
    }
    members->records = records;
    uint16_t *urgent = realloc(members->urgent.indices, room * sizeof *urgent);
    if (urgent == NULL) {
        return false;
    }
    members->urgent.indices = urgent;
    uint16_t *bulk = realloc(members->bulk.indices, room * sizeof *bulk);
    if (bulk == NULL) {
        return false;
    }
    members->bulk.indices = bulk;
    memset(records + members->capacity, 0, (room - members->capacity) * sizeof *records);
    members->capacity = room;
    return true;
}

static bool is_name(const char *name)
{
    size_t length = name == NULL ? 0 : strlen(name);
    return length >= 1 && length <= NODE_NAME_MAX_BYTES;
}

enum status members_add(struct members *members, uint32_t node, const char *name, struct error *error)
{
    assert(members->owns_rings);
    if (!is_name(name)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "a node's name has 1 to %d bytes",
                         NODE_NAME_MAX_BYTES);
    }
    if (node >= MEMBERS_NODES_MAX) {
        return error_set(error, STATUS_LIMIT, "node %s is one more than %d nodes", name, MEMBERS_NODES_MAX);
    }
    uint32_t index = node + members->offset;
    if (member_rings_id(members->rings, index) != 0) {
        return error_set(error, STATUS_ALREADY_EXISTS, "node %s is added twice", name);
    }
    if (!members_reserve(members, index + 1)) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", name);
    }
    enum status status = member_rings_add(members->rings, index, name, error);
    if (status != STATUS_OK) {
        return status;
    }
    members->statistics.states[MEMBER_UNKNOWN]++;
    members->rewire = true;
    /* Others may have told of it before we knew it. */
    members->sync_ns = time_min(members->sync_ns, time_after(members->now_ns, TIME_S));
    return STATUS_OK;
}

/* Whether the index is that of another node that is there. */
static bool members_has(const struct members *members, uint32_t index)
{
    return index != members->self && member_rings_id(members->rings, index) != 0;
}

void members_remove(struct members *members, uint32_t node)
{
    assert(members->owns_rings);
    uint32_t index = node + members->offset;
    if (node >= MEMBERS_NODES_MAX || !members_has(members, index)) {
        return;
    }
    members_forget(members, index);
    members->statistics.states[MEMBER_UNKNOWN]--;
    member_rings_remove(members->rings, index);
    members->rewire = true;
}

static enum status members_find_self(struct members *members, struct error *error)
{
    const struct members_options *options = &members->options;
    if (options->rings != NULL) {
        assert(member_rings_id(options->rings, options->own_index) != 0);
        members->rings = options->rings;
        members->self = options->own_index;
    } else {
        members->owns_rings = true;
        members->offset = 1;
        members->rings = member_rings_new();
        if (members->rings == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for members");
        }
        enum status status = member_rings_add(members->rings, members->self, options->own_name, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    members->statistics.states[MEMBER_UNKNOWN] = member_rings_count(members->rings) - 1;
    if (!members_reserve(members, member_rings_end(members->rings))) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for members");
    }
    return STATUS_OK;
}

enum status members_new(const struct members_options *options, uint64_t now_ns, struct members **out,
                        struct error *error)
{
    if (!is_name(options->own_name) || options->own_incarnation == 0 ||
        options->own_incarnation > MEMBER_INCARNATION_MAX) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "a member needs a name and an incarnation");
    }
    struct members *members = calloc(1, sizeof *members);
    if (members == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for members");
    }
    members->options = *options;
    for (uint32_t i = 0; i < MEMBERS_NEIGHBOURS_MAX; i++) {
        members->links[i] = (struct member_link){.index = MEMBER_RINGS_NONE, .vote_ns = TIME_NEVER};
    }
    members->start_ns = members->now_ns = now_ns;
    members->watch_ns = time_after(now_ns, MEMBERS_WATCH_NS);
    members->flush_ns = members->suspect_ns = members->refute_ns = members->vote_ns = TIME_NEVER;
    members_explore_begin(members, now_ns);
    members->rewire = true;
    random_seed(&members->random, options->seed);
    members->sync_ns =
        time_after(now_ns, options->sync_ns / 2 + random_below(&members->random, options->sync_ns + 1));
    enum status status = members_find_self(members, error);
    if (status != STATUS_OK) {
        members_free(members);
        return status;
    }
    members->options.own_name = NULL;
    members_say_own(members, options->own_incarnation, 0, false, now_ns);
    *out = members;
    return STATUS_OK;
}

void members_free(struct members *members)
{
    if (members == NULL) {
        return;
    }
    if (members->owns_rings) {
        member_rings_free(members->rings);
    }
    free(members->records);
    free(members->urgent.indices);
    free(members->bulk.indices);
    free(members);
}

void members_leave(struct members *members, uint64_t now_ns)
{
    const struct member_record *own = &members->records[members->self];
    members_begin(members, now_ns);
    if (members->left) {
        return;
    }
    members->left = true;
    members_say_own(members, own->incarnation, own->epoch, true, now_ns);
    members_flush(members, now_ns);
}

bool members_accepts(const struct members *members, uint64_t incarnation, uint64_t now_ns)
{
    return incarnation > 0 && incarnation <= MEMBER_INCARNATION_MAX &&
           !members_is_ahead(members, incarnation, 0, now_ns);
}

/* --- Time --- */

uint64_t members_next_deadline_ns(const struct members *members)
{
    uint64_t deadline_ns = time_min(members->watch_ns, members->flush_ns);
    deadline_ns = time_min(deadline_ns, time_min(members->sync_ns, members->refute_ns));
    deadline_ns = time_min(deadline_ns, time_min(members->suspect_ns, members->probe_ns));
    return time_min(deadline_ns, members->vote_ns);
}

void members_begin(struct members *members, uint64_t now_ns)
{
    uint64_t due_ns = members_next_deadline_ns(members);
    if (now_ns > due_ns && now_ns - due_ns > MEMBERS_LATE_NS) {
        members->statistics.stalls += now_ns - members->stalled_ns > MEMBERS_LATE_NS;
        members->stalled_ns = now_ns;
        members_postpone_votes(members, now_ns);
    }
    members->now_ns = now_ns;
    if (members->rewire) {
        members_find_neighbours(members, now_ns);
    }
}

void members_tick(struct members *members, uint64_t now_ns)
{
    members_begin(members, now_ns);
    members->watch_ns = time_after(now_ns, MEMBERS_WATCH_NS);
    members_explore_tick(members, now_ns);
    members_vote_tick(members, now_ns);
    members_suspect_tick(members, now_ns);
    if (members->refute_ns <= now_ns) {
        members_refute(members, now_ns);
    }
    members_sync_tick(members, now_ns);
    if (members->flush_ns <= now_ns) {
        members_flush(members, now_ns);
    }
    if (members->rewire) {
        members_find_neighbours(members, now_ns);
    }
}

/* --- Questions --- */

static const struct member_record *members_record(const struct members *members, uint32_t node)
{
    assert(node < MEMBERS_NODES_MAX);
    static const struct member_record nothing;
    uint32_t index = node + members->offset;
    return members_has(members, index) ? &members->records[index] : &nothing;
}

enum member_state members_state(const struct members *members, uint32_t node)
{
    return member_record_state(members_record(members, node));
}

uint64_t members_id(const struct members *members, uint32_t node)
{
    return member_rings_id(members->rings, node + members->offset);
}

bool members_find(const struct members *members, uint64_t id, uint32_t *node)
{
    uint32_t index = member_rings_find(members->rings, id);
    if (index == MEMBER_RINGS_NONE || index == members->self) {
        return false;
    }
    *node = members_node(members, index);
    return true;
}

uint64_t members_own_incarnation(const struct members *members)
{
    return members->records[members->self].incarnation;
}
