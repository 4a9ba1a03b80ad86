#include <stdio.h>
#include <stdlib.h>

#include "daemon/exec/rails_internal.h"

/* Operations on several rails, and the rails' shares of a communicator. Functions named home_... run on the
 * main thread, those named rail_... on a rail's thread. */

static void put(const struct exec_shared *shared, uint32_t rail, struct mail *mail,
                void (*deliver)(void *context, uint64_t now_ns), void *context)
{
    mail->deliver = deliver;
    mail->context = context;
    mailbox_put(rails_mailbox(shared->rails, rail), mail);
}

static void shared_release(struct exec_shared *shared)
{
    if (atomic_fetch_sub(&shared->references, 1) == 1) {
        comm_map_release(shared->map);
        free(shared);
    }
}

/* --- Communicators: reports of rails to the main thread --- */

static void home_failed(void *context, uint64_t now_ns)
{
    const struct shared_rail *at = context;
    if (at->shared->home != NULL) {
        exec_comm_fail(at->shared->home, &at->failure, now_ns);
    }
    shared_release(at->shared);
}

static void rail_failed(void *context, const struct error *cause, uint64_t now_ns)
{
    struct shared_rail *at = context;
    (void)now_ns;
    at->failure = *cause;
    atomic_fetch_add(&at->shared->references, 1);
    put(at->shared, 0, &at->failed, home_failed, at);
}

static void home_disagreed(void *context, uint64_t now_ns)
{
    const struct spread_part *part = context;
    struct exec_op *op = part->spread->op;
    if (op != NULL && !op->disputed) {
        const struct exec_comm_handler *handler = &part->spread->shared->home->handler;
        op->disputed = true;
        handler->disagreed(handler->context, op->call.seq, part->disputed_node, part->disputed_how, now_ns);
    }
}

/* Called once for the first operation. */
static void rail_disagreed(void *context, uint64_t seq, uint32_t node, const char *how, uint64_t now_ns)
{
    const struct shared_rail *at = context;
    struct spread_part *part = at->comm->first_op->call.context;
    (void)seq;
    (void)now_ns;
    part->disputed_node = node;
    (void)snprintf(part->disputed_how, sizeof part->disputed_how, "%s", how);
    put(at->shared, 0, &part->disagreed, home_disagreed, part);
}

/* --- Communicators: shares of the rails --- */

static void rail_create(void *context, uint64_t now_ns)
{
    struct shared_rail *at = context;
    struct exec_shared *shared = at->shared;
    struct error error;
    /* The rail's connections are there; only the main thread may ask for one. */
    const struct exec_comm_handler handler = {
        .failed = rail_failed, .disagreed = rail_disagreed, .context = at};
    if (comm_new_part(shared->rails->execs[at->rail], shared->map, &handler, at->rail, shared->rail_count,
                      &at->comm, &error) != STATUS_OK) {
        rail_failed(at, &error, now_ns);
    }
}

/* The rails' connections to all nodes are needed from now on. */
static void want_rails(struct exec_comm *comm)
{
    const struct exec_links *links = &comm->exec->links;
    comm->shared->wants_rails = true;
    for (uint32_t node = 0; node < comm->map->ranks.node_count; node++) {
        if (node != comm->map->ranks.node_index) {
            links->need(links->context, comm->map->peers[node], comm->shared->rail_count);
        }
    }
}

enum status shared_new(struct exec_comm *comm, struct error *error)
{
    const struct comm_map *map = comm->map;
    struct rails *rails = comm->exec->rails;
    if (rails == NULL || comm->share_index > 0) {
        return STATUS_OK;
    }
    bool alone = map->ranks.node_count == 1;
    uint32_t rail_count = alone ? rails->count : map->rail_count;
    rail_count = !alone && rail_count > rails->network_count ? rails->network_count : rail_count;
    if (rail_count < 2) {
        return STATUS_OK;
    }
    struct exec_shared *shared = calloc(1, sizeof *shared);
    if (shared == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", map->name);
    }
    shared->rails = rails;
    shared->map = comm_map_ref(comm->map);
    shared->home = comm;
    shared->rail_count = rail_count;
    atomic_init(&shared->references, rail_count);
    comm->shared = shared;
    comm->share_count = alone ? 1 : rail_count;
    comm_use_rails(comm, rails_of(comm->share_count), !map->rails_wait);
    if (comm->handler.need == NULL) {
        want_rails(comm);
    }
    for (uint32_t rail = 1; rail < rail_count; rail++) {
        struct shared_rail *at = &shared->of_rail[rail];
        at->shared = shared;
        at->rail = rail;
        put(shared, rail, &at->create, rail_create, at);
    }
    return STATUS_OK;
}

