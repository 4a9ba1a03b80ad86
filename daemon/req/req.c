#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/checked.h"
#include "daemon/base/log.h"
#include "daemon/req/req_internal.h"

enum status req_new(const struct req_options *options, struct req **out, struct error *error)
{
    struct req *req = calloc(1, sizeof *req);
    if (req == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the registry of communicators");
    }
    req->mesh = options->mesh;
    req->exec = options->exec;
    req->rail_count = options->rail_count;
    (void)snprintf(req->algorithms, sizeof req->algorithms, "%s",
                   options->algorithms != NULL ? options->algorithms : "");
    req->user_may = options->user_may;
    req->user_may_context = options->user_may_context;
    req->node_limit = (struct log_limit){.burst = 5, .interval_ns = 10 * TIME_S};
    req->refusal_limit = (struct log_limit){.burst = 20, .interval_ns = TIME_S};
    req->verdict_limit = (struct log_limit){.burst = 20, .interval_ns = TIME_S};
    req->slice_bytes = options->slice_bytes != 0 ? options->slice_bytes : EXEC_SLICE_BYTES_DEFAULT;
    random_seed(&req->random, options->seed_secure);
    struct mesh_handler handler = {req, req_message_node_up, req_message_node_down, req_message_received};
    mesh_set_handler(req->mesh, &handler);
    *out = req;
    return STATUS_OK;
}

void req_free(struct req *req)
{
    if (req == NULL) {
        return;
    }
    struct mesh_handler nobody = {0};
    mesh_set_handler(req->mesh, &nobody);
    struct error cause;
    error_set(&cause, STATUS_SHUTTING_DOWN, "node %s: commd is shutting down", mesh_own_name(req->mesh));
    while (req->comms != NULL) {
        struct req_comm *comm = req->comms;
        if (comm->exec != NULL && !exec_comm_idle(comm->exec)) {
            exec_comm_abort(comm->exec, &cause, 0);
        }
        while (comm->members != NULL) {
            req_comm_remove_member(comm->members);
        }
        req_comm_free(comm);
    }
    req_names_free(req);
    timer_heap_free(&req->timers);
    free(req);
}

const char *req_algorithms(const struct req *req)
{
    return req->algorithms;
}

uint64_t req_slice_bytes(const struct req *req)
{
    return req->slice_bytes;
}

bool req_is_crowded(const struct req *req)
{
    return mesh_is_crowded(req->mesh);
}

uint64_t req_next_deadline_ns(const struct req *req)
{
    if (req->queue.count > 0) {
        return 0;
    }
    const struct timer_node *first = timer_heap_first(&req->timers);
    return first != NULL ? first->deadline_ns : TIME_NEVER;
}

static void req_expire(struct req_comm *comm, uint64_t now_ns)
{
    switch (comm->state) {
    case REQ_COMM_FORMING:
        if (now_ns >= comm->announce_ns) {
            comm->announce_ns = TIME_NEVER;
            req_comm_queue(comm);
        }
        if (now_ns >= comm->refusal_ns) {
            req_formation_hold_refusals(comm, now_ns);
        }
        if (comm->state == REQ_COMM_FORMING) {
            req_formation_deadline(comm, now_ns);
        }
        break;
    case REQ_COMM_FORMED:
        if (comm->exec_failed && now_ns >= comm->exec_cause_ns) {
            req_comm_fail(comm, &comm->exec_cause, REQ_TELL_NODES, now_ns);
        } else {
            req_op_deadlines(comm, now_ns);
        }
        if (now_ns >= comm->record_poll_ns || now_ns >= comm->refusals_ns) {
            comm->refusals_ns = TIME_NEVER;
            req_comm_queue(comm);
        }
        break;
    case REQ_COMM_FAILED:
        if (now_ns >= comm->overdue_ns) {
            comm->overdue_ns = TIME_NEVER;
            req_op_overdue(comm);
            req_point_overdue(comm);
            req_comm_queue(comm);
        }
        break;
    }
    req_comm_arm(comm);
}

void req_tick(struct req *req, uint64_t now_ns)
{
    struct timer_node *first;
    req->now_ns = now_ns;
    /* Whatever expires is queued or set later than now; the bound keeps a mistake there from hanging the
     * daemon. */
    for (uint32_t turn = 0; turn <= req->comm_count; turn++) {
        first = timer_heap_first(&req->timers);
        if (first == NULL || first->deadline_ns > now_ns) {
            break;
        }
        req_expire((struct req_comm *)((char *)first - offsetof(struct req_comm, timer)), now_ns);
    }
    /* What is queued meanwhile waits for the next tick. */
    req->tells_left = REQ_TICK_TELLS;
    for (uint32_t left = req->queue.count; left > 0 && req->tells_left > 0; left--) {
        struct fair_entry *turn = fair_take(&req->queue);
        if (turn == NULL) {
            break;
        }
        req->tells_left--;
        req_comm_work((struct req_comm *)((char *)turn - offsetof(struct req_comm, turn)), now_ns);
    }
}

