#include <stdio.h>

#include <utlist.h>

#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/groups_internal.h"

/* Settings of all groups, and what they have counted. */

void gpu_groups_set_register(struct gpu_devices *gpus, bool on, bool windows)
{
    gpus->windows_wanted = on && windows;
    nccl_registry_switch(gpus->registry, on);
}

void gpu_groups_set_ctas(struct gpu_devices *gpus, uint32_t ctas)
{
    gpus->groups->ctas = ctas;
}

uint32_t gpu_groups_ctas(const struct gpu_devices *gpus)
{
    return gpus->groups->ctas;
}

void gpu_engine_count(struct gpu_devices *gpus, enum gpu_engine engine)
{
    atomic_fetch_add_explicit(&gpus->operations[engine], 1, memory_order_relaxed);
}

void gpu_message_count(struct gpu_devices *gpus, bool by_nccl)
{
    atomic_fetch_add_explicit(by_nccl ? &gpus->messages_by_nccl : &gpus->messages_by_copies, 1,
                              memory_order_relaxed);
}

void gpu_ahead_count(struct gpu_devices *gpus)
{
    atomic_fetch_add_explicit(&gpus->ran_ahead, 1, memory_order_relaxed);
}

void gpu_groups_info(const struct gpu_devices *gpus, struct gpu_groups_info *out)
{
    const struct gpu_groups *groups = gpus->groups;
    const struct gpu_group *group;
    *out = (struct gpu_groups_info){.calls = groups->calls,
                                    .formed = groups->formed,
                                    .refused = groups->refused,
                                    .failed = groups->failed,
                                    .leaked = groups->leaked,
                                    .ran_ahead = atomic_load(&gpus->ran_ahead),
                                    .messages_by_nccl = atomic_load(&gpus->messages_by_nccl),
                                    .messages_by_copies = atomic_load(&gpus->messages_by_copies),
                                    .registered = atomic_load(&gpus->registered),
                                    .registered_ever = atomic_load(&gpus->registered_ever),
                                    .windows = atomic_load(&gpus->windows),
                                    .windows_ever = atomic_load(&gpus->windows_ever),
                                    .windows_refused = atomic_load(&gpus->windows_refused),
                                    .retired = nccl_registry_retired(gpus->registry)};
    snprintf(out->why, sizeof out->why, "%s", groups->why);
    for (int i = 0; i < GPU_ENGINE_COUNT; i++) {
        out->operations[i] = atomic_load_explicit(&gpus->operations[i], memory_order_relaxed);
    }
    LL_FOREACH(groups->all, group)
    {
        out->groups += group->formed && !group->ending;
    }
}
