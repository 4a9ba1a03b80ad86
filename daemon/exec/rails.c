#include "daemon/exec/rails.h"

#include <stdlib.h>

#include "daemon/exec/rails_internal.h"

/* What a lost link means for operations, and the work of a rail's thread. */

/* --- Links --- */

void exec_set_links(struct exec *exec, const struct exec_links *links)
{
    exec->links = *links;
}

void exec_link_up(struct exec *exec)
{
    exec_wake(exec);
}

/* Which node of the communicator is that peer; node_count if none is. */
static uint32_t node_of_peer(const struct exec_comm *comm, uint32_t peer)
{
    uint32_t node = 0;
    while (node < comm->map->ranks.node_count &&
           (node == comm->map->ranks.node_index || comm->map->peers[node] != peer)) {
        node++;
    }
    return node;
}

/*
 * Communicators that have slices on the lost connection cannot continue, as its data in flight is lost. The
 * others lose nothing here. If the other node lost something of theirs, it fails the communicator itself.
 */
void exec_link_lost(struct exec *exec, uint32_t rail, uint32_t peer, const struct error *cause,
                    uint64_t now_ns)
{
    struct exec_comm *comm, *next;
    HASH_ITER (hh, exec->comms, comm, next) {
        const struct exec_op *op = comm->first_op;
        uint32_t node = node_of_peer(comm, peer);
        if (node == comm->map->ranks.node_count || op == NULL || !spread_needs(op, rail)) {
            continue;
        }
        struct error error;
        error_set(&error, STATUS_NODE_LOST, "op %llu %s on \"%s\": node %s: rail %u to node %s is lost: %s",
                  (unsigned long long)op->call.seq, op_kind_text(op->call.terms.kind), comm->map->name,
                  comm->map->node_names[comm->map->ranks.node_index], rail, comm->map->node_names[node],
                  cause->text);
        exec_comm_fail(comm, &error, now_ns);
    }
}

/* Communicators without an operation continue over the next connection, with new streams. */
void exec_link_streams_lost(struct exec *main_exec, uint32_t rail, uint32_t peer)
{
    const struct exec *exec = main_exec->rails->execs[rail];
    struct exec_comm *comm, *next;
    HASH_ITER (hh, exec->comms, comm, next) {
        uint32_t node = node_of_peer(comm, peer);
        for (uint32_t i = 0; i < EXEC_LANES_MAX && node < comm->map->ranks.node_count; i++) {
            for (uint32_t bulk = 0; bulk < 2 && comm->first_op == NULL; bulk++) {
                struct net_stream **stream =
                    &comm->lanes[i].streams[node + bulk * comm->map->ranks.node_count];
                if (*stream != NULL) {
                    net_stream_reset(*stream);
                }
                *stream = NULL;
            }
        }
    }
}

/* --- All rails --- */

enum status rails_new(const struct rails_options *options, struct rails **out, struct error *error)
{
    struct rails *rails = calloc(1, sizeof *rails);
    if (rails == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for rails");
    }
    rails->count = options->count;
    rails->network_count = options->network_count;
    rails->mailboxes = options->mailboxes;
    for (uint32_t rail = 0; rail < rails->count; rail++) {
        rails->execs[rail] = options->execs[rail];
    }
    rails->execs[0]->rails = rails;
    *out = rails;
    return STATUS_OK;
}

bool rails_rail_is_busy(const struct rails *rails, uint32_t rail)
{
    return rails->execs[rail]->comms != NULL;
}

uint64_t rails_rail_deadline_ns(const struct rails *rails, uint32_t rail)
{
    return exec_next_deadline_ns(rails->execs[rail]);
}

bool rails_run_rail(struct rails *rails, uint32_t rail, uint64_t now_ns)
{
    bool any = mailbox_run(rails_mailbox(rails, rail), now_ns);
    bool more = exec_run(rails->execs[rail], now_ns);
    rails_publish_waits(rails->execs[rail]);
    return any || more;
}

void rails_free(struct rails *rails, uint64_t now_ns)
{
    if (rails == NULL) {
        return;
    }
    for (bool any = true; any;) {
        any = false;
        for (uint32_t rail = 1; rail < rails->count; rail++) {
            any |= rails_run_rail(rails, rail, now_ns);
        }
        any |= mailbox_run(rails_mailbox(rails, 0), now_ns);
        any |= exec_run(rails->execs[0], now_ns);
    }
    rails->execs[0]->rails = NULL;
    free(rails);
}
