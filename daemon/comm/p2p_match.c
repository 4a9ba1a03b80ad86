#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/checked.h"
#include "daemon/comm/comms_internal.h"

/* Messages from rank to rank: what they use, who is told of their end, and until when they may take. */

struct comms_p2p {
    struct comms_p2p *prev, *next; /* of one list of its points */
    struct comms_p2ps *points;
    struct timer_node deadline;
    uint64_t ticket;
    uint64_t message_id;
    struct comms_buffers buffers;
    uint64_t charged_bytes;
    uint64_t timeout_ms;
    bool overdue;         /* see communicator_op */
    bool told;            /* overdue, and the owner knows */
    enum status result;   /* of one that ended */
    struct error *reason; /* null: fine, or the communicator's cause */
    uint32_t source_rank;
    uint64_t count_elements;
};

/* The messages of one member. They outlive it until exec has let go of them. */
struct comms_p2ps {
    struct comms_p2ps *prev, *next; /* of the communicator */
    struct communicator *comm;
    struct comms_member *member;    /* null once it has left */
    struct budget_account *account; /* that they are charged to */
    struct comms_p2p *pending;      /* oldest first */
    struct comms_p2p *told;         /* that have not ended, and nobody is to be told */
    struct comms_p2p *ended;        /* in the order of their ends */
};

static const struct error no_memory = {.status = STATUS_NO_MEMORY, .text = "no memory for a message"};

static void points_free_if_unused(struct comms_p2ps *points)
{
    if (points->member == NULL && points->pending == NULL && points->told == NULL && points->ended == NULL) {
        DL_DELETE(points->comm->points, points);
        free(points);
    }
}

/* With the communicator all deadlines went: see comms_p2p_fail. */
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

/* It is in no list any more. */
static void point_free(struct comms_p2p *point)
{
    struct comms_p2ps *points = point->points;
    point_disarm(point);
    points->comm->point_count--;
    comms_buffers_release(&point->buffers);
    budget_release(points->account, BUDGET_OPERATIONS, point->charged_bytes);
    free(point->reason);
    free(point);
}

/* Texts are large, and most that fail do so with their communicator. */
static void point_set_result(struct comms_p2p *point, const struct error *result)
{
    const struct communicator *comm = point->points->comm;
    point->result = result->status;
    if (result->status == STATUS_OK ||
        (comm->state == COMMS_COMM_FAILED && strcmp(result->text, comm->cause.text) == 0)) {
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
    struct comms_p2p *point = context;
    struct comms_p2ps *points = point->points;
    (void)now_ns;
    communicator_queue(points->comm);
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
        comms_buffers_release(&point->buffers);
        point_set_result(point, result);
        point->source_rank = source_rank;
        point->count_elements = count_elements;
    }
    points_free_if_unused(points);
}

static enum status check_point(const struct comms_member *member, const struct comms_op *op,
                               struct error *error)
{
    const struct communicator *comm = member->comm;
    if (op->peer_rank < comm->terms.size && comm->has_left[op->peer_rank]) {
        return error_set(error, STATUS_RANK_LOST, "communicator \"%s\": rank %u, node %s, has left",
                         comm->name, op->peer_rank, comm->node_names[comm->node_of_rank[op->peer_rank]]);
    }
    return STATUS_OK;
}

/* The member's points, made with its first message; null without memory. */
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

/* Charged, and with room among the deadlines. */
static enum status point_new(struct comms_member *member, const struct comms_op *op, struct comms_p2p **out,
                             struct error *error)
{
    struct communicator *comm = member->comm;
    bool fenced = op->wait_count > 0 || op->ended.word.memory != NULL;
    uint64_t bytes =
        sizeof(struct comms_p2p) + EXEC_MESSAGE_COST_BYTES + (fenced ? sizeof(struct comms_fences) : 0);
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
    point->points = points;
    point->charged_bytes = bytes;
    point->deadline.index = TIMER_NODE_DISARMED;
    *out = point;
    return STATUS_OK;
}

