#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/comms_internal.h"

void comms_detail_add(struct comms_detail *detail, const struct communicator *comm, uint32_t rank,
                      int32_t pid)
{
    if (rank >= comm->terms.size) {
        return;
    }
    if (detail->rank_count < CLIENT_FAILURE_RANKS_MAX) {
        detail->ranks[detail->rank_count] = rank;
        detail->pids[detail->rank_count] = pid;
    }
    if (detail->rank_count == 0 && detail->node[0] == '\0' && comm->node_of_rank != NULL) {
        (void)snprintf(detail->node, sizeof detail->node, "%s", comm->node_names[comm->node_of_rank[rank]]);
    }
    detail->rank_count++;
}

void comms_detail_add_member(struct comms_detail *detail, const struct comms_member *member)
{
    comms_detail_add(detail, member->comm, member->rank, (int32_t)member->client.pid);
}

/* The process, if the rank is still on this node, or has left; else 0. */
static int32_t pid_of(const struct communicator *comm, uint32_t rank)
{
    for (uint32_t i = 0; i < comm->local_count; i++) {
        if (comm->locals[i] != NULL && comm->locals[i]->rank == rank) {
            return (int32_t)comm->locals[i]->client.pid;
        }
    }
    return comm->left_pids != NULL ? comm->left_pids[rank] : 0;
}

void comms_detail_add_peer(struct comms_detail *detail, const struct communicator *comm, uint32_t rank,
                           uint32_t peer_rank)
{
    for (uint32_t other = 0; other < comm->terms.size; other++) {
        if (other == peer_rank || (peer_rank == COMM_ANY_SOURCE_RANK && other != rank)) {
            comms_detail_add(detail, comm, other, pid_of(comm, other));
        }
    }
}

void comms_detail_add_node(struct comms_detail *detail, const struct communicator *comm, uint32_t index)
{
    (void)snprintf(detail->node, sizeof detail->node, "%s", comm->node_names[index]);
    for (uint32_t rank = 0; rank < comm->terms.size; rank++) {
        if (comm->node_of_rank[rank] == index) {
            comms_detail_add(detail, comm, rank, 0);
        }
    }
}

/* Whether the rank is of this node, and has posted the operation meanwhile. */
static bool has_come(const struct communicator *comm, uint32_t rank, uint64_t seq)
{
    for (uint32_t i = 0; comm->node_of_rank[rank] == comm->own_index && i < comm->local_count; i++) {
        if (comm->locals[i] != NULL && comm->locals[i]->rank == rank) {
            return comms_cells_head(comm->locals[i]) >= seq;
        }
    }
    return false;
}

void comms_detail_add_missing(struct comms_detail *detail, const struct communicator *comm, uint64_t seq,
                              const struct comms_missing *missing)
{
    for (uint32_t i = 0; missing != NULL && i < missing->listed; i++) {
        if (!has_come(comm, missing->ranks[i], seq)) {
            comms_detail_add(detail, comm, missing->ranks[i], missing->pids[i]);
        }
    }
    const struct communicator_op *op = comms_op_at(comm, seq);
    for (uint32_t i = 0; missing == NULL && i < comm->local_count; i++) {
        if (comm->locals[i] != NULL &&
            (op != NULL ? comms_cells_is_missing(op, i) : comms_cells_head(comm->locals[i]) < seq)) {
            comms_detail_add_member(detail, comm->locals[i]);
        }
    }
    if (missing != NULL && missing->count > missing->listed && missing->listed == CLIENT_FAILURE_RANKS_MAX) {
        detail->rank_count += missing->count - missing->listed;
    }
}

struct comms_detail *comms_detail_copy(const struct comms_detail *detail)
{
    struct comms_detail *copy = detail != NULL ? malloc(sizeof *copy) : NULL;
    if (copy != NULL) {
        *copy = *detail;
    }
    return copy;
}

/* --- Between nodes --- */

void comms_detail_to_wire(const struct comms_detail *detail, Commd__Mesh__Failure *out)
{
    *out = (Commd__Mesh__Failure)COMMD__MESH__FAILURE__INIT;
    out->kind = detail->kind;
    out->seq = detail->seq;
    out->rank_count = detail->rank_count;
    out->n_ranks = out->n_pids = comms_detail_listed(detail);
    out->ranks = (uint32_t *)(uintptr_t)detail->ranks;
    out->pids = (int32_t *)(uintptr_t)detail->pids;
    out->node = (char *)(uintptr_t)detail->node;
}

const struct comms_detail *comms_detail_from_wire(const Commd__Mesh__Failure *failure,
                                                  const struct communicator *comm, struct comms_detail *out)
{
    if (failure == NULL) {
        return NULL;
    }
    *out = (struct comms_detail){.kind = failure->kind <= OP_KIND_COUNT ? failure->kind : 0,
                                 .seq = failure->seq};
    printable_copy(failure->node, out->node, sizeof out->node);
    for (size_t i = 0; i < failure->n_ranks && i < CLIENT_FAILURE_RANKS_MAX; i++) {
        comms_detail_add(out, comm, failure->ranks[i], i < failure->n_pids ? failure->pids[i] : 0);
    }
    if (out->rank_count == CLIENT_FAILURE_RANKS_MAX && failure->rank_count <= comm->terms.size &&
        failure->rank_count > out->rank_count) {
        out->rank_count = failure->rank_count;
    }
    return out;
}
