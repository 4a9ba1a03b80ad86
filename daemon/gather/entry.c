#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/gather/gathers_internal.h"

/* The processes of this node that have joined. */

#define NOBODY_TOLD UINT32_MAX

/* --- Construction --- */

static struct gathers_here *here_find(const struct gathers *gathers, const struct owned_name *key,
                                      size_t key_bytes)
{
    struct gathers_here *here;
    HASH_FIND(hh, gathers->here, key, key_bytes, here);
    return here;
}

static enum status here_make(struct gathers *gathers, uint32_t uid, const char *name, uint64_t now_ns,
                             struct gathers_here **out, struct error *error)
{
    struct owned_name key;
    size_t key_bytes = owned_name_make(&key, uid, name);
    *out = here_find(gathers, &key, key_bytes);
    if (*out != NULL) {
        return STATUS_OK;
    }
    if (HASH_COUNT(gathers->here) >= GATHERS_NAMES_MAX) {
        return error_set(error, STATUS_LIMIT,
                         "this node has processes of %u elastic jobs; more are not allowed",
                         GATHERS_NAMES_MAX);
    }
    struct gathers_here *here = calloc(1, sizeof *here);
    if (here != NULL) {
        here->gathers = gathers;
        here->key = key;
        here->place = MESH_NODE_OWN;
        HASH_ADD(hh, gathers->here, key, key_bytes, here);
    }
    if (here == NULL || !table_has(here, hh)) {
        free(here);
        return error_set(error, STATUS_NO_MEMORY, "no memory for job \"%s\"", name);
    }
    gathers_here_check(here, now_ns);
    *out = here;
    return STATUS_OK;
}

static enum status wish_check(const char *name, const struct gathers_wish *wish, struct error *error)
{
    if (!printable_is_name(name, GATHERS_NAME_MAX_BYTES)) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "job \"%.160s\": a name has 1 to %d printable ASCII characters without space", name,
                         GATHERS_NAME_MAX_BYTES);
    }
    if (wish->least == 0 || wish->least > wish->most || wish->most > COMM_SIZE_MAX) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "job \"%s\": at least %u and at most %u ranks: expected 1 to %d, in that order",
                         name, wish->least, wish->most, COMM_SIZE_MAX);
    }
    return STATUS_OK;
}

static void entry_wait(struct gathers_entry *entry, const struct gathers_wish *wish, uint64_t now_ns)
{
    struct gathers *gathers = entry->here->gathers;
    entry->id = ++gathers->last_id;
    entry->wish = *wish;
    entry->wish.last_call_ns = time_min(wish->last_call_ns, GATHERS_LAST_CALL_MAX_NS);
    entry->generation = 0;
    entry->settled = false;
    entry->seated = 0;
    entry->grown = (struct gathers_formation){0};
    entry->asks = true;
    entry->told_waiting = NOBODY_TOLD;
    entry->deadline_ns = time_after(now_ns, time_min(wish->timeout_ns, GATHERS_TIMEOUT_MAX_NS));
    timer_heap_set(&gathers->timers, &entry->timer, entry->deadline_ns);
    gathers_here_changed(entry->here);
}

