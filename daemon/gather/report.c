#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/gather/gathers_internal.h"

/* What this node tells the places of its names, and what they answer. */

#define NOBODY UINT32_MAX

void gathers_here_changed(struct gathers_here *here)
{
    if (!here->changed) {
        here->changed = true;
        DL_APPEND2(here->gathers->changed, here, changed_prev, changed_next);
    }
    here->gathers->has_work = true;
}

static void here_unlist(struct gathers_here *here)
{
    if (here->changed) {
        here->changed = false;
        DL_DELETE2(here->gathers->changed, here, changed_prev, changed_next);
    }
}

static void here_free(struct gathers_here *here)
{
    struct gathers *gathers = here->gathers;
    here_unlist(here);
    if (here->place != MESH_NODE_OWN) {
        mesh_unneed(gathers->mesh, here->place, MESH_NEED_CALL);
    }
    HASH_DEL(gathers->here, here);
    free(here);
}

void gathers_here_free(struct gathers *gathers)
{
    while (gathers->here != NULL) {
        here_free(gathers->here);
    }
}

/* --- Reports --- */

static void entry_to_wire(const struct gathers_entry *entry, Commd__Mesh__GatherEntry *out)
{
    *out = (Commd__Mesh__GatherEntry)COMMD__MESH__GATHER_ENTRY__INIT;
    out->id = entry->id;
    out->generation = entry->generation;
    out->settled = entry->settled;
    out->nonce = entry->nonce;
    out->seated = entry->settled ? 0 : entry->seated;
    out->grown_generation = entry->grown.number.generation;
    out->grown_nonce = entry->grown.number.nonce;
    out->grown_seated = entry->grown.seated;
    out->least = entry->wish.least;
    out->most = entry->wish.most;
    out->last_call_ms = entry->wish.last_call_ns / TIME_MS;
    out->minority_continues = entry->wish.minority_continues;
    if (entry->grows) {
        out->grow_number = entry->grow_number;
        out->grow_from = entry->grow_from;
        out->grow_to = entry->grow_to;
    }
}

/* leaves: the node turns to another place, and tells this one of nobody. */
static bool send_report(struct gathers_here *here, bool leaves, uint64_t now_ns)
{
    struct gathers *gathers = here->gathers;
    Commd__Mesh__GatherEntry entries[GATHERS_ENTRIES_MAX]; /* 32 KiB with the list */
    Commd__Mesh__GatherEntry *list[GATHERS_ENTRIES_MAX];
    Commd__Mesh__Gather report = COMMD__MESH__GATHER__INIT;
    const struct gathers_entry *entry;
    DL_FOREACH(leaves ? NULL : here->entries, entry)
    {
        if (entry->asks || entry->generation != 0) {
            entry_to_wire(entry, &entries[report.n_entries]);
            list[report.n_entries] = &entries[report.n_entries];
            report.n_entries++;
        }
    }
    report.name = here->key.name;
    report.owner_uid = here->key.owner_uid;
    report.number = ++here->number;
    report.moved = here->moved;
    report.turns = leaves;
    report.entries = list;
    if (here->place == MESH_NODE_OWN) {
        gathers_place_received(gathers, MESH_NODE_OWN, &report, now_ns);
        return true;
    }
    Commd__Mesh__Message message = MESH_MESSAGE(GATHER, gather, &report);
    return mesh_send(gathers->mesh, here->place, &message) == STATUS_OK;
}

static bool place_takes(const struct gathers_here *here)
{
    const struct mesh *mesh = here->gathers->mesh;
    return here->place == MESH_NODE_OWN ||
           (mesh_node_is_up(mesh, here->place) && mesh_node_offers(mesh, here->place, MESH_OFFERS_GATHER) &&
            mesh_node_queued(mesh, here->place) < GATHERS_QUEUED_MAX);
}

static bool here_is_over(const struct gathers_here *here)
{
    return here->entries == NULL;
}

