#include "daemon/gpus.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/gpu/nccl.h"
#include "daemon/gpu/words.h"

/* This file exists while the kernel's part of the driver is loaded. */
#define NVIDIA_LOADED "/proc/driver/nvidia/version"

/* Logs why there are no GPUs: as a warning if the driver is loaded, since people then expect GPUs. */
static void log_absent(const char *why)
{
    if (access(NVIDIA_LOADED, F_OK) == 0) {
        log_warning("no GPUs, though the NVIDIA driver is loaded (" NVIDIA_LOADED
                    "): %s; is nvidia-uvm loaded "
                    "(nvidia-modprobe -u -c=0, as root)? gpus = \"off\" says that none are wanted",
                    why);
    } else {
        log_debug("GPUs: none: %s", why);
    }
}

/* Loads NCCL now: that takes long, and the loop must not wait for it. */
static void load_nccl(const struct conf *conf)
{
    char why[256];
    if (strcmp(conf->gpu_engine, "kernels") == 0) {
        gpu_nccl_forbid();
    }
    if (!gpu_nccl_is_there() && strcmp(conf->gpu_engine, "nccl") == 0) {
        gpu_nccl_absent(why, sizeof why);
        log_warning("gpu_engine = \"nccl\", but NCCL cannot be used: %s; operations run without it", why);
    }
}

enum status gpus_open(const struct conf *conf, struct gpu_devices **out, struct error *absent,
                      struct error *error)
{
    *out = NULL;
    absent->text[0] = '\0';
    if (strcmp(conf->gpus, "off") == 0) {
        (void)error_set(absent, STATUS_UNSUPPORTED, "gpus = \"off\" in the configuration");
        return STATUS_OK;
    }
    enum status status = gpu_devices_open(strcmp(conf->gpu_peer_access, "off") != 0, out, error);
    if (status == STATUS_UNSUPPORTED) {
        *absent = *error;
        log_absent(absent->text);
        return STATUS_OK;
    }
    if (status != STATUS_OK) {
        (void)error_prefix(error, "GPUs (gpus = \"off\" starts without them)");
        return status;
    }
    for (uint32_t gpu = 0; gpu < gpu_devices_count(*out); gpu++) {
        const struct gpu_device_info *info = gpu_devices_info(*out, gpu);
        log_info("GPU %u: %s, %llu MiB, PCI %s, MPS %s", gpu, info->name,
                 (unsigned long long)(info->memory_bytes >> 20), info->bus, info->mps ? "on" : "off");
    }
    gpu_groups_set_ctas(*out, (uint32_t)conf->gpu_nccl_ctas);
    gpu_groups_set_register(*out, strcmp(conf->gpu_nccl_register, "off") != 0,
                            strcmp(conf->gpu_nccl_register, "windows") == 0);
    gpu_words_set_ahead(*out, (uint32_t)conf->gpu_ahead);
    load_nccl(conf);
    return STATUS_OK;
}

#define TUNING_FILE "gpu-tuning.json"

/* Where the table is without a setting. "": nowhere. */
static void tuning_default(char *path, size_t size)
{
    const char *service = getenv("STATE_DIRECTORY"), *state = getenv("XDG_STATE_HOME"),
               *home = getenv("HOME");
    path[0] = '\0';
    if (service != NULL && service[0] == '/') {
        (void)snprintf(path, size, "%.*s/" TUNING_FILE, (int)strcspn(service, ":"), service);
    } else if (geteuid() == 0) {
        (void)snprintf(path, size, "/var/lib/commd/" TUNING_FILE);
    } else if (state != NULL && state[0] == '/') {
        (void)snprintf(path, size, "%s/commd/" TUNING_FILE, state);
    } else if (home != NULL && home[0] == '/') {
        (void)snprintf(path, size, "%s/.local/state/commd/" TUNING_FILE, home);
    }
}

enum status gpus_tuning(const struct conf *conf, const struct gpu_devices *gpus, struct gpu_tuning **out,
                        struct error *error)
{
    char path[4096];
    *out = NULL;
    if (gpu_devices_count(gpus) < 2 || strcmp(conf->gpu_engine, "auto") != 0 ||
        strcmp(conf->gpu_tuning, "off") == 0 || !gpu_nccl_is_there()) {
        return STATUS_OK;
    }
    if (strcmp(conf->gpu_tuning, "auto") == 0) {
        tuning_default(path, sizeof path);
    } else {
        (void)snprintf(path, sizeof path, "%s", conf->gpu_tuning);
    }
    return gpu_tuning_new(gpus, path, out, error);
}

enum exec_gpu_engine gpus_engine(const struct conf *conf)
{
    return strcmp(conf->gpu_engine, "nccl") == 0      ? EXEC_GPU_NCCL
           : strcmp(conf->gpu_engine, "kernels") == 0 ? EXEC_GPU_KERNELS
                                                      : EXEC_GPU_AUTO;
}

static void end_is_late(int signal_number)
{
    static const char text[] =
        "commd: a GPU is still at work for commd; commd ends without waiting any longer\n";
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    (void)signal_number;
    if (poll(&room, 1, 0) == 1) { /* the write does not block */
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
    }
    _exit(EXIT_FAILURE);
}

void gpus_bound_end(void)
{
    struct sigaction action = {.sa_handler = end_is_late};
    (void)sigaction(SIGALRM, &action, NULL);
    (void)alarm(GPUS_END_S);
}

void gpus_unbound_end(void)
{
    (void)alarm(0);
}