struct cancel_order {
    struct mail mail;
    struct shared_rail *at;
    uint64_t seq;
    uint64_t count;
    struct error cause;
};

static void rail_cancel(void *context, uint64_t now_ns)
{
    struct cancel_order *order = context;
    if (order->at->comm != NULL) {
        exec_cancel(order->at->comm, order->seq, order->count, &order->cause, now_ns);
    }
    free(order);
}

void shared_cancel(struct exec_comm *comm, uint64_t seq, uint64_t count, const struct error *cause)
{
    struct exec_shared *shared = comm->shared;
    for (uint32_t rail = 1; shared != NULL && rail < shared->rail_count; rail++) {
        struct cancel_order *order = calloc(1, sizeof *order);
        if (order == NULL) {
            shared_abort(comm, cause); /* instead, the rail's whole share ends */
            return;
        }
        order->at = &shared->of_rail[rail];
        order->seq = seq;
        order->count = count;
        order->cause = *cause;
        put(shared, rail, &order->mail, rail_cancel, order);
    }
}

static void rail_abort(void *context, uint64_t now_ns)
{
    const struct shared_rail *at = context;
    (void)now_ns;
    if (at->comm != NULL) {
        exec_comm_abort(at->comm, &at->shared->abort_cause);
    }
}

void shared_abort(struct exec_comm *comm, const struct error *cause)
{
    struct exec_shared *shared = comm->shared;
    if (shared == NULL || shared->aborted) {
        return;
    }
    shared->aborted = true;
    shared->abort_cause = *cause;
    for (uint32_t rail = 1; rail < shared->rail_count; rail++) {
        put(shared, rail, &shared->of_rail[rail].abort, rail_abort, &shared->of_rail[rail]);
    }
}

/* Frees the rail's share once the main thread has left it, and its last operation is over. */
static void rail_free_if_left(struct shared_rail *at)
{
    if (at->left && (at->comm == NULL || exec_comm_idle(at->comm))) {
        if (at->comm != NULL) {
            comm_free_now(at->comm);
        }
        shared_release(at->shared);
    }
}

static void rail_leave(void *context, uint64_t now_ns)
{
    struct shared_rail *at = context;
    (void)now_ns;
    at->left = true;
    rail_free_if_left(at);
}

void shared_leave(struct exec_comm *comm)
{
    struct exec_shared *shared = comm->shared;
    if (shared == NULL) {
        return;
    }
    const struct exec_links *links = &comm->exec->links;
    for (uint32_t node = 0; shared->wants_rails && node < comm->map->ranks.node_count; node++) {
        if (node != comm->map->ranks.node_index) {
            links->unneed(links->context, comm->map->peers[node], shared->rail_count);
        }
    }
    for (uint32_t rail = 1; rail < shared->rail_count; rail++) {
        put(shared, rail, &shared->of_rail[rail].leave, rail_leave, &shared->of_rail[rail]);
    }
    shared->home = NULL;
    comm->shared = NULL;
    shared_release(shared);
}

/* --- Operations --- */

static void spread_free_if_over(struct exec_spread *spread)
{
    if (spread->op == NULL && spread->parts_left == 0) {
        free(spread);
    }
}

static void home_part_over(void *context, uint64_t now_ns)
{
    struct spread_part *part = context;
    struct exec_spread *spread = part->spread;
    part->over = true;
    spread->parts_left--;
    if (spread->op != NULL) {
        if (part->result.status != STATUS_OK && spread->result.status == STATUS_OK) {
            spread->result = part->result;
        }
        struct exec_comm *comm = spread->shared->home;
        if (part->result.status != STATUS_OK && !comm->failed && !spread->op->cancelled) {
            exec_comm_fail(comm, &part->result, now_ns);
        }
        exec_wake(comm->exec);
    }
    spread_free_if_over(spread);
}

/* On the rail's thread. */
static void rail_part_done(void *context, const struct error *result, uint64_t now_ns)
{
    struct spread_part *part = context;
    struct shared_rail *at = &part->spread->shared->of_rail[part->rail];
    (void)now_ns;
    part->result = *result;
    put(at->shared, 0, &part->mail, home_part_over, part);
    rail_free_if_left(at);
}

