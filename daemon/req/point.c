#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/checked.h"
#include "daemon/req/req_internal.h"

/* Messages from rank to rank: what they use, who is told of their end, and until when they may take. */

struct req_point {
    struct req_point *prev, *next; /* of one list of its points */
    struct req_points *points;
    struct timer_node deadline;
    uint64_t ticket;
    uint64_t message_id;
    struct req_buffers buffers;
    uint64_t charged_bytes;
    uint64_t timeout_ms;
    bool overdue;         /* see req_comm_op */
    bool told;            /* overdue, and the owner knows */
    enum status result;   /* of one that ended */
    struct error *reason; /* null: fine, or the communicator's cause */
    uint32_t source_rank;
    uint64_t count_elements;
};

/* The messages of one member. They outlive it until exec has let go of them. */
struct req_points {
    struct req_points *prev, *next; /* of the communicator */
    struct req_comm *comm;
    struct req_member *member;      /* null once it has left */
    struct budget_account *account; /* that they are charged to */
    struct req_point *pending;      /* oldest first */
    struct req_point *told;         /* that have not ended, and nobody is to be told */
    struct req_point *ended;        /* in the order of their ends */
};

static const struct error no_memory = {.status = STATUS_NO_MEMORY, .text = "no memory for a message"};

static void points_free_if_unused(struct req_points *points)
{
    if (points->member == NULL && points->pending == NULL && points->told == NULL && points->ended == NULL) {
        DL_DELETE(points->comm->points, points);
        free(points);
    }
}

/* With the communicator all deadlines went: see req_point_fail. */
static void point_disarm(struct req_point *point)
{
    struct req_comm *comm = point->points->comm;
    if (comm->state != REQ_COMM_FAILED) {
        timer_heap_remove(&comm->point_deadlines, &point->deadline);
    }
}

void req_point_fail(struct req_comm *comm)
{
    timer_heap_free(&comm->point_deadlines);
}

/* It is in no list any more. */
static void point_free(struct req_point *point)
{
    struct req_points *points = point->points;
    point_disarm(point);
    points->comm->point_count--;
    req_buffers_release(&point->buffers);
    budget_release(points->account, BUDGET_OPERATIONS, point->charged_bytes);
    free(point->reason);
    free(point);
}

/* Texts are large, and most that fail do so with their communicator. */
static void point_set_result(struct req_point *point, const struct error *result)
{
    const struct req_comm *comm = point->points->comm;
    point->result = result->status;
    if (result->status == STATUS_OK ||
        (comm->state == REQ_COMM_FAILED && strcmp(result->text, comm->cause.text) == 0)) {
        return;
    }
    point->reason = malloc(sizeof *point->reason);
    if (point->reason != NULL) {
        *point->reason = *result;
    }
}

static void point_ended(void *context, const struct error *result, uint32_t source_rank,
                        uint64_t count_elements, uint64_t now_ns)
{
    struct req_point *point = context;
    struct req_points *points = point->points;
    (void)now_ns;
    req_comm_queue(points->comm);
    if (point->told) {
        DL_DELETE(points->told, point);
        point_free(point);
    } else if (points->member == NULL) {
        DL_DELETE(points->pending, point);
        point_free(point);
    } else {
        DL_DELETE(points->pending, point);
        DL_APPEND(points->ended, point);
        point_disarm(point);
        req_buffers_release(&point->buffers);
        point_set_result(point, result);
        point->source_rank = source_rank;
        point->count_elements = count_elements;
    }
    points_free_if_unused(points);
}

static enum status check_point(const struct req_member *member, const struct req_op *op, struct error *error)
{
    const struct req_comm *comm = member->comm;
    if (op->peer_rank < comm->terms.size && comm->has_left[op->peer_rank]) {
        return error_set(error, STATUS_RANK_LOST, "communicator \"%s\": rank %u, node %s, has left",
                         comm->name, op->peer_rank, comm->node_names[comm->node_of_rank[op->peer_rank]]);
    }
    return STATUS_OK;
}

/* The member's points, made with its first message; null without memory. */
static struct req_points *points_of(struct req_member *member)
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

