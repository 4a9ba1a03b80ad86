#include "daemon/comm/comms_tree.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/comm/loss.h"
#include "daemon/comm/silence.h"
#include "proto/frame.h"

#define TO_ALL 0u

bool comms_makes_few_links(const struct comms *comms, uint32_t ranks)
{
    return ranks >= COMMS_TREE_RANKS_LEAST && !mesh_is_complete(comms->mesh);
}

/* --- Connections --- */

void comms_link_need(struct communicator *comm, uint32_t index, enum mesh_need how, uint64_t now_ns)
{
    struct communicator_node *node = &comm->nodes[index];
    bool calls = how == MESH_NEED_CALL && !node->called;
    if ((node->needed && !calls) || index == comm->own_index) {
        return;
    }
    mesh_need(comm->comms->mesh, node->node, how);
    if (node->needed) {
        mesh_unneed(comm->comms->mesh, node->node, MESH_NEED_BOTH); /* the call takes its place */
    } else {
        node->need_ns = now_ns;
    }
    node->needed = true;
    node->called = calls;
    if (!mesh_node_is_up(comm->comms->mesh, node->node)) {
        comm->link_ns = time_min(comm->link_ns, time_after(now_ns, COMMS_LINKS_LOOK_NS));
        communicator_arm(comm);
    }
}

bool comms_links_wanted(void *context, uint32_t index, bool mutual, uint64_t now_ns)
{
    struct communicator *comm = context;
    enum mesh_need how = mutual ? MESH_NEED_BOTH : MESH_NEED_CALL;
    if (index != EXEC_ALL_NODES) {
        comms_link_need(comm, index, how, now_ns);
        return mesh_node_is_up(comm->comms->mesh, comm->nodes[index].node);
    }
    for (uint32_t i = 0; i < comm->node_count; i++) {
        comms_link_need(comm, i, how, now_ns);
    }
    comms_reach_begin(comm, now_ns);
    return false;
}

bool comms_link_is_needed(const struct communicator *comm, uint32_t node)
{
    uint32_t index = communicator_node_index(comm, node);
    return index < comm->node_count && comm->nodes[index].needed;
}

void comms_links_release(struct communicator *comm)
{
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (comm->nodes[i].needed) {
            mesh_unneed(comm->comms->mesh, comm->nodes[i].node,
                        comm->nodes[i].called ? MESH_NEED_CALL : MESH_NEED_BOTH);
            comm->nodes[i].needed = comm->nodes[i].called = false;
        }
    }
    comm->link_ns = TIME_NEVER;
}

static void give_up(struct communicator *comm, uint32_t index, uint64_t now_ns)
{
    struct error cause;
    struct comms_detail detail = {0};
    comms_loss_unreached(comm, index, now_ns);
    if (comms_loss_is_frozen(comm)) {
        return;
    }
    comms_detail_add_node(&detail, comm, index);
    error_set(&cause, STATUS_NODE_LOST, "node %s lost: no connection to it within %llu ms",
              comm->node_names[index], (unsigned long long)((now_ns - comm->nodes[index].need_ns) / TIME_MS));
    communicator_fail_with(comm, &cause, &detail, COMMS_TELL_NODES, now_ns);
}

/* Whether the connection to a node, which is not there, may never come. */
static bool is_doubtful(const struct communicator *comm, uint32_t index, uint64_t now_ns)
{
    const struct communicator_node *node = &comm->nodes[index];
    const struct mesh *mesh = comm->comms->mesh;
    return node->needed &&
           (mesh_node_process_ended(mesh, node->node) || now_ns - node->need_ns >= COMMS_LINKS_LEAST_NS);
}

/*
 * The nodes agree, and there was no connection to some that are lost, too. All that others have lost are
 * dialled at once, and so is the next node that may lead if those before it are doubtful. Otherwise this
 * node would find out about them one after the other. What their hosts say may prove that they have ended.
 */
