#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/history.h"
#include "daemon/base/log.h"
#include "daemon/base/placement.h"
#include "daemon/comm/comms_internal.h"
#include "daemon/comm/comms_tree.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/loss.h"
#include "daemon/comm/meeting.h"
#include "daemon/comm/roster_draft.h"

struct communicator *communicator_find(const struct comms *comms, uid_t owner_uid, const char *name)
{
    struct communicator *comm;
    struct owned_name key;
    size_t key_bytes = owned_name_make(&key, owner_uid, name);
    HASH_FIND(hh_key, comms->by_key, &key, key_bytes, comm);
    return comm;
}

struct communicator *communicator_find_id(const struct comms *comms, uint64_t comm_id)
{
    struct communicator *comm;
    HASH_FIND(hh_id, comms->by_id, &comm_id, sizeof comm_id, comm);
    return comm;
}

const char *communicator_own_name(const struct communicator *comm)
{
    return mesh_own_name(comm->comms->mesh);
}

const char *communicator_node_name(const struct communicator *comm, uint32_t node)
{
    return mesh_node_name(comm->comms->mesh, node);
}

uint32_t communicator_node_index(const struct communicator *comm, uint32_t node)
{
    uint32_t index = 0;
    while (index < comm->node_count && comm->nodes[index].node != node) {
        index++;
    }
    return index;
}

void communicator_send(struct communicator *comm, uint32_t node, const Commd__Mesh__Message *message)
{
    bool relayed = comm->sparse && comms_tree_carries(message);
    uint32_t index = relayed ? communicator_node_index(comm, node) : comm->node_count;
    if (index < comm->node_count) {
        comms_tree_send(comm, index, message);
        return;
    }
    mesh_tell(comm->comms->mesh, node, message);
}

void communicator_broadcast(struct communicator *comm, const Commd__Mesh__Message *message)
{
    if (comm->sparse) {
        comms_tree_broadcast(comm, message);
        return;
    }
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (i != comm->own_index) {
            communicator_send(comm, comm->nodes[i].node, message);
        }
    }
}

/* --- Beginning and end --- */

enum status communicator_charge(struct communicator *comm, uint64_t bytes, struct error *error)
{
    struct error why;
    if (budget_charge(comm->account, BUDGET_COMMUNICATOR_BYTES, bytes, &why) != STATUS_OK) {
        return error_set(error, why.status, "communicator \"%s\": %s", comm->key.name, why.text);
    }
    comm->charged_bytes += bytes;
    return STATUS_OK;
}

/* The fixed cost of a communicator. Nodes, verdicts, exec and p2p are charged when they are added. */
static uint64_t comm_cost_bytes(const struct communicator *comm, uint32_t size)
{
    uint64_t of_rank = sizeof *comm->node_of_rank + sizeof *comm->has_left + sizeof *comm->left_messages +
                       sizeof *comm->left_pids + sizeof *comm->claims->ranks;
    return sizeof *comm + sizeof(struct timer_node *) + COMMS_NODE_COST_BYTES +
           COMMS_PENDING_OPS_MAX * sizeof *comm->ops + size * of_rank;
}

static void comm_uncharge(const struct communicator *comm)
{
    budget_release(comm->account, BUDGET_COMMUNICATOR_BYTES, comm->charged_bytes);
}

/* Makes its name findable. */
static enum status comm_name(struct communicator *comm, size_t key_bytes, struct error *error)
{
    HASH_ADD_KEYPTR(hh_key, comm->comms->by_key, &comm->key, key_bytes, comm);
    comm->named = table_has(comm, hh_key);
    return comm->named ? STATUS_OK
                       : error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", comm->key.name);
}

