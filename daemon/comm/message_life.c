#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/checked.h"
#include "daemon/comm/comms_internal.h"

/* Point-to-point messages: the resources that they hold, their completion to owners, and their deadlines. */

struct comms_p2p {
    struct p2p_message message;    /* the first member */
    struct comms_p2p *prev, *next; /* in one list of its points */
    struct comms_p2ps *points;
    struct timer_node deadline;
    uint64_t ticket;
    uint64_t message_id;
    union {
        struct comms_fences *fences; /* until it ends; may be null */
        struct error *reason;        /* after its end; null: success, or the communicator's cause */
    };
    uint32_t timeout_ms;
    uint8_t result;     /* after its end: the status */
    bool cancelled : 1; /* because its deadline has passed */
    bool overdue : 1;   /* a GPU still uses its buffer; in `late`: its owner is notified anyway */
    bool told : 1;      /* overdue, and the owner was notified */
    bool with_comm : 1; /* after its end: it fails as the communicator will, so its owner waits for that */
};
_Static_assert(sizeof(struct comms_p2p) <= COMMS_MESSAGE_COST_BYTES,
               "a message costs no more than is charged");

/* The messages of one member. They outlive the member until p2p has ended them. */
struct comms_p2ps {
    struct comms_p2ps *prev, *next; /* in the communicator's list */
    struct communicator *comm;
    struct comms_member *member;    /* null once it has left */
    struct budget_account *account; /* charged for them */
    struct comms_p2p *pending;      /* oldest first */
    struct comms_p2p *late;         /* overdue, and the owner was not notified yet */
    struct comms_p2p *told;         /* not ended, and the owner was notified already */
    struct comms_p2p *ended;        /* in the order in which they ended */
};

static const struct error no_memory = {.status = STATUS_NO_MEMORY, .text = "no memory for a message"};

static void points_free_if_unused(struct comms_p2ps *points)
{
    if (points->member == NULL && points->pending == NULL && points->late == NULL && points->told == NULL &&
        points->ended == NULL) {
        DL_DELETE(points->comm->points, points);
        free(points);
    }
}

static struct comms_p2p **list_of(struct comms_p2p *point)
{
    struct comms_p2ps *points = point->points;
    return point->told ? &points->told : point->overdue ? &points->late : &points->pending;
}

/* A failed communicator has no deadlines any more: see comms_p2p_fail. */
static void point_disarm(struct comms_p2p *point)
{
    struct communicator *comm = point->points->comm;
    if (comm->state != COMMS_COMM_FAILED) {
        timer_heap_remove(&comm->point_deadlines, &point->deadline);
    }
}

void comms_p2p_fail(struct communicator *comm)
{
    timer_heap_free(&comm->point_deadlines);
}

static uint64_t cost_of(const struct comms_fences *fences)
{
    return COMMS_MESSAGE_COST_BYTES + (fences != NULL ? sizeof(struct comms_fences) : 0);
}

/* Releases what the message holds. Nothing may use its buffer any more. */
static void point_release(struct comms_p2p *point)
{
    struct comms_fences *fences = point->fences;
    memory_unref((struct memory *)(uintptr_t)point->message.memory);
    point->message.memory = NULL;
    point->fences = NULL;
    if (fences != NULL) {
        budget_release(point->points->account, BUDGET_OPERATIONS, sizeof(struct comms_fences));
        comms_fences_end(fences); /* last: the client may free the memory once it sees the word */
    }
}

/* The message must be in no list any more, and released. */
static void point_free(struct comms_p2p *point)
{
    struct comms_p2ps *points = point->points;
    point_disarm(point);
    points->comm->point_count--;
    points->comm->comms->totals.messages_pending--;
    budget_release(points->account, BUDGET_OPERATIONS, COMMS_MESSAGE_COST_BYTES);
    free(point->reason);
    free(point);
}

/* Error texts are large, and most messages that fail do so with their communicator, so its text is not
 * copied. */
static void point_set_result(struct comms_p2p *point, const struct error *result)
{
    const struct communicator *comm = point->points->comm;
    point->result = (uint8_t)result->status;
    if (result->status == STATUS_OK || point->with_comm ||
        (comm->state == COMMS_COMM_FAILED && strcmp(result->text, comm->cause.text) == 0)) {
        return;
    }
    point->reason = malloc(sizeof *point->reason);
    if (point->reason != NULL) {
        *point->reason = *result;
    }
}

