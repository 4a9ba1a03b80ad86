#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/checked.h"
#include "daemon/req/req_internal.h"

/* Messages from rank to rank: what they use, who is told of their end, and until when they may take. */

struct req_point {
    struct req_point *prev, *next;
    struct req_comm *comm;
    struct req_member *member; /* null once it has left */
    uint64_t ticket;
    uint64_t message_id;
    struct req_buffers buffers;
    uint64_t timeout_ms;
    uint64_t deadline_ns;
    bool overdue; /* see req_comm_op */
    bool ended;
    struct error result;
    uint32_t source_rank;
    uint64_t count_elements;
};

static void point_ended(void *context, const struct error *result, uint32_t source_rank,
                        uint64_t count_elements, uint64_t now_ns)
{
    struct req_point *point = context;
    (void)now_ns;
    req_buffers_release(&point->buffers);
    point->ended = true;
    point->result = *result;
    point->source_rank = source_rank;
    point->count_elements = count_elements;
    req_comm_queue(point->comm);
    if (point->member == NULL) {
        DL_DELETE(point->comm->points, point);
        free(point);
    }
}

static enum status check_point(const struct req_member *member, const struct req_op *op, struct error *error)
{
    const struct req_comm *comm = member->comm;
    if (member->pending_messages >= REQ_PENDING_OPS_MAX) {
        return error_set(error, STATUS_LIMIT, "communicator \"%s\": rank %u has %d messages pending",
                         comm->name, member->rank, REQ_PENDING_OPS_MAX);
    }
    if (op->peer_rank < comm->terms.size && comm->has_left[op->peer_rank]) {
        return error_set(error, STATUS_RANK_LOST, "communicator \"%s\": rank %u, node %s, has left",
                         comm->name, op->peer_rank, comm->node_names[comm->node_of_rank[op->peer_rank]]);
    }
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
    struct req_point *point = calloc(1, sizeof *point);
    if (point == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for a message", comm->name);
    }
    if (req_call_check(op, member->rank, comm->terms.size, &call, &point->buffers, &why) != STATUS_OK) {
        free(point);
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
    point->comm = comm;
    point->member = member;
    point->ticket = op->ticket;
    point->timeout_ms = op->timeout_ms != 0 ? op->timeout_ms : comm->terms.op_timeout_ms;
    point->deadline_ns = checked_mul_u64(point->timeout_ms, TIME_MS, &timeout_ns)
                             ? time_after(now_ns, timeout_ns)
                             : TIME_NEVER;
    status = exec_post_message(comm->exec, &message, error);
    if (status != STATUS_OK) {
        req_buffers_release(&point->buffers);
        free(point);
        return status;
    }
    point->message_id = ++comm->last_message_id;
    DL_APPEND(comm->points, point);
    member->pending_messages++;
    comm->op_deadline_ns = time_min(comm->op_deadline_ns, point->deadline_ns);
    req_comm_arm(comm);
    return STATUS_OK;
}

bool req_point_is_pending(const struct req_member *member, uint64_t last_message_id)
{
    const struct req_point *point;
    DL_FOREACH(member->comm->points, point)
    {
        if (point->message_id > last_message_id) {
            return false;
        }
        if (!point->ended && point->member == member) {
            return true;
        }
    }
    return false;
}

bool req_point_tell(struct req_member *member, uint64_t now_ns)
{
    struct req_comm *comm = member->comm;
    struct req_point *point;
    DL_FOREACH(comm->points, point)
    {
        if ((point->ended || point->overdue) && point->member == member) {
            break;
        }
    }
    if (point == NULL) {
        return false;
    }
    struct error result = point->ended ? point->result : comm->cause;
    struct req_completion completion = {.ticket = point->ticket,
                                        .result = &result,
                                        .source_rank = point->source_rank,
                                        .count_elements = point->count_elements};
    const struct req_member_handler handler = member->handler;
    if (point->ended) {
        DL_DELETE(comm->points, point);
        free(point);
    } else {
        point->member = NULL; /* gone when it ends */
    }
    member->pending_messages--;
    handler.completed(handler.context, member, &completion, now_ns);
    return true;
}

void req_point_overdue(struct req_comm *comm)
{
    struct req_point *point;
    DL_FOREACH(comm->points, point)
    {
        if (!point->ended) {
            point->overdue = true;
            req_fences_signal(point->buffers.fences);
        }
    }
}

void req_point_leave(struct req_member *member)
{
    struct req_point *point, *next;
    DL_FOREACH_SAFE(member->comm->points, point, next)
    {
        if (point->member != member) {
            continue;
        }
        point->member = NULL;
        if (point->ended) {
            DL_DELETE(member->comm->points, point);
            free(point);
        }
    }
}

bool req_point_pending(const struct req_member *member)
{
    const struct req_point *point;
    DL_FOREACH(member->comm->points, point)
    {
        if (point->member == member && !point->ended) {
            return true;
        }
    }
    return false;
}

uint64_t req_point_deadlines(struct req_comm *comm, uint64_t now_ns, struct error *late)
{
    uint64_t next_ns = TIME_NEVER;
    const struct req_point *point;
    DL_FOREACH(comm->points, point)
    {
        if (point->ended) {
            continue;
        }
        if (now_ns >= point->deadline_ns && late->status == STATUS_OK && point->member != NULL) {
            char what[128];
            exec_describe_message(comm->exec, point, what, sizeof what);
            error_set(late, STATUS_TIMED_OUT, "rank %u on \"%s\": not done within %llu ms: %s",
                      point->member->rank, comm->name, (unsigned long long)point->timeout_ms, what);
        }
        next_ns = time_min(next_ns, point->deadline_ns);
    }
    return next_ns;
}

void req_point_free_all(struct req_comm *comm)
{
    struct req_point *point, *next;
    DL_FOREACH_SAFE(comm->points, point, next)
    {
        DL_DELETE(comm->points, point);
        req_buffers_release(&point->buffers);
        free(point);
    }
}

bool req_point_visit_buffers(const struct req_comm *comm, req_buffers_visit *each, req_use_visit *visit,
                             void *context)
{
    const struct req_point *point;
    DL_FOREACH(comm->points, point)
    {
        if (!each(comm, &point->buffers, visit, context)) {
            return false;
        }
    }
    return true;
}