enum status communicator_new(struct comms *comms, struct budget_account *account, const char *name,
                             const struct communicator_terms *terms, bool is_named, uint64_t now_ns,
                             struct communicator **out, struct error *error)
{
    if (comms->comm_count >= COMMS_COMMS_MAX) {
        return error_set(error, STATUS_LIMIT, "communicator \"%s\": this node has %d communicators already",
                         name, COMMS_COMMS_MAX);
    }
    struct communicator *comm = calloc(1, sizeof *comm);
    if (comm == NULL || !timer_heap_reserve(&comms->timers, (size_t)comms->comm_count + 1)) {
        free(comm);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", name);
    }
    comm->comms = comms;
    comm->account = account;
    size_t key_bytes = owned_name_make(&comm->key, terms->owner_uid, name);
    if (communicator_charge(comm, comm_cost_bytes(comm, terms->size), error) != STATUS_OK) {
        free(comm);
        return STATUS_LIMIT;
    }
    if (is_named && comm_name(comm, key_bytes, error) != STATUS_OK) {
        comm_uncharge(comm);
        free(comm);
        return STATUS_NO_MEMORY;
    }
    comm->name = comm->key.name;
    comm->terms = *terms;
    comm->generation = comms_names_next_generation(comms, terms->owner_uid, name);
    comm->timer.index = TIMER_NODE_DISARMED;
    comm->left_seq = UINT64_MAX;
    comm->op_deadline_ns = TIME_NEVER;
    comm->reach_ns = TIME_NEVER;
    comm->record_poll_ns = TIME_NEVER;
    comm->overdue_ns = TIME_NEVER;
    comm->refusal_ns = TIME_NEVER;
    comm->announce_ns = TIME_NEVER;
    comm->refusals_ns = TIME_NEVER;
    comm->link_ns = comm->doubt_ns = TIME_NEVER;
    do {
        comm->nonce = random_u64(&comms->random);
    } while (comm->nonce == 0);
    mesh_link_estimate(comms->mesh, &comm->latency_ns, &comm->bytes_per_s);
    comm->state = COMMS_COMM_FORMING;
    comm->since_ns = now_ns;
    DL_APPEND(comms->comms, comm);
    comms->comm_count++;
    comms->totals.communicators[comm->state]++;
    *out = comm;
    return STATUS_OK;
}

void communicator_unname(struct communicator *comm)
{
    if (comm->named) {
        HASH_DELETE(hh_key, comm->comms->by_key, comm);
        comm->named = false;
        comms_guest_free(comm->guest);
        comm->guest = NULL;
    }
}

void communicator_free(struct communicator *comm)
{
    struct comms *comms = comm->comms;
    communicator_unname(comm);
    comms_loss_leave(comm);
    comms_op_free_all(comm);
    comms_p2p_free_all(comm);
    p2p_comm_free(comm->p2p);
    if (comm->exec != NULL) {
        exec_comm_free(comm->exec);
    }
    comms_formation_free(comm);
    comms_roster_drafts_free(comm);
    comms_cells_free(comm);
    free(comm->detail);
    fair_remove(&comms->queue, &comm->turn); /* what was freed above may have queued it */
    timer_heap_remove(&comms->timers, &comm->timer);
    DL_DELETE(comms->comms, comm);
    comms->comm_count--;
    comms->totals.communicators[comm->state]--;
    comm_uncharge(comm);
    free(comm);
}

bool communicator_is_idle(const struct communicator *comm)
{
    return comm->exec == NULL || (exec_comm_idle(comm->exec) && p2p_comm_idle(comm->p2p));
}

void communicator_queue(struct communicator *comm)
{
    fair_put(&comm->comms->queue, &comm->turn, comm->terms.owner_uid);
}

void communicator_set_state(struct communicator *comm, enum communicator_state state, uint64_t now_ns)
{
    comm->comms->totals.communicators[comm->state]--;
    comm->comms->totals.communicators[state]++;
    comm->state = state;
    comms_roster_drafts_free(comm); /* it is not forming any more */
    comm->since_ns = now_ns;
}

static uint64_t comm_deadline_ns(const struct communicator *comm)
{
    uint64_t deadline_ns = comms_loss_deadline_ns(comm);
    const struct comms_member *member;
    if (comms_loss_is_frozen(comm)) {
        return time_min(deadline_ns, comm->link_ns);
    }
    switch (comm->state) {
    case COMMS_COMM_FORMING:
        deadline_ns = time_min(deadline_ns, time_min(comm->refusal_ns, comm->announce_ns));
        deadline_ns = time_min(deadline_ns, time_min(comm->link_ns, comm->doubt_ns));
        deadline_ns = time_min(deadline_ns, comms_guest_deadline_ns(comm->guest));
        DL_FOREACH(comm->members, member)
        {
            if (!member->refused) {
                deadline_ns = time_min(deadline_ns, member->form_deadline_ns);
            }
        }
        break;
    case COMMS_COMM_FORMED:
        deadline_ns = time_min(deadline_ns, time_min(comm->op_deadline_ns, comm->record_poll_ns));
        deadline_ns = time_min(deadline_ns, comm->refusals_ns);
        deadline_ns = time_min(deadline_ns, time_min(comm->reach_ns, comm->link_ns));
        if (comm->exec_failed) {
            deadline_ns = time_min(deadline_ns, comm->exec_cause_ns);
        }
        break;
    case COMMS_COMM_FAILED:
        deadline_ns = time_min(deadline_ns, comm->overdue_ns);
        break;
    }
    return deadline_ns;
}

