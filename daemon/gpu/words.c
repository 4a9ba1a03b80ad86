#include "daemon/gpu/words.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

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

enum words_state { WORDS_UNKNOWN, WORDS_ASKED, WORDS_REGISTERED, WORDS_REFUSED };

/* The words of one memory. */
struct gpu_words {
    struct gpu_call call; /* first */
    struct memory *memory;
    struct gpu_devices *gpus;
    uint32_t gpu; /* whose thread makes the calls */
    enum words_state state;
    cuda_pointer found; /* by that thread */
    uint64_t base;      /* the same, for the main thread; 0: not registered */
};

/* --- The GPU's thread --- */

static void register_run(struct gpu_call *call)
{
    struct gpu_words *words = (struct gpu_words *)call;
    const struct cuda_driver *driver = words->gpus->driver;
    unsigned char *base = words->memory->base;
    words->found = 0;
    if (cuda_enter(words->gpus, words->gpu, NULL) == STATUS_OK &&
        driver->host_register(base, (size_t)words->memory->address_bytes,
                              CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP) == CUDA_RESULT_OK &&
        driver->host_device_pointer(&words->found, base, 0) != CUDA_RESULT_OK) {
        (void)driver->host_unregister(base);
        words->found = 0;
    }
}

static void unregister_run(struct gpu_call *call)
{
    struct gpu_words *words = (struct gpu_words *)call;
    if (cuda_enter(words->gpus, words->gpu, NULL) == STATUS_OK) {
        (void)words->gpus->driver->host_unregister(words->memory->base);
    }
}

/* --- The main thread --- */

static void register_done(struct gpu_call *call)
{
    struct gpu_words *words = (struct gpu_words *)call;
    words->base = words->found;
    words->state = words->base != 0 ? WORDS_REGISTERED : WORDS_REFUSED;
    memory_unref(words->memory);
}

static void unregister_done(struct gpu_call *call)
{
    struct gpu_words *words = (struct gpu_words *)call;
    struct memory *memory = words->memory;
    free(words);
    memory_finish(memory);
}

/* Before the memory is unmapped. No stream waits for its words any more, or will write them. */
static bool words_stay(struct memory *memory)
{
    struct gpu_words *words = memory->words;
    memory->words = NULL;
    if (words->state != WORDS_REGISTERED) {
        free(words);
        return false;
    }
    words->call = (struct gpu_call){.run = unregister_run, .done = unregister_done};
    gpu_calls_put(words->gpus, words->gpu, GPU_CALLS_WORDS, &words->call);
    return true;
}

static struct gpu_words *words_new(const struct memory *of_gpu, struct memory *memory)
{
    struct gpu_words *words = calloc(1, sizeof *words);
    if (words != NULL) {
        *words = (struct gpu_words){.memory = memory, .gpus = of_gpu->gpus, .gpu = (uint32_t)of_gpu->gpu};
        memory->words = words;
        memory->stays = words_stay;
    }
    return words;
}

static void ask(struct gpu_words *words)
{
    struct error error;
    if (words->memory->address_bytes > GPU_WORDS_MAX_BYTES ||
        memory_check(words->memory, &error) != STATUS_OK) {
        words->state = WORDS_REFUSED; /* the processor looks at them */
        return;
    }
    if (gpu_calls_check(words->gpus, words->gpu, GPU_CALLS_WORDS, &error) == STATUS_OK) {
        words->state = WORDS_ASKED;
        (void)memory_ref(words->memory);
        words->call = (struct gpu_call){.run = register_run, .done = register_done};
        gpu_calls_put(words->gpus, words->gpu, GPU_CALLS_WORDS, &words->call);
    }
}

struct gpu_word gpu_words_find(const struct memory *of_gpu, struct memory *memory, uint64_t offset_bytes)
{
    const struct gpu_devices *gpus = of_gpu->gpus;
    if (gpus == NULL || gpus->ahead == 0 || memory->gpu != MEMORY_OF_HOST || !memory->guarded) {
        return (struct gpu_word){.base = NULL};
    }
    struct gpu_words *words = memory->words != NULL ? memory->words : words_new(of_gpu, memory);
    if (words == NULL) {
        return (struct gpu_word){.base = NULL};
    }
    if (words->state == WORDS_UNKNOWN) {
        ask(words);
    }
    return (struct gpu_word){.base = &words->base, .offset_bytes = offset_bytes};
}

struct memory *gpu_words_memory(const struct gpu_word *word)
{
    const char *base = (const char *)word->base;
    return ((const struct gpu_words *)(base - offsetof(struct gpu_words, base)))->memory;
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
