#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/checked.h"
#include "daemon/base/log.h"
#include "daemon/base/placement.h"
#include "daemon/comm/comms_internal.h"
#include "daemon/comm/comms_tree.h"
#include "daemon/comm/doubt.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/loss.h"
#include "daemon/comm/meeting.h"
#include "daemon/comm/meeting_relay.h"
#include "daemon/comm/silence.h"
#include "daemon/comm/witness.h"

enum status comms_new(const struct comms_options *options, struct comms **out, struct error *error)
{
    struct comms *comms = calloc(1, sizeof *comms);
    if (comms == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the registry of communicators");
    }
    comms->mesh = options->mesh;
    comms->exec = options->exec;
    comms->p2p = options->p2p;
    comms->rail_count = options->rail_count;
    (void)snprintf(comms->algorithms, sizeof comms->algorithms, "%s",
                   options->algorithms != NULL ? options->algorithms : "");
    comms->placement = options->placement;
    comms->clock = options->clock;
    comms->node_limit = (struct log_limit){.burst = 5, .interval_ns = 10 * TIME_S};
    comms->refusal_limit = (struct log_limit){.burst = 20, .interval_ns = TIME_S};
    comms->verdict_limit = (struct log_limit){.burst = 20, .interval_ns = TIME_S};
    comms->slice_bytes = options->slice_bytes != 0 ? options->slice_bytes : EXEC_SLICE_BYTES_DEFAULT;
    random_seed(&comms->random, options->seed_secure);
    struct mesh_handler handler = {comms, comms_control_node_up, comms_control_node_down,
                                   comms_control_received, comms_silence_suspect};
    mesh_set_handler(comms->mesh, MESH_ROOM_COMM, &handler);
    *out = comms;
    return STATUS_OK;
}

void comms_free(struct comms *comms)
{
    if (comms == NULL) {
        return;
    }
    struct mesh_handler nobody = {0};
    mesh_set_handler(comms->mesh, MESH_ROOM_COMM, &nobody);
    struct error cause;
    error_set(&cause, STATUS_SHUTTING_DOWN, "node %s: commd is shutting down", mesh_own_name(comms->mesh));
    while (comms->comms != NULL) {
        struct communicator *comm = comms->comms;
        if (!communicator_is_idle(comm)) {
            exec_comm_abort(comm->exec, &cause);
            p2p_comm_abort(comm->p2p, &cause);
        }
        while (comm->members != NULL) {
            communicator_remove_member(comm->members);
        }
        communicator_free(comm);
    }
    comms_undrain(comms);
    comms_meeting_free(comms);
    comms_relays_free(comms);
    comms_ends_free(comms);
    comms_witness_free(comms);
    comms_farewells_tick(comms, TIME_NEVER);
    comms_posts_free(comms);
    comms_names_free(comms);
    comms_past_free(comms);
    timer_heap_free(&comms->timers);
    free(comms);
}

const char *comms_algorithms(const struct comms *comms)
{
    return comms->algorithms;
}

uint64_t comms_slice_bytes(const struct comms *comms)
{
    return comms->slice_bytes;
}

const struct comms_totals *comms_totals(const struct comms *comms)
{
    return &comms->totals;
}

bool comms_is_crowded(const struct comms *comms)
{
    return mesh_is_crowded(comms->mesh);
}

uint64_t comms_next_deadline_ns(const struct comms *comms)
{
    if (comms->queue.count > 0) {
        return 0;
    }
    const struct timer_node *first = timer_heap_first(&comms->timers);
    uint64_t meeting_ns = time_min(comms_meeting_deadline_ns(comms), comms_farewells_deadline_ns(comms));
    meeting_ns = time_min(meeting_ns, comms_relays_deadline_ns(comms));
    meeting_ns = time_min(meeting_ns, comms_witness_deadline_ns(comms));
    return time_min(first != NULL ? first->deadline_ns : TIME_NEVER,
                    time_min(meeting_ns, comms_posts_deadline_ns(comms)));
}

