#include "daemon/gpu/groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/base/thread.h"
#include "daemon/base/time.h"
#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/groups_internal.h"

bool gpu_group_is_off(const struct gpu_group *group)
{
    struct gpu_groups *groups = group->owner;
    pthread_mutex_lock(&groups->lock);
    bool off = group->ending ? group->ended : group->job != GROUP_JOB_CALL || group->has_failed;
    off = off && !group->inside;
    pthread_mutex_unlock(&groups->lock);
    return off || group->leaked;
}

/* --- Holding --- */

static struct gpu_group *group_of(const struct gpu_groups *groups, const uint32_t *list, uint32_t count)
{
    struct gpu_group *group;
    LL_FOREACH(groups->all, group)
    {
        if (!group->given_up && (!group->ending || group->refused) && group->ranks.count == count &&
            memcmp(group->ranks.list, list, count * sizeof *list) == 0) {
            return group;
        }
    }
    return NULL;
}

static enum status groups_start(struct gpu_groups *groups, struct error *error)
{
    if (!groups->has_thread) {
        groups->has_thread = thread_start(&groups->thread, NULL, gpu_groups_serve, groups) == 0;
    }
    return groups->has_thread ? STATUS_OK : error_set(error, STATUS_NO_MEMORY, "no thread for NCCL");
}

static enum status group_new(struct gpu_groups *groups, const uint32_t *list, uint32_t count, uint64_t now_ns,
                             struct gpu_group **out, struct error *error)
{
    char why[256];
    struct gpu_group *group = calloc(1, sizeof *group);
    if (group == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a group of GPUs");
    }
    group->owner = groups;
    group->since_ns = now_ns;
    group->job = GROUP_JOB_FORM;
    group->ranks.gpus = groups->gpus;
    group->ranks.count = count;
    group->ranks.ctas = groups->ctas;
    memcpy(group->ranks.list, list, count * sizeof *list);
    enum status status = STATUS_OK;
    if (!nccl_library_load(&group->ranks.nccl, why, sizeof why)) {
        status = error_set(error, STATUS_UNSUPPORTED, "%s", why);
    } else if (groups->stuck) {
        status = error_set(error, STATUS_UNSUPPORTED, "a call of NCCL does not return");
    }
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        status = gpu_devices_check(groups->gpus, list[i], error);
    }
    if (status == STATUS_OK) {
        status = gpu_transfers_init(&group->transfers, count, GPU_GROUP_TRANSFERS_MAX, error);
    }
    if (status == STATUS_OK) {
        status = groups_start(groups, error);
    }
    if (status != STATUS_OK) {
        gpu_group_free(group);
        return status;
    }
    pthread_mutex_lock(&groups->lock);
    LL_PREPEND(groups->all, group);
    pthread_cond_signal(&groups->work);
    pthread_mutex_unlock(&groups->lock);
    *out = group;
    return STATUS_OK;
}

static enum status groups_make_room(struct gpu_groups *groups, uint64_t now_ns, struct error *error)
{
    uint32_t count = 0;
    const struct gpu_group *group;
    gpu_groups_tidy(groups, GPU_GROUPS_SPARE_MAX, now_ns);
    LL_FOREACH(groups->all, group)
    {
        count += !group->leaked;
    }
    if (count < GPU_GROUPS_MAX) {
        return STATUS_OK;
    }
    gpu_groups_tidy(groups, 0, now_ns);
    return error_set(error, STATUS_LIMIT,
                     "there are %u NCCL communicators on the node, the most that commd has", GPU_GROUPS_MAX);
}

