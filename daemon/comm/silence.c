#include "daemon/comm/silence.h"

#include <utlist.h>

#include "daemon/comm/comms_tree.h"
#include "daemon/comm/loss.h"

/* A fraction of the patience: a connection that is silent for longer is doubtful. */
#define DOUBT_DIVISOR 4
/* An answer says that the node is there for so long. */
#define ANSWER_NS (4 * COMMS_SILENCE_ASK_NS)

static uint64_t doubt_ns(const struct communicator *comm)
{
    return mesh_patience_ns(comm->comms->mesh) / DOUBT_DIVISOR + 1;
}

/* Whether the connection to that node, of the mesh's index, is doubtful. */
static bool is_doubtful(const struct communicator *comm, uint32_t node, uint64_t now_ns)
{
    const struct mesh *mesh = comm->comms->mesh;
    return mesh_node_silent_ns(mesh, node, now_ns) >= doubt_ns(comm) || mesh_node_is_suspect(mesh, node);
}

/* Whether the node answers heartbeats. */
static bool is_there(const struct communicator *comm, uint32_t index, uint64_t now_ns)
{
    uint32_t node = comm->nodes[index].node;
    return !comm->loss->nodes[index].down && mesh_node_is_up(comm->comms->mesh, node) &&
           !is_doubtful(comm, node, now_ns);
}

static bool has_doubts(const struct communicator *comm, uint64_t now_ns)
{
    if (now_ns < comm->hinted_ns) {
        return true;
    }
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (comm->nodes[i].needed && is_doubtful(comm, comm->nodes[i].node, now_ns)) {
            return true;
        }
    }
    return false;
}

static bool has_answered(const struct communicator *comm, uint32_t index, uint64_t now_ns)
{
    uint64_t answered_ns = mesh_node_answered_ns(comm->comms->mesh, comm->nodes[index].node);
    return answered_ns != 0 && now_ns - answered_ns < ANSWER_NS;
}

/* Asks a node without a connection. Returns false if nobody needs to ask it. */
static bool ask(struct communicator *comm, uint32_t index, uint64_t now_ns)
{
    struct communicator_node *node = &comm->nodes[index];
    const struct mesh *mesh = comm->comms->mesh;
    if (comm->loss->nodes[index].down || mesh_node_is_up(mesh, node->node)) {
        return false;
    }
    if (has_answered(comm, index, now_ns)) {
        node->asks = 0;
    }
    if (mesh_ask(mesh, node->node) && node->asks < UINT8_MAX) {
        node->asks++;
    }
    return true;
}

static void give_hint(const struct communicator *comm, uint32_t index)
{
    Commd__Mesh__Silence body = COMMD__MESH__SILENCE__INIT;
    body.comm_id = comm->comm_id;
    Commd__Mesh__Message message = MESH_MESSAGE(SILENCE, silence, &body);
    enum status status = mesh_send(comm->comms->mesh, comm->nodes[index].node, &message);
    (void)status; /* if this fails, the node is lost */
}

/* Whether a lower node is there, or may be. One that is gets a hint, unless it is told of the loss itself.
 * Those that may be are asked. */
static bool others_lead(struct communicator *comm, uint32_t *asked, uint64_t now_ns)
{
    bool others = false;
    for (uint32_t i = 0; i < comm->own_index; i++) {
        if (is_there(comm, i, now_ns)) {
            if (!comms_loss_is_frozen(comm)) {
                give_hint(comm, i);
            }
            return true;
        }
    }
    for (uint32_t i = 0; i < comm->own_index && *asked < COMMS_SILENCE_NODES_MAX; i++) {
        if (ask(comm, i, now_ns)) {
            ++*asked;
            others = others || (comm->nodes[i].asks <= COMMS_SILENCE_LOWER_ASKS &&
                                !mesh_node_refuses(comm->comms->mesh, comm->nodes[i].node, now_ns));
        }
    }
    return others;
}

