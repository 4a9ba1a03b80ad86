#include "daemon/comm/meeting_internal.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/comm/comms_tree.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/meeting_choice.h"
#include "proto/frame.h"

/* A place and the relays of its guests: see meeting.h. */

/* So that a part of a roster (roster.h) fits into a frame with the names of its receivers. */
#define MET_MANY_NAMES_MAX 128u

/* --- To guests --- */

bool meeting_reaches(const struct comms *comms, const struct guest *guest)
{
    uint32_t node = guest->visitor->node;
    return node == MESH_NODE_OWN || mesh_node_is_up(comms->mesh, node);
}

/* The place of a guest among others: those of one relay come together. */
static uint64_t way_of(const struct guest *guest)
{
    return (uint64_t)guest->visitor->node << 1 | guest->is_relayed;
}

static int way_order(const void *a, const void *b)
{
    uint64_t left = way_of(*(struct guest *const *)a), right = way_of(*(struct guest *const *)b);
    return left < right ? -1 : left > right;
}

/* Sends to guests of one relay, at most MET_MANY_NAMES_MAX. */
static void send_names(struct comms *comms, struct guest *const *guests, uint32_t count, bool nonces,
                       const uint8_t *bytes, size_t size_bytes)
{
    char *names[MET_MANY_NAMES_MAX];
    uint64_t numbers[MET_MANY_NAMES_MAX];
    Commd__Mesh__MetMany body = COMMD__MESH__MET_MANY__INIT;
    for (uint32_t i = 0; i < count; i++) {
        names[i] = (char *)(uintptr_t)mesh_node_name(comms->mesh, guests[i]->node);
        numbers[i] = guests[i]->report != NULL ? guests[i]->report->nonce : 0;
    }
    body.name = guests[0]->meeting->key.name;
    body.owner_uid = guests[0]->meeting->key.owner_uid;
    body.n_nodes = count;
    body.nodes = names;
    body.n_nonces = nonces ? count : 0;
    body.nonces = numbers;
    body.message = (ProtobufCBinaryData){.len = size_bytes, .data = (uint8_t *)(uintptr_t)bytes};
    Commd__Mesh__Message message = MESH_MESSAGE(MET_MANY, met_many, &body);
    comms_post(comms, guests[0]->visitor->node, &message);
}

/* How many guests from the first on are reached in the same way. */
static uint32_t same_way(struct guest *const *guests, uint32_t count)
{
    uint32_t same = 1;
    while (same < count && way_of(guests[same]) == way_of(guests[0])) {
        same++;
    }
    return same;
}

static void send_relayed(struct comms *comms, struct guest *const *guests, uint32_t count, bool nonces,
                         const uint8_t *bytes, size_t size_bytes)
{
    for (uint32_t i = 0; i < count; i += MET_MANY_NAMES_MAX) {
        uint32_t left = count - i;
        send_names(comms, &guests[i], left < MET_MANY_NAMES_MAX ? left : MET_MANY_NAMES_MAX, nonces, bytes,
                   size_bytes);
    }
}

void meeting_send_packed(struct comms *comms, struct guest **guests, uint32_t count, const uint8_t *bytes,
                         size_t size_bytes)
{
    qsort(guests, count, sizeof(struct guest *), way_order);
    for (uint32_t i = 0, same; i < count; i += same) {
        same = same_way(&guests[i], count - i);
        if (!meeting_reaches(comms, guests[i])) {
            continue;
        }
        if (guests[i]->is_relayed) {
            send_relayed(comms, &guests[i], same, false, bytes, size_bytes);
        } else {
            comms_post_packed(comms, guests[i]->node, bytes, size_bytes);
        }
    }
}

void meeting_send(struct comms *comms, struct guest *guest, const Commd__Mesh__Message *message)
{
    uint8_t packed[FRAME_MAX_BYTES];
    size_t size_bytes = commd__mesh__message__get_packed_size(message);
    if (size_bytes > 0 && size_bytes <= sizeof packed) {
        commd__mesh__message__pack(message, packed);
        meeting_send_packed(comms, &guest, 1, packed, size_bytes);
    }
}

void meeting_send_end(struct comms *comms, struct guest **guests, uint32_t count, Commd__Mesh__Roster *end)
{
    Commd__Mesh__Message message = MESH_MESSAGE(ROSTER, roster, end);
    uint8_t packed[FRAME_MAX_BYTES];
    size_t size_bytes = commd__mesh__message__get_packed_size(&message);
    if (size_bytes > sizeof packed) {
        return;
    }
    commd__mesh__message__pack(&message, packed);
    qsort(guests, count, sizeof(struct guest *), way_order);
    for (uint32_t i = 0, same; i < count; i += same) {
        same = same_way(&guests[i], count - i);
        if (meeting_reaches(comms, guests[i]) && guests[i]->is_relayed) {
            send_relayed(comms, &guests[i], same, true, packed, size_bytes);
        } else if (meeting_reaches(comms, guests[i])) {
            end->nonce = guests[i]->report->nonce;
            comms_post(comms, guests[i]->node, &message);
            end->nonce = 0;
        }
    }
}

void meeting_tell_complete(struct comms *comms, struct guest **guests, uint32_t count)
{
    qsort(guests, count, sizeof(struct guest *), way_order);
    for (uint32_t i = 0, same; i < count; i += same) {
        same = same_way(&guests[i], count - i);
        if (guests[i]->is_relayed && meeting_reaches(comms, guests[i])) {
            Commd__Mesh__MetMany body = COMMD__MESH__MET_MANY__INIT;
            body.name = guests[i]->meeting->key.name;
            body.owner_uid = guests[i]->meeting->key.owner_uid;
            body.complete = true;
            Commd__Mesh__Message message = MESH_MESSAGE(MET_MANY, met_many, &body);
            comms_post(comms, guests[i]->visitor->node, &message);
        }
    }
}

