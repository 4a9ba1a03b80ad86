#include <string.h>
#include <unistd.h>

#include "tests/cuda_double/pool.h"

/* Pools that pass from process to process, and their memory. */

#define POINTER_MAGIC 0x636f6d6d64706f6fu

/* What the data of an exported pointer hold. */
struct content {
    uint64_t magic;
    uint64_t pool;
    uint64_t process;
    uint64_t address;
    uint64_t serial;
};

cuda_result cuMemPoolExportToShareableHandle(void *fd, cuda_pool handle, int handle_type,
                                             unsigned long long flags)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct pool *pool = pool_find(handle);
    if (pool == NULL || pool->imported || flags != 0 || handle_type != CUDA_HANDLE_POSIX_FD ||
        (pool->handle_types & handle_type) == 0) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        struct machine_pool of = {.id = pool->id, .physical = device_physical(pool->ordinal)};
        *(int *)fd = machine_export_pool(&of);
        pool->id = of.id;
        result = *(int *)fd >= 0 ? CUDA_RESULT_OK : CUDA_RESULT_OUT_OF_MEMORY;
    }
    return double_end(result);
}

static cuda_result import(int fd, cuda_pool *out)
{
    struct machine_pool of;
    if (!machine_open_pool(fd, &of) || of.process == machine_process()) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    int ordinal = device_ordinal_of(of.physical);
    if (ordinal < 0) {
        return CUDA_RESULT_INVALID_DEVICE;
    }
    struct pool *pool = pool_new(ordinal, 0);
    if (pool == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    pool->imported = true;
    pool->id = of.id;
    *out = pool_handle(pool);
    return CUDA_RESULT_OK;
}

cuda_result cuMemPoolImportFromShareableHandle(cuda_pool *pool, void *fd_as_pointer, int handle_type,
                                               unsigned long long flags)
{
    cuda_result result = double_enter(__func__, ENTER_NOT_CAPTURING);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (handle_type != CUDA_HANDLE_POSIX_FD || flags != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    result = import((int)(intptr_t)fd_as_pointer, pool);
    return double_end(result);
}

cuda_result cuMemPoolExportPointer(struct cuda_pool_pointer *out, cuda_pointer pointer)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    const struct allocation *allocation = pool_find_memory(pointer);
    if (allocation == NULL || allocation->kind != ALLOCATION_POOL || allocation->freeing ||
        allocation->pool->id == 0) { /* nobody can have imported the pool yet */
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        struct content content = {.magic = POINTER_MAGIC,
                                  .pool = allocation->pool->id,
                                  .process = machine_process(),
                                  .address = allocation->address,
                                  .serial = allocation->serial};
        memset(out, 0, sizeof *out);
        memcpy(out->bytes, &content, sizeof content);
    }
    return double_end(result);
}

static bool is_same_import(const struct allocation *one, const struct allocation *other)
{
    return one->kind == ALLOCATION_POOL_IMPORTED && !one->leaves && one->exporter == other->exporter &&
           one->exporter_address == other->exporter_address && one->serial == other->serial;
}

/* Whether this process still has open what the exporter had at these addresses before. */
static bool is_occupied(const struct machine_export *row)
{
    for (const struct allocation *one = allocation_first(); one != NULL; one = allocation_next(one)) {
        if (one->kind == ALLOCATION_POOL_IMPORTED && !one->leaves && one->exporter == row->process &&
            one->serial != row->serial && row->address < one->exporter_address + one->bytes &&
            one->exporter_address < row->address + row->bytes) {
            return true;
        }
    }
    return false;
}

/* Maps the whole block, as CUDA does. But the memory around the allocation cannot be touched. */
static cuda_result map_import(struct pool *pool, struct block *block, const struct machine_export *row,
                              cuda_pointer *pointer)
{
    uint64_t place = arena_reserve(block->of.bytes, 0, 0);
    if (place == 0) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    uint64_t address = place + row->offset;
    struct allocation *allocation = NULL;
    if (arena_map(place, block->of.bytes, block->fd, 0)) {
        allocation = allocation_add(&(struct allocation){.address = address,
                                                         .bytes = row->bytes,
                                                         .kind = ALLOCATION_POOL_IMPORTED,
                                                         .ordinal = pool->ordinal,
                                                         .context = context_now(),
                                                         .memory = arena_memory(address),
                                                         .block = block,
                                                         .block_offset = row->offset,
                                                         .base = address,
                                                         .base_bytes = row->bytes,
                                                         .pool = pool,
                                                         .serial = row->serial,
                                                         .exporter = row->process,
                                                         .exporter_address = row->address});
        if (allocation == NULL) {
            arena_unmap(place, block->of.bytes);
        }
    }
    if (allocation == NULL) {
        arena_free(place, block->of.bytes);
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    pool->references++;
    *pointer = address;
    return CUDA_RESULT_OK;
}

static cuda_result import_pointer(struct pool *pool, const struct content *content, cuda_pointer *pointer)
{
    struct machine_export row;
    struct block *block = NULL;
    if (content->magic != POINTER_MAGIC || content->pool != pool->id || content->serial == 0 ||
        !machine_find(content->process, content->address, &row) || row.serial != content->serial) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    if (is_occupied(&row)) {
        return CUDA_RESULT_ALREADY_MAPPED;
    }
    cuda_result result = block_open(row.block_id, &block);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    result = map_import(pool, block, &row, pointer);
    close(block->fd);
    block->fd = -1;
    if (result == CUDA_RESULT_OK) {
        machine_set_imported(row.process, row.address, row.serial, true);
    } else {
        block_release(block);
    }
    return result;
}

cuda_result cuMemPoolImportPointer(cuda_pointer *pointer, cuda_pool handle, struct cuda_pool_pointer *data)
{
    struct content content;
    cuda_result result = double_enter(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    memcpy(&content, data->bytes, sizeof content);
    double_lock();
    struct pool *pool = pool_find(handle);
    result =
        pool != NULL && pool->imported ? import_pointer(pool, &content, pointer) : CUDA_RESULT_INVALID_VALUE;
    return double_end(result);
}

void pool_end_import(const struct allocation *was)
{
    bool is_last = true;
    for (const struct allocation *one = allocation_first(); one != NULL && is_last;
         one = allocation_next(one)) {
        is_last = !is_same_import(one, was);
    }
    if (is_last) {
        machine_set_imported(was->exporter, was->exporter_address, was->serial, false);
    }
    uint64_t place = was->address - was->block_offset;
    arena_unmap(place, was->block->of.bytes);
    arena_free(place, was->block->of.bytes);
    block_release(was->block);
    pool_unref(was->pool);
}