uint64_t comms_silence_step(struct communicator *comm, uint64_t now_ns)
{
    uint32_t asked = 0;
    if (now_ns < comm->ask_ns) {
        return comm->ask_ns;
    }
    if (!comms_loss_is_frozen(comm) && !has_doubts(comm, now_ns)) {
        for (uint32_t i = 0; i < comm->node_count; i++) {
            comm->nodes[i].asks = 0;
        }
        comm->ask_ns = time_after(now_ns, doubt_ns(comm));
        return comm->ask_ns;
    }
    comm->ask_last_ns = now_ns;
    comm->ask_ns = time_after(now_ns, COMMS_SILENCE_ASK_NS);
    if (!others_lead(comm, &asked, now_ns)) {
        for (uint32_t i = comm->own_index + 1; i < comm->node_count && asked < COMMS_SILENCE_NODES_MAX; i++) {
            asked += ask(comm, i, now_ns);
        }
    }
    return comm->ask_ns;
}

/* There is a new doubt: asks at once, but not more often than usual. */
static void ask_soon(struct communicator *comm, uint64_t now_ns)
{
    uint64_t usual_ns = comm->ask_last_ns != 0 ? time_after(comm->ask_last_ns, COMMS_SILENCE_ASK_NS) : 0;
    uint64_t soon_ns = usual_ns > now_ns ? usual_ns : now_ns;
    if (comm->ask_ns > soon_ns) {
        comm->ask_ns = soon_ns;
        comm->link_ns = time_min(comm->link_ns, soon_ns);
        communicator_arm(comm);
    }
}

void comms_silence_suspect(void *context, uint32_t node, uint64_t now_ns)
{
    struct comms *comms = context;
    struct communicator *comm;
    DL_FOREACH(comms->comms, comm)
    {
        if (comm->sparse && comm->loss != NULL && comm->state != COMMS_COMM_FAILED &&
            comms_link_is_needed(comm, node)) {
            ask_soon(comm, now_ns);
        }
    }
}

/* Whether a hint of that node counts. It may be the first of a row. */
static bool hint_counts(const struct communicator *comm, struct communicator_node *node, uint64_t now_ns)
{
    uint64_t patience_ns = mesh_patience_ns(comm->comms->mesh);
    if (node->hints_ns == 0 || now_ns - node->hints_ns >= COMMS_SILENCE_HINT_PATIENCES * patience_ns) {
        node->hints_ns = now_ns;
    }
    return now_ns - node->hints_ns < patience_ns;
}

bool comms_silence_hinted(struct communicator *comm, uint32_t index, uint64_t now_ns)
{
    if (!comm->sparse || comm->loss == NULL || comm->state == COMMS_COMM_FAILED) {
        return true; /* it is over here */
    }
    if (index <= comm->own_index) {
        return false;
    }
    if (!hint_counts(comm, &comm->nodes[index], now_ns)) {
        return true;
    }
    comm->hinted_ns = time_after(now_ns, COMMS_SILENCE_HINT_NS);
    ask_soon(comm, now_ns);
    return true;
}

static bool some_are_dead(const struct communicator *comm)
{
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (comm->loss->nodes[i].dead) {
            return true;
        }
    }
    return false;
}

bool comms_silence_is_long(const struct communicator *comm, uint32_t index, uint64_t now_ns)
{
    const struct mesh *mesh = comm->comms->mesh;
    const struct communicator_node *node = &comm->nodes[index];
    if (index == comm->own_index) {
        return false;
    }
    if (mesh_node_is_up(mesh, node->node)) {
        return mesh_node_silent_ns(mesh, node->node, now_ns) >= mesh_patience_ns(mesh);
    }
    if (mesh_node_refuses(mesh, node->node, now_ns)) {
        return true;
    }
    uint32_t most = some_are_dead(comm) ? COMMS_SILENCE_ASKS_PROOF : COMMS_SILENCE_ASKS;
    return node->asks > most && !has_answered(comm, index, now_ns);
}
