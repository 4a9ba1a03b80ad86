#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/api/session.h"
#include "daemon/gpu/cuda_memory.h"
#include "daemon/gpu/cuda_pool.h"

/* Memory that clients register: on the host, and on GPUs. */

struct api_memory *api_session_memory(struct api_session *session, uint32_t id)
{
    struct api_memory *memory;
    HASH_FIND(hh, session->memories, &id, sizeof id, memory);
    return memory;
}

enum status api_session_gpu(const struct api_session *session, const ProtobufCBinaryData *uuid, int number,
                            int *gpu, struct error *error)
{
    const struct api *api = session->api;
    uint32_t index;
    struct cuda_uuid wanted;
    *gpu = MEMORY_OF_HOST;
    if (number == MEMORY_OF_HOST && uuid->len == 0) {
        return STATUS_OK;
    }
    if (api->gpus == NULL) {
        return error_set(error, STATUS_UNSUPPORTED, "GPU %d: this commd has none (%s); use the host (-1)",
                         number, api->gpus_absent);
    }
    if (uuid->len != sizeof wanted.bytes) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "GPU %d: a UUID cannot have %zu bytes", number,
                         uuid->len);
    }
    memcpy(wanted.bytes, uuid->data, sizeof wanted.bytes);
    if (!gpu_devices_find(api->gpus, &wanted, &index)) {
        return error_set(error, STATUS_NOT_FOUND,
                         "GPU %d is none of the %u that this commd sees (commctl gpus; "
                         "CUDA_VISIBLE_DEVICES of its unit)",
                         number, gpu_devices_count(api->gpus));
    }
    *gpu = (int)index;
    return gpu_devices_check(api->gpus, index, error);
}

/*
 * Addresses cost a client nothing, but commd has a limited number, like any process. A client that reserves
 * far more than there is memory to fill would leave none for others.
 */
static enum status memory_check_reserved(const struct api_session *session, int gpu, uint64_t size_bytes,
                                         struct error *error)
{
    uint64_t gpu_bytes = gpu_devices_info(session->api->gpus, (uint32_t)gpu)->memory_bytes;
    uint64_t most_bytes = API_SESSION_RESERVED_SHARE * gpu_bytes;
    uint64_t bytes = size_bytes;
    for (const struct api_memory *memory = session->memories; memory != NULL; memory = memory->hh.next) {
        if (memory_gpu(memory->memory) == gpu && bytes <= most_bytes) {
            bytes += memory_reserved_bytes(memory->memory);
        }
    }
    return bytes <= most_bytes
               ? STATUS_OK
               : error_set(error, STATUS_LIMIT,
                           "%llu bytes of virtual memory: a process can register %d times the %llu bytes "
                           "that GPU %d has at most",
                           (unsigned long long)size_bytes, API_SESSION_RESERVED_SHARE,
                           (unsigned long long)gpu_bytes, gpu);
}

struct memory_place {
    struct memory_origin origin;
    uint64_t size_bytes;
    const struct memory *memory; /* null: any memory at that place */
    char user[COMM_NAME_MAX_BYTES + 1];
};

static bool memory_note_user(void *context, const struct memory *memory, const char *comm_name)
{
    struct memory_place *place = context;
    bool found = place->memory != NULL ? memory == place->memory
                                       : memory_was_at(memory, &place->origin, place->size_bytes);
    if (found) {
        snprintf(place->user, sizeof place->user, "%s", comm_name);
    }
    return !found;
}

/* Adds the name of the communicator that uses the memory to the text. */
static void memory_name_user(const struct api_session *session, struct memory_place *place,
                             struct error *error)
{
    comms_visit_uses(session->api->comms, memory_note_user, place);
    if (place->user[0] != '\0') {
        struct error why = *error;
        error_set(error, why.status,
                  "%s by an operation on \"%s\": wait for its end, or destroy the communicator", why.text,
                  place->user);
    }
}

/*
 * Other sessions of the process may have registered the earlier memory, too. They learn that it was freed
 * only when they use the place again. The same holds for the one given if its client did not look.
 */
static void memory_close_stale(const struct api_session *session, const struct memory_place *place)
{
    struct api_memory *memory, *next;
    for (struct api_session *each = session->api->sessions; each != NULL; each = each->hh.next) {
        if (each->client.pid != place->origin.process || each->client.uid != place->origin.uid) {
            continue;
        }
        HASH_ITER (hh, each->memories, memory, next) {
            if (!memory_is_used(memory->memory) &&
                memory_was_at(memory->memory, &place->origin, place->size_bytes)) {
                api_memory_forget(each, memory);
            }
        }
    }
}

