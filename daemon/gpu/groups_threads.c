#include <time.h>

#include <utlist.h>

#include "daemon/base/time.h"
#include "daemon/gpu/groups_internal.h"
#include "daemon/gpu/registrations.h"
#include "daemon/gpu/windows.h"

/*
 * The threads that call NCCL. One makes all calls that form groups and begin transfers: NCCL wants one thread
 * for all GPUs. One more thread for each group that ends, because that blocks until the GPUs are done; with
 * one thread for all, a group that hangs would hold up the next.
 */

/* How long NCCL's thread pauses between questions to NCCL, which sends no notification. */
#define PAUSE_CALL_NS UINT64_C(20000)
#define PAUSE_FORM_NS UINT64_C(500000)
#define PAUSE_WATCH_NS UINT64_C(1000000)
#define LOOKS_AT_ONCE 64 /* without a pause, after a call */

void gpu_groups_wait(struct gpu_groups *groups, pthread_cond_t *condition, uint64_t limit_ns)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t end_ns = (uint64_t)until.tv_nsec + limit_ns;
    until.tv_sec += (time_t)(end_ns / TIME_S);
    until.tv_nsec = (long)(end_ns % TIME_S);
    (void)pthread_cond_timedwait(condition, &groups->lock, &until);
}

/* What NCCL's thread does with a group in one turn. */
struct task {
    enum group_job job;
    struct gpu_group_job *posted; /* a CALL of this one; null: the group's own job */
    bool sweeps;                  /* first deregisters memory */
    bool swept;                   /* out: that is done */
    bool held_back;               /* out: the call, or the rest of the sweep, has to wait */
};

static enum status begin_call(struct gpu_group *group, struct task *task, bool *begun, struct error *error)
{
    struct gpu_group_job *posted = task->posted;
    struct gpu_transfers *transfers = posted != NULL ? &posted->transfers : &group->transfers;
    const cuda_stream *streams = posted != NULL ? posted->streams : group->streams;
    enum status status =
        nccl_registrations_prepare(&group->ranks, transfers, streams, &task->held_back, error);
    *begun = status == STATUS_OK && !task->held_back;
    return *begun ? nccl_ranks_call(&group->ranks, transfers, streams, error) : status;
}

/* Goes on with the task, or looks for errors. Without the lock. */
static enum status advance(struct gpu_group *group, struct task *task, bool *busy, struct error *error)
{
    struct gpu_group_job *posted = task->posted;
    bool *begun = posted != NULL ? &posted->begun : &group->begun;
    bool begins = task->job != GROUP_JOB_NONE && !*begun;
    enum status status = STATUS_OK;
    *busy = false;
    if (task->sweeps) {
        task->swept = nccl_registrations_sweep(&group->ranks);
        task->held_back = !task->swept;
    }
    if (begins && task->job == GROUP_JOB_FORM) {
        *begun = true;
        status = nccl_ranks_form(&group->ranks, error);
    } else if (begins) {
        status = begin_call(group, task, begun, error);
    }
    for (int look = 0; status == STATUS_OK && (look == 0 || (*busy && task->job == GROUP_JOB_CALL)); look++) {
        status = nccl_ranks_poll(&group->ranks, busy, error);
        if (look == LOOKS_AT_ONCE) {
            break;
        }
    }
    if (status == STATUS_OK && task->job == GROUP_JOB_FORM && !*busy) {
        status = nccl_windows_try(&group->ranks, busy, error);
    }
    if (status == STATUS_OK && task->job == GROUP_JOB_CALL && !*busy && !task->held_back) {
        nccl_registrations_called(&group->ranks, posted != NULL ? posted->streams : group->streams);
    }
    *busy |= task->held_back;
    return status;
}

/* Whether a call of another group on one of these GPUs is not over: NCCL's launches on a GPU must not race.
 */
static bool others_call(const struct gpu_group *group)
{
    for (const struct gpu_group *other = group->owner->all; other != NULL; other = other->next) {
        bool calls = other->current != NULL || (other->job == GROUP_JOB_CALL && other->begun);
        if (other != group && !other->ending && !other->has_failed && calls &&
            gpu_groups_share_a_gpu(group, other)) {
            return true;
        }
    }
    return false;
}

