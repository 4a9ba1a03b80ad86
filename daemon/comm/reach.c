#include "daemon/base/log.h"
#include "daemon/comm/comms_internal.h"
#include "daemon/comm/formation.h"

/*
 * Which rails a communicator uses. With a rail whose port is blocked, its first large operation would wait
 * until its deadline. So each node tells all others once on which rails it has connections to all of them.
 * The rails that all nodes have named are used. Operations of several slices wait for this agreement, a few
 * milliseconds after the communicator was formed.
 */
#define REACH_PATIENCE_NS (2 * TIME_S) /* rails not connected by then are not used */
/* The same where each pair of nodes is dialled only now. */
#define REACH_PATIENCE_SPARSE_NS (10 * TIME_S)
#define REACH_LOOK_NS (5 * TIME_MS)

bool comms_reach_is_agreed(const struct communicator *comm)
{
    bool all_say = comm->node_count > 1 && comm->comms->rail_count > 1;
    for (uint32_t i = 0; i < comm->node_count; i++) {
        const struct comms_claim *claim = comms_formation_claim(comm, comm->nodes[i].node);
        all_say =
            all_say && (i == comm->own_index || (claim != NULL && claim->says_reach && claim->rails > 1));
    }
    return all_say;
}

static uint64_t patience_ns(const struct communicator *comm)
{
    return comm->sparse ? REACH_PATIENCE_SPARSE_NS : REACH_PATIENCE_NS;
}

/* Once all nodes have named their rails, uses those that all have named. */
static void use_rails(struct communicator *comm)
{
    uint32_t rails = exec_comm_all_rails(comm->exec);
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (comm->nodes[i].reached_rails == 0) {
            return;
        }
        rails &= comm->nodes[i].reached_rails;
    }
    for (uint32_t i = 0; rails != exec_comm_all_rails(comm->exec) && i < comm->node_count; i++) {
        uint32_t missing = exec_comm_all_rails(comm->exec) & ~comm->nodes[i].reached_rails;
        char left_out[COMMS_LEFT_OUT_BYTES];
        if (missing != 0 &&
            communicator_may_log(comm, &comm->comms->failed_log, comm->comms->now_ns, left_out)) {
            log_warning(
                "communicator \"%s\" of uid %u goes on without rail %d: node %s has not reached all nodes on "
                "it within %u s (UDP port of their addresses + %d)%s",
                comm->name, comm->terms.owner_uid, __builtin_ctz(missing), comm->node_names[i],
                (unsigned)(patience_ns(comm) / TIME_S), __builtin_ctz(missing), left_out);
        }
    }
    exec_comm_use_rails(comm->exec, rails);
}

void comms_reach_begin(struct communicator *comm, uint64_t now_ns)
{
    if (comm->agrees_rails) {
        comm->reach_ns = now_ns;
        comm->reach_until_ns = time_after(now_ns, patience_ns(comm));
        communicator_arm(comm);
    }
}

void comms_reach_step(struct communicator *comm, uint64_t now_ns)
{
    if (comm->state != COMMS_COMM_FORMED || now_ns < comm->reach_ns) {
        return;
    }
    uint32_t reached = exec_comm_reached_rails(comm->exec);
    if (reached != exec_comm_all_rails(comm->exec) && now_ns < comm->reach_until_ns) {
        comm->reach_ns = time_after(now_ns, REACH_LOOK_NS);
        return;
    }
    comm->reach_ns = TIME_NEVER;
    comm->nodes[comm->own_index].reached_rails = reached;
    Commd__Mesh__Reach body = COMMD__MESH__REACH__INIT;
    body.comm_id = comm->comm_id;
    body.rails = reached;
    Commd__Mesh__Message message = MESH_MESSAGE(REACH, reach, &body);
    communicator_broadcast(comm, &message);
    use_rails(comm);
}

bool comms_reach_received(struct communicator *comm, uint32_t node, const Commd__Mesh__Reach *said)
{
    struct communicator_node *from = &comm->nodes[communicator_node_index(comm, node)];
    if (from->reached_rails != 0) {
        return false;
    }
    from->reached_rails = said->rails | 1; /* this message came on rail 0 */
    if (comm->state == COMMS_COMM_FORMED && comm->nodes[comm->own_index].reached_rails != 0) {
        use_rails(comm);
    }
    return true;
}
