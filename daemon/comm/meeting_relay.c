#include "daemon/comm/meeting_relay_internal.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/comm/formation.h"

/* --- Tables --- */

static struct comms_relay *relay_find(const struct comms *comms, const struct owned_name *key)
{
    struct comms_relay *relay = NULL;
    if (comms->relays != NULL) {
        size_t key_bytes = offsetof(struct owned_name, name) + strlen(key->name);
        HASH_FIND(hh, comms->relays->by_key, key, key_bytes, relay);
    }
    return relay;
}

static struct comms_relay *first_of(const struct comms *comms)
{
    return comms->relays != NULL ? comms->relays->by_key : NULL;
}

struct relayed *relay_guest(const struct comms_relay *relay, uint32_t node)
{
    struct relayed *guest = NULL;
    if (relay != NULL) {
        HASH_FIND(hh, relay->guests, &node, sizeof node, guest);
    }
    return guest;
}

/* Counts bytes of a node's reports. Returns false if there would be too many, or without memory. */
static bool charge(struct comms_relays *relays, uint32_t node, size_t size_bytes)
{
    struct relay_visitor *visitor;
    HASH_FIND(hh, relays->visitors, &node, sizeof node, visitor);
    size_t has_bytes = visitor != NULL ? visitor->size_bytes : 0;
    if (relays->size_bytes + size_bytes > MEETING_RELAY_MAX_BYTES ||
        has_bytes + size_bytes > MEETING_RELAY_NODE_MAX_BYTES) {
        return false;
    }
    if (visitor == NULL) {
        visitor = calloc(1, sizeof *visitor);
        if (visitor == NULL) {
            return false;
        }
        visitor->node = node;
        HASH_ADD(hh, relays->visitors, node, sizeof visitor->node, visitor);
        if (!table_has(visitor, hh)) {
            free(visitor);
            return false;
        }
    }
    visitor->size_bytes += size_bytes;
    relays->size_bytes += size_bytes;
    return true;
}

static void uncharge(struct comms_relays *relays, uint32_t node, size_t size_bytes)
{
    struct relay_visitor *visitor;
    HASH_FIND(hh, relays->visitors, &node, sizeof node, visitor);
    relays->size_bytes -= size_bytes;
    visitor->size_bytes -= size_bytes;
    if (visitor->size_bytes == 0) {
        HASH_DEL(relays->visitors, visitor);
        free(visitor);
    }
}

/* As if each guest had a relay of its own. */
static size_t cost_of(size_t report_bytes)
{
    return sizeof(struct comms_relay) + sizeof(struct comms_guest) + sizeof(struct relayed) + report_bytes;
}

static void relay_free(struct comms_relay *relay)
{
    HASH_DEL(relay->comms->relays->by_key, relay);
    comms_guest_free(relay->guest);
    free(relay->place_ranks);
    free(relay);
}

/* With its last guest the relay is gone. */
static void relayed_free(struct comms_relay *relay, struct relayed *guest)
{
    HASH_DEL(relay->guests, guest);
    uncharge(relay->comms->relays, guest->node, cost_of(guest->size_bytes));
    free(guest->bytes);
    free(guest);
    if (relay->guests == NULL) {
        relay_free(relay);
    }
}

static struct comms_relay *relay_make(struct comms *comms, const struct owned_name *key)
{
    struct comms_relay *relay = relay_find(comms, key);
    if (relay != NULL) {
        return relay;
    }
    relay = calloc(1, sizeof *relay);
    if (relay != NULL) {
        relay->comms = comms;
        relay->key = *key;
        relay->done_ns = TIME_NEVER;
        HASH_ADD(hh, comms->relays->by_key, key, offsetof(struct owned_name, name) + strlen(key->name),
                 relay);
        if (!table_has(relay, hh)) {
            free(relay);
            return NULL;
        }
    }
    return relay;
}

/* --- Coming and going --- */