/* --- Joining --- */

static enum status terms_check(const struct req *req, const struct req_terms *terms, struct error *error)
{
    if (terms->name == NULL || !req_text_is_name(terms->name, COMM_NAME_MAX_BYTES)) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "a communicator's name has 1 to %d printable ASCII characters without space",
                         COMM_NAME_MAX_BYTES);
    }
    if (terms->size < 1 || terms->size > COMM_SIZE_MAX) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "communicator \"%s\": size %u; expected 1 to %d",
                         terms->name, terms->size, COMM_SIZE_MAX);
    }
    if (terms->rank >= terms->size) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "communicator \"%s\": rank %u of size %u",
                         terms->name, terms->rank, terms->size);
    }
    if (terms->algorithms != NULL && terms->algorithms[0] != '\0' &&
        !req_text_is_name(terms->algorithms, REQ_ALGORITHMS_MAX_BYTES)) {
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "communicator \"%s\": algorithms have at most %d printable ASCII characters without space",
            terms->name, REQ_ALGORITHMS_MAX_BYTES);
    }
    if (req->draining) {
        return error_set(error, STATUS_SHUTTING_DOWN, "communicator \"%s\": node %s is shutting down",
                         terms->name, mesh_own_name(req->mesh));
    }
    return STATUS_OK;
}

static enum status terms_agreed(const struct req *req, const struct req_client *client,
                                const struct req_terms *terms, struct req_comm_terms *out,
                                struct error *error)
{
    struct error why;
    *out = (struct req_comm_terms){
        .size = terms->size,
        .owner_uid = client->uid,
        .op_timeout_ms = terms->op_timeout_ms != 0 ? terms->op_timeout_ms : REQ_TIMEOUT_DEFAULT_MS,
        .slice_bytes = terms->slice_bytes != 0 ? terms->slice_bytes : req->slice_bytes,
    };
    bool said = terms->algorithms != NULL && terms->algorithms[0] != '\0';
    (void)snprintf(out->algorithms, sizeof out->algorithms, "%s", said ? terms->algorithms : req->algorithms);
    if (coll_overrides_parse(out->algorithms, &out->overrides, &why) != STATUS_OK) {
        return error_set(error, why.status, "communicator \"%s\": algorithms: %s", terms->name, why.text);
    }
    return STATUS_OK;
}

/* Whether a rank may join those that are here already. */
static enum status join_check(const struct req_comm *comm, const struct req_client *client, uint32_t rank,
                              const struct req_comm_terms *asked, struct error *error)
{
    const struct req_member *member, *first = NULL;
    char asks[96];
    char has[96];
    DL_FOREACH(comm->members, member)
    {
        first = first == NULL && !member->refused ? member : first;
    }
    if (first != NULL && req_terms_differ(asked, &comm->terms, asks, has, sizeof asks)) {
        return error_set(error, STATUS_MISMATCH,
                         "communicator \"%s\": rank %u (pid %d) asks for %s, rank %u (pid %d) has %s",
                         comm->name, rank, (int)client->pid, asks, first->rank, (int)first->client.pid, has);
    }
    DL_FOREACH(comm->members, member)
    {
        if (!member->refused && member->rank == rank) {
            return error_set(error, STATUS_ALREADY_EXISTS,
                             "communicator \"%s\": rank %u is taken by pid %d of node %s", comm->name, rank,
                             (int)member->client.pid, req_comm_own_name(comm));
        }
    }
    if (comm->comm_id != 0) {
        const char *holder = comm->node_names[comm->node_of_rank[rank]];
        return error_set(error, STATUS_ALREADY_EXISTS, "communicator \"%s\": rank %u %s node %s", comm->name,
                         rank, comm->has_left[rank] ? "has left, and was on" : "is taken, on", holder);
    }
    const struct req_claim *claim = req_formation_claimant(comm, rank);
    if (claim != NULL) {
        return error_set(error, STATUS_ALREADY_EXISTS, "communicator \"%s\": rank %u is taken, on node %s",
                         comm->name, rank, req_comm_node_name(comm, claim->node));
    }
    if (comm->rank_count >= REQ_LOCAL_RANKS_MAX) {
        return error_set(error, STATUS_LIMIT, "communicator \"%s\" has %d ranks on node %s already",
                         comm->name, REQ_LOCAL_RANKS_MAX, req_comm_own_name(comm));
    }
    return STATUS_OK;
}

