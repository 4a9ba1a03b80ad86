#include "daemon/comm/meeting_internal.h"
#include "daemon/comm/meeting_relay.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

/* --- Tables --- */

static struct comms_meetings *meetings_of(struct comms *comms)
{
    if (comms->meetings == NULL) {
        comms->meetings = calloc(1, sizeof *comms->meetings);
    }
    return comms->meetings;
}

static size_t key_bytes_of(const struct owned_name *key)
{
    return offsetof(struct owned_name, name) + strlen(key->name);
}

struct meeting *meeting_find(const struct comms *comms, const struct owned_name *key)
{
    struct meeting *meeting = NULL;
    if (comms->meetings != NULL) {
        HASH_FIND(hh, comms->meetings->by_key, key, key_bytes_of(key), meeting);
    }
    return meeting;
}

struct guest *meeting_guest_find(const struct meeting *meeting, uint32_t node)
{
    struct guest *guest = NULL;
    if (meeting != NULL) {
        HASH_FIND(hh, meeting->by_node, &node, sizeof node, guest);
    }
    return guest;
}

/* Frees a meeting without guests, and a visitor without any. Both may be null. */
static void tidy(struct comms_meetings *meetings, struct meeting *meeting, struct visitor *visitor)
{
    struct meeting_trust *trust, *next;
    if (visitor != NULL && visitor->count == 0) {
        HASH_DEL(meetings->visitors, visitor);
        free(visitor);
    }
    if (meeting == NULL || meeting->guests != NULL) {
        return;
    }
    if (meeting->is_untold) {
        DL_DELETE(meetings->untold, meeting);
    }
    meeting_not_partial(meetings, meeting);
    HASH_ITER (hh, meeting->trusts, trust, next) {
        HASH_DEL(meeting->trusts, trust);
        free(trust);
    }
    HASH_DEL(meetings->by_key, meeting);
    free(meeting);
}

static void visitor_add(struct visitor *visitor, struct guest *guest)
{
    guest->visitor = visitor;
    DL_APPEND2(visitor->guests, guest, of_prev, of_next);
    visitor->count++;
}

static void visitor_remove(struct guest *guest)
{
    struct visitor *visitor = guest->visitor;
    DL_DELETE2(visitor->guests, guest, of_prev, of_next);
    visitor->count--;
}

static void guest_free(struct comms_meetings *meetings, struct guest *guest)
{
    struct meeting *meeting = guest->meeting;
    struct visitor *visitor = guest->visitor;
    DL_DELETE(meeting->guests, guest);
    HASH_DEL(meeting->by_node, guest);
    visitor_remove(guest);
    free(guest->report);
    free(guest);
    tidy(meetings, meeting, visitor);
}

static struct meeting *meeting_make(struct comms *comms, const struct owned_name *key)
{
    struct comms_meetings *meetings = comms->meetings;
    struct meeting *meeting = meeting_find(comms, key);
    if (meeting != NULL) {
        return meeting;
    }
    meeting = calloc(1, sizeof *meeting);
    if (meeting != NULL) {
        meeting->key = *key;
        HASH_ADD(hh, meetings->by_key, key, key_bytes_of(key), meeting);
        if (!table_has(meeting, hh)) {
            free(meeting);
            return NULL;
        }
    }
    return meeting;
}

static struct visitor *visitor_make(struct comms_meetings *meetings, uint32_t node)
{
    struct visitor *visitor;
    HASH_FIND(hh, meetings->visitors, &node, sizeof node, visitor);
    if (visitor != NULL) {
        return visitor;
    }
    visitor = calloc(1, sizeof *visitor);
    if (visitor != NULL) {
        visitor->node = node;
        HASH_ADD(hh, meetings->visitors, node, sizeof visitor->node, visitor);
        if (!table_has(visitor, hh)) {
            free(visitor);
            return NULL;
        }
    }
    return visitor;
}