static void comms_expire(struct communicator *comm, uint64_t now_ns)
{
    comms_loss_tick(comm, now_ns);
    if (comm->state != COMMS_COMM_FAILED) {
        comms_links_step(comm, now_ns);
    }
    if (comms_loss_is_frozen(comm)) {
        communicator_arm(comm);
        return;
    }
    switch (comm->state) {
    case COMMS_COMM_FORMING:
        if (now_ns >= comm->announce_ns) {
            comm->announce_ns = TIME_NEVER;
            communicator_queue(comm);
        }
        if (now_ns >= comm->refusal_ns) {
            comms_formation_hold_refusals(comm, now_ns);
        }
        comms_guest_step(comm->guest, now_ns);
        comms_doubt_step(comm, now_ns);
        if (comm->state == COMMS_COMM_FORMING && comms_is_next(comm)) {
            comms_next_deadline(comm, now_ns);
        } else if (comm->state == COMMS_COMM_FORMING) {
            comms_formation_deadline(comm, now_ns);
        }
        break;
    case COMMS_COMM_FORMED:
        if (comm->exec_failed && now_ns >= comm->exec_cause_ns) {
            communicator_fail(comm, &comm->exec_cause, COMMS_TELL_NODES, now_ns);
        } else {
            comms_op_deadlines(comm, now_ns);
            comms_reach_step(comm, now_ns);
        }
        if (now_ns >= comm->record_poll_ns || now_ns >= comm->refusals_ns) {
            comm->refusals_ns = TIME_NEVER;
            communicator_queue(comm);
        }
        break;
    case COMMS_COMM_FAILED:
        if (now_ns >= comm->overdue_ns) {
            comm->overdue_ns = TIME_NEVER;
            comms_op_overdue(comm, TIME_NEVER);
            comms_p2p_overdue(comm);
            communicator_queue(comm);
        }
        break;
    }
    communicator_arm(comm);
}

void comms_tick(struct comms *comms, uint64_t now_ns)
{
    struct timer_node *first;
    comms->now_ns = now_ns;
    comms_meeting_tick(comms, now_ns);
    comms_relays_tick(comms, now_ns);
    comms_witness_tick(comms, now_ns);
    comms_farewells_tick(comms, now_ns);
    comms_posts_tick(comms, now_ns);
    /* A communicator that expires gets queued, or a deadline later than now. The bound is only a guard:
     * without it a bug there would hang the daemon. */
    for (uint32_t turn = 0; turn <= comms->comm_count; turn++) {
        first = timer_heap_first(&comms->timers);
        if (first == NULL || first->deadline_ns > now_ns) {
            break;
        }
        comms_expire((struct communicator *)((char *)first - offsetof(struct communicator, timer)), now_ns);
    }
    /* Communicators that are queued meanwhile wait for the next tick. */
    comms->tells_left = COMMS_TICK_TELLS;
    for (uint32_t left = comms->queue.count; left > 0 && comms->tells_left > 0; left--) {
        struct fair_entry *turn = fair_take(&comms->queue);
        if (turn == NULL) {
            break;
        }
        comms->tells_left--;
        communicator_work((struct communicator *)((char *)turn - offsetof(struct communicator, turn)),
                          now_ns);
    }
}

/* --- Joining --- */

static enum status terms_check(const struct comms_terms *terms, struct error *error)
{
    if (terms->name == NULL || !printable_is_name(terms->name, COMM_NAME_MAX_BYTES)) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "a communicator's name has 1 to %d printable ASCII characters without space",
                         COMM_NAME_MAX_BYTES);
    }
    if (terms->size < 1 || terms->size > COMM_SIZE_MAX) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "communicator \"%s\": size %u; expected 1 to %d",
                         terms->name, terms->size, COMM_SIZE_MAX);
    }
    if (terms->rank >= terms->size) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "communicator \"%s\": rank %u, but the size is %u",
                         terms->name, terms->rank, terms->size);
    }
    if (terms->algorithms != NULL && terms->algorithms[0] != '\0' &&
        !printable_is_name(terms->algorithms, COMMS_ALGORITHMS_MAX_BYTES)) {
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "communicator \"%s\": algorithms have at most %d printable ASCII characters without space",
            terms->name, COMMS_ALGORITHMS_MAX_BYTES);
    }
    return STATUS_OK;
}

static enum status terms_agreed(const struct comms *comms, const struct comms_client *client,
                                const struct comms_terms *terms, struct communicator_terms *out,
                                struct error *error)
{
    struct error why;
    *out = (struct communicator_terms){
        .size = terms->size,
        .owner_uid = client->uid,
        .op_timeout_ms = terms->op_timeout_ms != 0 ? terms->op_timeout_ms : COMMS_TIMEOUT_DEFAULT_MS,
        .slice_bytes = terms->slice_bytes != 0 ? terms->slice_bytes : comms->slice_bytes,
    };
    out->slice_bytes_of_node = terms->slice_bytes == 0;
    out->minority_continues = terms->minority_continues;
    bool said = terms->algorithms != NULL && terms->algorithms[0] != '\0';
    (void)snprintf(out->algorithms, sizeof out->algorithms, "%s",
                   said ? terms->algorithms : comms->algorithms);
    out->algorithms_of_node = !said;
    if (coll_overrides_parse(out->algorithms, &out->overrides, &why) != STATUS_OK) {
        return error_set(error, why.status, "communicator \"%s\": algorithms: %s", terms->name, why.text);
    }
    return STATUS_OK;
}

