#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/gather/gathers_internal.h"

/* The names for which this node decides, and who has told it of processes. */

#define NOTHING_TOLD UINT32_MAX
#define GENERATION_MAX (UINT64_C(1) << 62) /* of no honest node: so adding one is always right */

void gathers_meeting_undecided(struct gathers_meeting *meeting)
{
    if (!meeting->is_undecided) {
        meeting->is_undecided = true;
        DL_APPEND(meeting->gathers->undecided, meeting);
    }
    meeting->gathers->has_work = true;
}

static void meeting_unlist(struct gathers_meeting *meeting)
{
    if (meeting->is_undecided) {
        meeting->is_undecided = false;
        DL_DELETE(meeting->gathers->undecided, meeting);
    }
}

static void party_free(struct gathers_party *party)
{
    struct gathers_meeting *meeting = party->meeting;
    DL_DELETE(meeting->parties, party);
    budget_release(meeting->account, BUDGET_COMMUNICATOR_BYTES, party->charged_bytes);
    free(party->guests);
    free(party);
}

static void meeting_free(struct gathers_meeting *meeting)
{
    while (meeting->parties != NULL) {
        party_free(meeting->parties);
    }
    meeting_unlist(meeting);
    HASH_DEL(meeting->gathers->meetings, meeting);
    budget_close(meeting->account);
    free(meeting);
}

void gathers_place_free(struct gathers *gathers)
{
    while (gathers->meetings != NULL) {
        meeting_free(gathers->meetings);
    }
}

/* --- Construction --- */

static struct gathers_meeting *meeting_find(const struct gathers *gathers, const struct owned_name *key,
                                            size_t key_bytes)
{
    struct gathers_meeting *meeting;
    HASH_FIND(hh, gathers->meetings, key, key_bytes, meeting);
    return meeting;
}

/* Null without memory: the processes wait, and their nodes say so in the end. */
static struct gathers_meeting *meeting_make(struct gathers *gathers, const struct owned_name *key,
                                            size_t key_bytes, uint64_t now_ns)
{
    struct gathers_meeting *meeting = meeting_find(gathers, key, key_bytes);
    if (meeting != NULL) {
        return meeting;
    }
    meeting = calloc(1, sizeof *meeting);
    if (meeting == NULL) {
        return NULL;
    }
    struct error error;
    meeting->gathers = gathers;
    meeting->key = *key;
    meeting->next_ns = TIME_NEVER;
    if (gathers_choose(gathers, key, true, NULL, now_ns) != MESH_NODE_OWN) {
        meeting->grace_ns = time_after(now_ns, GATHERS_GRACE_NS);
    }
    bool fits = gathers->budget == NULL ||
                budget_open(gathers->budget, key->owner_uid, NULL, &meeting->account, &error) == STATUS_OK;
    if (fits) {
        HASH_ADD(hh, gathers->meetings, key, key_bytes, meeting);
    }
    if (!fits || !table_has(meeting, hh)) {
        budget_close(meeting->account);
        free(meeting);
        return NULL;
    }
    return meeting;
}

static struct gathers_party *party_find(const struct gathers_meeting *meeting, uint32_t node)
{
    struct gathers_party *party;
    DL_FOREACH(meeting->parties, party)
    {
        if (party->node == node) {
            return party;
        }
    }
    return NULL;
}

/* How many names the node has here. */
static uint32_t names_of(const struct gathers *gathers, uint32_t node)
{
    uint32_t count = 0;
    for (const struct gathers_meeting *meeting = gathers->meetings; meeting != NULL;
         meeting = meeting->hh.next) {
        count += party_find(meeting, node) != NULL;
    }
    return count;
}

/* Parties are ordered by their nodes' names, so the ranks of a node follow each other. */
static struct gathers_party *party_make(struct gathers_meeting *meeting, uint32_t node)
{
    const struct gathers *gathers = meeting->gathers;
    struct gathers_party *party = party_find(meeting, node), *before;
    if (party != NULL) {
        return party;
    }
    if (names_of(gathers, node) >= GATHERS_NAMES_MAX || (party = calloc(1, sizeof *party)) == NULL) {
        return NULL;
    }
    party->meeting = meeting;
    party->node = node;
    party->told_waiting = NOTHING_TOLD;
    party->told_voids = meeting->void_count;
    DL_FOREACH(meeting->parties, before)
    {
        if (strcmp(mesh_node_name(gathers->mesh, before->node), mesh_node_name(gathers->mesh, node)) > 0) {
            DL_PREPEND_ELEM(meeting->parties, before, party);
            return party;
        }
    }
    DL_APPEND(meeting->parties, party);
    return party;
}

/* --- Reports --- */

static const struct gathers_guest *guest_find(const struct gathers_party *party, uint64_t id)
{
    for (uint32_t i = 0; i < party->count; i++) {
        if (party->guests[i].id == id) {
            return &party->guests[i];
        }
    }
    return NULL;
}

