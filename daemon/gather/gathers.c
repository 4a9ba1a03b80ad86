#include "daemon/gather/gathers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/weight.h"
#include "daemon/gather/gathers_internal.h"

#define PLACE_SEED 0x67617468657273u /* part of the protocol: all nodes must have the same */
#define RETRY_NS (2 * TIME_MS)       /* for messages for which there was no room */

/* --- Names --- */

void gathers_comm_name(char out[COMM_NAME_MAX_BYTES + 1], const char *name, uint64_t generation,
                       uint64_t nonce)
{
    (void)snprintf(out, COMM_NAME_MAX_BYTES + 1, "%.80s#%" PRIu64 ".%016" PRIx64, name, generation, nonce);
}

/* --- The place of a name --- */

static bool is_avoided(const struct gathers_here *here, uint32_t node, uint64_t now_ns)
{
    for (unsigned i = 0; here != NULL && i < GATHERS_AVOIDED_MAX; i++) {
        if (here->avoided[i].node == node && here->avoided[i].until_ns > now_ns) {
            return true;
        }
    }
    return false;
}

uint32_t gathers_choose(const struct gathers *gathers, const struct owned_name *key, bool all,
                        const struct gathers_here *here, uint64_t now_ns)
{
    const struct mesh *mesh = gathers->mesh;
    struct weight_choice best = {0};
    weight_choose(&best, PLACE_SEED, MESH_NODE_OWN, mesh_own_name(mesh), key->owner_uid, key->name);
    for (uint32_t node = 0; node < mesh_node_count(mesh); node++) {
        if (mesh_node_is_removed(mesh, node) || !mesh_user_may(gathers->mesh, key->owner_uid, node) ||
            (!all && (!mesh_node_is_member(mesh, node) || is_avoided(here, node, now_ns)))) {
            continue;
        }
        if (mesh_node_is_up(mesh, node) && !mesh_node_offers(mesh, node, MESH_OFFERS_GATHER)) {
            continue; /* its commd is older */
        }
        weight_choose(&best, PLACE_SEED, node, mesh_node_name(mesh, node), key->owner_uid, key->name);
    }
    return best.node;
}

/* --- Messages and nodes --- */

static void on_node_up(void *context, uint32_t node, uint64_t now_ns)
{
    struct gathers *gathers = context;
    struct gathers_meeting *meeting;
    gathers->linked_ns = now_ns;
    for (meeting = gathers->meetings; meeting != NULL; meeting = meeting->hh.next) {
        gathers_meeting_undecided(meeting); /* it may not have to wait so long any more */
    }
    gathers_here_node_up(gathers, node, now_ns);
}

static void on_node_down(void *context, uint32_t node, const struct error *cause, uint64_t now_ns)
{
    (void)cause;
    gathers_place_node_down(context, node, now_ns);
    gathers_here_node_down(context, node, now_ns);
}

static void on_message(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    struct gathers *gathers = context;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_GATHER) {
        gathers_place_received(gathers, node, message->gather, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_GATHERED) {
        gathers_here_answered(gathers, node, message->gathered, now_ns);
    }
}

/* --- Life --- */

enum status gathers_new(const struct gathers_options *options, struct gathers **out, struct error *error)
{
    struct gathers *gathers = calloc(1, sizeof *gathers);
    if (gathers == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for elastic communicators");
    }
    gathers->mesh = options->mesh;
    gathers->options = *options;
    gathers->started_ns = options->now_ns;
    gathers->retry_ns = gathers->next_ns = TIME_NEVER;
    random_seed(&gathers->random, options->seed_secure);
    struct mesh_handler handler = {gathers, on_node_up, on_node_down, on_message, NULL};
    mesh_set_handler(gathers->mesh, MESH_ROOM_GATHER, &handler);
    *out = gathers;
    return STATUS_OK;
}

void gathers_free(struct gathers *gathers)
{
    if (gathers == NULL) {
        return;
    }
    struct mesh_handler nobody = {0};
    mesh_set_handler(gathers->mesh, MESH_ROOM_GATHER, &nobody);
    gathers_here_free(gathers);
    gathers_place_free(gathers);
    timer_heap_free(&gathers->timers);
    free(gathers);
}

void gathers_set_budget(struct gathers *gathers, struct budget *budget)
{
    gathers->budget = budget;
}

/* --- Time --- */

bool gathers_run(struct gathers *gathers, uint64_t now_ns)
{
    bool any = false;
    if (!gathers->has_work) {
        return false;
    }
    gathers->has_work = false;
    gathers->retry_ns = TIME_NEVER;
    any |= gathers_here_run(gathers, now_ns);
    any |= gathers_place_run(gathers, now_ns);
    if (gathers->changed != NULL || gathers->undecided != NULL) {
        gathers->retry_ns = time_after(now_ns, RETRY_NS);
    }
    return any;
}

uint64_t gathers_next_deadline_ns(const struct gathers *gathers)
{
    const struct timer_node *first = timer_heap_first(&gathers->timers);
    uint64_t deadline_ns = gathers->has_work ? 0 : gathers->retry_ns;
    deadline_ns = first != NULL ? time_min(deadline_ns, first->deadline_ns) : deadline_ns;
    return time_min(deadline_ns, gathers->next_ns);
}

void gathers_tick(struct gathers *gathers, uint64_t now_ns)
{
    const struct timer_node *first;
    while ((first = timer_heap_first(&gathers->timers)) != NULL && first->deadline_ns <= now_ns) {
        gathers_entry_expire(
            (struct gathers_entry *)((char *)(uintptr_t)first - offsetof(struct gathers_entry, timer)),
            now_ns);
    }
    if (gathers->retry_ns <= now_ns) {
        gathers->has_work = true;
    }
    if (gathers->next_ns <= now_ns) {
        gathers->next_ns = TIME_NEVER; /* those that are not due say again when they are */
        gathers_here_tick(gathers, now_ns);
        gathers_place_tick(gathers, now_ns);
    }
    (void)gathers_run(gathers, now_ns);
}
