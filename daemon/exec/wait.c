#include <stdio.h>

#include "daemon/exec/exec_device.h"
#include "daemon/exec/rails_internal.h"

/* Describes for people what an operation waits for. A rail publishes its own part after each turn. */

static void set_agreement_wait(struct exec_wait *wait, const struct exec_op *op)
{
    const struct exec_agreement *agreement = &op->agreement;
    if (agreement->begun && !agreement->done && !agreement->received) {
        *wait = (struct exec_wait){.waiting = EXEC_WAITING_WORD,
                                   .node = agreement->from & (COLL_NODES_MAX - 1),
                                   .round = agreement->round & INT16_MAX};
    }
}

/* Of the oldest operation. */
static struct exec_wait comm_wait(const struct exec_comm *comm)
{
    struct exec_wait wait = {.waiting = EXEC_WAITING_NOT};
    if (comm->closing != NULL) {
        set_agreement_wait(&wait, comm->closing);
        return wait;
    }
    for (uint32_t i = 0; i < EXEC_LANES_MAX; i++) {
        const struct exec_lane *lane = &comm->lanes[i];
        const struct coll_transfer *receive = lane_next_receive(lane);
        if (lane->state == LANE_RESERVE) {
            wait.waiting = EXEC_WAITING_MEMORY;
            return wait;
        }
        if (receive != NULL) {
            wait.waiting = EXEC_WAITING_DATA;
            wait.node = receive->node & (COLL_NODES_MAX - 1);
            wait.round = lane->round & INT16_MAX;
            wait.slice = (uint32_t)lane->slice;
            return wait;
        }
        if (lane->unacknowledged > 0) {
            uint32_t node = lane->unacknowledged_node;
            bool several = node == EXEC_NODES_SEVERAL || wait.waiting == EXEC_WAITING_SENT_SEVERAL ||
                           (wait.waiting == EXEC_WAITING_SENT && wait.node != node);
            wait.waiting = several ? EXEC_WAITING_SENT_SEVERAL : EXEC_WAITING_SENT;
            wait.node = several ? 0 : node & (COLL_NODES_MAX - 1);
        }
    }
    if (comm->first_op != NULL) {
        set_agreement_wait(&wait, comm->first_op);
    }
    return wait;
}

/* An operation's part exists until its rail reports to the main thread that it is over. This runs before
 * that. */
void rails_publish_waits(const struct exec *exec)
{
    for (const struct exec_comm *comm = exec->comms; comm != NULL; comm = comm->hh.next) {
        const struct exec_op *op = comm->first_op;
        if (op != NULL && comm->map->ranks.node_count > 1) {
            struct spread_part *part = op->call.context;
            atomic_store_explicit(&part->wait, comm_wait(comm), memory_order_relaxed);
        }
    }
}

static void wait_text(const struct exec_comm *comm, const struct exec_wait *wait, char *text, size_t size)
{
    const char *node = comm->map->node_names[wait->node];
    switch ((enum exec_waiting)wait->waiting) {
    case EXEC_WAITING_NOT:
        (void)snprintf(text, size, "at work");
        break;
    case EXEC_WAITING_DATA:
        (void)snprintf(text, size, "round %u of slice %u: waiting for data from node %s", wait->round,
                       wait->slice, node);
        break;
    case EXEC_WAITING_SENT:
        (void)snprintf(text, size, "what was sent to node %s is not acknowledged yet", node);
        break;
    case EXEC_WAITING_SENT_SEVERAL:
        (void)snprintf(text, size, "what was sent to several nodes is not acknowledged yet");
        break;
    case EXEC_WAITING_MEMORY:
        (void)snprintf(text, size, "waiting for pinned memory");
        break;
    case EXEC_WAITING_WORD:
        (void)snprintf(text, size, "waiting for the agreement of node %s, or of nodes behind it", node);
        break;
    }
}

/* Describes why the operation has not begun. */
static void spread_describe_start(const struct exec_comm *comm, const struct exec_op *op, char *text,
                                  size_t size)
{
    uint32_t node;
    if (comm->shared == NULL) {
        return;
    }
    uint32_t rail = spread_missing_rail(comm, op, &node);
    if (rail == 0 && !comm->rails_agreed) {
        (void)snprintf(text, size, "waiting until all nodes have said which rails they reach");
    } else if (rail > 0) {
        const struct exec_links *links = &comm->exec->links;
        const char *why = links->missing(links->context, comm->map->peers[node], rail);
        (void)snprintf(text, size, "rail %u has no connection to node %s (UDP port of its address + %u)%s%s",
                       rail, comm->map->node_names[node], rail, why[0] == '\0' ? "" : ": ", why);
    }
}

/* Describes the first rail that waits for something; otherwise the first rail that is not done. */
static void spread_describe(const struct exec_comm *comm, const struct exec_op *op, char *text, size_t size)
{
    const struct exec_spread *spread = op->spread;
    uint32_t rail = 0;
    struct exec_wait wait = {.waiting = EXEC_WAITING_NOT};
    if (spread == NULL || spread->parts_left == 0) {
        return;
    }
    if (comm->map->ranks.node_count == 1) {
        (void)snprintf(text, size, "%u other threads have not finished their slices", spread->parts_left);
        return;
    }
    for (uint32_t i = 0; i < spread->part_count && wait.waiting == EXEC_WAITING_NOT; i++) {
        const struct spread_part *part = &spread->parts[i];
        if (!part->over) {
            wait = atomic_load_explicit(&part->wait, memory_order_relaxed);
            rail = rail == 0 || wait.waiting != EXEC_WAITING_NOT ? part->rail : rail;
        }
    }
    int length = snprintf(text, size, "rail %u: ", rail);
    if (length >= 0 && (size_t)length < size) {
        wait_text(comm, &wait, text + length, size - (size_t)length);
    }
}

void exec_comm_describe_wait(const struct exec_comm *comm, char *text, size_t size)
{
    const struct exec_op *op = comm->closing != NULL ? comm->closing : comm->first_op;
    text[0] = '\0';
    if (op == NULL || device_describe(comm, op, text, size)) {
        return;
    }
    if (!op->begun) {
        spread_describe_start(comm, op, text, size);
        return;
    }
    struct exec_wait wait = comm_wait(comm);
    if (wait.waiting == EXEC_WAITING_NOT) {
        spread_describe(comm, op, text, size);
        return;
    }
    int length =
        op->spread != NULL && wait.waiting != EXEC_WAITING_WORD ? snprintf(text, size, "rail 0: ") : 0;
    if (length >= 0 && (size_t)length < size) {
        wait_text(comm, &wait, text + length, size - (size_t)length);
    }
}