/* Without memory it adds nobody: the nodes meet at another place. */
static struct guest *guest_make(struct comms *comms, struct visitor *visitor, uint32_t node,
                                const struct owned_name *key)
{
    struct meeting *meeting = meeting_make(comms, key);
    struct guest *guest = meeting_guest_find(meeting, node);
    if (meeting == NULL || guest != NULL) {
        return guest;
    }
    guest = calloc(1, sizeof *guest);
    if (guest != NULL) {
        guest->node = node;
        HASH_ADD(hh, meeting->by_node, node, sizeof guest->node, guest);
    }
    if (guest == NULL || !table_has(guest, hh)) {
        free(guest);
        tidy(comms->meetings, meeting, NULL);
        return NULL;
    }
    guest->meeting = meeting;
    DL_APPEND(meeting->guests, guest);
    visitor_add(visitor, guest);
    return guest;
}

struct guest *meeting_guest_join(struct comms *comms, uint32_t from, uint32_t node,
                                 const struct owned_name *key, const Commd__Mesh__Announce *report,
                                 bool *is_new)
{
    struct comms_meetings *meetings = meetings_of(comms);
    struct visitor *visitor = meetings != NULL ? visitor_make(meetings, from) : NULL;
    struct guest *guest = visitor != NULL ? guest_make(comms, visitor, node, key) : NULL;
    if (guest == NULL) {
        if (visitor != NULL) {
            tidy(meetings, NULL, visitor);
        }
        return NULL;
    }
    struct meeting *meeting = guest->meeting;
    if (guest->visitor != visitor) {
        struct visitor *before = guest->visitor;
        visitor_remove(guest);
        visitor_add(visitor, guest);
        tidy(meetings, NULL, before);
    }
    *is_new = guest->number == 0;
    DL_DELETE(meeting->guests, guest); /* it may have come before: the latest is last */
    DL_APPEND(meeting->guests, guest);
    guest->number = ++meeting->last_number;
    guest->told = 0;
    free(guest->report);
    guest->report = report != NULL ? meeting_report_new(report) : NULL;
    guest->is_odd = guest->is_old = false;
    return guest;
}

/* --- Coming and going --- */

void meeting_changed(struct comms *comms, struct meeting *meeting, uint64_t now_ns)
{
    struct comms_meetings *meetings = comms->meetings;
    if (!meeting->is_untold) {
        if (meetings->untold == NULL) {
            uint64_t earliest_ns = time_after(meetings->told_ns, MEETING_PAUSE_NS);
            meetings->tell_ns = time_after(now_ns, MEETING_TELL_NS);
            meetings->tell_ns = meetings->tell_ns > earliest_ns ? meetings->tell_ns : earliest_ns;
        }
        meeting->is_untold = true;
        DL_APPEND(meetings->untold, meeting);
    }
}

/* A visitor with too many guests loses its oldest one. */
static void limit(struct comms_meetings *meetings, const struct visitor *visitor)
{
    if (visitor->count > MEETING_GUESTS_MAX) {
        guest_free(meetings, visitor->guests);
    }
}

void comms_meeting_join(struct comms *comms, uint32_t node, const struct owned_name *key,
                        const Commd__Mesh__Announce *report, uint64_t now_ns)
{
    bool is_new;
    struct guest *guest = meeting_guest_join(comms, node, node, key, report, &is_new);
    if (guest == NULL) {
        return;
    }
    guest->is_relayed = false;
    if (is_new && guest->report != NULL) {
        if (node == MESH_NODE_OWN) {
            meeting_own_report_came(comms, guest->meeting);
        } else {
            meeting_tell_own_report(comms, &(struct guest *){guest}, 1);
        }
    }
    meeting_changed(comms, guest->meeting, now_ns);
    limit(comms->meetings, guest->visitor);
}

