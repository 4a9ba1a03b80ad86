#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/req/req_internal.h"

struct req_comm *req_comm_find(const struct req *req, uid_t owner_uid, const char *name)
{
    struct req_comm *comm;
    struct req_key key;
    size_t key_bytes = req_key_make(&key, owner_uid, name);
    HASH_FIND(hh_key, req->by_key, &key, key_bytes, comm);
    return comm;
}

struct req_comm *req_comm_find_id(const struct req *req, uint64_t comm_id)
{
    struct req_comm *comm;
    HASH_FIND(hh_id, req->by_id, &comm_id, sizeof comm_id, comm);
    return comm;
}

const char *req_comm_own_name(const struct req_comm *comm)
{
    return mesh_own_name(comm->req->mesh);
}

const char *req_comm_node_name(const struct req_comm *comm, uint32_t node)
{
    return node == REQ_NODE_OWN ? req_comm_own_name(comm) : mesh_node_name(comm->req->mesh, node);
}

uint32_t req_comm_node_index(const struct req_comm *comm, uint32_t node)
{
    uint32_t index = 0;
    while (index < comm->node_count && comm->nodes[index].node != node) {
        index++;
    }
    return index;
}

void req_comm_send(struct req_comm *comm, uint32_t node, const Commd__Mesh__Message *message)
{
    enum status status = mesh_send(comm->req->mesh, node, message);
    (void)status; /* a node that cannot be told is lost, and node_down follows or was */
}

/* --- Beginning and end --- */

enum status req_comm_new(struct req *req, const char *name, const struct req_comm_terms *terms,
                         uint64_t now_ns, struct req_comm **out, struct error *error)
{
    if (req->comm_count >= REQ_COMMS_MAX) {
        return error_set(error, STATUS_LIMIT, "communicator \"%s\": this node has %d communicators already",
                         name, REQ_COMMS_MAX);
    }
    struct req_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL || !timer_heap_reserve(&req->timers, (size_t)req->comm_count + 1)) {
        free(comm);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", name);
    }
    comm->req = req;
    size_t key_bytes = req_key_make(&comm->key, terms->owner_uid, name);
    HASH_ADD_KEYPTR(hh_key, req->by_key, &comm->key, key_bytes, comm);
    if (!table_has(comm, hh_key)) {
        free(comm);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", name);
    }
    comm->named = true;
    comm->name = comm->key.name;
    comm->terms = *terms;
    comm->generation = req_names_next_generation(req, terms->owner_uid, name);
    comm->timer.index = TIMER_NODE_DISARMED;
    comm->left_seq = UINT64_MAX;
    comm->op_deadline_ns = TIME_NEVER;
    comm->record_poll_ns = TIME_NEVER;
    comm->overdue_ns = TIME_NEVER;
    comm->refusal_ns = TIME_NEVER;
    comm->announce_ns = TIME_NEVER;
    comm->refusals_ns = TIME_NEVER;
    do {
        comm->nonce = random_u64(&req->random);
    } while (comm->nonce == 0);
    mesh_link_estimate(req->mesh, &comm->latency_ns, &comm->bytes_per_s);
    req_comm_set_state(comm, REQ_COMM_FORMING, now_ns);
    DL_APPEND(req->comms, comm);
    req->comm_count++;
    *out = comm;
    return STATUS_OK;
}

void req_comm_unname(struct req_comm *comm)
{
    if (comm->named) {
        HASH_DELETE(hh_key, comm->req->by_key, comm);
        comm->named = false;
    }
}

void req_comm_free(struct req_comm *comm)
{
    struct req *req = comm->req;
    req_comm_unname(comm);
    fair_remove(&req->queue, &comm->turn);
    req_op_free_all(comm);
    req_point_free_all(comm);
    if (comm->exec != NULL) {
        exec_comm_free(comm->exec);
    }
    req_formation_free(comm);
    timer_heap_remove(&req->timers, &comm->timer);
    DL_DELETE(req->comms, comm);
    req->comm_count--;
    free(comm);
}

void req_comm_queue(struct req_comm *comm)
{
    fair_put(&comm->req->queue, &comm->turn, comm->terms.owner_uid);
}

void req_comm_set_state(struct req_comm *comm, enum req_comm_state state, uint64_t now_ns)
{
    comm->state = state;
    comm->since_ns = now_ns;
}

