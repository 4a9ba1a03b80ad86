#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda_double/memory.h"
#include "tests/cuda_double/stream.h"

#define DRIVER_VERSION 13000
#define MULTIPROCESSORS 132 /* as an H200 has */

/* Values of CUdevice_attribute that only whole programs under test ask for. */
#define ATTRIBUTE_UNIFIED_ADDRESSING 41

struct cuda_context_handle contexts[DEVICES_MAX];

static int visible[DEVICES_MAX]; /* physical device of each ordinal */
static int visible_count;
static pid_t initialised_in;
static cuda_result initialised_with = CUDA_RESULT_NOT_INITIALIZED;
static bool deinitialised;
static pthread_once_t init_once = PTHREAD_ONCE_INIT;
static __thread cuda_context current;
static unsigned long long calls;

void device_uuid_of(int physical, struct cuda_uuid *uuid)
{
    /* Machines have different folders, so their devices have different UUIDs. */
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *at = settings()->folder; *at != '\0'; at++) {
        hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
    }
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, "GPU", 3);
    memcpy(uuid->bytes + 4, &hash, sizeof hash);
    uuid->bytes[CUDA_UUID_BYTES - 1] = (unsigned char)physical;
}

static bool uuid_begins_with(int physical, const char *text)
{
    struct cuda_uuid uuid;
    char written[64] = "GPU-";
    size_t length = 4;
    device_uuid_of(physical, &uuid);
    for (int i = 0; i < CUDA_UUID_BYTES; i++) {
        bool dash = i == 4 || i == 6 || i == 8 || i == 10;
        length += (size_t)snprintf(written + length, sizeof written - length, dash ? "-%02x" : "%02x",
                                   uuid.bytes[i]);
    }
    return strlen(text) > 4 && strncmp(written, text, strlen(text)) == 0;
}

static int physical_of(const char *text)
{
    char *end = NULL;
    long index = strtol(text, &end, 10);
    if (end != text && *end == '\0') {
        return index >= 0 && index < settings()->device_count ? (int)index : -1;
    }
    for (int i = 0; i < settings()->device_count; i++) {
        if (uuid_begins_with(i, text)) {
            return i;
        }
    }
    return -1;
}

/* As in CUDA, the list ends at the first name that is no device. */
static void choose_visible(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    char copy[512];
    char *rest = NULL;
    if (list == NULL) {
        for (visible_count = 0; visible_count < settings()->device_count; visible_count++) {
            visible[visible_count] = visible_count;
        }
        return;
    }
    (void)snprintf(copy, sizeof copy, "%s", list);
    for (char *one = strtok_r(copy, ", ", &rest); one != NULL && visible_count < DEVICES_MAX;
         one = strtok_r(NULL, ", ", &rest)) {
        int physical = physical_of(one);
        if (physical < 0 || device_ordinal_of(physical) >= 0) {
            return;
        }
        visible[visible_count++] = physical;
    }
}

static void init(void)
{
    settings_read();
    initialised_in = getpid();
    choose_visible();
    if (visible_count == 0) {
        initialised_with = CUDA_RESULT_NO_DEVICE;
        return;
    }
    for (int i = 0; i < visible_count; i++) {
        contexts[i].ordinal = i;
        contexts[i].physical = visible[i];
    }
    initialised_with = machine_attach() && arena_make() ? CUDA_RESULT_OK : CUDA_RESULT_UNKNOWN;
}

/* A killed process does not run this. Then the next process that comes removes what it left. */
__attribute__((destructor)) static void leave(void)
{
    if (initialised_in == getpid()) {
        __atomic_store_n(&deinitialised, true, __ATOMIC_RELEASE); /* for threads that still run */
        double_lock();
        machine_detach();
        double_unlock();
    }
}

