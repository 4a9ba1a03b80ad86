#include <stdio.h>
#include <string.h>

#include "daemon/api/session.h"
#include "daemon/gpu/groups.h"
#include "daemon/gpu/nccl.h"

/* commctl gpus: the GPUs, and what communicators and clients have on them. */

#define GPU_ROWS_MAX 32 /* the most communicators, and clients, of one GPU that are sent */

struct gpu_rows {
    Commd__Client__GpuInfo info;
    Commd__Client__GpuComm comms[GPU_ROWS_MAX];
    Commd__Client__GpuComm *comm_pointers[GPU_ROWS_MAX];
    Commd__Client__GpuClient clients[GPU_ROWS_MAX];
    Commd__Client__GpuClient *client_pointers[GPU_ROWS_MAX];
    char error[ERROR_TEXT_MAX_BYTES];
};

static void count_rank(struct gpu_rows *rows, const struct api_comm *comm)
{
    for (size_t i = 0; i < rows->info.n_comms; i++) {
        if (strcmp(rows->comms[i].name, comm->name) == 0 &&
            rows->comms[i].owner_uid == comm->session->client.uid) {
            rows->comms[i].ranks++;
            return;
        }
    }
    if (rows->info.n_comms < GPU_ROWS_MAX) {
        Commd__Client__GpuComm *row = &rows->comms[rows->info.n_comms];
        commd__client__gpu_comm__init(row);
        row->name = (char *)(uintptr_t)comm->name;
        row->ranks = 1;
        row->owner_uid = comm->session->client.uid;
        rows->comm_pointers[rows->info.n_comms++] = row;
    }
}

/* If not is_seen, the session is only counted. */
static void count_session(struct gpu_rows *rows, const struct api_session *session, int gpu, bool is_seen)
{
    uint32_t memories = 0;
    uint64_t bytes = 0;
    bool any = false;
    for (const struct api_comm *comm = session->comms; comm != NULL; comm = comm->hh.next) {
        if (comm->gpu == gpu) {
            any = true;
            if (is_seen) {
                count_rank(rows, comm);
            } else {
                rows->info.other_comms++;
            }
        }
    }
    for (const struct api_memory *memory = session->memories; memory != NULL; memory = memory->hh.next) {
        if (memory_gpu(memory->memory) == gpu) {
            memories++;
            rows->info.memories_by_ipc += memory_by_ipc(memory->memory);
            bytes += memory_size_bytes(memory->memory);
        }
    }
    rows->info.memories += memories;
    rows->info.memory_imported_bytes += bytes;
    if (!is_seen) {
        rows->info.other_clients += any || memories > 0;
        return;
    }
    if ((any || memories > 0) && rows->info.n_clients < GPU_ROWS_MAX) {
        Commd__Client__GpuClient *row = &rows->clients[rows->info.n_clients];
        commd__client__gpu_client__init(row);
        row->pid = (uint32_t)session->client.pid;
        row->uid = session->client.uid;
        row->program = (char *)(uintptr_t)session->program;
        row->memories = memories;
        row->memory_bytes = bytes;
        rows->client_pointers[rows->info.n_clients++] = row;
    }
}

static void fill_gpu(const struct api_session *asks, uint32_t gpu, struct gpu_rows *rows)
{
    const struct api *api = asks->api;
    const struct gpu_device_info *info = gpu_devices_info(api->gpus, gpu);
    struct error error;
    uint64_t total_bytes;
    commd__client__gpu_info__init(&rows->info);
    rows->info.index = gpu;
    rows->info.name = (char *)(uintptr_t)info->name;
    rows->info.uuid =
        (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)info->uuid.bytes, .len = CUDA_UUID_BYTES};
    rows->info.bus = (char *)(uintptr_t)info->bus;
    rows->info.memory_bytes = info->memory_bytes;
    rows->info.capability_major = (uint32_t)info->capability_major;
    rows->info.capability_minor = (uint32_t)info->capability_minor;
    rows->info.mps = info->mps;
    (void)gpu_devices_memory(api->gpus, gpu, &rows->info.used_bytes, &total_bytes);
    rows->error[0] = '\0';
    if (gpu_devices_check(api->gpus, gpu, &error) != STATUS_OK) {
        (void)snprintf(rows->error, sizeof rows->error, "%s", error.text);
    }
    rows->info.error = rows->error;
    rows->info.comms = rows->comm_pointers;
    rows->info.clients = rows->client_pointers;
    for (const struct api_session *session = api->sessions; session != NULL; session = session->hh.next) {
        count_session(rows, session, (int)gpu, api_session_sees(asks, session->client.uid));
    }
}

