#include <stdlib.h>
#include <unistd.h>

#include "client/lib/internal.h"

/*
 * Finds GPU memory by the caller's address among the memory that commd has mapped, or passes it to commd by
 * handle. Knowledge of an address is valid only as long as the same memory is there.
 */

#define REGISTERING_POLL_NS 1000000u

/* commd keeps the memory mapped for operations that use it. The struct is freed after the last of them. */
static void forget(struct comm_client *client, struct client_memory *memory)
{
    uint32_t id = memory->id;
    memory_remove(client, memory);
    memory->ready = false;
    memory->owned = false; /* the caller freed it behind our back */
    if (memory->uses > 0) {
        memory->gone = true;
    } else {
        memory_free(memory);
    }
    memory_withdraw(client, id);
}

/* Memory that was freed stays occupied on the GPU as long as commd has it mapped. */
static void forget_stale(struct comm_client *client)
{
    for (size_t i = 0; i < client->memory_count;) {
        struct client_memory *memory = client->memories[i];
        if (memory->gpu != NULL && memory->ready && !memory->growing &&
            !chunks_are_current(memory, memory->base, memory->base + memory->size_bytes)) {
            forget(client, memory);
            i = 0; /* the lock was released meanwhile */
        } else {
            i++;
        }
    }
}

/* --- Telling commd --- */

void gpu_memory_describe(Commd__Client__Request *request, Commd__Client__MemRegister *body,
                         const struct client_memory *memory)
{
    commd__client__request__init(request);
    commd__client__mem_register__init(body);
    request->body_case = COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER;
    request->mem_register = body;
    body->memory = memory->id;
    body->size_bytes = memory->is_virtual ? memory->room_bytes : memory->size_bytes;
    body->device_uuid.data = memory->gpu->uuid.bytes;
    body->device_uuid.len = CUDA_UUID_BYTES;
}

static comm_result_t announce_handle(struct comm_client *client, struct client_memory *memory)
{
    Commd__Client__Request request;
    Commd__Client__MemRegister body;
    struct cuda_ipc_handle handle;
    cuda_result result = gpu_driver()->ipc_get(&handle, (cuda_pointer)(uintptr_t)memory->base);
    if (result != CUDA_RESULT_OK) {
        return gpu_report(result, "cuIpcGetMemHandle");
    }
    gpu_memory_describe(&request, &body, memory);
    body.ipc_handle.data = handle.bytes;
    body.ipc_handle.len = CUDA_IPC_HANDLE_BYTES;
    body.address = (uint64_t)(uintptr_t)memory->base;
    return memory_ask_until(client, &request, memory->id, -1, clock_after_ms(BUSY_TIMEOUT_MS));
}

static comm_result_t announce_chunk(struct comm_client *client, const struct client_memory *memory,
                                    const struct client_chunk *chunk)
{
    int fd = -1;
    comm_result_t result = chunk_export(chunk, &fd);
    if (result != COMM_OK) {
        return result;
    }
    Commd__Client__MemMap body = COMMD__CLIENT__MEM_MAP__INIT;
    body.memory = memory->id;
    body.size_bytes = chunk->size_bytes;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_MEM_MAP;
    request.mem_map = &body;
    result = memory_ask(client, &request, memory->id, fd);
    close(fd);
    return result;
}

static comm_result_t announce_room(struct comm_client *client, const struct client_memory *memory)
{
    Commd__Client__Request request;
    Commd__Client__MemRegister body;
    gpu_memory_describe(&request, &body, memory);
    body.virtual_memory = true;
    return memory_ask(client, &request, memory->id, -1);
}

/*
 * Reserves as much again as there is, within the owner's reservation. So a segment that grows chunk by chunk
 * is registered anew only when its size has doubled, and each chunk is passed about twice. Otherwise each
 * chunk could be passed as often as the segment has chunks.
 */
