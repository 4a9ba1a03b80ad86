#include <stdio.h>

#include "daemon/api/metrics.h"

/* The node's GPUs. */

static const struct metrics_family gpu = {"commd_gpu", "", "The GPUs of this node.", METRICS_INFO};
static const struct metrics_family memory = {"commd_gpu_memory_bytes", "bytes", "Memory of the GPU.",
                                             METRICS_GAUGE};
static const struct metrics_family used = {"commd_gpu_memory_used_bytes", "bytes",
                                           "Memory of the GPU that all processes together use.",
                                           METRICS_GAUGE};
static const struct metrics_family imported = {
    "commd_gpu_imported_bytes", "bytes", "Memory on the GPU that clients have registered.", METRICS_GAUGE};
static const struct metrics_family ranks = {"commd_gpu_ranks", "", "Ranks whose buffers are on the GPU.",
                                            METRICS_GAUGE};
static const struct metrics_family failed = {
    "commd_gpu_failed", "", "1 if the GPU failed and is out of use until commd restarts, else 0.",
    METRICS_GAUGE};
static const struct metrics_family pinned = {
    "commd_gpu_pinned_bytes", "bytes", "Pinned host memory for copies from and to GPUs.", METRICS_GAUGE};

struct gpu_use {
    uint64_t imported_bytes, ranks;
};

static void add_session(const struct api_session *session, struct gpu_use uses[GPU_DEVICES_MAX])
{
    for (const struct api_comm *comm = session->comms; comm != NULL; comm = comm->hh.next) {
        if (comm->gpu >= 0 && comm->gpu < GPU_DEVICES_MAX) {
            uses[comm->gpu].ranks++;
        }
    }
    const struct api_memory *each = session->gpu_memory_count > 0 ? session->memories : NULL;
    for (; each != NULL; each = each->hh.next) {
        int place = memory_gpu(each->memory);
        if (place >= 0 && place < GPU_DEVICES_MAX) {
            uses[place].imported_bytes += memory_size_bytes(each->memory);
        }
    }
}

static struct metrics_label gpu_label(uint32_t index, char text[12])
{
    (void)snprintf(text, 12, "%u", (unsigned)index);
    return (struct metrics_label){"gpu", text};
}

static void format_uuid(const struct cuda_uuid *uuid, char out[2 * CUDA_UUID_BYTES + 1])
{
    for (size_t i = 0; i < CUDA_UUID_BYTES; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", (unsigned)(unsigned char)uuid->bytes[i]);
    }
}

static void write_info(const struct gpu_devices *gpus, struct metrics_text *text)
{
    metrics_begin(text, &gpu);
    for (uint32_t i = 0; i < gpu_devices_count(gpus); i++) {
        char number[12], uuid[2 * CUDA_UUID_BYTES + 1];
        const struct gpu_device_info *info = gpu_devices_info(gpus, i);
        format_uuid(&info->uuid, uuid);
        const struct metrics_label labels[] = {
            gpu_label(i, number), {"uuid", uuid}, {"name", info->name}, {"bus", info->bus}};
        metrics_put(text, labels, 4, 1);
    }
}

static void write_memory(const struct gpu_devices *gpus, struct metrics_text *text)
{
    char number[12];
    metrics_begin(text, &memory);
    for (uint32_t i = 0; i < gpu_devices_count(gpus); i++) {
        const struct metrics_label label = gpu_label(i, number);
        metrics_put(text, &label, 1, gpu_devices_info(gpus, i)->memory_bytes);
    }
    metrics_begin(text, &used);
    for (uint32_t i = 0; i < gpu_devices_count(gpus); i++) {
        uint64_t used_bytes, total_bytes;
        const struct metrics_label label = gpu_label(i, number);
        if (gpu_devices_memory(gpus, i, &used_bytes, &total_bytes)) {
            metrics_put(text, &label, 1, used_bytes);
        }
    }
}

static void write_uses(const struct api *api, struct metrics_text *text)
{
    struct gpu_use uses[GPU_DEVICES_MAX] = {{0}};
    char number[12];
    uint32_t count = gpu_devices_count(api->gpus);
    for (const struct api_session *each = api->sessions; each != NULL; each = each->hh.next) {
        add_session(each, uses);
    }
    metrics_begin(text, &imported);
    for (uint32_t i = 0; i < count; i++) {
        const struct metrics_label label = gpu_label(i, number);
        metrics_put(text, &label, 1, uses[i].imported_bytes);
    }
    metrics_begin(text, &ranks);
    for (uint32_t i = 0; i < count; i++) {
        const struct metrics_label label = gpu_label(i, number);
        metrics_put(text, &label, 1, uses[i].ranks);
    }
    metrics_begin(text, &failed);
    for (uint32_t i = 0; i < count; i++) {
        struct error error;
        const struct metrics_label label = gpu_label(i, number);
        metrics_put(text, &label, 1, gpu_devices_check(api->gpus, i, &error) != STATUS_OK);
    }
}

void metrics_write_gpus(const struct api *api, struct metrics_text *text)
{
    if (gpu_devices_count(api->gpus) == 0) {
        return;
    }
    write_info(api->gpus, text);
    write_memory(api->gpus, text);
    write_uses(api, text);
    metrics_put_one(text, &pinned, gpu_pinned_bytes(api->gpus));
}
