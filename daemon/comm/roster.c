#include "daemon/comm/roster.h"
#include "daemon/comm/formation.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/comm/comms_tree.h"
#include "daemon/comm/doubt.h"
#include "daemon/comm/meeting.h"

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

/* This node's own entry. If its part has changed meanwhile, the place will hear of that, and the roster is
 * void. */
static void take_own(struct communicator *comm, const Commd__Mesh__Announce *report)
{
    comm->roster_has_own =
        comm->announced && report->nonce == comm->nonce && report->revision == comm->revision;
}

static void take_entry(struct communicator *comm, const Commd__Mesh__RosterEntry *entry, uint64_t now_ns)
{
    struct comms *comms = comm->comms;
    struct comms_claim *claim;
    struct error error;
    uint32_t node;
    if (strcmp(entry->node, communicator_own_name(comm)) == 0) {
        take_own(comm, entry->report);
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

/* Forgets what an earlier roster said of nodes that are not in this one. */
static void drop_others(struct communicator *comm)
{
    struct comms_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->by_roster && !claim->in_roster && claim->rank_count > 0) {
            comms_formation_drop_claim(comm, claim, NULL);
        }
    }
}

static void begin(struct communicator *comm, uint32_t node)
{
    struct comms_claim *claim, *next;
    comm->roster_from = node;
    comm->roster_begun = true;
    comm->roster_has_own = false;
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

/* Whether a complete roster has come, or is coming. What a place tells meanwhile without all ranks is older.
 */
static bool has_newer(const struct communicator *comm)
{
    uint32_t from = comm->roster_from;
    bool comes = comm->roster_begun && comm->roster_completes &&
                 (from == MESH_NODE_OWN || mesh_node_is_up(comm->comms->mesh, from));
    return comm->comm_id != 0 || comm->roster_is_whole || comes;
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
    /* One that comes down the tree is complete. The sender is a node of it; others have no reason to send. */
    if (!is_sound(comm, roster) || (!is_place && !mesh_user_may(comms->mesh, comm->terms.owner_uid, node))) {
        return;
    }
    if (!roster->complete && has_newer(comm)) {
        return;
    }
    if (roster->adds) {
        if (is_place && !roster->complete) {
            take_entries(comm, roster, now_ns);
        }
        return;
    }
    if (roster->first) {
        begin(comm, node);
        comm->roster_completes = roster->complete;
    }
    if (!comm->roster_begun || comm->roster_from != node) {
        return;
    }
    take_entries(comm, roster, now_ns);
    if (!roster->last || comm->state != COMMS_COMM_FORMING) {
        return;
    }
    comm->roster_begun = false;
    drop_others(comm);
    comm->roster_is_whole = roster->complete && comm->roster_has_own;
    communicator_queue(comm);
}