static bool claim(struct exec_claims *claims, uint64_t slice_count, uint64_t *slice)
{
    *slice = atomic_fetch_add_explicit(&claims->next, 1, memory_order_relaxed);
    return *slice < slice_count;
}

static void rail_part_begin(void *context, uint64_t now_ns)
{
    struct spread_part *part = context;
    struct exec_spread *spread = part->spread;
    struct exec_comm *comm = spread->shared->of_rail[part->rail].comm;
    bool local = spread->shared->map->ranks.node_count == 1;
    struct error error = {.status = STATUS_OK};
    struct exec_op *op = NULL;
    uint64_t slice = 0;
    /* The operation exists until the main thread ends it: after this slice, or, between nodes, after this
     * part. */
    if (local && !claim(&spread->claims, spread->op_slices, &slice)) {
        rail_part_done(part, &error, now_ns); /* other threads have taken all slices */
        return;
    }
    if (comm == NULL) {
        error_set(&error, STATUS_NO_MEMORY, "\"%s\": no memory on rail %u", spread->shared->map->name,
                  part->rail);
        rail_part_done(part, &error, now_ns);
        return;
    }
    struct exec_call call = spread->op->call;
    call.done = rail_part_done;
    call.context = part;
    if (comm_queue_op(comm, &call, &op, &error) != STATUS_OK) {
        rail_part_done(part, &error, now_ns);
        return;
    }
    op->claims = local ? &spread->claims : NULL;
    op->holds_slice = local;
    op->held_slice = slice;
}

uint64_t spread_slices(const struct exec_comm *comm, uint32_t rail, uint64_t slice_count)
{
    /* The mapping of slices to rails is periodic. */
    uint64_t period = comm->share_count * (uint64_t)__builtin_popcount(comm->rails);
    uint64_t in_period = 0, in_rest = 0;
    for (uint64_t slice = 0; slice < period; slice++) {
        uint64_t is_its = slice_rail(comm, slice) == rail ? 1 : 0;
        in_period += is_its;
        in_rest += slice < slice_count % period ? is_its : 0;
    }
    return slice_count / period * in_period + in_rest;
}

/* A node of the communicator to which the rail has no connection; node_count if it has all. */
static uint32_t unreached_node(const struct exec_comm *comm, uint32_t rail)
{
    const struct exec_links *links = &comm->exec->links;
    uint32_t node = 0;
    while (node < comm->map->ranks.node_count &&
           (node == comm->map->ranks.node_index ||
            links->missing(links->context, comm->map->peers[node], rail) == NULL)) {
        node++;
    }
    return node;
}

uint32_t spread_missing_rail(const struct exec_comm *comm, const struct exec_op *op, uint32_t *node)
{
    for (uint32_t rail = 1; rail < comm->share_count; rail++) {
        bool needed = (comm->rails >> rail & 1) != 0 && spread_slices(comm, rail, op->stage.slice_count) > 0;
        *node = needed ? unreached_node(comm, rail) : comm->map->ranks.node_count;
        if (*node < comm->map->ranks.node_count) {
            return rail;
        }
    }
    return 0;
}

uint32_t exec_comm_all_rails(const struct exec_comm *comm)
{
    return rails_of(comm->share_count);
}

uint32_t exec_comm_reached_rails(const struct exec_comm *comm)
{
    uint32_t reached = 1;
    for (uint32_t rail = 1; rail < comm->share_count; rail++) {
        reached |= unreached_node(comm, rail) == comm->map->ranks.node_count ? UINT32_C(1) << rail : 0;
    }
    return reached;
}

static void rail_use(void *context, uint64_t now_ns)
{
    const struct shared_rail *at = context;
    (void)now_ns;
    if (at->comm != NULL) {
        comm_use_rails(at->comm, at->shared->used_rails, true);
    }
}

void exec_comm_use_rails(struct exec_comm *comm, uint32_t rails)
{
    struct exec_shared *shared = comm->shared;
    comm_use_rails(comm, rails & rails_of(comm->share_count), true);
    if (shared == NULL) {
        return;
    }
    shared->used_rails = comm->rails;
    for (uint32_t rail = 1; rail < shared->rail_count; rail++) {
        put(shared, rail, &shared->of_rail[rail].use, rail_use, &shared->of_rail[rail]);
    }
    exec_wake(comm->exec);
}

