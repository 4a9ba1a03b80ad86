#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/comm/formation.h"
#include "daemon/comm/meeting.h"
#include "daemon/comm/meeting_choice.h"
#include "daemon/comm/meeting_relay.h"
#include "daemon/comm/roster.h"

/* --- The choice --- */

bool comms_guest_knows(const struct comms_guest *guest, uint32_t node)
{
    for (uint32_t i = 0; guest != NULL && i < guest->place_count; i++) {
        if (guest->places[i].node == node) {
            return true;
        }
    }
    return false;
}

static bool has_turned_to(const struct comms_guest *guest, uint32_t node, bool is_relay)
{
    for (uint32_t i = 0; i < guest->place_count; i++) {
        if (guest->places[i].node == node && guest->places[i].is_relay == is_relay) {
            return true;
        }
    }
    return false;
}

static bool is_place(const void *context, uint32_t node)
{
    return has_turned_to(context, node, false);
}

static bool is_relay(const void *context, uint32_t node)
{
    return has_turned_to(context, node, true);
}

/* The best place that it has not turned to. Returns false if there is none. */
static bool next_place(const struct comms_guest *guest, uint32_t *place)
{
    const struct meeting_chooser chooser = {
        .comms = guest->comms, .key = &guest->key, .is_taken = is_place, .context = guest};
    return meeting_choose(&chooser, place);
}

static bool next_relay(const struct comms_guest *guest, uint32_t *relay)
{
    const struct meeting_chooser chooser = {
        .comms = guest->comms,
        .key = &guest->key,
        .relay = true,
        .group = meeting_group_of(mesh_own_name(guest->comms->mesh), guest->groups),
        .is_taken = is_relay,
        .context = guest};
    return meeting_choose(&chooser, relay);
}

/* --- Turning to places --- */

static void say_why(const struct comms *comms, const struct owned_name *key, uint32_t node,
                    const Commd__Mesh__Withdraw *end)
{
    Commd__Mesh__Meet body = COMMD__MESH__MEET__INIT;
    body.name = (char *)(uintptr_t)key->name;
    body.owner_uid = key->owner_uid;
    body.over = true;
    body.end = (Commd__Mesh__Withdraw *)(uintptr_t)end;
    Commd__Mesh__Message message = MESH_MESSAGE(MEET, meet, &body);
    mesh_tell(comms->mesh, node, &message);
}

/* Its deadline has changed. */
static void arm(const struct comms_guest *guest)
{
    struct communicator *comm = communicator_find(guest->comms, guest->key.owner_uid, guest->key.name);
    if (comm != NULL && comm->guest == guest) {
        communicator_arm(comm);
    }
}

/* It turns to places itself from now on, soon to the first one. */
static void turn_elsewhere(struct comms_guest *guest, uint64_t now_ns)
{
    guest->groups = 0;
    guest->next_ns = guest->turn_ns = now_ns;
    arm(guest);
}

/* How many relays it has turned to before that one. */
static uint32_t turn_of(const struct comms_guest *guest, const struct comms_place *place)
{
    return (uint32_t)(place - guest->places);
}

/* Says Meet to a place, which may be this node, with what this node's communicator has to report. */
static void say(struct comms_guest *guest, const struct comms_place *place, uint64_t now_ns)
{
    struct comms *comms = guest->comms;
    const struct owned_name *key = &guest->key;
    struct communicator *comm = communicator_find(comms, key->owner_uid, key->name);
    struct comms_announcement announcement;
    Commd__Mesh__Meet body = COMMD__MESH__MEET__INIT;
    if (guest->relay != NULL) {
        comms_relay_say(guest->relay, place->node);
        return;
    }
    if (place->is_relay && place->node != MESH_NODE_OWN &&
        !mesh_node_offers(comms->mesh, place->node, MESH_OFFERS_RELAYS)) {
        turn_elsewhere(guest, now_ns);
        return;
    }
    if (comm != NULL && comm->by_tree && !comm->announced) {
        return; /* it reports once its ranks are announced */
    }
    if (comm != NULL && comm->by_tree) {
        comms_formation_fill(comm,
                             &announcement); /* also if it has formed: others' ranks may come too late */
        body.report = &announcement.body;
    }
    if (place->node == MESH_NODE_OWN && place->is_relay && body.report != NULL) {
        comms_relay_join(comms, MESH_NODE_OWN, key, body.report, turn_of(guest, place), now_ns);
        return;
    }
    if (place->node == MESH_NODE_OWN) {
        comms_meeting_join(comms, MESH_NODE_OWN, key, body.report, now_ns);
        return;
    }
    body.name = (char *)(uintptr_t)key->name;
    body.owner_uid = key->owner_uid;
    body.relay = place->is_relay;
    body.turn = place->is_relay ? turn_of(guest, place) : 0;
    Commd__Mesh__Message message = MESH_MESSAGE(MEET, meet, &body);
    mesh_tell(comms->mesh, place->node, &message);
}