static void tell_soon(struct comms_relays *relays, uint64_t now_ns)
{
    if (relays->tell_ns == TIME_NEVER) {
        uint64_t earliest_ns = time_after(relays->told_ns, MEETING_RELAY_PAUSE_NS);
        relays->tell_ns = time_after(now_ns, MEETING_RELAY_TELL_NS);
        relays->tell_ns = relays->tell_ns > earliest_ns ? relays->tell_ns : earliest_ns;
    }
}

void comms_relay_say(struct comms_relay *relay, uint32_t place)
{
    if (relay_knows_relays(relay->comms, place)) {
        relay_send_reports(relay, place, false);
    } else {
        relay->is_elsewhere = true;
        tell_soon(relay->comms->relays, relay->comms->now_ns);
    }
}

static bool make_relays(struct comms *comms)
{
    if (comms->relays == NULL) {
        comms->relays = calloc(1, sizeof *comms->relays);
        if (comms->relays != NULL) {
            comms->relays->tell_ns = TIME_NEVER;
        }
    }
    return comms->relays != NULL;
}

/* Returns false if it cannot be kept; then an earlier report is as it was. */
static bool keep(struct comms_relay *relay, uint32_t node, const Commd__Mesh__Announce *said)
{
    struct comms_relays *relays = relay->comms->relays;
    Commd__Mesh__Announce kept = *said;
    kept.name = (char *)(uintptr_t)protobuf_c_empty_string;
    kept.owner_uid = 0;
    kept.comm_id = 0;
    size_t size_bytes = commd__mesh__announce__get_packed_size(&kept);
    struct relayed *guest = relay_guest(relay, node);
    uint8_t *bytes = malloc(size_bytes);
    if (bytes == NULL || size_bytes > MEETING_RELAY_PART_BYTES / 2 ||
        !charge(relays, node, cost_of(size_bytes))) {
        free(bytes);
        return false;
    }
    if (guest == NULL) {
        guest = calloc(1, sizeof *guest);
        if (guest != NULL) {
            guest->node = node;
            HASH_ADD(hh, relay->guests, node, sizeof guest->node, guest);
        }
        if (guest == NULL || !table_has(guest, hh)) {
            free(guest);
            free(bytes);
            uncharge(relays, node, cost_of(size_bytes));
            return false;
        }
    } else {
        uncharge(relays, node, cost_of(guest->size_bytes));
    }
    commd__mesh__announce__pack(&kept, bytes);
    free(guest->bytes);
    guest->bytes = bytes;
    guest->size_bytes = size_bytes;
    guest->nonce = said->nonce;
    guest->is_new = true;
    guest->is_done = false;
    return true;
}

/* A guest of places, for the relay's guests. Returns false without memory. */
static bool turn_to_places(struct comms_relay *relay, uint64_t now_ns)
{
    if (relay->guest != NULL && relay->guest->rests) {
        comms_guest_free(relay->guest);
        relay->guest = NULL;
    }
    if (relay->guest == NULL) {
        relay->guest =
            comms_guest_new(relay->comms, &relay->key, &(struct comms_guest_kind){.relay = relay}, now_ns);
    }
    if (relay->guest != NULL) {
        comms_guest_turn_to(relay->guest, relay->turn + 1, now_ns);
    }
    return relay->guest != NULL;
}

static bool has_ranks(const struct communicator *comm)
{
    return comm != NULL && comm->state == COMMS_COMM_FORMING && comm->by_tree && comm->announced;
}

static bool report_is_sound(const Commd__Mesh__Announce *report)
{
    return report->terms != NULL && comms_announce_is_sound(report) && !report->answer && report->tree;
}

void comms_relay_join(struct comms *comms, uint32_t node, const struct owned_name *key,
                      const Commd__Mesh__Announce *report, uint32_t turn, uint64_t now_ns)
{
    struct comms_relay *relay = report_is_sound(report) && make_relays(comms) ? relay_make(comms, key) : NULL;
    const struct communicator *comm = communicator_find(comms, key->owner_uid, key->name);
    bool kept = relay != NULL && keep(relay, node, report);
    if (kept) {
        relay->turn = turn > relay->turn ? turn : relay->turn;
        relay->turn = relay->turn < MEETING_RELAYS_MAX ? relay->turn : MEETING_RELAYS_MAX - 1;
        relay->done_ns = TIME_NEVER;
        relay->is_new = true;
        kept = turn_to_places(relay, now_ns);
        tell_soon(comms->relays, now_ns);
    }
    if (!kept) {
        struct relayed *guest = relay_guest(relay, node);
        relay_send_elsewhere(comms, key, node);
        if (guest != NULL) {
            relayed_free(relay, guest);
        } else if (relay != NULL && relay->guests == NULL) {
            relay_free(relay);
        }
        return;
    }
    if (has_ranks(comm)) {
        relay_tell_own(comm, node);
    }
}

