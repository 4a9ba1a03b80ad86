#include "proto/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER_LIBRARY "libcuda.so.1"

static struct {
    pthread_once_t once;
    bool loaded;
    struct cuda_driver driver;
    char why[256];
} state = {.once = PTHREAD_ONCE_INIT};

/* ISO C has no conversion from an object's address to a function's; POSIX promises this one. */
static bool look_up(void *library, const char *symbol, void *slot)
{
    void *address = dlsym(library, symbol);
    memcpy(slot, &address, sizeof address);
    if (address == NULL) {
        (void)snprintf(state.why, sizeof state.why, "the CUDA driver has no %s: it is too old", symbol);
    }
    return address != NULL;
}

static bool look_up_all(void *library)
{
    return
#define CUDA_DRIVER_LOOK_UP(name, symbol, parameters) look_up(library, #symbol, &state.driver.name) &&
        CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_LOOK_UP)
#undef CUDA_DRIVER_LOOK_UP
            true;
}

static void load(void)
{
    const char *other = secure_getenv("COMMD_CUDA_LIBRARY");
    const char *path = other != NULL && other[0] != '\0' ? other : DRIVER_LIBRARY;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        (void)snprintf(state.why, sizeof state.why, "no CUDA driver: %s", dlerror());
        return;
    }
    if (!look_up_all(library)) {
        return; /* never closed: drivers do not support that */
    }
    int count = 0;
    cuda_result result = state.driver.init(0);
    if (result != CUDA_RESULT_OK) {
        cuda_driver_text(&state.driver, "cuInit", result, state.why, sizeof state.why);
        return;
    }
    result = state.driver.device_count(&count);
    if (result != CUDA_RESULT_OK || count == 0) {
        (void)snprintf(state.why, sizeof state.why, "the CUDA driver sees no GPU");
        return;
    }
    state.loaded = true;
}

bool cuda_driver_load(const struct cuda_driver **out, char *why, size_t why_size)
{
    (void)pthread_once(&state.once, load);
    *out = state.loaded ? &state.driver : NULL;
    if (!state.loaded) {
        (void)snprintf(why, why_size, "%s", state.why);
    }
    return state.loaded;
}

void cuda_driver_text(const struct cuda_driver *driver, const char *symbol, cuda_result result, char *text,
                      size_t size)
{
    const char *name = NULL;
    const char *words = NULL;
    if (driver->error_name(result, &name) != CUDA_RESULT_OK || name == NULL) {
        name = "an unknown error";
    }
    if (driver->error_text(result, &words) != CUDA_RESULT_OK || words == NULL) {
        words = "no text";
    }
    (void)snprintf(text, size, "%s: %s (%s)", symbol, words, name);
}