static void dial_the_lost(struct communicator *comm, uint64_t now_ns)
{
    const struct mesh *mesh = comm->comms->mesh;
    bool leads = true; /* all lower ones are down or doubtful */
    for (uint32_t i = 0; i < comm->node_count; i++) {
        const struct communicator_node *node = &comm->nodes[i];
        if (i == comm->own_index || mesh_node_is_up(mesh, node->node)) {
            leads = false;
        } else if (!comm->loss->nodes[i].down) {
            if (!node->needed && (leads || mesh_node_is_out_of_reach(mesh, node->node))) {
                comms_link_need(comm, i, MESH_NEED_CALL, now_ns);
            }
            leads = leads && is_doubtful(comm, i, now_ns);
        }
    }
    comm->link_ns = time_min(comm->link_ns, time_after(now_ns, COMMS_LINKS_LOOK_NS));
}

void comms_links_step(struct communicator *comm, uint64_t now_ns)
{
    const struct mesh *mesh = comm->comms->mesh;
    if (now_ns < comm->link_ns) {
        return;
    }
    comm->link_ns = comm->sparse && comm->loss != NULL ? comms_silence_step(comm, now_ns) : TIME_NEVER;
    if (comm->sparse && comms_loss_is_frozen(comm)) {
        dial_the_lost(comm, now_ns);
    }
    for (uint32_t i = 0; i < comm->node_count && comm->state != COMMS_COMM_FAILED; i++) {
        const struct communicator_node *node = &comm->nodes[i];
        if (comm->sparse && comms_loss_is_frozen(comm) && !comm->loss->nodes[i].down &&
            comms_silence_is_long(comm, i, now_ns)) {
            give_up(comm, i, now_ns);
            continue;
        }
        if (!node->needed || comm->loss->nodes[i].down || mesh_node_is_up(mesh, node->node)) {
            continue;
        }
        uint64_t waited_ns = now_ns - node->need_ns, most_ns = mesh_patience_ns(mesh);
        most_ns *= mesh_node_is_member(mesh, node->node) ? COMMS_LINKS_PATIENCES : 1;
        bool is_lost =
            mesh_node_is_out_of_reach(mesh, node->node) || mesh_node_process_ended(mesh, node->node);
        if (waited_ns >= most_ns || (waited_ns >= COMMS_LINKS_LEAST_NS && is_lost)) {
            give_up(comm, i, now_ns);
        }
        comm->link_ns = time_min(comm->link_ns, time_after(now_ns, COMMS_LINKS_LOOK_NS));
    }
}

/* --- The tree --- */

uint32_t comms_tree_parent(uint32_t index)
{
    return (index - 1) / COMMS_TREE_WIDTH;
}

static uint32_t first_child(uint32_t index)
{
    return index * COMMS_TREE_WIDTH + 1;
}

static uint32_t children_end(const struct communicator *comm)
{
    uint64_t end = (uint64_t)comm->own_index * COMMS_TREE_WIDTH + 1 + COMMS_TREE_WIDTH;
    return end < comm->node_count ? (uint32_t)end : comm->node_count;
}

static bool is_neighbour(const struct communicator *comm, uint32_t index)
{
    return (comm->own_index > 0 && index == comms_tree_parent(comm->own_index)) ||
           (index > 0 && comms_tree_parent(index) == comm->own_index);
}

/* The neighbour on the way to that node. A parent's index is below its children's. */
static uint32_t next_hop(uint32_t own, uint32_t to)
{
    for (uint32_t at = to; at > own; at = comms_tree_parent(at)) {
        if (comms_tree_parent(at) == own) {
            return at;
        }
    }
    return comms_tree_parent(own);
}

void comms_tree_begin(struct communicator *comm, uint64_t now_ns)
{
    comm->link_ns = time_min(comm->link_ns, time_after(now_ns, COMMS_LINKS_LOOK_NS));
    if (comm->own_index > 0) {
        comms_link_need(comm, comms_tree_parent(comm->own_index), MESH_NEED_CALL, now_ns);
    }
    for (uint32_t i = first_child(comm->own_index); i < children_end(comm); i++) {
        comms_link_need(comm, i, MESH_NEED_CALL, now_ns);
    }
}

