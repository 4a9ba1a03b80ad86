#include <stdio.h>

#include "daemon/exec/exec_internal.h"

/* What an operation waits for, for people. */

struct exec_wait exec_comm_wait(const struct exec_comm *comm)
{
    struct exec_wait wait = {.waiting = EXEC_WAITING_NOT};
    for (uint32_t i = 0; i <= EXEC_AGREEMENT_LANE; i++) {
        const struct exec_lane *lane = &comm->lanes[i];
        const struct coll_transfer *receive = lane_next_receive(lane);
        if (receive != NULL) {
            wait.waiting = i == EXEC_AGREEMENT_LANE ? EXEC_WAITING_WORD : EXEC_WAITING_DATA;
            wait.node = receive->node;
            wait.round = lane->round;
            wait.slice = lane->slice;
            return wait;
        }
        if (lane->unacknowledged > 0) {
            bool other = wait.waiting == EXEC_WAITING_SENT && wait.node != lane->unacknowledged_node;
            wait.waiting = EXEC_WAITING_SENT;
            wait.node = other ? EXEC_NODES_SEVERAL : lane->unacknowledged_node;
        }
    }
    return wait;
}

void comm_wait_text(const struct exec_comm *comm, const struct exec_wait *wait, char *text, size_t size)
{
    bool several = wait->node == EXEC_NODES_SEVERAL;
    const char *node = several ? "" : comm->options.node_names[wait->node];
    switch (wait->waiting) {
    case EXEC_WAITING_NOT:
        (void)snprintf(text, size, "at work");
        break;
    case EXEC_WAITING_DATA:
        (void)snprintf(text, size, "round %u of slice %llu: waiting for data from node %s", wait->round,
                       (unsigned long long)wait->slice, node);
        break;
    case EXEC_WAITING_SENT:
        (void)snprintf(text, size, "what was sent to %s%s is not acknowledged yet",
                       several ? "several nodes" : "node ", node);
        break;
    case EXEC_WAITING_WORD:
        (void)snprintf(text, size, "waiting for word of node %s, or of those behind it", node);
        break;
    }
}

void exec_comm_describe_wait(const struct exec_comm *comm, char *text, size_t size)
{
    const struct exec_op *op = comm->first_op;
    text[0] = '\0';
    if (op == NULL || device_describe(comm, op, text, size)) {
        return;
    }
    if (!op->begun) {
        spread_describe_start(comm, op, text, size);
        return;
    }
    struct exec_wait wait = exec_comm_wait(comm);
    if (wait.waiting == EXEC_WAITING_NOT) {
        spread_describe(comm, op, text, size);
        return;
    }
    int length =
        op->spread != NULL && wait.waiting != EXEC_WAITING_WORD ? snprintf(text, size, "rail 0: ") : 0;
    if (length >= 0 && (size_t)length < size) {
        comm_wait_text(comm, &wait, text + length, size - (size_t)length);
    }
}