static uint64_t comm_deadline_ns(const struct req_comm *comm)
{
    uint64_t deadline_ns = TIME_NEVER;
    const struct req_member *member;
    switch (comm->state) {
    case REQ_COMM_FORMING:
        deadline_ns = time_min(comm->refusal_ns, comm->announce_ns);
        DL_FOREACH(comm->members, member)
        {
            if (!member->refused) {
                deadline_ns = time_min(deadline_ns, member->form_deadline_ns);
            }
        }
        break;
    case REQ_COMM_FORMED:
        deadline_ns = time_min(time_min(comm->op_deadline_ns, comm->record_poll_ns), comm->refusals_ns);
        if (comm->exec_failed) {
            deadline_ns = time_min(deadline_ns, comm->exec_cause_ns);
        }
        break;
    case REQ_COMM_FAILED:
        deadline_ns = comm->overdue_ns;
        break;
    }
    return deadline_ns;
}

void req_comm_arm(struct req_comm *comm)
{
    uint64_t deadline_ns = comm_deadline_ns(comm);
    if (deadline_ns == TIME_NEVER) {
        timer_heap_remove(&comm->req->timers, &comm->timer);
    } else {
        timer_heap_set(&comm->req->timers, &comm->timer, deadline_ns);
    }
}

/* --- Failure --- */

static void comm_tell_abort(struct req_comm *comm, const struct error *cause)
{
    Commd__Mesh__Abort body = COMMD__MESH__ABORT__INIT;
    body.comm_id = comm->comm_id;
    body.status = cause->status;
    body.text = (char *)cause->text;
    body.origin_node = (char *)req_comm_own_name(comm);
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    message.body_case = COMMD__MESH__MESSAGE__BODY_ABORT;
    message.abort = &body;
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (i != comm->own_index) {
            req_comm_send(comm, comm->nodes[i].node, &message);
        }
    }
}

bool req_comm_may_log(const struct req_comm *comm, struct user_log *logs, uint64_t now_ns,
                      char left_out[REQ_LEFT_OUT_BYTES])
{
    uint64_t suppressed;
    left_out[0] = '\0';
    if (!user_log_pass(logs, comm->terms.owner_uid, now_ns, &suppressed)) {
        return false;
    }
    if (suppressed > 0) {
        (void)snprintf(left_out, REQ_LEFT_OUT_BYTES, " (%llu such lines of this user were left out)",
                       (unsigned long long)suppressed);
    }
    return true;
}

void req_comm_fail(struct req_comm *comm, const struct error *cause, enum req_tell tell, uint64_t now_ns)
{
    if (comm->state == REQ_COMM_FAILED) {
        return;
    }
    bool formed = comm->state == REQ_COMM_FORMED;
    struct error copy = *cause; /* may be the communicator's own */
    if (copy.status == STATUS_OK || copy.status == STATUS_IN_PROGRESS) {
        copy.status = STATUS_INTERNAL;
    }
    char left_out[REQ_LEFT_OUT_BYTES];
    if (req_comm_may_log(comm, &comm->req->failed_log, now_ns, left_out)) {
        log_warning("communicator \"%s\" %s: %s%s", comm->name, formed ? "failed" : "gave up forming",
                    req_text_without_name(comm->name, copy.text), left_out);
    }
    comm->cause = copy;
    if (tell == REQ_TELL_NODES) {
        if (formed) {
            comm_tell_abort(comm, &copy);
        }
        req_formation_withdraw(
            comm, &copy); /* for nodes on which it is not formed yet, or is forming anew already */
    }
    req_comm_set_state(comm, REQ_COMM_FAILED, now_ns);
    req_comm_unname(comm);
    if (formed) {
        req_op_fail_waiting(comm);
        req_point_fail(comm);
        exec_comm_abort(comm->exec, &comm->cause, now_ns);
        comm->overdue_ns = time_after(now_ns, REQ_OVERDUE_NS);
    }
    req_comm_arm(comm);
    req_comm_queue(comm);
}

/* --- Members --- */

void req_comm_rank_left(struct req_comm *comm, uint32_t rank, uint64_t last_seq)
{
    if (comm->has_left[rank]) {
        return;
    }
    comm->has_left[rank] = true;
    comm->nodes[comm->node_of_rank[rank]].left_count++;
    if (last_seq < comm->left_seq) {
        comm->left_seq = last_seq;
        comm->left_rank = rank;
    }
}