void communicator_arm(struct communicator *comm)
{
    uint64_t deadline_ns = comm_deadline_ns(comm);
    if (deadline_ns == TIME_NEVER) {
        timer_heap_remove(&comm->comms->timers, &comm->timer);
    } else {
        timer_heap_set(&comm->comms->timers, &comm->timer, deadline_ns);
    }
}

/* --- Failure --- */

static void comm_tell_abort(struct communicator *comm, const struct error *cause)
{
    Commd__Mesh__Abort body = COMMD__MESH__ABORT__INIT;
    body.comm_id = comm->comm_id;
    body.status = cause->status;
    body.text = (char *)cause->text;
    body.origin_node = (char *)communicator_own_name(comm);
    Commd__Mesh__Failure failure;
    if (comm->detail != NULL) {
        comms_detail_to_wire(comm->detail, &failure);
        body.failure = &failure;
    }
    Commd__Mesh__Message message = MESH_MESSAGE(ABORT, abort, &body);
    communicator_broadcast(comm, &message);
}

bool communicator_may_log(const struct communicator *comm, struct user_log *logs, uint64_t now_ns,
                          char left_out[COMMS_LEFT_OUT_BYTES])
{
    uint64_t suppressed;
    left_out[0] = '\0';
    if (!user_log_pass(logs, comm->terms.owner_uid, now_ns, &suppressed)) {
        return false;
    }
    if (suppressed > 0) {
        (void)snprintf(left_out, COMMS_LEFT_OUT_BYTES, " (%llu such lines of this user were left out)",
                       (unsigned long long)suppressed);
    }
    return true;
}

void communicator_end(struct communicator *comm, const struct error *cause, const struct comms_detail *detail,
                      enum comms_tell tell, uint64_t now_ns)
{
    if (comm->state == COMMS_COMM_FAILED) {
        return;
    }
    comm->detail = comms_detail_copy(detail); /* without memory there is only the text */
    bool formed = comm->state == COMMS_COMM_FORMED;
    struct error copy = *cause; /* `cause` may be comm->cause */
    if (copy.status == STATUS_OK || copy.status == STATUS_IN_PROGRESS) {
        copy.status = STATUS_INTERNAL;
    }
    char left_out[COMMS_LEFT_OUT_BYTES];
    if (communicator_may_log(comm, &comm->comms->failed_log, now_ns, left_out)) {
        log_warning("communicator \"%s\" %s: %s%s", comm->name, formed ? "failed" : "gave up forming",
                    comms_text_without_name(comm->name, copy.text), left_out);
    }
    comm->cause = copy;
    comm->comms->totals.failed++;
    struct history_about about = {.kind = HISTORY_COMMUNICATOR_FAILED,
                                  .audience = HISTORY_FOR_USER,
                                  .uid = comm->terms.owner_uid,
                                  .subject = comm->name,
                                  .now_ns = now_ns};
    history_add(&about, "%s%s",
                formed ? "" : "gave up forming: ", comms_text_without_name(comm->name, copy.text));
    trace_comm_failed(comm->comm_id, 0, 0, 0, 0, copy.status);
    if (tell == COMMS_TELL_NODES && !comms_loss_is_agreed(comm)) {
        if (formed) {
            comm_tell_abort(comm, &copy);
        }
        /* For nodes where it is not formed yet, or already forms again. Ranks whose time is over may try
         * again. */
        comms_formation_withdraw(comm, &copy, comm->detail, !formed && copy.status != STATUS_TIMED_OUT);
    }
    communicator_set_state(comm, COMMS_COMM_FAILED, now_ns);
    communicator_unname(comm);
    if (formed) {
        comms_cells_end(comm);
        comms_op_fail_waiting(comm, now_ns);
        comms_p2p_fail(comm);
        exec_comm_abort(comm->exec, &comm->cause);
        p2p_comm_abort(comm->p2p, &comm->cause);
        comm->overdue_ns = time_after(now_ns, COMMS_OVERDUE_NS);
        comms_op_overdue(comm, now_ns - COMMS_OVERDUE_NS / 2); /* they have had their time */
    }
    communicator_arm(comm);
    communicator_queue(comm);
}

