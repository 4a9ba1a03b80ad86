#include "daemon/gpu/words.h"

#include <assert.h>

#include "daemon/gpu/cuda_internal.h"
#include "daemon/host/memory_internal.h"

void gpu_words_set_ahead(struct gpu_devices *gpus, uint32_t ahead)
{
    gpus->ahead = ahead < GPU_AHEAD_MAX ? ahead : GPU_AHEAD_MAX;
}

uint32_t gpu_words_ahead(const struct gpu_devices *gpus)
{
    return gpus->ahead;
}

/* Before the memory is unmapped. No stream waits for its words any more. */
static bool unregister(struct memory *words)
{
    if (words->words_at != 0 && cuda_enter(words->words_gpus, 0, NULL) == STATUS_OK) {
        (void)words->words_gpus->driver->host_unregister(words->base);
    }
    return false;
}

static void register_words(struct gpu_devices *gpus, struct memory *words)
{
    cuda_pointer at = 0;
    struct error error;
    words->stays = unregister;
    words->words_gpus = gpus;
    if (words->address_bytes > GPU_WORDS_MAX_BYTES || memory_check(words, &error) != STATUS_OK ||
        cuda_enter(gpus, 0, &error) != STATUS_OK ||
        gpus->driver->host_register(words->base, (size_t)words->address_bytes,
                                    CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP) != CUDA_RESULT_OK) {
        return; /* the processor looks at them */
    }
    if (gpus->driver->host_device_pointer(&at, words->base, 0) != CUDA_RESULT_OK) {
        (void)gpus->driver->host_unregister(words->base);
        return;
    }
    words->words_at = at;
}

uint64_t gpu_words_address(const struct memory *of_gpu, struct memory *words, uint64_t offset_bytes)
{
    struct gpu_devices *gpus = of_gpu->gpus;
    if (gpus == NULL || gpus->ahead == 0 || words->gpu != MEMORY_OF_HOST || !words->guarded) {
        return 0;
    }
    if (words->stays == NULL) {
        register_words(gpus, words);
    }
    return words->words_at != 0 ? words->words_at + offset_bytes : 0;
}

bool gpu_words_may_wait(const struct gpu_devices *gpus, uint32_t gpu)
{
    return !gpu_groups_end_on(gpus, gpu);
}

void gpu_words_begin_wait(struct gpu_devices *gpus, uint32_t gpu)
{
    gpus->gpus[gpu].waits++;
}

void gpu_words_end_wait(struct gpu_devices *gpus, uint32_t gpu, uint64_t now_ns)
{
    assert(gpus->gpus[gpu].waits > 0);
    gpus->gpus[gpu].waits--;
    gpus->gpus[gpu].waits_end_ns = now_ns;
}