cuda_result cuInit(unsigned flags)
{
    int injected = CUDA_RESULT_OUT_OF_MEMORY;
    if (flags != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    (void)pthread_once(&init_once, init);
    if (fail_now("cuInit", &injected)) {
        return injected;
    }
    return initialised_in == getpid() ? initialised_with : CUDA_RESULT_NOT_INITIALIZED;
}

unsigned long long cuda_double_calls(void)
{
    return __atomic_load_n(&calls, __ATOMIC_RELAXED);
}

cuda_result double_enter(const char *symbol, unsigned needs)
{
    int injected = CUDA_RESULT_OUT_OF_MEMORY;
    if (initialised_with != CUDA_RESULT_OK || initialised_in != getpid()) {
        return CUDA_RESULT_NOT_INITIALIZED;
    }
    if (__atomic_load_n(&deinitialised, __ATOMIC_ACQUIRE)) {
        return CUDA_RESULT_DEINITIALIZED;
    }
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    settings_delay_call(symbol, current != NULL ? current->ordinal : -1);
    if (graph_calls_back()) {
        return CUDA_RESULT_NOT_PERMITTED;
    }
    bool fails = fail_now(symbol, &injected);
    if (!fails && needs == 0) {
        return CUDA_RESULT_OK;
    }
    cuda_result result = CUDA_RESULT_OK;
    double_lock();
    if (fails) {
        result = injected;
        if (injected >= 700 && injected < 800 && current != NULL) {
            context_fail(current, injected);
        }
    } else if ((needs & ENTER_CONTEXT) != 0 && (current == NULL || !current->active)) {
        result = CUDA_RESULT_INVALID_CONTEXT;
    } else if ((needs & ENTER_CONTEXT) != 0 && current->failure != CUDA_RESULT_OK) {
        result = current->failure;
    } else if ((needs & ENTER_NOT_CAPTURING) != 0 && capture_forbids()) {
        result = CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED;
    }
    return double_end(result);
}

cuda_result double_begin(const char *symbol, unsigned needs)
{
    cuda_result result = double_enter(symbol, needs);
    if (result == CUDA_RESULT_OK) {
        double_lock();
    }
    return result;
}

cuda_result double_end(cuda_result result)
{
    double_unlock();
    return result;
}

int device_count(void)
{
    return visible_count;
}

int device_physical(int ordinal)
{
    return visible[ordinal];
}

int device_ordinal_of(int physical)
{
    for (int i = 0; i < visible_count; i++) {
        if (visible[i] == physical) {
            return i;
        }
    }
    return -1;
}

static bool is_device(cuda_device device)
{
    return device >= 0 && device < visible_count;
}

static cuda_result enter_for(const char *symbol, cuda_device device)
{
    cuda_result result = double_enter(symbol, 0);
    return result == CUDA_RESULT_OK && !is_device(device) ? CUDA_RESULT_INVALID_DEVICE : result;
}

cuda_result cuDriverGetVersion(int *version)
{
    *version = DRIVER_VERSION;
    return CUDA_RESULT_OK;
}

cuda_result cuDeviceGetCount(int *count)
{
    cuda_result result = double_enter(__func__, 0);
    *count = result == CUDA_RESULT_OK ? visible_count : 0;
    return result;
}

cuda_result cuDeviceGet(cuda_device *device, int ordinal)
{
    cuda_result result = enter_for(__func__, ordinal);
    if (result == CUDA_RESULT_OK) {
        *device = ordinal;
    }
    return result;
}

cuda_result cuDeviceGetName(char *name, int size, cuda_device device)
{
    cuda_result result = enter_for(__func__, device);
    if (result == CUDA_RESULT_OK && size > 0) {
        (void)snprintf(name, (size_t)size, "Double of a GPU");
    }
    return result;
}

cuda_result cuDeviceGetUuid_v2(struct cuda_uuid *uuid, cuda_device device)
{
    cuda_result result = enter_for(__func__, device);
    if (result == CUDA_RESULT_OK) {
        device_uuid_of(visible[device], uuid);
    }
    return result;
}

cuda_result cuDeviceTotalMem_v2(size_t *bytes, cuda_device device)
{
    cuda_result result = enter_for(__func__, device);
    if (result == CUDA_RESULT_OK) {
        *bytes = settings()->memory_bytes;
    }
    return result;
}

cuda_result cuDeviceGetAttribute(int *value, int attribute, cuda_device device)
{
    cuda_result result = enter_for(__func__, device);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    switch (attribute) {
    case CUDA_DEVICE_MULTIPROCESSORS:
        *value = MULTIPROCESSORS;
        return CUDA_RESULT_OK;
    case CUDA_DEVICE_INTEGRATED:
    case CUDA_DEVICE_COMPUTE_MODE:
    case CUDA_DEVICE_NUMA_ID:
        *value = 0;
        return CUDA_RESULT_OK;
    case CUDA_DEVICE_CAPABILITY_MINOR:
        *value = settings()->capability % 10;
        return CUDA_RESULT_OK;
    case CUDA_DEVICE_CAPABILITY_MAJOR:
        *value = settings()->capability / 10;
        return CUDA_RESULT_OK;
    case CUDA_DEVICE_MPS_ENABLED:
        *value = settings()->mps;
        return CUDA_RESULT_OK;
    case ATTRIBUTE_UNIFIED_ADDRESSING:
        *value = 1;
        return CUDA_RESULT_OK;
    case CUDA_DEVICE_VIRTUAL_MEMORY:
    case CUDA_DEVICE_POSIX_FD:
    case CUDA_DEVICE_RDMA_VIRTUAL_MEMORY:
        *value = settings()->virtual_memory;
        return CUDA_RESULT_OK;
    default:
        return CUDA_RESULT_INVALID_VALUE;
    }
}

cuda_result cuDeviceGetPCIBusId(char *text, int size, cuda_device device)
{
    cuda_result result = enter_for(__func__, device);
    if (result == CUDA_RESULT_OK && size > 0) {
        (void)snprintf(text, (size_t)size, "0000:%02x:00.0", 0x10 + visible[device]);
    }
    return result;
}

cuda_result cuDeviceCanAccessPeer(int *can, cuda_device device, cuda_device peer)
{
    cuda_result result = enter_for(__func__, device);
    if (result == CUDA_RESULT_OK && !is_device(peer)) {
        result = CUDA_RESULT_INVALID_DEVICE;
    }
    if (result == CUDA_RESULT_OK) {
        *can = device != peer && settings()->peer;
    }
    return result;
}

/* ---- contexts */

cuda_context context_now(void)
{
    return current;
}

bool context_is_known(cuda_context context)
{
    return context >= contexts && context < contexts + visible_count;
}

void context_fail(cuda_context context, cuda_result result)
{
    if (context->failure == CUDA_RESULT_OK) {
        context->failure = result;
    }
    double_progress();
}

cuda_result cuDevicePrimaryCtxRetain(cuda_context *context, cuda_device device)
{
    cuda_result result = enter_for(__func__, device);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    *context = &contexts[device];
    contexts[device].references++;
    contexts[device].active = true;
    double_unlock();
    return CUDA_RESULT_OK;
}

cuda_result cuDevicePrimaryCtxRelease_v2(cuda_device device)
{
    cuda_result result = enter_for(__func__, device);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    cuda_context context = &contexts[device];
    if (context->references == 0) {
        result = CUDA_RESULT_INVALID_CONTEXT;
    } else if (--context->references == 0) {
        context->active = false;
        streams_forget_context(context);
        memory_forget_context(context);
        context->peers = 0;
    }
    return double_end(result);
}

cuda_result cuCtxSetCurrent(cuda_context context)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (context == NULL || (context_is_known(context) && context->active)) {
        current = context;
    } else {
        result = CUDA_RESULT_INVALID_CONTEXT;
    }
    return double_end(result);
}

cuda_result cuCtxGetCurrent(cuda_context *context)
{
    cuda_result result = double_enter(__func__, 0);
    if (result == CUDA_RESULT_OK) {
        *context = current;
    }
    return result;
}

cuda_result cuCtxGetDevice(cuda_device *device)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result == CUDA_RESULT_OK) {
        *device = current->ordinal;
    }
    return result;
}

cuda_result cuCtxEnablePeerAccess(cuda_context peer, unsigned flags)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (flags != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    if (!context_is_known(peer) || peer == current) {
        return CUDA_RESULT_INVALID_CONTEXT;
    }
    if (!settings()->peer) {
        return CUDA_RESULT_PEER_ACCESS_UNSUPPORTED;
    }
    double_lock();
    uint32_t bit = 1u << peer->ordinal;
    if (!peer->active) {
        result = CUDA_RESULT_INVALID_CONTEXT;
    } else if ((current->peers & bit) != 0) {
        result = CUDA_RESULT_PEER_ACCESS_ALREADY_ENABLED;
    }
    current->peers |= result == CUDA_RESULT_OK ? bit : 0;
    return double_end(result);
}