void comms_relay_leave(struct comms *comms, uint32_t node, const struct owned_name *key,
                       const Commd__Mesh__Withdraw *end)
{
    struct comms_relay *relay = relay_find(comms, key);
    struct relayed *guest = relay_guest(relay, node);
    if (guest != NULL) {
        relay_tell_gone(relay, guest, end);
        relayed_free(relay, guest);
    }
}

/* A guest's node, or a place with ranks, is lost: the end that others are told. */
static void end_of_lost(const struct comms_relay *relay, const struct error *cause, uint64_t nonce,
                        Commd__Mesh__Failure *failure, Commd__Mesh__Withdraw *out)
{
    commd__mesh__withdraw__init(out);
    out->name = (char *)(uintptr_t)relay->key.name;
    out->owner_uid = relay->key.owner_uid;
    out->nonce = nonce;
    out->status = cause->status;
    out->text = (char *)(uintptr_t)cause->text;
    out->failed = true;
    out->failure = failure;
    if (failure->n_ranks > CLIENT_FAILURE_RANKS_MAX) {
        failure->n_ranks = CLIENT_FAILURE_RANKS_MAX;
    }
}

static void guest_lost(struct comms_relay *relay, struct relayed *guest, const struct error *cause)
{
    Commd__Mesh__Announce *report = commd__mesh__announce__unpack(NULL, guest->size_bytes, guest->bytes);
    Commd__Mesh__Failure failure = COMMD__MESH__FAILURE__INIT;
    Commd__Mesh__Withdraw end;
    failure.node = (char *)(uintptr_t)mesh_node_name(relay->comms->mesh, guest->node);
    failure.rank_count = report != NULL ? (uint32_t)report->n_ranks : 0;
    failure.n_ranks = failure.rank_count;
    failure.ranks = report != NULL ? report->ranks : NULL;
    end_of_lost(relay, cause, guest->nonce, &failure, &end);
    relay_tell_gone(relay, guest, &end);
    if (report != NULL) {
        commd__mesh__announce__free_unpacked(report, NULL);
    }
    relayed_free(relay, guest);
}

static void place_lost(struct comms_relay *relay, uint32_t node, const struct error *cause, uint64_t now_ns)
{
    if (relay->place_ranks != NULL && relay->place == node) {
        Commd__Mesh__Failure failure = COMMD__MESH__FAILURE__INIT;
        Commd__Mesh__Withdraw end;
        failure.node = (char *)(uintptr_t)mesh_node_name(relay->comms->mesh, node);
        failure.rank_count = relay->place_rank_count;
        failure.n_ranks = relay->place_rank_count;
        failure.ranks = relay->place_ranks;
        end_of_lost(relay, cause, 0, &failure, &end);
        relay_tell_all_end(relay, node, &end);
        free(relay->place_ranks);
        relay->place_ranks = NULL;
    }
    comms_guest_node_down(relay->guest, node, now_ns);
}

void comms_relays_node_lost(struct comms *comms, uint32_t node, const struct error *cause, uint64_t now_ns)
{
    struct comms_relay *relay, *next;
    HASH_ITER (hh, first_of(comms), relay, next) {
        struct relayed *guest = relay_guest(relay, node);
        place_lost(relay, node, cause, now_ns);
        if (guest != NULL) {
            guest_lost(relay, guest, cause);
        }
    }
}