/* --- From relays --- */

/* The reports of a relay, as far as they are sound. */
struct heard {
    Commd__Mesh__Announce *reports;
    uint32_t *nodes;
    uint32_t count;
    struct meeting_trust last; /* what was found out last; group: UINT32_MAX before */
};

static void remember(struct meeting *meeting, const struct meeting_trust *found)
{
    struct meeting_trust *trust = meeting != NULL ? malloc(sizeof *trust) : NULL;
    if (trust != NULL) {
        *trust = *found;
        HASH_ADD(hh, meeting->trusts, key, sizeof trust->key, trust);
        if (!table_has(trust, hh)) {
            free(trust);
        }
    }
}

/* Whether the relay may report for the node. */
static bool is_trusted(struct comms *comms, const struct owned_name *key, uint32_t relay, const char *node,
                       uint32_t size, struct meeting_trust *last)
{
    uint32_t groups = meeting_groups(size, mesh_configured_count(comms->mesh) + 1);
    uint32_t group = groups > 0 ? meeting_group_of(node, groups) : 0;
    struct meeting *meeting = meeting_find(comms, key);
    const struct meeting_trust *known = NULL;
    if (groups == 0 || last->key.group == group) {
        return groups > 0 && last->is_trusted;
    }
    *last = (struct meeting_trust){.key = {.relay = relay, .group = group}};
    if (meeting != NULL) {
        HASH_FIND(hh, meeting->trusts, &last->key, sizeof last->key, known);
    }
    last->is_trusted = known != NULL ? known->is_trusted : meeting_trusts_relay(comms, key, group, relay);
    if (known == NULL) {
        remember(meeting, last);
    }
    return last->is_trusted;
}

/* Tells the node, by its relay, to turn to this place itself. */
static void send_elsewhere(struct comms *comms, uint32_t relay, const struct owned_name *key, char *name)
{
    Commd__Mesh__Met met = COMMD__MESH__MET__INIT;
    met.name = (char *)(uintptr_t)key->name;
    met.owner_uid = key->owner_uid;
    met.elsewhere = true;
    Commd__Mesh__Message inner = MESH_MESSAGE(MET, met, &met);
    uint8_t packed[sizeof key->name + 64];
    size_t size_bytes = commd__mesh__message__get_packed_size(&inner);
    Commd__Mesh__MetMany body = COMMD__MESH__MET_MANY__INIT;
    if (size_bytes > sizeof packed) {
        return;
    }
    commd__mesh__message__pack(&inner, packed);
    body.name = met.name;
    body.owner_uid = key->owner_uid;
    body.n_nodes = 1;
    body.nodes = &name;
    body.message = (ProtobufCBinaryData){.len = size_bytes, .data = packed};
    Commd__Mesh__Message message = MESH_MESSAGE(MET_MANY, met_many, &body);
    comms_post(comms, relay, &message);
}

static void hear(struct comms *comms, uint32_t relay, const struct owned_name *key,
                 const Commd__Mesh__MeetEntry *entry, struct heard *out)
{
    uint32_t node = MESH_NODE_OWN;
    if (strcmp(entry->node, mesh_own_name(comms->mesh)) != 0 &&
        (!mesh_find_node(comms->mesh, entry->node, &node) ||
         !mesh_user_may(comms->mesh, key->owner_uid, node))) {
        return; /* this place does not know it: it turns to others */
    }
    if (entry->report == NULL) {
        if (entry->end != NULL && entry->end->failed) {
            comms_meeting_end(comms, relay, node, key, entry->end);
        }
        comms_meeting_leave(comms, relay, node, key);
    } else if (entry->report->terms != NULL && entry->report->tree && !entry->report->answer &&
               (node == relay ||
                is_trusted(comms, key, relay, entry->node, entry->report->terms->size, &out->last))) {
        Commd__Mesh__Announce *report = &out->reports[out->count];
        *report = *entry->report;
        report->name = (char *)(uintptr_t)key->name;
        report->owner_uid = key->owner_uid;
        out->nodes[out->count] = node;
        out->count += comms_announce_is_sound(report);
    } else {
        send_elsewhere(comms, relay, key, entry->node);
    }
}

void comms_meeting_received_many(struct comms *comms, uint32_t relay, const Commd__Mesh__MeetMany *many,
                                 uint64_t now_ns)
{
    struct owned_name key;
    struct heard heard = {.last = {.key = {.group = UINT32_MAX}}};
    if (!printable_is_name(many->name, COMM_NAME_MAX_BYTES)) {
        if (relay != MESH_NODE_OWN) {
            mesh_violation(comms->mesh, relay, "a malformed name of a communicator");
        }
        return;
    }
    if (relay != MESH_NODE_OWN && !comms_user_may_say(comms, many->owner_uid, relay, many->name, now_ns)) {
        return;
    }
    (void)owned_name_make(&key, many->owner_uid, many->name);
    heard.reports = calloc(many->n_entries + 1, sizeof *heard.reports);
    heard.nodes = calloc(many->n_entries + 1, sizeof *heard.nodes);
    for (size_t i = 0; heard.reports != NULL && heard.nodes != NULL && i < many->n_entries; i++) {
        hear(comms, relay, &key, many->entries[i], &heard);
    }
    meeting_join_many(comms, relay, &key, heard.reports, heard.nodes, heard.count, now_ns);
    free(heard.reports);
    free(heard.nodes);
}
