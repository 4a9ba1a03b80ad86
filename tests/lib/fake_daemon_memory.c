#include "tests/lib/fake_daemon_parts.h"

#include <string.h>
#include <sys/mman.h>

/* Memory: host memory is mapped, memory on a GPU is only noted. */

struct fake_memory *fake_find_memory(struct fake_session *session, uint32_t id)
{
    for (size_t i = 0; i < FAKE_MEMORIES_MAX; i++) {
        if (session->memories[i].id == id) {
            return &session->memories[i];
        }
    }
    return NULL;
}

static void register_on_gpu(struct fake_daemon *daemon, struct fake_memory *memory,
                            const Commd__Client__MemRegister *request)
{
    bool by_handle = request->ipc_handle.len == sizeof daemon->counts.memory_handle;
    fake_must(request->device_uuid.len == sizeof daemon->counts.memory_uuid && request->size_bytes > 0 &&
                  by_handle != (bool)request->virtual_memory && (by_handle || request->ipc_handle.len == 0),
              "memory on a GPU that is not well described");
    *memory = (struct fake_memory){.id = request->memory, .size_bytes = request->size_bytes};
    memory->mapped_bytes = by_handle ? request->size_bytes : 0;
    pthread_mutex_lock(&daemon->lock);
    struct fake_counts *counts = &daemon->counts;
    counts->memories++;
    counts->registered++;
    counts->handles += by_handle;
    counts->virtuals += !by_handle;
    counts->memory_bytes = request->size_bytes;
    memcpy(counts->memory_uuid, request->device_uuid.data, request->device_uuid.len);
    if (by_handle) {
        memcpy(counts->memory_handle, request->ipc_handle.data, request->ipc_handle.len);
        counts->memory_address = request->address;
    }
    fake_unlock(daemon);
}

/* The pool of another memory must be known, or its descriptor comes along. */
static void register_of_pool(struct fake_daemon *daemon, struct fake_session *session,
                             struct fake_memory *memory, const Commd__Client__MemRegister *request, int fd)
{
    const struct fake_memory *other =
        request->pool_of != 0 ? fake_find_memory(session, request->pool_of) : NULL;
    fake_must(fake_current_script(daemon).memory_pools && request->ipc_handle.len == 0 &&
                  !request->virtual_memory && request->size_bytes > 0 &&
                  request->device_uuid.len == sizeof daemon->counts.memory_uuid &&
                  request->pool_pointer.len == sizeof daemon->counts.memory_handle,
              "memory of a pool that is not well described");
    fake_must(request->pool_of == 0 ? fd >= 0 : fd < 0 && other != NULL && other->is_of_pool,
              "a pool that is not known");
    *memory = (struct fake_memory){.id = request->memory,
                                   .size_bytes = request->size_bytes,
                                   .mapped_bytes = request->size_bytes,
                                   .is_of_pool = true};
    pthread_mutex_lock(&daemon->lock);
    struct fake_counts *counts = &daemon->counts;
    counts->memories++;
    counts->registered++;
    counts->pool_pointers++;
    counts->pools += fd >= 0;
    counts->memory_bytes = request->size_bytes;
    memcpy(counts->memory_uuid, request->device_uuid.data, request->device_uuid.len);
    memcpy(counts->memory_handle, request->pool_pointer.data, request->pool_pointer.len);
    fake_unlock(daemon);
}

/* Whether to refuse this registration. A client first asks for room to grow. After a refusal it asks only for
 * what it needs. So every second registration is accepted. */
static bool wants_room(struct fake_daemon *daemon)
{
    pthread_mutex_lock(&daemon->lock);
    bool wants = ++daemon->counts.rooms % 2 == 1;
    fake_unlock(daemon);
    return wants;
}

/* Answers BUSY, as often as the script says. */
static bool is_busy(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id)
{
    uint32_t answers = fake_current_script(daemon).busy_answers;
    pthread_mutex_lock(&daemon->lock);
    bool busy = daemon->counts.busy < answers;
    daemon->counts.busy += busy;
    fake_unlock(daemon);
    if (busy) {
        fake_send_error(session, request_id, STATUS_BUSY, "fake: still in use by \"other\"");
    }
    return busy;
}

void fake_handle_register(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                          const Commd__Client__MemRegister *request, int fd)
{
    uint32_t memories_max = fake_current_script(daemon).memories_max;
    fake_must(request->memory != 0 && fake_find_memory(session, request->memory) == NULL,
              "a memory that is registered");
    if (memories_max != 0 && fake_daemon_counts(daemon).memories >= memories_max) {
        fake_send_error(session, request_id, STATUS_LIMIT, "too many memories");
        return;
    }
    struct fake_memory *memory = fake_find_memory(session, 0);
    fake_must(memory != NULL, "a place for a memory");
    if (request->device_uuid.len > 0) {
        if (fake_current_script(daemon).refuses_gpu_memory) {
            fake_send_error(session, request_id, STATUS_DEVICE, "fake: the GPU does not open it");
            return;
        }
        if (request->virtual_memory && fake_current_script(daemon).room_refused && wants_room(daemon)) {
            fake_send_error(session, request_id, STATUS_LIMIT, "fake: so many addresses are not left");
            return;
        }
        if (!request->virtual_memory && is_busy(daemon, session, request_id)) {
            return;
        }
        if (request->pool_pointer.len > 0) {
            register_of_pool(daemon, session, memory, request, fd);
        } else {
            register_on_gpu(daemon, memory, request);
        }
        fake_send_done(session, request_id);
        return;
    }
    fake_must(fd >= 0, "a registration without a descriptor");
    void *base = mmap(NULL, request->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    fake_must(base != MAP_FAILED, "mmap");
    *memory = (struct fake_memory){.id = request->memory, .base = base, .size_bytes = request->size_bytes};
    memory->mapped_bytes = request->size_bytes;
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.memories++;
    daemon->counts.registered++;
    fake_unlock(daemon);
    fake_send_done(session, request_id);
}

void fake_handle_map(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                     const Commd__Client__MemMap *request, int fd)
{
    struct fake_memory *memory = fake_find_memory(session, request->memory);
    fake_must(request->memory != 0 && memory != NULL && memory->base == NULL, "a part of no virtual memory");
    fake_must(fd >= 0, "a part without a descriptor");
    fake_must(request->size_bytes <= memory->size_bytes - memory->mapped_bytes, "parts beyond the memory");
    memory->mapped_bytes += request->size_bytes;
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.maps++;
    fake_unlock(daemon);
    fake_send_done(session, request_id);
}

void fake_forget_memory(struct fake_daemon *daemon, struct fake_memory *memory)
{
    if (memory->base != NULL) {
        munmap(memory->base, memory->size_bytes);
    }
    memory->id = 0;
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.memories--;
    daemon->counts.withdrawn++;
    fake_unlock(daemon);
}

void fake_handle_deregister(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                            const Commd__Client__MemDeregister *request)
{
    uint32_t id = request->memory;
    struct fake_memory *memory = id != 0 ? fake_find_memory(session, id) : NULL;
    if (memory == NULL) {
        fake_send_error(session, request_id, STATUS_NOT_FOUND, "no such memory");
        return;
    }
    if (request->if_unused && is_busy(daemon, session, request_id)) {
        return;
    }
    fake_forget_memory(daemon, memory);
    fake_send_done(session, request_id);
}