static size_t room_for(const struct client_memory *memory)
{
    size_t reserved_bytes = chunk_reserved_bytes(memory->base);
    size_t room_bytes = 2 * memory->size_bytes;
    room_bytes = reserved_bytes != 0 && reserved_bytes < room_bytes ? reserved_bytes : room_bytes;
    return room_bytes > memory->size_bytes ? room_bytes : memory->size_bytes;
}

static comm_result_t announce_chunks(struct comm_client *client, struct client_memory *memory, bool may_grow)
{
    memory->room_bytes = may_grow ? room_for(memory) : memory->size_bytes;
    comm_result_t result = announce_room(client, memory);
    if ((result == COMM_LIMIT || result == COMM_NO_MEMORY) && memory->room_bytes > memory->size_bytes) {
        memory->room_bytes = memory->size_bytes;
        result = announce_room(client, memory);
    }
    if (result != COMM_OK) {
        return result;
    }
    for (uint32_t i = 0; i < memory->chunk_count && result == COMM_OK; i++) {
        result = announce_chunk(client, memory, &memory->chunks[i]);
    }
    if (result != COMM_OK) {
        memory_withdraw(client, memory->id);
    }
    return result;
}

static comm_result_t announce(struct comm_client *client, struct client_memory *memory, bool may_grow)
{
    return memory->is_virtual     ? announce_chunks(client, memory, may_grow)
           : memory->pool != NULL ? pool_announce(client, memory)
                                  : announce_handle(client, memory);
}

/* Takes ownership of the chunks. No memory at their addresses may be registered. */
static comm_result_t add_memory(struct comm_client *client, struct client_gpu *gpu,
                                const struct gpu_chunks *chunks, bool may_grow, struct client_memory **out)
{
    struct client_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        free(chunks->list);
        return error_report(COMM_NO_MEMORY, "no memory for a registration");
    }
    const struct client_chunk *last = &chunks->list[chunks->count - 1];
    *memory = (struct client_memory){.id = ++client->last_memory_id,
                                     .base = chunks->list[0].base,
                                     .gpu = gpu,
                                     .is_virtual = chunks->are_virtual,
                                     .pool = chunks->pool,
                                     .chunk_count = chunks->count,
                                     .chunks = chunks->list};
    memory->size_bytes = (size_t)(last->base + last->size_bytes - memory->base);
    comm_result_t result = memory_insert(client, memory);
    if (result == COMM_OK) {
        result = announce(client, memory, may_grow);
        if (result != COMM_OK) {
            memory_remove(client, memory);
        }
    }
    if (result != COMM_OK) {
        memory_free(memory);
        return result;
    }
    memory->ready = true;
    *out = memory;
    return COMM_OK;
}

/* --- Registration at first use --- */

/* Nothing that is registered overlaps the chunks any more. May let go of the lock. */
static comm_result_t make_place(struct comm_client *client, const struct gpu_chunks *chunks)
{
    const unsigned char *begin = chunks->list[0].base;
    const struct client_chunk *last = &chunks->list[chunks->count - 1];
    size_t size_bytes = (size_t)(last->base + last->size_bytes - begin);
    struct client_memory *other;
    while ((other = memory_overlapping(client, begin, size_bytes)) != NULL && client->lost == COMM_OK) {
        if (other->gpu == NULL) {
            return error_report(
                COMM_INVALID_ARGUMENT,
                "the memory at %p is registered as memory of the host: call comm_mem_deregister first",
                (const void *)other->base);
        }
        if (other->ready && !other->growing) {
            forget(client, other);
        } else { /* another thread is working on it */
            client_progress(client, clock_ns() + REGISTERING_POLL_NS);
        }
    }
    return client->lost == COMM_OK ? COMM_OK : error_repeat(client->lost, client->lost_text);
}