static bool is_connected(const struct comms_guest *guest, const struct comms_place *place)
{
    return place->node == MESH_NODE_OWN || mesh_node_is_up(guest->comms->mesh, place->node);
}

/* Whether it turns to a relay next: as long as that helps. */
static bool wants_relay(const struct comms_guest *guest)
{
    return guest->groups > 0 && guest->place_count < MEETING_RELAYS_MAX;
}

/* Returns false if there is no further place. */
static bool turn_to_next(struct comms_guest *guest, uint64_t now_ns)
{
    uint32_t node;
    bool relay = wants_relay(guest);
    if (guest->place_count == MEETING_PLACES_MAX ||
        !(relay ? next_relay(guest, &node) : next_place(guest, &node))) {
        return false;
    }
    struct comms_place *place = &guest->places[guest->place_count++];
    *place = (struct comms_place){.node = node, .is_relay = relay, .needed = node != MESH_NODE_OWN};
    if (place->needed) {
        mesh_need(guest->comms->mesh, node, MESH_NEED_CALL);
    }
    if (is_connected(guest, place)) {
        say(guest, place, now_ns);
    }
    return true;
}

/* Whether it reports through relays: a communicator of that size does, unless this node is the place. */
static uint32_t groups_of(const struct comms_guest *guest, uint32_t size)
{
    uint32_t place;
    uint32_t groups = meeting_groups(size, mesh_configured_count(guest->comms->mesh) + 1);
    return groups > 0 && next_place(guest, &place) && place != MESH_NODE_OWN ? groups : 0;
}

struct comms_guest *comms_guest_new(struct comms *comms, const struct owned_name *key,
                                    const struct comms_guest_kind *kind, uint64_t now_ns)
{
    struct comms_guest *guest = calloc(1, sizeof *guest);
    if (guest == NULL) {
        return NULL;
    }
    guest->comms = comms;
    guest->key = *key;
    guest->reports = kind->reported_size > 0 || kind->relay != NULL;
    guest->relay = kind->relay;
    guest->groups = groups_of(guest, kind->reported_size);
    guest->next_ns = time_after(now_ns, MEETING_NEXT_NS);
    guest->turn_ns = time_after(now_ns, MEETING_NEXT_REPORTS_NS);
    uint32_t first = guest->reports ? MEETING_FIRST_REPORTS : MEETING_FIRST;
    for (uint32_t i = 0; i < first && turn_to_next(guest, now_ns); i++) {
    }
    return guest;
}

void comms_guest_turn(struct comms_guest *guest, uint64_t now_ns)
{
    if (guest != NULL && !guest->rests && (guest->groups == 0 || wants_relay(guest))) {
        guest->next_ns = guest->turn_ns = now_ns;
        arm(guest);
    }
}

void comms_guest_turn_to(struct comms_guest *guest, uint32_t count, uint64_t now_ns)
{
    while (guest->place_count < count && turn_to_next(guest, now_ns)) {
    }
}

uint64_t comms_guest_deadline_ns(const struct comms_guest *guest)
{
    return guest != NULL ? guest->next_ns : TIME_NEVER;
}

/* Whether a place has heard of it, or a relay. */
static bool is_with_place(const struct comms_guest *guest)
{
    for (uint32_t i = 0; i < guest->place_count; i++) {
        if (is_connected(guest, &guest->places[i])) {
            return true;
        }
    }
    return false;
}

/* The last turn to that node: it may be a relay, and then a place. Null: it has turned to it never. */
static struct comms_place *place_of(struct comms_guest *guest, uint32_t node)
{
    struct comms_place *place = NULL;
    for (uint32_t i = 0; guest != NULL && i < guest->place_count; i++) {
        place = guest->places[i].node == node ? &guest->places[i] : place;
    }
    return place;
}

bool comms_guest_has_later_roster(const struct comms_guest *guest, uint32_t node)
{
    bool has = false;
    for (uint32_t i = 0; i < guest->place_count; i++) {
        const struct comms_place *place = &guest->places[i];
        has = place->node != node && (has || (place->rosters > 0 && is_connected(guest, place)));
    }
    return has;
}