static int member_order(const struct req_member *a, const struct req_member *b)
{
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

enum status req_member_join(struct req *req, const struct req_client *client, const struct req_terms *terms,
                            const struct req_member_handler *handler, uint64_t now_ns,
                            struct req_member **out, struct error *error)
{
    struct req_comm_terms asked;
    struct req_comm *comm = NULL;
    enum status status = terms_check(req, terms, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = terms_agreed(req, client, terms, &asked, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (!req_user_may(req, client->uid, REQ_NODE_OWN)) {
        return error_set(error, STATUS_PERMISSION,
                         "communicator \"%s\": uid %u may have no ranks on node %s (users in commd.conf)",
                         terms->name, (unsigned)client->uid, mesh_own_name(req->mesh));
    }
    comm = req_comm_find(req, client->uid, terms->name);
    if (comm != NULL && comm->state == REQ_COMM_FORMED && terms->rank < comm->terms.size &&
        comm->has_left[terms->rank]) {
        req_comm_unname(comm); /* the rank begins the next of that name before others have left this one */
        comm = NULL;
    }
    if (comm != NULL) {
        status = join_check(comm, client, terms->rank, &asked, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    struct error why;
    if (budget_charge(client->account, BUDGET_COMMUNICATORS, 1, &why) != STATUS_OK) {
        return error_set(error, why.status, "communicator \"%s\", rank %u: %s", terms->name, terms->rank,
                         why.text);
    }
    struct req_member *member = calloc(1, sizeof *member);
    if (member == NULL) {
        budget_release(client->account, BUDGET_COMMUNICATORS, 1);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for rank %u", terms->name,
                         terms->rank);
    }
    if (comm == NULL) {
        status = req_comm_new(req, terms->name, &asked, now_ns, &comm, error);
        if (status != STATUS_OK) {
            budget_release(client->account, BUDGET_COMMUNICATORS, 1);
            free(member);
            return status;
        }
    }
    uint64_t timeout_ns;
    member->comm = comm;
    member->client = *client;
    member->handler = *handler;
    member->rank = terms->rank;
    member->form_timeout_ms = terms->form_timeout_ms != 0 ? terms->form_timeout_ms : REQ_TIMEOUT_DEFAULT_MS;
    member->form_deadline_ns = checked_mul_u64(member->form_timeout_ms, TIME_MS, &timeout_ns)
                                   ? time_after(now_ns, timeout_ns)
                                   : TIME_NEVER;
    DL_INSERT_INORDER(comm->members, member, member_order);
    comm->member_count++;
    comm->rank_count++;
    comm->announce_wanted = true;
    req_comm_arm(comm);
    req_comm_queue(comm);
    *out = member;
    return STATUS_OK;
}

/* --- Leaving --- */

static void send_leave(struct req_comm *comm, uint32_t rank, uint64_t last_seq)
{
    Commd__Mesh__Leave body = COMMD__MESH__LEAVE__INIT;
    body.comm_id = comm->comm_id;
    body.n_ranks = 1;
    body.ranks = &rank;
    body.last_seq = last_seq;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    message.body_case = COMMD__MESH__MESSAGE__BODY_LEAVE;
    message.leave = &body;
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (i != comm->own_index) {
            req_comm_send(comm, comm->nodes[i].node, &message);
        }
    }
}

static bool member_has_pending(const struct req_member *member)
{
    const struct req_comm_op *op;
    for (op = member->comm->pending; op != NULL && op->seq <= member->posted_seq; op = op->next) {
        if (op->posts[member->local_index].part != NULL) {
            return true;
        }
    }
    return req_point_pending(member);
}

static void expelled_text(const struct req_member *member, const char *why, struct error *cause)
{
    const struct req_comm *comm = member->comm;
    error_set(cause, STATUS_RANK_LOST, "communicator \"%s\": rank %u (pid %d) of node %s %s", comm->name,
              member->rank, (int)member->client.pid, req_comm_own_name(comm), why);
}

/* The communicator is lost with the rank; why: not null when it was expelled. */
static void leave_formed(struct req_member *member, enum req_leave how, const char *why, uint64_t now_ns)
{
    struct req_comm *comm = member->comm;
    struct error cause;
    if (why == NULL && how == REQ_LEAVE_ORDERLY) {
        req_verdict_tell_own(member, now_ns);
    }
    if (why != NULL) {
        expelled_text(member, why, &cause);
        req_comm_fail(comm, &cause, REQ_TELL_NODES, now_ns);
    } else if (how == REQ_LEAVE_LOST) {
        error_set(&cause, STATUS_RANK_LOST,
                  "communicator \"%s\": the process of rank %u (pid %d) of node %s is gone", comm->name,
                  member->rank, (int)member->client.pid, req_comm_own_name(comm));
        req_comm_fail(comm, &cause, REQ_TELL_NODES, now_ns);
    } else if (member_has_pending(member)) {
        error_set(&cause, STATUS_ABORTED,
                  "communicator \"%s\": rank %u (pid %d) of node %s left before op %llu was done", comm->name,
                  member->rank, (int)member->client.pid, req_comm_own_name(comm),
                  (unsigned long long)member->posted_seq);
        req_comm_fail(comm, &cause, REQ_TELL_NODES, now_ns);
    } else {
        req_comm_rank_left(comm, member->rank, member->posted_seq);
        send_leave(comm, member->rank, member->posted_seq);
        req_op_check_left(comm, now_ns);
    }
}

static void leave_forming(struct req_member *member, enum req_leave how, const char *why, uint64_t now_ns)
{
    struct req_comm *comm = member->comm;
    struct error cause;
    error_set(&cause, STATUS_RANK_LOST,
              "communicator \"%s\": %srank %u (pid %d) of node %s %s while it was being formed", comm->name,
              how == REQ_LEAVE_LOST ? "the process of " : "", member->rank, (int)member->client.pid,
              req_comm_own_name(comm), how == REQ_LEAVE_LOST ? "was lost" : "left");
    if (why != NULL) {
        expelled_text(member, why, &cause);
    }
    req_formation_drop_member(member, &cause, now_ns);
}

static void member_leave(struct req_member *member, enum req_leave how, const char *why, uint64_t now_ns)
{
    struct req_comm *comm = member->comm;
    if (!member->refused) {
        switch (comm->state) {
        case REQ_COMM_FORMING:
            leave_forming(member, how, why, now_ns);
            break;
        case REQ_COMM_FORMED:
            leave_formed(member, how, why, now_ns);
            break;
        case REQ_COMM_FAILED:
            break;
        }
    }
    req_point_leave(member);
    req_op_settle_all(member);
    req_comm_remove_member(member);
}

void req_member_leave(struct req_member *member, enum req_leave how, uint64_t now_ns)
{
    member_leave(member, how, NULL, now_ns);
}

void req_member_expel(struct req_member *member, const char *why, uint64_t now_ns)
{
    member_leave(member, REQ_LEAVE_LOST, why, now_ns);
}

void req_member_view(const struct req_member *member, struct req_comm_view *out)
{
    const struct req_comm *comm = member->comm;
    *out = (struct req_comm_view){
        .comm_id = comm->comm_id,
        .generation = comm->generation,
        .size = comm->terms.size,
        .rank = member->rank,
        .local_rank = member->local_index,
        .local_size = comm->local_count,
        .node_count = comm->node_count,
        .node_of_rank = comm->node_of_rank,
        .node_names = comm->node_names,
    };
}

/* --- By hand --- */

enum status req_abort(struct req *req, uid_t owner_uid, const char *name, const struct error *cause,
                      uint64_t now_ns)
{
    struct req_comm *comm = req_comm_find(req, owner_uid, name);
    if (comm == NULL || comm->state == REQ_COMM_FAILED) {
        return STATUS_NOT_FOUND;
    }
    req_comm_fail(comm, cause, REQ_TELL_NODES, now_ns);
    return STATUS_OK;
}

void req_abort_all(struct req *req, const struct error *cause, uint64_t now_ns)
{
    struct req_comm *comm;
    DL_FOREACH(req->comms, comm)
    {
        if (comm->member_count > 0) {
            req_comm_fail(comm, cause, REQ_TELL_NODES, now_ns);
        }
    }
}

bool req_idle(const struct req *req)
{
    const struct req_comm *comm;
    DL_FOREACH(req->comms, comm)
    {
        if (req_op_any_pending(comm) || (comm->exec != NULL && !exec_comm_idle(comm->exec))) {
            return false;
        }
    }
    return true;
}

void req_drain(struct req *req)
{
    req->draining = true;
}