/* Takes the chunks one by one, as commd maps them. Operations meanwhile use the earlier chunks. */
static comm_result_t append_chunks(struct comm_client *client, struct client_memory *memory,
                                   const struct gpu_chunks *added)
{
    struct gpu_chunks all = {
        .list = memory->chunks, .count = memory->chunk_count, .capacity = memory->chunk_count};
    comm_result_t result = make_place(client, added);
    for (uint32_t i = 0; i < added->count && result == COMM_OK; i++) {
        result = announce_chunk(client, memory, &added->list[i]);
        if (result == COMM_OK && !chunks_add(&all, &added->list[i])) {
            result = error_report(COMM_NO_MEMORY, "no memory for a registration");
        }
        memory->chunks = all.list;
        if (result == COMM_OK) {
            memory->chunk_count = all.count;
            memory->size_bytes += added->list[i].size_bytes;
        }
    }
    return result;
}

/*
 * Adds to memory that has room for it what is mapped behind it, up to the end at least. False: it is still to
 * be registered, with all around it. May let go of the lock.
 */
static bool grow(struct comm_client *client, struct client_memory *memory, const unsigned char *end)
{
    const unsigned char *from = memory->base + memory->size_bytes;
    struct gpu_chunks added = {0};
    if (!chunks_find_next(memory->gpu, from, memory->base + memory->room_bytes, memory->chunk_count,
                          &added) ||
        added.count == 0 || added.list[added.count - 1].base + added.list[added.count - 1].size_bytes < end) {
        free(added.list);
        return false;
    }
    memory->growing = true;
    memory->uses++;
    comm_result_t result = append_chunks(client, memory, &added);
    memory->growing = false;
    memory->uses--; /* even if 0: it stays in the list, and a thread that drops it waits */
    pthread_cond_broadcast(&client->changed);
    free(added.list);
    if (result != COMM_OK && memory->ready) { /* commd may have mapped more chunks than known here */
        forget(client, memory);
    }
    return result == COMM_OK && memory->ready;
}

/* What commd has mapped, up to where the range begins, and has room for all of it; or null. */
static struct client_memory *growable(const struct comm_client *client, const struct client_gpu *gpu,
                                      const unsigned char *at, size_t size_bytes)
{
    struct client_memory *memory = memory_before(client, at);
    bool fits = memory != NULL && memory->gpu == gpu && memory->is_virtual && memory->ready &&
                size_bytes <= memory->room_bytes &&
                (size_t)(at - memory->base) <= memory->room_bytes - size_bytes;
    return fits ? memory : NULL;
}

/* is_asked: by comm_mem_register, not by an operation. */
static comm_result_t register_memory(struct comm_client *client, struct client_gpu *gpu,
                                     const unsigned char *at, size_t size_bytes, bool is_asked,
                                     struct client_memory **out)
{
    struct gpu_chunks chunks = {0};
    struct client_memory *before;
    forget_stale(client);
    while ((before = growable(client, gpu, at, size_bytes)) != NULL && client->lost == COMM_OK) {
        if (before->growing) { /* by another thread */
            client_progress(client, clock_ns() + REGISTERING_POLL_NS);
        } else if ((size_t)(at - before->base) + size_bytes <= before->size_bytes || /* was grown meanwhile */
                   grow(client, before, at + size_bytes)) {
            *out = before;
            return COMM_OK;
        } else {
            break;
        }
    }
    comm_result_t result = chunks_find(gpu, at, size_bytes, &chunks);
    if (result == COMM_OK && chunks.pool != NULL) {
        result = pool_check(client, chunks.list[0].base, chunks.pool, is_asked);
    }
    result = result == COMM_OK ? make_place(client, &chunks) : result;
    if (result != COMM_OK) {
        free(chunks.list);
        return result;
    }
    return add_memory(client, gpu, &chunks, true, out);
}