bool comms_guest_takes_roster(struct comms_guest *guest, uint32_t node)
{
    struct comms_place *place = place_of(guest, node);
    uint32_t places = place != NULL && place->is_relay ? MEETING_PLACES_MAX : 1;
    if (place == NULL || comms_guest_has_later_roster(guest, node) ||
        place->rosters >= places * COMMS_ROSTERS_OF_PLACE_MAX) {
        return false;
    }
    place->rosters++;
    return true;
}

void comms_guest_step(struct comms_guest *guest, uint64_t now_ns)
{
    if (guest == NULL || now_ns < guest->next_ns) {
        return;
    }
    if (guest->reports && is_with_place(guest) && now_ns < guest->turn_ns) {
        guest->next_ns = guest->turn_ns;
        return;
    }
    if (guest->groups > 0 && !wants_relay(guest) && is_with_place(guest)) {
        guest->next_ns = TIME_NEVER; /* until its relays are lost */
        return;
    }
    guest->turn_ns = time_after(now_ns, (guest->place_count + 1) * MEETING_NEXT_REPORTS_NS);
    guest->next_ns = time_after(now_ns, MEETING_NEXT_NS);
    if (!turn_to_next(guest, now_ns)) {
        guest->next_ns = TIME_NEVER;
    }
}

void comms_guest_node_up(struct comms_guest *guest, uint32_t node)
{
    for (uint32_t i = 0; guest != NULL && i < guest->place_count; i++) {
        if (guest->places[i].node == node) {
            say(guest, &guest->places[i], guest->comms->now_ns);
        }
    }
}

void comms_guest_node_down(struct comms_guest *guest, uint32_t node, uint64_t now_ns)
{
    if (guest != NULL && guest->reports && !guest->rests && comms_guest_knows(guest, node) &&
        !is_with_place(guest)) {
        guest->next_ns = now_ns;
        arm(guest);
    }
}

void comms_guest_report(const struct communicator *comm, uint64_t now_ns)
{
    struct comms_guest *guest = comm->guest;
    for (uint32_t i = 0; guest != NULL && i < guest->place_count; i++) {
        if (is_connected(guest, &guest->places[i])) {
            say(guest, &guest->places[i], now_ns);
        }
    }
}

void comms_guest_withdraw(const struct communicator *comm, const Commd__Mesh__Withdraw *end)
{
    const struct comms_guest *guest = comm->guest;
    for (uint32_t i = 0; guest != NULL && i < guest->place_count; i++) {
        uint32_t node = guest->places[i].node;
        if (node != MESH_NODE_OWN) {
            say_why(guest->comms, &guest->key, node, end);
            continue;
        }
        if (end->failed) {
            comms_meeting_end(guest->comms, node, node, &guest->key, end);
        }
        comms_meeting_leave(guest->comms, node, node, &guest->key);
        comms_relay_leave(guest->comms, node, &guest->key, end);
    }
}

void comms_guest_describe(const struct comms_guest *guest, struct comms_text *text)
{
    const char *before = "; reported through ";
    for (uint32_t i = 0; guest != NULL && i < guest->place_count; i++) {
        uint32_t node = guest->places[i].node;
        if (guest->places[i].is_relay && node != MESH_NODE_OWN) {
            comms_text_add(text, "%s%s", before, mesh_node_name(guest->comms->mesh, node));
            before = ", ";
        }
    }
}

/* --- The end --- */

/* A place that is to be told that a guest is gone, once it is connected. */
struct comms_farewell {
    struct comms_farewell *prev, *next; /* in comms->farewells, the oldest first */
    struct owned_name key;
    uint32_t node;
    uint64_t until_ns;
};

static void farewell_free(struct comms *comms, struct comms_farewell *farewell)
{
    DL_DELETE(comms->farewells, farewell);
    comms->farewell_count--;
    mesh_unneed(comms->mesh, farewell->node, MESH_NEED_CALL);
    free(farewell);
}

/* Without memory, or if there are too many, the place is not told: an old entry costs a connection. */
static void farewell_new(struct comms *comms, const struct owned_name *key, uint32_t node)
{
    if (comms->farewell_count >= MEETING_FAREWELLS_MAX || mesh_node_is_removed(comms->mesh, node) ||
        mesh_node_is_out_of_reach(comms->mesh, node)) {
        return;
    }
    struct comms_farewell *farewell = calloc(1, sizeof *farewell);
    if (farewell != NULL) {
        farewell->key = *key;
        farewell->node = node;
        farewell->until_ns = time_after(comms->now_ns, MEETING_FAREWELL_NS);
        DL_APPEND(comms->farewells, farewell);
        comms->farewell_count++;
        mesh_need(comms->mesh, node, MESH_NEED_CALL);
    }
}