/* How long the message took so far. Its deadline, which stays readable, says when it was posted. */
static uint64_t point_spent_ns(const struct comms_p2p *point, uint64_t end_ns)
{
    uint64_t timeout_ns = point->timeout_ms * TIME_MS, deadline_ns = point->deadline.deadline_ns;
    if (deadline_ns == TIME_NEVER || deadline_ns < timeout_ns || end_ns < deadline_ns - timeout_ns) {
        return 0;
    }
    return end_ns - (deadline_ns - timeout_ns);
}

static void point_count_end(const struct comms_p2p *point, enum status result, uint64_t now_ns)
{
    const struct p2p_message *message = &point->message;
    struct comms *comms = point->points->comm->comms;
    uint64_t end_ns = comms->clock != NULL ? comms->clock() : now_ns;
    uint64_t elements = message->sends ? message->count_elements : p2p_message_count(message);
    uint64_t spent_ns = point_spent_ns(point, end_ns);
    struct op_end end = {.kind = message->sends ? OP_KIND_SEND : OP_KIND_RECEIVE,
                         .result = result,
                         .size_bytes = elements * dtype_size_bytes((enum dtype)message->dtype),
                         .latency_ns = spent_ns,
                         .run_ns = spent_ns};
    op_counts_add(&comms->totals.ops, &end);
}

/*
 * A process is lost that a message needs. The communicator fails for that reason, and its nodes agree on the
 * verdict first. So the message's owner is told the verdict, as all others are.
 */
static bool fails_with_comm(const struct communicator *comm, enum status result)
{
    return comm->state == COMMS_COMM_FORMED && result == STATUS_RANK_LOST && comm->left_why[0] != '\0';
}

void comms_p2p_done(void *context, struct p2p_message *message, const struct error *result, uint64_t now_ns)
{
    struct comms_p2p *point = (struct comms_p2p *)message;
    struct comms_p2ps *points = point->points;
    (void)context;
    point_count_end(point, result->status, now_ns);
    communicator_queue(points->comm);
    trace_message_done(points->comm->comm_id, point->ticket, message->sends ? OP_KIND_SEND : OP_KIND_RECEIVE,
                       message->rank, message->tag, result->status);
    DL_DELETE(*list_of(point), point);
    point_release(point);
    if (point->told || points->member == NULL) {
        point_free(point);
    } else {
        point->overdue = false;
        DL_APPEND(points->ended, point);
        point_disarm(point);
        point->with_comm = fails_with_comm(points->comm, result->status);
        points->comm->left_is_needed = points->comm->left_is_needed || point->with_comm;
        point_set_result(point, result);
    }
    points_free_if_unused(points);
}

/* The member's points, made with its first message. Null without memory. */
static struct comms_p2ps *points_of(struct comms_member *member)
{
    if (member->points == NULL) {
        member->points = calloc(1, sizeof *member->points);
        if (member->points != NULL) {
            member->points->comm = member->comm;
            member->points->member = member;
            member->points->account = member->client.account;
            DL_APPEND(member->comm->points, member->points);
        }
    }
    return member->points;
}

/* Makes a message, charges it and its fences, and reserves a place in the heap of deadlines. */
static enum status point_new(struct comms_member *member, struct comms_fences *fences, struct comms_p2p **out,
                             struct error *error)
{
    struct communicator *comm = member->comm;
    uint64_t bytes = cost_of(fences);
    struct error why;
    if (budget_charge(member->client.account, BUDGET_OPERATIONS, bytes, &why) != STATUS_OK) {
        return error_set(error, why.status, "communicator \"%s\", rank %u: %s", comm->name, member->rank,
                         why.text);
    }
    struct comms_p2ps *points = points_of(member);
    struct comms_p2p *point = calloc(1, sizeof *point);
    if (points == NULL || point == NULL ||
        !timer_heap_reserve(&comm->point_deadlines, (size_t)comm->point_count + 1)) {
        free(point);
        budget_release(member->client.account, BUDGET_OPERATIONS, bytes);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for a message", comm->name);
    }
    comm->point_count++;
    comm->comms->totals.messages_pending++;
    point->points = points;
    point->fences = fences;
    point->deadline.index = TIMER_NODE_DISARMED;
    *out = point;
    return STATUS_OK;
}