void meeting_join_many(struct comms *comms, uint32_t relay, const struct owned_name *key,
                       const Commd__Mesh__Announce *reports, const uint32_t *nodes, uint32_t count,
                       uint64_t now_ns)
{
    struct guest **came = calloc((size_t)count + 1, sizeof(struct guest *));
    struct meeting *meeting = NULL;
    uint32_t new_count = 0;
    bool own_came = false;
    for (uint32_t i = 0; came != NULL && i < count; i++) {
        bool is_new;
        struct guest *guest = meeting_guest_join(comms, relay, nodes[i], key, &reports[i], &is_new);
        if (guest == NULL) {
            continue;
        }
        guest->is_relayed = true;
        meeting = guest->meeting;
        if (is_new && guest->report != NULL && nodes[i] == MESH_NODE_OWN) {
            own_came = true;
        } else if (is_new && guest->report != NULL) {
            came[new_count++] = guest;
        }
    }
    if (own_came) {
        meeting_own_report_came(comms, meeting);
    } else {
        meeting_tell_own_report(comms, came, new_count);
    }
    if (meeting != NULL) {
        struct visitor *visitor = meeting->guests->prev->visitor; /* of the guest that came last */
        meeting_changed(comms, meeting, now_ns);
        for (uint32_t i = 0; i < count; i++) {
            limit(comms->meetings, visitor);
        }
    }
    free(came);
}

void comms_meeting_leave(struct comms *comms, uint32_t visitor, uint32_t node, const struct owned_name *key)
{
    struct meeting *meeting = meeting_find(comms, key);
    struct guest *guest = meeting_guest_find(meeting, node);
    if (guest != NULL && guest->visitor->node == visitor) {
        bool reported = guest->report != NULL && !guest->is_old;
        bool last = meeting->guests->next == NULL;
        guest_free(comms->meetings, guest);
        if (reported && !last) { /* a report that contradicted that one may fit now */
            meeting_changed(comms, meeting, comms->now_ns);
        }
    }
}

void comms_meeting_end(struct comms *comms, uint32_t visitor, uint32_t node, const struct owned_name *key,
                       const Commd__Mesh__Withdraw *end)
{
    const struct guest *guest = meeting_guest_find(meeting_find(comms, key), node);
    if (guest != NULL && guest->visitor->node == visitor && guest->report != NULL && !guest->is_odd) {
        meeting_tell_end(comms, guest, end);
    }
}

void comms_meeting_received(struct comms *comms, uint32_t node, const Commd__Mesh__Meet *meet,
                            uint64_t now_ns)
{
    struct owned_name key;
    if (!printable_is_name(meet->name, COMM_NAME_MAX_BYTES)) {
        mesh_violation(comms->mesh, node, "a malformed name of a communicator");
        return;
    }
    if (!comms_user_may_say(comms, meet->owner_uid, node, meet->name, now_ns)) {
        return;
    }
    (void)owned_name_make(&key, meet->owner_uid, meet->name);
    if (meet->over) {
        if (meet->end != NULL && meet->end->failed) {
            comms_meeting_end(comms, node, node, &key, meet->end);
        }
        comms_meeting_leave(comms, node, node, &key);
        comms_relay_leave(comms, node, &key, meet->end);
    } else if (meet->relay && meet->report != NULL) {
        comms_relay_join(comms, node, &key, meet->report, meet->turn, now_ns);
    } else {
        comms_meeting_join(comms, node, &key, meet->report, now_ns);
    }
}

void comms_meeting_node_lost(struct comms *comms, uint32_t node, const struct error *cause)
{
    struct visitor *visitor = NULL;
    if (comms->meetings != NULL) {
        HASH_FIND(hh, comms->meetings->visitors, &node, sizeof node, visitor);
    }
    for (uint32_t left = visitor != NULL ? visitor->count : 0; left > 0; left--) {
        struct guest *guest = visitor->guests;
        bool lost = cause != NULL && guest->node == node; /* guests of a lost relay turn to another one */
        if (lost && guest->report != NULL && !guest->is_odd) {
            meeting_tell_lost(comms, guest, cause);
        }
        guest_free(comms->meetings, guest); /* with the last one the visitor is gone */
    }
}

void comms_meeting_free(struct comms *comms)
{
    while (comms->meetings != NULL && comms->meetings->visitors != NULL) {
        comms_meeting_node_lost(comms, comms->meetings->visitors->node, NULL);
    }
    free(comms->meetings);
    comms->meetings = NULL;
}

/* --- Telling --- */