/* Passes a message on to a neighbour. */
static void pass(struct communicator *comm, uint32_t neighbour, const Commd__Mesh__Message *message)
{
    comms_post(comm->comms, comm->nodes[neighbour].node, message);
}

/* Passes it on to all neighbours but one; node_count: to all. */
static void pass_to_others(struct communicator *comm, uint32_t but, const Commd__Mesh__Message *message)
{
    if (comm->own_index > 0 && comms_tree_parent(comm->own_index) != but) {
        pass(comm, comms_tree_parent(comm->own_index), message);
    }
    for (uint32_t i = first_child(comm->own_index); i < children_end(comm); i++) {
        if (i != but) {
            pass(comm, i, message);
        }
    }
}

/* Wraps a message of this node. Returns false if it is too long, or without memory. The caller frees the
 * bytes. */
static bool wrap(const struct communicator *comm, uint32_t to, const Commd__Mesh__Message *message,
                 Commd__Mesh__Relay *out)
{
    commd__mesh__relay__init(out);
    out->comm_id = comm->comm_id;
    out->from = comm->own_index;
    out->to = to;
    out->message.len = commd__mesh__message__get_packed_size(message);
    out->message.data = malloc(out->message.len + 1);
    if (out->message.data == NULL || out->message.len > FRAME_MAX_BYTES - 64) {
        free(out->message.data);
        return false;
    }
    commd__mesh__message__pack(message, out->message.data);
    return true;
}

void comms_tree_send(struct communicator *comm, uint32_t index, const Commd__Mesh__Message *message)
{
    Commd__Mesh__Relay body;
    uint32_t hop = next_hop(comm->own_index, index);
    if (hop == index) {
        pass(comm, hop, message);
    } else if (wrap(comm, index + 1, message, &body)) {
        Commd__Mesh__Message relay = MESH_MESSAGE(RELAY, relay, &body);
        pass(comm, hop, &relay);
        free(body.message.data);
    }
}

void comms_tree_broadcast(struct communicator *comm, const Commd__Mesh__Message *message)
{
    Commd__Mesh__Relay body;
    if (wrap(comm, TO_ALL, message, &body)) {
        Commd__Mesh__Message relay = MESH_MESSAGE(RELAY, relay, &body);
        pass_to_others(comm, comm->node_count, &relay);
        free(body.message.data);
    }
}

void comms_tree_to_children(struct communicator *comm, const uint8_t *bytes, size_t size_bytes)
{
    for (uint32_t i = first_child(comm->own_index); i < children_end(comm); i++) {
        comms_post_packed(comm->comms, comm->nodes[i].node, bytes, size_bytes);
    }
}

bool comms_tree_carries(const Commd__Mesh__Message *message)
{
    return message->body_case == COMMD__MESH__MESSAGE__BODY_WITHDRAW ||
           message->body_case == COMMD__MESH__MESSAGE__BODY_ABORT ||
           message->body_case == COMMD__MESH__MESSAGE__BODY_LEAVE ||
           message->body_case == COMMD__MESH__MESSAGE__BODY_DISPUTE ||
           message->body_case == COMMD__MESH__MESSAGE__BODY_VERDICT ||
           message->body_case == COMMD__MESH__MESSAGE__BODY_MISSING ||
           message->body_case == COMMD__MESH__MESSAGE__BODY_REACH;
}

/* Handles what another node has sent. If it is wrong, any node on the way may have made it so: only the
 * communicator suffers (comms_violation). */
static void deliver(struct communicator *comm, const Commd__Mesh__Relay *relay, uint64_t now_ns)
{
    struct comms *comms = comm->comms;
    Commd__Mesh__Message *inner = commd__mesh__message__unpack(NULL, relay->message.len, relay->message.data);
    comms->relaying = comm;
    if (inner == NULL || !comms_tree_carries(inner)) {
        comms_violation(comms, comm->nodes[relay->from].node, "a message that cannot be understood", now_ns);
    } else {
        comms_control_received(comms, comm->nodes[relay->from].node, inner, now_ns);
    }
    comms->relaying = NULL;
    if (inner != NULL) {
        commd__mesh__message__free_unpacked(inner, NULL);
    }
}

