#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/comm/comms_tree.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/meeting_internal.h"
#include "daemon/comm/roster.h"

/* A place's reports, and the rosters that it makes of them: see roster.h. */

#define REPORT_MAX_BYTES 16384u

/* --- Reports --- */

struct comms_report *meeting_report_new(const Commd__Mesh__Announce *said)
{
    Commd__Mesh__Announce kept = *said;
    if (said->terms == NULL || !comms_announce_is_sound(said) || said->answer || !said->tree) {
        return NULL;
    }
    kept.name = (char *)(uintptr_t)protobuf_c_empty_string;
    kept.owner_uid = 0;
    kept.terms = NULL;
    kept.comm_id = 0;
    size_t size_bytes = commd__mesh__announce__get_packed_size(&kept);
    struct comms_report *report =
        size_bytes <= REPORT_MAX_BYTES ? calloc(1, sizeof *report + size_bytes) : NULL;
    if (report != NULL) {
        comms_terms_from_wire(said->terms, &report->terms);
        report->nonce = said->nonce;
        report->size_bytes = size_bytes;
        commd__mesh__announce__pack(&kept, report->bytes);
    }
    return report;
}

/* Whether it is of an older version, which forms with connections to all. */
static bool cannot_report(const struct comms *comms, const struct guest *guest)
{
    return guest->node != MESH_NODE_OWN && !mesh_node_offers(comms->mesh, guest->node, MESH_OFFERS_RELAYS);
}

bool meeting_is_reported(const struct comms *comms, const struct meeting *meeting)
{
    const struct guest *guest;
    bool any = false;
    DL_FOREACH(meeting->guests, guest)
    {
        if (guest->report == NULL && cannot_report(comms, guest)) {
            return false;
        }
        any = any || guest->report != NULL;
    }
    return any;
}

/* --- What they say together --- */

struct view {
    struct guest *first;             /* whose terms count */
    struct guest **owners;           /* by rank */
    struct guest **fitting;          /* guests that do not contradict earlier ones */
    Commd__Mesh__Announce **reports; /* theirs */
    uint32_t count;
    uint64_t rank_count;
};

static void view_clear(struct view *view)
{
    for (uint32_t i = 0; view->reports != NULL && i < view->count; i++) {
        commd__mesh__announce__free_unpacked(view->reports[i], NULL);
    }
    free(view->owners);
    free(view->fitting);
    free(view->reports);
}

/* Tells a guest of another one: they connect, and settle what is between them. */
static void introduce(struct comms *comms, struct guest *guest, const struct guest *other)
{
    Commd__Mesh__Met body = COMMD__MESH__MET__INIT;
    char *name = (char *)(uintptr_t)mesh_node_name(comms->mesh, other->node);
    body.name = (char *)(uintptr_t)guest->meeting->key.name;
    body.owner_uid = guest->meeting->key.owner_uid;
    body.nodes = &name;
    body.n_nodes = 1;
    Commd__Mesh__Message message = MESH_MESSAGE(MET, met, &body);
    if (meeting_reaches(comms, guest)) {
        meeting_send(comms, guest, &message);
    }
}

/* The guest that this one contradicts; null: none. */
static struct guest *contradicted(const struct view *view, const struct guest *guest,
                                  const Commd__Mesh__Announce *report)
{
    char asks[96], has[96];
    if (comms_terms_differ(&guest->report->terms, &view->first->report->terms, asks, has, sizeof asks)) {
        return view->first;
    }
    for (size_t i = 0; i < report->n_ranks; i++) {
        if (view->owners[report->ranks[i]] != NULL) {
            return view->owners[report->ranks[i]];
        }
    }
    return NULL;
}

/* They do not fit together. */
static void introduce_both(struct comms *comms, struct guest *odd, struct guest *other)
{
    if (!odd->is_odd) {
        introduce(comms, odd, other);
        introduce(comms, other, odd);
    }
    odd->is_odd = true;
}

/* Adds a guest's report to the view, unless it contradicts it. A guest without one asks for another
 * communicator, or drains. Returns false without memory. */
