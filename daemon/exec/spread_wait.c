#include <stdio.h>

#include "daemon/exec/rails_internal.h"

/*
 * What the other rails' parts of an operation wait for. A rail says so after each of its turns, in a word of
 * its part, and the home reads that when it is asked.
 */

#define WAIT_NODE_BITS 14
#define WAIT_ROUND_BITS 16
#define WAIT_SLICE_BITS 32
_Static_assert(COLL_NODES_MAX <= 1 << WAIT_NODE_BITS, "nodes fit");

/* One word, so that the home never reads half of it. */
static uint64_t wait_pack(const struct exec_wait *wait)
{
    uint64_t round = wait->round > UINT16_MAX ? UINT16_MAX : wait->round;
    bool several = wait->node == EXEC_NODES_SEVERAL;
    uint64_t kind = wait->waiting == EXEC_WAITING_SENT && several ? EXEC_WAITING_WORD : wait->waiting;
    uint64_t node = several ? 0 : wait->node;
    return ((kind << WAIT_NODE_BITS | node) << WAIT_ROUND_BITS | round) << WAIT_SLICE_BITS |
           (uint32_t)wait->slice;
}

/* Agreements are the home's: that kind stands for sends to several nodes. */
static struct exec_wait wait_unpack(uint64_t word)
{
    struct exec_wait wait = {.slice = (uint32_t)word};
    word >>= WAIT_SLICE_BITS;
    wait.round = (uint16_t)word;
    word >>= WAIT_ROUND_BITS;
    wait.node = (uint32_t)(word & ((1u << WAIT_NODE_BITS) - 1));
    wait.waiting = (enum exec_waiting)(word >> WAIT_NODE_BITS);
    if (wait.waiting == EXEC_WAITING_WORD) {
        wait.waiting = EXEC_WAITING_SENT;
        wait.node = EXEC_NODES_SEVERAL;
    }
    return wait;
}

/* The part of an operation is there until the home is told that it is over, which is after this. */
void spread_publish_waits(const struct exec *exec)
{
    for (const struct exec_comm *comm = exec->comms; comm != NULL; comm = comm->hh.next) {
        const struct exec_op *op = comm->first_op;
        if (op == NULL || comm->options.node_count == 1) {
            continue;
        }
        struct spread_part *part = op->call.context;
        struct exec_wait wait = exec_comm_wait(comm);
        atomic_store_explicit(&part->wait, wait_pack(&wait), memory_order_relaxed);
    }
}

void spread_describe_start(const struct exec_comm *comm, const struct exec_op *op, char *text, size_t size)
{
    uint32_t node;
    if (comm->shared == NULL) {
        return;
    }
    uint32_t rail = spread_missing_rail(comm, spread_rails(comm->shared, op), &node);
    if (rail > 0) {
        const struct rails_peer *peer = comm->shared->rails->peers[comm->peers[node]];
        const char *why = peer->links[rail].why.text;
        (void)snprintf(text, size, "rail %u has no connection to node %s (UDP port of its address + %u)%s%s",
                       rail, comm->options.node_names[node], rail, why[0] == '\0' ? "" : ": ", why);
    }
}

/* The first rail that says whom it waits for; else the first that is not done. */
void spread_describe(const struct exec_comm *comm, const struct exec_op *op, char *text, size_t size)
{
    const struct exec_spread *spread = op->spread;
    uint32_t rail = 0;
    struct exec_wait wait = {.waiting = EXEC_WAITING_NOT};
    if (spread == NULL || spread->parts_left == 0) {
        return;
    }
    if (comm->options.node_count == 1) {
        (void)snprintf(text, size, "%u other threads have not done their slices", spread->parts_left);
        return;
    }
    for (uint32_t i = 0; i < spread->part_count && wait.waiting == EXEC_WAITING_NOT; i++) {
        const struct spread_part *part = &spread->parts[i];
        if (!part->over) {
            wait = wait_unpack(atomic_load_explicit(&part->wait, memory_order_relaxed));
            rail = rail == 0 || wait.waiting != EXEC_WAITING_NOT ? part->rail : rail;
        }
    }
    int length = snprintf(text, size, "rail %u: ", rail);
    if (length >= 0 && (size_t)length < size) {
        comm_wait_text(comm, &wait, text + length, size - (size_t)length);
    }
}
