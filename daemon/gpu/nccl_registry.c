#include "daemon/gpu/nccl_registry.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/memory_internal.h"

struct nccl_registry {
    pthread_mutex_t lock;
    bool on;
    struct gpu_registrable **all; /* by address; not those that are retired */
    uint32_t count, capacity;
    struct gpu_registrable *retired; /* the main thread's */
    uint32_t retired_count;
};

struct nccl_registry *nccl_registry_new(void)
{
    struct nccl_registry *registry = calloc(1, sizeof *registry);
    if (registry != NULL) {
        pthread_mutex_init(&registry->lock, NULL);
    }
    return registry;
}

void nccl_registry_free(struct nccl_registry *registry)
{
    if (registry == NULL) {
        return;
    }
    nccl_registry_tick(registry);
    pthread_mutex_destroy(&registry->lock);
    free(registry->all);
    free(registry);
}

void nccl_registry_switch(struct nccl_registry *registry, bool on)
{
    registry->on = on;
}

bool nccl_registry_is_on(const struct nccl_registry *registry)
{
    return registry->on;
}

/* Where the address is in the list: after all that begin at or before it. With the lock. */
static uint32_t place_after(const struct nccl_registry *registry, uint64_t address)
{
    uint32_t low = 0, high = registry->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (registry->all[middle]->base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* With the lock. */
static bool insert(struct nccl_registry *registry, struct gpu_registrable *made)
{
    if (registry->count == registry->capacity) {
        uint32_t capacity = 2 * registry->capacity + 16;
        struct gpu_registrable **larger =
            realloc(registry->all, capacity * sizeof *larger); /* NOLINT(bugprone-sizeof-expression) */
        if (larger == NULL) {
            return false;
        }
        registry->all = larger;
        registry->capacity = capacity;
    }
    uint32_t at = place_after(registry, made->base);
    memmove(&registry->all[at + 1], &registry->all[at], (registry->count - at) * sizeof registry->all[0]);
    registry->all[at] = made;
    registry->count++;
    return true;
}

void nccl_registry_add(struct nccl_registry *registry, struct memory *memory, uint64_t size_bytes)
{
    struct gpu_registrable *made = registry->on ? calloc(1, sizeof *made) : NULL;
    if (made == NULL) {
        return;
    }
    *made = (struct gpu_registrable){.base = (uint64_t)(uintptr_t)memory->base,
                                     .size_bytes = size_bytes,
                                     .gpu = (uint32_t)memory->gpu,
                                     .memory = memory};
    pthread_mutex_lock(&registry->lock);
    bool added = insert(registry, made);
    pthread_mutex_unlock(&registry->lock);
    if (!added) {
        free(made);
        return;
    }
    memory->registrable = made;
}

bool nccl_registry_retire(struct nccl_registry *registry, struct memory *memory)
{
    struct gpu_registrable *gone = memory->registrable;
    if (gone == NULL) {
        return false;
    }
    pthread_mutex_lock(&registry->lock);
    uint32_t at = place_after(registry, gone->base) - 1;
    memmove(&registry->all[at], &registry->all[at + 1], (registry->count - at - 1) * sizeof registry->all[0]);
    registry->count--;
    gone->retired = gone->holders > 0;
    bool stays = gone->retired;
    pthread_mutex_unlock(&registry->lock);
    if (stays) {
        gone->next = registry->retired;
        registry->retired = gone;
        registry->retired_count++;
    } else {
        memory->registrable = NULL;
        free(gone);
    }
    return stays;
}

void nccl_registry_tick(struct nccl_registry *registry)
{
    struct gpu_registrable **link = &registry->retired;
    while (*link != NULL) {
        struct gpu_registrable *one = *link;
        pthread_mutex_lock(&registry->lock);
        bool held = one->holders > 0;
        pthread_mutex_unlock(&registry->lock);
        if (held) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        registry->retired_count--;
        one->memory->registrable = NULL;
        memory_finish(one->memory);
        free(one);
    }
}

uint32_t nccl_registry_retired(const struct nccl_registry *registry)
{
    return registry->retired_count;
}

struct gpu_registrable *nccl_registry_find(struct nccl_registry *registry, uint32_t gpu, const void *address,
                                           uint64_t size_bytes)
{
    uint64_t begin = (uint64_t)(uintptr_t)address;
    struct gpu_registrable *found = NULL;
    pthread_mutex_lock(&registry->lock);
    uint32_t after = place_after(registry, begin);
    if (after > 0) {
        found = registry->all[after - 1];
        uint64_t offset = begin - found->base;
        if (found->gpu != gpu || offset > found->size_bytes || size_bytes > found->size_bytes - offset) {
            found = NULL;
        }
    }
    pthread_mutex_unlock(&registry->lock);
    return found;
}

void nccl_registry_hold(struct nccl_registry *registry, struct gpu_registrable *memory)
{
    pthread_mutex_lock(&registry->lock);
    memory->holders++;
    pthread_mutex_unlock(&registry->lock);
}

void nccl_registry_drop(struct nccl_registry *registry, struct gpu_registrable *memory)
{
    pthread_mutex_lock(&registry->lock);
    memory->holders--;
    pthread_mutex_unlock(&registry->lock);
}

bool nccl_registry_is_retired(struct nccl_registry *registry, const struct gpu_registrable *memory)
{
    pthread_mutex_lock(&registry->lock);
    bool retired = memory->retired;
    pthread_mutex_unlock(&registry->lock);
    return retired;
}