/* Lists the rails, without rail 0, that have a part of the operation. Returns how many. */
static uint32_t parts_of(const struct exec_comm *comm, const struct exec_op *op,
                         uint32_t rails[EXEC_RAILS_MAX])
{
    const struct exec_shared *shared = comm->shared;
    bool local = comm->map->ranks.node_count == 1;
    uint32_t count = 0;
    for (uint32_t rail = 1; rail < shared->rail_count; rail++) {
        bool has_part =
            local ? rail < op->stage.slice_count : spread_slices(comm, rail, op->stage.slice_count) > 0;
        if (has_part) {
            rails[count++] = rail;
        }
    }
    return count;
}

enum spread_state spread_begin(struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    struct exec_shared *shared = comm->shared;
    if (shared == NULL) {
        return SPREAD_NOT;
    }
    bool local = comm->map->ranks.node_count == 1;
    if (op->stage.slice_count < 2 || (local && op->is_staged)) { /* GPUs do the work */
        return SPREAD_NOT;
    }
    uint32_t node;
    if (!local && !shared->wants_rails) {
        want_rails(comm);
        (void)comm->handler.need(comm->handler.context, EXEC_ALL_NODES, true, comm->exec->now_ns);
    }
    if (!local && (!comm->rails_agreed || spread_missing_rail(comm, op, &node) > 0)) {
        return SPREAD_WAITS;
    }
    uint32_t rails[EXEC_RAILS_MAX];
    uint32_t part_count = parts_of(comm, op, rails);
    struct exec_spread *spread = calloc(1, sizeof *spread + part_count * sizeof spread->parts[0]);
    if (spread == NULL) {
        if (local) {
            return SPREAD_NOT; /* the main thread does all of it */
        }
        error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for an operation", comm->map->name);
        return SPREAD_FAILED;
    }
    spread->op = op;
    spread->op_slices = op->stage.slice_count;
    spread->shared = shared;
    spread->part_count = part_count;
    spread->parts_left = part_count;
    spread->result.status = STATUS_OK;
    atomic_store_explicit(&spread->claims.next, 0, memory_order_relaxed);
    atomic_store_explicit(&spread->claims.left, op->stage.slice_count, memory_order_relaxed);
    op->spread = spread;
    op->claims = local ? &spread->claims : NULL;
    for (uint32_t i = 0; i < part_count; i++) {
        struct spread_part *part = &spread->parts[i];
        part->spread = spread;
        part->rail = rails[i];
        put(shared, part->rail, &part->mail, rail_part_begin, part);
    }
    return SPREAD_BEGUN;
}

bool spread_claim(struct exec_op *op, uint64_t *slice)
{
    if (op->holds_slice) {
        op->holds_slice = false;
        *slice = op->held_slice;
        return true;
    }
    return claim(op->claims, op->stage.slice_count, slice);
}

static void home_all_done(void *context, uint64_t now_ns)
{
    struct exec_spread *spread = context;
    (void)now_ns;
    if (spread->op != NULL) {
        exec_wake(spread->shared->home->exec);
    }
}

void spread_claim_done(struct exec_comm *comm, struct exec_op *op)
{
    bool last = atomic_fetch_sub(&op->claims->left, 1) == 1;
    if (last && comm->share_index > 0) {
        struct exec_spread *spread = ((struct spread_part *)op->call.context)->spread;
        put(spread->shared, 0, &spread->all_done, home_all_done, spread);
    }
}

bool spread_is_done(const struct exec_op *op, bool given_up)
{
    const struct exec_spread *spread = op->spread;
    bool all_slices = op->claims != NULL && !given_up && atomic_load(&op->claims->left) == 0;
    return spread == NULL || all_slices || spread->parts_left == 0;
}

bool spread_needs(const struct exec_op *op, uint32_t rail)
{
    const struct exec_spread *spread = op->spread;
    for (uint32_t i = 0; spread != NULL && i < spread->part_count; i++) {
        if (spread->parts[i].rail == rail) {
            return !spread->parts[i].over;
        }
    }
    return false;
}

void spread_result(const struct exec_op *op, struct error *result)
{
    if (op->spread != NULL && op->spread->result.status != STATUS_OK) {
        *result = op->spread->result;
    }
}

void spread_release(struct exec_op *op)
{
    struct exec_spread *spread = op->spread;
    if (spread == NULL) {
        return;
    }
    spread->op = NULL;
    op->spread = NULL;
    op->claims = NULL;
    spread_free_if_over(spread);
}