void communicator_fail_with(struct communicator *comm, const struct error *cause,
                            const struct comms_detail *detail, enum comms_tell tell, uint64_t now_ns)
{
    if (comm->state != COMMS_COMM_FAILED && !comms_loss_takes(comm, cause, detail, now_ns)) {
        communicator_end(comm, cause, detail, tell, now_ns);
    }
}

void communicator_fail(struct communicator *comm, const struct error *cause, enum comms_tell tell,
                       uint64_t now_ns)
{
    communicator_fail_with(comm, cause, NULL, tell, now_ns);
}

/* --- Members --- */

#define MEMBER_COST_BYTES (sizeof(struct comms_member) + sizeof(struct comms_member *))

void communicator_rank_left(struct communicator *comm, uint32_t rank, int32_t pid, uint64_t last_seq,
                            const char *why)
{
    if (comm->has_left[rank]) {
        return;
    }
    comm->has_left[rank] = true;
    comm->left_pids[rank] = pid;
    comm->nodes[comm->node_of_rank[rank]].left_count++;
    if (last_seq < comm->left_seq) {
        comm->left_seq = last_seq;
        comm->left_rank = rank;
        comm->left_pid = pid;
        (void)snprintf(comm->left_why, sizeof comm->left_why, "%s", why);
    }
}

