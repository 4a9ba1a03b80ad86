#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "daemon/api/memories.h"
#include "daemon/base/descriptor.h"

/* Memory on GPUs that clients register. A GPU's thread opens it, because the driver may wait for the GPU. */

static bool is_opening(const struct api_late *late)
{
    return late->account != NULL;
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
    for (const struct api_late *late = session->lates; late != NULL; late = late->next) {
        if (is_opening(late) && late->work.opening.kind == GPU_OPENING_ROOM &&
            late->work.opening.gpu == (uint32_t)gpu && bytes <= most_bytes) {
            bytes += late->work.opening.size_bytes;
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

/*
 * Other sessions of the process may have registered the earlier memory, too. They learn that it was freed
 * only when they use the place again. The same holds for the one given if its client did not look.
 */
static void memory_close_stale(const struct api_session *session, const struct api_memory_place *place)
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

bool api_memory_is_being_opened(const struct api_session *session, uint32_t id)
{
    const struct api_late *late = session->lates;
    while (late != NULL && (!is_opening(late) || late->id != id)) {
        late = late->next;
    }
    return late != NULL;
}

/* The place is still in use, by a communicator or because the client has not looked. Returns whether it is
 * tried again. */
static bool opening_retries(struct api_late *late, struct api_memory_place *place)
{
    if (late->retried) {
        api_memory_name_user(late->session, place, &late->work.opening.error);
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
    if (late->work.opening.kind == GPU_OPENING_HANDLE && error->status == STATUS_INVALID_ARGUMENT &&
        session->client.uid != geteuid()) {
        struct error why = *error; /* by default, NVIDIA's open kernel modules compare users */
        error_set(error, why.status,
                  "%s (commd runs as user %u, the memory is user %u's: CUDA may open only handles of "
                  "the same user; memory of comm_mem_alloc can be passed to any user)",
                  why.text, (unsigned)geteuid(), (unsigned)session->client.uid);
    }
    api_registration_refused(session, late->request_id, late->work.opening.size_bytes, error);
}

static void memory_opened(struct gpu_opening *opening)
{
    struct api_late *late = opening->context;
    struct api_session *session = late->session;
    struct api_memory_place place = {.origin = opening->origin, .size_bytes = opening->size_bytes};
    struct memory *memory = opening->memory;
    if (session != NULL && memory == NULL && opening->error.status == STATUS_BUSY &&
        opening_retries(late, &place)) {
        return;
    }
    if (session == NULL) {
        memory_unref(memory);
        api_late_free(late);
        return;
    }
    session->gpu_memory_count--; /* memory_keep counts it */
    if (memory == NULL) {
        opening_failed(late);
    } else if (api_memory_keep(session, late->id, memory, &opening->error) == STATUS_OK) {
        api_session_reply_done(session, late->request_id);
    } else {
        api_registration_refused(session, late->request_id, opening->size_bytes, &opening->error);
    }
    api_late_free(late);
}

/* Opens what the caller has filled in. On success, the answer comes later, and the opening has the pool's
 * reference and the descriptor. */
static enum status open_later(struct api_session *session, uint64_t request_id,
                              const Commd__Client__MemRegister *request, const struct gpu_opening *opening,
                              struct error *error)
{
    struct api_late *late;
    enum status status = gpu_calls_check(opening->gpus, opening->gpu, GPU_CALLS_MEMORY, error);
    status = status == STATUS_OK ? budget_charge(session->account, BUDGET_MEMORIES, 1, error) : status;
    if (status != STATUS_OK) {
        return status;
    }
    status = api_late_new(session, request_id, &late, error);
    if (status != STATUS_OK) {
        budget_release(session->account, BUDGET_MEMORIES, 1);
        return status;
    }
    late->account = budget_ref(session->account);
    late->id = request->memory;
    late->retried = opening->kind != GPU_OPENING_HANDLE;
    late->work.opening = *opening;
    late->work.opening.size_bytes = request->size_bytes;
    late->work.opening.done = memory_opened;
    late->work.opening.context = late;
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

/* The pool is that of another memory of the client, or comes along. */
static enum status take_pool(struct api_session *session, const Commd__Client__MemRegister *request, int fd,
                             struct gpu_opening *opening, struct error *error)
{
    if (request->pool_of == 0) {
        if (fd < 0) {
            return error_set(error, STATUS_PROTOCOL, "memory %u: no file descriptor came with the request",
                             request->memory);
        }
        opening->pool_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        return opening->pool_fd >= 0 ? STATUS_OK : error_set_errno(error, errno, "a copy of a descriptor");
    }
    const struct api_memory *other = api_session_memory(session, request->pool_of);
    struct gpu_pool *pool = other != NULL ? gpu_pool_of(other->memory) : NULL;
    if (pool == NULL || memory_gpu(other->memory) != (int)opening->gpu) {
        return error_set(error, STATUS_NOT_FOUND, "memory %u is not of a memory pool on GPU %u",
                         request->pool_of, opening->gpu);
    }
    opening->pool = gpu_pool_ref(pool); /* which is not the last one: the memory has another */
    return STATUS_OK;
}

/* Whoever has a pool's descriptor got it from its owner, so no user needs to be checked. */
static enum status open_pooled(struct api_session *session, uint64_t request_id,
                               const Commd__Client__MemRegister *request, struct gpu_opening *opening, int fd,
                               struct error *error)
{
    if (request->pool_pointer.len != sizeof opening->pointer.bytes) {
        return error_set(error, STATUS_PROTOCOL, "memory %u: a pointer of a pool cannot have %zu bytes",
                         request->memory, request->pool_pointer.len);
    }
    memcpy(opening->pointer.bytes, request->pool_pointer.data, sizeof opening->pointer.bytes);
    if (fd >= 0 && !descriptor_may_be_asked(fd)) { /* its copy could not be closed at once */
        return error_set(error, STATUS_INVALID_ARGUMENT, "the descriptor does not refer to a memory pool");
    }
    opening->kind = GPU_OPENING_POOLED;
    enum status status = take_pool(session, request, fd, opening, error);
    status = status == STATUS_OK ? open_later(session, request_id, request, opening, error) : status;
    if (status != STATUS_OK) {
        gpu_pool_unref(opening->pool);
        descriptor_close(opening->pool_fd);
    }
    return status;
}

static enum status open_handle(struct api_session *session, uint64_t request_id,
                               const Commd__Client__MemRegister *request, struct gpu_opening *opening,
                               struct error *error)
{
    if (request->ipc_handle.len != sizeof opening->handle.bytes) {
        return error_set(error, STATUS_PROTOCOL, "memory %u: an IPC handle cannot have %zu bytes",
                         request->memory, request->ipc_handle.len);
    }
    enum status status = memory_check_handles(session, error);
    if (status != STATUS_OK) {
        return status;
    }
    memcpy(opening->handle.bytes, request->ipc_handle.data, sizeof opening->handle.bytes);
    opening->kind = GPU_OPENING_HANDLE;
    opening->origin = (struct memory_origin){
        .process = session->client.pid, .uid = session->client.uid, .address = request->address};
    return open_later(session, request_id, request, opening, error);
}

enum status api_memory_open(struct api_session *session, uint64_t request_id,
                            const Commd__Client__MemRegister *request, int fd, struct error *error)
{
    int gpu;
    enum status status = api_session_gpu(session, &request->device_uuid, 0, &gpu, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct gpu_opening opening = {.gpus = session->api->gpus, .gpu = (uint32_t)gpu, .pool_fd = -1};
    if (request->virtual_memory) {
        opening.kind = GPU_OPENING_ROOM;
        status = memory_check_reserved(session, gpu, request->size_bytes, error);
        return status == STATUS_OK ? open_later(session, request_id, request, &opening, error) : status;
    }
    return request->pool_pointer.len > 0 ? open_pooled(session, request_id, request, &opening, fd, error)
                                         : open_handle(session, request_id, request, &opening, error);
}