/* Whether a rank may join those that are here already. */
static enum status join_check(const struct communicator *comm, const struct comms_client *client,
                              uint32_t rank, const struct communicator_terms *asked, struct error *error)
{
    const struct comms_member *member, *first = NULL;
    char asks[96];
    char has[96];
    DL_FOREACH(comm->members, member)
    {
        first = first == NULL && !member->refused ? member : first;
    }
    if (first != NULL && comms_terms_differ(asked, &comm->terms, asks, has, sizeof asks)) {
        return error_set(error, STATUS_MISMATCH,
                         "communicator \"%s\": rank %u (pid %d) asks for %s, rank %u (pid %d) has %s",
                         comm->name, rank, (int)client->pid, asks, first->rank, (int)first->client.pid, has);
    }
    DL_FOREACH(comm->members, member)
    {
        if (!member->refused && member->rank == rank) {
            return error_set(error, STATUS_ALREADY_EXISTS,
                             "communicator \"%s\": rank %u is taken by pid %d of node %s", comm->name, rank,
                             (int)member->client.pid, communicator_own_name(comm));
        }
    }
    if (comm->comm_id != 0) {
        const char *holder = comm->node_names[comm->node_of_rank[rank]];
        return error_set(error, STATUS_ALREADY_EXISTS, "communicator \"%s\": rank %u %s node %s", comm->name,
                         rank, comm->has_left[rank] ? "has left, and was on" : "is taken, on", holder);
    }
    const struct comms_claim *claim = comms_formation_claimant(comm, rank);
    if (claim != NULL) {
        return error_set(error, STATUS_ALREADY_EXISTS, "communicator \"%s\": rank %u is taken, on node %s",
                         comm->name, rank, communicator_node_name(comm, claim->node));
    }
    if (comm->rank_count >= COMMS_LOCAL_RANKS_MAX) {
        return error_set(error, STATUS_LIMIT, "communicator \"%s\" has %d ranks on node %s already",
                         comm->name, COMMS_LOCAL_RANKS_MAX, communicator_own_name(comm));
    }
    return STATUS_OK;
}

static int member_order(const struct comms_member *a, const struct comms_member *b)
{
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

void communicator_add_member(struct communicator *comm, struct comms_member *member)
{
    member->comm = comm;
    member->numa_node = placement_rank_came(comm->comms->placement, member->client.pid);
    DL_INSERT_INORDER(comm->members, member, member_order);
    comm->member_count++;
    comm->rank_count++;
    communicator_arm(comm);
    communicator_queue(comm);
}

enum status communicator_member_new(const struct comms_client *client, const struct comms_terms *terms,
                                    const struct comms_member_handler *handler, uint64_t now_ns,
                                    struct comms_member **out, struct error *error)
{
    struct error why;
    if (communicator_charge_rank(client->account, &why) != STATUS_OK) {
        return error_set(error, why.status, "communicator \"%s\", rank %u: %s", terms->name, terms->rank,
                         why.text);
    }
    struct comms_member *member = calloc(1, sizeof *member);
    if (member == NULL) {
        communicator_uncharge_rank(client->account);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for rank %u", terms->name,
                         terms->rank);
    }
    uint64_t timeout_ns;
    member->client = *client;
    member->handler = *handler;
    member->rank = terms->rank;
    member->takes_cells = terms->takes_cells;
    member->takes_node_cells = terms->takes_node_cells;
    member->form_timeout_ms = terms->form_timeout_ms != 0 ? terms->form_timeout_ms : COMMS_TIMEOUT_DEFAULT_MS;
    member->form_deadline_ns = checked_mul_u64(member->form_timeout_ms, TIME_MS, &timeout_ns)
                                   ? time_after(now_ns, timeout_ns)
                                   : TIME_NEVER;
    *out = member;
    return STATUS_OK;
}