static bool add(struct comms *comms, struct view *view, struct guest *guest)
{
    if (guest->report == NULL) {
        introduce_both(comms, guest, view->first);
        return true;
    }
    Commd__Mesh__Announce *report =
        commd__mesh__announce__unpack(NULL, guest->report->size_bytes, guest->report->bytes);
    if (report == NULL) {
        return false;
    }
    struct guest *other = contradicted(view, guest, report);
    if (other != NULL) {
        introduce_both(comms, guest, other);
        commd__mesh__announce__free_unpacked(report, NULL);
        return true;
    }
    guest->is_odd = false;
    for (size_t i = 0; i < report->n_ranks; i++) {
        view->owners[report->ranks[i]] = guest;
    }
    view->rank_count += report->n_ranks;
    view->fitting[view->count] = guest;
    view->reports[view->count++] = report;
    return true;
}

/* Earlier reports count more than later ones, and new ones more than those of a communicator that may be
 * over. Returns false without memory. */
static bool view_make(struct comms *comms, const struct meeting *meeting, struct view *view)
{
    struct guest *guest;
    size_t guests = 0;
    *view = (struct view){0};
    DL_FOREACH(meeting->guests, guest)
    {
        guests++;
        if (guest->report != NULL && (view->first == NULL || (view->first->is_old && !guest->is_old))) {
            view->first = guest;
        }
    }
    view->owners = calloc(view->first->report->terms.size, sizeof(struct guest *));
    view->fitting = calloc(guests, sizeof(struct guest *));
    view->reports = calloc(guests, sizeof(Commd__Mesh__Announce *));
    bool made = view->owners != NULL && view->fitting != NULL && view->reports != NULL;
    for (unsigned old = 0; old < 2; old++) {
        DL_FOREACH(meeting->guests, guest)
        {
            if (made && guest->is_old == (old == 1)) {
                made = add(comms, view, guest);
            }
        }
    }
    return made;
}

/* --- Telling --- */

struct receivers {
    struct comms *comms;
    struct guest **guests;
    uint32_t count;
};

static void send_part(void *context, const uint8_t *bytes, size_t size_bytes)
{
    const struct receivers *to = context;
    meeting_send_packed(to->comms, to->guests, to->count, bytes, size_bytes);
}

static void tell_view(struct comms *comms, const struct meeting *meeting, const struct view *view,
                      struct receivers *to, bool is_complete)
{
    struct comms_roster roster = {.name = meeting->key.name,
                                  .owner_uid = meeting->key.owner_uid,
                                  .is_complete = is_complete,
                                  .count = view->count};
    roster.items = calloc((size_t)view->count + 1, sizeof *roster.items);
    for (uint32_t i = 0; roster.items != NULL && i < view->count; i++) {
        roster.items[i].node = mesh_node_name(comms->mesh, view->fitting[i]->node);
        roster.items[i].report = *view->reports[i];
    }
    if (roster.items != NULL) {
        (void)comms_roster_write(&roster, send_part, to);
    }
    free(roster.items);
}

static void partial_soon(struct comms_meetings *meetings, struct meeting *meeting, uint64_t now_ns)
{
    if (!meeting->is_partial) {
        if (meetings->partial == NULL) {
            meetings->partial_ns = time_after(now_ns, MEETING_PARTIAL_NS);
        }
        meeting->is_partial = true;
        DL_APPEND2(meetings->partial, meeting, partial_prev, partial_next);
    }
}

void meeting_not_partial(struct comms_meetings *meetings, struct meeting *meeting)
{
    if (meeting->is_partial) {
        meeting->is_partial = false;
        DL_DELETE2(meetings->partial, meeting, partial_prev, partial_next);
    }
}

void meeting_tell_reports(struct comms *comms, struct meeting *meeting, uint64_t now_ns)
{
    struct view view;
    if (view_make(comms, meeting, &view) && view.rank_count == view.first->report->terms.size) {
        struct receivers root = {.comms = comms, .guests = &view.owners[0], .count = 1};
        tell_view(comms, meeting, &view, &root, true);
        meeting_not_partial(comms->meetings, meeting);
        for (uint32_t i = 0; i < view.count; i++) {
            view.fitting[i]->is_old = true;
        }
        meeting_tell_complete(comms, view.fitting, view.count);
    } else {
        partial_soon(comms->meetings, meeting, now_ns);
    }
    view_clear(&view);
}

void meeting_tell_partial(struct comms *comms, struct meeting *meeting)
{
    struct view view;
    if (!meeting_is_reported(comms, meeting)) {
        return;
    }
    if (view_make(comms, meeting, &view)) {
        struct guest **guests = malloc(((size_t)view.count + 1) * sizeof *guests);
        struct receivers all = {.comms = comms, .guests = guests, .count = view.count};
        if (guests != NULL) {
            memcpy(guests, view.fitting, view.count * sizeof *guests);
            tell_view(comms, meeting, &view, &all, false);
        }
        free(guests);
    }
    view_clear(&view);
}

