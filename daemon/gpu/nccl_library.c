#include "daemon/gpu/nccl_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"

#define NCCL_LIBRARY "libnccl.so.2"
#define DROP_IN_MARK "commd_nccl_drop_in" /* client/nccl/refused.c */
#define NCCL_VERSION_MIN 21900

static struct {
    pthread_once_t once;
    bool loaded;
    struct nccl_library functions;
    char why[256];
} state = {.once = PTHREAD_ONCE_INIT};

static bool look_up(void *library, const char *symbol, void *slot)
{
    void *address = dlsym(library, symbol);
    memcpy(slot, &address, sizeof address); /* as in proto/cuda_driver.c */
    if (address == NULL) {
        (void)snprintf(state.why, sizeof state.why, "NCCL has no %s: it is too old, or no NCCL", symbol);
    }
    return address != NULL;
}

static bool look_up_all(void *library)
{
    return
#define NCCL_LIBRARY_LOOK_UP(name, symbol, result, parameters)                                               \
    look_up(library, #symbol, &state.functions.name) &&
        NCCL_LIBRARY_FUNCTIONS(NCCL_LIBRARY_LOOK_UP)
#undef NCCL_LIBRARY_LOOK_UP
            true;
}

static void look_up_later(void *library)
{
    void *address;
#define NCCL_LIBRARY_LOOK_UP_LATER(name, symbol, result, parameters)                                         \
    address = dlsym(library, #symbol);                                                                       \
    memcpy(&state.functions.name, &address, sizeof address);
    NCCL_LIBRARY_LATER_FUNCTIONS(NCCL_LIBRARY_LOOK_UP_LATER)
#undef NCCL_LIBRARY_LOOK_UP_LATER
}

static void check(void *library, const char *path)
{
    if (dlsym(library, DROP_IN_MARK) != NULL) {
        (void)snprintf(state.why, sizeof state.why,
                       "%s is commd's own libnccl for programs: commd needs NCCL itself", path);
        return;
    }
    int *number = &state.functions.number;
    if (!look_up(library, "ncclGetVersion", &state.functions.version)) {
        return;
    }
    if (state.functions.version(number) != NCCL_RESULT_OK || *number < NCCL_VERSION_MIN) {
        (void)snprintf(state.why, sizeof state.why, "NCCL %d.%d.%d is too old: 2.19 or later is needed",
                       *number / 10000, *number / 100 % 100, *number % 100);
        return;
    }
    look_up_later(library);
    state.loaded = look_up_all(library);
}

/* Whether the loader did not find this file itself. A library that NCCL needs may be missing, too. */
static bool is_missing(const char *path, const char *said)
{
    char expected[4096];
    int length =
        snprintf(expected, sizeof expected, "%s: cannot open shared object file: %s", path, strerror(ENOENT));
    return length > 0 && (size_t)length < sizeof expected && strcmp(said, expected) == 0;
}

/* A library that is there but cannot be used is worth a warning; none at all is not. */
static void load(void)
{
    const char *other = secure_getenv("COMMD_NCCL_LIBRARY");
    const char *path = other != NULL && other[0] != '\0' ? other : NCCL_LIBRARY;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    bool missing = false;
    if (library != NULL) {
        check(library, path);
    } else {
        (void)snprintf(state.why, sizeof state.why, "%s", dlerror());
        missing = is_missing(path, state.why);
    }
    if (!state.loaded && !missing) {
        log_line(LOG_LEVEL_WARNING, "NCCL cannot be used: %s; commd works without it", state.why);
    }
}

static void forbid(void)
{
    (void)snprintf(state.why, sizeof state.why, "gpu_engine = \"kernels\" in the configuration");
}

void nccl_library_forbid(void)
{
    (void)pthread_once(&state.once, forbid);
}

bool nccl_library_load(const struct nccl_library **out, char *why, size_t why_size)
{
    (void)pthread_once(&state.once, load);
    *out = state.loaded ? &state.functions : NULL;
    if (!state.loaded) {
        (void)snprintf(why, why_size, "%s", state.why);
    }
    return state.loaded;
}
