#include <stdlib.h>
#include <string.h>

#include "daemon/exec/exec_internal.h"

enum status exec_new(struct net *net, exec_wake_function *wake, void *wake_context, struct exec **out,
                     struct error *error)
{
    struct exec *exec = calloc(1, sizeof *exec);
    if (exec == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the engine");
    }
    exec->net = net;
    exec->wake = wake;
    exec->wake_context = wake_context;
    exec->poll_ns = UINT64_MAX;
    receive_register(exec);
    message_streams_register(exec);
    *out = exec;
    return STATUS_OK;
}

void exec_free(struct exec *exec)
{
    if (exec == NULL) {
        return;
    }
    static const struct net_stream_handler nobody;
    net_set_stream_handler(exec->net, NET_STREAM_DATA, &nobody);
    while (exec->parked != NULL) {
        struct exec_incoming *incoming = exec->parked;
        exec->parked = incoming->next;
        free(incoming->encoded);
        free(incoming);
    }
    message_streams_free(exec);
    exec_free_groups(exec);
    free(exec->parked_counts);
    free(exec);
}

void exec_wake(struct exec *exec)
{
    exec->wake(exec->wake_context);
}

void exec_peer_violates(struct exec *exec, uint32_t peer, const char *what)
{
    struct error cause;
    error_set(&cause, STATUS_PROTOCOL, "it sent %s", what);
    net_disconnect(exec->net, peer, &cause);
}

bool exec_may_park(struct exec *exec, uint32_t peer)
{
    if (peer >= exec->parked_counts_capacity) {
        uint32_t capacity = peer + peer / 2 + 8; /* peers are fewer than NET_PEERS_MAX */
        uint32_t *counts = realloc(exec->parked_counts, capacity * sizeof *counts);
        if (counts == NULL) {
            return false;
        }
        memset(counts + exec->parked_counts_capacity, 0,
               (capacity - exec->parked_counts_capacity) * sizeof *counts);
        exec->parked_counts = counts;
        exec->parked_counts_capacity = capacity;
    }
    return exec->parked_counts[peer] < EXEC_PARKED_STREAMS_MAX;
}

void exec_park(struct exec *exec, uint32_t peer)
{
    exec->parked_counts[peer]++;
}

void exec_unpark(struct exec *exec, uint32_t peer)
{
    exec->parked_counts[peer]--;
}

void exec_set_gpus(struct exec *exec, struct dev_gpus *gpus)
{
    exec->gpus = gpus;
    exec_find_cliques(exec);
}

/* Nobody tells when a GPU is done: it is looked at, at once for a while, then less and less often. */
static bool exec_polls(struct exec *exec, uint64_t now_ns)
{
    exec->poll_ns = UINT64_MAX;
    if (!exec->waits_for_devices) {
        exec->polling_since_ns = 0;
        return false;
    }
    if (exec->polling_since_ns == 0 || exec->devices_advanced) {
        exec->polling_since_ns = now_ns;
    }
    uint64_t waited_ns = now_ns - exec->polling_since_ns;
    if (waited_ns < EXEC_POLL_AT_ONCE_NS) {
        return true;
    }
    uint64_t pause_ns = waited_ns / EXEC_POLL_SHARE;
    exec->poll_ns = now_ns + (pause_ns < EXEC_POLL_MAX_NS ? pause_ns : EXEC_POLL_MAX_NS);
    return false;
}

bool exec_run(struct exec *exec, uint64_t now_ns)
{
    bool more = false;
    struct exec_comm *comm, *next;
    exec->now_ns = now_ns;
    exec->waits_for_devices = false;
    exec->devices_advanced = false;
    HASH_ITER (hh, exec->comms, comm, next) {
        more |= exec_comm_step(comm, now_ns);
    }
    bool polls = exec_polls(exec, now_ns);
    return more || polls;
}

uint64_t exec_next_deadline_ns(const struct exec *exec)
{
    uint64_t earliest_ns = UINT64_MAX;
    for (const struct exec_incoming *incoming = exec->parked; incoming != NULL; incoming = incoming->next) {
        earliest_ns = incoming->expires_ns < earliest_ns ? incoming->expires_ns : earliest_ns;
    }
    uint64_t messages_ns = message_streams_deadline_ns(exec);
    earliest_ns = exec->poll_ns < earliest_ns ? exec->poll_ns : earliest_ns;
    return messages_ns < earliest_ns ? messages_ns : earliest_ns;
}

void exec_tick(struct exec *exec, uint64_t now_ns)
{
    exec->now_ns = now_ns;
    receive_expire(exec, now_ns);
    message_streams_expire(exec, now_ns);
    if (now_ns >= exec->poll_ns) {
        exec_wake(exec);
    }
}