void comms_farewells_node_up(struct comms *comms, uint32_t node)
{
    struct comms_farewell *farewell, *next;
    DL_FOREACH_SAFE(comms->farewells, farewell, next)
    {
        if (farewell->node == node) {
            say_why(comms, &farewell->key, node, NULL);
            farewell_free(comms, farewell);
        }
    }
}

uint64_t comms_farewells_deadline_ns(const struct comms *comms)
{
    return comms->farewells != NULL ? comms->farewells->until_ns : TIME_NEVER;
}

void comms_farewells_tick(struct comms *comms, uint64_t now_ns)
{
    while (comms->farewells != NULL && comms->farewells->until_ns <= now_ns) {
        farewell_free(comms, comms->farewells);
    }
}

void comms_guest_rest(struct comms_guest *guest)
{
    if (guest == NULL) {
        return;
    }
    guest->next_ns = TIME_NEVER;
    guest->rests = true;
    for (uint32_t i = 0; i < guest->place_count; i++) {
        if (guest->places[i].needed) {
            guest->places[i].needed = false;
            mesh_unneed(guest->comms->mesh, guest->places[i].node, MESH_NEED_CALL);
        }
    }
}

void comms_guest_free(struct comms_guest *guest)
{
    if (guest == NULL) {
        return;
    }
    for (uint32_t i = 0; i < guest->place_count && guest->relay == NULL; i++) {
        const struct comms_place *place = &guest->places[i];
        if (place->node == MESH_NODE_OWN) {
            comms_meeting_leave(guest->comms, MESH_NODE_OWN, MESH_NODE_OWN, &guest->key);
            comms_relay_leave(guest->comms, MESH_NODE_OWN, &guest->key, NULL);
        } else if (mesh_node_is_up(guest->comms->mesh, place->node)) {
            say_why(guest->comms, &guest->key, place->node, NULL);
        } else if (!guest->reports) { /* otherwise a later report counts more than this one */
            farewell_new(guest->comms, &guest->key, place->node);
        }
    }
    comms_guest_rest(guest);
    free(guest);
}

/* --- A communicator that is forming --- */

void comms_guest_announce(struct communicator *comm, uint64_t now_ns)
{
    if (!comm->announced || comm->guest != NULL || mesh_is_complete(comm->comms->mesh)) {
        return;
    }
    const struct comms_guest_kind kind = {.reported_size = comm->by_tree ? comm->terms.size : 0};
    comm->guest = comms_guest_new(comm->comms, &comm->key, &kind, now_ns);
    if (comm->guest == NULL) {
        struct error error;
        error_set(&error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", comm->name);
        communicator_fail(comm, &error, COMMS_TELL_NODES, now_ns);
    }
}

void comms_guest_meets(struct communicator *comm, uint32_t node, uint64_t now_ns)
{
    struct comms_claim *claim;
    struct error error;
    const struct comms_claim *present = comms_formation_claim(comm, node);
    bool known = present != NULL && (present->needed || !comm->by_tree);
    if (!mesh_user_may(comm->comms->mesh, comm->terms.owner_uid, node)) {
        return;
    }
    if (comms_formation_claim_make(comm, node, &claim, &error) != STATUS_OK) {
        communicator_fail(comm, &error, COMMS_TELL_NODES, now_ns);
        return;
    }
    comms_formation_need(comm, claim);
    if (!known) {
        comms_formation_announce_to(comm, node);
    }
}

void comms_guest_received(struct comms *comms, uint32_t node, const Commd__Mesh__Met *met, uint64_t now_ns)
{
    struct communicator *comm = communicator_find(comms, met->owner_uid, met->name);
    if (comm == NULL || !comms_guest_knows(comm->guest, node)) {
        return; /* it is over already */
    }
    if (met->elsewhere && comm->state == COMMS_COMM_FORMING) {
        turn_elsewhere(comm->guest, now_ns);
    }
    for (size_t i = 0; i < met->n_nodes && comm->state == COMMS_COMM_FORMING; i++) {
        uint32_t other;
        if (mesh_find_node(comms->mesh, met->nodes[i], &other)) {
            comms_guest_meets(comm, other, now_ns);
        }
    }
}
