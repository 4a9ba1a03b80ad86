#include "daemon/comm/roster.h"
#include "daemon/comm/formation.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/comm/comms_tree.h"
#include "daemon/comm/doubt.h"
#include "daemon/comm/meeting.h"
#include "daemon/comm/roster_draft.h"

/* --- Writing --- */

struct writer {
    Commd__Mesh__Roster body;
    Commd__Mesh__RosterEntry *entries;
    Commd__Mesh__RosterEntry **list;
    void (*part)(void *context, const uint8_t *bytes, size_t size_bytes);
    void *context;
};

static bool write_part(struct writer *writer, uint32_t count, bool is_last)
{
    writer->body.entries = writer->list;
    writer->body.n_entries = count;
    writer->body.last = is_last;
    Commd__Mesh__Message message = MESH_MESSAGE(ROSTER, roster, &writer->body);
    size_t size_bytes = commd__mesh__message__get_packed_size(&message);
    uint8_t *bytes = malloc(size_bytes);
    if (bytes == NULL) {
        return false;
    }
    commd__mesh__message__pack(&message, bytes);
    writer->part(writer->context, bytes, size_bytes);
    free(bytes);
    writer->body.first = false;
    return true;
}

bool comms_roster_write(const struct comms_roster *roster,
                        void (*part)(void *context, const uint8_t *bytes, size_t size_bytes), void *context)
{
    struct writer writer = {.body = COMMD__MESH__ROSTER__INIT, .part = part, .context = context};
    uint32_t count = 0;
    size_t size_bytes = 0;
    bool written = true;
    writer.entries = calloc((size_t)roster->count + 1, sizeof *writer.entries);
    writer.list = calloc((size_t)roster->count + 1, sizeof(Commd__Mesh__RosterEntry *));
    writer.body.name = (char *)(uintptr_t)roster->name;
    writer.body.owner_uid = roster->owner_uid;
    writer.body.first = true;
    writer.body.complete = roster->is_complete;
    writer.body.adds = roster->adds;
    for (uint32_t i = 0; writer.entries != NULL && writer.list != NULL && i < roster->count && written; i++) {
        Commd__Mesh__RosterEntry *entry = &writer.entries[i];
        commd__mesh__roster_entry__init(entry);
        entry->node = (char *)(uintptr_t)roster->items[i].node;
        entry->report = &roster->items[i].report;
        writer.list[count++] = entry;
        size_bytes += commd__mesh__roster_entry__get_packed_size(entry);
        if (size_bytes >= COMMS_ROSTER_PART_BYTES && i + 1 < roster->count) {
            written = write_part(&writer, count, false);
            count = 0;
            size_bytes = 0;
        }
    }
    written = written && writer.entries != NULL && writer.list != NULL && write_part(&writer, count, true);
    free(writer.entries);
    free(writer.list);
    return written;
}

/* --- Passing it on --- */

static void report_from_claim(const struct comms_claim *claim, Commd__Mesh__Announce *out)
{
    commd__mesh__announce__init(out);
    out->nonce = claim->nonce;
    out->revision = claim->revision;
    out->n_ranks = claim->rank_count;
    out->ranks = claim->ranks;
    out->latency_ns = claim->latency_ns;
    out->bytes_per_s = claim->bytes_per_s;
    out->rails = claim->rails;
    out->says_reach = claim->says_reach;
    out->agrees = claim->agrees;
    out->tree = true;
}

static void report_own(const struct communicator *comm, struct comms_announcement *own,
                       Commd__Mesh__Announce *out)
{
    comms_formation_fill(comm, own);
    *out = own->body;
    out->name = (char *)(uintptr_t)protobuf_c_empty_string;
    out->owner_uid = 0;
    out->terms = NULL;
    out->comm_id = 0;
}

void comms_roster_write_own(const struct communicator *comm,
                            void (*part)(void *context, const uint8_t *bytes, size_t size_bytes),
                            void *context)
{
    struct comms_announcement own;
    struct comms_roster_item item = {.node = communicator_own_name(comm)};
    const struct comms_roster roster = {
        .name = comm->name, .owner_uid = comm->terms.owner_uid, .adds = true, .items = &item, .count = 1};
    report_own(comm, &own, &item.report);
    (void)comms_roster_write(&roster, part, context);
}

static void pass_part(void *context, const uint8_t *bytes, size_t size_bytes)
{
    comms_tree_to_children(context, bytes, size_bytes);
}