/* --- Requests that a GPU's thread carries out --- */

/* A request that is answered later. It outlives its session if need be. */
struct api_late {
    struct api_late *prev, *next; /* in the session */
    struct api_session *session;  /* null: it has ended */
    uint64_t request_id;
    uint32_t id; /* of a memory that is being opened; 0: of none */
    bool retried;
    struct budget_account *account; /* of a memory that is being opened: charged for one memory */
    union {
        struct gpu_opening opening;
        struct gpu_mapping mapping;
    } work;
};

static enum status late_new(struct api_session *session, uint64_t request_id, struct api_late **out,
                            struct error *error)
{
    struct api_late *late = NULL;
    if (session->late_count < API_SESSION_LATE_MAX) {
        late = calloc(1, sizeof *late);
    } else {
        return error_set(error, STATUS_LIMIT, "%u requests about memory on GPUs are under way",
                         session->late_count);
    }
    if (late == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a registration");
    }
    late->session = session;
    late->request_id = request_id;
    DL_APPEND(session->lates, late);
    session->late_count++;
    *out = late;
    return STATUS_OK;
}

static void late_free(struct api_late *late)
{
    if (late->session != NULL) {
        DL_DELETE(late->session->lates, late);
        late->session->late_count--;
    }
    if (late->account != NULL) {
        budget_release(late->account, BUDGET_MEMORIES, 1);
        budget_close(late->account);
    }
    free(late);
}

void api_lates_forget(struct api_session *session)
{
    while (session->lates != NULL) {
        struct api_late *late = session->lates;
        DL_DELETE(session->lates, late);
        late->session = NULL;
    }
    session->late_count = 0;
}

static bool is_being_opened(const struct api_session *session, uint32_t id)
{
    const struct api_late *late = session->lates;
    while (late != NULL && (late->account == NULL || late->id != id)) {
        late = late->next;
    }
    return late != NULL;
}

/* --- Opening --- */

static void registration_refused(struct api_session *session, uint64_t request_id, uint64_t size_bytes,
                                 const struct error *error)
{
    if (error->status != STATUS_BUSY) { /* the client will ask again, often */
        api_session_log(session, LOG_LEVEL_INFO, "registration of %llu bytes refused: %s",
                        (unsigned long long)size_bytes, error->text);
    }
    api_session_reply_error(session, request_id, error);
}

/* Takes over the reference to the memory. */
static enum status memory_keep(struct api_session *session, uint32_t id, struct memory *opened,
                               struct error *error)
{
    struct api_memory *memory = calloc(1, sizeof *memory);
    enum status status = memory != NULL ? memory_charge(opened, session->account, error)
                                        : error_set(error, STATUS_NO_MEMORY, "no memory for a registration");
    if (status == STATUS_OK) {
        memory->id = id;
        memory->memory = opened;
        HASH_ADD(hh, session->memories, id, sizeof memory->id, memory);
        status = table_has(memory, hh) ? STATUS_OK
                                       : error_set(error, STATUS_NO_MEMORY, "no memory for a registration");
    }
    if (status != STATUS_OK) {
        memory_unref(opened);
        free(memory);
        return status;
    }
    memory_set_owner(opened, session->client.pid, id);
    memory_set_unmapper(opened, session->api->unmapper);
    session->memory_bytes += memory_size_bytes(opened);
    session->gpu_memory_count += memory_gpu(opened) != MEMORY_OF_HOST;
    return STATUS_OK;
}

/* The place is still in use, by a communicator or because the client has not looked. Returns whether it is
 * tried again. */
static bool opening_retries(struct api_late *late, struct memory_place *place)
{
    if (late->retried) {
        memory_name_user(late->session, place, &late->work.opening.error);
        return false;
    }
    late->retried = true;
    memory_close_stale(late->session, place);
    gpu_memory_open(&late->work.opening); /* behind what is closed now */
    return true;
}

static void opening_failed(struct api_late *late)
{
    struct api_session *session = late->session;
    struct error *error = &late->work.opening.error;
    if (error->status == STATUS_INVALID_ARGUMENT && session->client.uid != geteuid()) {
        struct error why = *error; /* by default, NVIDIA's open kernel modules compare users */
        error_set(error, why.status,
                  "%s (commd runs as user %u, the memory is user %u's: CUDA may open only handles of "
                  "the same user; memory of comm_mem_alloc can be passed to any user)",
                  why.text, (unsigned)geteuid(), (unsigned)session->client.uid);
    }
    registration_refused(session, late->request_id, late->work.opening.size_bytes, error);
}

