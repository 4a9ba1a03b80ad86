#include <unistd.h>

#include "client/lib/internal.h"

/*
 * Memory of CUDA memory pools (cudaMallocAsync). commd imports a pool by descriptor, once, and its
 * allocations one by one.
 *
 * CUDA leaves undefined what happens if an allocation is freed while another process has it open, and the
 * library is not told when that is. So only comm_mem_register registers such memory, never its first use.
 */

/* Makes a descriptor of the pool that the memory is from. */
static comm_result_t export(const void *at, cuda_pool pool, int *out)
{
    cuda_result result = gpu_driver()->pool_export(out, pool, CUDA_HANDLE_POSIX_FD, 0);
    if (result == CUDA_RESULT_INVALID_VALUE || result == CUDA_RESULT_NOT_SUPPORTED) {
        return error_report(
            COMM_UNSUPPORTED,
            "the memory at %p is of a CUDA memory pool (cudaMallocAsync) that cannot be passed "
            "to commd: it is the default pool, has no POSIX descriptors as handles, or is "
            "destroyed; use memory of comm_mem_alloc or cudaMalloc, or a pool of "
            "cudaMemPoolCreate with such handles",
            at);
    }
    return result == CUDA_RESULT_OK ? COMM_OK : gpu_report(result, "cuMemPoolExportToShareableHandle");
}

comm_result_t pool_check(const struct comm_client *client, const void *at, cuda_pool pool, bool is_asked)
{
    int fd = -1;
    if (is_asked && client->takes_pools) {
        return COMM_OK; /* pool_announce exports it */
    }
    comm_result_t result = export(at, pool, &fd);
    if (result != COMM_OK) {
        return result;
    }
    close(fd);
    if (!client->takes_pools) {
        return error_report(
            COMM_UNSUPPORTED,
            "the memory at %p is of a CUDA memory pool (cudaMallocAsync), and this commd is too "
            "old to take it: use memory of comm_mem_alloc or cudaMalloc",
            at);
    }
    return error_report(COMM_UNSUPPORTED,
                        "the memory at %p is of a CUDA memory pool (cudaMallocAsync), and is not "
                        "registered: call comm_mem_register (ncclCommRegister) before it is used, and "
                        "comm_mem_deregister before it is freed; or use memory of comm_mem_alloc",
                        at);
}

/* Finds another memory of the pool that commd has open. As long as that lives, CUDA gives the pool's handle
 * to no other pool. */
static struct client_memory *find_other(const struct comm_client *client, const struct client_memory *memory)
{
    for (size_t i = 0; i < client->memory_count; i++) {
        struct client_memory *other = client->memories[i];
        if (other != memory && other->ready && other->pool == memory->pool && other->gpu == memory->gpu &&
            chunks_are_current(other, other->base, other->base + other->size_bytes)) {
            return other;
        }
    }
    return NULL;
}

static comm_result_t ask(struct comm_client *client, struct client_memory *memory, uint32_t pool_of, int fd)
{
    Commd__Client__Request request;
    Commd__Client__MemRegister body;
    struct cuda_pool_pointer data;
    cuda_result result = gpu_driver()->pool_export_pointer(&data, (cuda_pointer)(uintptr_t)memory->base);
    if (result != CUDA_RESULT_OK) {
        return gpu_report(result, "cuMemPoolExportPointer");
    }
    gpu_memory_describe(&request, &body, memory);
    body.pool_pointer.data = data.bytes;
    body.pool_pointer.len = CUDA_POOL_POINTER_BYTES;
    body.pool_of = pool_of;
    return memory_ask_until(client, &request, memory->id, fd, clock_after_ms(BUSY_TIMEOUT_MS));
}

comm_result_t pool_announce(struct comm_client *client, struct client_memory *memory)
{
    int fd = -1;
    struct client_memory *other = find_other(client, memory);
    if (other != NULL) {
        other->uses++; /* no thread deregisters it meanwhile */
        comm_result_t result = ask(client, memory, other->id, -1);
        memory_unuse(client, other, true);
        pthread_cond_broadcast(&client->changed);
        return result;
    }
    comm_result_t result = export(memory->base, memory->pool, &fd);
    if (result == COMM_OK) {
        result = ask(client, memory, 0, fd);
        close(fd);
    }
    return result;
}

bool gpu_memory_is_kept(const struct client_memory *memory)
{
    struct gpu_scope scope;
    if (memory->pool == NULL || gpu_scope_enter(memory->gpu, &scope) != COMM_OK) {
        return false;
    }
    bool is_current = chunks_are_current(memory, memory->base, memory->base + memory->size_bytes);
    gpu_scope_leave(&scope);
    return is_current;
}