void comms_relays_node_up(struct comms *comms, uint32_t node)
{
    struct comms_relay *relay, *next;
    HASH_ITER (hh, first_of(comms), relay, next) {
        struct relayed *guest = relay_guest(relay, node);
        comms_guest_node_up(relay->guest, node);
        if (guest != NULL) {
            relayed_free(relay, guest); /* it says Meet again where it still is a guest */
        }
    }
}

void comms_relay_own_report(struct communicator *comm)
{
    const struct comms_relay *relay = relay_find(comm->comms, &comm->key);
    struct relayed *guest, *next;
    if (relay == NULL || !has_ranks(comm)) {
        return;
    }
    HASH_ITER (hh, relay->guests, guest, next) {
        relay_tell_own(comm, guest->node);
    }
}

/* The place has told the node of rank 0. */
static void believe_done(struct comms_relay *relay)
{
    struct relayed *guest, *next;
    bool all_done = true;
    relay->done_ns = TIME_NEVER;
    HASH_ITER (hh, relay->guests, guest, next) {
        guest->is_done = guest->is_done || !guest->is_new;
        all_done = all_done && guest->is_done;
    }
    if (all_done) {
        comms_guest_rest(relay->guest);
    }
}

/* A place says that every rank is there. If guests have turned to other relays before, it may lie: further
 * places are told, too. */
static void complete(struct comms_relay *relay, uint64_t now_ns)
{
    if (relay->turn == 0) {
        believe_done(relay);
    } else if (relay->done_ns == TIME_NEVER) {
        relay->done_ns = time_after(now_ns, MEETING_NEXT_REPORTS_NS);
    }
}

void comms_relay_received(struct comms *comms, uint32_t place, const Commd__Mesh__MetMany *met)
{
    struct owned_name key;
    if (!printable_is_name(met->name, COMM_NAME_MAX_BYTES)) {
        if (place != MESH_NODE_OWN) {
            mesh_violation(comms->mesh, place, "a malformed name of a communicator");
        }
        return;
    }
    (void)owned_name_make(&key, met->owner_uid, met->name);
    struct comms_relay *relay = relay_find(comms, &key);
    if (relay == NULL || !comms_guest_knows(relay->guest, place)) {
        return; /* it is over already */
    }
    if (met->complete) {
        complete(relay, comms->now_ns);
        return;
    }
    relay_hand_on(relay, place, met);
}

/* --- Time --- */

/* Forgets all guests, and with them the relay. */
static void forget(struct comms_relay *relay, bool tells)
{
    for (uint32_t left = HASH_COUNT(relay->guests); left > 0; left--) {
        struct relayed *guest = relay->guests;
        if (tells) {
            relay_send_elsewhere(relay->comms, &relay->key, guest->node);
        }
        relayed_free(relay, guest);
    }
}

void comms_relays_tick(struct comms *comms, uint64_t now_ns)
{
    struct comms_relays *relays = comms->relays;
    struct comms_relay *relay, *next;
    bool tells = relays != NULL && now_ns >= relays->tell_ns;
    if (tells) {
        relays->tell_ns = TIME_NEVER;
        relays->told_ns = now_ns;
    }
    HASH_ITER (hh, first_of(comms), relay, next) {
        comms_guest_step(relay->guest, now_ns);
        if (now_ns >= relay->done_ns) {
            believe_done(relay);
        }
        if (tells && relay->is_elsewhere) {
            forget(relay, true);
        } else if (tells && relay->is_new) {
            relay_tell_new(relay);
        }
    }
}

uint64_t comms_relays_deadline_ns(const struct comms *comms)
{
    const struct comms_relay *relay, *next;
    uint64_t deadline_ns = comms->relays != NULL ? comms->relays->tell_ns : TIME_NEVER;
    HASH_ITER (hh, first_of(comms), relay, next) {
        deadline_ns = time_min(deadline_ns, comms_guest_deadline_ns(relay->guest));
        deadline_ns = time_min(deadline_ns, relay->done_ns);
    }
    return deadline_ns;
}

void comms_relays_free(struct comms *comms)
{
    struct comms_relay *relay, *next;
    HASH_ITER (hh, first_of(comms), relay, next) {
        forget(relay, false);
    }
    free(comms->relays);
    comms->relays = NULL;
}