static void memory_opened(struct gpu_opening *opening)
{
    struct api_late *late = opening->context;
    struct api_session *session = late->session;
    struct memory_place place = {.origin = opening->origin, .size_bytes = opening->size_bytes};
    struct memory *memory = opening->memory;
    if (session != NULL && memory == NULL && opening->error.status == STATUS_BUSY &&
        opening_retries(late, &place)) {
        return;
    }
    if (session == NULL) {
        memory_unref(memory);
        late_free(late);
        return;
    }
    session->gpu_memory_count--; /* memory_keep counts it */
    if (memory == NULL) {
        opening_failed(late);
    } else if (memory_keep(session, late->id, memory, &opening->error) == STATUS_OK) {
        api_session_reply_done(session, late->request_id);
    } else {
        registration_refused(session, late->request_id, opening->size_bytes, &opening->error);
    }
    late_free(late);
}

/* On success the answer comes later. */
static enum status memory_open(struct api_session *session, uint64_t request_id,
                               const Commd__Client__MemRegister *request, uint32_t gpu,
                               const struct cuda_ipc_handle *handle, struct error *error)
{
    struct api_late *late;
    struct gpu_devices *gpus = session->api->gpus;
    enum status status = gpu_calls_check(gpus, gpu, error);
    status = status == STATUS_OK ? budget_charge(session->account, BUDGET_MEMORIES, 1, error) : status;
    if (status != STATUS_OK) {
        return status;
    }
    status = late_new(session, request_id, &late, error);
    if (status != STATUS_OK) {
        budget_release(session->account, BUDGET_MEMORIES, 1);
        return status;
    }
    late->account = budget_ref(session->account);
    late->id = request->memory;
    late->work.opening = (struct gpu_opening){
        .gpus = gpus,
        .gpu = gpu,
        .handle = *handle,
        .size_bytes = request->size_bytes,
        .origin = {.process = session->client.pid, .uid = session->client.uid, .address = request->address},
        .done = memory_opened,
        .context = late};
    session->gpu_memory_count++; /* other users' handles count it from now on */
    gpu_memory_open(&late->work.opening);
    return STATUS_OK;
}

#define OTHER_WAYS                                                                                           \
    "use memory of comm_mem_alloc, or virtual memory with POSIX descriptors as handles (PyTorch: "           \
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"

/*
 * Anybody may know a handle. A user who learned the handle of another user's memory could let commd open it.
 */
static enum status memory_check_handles(const struct api_session *session, struct error *error)
{
    switch (session->api->ipc_handles) {
    case API_IPC_HANDLES_ACCEPT:
        return STATUS_OK;
    case API_IPC_HANDLES_REFUSE:
        return error_set(error, STATUS_PERMISSION,
                         "this commd opens no legacy CUDA IPC handles (cuda_ipc_handles = \"refuse\" in its "
                         "configuration): " OTHER_WAYS);
    case API_IPC_HANDLES_AUTO:
        break;
    }
    for (const struct api_session *each = session->api->sessions; each != NULL; each = each->hh.next) {
        if (each->gpu_memory_count > 0 && each->client.uid != session->client.uid) {
            return error_set(
                error, STATUS_PERMISSION,
                "another user has memory on this node's GPUs, so this commd opens no legacy CUDA "
                "IPC handles of user %u (cuda_ipc_handles = \"auto\" in its "
                "configuration): " OTHER_WAYS,
                (unsigned)session->client.uid);
        }
    }
    return STATUS_OK;
}

/* The pool is that of another memory of the client, or comes along. The caller gets a reference. */
static enum status memory_take_pool(struct api_session *session, const Commd__Client__MemRegister *request,
                                    uint32_t gpu, int fd, struct gpu_pool **out, struct error *error)
{
    if (request->pool_of == 0 && fd >= 0) {
        return gpu_pool_import(session->api->gpus, gpu, fd, out, error);
    }
    if (request->pool_of == 0) {
        return error_set(error, STATUS_PROTOCOL, "memory %u: no file descriptor came with the request",
                         request->memory);
    }
    const struct api_memory *other = api_session_memory(session, request->pool_of);
    struct gpu_pool *pool = other != NULL ? gpu_pool_of(other->memory) : NULL;
    if (pool == NULL || memory_gpu(other->memory) != (int)gpu) {
        return error_set(error, STATUS_NOT_FOUND, "memory %u is not of a memory pool on GPU %u",
                         request->pool_of, gpu);
    }
    *out = gpu_pool_ref(pool);
    return STATUS_OK;
}