enum status comms_member_join(struct comms *comms, const struct comms_client *client,
                              const struct comms_terms *terms, const struct comms_member_handler *handler,
                              uint64_t now_ns, struct comms_member **out, struct error *error)
{
    struct communicator_terms asked;
    struct communicator *comm = NULL;
    enum status status = terms_check(terms, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = terms_agreed(comms, client, terms, &asked, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (!mesh_user_may(comms->mesh, client->uid, MESH_NODE_OWN)) {
        return error_set(error, STATUS_PERMISSION,
                         "communicator \"%s\": uid %u may have no ranks on node %s (users in commd.conf)",
                         terms->name, (unsigned)client->uid, mesh_own_name(comms->mesh));
    }
    status = comms_drain_check(comms, client->uid, terms->name, now_ns, error);
    if (status != STATUS_OK) {
        return status;
    }
    comm = communicator_find(comms, client->uid, terms->name);
    if (comm != NULL && comm->state == COMMS_COMM_FORMED && terms->rank < comm->terms.size &&
        comm->has_left[terms->rank]) {
        /* The rank begins the next of that name before others have left this one. */
        communicator_unname(comm);
        comm = NULL;
    }
    if (comm != NULL) {
        status = join_check(comm, client, terms->rank, &asked, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    struct comms_member *member = NULL;
    status = communicator_member_new(client, terms, handler, now_ns, &member, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (comm == NULL) {
        status = communicator_new(comms, client->account, terms->name, &asked, true, now_ns, &comm, error);
        if (status != STATUS_OK) {
            communicator_uncharge_rank(client->account);
            free(member);
            return status;
        }
    }
    comm->announce_wanted = true;
    communicator_add_member(comm, member);
    *out = member;
    return STATUS_OK;
}

void comms_member_view(const struct comms_member *member, struct communicator_view *out)
{
    const struct communicator *comm = member->comm;
    *out = (struct communicator_view){
        .comm_id = comm->comm_id,
        .generation = comm->generation,
        .size = comm->terms.size,
        .rank = member->rank,
        .local_rank = member->local_index,
        .local_size = comm->local_count,
        .node_count = comm->node_count,
        .node_of_rank = comm->node_of_rank,
        .node_names = comm->node_names,
        .last_seq = comms_cells_head(member),
    };
}

/* --- By hand --- */

void comms_member_abort(struct comms_member *member, const struct error *cause, uint64_t now_ns)
{
    struct comms_detail detail = {0};
    comms_detail_add_member(&detail, member);
    communicator_fail_with(member->comm, cause, &detail, COMMS_TELL_NODES, now_ns);
}

const struct comms_detail *comms_member_detail(const struct comms_member *member)
{
    return member->comm->detail;
}

const struct comms_detail *comms_refusal_detail(const struct comms_member *member, enum op_kind kind,
                                                uint32_t peer_rank, const struct error *error,
                                                struct comms_detail *out)
{
    const struct communicator *comm = member->comm;
    if (comm->state == COMMS_COMM_FAILED) {
        return comm->cause.status == error->status ? comm->detail : NULL;
    }
    if (!op_kind_is_message(kind) || error->status != STATUS_RANK_LOST) {
        return NULL;
    }
    *out = (struct comms_detail){.kind = kind + 1};
    comms_detail_add_peer(out, comm, member->rank, peer_rank);
    return out;
}

enum status comms_abort(struct comms *comms, uid_t owner_uid, const char *name, const struct error *cause,
                        uint64_t now_ns)
{
    struct communicator *comm = communicator_find(comms, owner_uid, name);
    if (comm == NULL || comm->state == COMMS_COMM_FAILED || comms_loss_is_frozen(comm)) {
        return STATUS_NOT_FOUND;
    }
    communicator_fail(comm, cause, COMMS_TELL_NODES, now_ns);
    return STATUS_OK;
}

void comms_abort_forming(struct comms *comms, uid_t owner_uid, const char *name, const struct error *cause,
                         uint64_t now_ns)
{
    struct communicator *comm = communicator_find(comms, owner_uid, name);
    if (comm != NULL && comm->state == COMMS_COMM_FORMING) {
        communicator_fail(comm, cause, COMMS_TELL_NODES, now_ns);
    }
}

void comms_abort_all(struct comms *comms, const struct error *cause, uint64_t now_ns)
{
    struct communicator *comm;
    DL_FOREACH(comms->comms, comm)
    {
        if (comm->member_count > 0) {
            comms_loss_all_gone(comm);
            communicator_fail(comm, cause, COMMS_TELL_NODES, now_ns);
        }
    }
}

bool comms_idle(const struct comms *comms)
{
    const struct communicator *comm;
    DL_FOREACH(comms->comms, comm)
    {
        if (comms_op_any_pending(comm) || !communicator_is_idle(comm) || comms_cells_any_pending(comm)) {
            return false;
        }
    }
    return true;
}