void comms_tree_received(struct comms *comms, uint32_t node, const Commd__Mesh__Relay *relay, uint64_t now_ns)
{
    struct communicator *comm = communicator_find_id(comms, relay->comm_id);
    if (comm == NULL || !comm->sparse || comms->relaying != NULL) {
        return; /* it is over here */
    }
    uint32_t own = comm->own_index;
    uint32_t sender = communicator_node_index(comm, node);
    if (sender == comm->node_count || !is_neighbour(comm, sender) || relay->from >= comm->node_count ||
        relay->to > comm->node_count || relay->from == own || next_hop(own, relay->from) != sender ||
        (relay->to != TO_ALL && relay->to - 1 != own && next_hop(own, relay->to - 1) == sender)) {
        mesh_violation(comms->mesh, node, "a message of a communicator on a wrong way");
        return;
    }
    Commd__Mesh__Relay body = *relay;
    Commd__Mesh__Message message = MESH_MESSAGE(RELAY, relay, &body);
    if (relay->to == TO_ALL) {
        pass_to_others(comm, sender, &message);
    } else if (relay->to - 1 != own) {
        pass(comm, next_hop(own, relay->to - 1), &message);
        return;
    }
    deliver(comm, relay, now_ns);
}

/* --- Ready --- */

static void say_ready(struct communicator *comm, uint32_t neighbour)
{
    Commd__Mesh__NextReady body = COMMD__MESH__NEXT_READY__INIT;
    body.comm_id = comm->comm_id;
    body.previous_id = comm->loss->previous_id;
    Commd__Mesh__Message message = MESH_MESSAGE(NEXT_READY, next_ready, &body);
    pass(comm, neighbour, &message);
}

bool comms_tree_is_ready(struct communicator *comm)
{
    struct comms_loss_node *nodes = comm->loss->nodes;
    for (uint32_t i = first_child(comm->own_index); i < children_end(comm); i++) {
        if (!nodes[i].ready) {
            return false;
        }
    }
    bool is_root = comm->own_index == 0;
    if (!nodes[comm->own_index].ready) {
        nodes[comm->own_index].ready = true;
        if (!is_root) {
            say_ready(comm, comms_tree_parent(comm->own_index));
        }
    }
    if (!is_root && !nodes[comms_tree_parent(comm->own_index)].ready) {
        return false;
    }
    for (uint32_t i = first_child(comm->own_index); i < children_end(comm); i++) {
        say_ready(comm, i);
    }
    return true;
}

void comms_tree_ready_received(struct comms *comms, uint32_t node, const Commd__Mesh__NextReady *said)
{
    struct communicator *comm = communicator_find_id(comms, said->comm_id);
    if (comm == NULL || !comm->sparse || comm->state != COMMS_COMM_FORMING) {
        return; /* it has failed here, and other nodes are told */
    }
    uint32_t index = communicator_node_index(comm, node);
    if (index == comm->node_count || !is_neighbour(comm, index)) {
        mesh_violation(comms->mesh, node, "a message about a communicator that it does not belong to");
        return;
    }
    comm->loss->nodes[index].ready = true;
    communicator_queue(comm);
}

void comms_tree_unready(const struct communicator *comm, struct comms_text *text)
{
    const char *separator = "";
    for (uint32_t i = first_child(comm->own_index); i < children_end(comm); i++) {
        if (!comm->loss->nodes[i].ready) {
            comms_text_add(text, "%s%s", separator, comm->node_names[i]);
            separator = ", ";
        }
    }
}

bool comms_tree_passes(const struct communicator *comm, uint32_t index)
{
    return comm->sparse && first_child(index) < comm->node_count;
}

bool comms_tree_is_needed(const struct communicator *comm)
{
    if (!comms_tree_passes(comm, comm->own_index) || comm->state != COMMS_COMM_FORMED) {
        return false;
    }
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (i != comm->own_index && comm->nodes[i].left_count < comm->nodes[i].rank_count) {
            return true;
        }
    }
    return false;
}
