#include <string.h>
#include <unistd.h>

#include "tests/cuda_double/memory.h"
#include "tests/cuda_double/stream.h"

#define HANDLE_MAGIC 0x6970636d656d6462u

/* What a handle holds. If a process allocates twice at one address, the two handles are the same. */
struct content {
    uint64_t magic;
    uint64_t process;
    uint64_t address;
    struct cuda_uuid device;
};

cuda_result cuIpcGetMemHandle(struct cuda_ipc_handle *handle, cuda_pointer pointer)
{
    struct content content = {.magic = HANDLE_MAGIC, .process = machine_process()};
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    const struct allocation *allocation = allocation_find(pointer);
    if (allocation == NULL || allocation->kind != ALLOCATION_DEVICE) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        content.address = allocation->address;
        device_uuid_of(allocation->context->physical, &content.device);
        memset(handle, 0, sizeof *handle);
        memcpy(handle->bytes, &content, sizeof content);
    }
    return double_end(result);
}

static struct allocation *find_opened(uint64_t block_id, uint64_t offset)
{
    for (struct allocation *one = allocation_first(); one != NULL; one = allocation_next(one)) {
        if (one->kind == ALLOCATION_IMPORTED && one->context == context_now() && !one->leaves &&
            one->block->of.id == block_id && one->block_offset == offset) {
            return one;
        }
    }
    return NULL;
}

/* Whether the exporter had another block at these addresses before, and this process still has that block
 * open, in any context. */
static bool is_occupied(const struct block *block, const struct machine_export *exported)
{
    uint64_t begin = exported->address - exported->offset;
    for (const struct allocation *one = allocation_first(); one != NULL; one = allocation_next(one)) {
        if (one->kind == ALLOCATION_IMPORTED && !one->leaves && one->exporter == exported->process &&
            one->block->of.id != block->of.id && begin < one->exporter_address + one->bytes &&
            one->exporter_address < begin + block->of.bytes) {
            return true;
        }
    }
    return false;
}

static cuda_result map_block(struct block *block, const struct machine_export *exported, int ordinal,
                             cuda_pointer *base)
{
    uint64_t bytes = block->of.bytes;
    uint64_t address = arena_reserve(bytes, 0, 0);
    if (address == 0) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    struct allocation *allocation = NULL;
    if (arena_map(address, bytes, block->fd, 0)) {
        allocation =
            allocation_add(&(struct allocation){.address = address,
                                                .bytes = bytes,
                                                .kind = ALLOCATION_IMPORTED,
                                                .ordinal = ordinal,
                                                .context = context_now(),
                                                .memory = arena_memory(address),
                                                .block = block,
                                                .block_offset = exported->offset,
                                                .base = address + exported->offset,
                                                .base_bytes = exported->bytes,
                                                .exporter = exported->process,
                                                .exporter_address = exported->address - exported->offset,
                                                .references = 1});
    }
    if (allocation == NULL) {
        arena_unmap(address, bytes);
        arena_free(address, bytes);
        return CUDA_RESULT_MAP_FAILED;
    }
    close(block->fd);
    block->fd = -1;
    *base = allocation->base;
    return CUDA_RESULT_OK;
}

/* A process has one struct for each block, however many contexts have opened the block. */
static struct block *find_block(uint64_t id)
{
    for (struct allocation *one = allocation_first(); one != NULL; one = allocation_next(one)) {
        bool imported = one->kind == ALLOCATION_IMPORTED || one->kind == ALLOCATION_POOL_IMPORTED;
        if (imported && one->block->of.id == id) {
            return one->block;
        }
    }
    return NULL;
}

cuda_result block_open(uint64_t id, struct block **out)
{
    struct machine_block of = {.fd = -1};
    cuda_result result = machine_open_id(id, &of);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct block *block = find_block(id);
    if (block != NULL) {
        block->references++;
        block->fd = of.fd;
    } else {
        block = block_new(&of);
    }
    if (block == NULL) {
        close(of.fd);
        machine_leave(id);
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *out = block;
    return CUDA_RESULT_OK;
}

static cuda_result open_handle(cuda_pointer *base, const struct content *content)
{
    struct machine_export exported;
    if (!machine_find(content->process, content->address, &exported) || exported.serial != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    struct allocation *opened = find_opened(exported.block_id, exported.offset);
    if (opened != NULL) {
        opened->references++;
        /* the place in the block is the same, but the exporter may have allocated it anew */
        opened->base_bytes = exported.bytes;
        *base = opened->base;
        return CUDA_RESULT_OK;
    }
    struct block *block = NULL;
    cuda_result result = block_open(exported.block_id, &block);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    int ordinal = device_ordinal_of(block->of.physical);
    if (ordinal < 0) {
        result = CUDA_RESULT_INVALID_DEVICE;
    } else if (ordinal != context_now()->ordinal && !settings()->peer) {
        result = CUDA_RESULT_PEER_ACCESS_UNSUPPORTED;
    } else if (is_occupied(block, &exported)) {
        result = CUDA_RESULT_ALREADY_MAPPED;
    } else {
        result = map_block(block, &exported, ordinal, base);
    }
    if (result != CUDA_RESULT_OK) {
        close(block->fd);
        block->fd = -1;
        block_release(block);
    }
    return result;
}

cuda_result cuIpcOpenMemHandle_v2(cuda_pointer *base, struct cuda_ipc_handle handle, unsigned flags)
{
    struct content content;
    cuda_result result = double_enter(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    memcpy(&content, handle.bytes, sizeof content);
    if (flags != CUDA_IPC_LAZY_PEER_ACCESS || content.magic != HANDLE_MAGIC) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    if (content.process == machine_process()) {
        return CUDA_RESULT_INVALID_CONTEXT;
    }
    double_lock();
    result = open_handle(base, &content);
    return double_end(result);
}

cuda_result cuIpcCloseMemHandle(cuda_pointer base)
{
    cuda_result result = double_begin(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct allocation *allocation = allocation_find(base);
    if (allocation == NULL || allocation->kind != ALLOCATION_IMPORTED || allocation->base != base) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else if (--allocation->references == 0) {
        allocation_forget(allocation);
    }
    return double_end(result);
}