/* Whoever has a pool's descriptor got it from its owner, so no user needs to be checked. */
static enum status memory_open_pooled(struct api_session *session, const Commd__Client__MemRegister *request,
                                      uint32_t gpu, int fd, struct memory **out, struct error *error)
{
    struct cuda_pool_pointer data;
    struct gpu_pool *pool = NULL;
    if (request->pool_pointer.len != sizeof data.bytes) {
        return error_set(error, STATUS_PROTOCOL, "memory %u: a pointer of a pool cannot have %zu bytes",
                         request->memory, request->pool_pointer.len);
    }
    memcpy(data.bytes, request->pool_pointer.data, sizeof data.bytes);
    enum status status = memory_take_pool(session, request, gpu, fd, &pool, error);
    if (status == STATUS_OK) {
        status = gpu_pool_open(pool, &data, request->size_bytes, out, error);
    }
    gpu_pool_unref(pool);
    return status;
}

static enum status memory_open_handle(struct api_session *session, uint64_t request_id,
                                      const Commd__Client__MemRegister *request, uint32_t gpu,
                                      struct error *error)
{
    struct cuda_ipc_handle handle;
    if (request->ipc_handle.len != sizeof handle.bytes) {
        return error_set(error, STATUS_PROTOCOL, "memory %u: an IPC handle cannot have %zu bytes",
                         request->memory, request->ipc_handle.len);
    }
    enum status status = memory_check_handles(session, error);
    if (status != STATUS_OK) {
        return status;
    }
    memcpy(handle.bytes, request->ipc_handle.data, sizeof handle.bytes);
    return memory_open(session, request_id, request, gpu, &handle, error);
}

/* Opens what the client offers: a memfd, an allocation on a GPU, or addresses there that are filled later.
 * *out remains null if the answer comes later. */
