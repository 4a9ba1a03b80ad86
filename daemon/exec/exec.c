#include <stddef.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/time.h"
#include "daemon/exec/exec_device.h"
#include "daemon/exec/exec_internal.h"
#include "daemon/exec/gpu_release.h"
#include "daemon/exec/tuner.h"

enum status exec_new(struct net *net, struct exec **out, struct error *error)
{
    struct exec *exec = calloc(1, sizeof *exec);
    if (exec == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the engine");
    }
    exec->net = net;
    exec->pacer.next_ns = TIME_NEVER;
    exec->lend_after_bytes = EXEC_LEND_AFTER_BYTES;
    stream_readers_register(&exec->readers, &data_reader_kind, net, exec, &exec->now_ns);
    *out = exec;
    return STATUS_OK;
}

void exec_free(struct exec *exec)
{
    if (exec == NULL) {
        return;
    }
    exec_stop_tuning(exec);
    gpu_releases_end(exec);
    stream_readers_free(&exec->readers);
    exec_free_spares(exec);
    free(exec);
}

void exec_wake(struct exec *exec)
{
    rounds_wake(&exec->rounds);
}

void exec_set_gpus(struct exec *exec, struct gpu_devices *gpus)
{
    exec->gpus = gpus;
    exec_find_cliques(exec);
}

void exec_set_gpu_engine(struct exec *exec, enum exec_gpu_engine engine)
{
    exec->gpu_engine = engine;
}

enum status exec_set_tuning(struct exec *exec, struct gpu_tuning *table, struct error *error)
{
    return tuner_new(exec, table, &exec->tuner, error);
}

void exec_stop_tuning(struct exec *exec)
{
    tuner_free(exec->tuner);
    exec->tuner = NULL;
}

uint32_t exec_tuning_count(const struct exec *exec)
{
    return exec->tuner != NULL ? tuner_count(exec->tuner) : 0;
}

void exec_set_clock(struct exec *exec, uint64_t (*clock)(void))
{
    exec->spending.clock = clock;
}

/* Reads the clock only if other communicators wait for their turn. */
static uint64_t run_clock(const struct exec *exec)
{
    return exec->rounds.unstepped > 0 && exec->spending.clock != NULL ? exec->spending.clock() : 0;
}

/* The communicator whose turn it is; null: the round is over. */
static struct exec_comm *next_comm(struct exec *exec)
{
    struct rounds_entry *turn = rounds_next(&exec->rounds);
    return turn == NULL ? NULL : (struct exec_comm *)((char *)turn - offsetof(struct exec_comm, turn));
}

/*
 * Gives the communicator its turn. If nobody else waits, a turn takes several small operations, so that their
 * data leave in one datagram. Returns whether it can do more at once. May free it.
 */
static bool step_comm(struct exec *exec, struct exec_comm *comm, uint64_t now_ns)
{
    bool more;
    uint32_t left = exec->rounds.unstepped == 0 && comm->map->ranks.node_count > 1 ? EXEC_SMALL_OPS_MAX : 1;
    do {
        more = exec_comm_step(comm, now_ns);
    } while (more && --left > 0 && comm->turn_left_bytes >= EXEC_TURN_BYTES - EXEC_SMALL_OP_BYTES);
    return more;
}

static void run_comms(struct exec *exec, uint64_t now_ns)
{
    exec->now_ns = now_ns;
    if (rounds_begin(&exec->rounds)) {
        pacer_begin(&exec->pacer);
    }
    uint32_t steps = EXEC_RUN_STEPS, looks = EXEC_RUN_LOOKS;
    uint64_t begin_ns = exec->rounds.unstepped > 1 ? run_clock(exec) : 0;
    struct exec_comm *comm;
    while (steps > 0 && looks > 0 && (comm = next_comm(exec)) != NULL) {
        looks--;
        if (exec_comm_idle(comm)) {
            exec_comm_rest(comm);
            continue;
        }
        spending_turn(&exec->spending, comm->map->account);
        exec_serve(exec, comm->map->account, now_ns);
        if (step_comm(exec, comm, now_ns)) { /* may free it */
            exec->rounds.more = true;
            steps--;
        }
        if (run_clock(exec) > begin_ns + EXEC_RUN_NS) {
            break;
        }
    }
    spending_turn(&exec->spending, NULL);
    bool lent = loans_run(exec);
    bool polls = exec->rounds.unstepped == 0 && pacer_end(&exec->pacer, now_ns);
    (void)rounds_end(&exec->rounds, lent || polls);
}

bool exec_run(struct exec *exec, uint64_t now_ns)
{
    run_comms(exec, now_ns);
    if (exec->tuner != NULL) {
        tuner_step(exec->tuner, now_ns); /* wakes the exec if it submits an operation */
    }
    return exec->rounds.woken;
}

bool exec_has_work(const struct exec *exec)
{
    return exec->rounds.woken;
}

bool exec_awaits_nodes(const struct exec *exec)
{
    return exec->between_nodes > 0;
}

void exec_set_cut(struct exec_comm *comm, uint32_t node, uint64_t now_ns)
{
    if (comm->cut_ns == 0 && !comm->failed) {
        comm->cut_ns = time_after(now_ns, STREAM_CUT_NS);
        comm->cut_node = node;
        DL_APPEND2(comm->exec->cut, comm, cut_prev, cut_next);
    }
}

void exec_forget_cut(struct exec_comm *comm)
{
    if (comm->cut_ns != 0) {
        comm->cut_ns = 0;
        DL_DELETE2(comm->exec->cut, comm, cut_prev, cut_next);
    }
}

static void fail_cut(struct exec *exec, uint64_t now_ns)
{
    struct exec_comm *comm;
    while ((comm = exec->cut) != NULL && comm->cut_ns <= now_ns) {
        struct error error;
        error_set(&error, STATUS_PROTOCOL,
                  "\"%s\": node %s reset a stream within a message, and gave no reason", comm->map->name,
                  comm->map->node_names[comm->cut_node]);
        exec_forget_cut(comm);
        exec_comm_fail(comm, &error, now_ns);
    }
}

uint64_t exec_next_deadline_ns(const struct exec *exec)
{
    uint64_t deadline_ns = time_min(exec->pacer.next_ns, stream_readers_deadline_ns(&exec->readers));
    if (exec->has_groups) {
        deadline_ns = time_min(deadline_ns, gpu_groups_deadline_ns(exec->gpus));
    }
    deadline_ns = time_min(deadline_ns, gpu_releases_deadline_ns(exec));
    if (exec->tuner != NULL) {
        deadline_ns = time_min(deadline_ns, tuner_deadline_ns(exec->tuner));
    }
    return exec->cut != NULL ? time_min(deadline_ns, exec->cut->cut_ns) : deadline_ns;
}

void exec_tick(struct exec *exec, uint64_t now_ns)
{
    exec->now_ns = now_ns;
    fail_cut(exec, now_ns);
    stream_readers_expire(&exec->readers, now_ns);
    if (exec->has_groups) {
        gpu_groups_tick(exec->gpus, now_ns);
    }
    if (now_ns >= gpu_releases_deadline_ns(exec)) {
        gpu_releases_tick(exec, now_ns);
    }
    if (now_ns >= exec->pacer.next_ns || (exec->tuner != NULL && now_ns >= tuner_deadline_ns(exec->tuner))) {
        exec_wake(exec);
    }
}