/* What is known from its making need not be asked. May let go of the lock. */
static comm_result_t register_made(struct comm_client *client, struct client_gpu *gpu,
                                   const struct gpu_allocation *made)
{
    struct gpu_chunks chunks = {.are_virtual = made->guard_bytes != 0};
    struct client_memory *memory;
    struct client_chunk chunk = {.base = (unsigned char *)(uintptr_t)made->base,
                                 .size_bytes = made->size_bytes};
    forget_stale(client);
    cuda_result identified = chunk_identify(&chunk, chunk.base, chunks.are_virtual);
    if (identified != CUDA_RESULT_OK) {
        return gpu_report(identified, "cuPointerGetAttribute");
    }
    if (!chunks_add(&chunks, &chunk)) {
        return error_report(COMM_NO_MEMORY, "no memory for a registration");
    }
    comm_result_t result = make_place(client, &chunks);
    if (result != COMM_OK) {
        free(chunks.list);
        return result;
    }
    result = add_memory(client, gpu, &chunks, false, &memory);
    if (result == COMM_OK) {
        memory->owned = true;
        memory->guard_bytes = made->guard_bytes;
    }
    return result;
}

/* Sets *on_gpu to whether CUDA knows the address as GPU memory. */
static comm_result_t is_on_gpu(const void *at, bool *on_gpu)
{
    unsigned type = CUDA_MEMORY_HOST;
    cuda_result result = gpu_ask(&type, CUDA_POINTER_MEMORY_TYPE, at);
    *on_gpu = false;
    if (result == CUDA_RESULT_INVALID_VALUE) {
        return COMM_OK; /* any memory of the process */
    }
    if (result != CUDA_RESULT_OK) {
        return gpu_report(result, "cuPointerGetAttribute");
    }
    *on_gpu = type == CUDA_MEMORY_DEVICE || gpu_says(CUDA_POINTER_IS_MANAGED, at);
    return COMM_OK;
}

/* Another thread may be registering the memory: then both use its registration. */
static struct client_memory *find_settled(struct comm_client *client, const unsigned char *at,
                                          size_t size_bytes)
{
    struct client_memory *found;
    while ((found = memory_overlapping(client, at, size_bytes)) != NULL && found->gpu != NULL &&
           !found->ready && client->lost == COMM_OK) {
        client_progress(client, clock_ns() + REGISTERING_POLL_NS);
    }
    return memory_find(client, at, size_bytes);
}

static comm_result_t locate(struct comm_comm *comm, const unsigned char *at, size_t size_bytes,
                            struct client_memory **out)
{
    struct comm_client *client = comm->client;
    struct client_memory *found = find_settled(client, at, size_bytes);
    bool on_gpu = found != NULL && found->gpu != NULL && chunks_are_current(found, at, at + size_bytes);
    if (!on_gpu) {
        comm_result_t result = is_on_gpu(at, &on_gpu);
        if (result != COMM_OK || !on_gpu) {
            return result;
        }
        found = NULL;
    }
    if (comm->gpu == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "the memory at %p is on a GPU, and the communicator's rank is on the host", at);
    }
    if (found == NULL) {
        return register_memory(client, comm->gpu, at, size_bytes, false, out);
    }
    if (found->gpu != comm->gpu) {
        return error_report(COMM_UNSUPPORTED,
                            "the memory at %p is of GPU %d, and the communicator's rank is on GPU %d", at,
                            found->gpu->ordinal, comm->gpu->ordinal);
    }
    *out = found;
    return COMM_OK;
}

comm_result_t gpu_memory_locate(struct comm_comm *comm, const struct client_call *call, const void *at,
                                size_t size_bytes, struct client_memory **out)
{
    struct gpu_scope scope;
    *out = NULL;
    comm_result_t result = gpu_scope_enter(comm->gpu != NULL ? comm->gpu : comm->client->gpus, &scope);
    if (result == COMM_OK) {
        result = locate(comm, at, size_bytes, out);
        gpu_scope_leave(&scope);
    }
    return result == COMM_OK ? COMM_OK : error_within(result, "%s on \"%s\"", call->name, comm->name);
}

/* --- The API's --- */

static comm_result_t find_gpu(struct comm_client *client, int ordinal, struct client_gpu **out)
{
    comm_result_t result = client_enter(client);
    if (result == COMM_OK) {
        result = client->lost != COMM_OK ? error_repeat(client->lost, client->lost_text)
                                         : gpu_open(client, ordinal, out);
        client_leave(client);
    }
    return result;
}