/* Charged, and with room among the deadlines. */
static enum status point_new(struct req_member *member, const struct req_op *op, struct req_point **out,
                             struct error *error)
{
    struct req_comm *comm = member->comm;
    bool fenced = op->wait_count > 0 || op->ended.word.memory != NULL;
    uint64_t bytes =
        sizeof(struct req_point) + EXEC_MESSAGE_COST_BYTES + (fenced ? sizeof(struct req_fences) : 0);
    struct error why;
    if (budget_charge(member->client.account, BUDGET_OPERATIONS, bytes, &why) != STATUS_OK) {
        return error_set(error, why.status, "communicator \"%s\", rank %u: %s", comm->name, member->rank,
                         why.text);
    }
    struct req_points *points = points_of(member);
    struct req_point *point = calloc(1, sizeof *point);
    if (points == NULL || point == NULL ||
        !timer_heap_reserve(&comm->point_deadlines, (size_t)comm->point_count + 1)) {
        free(point);
        budget_release(member->client.account, BUDGET_OPERATIONS, bytes);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for a message", comm->name);
    }
    comm->point_count++;
    point->points = points;
    point->charged_bytes = bytes;
    point->deadline.index = TIMER_NODE_DISARMED;
    *out = point;
    return STATUS_OK;
}

enum status req_point_submit(struct req_member *member, const struct req_op *op, uint64_t now_ns,
                             struct error *error)
{
    struct req_comm *comm = member->comm;
    struct req_call call;
    struct error why;
    enum status status = check_point(member, op, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct req_point *point = NULL;
    status = point_new(member, op, &point, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (req_call_check(op, member->rank, comm->terms.size, &call, &point->buffers, &why) != STATUS_OK) {
        point_free(point);
        return error_set(error, why.status, "communicator \"%s\", rank %u: %s", comm->name, member->rank,
                         why.text);
    }
    bool sends = op->kind == OP_KIND_SEND;
    const struct exec_rank *addresses = &point->buffers.exec;
    struct exec_message message = {.sends = sends,
                                   .rank = member->rank,
                                   .peer_rank = op->peer_rank,
                                   .tag = op->tag,
                                   .dtype = op->dtype,
                                   .count_elements = op->count_elements,
                                   .buffer = sends ? (void *)(uintptr_t)addresses->input : addresses->output,
                                   .on_gpu = addresses->on_gpu,
                                   .gpu = addresses->gpu,
                                   .waits = addresses->waits,
                                   .wait_count = addresses->wait_count,
                                   .memory = sends ? addresses->input_memory : addresses->output_memory,
                                   .done = point_ended,
                                   .context = point};
    uint64_t timeout_ns;
    point->ticket = op->ticket;
    point->timeout_ms = op->timeout_ms != 0 ? op->timeout_ms : comm->terms.op_timeout_ms;
    uint64_t deadline_ns = checked_mul_u64(point->timeout_ms, TIME_MS, &timeout_ns)
                               ? time_after(now_ns, timeout_ns)
                               : TIME_NEVER;
    status = exec_post_message(comm->exec, &message, error);
    if (status != STATUS_OK) {
        point_free(point);
        return status;
    }
    point->message_id = ++comm->last_message_id;
    DL_APPEND(point->points->pending, point);
    if (comm->state == REQ_COMM_FORMED) { /* posting may have ended it */
        timer_heap_set(&comm->point_deadlines, &point->deadline, deadline_ns);
    }
    member->pending_messages++;
    comm->op_deadline_ns = time_min(comm->op_deadline_ns, deadline_ns);
    req_comm_arm(comm);
    return STATUS_OK;
}

bool req_point_is_pending(const struct req_member *member, uint64_t last_message_id)
{
    const struct req_point *oldest = member->points != NULL ? member->points->pending : NULL;
    return oldest != NULL && oldest->message_id <= last_message_id;
}

static struct req_point *point_to_tell(const struct req_points *points)
{
    if (points->ended != NULL) {
        return points->ended;
    }
    return points->pending != NULL && points->pending->overdue ? points->pending : NULL;
}

bool req_point_tell(struct req_member *member, uint64_t now_ns)
{
    struct req_points *points = member->points;
    struct req_point *point = points != NULL ? point_to_tell(points) : NULL;
    if (point == NULL) {
        return false;
    }
    const struct error *fallback = member->comm->state == REQ_COMM_FAILED ? &member->comm->cause : &no_memory;
    struct error result = {.status = STATUS_OK};
    if (point->overdue || point->result != STATUS_OK) {
        result = point->reason != NULL ? *point->reason : *fallback;
    }
    struct req_completion completion = {.ticket = point->ticket,
                                        .result = &result,
                                        .source_rank = point->source_rank,
                                        .count_elements = point->count_elements};
    const struct req_member_handler handler = member->handler;
    if (point == points->ended) {
        DL_DELETE(points->ended, point);
        point_free(point);
    } else { /* gone when it ends */
        DL_DELETE(points->pending, point);
        DL_APPEND(points->told, point);
        point->told = true;
    }
    member->pending_messages--;
    handler.completed(handler.context, member, &completion, now_ns);
    return true;
}

void req_point_overdue(struct req_comm *comm)
{
    struct req_points *points;
    struct req_point *point;
    DL_FOREACH(comm->points, points)
    {
        DL_FOREACH(points->pending, point)
        {
            point->overdue = true;
            req_fences_signal(point->buffers.fences);
        }
    }
}

void req_point_leave(struct req_member *member)
{
    struct req_points *points = member->points;
    if (points == NULL) {
        return;
    }
    member->points = NULL;
    points->member = NULL;
    while (points->ended != NULL) {
        struct req_point *point = points->ended;
        DL_DELETE(points->ended, point);
        point_free(point);
    }
    points_free_if_unused(points);
}

bool req_point_pending(const struct req_member *member)
{
    return member->points != NULL && member->points->pending != NULL;
}

uint64_t req_point_deadlines(struct req_comm *comm, uint64_t now_ns, struct error *late)
{
    struct timer_node *first;
    while ((first = timer_heap_first(&comm->point_deadlines)) != NULL && now_ns >= first->deadline_ns) {
        const struct req_point *point =
            (struct req_point *)((char *)first - offsetof(struct req_point, deadline));
        const struct req_member *member = point->points->member;
        timer_heap_remove(&comm->point_deadlines, first); /* said once; one whose owner left has none */
        if (late->status == STATUS_OK && member != NULL) {
            char what[128];
            exec_describe_message(comm->exec, point, what, sizeof what);
            error_set(late, STATUS_TIMED_OUT, "rank %u on \"%s\": not done within %llu ms: %s", member->rank,
                      comm->name, (unsigned long long)point->timeout_ms, what);
        }
    }
    return first != NULL ? first->deadline_ns : TIME_NEVER;
}

static void points_free_list(struct req_point *list)
{
    struct req_point *point, *next;
    DL_FOREACH_SAFE(list, point, next)
    {
        point_free(point);
    }
}

void req_point_free_all(struct req_comm *comm)
{
    struct req_points *points, *next;
    DL_FOREACH_SAFE(comm->points, points, next)
    {
        points_free_list(points->pending);
        points_free_list(points->told);
        points_free_list(points->ended);
        free(points);
    }
    comm->points = NULL;
    timer_heap_free(&comm->point_deadlines);
}

static bool visit_list(const struct req_comm *comm, const struct req_point *list, req_buffers_visit *each,
                       req_use_visit *visit, void *context)
{
    const struct req_point *point;
    DL_FOREACH(list, point)
    {
        if (!each(comm, &point->buffers, visit, context)) {
            return false;
        }
    }
    return true;
}

bool req_point_visit_buffers(const struct req_comm *comm, req_buffers_visit *each, req_use_visit *visit,
                             void *context)
{
    const struct req_points *points;
    DL_FOREACH(comm->points, points)
    {
        if (!visit_list(comm, points->pending, each, visit, context) ||
            !visit_list(comm, points->told, each, visit, context)) {
            return false;
        }
    }
    return true;
}
