#include "daemon/dev/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "daemon/base/checked.h"
#include "daemon/dev/memory_internal.h"

static void memory_leave(struct dev_memory *memory)
{
    (void)memory;
}

static void memory_unmap(struct dev_memory *memory)
{
    (void)munmap(memory->base, memory->size_bytes);
}

enum status dev_memory_new(void *base, uint64_t size_bytes, void (*release)(struct dev_memory *memory),
                           struct dev_memory **out, struct error *error)
{
    struct dev_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a registration");
    }
    *memory = (struct dev_memory){.base = base,
                                  .size_bytes = size_bytes,
                                  .mapped_bytes = size_bytes,
                                  .address_bytes = size_bytes,
                                  .references = 1,
                                  .gpu = DEV_GPU_HOST,
                                  .release = release};
    *out = memory;
    return STATUS_OK;
}

enum status dev_memory_import(int fd, uint64_t size_bytes, struct dev_memory **out, struct error *error)
{
    struct stat file;
    struct statfs file_system;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &file) < 0 || fstatfs(fd, &file_system) < 0) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the file descriptor is no memfd");
    }
    if (file_system.f_type == HUGETLBFS_MAGIC) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the memfd is of huge pages (MFD_HUGETLB)");
    }
    if ((seals & F_SEAL_SHRINK) == 0) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "the memfd is not sealed against shrinking (F_SEAL_SHRINK)");
    }
    if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the memfd is sealed against writing");
    }
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the memfd is not open for reading and writing");
    }
    if (size_bytes == 0 || size_bytes > DEV_MEMORY_MAX_BYTES) {
        return error_set(error, size_bytes == 0 ? STATUS_INVALID_ARGUMENT : STATUS_LIMIT,
                         "%llu bytes; expected 1 to %llu", (unsigned long long)size_bytes,
                         (unsigned long long)DEV_MEMORY_MAX_BYTES);
    }
    if (file.st_size < 0 || (uint64_t)file.st_size < size_bytes) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%llu bytes, but the memfd has %lld",
                         (unsigned long long)size_bytes, (long long)file.st_size);
    }
    void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return error_set_errno(error, errno, "mapping %llu bytes of a client",
                               (unsigned long long)size_bytes);
    }
    enum status status = dev_memory_new(base, size_bytes, memory_unmap, out, error);
    if (status != STATUS_OK) {
        munmap(base, size_bytes);
    }
    return status;
}

enum status dev_memory_wrap(void *base, uint64_t size_bytes, struct dev_memory **out, struct error *error)
{
    return dev_memory_new(base, size_bytes, memory_leave, out, error);
}

struct dev_memory *dev_memory_ref(struct dev_memory *memory)
{
    memory->references++;
    return memory;
}

static void memory_discharge(struct budget_account *account, uint64_t address_bytes, uint64_t chunk_count)
{
    budget_release(account, BUDGET_ADDRESSES, address_bytes);
    budget_release(account, BUDGET_MEMORIES, 1);
    budget_release(account, BUDGET_CHUNKS, chunk_count);
    budget_close(account);
}

void dev_memory_unref(struct dev_memory *memory)
{
    if (memory == NULL || --memory->references > 0) {
        return;
    }
    struct budget_account *charged = memory->charged;
    uint64_t address_bytes = memory->address_bytes, chunk_count = memory->chunk_count;
    memory->release(memory);
    free(memory);
    if (charged != NULL) {
        memory_discharge(charged, address_bytes, chunk_count);
    }
}

enum status dev_memory_charge(struct dev_memory *memory, struct budget_account *account, struct error *error)
{
    enum status status = budget_charge(account, BUDGET_ADDRESSES, memory->address_bytes, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = budget_charge(account, BUDGET_MEMORIES, 1, error);
    if (status != STATUS_OK) {
        budget_release(account, BUDGET_ADDRESSES, memory->address_bytes);
        return status;
    }
    memory->charged = budget_ref(account); /* no chunk is mapped before */
    return STATUS_OK;
}

bool dev_memory_is_used(const struct dev_memory *memory)
{
    return memory->references > 1;
}

bool dev_memory_by_ipc(const struct dev_memory *memory)
{
    return memory->by_ipc;
}

int dev_memory_gpu(const struct dev_memory *memory)
{
    return memory->gpu;
}

uint64_t dev_memory_size_bytes(const struct dev_memory *memory)
{
    return memory->mapped_bytes;
}

uint64_t dev_memory_reserved_bytes(const struct dev_memory *memory)
{
    return memory->size_bytes;
}

void *dev_memory_range(const struct dev_memory *memory, uint64_t offset_bytes, uint64_t size_bytes)
{
    return checked_range(offset_bytes, size_bytes, memory->mapped_bytes) ? memory->base + offset_bytes : NULL;
}
