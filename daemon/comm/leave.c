#include <utlist.h>

#include "daemon/comm/comms_internal.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/loss.h"

/* How a rank leaves its communicator, by itself or because its process is gone. */

static void send_leave(struct communicator *comm, uint32_t rank, int32_t pid, uint64_t last_seq,
                       const char *why)
{
    Commd__Mesh__Leave body = COMMD__MESH__LEAVE__INIT;
    body.comm_id = comm->comm_id;
    body.n_ranks = 1;
    body.ranks = &rank;
    body.n_pids = 1;
    body.pids = &pid;
    body.last_seq = last_seq;
    body.text = (char *)why;
    Commd__Mesh__Message message = MESH_MESSAGE(LEAVE, leave, &body);
    for (uint32_t i = 0; i < comm->node_count; i++) {
        body.messages = i != comm->own_index ? p2p_sent_count(comm->p2p, i) : 0;
        if (i != comm->own_index && (!comm->sparse || body.messages > 0)) {
            communicator_send(comm, comm->nodes[i].node, &message);
        }
    }
    if (comm->sparse) { /* those that were told a number have heard it before: on_leave */
        body.messages = 0;
        communicator_broadcast(comm, &message);
    }
}

static bool member_has_pending(const struct comms_member *member)
{
    const struct communicator_op *op;
    for (op = member->comm->pending; op != NULL && op->seq <= member->posted_seq; op = op->next) {
        if (op->posts[member->local_index].buffers != NULL) {
            return true;
        }
    }
    return false;
}

static void expelled_text(const struct comms_member *member, const char *why, struct error *cause)
{
    const struct communicator *comm = member->comm;
    error_set(cause, STATUS_RANK_LOST, "communicator \"%s\": rank %u (pid %d) of node %s %s", comm->name,
              member->rank, (int)member->client.pid, communicator_own_name(comm), why);
}

/* why: not null if the member was expelled. */
static void leave_formed(struct comms_member *member, enum comms_leave how, const char *why, uint64_t now_ns)
{
    struct communicator *comm = member->comm;
    struct error cause;
    struct comms_detail detail = {0};
    comms_detail_add_member(&detail, member);
    if (why == NULL && how == COMMS_LEAVE_ORDERLY) {
        comms_verdict_tell_own(member, now_ns);
    }
    if (why != NULL) {
        expelled_text(member, why, &cause);
        communicator_fail_with(comm, &cause, &detail, COMMS_TELL_NODES, now_ns);
        return;
    }
    bool lost = how == COMMS_LEAVE_LOST;
    bool pending = member_has_pending(member) || (!lost && comms_cells_are_pending(member));
    /* What a lost rank has published, or said to hand over, and not given to commd, ends in cells or never.
     */
    bool counts_posts = lost || comms_cells_are_between_nodes(comm);
    uint64_t last_seq = counts_posts ? member->posted_seq : comms_cells_head(member);
    comms_cells_end(comm);
    error_set(&cause, STATUS_RANK_LOST,
              "communicator \"%s\": the process of rank %u (pid %d) of node %s is gone", comm->name,
              member->rank, (int)member->client.pid, communicator_own_name(comm));
    if (!lost && pending) {
        error_set(&cause, STATUS_ABORTED,
                  "communicator \"%s\": rank %u (pid %d) of node %s left before op %llu was done", comm->name,
                  member->rank, (int)member->client.pid, communicator_own_name(comm),
                  (unsigned long long)last_seq);
    }
    if (pending || (lost && comms_p2p_pending(member))) {
        communicator_fail_with(comm, &cause, &detail, COMMS_TELL_NODES, now_ns);
        return;
    }
    /* Operations to which the lost process has contributed can still succeed. Then the communicator fails. */
    int32_t pid = (int32_t)member->client.pid;
    communicator_rank_left(comm, member->rank, pid, last_seq, lost ? cause.text : "");
    p2p_rank_leaves(comm->p2p, member->rank, pid, now_ns);
    send_leave(comm, member->rank, pid, last_seq, lost ? cause.text : "");
    comms_op_check_left(comm, now_ns);
}

static void leave_forming(struct comms_member *member, enum comms_leave how, const char *why, uint64_t now_ns)
{
    struct communicator *comm = member->comm;
    struct error cause;
    error_set(&cause, STATUS_RANK_LOST,
              "communicator \"%s\": %srank %u (pid %d) of node %s %s while it was being formed", comm->name,
              how == COMMS_LEAVE_LOST ? "the process of " : "", member->rank, (int)member->client.pid,
              communicator_own_name(comm), how == COMMS_LEAVE_LOST ? "was lost" : "left");
    if (why != NULL) {
        expelled_text(member, why, &cause);
    }
    if (comms_is_next(comm) || how == COMMS_LEAVE_LOST) {
        struct comms_detail detail = {0};
        comms_detail_add_member(&detail, member);
        communicator_fail_with(comm, &cause, &detail, COMMS_TELL_NODES, now_ns);
        return;
    }
    comms_formation_drop_member(member, &cause, now_ns);
}

static void member_leave(struct comms_member *member, enum comms_leave how, const char *why, uint64_t now_ns)
{
    struct communicator *comm = member->comm;
    comms_loss_rank_gone(comm, member->rank, now_ns);
    if (!member->refused) {
        switch (comm->state) {
        case COMMS_COMM_FORMING:
            leave_forming(member, how, why, now_ns);
            break;
        case COMMS_COMM_FORMED:
            leave_formed(member, how, why, now_ns);
            break;
        case COMMS_COMM_FAILED:
            break;
        }
    }
    comms_p2p_leave(member);
    comms_op_settle_all(member);
    communicator_remove_member(member);
}

void comms_member_leave(struct comms_member *member, enum comms_leave how, uint64_t now_ns)
{
    member_leave(member, how, NULL, now_ns);
}

void comms_member_expel(struct comms_member *member, const char *why, uint64_t now_ns)
{
    member_leave(member, COMMS_LEAVE_LOST, why, now_ns);
}
