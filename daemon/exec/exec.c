#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/time.h"
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
    stream_readers_register(exec);
    *out = exec;
    return STATUS_OK;
}

void exec_free(struct exec *exec)
{
    if (exec == NULL) {
        return;
    }
    stream_readers_free(exec);
    exec_free_groups(exec);
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

void exec_set_gpus(struct exec *exec, struct gpu_devices *gpus)
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
    exec->now_ns = now_ns;
    if (exec->unstepped == 0) {
        exec->round++;
        exec->unstepped = exec->busy.count;
        exec->more = false;
        exec->waits_for_devices = false;
        exec->devices_advanced = false;
    }
    uint32_t steps = EXEC_RUN_STEPS, looks = EXEC_RUN_LOOKS;
    while (exec->unstepped > 0 && steps > 0 && looks > 0) {
        struct exec_comm *comm = exec_comm_next(exec);
        looks--;
        if (exec_comm_idle(comm)) {
            exec_comm_rest(comm);
        } else if (exec_comm_step(comm, now_ns)) { /* may free it */
            exec->more = true;
            steps--;
        }
    }
    if (exec->unstepped > 0) {
        return true;
    }
    bool polls = exec_polls(exec, now_ns);
    return exec->more || polls;
}

uint64_t exec_next_deadline_ns(const struct exec *exec)
{
    return time_min(exec->poll_ns, stream_readers_deadline_ns(exec));
}

void exec_tick(struct exec *exec, uint64_t now_ns)
{
    exec->now_ns = now_ns;
    stream_readers_expire(exec, now_ns);
    if (now_ns >= exec->poll_ns) {
        exec_wake(exec);
    }
}