/* What another place has given, and what has not formed yet. */
static void inherit(struct gathers_meeting *meeting, const Commd__Mesh__GatherEntry *entry, uint64_t now_ns,
                    struct gathers_guest *out)
{
    out->seated = entry->settled ? 0 : entry->seated;
    out->grown =
        (struct gathers_formation){{entry->grown_generation, entry->grown_nonce}, entry->grown_seated};
    meeting->generation = out->grown.number.generation > meeting->generation ? out->grown.number.generation
                                                                             : meeting->generation;
    if ((out->seated > 0 || out->grown.seated > 0) && meeting->inherited_ns == 0) {
        meeting->inherited_ns = time_after(now_ns, GATHERS_GRACE_NS);
    }
}

/* What this node knows of a guest stays, if it is newer: the report may have been sent before its answer
 * came. */
static void guest_take(struct gathers_meeting *meeting, const struct gathers_party *party,
                       const Commd__Mesh__GatherEntry *entry, uint64_t now_ns, struct gathers_guest *out)
{
    const struct gathers_guest *was = guest_find(party, entry->id);
    *out = was != NULL ? *was : (struct gathers_guest){.id = entry->id, .came = ++meeting->last_came};
    if (was == NULL && entry->generation == 0) {
        meeting->last_came_ns = now_ns;
    } else if (was == NULL) {
        inherit(meeting, entry, now_ns, out);
    }
    if (was == NULL || entry->generation > out->generation ||
        (entry->generation == out->generation && entry->settled)) {
        out->generation = entry->generation;
        out->nonce = entry->nonce;
        out->settled = entry->settled;
        out->is_void = false;
    }
    out->minority_continues = entry->minority_continues;
    out->least = entry->least;
    out->most = entry->most;
    out->last_call_ns = time_min(entry->last_call_ms, UINT32_MAX) * TIME_MS;
    out->grow_number = entry->grow_number;
    out->grow_from = entry->grow_from;
    out->grow_to = entry->grow_to;
    meeting->generation = out->generation > meeting->generation ? out->generation : meeting->generation;
}

static bool has_entry(const Commd__Mesh__Gather *report, uint64_t id)
{
    for (size_t i = 0; i < report->n_entries; i++) {
        if (report->entries[i]->id == id) {
            return true;
        }
    }
    return false;
}

void gathers_make_void(struct gathers_meeting *meeting, const struct gathers_number *number)
{
    struct gathers_party *party;
    meeting->voids[meeting->void_count++ % GATHERS_VOIDS_MAX] = *number;
    DL_FOREACH(meeting->parties, party)
    {
        for (uint32_t i = 0; i < party->count; i++) {
            struct gathers_guest *guest = &party->guests[i];
            guest->is_void = guest->is_void || (guest->generation == number->generation && !guest->settled);
        }
    }
}

bool gathers_grows_in_vain(const struct gathers_guest *guest)
{
    return guest->grown.number.generation > guest->generation;
}

/* A generation that one of its ranks has left before it had formed. No report: all have left. */
static void note_voids(struct gathers_party *party, const Commd__Mesh__Gather *report)
{
    for (uint32_t i = 0; i < party->count; i++) {
        const struct gathers_guest *guest = &party->guests[i];
        bool left = report == NULL || !has_entry(report, guest->id);
        if (guest->generation != 0 && !guest->settled && !guest->is_void && left) {
            struct gathers_number number = {guest->generation, guest->nonce};
            gathers_make_void(party->meeting, &number);
        }
        if (gathers_grows_in_vain(guest) && left) {
            gathers_make_void(party->meeting, &guest->grown.number);
        }
    }
}

/* Replaces the guests. Returns false without memory or budget: the party keeps those that it had. */
static bool party_take(struct gathers_party *party, const Commd__Mesh__Gather *report, uint64_t now_ns)
{
    struct gathers_meeting *meeting = party->meeting;
    size_t bytes = sizeof *party + report->n_entries * sizeof *party->guests;
    struct error error;
    if (budget_charge(meeting->account, BUDGET_COMMUNICATOR_BYTES, bytes, &error) != STATUS_OK) {
        return false;
    }
    struct gathers_guest *guests = calloc(report->n_entries, sizeof *guests);
    if (guests == NULL) {
        budget_release(meeting->account, BUDGET_COMMUNICATOR_BYTES, bytes);
        return false;
    }
    note_voids(party, report);
    for (size_t i = 0; i < report->n_entries; i++) {
        guest_take(meeting, party, report->entries[i], now_ns, &guests[i]);
    }
    budget_release(meeting->account, BUDGET_COMMUNICATOR_BYTES, party->charged_bytes);
    free(party->guests);
    party->guests = guests;
    party->count = (uint32_t)report->n_entries;
    party->charged_bytes = bytes;
    party->number = report->number;
    return true;
}