static void fill_engines(const struct gpu_devices *gpus, Commd__Client__GpusReply *answer)
{
    static struct gpu_groups_info info; /* only the main thread answers */
    gpu_groups_info(gpus, &info);
    answer->operations_by_nccl = info.operations[GPU_ENGINE_NCCL];
    answer->operations_by_kernels = info.operations[GPU_ENGINE_KERNELS];
    answer->operations_by_host = info.operations[GPU_ENGINE_HOST];
    answer->nccl_communicators = info.groups;
    answer->nccl_refused = info.refused;
    answer->nccl_failed = info.failed;
    answer->nccl_stuck = info.leaked;
    answer->nccl_registered = info.registered;
    answer->nccl_registered_ever = info.registered_ever;
    answer->nccl_windows = info.windows;
    answer->nccl_windows_ever = info.windows_ever;
    answer->nccl_windows_refused = info.windows_refused;
    answer->operations_ahead = info.ran_ahead;
    answer->messages_by_nccl = info.messages_by_nccl;
    answer->messages_by_copies = info.messages_by_copies;
    answer->nccl_retired = info.retired;
    answer->nccl_error = info.why;
    if (!gpu_nccl_is_there()) {
        gpu_nccl_absent(info.why, sizeof info.why);
    }
}

/* What was measured, as far as it fits into a packet. */
struct tuning_rows {
    Commd__Client__GpuTuning sets[GPU_TUNING_SETS_MAX];
    Commd__Client__GpuTuning *set_pointers[GPU_TUNING_SETS_MAX];
    Commd__Client__GpuTuningRow rows[GPU_TUNING_SETS_MAX][GPU_TUNING_ROWS_MAX];
    Commd__Client__GpuTuningRow *pointers[GPU_TUNING_SETS_MAX][GPU_TUNING_ROWS_MAX];
};

static void fill_set(const struct gpu_tuning_set *set, Commd__Client__GpuTuning *out,
                     Commd__Client__GpuTuningRow *rows, Commd__Client__GpuTuningRow **pointers)
{
    commd__client__gpu_tuning__init(out);
    out->n_gpus = set->gpu_count;
    out->gpus = (uint32_t *)(uintptr_t)set->gpus;
    out->n_rows = set->row_count;
    out->rows = pointers;
    for (uint32_t i = 0; i < set->row_count; i++) {
        commd__client__gpu_tuning_row__init(&rows[i]);
        rows[i].kind = (char *)(uintptr_t)op_kind_text(set->rows[i].kind);
        rows[i].size_bytes = set->rows[i].bytes;
        rows[i].nccl_ns = set->rows[i].nccl_ns;
        rows[i].without_ns = set->rows[i].without_ns;
        pointers[i] = &rows[i];
    }
}

static void fill_tuning(const struct api *api, Commd__Client__GpusReply *answer)
{
    static struct tuning_rows all; /* only the main thread answers */
    size_t bytes = 4096;
    answer->tuning_off = api->tuning == NULL;
    if (api->tuning == NULL) {
        return;
    }
    answer->tuning_path = (char *)(uintptr_t)gpu_tuning_path(api->tuning);
    answer->tunings_wait = exec_tuning_count(api->exec);
    answer->tunings = all.set_pointers;
    for (uint32_t i = 0; i < gpu_tuning_count(api->tuning); i++) {
        fill_set(gpu_tuning_at(api->tuning, i), &all.sets[i], all.rows[i], all.pointers[i]);
        bytes += commd__client__gpu_tuning__get_packed_size(&all.sets[i]) + 8;
        if (bytes > CLIENT_PACKET_MAX_BYTES) {
            break;
        }
        all.set_pointers[answer->n_tunings++] = &all.sets[i];
    }
}

/* Adds GPUs one by one. If not all fit into a packet, the page ends with the last one that fits. */
void api_gpus(struct api_session *session, uint64_t request_id, const Commd__Client__GpusQuery *request)
{
    static struct gpu_rows rows[GPU_DEVICES_MAX]; /* only the main thread answers */
    const struct api *api = session->api;
    Commd__Client__GpuInfo *pointers[GPU_DEVICES_MAX];
    char driver[32] = "", nccl[32] = "";
    Commd__Client__GpusReply answer = COMMD__CLIENT__GPUS_REPLY__INIT;
    size_t bytes = 4096;
    answer.gpus = pointers;
    answer.refuses_ipc_handles = api->ipc_handles == API_IPC_HANDLES_REFUSE;
    answer.absent = api->gpus == NULL ? api->gpus_absent : (char *)"";
    if (api->gpus != NULL) {
        int version = gpu_devices_driver_version(api->gpus);
        (void)snprintf(driver, sizeof driver, "%d.%d", version / 1000, version % 1000 / 10);
        gpu_nccl_version(nccl, sizeof nccl);
        answer.pinned_bytes = gpu_pinned_bytes(api->gpus);
        fill_engines(api->gpus, &answer);
    }
    answer.driver_version = driver;
    answer.nccl_version = nccl;
    if (request->tuning) {
        fill_tuning(api, &answer);
    }
    for (uint32_t gpu = 0; gpu < gpu_devices_count(api->gpus) && !request->tuning; gpu++) {
        fill_gpu(session, gpu, &rows[gpu]);
        bytes += commd__client__gpu_info__get_packed_size(&rows[gpu].info) + 8;
        if (bytes > CLIENT_PACKET_MAX_BYTES) {
            break;
        }
        pointers[answer.n_gpus++] = &rows[gpu].info;
    }
    Commd__Client__Reply reply = API_REPLY(request_id, GPUS, gpus, &answer);
    api_session_reply(session, &reply);
}