static struct p2p_call call_of(const struct comms_member *member, const struct comms_op *op,
                               const struct comms_buffers *buffers)
{
    bool sends = op->terms.kind == OP_KIND_SEND;
    const struct exec_rank *at = &buffers->exec;
    return (struct p2p_call){.sends = sends,
                             .rank = member->rank,
                             .peer_rank = op->peer_rank,
                             .tag = op->tag,
                             .dtype = op->terms.dtype,
                             .count_elements = op->terms.count_elements,
                             .buffer = sends ? (void *)(uintptr_t)at->input : at->output,
                             .on_gpu = at->on_gpu,
                             .gpu = at->gpu,
                             .waits = at->waits,
                             .wait_count = at->wait_count,
                             .memory = sends ? at->input_memory : at->output_memory};
}

static void arm(struct comms_member *member, struct comms_p2p *point, const struct comms_op *op,
                uint64_t now_ns)
{
    struct communicator *comm = member->comm;
    uint64_t timeout_ms = op->timeout_ms != 0 ? op->timeout_ms : comm->terms.op_timeout_ms, timeout_ns;
    uint64_t deadline_ns =
        checked_mul_u64(timeout_ms, TIME_MS, &timeout_ns) ? time_after(now_ns, timeout_ns) : TIME_NEVER;
    point->timeout_ms = timeout_ms < UINT32_MAX ? (uint32_t)timeout_ms : UINT32_MAX; /* only for texts */
    if (comm->state == COMMS_COMM_FORMED) { /* p2p_post may have failed the communicator */
        timer_heap_set(&comm->point_deadlines, &point->deadline, deadline_ns);
    }
    comm->op_deadline_ns = time_min(comm->op_deadline_ns, deadline_ns);
    communicator_arm(comm);
}

/* p2p has not taken the message, because the other rank's process is lost. */
static void fail_with_comm(struct comms_member *member, struct comms_p2p *point, const struct comms_op *op,
                           const struct error *why, uint64_t now_ns)
{
    point->ticket = op->ticket;
    point->deadline.deadline_ns = TIME_NEVER;
    DL_APPEND(point->points->pending, point);
    member->pending_messages++;
    comms_p2p_done(member->comm, &point->message, why, now_ns);
}

enum status comms_p2p_submit(struct comms_member *member, const struct comms_op *op, uint64_t now_ns,
                             struct error *error)
{
    struct communicator *comm = member->comm;
    struct op_terms terms;
    struct comms_buffers buffers;
    struct comms_p2p *point = NULL;
    struct error why;
    if (comms_call_check(op, member->rank, comm->terms.size, &terms, &buffers, &why) != STATUS_OK) {
        return error_set(error, why.status, "communicator \"%s\", rank %u: %s", comm->name, member->rank,
                         why.text);
    }
    trace_message_taken(comm->comm_id, op->ticket, op->terms.kind, member->rank, op->tag,
                        op->terms.count_elements * dtype_size_bytes(op->terms.dtype));
    enum status status = point_new(member, buffers.fences, &point, error);
    if (status != STATUS_OK) {
        comms_buffers_release(&buffers);
        return status;
    }
    struct p2p_call message = call_of(member, op, &buffers);
    status = p2p_post(comm->p2p, &message, &point->message, error);
    if (fails_with_comm(comm, status)) {
        point->message.memory = message.memory; /* the reference belongs to the point now */
        fail_with_comm(member, point, op, error, now_ns);
        return STATUS_OK;
    }
    if (status != STATUS_OK) {
        point->message.memory = message.memory; /* the reference belongs to the point now */
        point_release(point);
        point_free(point);
        return status;
    }
    point->ticket = op->ticket;
    point->message_id = ++comm->last_message_id;
    trace_message_posted(comm->comm_id, op->ticket, op->terms.kind, member->rank, op->tag, op->peer_rank);
    DL_APPEND(point->points->pending, point);
    member->pending_messages++;
    arm(member, point, op, now_ns);
    return STATUS_OK;
}

bool comms_p2p_is_pending(const struct comms_member *member, uint64_t last_message_id, uint64_t last_ticket)
{
    const struct comms_p2p *oldest = member->points != NULL ? member->points->pending : NULL;
    return oldest != NULL && oldest->message_id <= last_message_id && oldest->ticket <= last_ticket;
}