enum status gpu_group_hold(struct gpu_devices *gpus, const uint32_t *list, uint32_t count, uint64_t now_ns,
                           struct gpu_group **out, struct error *error)
{
    struct gpu_groups *groups = gpus->groups;
    struct gpu_group *group = group_of(groups, list, count);
    if (group != NULL && group->refused && now_ns < group->retry_ns) {
        return error_set(error, STATUS_UNSUPPORTED, "%s", group->failure.text);
    }
    if (group != NULL && group->refused) {
        group->given_up = true; /* a new one tries again */
        group = NULL;
    }
    enum status status = group != NULL ? STATUS_OK : groups_make_room(groups, now_ns, error);
    if (group == NULL && status == STATUS_OK) {
        status = group_new(groups, list, count, now_ns, &group, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    group->references++;
    group->discarded = false;
    *out = group;
    return STATUS_OK;
}

static bool has_all(const struct gpu_group *group, const uint32_t *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (gpu_group_index(group, list[i]) == UINT32_MAX) {
            return false;
        }
    }
    return true;
}

enum status gpu_group_hold_with(struct gpu_devices *gpus, const uint32_t *list, uint32_t count,
                                uint64_t now_ns, struct gpu_group **out, struct error *error)
{
    struct gpu_group *group;
    struct error why;
    LL_FOREACH(gpus->groups->all, group)
    {
        if (!group->ending && group->formed && has_all(group, list, count) &&
            gpu_group_poll(group, now_ns, &why) != GPU_GROUP_FAILED) {
            gpu_group_share(group);
            *out = group;
            return STATUS_OK;
        }
    }
    return gpu_group_hold(gpus, list, count, now_ns, out, error);
}

void gpu_group_share(struct gpu_group *group)
{
    group->references++;
    group->discarded = false;
}

uint32_t gpu_group_size(const struct gpu_group *group)
{
    return group->ranks.count;
}

uint32_t gpu_group_index(const struct gpu_group *group, uint32_t gpu)
{
    for (uint32_t i = 0; i < group->ranks.count; i++) {
        if (group->ranks.list[i] == gpu) {
            return i;
        }
    }
    return UINT32_MAX;
}

void gpu_group_release(struct gpu_group *group, uint64_t now_ns)
{
    if (group != NULL) {
        struct gpu_groups *groups = group->owner;
        group->references--;
        gpu_groups_tidy(groups, GPU_GROUPS_SPARE_MAX, now_ns);
    }
}

void gpu_group_discard(struct gpu_group *group)
{
    group->discarded = true;
}

uint64_t gpu_group_forming_ns(const struct gpu_group *group, uint64_t now_ns)
{
    return group->formed || group->ending ? 0 : now_ns - group->since_ns;
}

enum gpu_group_state gpu_group_poll(struct gpu_group *group, uint64_t now_ns, struct error *error)
{
    struct gpu_groups *groups = group->owner;
    pthread_mutex_lock(&groups->lock);
    bool failed = group->has_failed;
    enum group_job job = group->job;
    pthread_mutex_unlock(&groups->lock);
    if (failed) {
        if (!group->formed && !group->refused && !group->given_up) {
            gpu_group_refuse(group, now_ns);
        }
        (void)error_set(error, group->failure.status, "%s", group->failure.text);
        return group->formed ? GPU_GROUP_FAILED : GPU_GROUP_REFUSED;
    }
    if (job != GROUP_JOB_FORM && !group->formed) {
        group->formed = true;
        groups->formed++;
    }
    return job == GROUP_JOB_FORM   ? GPU_GROUP_FORMS
           : job == GROUP_JOB_CALL ? GPU_GROUP_CALLS
                                   : GPU_GROUP_READY;
}

/* --- Calls --- */

bool gpu_groups_share_a_gpu(const struct gpu_group *one, const struct gpu_group *other)
{
    for (uint32_t i = 0; i < one->ranks.count; i++) {
        for (uint32_t k = 0; k < other->ranks.count; k++) {
            if (one->ranks.list[i] == other->ranks.list[k]) {
                return true;
            }
        }
    }
    return false;
}

bool gpu_group_take(struct gpu_group *group, const void *user)
{
    const struct gpu_group *other;
    LL_FOREACH(group->owner->all, other)
    {
        if (other->user != NULL && other->user != user && gpu_groups_share_a_gpu(group, other)) {
            return false;
        }
    }
    group->user = user;
    return true;
}

void gpu_group_leave(struct gpu_group *group, const void *user)
{
    if (group->user == user) {
        group->user = NULL;
    }
}

void gpu_group_watch(struct gpu_group *group, bool on)
{
    pthread_mutex_lock(&group->owner->lock);
    group->watchers += on ? 1 : UINT32_MAX;
    pthread_mutex_unlock(&group->owner->lock);
}

void gpu_group_works(struct gpu_group *group, bool on)
{
    pthread_mutex_lock(&group->owner->lock);
    group->works += on ? 1 : UINT32_MAX;
    group->steps++;
    pthread_mutex_unlock(&group->owner->lock);
}

struct gpu_transfers *gpu_group_transfers(struct gpu_group *group)
{
    return &group->transfers;
}

void *gpu_group_scratch(const struct gpu_group *group, uint32_t index)
{
    return (void *)(uintptr_t)group->ranks.scratch[index];
}

void gpu_group_call(struct gpu_group *group, struct gpu_queue *const *queues)
{
    struct gpu_groups *groups = group->owner;
    for (uint32_t i = 0; i < group->ranks.count; i++) {
        group->streams[i] = gpu_queue_stream(queues[i]);
    }
    gpu_transfers_join(&group->transfers);
    pthread_mutex_lock(&groups->lock);
    groups->calls++;
    group->begun = false;
    group->job = GROUP_JOB_CALL;
    pthread_cond_signal(&groups->work);
    pthread_mutex_unlock(&groups->lock);
}

void gpu_group_post(struct gpu_group *group, struct gpu_group_job *job, struct gpu_queue *const *queues)
{
    struct gpu_groups *groups = group->owner;
    for (uint32_t i = 0; i < group->ranks.count; i++) {
        job->streams[i] = queues[i] != NULL ? gpu_queue_stream(queues[i]) : NULL;
    }
    gpu_transfers_join(&job->transfers);
    job->begun = job->done = false;
    pthread_mutex_lock(&groups->lock);
    groups->calls++;
    LL_APPEND(group->posted, job);
    pthread_cond_signal(&groups->work);
    pthread_mutex_unlock(&groups->lock);
}

enum gpu_group_state gpu_group_ask(struct gpu_group *group, struct gpu_group_job *job, struct error *error)
{
    struct gpu_groups *groups = group->owner;
    enum gpu_group_state state = GPU_GROUP_CALLS;
    pthread_mutex_lock(&groups->lock);
    if (job->done) {
        state = GPU_GROUP_READY;
    } else if ((group->has_failed || group->ending) && !(group->inside && group->current == job)) {
        state = GPU_GROUP_FAILED; /* NCCL's thread does not use it any more */
        (void)error_set(error, STATUS_DEVICE, "%s",
                        group->has_failed ? group->failure.text : "commd ends NCCL's communicator");
        if (group->current == job) {
            group->current = NULL;
        } else {
            LL_DELETE(group->posted, job);
        }
    }
    pthread_mutex_unlock(&groups->lock);
    return state;
}

uint32_t gpu_group_take_slot(struct gpu_group *group)
{
    uint32_t slot = 0;
    pthread_mutex_lock(&group->owner->lock);
    while (slot < GPU_GROUP_SLOTS && (group->slots >> slot & 1) != 0) {
        slot++;
    }
    if (slot < GPU_GROUP_SLOTS) {
        group->slots |= UINT32_C(1) << slot;
    }
    pthread_mutex_unlock(&group->owner->lock);
    return slot < GPU_GROUP_SLOTS ? slot : UINT32_MAX;
}

void gpu_group_give_slot(struct gpu_group *group, uint32_t slot)
{
    pthread_mutex_lock(&group->owner->lock);
    group->slots &= ~(UINT32_C(1) << slot);
    pthread_mutex_unlock(&group->owner->lock);
}

unsigned char *gpu_group_slot(const struct gpu_group *group, uint32_t slot, uint32_t index)
{
    return (unsigned char *)(uintptr_t)group->ranks.scratch[index] + GPU_GROUP_SCRATCH_BYTES +
           slot * GPU_GROUP_SLOT_BYTES;
}

bool gpu_group_has_failed(const struct gpu_group *group, struct error *error)
{
    struct gpu_groups *groups = group->owner;
    pthread_mutex_lock(&groups->lock);
    bool failed = group->has_failed;
    if (failed) {
        (void)error_set(error, group->failure.status, "%s", group->failure.text);
    }
    pthread_mutex_unlock(&groups->lock);
    return failed;
}

/* --- Time --- */

void gpu_groups_sweep(struct gpu_devices *gpus)
{
    struct gpu_groups *groups = gpus->groups;
    struct gpu_group *group;
    pthread_mutex_lock(&groups->lock);
    LL_FOREACH(groups->all, group)
    {
        group->sweeps = true;
    }
    pthread_cond_signal(&groups->work);
    pthread_mutex_unlock(&groups->lock);
    groups->look_ns = 0;
}

bool gpu_groups_end_on(const struct gpu_devices *gpus, uint32_t gpu)
{
    const struct gpu_group *group;
    LL_FOREACH(gpus->groups->all, group)
    {
        if (group->ending && !group->leaked && gpu_group_index(group, gpu) != UINT32_MAX &&
            !gpu_group_has_ended(group)) {
            return true;
        }
    }
    return false;
}

uint64_t gpu_groups_deadline_ns(const struct gpu_devices *gpus)
{
    uint64_t deadline_ns = nccl_registry_retired(gpus->registry) > 0 ? gpus->groups->look_ns : TIME_NEVER;
    const struct gpu_group *group;
    LL_FOREACH(gpus->groups->all, group)
    {
        if (group->leaked || (group->ending && gpu_group_has_ended(group))) {
            continue;
        }
        if (group->ending || !group->formed) {
            deadline_ns = time_min(deadline_ns, group->ending ? gpu_group_leak_ns(group)
                                                              : group->since_ns + GPU_GROUP_FORM_NS);
            deadline_ns = group->ending ? time_min(deadline_ns, gpus->groups->hangs_ns) : deadline_ns;
        }
    }
    return deadline_ns;
}

static void group_tick(struct gpu_group *group, uint64_t now_ns)
{
    struct error error;
    if (group->ending) {
        if (!group->leaked && now_ns >= gpu_group_leak_ns(group) && !gpu_group_has_ended(group)) {
            gpu_group_leak(group, now_ns);
        }
        return;
    }
    enum gpu_group_state state = gpu_group_poll(group, now_ns, &error);
    if (state == GPU_GROUP_FAILED && nccl_registry_retired(group->owner->gpus->registry) > 0) {
        gpu_group_give_up(group, &error, now_ns); /* it would keep its registered memory */
    }
    if (state == GPU_GROUP_FORMS && now_ns >= group->since_ns + GPU_GROUP_FORM_NS) {
        pthread_mutex_lock(&group->owner->lock);
        group->has_failed = true;
        error_set(&group->failure, STATUS_DEVICE, "GPU %u, NCCL among %u GPUs: not formed within %llu s",
                  group->ranks.list[0], group->ranks.count, GPU_GROUP_FORM_NS / TIME_S);
        pthread_mutex_unlock(&group->owner->lock);
        gpu_group_refuse(group, now_ns);
    }
}

void gpu_groups_tick(struct gpu_devices *gpus, uint64_t now_ns)
{
    struct gpu_group *group;
    LL_FOREACH(gpus->groups->all, group)
    {
        group_tick(group, now_ns);
    }
    if (now_ns >= gpus->groups->hangs_ns) {
        gpu_groups_look(gpus->groups, now_ns);
    }
    gpu_groups_tidy(gpus->groups, GPU_GROUPS_SPARE_MAX, now_ns);
    nccl_registry_tick(gpus->registry);
    gpus->groups->look_ns = now_ns + NCCL_REGISTRY_LOOK_NS;
}

/* --- Beginning and end --- */

struct gpu_groups *gpu_groups_new(struct gpu_devices *gpus)
{
    struct gpu_groups *groups = calloc(1, sizeof *groups);
    if (groups == NULL) {
        return NULL;
    }
    groups->gpus = gpus;
    groups->ctas = GPU_GROUPS_CTAS_DEFAULT;
    pthread_mutex_init(&groups->lock, NULL);
    thread_cond_init(&groups->work);
    thread_cond_init(&groups->changed);
    return groups;
}

/* Ends all groups. Returns whether they have ended in time. */
static bool groups_end(struct gpu_groups *groups)
{
    struct gpu_group *group;
    bool all_ended = true;
    LL_FOREACH(groups->all, group)
    {
        gpu_group_begin_end(group, 0);
    }
    pthread_mutex_lock(&groups->lock);
    for (int left_ms = GPU_GROUPS_CLOSE_MS;; left_ms -= 10) {
        all_ended = true;
        LL_FOREACH(groups->all, group)
        {
            all_ended &= group->ended;
        }
        if (all_ended || left_ms <= 0) {
            break;
        }
        gpu_groups_wait(groups, &groups->changed, 10 * TIME_MS);
    }
    groups->stops = true;
    pthread_cond_signal(&groups->work);
    pthread_mutex_unlock(&groups->lock);
    return all_ended;
}

bool gpu_groups_free(struct gpu_groups *groups)
{
    static struct gpu_groups *left; /* what threads still use stays reachable */
    struct gpu_group *group, *next;
    if (groups == NULL) {
        return true;
    }
    if (!groups_end(groups)) {
        log_warning("NCCL did not release its GPUs; commd ends without waiting any longer");
        left = groups;
        return left == NULL;
    }
    if (groups->has_thread) {
        (void)pthread_join(groups->thread, NULL);
    }
    LL_FOREACH_SAFE(groups->all, group, next)
    {
        gpu_group_free(group);
    }
    pthread_cond_destroy(&groups->changed);
    pthread_cond_destroy(&groups->work);
    pthread_mutex_destroy(&groups->lock);
    free(groups);
    return true;
}