/* The task of this turn: a posted job that has begun goes first, then the group's own, then the next one. */
static struct task next_task(struct gpu_group *group, bool *waits)
{
    struct task task = {.job = group->job};
    bool begins = group->job == GROUP_JOB_CALL && !group->begun;
    *waits = false;
    if (group->current == NULL && (begins || (group->job == GROUP_JOB_NONE && group->posted != NULL))) {
        *waits = others_call(group);
    }
    if (*waits) {
        task.job = GROUP_JOB_NONE;
    } else if (group->current == NULL && group->job == GROUP_JOB_NONE && group->posted != NULL) {
        group->current = group->posted;
        LL_DELETE(group->posted, group->current);
    }
    if (group->current != NULL) {
        task = (struct task){.job = GROUP_JOB_CALL, .posted = group->current};
    }
    bool begun = task.posted != NULL ? task.posted->begun : group->begun;
    task.sweeps = group->sweeps && (task.job == GROUP_JOB_NONE || (task.job == GROUP_JOB_CALL && !begun));
    group->sweeps = group->sweeps && !task.sweeps;
    return task;
}

static void task_done(struct gpu_group *group, const struct task *task)
{
    if (task->posted != NULL) {
        task->posted->done = true;
        group->current = NULL;
    } else {
        group->job = GROUP_JOB_NONE;
    }
}

/* With the lock, which it releases meanwhile. Returns the pause until the group needs another turn; 0: it
 * needs none. */
static uint64_t turn(struct gpu_groups *groups, struct gpu_group *group)
{
    struct error error = {.status = STATUS_OK};
    bool busy, waits;
    if (group->ending || group->has_failed ||
        (group->job == GROUP_JOB_NONE && group->current == NULL && group->posted == NULL &&
         group->watchers == 0 && !group->sweeps)) {
        return 0;
    }
    struct task task = next_task(group, &waits);
    group->inside = true;
    pthread_mutex_unlock(&groups->lock);
    enum status status = advance(group, &task, &busy, &error);
    pthread_mutex_lock(&groups->lock);
    group->inside = false;
    group->held_back = task.held_back;
    group->sweeps |= task.sweeps && !task.swept;
    if (status != STATUS_OK && !group->has_failed) {
        group->has_failed = true;
        group->failure = error;
    } else if (!busy && task.job != GROUP_JOB_NONE) {
        task_done(group, &task);
    }
    pthread_cond_broadcast(&groups->changed);
    if (status != STATUS_OK) {
        return 0;
    }
    return busy && task.job == GROUP_JOB_FORM ? PAUSE_FORM_NS
           : busy || waits                    ? PAUSE_CALL_NS
                                              : PAUSE_WATCH_NS;
}

static bool has_job(const struct gpu_groups *groups)
{
    for (const struct gpu_group *group = groups->all; group != NULL; group = group->next) {
        bool own = group->job != GROUP_JOB_NONE && !group->begun;
        bool posted = group->posted != NULL && group->job == GROUP_JOB_NONE;
        bool asks = own || posted || group->sweeps;
        if (asks && group->current == NULL && !group->held_back && !group->ending && !group->has_failed &&
            !others_call(group)) {
            return true;
        }
    }
    return false;
}

void *gpu_groups_serve(void *context)
{
    struct gpu_groups *groups = context;
    pthread_mutex_lock(&groups->lock);
    while (!groups->stops) {
        uint64_t pause_ns = 0;
        for (struct gpu_group *group = groups->all; group != NULL; group = group->next) {
            uint64_t own_ns = turn(groups, group);
            pause_ns = own_ns != 0 && (pause_ns == 0 || own_ns < pause_ns) ? own_ns : pause_ns;
        }
        if (groups->stops || has_job(groups)) {
            continue;
        }
        if (pause_ns == 0) {
            (void)pthread_cond_wait(&groups->work, &groups->lock);
        } else {
            gpu_groups_wait(groups, &groups->work, pause_ns);
        }
    }
    pthread_mutex_unlock(&groups->lock);
    return NULL;
}

void *gpu_group_end_now(void *context)
{
    struct gpu_group *group = context;
    struct gpu_groups *groups = group->owner;
    pthread_mutex_lock(&groups->lock);
    while (group->inside) { /* two threads must not use one communicator */
        (void)pthread_cond_wait(&groups->changed, &groups->lock);
    }
    pthread_mutex_unlock(&groups->lock);
    nccl_ranks_abort(&group->ranks);
    pthread_mutex_lock(&groups->lock);
    group->ended = true;
    pthread_cond_broadcast(&groups->changed);
    pthread_mutex_unlock(&groups->lock);
    return NULL;
}