/* What is known of a message's failure: the other rank, unless the whole communicator has failed. */
static struct comms_detail point_detail(const struct comms_p2p *point, const struct communicator *comm,
                                        enum status status)
{
    const struct p2p_message *message = &point->message;
    struct comms_detail detail = {0};
    bool is_own = comm->state != COMMS_COMM_FAILED || comm->cause.status != status;
    if (status == STATUS_OK) {
        return detail;
    }
    if (!is_own && comm->detail != NULL) {
        detail = *comm->detail;
    } else if (is_own && (message->peer_rank != COMM_ANY_SOURCE_RANK || status == STATUS_RANK_LOST)) {
        comms_detail_add_peer(&detail, comm, message->rank, message->peer_rank);
    }
    detail.kind = (message->sends ? OP_KIND_SEND : OP_KIND_RECEIVE) + 1;
    detail.seq = 0; /* messages have no number that ranks agree on */
    return detail;
}

bool comms_p2p_tell(struct comms_member *member, uint64_t now_ns)
{
    struct comms_p2ps *points = member->points;
    struct comms_p2p *point = points == NULL ? NULL : points->ended != NULL ? points->ended : points->late;
    const struct comms_member_handler handler = member->handler;
    if (point == NULL || (point->with_comm && member->comm->state != COMMS_COMM_FAILED) ||
        (handler.takes_messages != NULL && !handler.takes_messages(handler.context))) {
        return false;
    }
    struct error late = {.status = STATUS_TIMED_OUT,
                         .text = "its deadline passed, and its GPU is still at work"};
    struct error result = {.status = STATUS_OK};
    if (member->comm->state == COMMS_COMM_FAILED && (point->overdue || point->result != STATUS_OK)) {
        result = member->comm->cause;
    } else if (point->overdue) {
        result = late;
    } else if (point->result != STATUS_OK) {
        result = no_memory;
    }
    if (!point->overdue && point->reason != NULL) {
        result = *point->reason;
    }
    struct comms_detail detail = point_detail(point, member->comm, result.status);
    struct comms_completion completion = {.ticket = point->ticket,
                                          .result = &result,
                                          .detail = result.status != STATUS_OK ? &detail : NULL,
                                          .source_rank = p2p_message_source(&point->message),
                                          .count_elements = p2p_message_count(&point->message)};
    if (point->overdue) { /* gone when it ends */
        DL_DELETE(points->late, point);
        point->told = true;
        DL_APPEND(points->told, point);
    } else {
        DL_DELETE(points->ended, point);
        point_free(point);
    }
    member->pending_messages--;
    trace_message_told(member->comm->comm_id, completion.ticket, 0, member->rank, 0, result.status);
    handler.completed(handler.context, member, &completion, now_ns);
    return true;
}

void comms_member_tell_messages(struct comms_member *member)
{
    communicator_queue(member->comm);
}

static void set_overdue(struct comms_p2p *point)
{
    DL_DELETE(point->points->pending, point);
    point->overdue = true;
    DL_APPEND(point->points->late, point);
    comms_fences_signal(point->fences);
}

void comms_p2p_overdue(struct communicator *comm)
{
    struct comms_p2ps *points;
    DL_FOREACH(comm->points, points)
    {
        while (points->pending != NULL) {
            set_overdue(points->pending);
        }
    }
}

void comms_p2p_leave(struct comms_member *member)
{
    struct comms_p2ps *points = member->points;
    if (points == NULL) {
        return;
    }
    member->points = NULL;
    points->member = NULL;
    while (points->ended != NULL) {
        struct comms_p2p *point = points->ended;
        DL_DELETE(points->ended, point);
        point_free(point);
    }
    points_free_if_unused(points);
}

bool comms_p2p_pending(const struct comms_member *member)
{
    return member->points != NULL && member->points->pending != NULL;
}

/* --- Deadlines --- */

static void add_peer(const struct communicator *comm, const struct comms_p2p *point, char *text, size_t size)
{
    uint32_t peer = point->message.peer_rank;
    text[0] = '\0';
    for (uint32_t i = 0; peer != COMM_ANY_SOURCE_RANK && i < comm->local_count; i++) {
        if (comm->locals[i] != NULL && comm->locals[i]->rank == peer) {
            (void)snprintf(text, size, "; rank %u is pid %d", peer, (int)comm->locals[i]->client.pid);
        }
    }
}

/* Cancels a late message by itself. If a GPU still uses its buffer COMMS_OVERDUE_NS later, its owner is
 * notified anyway. */