/* What no commd reports. */
static const char *what_is_wrong(const Commd__Mesh__Gather *report)
{
    if (!printable_is_name(report->name, GATHERS_NAME_MAX_BYTES)) {
        return "the name of an elastic job that cannot exist";
    }
    if (report->n_entries > GATHERS_ENTRIES_MAX) {
        return "too many processes of an elastic job";
    }
    for (size_t i = 0; i < report->n_entries; i++) {
        const Commd__Mesh__GatherEntry *entry = report->entries[i];
        bool fits = entry->id != 0 && entry->generation < GENERATION_MAX && entry->least > 0 &&
                    entry->least <= entry->most && entry->most <= COMM_SIZE_MAX &&
                    entry->grow_from <= entry->grow_to && entry->grow_to <= COMM_SIZE_MAX &&
                    entry->grown_generation < GENERATION_MAX &&
                    (entry->grow_number == 0 || entry->grow_from > 0);
        if (!fits) {
            return "a process of an elastic job that wants what cannot be";
        }
    }
    return NULL;
}

static void wait_at_least(struct gathers_meeting *meeting, uint64_t grace_ns)
{
    meeting->grace_ns = grace_ns > meeting->grace_ns ? grace_ns : meeting->grace_ns;
}

static bool has_ranks(const struct gathers_party *party)
{
    for (uint32_t i = 0; i < party->count; i++) {
        if (party->guests[i].generation != 0) {
            return true;
        }
    }
    return false;
}

/* The node tells this place of nobody any more. now_ns: its ranks may live, and be told to another place;
 * TIME_NEVER: they do not. */
static void party_gone(struct gathers_party *party, uint64_t now_ns)
{
    struct gathers_meeting *meeting = party->meeting;
    if (now_ns != TIME_NEVER && has_ranks(party)) {
        wait_at_least(meeting, time_after(now_ns, GATHERS_GRACE_NS));
    }
    note_voids(party, NULL);
    party_free(party);
    if (meeting->parties != NULL) {
        gathers_meeting_undecided(meeting);
    } else if (!meeting->is_told) {
        meeting_free(meeting);
    }
}

void gathers_place_received(struct gathers *gathers, uint32_t node, const Commd__Mesh__Gather *report,
                            uint64_t now_ns)
{
    struct owned_name key;
    const char *wrong = what_is_wrong(report);
    if (wrong != NULL && node != MESH_NODE_OWN) {
        mesh_violation(gathers->mesh, node, wrong);
        return;
    }
    size_t key_bytes = owned_name_make(&key, report->owner_uid, report->name);
    struct gathers_meeting *meeting = meeting_find(gathers, &key, key_bytes);
    if (report->n_entries == 0) {
        struct gathers_party *party = meeting != NULL ? party_find(meeting, node) : NULL;
        if (party != NULL) {
            party_gone(party, report->turns ? now_ns : TIME_NEVER);
        }
        return;
    }
    if (node != MESH_NODE_OWN && !mesh_user_may(gathers->mesh, key.owner_uid, node)) {
        return; /* our configuration does not have the user there: it will be reloaded, or theirs will */
    }
    meeting = meeting_make(gathers, &key, key_bytes, now_ns);
    struct gathers_party *party = meeting != NULL ? party_make(meeting, node) : NULL;
    if (party == NULL) {
        if (meeting != NULL && meeting->parties == NULL) {
            meeting_free(meeting);
        }
        return;
    }
    bool taken = party_take(party, report, now_ns);
    if (!taken && party->guests == NULL) {
        party_gone(party, TIME_NEVER);
        return;
    }
    if (report->moved && !meeting->has_moved) {
        meeting->has_moved = true;
        wait_at_least(meeting, time_after(now_ns, GATHERS_GRACE_NS));
    }
    party->told_waiting = NOTHING_TOLD; /* it gets an answer, so that it knows that the place lives */
    gathers_meeting_undecided(meeting);
}

void gathers_place_node_down(struct gathers *gathers, uint32_t node, uint64_t now_ns)
{
    struct gathers_meeting *meeting, *next;
    HASH_ITER (hh, gathers->meetings, meeting, next) {
        struct gathers_party *party = party_find(meeting, node);
        if (party != NULL) {
            party_gone(party, now_ns);
        }
    }
}

/* --- Time --- */

bool gathers_place_run(struct gathers *gathers, uint64_t now_ns)
{
    struct gathers_meeting *meeting, *next;
    bool any = false;
    DL_FOREACH_SAFE(gathers->undecided, meeting, next)
    {
        any = true;
        meeting_unlist(meeting);
        gathers_decide(meeting, now_ns);
        meeting->is_told = true;
        bool told = gathers_tell(meeting, now_ns);
        meeting->is_told = false;
        if (meeting->parties == NULL) {
            meeting_free(meeting);
        } else if (!told) {
            gathers_meeting_undecided(meeting); /* some node takes no message now: gathers_run tries again */
            gathers->has_work = false;
        }
    }
    return any;
}

void gathers_place_tick(struct gathers *gathers, uint64_t now_ns)
{
    for (struct gathers_meeting *meeting = gathers->meetings; meeting != NULL; meeting = meeting->hh.next) {
        if (meeting->next_ns <= now_ns) {
            gathers_meeting_undecided(meeting);
        } else {
            gathers->next_ns = time_min(gathers->next_ns, meeting->next_ns);
        }
    }
}