void comms_roster_pass(struct communicator *comm)
{
    struct comms_announcement own;
    struct comms_roster roster = {
        .name = comm->name, .owner_uid = comm->terms.owner_uid, .is_complete = true};
    if (!comm->sparse || !comms_tree_passes(comm, comm->own_index)) {
        return;
    }
    roster.items = calloc(comm->node_count, sizeof *roster.items);
    for (uint32_t i = 0; roster.items != NULL && i < comm->node_count; i++) {
        struct comms_roster_item *item = &roster.items[roster.count++];
        item->node = comm->node_names[i];
        if (i == comm->own_index) {
            report_own(comm, &own, &item->report);
        } else {
            report_from_claim(comms_formation_claim(comm, comm->nodes[i].node), &item->report);
        }
    }
    if (roster.items == NULL || !comms_roster_write(&roster, pass_part, comm)) {
        struct error error;
        error_set(&error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", comm->name);
        communicator_fail(comm, &error, COMMS_TELL_NODES, comm->comms->now_ns);
    }
    free(roster.items);
}

/* --- Taking it --- */

static bool ranks_are_sound(const Commd__Mesh__Announce *report, uint32_t size)
{
    for (size_t i = 0; i < report->n_ranks; i++) {
        if (report->ranks[i] >= size || (i > 0 && report->ranks[i] <= report->ranks[i - 1])) {
            return false;
        }
    }
    return report->n_ranks >= 1 && report->n_ranks <= COMMS_LOCAL_RANKS_MAX && report->nonce != 0;
}

static void take_entry(struct communicator *comm, const Commd__Mesh__RosterEntry *entry, uint64_t now_ns)
{
    struct comms *comms = comm->comms;
    struct comms_claim *claim;
    struct error error;
    uint32_t node;
    if (strcmp(entry->node, communicator_own_name(comm)) == 0) {
        return;
    }
    if (!mesh_find_node(comms->mesh, entry->node, &node) ||
        !comms_user_may_say(comms, comm->terms.owner_uid, node, comm->name, now_ns)) {
        return; /* the roster stays incomplete here */
    }
    if (comms_formation_claim_make(comm, node, &claim, &error) != STATUS_OK) {
        communicator_fail(comm, &error, COMMS_TELL_NODES, now_ns);
        return;
    }
    claim->in_roster = true;
    if (claim->needed && claim->rank_count > 0) {
        return; /* this node knows it better: they are connected */
    }
    if (comms_formation_claim_store(comm, claim, entry->report, true)) {
        claim->by_roster = true;
    }
}

static void take_entries(struct communicator *comm, const Commd__Mesh__Roster *roster, uint64_t now_ns)
{
    for (size_t i = 0; i < roster->n_entries && comm->state == COMMS_COMM_FORMING; i++) {
        take_entry(comm, roster->entries[i], now_ns);
    }
}

/* Forgets what an earlier roster said of nodes that are not in this one. If this one is complete, nodes that
 * are not in it have no ranks, whatever they say themselves. */
static void drop_others(struct communicator *comm, bool complete)
{
    struct comms_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        if ((claim->by_roster || complete) && !claim->in_roster && claim->rank_count > 0) {
            comms_formation_drop_claim(comm, claim, NULL);
        }
    }
}

static void begin(struct communicator *comm)
{
    struct comms_claim *claim, *next;
    comm->roster_is_whole = false;
    comms_promise_void(comm); /* it belonged to an earlier roster */
    HASH_ITER (hh, comm->claims, claim, next) {
        claim->in_roster = false;
    }
}

static bool is_sound(const struct communicator *comm, const Commd__Mesh__Roster *roster)
{
    for (size_t i = 0; i < roster->n_entries; i++) {
        if (roster->entries[i]->report == NULL ||
            !ranks_are_sound(roster->entries[i]->report, comm->terms.size)) {
            return false;
        }
    }
    return true;
}

/* --- Complete ones --- */

/* The nodes of a roster are ordered by their lowest ranks, as promise.c orders them. */
static uint32_t index_in(const Commd__Mesh__Roster *roster, const Commd__Mesh__RosterEntry *entry)
{
    uint32_t index = 0;
    for (size_t i = 0; i < roster->n_entries; i++) {
        index += roster->entries[i]->report->ranks[0] < entry->report->ranks[0];
    }
    return index;
}

static const Commd__Mesh__RosterEntry *entry_of(const Commd__Mesh__Roster *roster, const char *node)
{
    for (size_t i = 0; i < roster->n_entries; i++) {
        if (strcmp(roster->entries[i]->node, node) == 0) {
            return roster->entries[i];
        }
    }
    return NULL;
}

/* Whether this node is told of every rank. A rank may be there twice: is_complete() of formation.c. */
static bool has_all_ranks(const struct communicator *comm, const Commd__Mesh__Roster *roster, uint64_t now_ns)
{
    uint64_t ranks = 0;
    uint32_t node;
    for (size_t i = 0; i < roster->n_entries; i++) {
        const char *name = roster->entries[i]->node;
        if (strcmp(name, communicator_own_name(comm)) != 0 &&
            (!mesh_find_node(comm->comms->mesh, name, &node) ||
             !comms_user_may_say(comm->comms, comm->terms.owner_uid, node, comm->name, now_ns))) {
            return false;
        }
        ranks += roster->entries[i]->report->n_ranks;
    }
    return ranks == comm->terms.size;
}