static enum status memory_import(struct api_session *session, uint64_t request_id,
                                 const Commd__Client__MemRegister *request, int fd, struct memory **out,
                                 struct error *error)
{
    struct gpu_devices *gpus = session->api->gpus;
    int gpu;
    if (request->device_uuid.len == 0) {
        return fd < 0 ? error_set(error, STATUS_PROTOCOL,
                                  "memory %u: no file descriptor came with the request", request->memory)
                      : memory_open_memfd(fd, request->size_bytes, out, error);
    }
    enum status status = api_session_gpu(session, &request->device_uuid, 0, &gpu, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (request->virtual_memory) {
        status = memory_check_reserved(session, gpu, request->size_bytes, error);
        return status != STATUS_OK ? status
                                   : gpu_memory_reserve(gpus, (uint32_t)gpu, request->size_bytes, out, error);
    }
    if (request->pool_pointer.len > 0) {
        return memory_open_pooled(session, request, (uint32_t)gpu, fd, out, error);
    }
    return memory_open_handle(session, request_id, request, (uint32_t)gpu, error);
}

void api_memory_register(struct api_session *session, uint64_t request_id,
                         const Commd__Client__MemRegister *request, int fd)
{
    struct error error;
    struct memory *opened = NULL;
    enum status status = STATUS_OK;
    if (api_session_memory(session, request->memory) != NULL || is_being_opened(session, request->memory)) {
        status = error_set(&error, STATUS_PROTOCOL, "memory %u is registered already", request->memory);
    } else if (HASH_COUNT(session->memories) + session->late_count >= API_SESSION_MEMORIES_MAX) {
        status = error_set(&error, STATUS_LIMIT, "a process can register %d memories at most",
                           API_SESSION_MEMORIES_MAX);
    }
    if (status == STATUS_OK) {
        status = memory_import(session, request_id, request, fd, &opened, &error);
    }
    if (status == STATUS_OK && opened == NULL) {
        return;
    }
    if (status == STATUS_OK) {
        status = memory_keep(session, request->memory, opened, &error);
    }
    if (status == STATUS_OK) {
        api_session_reply_done(session, request_id);
    } else {
        registration_refused(session, request_id, request->size_bytes, &error);
    }
}

/* --- Chunks of virtual memory --- */

static void chunk_refused(struct api_session *session, uint64_t request_id, uint64_t size_bytes,
                          const struct error *error)
{
    api_session_log(session, LOG_LEVEL_INFO, "%llu bytes of a GPU's virtual memory refused: %s",
                    (unsigned long long)size_bytes, error->text);
    api_session_reply_error(session, request_id, error);
}

static void chunk_mapped(struct gpu_mapping *mapping)
{
    struct api_late *late = mapping->context;
    struct api_session *session = late->session;
    if (session != NULL && mapping->status == STATUS_OK) {
        bool registered = false; /* or it was deregistered meanwhile */
        for (const struct api_memory *each = session->memories; each != NULL && !registered;
             each = each->hh.next) {
            registered = each->memory == mapping->memory;
        }
        session->memory_bytes += registered ? mapping->size_bytes : 0;
        api_session_reply_done(session, late->request_id);
    } else if (session != NULL) {
        chunk_refused(session, late->request_id, mapping->size_bytes, &mapping->error);
    }
    late_free(late);
}

/* On success the answer comes later. */
static enum status chunk_map(struct api_session *session, uint64_t request_id, struct memory *memory,
                             uint64_t size_bytes, int fd, struct error *error)
{
    struct api_late *late;
    enum status status =
        memory_gpu(memory) == MEMORY_OF_HOST
            ? error_set(error, STATUS_INVALID_ARGUMENT, "the memory is not virtual memory of a GPU")
            : gpu_calls_check(session->api->gpus, (uint32_t)memory_gpu(memory), error);
    status = status == STATUS_OK ? late_new(session, request_id, &late, error) : status;
    if (status != STATUS_OK) {
        return status;
    }
    late->work.mapping = (struct gpu_mapping){
        .memory = memory, .size_bytes = size_bytes, .done = chunk_mapped, .context = late};
    status = gpu_memory_map_later(&late->work.mapping, fd, error);
    if (status != STATUS_OK) {
        late_free(late);
    }
    return status;
}

void api_memory_map(struct api_session *session, uint64_t request_id, const Commd__Client__MemMap *request,
                    int fd)
{
    struct error error;
    struct api_memory *memory = api_session_memory(session, request->memory);
    if (memory == NULL || fd < 0) {
        error_set(&error, memory == NULL ? STATUS_NOT_FOUND : STATUS_PROTOCOL,
                  memory == NULL ? "memory %u is not registered"
                                 : "memory %u: no file descriptor came with the request",
                  request->memory);
    } else if (chunk_map(session, request_id, memory->memory, request->size_bytes, fd, &error) == STATUS_OK) {
        return;
    }
    chunk_refused(session, request_id, request->size_bytes, &error);
}

/* --- Deregistering --- */

void api_memory_forget(struct api_session *session, struct api_memory *memory)
{
    HASH_DEL(session->memories, memory);
    session->memory_bytes -= memory_size_bytes(memory->memory);
    session->gpu_memory_count -= memory_gpu(memory->memory) != MEMORY_OF_HOST;
    memory_unref(memory->memory);
    free(memory);
}

static void memory_ended(void *context)
{
    struct api_late *late = context;
    if (late->session != NULL) {
        api_session_reply_done(late->session, late->request_id);
    }
    late_free(late);
}

/* The answer says that the memory is closed, if no operation uses it: its client may free it then. */
static void forget_and_tell(struct api_session *session, uint64_t request_id, struct api_memory *memory)
{
    struct api_late *late;
    struct error error;
    bool waits = memory_gpu(memory->memory) != MEMORY_OF_HOST && !memory_is_used(memory->memory);
    if (waits && late_new(session, request_id, &late, &error) == STATUS_OK) {
        memory_when_ended(memory->memory, memory_ended, late);
        api_memory_forget(session, memory);
        return;
    }
    api_memory_forget(session, memory);
    api_session_reply_done(session, request_id);
}

void api_memory_deregister(struct api_session *session, uint64_t request_id,
                           const Commd__Client__MemDeregister *request)
{
    struct api_memory *memory = api_session_memory(session, request->memory);
    struct error error;
    if (memory == NULL) {
        api_session_reply_failure(session, request_id, STATUS_NOT_FOUND, "memory %u is not registered",
                                  request->memory);
        return;
    }
    if (request->if_unused && memory_is_used(memory->memory)) {
        struct memory_place place = {.memory = memory->memory};
        error_set(&error, STATUS_BUSY, "the memory is still in use");
        memory_name_user(session, &place, &error);
        api_session_reply_error(session, request_id, &error);
        return;
    }
    forget_and_tell(session, request_id, memory);
}