static enum status entry_new(struct gathers_here *here, struct budget_account *account,
                             const struct gathers_handler *handler, struct gathers_entry **out,
                             struct error *error)
{
    struct gathers *gathers = here->gathers;
    if (here->entry_count >= GATHERS_ENTRIES_MAX) {
        return error_set(error, STATUS_LIMIT,
                         "job \"%s\": %u processes of this node have joined; more are not allowed",
                         here->key.name, GATHERS_ENTRIES_MAX);
    }
    enum status status = budget_charge(account, BUDGET_COMMUNICATOR_BYTES, sizeof **out, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct gathers_entry *entry =
        timer_heap_reserve(&gathers->timers, gathers->entry_count + 1) ? calloc(1, sizeof *entry) : NULL;
    if (entry == NULL) {
        budget_release(account, BUDGET_COMMUNICATOR_BYTES, sizeof **out);
        return error_set(error, STATUS_NO_MEMORY, "no memory for job \"%s\"", here->key.name);
    }
    entry->here = here;
    entry->handler = *handler;
    entry->account = account != NULL ? budget_ref(account) : NULL;
    entry->timer.index = TIMER_NODE_DISARMED;
    DL_APPEND(here->entries, entry);
    here->entry_count++;
    gathers->entry_count++;
    *out = entry;
    return STATUS_OK;
}

enum status gathers_join(struct gathers *gathers, uid_t uid, struct budget_account *account, const char *name,
                         const struct gathers_wish *wish, const struct gathers_handler *handler,
                         uint64_t now_ns, struct gathers_entry **out, struct error *error)
{
    struct gathers_here *here;
    enum status status = wish_check(name, wish, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (!mesh_user_may(gathers->mesh, uid, MESH_NODE_OWN)) {
        return error_set(error, STATUS_PERMISSION,
                         "job \"%s\": uid %u may not be on node %s (users in commd.conf)", name,
                         (unsigned)uid, mesh_own_name(gathers->mesh));
    }
    if (gathers->draining[0] != '\0') {
        return error_set(error, STATUS_SHUTTING_DOWN, "job \"%s\": %s", name, gathers->draining);
    }
    status = here_make(gathers, uid, name, now_ns, &here, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = entry_new(here, account, handler, out, error);
    if (status == STATUS_OK) {
        entry_wait(*out, wish, now_ns);
    } else {
        gathers_here_changed(here); /* it goes, if it has nobody */
    }
    return status;
}

enum status gathers_join_again(struct gathers_entry *entry, const struct gathers_wish *wish, uint64_t now_ns,
                               struct error *error)
{
    if (entry->asks || entry->grows) {
        return error_set(error, STATUS_IN_PROGRESS, "job \"%s\": this process waits already",
                         entry->here->key.name);
    }
    const struct gathers *gathers = entry->here->gathers;
    if (gathers->draining[0] != '\0') {
        return error_set(error, STATUS_SHUTTING_DOWN, "job \"%s\": %s", entry->here->key.name,
                         gathers->draining);
    }
    enum status status = wish_check(entry->here->key.name, wish, error);
    if (status == STATUS_OK) {
        entry_wait(entry, wish, now_ns);
    }
    return status;
}

enum status gathers_grow(struct gathers_entry *entry, uint32_t from, uint32_t to, uint64_t timeout_ns,
                         uint64_t now_ns, struct error *error)
{
    struct gathers *gathers = entry->here->gathers;
    const char *name = entry->here->key.name;
    if (entry->generation == 0) {
        return error_set(error, STATUS_NOT_FOUND, "job \"%s\": this process has no rank", name);
    }
    if (entry->asks || entry->grows) {
        return error_set(error, STATUS_IN_PROGRESS, "job \"%s\": this process waits already", name);
    }
    if (from == 0 || from > to || to > COMM_SIZE_MAX) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "job \"%s\": growing from %u to %u ranks: expected 1 to %d, in that order", name,
                         from, to, COMM_SIZE_MAX);
    }
    entry->grows = true;
    entry->grow_number++;
    entry->grow_from = from;
    entry->grow_to = to;
    entry->deadline_ns = time_after(now_ns, time_min(timeout_ns, GATHERS_TIMEOUT_MAX_NS));
    timer_heap_set(&gathers->timers, &entry->timer, entry->deadline_ns);
    gathers_here_changed(entry->here);
    return STATUS_OK;
}

void gathers_settle(struct gathers_entry *entry, uint64_t generation)
{
    if (entry->generation == 0 || generation < entry->generation ||
        (generation == entry->generation && entry->settled)) {
        return;
    }
    entry->generation = generation;
    entry->settled = true;
    if (generation >= entry->grown.number.generation) {
        entry->grown = (struct gathers_formation){0};
    }
    gathers_here_changed(entry->here);
}

void gathers_leave(struct gathers_entry *entry)
{
    struct gathers_here *here = entry->here;
    struct gathers *gathers = here->gathers;
    timer_heap_remove(&gathers->timers, &entry->timer);
    DL_DELETE(here->entries, entry);
    here->entry_count--;
    gathers->entry_count--;
    budget_release(entry->account, BUDGET_COMMUNICATOR_BYTES, sizeof *entry);
    budget_close(entry->account);
    free(entry);
    gathers_here_changed(here);
}

/* --- Answers --- */

/* Ends what is due. The entry may be gone afterwards. */
static void answer(struct gathers_entry *entry, const struct error *result, const struct gathers_seat *seat,
                   uint64_t now_ns)
{
    bool asked = entry->asks, grew = entry->grows;
    const struct gathers_handler handler = entry->handler;
    timer_heap_remove(&entry->here->gathers->timers, &entry->timer);
    entry->asks = entry->grows = false;
    if (result->status != STATUS_OK && asked) {
        entry->id = ++entry->here->gathers->last_id; /* a seat that is on its way is void */
        gathers_here_changed(entry->here);
    }
    if (asked) {
        handler.seated(handler.context, result, seat, now_ns);
    } else if (grew) {
        handler.grown(handler.context, result, seat, now_ns);
    }
}

static void gathers_entry_fail(struct gathers_entry *entry, const struct error *cause, uint64_t now_ns)
{
    answer(entry, cause, NULL, now_ns);
}

void gathers_entry_expire(struct gathers_entry *entry, uint64_t now_ns)
{
    const struct gathers_here *here = entry->here;
    const char *place = mesh_node_name(here->gathers->mesh, here->place);
    struct error cause;
    if (!here->was_answered) {
        error_set(&cause, STATUS_TIMED_OUT,
                  "job \"%s\": node %s, which gathers its processes, has not answered in time",
                  here->key.name, place);
    } else if (entry->grows) {
        error_set(&cause, STATUS_TIMED_OUT,
                  "job \"%s\": node %s, which gathers its processes, has not let it grow in time",
                  here->key.name, place);
    } else {
        error_set(&cause, STATUS_TIMED_OUT,
                  "job \"%s\": no rank in time; %u processes wait%s%s (node %s gathers them)", here->key.name,
                  here->waiting, here->text[0] != '\0' ? ": " : ", and a generation runs", here->text, place);
    }
    gathers_entry_fail(entry, &cause, now_ns);
}

void gathers_entry_seat(struct gathers_entry *entry, const Commd__Mesh__GatherSeat *wire, uint64_t now_ns)
{
    struct error fine = {.status = STATUS_OK};
    struct gathers_seat seat = {.generation = wire->generation, .rank = wire->rank, .size = wire->size};
    bool is_mine =
        wire->grow_number == 0 ? entry->asks : entry->grows && entry->grow_number == wire->grow_number;
    if (!is_mine) {
        return; /* it has timed out */
    }
    if (wire->generation != 0) {
        gathers_comm_name(seat.comm_name, entry->here->key.name, wire->generation, wire->nonce);
    }
    if (wire->grow_number == 0) {
        entry->generation = wire->generation;
        entry->nonce = wire->nonce;
        entry->seated = wire->seated;
        entry->settled = false;
        gathers_here_changed(entry->here);
    } else {
        entry->grown = (struct gathers_formation){{wire->generation, wire->nonce}, wire->seated};
    }
    answer(entry, &fine, &seat, now_ns);
}

/* The number of the generation behind the last '#' of a name: "job#3.00f1...". 0: there is none. */
static uint64_t generation_of(const char *comm_name, size_t *job_bytes)
{
    const char *mark = strrchr(comm_name, '#');
    if (mark == NULL || mark == comm_name || (size_t)(mark - comm_name) > GATHERS_NAME_MAX_BYTES) {
        return 0;
    }
    *job_bytes = (size_t)(mark - comm_name);
    return strtoull(mark + 1, NULL, 10);
}

enum status gathers_check(const struct gathers *gathers, uint32_t uid, const char *comm_name,
                          struct error *error)
{
    struct owned_name key;
    char job[GATHERS_NAME_MAX_BYTES + 1] = "", void_name[COMM_NAME_MAX_BYTES + 1];
    size_t job_bytes = 0;
    uint64_t generation = gathers->here != NULL ? generation_of(comm_name, &job_bytes) : 0;
    if (generation == 0) {
        return STATUS_OK;
    }
    memcpy(job, comm_name, job_bytes);
    size_t key_bytes = owned_name_make(&key, uid, job);
    const struct gathers_here *here = here_find(gathers, &key, key_bytes);
    for (unsigned i = 0; here != NULL && i < GATHERS_VOIDS_MAX; i++) {
        gathers_comm_name(void_name, job, here->voids[i].generation, here->voids[i].nonce);
        if (here->voids[i].generation == generation && strcmp(void_name, comm_name) == 0) {
            return error_set(error, STATUS_RANK_LOST,
                             "communicator \"%s\": a rank was lost before it had formed", comm_name);
        }
    }
    return STATUS_OK;
}

/* Ends what its processes wait for. `only_ranks`: but not requests to grow. */
static void here_fail(struct gathers_here *here, bool only_ranks, const struct error *cause, uint64_t now_ns)
{
    struct gathers_entry *entry, *next;
    DL_FOREACH_SAFE(here->entries, entry, next)
    {
        if (entry->asks || (entry->grows && !only_ranks)) {
            gathers_entry_fail(entry, cause, now_ns);
        }
    }
}

void gathers_drain(struct gathers *gathers, const char *why, uint64_t now_ns)
{
    struct error cause;
    (void)snprintf(gathers->draining, sizeof gathers->draining, "%s", why != NULL ? why : "");
    for (struct gathers_here *here = gathers->here; why != NULL && here != NULL; here = here->hh.next) {
        error_set(&cause, STATUS_SHUTTING_DOWN, "job \"%s\": %s", here->key.name, why);
        here_fail(here, true, &cause, now_ns);
    }
}

void gathers_recheck_users(struct gathers *gathers, uint64_t now_ns)
{
    struct error cause;
    for (struct gathers_here *here = gathers->here; here != NULL; here = here->hh.next) {
        if (!mesh_user_may(gathers->mesh, here->key.owner_uid, MESH_NODE_OWN)) {
            error_set(&cause, STATUS_PERMISSION,
                      "job \"%s\": uid %u may not be on node %s any more (users in commd.conf)",
                      here->key.name, (unsigned)here->key.owner_uid, mesh_own_name(gathers->mesh));
            here_fail(here, false, &cause, now_ns);
        }
    }
}

void gathers_list(const struct gathers *gathers, gathers_view_function *each, void *context)
{
    const struct gathers_here *here;
    for (here = gathers->here; here != NULL; here = here->hh.next) {
        struct gathers_view view = {.name = here->key.name,
                                    .owner_uid = here->key.owner_uid,
                                    .waiting = here->waiting,
                                    .place = mesh_node_name(gathers->mesh, here->place),
                                    .text = here->text};
        const struct gathers_entry *entry;
        DL_FOREACH(here->entries, entry)
        {
            view.here_waiting += entry->generation == 0 && entry->asks;
            view.generation = entry->generation > view.generation ? entry->generation : view.generation;
        }
        if (!each(context, &view)) {
            return;
        }
    }
}
