#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/api/memories.h"

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

static bool memory_note_user(void *context, const struct memory *memory, const char *comm_name)
{
    struct api_memory_place *place = context;
    bool found = place->memory != NULL ? memory == place->memory
                                       : memory_was_at(memory, &place->origin, place->size_bytes);
    if (found) {
        snprintf(place->user, sizeof place->user, "%s", comm_name);
    }
    return !found;
}

/* Adds the name of the communicator that uses the memory to the text. */
void api_memory_name_user(const struct api_session *session, struct api_memory_place *place,
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

/* --- Requests that a GPU's thread carries out --- */

enum status api_late_new(struct api_session *session, uint64_t request_id, struct api_late **out,
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

void api_late_free(struct api_late *late)
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

/* --- Registering --- */

void api_registration_refused(struct api_session *session, uint64_t request_id, uint64_t size_bytes,
                              const struct error *error)
{
    if (error->status != STATUS_BUSY) { /* the client will ask again, often */
        api_session_log(session, LOG_LEVEL_INFO, "registration of %llu bytes refused: %s",
                        (unsigned long long)size_bytes, error->text);
    }
    api_session_reply_error(session, request_id, error);
}

enum status api_memory_keep(struct api_session *session, uint32_t id, struct memory *opened,
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

void api_memory_register(struct api_session *session, uint64_t request_id,
                         const Commd__Client__MemRegister *request, int fd)
{
    struct error error;
    struct memory *opened = NULL;
    enum status status = STATUS_OK;
    if (api_session_memory(session, request->memory) != NULL ||
        api_memory_is_being_opened(session, request->memory)) {
        status = error_set(&error, STATUS_PROTOCOL, "memory %u is registered already", request->memory);
    } else if (HASH_COUNT(session->memories) + session->late_count >= API_SESSION_MEMORIES_MAX) {
        status = error_set(&error, STATUS_LIMIT, "a process can register %d memories at most",
                           API_SESSION_MEMORIES_MAX);
    }
    if (status == STATUS_OK && request->device_uuid.len > 0) {
        status = api_memory_open(session, request_id, request, fd, &error);
        if (status == STATUS_OK) {
            return; /* the answer comes later */
        }
    } else if (status == STATUS_OK && fd < 0) {
        status = error_set(&error, STATUS_PROTOCOL, "memory %u: no file descriptor came with the request",
                           request->memory);
    } else if (status == STATUS_OK) {
        status = memory_open_memfd(fd, request->size_bytes, &opened, &error);
    }
    if (status == STATUS_OK) {
        status = api_memory_keep(session, request->memory, opened, &error);
    }
    if (status == STATUS_OK) {
        api_session_reply_done(session, request_id);
    } else {
        api_registration_refused(session, request_id, request->size_bytes, &error);
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
    api_late_free(late);
}

/* On success the answer comes later. */
static enum status chunk_map(struct api_session *session, uint64_t request_id, struct memory *memory,
                             uint64_t size_bytes, int fd, struct error *error)
{
    struct api_late *late;
    enum status status =
        memory_gpu(memory) == MEMORY_OF_HOST
            ? error_set(error, STATUS_INVALID_ARGUMENT, "the memory is not virtual memory of a GPU")
            : gpu_calls_check(session->api->gpus, (uint32_t)memory_gpu(memory), GPU_CALLS_MEMORY, error);
    status = status == STATUS_OK ? api_late_new(session, request_id, &late, error) : status;
    if (status != STATUS_OK) {
        return status;
    }
    late->work.mapping = (struct gpu_mapping){
        .memory = memory, .size_bytes = size_bytes, .done = chunk_mapped, .context = late};
    status = gpu_memory_map(&late->work.mapping, fd, error);
    if (status != STATUS_OK) {
        api_late_free(late);
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
    api_late_free(late);
}

/* The answer says that the memory is closed, if no operation uses it: its client may free it then. */
static void forget_and_tell(struct api_session *session, uint64_t request_id, struct api_memory *memory)
{
    struct api_late *late;
    struct error error;
    bool waits = memory_gpu(memory->memory) != MEMORY_OF_HOST && !memory_is_used(memory->memory);
    if (waits && api_late_new(session, request_id, &late, &error) == STATUS_OK) {
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
        struct api_memory_place place = {.memory = memory->memory};
        error_set(&error, STATUS_BUSY, "the memory is still in use");
        api_memory_name_user(session, &place, &error);
        api_session_reply_error(session, request_id, &error);
        return;
    }
    forget_and_tell(session, request_id, memory);
}