static const struct guest *own_of(const struct meeting *meeting)
{
    const struct guest *guest = meeting_guest_find(meeting, MESH_NODE_OWN);
    return guest != NULL && guest->report != NULL && !guest->is_old && !guest->is_odd ? guest : NULL;
}

static void tell_of_own(struct comms *comms, const struct guest *own, struct receivers *to)
{
    struct comms_roster_item item = {.node = mesh_own_name(comms->mesh)};
    struct comms_roster roster = {.name = own->meeting->key.name,
                                  .owner_uid = own->meeting->key.owner_uid,
                                  .adds = true,
                                  .items = &item,
                                  .count = 1};
    Commd__Mesh__Announce *report =
        commd__mesh__announce__unpack(NULL, own->report->size_bytes, own->report->bytes);
    if (report != NULL) {
        item.report = *report;
        (void)comms_roster_write(&roster, send_part, to);
        commd__mesh__announce__free_unpacked(report, NULL);
    }
}

void meeting_tell_own_report(struct comms *comms, struct guest **guests, uint32_t count)
{
    const struct guest *own = count > 0 ? own_of(guests[0]->meeting) : NULL;
    if (own != NULL) {
        tell_of_own(comms, own, &(struct receivers){.comms = comms, .guests = guests, .count = count});
    }
}

void meeting_own_report_came(struct comms *comms, const struct meeting *meeting)
{
    struct view view;
    if (!meeting_is_reported(comms, meeting)) {
        return; /* all are told of all, and connect */
    }
    if (view_make(comms, meeting, &view)) { /* says whether it contradicts earlier ones */
        const struct guest *own = own_of(meeting);
        uint32_t others = 0;
        for (uint32_t i = 0; i < view.count; i++) {
            if (view.fitting[i] != own) {
                view.fitting[others++] = view.fitting[i];
            }
        }
        if (own != NULL) {
            tell_of_own(comms, own,
                        &(struct receivers){.comms = comms, .guests = view.fitting, .count = others});
        }
    }
    view_clear(&view);
}

void meeting_tell_lost(struct comms *comms, const struct guest *lost, const struct error *cause)
{
    Commd__Mesh__Withdraw end = COMMD__MESH__WITHDRAW__INIT;
    end.name = lost->meeting->key.name;
    end.owner_uid = lost->meeting->key.owner_uid;
    end.nonce = lost->report->nonce;
    end.status = cause->status;
    end.text = (char *)(uintptr_t)cause->text;
    end.failed = true;
    Commd__Mesh__Announce *report =
        commd__mesh__announce__unpack(NULL, lost->report->size_bytes, lost->report->bytes);
    Commd__Mesh__Failure failure = COMMD__MESH__FAILURE__INIT;
    if (report != NULL) {
        failure.rank_count = (uint32_t)report->n_ranks;
        failure.n_ranks =
            report->n_ranks < CLIENT_FAILURE_RANKS_MAX ? report->n_ranks : CLIENT_FAILURE_RANKS_MAX;
        failure.ranks = report->ranks;
        failure.node = (char *)(uintptr_t)mesh_node_name(comms->mesh, lost->node);
        end.failure = &failure;
    }
    meeting_tell_end(comms, lost, &end);
    commd__mesh__announce__free_unpacked(report, NULL);
}

void meeting_tell_end(struct comms *comms, const struct guest *ended, const Commd__Mesh__Withdraw *end)
{
    const struct meeting *meeting = ended->meeting;
    struct guest **others = malloc((size_t)HASH_COUNT(meeting->by_node) * sizeof *others);
    uint32_t count = 0;
    Commd__Mesh__Roster body = COMMD__MESH__ROSTER__INIT;
    struct guest *guest;
    body.name = (char *)(uintptr_t)meeting->key.name;
    body.owner_uid = meeting->key.owner_uid;
    body.ended_by = (char *)(uintptr_t)mesh_node_name(comms->mesh, ended->node);
    body.end = (Commd__Mesh__Withdraw *)(uintptr_t)end;
    DL_FOREACH(meeting->guests, guest)
    {
        if (others != NULL && guest != ended && guest->report != NULL && !guest->is_odd &&
            guest->is_old == ended->is_old) {
            others[count++] = guest;
        }
    }
    meeting_send_end(comms, others, count, &body);
    free(others);
}
