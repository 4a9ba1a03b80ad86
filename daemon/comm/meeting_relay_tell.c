#include "daemon/comm/meeting_relay_internal.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/comm/comms_tree.h"
#include "daemon/comm/roster.h"
#include "proto/frame.h"

/* What a relay tells its guests and places. */

/* --- To guests --- */

bool relay_reaches(const struct comms *comms, uint32_t node)
{
    return node == MESH_NODE_OWN || mesh_node_is_up(comms->mesh, node);
}

/* Hands an end on to a guest. */
static void tell_end(const struct comms_relay *relay, const struct relayed *guest, Commd__Mesh__Roster *end)
{
    Commd__Mesh__Message message = MESH_MESSAGE(ROSTER, roster, end);
    end->nonce = guest->nonce;
    if (relay_reaches(relay->comms, guest->node)) {
        comms_post(relay->comms, guest->node, &message);
    }
}

/* Tells all guests whose communicator is forming that it cannot form any more, because of that node. */
void relay_tell_all_end(struct comms_relay *relay, uint32_t ended_by, const Commd__Mesh__Withdraw *end)
{
    struct relayed *guest, *next;
    Commd__Mesh__Roster body = COMMD__MESH__ROSTER__INIT;
    body.name = relay->key.name;
    body.owner_uid = relay->key.owner_uid;
    body.ended_by = (char *)(uintptr_t)mesh_node_name(relay->comms->mesh, ended_by);
    body.end = (Commd__Mesh__Withdraw *)(uintptr_t)end;
    HASH_ITER (hh, relay->guests, guest, next) {
        if (!guest->is_done && guest->node != ended_by) {
            tell_end(relay, guest, &body);
        }
    }
}

void relay_send_elsewhere(struct comms *comms, const struct owned_name *key, uint32_t node)
{
    Commd__Mesh__Met body = COMMD__MESH__MET__INIT;
    body.name = (char *)(uintptr_t)key->name;
    body.owner_uid = key->owner_uid;
    body.elsewhere = true;
    Commd__Mesh__Message message = MESH_MESSAGE(MET, met, &body);
    if (relay_reaches(comms, node)) {
        comms_post(comms, node, &message);
    }
}

struct receiver {
    struct comms *comms;
    uint32_t node;
};

static void send_part(void *context, const uint8_t *bytes, size_t size_bytes)
{
    const struct receiver *to = context;
    comms_post_packed(to->comms, to->node, bytes, size_bytes);
}

/* This node has ranks, too: says so to a guest. */
void relay_tell_own(const struct communicator *comm, uint32_t node)
{
    if (node != MESH_NODE_OWN && mesh_node_is_up(comm->comms->mesh, node)) {
        comms_roster_write_own(comm, send_part, &(struct receiver){comm->comms, node});
    }
}

/* --- To places --- */

static void send_entries(struct comms_relay *relay, uint32_t place, Commd__Mesh__MeetEntry **entries,
                         size_t count)
{
    Commd__Mesh__MeetMany body = COMMD__MESH__MEET_MANY__INIT;
    body.name = relay->key.name;
    body.owner_uid = relay->key.owner_uid;
    body.entries = entries;
    body.n_entries = count;
    Commd__Mesh__Message message = MESH_MESSAGE(MEET_MANY, meet_many, &body);
    if (count > 0) {
        comms_post(relay->comms, place, &message);
    }
}

/* Reports guests to a place: new ones, or all that are not done. */
void relay_send_reports(struct comms_relay *relay, uint32_t place, bool only_new)
{
    size_t most = HASH_COUNT(relay->guests), first = 0, count = 0, size_bytes = 0;
    Commd__Mesh__MeetEntry *entries = calloc(most, sizeof *entries);
    Commd__Mesh__MeetEntry **list = calloc(most, sizeof(Commd__Mesh__MeetEntry *));
    struct relayed *guest, *next;
    HASH_ITER (hh, relay->guests, guest, next) {
        Commd__Mesh__Announce *report =
            entries != NULL && list != NULL && (guest->is_new || (!only_new && !guest->is_done))
                ? commd__mesh__announce__unpack(NULL, guest->size_bytes, guest->bytes)
                : NULL;
        if (report == NULL) {
            continue;
        }
        commd__mesh__meet_entry__init(&entries[count]);
        entries[count].node = (char *)(uintptr_t)mesh_node_name(relay->comms->mesh, guest->node);
        entries[count].report = report;
        list[count] = &entries[count];
        count++;
        size_bytes += guest->size_bytes + 64;
        if (size_bytes >= MEETING_RELAY_PART_BYTES) {
            send_entries(relay, place, &list[first], count - first);
            first = count;
            size_bytes = 0;
        }
    }
    if (count > first) {
        send_entries(relay, place, &list[first], count - first);
    }
    for (size_t i = 0; i < count; i++) {
        commd__mesh__announce__free_unpacked(entries[i].report, NULL);
    }
    free(entries);
    free(list);
}

/* Says that a guest's part is over. */
static void send_over(struct comms_relay *relay, uint32_t place, uint32_t node,
                      const Commd__Mesh__Withdraw *end)
{
    Commd__Mesh__MeetEntry entry = COMMD__MESH__MEET_ENTRY__INIT, *list = &entry;
    entry.node = (char *)(uintptr_t)mesh_node_name(relay->comms->mesh, node);
    entry.end = (Commd__Mesh__Withdraw *)(uintptr_t)end;
    send_entries(relay, place, &list, 1);
}