enum status communicator_charge_rank(struct budget_account *account, struct error *error)
{
    enum status status = budget_charge(account, BUDGET_COMMUNICATORS, 1, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = budget_charge(account, BUDGET_COMMUNICATOR_BYTES, MEMBER_COST_BYTES, error);
    if (status != STATUS_OK) {
        budget_release(account, BUDGET_COMMUNICATORS, 1);
    }
    return status;
}

void communicator_uncharge_rank(struct budget_account *account)
{
    budget_release(account, BUDGET_COMMUNICATOR_BYTES, MEMBER_COST_BYTES);
    budget_release(account, BUDGET_COMMUNICATORS, 1);
}

void communicator_remove_member(struct comms_member *member)
{
    struct communicator *comm = member->comm;
    if (comm->cursor == member) {
        comm->cursor = member->next;
    }
    if (comm->told == member) {
        comm->told = NULL;
    }
    trace_comm_left(comm->comm_id, 0, 0, member->rank, 0, 0);
    comms_records_end(member);
    comms_verdict_forget_own(member);
    communicator_uncharge_rank(member->client.account);
    placement_rank_left(comm->comms->placement, member->numa_node);
    DL_DELETE(comm->members, member);
    comm->member_count--;
    if (!member->refused) {
        comm->rank_count--;
        if (comm->rank_count == 0) {
            communicator_unname(comm);
        }
    }
    if (comm->locals != NULL && member->local_index < comm->local_count &&
        comm->locals[member->local_index] == member) {
        comm->locals[member->local_index] = NULL;
    }
    free(member);
    communicator_queue(comm);
}

static const struct error comm_success = {.status = STATUS_OK};

/* What is known of an operation's failure: at least which operation it is. */
static struct comms_detail op_detail(const struct communicator_op *op)
{
    const struct comms_detail *known = op->cause != NULL ? op->detail : op->comm->detail;
    struct comms_detail detail = {0};
    if (op->succeeded) {
        return detail;
    }
    if (known != NULL) {
        detail = *known;
    }
    detail.kind = (uint32_t)op->terms.kind + 1;
    detail.seq = op->seq;
    return detail;
}

static void tell_formed(struct comms_member *member, bool was_formed, uint64_t now_ns)
{
    const struct comms_member_handler handler = member->handler;
    const struct error *result = was_formed ? &comm_success : &member->comm->cause;
    struct error refusal;
    if (member->refused) {
        result = &member->refusal;
    } else if (!was_formed && comms_next_refusal(member, &refusal) != STATUS_OK) {
        result = &refusal;
    }
    handler.formed(handler.context, member, result, now_ns);
}

/* Calls the owner's next due callback. Returns whether there was one. The member may be gone afterwards. */
static bool member_tell(struct comms_member *member, uint64_t now_ns)
{
    struct communicator *comm = member->comm;
    const struct comms_member_handler handler = member->handler;
    bool was_formed = comm->ops != NULL && !member->refused;
    if (!member->formed_told) {
        if (comm->state == COMMS_COMM_FORMING && !member->refused) {
            return false;
        }
        member->formed_told = true;
        tell_formed(member, was_formed, now_ns);
        return true;
    }
    if (!was_formed) {
        return false;
    }
    if (comms_p2p_tell(member, now_ns)) {
        return true;
    }
    if (member->completed_seq < member->posted_seq) {
        struct communicator_op *op = comms_op_at(comm, member->completed_seq + 1);
        if (op == NULL || !op->posts[member->local_index].owed) {
            member->completed_seq = member->owed_ops > 0 ? member->completed_seq + 1 : member->posted_seq;
            return true; /* it was refused, and the owner was notified at once */
        }
        if (!op->finished && !op->overdue) {
            return false;
        }
        bool in_cell = op->posts[member->local_index].in_cell;
        if (in_cell && !op->answered_well) {
            if (comm->state != COMMS_COMM_FAILED || op->cause != NULL) {
                return false; /* the rank submits it, and is told then */
            }
            member->completed_seq++; /* the end of the communicator tells the rank */
            comms_op_settle(op, member);
            return true;
        }
        struct error cause = op->succeeded ? comm_success : op->cause != NULL ? *op->cause : comm->cause;
        struct comms_detail detail = op_detail(op);
        struct comms_completion completion = {.ticket = op->posts[member->local_index].ticket,
                                              .result = &cause,
                                              .detail = op->succeeded ? NULL : &detail,
                                              .in_cells = in_cell};
        member->completed_seq++;
        trace_op_told(comm->comm_id, op->seq, op->terms.kind, member->rank, 0, cause.status);
        comms_op_settle(op, member);
        handler.completed(handler.context, member, &completion, now_ns);
        return true;
    }
    if (comm->state == COMMS_COMM_FAILED && !member->aborted_told && member->pending_messages == 0) {
        member->aborted_told = true;
        handler.aborted(handler.context, member, &comm->cause, now_ns);
        return true;
    }
    return false;
}

/* Calls due callbacks of all members. From a callback an owner may do anything: leave (with any member),
 * post, join. */
static void comm_tell_members(struct communicator *comm, uint64_t now_ns)
{
    comm->cursor = comm->members;
    while (comm->cursor != NULL) {
        struct comms_member *member = comm->cursor;
        comm->cursor = member->next;
        comm->told = member;
        while (comm->told == member && comm->comms->tells_left > 0 && member_tell(member, now_ns)) {
            comm->comms->tells_left--;
        }
        comm->told = NULL;
    }
    if (comm->comms->tells_left == 0) {
        communicator_queue(comm); /* the rest is due after the other communicators */
    }
}

static void comm_step_records(struct communicator *comm, uint64_t now_ns)
{
    bool polls = false;
    struct comms_member *member;
    DL_FOREACH(comm->members, member)
    {
        polls |= member->records != NULL && comms_records_step(member);
    }
    comm->record_poll_ns = polls ? time_after(now_ns, COMMS_RECORD_POLL_NS) : TIME_NEVER;
}

void communicator_work(struct communicator *comm, uint64_t now_ns)
{
    if (comm->state == COMMS_COMM_FORMED && comm->exec_failed && now_ns >= comm->exec_cause_ns) {
        communicator_fail(comm, &comm->exec_cause, COMMS_TELL_NODES, now_ns);
    }
    if (comm->state == COMMS_COMM_FORMING && comm->rank_count > 0 && !comms_is_next(comm)) {
        comms_formation_work(comm, now_ns);
    }
    comms_next_step(comm, now_ns);
    comms_verdict_tell_refusals(comm, now_ns);
    comms_op_check_left(comm, now_ns);
    comms_loss_step(comm, now_ns);
    comm_step_records(comm, now_ns);
    comm_tell_members(comm, now_ns);
    communicator_arm(comm);
    if (comm->member_count == 0 && communicator_is_idle(comm) && !comms_next_is_needed(comm) &&
        !comms_tree_is_needed(comm)) {
        communicator_free(comm);
    }
}