enum status comms_p2p_submit(struct comms_member *member, const struct comms_op *op, uint64_t now_ns,
                             struct error *error)
{
    struct communicator *comm = member->comm;
    struct comms_call call;
    struct error why;
    enum status status = check_point(member, op, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct comms_p2p *point = NULL;
    status = point_new(member, op, &point, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (comms_call_check(op, member->rank, comm->terms.size, &call, &point->buffers, &why) != STATUS_OK) {
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
    if (comm->state == COMMS_COMM_FORMED) { /* posting may have ended it */
        timer_heap_set(&comm->point_deadlines, &point->deadline, deadline_ns);
    }
    member->pending_messages++;
    comm->op_deadline_ns = time_min(comm->op_deadline_ns, deadline_ns);
    communicator_arm(comm);
    return STATUS_OK;
}

bool comms_p2p_is_pending(const struct comms_member *member, uint64_t last_message_id)
{
    const struct comms_p2p *oldest = member->points != NULL ? member->points->pending : NULL;
    return oldest != NULL && oldest->message_id <= last_message_id;
}

static struct comms_p2p *point_to_tell(const struct comms_p2ps *points)
{
    if (points->ended != NULL) {
        return points->ended;
    }
    return points->pending != NULL && points->pending->overdue ? points->pending : NULL;
}

bool comms_p2p_tell(struct comms_member *member, uint64_t now_ns)
{
    struct comms_p2ps *points = member->points;
    struct comms_p2p *point = points != NULL ? point_to_tell(points) : NULL;
    if (point == NULL) {
        return false;
    }
    const struct error *fallback =
        member->comm->state == COMMS_COMM_FAILED ? &member->comm->cause : &no_memory;
    struct error result = {.status = STATUS_OK};
    if (point->overdue || point->result != STATUS_OK) {
        result = point->reason != NULL ? *point->reason : *fallback;
    }
    struct comms_completion completion = {.ticket = point->ticket,
                                          .result = &result,
                                          .source_rank = point->source_rank,
                                          .count_elements = point->count_elements};
    const struct comms_member_handler handler = member->handler;
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

void comms_p2p_overdue(struct communicator *comm)
{
    struct comms_p2ps *points;
    struct comms_p2p *point;
    DL_FOREACH(comm->points, points)
    {
        DL_FOREACH(points->pending, point)
        {
            point->overdue = true;
            comms_fences_signal(point->buffers.fences);
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

uint64_t comms_p2p_deadlines(struct communicator *comm, uint64_t now_ns, struct error *late)
{
    struct timer_node *first;
    while ((first = timer_heap_first(&comm->point_deadlines)) != NULL && now_ns >= first->deadline_ns) {
        const struct comms_p2p *point =
            (struct comms_p2p *)((char *)first - offsetof(struct comms_p2p, deadline));
        const struct comms_member *member = point->points->member;
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

static void points_free_list(struct comms_p2p *list)
{
    struct comms_p2p *point, *next;
    DL_FOREACH_SAFE(list, point, next)
    {
        point_free(point);
    }
}

void comms_p2p_free_all(struct communicator *comm)
{
    struct comms_p2ps *points, *next;
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

static bool visit_list(const struct communicator *comm, const struct comms_p2p *list,
                       comms_buffers_visit *each, comms_use_visit *visit, void *context)
{
    const struct comms_p2p *point;
    DL_FOREACH(list, point)
    {
        if (!each(comm, &point->buffers, visit, context)) {
            return false;
        }
    }
    return true;
}

bool comms_p2p_visit_buffers(const struct communicator *comm, comms_buffers_visit *each,
                             comms_use_visit *visit, void *context)
{
    const struct comms_p2ps *points;
    DL_FOREACH(comm->points, points)
    {
        if (!visit_list(comm, points->pending, each, visit, context) ||
            !visit_list(comm, points->told, each, visit, context)) {
            return false;
        }
    }
    return true;
}