static void point_is_late(struct communicator *comm, struct comms_p2p *point, uint64_t now_ns)
{
    const struct comms_member *member = point->points->member;
    struct error late;
    char what[192], who[48];
    if (point->cancelled) {
        if (member != NULL) {
            set_overdue(point);
            communicator_queue(comm);
        }
        return;
    }
    point->cancelled = true;
    p2p_describe(&point->message, what, sizeof what);
    add_peer(comm, point, who, sizeof who);
    error_set(&late, STATUS_TIMED_OUT, "rank %u on \"%s\": not done within %u ms: %s%s", point->message.rank,
              comm->name, point->timeout_ms, what, who);
    timer_heap_set(&comm->point_deadlines, &point->deadline, time_after(now_ns, COMMS_OVERDUE_NS));
    p2p_cancel(&point->message, &late, now_ns);
}

uint64_t comms_p2p_deadlines(struct communicator *comm, uint64_t now_ns)
{
    struct timer_node *first;
    uint32_t left = COMMS_P2P_LATE_MAX; /* the rest is due at once */
    while ((first = timer_heap_first(&comm->point_deadlines)) != NULL && now_ns >= first->deadline_ns &&
           left-- > 0) {
        timer_heap_remove(&comm->point_deadlines, first);
        point_is_late(comm, (struct comms_p2p *)((char *)first - offsetof(struct comms_p2p, deadline)),
                      now_ns);
    }
    return first != NULL ? first->deadline_ns : TIME_NEVER;
}

/* --- All messages --- */

static void points_free_list(struct comms_p2p *list)
{
    struct comms_p2p *point, *next;
    DL_FOREACH_SAFE(list, point, next)
    {
        point_release(point);
        point_free(point);
    }
}

void comms_p2p_free_all(struct communicator *comm)
{
    struct comms_p2ps *points, *next;
    DL_FOREACH_SAFE(comm->points, points, next)
    {
        points_free_list(points->pending);
        points_free_list(points->late);
        points_free_list(points->told);
        for (struct comms_p2p *point = points->ended, *after; point != NULL; point = after) {
            after = point->next;
            point_free(point);
        }
        free(points);
    }
    comm->points = NULL;
    timer_heap_free(&comm->point_deadlines);
}

static bool visit_message(const struct comms_p2p *point, uint64_t now_ns, comms_op_visit *visit,
                          void *context)
{
    const struct communicator *comm = point->points->comm;
    const struct p2p_message *message = &point->message;
    uint64_t deadline_ns = point->deadline.deadline_ns, timeout_ns = point->timeout_ms * TIME_MS;
    char who[48], what[192];
    (void)snprintf(who, sizeof who, "%u (pid %d)", message->rank, (int)point->points->member->client.pid);
    p2p_describe(message, what, sizeof what);
    struct comms_op_info info = {
        .comm_name = comm->name,
        .owner_uid = comm->terms.owner_uid,
        .seq = point->message_id,
        .terms = {.kind = message->sends ? OP_KIND_SEND : OP_KIND_RECEIVE,
                  .dtype = (enum dtype)message->dtype,
                  .count_elements = message->count_elements},
        .age_ns = deadline_ns < now_ns + timeout_ns ? now_ns + timeout_ns - deadline_ns : 0,
        .deadline_in_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0,
        .running = true,
        .arrived_ranks = who,
        .missing_ranks = "",
        .waiting_for = what,
    };
    return visit(context, &info);
}

bool comms_p2p_visit(const struct communicator *comm, uint64_t now_ns, comms_op_visit *visit, void *context)
{
    const struct comms_p2ps *points;
    DL_FOREACH(comm->points, points)
    {
        const struct comms_p2p *point = points->member != NULL ? points->pending : NULL;
        for (uint32_t i = 0; i < COMMS_VISIT_MESSAGES_MAX && point != NULL; i++, point = point->next) {
            if (!visit_message(point, now_ns, visit, context)) {
                return false;
            }
        }
    }
    return true;
}

static bool visit_list(const struct communicator *comm, const struct comms_p2p *list, comms_use_visit *visit,
                       void *context)
{
    const struct comms_p2p *point;
    DL_FOREACH(list, point)
    {
        if (point->message.memory != NULL && !visit(context, point->message.memory, comm->name)) {
            return false;
        }
    }
    return true;
}

bool comms_p2p_visit_uses(const struct communicator *comm, comms_use_visit *visit, void *context)
{
    const struct comms_p2ps *points;
    DL_FOREACH(comm->points, points)
    {
        if (!visit_list(comm, points->pending, visit, context) ||
            !visit_list(comm, points->late, visit, context) ||
            !visit_list(comm, points->told, visit, context)) {
            return false;
        }
    }
    return true;
}
