#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/hash.h"
#include "daemon/comm/comms_internal.h"
#include "daemon/comm/comms_tree.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/loss.h"

static void promise_drop(struct communicator *comm)
{
    if (comm->has_id) {
        HASH_DELETE(hh_id, comm->comms->by_id, comm);
        comm->has_id = false;
    }
    comms_links_release(comm);
    free(comm->nodes);
    free(comm->node_names);
    free(comm->node_of_rank);
    free(comm->has_left);
    free(comm->left_messages);
    free(comm->left_pids);
    free(comm->locals);
    comms_verdicts_free(comm);
    comms_loss_free(comm);
    comm->nodes = NULL;
    comm->node_names = NULL;
    comm->node_of_rank = NULL;
    comm->has_left = NULL;
    comm->left_messages = NULL;
    comm->left_pids = NULL;
    comm->locals = NULL;
    comm->node_count = 0;
    comm->local_count = 0;
    comm->left_seq = UINT64_MAX;
    comm->comm_id = 0;
}

static void promise_forget(struct communicator *comm)
{
    if (table_has(comm, hh_promise)) {
        HASH_DELETE(hh_promise, comm->comms->by_promise, comm);
        comm->hh_promise = (UT_hash_handle){0};
    }
}

static void promise_remember(struct communicator *comm)
{
    promise_forget(comm);
    comm->last_promised_id = comm->comm_id;
    HASH_ADD(hh_promise, comm->comms->by_promise, last_promised_id, sizeof comm->last_promised_id, comm);
}

void comms_promise_free(struct communicator *comm)
{
    promise_forget(comm);
    promise_drop(comm);
}

void comms_promise_void(struct communicator *comm)
{
    if (comm->comm_id != 0) {
        promise_drop(comm);
        comm->sparse = false;
    }
}

void comms_promise_take_back(struct communicator *comm)
{
    if (comm->comm_id != 0 && comm->sparse) {
        comm->is_broken = true; /* the other nodes count on it, and form by a tree only once */
        communicator_queue(comm);
    } else if (comm->comm_id != 0) {
        promise_drop(comm);
        comm->update_wanted = true;
        communicator_queue(comm);
    }
}

static int node_order(const void *a, const void *b)
{
    const struct communicator_node *left = a;
    const struct communicator_node *right = b;
    return left->lowest_rank < right->lowest_rank ? -1 : left->lowest_rank > right->lowest_rank;
}

static uint64_t make_id(const struct communicator *comm)
{
    uint64_t id = hash_bytes(0, comm->name, strlen(comm->name));
    for (uint32_t i = 0; i < comm->node_count; i++) {
        uint8_t nonce[8];
        for (unsigned j = 0; j < sizeof nonce; j++) {
            nonce[j] = (uint8_t)(comm->nodes[i].nonce >> (8 * j));
        }
        const char *name = communicator_node_name(comm, comm->nodes[i].node);
        id = hash_bytes(id, name, strlen(name));
        id = hash_bytes(id, nonce, sizeof nonce);
    }
    return id != 0 ? id : 1;
}

static bool promise_allocate(struct communicator *comm, uint32_t node_count)
{
    comm->nodes = calloc(node_count, sizeof *comm->nodes);
    comm->node_names = calloc(node_count, sizeof *comm->node_names);
    comm->node_of_rank = calloc(comm->terms.size, sizeof *comm->node_of_rank);
    comm->has_left = calloc(comm->terms.size, sizeof *comm->has_left);
    comm->left_messages = calloc(comm->terms.size, sizeof *comm->left_messages);
    comm->left_pids = calloc(comm->terms.size, sizeof *comm->left_pids);
    comm->locals = calloc(comm->rank_count, sizeof(struct comms_member *));
    return comm->nodes != NULL && comm->node_names != NULL && comm->node_of_rank != NULL &&
           comm->has_left != NULL && comm->left_messages != NULL && comm->left_pids != NULL &&
           comm->locals != NULL;
}

/*
 * Orders this node, and the nodes that claim ranks, by their lowest ranks. Records which node has which rank.
 */
static void promise_order_nodes(struct communicator *comm)
{
    const struct comms_claim *claim, *next;
    struct comms_member *member;
    DL_FOREACH(comm->members, member)
    {
        if (!member->refused) {
            member->local_index = comm->local_count;
            comm->locals[comm->local_count++] = member;
        }
    }
    comm->nodes[comm->node_count++] = (struct communicator_node){.node = MESH_NODE_OWN,
                                                                 .nonce = comm->nonce,
                                                                 .lowest_rank = comm->locals[0]->rank,
                                                                 .rank_count = comm->local_count};
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->rank_count > 0) {
            comm->nodes[comm->node_count++] = (struct communicator_node){.node = claim->node,
                                                                         .nonce = claim->nonce,
                                                                         .lowest_rank = claim->ranks[0],
                                                                         .rank_count = claim->rank_count};
        }
    }
    qsort(comm->nodes, comm->node_count, sizeof *comm->nodes, node_order);
    for (uint32_t i = 0; i < comm->node_count; i++) {
        uint32_t node = comm->nodes[i].node;
        claim = comms_formation_claim(comm, node);
        comm->own_index = claim == NULL ? i : comm->own_index;
        comm->node_names[i] = communicator_node_name(comm, node);
        for (uint32_t j = 0; j < comm->nodes[i].rank_count; j++) {
            comm->node_of_rank[claim != NULL ? claim->ranks[j] : comm->locals[j]->rank] = i;
        }
    }
}

enum status comms_promise_make(struct communicator *comm, struct error *error)
{
    const struct comms_claim *claim, *next;
    uint32_t node_count = 1;
    HASH_ITER (hh, comm->claims, claim, next) {
        node_count += claim->rank_count > 0;
    }
    if (node_count > COLL_NODES_MAX || !promise_allocate(comm, node_count)) {
        promise_drop(comm);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for %u ranks on %u nodes",
                         comm->name, comm->terms.size, node_count);
    }
    promise_order_nodes(comm);
    if (!comms_loss_new(comm)) {
        promise_drop(comm);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", comm->name);
    }
    comm->comm_id = make_id(comm);
    promise_remember(comm);
    bool taken = communicator_find_id(comm->comms, comm->comm_id) != NULL;
    if (!taken) {
        HASH_ADD(hh_id, comm->comms->by_id, comm_id, sizeof comm->comm_id, comm);
        comm->has_id = table_has(comm, hh_id);
    }
    if (!taken && !comm->has_id) {
        promise_drop(comm);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", comm->name);
    }
    comm->update_wanted = true;
    return STATUS_OK;
}

bool comms_promise_is_mutual(const struct communicator *comm)
{
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (i != comm->own_index &&
            comms_formation_claim(comm, comm->nodes[i].node)->comm_id != comm->comm_id) {
            return false;
        }
    }
    return true;
}