void req_comm_remove_member(struct req_member *member)
{
    struct req_comm *comm = member->comm;
    if (comm->cursor == member) {
        comm->cursor = member->next;
    }
    if (comm->told == member) {
        comm->told = NULL;
    }
    req_records_end(member);
    req_verdict_forget_own(member);
    budget_release(member->client.account, BUDGET_COMMUNICATORS, 1);
    DL_DELETE(comm->members, member);
    comm->member_count--;
    if (!member->refused) {
        comm->rank_count--;
        if (comm->rank_count == 0) {
            req_comm_unname(comm);
        }
    }
    if (comm->locals != NULL && member->local_index < comm->local_count &&
        comm->locals[member->local_index] == member) {
        comm->locals[member->local_index] = NULL;
    }
    free(member);
    req_comm_queue(comm);
}

static const struct error comm_success = {.status = STATUS_OK};

/* Tells the owner the next thing that it does not know yet. Returns whether there was one. The member may be
 * gone afterwards. */
static bool member_tell(struct req_member *member, uint64_t now_ns)
{
    struct req_comm *comm = member->comm;
    const struct req_member_handler handler = member->handler;
    bool was_formed = comm->ops != NULL && !member->refused;
    if (!member->formed_told) {
        if (comm->state == REQ_COMM_FORMING && !member->refused) {
            return false;
        }
        member->formed_told = true;
        handler.formed(handler.context, member,
                       member->refused ? &member->refusal
                       : was_formed    ? &comm_success
                                       : &comm->cause,
                       now_ns);
        return true;
    }
    if (!was_formed) {
        return false;
    }
    if (req_point_tell(member, now_ns)) {
        return true;
    }
    if (member->completed_seq < member->posted_seq) {
        struct req_comm_op *op = req_op_at(comm, member->completed_seq + 1);
        if (op == NULL || !op->posts[member->local_index].owed) {
            member->completed_seq = member->owed_ops > 0 ? member->completed_seq + 1 : member->posted_seq;
            return true; /* it was refused, and the owner heard that at once */
        }
        if (!op->finished && !op->overdue) {
            return false;
        }
        struct error cause = op->succeeded ? comm_success : op->cause != NULL ? *op->cause : comm->cause;
        struct req_completion completion = {.ticket = op->posts[member->local_index].ticket,
                                            .result = &cause};
        member->completed_seq++;
        req_op_settle(op, member);
        handler.completed(handler.context, member, &completion, now_ns);
        return true;
    }
    if (comm->state == REQ_COMM_FAILED && !member->aborted_told && member->pending_messages == 0) {
        member->aborted_told = true;
        handler.aborted(handler.context, member, &comm->cause, now_ns);
        return true;
    }
    return false;
}

/* Owners may do anything from their callbacks: leave (any member), post, join. */
static void comm_tell_members(struct req_comm *comm, uint64_t now_ns)
{
    comm->cursor = comm->members;
    while (comm->cursor != NULL) {
        struct req_member *member = comm->cursor;
        comm->cursor = member->next;
        comm->told = member;
        while (comm->told == member && comm->req->tells_left > 0 && member_tell(member, now_ns)) {
            comm->req->tells_left--;
        }
        comm->told = NULL;
    }
    if (comm->req->tells_left == 0) {
        req_comm_queue(comm); /* for the rest, after the other communicators */
    }
}

static void comm_step_records(struct req_comm *comm, uint64_t now_ns)
{
    bool polls = false;
    struct req_member *member;
    DL_FOREACH(comm->members, member)
    {
        polls |= member->records != NULL && req_records_step(member);
    }
    comm->record_poll_ns = polls ? time_after(now_ns, REQ_RECORD_POLL_NS) : TIME_NEVER;
}

void req_comm_work(struct req_comm *comm, uint64_t now_ns)
{
    if (comm->state == REQ_COMM_FORMED && comm->exec_failed && now_ns >= comm->exec_cause_ns) {
        req_comm_fail(comm, &comm->exec_cause, REQ_TELL_NODES, now_ns);
    }
    if (comm->state == REQ_COMM_FORMING && comm->rank_count > 0) {
        req_formation_work(comm, now_ns);
    }
    req_verdict_tell_refusals(comm, now_ns);
    comm_step_records(comm, now_ns);
    comm_tell_members(comm, now_ns);
    req_comm_arm(comm);
    if (comm->member_count == 0 && (comm->exec == NULL || exec_comm_idle(comm->exec))) {
        req_comm_free(comm);
    }
}
