#include <time.h>

#include "daemon/base/time.h"
#include "daemon/gpu/groups_internal.h"

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

/* Goes on with the group's job, or looks for errors. Without the lock. */
static enum status advance(struct gpu_group *group, enum group_job job, bool *busy, struct error *error)
{
    bool begins = job != GROUP_JOB_NONE && !group->begun;
    enum status status = STATUS_OK;
    *busy = false;
    if (begins) {
        group->begun = true;
        status = job == GROUP_JOB_FORM
                     ? nccl_ranks_form(&group->ranks, error)
                     : nccl_ranks_call(&group->ranks, &group->transfers, group->streams, error);
    }
    for (int look = 0; status == STATUS_OK && (look == 0 || (*busy && job == GROUP_JOB_CALL)); look++) {
        status = nccl_ranks_poll(&group->ranks, busy, error);
        if (look == LOOKS_AT_ONCE) {
            break;
        }
    }
    return status;
}

/* With the lock, which it releases meanwhile. Returns the pause until the group needs another turn; 0: it
 * needs none. */
static uint64_t turn(struct gpu_groups *groups, struct gpu_group *group)
{
    enum group_job job = group->job;
    struct error error = {.status = STATUS_OK};
    bool busy;
    if (group->ending || group->has_failed || (job == GROUP_JOB_NONE && group->watchers == 0)) {
        return 0;
    }
    group->inside = true;
    pthread_mutex_unlock(&groups->lock);
    enum status status = advance(group, job, &busy, &error);
    pthread_mutex_lock(&groups->lock);
    group->inside = false;
    if (status != STATUS_OK && !group->has_failed) {
        group->has_failed = true;
        group->failure = error;
    } else if (!busy && job != GROUP_JOB_NONE) {
        group->job = GROUP_JOB_NONE;
    }
    pthread_cond_broadcast(&groups->changed);
    if (status != STATUS_OK) {
        return 0;
    }
    return busy && job == GROUP_JOB_FORM ? PAUSE_FORM_NS : busy ? PAUSE_CALL_NS : PAUSE_WATCH_NS;
}

static bool has_job(const struct gpu_groups *groups)
{
    for (const struct gpu_group *group = groups->all; group != NULL; group = group->next) {
        if (group->job != GROUP_JOB_NONE && !group->begun && !group->ending && !group->has_failed) {
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