bool gathers_here_run(struct gathers *gathers, uint64_t now_ns)
{
    struct gathers_here *here, *next;
    bool any = false;
    DL_FOREACH_SAFE2(gathers->changed, here, next, changed_next)
    {
        bool is_up = here->place == MESH_NODE_OWN || mesh_node_is_up(gathers->mesh, here->place);
        if (place_takes(here) && send_report(here, false, now_ns)) {
            any = true;
            here_unlist(here);
        } else if (!is_up) {
            here_unlist(here); /* gathers_here_node_up lists it again */
        }
        if (here_is_over(here) && !here->changed) {
            here_free(here);
        }
    }
    return any;
}

/* --- The place --- */

static void avoid(struct gathers_here *here, uint32_t node, uint64_t now_ns)
{
    unsigned oldest = 0;
    for (unsigned i = 1; i < GATHERS_AVOIDED_MAX; i++) {
        oldest = here->avoided[i].until_ns < here->avoided[oldest].until_ns ? i : oldest;
    }
    here->avoided[oldest].node = node;
    here->avoided[oldest].until_ns = time_after(now_ns, GATHERS_AVOID_NS);
}

static void turn_to(struct gathers_here *here, uint32_t place, uint64_t now_ns)
{
    struct gathers *gathers = here->gathers;
    bool takes = place_takes(here);
    if (here->number > 0 && takes) {
        (void)send_report(here, true, now_ns); /* if this fails the node is lost, and has forgotten us */
    }
    if (here->place != MESH_NODE_OWN) {
        mesh_unneed(gathers->mesh, here->place, MESH_NEED_CALL);
    }
    here->moved = here->moved || here->was_answered;
    here->was_answered = false;
    here->waiting = 0;
    here->text[0] = '\0';
    here->place = place;
    here->place_since_ns = now_ns;
    if (place != MESH_NODE_OWN) {
        mesh_need(gathers->mesh, place, MESH_NEED_CALL);
    }
    gathers_here_changed(here);
}

void gathers_here_check(struct gathers_here *here, uint64_t now_ns)
{
    struct gathers *gathers = here->gathers;
    bool is_new = here->check_ns == 0;
    bool is_up = here->place == MESH_NODE_OWN || mesh_node_is_up(gathers->mesh, here->place);
    if (!is_new && !is_up && time_after(here->place_since_ns, GATHERS_TURN_NS) <= now_ns) {
        avoid(here, here->place, now_ns);
    }
    here->check_ns = time_after(now_ns, GATHERS_CHECK_NS);
    gathers->next_ns = time_min(gathers->next_ns, here->check_ns);
    uint32_t place = gathers_choose(gathers, &here->key, false, here, now_ns);
    if (place != here->place) {
        turn_to(here, place, now_ns);
    } else if (is_new) {
        here->place_since_ns = now_ns;
        gathers_here_changed(here);
    }
}

void gathers_here_tick(struct gathers *gathers, uint64_t now_ns)
{
    for (struct gathers_here *here = gathers->here; here != NULL; here = here->hh.next) {
        if (here->check_ns <= now_ns) {
            gathers_here_check(here, now_ns);
        }
        gathers->next_ns = time_min(gathers->next_ns, here->check_ns);
    }
}

static void check_soon(struct gathers_here *here, uint64_t now_ns)
{
    here->check_ns = now_ns;
    here->gathers->next_ns = now_ns;
}

void gathers_here_node_up(struct gathers *gathers, uint32_t node, uint64_t now_ns)
{
    for (struct gathers_here *here = gathers->here; here != NULL; here = here->hh.next) {
        check_soon(here, now_ns); /* it may be the place of the name */
        if (here->place == node) {
            gathers_here_changed(here);
        }
    }
}

void gathers_here_node_down(struct gathers *gathers, uint32_t node, uint64_t now_ns)
{
    struct gathers_here *here, *next;
    HASH_ITER (hh, gathers->here, here, next) {
        if (here->place != node) {
            continue;
        }
        if (here_is_over(here)) {
            here_free(here);
            continue;
        }
        check_soon(here, now_ns);
        here->place_since_ns = now_ns;
    }
}

/* --- Answers --- */

static struct gathers_here *here_of(const struct gathers *gathers, uint32_t uid, const char *name)
{
    struct owned_name key;
    struct gathers_here *here;
    size_t key_bytes = owned_name_make(&key, uid, name);
    HASH_FIND(hh, gathers->here, &key, key_bytes, here);
    return here;
}

