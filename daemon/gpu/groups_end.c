#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/base/thread.h"
#include "daemon/base/time.h"
#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/groups_internal.h"

/* How groups end: refused by NCCL, given up, spare, or left to their threads. On the main thread. */

#define LOOK_NS TIME_S /* between looks for groups that hang, while others end */

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

uint64_t gpu_group_leak_ns(const struct gpu_group *group)
{
    uint64_t from_ns = group->since_ns;
    for (uint32_t i = 0; i < group->ranks.count; i++) {
        const struct cuda_gpu *gpu = &group->owner->gpus->gpus[group->ranks.list[i]];
        if (gpu->waits > 0) {
            return TIME_NEVER;
        }
        from_ns = gpu->waits_end_ns > from_ns ? gpu->waits_end_ns : from_ns;
    }
    return from_ns + GPU_GROUP_END_NS;
}

/* Another group must end because of `first`, which does not end. It is leaked with that one, or after a
 * while. */
static void give_up_beside(struct gpu_group *group, const struct gpu_group *first, const struct error *cause,
                           uint64_t now_ns)
{
    uint64_t grace_ns = now_ns + GPU_GROUP_GRACE_NS - GPU_GROUP_END_NS;
    gpu_group_give_up(group, cause, now_ns);
    group->since_ns = first->leaked ? grace_ns : first->since_ns;
}

/* The GPUs of a leaked group are lost: tells the users of others there. */
static void give_up_on_failed(struct gpu_group *leaked, uint64_t now_ns)
{
    struct gpu_group *group;
    struct error cause;
    LL_FOREACH(leaked->owner->all, group)
    {
        for (uint32_t i = 0; i < group->ranks.count && group != leaked && !group->ending; i++) {
            if (gpu_devices_check(group->owner->gpus, group->ranks.list[i], &cause) != STATUS_OK) {
                give_up_beside(group, leaked, &cause, now_ns);
            }
        }
    }
}

/* Whether the group's work in the streams has made no progress for a while. */
static bool hangs(struct gpu_group *group, uint64_t now_ns)
{
    pthread_mutex_lock(&group->owner->lock);
    bool works = group->works > 0;
    uint64_t steps = group->steps;
    pthread_mutex_unlock(&group->owner->lock);
    if (!works || group->seen_ns == 0 || steps != group->seen_steps) {
        group->seen_ns = works ? now_ns : 0;
        group->seen_steps = steps;
        return false;
    }
    return now_ns - group->seen_ns >= GPU_GROUP_STUCK_NS;
}

/* Whether the group does not end, although nothing on its GPUs waits for a client. */
static bool is_held_up(const struct gpu_group *group, uint64_t now_ns)
{
    return group->ending && !group->leaked && now_ns - group->since_ns >= GPU_GROUP_ALONE_NS &&
           gpu_group_leak_ns(group) != TIME_NEVER && !gpu_group_has_ended(group);
}

void gpu_groups_look(struct gpu_groups *groups, uint64_t now_ns)
{
    struct gpu_group *first, *group;
    groups->hangs_ns = now_ns + LOOK_NS;
    LL_FOREACH(groups->all, group)
    {
        bool stands = !group->ending && hangs(group, now_ns);
        LL_FOREACH(groups->all, first)
        {
            if (!stands || group->ending || !is_held_up(first, now_ns) ||
                !gpu_groups_share_a_gpu(first, group)) {
                continue;
            }
            struct error cause;
            error_set(&cause, STATUS_DEVICE,
                      "GPU %u, NCCL among %u GPUs: no progress for %llu s, and another communicator of NCCL "
                      "on its GPUs cannot end%s%s",
                      group->ranks.list[0], group->ranks.count, GPU_GROUP_STUCK_NS / TIME_S,
                      first->has_failed ? ": " : "", first->has_failed ? first->failure.text : "");
            give_up_beside(group, first, &cause, now_ns);
        }
    }
}

void gpu_group_leak(struct gpu_group *group, uint64_t now_ns)
{
    struct gpu_groups *groups = group->owner;
    const struct nccl_ranks *ranks = &group->ranks;
    bool explained = false; /* a GPU that has failed holds it up */
    group->leaked = true;
    groups->leaked++;
    pthread_mutex_lock(&groups->lock);
    groups->stuck |= group->inside;
    bool works = group->works > 0;
    pthread_mutex_unlock(&groups->lock);
    for (uint32_t i = 0; i < ranks->count; i++) {
        explained |= gpu_devices_check(groups->gpus, ranks->list[i], NULL) != STATUS_OK;
    }
    if (groups->stuck) {
        log_error("a call of NCCL does not return; commd does not use NCCL again until commd restarts");
    }
    for (uint32_t i = 0; i < ranks->count && group->formed && (works || !explained); i++) {
        cuda_mark_failed(groups->gpus, ranks->list[i], "NCCL did not release the GPU within %llu s%s%s",
                         GPU_GROUP_END_NS / TIME_S, group->has_failed ? ", after: " : "",
                         group->has_failed ? group->failure.text : "");
    }
    give_up_on_failed(group, now_ns);
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
    groups->hangs_ns = now_ns;
    if (thread_start(&thread, NULL, gpu_group_end_now, group) == 0) {
        (void)pthread_detach(thread);
    } else {
        gpu_group_leak(group, now_ns);
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