comm_result_t gpu_memory_make(struct comm_client *client, size_t size_bytes, int ordinal, void **out)
{
    struct client_gpu *gpu;
    struct gpu_scope scope;
    struct gpu_allocation made;
    comm_result_t result = find_gpu(client, ordinal, &gpu);
    result = result == COMM_OK ? gpu_scope_enter(gpu, &scope) : result;
    if (result != COMM_OK) {
        return result;
    }
    /* Without the lock: it may wait for streams, which may wait for operations of other threads. */
    result = gpu_allocation_make(gpu, size_bytes, &made);
    if (result != COMM_OK) {
        gpu_scope_leave(&scope);
        return result;
    }
    result = client_enter(client);
    if (result == COMM_OK) {
        result = register_made(client, gpu, &made);
        client_leave(client);
    }
    if (result != COMM_OK && made.guard_bytes == 0) {
        result = error_within(result, "GPU %d cannot make memory that can be passed by descriptor", ordinal);
    }
    if (result != COMM_OK) {
        gpu_allocation_free(&made); /* no work can use it yet */
    } else {
        *out = (void *)(uintptr_t)made.base;
    }
    gpu_scope_leave(&scope);
    return result;
}

static struct gpu_allocation allocation_of(const struct client_memory *memory)
{
    return (struct gpu_allocation){.base = (cuda_pointer)(uintptr_t)memory->base,
                                   .size_bytes = memory->size_bytes,
                                   .guard_bytes = memory->guard_bytes};
}

comm_result_t gpu_memory_await(const struct client_memory *memory)
{
    struct gpu_scope scope;
    struct gpu_allocation allocation = allocation_of(memory);
    if (gpu_scope_enter(memory->gpu, &scope) != COMM_OK) {
        return COMM_OK; /* no work runs there any more */
    }
    comm_result_t result = gpu_allocation_await(&allocation);
    gpu_scope_leave(&scope);
    return result;
}

comm_result_t gpu_memory_announce(struct comm_client *client, struct client_memory *memory)
{
    struct gpu_scope scope;
    comm_result_t result = gpu_scope_enter(memory->gpu, &scope);
    if (result == COMM_OK) {
        result = announce(client, memory, false);
        gpu_scope_leave(&scope);
    }
    return result;
}

void gpu_memory_free(const struct client_memory *memory)
{
    struct gpu_scope scope;
    struct gpu_allocation allocation = allocation_of(memory);
    if (gpu_scope_enter(memory->gpu, &scope) == COMM_OK) {
        gpu_allocation_free(&allocation);
        gpu_scope_leave(&scope);
    }
}

comm_result_t gpu_memory_register(struct comm_client *client, const void *at, size_t size_bytes)
{
    struct client_gpu *gpu;
    struct gpu_scope scope;
    int ordinal = -1;
    bool on_gpu = false;
    comm_result_t result = gpu_scope_enter(client->gpus, &scope);
    if (result != COMM_OK) {
        return result;
    }
    result = is_on_gpu(at, &on_gpu);
    if (result == COMM_OK && (!on_gpu || gpu_ask(&ordinal, CUDA_POINTER_DEVICE, at) != CUDA_RESULT_OK)) {
        result = error_report(COMM_INVALID_ARGUMENT, "%p is no memory on a GPU", at);
    }
    result = result == COMM_OK ? gpu_open(client, ordinal, &gpu) : result;
    struct client_memory *found = result == COMM_OK ? find_settled(client, at, size_bytes) : NULL;
    bool known = found != NULL && found->gpu != NULL &&
                 chunks_are_current(found, at, (const unsigned char *)at + size_bytes);
    if (result == COMM_OK && !known) {
        result = register_memory(client, gpu, at, size_bytes, true, &found);
    }
    gpu_scope_leave(&scope);
    return result;
}