static void tell_names(struct comms *comms, struct guest *guest, char **names, size_t count)
{
    Commd__Mesh__Met body = COMMD__MESH__MET__INIT;
    body.name = guest->meeting->key.name;
    body.owner_uid = guest->meeting->key.owner_uid;
    body.nodes = names;
    body.n_nodes = count;
    Commd__Mesh__Message message = MESH_MESSAGE(MET, met, &body);
    if (meeting_reaches(comms, guest)) {
        meeting_send(comms, guest, &message);
    }
}

/* Tells the guest of those that came after what it knows. A guest without a connection will say Meet again if
 * it is still interested. */
static void tell_guest(struct comms *comms, struct guest *guest)
{
    char *names[MEETING_NAMES_MAX];
    size_t count = 0;
    struct guest *other;
    for (other = guest->meeting->guests->prev; other->number > guest->told; other = other->prev) {
        if (other != guest) {
            uint32_t node = other->node;
            names[count++] = (char *)(uintptr_t)mesh_node_name(comms->mesh, node);
        }
        if (count == MEETING_NAMES_MAX) {
            tell_names(comms, guest, names, count);
            count = 0;
        }
        if (other == guest->meeting->guests) {
            break;
        }
    }
    if (count > 0) {
        tell_names(comms, guest, names, count);
    }
    guest->told = guest->meeting->last_number;
}

static struct guest *next_untold(const struct guest *guest)
{
    struct guest *other;
    DL_FOREACH(guest->meeting->guests, other)
    {
        if (other->number > guest->told && other != guest) {
            return other;
        }
    }
    return NULL;
}

/* Tells this node's communicator. It may fail, and leave the meeting: so each step looks for both again. */
static void tell_own(struct comms *comms, const struct owned_name *key, uint64_t now_ns)
{
    for (;;) {
        struct guest *guest = meeting_guest_find(meeting_find(comms, key), MESH_NODE_OWN);
        const struct guest *other = guest != NULL ? next_untold(guest) : NULL;
        struct communicator *comm = communicator_find(comms, key->owner_uid, key->name);
        if (other == NULL || comm == NULL || comm->state != COMMS_COMM_FORMING) {
            return;
        }
        guest->told = other->number;
        comms_guest_meets(comm, other->node, now_ns);
    }
}

static void tell_all(struct comms *comms, const struct meeting *meeting, uint64_t now_ns)
{
    struct owned_name key = meeting->key;
    struct guest *guest;
    DL_FOREACH(meeting->guests, guest)
    {
        if (guest->node != MESH_NODE_OWN) {
            tell_guest(comms, guest);
        }
    }
    tell_own(comms, &key, now_ns);
}

static void tell_partial(struct comms *comms, uint64_t now_ns)
{
    struct comms_meetings *meetings = comms->meetings;
    if (now_ns < meetings->partial_ns) {
        return;
    }
    while (meetings->partial != NULL) {
        struct meeting *meeting = meetings->partial;
        meeting_not_partial(meetings, meeting);
        meeting_tell_partial(comms, meeting);
    }
}

void comms_meeting_tick(struct comms *comms, uint64_t now_ns)
{
    struct comms_meetings *meetings = comms->meetings;
    if (meetings == NULL) {
        return;
    }
    tell_partial(comms, now_ns);
    if (meetings->untold == NULL || now_ns < meetings->tell_ns) {
        return;
    }
    meetings->told_ns = now_ns;
    while (meetings->untold != NULL) {
        struct meeting *meeting = meetings->untold;
        DL_DELETE(meetings->untold, meeting);
        meeting->is_untold = false;
        if (meeting_is_reported(comms, meeting)) {
            meeting_tell_reports(comms, meeting, now_ns);
        } else {
            tell_all(comms, meeting, now_ns);
        }
    }
}

uint64_t comms_meeting_deadline_ns(const struct comms *comms)
{
    const struct comms_meetings *meetings = comms->meetings;
    uint64_t untold_ns = meetings != NULL && meetings->untold != NULL ? meetings->tell_ns : TIME_NEVER;
    return meetings != NULL && meetings->partial != NULL ? time_min(untold_ns, meetings->partial_ns)
                                                         : untold_ns;
}