bool relay_knows_relays(const struct comms *comms, uint32_t place)
{
    return place == MESH_NODE_OWN || mesh_node_offers(comms->mesh, place, MESH_OFFERS_RELAYS);
}

/* The guest is gone: tells the places. If no place is connected, what they are told waits for one, and the
 * other guests are told at once. */
void relay_tell_gone(struct comms_relay *relay, const struct relayed *gone, const Commd__Mesh__Withdraw *end)
{
    bool failed = end != NULL && end->failed, told = false;
    for (uint32_t i = 0; i < relay->guest->place_count; i++) {
        uint32_t place = relay->guest->places[i].node;
        bool up = relay_reaches(relay->comms, place);
        if ((!up && (!failed || relay->guest->rests)) || (up && !relay_knows_relays(relay->comms, place))) {
            continue;
        }
        if (failed) {
            relay_send_reports(relay, place, true);
        }
        send_over(relay, place, gone->node, end);
        told = told || up;
    }
    if (failed && !told) {
        relay_tell_all_end(relay, gone->node, end);
    }
}

void relay_tell_new(struct comms_relay *relay)
{
    struct relayed *guest, *next;
    for (uint32_t i = 0; i < relay->guest->place_count; i++) {
        uint32_t place = relay->guest->places[i].node;
        if (relay_reaches(relay->comms, place) && relay_knows_relays(relay->comms, place)) {
            relay_send_reports(relay, place, true);
        }
    }
    relay->is_new = false;
    HASH_ITER (hh, relay->guests, guest, next) {
        guest->is_new = false; /* a place that is not connected yet is told of all */
    }
}

/* --- From places --- */

static void place_has_ranks(struct comms_relay *relay, uint32_t place, const Commd__Mesh__Announce *report)
{
    uint32_t *ranks =
        report->n_ranks <= COMMS_LOCAL_RANKS_MAX ? malloc((report->n_ranks + 1) * sizeof *ranks) : NULL;
    if (ranks != NULL) {
        memcpy(ranks, report->ranks, report->n_ranks * sizeof *ranks);
        free(relay->place_ranks);
        relay->place_ranks = ranks;
        relay->place_rank_count = (uint32_t)report->n_ranks;
        relay->place = place;
    }
}

static bool is_of(const struct comms_relay *relay, const char *name, uint32_t owner_uid)
{
    return owner_uid == relay->key.owner_uid && strcmp(name, relay->key.name) == 0;
}

/* Whether a place's complete roster is handed on. The guests see this relay alone, so it chooses among its
 * places as a guest does. */
static bool counts(const struct comms_relay *relay, uint32_t place, const Commd__Mesh__Roster *roster)
{
    return roster->first ? comms_guest_takes_roster(relay->guest, place)
                         : !comms_guest_has_later_roster(relay->guest, place);
}

/* Hands a message on to the guests that it is for. */
static void hand_on(struct comms_relay *relay, uint32_t place, const Commd__Mesh__MetMany *met,
                    Commd__Mesh__Message *inner)
{
    const struct comms *comms = relay->comms;
    Commd__Mesh__Roster *roster =
        inner->body_case == COMMD__MESH__MESSAGE__BODY_ROSTER ? inner->roster : NULL;
    if (roster != NULL && roster->adds && roster->n_entries == 1 && roster->entries[0]->report != NULL &&
        strcmp(roster->entries[0]->node, mesh_node_name(comms->mesh, place)) == 0) {
        place_has_ranks(relay, place, roster->entries[0]->report);
    }
    if (roster != NULL && roster->complete && !counts(relay, place, roster)) {
        return;
    }
    for (size_t i = 0; i < met->n_nodes; i++) {
        uint32_t node = MESH_NODE_OWN;
        bool known = strcmp(met->nodes[i], mesh_own_name(comms->mesh)) == 0 ||
                     mesh_find_node(comms->mesh, met->nodes[i], &node);
        const struct relayed *guest = known ? relay_guest(relay, node) : NULL;
        if (guest == NULL || !relay_reaches(comms, node)) {
            continue;
        }
        if (roster != NULL && met->n_nonces == met->n_nodes) {
            roster->nonce = met->nonces[i];
            comms_post(relay->comms, node, inner);
        } else {
            comms_post_packed(relay->comms, node, met->message.data, met->message.len);
        }
    }
}

void relay_hand_on(struct comms_relay *relay, uint32_t place, const Commd__Mesh__MetMany *met)
{
    Commd__Mesh__Message *inner =
        met->message.len > 0 && met->message.len <= FRAME_MAX_BYTES
            ? commd__mesh__message__unpack(NULL, met->message.len, met->message.data)
            : NULL;
    if (inner == NULL) {
        return;
    }
    if ((inner->body_case == COMMD__MESH__MESSAGE__BODY_ROSTER &&
         is_of(relay, inner->roster->name, inner->roster->owner_uid)) ||
        (inner->body_case == COMMD__MESH__MESSAGE__BODY_MET &&
         is_of(relay, inner->met->name, inner->met->owner_uid))) {
        hand_on(relay, place, met, inner);
    }
    commd__mesh__message__free_unpacked(inner, NULL);
}