static struct gathers_entry *entry_of(const struct gathers_here *here, uint64_t id)
{
    struct gathers_entry *entry;
    DL_FOREACH(here->entries, entry)
    {
        if (entry->id == id) {
            return entry;
        }
    }
    return NULL;
}

static void tell_waiting(const struct gathers_here *here)
{
    struct gathers_entry *entry, *next;
    DL_FOREACH_SAFE(here->entries, entry, next)
    {
        if (entry->generation != 0 && entry->told_waiting != here->waiting) {
            entry->told_waiting = here->waiting;
            entry->handler.waiting(entry->handler.context, here->waiting);
        }
    }
}

/* What a place can never say. */
static const char *what_is_wrong(const Commd__Mesh__Gathered *answer)
{
    for (size_t i = 0; i < answer->n_seats; i++) {
        const Commd__Mesh__GatherSeat *seat = answer->seats[i];
        bool is_rank = seat->grow_number == 0;
        if (is_rank && (seat->generation == 0 || seat->rank >= seat->size)) {
            return "a rank that does not exist";
        }
        if (seat->size > COMM_SIZE_MAX || (seat->generation != 0 && seat->size == 0)) {
            return "a communicator of a size that does not exist";
        }
    }
    return NULL;
}

static bool has_settled(const struct gathers_here *here, uint64_t generation)
{
    const struct gathers_entry *entry;
    DL_FOREACH(here->entries, entry)
    {
        if (entry->generation == generation && entry->settled) {
            return true;
        }
    }
    return false;
}

/* The ranks that were to grow into it stay as they are. */
static void forget_growth(struct gathers_here *here, const Commd__Mesh__GatherVoid *wire)
{
    struct gathers_entry *entry;
    DL_FOREACH(here->entries, entry)
    {
        if (entry->grown.number.generation == wire->generation && entry->grown.number.nonce == wire->nonce) {
            entry->grown = (struct gathers_formation){0};
        }
    }
}

static void take_void(struct gathers_here *here, const Commd__Mesh__GatherVoid *wire, uint64_t now_ns)
{
    const struct gathers_options *options = &here->gathers->options;
    char name[COMM_NAME_MAX_BYTES + 1];
    struct error cause;
    if (wire->generation == 0 || has_settled(here, wire->generation)) {
        return;
    }
    forget_growth(here, wire);
    here->voids[here->void_count++ % GATHERS_VOIDS_MAX] =
        (struct gathers_number){.generation = wire->generation, .nonce = wire->nonce};
    gathers_comm_name(name, here->key.name, wire->generation, wire->nonce);
    error_set(&cause, STATUS_RANK_LOST, "communicator \"%s\": a rank was lost before it had formed", name);
    if (options->voided != NULL) {
        options->voided(options->context, here->key.owner_uid, name, &cause, now_ns);
    }
}

void gathers_here_answered(struct gathers *gathers, uint32_t node, const Commd__Mesh__Gathered *answer,
                           uint64_t now_ns)
{
    const char *wrong = what_is_wrong(answer);
    struct gathers_here *here = here_of(gathers, answer->owner_uid, answer->name);
    if (wrong != NULL && node != MESH_NODE_OWN) {
        mesh_violation(gathers->mesh, node, wrong);
        return;
    }
    if (here == NULL || here->place != node) {
        return; /* we have turned to another place */
    }
    here->was_answered = true;
    here->waiting = answer->waiting;
    printable_copy(answer->text, here->text, sizeof here->text);
    /* A process may leave meanwhile, but `here` is freed by gathers_here_run alone. */
    for (size_t i = 0; i < answer->n_voids; i++) {
        take_void(here, answer->voids[i], now_ns);
    }
    for (size_t i = 0; i < answer->n_seats; i++) {
        struct gathers_entry *entry = entry_of(here, answer->seats[i]->id);
        if (entry != NULL) {
            gathers_entry_seat(entry, answer->seats[i], now_ns);
        }
    }
    tell_waiting(here);
}