/* This node has told the sender its nonce itself, and the sender has no ranks, as far as it says. */
static bool is_stranger(const struct comms_claim *claim)
{
    return claim != NULL && claim->needed && (claim->rank_count == 0 || claim->by_roster);
}

/*
 * Whether a roster comes from a node that may send it: to the node of rank 0 from a place or relay; to others
 * from the parent, as the roster orders the nodes. It must have this node's nonce, which only places, relays
 * and nodes of a true roster know. If this node's part has changed meanwhile, the roster is older.
 */
static bool is_expected(struct communicator *comm, uint32_t node, const Commd__Mesh__Roster *roster)
{
    const Commd__Mesh__RosterEntry *own = entry_of(roster, communicator_own_name(comm));
    const Commd__Mesh__RosterEntry *sender = entry_of(roster, communicator_node_name(comm, node));
    if (own == NULL || !comm->announced || own->report->nonce != comm->nonce ||
        own->report->revision != comm->revision) {
        return false;
    }
    if (own->report->ranks[0] == 0) {
        return comms_guest_takes_roster(comm->guest, node);
    }
    struct comms_claim *claim = comms_formation_claim(comm, node);
    return sender != NULL && index_in(roster, sender) == comms_tree_parent(index_in(roster, own)) &&
           (!is_stranger(claim) || claim->rosters++ < COMMS_ROSTERS_OF_STRANGER_MAX);
}

/* A false roster leaves everything as it was. So does one with a rank that this node cannot know, if there is
 * another one already. */
static void take_complete(struct communicator *comm, uint32_t node, const Commd__Mesh__Roster *roster,
                          uint64_t now_ns)
{
    if (!is_expected(comm, node, roster) || (comm->roster_is_whole && !has_all_ranks(comm, roster, now_ns))) {
        return;
    }
    comm->roster_begun = false;
    begin(comm);
    take_entries(comm, roster, now_ns);
    if (comm->state == COMMS_COMM_FORMING) {
        drop_others(comm, true);
        comm->roster_is_whole = true;
        communicator_queue(comm);
    }
}

static void complete_received(struct communicator *comm, uint32_t node, const Commd__Mesh__Roster *part,
                              uint64_t now_ns)
{
    if (part->first && part->last) {
        take_complete(comm, node, part, now_ns);
        return;
    }
    Commd__Mesh__Roster *roster = comms_roster_draft_add(comm, node, part);
    if (roster != NULL) {
        if (is_sound(comm, roster)) {
            take_complete(comm, node, roster, now_ns);
        }
        commd__mesh__roster__free_unpacked(roster, NULL);
    }
}

/* --- Without all ranks --- */

/* What a place tells meanwhile is older than a complete roster. */
static void partial_received(struct communicator *comm, uint32_t place, const Commd__Mesh__Roster *roster,
                             uint64_t now_ns)
{
    if (comm->comm_id != 0 || comm->roster_is_whole) {
        return;
    }
    if (roster->adds) {
        take_entries(comm, roster, now_ns);
        return;
    }
    if (roster->first) {
        begin(comm);
        comm->roster_begun = true;
        comm->roster_from = place;
    }
    if (!comm->roster_begun || comm->roster_from != place) {
        return;
    }
    take_entries(comm, roster, now_ns);
    if (roster->last && comm->state == COMMS_COMM_FORMING) {
        comm->roster_begun = false;
        drop_others(comm, false);
        communicator_queue(comm);
    }
}

void comms_roster_received(struct comms *comms, uint32_t node, const Commd__Mesh__Roster *roster,
                           uint64_t now_ns)
{
    struct communicator *comm = communicator_find(comms, roster->owner_uid, roster->name);
    if (comm == NULL || comm->state != COMMS_COMM_FORMING || !comm->by_tree) {
        return; /* it is over already */
    }
    bool is_place = comms_guest_knows(comm->guest, node);
    if (roster->end != NULL) {
        if (is_place && (roster->nonce == 0 || roster->nonce == comm->nonce)) {
            comms_doubt_begin(comm, node, roster, now_ns); /* else of an earlier part of this node's */
        }
        return;
    }
    if (!is_sound(comm, roster)) {
        return;
    }
    if (!roster->complete && is_place) {
        partial_received(comm, node, roster, now_ns);
    } else if (roster->complete && !roster->adds &&
               (is_place || mesh_user_may(comms->mesh, comm->terms.owner_uid, node))) {
        complete_received(comm, node, roster, now_ns);
    }
}
