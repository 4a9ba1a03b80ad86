#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/base/thread.h"
#include "daemon/base/time.h"
#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/groups_internal.h"

/* How groups end: refused by NCCL, given up, spare, or left to their threads. On the main thread. */

void gpu_group_free(struct gpu_group *group)
{
    gpu_transfers_release(&group->transfers);
    free(group);
}

static void unlink_group(struct gpu_group *group)
{
    struct gpu_groups *groups = group->owner;
    pthread_mutex_lock(&groups->lock);
    LL_DELETE(groups->all, group);
    pthread_mutex_unlock(&groups->lock);
}

void gpu_group_leak(struct gpu_group *group)
{
    struct gpu_groups *groups = group->owner;
    const struct nccl_ranks *ranks = &group->ranks;
    group->leaked = true;
    groups->leaked++;
    pthread_mutex_lock(&groups->lock);
    groups->stuck |= group->inside;
    pthread_mutex_unlock(&groups->lock);
    if (groups->stuck) {
        log_error("a call of NCCL does not return; commd does not use NCCL again until commd restarts");
    }
    for (uint32_t i = 0; i < ranks->count && group->formed; i++) {
        cuda_mark_failed(groups->gpus, ranks->list[i], "NCCL did not release the GPU within %llu s%s%s",
                         GPU_GROUP_END_NS / TIME_S, group->has_failed ? ", after: " : "",
                         group->has_failed ? group->failure.text : "");
    }
}

void gpu_group_begin_end(struct gpu_group *group, uint64_t now_ns)
{
    struct gpu_groups *groups = group->owner;
    pthread_t thread;
    if (group->ending) {
        return;
    }
    pthread_mutex_lock(&groups->lock);
    group->ending = true;
    group->since_ns = now_ns;
    pthread_mutex_unlock(&groups->lock);
    if (thread_start(&thread, NULL, gpu_group_end_now, group) == 0) {
        (void)pthread_detach(thread);
    } else {
        gpu_group_leak(group);
    }
}

bool gpu_group_has_ended(const struct gpu_group *group)
{
    pthread_mutex_lock(&group->owner->lock);
    bool ended = group->ended;
    pthread_mutex_unlock(&group->owner->lock);
    return ended;
}

void gpu_groups_tidy(struct gpu_groups *groups, uint32_t spare_most, uint64_t now_ns)
{
    struct gpu_group *group, *next;
    uint32_t spare = 0;
    LL_FOREACH_SAFE(groups->all, group, next)
    {
        if (group->references > 0 || group->leaked) {
            continue;
        }
        if (group->ending && gpu_group_has_ended(group)) {
            if (!group->refused || now_ns >= group->retry_ns) {
                unlink_group(group);
                gpu_group_free(group);
            }
        } else if (!group->ending && (group->discarded || ++spare > spare_most)) {
            gpu_group_begin_end(group, now_ns);
        }
    }
}

static void remember(struct gpu_groups *groups, const struct error *why)
{
    snprintf(groups->why, sizeof groups->why, "%s", why->text);
}

void gpu_group_refuse(struct gpu_group *group, uint64_t now_ns)
{
    struct gpu_groups *groups = group->owner;
    group->refused = true;
    group->retry_ns = now_ns + GPU_GROUP_RETRY_NS;
    groups->refused++;
    remember(groups, &group->failure);
    log_warning("%s; operations among these %u GPUs run without NCCL for %llu s", group->failure.text,
                group->ranks.count, GPU_GROUP_RETRY_NS / TIME_S);
    gpu_group_begin_end(group, now_ns);
}

void gpu_group_give_up(struct gpu_group *group, const struct error *cause, uint64_t now_ns)
{
    struct gpu_groups *groups = group->owner;
    if (group->ending) {
        return;
    }
    pthread_mutex_lock(&groups->lock);
    if (!group->has_failed) {
        group->has_failed = true;
        group->failure = *cause;
    }
    pthread_mutex_unlock(&groups->lock);
    group->given_up = true;
    groups->failed++;
    remember(groups, &group->failure);
    log_warning("%s; commd ends NCCL's communicator of %u GPUs", group->failure.text, group->ranks.count);
    gpu_group_begin_end(group, now_ns);
}
